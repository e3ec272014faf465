//! The backward pass: each node runs at most once, after all its consumers; nodes of later generations run first.

use super::address_map::AddressMap;
use super::constant::with_zero_derivative;
use super::node_gradients::{NodeInputs, check_gradient, node_gradients};
use super::placement::{copy_to, on_device, placed_like};
use super::shared_storages::{SharedStorages, with_unique_storage};
use super::targets::GradTarget;
use crate::autocast::{autocast_dtype, autocast_off};
use crate::device::Device;
use crate::engine::{self, is_capturing};
use crate::grad_mode::set_grad_enabled;
use crate::idle::release_idle_memory;
use crate::ops::elementwise::arithmetic::add;
use crate::ops::primitive::copy::{copy, to_dtype};
use crate::ops::primitive::fill::ones_like;
use crate::panic;
use crate::tensor::{Edge, GradientSlot, GraphNode, Hooks, OutputGradients, OutputMeta, Tensor, address};
use pellucid_ir::kernel::Meta;
use pellucid_ir::{Error, Result};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Options of a backward pass.
///
/// ```
/// use pellucid::{BackwardOptions, Tensor};
/// let x = Tensor::from([2.0f64]).requires_grad_(true);
/// let y = &x * &x * &x;
/// y.backward_with(BackwardOptions { create_graph: true, ..Default::default() });
/// let first = x.grad().unwrap();
/// x.zero_grad();
/// first.backward();
/// assert_eq!(x.grad().unwrap().item::<f64>(), 12.0);
/// ```
#[derive(Clone, Debug, Default)]
pub struct BackwardOptions {
    /// The initial gradient, with the output's shape. By default, a result starts from the gradient that
    /// [`Tensor::set_grad`] has set on it, if any; otherwise the pass starts from ones.
    pub gradient: Option<Tensor>,
    /// Whether to keep the gradients of all tensors in the graph, not only of leaves.
    pub retain_grad: bool,
    /// Whether to record the pass, so that gradients can be differentiated. Implies `retain_graph`.
    pub create_graph: bool,
    /// Whether to keep the saved values of nodes, so that the graph can be used again.
    pub retain_graph: bool,
}

/// Runs the backward pass from one tensor and adds the gradients to the slots of its leaves.
fn backward(output: &Tensor, mut options: BackwardOptions) -> Result<()> {
    let gradient = options.gradient.take();
    let preset = if gradient.is_none() { output.preset_grad() } else { None };
    let mut pass = BackwardPass::new(&options);
    // A preset gradient is already in the slot of the output and must not be added to it.
    pass.preset = preset.as_ref().map(|_| output.edge());
    pass.seed("backward", output, gradient.or(preset))?;
    let result = pass.run();
    // If a leaf has moved to another device, the graph may have been the last owner of its previous elements.
    release_idle_memory();
    result
}

impl Tensor {
    /// Computes the gradient of every leaf that this tensor depends on, and adds it to the leaf's gradient. The pass
    /// starts with ones of this tensor's shape, or with the gradient of [`Tensor::set_grad`], and frees the graph.
    ///
    /// # Panics
    /// Panics if [`Tensor::try_backward`] returns an error.
    #[track_caller]
    pub fn backward(&self) {
        panic::unwrap(self.try_backward());
    }

    /// Runs [`Tensor::backward`] with options.
    ///
    /// # Panics
    /// Panics if [`Tensor::try_backward_with`] returns an error.
    #[track_caller]
    pub fn backward_with(&self, options: BackwardOptions) {
        panic::unwrap(self.try_backward_with(options));
    }

    /// Runs [`Tensor::backward`] and returns errors as values.
    ///
    /// # Errors
    /// The errors of [`Tensor::try_backward_with`].
    pub fn try_backward(&self) -> Result<()> {
        backward(self, BackwardOptions::default())
    }

    /// Runs [`Tensor::backward_with`] and returns errors as values.
    ///
    /// # Errors
    /// [`Error::NotTracked`](crate::Error::NotTracked); [`Error::GraphFreed`](crate::Error::GraphFreed) if an earlier
    /// pass has freed the graph; [`Error::SavedValueModified`](crate::Error::SavedValueModified);
    /// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch) for an initial gradient of another shape;
    /// [`Error::DeviceMismatch`](crate::Error::DeviceMismatch) for an initial gradient that is pinned to another
    /// device; [`Error::OutOfMemory`](crate::Error::OutOfMemory). After an error, all gradients are unchanged, unless
    /// memory runs out for a sum that `create_graph` records.
    pub fn try_backward_with(&self, options: BackwardOptions) -> Result<()> {
        backward(self, options)
    }
}

