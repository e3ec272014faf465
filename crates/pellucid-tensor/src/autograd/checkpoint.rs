//! `checkpoint`: trades time for memory. The forward pass saves only the inputs of a segment of the computation, and
//! the backward pass recomputes the segment (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016).
//!
//! Higher orders: with F₀ = f, the function Fₖ₊₁(x, g) is the gradient of Fₖ at x with incoming gradient g, computed in
//! a separate graph whose leaves are x and g. The gradient of a checkpoint of Fₖ is a checkpoint of Fₖ₊₁. So gradients
//! of every order exist, and each order saves only its inputs.

use super::address_map::AddressMap;
use super::in_place::{WrittenBase, add_writes, collect_writes};
use super::operation::{Arrays, Operation, apply};
use super::transform::{GradOptions, collect_gradients};
use crate::array::Array;
use crate::autocast::{autocast_dtype, set_autocast};
use crate::grad_mode::enable_grad;
use crate::ops::random::{Generator, StateRecord};
use crate::tensor::{
    Edge, GraphNode, InputGradients, NeedsInputGrad, OutputGradients, SaveForBackward, SavedTensors, Tensor,
    TensorInner, address, is_rewritten,
};
use pellucid_ir::{Error, Result};
use std::sync::{Arc, Weak};

/// Computes f(inputs) without saving intermediate values. The backward pass runs f again with the same state of the
/// thread's random generator, so that dropout masks are equal.
///
/// f may use captured leaves, such as a layer's parameters, if they are among the inputs: every tensor through which
/// gradients flow must be an input. f runs once in the forward pass and once in every backward pass of its results, and
/// must compute the same values in every run. Derivatives of every order are supported.
///
/// ```
/// use pellucid::{checkpoint, Tensor};
/// let x = Tensor::from([0.5f64]).requires_grad_(true);
/// let y = checkpoint(|x| Ok(vec![x[0].sin().exp()]), &[&x])?;
/// y[0].backward();
/// assert_eq!(x.grad().unwrap().item::<f64>(), 0.5f64.cos() * 0.5f64.sin().exp());
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// The errors of f; [`Error::InvalidArgument`] if f's results depend on a tracked tensor that is not among the inputs,
/// if f writes a tracked value into a tensor from outside while an input is a result of another operation, or if a
/// result is not of a float dtype.
pub fn checkpoint(
    f: impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static,
    inputs: &[&Tensor],
) -> Result<Vec<Tensor>> {
    let half = autocast_dtype();
    let operation = Recomputation {
        // The backward pass runs f with the autocast dtype of the forward pass.
        f: Arc::new(move |x: &[Tensor]| {
            let _precision = set_autocast(half);
            f(x)
        }),
        generator: Generator::default(),
        initial_states: StateRecord::default(),
        roles: inputs.iter().map(|t| InputRole::from_tensor(t)).collect(),
        input_counts: vec![inputs.len()],
    };
    Ok(apply(operation, inputs)?.into_vec())
}

type CheckpointedFn = dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync;

/// The role of an input of f in the caller's graph.
#[derive(Clone)]
enum InputRole {
    /// The input requires no gradient.
    Untracked,
    /// A result of an operation, which f receives as a leaf with the same values.
    Result,
    /// A leaf, which f may also capture.
    Leaf(Weak<TensorInner>),
}

impl InputRole {
    fn from_tensor(t: &Tensor) -> InputRole {
        match t.edge() {
            Edge::None => InputRole::Untracked,
            Edge::Node(..) => InputRole::Result,
            Edge::Leaf(_) => InputRole::Leaf(Arc::downgrade(t.as_inner())),
        }
    }
}

/// The operation Fₖ, whose inputs are the inputs of f followed by the incoming gradients of F₀ to Fₖ₋₁.
struct Recomputation {
    f: Arc<CheckpointedFn>,
    /// The thread's random generator in the forward pass.
    generator: Generator,
    /// The states of the generator before the first run of f, on all devices on which f draws random numbers.
    initial_states: StateRecord,
    roles: Vec<InputRole>,
    /// The numbers of inputs of F₀ to Fₖ.
    input_counts: Vec<usize>,
}

