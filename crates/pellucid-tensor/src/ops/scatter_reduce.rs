//! Values that meet at an index along an axis: their sum, product, mean, or the larger or smaller one.

use super::gather::{along, as_index, fitted, scatter, scatter_add};
use crate::array::Array;
use crate::autograd::{Arrays, Gradients, InputGradients, Needed, Operation, Saved, Saves, apply_one};
use crate::engine;
use crate::ops;
use crate::ops::precision::in_single;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::kernel::{self, Combine, Index, Kernel};
use pellucid_ir::{DType, Error, Result, Scalar};
use smallvec::smallvec;

/// What becomes of the values for one place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScatterReduceOp {
    /// Their sum.
    Sum,
    /// Their product.
    Prod,
    /// Their mean; of integers rounded down.
    Mean,
    /// The largest; NaN if there is one.
    Max,
    /// The smallest; NaN if there is one.
    Min,
}

/// x with every value combined at its place; inputs are x, the values and the index.
struct Meet {
    axis: usize,
    combine: Combine,
}

impl Operation for Meet {
    fn name(&self) -> &'static str {
        "scatter_reduce"
    }
    fn forward(&self, inputs: &[&Array], saves: &mut Saves) -> Result<Arrays> {
        (0..3).for_each(|i| saves.input(i));
        saves.output(0);
        let out = inputs[0].copy()?;
        let kernel = kernel::Scatter { index: Index::Along(self.axis), combine: self.combine };
        engine::submit(&Kernel::Scatter(kernel), &inputs[1..], &[&out])?;
        Ok(smallvec![out])
    }
    fn backward(&self, saved: &Saved, grads: &Gradients, _: Needed) -> Result<InputGradients> {
        let (x, values, index, g) = (saved.input(0)?, saved.input(1)?, saved.input(2)?, grads.get(0)?);
        if self.combine == Combine::Mul {
            let product = |inputs: &[Tensor]| Ok(vec![self.product(&inputs[0], &inputs[1], &index)?]);
            let gradients = ops::via_definition(&[&x, &values], &[&g], product)?;
            return Ok(gradients.into_iter().map(Some).chain([None]).collect());
        }
        // All that are equal to the extremum share its gradient.
        let (axis, y) = (self.axis as isize, saved.output(0)?.detach());
        let number = |mask: Tensor| ops::to_dtype(&mask, g.dtype());
        let here = number(ops::eq(&x, &y)?)?;
        let there = number(ops::eq(&values, &ops::take_along_axis(&y, &index, axis)?)?)?;
        let share = ops::div(&g, &scatter_add(&here, &index, &there, axis)?)?;
        let of_values = ops::mul(&there, &ops::take_along_axis(&share, &index, axis)?)?;
        // Where nothing is equal (NaN), the share is of nothing, and 0·∞ stays NaN.
        Ok(smallvec![Some(ops::mul(&here, &share)?), Some(of_values), None])
    }
}

impl Meet {
    /// The product as that of a table, with one row for every place and every value in the row of its place, 1 elsewhere:
    /// its gradient is right where factors are zero.
    fn product(&self, x: &Tensor, values: &Tensor, index: &Tensor) -> Result<Tensor> {
        in_single!("scatter_reduce", [x, values] => self.product(x, values, index));
        let (axis, len) = (self.axis as isize, x.shape()[self.axis]);
        let places = ops::where_(&ops::lt(index, 0)?, &ops::add(index, len as i64)?, index)?;
        let mut numbers = vec![1; x.rank() + 1];
        numbers[self.axis] = len;
        let numbers = ops::reshape(&ops::indices(len)?, &numbers[..])?;
        let hits = ops::eq(&ops::unsqueeze(&places, axis)?, &numbers)?;
        let table = ops::where_(&hits, &ops::unsqueeze(values, axis)?, 1)?;
        let factors = ops::prod(&table, axis + 1)?;
        let widths: Vec<(isize, isize)> =
            (0..x.rank()).map(|k| (0, (x.shape()[k] - factors.shape()[k]) as isize)).collect();
        ops::mul(x, &ops::pad(&factors, &widths[..], ops::PadMode::Constant(1.into()))?)
    }
}

