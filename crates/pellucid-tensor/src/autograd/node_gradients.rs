//! The backward computation of one node.

use super::anomaly::forward_location;
use super::placement::{copy_to, on_device};
use super::shared_storages::{SharedStorages, with_unique_storage};
use crate::autocast::autocast_off;
use crate::ops::primitive::copy::to_dtype;
use crate::tensor::{
    Edge, GradientSlot, GraphNode, InputGradients, NeedsInputGrad, Node, OutputGradients, OutputMeta, SavedTensors,
    Tensor,
};
use pellucid_ir::kernel::Meta;
use pellucid_ir::{Error, Result};
use smallvec::SmallVec;
use std::sync::Arc;

/// The inputs of a node during its backward computation.
pub(super) struct NodeInputs {
    /// The gradient slots of leaves, which this struct keeps alive.
    pub(super) slots: SmallVec<[Option<Arc<GradientSlot>>; 2]>,
    /// The inputs whose gradient is needed.
    pub(super) needed: NeedsInputGrad,
    /// Whether the gradient of any input is needed.
    pub(super) is_any_needed: bool,
}

impl NodeInputs {
    /// Finds the inputs that need a gradient: tracked inputs for which `is_needed` is true, except leaves that were
    /// dropped.
    #[inline]
    pub(super) fn new(node: &GraphNode, is_needed: impl Fn(&Edge) -> bool) -> NodeInputs {
        let mut inputs = NodeInputs { slots: SmallVec::new(), needed: NeedsInputGrad::default(), is_any_needed: false };
        for (i, edge) in node.edges.iter().enumerate() {
            let slot = edge.live_slot();
            let alive = match edge {
                Edge::None => false,
                Edge::Leaf(_) => slot.is_some(),
                Edge::Node(..) => true,
            };
            inputs.slots.push(slot);
            if alive && is_needed(edge) {
                inputs.needed.insert(i);
                inputs.is_any_needed = true;
            }
        }
        inputs
    }
}

/// Runs the backward computation of a node, and frees its saved values unless `retain_graph` is set. `note_shared` is
/// called with every gradient that shares its storage with a saved value. The graph, and perhaps user code, also hold
/// the storage of such a gradient.
#[inline]
pub(super) fn node_gradients(
    inputs: &NodeInputs,
    incoming: &OutputGradients,
    retain_graph: bool,
    mut note_shared: impl FnMut(&Tensor),
) -> Result<InputGradients> {
    let node = incoming.node;
    let derivative = node.derivative();
    let name = derivative.name();
    let mut results = Ok(InputGradients::new());
    let live = node.saved_derivative.saved().with_values(retain_graph, &mut |values| {
        if inputs.is_any_needed {
            let saved = SavedTensors { node, values, slots: &inputs.slots };
            results = derivative.backward(&saved, incoming, inputs.needed);
            for gradient in results.iter().flatten().flatten() {
                if values.iter().any(|value| value.shares_storage(gradient)) {
                    note_shared(gradient);
                }
            }
        }
    });
    if !live {
        return Err(Error::GraphFreed { node: name });
    }
    let results = results.map_err(|error| match error {
        Error::Anomaly { op, shape, node: None, .. } => {
            Error::Anomaly { op, shape, node: Some(name), location: forward_location(node) }
        }
        other => other,
    })?;
    if inputs.is_any_needed && results.len() != node.edges.len() {
        let (got, inputs) = (results.len(), node.edges.len());
        let reason = format!("backward() returned {got} gradients, but the operation has {inputs} inputs");
        return Err(Error::invalid(name, reason));
    }
    Ok(results)
}

/// Checks that a gradient has the shape and dtype of the operation's input.
#[inline]
pub(super) fn check_gradient(from: &'static str, gradient: &Tensor, meta: &Meta) -> Result<()> {
    if *gradient.shape() != meta.shape {
        let help = "backward() must return gradients with the shapes of the inputs";
        return Err(Error::shapes(from, [gradient.shape(), &meta.shape], help));
    }
    if gradient.dtype() != meta.dtype {
        let help = "backward() must return gradients with the dtypes of the inputs; use to_dtype()";
        return Err(Error::dtypes(from, [gradient.dtype(), meta.dtype], help));
    }
    Ok(())
}

