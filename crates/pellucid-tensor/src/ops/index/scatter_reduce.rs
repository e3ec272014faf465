//! Scatter with a reduction of the values that have equal indices: sum, product, mean, maximum or minimum.

use crate::autograd::{apply_one, interface::*};
use crate::engine::outermost_operation;
use crate::ops::call::check;
use crate::ops::elementwise::operand::TensorOrScalar;
use crate::ops::elementwise::{arithmetic, compare};
use crate::ops::formula::broadcast;
use crate::ops::index::scatter::{along_axis, narrow_values, scatter_selected};
use crate::ops::primitive::gather::{Selection, as_index, check_index_shape};
use crate::ops::primitive::precision::in_single;
use crate::ops::primitive::via_definition::via_definition;
use crate::ops::primitive::{copy, create, fill, view};
use crate::ops::reduce::reductions;
use crate::ops::shape::pad::{PaddingMode, pad};
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::kernel::{Index, ScatterOp};
use pellucid_ir::{DType, Error, Result, Scalar};

/// The reduction of the values that are scattered to one element.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScatterReduceOp {
    /// The sum.
    Sum,
    /// The product.
    Prod,
    /// The mean; for integers rounded down.
    Mean,
    /// The maximum; NaN if a value is NaN.
    Max,
    /// The minimum; NaN if a value is NaN.
    Min,
}

/// Computes x with each value combined with the element at its index. The inputs are x, the values and the index.
struct ScatterReduce {
    selection: Selection,
    reduction: ScatterOp,
    /// Whether elements of x to which values are scattered take part in the reduction. Otherwise, the identity of the
    /// reduction replaces them.
    include_self: bool,
}

impl Operation for ScatterReduce {
    fn name(&self) -> &'static str {
        "scatter_reduce"
    }
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        (0..3).for_each(|i| saves.input(i));
        saves.output(0);
        let out = inputs[0].copy()?;
        self.selection.scatter(&inputs[1..], &out, self.reduction)?;
        Ok(smallvec![out])
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let (x, values, index, g) = (saved.input(0)?, saved.input(1)?, saved.input(2)?, grads.get(0)?);
        if self.reduction == ScatterOp::Mul {
            let product = |inputs: &[Tensor]| Ok(vec![self.product(&inputs[0], &inputs[1], &index)?]);
            let gradients = via_definition(&[&x, &values], &[&g], product)?;
            return Ok(gradients.into_iter().map(Some).chain([None]).collect());
        }
        // The gradient of an extremum is shared by all values that are equal to it.
        let y = saved.output(0)?.detach();
        let gather_at_index = |x: &Tensor| self.selection.gather(x, std::slice::from_ref(&index));
        let as_factor = |mask: Tensor| copy::to_dtype(&mask, g.dtype());
        let mut x_ties = as_factor(compare::eq(&x, &y)?)?;
        if !self.include_self {
            let none = broadcast::broadcast_to(&fill::zeros((), g.dtype())?, values.shape())?;
            let selection = self.selection.clone();
            x_ties = scatter_selected(selection, &x_ties, std::slice::from_ref(&index), &none, ScatterOp::Set)?;
        }
        let value_ties = as_factor(compare::eq(&values, &gather_at_index(&y)?)?)?;
        let ties = scatter_selected(
            self.selection.clone(),
            &x_ties,
            std::slice::from_ref(&index),
            &value_ties,
            ScatterOp::Add,
        )?;
        let tie_fraction = arithmetic::div(&g, &ties)?;
        let values_gradient = arithmetic::mul(&value_ties, &gather_at_index(&tie_fraction)?)?;
        // If the extremum is NaN, no value equals it. The number of ties is then 0, and the gradient 0·(1/0) is NaN.
        Ok(smallvec![Some(arithmetic::mul(&x_ties, &tie_fraction)?), Some(values_gradient), None])
    }
}

impl ScatterReduce {
    /// Computes the product from a table with one row for each index of the axis. A row contains the values scattered
    /// to the index, and 1 elsewhere. The gradient is exact where factors are zero.
    fn product(&self, x: &Tensor, values: &Tensor, index: &Tensor) -> Result<Tensor> {
        in_single!("scatter_reduce", [x, values] => self.product(x, values, index));
        let axis_index = self.selection.index.axes()[0];
        let (axis, len) = (axis_index as isize, x.shape()[axis_index]);
        let index = &match self.selection.index {
            Index::Axes(_) => along_axis(index, x.rank(), axis_index)?,
            Index::Along(_) => index.clone(),
        };
        let row_positions = arithmetic::where_(&compare::lt(index, 0)?, &arithmetic::add(index, len as i64)?, index)?;
        let mut indices = vec![1; x.rank() + 1];
        indices[axis_index] = len;
        let indices = view::reshape(&create::indices(len)?, &indices[..])?;
        let hits = compare::eq(&view::unsqueeze(&row_positions, axis)?, &indices)?;
        let table = arithmetic::where_(&hits, &view::unsqueeze(values, axis)?, 1)?;
        let factors = reductions::prod(&table, axis + 1)?;
        let widths: Vec<(isize, isize)> =
            (0..x.rank()).map(|k| (0, (x.shape()[k] - factors.shape()[k]) as isize)).collect();
        arithmetic::mul(x, &pad(&factors, &widths[..], PaddingMode::Constant(1.into()))?)
    }
}

