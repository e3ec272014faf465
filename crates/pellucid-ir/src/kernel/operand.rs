//! The properties of operands, which the rules of the families check.

use super::Meta;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::formula::Program;
use crate::shape::{Layout, Shape};
use smallvec::SmallVec;

/// An operand of a kernel: an array in memory, or a view of a slot of a plan.
pub trait KernelOperand {
    /// Returns the layout in its storage.
    fn layout(&self) -> &Layout;

    /// Returns the type of the elements.
    fn dtype(&self) -> DType;

    /// Returns the length of every axis.
    #[inline]
    fn shape(&self) -> &Shape {
        self.layout().shape()
    }

    /// Returns the shape and the dtype.
    fn meta(&self) -> Meta {
        Meta { shape: self.shape().clone(), dtype: self.dtype() }
    }
}

/// Returns the shapes and dtypes of operands.
pub fn metas<O: KernelOperand>(operands: &[O]) -> SmallVec<[Meta; 9]> {
    operands.iter().map(O::meta).collect()
}

/// Returns true if operands of `dtype` are floats that a kernel computes without conversion, whose factors can be
/// rounded to `half`: `f32` with factors of a half-precision dtype, or `f32` and `f64` with unrounded factors.
pub(super) fn are_factor_dtypes(dtype: DType, half: Option<DType>) -> bool {
    match half {
        None => matches!(dtype, DType::F32 | DType::F64),
        Some(half) => dtype == DType::F32 && matches!(half, DType::F16 | DType::BF16),
    }
}

/// Returns the shape to which all operands broadcast, or `None` if there is none or its size overflows. A size can
/// overflow because broadcast views need little memory.
pub fn common_shape<'a>(operands: impl IntoIterator<Item = &'a (impl KernelOperand + 'a)>) -> Option<Shape> {
    let shape = Shape::broadcast_all(operands.into_iter().map(KernelOperand::shape))?;
    shape.checked_size().map(|_| shape)
}

/// Returns `shape` with the length `len` along `axis`.
///
/// # Errors
/// [`Error::AxisOutOfRange`].
pub(super) fn resize_axis(op: &'static str, shape: &Shape, axis: usize, len: usize) -> Result<Shape> {
    match axis < shape.rank() {
        true => Ok(shape.with_axis(axis, len)),
        false => Err(Error::AxisOutOfRange { op, axis: axis as isize, shape: shape.clone() }),
    }
}

/// Returns an error unless all outputs have the same shape and all inputs broadcast to it.
#[inline]
pub(super) fn check_broadcast<O: KernelOperand>(op: &'static str, inputs: &[O], outputs: &[O]) -> Result<()> {
    let Some(first) = outputs.first() else { return Ok(()) };
    let shape = first.shape();
    if outputs.iter().all(|o| o.shape() == shape) && inputs.iter().all(|i| i.shape().broadcasts_to(shape)) {
        return Ok(());
    }
    Err(shape_error(op, inputs, outputs, "the inputs must broadcast to the shape of the outputs"))
}

/// Returns an error unless the operands have the dtypes for which the program was compiled.
#[inline]
pub(super) fn check_dtypes<O: KernelOperand>(program: &Program, inputs: &[O], outputs: &[O]) -> Result<()> {
    let layout_ok = inputs.len() == program.inputs.len()
        && outputs.len() == program.outputs.len()
        && inputs.iter().zip(&program.inputs).all(|(i, l)| i.dtype() == l.storage)
        && outputs.iter().zip(&program.outputs).all(|(o, s)| o.dtype() == s.storage);
    if layout_ok { Ok(()) } else { Err(dtype_error(program, inputs, outputs)) }
}

/// Returns the error for operands whose dtypes differ from the program's.
#[cold]
pub(super) fn dtype_error<O: KernelOperand>(program: &Program, inputs: &[O], outputs: &[O]) -> Error {
    let expected = program.inputs.iter().map(|l| l.storage).chain(program.outputs.iter().map(|s| s.storage));
    let expected = expected.map(|dtype| dtype.to_string()).collect::<Vec<_>>().join(", ");
    let actual = inputs.iter().chain(outputs).map(|o| o.dtype());
    Error::dtypes(program.name, actual, format!("the program was compiled for {expected}"))
}

/// Returns the error for operands whose shapes do not obey `rule`.
#[cold]
pub(super) fn shape_error<O: KernelOperand>(op: &'static str, inputs: &[O], outputs: &[O], rule: &str) -> Error {
    let shapes = inputs.iter().chain(outputs).map(|o| o.shape());
    Error::shapes(op, shapes, format!("{rule} (the inputs are listed before the outputs)"))
}

/// Returns an error with the text `rule` unless the outputs have the shapes and dtypes `expected`, and layouts for
/// which `layout_ok` is true.
pub(super) fn check_outputs<O: KernelOperand>(
    op: &'static str,
    outputs: &[O],
    expected: &[Meta],
    layout_ok: impl Fn(&Layout) -> bool,
    rule: &str,
) -> Result<()> {
    let is_stored = |(o, m): (&O, &Meta)| *o.shape() == m.shape && layout_ok(o.layout());
    if outputs.len() != expected.len() || !outputs.iter().zip(expected).all(is_stored) {
        return Err(Error::shapes(op, outputs.iter().map(|o| o.shape()), rule));
    }
    match outputs.iter().zip(expected).all(|(o, m)| o.dtype() == m.dtype) {
        true => Ok(()),
        false => Err(Error::dtypes(op, outputs.iter().map(|o| o.dtype()), rule)),
    }
}
