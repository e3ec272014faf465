//! Reductions with separate kernels: max, min, argmax, argmin, any, all.

use crate::autograd::{apply_one, interface::*};
use crate::engine;
use crate::ops::call::axes::Axes;
use crate::ops::formula::apply_rows;
use crate::ops::primitive::view::reshape_to;
use crate::tensor::Tensor;
use pellucid_ir::formula::{Formula, Program, Signature};
use pellucid_ir::kernel::{AxisSet, Kernel, Params, Reduce, ReduceOp};
use pellucid_ir::{DType, Error, Result, formula};
use std::sync::Arc;

/// Returns the identity formula, for reductions of unchanged elements.
pub(in crate::ops) fn identity_formula() -> &'static Formula {
    formula! { static sum(x) = x; }
}

/// Returns the dtype of sums and products: `i64` for integers and booleans, otherwise `dtype`.
pub(in crate::ops) fn accumulator(dtype: DType) -> DType {
    if dtype.is_float() { dtype } else { DType::I64 }
}

/// A reduction to an extremum, an index or a boolean. The inputs are x and, for the extremum of selected elements, a
/// mask.
struct KernelReduction {
    name: &'static str,
    op: ReduceOp,
    axes: AxisSet,
}

/// Reduces x over axes by the kernel of `op`.
pub(in crate::ops) fn by_kernel(name: &'static str, op: ReduceOp, x: &Tensor, axes: Axes) -> Result<Tensor> {
    let axes = axes.resolve(name, x.shape())?;
    let reduced = apply_one(KernelReduction { name, op, axes: axes.set }, &[x])?;
    reshape_to(&reduced, &axes.shape(x.shape()))
}

/// Reduces x to an extremum of the elements where the mask is true. The other elements must be the identity of the
/// reduction. They receive no gradient, even if the extremum equals the identity. The mask has x's shape.
pub(in crate::ops) fn extremum_where(
    name: &'static str,
    op: ReduceOp,
    x: &Tensor,
    mask: &Tensor,
    axes: Axes,
) -> Result<Tensor> {
    let axes = axes.resolve(name, x.shape())?;
    let reduced = apply_one(KernelReduction { name, op, axes: axes.set }, &[x, mask])?;
    reshape_to(&reduced, &axes.shape(x.shape()))
}

impl KernelReduction {
    fn is_extremum(&self) -> bool {
        matches!(self.op, ReduceOp::Max | ReduceOp::Min)
    }

    /// Distributes the gradient of an extremum evenly over the elements that equal it.
    fn extremum_gradient(&self, saved: &SavedTensors, g: &Tensor) -> Result<Tensor> {
        let (x, y) = (saved.input(0)?, saved.output(0)?);
        if saved.inputs() == 1 {
            let tie_fraction = formula! {
                static extremum_gradient(x, y: per_row, g: per_row) = {
                    let ties = x.eq(y).to_number();
                    ties * (g / ties.row_sum())
                };
            };
            return apply_rows(tie_fraction, &[&x, &y, g], &[], self.axes);
        }
        let tie_fraction = formula! {
            static selected_extremum_gradient(x, selected: mask, y: per_row, g: per_row) = {
                let ties = (x.eq(y) & selected).to_number();
                ties * (g / ties.row_sum())
            };
        };
        apply_rows(tie_fraction, &[&x, &saved.input(1)?, &y, g], &[], self.axes)
    }
}

impl Operation for KernelReduction {
    fn name(&self) -> &'static str {
        self.name
    }
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        if self.is_extremum() {
            saves.output(0);
            (0..inputs.len()).for_each(|i| saves.input(i));
        }
        Ok(smallvec![run_reduction(self.name, self.op, self.axes, inputs[0])?])
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let mut gradients = InputGradients::from_elem(None, saved.inputs());
        // Other reductions return integers or booleans, which have no gradient.
        if self.is_extremum() {
            gradients[0] = Some(self.extremum_gradient(saved, &grads.get(0)?)?);
        }
        Ok(gradients)
    }
}

/// Returns the program that converts the elements for a reduction: to booleans for `Any` and `All`, to `output` for
/// `Prod`.
fn program_for(op: ReduceOp, dtype: DType, output: DType) -> Result<Arc<Program>> {
    let signature = |number| Signature::new([dtype], number);
    match op {
        ReduceOp::Any | ReduceOp::All if dtype == DType::Bool => {
            formula! { static is_nonzero(x: mask) = x; }.program(&signature(DType::F32))
        }
        ReduceOp::Any | ReduceOp::All => formula! { static is_nonzero(x) = x.ne(0); }.program(&signature(dtype)),
        ReduceOp::Prod => identity_formula().program(&signature(output)),
        // Booleans are compared as integers.
        _ if dtype == DType::Bool => identity_formula().program(&signature(DType::I32)),
        _ => identity_formula().uniform_program(dtype),
    }
    .cloned()
}

/// Submits the kernel of a reduction. The reduced axes keep length 1.
pub(in crate::ops) fn run_reduction(name: &'static str, op: ReduceOp, axes: AxisSet, x: &Array) -> Result<Array> {
    let empty = axes.count(x.shape()) == 0 && axes.keepdims(x.shape()).size() != 0;
    if empty && matches!(op, ReduceOp::Max | ReduceOp::Min | ReduceOp::ArgMax | ReduceOp::ArgMin) {
        let reason = format!("the extremum over zero elements is undefined (shape {}); test numel() first", x.shape());
        return Err(Error::invalid(name, reason));
    }
    let output = match op {
        ReduceOp::ArgMax | ReduceOp::ArgMin => DType::I64,
        ReduceOp::Any | ReduceOp::All => DType::Bool,
        ReduceOp::Sum | ReduceOp::Prod => accumulator(x.dtype()),
        ReduceOp::Max | ReduceOp::Min => x.dtype(),
    };
    let program = program_for(op, x.dtype(), output)?;
    let out = Array::new(x.device(), output, axes.keepdims(x.shape()))?;
    let kernel =
        Reduce { op, axes, program, params: Params::new(), finish: None, finish_params: Params::new(), output };
    engine::submit(&Kernel::Reduce(kernel), &[x], &[&out])?;
    Ok(out)
}