/// A queued node with the gradients that its outputs have received.
struct QueuedNode {
    node: Arc<GraphNode>,
    gradients: SmallVec<[Option<Tensor>; 1]>,
}

/// The priority queue of nodes: the latest generation first; within a generation, in order of arrival.
#[derive(Default)]
struct NodeQueue {
    /// The next entry, which is not in the heap. For a chain of operations, the queue never has a second entry, so the
    /// heap allocates nothing.
    first: Option<QueueEntry>,
    rest: BinaryHeap<QueueEntry>,
    arrivals: usize,
}

/// The generation of a queued node (see [`Node::generation`](crate::Node::generation)), its arrival number, and its
/// index in `waiting`.
type QueueEntry = (u64, Reverse<usize>, usize);

impl NodeQueue {
    fn push(&mut self, generation: u64, index: usize) {
        let entry = (generation, Reverse(self.arrivals), index);
        self.arrivals += 1;
        match &mut self.first {
            None => self.first = Some(entry),
            Some(first) => {
                let later = std::mem::replace(first, entry.max(*first)).min(entry);
                self.rest.push(later);
            }
        }
    }

    /// Returns the index of the next node in `waiting`.
    fn pop(&mut self) -> Option<usize> {
        let (.., index) = self.first.take()?;
        if !self.rest.is_empty() {
            self.first = self.rest.pop();
        }
        Some(index)
    }
}

/// The gradient slot of a leaf, with the sum of the gradients that the leaf has received in this pass.
struct LeafGradient {
    slot: Arc<GradientSlot>,
    gradient: Option<Tensor>,
}

/// The state of one backward pass.
pub(crate) struct BackwardPass<'a> {
    options: &'a BackwardOptions,
    queue: NodeQueue,
    /// Queued nodes. An entry at the end of the list is removed when its node runs, so for a chain of operations the
    /// list has at most one entry.
    waiting: SmallVec<[Option<QueuedNode>; 2]>,
    node_at: AddressMap<usize>,
    leaves: SmallVec<[LeafGradient; 4]>,
    leaf_at: AddressMap<usize>,
    /// The gradients of results that retain them, with their slots.
    retained: Vec<(Arc<GradientSlot>, Tensor)>,
    shared: SharedStorages,
    /// The targets of `grad`, and for each node whether a target is reachable from it; `None` in any other pass.
    targets: Option<(&'a mut [GradTarget], AddressMap<bool>)>,
    /// The output whose preset gradient starts the pass.
    preset: Option<Edge>,
}

