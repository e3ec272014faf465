//! `Array`: elements on a device, and how they lie there. No gradients, no history.
//!
//! Only operations and the engine see arrays; users and layers see [`Tensor`](crate::Tensor)s.

use crate::device::Device;
use crate::engine;
use pellucid_ir::backend::{Dense, READY, Storage, View};
use pellucid_ir::kernel::{Kernel, Meta};
use pellucid_ir::{DType, Element, Error, Layout, Result, Scalar, Shape};
use std::sync::Arc;

/// Elements of one dtype in a storage, laid out by strides. Clones and views share the storage.
#[derive(Clone, Debug)]
pub struct Array {
    storage: Arc<Storage>,
    layout: Layout,
    dtype: DType,
    device: Device,
}

/// Which memory a tensor has: equal for all views of it, and for nothing else as long as one of them is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StorageId(usize);

impl StorageId {
    pub(crate) fn of(storage: &Arc<Storage>) -> StorageId {
        StorageId(Arc::as_ptr(storage).addr())
    }
}

/// The number of elements, unless no memory could have so many.
#[inline]
pub(crate) fn checked_size(shape: &Shape) -> Result<usize> {
    shape.checked_size().ok_or_else(|| Error::absurd_size().with_shape(shape))
}

/// An empty vector with memory for `count` elements. A count that follows from an argument of the user's must not abort the
/// process, as `Vec::with_capacity` and `collect` would.
pub(crate) fn host_vec<T>(count: usize) -> Result<Vec<T>> {
    let mut values = Vec::new();
    match values.try_reserve_exact(count) {
        Ok(()) => Ok(values),
        Err(_) => Err(Error::out_of_memory(count.saturating_mul(size_of::<T>()))),
    }
}

/// The first `count` values of an iterator.
pub(crate) fn host_values<T>(count: usize, values: impl IntoIterator<Item = T>) -> Result<Vec<T>> {
    let mut list = host_vec(count)?;
    list.extend(values.into_iter().take(count));
    Ok(list)
}

/// Reads of fewer bytes than this do not ask beforehand whether there is memory for them.
const SMALL_READ: usize = 1 << 20;

impl Array {
    /// An array whose elements a kernel is about to write. It has no memory until then.
    pub fn new(device: Device, dtype: DType, shape: Shape) -> Result<Array> {
        let storage = device.backend().storage(checked_size(&shape)? * dtype.size());
        let storage = storage.map_err(|error| error.with_shape(&shape))?;
        Ok(Array::dense(storage, 0, dtype, shape, device))
    }

    /// An array of the elements in a storage from `offset` on.
    #[inline]
    pub(crate) fn dense(storage: Arc<Storage>, offset: usize, dtype: DType, shape: Shape, device: Device) -> Array {
        Array { storage, layout: Layout::contiguous_from(shape, offset), dtype, device }
    }

    /// An array of these elements, in row-major order.
    pub fn from_slice<T: Element>(device: Device, data: &[T], shape: Shape) -> Result<Array> {
        Array::from_bytes(device, T::DTYPE, bytemuck::cast_slice(data), shape)
    }

    /// An array of the elements in these bytes, in row-major order and native byte order.
    pub fn from_bytes(device: Device, dtype: DType, bytes: &[u8], shape: Shape) -> Result<Array> {
        let size = shape.checked_size().map(|n| n * dtype.size());
        if size != Some(bytes.len()) {
            let reason = format!("{} bytes do not fill shape {shape} of {dtype}", bytes.len());
            return Err(Error::invalid("tensor", reason));
        }
        let array = Array::new(device, dtype, shape)?;
        device.backend().upload(bytes, &array.storage)?;
        engine::uploaded(&array);
        Ok(array)
    }

    /// The length of every axis.
    #[inline]
    pub fn shape(&self) -> &Shape {
        self.layout.shape()
    }

    /// How the elements lie in the storage.
    #[inline]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The type of every element.
    #[inline]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Shape and dtype, as kernels infer theirs from.
    #[inline]
    pub(crate) fn meta(&self) -> Meta {
        Meta { shape: self.shape().clone(), dtype: self.dtype }
    }

