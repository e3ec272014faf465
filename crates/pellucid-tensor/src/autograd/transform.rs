//! Gradients as functions: `grad`, `vjp`, `jvp`, `hvp`. None of them touches `.grad`.

use super::mode::{enable_grad, is_grad_enabled};
use super::pass::{Backward, Pass, Target};
use crate::ops;
use crate::tensor::Tensor;
use pellucid_ir::{Error, Result};

/// Options of [`grad`].
#[derive(Clone, Debug, Default)]
pub struct Grad {
    /// The gradient of every output, in their order; ones for `None` and for those that are missing.
    pub grad_outputs: Vec<Option<Tensor>>,
    /// Record the pass, so that the results can be differentiated. Implies `retain_graph`.
    pub create_graph: bool,
    /// Keep what nodes saved, so that the graph can be used again.
    pub retain_graph: bool,
}

/// The gradients of `outputs` with respect to `inputs` (leaves or not), in the inputs' order:
/// Σⱼ gⱼ·∂outputⱼ/∂inputᵢ. An input that no output depends on gets zeros.
///
/// ```
/// use pellucid_tensor::{grad, Grad, Tensor};
/// let x = Tensor::from([0.5f64]).requires_grad_(true);
/// let y = x.sin();
/// let first = grad(&[&y], &[&x], Grad { create_graph: true, ..Default::default() })?;
/// let second = grad(&[&first[0]], &[&x], Grad::default())?;
/// assert!((second[0].item::<f64>() + 0.5f64.sin()).abs() < 1e-15);
/// assert!(x.grad().is_none());
/// # Ok::<(), pellucid_tensor::Error>(())
/// ```
///
/// # Errors
/// [`Error::NotTracked`] for an output or input that requires no gradient, [`Error::GraphFreed`].
pub fn grad(outputs: &[&Tensor], inputs: &[&Tensor], options: Grad) -> Result<Vec<Tensor>> {
    for input in inputs {
        if !input.requires_grad() {
            return Err(Error::NotTracked { op: "grad", shape: input.shape().clone() });
        }
    }
    let mut targets: Vec<Target> = inputs.iter().map(|t| Target { edge: t.edge(), gradient: None }).collect();
    let backward =
        Backward { create_graph: options.create_graph, retain_graph: options.retain_graph, ..Default::default() };
    let mut seeds = options.grad_outputs.into_iter();
    let mut pass = Pass::new(&backward).toward(&mut targets, outputs);
    for output in outputs {
        pass.seed("grad", output, seeds.next().flatten())?;
    }
    pass.run()?;
    // What was collected belongs to the caller, whether the graph goes on from it or not.
    targets
        .into_iter()
        .zip(inputs)
        .map(|(target, input)| match target.gradient {
            Some(gradient) => Ok(gradient),
            None => ops::zeros(input.shape(), input.dtype()),
        })
        .collect()
}

/// Fresh tracked handles of the same values; `linked` ones carry gradients on to the originals.
fn tracked(linked: bool, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
    let fresh = |t: &&Tensor| {
        if linked && t.requires_grad() { ops::identity(t) } else { Ok(t.detach().requires_grad_(true)) }
    };
    inputs.iter().map(fresh).collect()
}

/// The product of a vector with the Jacobian of `f`: (f(inputs), vᵀ·J), J of the outputs by every input.
///
/// # Errors
/// Those of `f` and of [`grad`].
pub fn vjp(
    f: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
    inputs: &[&Tensor],
    vectors: &[&Tensor],
) -> Result<(Vec<Tensor>, Vec<Tensor>)> {
    let create_graph = is_grad_enabled();
    let _on = enable_grad();
    let inputs = tracked(create_graph, inputs)?;
    let outputs = f(&inputs)?;
    let gradients = products(&outputs, &inputs, vectors, create_graph)?;
    Ok((outputs, gradients))
}

/// Σⱼ vⱼᵀ·∂outputⱼ/∂inputᵢ, where an output that depends on nothing contributes nothing.
fn products(outputs: &[Tensor], inputs: &[Tensor], vectors: &[&Tensor], create_graph: bool) -> Result<Vec<Tensor>> {
    let (mut tracked, mut seeds) = (Vec::new(), Vec::new());
    for (j, output) in outputs.iter().enumerate() {
        if output.requires_grad() {
            tracked.push(output);
            seeds.push(vectors.get(j).map(|&v| v.clone()));
        }
    }
    let inputs: Vec<&Tensor> = inputs.iter().collect();
    grad(&tracked, &inputs, Grad { grad_outputs: seeds, create_graph, retain_graph: true })
}

/// The Jacobian of `f` times a vector: (f(inputs), J·v), by the vjp of the vjp. The vjp is linear in
/// its vector u, vjp(u) = uᵀJ, and its own vjp with v is J·v; so no operation has a forward rule.
///
/// # Errors
/// Those of `f` and of [`grad`].
pub fn jvp(
    f: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
    inputs: &[&Tensor],
    tangents: &[&Tensor],
) -> Result<(Vec<Tensor>, Vec<Tensor>)> {
    let create_graph = is_grad_enabled();
    let _on = enable_grad();
    let inputs = tracked(create_graph, inputs)?;
    let outputs = f(&inputs)?;
    let dual = |y: &Tensor| Ok(ops::zeros(y.shape(), y.dtype())?.requires_grad_(true));
    let duals: Vec<Tensor> = outputs.iter().map(dual).collect::<Result<_>>()?;
    let gradients = products(&outputs, &inputs, &duals.iter().collect::<Vec<_>>(), true)?;
    // A gradient that does not depend on the dual belongs to an output that does not depend on the inputs.
    let (mut linked, mut seeds) = (Vec::new(), Vec::new());
    for (gradient, tangent) in gradients.iter().zip(tangents) {
        if gradient.requires_grad() {
            linked.push(gradient);
            seeds.push(Some((*tangent).clone()));
        }
    }
    let duals: Vec<&Tensor> = duals.iter().collect();
    let products = grad(&linked, &duals, Grad { grad_outputs: seeds, create_graph, retain_graph: true })?;
    Ok((outputs, products))
}

/// The Hessian of a scalar function times a vector: (f(inputs), H·v), reverse over reverse.
///
/// # Errors
/// Those of `f` and of [`grad`]; [`Error::NotAScalar`] if f's value has more than one element.
pub fn hvp(
    f: impl FnOnce(&[Tensor]) -> Result<Tensor>,
    inputs: &[&Tensor],
    vectors: &[&Tensor],
) -> Result<(Tensor, Vec<Tensor>)> {
    let create_graph = is_grad_enabled();
    let _on = enable_grad();
    let inputs = tracked(create_graph, inputs)?;
    let value = f(&inputs)?;
    if value.size() != 1 {
        return Err(Error::NotAScalar { op: "hvp", shape: value.shape().clone() });
    }
    let refs: Vec<&Tensor> = inputs.iter().collect();
    let first = grad(&[&value], &refs, Grad { create_graph: true, ..Default::default() })?;
    // A first derivative that is constant has no second.
    let (mut linked, mut seeds) = (Vec::new(), Vec::new());
    for (gradient, vector) in first.iter().zip(vectors) {
        if gradient.requires_grad() {
            linked.push(gradient);
            seeds.push(Some((*vector).clone()));
        }
    }
    let second = grad(&linked, &refs, Grad { grad_outputs: seeds, create_graph, retain_graph: create_graph })?;
    Ok((value, second))
}
