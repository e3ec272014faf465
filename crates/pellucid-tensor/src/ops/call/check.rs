//! Argument checks that several operations share. `reduce/value_range.rs` checks the elements of tensors.

use crate::device::Device;
use crate::engine;
use crate::tensor::Tensor;
use pellucid_ir::{DType, Error, Result, Shape};
use std::panic::Location;

/// Sets the operation of an error, and its location to the caller's source line.
#[track_caller]
pub(crate) fn named<T>(op: &'static str, mut result: Result<T>) -> Result<T> {
    if let Err(error) = &mut result {
        error.set_operation(op);
        error.set_location(Location::caller());
    }
    result
}

/// Returns an error if a constant argument such as eps or a momentum is not finite.
pub(in crate::ops) fn finite(op: &'static str, name: &str, value: f64) -> Result<()> {
    match value.is_finite() {
        true => Ok(()),
        false => Err(Error::invalid(op, format!("{name} must be finite, got {value}"))),
    }
}

/// Returns an error unless all operands are floats.
pub(in crate::ops) fn floats(op: &'static str, operands: &[&Tensor]) -> Result<()> {
    match operands.iter().all(|x| x.dtype().is_float()) {
        true => Ok(()),
        false => {
            let subject = if operands.len() == 1 { "the input" } else { "all inputs" };
            let help = format!("{subject} must have a float dtype; use to_dtype()");
            Err(Error::dtypes(op, operands.iter().map(|x| x.dtype()), help))
        }
    }
}

/// Returns an error unless the values have the dtype of x.
pub(in crate::ops) fn values_dtype(op: &'static str, x: &Tensor, values: &Tensor) -> Result<()> {
    match values.dtype() == x.dtype() {
        true => Ok(()),
        false => {
            Err(Error::dtypes(op, [x.dtype(), values.dtype()], "values must have the tensor's dtype; use to_dtype()"))
        }
    }
}

/// Returns the shape to which all operands broadcast. If they do not broadcast, the error has the text `help`.
pub(in crate::ops) fn common_shape(op: &'static str, operands: &[&Tensor], help: &str) -> Result<Shape> {
    let shapes = operands.iter().map(|x| x.shape());
    Shape::broadcast_all(shapes.clone()).ok_or_else(|| Error::shapes(op, shapes, help))
}

/// Returns an error unless the mask is a tensor of booleans.
pub(in crate::ops) fn mask_dtype(op: &'static str, mask: &Tensor) -> Result<()> {
    match mask.dtype() {
        DType::Bool => Ok(()),
        dtype => Err(Error::dtypes(op, [dtype], "the mask must be a bool tensor; compare with ne(0)")),
    }
}

/// Returns an error unless the indices are integers.
pub(in crate::ops) fn index_dtype(op: &'static str, index: &Tensor) -> Result<()> {
    match index.dtype().is_int() {
        true => Ok(()),
        false => {
            Err(Error::dtypes(op, [index.dtype()], "indices must have an integer dtype; use to_dtype(DType::I64)"))
        }
    }
}

/// Returns true if the values of `x` can be read immediately: in eager mode, on the CPU.
pub(in crate::ops) fn is_readable(x: &Tensor) -> bool {
    engine::is_eager() && x.device() == Device::cpu()
}

/// Returns the shape, or an error if a length, the number of elements or the number of bytes overflows.
pub(in crate::ops) fn representable(shape: Shape) -> Result<Shape> {
    // The lengths come from unsigned counts, so a negative length is the result of an overflow.
    if shape.has_negative_length() {
        return Err(Error::size_overflow());
    }
    crate::array::checked_size(&shape)?;
    Ok(shape)
}

/// Returns an error if the handles of `count` result tensors do not fit into memory. Callers check this before they
/// create the first result.
pub(in crate::ops) fn affordable_parts(count: usize) -> Result<()> {
    /// The assumed number of bytes of a tensor and its handle, without the elements.
    const HANDLE_BYTES: usize = 256;
    crate::array::host_vec::<[u8; HANDLE_BYTES]>(count).map(drop)
}
