//! `Array`: elements on a device and their layout, without gradients or history.
//!
//! Operations and the engine work on arrays; users and layers work on [`Tensor`](crate::Tensor)s.

use crate::device::Device;
use crate::engine;
use pellucid_ir::backend::{Dense, READY, Storage, View};
use pellucid_ir::kernel::{Kernel, Meta};
use pellucid_ir::{DType, Element, Error, Layout, Result, Scalar, Shape};
use std::sync::Arc;

/// An array of elements of one dtype in a storage, laid out by strides. Clones and views share the storage.
#[derive(Clone, Debug)]
pub struct Array {
    storage: Arc<Storage>,
    layout: Layout,
    dtype: DType,
    device: Device,
}

/// The identity of a storage. It is equal for all views of one storage, and unique while the storage exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StorageId(usize);

impl StorageId {
    pub(crate) fn of(storage: &Arc<Storage>) -> StorageId {
        StorageId(Arc::as_ptr(storage).addr())
    }
}

/// Returns the number of elements.
///
/// # Errors
/// If no memory could hold that many elements.
#[inline]
pub(crate) fn checked_size(shape: &Shape) -> Result<usize> {
    shape.checked_size().ok_or_else(|| Error::absurd_size().with_shape(shape))
}

/// Returns an empty vector with memory for `count` elements. A count that follows from a user's argument must not abort
/// the process, as `Vec::with_capacity` and `collect` would.
pub(crate) fn host_vec<T>(count: usize) -> Result<Vec<T>> {
    let mut values = Vec::new();
    match values.try_reserve_exact(count) {
        Ok(()) => Ok(values),
        Err(_) => Err(Error::out_of_memory(count.saturating_mul(size_of::<T>()))),
    }
}

/// Collects the first `count` values of an iterator.
pub(crate) fn host_values<T>(count: usize, values: impl IntoIterator<Item = T>) -> Result<Vec<T>> {
    let mut list = host_vec(count)?;
    list.extend(values.into_iter().take(count));
    Ok(list)
}

/// Reads of at least this many bytes check for available memory first.
const SMALL_READ: usize = 1 << 20;

impl Array {
    /// Creates an array whose elements the next kernel writes. Memory is allocated by that first write.
    pub fn new(device: Device, dtype: DType, shape: Shape) -> Result<Array> {
        let storage = device.backend().storage(checked_size(&shape)? * dtype.size());
        let storage = storage.map_err(|error| error.with_shape(&shape))?;
        Ok(Array::dense(storage, 0, dtype, shape, device))
    }

    /// Creates an array of the elements of a storage from `offset` on.
    #[inline]
    pub(crate) fn dense(storage: Arc<Storage>, offset: usize, dtype: DType, shape: Shape, device: Device) -> Array {
        Array { storage, layout: Layout::contiguous_from(shape, offset), dtype, device }
    }

    /// Creates an array from elements in row-major order.
    pub fn from_slice<T: Element>(device: Device, data: &[T], shape: Shape) -> Result<Array> {
        Array::from_bytes(device, T::DTYPE, bytemuck::cast_slice(data), shape)
    }

    /// Creates an array from bytes, in row-major order and native byte order.
    pub fn from_bytes(device: Device, dtype: DType, bytes: &[u8], shape: Shape) -> Result<Array> {
        let size = shape.checked_size().map(|n| n * dtype.size());
        if size != Some(bytes.len()) {
            let reason = format!("{} bytes do not fill shape {shape} of {dtype}", bytes.len());
            return Err(Error::invalid("tensor", reason));
        }
        let array = Array::new(device, dtype, shape)?;
        device.backend().upload(bytes, &array.storage)?;
        engine::record_constant(&array);
        Ok(array)
    }

    /// Returns the length of every axis.
    #[inline]
    pub fn shape(&self) -> &Shape {
        self.layout.shape()
    }

    /// Returns the layout of the elements in the storage.
    #[inline]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the type of every element.
    #[inline]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns shape and dtype, from which a kernel infers those of its outputs.
    #[inline]
    pub(crate) fn meta(&self) -> Meta {
        Meta { shape: self.shape().clone(), dtype: self.dtype }
    }

    /// Returns the device that stores the elements.
    #[inline]
    pub fn device(&self) -> Device {
        self.device
    }

    /// Returns the storage, which all views share.
    #[inline]
    pub fn storage(&self) -> &Arc<Storage> {
        &self.storage
    }

    /// Returns true if both arrays share one storage.
    #[inline]
    pub fn shares_storage(&self, other: &Array) -> bool {
        Arc::ptr_eq(&self.storage, &other.storage)
    }

    /// Returns true if this is the only handle of the storage and no elements are repeated, so the storage may be
    /// overwritten.
    #[inline]
    pub(crate) fn is_unique(&self) -> bool {
        Arc::strong_count(&self.storage) == 1 && !self.layout.is_broadcast()
    }

    /// Returns true for an array of [`Array::new`] until a kernel writes it, a recording includes such a write, or a
    /// second handle exists.
    #[inline]
    pub(crate) fn is_new(&self) -> bool {
        let storage: &Storage = &self.storage;
        Arc::strong_count(&self.storage) == 1 && !storage.buffer().is_allocated() && storage.pending() == READY
    }