impl Recomputation {
    fn level(&self) -> usize {
        self.input_counts.len() - 1
    }

    /// Returns true if Fₖ₊₁ computes a gradient for input i of Fₖ. This is true for all inputs that are incoming
    /// gradients.
    fn is_tracked(&self, i: usize) -> bool {
        !matches!(self.roles.get(i), Some(InputRole::Untracked))
    }

    /// Returns the indices of the inputs of Fₖ, with k = `level`, for which Fₖ₊₁ computes a gradient.
    fn tracked(&self, level: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.input_counts[level]).filter(|&i| self.is_tracked(i))
    }

    /// Returns the leaves of a new graph, one for each input. An input that is a leaf is itself used at its first
    /// occurrence. Later occurrences get new leaves, because each input has its own gradient.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if an input that is a leaf has moved to another device since the first run of f: f
    /// may also use the leaf itself.
    fn graph_leaves(&self, inputs: &[&Array]) -> Result<Vec<Tensor>> {
        let mut leaves: Vec<Tensor> = Vec::with_capacity(inputs.len());
        for (i, array) in inputs.iter().enumerate() {
            let leaf = match self.roles.get(i) {
                Some(InputRole::Leaf(leaf)) => leaf.upgrade().map(Tensor::from_inner),
                _ => None,
            };
            if let Some(leaf) = leaf.as_ref().filter(|leaf| leaf.device() != array.device()) {
                let (before, now, shape) = (array.device(), leaf.device(), leaf.shape());
                let reason = format!(
                    "input {i} of shape {shape} moved from {before} to {now} after the forward computation; \
                                      call backward() before the move"
                );
                return Err(Error::invalid("checkpoint", reason));
            }
            let leaf = leaf.filter(|leaf| leaves.iter().all(|other| !other.is_same_tensor(leaf)));
            let is_tracked = !matches!(self.roles.get(i), Some(InputRole::Untracked));
            leaves.push(leaf.unwrap_or_else(|| Tensor::from((*array).clone()).requires_grad_(is_tracked)));
        }
        Ok(leaves)
    }

    /// Computes Fₖ(x), with k = `level`, while recording is on.
    fn evaluate(&self, level: usize, x: &[Tensor]) -> Result<Vec<Tensor>> {
        let Some(below) = level.checked_sub(1) else { return (self.f)(&x[..self.input_counts[0]]) };
        let outputs = self.evaluate(below, x)?;
        let incoming = &x[self.input_counts[below]..self.input_counts[level]];
        if outputs.len() != incoming.len() {
            let (now, before) = (outputs.len(), incoming.len());
            let reason = format!(
                "the function returned {before} results at first, and {now} when it ran again; return \
                 the same number in every run"
            );
            return Err(Error::invalid("checkpoint", reason));
        }
        let targets: Vec<&Tensor> = self.tracked(below).map(|i| &x[i]).collect();
        let (outputs, grad_outputs) = outputs.iter().zip(incoming).map(|(y, g)| (y, Some(g.clone()))).unzip();
        let options = GradOptions { grad_outputs, create_graph: true, retain_graph: true, allow_unused: true };
        let outputs: Vec<&Tensor> = outputs;
        collect_gradients(&outputs, &targets, options)
    }

    /// Returns an error if f has recorded a write into a tensor from outside f while an input of f is a result. The
    /// history of such a write would end at the leaf that replaces the input, so the input would get no gradient.
    fn check_outside_writes(&self, outputs: &[Tensor], written: &[WrittenBase]) -> Result<()> {
        if !self.roles.iter().any(|role| matches!(role, InputRole::Result)) {
            return Ok(());
        }
        for (base, _) in written {
            let listed = written.iter().filter(|(other, _)| Arc::ptr_eq(other, base)).count();
            let listed = listed + usize::from(is_rewritten(base));
            let returned = outputs.iter().filter(|output| output.has_base(base)).count();
            if Arc::strong_count(base) > listed + returned && base.is_tracked() {
                let reason = "f writes a tracked value into a tensor from outside of f, and the gradient of the value \
                              would be lost; return the value from f, and write it after the checkpoint";
                return Err(Error::invalid("checkpoint", reason));
            }
        }
        Ok(())
    }

    /// Runs [`evaluate`](Self::evaluate) with the random numbers of the forward pass.
    fn reevaluate(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
        let generator = self.generator.at_states(&self.initial_states)?;
        let _scope = generator.scope();
        self.evaluate(self.level(), x)
    }
}