/// Returns the identity of a reduction.
pub(in crate::ops) fn reduction_identity(reduce: ScatterReduceOp, dtype: DType) -> Scalar {
    let bounds = |low: i64, high: i64| if reduce == ScatterReduceOp::Max { low } else { high };
    match (reduce, dtype) {
        (ScatterReduceOp::Sum | ScatterReduceOp::Mean, _) => 0.into(),
        (ScatterReduceOp::Prod, _) => 1.into(),
        (ScatterReduceOp::Max, dtype) if dtype.is_float() => f64::NEG_INFINITY.into(),
        (ScatterReduceOp::Min, dtype) if dtype.is_float() => f64::INFINITY.into(),
        (_, DType::Bool) => (reduce == ScatterReduceOp::Min).into(),
        (_, DType::U8) => bounds(0, 255).into(),
        (_, DType::I8) => bounds(-128, 127).into(),
        (_, DType::I16) => bounds(-32768, 32767).into(),
        (_, DType::I32) => bounds(i32::MIN.into(), i32::MAX.into()).into(),
        _ => bounds(i64::MIN, i64::MAX).into(),
    }
}

/// Scatters values into x along `axis`, and reduces the values with equal indices.
///
/// With `include_self` the reduction includes the element of x. Elements without values are unchanged. The index has
/// x's rank; values beyond its shape are ignored. All values equal to an extremum share its gradient. The gradient of a
/// product is exact where factors are zero.
///
/// # Errors
/// [`Error::AxisOutOfRange`], [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::IndexOutOfBounds`].
#[tensor_method]
pub fn scatter_reduce(
    x: &Tensor,
    axis: isize,
    index: &Tensor,
    values: &Tensor,
    reduce: ScatterReduceOp,
    include_self: bool,
) -> Result<Tensor> {
    let op = "scatter_reduce";
    let axis = x.shape().axis(op, axis)?;
    let index = as_index(op, index)?;
    check_index_shape(op, x.shape(), index.shape(), axis)?;
    let values = narrow_values(op, x, &index, values)?;
    reduce_selected(Selection::along(outermost_operation(op), axis), x, &index, &values, reduce, include_self)
}

/// Computes [`scatter_reduce`] of checked operands at the selected elements.
fn reduce_selected(
    selection: Selection,
    x: &Tensor,
    index: &Tensor,
    values: &Tensor,
    reduce: ScatterReduceOp,
    include_self: bool,
) -> Result<Tensor> {
    let op = selection.op;
    if reduce == ScatterReduceOp::Mean {
        if x.dtype() == DType::Bool {
            return Err(Error::dtypes(op, [x.dtype()], "booleans have no mean; use to_dtype()"));
        }
        if x.dtype().is_int() && x.dtype() != DType::I64 {
            // Sums and counts may exceed the range of a narrow dtype.
            let (wide, values) = (copy::to_dtype(x, DType::I64)?, copy::to_dtype(values, DType::I64)?);
            let means = reduce_selected(selection, &wide, index, &values, reduce, include_self)?;
            return copy::to_dtype(&means, x.dtype());
        }
        in_single!(op, [x, values] => reduce_selected(selection, x, index, values, reduce, include_self));
    }
    let each = |value: Scalar, dtype: DType| broadcast::broadcast_to(&fill::full((), value, dtype)?, values.shape());
    let scatter = |x: &Tensor, values: &Tensor, reduction: ScatterOp| {
        scatter_selected(selection.clone(), x, std::slice::from_ref(index), values, reduction)
    };
    let x = &match include_self {
        true => x.clone(),
        false => scatter(x, &each(reduction_identity(reduce, x.dtype()), x.dtype())?, ScatterOp::Set)?,
    };
    let reduction = match reduce {
        ScatterReduceOp::Sum => return scatter(x, values, ScatterOp::Add),
        ScatterReduceOp::Mean => {
            let sum = scatter(x, values, ScatterOp::Add)?;
            let start = fill::full(x.shape(), i64::from(include_self), DType::I64)?;
            let count = scatter(&start, &each(1.into(), DType::I64)?, ScatterOp::Add)?;
            let count = copy::to_dtype(&arithmetic::maximum(&count, 1)?, x.dtype())?;
            return if x.dtype().is_float() {
                arithmetic::div(&sum, &count)
            } else {
                arithmetic::floor_div(&sum, &count)
            };
        }
        ScatterReduceOp::Prod => ScatterOp::Mul,
        ScatterReduceOp::Max => ScatterOp::Max,
        ScatterReduceOp::Min => ScatterOp::Min,
    };
    apply_one(ScatterReduce { selection, reduction, include_self }, &[x, values, index])
}

