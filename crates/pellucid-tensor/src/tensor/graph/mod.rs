//! The recorded graph: nodes and edges.
//!
//! A node is one allocation: the edges to the producers of its inputs, the [`Derivative`] of its operation, and the
//! values that the operation saved.

mod gradients;
mod node;
mod saved;
mod saved_derivative;
mod text;

pub use gradients::{InputGradients, NeedsInputGrad, OutputGradients};
pub use node::{Node, NodeInput};
pub use saved::{SaveForBackward, SavedTensors};
pub(crate) use saved::{SaveRequest, SavedValue};
pub(crate) use saved_derivative::Derivative;

use super::gradient_slot::GradientSlot;
use super::hook::Hooks;
use super::{Tensor, TensorInner};
use crate::array::Array;
use crate::device::Device;
use crate::engine;
use pellucid_ir::backend::READY;
use pellucid_ir::kernel::Meta;
use saved_derivative::{SavedDerivative, SavedDerivativeOf};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// The producer of an input of a node.
#[derive(Clone)]
pub(crate) enum Edge {
    /// No producer: the input requires no gradient.
    None,
    /// A leaf. If its last handle was dropped, its gradient is not needed.
    Leaf(Weak<GradientSlot>),
    /// An output of a node.
    Node(Arc<GraphNode>, u32),
}

impl Edge {
    /// Returns true if the input requires a gradient.
    #[inline]
    pub(crate) fn is_tracked(&self) -> bool {
        !matches!(self, Edge::None)
    }

    /// Returns the generation of the tensor.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        match self {
            Edge::Node(node, _) => node.generation + 1,
            _ => 0,
        }
    }

    /// Returns the gradient slot of a leaf, unless the leaf was dropped.
    #[inline]
    pub(crate) fn live_slot(&self) -> Option<Arc<GradientSlot>> {
        match self {
            Edge::Leaf(slot) => slot.upgrade(),
            _ => None,
        }
    }

    /// Returns the tensor: a leaf, or an output of a node that was not written in place later. Returns `None` if it was
    /// dropped or requires no gradient.
    pub(crate) fn live_tensor(&self) -> Option<Tensor> {
        match self {
            Edge::None => None,
            Edge::Leaf(_) => self.live_slot().and_then(|slot| slot.tensor()),
            Edge::Node(node, index) => {
                let output = node.outputs().get(*index as usize)?.upgrade().map(Tensor::from_inner)?;
                output.edge().is_same(self).then_some(output)
            }
        }
    }

    /// Returns true if both edges refer to the same tensor.
    pub(crate) fn is_same(&self, other: &Edge) -> bool {
        match (self, other) {
            (Edge::Leaf(a), Edge::Leaf(b)) => Weak::ptr_eq(a, b),
            (Edge::Node(a, i), Edge::Node(b, j)) => is_same_node(a, b) && i == j,
            _ => false,
        }
    }
}

pub(crate) fn address(node: &Arc<GraphNode>) -> *const () {
    Arc::as_ptr(node).cast()
}

pub(crate) fn is_same_node(a: &Arc<GraphNode>, b: &Arc<GraphNode>) -> bool {
    address(a) == address(b)
}

/// The shape, dtype and device of an output of a node.
pub(crate) struct OutputMeta {
    pub(crate) meta: Meta,
    pub(crate) device: Device,
}

/// The rarely used fields of a node.
#[derive(Default)]
struct NodeDetails {
    /// The output tensors. Unset for a single output that was created together with the node.
    outputs: OnceLock<Box<[Weak<TensorInner>]>>,
    hooks: OnceLock<Box<[Arc<Hooks>]>>,
}

