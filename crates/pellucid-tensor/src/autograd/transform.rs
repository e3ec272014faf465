//! Function transforms: `grad`, `grad_one`, `vjp`, `jvp`, `hvp`. They do not change `.grad`.
//!
//! `grad` rejects an input that the graph does not reach, because it is usually a mistake. A transform of a function
//! returns zeros instead: the derivative of a function with respect to an input that it does not use is zero.
//!
//! `jvp` and `hvp` differentiate a gradient. They need its graph, but only the values that the second pass reads. So
//! they run in deferred mode, which skips all other kernels.

use super::constant::with_zero_derivative;
use super::pass::{BackwardOptions, BackwardPass};
use super::shared_storages::with_unique_storage;
use super::targets::{GradTarget, nodes_leading_to};
use crate::engine;
use crate::grad_mode::{enable_grad, is_grad_enabled};
use crate::ops::primitive::copy::identity;
use crate::ops::primitive::fill::{ones_like, zeros_like};
use crate::tensor::{Edge, Tensor};
use pellucid_ir::{Error, Result};

/// The help text of the error for a function with more than one value.
pub(super) const REDUCE_THE_VALUE: &str = "reduce the value of the function, for example with sum(..)";

/// Options of [`grad`].
#[derive(Clone, Debug, Default)]
pub struct GradOptions {
    /// The incoming gradient of every output, in order. `None` and missing entries mean ones.
    pub grad_outputs: Vec<Option<Tensor>>,
    /// Whether to record the backward pass, so that the results can be differentiated. Implies `retain_graph`.
    pub create_graph: bool,
    /// Whether to keep the saved values of nodes, so that the graph can be used again.
    pub retain_graph: bool,
    /// Whether to return zeros for an input on which no output depends, and to ignore an output that requires no
    /// gradient. By default, both are errors.
    pub allow_unused: bool,
}

/// Computes the gradients of `outputs` with respect to `inputs` (leaves or not): Σⱼ gⱼ·∂outputⱼ/∂inputᵢ, in the order
/// of the inputs.
///
/// An input that the graph of the outputs does not reach is rejected, and so is an output that requires no gradient;
/// with `allow_unused`, the input gets zeros and the output is ignored. An input that is reached gets zeros if all
/// derivatives on the path are zero.
///
/// With `create_graph`, a gradient that requires no gradient is recorded as a function of the inputs with derivative
/// zero. For example, the second derivative of x² is 2, and its third derivative is 0, not an error. A gradient that
/// depends only on other tensors keeps their history, and may not reach the input. For example, the gradient of W·x
/// with respect to x is Wᵀ·g, and its gradient with respect to x is an error without `allow_unused`.
///
/// Without `create_graph`, the results share no memory with each other or with `grad_outputs`.
///
/// ```
/// use pellucid::{grad, GradOptions, Tensor};
/// let x = Tensor::from([0.5f64]).requires_grad_(true);
/// let y = x.sin();
/// let first = grad(&[&y], &[&x], GradOptions { create_graph: true, ..Default::default() })?;
/// let second = grad(&[&first[0]], &[&x], GradOptions::default())?;
/// assert!((second[0].item::<f64>() + 0.5f64.sin()).abs() < 1e-15);
/// assert!(x.grad().is_none());
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// An input that is not used:
///
/// ```
/// use pellucid::{grad, Error, GradOptions, Tensor};
/// let x = Tensor::from([3.0f64]).requires_grad_(true);
/// let other = Tensor::from([1.0f64, 2.0]).requires_grad_(true);
/// let y = x.square();
/// let rejected = grad(&[&y], &[&x, &other], GradOptions::default());
/// assert!(matches!(rejected, Err(Error::UnusedInput { input: 1, .. })));
/// let gradients = grad(&[&y], &[&x, &other], GradOptions { allow_unused: true, ..Default::default() })?;
/// assert_eq!(gradients[1].to_vec::<f64>(), [0.0, 0.0]);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// [`Error::UnusedInput`] and [`Error::NotTracked`] for an unused input and for an output that requires no gradient,
/// unless `allow_unused`; [`Error::NotTracked`] for an input that requires no gradient; [`Error::GraphFreed`];
/// [`Error::ShapeMismatch`] for an incoming gradient whose shape differs from its output; [`Error::InvalidArgument`]
/// for more incoming gradients than outputs. Unused inputs and outputs are detected before the graph is used.
pub fn grad(outputs: &[&Tensor], inputs: &[&Tensor], options: GradOptions) -> Result<Vec<Tensor>> {
    if options.grad_outputs.len() > outputs.len() {
        let reason = format!(
            "`grad_outputs` must have at most one gradient for each output, got {} for {} outputs",
            options.grad_outputs.len(),
            outputs.len()
        );
        return Err(Error::invalid("grad", reason));
    }
    let create_graph = options.create_graph;
    let gradients = collect_gradients(outputs, inputs, options)?;
    if !create_graph {
        return Ok(gradients);
    }
    let edges: Vec<Edge> = inputs.iter().map(|t| t.edge()).collect();
    Ok(gradients.into_iter().map(|g| with_zero_derivative(g, &edges)).collect())
}