impl Operation for Recomputation {
    fn name(&self) -> &'static str {
        "checkpoint"
    }

    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        (0..inputs.len()).for_each(|i| saves.input(i));
        let _on = enable_grad();
        let x = self.graph_leaves(inputs)?;
        if self.level() > 0 {
            let outputs = self.reevaluate(&x)?;
            return Ok(outputs.iter().map(|output| output.array().clone()).collect());
        }
        let (outputs, written) = {
            let _scope = self.generator.recorded(&self.initial_states).scope();
            collect_writes(|| self.evaluate(0, &x))
        };
        let checked = outputs.and_then(|outputs| {
            check_dependencies(&outputs, &x)?;
            self.check_outside_writes(&outputs, &written)?;
            Ok(outputs)
        });
        if checked.is_err() {
            // The history of the writes ends at the leaves that replace inputs, so the inputs would get no gradient.
            for (base, before) in written.into_iter().rev() {
                base.restore(before);
            }
        } else {
            add_writes(written);
        }
        let outputs = checked?;
        Ok(outputs.iter().map(|output| output.array().clone()).collect())
    }

    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let mut x = saved.inputs_from(0)?.into_vec();
        for j in 0..grads.len() {
            x.push(grads.get(j)?);
        }
        let gradient = Recomputation {
            f: self.f.clone(),
            generator: self.generator.clone(),
            initial_states: self.initial_states.clone(),
            roles: self.roles.clone(),
            input_counts: self.input_counts.iter().copied().chain([x.len()]).collect(),
        };
        let results = apply(gradient, &x.iter().collect::<Vec<_>>())?;
        let mut gradients = InputGradients::from_elem(None, saved.inputs());
        for (i, result) in self.tracked(self.level()).zip(results) {
            gradients[i] = Some(result);
        }
        Ok(gradients)
    }
}

/// Returns an error if a result depends on a leaf that is not in `inputs`, because the leaf would get no gradient.
fn check_dependencies(outputs: &[Tensor], inputs: &[Tensor]) -> Result<()> {
    let invalid = |reason: String| Err(Error::invalid("checkpoint", reason));
    let allowed: Vec<Edge> = inputs.iter().map(|x| x.edge()).collect();
    let mut visited: AddressMap<()> = AddressMap::default();
    let mut next: Vec<Arc<GraphNode>> = vec![];
    let mut edges: Vec<Edge> = vec![];
    for output in outputs {
        if !output.dtype().is_float() {
            return invalid(format!("a result has dtype {}; return only results of a float dtype", output.dtype()));
        }
        edges.push(output.edge());
    }
    loop {
        for edge in edges.drain(..) {
            match edge {
                Edge::Node(node, _) if visited.get(address(&node) as usize).is_none() => {
                    visited.insert(address(&node) as usize, ());
                    next.push(node);
                }
                Edge::Leaf(_) if !allowed.iter().any(|a| a.is_same(&edge)) => {
                    return invalid(
                        "the function uses a tracked tensor that is not among its inputs; pass the tensor or its \
                         leaf as an input, or detach() it"
                            .into(),
                    );
                }
                _ => {}
            }
        }
        let Some(node) = next.pop() else { return Ok(()) };
        edges.extend(node.edges.iter().cloned());
    }
}