    /// Returns an array of the same storage with another layout.
    pub fn view(&self, layout: Layout) -> Array {
        Array { storage: self.storage.clone(), layout, dtype: self.dtype, device: self.device }
    }

    /// Broadcasts the array to `shape`, without a copy.
    pub fn broadcast_to(&self, op: &'static str, shape: &Shape) -> Result<Array> {
        checked_size(shape)?;
        match self.layout.broadcast_to(shape) {
            Some(layout) => Ok(self.view(layout)),
            None => {
                let help = "with shapes aligned at the last axis, each length must be 1 or equal to the target's";
                Err(Error::shapes(op, [self.shape(), shape], help))
            }
        }
    }

    /// Returns the elements in row-major order without gaps: a handle of this array if it is contiguous, else a copy.
    pub fn contiguous(&self) -> Result<Array> {
        if self.layout.is_contiguous() { Ok(self.clone()) } else { self.copy() }
    }

    /// Copies the elements to a new storage, in row-major order.
    pub fn copy(&self) -> Result<Array> {
        self.cast(self.dtype)
    }

    /// Copies the elements, converted to `dtype`.
    pub fn cast(&self, dtype: DType) -> Result<Array> {
        let out = Array::new(self.device, dtype, self.shape().clone())?;
        engine::submit(&Kernel::Copy, &[self], &[&out])?;
        Ok(out)
    }

    /// Returns the elements in another shape of equal size. It copies only if the strides do not allow a view.
    pub fn reshape(&self, shape: &Shape) -> Result<Array> {
        match self.layout.reshape(shape) {
            Some(layout) => Ok(self.view(layout)),
            None => {
                let copy = self.copy()?;
                let layout = Layout::contiguous(shape.clone());
                Ok(copy.view(layout))
            }
        }
    }

    /// Copies the bytes of the elements to the host, in row-major order. Errors name the operation `op`.
    #[track_caller]
    pub fn to_bytes(&self, op: &'static str) -> Result<Vec<u8>> {
        engine::ensure_readable(op, self)?;
        let named = |mut error: Error| {
            error.set_operation(op);
            error
        };
        let dense = engine::eager(|| self.contiguous()).map_err(named)?;
        let count = self.shape().size() * self.dtype.size();
        if count >= SMALL_READ {
            // The bytes are read first and then converted, so both vectors exist at once.
            host_vec::<[u8; 2]>(count).map_err(|error| named(error.with_shape(self.shape())))?;
        }
        let mut bytes = vec![0u8; count];
        if !bytes.is_empty() {
            engine::with_read_borrow(&dense.storage, || {
                self.device.backend().download(&dense.storage, dense.layout.offset() * self.dtype.size(), &mut bytes)
            })?;
        }
        Ok(bytes)
    }

    /// Returns the elements in row-major order, on the host, converted to `T`.
    ///
    /// # Errors
    /// [`Error::ReadInCapture`]; [`Error::InvalidArgument`] for an element that the integer type `T` cannot represent.
    #[track_caller]
    pub fn to_vec<T: Element>(&self, op: &'static str) -> Result<Vec<T>> {
        // The check precedes the cast: a refused read must not record a conversion.
        engine::ensure_readable(op, self)?;
        if T::DTYPE.is_int() && self.dtype != T::DTYPE {
            return match self.dtype.is_float() {
                true => self.read_integers::<f64, T>(op, Scalar::Float),
                false => self.read_integers::<i64, T>(op, Scalar::Int),
            };
        }
        let bytes = if self.dtype == T::DTYPE { self.to_bytes(op)? } else { self.cast(T::DTYPE)?.to_bytes(op)? };
        Ok(T::from_bytes(&bytes))
    }

    /// Reads the elements as integers of type `T`, through a type `W` that represents every value of their dtype.
    #[track_caller]
    fn read_integers<W: Element, T: Element>(&self, op: &'static str, widened: fn(W) -> Scalar) -> Result<Vec<T>> {
        let bytes = self.cast(W::DTYPE)?.to_bytes(op)?;
        let exact = |(i, value): (usize, W)| {
            let value = widened(value);
            if T::DTYPE.represents(value) {
                return Ok(T::from_scalar(value));
            }
            let reason = format!(
                "element {i} is {value}, which is not a value of {}; read it as a float or a wider integer, or convert \
                 the tensor with to_dtype(), which rounds towards zero",
                T::DTYPE
            );
            Err(Error::invalid(op, reason))
        };
        W::from_bytes(&bytes).into_iter().enumerate().map(exact).collect()
    }

    /// Returns the array as a dense operand if it is contiguous and has `size` elements or one element.
    #[inline]
    pub(crate) fn as_dense(&self, size: usize) -> Option<Dense<'_>> {
        let count = self.shape().size();
        let dense = self.layout.is_contiguous() && (count == size || count == 1);
        dense.then(|| Dense { storage: &self.storage, offset: self.layout.offset(), once: count != size })
    }

    #[inline]
    pub(crate) fn as_view(&self) -> View<'_> {
        View { storage: &self.storage, layout: &self.layout, dtype: self.dtype }
    }
}