impl Node {
    /// Runs the backward computation of this operation alone: Σⱼ gⱼ·∂outputⱼ/∂inputᵢ for each input i. There is one
    /// incoming gradient for each output; `None` stands for zeros. The result is `None` for an input that requires no
    /// gradient, and for a leaf that was dropped.
    ///
    /// The call changes no gradient of a tensor, runs no hook, and keeps the saved values. If grad mode is on, the
    /// results are differentiable, as with `create_graph`; otherwise they share no memory with each other or with the
    /// incoming gradients.
    ///
    /// ```
    /// use pellucid::{Tensor, no_grad};
    /// let x = Tensor::from([2.0f64, 3.0]).requires_grad_(true);
    /// let y = &x * &Tensor::from([10.0f64, 100.0]);
    /// let mul = y.creator().expect("y is a result");
    /// let _guard = no_grad();
    /// let gradients = mul.backward(&[Some(&Tensor::from([1.0f64, 1.0]))])?;
    /// assert_eq!(gradients[0].as_ref().map(|g| g.to_vec::<f64>()), Some(vec![10.0, 100.0]));
    /// assert!(gradients[1].is_none() && x.grad().is_none());
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless there is one incoming gradient for each output; [`Error::ShapeMismatch`] if
    /// the shape of an incoming gradient differs from the shape of its output; [`Error::DeviceMismatch`] if an incoming
    /// gradient is pinned to another device; [`Error::GraphFreed`] if a backward pass has freed the saved values;
    /// [`Error::SavedValueModified`].
    pub fn backward(&self, grad_outputs: &[Option<&Tensor>]) -> Result<Vec<Option<Tensor>>> {
        let (node, name) = (&self.0, self.name());
        if grad_outputs.len() != node.outputs_meta.len() {
            let (got, outputs) = (grad_outputs.len(), node.outputs_meta.len());
            let reason =
                format!("backward() must get one incoming gradient for each of the {outputs} outputs, got {got}");
            return Err(Error::invalid(name, reason));
        }
        // A gradient is computed in the dtypes of its forward computation.
        let _autocast_off = autocast_off();
        let mut shared = SharedStorages::default();
        let mut incoming: SmallVec<[Option<Tensor>; 1]> = SmallVec::new();
        for (gradient, OutputMeta { meta, device }) in grad_outputs.iter().zip(&node.outputs_meta) {
            let Some(gradient) = gradient else {
                incoming.push(None);
                continue;
            };
            if *gradient.shape() != meta.shape {
                let help = "an incoming gradient must have the shape of its output";
                return Err(Error::shapes(name, [gradient.shape(), &meta.shape], help));
            }
            let gradient = to_dtype(&on_device(name, *device, gradient)?, meta.dtype)?;
            shared.insert(&gradient);
            incoming.push(Some(gradient));
        }
        let inputs = NodeInputs::new(node, |_| true);
        let grads = OutputGradients { node, values: &incoming, sums: &|_| None };
        let mut results = node_gradients(&inputs, &grads, true, |gradient| {
            shared.insert(gradient);
        })?;
        let saved = SavedTensors { node, values: &[], slots: &inputs.slots };
        let mut gradient_of = |i: usize| {
            if !saved.needs_gradient(inputs.needed, i) {
                return Ok(None);
            }
            let Some(gradient) = results[i].take() else {
                return grads.zeros(saved.meta(i).clone(), saved.input_device(i)).map(Some);
            };
            check_gradient(name, &gradient, saved.meta(i))?;
            let device = saved.input_device(i);
            let gradient = match inputs.slots[i].as_ref().and_then(|slot| slot.moved_to()) {
                // The leaf may have been on another device in the forward computation.
                Some(_) if gradient.device() != device => copy_to(&gradient, device)?,
                _ => on_device(name, device, &gradient)?,
            };
            with_unique_storage(gradient, &mut shared).map(Some)
        };
        (0..node.edges.len()).map(&mut gradient_of).collect()
    }
}