    /// Where the elements live.
    #[inline]
    pub fn device(&self) -> Device {
        self.device
    }

    /// The storage, which views share.
    #[inline]
    pub fn storage(&self) -> &Arc<Storage> {
        &self.storage
    }

    /// True where both lie in one storage.
    #[inline]
    pub fn shares_storage(&self, other: &Array) -> bool {
        Arc::ptr_eq(&self.storage, &other.storage)
    }

    /// True where nobody else holds the storage, and every byte of it may be overwritten.
    #[inline]
    pub(crate) fn is_unique(&self) -> bool {
        Arc::strong_count(&self.storage) == 1 && !self.layout.is_broadcast()
    }

    /// True for what [`Array::new`] made, until a kernel writes it, a recording promises to, or another handle is made.
    #[inline]
    pub(crate) fn is_new(&self) -> bool {
        let storage: &Storage = &self.storage;
        Arc::strong_count(&self.storage) == 1 && !storage.buffer().is_allocated() && storage.pending() == READY
    }

    /// The same storage under another layout.
    pub fn view(&self, layout: Layout) -> Array {
        Array { storage: self.storage.clone(), layout, dtype: self.dtype, device: self.device }
    }

    /// The same elements stretched to `shape`, without a copy.
    pub fn broadcast_to(&self, op: &'static str, shape: &Shape) -> Result<Array> {
        checked_size(shape)?;
        match self.layout.broadcast_to(shape) {
            Some(layout) => Ok(self.view(layout)),
            None => {
                let help = "aligned at the last axis, a length must be equal to the target's or 1";
                Err(Error::shapes(op, [self.shape(), shape], help))
            }
        }
    }

    /// The same elements in row-major order without gaps: this array if it is so already, else a copy.
    pub fn contiguous(&self) -> Result<Array> {
        if self.layout.is_contiguous() { Ok(self.clone()) } else { self.copy() }
    }

    /// A copy in row-major order, in a storage of its own.
    pub fn copy(&self) -> Result<Array> {
        self.cast(self.dtype)
    }

    /// A copy with every element converted to `dtype`.
    pub fn cast(&self, dtype: DType) -> Result<Array> {
        let out = Array::new(self.device, dtype, self.shape().clone())?;
        engine::submit(&Kernel::Copy, &[self], &[&out])?;
        Ok(out)
    }

    /// The same elements under another shape of equal size; a copy only where strides force one.
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

    /// The elements' bytes in row-major order, on the host. `op` is named where values do not exist.
    #[track_caller]
    pub fn to_bytes(&self, op: &'static str) -> Result<Vec<u8>> {
        engine::force(op, self)?;
        let named = |mut error: Error| {
            error.set_operation(op);
            error
        };
        let dense = engine::eager(|| self.contiguous()).map_err(named)?;
        let count = self.shape().size() * self.dtype.size();
        if count >= SMALL_READ {
            // The elements are read as bytes, and then converted: both lists exist at once.
            host_vec::<[u8; 2]>(count).map_err(|error| named(error.with_shape(self.shape())))?;
        }
        let mut bytes = vec![0u8; count];
        if !bytes.is_empty() {
            engine::reading(&dense.storage, || {
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
        // A refused read must not leave a conversion in the list.
        engine::force(op, self)?;
        if T::DTYPE.is_int() && self.dtype != T::DTYPE {
            return match self.dtype.is_float() {
                true => self.integers::<f64, T>(op, Scalar::Float),
                false => self.integers::<i64, T>(op, Scalar::Int),
            };
        }
        let bytes = if self.dtype == T::DTYPE { self.to_bytes(op)? } else { self.cast(T::DTYPE)?.to_bytes(op)? };
        Ok(T::from_bytes(&bytes))
    }

    /// The elements as integers of a type, read through a type `W` that holds every value of their dtype.
    #[track_caller]
    fn integers<W: Element, T: Element>(&self, op: &'static str, widened: fn(W) -> Scalar) -> Result<Vec<T>> {
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

    /// The array as a backend takes it where it has no gaps, and `size` elements or one.
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