/// The part of a node that does not depend on the type of its operation.
pub(crate) struct NodeHeader {
    pub(crate) edges: SmallVec<[Edge; 2]>,
    pub(crate) generation: u64,
    /// The id of the captured recording that contains the node; 0 for a node outside captured steps.
    recording: u32,
    pub(crate) outputs_meta: SmallVec<[OutputMeta; 1]>,
    /// The single output tensor if it was created together with the node, otherwise dangling.
    output: Weak<TensorInner>,
    /// Whether an output retains its gradient or has hooks.
    pub(crate) is_observed: AtomicBool,
    details: OnceLock<Box<NodeDetails>>,
}

/// An applied operation. Its last field may be a trait object, so that a node is one allocation.
pub(crate) struct GraphNode<A: ?Sized = dyn SavedDerivative> {
    header: NodeHeader,
    pub(crate) saved_derivative: A,
}

impl<A: ?Sized> Deref for GraphNode<A> {
    type Target = NodeHeader;
    #[inline]
    fn deref(&self) -> &NodeHeader {
        &self.header
    }
}

impl GraphNode {
    /// Creates a node with outputs of these shapes, dtypes and devices. `output` is its single output; a dangling
    /// `output` means that [`GraphNode::set_outputs`] follows.
    ///
    /// The function is generic over the operation and inlined, so no part of the node is copied before it is allocated.
    #[inline(always)]
    pub(crate) fn new<S, D>(
        edges: SmallVec<[Edge; 2]>,
        outputs_meta: SmallVec<[OutputMeta; 1]>,
        output: Weak<TensorInner>,
        saved: S,
        derivative: D,
    ) -> Arc<GraphNode>
    where
        S: AsRef<[SavedValue]> + Send + Sync + 'static,
        D: Derivative,
    {
        let generation = edges.iter().map(Edge::generation).max().unwrap_or(0);
        let (is_observed, details) = (AtomicBool::new(false), OnceLock::new());
        let recording = engine::recording_id();
        let header = NodeHeader { edges, generation, recording, outputs_meta, output, is_observed, details };
        Arc::new(GraphNode { header, saved_derivative: SavedDerivativeOf::new(saved, derivative) })
    }

    pub(crate) fn derivative(&self) -> &dyn Derivative {
        self.saved_derivative.derivative()
    }

    fn details(&self) -> &NodeDetails {
        self.details.get_or_init(Default::default)
    }

    /// Stores weak handles to the outputs. Later calls change nothing.
    pub(crate) fn set_outputs(&self, outputs: &[Tensor]) {
        let _ = self.details().outputs.set(outputs.iter().map(Tensor::downgrade).collect());
    }

    /// Returns weak handles to the output tensors. The list is empty if they have not been stored yet.
    pub(crate) fn outputs(&self) -> &[Weak<TensorInner>] {
        if !self.output.ptr_eq(&Weak::new()) {
            return std::slice::from_ref(&self.output);
        }
        self.details.get().and_then(|details| details.outputs.get()).map_or(&[], |outputs| outputs)
    }

    /// Stores a weak handle to the single output of a write in place, or of a view that is derived after it.
    pub(crate) fn set_output_of_write(&self, output: &Tensor) {
        self.set_outputs(std::slice::from_ref(output));
        if output.retains_grad() {
            self.is_observed.store(true, Ordering::Release);
        }
    }

    /// Returns the hooks of output `index`; creates the lists of hooks on first use.
    pub(crate) fn hooks_of(&self, index: usize) -> &Arc<Hooks> {
        self.is_observed.store(true, Ordering::Release);
        &self.details().hooks.get_or_init(|| self.outputs_meta.iter().map(|_| Arc::default()).collect())[index]
    }

    /// Creates the hook lists if an output was computed outside the captured step and still exists. The recording then
    /// depends on hooks that are registered later.
    pub(crate) fn keep_hooks_of_live_outputs(&self) {
        let is_outside = |output: &Weak<TensorInner>| {
            output.upgrade().is_some_and(|output| Tensor::from_inner(output).array().storage().pending() == READY)
        };
        if let Some(index) = self.outputs().iter().position(is_outside) {
            self.hooks_of(index);
        }
    }