/// Computes the gradient of one output with respect to one input, as [`grad`] does.
///
/// ```
/// use pellucid::{grad_one, GradOptions, Tensor};
/// let x = Tensor::from([2.0f64]).requires_grad_(true);
/// let first = grad_one(&x.pow(3.0), &x, GradOptions { create_graph: true, ..Default::default() })?;
/// let second = grad_one(&first, &x, GradOptions::default())?;
/// assert_eq!((first.item::<f64>(), second.item::<f64>()), (12.0, 12.0)); // 3x² and 6x
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// The errors of [`grad`].
pub fn grad_one(output: &Tensor, input: &Tensor, options: GradOptions) -> Result<Tensor> {
    grad(&[output], &[input], options).map(|mut gradients| gradients.swap_remove(0))
}

/// Computes gradients as [`grad`] does, for use within a backward pass. A gradient that depends on no input is an
/// untracked constant.
pub(crate) fn collect_gradients(outputs: &[&Tensor], inputs: &[&Tensor], options: GradOptions) -> Result<Vec<Tensor>> {
    let gradients = grad_if_reached(outputs, inputs, options)?;
    gradients.into_iter().zip(inputs).map(|(gradient, input)| gradient.map_or_else(|| zeros_like(input), Ok)).collect()
}

/// Computes gradients as [`grad`] does, but does not record constant gradients. The gradient of an input that no output
/// reaches is `None`, as [`Tensor::grad`] is after [`backward`](Tensor::backward).
#[doc(hidden)]
pub fn grad_if_reached(outputs: &[&Tensor], inputs: &[&Tensor], options: GradOptions) -> Result<Vec<Option<Tensor>>> {
    let GradOptions { grad_outputs, create_graph, retain_graph, allow_unused } = options;
    if let Some(k) = inputs.iter().position(|input| !input.requires_grad()) {
        return Err(inputs[k].not_tracked("grad", &format!("input {k}")));
    }
    let mut seeds = grad_outputs.into_iter();
    let mut seeded = Vec::with_capacity(outputs.len());
    for (k, &output) in outputs.iter().enumerate() {
        let seed = seeds.next().flatten();
        if output.requires_grad() {
            seeded.push((output, seed));
        } else if !allow_unused {
            let help = "no input of its computation requires a gradient. If it is a gradient itself, compute it with \
                        create_graph: true. If zero gradients are intended, set allow_unused";
            let (what, shape) = (format!("output {k}").into(), output.shape().clone());
            return Err(Error::NotTracked { op: "grad", what, shape, help });
        }
    }
    let outputs: Vec<&Tensor> = seeded.iter().map(|(output, _)| *output).collect();
    let mut targets: Vec<GradTarget> = inputs.iter().map(|input| GradTarget::new(input)).collect();
    let leads = nodes_leading_to(&mut targets, &outputs);
    if let Some(input) = targets.iter().position(|target| !target.is_reached && !allow_unused) {
        return Err(Error::UnusedInput { op: "grad", input, shape: inputs[input].shape().clone() });
    }
    let backward = BackwardOptions { create_graph, retain_graph, ..Default::default() };
    let mut pass = BackwardPass::new(&backward).with_targets(&mut targets, leads);
    for (output, seed) in seeded {
        pass.seed("grad", output, seed)?;
    }
    pass.run()?;
    let mut shared = pass.into_shared();
    // The caller owns the results and may write into them, so each gets unique storage.
    let mut unique = |gradient: Tensor| with_unique_storage(gradient, &mut shared);
    targets.into_iter().map(|target| target.gradient.map(&mut unique).transpose()).collect()
}

