//! The trait `Operation`, and `apply`, which runs and records operations.

use super::anomaly::note_forward_location;
use super::placement::{copy_to, on_one_device};
use crate::array::Array;
use crate::autocast::autocast_off;
use crate::device::Device;
use crate::engine::CallScope;
use crate::execution_mode::is_capturing;
use crate::grad_mode::{is_grad_enabled, set_grad_enabled};
use crate::tensor::{
    Derivative, Edge, GraphNode, InputGradients, NeedsInputGrad, NodeParts, OutputGradients, SaveForBackward,
    SavedTensors, SavedValue, Tensor, TensorInner, metas_of,
};
use pellucid_ir::{Error, Result};
use smallvec::SmallVec;
use std::sync::{Arc, Weak};

/// The outputs of a forward computation, usually one.
pub type Arrays = SmallVec<[Array; 1]>;

/// A differentiable operation. Each application uses a new value of the type, which stores the arguments (axes,
/// parameters).
///
/// Built-in operations use the same interface as a user's own:
///
/// ```
/// use pellucid::autograd::{
///     Arrays, InputGradients, NeedsInputGrad, Operation, OutputGradients, SaveForBackward, SavedTensors, apply,
/// };
/// use pellucid::engine::Array;
/// use pellucid::{Result, Tensor};
///
/// /// (x·y, x + y), with two inputs, two outputs and both inputs saved.
/// struct ProductAndSum;
///
/// impl Operation for ProductAndSum {
///     fn name(&self) -> &'static str {
///         "product_and_sum"
///     }
///     fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
///         saves.input(0);
///         saves.input(1);
///         let (x, y) = (Tensor::from(inputs[0].clone()), Tensor::from(inputs[1].clone()));
///         Ok([&x * &y, &x + &y].iter().map(|t| t.array().clone()).collect())
///     }
///     fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
///         let (x, y) = (saved.input(0)?, saved.input(1)?);
///         let (g, h) = (grads.get(0)?, grads.get(1)?);
///         Ok([Some(&g * &y + &h), Some(&g * &x + &h)].into_iter().collect())
///     }
/// }
///
/// let x = Tensor::from([3.0f32]).requires_grad_(true);
/// let y = Tensor::from([5.0f32]).requires_grad_(true);
/// let out = apply(ProductAndSum, &[&x, &y])?;
/// (&out[0] + &out[1]).backward();
/// assert_eq!(x.grad().unwrap().item::<f32>(), 6.0);
/// assert_eq!(y.grad().unwrap().item::<f32>(), 4.0);
/// # Ok::<(), pellucid::Error>(())
/// ```
pub trait Operation: Send + Sync + 'static {
    /// Returns the name that errors and the graph show.
    fn name(&self) -> &'static str;

    /// Computes the outputs and saves the values that `backward` needs. Nothing is recorded during the call. An
    /// implementation checks its inputs before its first kernel, so that an error changes nothing.
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays>;

    /// Computes the gradient of every needed input from the gradients of the outputs, in differentiable tensor
    /// operations only. Each gradient has the shape and dtype of its input.
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, needs: NeedsInputGrad) -> Result<InputGradients>;

    /// Returns false if the derivative of a float output exists but is not implemented. The operation then rejects
    /// tracked inputs.
    fn has_gradient(&self) -> bool {
        true
    }

    /// Returns true if every output consists of elements of the first input in another layout (a slice, transpose or
    /// broadcast), shares its storage where possible, and `backward` is the transpose of this map. A write in place to
    /// the input is then recorded for the outputs too, and vice versa. If any other operation returns memory of an
    /// input, recorded writes to the input or to this output return errors.
    fn is_view(&self) -> bool {
        false
    }

    /// Returns true if `forward` runs on the CPU only, for example because it reads its inputs on the host. Inputs on
    /// another device are then copied to the CPU with their history, and the outputs are copied back. A captured step
    /// on another device rejects such an operation.
    fn runs_on_cpu(&self) -> bool {
        false
    }
}

