//! `FormulaDerivative`: the data of a formula application that its graph node stores. `backward.rs` differentiates it.

use pellucid_ir::formula::{Formula, Gradient, GradientRequest, Variables};
use pellucid_ir::kernel::{AxisSet, Params};
use pellucid_ir::{DType, Result, Shape};

/// The data of a [`FormulaCall`](super::FormulaCall) that a graph node stores.
pub(super) struct FormulaDerivative {
    pub(super) formula: Formula,
    pub(super) params: Params,
    /// The broadcast shape of the inputs, unless it is the shape of the first result (which the node stores).
    pub(super) shape: Option<Box<Shape>>,
    /// The axes of a row of a formula with row reductions.
    pub(super) rows: AxisSet,
    /// The axes over which the result is summed; they keep length 1.
    pub(super) sum: Option<AxisSet>,
    /// The dtype in which the formula is computed, unless it is the promoted dtype of the inputs.
    pub(super) compute_dtype: Option<DType>,
    /// The inputs for which backward may compute gradients. The inputs of full shape are `together`: one formula
    /// computes their gradients, and a tensor that is used twice has one gradient. Each broadcast input is `separate`:
    /// a separate formula computes its gradient, which is then summed.
    pub(super) tracked: Variables,
}

/// A part of the backward computation: one gradient formula. Its output k is the gradient of the input
/// `gradient.first_inputs[k]`.
pub(super) struct GradientPart<'a> {
    pub(super) gradient: &'a Gradient,
    /// Whether the only input was broadcast. Its gradient is then summed to its shape.
    pub(super) broadcast: bool,
}

/// Calls `each` with every part of the backward computation, inputs of full shape last. The forward pass
/// also calls this function, to determine the values to save.
#[inline]
pub(super) fn for_each_part(
    tracked: Variables,
    formula: &Formula,
    mut each: impl FnMut(GradientPart<'_>) -> Result<()>,
) -> Result<()> {
    let Variables { together, mut separate } = tracked;
    while separate != 0 {
        let i = separate.trailing_zeros() as usize;
        separate &= separate - 1;
        each(GradientPart { gradient: formula.gradient(GradientRequest::for_input(i)), broadcast: true })?;
    }
    match together == GradientRequest::default() {
        true => Ok(()),
        false => each(GradientPart { gradient: formula.gradient(together), broadcast: false }),
    }
}