/// What a place holds before the first value meets it, if it does not count itself: combined with it, a value stays.
pub(super) fn neutral(meeting: ScatterReduceOp, dtype: DType) -> Scalar {
    let bounds = |low: i64, high: i64| if meeting == ScatterReduceOp::Max { low } else { high };
    match (meeting, dtype) {
        (ScatterReduceOp::Sum | ScatterReduceOp::Mean, _) => 0.into(),
        (ScatterReduceOp::Prod, _) => 1.into(),
        (ScatterReduceOp::Max, dtype) if dtype.is_float() => f64::NEG_INFINITY.into(),
        (ScatterReduceOp::Min, dtype) if dtype.is_float() => f64::INFINITY.into(),
        (_, DType::Bool) => (meeting == ScatterReduceOp::Min).into(),
        (_, DType::U8) => bounds(0, 255).into(),
        (_, DType::I8) => bounds(-128, 127).into(),
        (_, DType::I16) => bounds(-32768, 32767).into(),
        (_, DType::I32) => bounds(i32::MIN.into(), i32::MAX.into()).into(),
        _ => bounds(i64::MIN, i64::MAX).into(),
    }
}

/// x with the values that an index along `axis` sends to each place, combined; the place's own element is one of them if
/// `include_self` is true. Places to which nothing is sent stay. The index has x's rank; values beyond its axes are not
/// used. The gradient of an extremum is shared by all that are equal to it; that of a product is right at zeros.
///
/// # Errors
/// [`Error::AxisOutOfRange`], [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::IndexOutOfBounds`].
#[tensor_method]
pub fn scatter_reduce(
    x: &Tensor,
    index: &Tensor,
    values: &Tensor,
    axis: isize,
    meeting: ScatterReduceOp,
    include_self: bool,
) -> Result<Tensor> {
    let op = "scatter_reduce";
    let at = x.shape().axis(op, axis)?;
    let index = as_index(op, index)?;
    along(op, x.shape(), index.shape(), at)?;
    let values = fitted(op, x, &index, values)?;
    if meeting == ScatterReduceOp::Mean {
        if x.dtype() == DType::Bool {
            return Err(Error::dtypes(op, [x.dtype()], "booleans have no mean; use to_dtype()"));
        }
        if x.dtype().is_int() && x.dtype() != DType::I64 {
            // Sums and counts may be outside the range of a narrow dtype.
            let (wide, values) = (ops::to_dtype(x, DType::I64)?, ops::to_dtype(&values, DType::I64)?);
            let means = scatter_reduce(&wide, &index, &values, axis, meeting, include_self)?;
            return ops::to_dtype(&means, x.dtype());
        }
        let values = &values;
        in_single!(op, [x, values] => scatter_reduce(x, &index, values, axis, meeting, include_self));
    }
    let ones = || ops::ones(index.shape(), DType::I64);
    let x = &match include_self {
        true => x.clone(),
        false => {
            let fresh = ops::full(index.shape(), neutral(meeting, x.dtype()), x.dtype())?;
            scatter(x, &index, &fresh, axis)?
        }
    };
    let combine = match meeting {
        ScatterReduceOp::Sum => return scatter_add(x, &index, &values, axis),
        ScatterReduceOp::Mean => {
            let sum = scatter_add(x, &index, &values, axis)?;
            let start = ops::full(x.shape(), i64::from(include_self), DType::I64)?;
            let count = ops::maximum(&scatter_add(&start, &index, &ones()?, axis)?, 1)?;
            let count = ops::to_dtype(&count, x.dtype())?;
            return if x.dtype().is_float() { ops::div(&sum, &count) } else { ops::floor_div(&sum, &count) };
        }
        ScatterReduceOp::Prod => Combine::Mul,
        ScatterReduceOp::Max => Combine::Max,
        ScatterReduceOp::Min => Combine::Min,
    };
    apply_one(Meet { axis: at, combine }, &[x, &values, &index])
}

