//! Scatter: writing or adding values at an index along an axis.

use crate::autograd::{apply_one, interface::*};
use crate::engine;
use crate::ops::call::check;
use crate::ops::call::operation_scope::outermost_operation;
use crate::ops::elementwise::{arithmetic, compare};
use crate::ops::primitive::gather::{as_index, check_index_shape, gather_along};
use crate::ops::primitive::{create, fill, view};
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::kernel::{self, Index, Kernel, ScatterReduction};
use pellucid_ir::{DType, Error, Result};

/// Computes x with values written or added at an index along an axis. The inputs are x, the values and the index.
#[derive(Clone, Copy)]
struct ScatterInto {
    op: &'static str,
    from_end: bool,
    axis: usize,
    reduction: ScatterReduction,
}

impl Operation for ScatterInto {
    fn name(&self) -> &'static str {
        if self.reduction == ScatterReduction::Add { "scatter_add" } else { "scatter" }
    }
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        saves.input(2);
        let out = inputs[0].copy()?;
        let &ScatterInto { op, from_end, axis, reduction } = self;
        let kernel = kernel::Scatter { op, from_end, index: Index::Along(axis), reduction };
        engine::submit(&Kernel::Scatter(kernel), &inputs[1..], &[&out])?;
        Ok(smallvec![out])
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, needs: NeedsInputGrad) -> Result<InputGradients> {
        let (g, index) = (grads.get(0)?, saved.input(2)?);
        let gather_at_index = |x: &Tensor| gather_along(self.op, x, &index, self.axis);
        let mut gradients: InputGradients = smallvec![None, None, None];
        if self.reduction == ScatterReduction::Add {
            gradients[1] = needs.contains(1).then(|| gather_at_index(&g)).transpose()?;
            gradients[0] = Some(g);
            return Ok(gradients);
        }
        if needs.contains(0) {
            let zeros = fill::zeros(index.shape().clone(), g.dtype())?;
            gradients[0] = Some(apply_one(*self, &[&g, &zeros, &index])?);
        }
        if needs.contains(1) {
            // If indices are equal, only the last value is stored. Scattering their positions finds it.
            let numbers = create::indices(index.size())?;
            let numbers = view::reshape(&numbers, index.shape())?;
            let places = fill::zeros(g.shape().clone(), DType::I64)?;
            let put = apply_one(*self, &[&places, &numbers, &index])?;
            let stayed = compare::eq(&gather_at_index(&put)?, &numbers)?;
            gradients[1] = Some(arithmetic::where_(&stayed, &gather_at_index(&g)?, 0)?);
        }
        Ok(gradients)
    }
}

fn scatter_into(
    x: &Tensor,
    index: &Tensor,
    values: &Tensor,
    axis: isize,
    reduction: ScatterReduction,
) -> Result<Tensor> {
    let op = if reduction == ScatterReduction::Add { "scatter_add" } else { "scatter" };
    let axis = x.shape().axis(op, axis)?;
    let index = as_index(op, index)?;
    check_index_shape(op, x.shape(), index.shape(), axis)?;
    let values = narrow_values(op, x, &index, values)?;
    let op = outermost_operation(op);
    apply_one(ScatterInto { op, from_end: true, axis, reduction }, &[x, &values, &index])
}

/// Computes [`scatter`] of operands that fit, at indices of which none may be negative. Errors name `op`.
pub(in crate::ops) fn scatter_from_start(
    op: &'static str,
    x: &Tensor,
    index: &Tensor,
    values: &Tensor,
    axis: usize,
) -> Result<Tensor> {
    let scatter = ScatterInto { op, from_end: false, axis, reduction: ScatterReduction::Set };
    apply_one(scatter, &[x, values, &as_index(op, index)?])
}

/// Returns the values, narrowed to the shape of the index.
pub(in crate::ops) fn narrow_values(op: &'static str, x: &Tensor, index: &Tensor, values: &Tensor) -> Result<Tensor> {
    let fits = values.rank() == index.rank() && (0..index.rank()).all(|k| index.shape()[k] <= values.shape()[k]);
    if !fits {
        let help = "no axis of the values may be shorter than the same axis of the index";
        return Err(Error::shapes(op, [values.shape(), index.shape()], help));
    }
    check::values_dtype(op, x, values)?;
    let mut values = values.clone();
    for k in 0..index.rank() {
        if values.shape()[k] > index.shape()[k] {
            values = view::narrow(&values, k as isize, 0, index.shape()[k])?;
        }
    }
    Ok(values)
}

/// Writes each value into a copy of x at its index along `axis` (NumPy's `put_along_axis`, PyTorch's `scatter`).
///
/// If indices are equal, the last value in row-major order is stored. The index has x's rank; values beyond its axes
/// are not used.
///
/// # Errors
/// The errors of [`take_along_axis`](crate::ops::take_along_axis); [`Error::ShapeMismatch`] if there are fewer values
/// than indices.
#[doc(alias = "put_along_axis")]
#[tensor_method]
pub fn scatter(x: &Tensor, index: &Tensor, values: &Tensor, axis: isize) -> Result<Tensor> {
    scatter_into(x, index, values, axis, ScatterReduction::Set)
}

/// Adds each value to a copy of x at its index along `axis`; values with equal indices accumulate.
///
/// # Errors
/// The errors of [`scatter`].
#[tensor_method]
pub fn scatter_add(x: &Tensor, index: &Tensor, values: &Tensor, axis: isize) -> Result<Tensor> {
    scatter_into(x, index, values, axis, ScatterReduction::Add)
}
