//! Copies of arrays: from the host, to the host, and to another layout or dtype.

use super::host_constants::host_constant_on;
use super::list::count_upload;
use super::{
    eager, ensure_readable, ensure_ready, is_capturing, is_recorded, is_written, record_constant, record_device_copy,
    submit,
};
use crate::array::{Array, host_vec};
use crate::device::Device;
use crate::idle::release_idle_memory;
use bytemuck::Pod;
use pellucid_ir::backend::{POISONED, READY};
use pellucid_ir::kernel::Kernel;
use pellucid_ir::{DType, Element, Error, Layout, ReadElement, Result, Scalar, Shape};
use std::panic::Location;

/// Reads of at least this many bytes check for available memory first.
const LARGE_READ: usize = 1 << 20;

/// The help of the error for a tensor that a captured step computes or receives on a device other than its own.
pub(crate) const COMPUTED_ELSEWHERE: &str = "the step computes this tensor, or receives it as an input, on a device \
     other than its own; move the input with to(device), or create the tensor on the device of the step, for example \
     with zeros_like, or before the step";

impl Array {
    /// Creates an array from elements in row-major order.
    pub fn from_slice<T: Element>(device: Device, data: &[T], shape: Shape) -> Result<Array> {
        if shape.checked_size() != Some(data.len()) {
            let needs = shape.checked_size().map_or("more than memory can hold".to_string(), |n| n.to_string());
            let reason = format!(
                "{} elements of dtype {} do not fill shape {shape}, which requires {needs}; change the shape, or use full() to \
                 repeat a value",
                data.len(),
                T::DTYPE
            );
            return Err(Error::invalid("tensor", reason));
        }
        Array::from_bytes(device, T::DTYPE, bytemuck::cast_slice(data), shape)
    }

    /// Creates an array from bytes, in row-major order and native byte order.
    pub fn from_bytes(device: Device, dtype: DType, bytes: &[u8], shape: Shape) -> Result<Array> {
        let size = shape.checked_size().map(|n| n * dtype.size());
        if size != Some(bytes.len()) {
            let count = bytes.len();
            let reason = format!("{count} bytes do not fill shape {shape} of {dtype}; change the shape or the dtype");
            return Err(Error::invalid("tensor", reason));
        }
        release_idle_memory();
        let array = Array::new(device, dtype, shape)?;
        device.backend().upload(bytes, array.storage())?;
        count_upload(device, bytes.len())?;
        record_constant(&array);
        Ok(array)
    }

    /// Writes all bytes of a contiguous array that no kernel uses and whose memory may have been released.
    ///
    /// # Errors
    /// The errors of the device; the array then has no values.
    pub(crate) fn refill(&self, bytes: &[u8]) -> Result<()> {
        release_idle_memory();
        self.storage().set_pending(POISONED);
        self.device().backend().upload(bytes, self.storage())?;
        self.storage().bump();
        self.storage().set_pending(READY);
        count_upload(self.device(), bytes.len())
    }

    /// Copies the elements to `device`, in row-major order. A captured step copies once, while it is recorded.
    ///
    /// # Errors
    /// [`Error::ReadInCapture`] if a captured step computes the elements, unless from fills and host values alone,
    /// since a step has one device; the errors of the device.
    #[track_caller]
    pub(crate) fn copy_to_device(&self, device: Device) -> Result<Array> {
        if !is_capturing() {
            let bytes = self.to_bytes("to")?;
            return eager(|| self.upload(device, &bytes));
        }
        let upload = |array: &Array| eager(|| array.upload(device, &array.to_bytes("to")?));
        if is_recorded(self)
            && let Some(copy) = host_constant_on(self, device, upload)?
        {
            return Ok(copy);
        }
        if is_written(self) || !self.storage().buffer().is_allocated() {
            return Err(Error::ReadInCapture { op: "to", location: Location::caller(), help: COMPUTED_ELSEWHERE });
        }
        let copy = upload(self)?;
        record_device_copy(self, &copy);
        Ok(copy)
    }

    /// Copies `bytes`, the elements of this array in row-major order, to a device.
    fn upload(&self, device: Device, bytes: &[u8]) -> Result<Array> {
        let copy = Array::from_bytes(device, self.dtype(), bytes, self.shape().clone());
        copy.map_err(|error| self.copy_error(error))
    }

    /// Adds the operation and the shape to the error of a copy of this array to another device.
    pub(crate) fn copy_error(&self, mut error: Error) -> Error {
        error.set_operation("to");
        error.with_shape(self.shape())
    }

    /// Returns a contiguous array of the elements: another handle to this array if it is contiguous, otherwise a copy.
    pub fn contiguous(&self) -> Result<Array> {
        if self.layout().is_contiguous() { Ok(self.clone()) } else { self.copy() }
    }

    /// Copies the elements to a new storage, in row-major order.
    pub fn copy(&self) -> Result<Array> {
        self.cast(self.dtype())
    }