impl<'a> BackwardPass<'a> {
    pub(crate) fn new(options: &'a BackwardOptions) -> BackwardPass<'a> {
        BackwardPass {
            options,
            queue: NodeQueue::default(),
            waiting: SmallVec::new(),
            node_at: AddressMap::default(),
            leaves: SmallVec::new(),
            leaf_at: AddressMap::default(),
            retained: Vec::new(),
            shared: SharedStorages::default(),
            targets: None,
            preset: None,
        }
    }

    /// Makes the pass collect the gradients of `targets`, instead of adding gradients to slots. `leads` stores for each
    /// node whether a target is reachable from it.
    pub(crate) fn with_targets(mut self, targets: &'a mut [GradTarget], leads: AddressMap<bool>) -> BackwardPass<'a> {
        self.targets = Some((targets, leads));
        self
    }

    /// Returns the storages of gradients that also have owners outside the pass.
    pub(crate) fn into_shared(self) -> SharedStorages {
        self.shared
    }

    /// Starts the pass at `output` with `gradient`, by default ones.
    pub(crate) fn seed(&mut self, op: &'static str, output: &Tensor, gradient: Option<Tensor>) -> Result<()> {
        if !output.requires_grad() {
            return Err(output.not_tracked(op, "the tensor"));
        }
        let gradient = match gradient {
            // Only the pass owns this tensor.
            None => ones_like(output)?,
            Some(g) if g.shape() == output.shape() => {
                let gradient = to_dtype(&placed_like(op, output, &g)?, output.dtype())?;
                self.shared.insert(&gradient);
                gradient
            }
            Some(g) => {
                let help = "the gradient must have the output's shape; reshape() or expand() it";
                return Err(Error::shapes(op, [g.shape(), output.shape()], help));
            }
        };
        match output.edge() {
            Edge::Node(node, index) => self.add_to_node(op, &node, index, gradient),
            edge => edge.live_slot().map_or(Ok(()), |slot| self.add_to_leaf(op, slot, gradient)),
        }
    }

    /// Runs all nodes. Slots are written only after the entire pass has succeeded.
    pub(crate) fn run(&mut self) -> Result<()> {
        let _recording = set_grad_enabled(self.options.create_graph);
        // A gradient is computed in the dtypes of its forward computation.
        let _autocast_off = autocast_dtype().map(|_| autocast_off());
        while let Some(index) = self.queue.pop() {
            let QueuedNode { node, mut gradients } =
                self.waiting[index].take().expect("a node must not be taken from the queue twice");
            if index + 1 == self.waiting.len() {
                self.waiting.pop();
            }
            self.node_at.remove(address(&node) as usize);
            self.observe(&node, &mut gradients)?;
            self.run_node(&node, &gradients)?;
        }
        self.finish()
    }

    /// Runs the backward computation of one node and adds the results to the gradients of its producers.
    fn run_node(&mut self, node: &Arc<GraphNode>, gradients: &[Option<Tensor>]) -> Result<()> {
        let mut inputs = NodeInputs::new(node, |edge| self.is_needed(edge));
        // If no input is needed, the node computes a target from which no other target is reachable. It does not run,
        // and keeps its saved values, because a later pass may start from the target.
        if self.targets.is_some() && !inputs.is_any_needed {
            return Ok(());
        }
        let keep = self.options.retain_graph || self.options.create_graph;
        let name = node.derivative().name();
        let device = node.outputs_meta[0].device;
        let pass = RefCell::new(&mut *self);
        let sums = |i: usize| pass.borrow_mut().take_sum(&node.edges[i], inputs.slots[i].as_ref(), device);
        let incoming = OutputGradients { node, values: gradients, sums: &sums };
        let results = node_gradients(&inputs, &incoming, keep, |gradient| {
            pass.borrow_mut().shared.insert(gradient);
        })?;
        for (i, gradient) in results.into_iter().enumerate() {
            if let Some(gradient) = gradient.filter(|_| inputs.needed.contains(i) && i < node.edges.len()) {
                match (&node.edges[i], inputs.slots[i].take()) {
                    (Edge::Node(producer, index), _) => self.add_to_node(name, producer, *index, gradient)?,
                    (_, Some(slot)) => self.add_to_leaf(name, slot, gradient)?,
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Takes the sum of the gradients that an input has received so far, so that an operation on `device` can add its
    /// contribution to it. Returns `None` if there is no sum yet, if the sum has a history, if kernels are deferred, or
    /// if the sum is on another device because the input is a leaf that has moved.
    fn take_sum(&mut self, edge: &Edge, slot: Option<&Arc<GradientSlot>>, device: Device) -> Option<Tensor> {
        let sum = match edge {
            Edge::Node(node, index) => {
                let queued = self.node_at.get(address(node) as usize)?;
                &mut self.waiting[queued]
                    .as_mut()
                    .expect("a node that receives a gradient must not have run before")
                    .gradients[*index as usize]
            }
            _ => &mut self.leaves[self.leaf_at.get(Arc::as_ptr(slot?) as usize)?].gradient,
        };
        sum.take_if(|sum| sum.device() == device && !sum.requires_grad() && engine::is_immediate(device))
    }

    /// Adds a gradient to the sum of an output of a node.
    fn add_to_node(&mut self, from: &'static str, node: &Arc<GraphNode>, index: u32, gradient: Tensor) -> Result<()> {
        let index = index as usize;
        let OutputMeta { meta, device } = &node.outputs_meta[index];
        check_gradient(from, &gradient, meta)?;
        let gradient = self.on_device_of_input(from, gradient, *device)?;
        let key = address(node) as usize;
        let position = self.node_at.get(key).unwrap_or_else(|| {
            let position = self.waiting.len();
            let gradients = SmallVec::from_elem(None, node.outputs_meta.len());
            self.waiting.push(Some(QueuedNode { node: node.clone(), gradients }));
            self.queue.push(node.generation, position);
            self.node_at.insert(key, position);
            position
        });
        let gradients = &mut self.waiting[position]
            .as_mut()
            .expect("a node that receives a gradient must not have run before")
            .gradients;
        self.options.accumulate(&mut gradients[index], gradient)
    }

    /// Adds a gradient to the sum of a leaf.
    fn add_to_leaf(&mut self, from: &'static str, slot: Arc<GradientSlot>, gradient: Tensor) -> Result<()> {
        // The leaf may have had another dtype in the forward computation.
        let is_converted = slot.is_converted() && gradient.dtype() != slot.meta().dtype;
        let gradient = if is_converted { to_dtype(&gradient, slot.meta().dtype)? } else { gradient };
        check_gradient(from, &gradient, slot.meta())?;
        let gradient = match slot.moved_to() {
            // The leaf may have been on another device in the forward computation.
            Some(device) if gradient.device() != device => copy_to(&gradient, device)?,
            _ => self.on_device_of_input(from, gradient, slot.device())?,
        };
        let address = Arc::as_ptr(&slot) as usize;
        let leaf = self.leaf_at.get(address).unwrap_or_else(|| {
            self.leaves.push(LeafGradient { slot, gradient: None });
            self.leaf_at.insert(address, self.leaves.len() - 1);
            self.leaves.len() - 1
        });
        self.options.accumulate(&mut self.leaves[leaf].gradient, gradient)
    }

    /// Returns the gradient of an input on the device of the input.
    ///
    /// # Errors
    /// [`Error::DeviceMismatch`] if `backward()` of the operation returned a gradient that is pinned to another device.
    fn on_device_of_input(&mut self, from: &'static str, gradient: Tensor, device: Device) -> Result<Tensor> {
        if gradient.device() == device {
            return Ok(gradient);
        }
        let copy = on_device(from, device, &gradient)?;
        // The operation may keep the gradient, and with it the copy.
        self.shared.insert(&copy);
        Ok(copy)
    }

    /// Passes the complete gradients of a node's outputs to hooks and targets, and keeps the gradients of outputs that
    /// retain them.
    fn observe(&mut self, node: &Arc<GraphNode>, gradients: &mut [Option<Tensor>]) -> Result<()> {
        if is_capturing() {
            node.keep_hooks_of_live_outputs();
        }
        if let Some(hooks) = node.hooks() {
            for ((hooks, meta), gradient) in hooks.iter().zip(&node.outputs_meta).zip(&mut *gradients) {
                let OutputMeta { meta, device } = meta;
                *gradient =
                    gradient.take().map(|g| run_hooks(hooks, g, meta, *device, &mut self.shared)).transpose()?;
            }
        }
        if let Some((targets, _)) = &mut self.targets {
            for target in targets.iter_mut() {
                if let Edge::Node(producer, index) = &target.edge
                    && address(producer) == address(node)
                {
                    target.gradient = gradients[*index as usize].clone();
                }
            }
            return Ok(());
        }
        if self.options.retain_grad || node.is_observed.load(Ordering::Acquire) {
            for (index, (handle, gradient)) in node.outputs().iter().zip(&*gradients).enumerate() {
                let (Some(inner), Some(gradient)) = (handle.upgrade(), gradient) else { continue };
                if self.preset.as_ref().is_some_and(|p| p.is_same(&Edge::Node(node.clone(), index as u32))) {
                    continue;
                }
                if let Some(slot) = Tensor::from_inner(inner).kept_slot(node, self.options.retain_grad) {
                    // Slots never share a storage, because the user may write into each.
                    let is_first = self.shared.insert(gradient);
                    let retained = if is_first { gradient.clone() } else { copy(gradient)? };
                    self.retained.push((slot.clone(), retained));
                }
            }
        }
        Ok(())
    }

    /// Moves the gradients of leaves and the retained gradients to their targets or slots.
    fn finish(&mut self) -> Result<()> {
        let BackwardPass { options, leaves, retained, shared, targets, .. } = self;
        for LeafGradient { slot, gradient } in leaves.iter_mut() {
            let run = |g| run_hooks(&slot.hooks, g, slot.meta(), slot.device(), shared);
            *gradient = gradient.take().map(run).transpose()?;
        }
        if let Some((targets, _)) = targets {
            for LeafGradient { slot, gradient } in leaves.drain(..) {
                for target in targets.iter_mut() {
                    if matches!(&target.edge, Edge::Leaf(wanted) if wanted.as_ptr() == Arc::as_ptr(&slot)) {
                        target.gradient = gradient.clone();
                    }
                }
            }
            return Ok(());
        }
        // A recorded gradient is differentiable with respect to all leaves, even if it is constant.
        let edges: Vec<Edge> = match options.create_graph {
            true => leaves.iter().map(|arrived| Edge::Leaf(Arc::downgrade(&arrived.slot))).collect(),
            false => Vec::new(),
        };
        // Memory is allocated before the first slot is written, so that an error changes no gradient.
        for LeafGradient { slot, gradient } in leaves.iter_mut() {
            let Some(new) = gradient.take() else { continue };
            let new = with_zero_derivative(new, &edges);
            let is_stored = |current: &Option<Tensor>| current.as_ref().is_none_or(|sum| options.adds_to(&new, sum));
            *gradient = Some(if slot.inspect(is_stored) { with_unique_storage(new, shared)? } else { new });
        }
        for (slot, new) in retained.iter_mut() {
            let is_stored = |current: &Option<Tensor>| current.as_ref().is_some_and(|sum| options.adds_to(new, sum));
            if slot.inspect(is_stored) && !new.is_unique() {
                *new = copy(new)?;
            }
        }
        let of_leaves = leaves.drain(..).filter_map(|LeafGradient { slot, gradient }| Some((slot, gradient?)));
        for (slot, gradient) in retained.drain(..).chain(of_leaves) {
            slot.update(|current| options.accumulate(current, gradient))?;
        }
        Ok(())
    }

    fn is_needed(&self, edge: &Edge) -> bool {
        match (&self.targets, edge) {
            (None, _) => true,
            (Some(_), Edge::None) => false,
            (Some((targets, _)), Edge::Leaf(_)) => targets.iter().any(|t| t.edge.is_same(edge)),
            (Some((targets, leads)), Edge::Node(node, _)) => {
                leads.get(address(node) as usize).unwrap_or(false) || targets.iter().any(|t| t.edge.is_same(edge))
            }
        }
    }
}

impl BackwardOptions {
    /// Returns true if the sum of two gradients is recorded.
    fn records(&self, sum: &Tensor, gradient: &Tensor) -> bool {
        self.create_graph || sum.requires_grad() || gradient.requires_grad()
    }

    /// Returns true if [`accumulate`](Self::accumulate) stores the sum in the memory of `gradient` (if that is uniquely
    /// owned), because `sum` has another owner.
    fn adds_to(&self, gradient: &Tensor, sum: &Tensor) -> bool {
        !self.records(sum, gradient) && !sum.is_unique() && engine::is_immediate(sum.device())
    }

    /// Computes `current += gradient`. The first contribution is moved in. A buffer is written in place only if it is
    /// uniquely owned, the sum is not recorded, and kernels run immediately. An error leaves `current` unchanged,
    /// because a sum in place allocates no memory.
    fn accumulate(&self, current: &mut Option<Tensor>, gradient: Tensor) -> Result<()> {
        let in_place =
            |sum: &mut Tensor| !self.records(sum, &gradient) && sum.is_unique() && engine::is_immediate(sum.device());
        *current = Some(match current.take_if(in_place) {
            Some(sum) => add(sum, gradient)?,
            None => match current {
                None => gradient,
                Some(sum) if self.records(sum, &gradient) => {
                    let _on = set_grad_enabled(true);
                    add(&*sum, &gradient)?
                }
                Some(sum) => add(&*sum, gradient)?,
            },
        });
        Ok(())
    }
}

/// Applies the hooks to a gradient of a tensor with this shape, dtype and device. A hook may keep a handle to it, so
/// its storage counts as shared.
fn run_hooks(
    hooks: &Hooks,
    gradient: Tensor,
    meta: &Meta,
    device: Device,
    shared: &mut SharedStorages,
) -> Result<Tensor> {
    let hooks = hooks.registered();
    if hooks.is_empty() {
        return Ok(gradient);
    }
    let incoming = on_device("hook", device, &gradient)?;
    let gradient = hooks.iter().fold(gradient, |g, hook| hook(&g).unwrap_or(g));
    if *gradient.shape() != meta.shape {
        let help = "a hook must return a gradient of its tensor's shape";
        return Err(Error::shapes("hook", [gradient.shape(), &meta.shape], help));
    }
    if gradient.dtype() != meta.dtype {
        let help = "a hook must return a gradient of its tensor's dtype";
        return Err(Error::dtypes("hook", [gradient.dtype(), meta.dtype], help));
    }
    let gradient = placed_like("hook", &incoming, &gradient)?;
    shared.insert(&gradient);
    Ok(gradient)
}
