//! Cumulative reductions along an axis.

use crate::autograd::{apply, apply_one, interface::*};
use crate::engine;
use crate::ops::call::axes::Axes;
use crate::ops::elementwise::{arithmetic, compare, transcendental};
use crate::ops::formula::over_axes::over_axes;
use crate::ops::primitive::concatenate::{self, concatenate};
use crate::ops::primitive::gather::scatter_add_along;
use crate::ops::primitive::precision::in_single;
use crate::ops::primitive::via_definition::via_definition;
use crate::ops::primitive::{copy, precision, view};
use crate::ops::shape::rearrange;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::kernel::{self, Kernel, ScanOp};
use pellucid_ir::{DType, Error, Result, Shape};

over_axes! {
    errors = "[`Error::AxisOutOfRange`]; [`Error::InvalidArgument`] for several axes.";

    /// Computes the cumulative sum along an axis, or (`..`) over all elements in row-major order.
    ///
    /// Integers and booleans sum in `i64`.
    cumsum(x; axis) = {
        let (x, axis) = operand("cumsum", x, axis)?;
        apply_one(CumSum { axis, reverse: false }, &[&x])
    }, autocast = Single;
    /// Computes the cumulative product along an axis, or (`..`) over all elements in row-major order.
    ///
    /// Integers and booleans multiply in `i64`. The gradient is exact where elements are zero. The second derivative
    /// stores many arrays with the size of x.
    cumprod(x; axis) =
        cumulative_reduction("cumprod", ScanOp::Prod, |a, b| arithmetic::mul(a, b), x, axis), autocast = Single;
    /// Returns the cumulative maximum along an axis, or (`..`) over all elements, and its `i64` index. Of equal
    /// elements, the last index is returned.
    ///
    /// NaN is the largest value. The gradient goes to that index.
    cummax(x; axis) -> (Tensor, Tensor) = cumulative_extremum("cummax", ScanOp::Max, x, axis);
    /// Returns the cumulative minimum along an axis, or (`..`) over all elements, and its `i64` index. Of equal
    /// elements, the last index is returned.
    ///
    /// NaN is the smallest value. The gradient goes to that index.
    cummin(x; axis) -> (Tensor, Tensor) = cumulative_extremum("cummin", ScanOp::Min, x, axis);
}

over_axes! {
    errors = "[`Error::AxisOutOfRange`]; [`Error::InvalidArgument`] for several axes; [`Error::DTypeMismatch`] for \
              integers.";

    /// Computes ln Σ_{j ≤ i} eˣʲ along an axis, or (`..`) over all elements, without overflow of the powers.
    ///
    /// The error of a result near 0 is absolute, so a small result may have the wrong sign. For up to 8 elements from
    /// −10 to 0, the measured error is at most 1.7e-7 in `f32` and 4.1e-16 in `f64`. The second derivative stores many
    /// arrays with the size of x.
    logcumsumexp(x: floats; axis) =
        cumulative_reduction("logcumsumexp", ScanOp::LogSumExp, |a, b| transcendental::logaddexp(a, b), x, axis),
        autocast = Single;
}

/// Computes yᵢ = Σ_{j ≤ i} xⱼ, or in reverse Σ_{j ≥ i} xⱼ. Its gradient is the sum in the opposite direction.
struct CumSum {
    axis: usize,
    reverse: bool,
}

/// Submits the kernel of a scan. Returns the values, and for extrema their positions.
fn scan(op: ScanOp, axis: usize, reverse: bool, x: &Array) -> Result<Arrays> {
    let mut outputs: Arrays = smallvec![Array::new(x.device(), x.dtype(), x.shape().clone())?];
    if matches!(op, ScanOp::Max | ScanOp::Min) {
        outputs.push(Array::new(x.device(), DType::I64, x.shape().clone())?);
    }
    let kernel = Kernel::Scan(kernel::Scan { op, axis, reverse });
    engine::submit(&kernel, &[x], &outputs.iter().collect::<Vec<_>>())?;
    Ok(outputs)
}