    /// Copies the elements, converted to `dtype`.
    pub fn cast(&self, dtype: DType) -> Result<Array> {
        let out = Array::new(self.device(), dtype, self.shape().clone())?;
        submit(&Kernel::Copy, &[self], &[&out])?;
        Ok(out)
    }

    /// Returns an array with these elements and another shape of equal size. The elements are copied only if the
    /// strides do not allow a view.
    pub fn reshape(&self, shape: &Shape) -> Result<Array> {
        match self.layout().reshape(shape) {
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
        ensure_readable(op, self)?;
        let named = |mut error: Error| {
            error.set_operation(op);
            error
        };
        let dense = eager(|| self.contiguous()).map_err(named)?;
        ensure_ready(op, dense.storage())?;
        let count = self.shape().size() * self.dtype().size();
        if count >= LARGE_READ {
            // The bytes are read first and then converted, so both vectors exist simultaneously.
            host_vec::<[u8; 2]>(count).map_err(|error| named(error.with_shape(self.shape())))?;
        }
        let mut bytes = vec![0u8; count];
        if !bytes.is_empty() {
            let offset = dense.layout().offset() * self.dtype().size();
            self.device().backend().download(dense.storage(), offset, &mut bytes)?;
        }
        Ok(bytes)
    }

    /// Returns the elements in row-major order, on the host, converted to `T`.
    ///
    /// # Errors
    /// [`Error::ReadInCapture`]; [`Error::InvalidArgument`] for an element that the integer type `T` cannot represent.
    #[track_caller]
    pub fn to_vec<T: Element>(&self, op: &'static str) -> Result<Vec<T>> {
        // The check precedes the cast: a rejected read must not record a conversion.
        ensure_readable(op, self)?;
        if T::DTYPE.is_int() && self.dtype() != T::DTYPE {
            return match self.dtype().is_float() {
                true => self.read_integers::<f64, T>(op, Scalar::Float),
                false => self.read_integers::<i64, T>(op, Scalar::Int),
            };
        }
        let bytes = if self.dtype() == T::DTYPE { self.to_bytes(op)? } else { self.cast(T::DTYPE)?.to_bytes(op)? };
        Ok(T::from_bytes(&bytes))
    }

    /// Returns the elements in row-major order as host values.
    ///
    /// # Errors
    /// The errors of [`Array::to_vec`]; [`Error::InvalidArgument`] for an element that the type `T` cannot represent.
    #[track_caller]
    pub(crate) fn read<T: ReadElement>(&self, op: &'static str) -> Result<Vec<T>> {
        T::from_read(self.to_vec(op)?).map_err(|(i, value)| {
            let name = std::any::type_name::<T>();
            let reason = format!("element {i} is {value:?}, which {name} cannot represent; read it as i64");
            Error::invalid(op, reason)
        })
    }

    /// Returns the first element in row-major order for which `is_wanted` is true, converted to `T`. Contiguous arrays
    /// on the CPU with this element type are read in chunks, without an allocation. Errors are as for
    /// [`Array::to_vec`].
    #[track_caller]
    pub(crate) fn find<T: Element + Pod>(&self, op: &'static str, is_wanted: impl Fn(T) -> bool) -> Result<Option<T>> {
        if self.dtype() != T::DTYPE || !self.layout().is_contiguous() || !self.device().is_cpu() {
            return Ok(self.to_vec::<T>(op)?.into_iter().find(|&value| is_wanted(value)));
        }
        ensure_readable(op, self)?;
        // A large chunk reduces the number of reads of a large array; a small array needs only a small buffer.
        if self.shape().size() <= 128 {
            self.find_in_chunks::<T, 128>(is_wanted)
        } else {
            self.find_in_chunks::<T, 2048>(is_wanted)
        }
    }

    /// Implements [`find`](Array::find) with chunks of `N` elements.
    fn find_in_chunks<T: Element + Pod, const N: usize>(&self, is_wanted: impl Fn(T) -> bool) -> Result<Option<T>> {
        let (mut chunk, width) = ([T::zeroed(); N], T::DTYPE.size());
        self.storage().with_read(|storage| {
            for start in (0..self.shape().size()).step_by(N) {
                let chunk = &mut chunk[..(self.shape().size() - start).min(N)];
                let offset = (self.layout().offset() + start) * width;
                self.device().backend().download_borrowed(storage, offset, bytemuck::cast_slice_mut(chunk))?;
                // Without an early exit, the loop is compiled to vector instructions.
                if chunk.iter().fold(false, |found, &value| found | is_wanted(value)) {
                    return Ok(chunk.iter().copied().find(|&value| is_wanted(value)));
                }
            }
            Ok(None)
        })
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
                "element {i} is {value}, which {} cannot represent; read it as a float or a wider integer, or convert \
                 the tensor with to_dtype(), which rounds towards zero",
                T::DTYPE
            );
            Err(Error::invalid(op, reason))
        };
        W::from_bytes(&bytes).into_iter().enumerate().map(exact).collect()
    }
}