impl<O: Operation> Derivative for O {
    fn name(&self) -> &'static str {
        Operation::name(self)
    }

    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, needs: NeedsInputGrad) -> Result<InputGradients> {
        let mut gradients = Operation::backward(self, saved, grads, needs)?;
        if is_grad_enabled() && gradients.iter().flatten().any(|gradient| !gradient.requires_grad()) {
            mark_lost_derivatives(Operation::name(self), grads, &mut gradients)?;
        }
        Ok(gradients)
    }
}

/// Outside captured steps, marks nonzero gradients that have no history although all incoming gradients have one.
/// Differentiating a marked gradient is an error: gradients are linear in the incoming ones, so the derivative of a
/// nonzero gradient without history is lost.
#[cold]
fn mark_lost_derivatives(
    operation: &'static str,
    incoming: &OutputGradients,
    gradients: &mut InputGradients,
) -> Result<()> {
    let incoming: SmallVec<[&Tensor; 2]> = incoming.values.iter().flatten().collect();
    if !incoming.iter().all(|gradient| gradient.requires_grad()) || is_capturing() {
        return Ok(());
    }
    for gradient in gradients.iter_mut().flatten().filter(|gradient| !gradient.requires_grad()) {
        if gradient.array().to_vec::<f64>(operation)?.iter().any(|&value| value != 0.0) {
            let unmarked = gradient.clone();
            let operands: Vec<&Tensor> = [&unmarked].into_iter().chain(incoming.iter().copied()).collect();
            *gradient = apply_one(NonDifferentiableGradient { operation }, &operands)?;
        }
    }
    Ok(())
}

/// A gradient whose dependence on the incoming gradients is unknown.
struct NonDifferentiableGradient {
    operation: &'static str,
}

impl Operation for NonDifferentiableGradient {
    fn name(&self) -> &'static str {
        self.operation
    }
    fn forward(&self, inputs: &[&Array], _: &mut SaveForBackward) -> Result<Arrays> {
        Ok(std::iter::once(inputs[0].copy()?).collect())
    }
    fn backward(&self, _: &SavedTensors, _: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let reason = "backward() returned a gradient that does not depend on the incoming gradients, so its derivative \
                      is lost; compute it in tensor operations, not from values on the host";
        Err(Error::invalid(self.operation, reason))
    }
}

/// Applies an operation: runs its forward computation and returns the results with their node.
///
/// A result is tracked if its dtype is a float, any input requires a gradient, and grad mode is on.
///
/// # Errors
/// The errors of `forward`; [`Error::NoGradient`] for a tracked input of an operation without gradient;
/// [`Error::InvalidArgument`] if `forward` returns no output.
pub fn apply<O: Operation>(op: O, inputs: &[&Tensor]) -> Result<SmallVec<[Tensor; 1]>> {
    apply_object(&mut Some(op), inputs)
}

/// Applies an operation that has one output.
///
/// # Errors
/// The errors of [`apply`]; [`Error::InvalidArgument`] if `forward` returns several outputs.
pub fn apply_one<O: Operation>(op: O, inputs: &[&Tensor]) -> Result<Tensor> {
    apply_one_object(&mut Some(op), inputs)
}

/// An operation that [`apply`] runs, and then moves into a node. Only the creation of the node is generic; the other
/// code of [`apply`] is compiled once for all operations.
trait AppliedOperation {
    fn operation(&self) -> &dyn Operation;

    /// Moves the operation into a new node.
    fn move_to_node(&mut self, parts: NodeParts<'_>) -> Arc<GraphNode>;
}

impl<O: Operation> AppliedOperation for Option<O> {
    fn operation(&self) -> &dyn Operation {
        self.as_ref().expect(OWNED_BY_NODE)
    }