/// Returns an error unless there is one vector for each of `count` tensors.
fn check_count(op: &'static str, role: &str, vectors: usize, count: usize) -> Result<()> {
    match vectors == count {
        true => Ok(()),
        false => Err(Error::invalid(
            op,
            format!(
                "the list must contain one vector for each of the {count} {role}s, got {vectors}; zeros_like() creates \
                 a vector of zeros"
            ),
        )),
    }
}

/// Returns an error unless there is one vector for each of `tensors`, with the shape of the tensor. `role` names the
/// tensors in the error.
fn check_vectors(op: &'static str, role: &str, vectors: &[&Tensor], tensors: &[&Tensor]) -> Result<()> {
    check_count(op, role, vectors.len(), tensors.len())?;
    match vectors.iter().zip(tensors).enumerate().find(|(_, (v, t))| v.shape() != t.shape()) {
        None => Ok(()),
        Some((k, (v, t))) => {
            let help = format!("vector {k} must have the shape of {role} {k}");
            Err(Error::shapes(op, [v.shape(), t.shape()], help))
        }
    }
}

/// Returns an error that names the first tensor, input or output k, whose dtype is not a float.
fn check_floats<'a>(op: &'static str, role: &str, tensors: impl IntoIterator<Item = &'a Tensor>) -> Result<()> {
    match tensors.into_iter().enumerate().find(|(_, t)| !t.dtype().is_float()) {
        None => Ok(()),
        Some((k, t)) => {
            let help = format!("{role} {k} must have a float dtype to be differentiated; convert it with to_dtype()");
            Err(Error::dtypes(op, [t.dtype()], help))
        }
    }
}

/// Returns tracked tensors with the same values. With `keeps_history`, gradients also flow to the given inputs that
/// require a gradient. An input that is not a float is rejected with an error of `op`.
pub(super) fn track_inputs(op: &'static str, keeps_history: bool, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
    check_floats(op, "input", inputs.iter().copied())?;
    let fresh = |t: &&Tensor| {
        if keeps_history && t.requires_grad() { identity(t) } else { Ok(t.detach().requires_grad_(true)) }
    };
    inputs.iter().map(fresh).collect()
}

/// Computes a vector-Jacobian product: (f(inputs), vᵀ·J), with the Jacobian J of the outputs with respect to every
/// input. There is one vector for each output. An input on which no output depends gets zeros.
///
/// # Errors
/// The errors of `f` and of [`grad`]; [`Error::InvalidArgument`] unless there is one vector for each output;
/// [`Error::DTypeMismatch`] for an input that is not a float.
pub fn vjp(
    f: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
    inputs: &[&Tensor],
    vectors: &[&Tensor],
) -> Result<(Vec<Tensor>, Vec<Tensor>)> {
    let create_graph = is_grad_enabled();
    let _on = enable_grad();
    let inputs = track_inputs("vjp", create_graph, inputs)?;
    let outputs = f(&inputs)?;
    check_vectors("vjp", "output", vectors, &outputs.iter().collect::<Vec<_>>())?;
    let gradients = vector_jacobian_products(&outputs, &inputs, vectors, create_graph)?;
    Ok((outputs, gradients))
}

/// Computes Σⱼ vⱼᵀ·∂outputⱼ/∂inputᵢ. Outputs that require no gradient contribute nothing, and unused inputs get zeros.
fn vector_jacobian_products(
    outputs: &[Tensor],
    inputs: &[Tensor],
    vectors: &[&Tensor],
    create_graph: bool,
) -> Result<Vec<Tensor>> {
    let (outputs, inputs): (Vec<&Tensor>, Vec<&Tensor>) = (outputs.iter().collect(), inputs.iter().collect());
    let grad_outputs = vectors.iter().map(|&v| Some(v.clone())).collect();
    grad(&outputs, &inputs, GradOptions { grad_outputs, create_graph, retain_graph: true, allow_unused: true })
}

