//! Constant gradients with a recorded derivative of zero, so that they can be differentiated again.

use super::operation::record_outputs;
use crate::tensor::{Derivative, Edge, InputGradients, NeedsInputGrad, OutputGradients, SavedTensors, Tensor};
use pellucid_ir::Result;
use smallvec::smallvec;

/// The derivative of a value that does not depend on its inputs: zeros.
struct ZeroDerivative;

impl Derivative for ZeroDerivative {
    fn name(&self) -> &'static str {
        "constant"
    }

    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, needs: NeedsInputGrad) -> Result<InputGradients> {
        let zeros = |i| {
            saved
                .needs_gradient(needs, i)
                .then(|| grads.zeros(saved.meta(i).clone(), saved.input_device(i)))
                .transpose()
        };
        (0..saved.inputs()).map(zeros).collect()
    }
}

/// Returns a gradient that depends on none of `edges` as a tracked function of all of them, with derivative zero. For
/// example, the second derivative of x·x is 2, and the third is 0.
pub(super) fn with_zero_derivative(gradient: Tensor, edges: &[Edge]) -> Tensor {
    if gradient.requires_grad() || !edges.iter().any(Edge::is_tracked) {
        return gradient;
    }
    let outputs = smallvec![gradient.array().clone()];
    record_outputs(edges.iter().cloned().collect(), outputs, Vec::new(), ZeroDerivative)
        .pop()
        .expect("record_outputs must return one tensor for one output")
}