/// Returns the selection of slices of x at a vector of indices of an axis, and this vector. Checks the shape of the
/// source.
fn selected_slices(
    op: &'static str,
    x: &Tensor,
    axis: isize,
    index: &Tensor,
    source: &Tensor,
) -> Result<(Selection, Tensor)> {
    let axis = x.shape().axis(op, axis)?;
    let index = as_index(op, index)?;
    if index.rank() > 1 {
        return Err(Error::shapes(op, [index.shape()], "the index must be a vector"));
    }
    if *source.shape() != x.shape().with_axis(axis, index.size()) {
        let help = format!(
            "the source must have the shape of x, but one slice per index along axis {axis}; narrow() the source or the index"
        );
        return Err(Error::shapes(op, [x.shape(), source.shape(), index.shape()], help));
    }
    check::values_dtype(op, x, source)?;
    Ok((Selection::slices(outermost_operation(op), axis), view::ravel(&index)?))
}

/// Adds α·(slices of the source) to a copy of x at indices of an axis; repeated indices accumulate.
///
/// # Errors
/// [`Error::AxisOutOfRange`], [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::IndexOutOfBounds`];
/// [`Error::InvalidArgument`] for an α that an integer dtype cannot represent.
#[tensor_method]
pub fn index_add(x: &Tensor, axis: isize, index: &Tensor, source: &Tensor, alpha: impl Into<Scalar>) -> Result<Tensor> {
    let (selection, index) = selected_slices("index_add", x, axis, index, source)?;
    let alpha = alpha.into();
    if !source.dtype().is_float() {
        fill::check_written("index_add", alpha, source.dtype())?;
    }
    let scaled = match alpha.to_f64() {
        1.0 => source.clone(),
        _ => copy::to_dtype(&arithmetic::mul(source, alpha)?, source.dtype())?,
    };
    scatter_selected(selection, x, &[index], &scaled, ScatterOp::Add)
}

/// Writes slices of the source into a copy of x at indices of an axis. If indices are equal, the last slice is stored.
///
/// # Errors
/// [`Error::AxisOutOfRange`], [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::IndexOutOfBounds`].
#[tensor_method]
pub fn index_copy(x: &Tensor, axis: isize, index: &Tensor, source: &Tensor) -> Result<Tensor> {
    let (selection, index) = selected_slices("index_copy", x, axis, index, source)?;
    scatter_selected(selection, x, &[index], source, ScatterOp::Set)
}

/// Fills the slices of x at indices of an axis with a scalar or a 0-d tensor.
///
/// # Errors
/// [`Error::AxisOutOfRange`], [`Error::DTypeMismatch`], [`Error::IndexOutOfBounds`]; [`Error::ShapeMismatch`] unless
/// the value is 0-d; [`Error::InvalidArgument`] for a value that an integer dtype cannot represent.
#[tensor_method]
pub fn index_fill<'a>(x: &Tensor, axis: isize, index: &Tensor, value: impl Into<TensorOrScalar<'a>>) -> Result<Tensor> {
    let op = "index_fill";
    let at = x.shape().axis(op, axis)?;
    let value = value.into().tensor_or_else(|number| fill::written_scalar(op, number, x.dtype()))?;
    let value = copy::to_dtype(&value, x.dtype())?;
    if value.rank() > 0 {
        return Err(Error::shapes(op, [x.shape(), value.shape()], "the value must be a scalar or 0-d"));
    }
    let source = broadcast::broadcast_to(&value, x.shape().with_axis(at, index.size()))?;
    let (selection, index) = selected_slices(op, x, axis, index, &source)?;
    scatter_selected(selection, x, &[index], &source, ScatterOp::Set)
}

/// Scatters slices of the source into x along an axis, and reduces the slices with equal indices (see
/// [`scatter_reduce`]).
///
/// # Errors
/// [`Error::AxisOutOfRange`], [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::IndexOutOfBounds`].
#[tensor_method]
pub fn index_reduce(
    x: &Tensor,
    axis: isize,
    index: &Tensor,
    source: &Tensor,
    reduce: ScatterReduceOp,
    include_self: bool,
) -> Result<Tensor> {
    let (selection, index) = selected_slices("index_reduce", x, axis, index, source)?;
    reduce_selected(selection, x, &index, source, reduce, include_self)
}