    /// Returns the hooks of all outputs, if any were registered.
    #[inline]
    pub(crate) fn hooks(&self) -> Option<&[Arc<Hooks>]> {
        self.details.get().and_then(|details| details.hooks.get()).map(|hooks| &**hooks)
    }
}

/// The data of a node except its derivative. A saved value is created directly in the node, without a copy.
pub(crate) struct NodeParts<'a> {
    pub(crate) edges: SmallVec<[Edge; 2]>,
    /// The single output, or dangling; see [`GraphNode::new`].
    pub(crate) output: Weak<TensorInner>,
    pub(crate) requests: &'a [SaveRequest],
    pub(crate) inputs: &'a [&'a Array],
    pub(crate) outputs: &'a [Array],
}

impl NodeParts<'_> {
    /// Creates the node. For up to two saved values, the node contains an array of the exact length, so it is small and
    /// is one allocation.
    #[inline(always)]
    pub(crate) fn node<D: Derivative>(self, derivative: D) -> Arc<GraphNode> {
        let NodeParts { edges, output, requests, inputs, outputs } = self;
        if !requests.iter().all(|request| request.exists(inputs, outputs)) {
            missing_value(derivative.name(), inputs.len(), outputs.len());
        }
        let value = |request: &SaveRequest| SavedValue::new(request, inputs, outputs);
        let metas = metas_of(outputs);
        match requests {
            [] => GraphNode::new(edges, metas, output, [], derivative),
            [one] => GraphNode::new(edges, metas, output, [value(one)], derivative),
            [a, b] => GraphNode::new(edges, metas, output, [value(a), value(b)], derivative),
            more => GraphNode::new(edges, metas, output, more.iter().map(value).collect::<Vec<_>>(), derivative),
        }
    }
}

#[cold]
#[track_caller]
fn missing_value(op: &'static str, inputs: usize, outputs: usize) -> ! {
    panic!(
        "{op}: forward() saves an input or output that does not exist; there are {inputs} inputs and {outputs} outputs"
    )
}

/// Returns the shapes, dtypes and devices of the outputs of a node.
#[inline]
pub(crate) fn metas_of(outputs: &[Array]) -> SmallVec<[OutputMeta; 1]> {
    let meta = |array: &Array| OutputMeta { meta: array.meta(), device: array.device() };
    match outputs {
        [one] => SmallVec::from_buf([meta(one)]),
        _ => outputs.iter().map(meta).collect(),
    }
}

thread_local! {
    /// Unowned nodes that wait to be dropped while another node is being dropped.
    static DROP_QUEUE: RefCell<Option<DropQueue>> = const { RefCell::new(None) };
}

type DropQueue = SmallVec<[Arc<GraphNode>; 4]>;

impl Drop for NodeHeader {
    fn drop(&mut self) {
        drop_producers(&mut self.edges);
    }
}

/// Drops the nodes to which the edges refer, in a loop. Recursive drops of a chain of a million nodes would overflow
/// the stack.
fn drop_producers(edges: &mut SmallVec<[Edge; 2]>) {
    let mut local_queue: Option<DropQueue> = None;
    while let Some(edge) = edges.pop() {
        let Edge::Node(node, _) = edge else { continue };
        let mut node = Some(node);
        // If the thread is ending and its queue was destroyed, the node is dropped here.
        let queued = DROP_QUEUE.try_with(|dying| match &mut *dying.borrow_mut() {
            Some(list) => list.push(node.take().expect("each edge must be pushed to only one queue")),
            None => local_queue
                .get_or_insert_default()
                .push(node.take().expect("each edge must be pushed to only one queue")),
        });
        drop((queued, node));
    }
    let Some(local_queue) = local_queue else { return };
    DROP_QUEUE.with(|dying| *dying.borrow_mut() = Some(local_queue));
    while let Some(node) = DROP_QUEUE.with(|dying| dying.borrow_mut().as_mut().and_then(SmallVec::pop)) {
        drop(node);
    }
    DROP_QUEUE.with(|dying| *dying.borrow_mut() = None);
}