impl Operation for CumSum {
    fn name(&self) -> &'static str {
        "cumsum"
    }
    fn forward(&self, inputs: &[&Array], _: &mut SaveForBackward) -> Result<Arrays> {
        scan(ScanOp::Sum, self.axis, self.reverse, inputs[0])
    }
    fn backward(&self, _: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let reversed = CumSum { axis: self.axis, reverse: !self.reverse };
        Ok(smallvec![Some(apply_one(reversed, &[&grads.get(0)?])?)])
    }
}

/// A cumulative reduction whose gradient is computed by differentiating its definition.
struct CumulativeReduction {
    name: &'static str,
    op: ScanOp,
    axis: usize,
    combine: fn(&Tensor, &Tensor) -> Result<Tensor>,
}

impl CumulativeReduction {
    /// The number of elements of a block in the definition.
    const BLOCK: usize = 8;

    /// Computes y without a division, so elements may be zero.
    fn definition(&self, x: &Tensor) -> Result<Tensor> {
        in_single!(self.name, [x] => self.definition(x));
        // The axis is moved to the front, so that all parts are contiguous.
        let y = self.along_first_axis(&view::movedim(x, [self.axis], [0])?)?;
        view::movedim(&y, [0], [self.axis])
    }

    /// Reduces along the first axis: within blocks, all blocks together, then the totals of the blocks, and combines
    /// each block with the total of all blocks before it (Blelloch 1990).
    fn along_first_axis(&self, x: &Tensor) -> Result<Tensor> {
        let len = x.shape()[0];
        if len <= 2 * Self::BLOCK {
            return concatenate(&self.running(concatenate::split(x, 1, 0)?)?, 0);
        }
        let blocks = len / Self::BLOCK;
        let [full, rest] = split_at(x, 0, blocks * Self::BLOCK)?;
        let dims = |first: [usize; 2]| first.into_iter().chain(x.shape()[1..].iter().copied()).collect::<Shape>();
        let by_block = view::reshape_to(&full, &dims([blocks, Self::BLOCK]))?;
        let columns = copy::contiguous(&view::transpose(&by_block, 0, 1)?)?;
        let running = self.running(concatenate::split(&columns, 1, 0)?)?;
        let totals = view::squeeze(&view::narrow(&running[Self::BLOCK - 1], 1, 0, blocks - 1)?, 0)?;
        let before = view::unsqueeze(&self.along_first_axis(&totals)?, 0)?;
        let [first, later] = split_at(&concatenate(&running, 0)?, 1, 1)?;
        let columns = concatenate(&[&first, &(self.combine)(&before, &later)?], 1)?;
        let y = view::reshape_to(&view::transpose(&columns, 0, 1)?, full.shape())?;
        if rest.shape()[0] == 0 {
            return Ok(y);
        }
        let [y, last] = split_at(&y, 0, full.shape()[0] - 1)?;
        let rest = self.running([vec![last], concatenate::split(&rest, 1, 0)?].concat())?;
        concatenate(&[vec![y], rest].concat(), 0)
    }

    /// Combines each part with the result for the parts before it.
    fn running(&self, mut parts: Vec<Tensor>) -> Result<Vec<Tensor>> {
        for k in 1..parts.len() {
            parts[k] = (self.combine)(&parts[k - 1], &parts[k])?;
        }
        Ok(parts)
    }
}

/// Splits x along an axis into the first `count` elements and the others.
fn split_at(x: &Tensor, axis: usize, count: usize) -> Result<[Tensor; 2]> {
    let lengths = [count, x.shape()[axis] - count];
    let parts = concatenate::split(x, lengths, axis as isize)?;
    Ok(parts.try_into().expect("two lengths must result in two parts"))
}

