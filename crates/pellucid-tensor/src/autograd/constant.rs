//! Derivatives that are constant: tracked, so that they can be differentiated again.

use super::graph::Edge;
use super::operation::{Derivative, Gradients, InputGradients, Needed, Saved, record_outputs};
use crate::ops;
use crate::tensor::Tensor;
use pellucid_ir::Result;
use smallvec::smallvec;

/// A value that does not depend on its inputs.
struct Constant;

impl Derivative for Constant {
    fn name(&self) -> &'static str {
        "constant"
    }

    fn backward(&self, saved: &Saved, _: &Gradients, needed: Needed) -> Result<InputGradients> {
        let zeros = |i| {
            let meta = saved.wants(needed, i).then(|| saved.meta(i));
            meta.map(|meta| ops::zeros(&meta.shape, meta.dtype)).transpose()
        };
        (0..saved.inputs()).map(zeros).collect()
    }
}

/// A recorded gradient that depends on none of the tensors at `edges` as a function of them all, with the
/// derivative zero: the second derivative of x·x is 2, and its third one 0.
pub(super) fn differentiable(gradient: Tensor, edges: &[Edge]) -> Tensor {
    if gradient.requires_grad() || !edges.iter().any(Edge::is_tracked) {
        return gradient;
    }
    let outputs = smallvec![gradient.array().clone()];
    record_outputs(edges.iter().cloned().collect(), outputs, Vec::new(), Constant).pop().expect("one output")
}
