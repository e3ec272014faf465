//! Gradients of an operation by differentiation of its definition.

use crate::autograd::{GradOptions, collect_gradients};
use crate::grad_mode::{enable_grad, is_grad_enabled};
use crate::ops::primitive::copy::identity;
use crate::tensor::Tensor;
use pellucid_ir::Result;

/// Computes gradients by differentiating `definition`, a composite of operations, at the saved inputs of an operation.
/// So an operation without a gradient kernel has derivatives of every order. An output that depends on no input
/// contributes nothing.
pub(crate) fn via_definition(
    inputs: &[&Tensor],
    gradients: &[&Tensor],
    definition: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
) -> Result<Vec<Tensor>> {
    let create_graph = is_grad_enabled();
    let _on = enable_grad();
    let inputs = tracked_inputs(inputs)?;
    let outputs = definition(&inputs)?;
    definition_gradients(&inputs, &outputs, gradients, create_graph)
}

/// Returns tracked tensors with the elements of the inputs, and with the history of each input that has one.
fn tracked_inputs(inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
    let tracked = |t: &&Tensor| if t.requires_grad() { identity(t) } else { Ok(t.detach().requires_grad_(true)) };
    inputs.iter().map(tracked).collect()
}

/// Computes the gradients of the inputs of a definition from the gradients of its outputs.
fn definition_gradients(
    inputs: &[Tensor],
    outputs: &[Tensor],
    gradients: &[&Tensor],
    create_graph: bool,
) -> Result<Vec<Tensor>> {
    let (outputs, grad_outputs): (Vec<&Tensor>, Vec<Option<Tensor>>) =
        outputs.iter().zip(gradients).map(|(y, &g)| (y, Some(g.clone()))).unzip();
    let inputs: Vec<&Tensor> = inputs.iter().collect();
    let options = GradOptions { grad_outputs, create_graph, retain_graph: false, allow_unused: true };
    collect_gradients(&outputs, &inputs, options)
}