/// Computes a Jacobian-vector product: (f(inputs), J·v), by the vjp of the vjp. There is one tangent for each input.
///
/// The vjp is linear in its vector u, vjp(u) = uᵀJ, and its own vjp with v is J·v. So operations need no forward-mode
/// rule. The product is zero for an output that does not depend on the inputs.
///
/// # Errors
/// The errors of `f` and of [`grad`]; [`Error::InvalidArgument`] unless there is one tangent for each input;
/// [`Error::ShapeMismatch`] for a tangent whose shape differs from its input; [`Error::DTypeMismatch`] for an input or
/// output that is not a float.
pub fn jvp(
    f: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
    inputs: &[&Tensor],
    tangents: &[&Tensor],
) -> Result<(Vec<Tensor>, Vec<Tensor>)> {
    check_vectors("jvp", "input", tangents, inputs)?;
    let create_graph = is_grad_enabled();
    let _on = enable_grad();
    let inputs = track_inputs("jvp", create_graph, inputs)?;
    let outputs = f(&inputs)?;
    check_floats("jvp", "output", &outputs)?;
    let products = engine::run_deferred(|| {
        // The values of the duals do not change the result. They are not 0, because a gradient that has lost its
        // history is detected only if it is nonzero.
        let dual = |y: &Tensor| Ok(ones_like(y)?.requires_grad_(true));
        let duals: Vec<Tensor> = outputs.iter().map(dual).collect::<Result<_>>()?;
        let duals: Vec<&Tensor> = duals.iter().collect();
        // A dual variable on which no gradient depends gets a zero product: its output does not depend on the inputs.
        second_gradient(vector_jacobian_products(&outputs, &inputs, &duals, true)?, tangents, &duals, create_graph)
    })?;
    Ok((outputs, products))
}

/// Computes a Hessian-vector product of a scalar function: (f(inputs), H·v), reverse over reverse. An input that the
/// function does not use gets zeros, and so does every input of a constant or linear function.
///
/// ```
/// use pellucid::{hvp, Tensor};
/// let (x, v) = (Tensor::from([1.0f64, 2.0]), Tensor::from([1.0f64, -1.0]));
/// let (value, product) = hvp(|x| Ok(x[0].cube().sum(..)), &[&x], &[&v])?;
/// assert_eq!((value.item::<f64>(), product[0].to_vec::<f64>()), (9.0, vec![6.0, -12.0]));
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// The errors of `f` and of [`grad`]; [`Error::NotAScalar`] if f's value has more than one element;
/// [`Error::InvalidArgument`] unless there is one vector for each input; [`Error::ShapeMismatch`] for a vector whose
/// shape differs from its input; [`Error::DTypeMismatch`] for an input that is not a float.
pub fn hvp(
    f: impl FnOnce(&[Tensor]) -> Result<Tensor>,
    inputs: &[&Tensor],
    vectors: &[&Tensor],
) -> Result<(Tensor, Vec<Tensor>)> {
    check_vectors("hvp", "input", vectors, inputs)?;
    let create_graph = is_grad_enabled();
    let _on = enable_grad();
    let inputs = track_inputs("hvp", create_graph, inputs)?;
    let value = f(&inputs)?;
    if value.size() != 1 {
        return Err(Error::NotAScalar { op: "hvp", shape: value.shape().clone(), help: REDUCE_THE_VALUE });
    }
    let inputs: Vec<&Tensor> = inputs.iter().collect();
    let products = engine::run_deferred(|| {
        let options = GradOptions { create_graph: true, allow_unused: true, ..Default::default() };
        let first = grad(&[&value], &inputs, options)?;
        second_gradient(first, vectors, &inputs, create_graph)
    })?;
    Ok((value, products))
}

/// Computes the gradient of first gradients: Σᵢ vᵢᵀ·∂firstᵢ/∂inputⱼ. First gradients that require no gradient
/// contribute nothing, and unused inputs get zeros.
fn second_gradient(
    first: Vec<Tensor>,
    vectors: &[&Tensor],
    inputs: &[&Tensor],
    create_graph: bool,
) -> Result<Vec<Tensor>> {
    let first: Vec<&Tensor> = first.iter().collect();
    let grad_outputs = vectors.iter().map(|&v| Some(v.clone())).collect();
    grad(&first, inputs, GradOptions { grad_outputs, create_graph, retain_graph: false, allow_unused: true })
}