impl Operation for CumulativeReduction {
    fn name(&self) -> &'static str {
        self.name
    }
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        saves.input(0);
        scan(self.op, self.axis, false, inputs[0])
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let x = saved.input(0)?;
        let gradients = via_definition(&[&x], &[&grads.get(0)?], |x| Ok(vec![self.definition(&x[0])?]))?;
        Ok(gradients.into_iter().map(Some).collect())
    }
}

/// A cumulative maximum or minimum, and its position. The gradient goes to the position.
struct CumulativeExtremum {
    name: &'static str,
    op: ScanOp,
    axis: usize,
}

impl Operation for CumulativeExtremum {
    fn name(&self) -> &'static str {
        self.name
    }
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        saves.output(1);
        scan(self.op, self.axis, false, inputs[0])
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let positions = saved.output(1)?;
        let shape = saved.input_shape(0);
        Ok(smallvec![Some(scatter_add_along(&grads.get(0)?, &positions, self.axis as isize, shape)?)])
    }
}

/// Returns the tensor to scan and the axis. For `..`, the tensor is flattened in row-major order.
fn single_axis(op: &'static str, x: &Tensor, axis: Axes) -> Result<(Tensor, usize)> {
    if axis.is_all() {
        return Ok((view::ravel(x)?, 0));
    }
    let axes = axis.resolve(op, x.shape())?;
    if axes.keepdims {
        return Err(Error::invalid(op, "a scan keeps all axes; leave out keepdims()"));
    }
    match axes.set.iter().collect::<Vec<_>>()[..] {
        [axis] => Ok((x.clone(), axis)),
        ref axes => Err(Error::invalid(op, format!("expected one axis, got {axes:?}; `..` uses the flattened tensor"))),
    }
}

/// Returns the operand in its accumulator dtype, after the cast of autocast, and the axis.
fn operand(op: &'static str, x: &Tensor, axis: Axes) -> Result<(Tensor, usize)> {
    let (x, axis) = single_axis(op, &precision::cast_operand(op, x)?, axis)?;
    Ok((if x.dtype().is_float() { x } else { copy::to_dtype(&x, DType::I64)? }, axis))
}

fn cumulative_reduction(
    name: &'static str,
    op: ScanOp,
    combine: fn(&Tensor, &Tensor) -> Result<Tensor>,
    x: &Tensor,
    axis: Axes,
) -> Result<Tensor> {
    let (x, axis) = operand(name, x, axis)?;
    apply_one(CumulativeReduction { name, op, axis, combine }, &[&x])
}

fn cumulative_extremum(name: &'static str, op: ScanOp, x: &Tensor, axis: Axes) -> Result<(Tensor, Tensor)> {
    let (x, axis) = single_axis(name, x, axis)?;
    let mut outputs = apply(CumulativeExtremum { name, op, axis }, &[&x])?;
    let positions = outputs.pop().expect("the kernel must return positions");
    Ok((outputs.pop().expect("the kernel must return values"), positions))
}

/// Computes the differences xᵢ₊₁ − xᵢ along an axis, `order` times; for booleans, xᵢ₊₁ XOR xᵢ.
///
/// # Errors
/// [`Error::AxisOutOfRange`].
#[tensor_method]
pub fn diff(x: &Tensor, order: usize, axis: isize) -> Result<Tensor> {
    let at = x.shape().axis("diff", axis)?;
    if order > 1 {
        in_single!("diff", [x] => diff(x, order, axis));
    }
    let mut y = x.clone();
    // With as many differences as elements the axis is empty, and more differences change nothing.
    for _ in 0..order.min(x.shape()[at]) {
        let len = y.shape()[at].saturating_sub(1);
        let (low, high) = (view::narrow(&y, axis, 0, len)?, view::narrow(&y, axis, y.shape()[at] - len, len)?);
        y = if x.dtype() == DType::Bool { compare::logical_xor(&high, &low)? } else { arithmetic::sub(&high, &low)? };
    }
    rearrange::copy_if_aliased(x, y)
}