/// A vector of indices for an axis, stretched to the shape of the slices that belong to it.
fn slices(op: &'static str, x: &Tensor, axis: isize, index: &Tensor, source: &Tensor) -> Result<Tensor> {
    let at = x.shape().axis(op, axis)?;
    let index = as_index(op, index)?;
    if index.rank() > 1 {
        return Err(Error::shapes(op, [index.shape()], "the index is a vector"));
    }
    if *source.shape() != x.shape().with_axis(at, index.size()) {
        let help = format!("the source has the tensor's shape, with one slice an index along axis {at}");
        return Err(Error::shapes(op, [x.shape(), source.shape(), index.shape()], help));
    }
    let beside: Vec<usize> = (0..x.rank()).map(|k| if k == at { index.size() } else { 1 }).collect();
    ops::broadcast_to(&ops::reshape(&index, &beside[..])?, source.shape())
}

/// x with α·(slices of the source) added at these indices of an axis; repeated indices accumulate.
///
/// # Errors
/// [`Error::AxisOutOfRange`], [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::IndexOutOfBounds`];
/// [`Error::InvalidArgument`] for an α that is not a value of an integer dtype.
#[tensor_method]
pub fn index_add(x: &Tensor, axis: isize, index: &Tensor, source: &Tensor, alpha: impl Into<Scalar>) -> Result<Tensor> {
    let index = slices("index_add", x, axis, index, source)?;
    let alpha = alpha.into();
    if !source.dtype().is_float() {
        ops::written_scalar("index_add", alpha, source.dtype())?;
    }
    let scaled = ops::to_dtype(&ops::mul(source, alpha)?, source.dtype())?;
    scatter_add(x, &index, &scaled, axis)
}

/// x with slices of the source put at these indices of an axis; of several for one index the last stays.
///
/// # Errors
/// [`Error::AxisOutOfRange`], [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::IndexOutOfBounds`].
#[tensor_method]
pub fn index_copy(x: &Tensor, axis: isize, index: &Tensor, source: &Tensor) -> Result<Tensor> {
    scatter(x, &slices("index_copy", x, axis, index, source)?, source, axis)
}

/// x with one number, or a 0-d tensor, at these indices of an axis.
///
/// # Errors
/// [`Error::AxisOutOfRange`], [`Error::DTypeMismatch`], [`Error::IndexOutOfBounds`]; [`Error::ShapeMismatch`] for a value of
/// several elements; [`Error::InvalidArgument`] for a number that is not a value of an integer dtype.
#[tensor_method]
pub fn index_fill<'a>(x: &Tensor, axis: isize, index: &Tensor, value: impl Into<ops::Operand<'a>>) -> Result<Tensor> {
    let op = "index_fill";
    let at = x.shape().axis(op, axis)?;
    let value = match value.into() {
        ops::Operand::Borrowed(tensor) => ops::to_dtype(tensor, x.dtype())?,
        ops::Operand::Owned(tensor) => ops::to_dtype(&tensor, x.dtype())?,
        ops::Operand::Scalar(number) => ops::written_scalar(op, number, x.dtype())?,
    };
    if value.rank() > 0 {
        return Err(Error::shapes(op, [x.shape(), value.shape()], "the value is one number"));
    }
    let source = ops::broadcast_to(&value, x.shape().with_axis(at, index.size()))?;
    scatter(x, &slices(op, x, axis, index, &source)?, &source, axis)
}

/// [`scatter_reduce`] of slices: those of the source that a vector of indices sends to one index of an axis are combined.
///
/// # Errors
/// [`Error::AxisOutOfRange`], [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::IndexOutOfBounds`].
#[tensor_method]
pub fn index_reduce(
    x: &Tensor,
    axis: isize,
    index: &Tensor,
    source: &Tensor,
    meeting: ScatterReduceOp,
    include_self: bool,
) -> Result<Tensor> {
    let index = slices("index_reduce", x, axis, index, source)?;
    scatter_reduce(x, &index, source, axis, meeting, include_self)
}