    fn move_to_node(&mut self, parts: NodeParts<'_>) -> Arc<GraphNode> {
        parts.node(self.take().expect(OWNED_BY_NODE))
    }
}

const OWNED_BY_NODE: &str = "the operation must not be moved into its node before it is applied";

fn apply_object(op: &mut dyn AppliedOperation, inputs: &[&Tensor]) -> Result<SmallVec<[Tensor; 1]>> {
    // The operands are already cast, and `autocast` must not change the computation inside the operation.
    let _autocast_off = autocast_off();
    let placed = on_one_device(op.operation().name(), inputs)?;
    let refs: SmallVec<[&Tensor; 4]>;
    let inputs = match &placed {
        None => inputs,
        Some(placed) => {
            refs = placed.iter().collect();
            &refs
        }
    };
    if let Some(device) = inputs.first().map(|input| input.device()).filter(|device| !device.is_cpu())
        && op.operation().runs_on_cpu()
    {
        return apply_on_cpu(op, inputs, device);
    }
    let arrays = arrays_of(inputs);
    let is_view = op.operation().is_view();
    let outputs = if is_recorded(inputs) {
        if !op.operation().has_gradient() {
            return Err(Error::NoGradient { op: op.operation().name() });
        }
        let forward = |op: &&mut dyn AppliedOperation, saves: &mut SaveForBackward| {
            checked_forward(op.operation(), &arrays, saves)
        };
        record(op, inputs, &arrays, None, forward, |op, parts| op.move_to_node(parts))?
    } else {
        let mut saves = SaveForBackward { edges: &[], reuse: None, requests: SmallVec::new() };
        let _recording_off = set_grad_enabled(false);
        untracked_results(inputs, checked_forward(op.operation(), &arrays, &mut saves)?)
    };
    if is_grad_enabled() {
        share_history(is_view, inputs, &outputs);
    } else if is_view {
        outputs.iter().for_each(|output| output.mark_untracked_view(inputs[0]));
    }
    Ok(outputs)
}

/// Applies an operation to copies of its inputs on the CPU, and returns copies of its outputs on `device`.
fn apply_on_cpu(op: &mut dyn AppliedOperation, inputs: &[&Tensor], device: Device) -> Result<SmallVec<[Tensor; 1]>> {
    let name = op.operation().name();
    let copied =
        inputs.iter().map(|input| copy_to(input, Device::cpu()).map_err(|error| reword_capture_error(name, error)));
    let on_cpu: SmallVec<[Tensor; 4]> = copied.collect::<Result<_>>()?;
    let outputs = apply_object(op, &on_cpu.iter().collect::<SmallVec<[&Tensor; 4]>>())?;
    outputs.iter().map(|output| copy_to(output, device)).collect()
}

/// Replaces the error of a copy to the CPU inside a captured step by an error that names the operation.
#[cold]
fn reword_capture_error(name: &'static str, error: Error) -> Error {
    match error {
        Error::ReadInCapture { location, .. } => {
            let help = "the operation runs on the CPU only, so a step on another device cannot contain it; compute its \
                        result before the step, and pass it to the step";
            Error::ReadInCapture { op: name, location, help }
        }
        other => other,
    }
}

/// Runs the forward computation of an operation, and checks that it has an output.
fn checked_forward(op: &dyn Operation, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
    let _call = CallScope::enter();
    let outputs = op.forward(inputs, saves)?;
    if outputs.is_empty() {
        return Err(Error::invalid(op.name(), "forward() returned no output, but an operation must have at least one"));
    }
    Ok(outputs)
}

fn apply_one_object(op: &mut dyn AppliedOperation, inputs: &[&Tensor]) -> Result<Tensor> {
    let name = op.operation().name();
    let mut outputs = apply_object(op, inputs)?;
    if outputs.len() > 1 {
        let reason =
            format!("forward() returned {} outputs, but apply_one() returns only one; use apply()", outputs.len());
        return Err(Error::invalid(name, reason));
    }
    Ok(outputs.pop().expect("an applied operation must have an output"))
}

/// Returns the arrays of tensors.
#[inline]
pub(crate) fn arrays_of<'a>(tensors: &[&'a Tensor]) -> SmallVec<[&'a Array; 4]> {
    let mut arrays = SmallVec::new();
    for tensor in tensors {
        arrays.push(tensor.array());
    }
    arrays
}

/// Links each output that shares memory with an input to the history of the input, as for a view.
#[inline]
fn share_history(is_view: bool, inputs: &[&Tensor], outputs: &[Tensor]) {
    for output in outputs {
        for input in inputs {
            if output.array().shares_storage(input.array()) && output.dtype().is_float() {
                output.share_view_base(input);
                if !is_view {
                    input.view_base().set_opaque();
                }
                break;
            }
        }
    }
}

/// Returns true if an operation on these inputs must be recorded.
#[inline]
pub(crate) fn is_recorded(inputs: &[&Tensor]) -> bool {
    is_grad_enabled() && inputs.iter().any(|t| t.requires_grad())
}

/// Pins results to their device unless all inputs are free.
#[inline]
fn pin_results(inputs: &[&Tensor], outputs: &Arrays) {
    let pinned = inputs.iter().any(|input| !input.is_free());
    outputs.iter().for_each(|output| output.set_pinned(pinned));
}

/// Returns the results of an operation on these inputs without history.
#[inline]
pub(crate) fn untracked_results(inputs: &[&Tensor], outputs: Arrays) -> SmallVec<[Tensor; 1]> {
    pin_results(inputs, &outputs);
    untracked(outputs)
}

/// Returns arrays as tensors without history.
#[inline]
pub(crate) fn untracked(mut outputs: Arrays) -> SmallVec<[Tensor; 1]> {
    match outputs.len() {
        1 => SmallVec::from_buf([Tensor::from(outputs.pop().expect("a list of one output must not be empty"))]),
        _ => outputs.into_iter().map(Tensor::from).collect(),
    }
}

/// Runs `forward` with recording off, and records the results as outputs of a node. At least one input is tracked.
/// `arrays` are the elements of the inputs. An output may reuse the storage of input `reuse`, which must be a uniquely
/// owned temporary. `node` creates the node of the results.
#[inline]
pub(crate) fn record<W>(
    op: W,
    inputs: &[&Tensor],
    arrays: &[&Array],
    reuse: Option<usize>,
    forward: impl FnOnce(&W, &mut SaveForBackward) -> Result<Arrays>,
    node: impl FnOnce(W, NodeParts<'_>) -> Arc<GraphNode>,
) -> Result<SmallVec<[Tensor; 1]>> {
    let edges = match inputs {
        [a, b] => SmallVec::from_buf([a.edge(), b.edge()]),
        _ => inputs.iter().map(|input| input.edge()).collect(),
    };
    let mut saves = SaveForBackward { edges: &edges, reuse, requests: SmallVec::new() };
    let outputs = {
        let _recording_off = set_grad_enabled(false);
        forward(&op, &mut saves)?
    };
    let requests = saves.requests;
    if !outputs.iter().any(|a| a.dtype().is_float()) {
        return Ok(untracked_results(inputs, outputs));
    }
    pin_results(inputs, &outputs);
    let results = build_results(outputs, |outputs, output| {
        node(op, NodeParts { edges, output, requests: &requests, inputs: arrays, outputs })
    });
    note_forward_location(|| results.iter().find_map(|t| t.creator()).map(|node| node.0));
    Ok(results)
}

/// Records computed outputs as the results of a node with these edges; at least one edge is tracked. The saved values
/// need not belong to the tensors of the edges.
pub(crate) fn record_outputs<D: Derivative>(
    edges: SmallVec<[Edge; 2]>,
    outputs: Arrays,
    saved: Vec<SavedValue>,
    derivative: D,
) -> SmallVec<[Tensor; 1]> {
    build_results(outputs, |outputs, output| GraphNode::new(edges, metas_of(outputs), output, saved, derivative))
}

/// Creates the results and their node. `node` creates the node from the outputs and a weak handle to the result, which
/// dangles if there are several results. A result owns the node, and the node has weak references to its results.
#[inline]
fn build_results(
    mut outputs: Arrays,
    node: impl FnOnce(&[Array], Weak<TensorInner>) -> Arc<GraphNode>,
) -> SmallVec<[Tensor; 1]> {
    if outputs.len() == 1 {
        let node = |one: &Array, output| node(std::slice::from_ref(one), output);
        return SmallVec::from_buf([Tensor::only_output(
            outputs.pop().expect("a list of one output must not be empty"),
            node,
        )]);
    }
    let node = node(&outputs, Weak::new());
    let mut results = SmallVec::new();
    for (index, array) in outputs.into_iter().enumerate() {
        let float = array.dtype().is_float();
        results.push(if float { Tensor::recorded(array, node.clone(), index) } else { Tensor::from(array) });
    }
    node.set_outputs(&results);
    results
}

/// A compile-time check that tensors are `Send` and `Sync`.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<Tensor>();
    shared::<TensorInner>();
};
