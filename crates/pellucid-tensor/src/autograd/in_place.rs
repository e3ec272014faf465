//! The history of memory that is written in place, which a tensor and its views share.
//!
//! A *base value* consists of the elements of a base tensor; all other tensors that share the history are views of the
//! base tensor. A recorded write replaces the history of the base value. The node of the write has two inputs: the base
//! value before the write, and the source. A tensor that is older than the write compares its count of writes at its
//! next use, and derives its history from that of the base value. Therefore, the base and its views can be written and
//! read in any order.
//!
//! The node of a write saves no element. The gradient of the base value is the incoming one with 0 in the written
//! region; the gradient of the source is the incoming one in that region.

use super::anomaly::note_forward_location;
use super::collect::{Collection, collect};
use super::graph::{Edge, GraphNode, NodeHeader};
use super::operation::{Derivative, SavedValue};
use super::step_state::note_history;
use crate::array::Array;
use crate::engine;
use crate::ops::{Embedded, Strided};
use crate::tensor::{Creator, Tensor, TensorInner};
use pellucid_ir::kernel::Meta;
use pellucid_ir::{DType, Error, Layout, Result, Shape};
use smallvec::{SmallVec, smallvec};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// The state that a tensor and its views share: the layout of the base value and its history.
pub(crate) struct ViewBase {
    /// The layout of the base tensor.
    layout: Layout,
    dtype: DType,
    /// The number of recorded writes. While it is 0, every tensor has its original history.
    writes: AtomicU64,
    /// An operation that is not declared as a view returned memory of this base.
    is_opaque: AtomicBool,
    /// The base tensor is itself a view that was made under `no_grad`, so its own base would not follow its writes.
    is_untracked_view: bool,
    /// The base tensor is a leaf that requires a gradient.
    is_tracked_leaf: AtomicBool,
    /// True after a view became a leaf that requires a gradient.
    has_leaf_views: AtomicBool,
    /// The views that became such leaves. Dropped ones are removed at the next check.
    leaf_views: Mutex<Vec<Weak<TensorInner>>>,
    /// The history of the base value; until the first write, in the shape of `layout`.
    edge: Mutex<Edge>,
}

impl ViewBase {
    pub(crate) fn new(tensor: &Tensor) -> ViewBase {
        let edge = tensor.edge();
        ViewBase {
            layout: tensor.array().layout().clone(),
            dtype: tensor.dtype(),
            writes: AtomicU64::new(0),
            is_opaque: AtomicBool::new(false),
            is_untracked_view: tensor.is_untracked_view(),
            is_tracked_leaf: AtomicBool::new(matches!(edge, Edge::Leaf(_))),
            has_leaf_views: AtomicBool::new(false),
            leaf_views: Mutex::default(),
            edge: Mutex::new(edge),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Edge> {
        self.edge.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Returns true after the first recorded write.
    #[inline]
    pub(crate) fn is_written(&self) -> bool {
        self.writes() != 0
    }

    /// Returns the number of recorded writes.
    #[inline]
    pub(crate) fn writes(&self) -> u64 {
        self.writes.load(Ordering::Acquire)
    }

    /// Marks that an operation which is no view returned memory of this base. Later recorded writes are errors.
    pub(crate) fn set_opaque(&self) {
        self.is_opaque.store(true, Ordering::Relaxed);
    }

    /// Updates the history after a `requires_grad` change of the base tensor.
    pub(crate) fn set_leaf(&self, edge: Edge) {
        self.is_tracked_leaf.store(matches!(edge, Edge::Leaf(_)), Ordering::Relaxed);
        let old = {
            let mut held = self.lock();
            if self.is_written() { edge } else { std::mem::replace(&mut *held, edge) }
        };
        drop(old);
    }

    /// Adds a view that became a leaf that requires a gradient.
    pub(crate) fn add_leaf_view(&self, view: &Tensor) {
        self.leaf_views.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(view.downgrade());
        self.has_leaf_views.store(true, Ordering::Relaxed);
    }

    /// Returns true if a view exists that is a leaf and requires a gradient.
    #[cold]
    fn has_tracked_leaf_view(&self) -> bool {
        let mut views = self.leaf_views.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        views.retain(|view| view.strong_count() > 0);
        let views: Vec<Tensor> = views.iter().filter_map(Weak::upgrade).map(Tensor::from_inner).collect();
        views.iter().any(|view| view.is_required_leaf())
    }

    /// Returns true if the base, or a view of it, is a leaf that requires a gradient.
    pub(crate) fn has_tracked_leaf(&self) -> bool {
        self.is_tracked_leaf.load(Ordering::Relaxed)
            || (self.has_leaf_views.load(Ordering::Relaxed) && self.has_tracked_leaf_view())
    }

    /// Returns true if the base value is tracked.
    pub(crate) fn is_tracked(&self) -> bool {
        self.lock().is_tracked()
    }

    /// Returns the offset of the base value, which has no gaps, in elements of the storage.
    fn start(&self) -> isize {
        self.layout.extent().start
    }

    /// Returns the shape of the base value: that of the tensor if it is contiguous, else one axis over its whole
    /// extent.
    fn shape(&self) -> Shape {
        if self.layout.is_contiguous() { self.layout.shape().clone() } else { [self.layout.extent().len()].into() }
    }

    /// Converts a layout in the storage to one in the base value.
    fn relative(&self, layout: &Layout) -> Layout {
        if layout.shape().contains(&0) {
            return Layout::contiguous(layout.shape().clone());
        }
        shifted(layout, -self.start())
    }

    /// Converts the history of the base tensor to that of the base value, before the first write.
    fn convert_to_base_value(&self, edge: &mut Edge) {
        if !self.is_written() && !self.layout.is_contiguous() && edge.is_tracked() {
            let embedded = Embedded { layout: self.relative(&self.layout), shape: self.shape() };
            let before = std::mem::replace(edge, Edge::None);
            *edge = Edge::Node(self.node(smallvec![before], None, embedded), 0);
        }
    }

    /// Creates a node whose output is the base value.
    fn node<D: Derivative>(&self, edges: SmallVec<[Edge; 2]>, saved: Option<Array>, derivative: D) -> Arc<GraphNode> {
        new_node(edges, Meta { shape: self.shape(), dtype: self.dtype }, saved, derivative)
    }

    /// Returns the history of a tensor whose base value has the history `edge`.
    pub(crate) fn history(&self, edge: &Edge, tensor: &Tensor) -> Option<Creator> {
        if !edge.is_tracked() {
            return None;
        }
        match edge {
            Edge::Node(node, index) if tensor.is_base() && self.layout.is_contiguous() => {
                node.set_output_of_write(tensor);
                Some((node.clone(), *index))
            }
            _ => {
                let strided = Strided { layout: self.relative(tensor.array().layout()), shape: self.shape() };
                let node = new_node(smallvec![edge.clone()], tensor.array().meta(), None, strided);
                node.set_output_of_write(tensor);
                Some((node, 0))
            }
        }
    }

    /// Returns the history of the base value and the number of writes.
    pub(crate) fn state(&self) -> (Edge, u64) {
        let edge = self.lock();
        (edge.clone(), self.writes())
    }

    /// Restores the history after a recording, of which only the kernels remain.
    pub(crate) fn restore(&self, edge: Edge) {
        let old = {
            let mut held = self.lock();
            self.writes.fetch_add(1, Ordering::Release);
            std::mem::replace(&mut *held, edge)
        };
        drop(old);
    }
}

/// A base that a recorded write has changed, with its history before the write.
pub(crate) type WrittenBase = (Arc<ViewBase>, Edge);

thread_local! {
    /// The recorded writes of this thread, while [`collect_writes`] runs.
    static WRITTEN: Collection<Vec<WrittenBase>> = const { RefCell::new(None) };
}

/// Runs `f`, and returns its result with every recorded write of this thread in it.
pub(crate) fn collect_writes<R>(f: impl FnOnce() -> R) -> (R, Vec<WrittenBase>) {
    collect(&WRITTEN, f)
}

/// Adds writes to the collection of this thread, if there is one.
pub(crate) fn add_writes(written: impl IntoIterator<Item = WrittenBase>) {
    // The histories of writes that are not collected are dropped outside of the borrow.
    if WRITTEN.with_borrow(Option::is_some) {
        WRITTEN.with_borrow_mut(|list| list.get_or_insert_default().extend(written));
    }
}

/// A write in place that will be recorded.
pub(crate) struct InPlaceWrite {
    base: Arc<ViewBase>,
    /// The written region of the base value.
    pub(crate) region: Layout,
    /// The shape of the base value.
    pub(crate) shape: Shape,
}

impl InPlaceWrite {
    /// Prepares a write through `target` into `view`, a part of its storage.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if an operation that is not declared as a view returned memory of this tensor, or if
    /// the tensor is a view that was made under `no_grad`.
    pub(crate) fn new(op: &'static str, target: &Tensor, view: &Array) -> Result<InPlaceWrite> {
        let base = target.view_base().clone();
        if base.is_opaque.load(Ordering::Relaxed) {
            let reason = format!(
                "the target of shape {} shares its memory with the output of an operation that is not a view \
                 (Operation::is_view); write into a copy() of it, or under no_grad()",
                target.shape()
            );
            return Err(Error::invalid(op, reason));
        }
        if base.is_untracked_view && is_shared(target, view) {
            let reason = format!(
                "the target of shape {} is a view that was made under no_grad(), and the tensor whose memory it shares \
                 would get no gradient; make the view outside of no_grad(), or detach() it to separate its history",
                target.shape()
            );
            return Err(Error::invalid(op, reason));
        }
        let (region, shape) = (base.relative(view.layout()), base.shape());
        Ok(InPlaceWrite { base, region, shape })
    }

    /// Returns the index in the base value of every element of the region, in row-major order.
    pub(crate) fn element_indices(&self) -> Tensor {
        let numbers = Tensor::arange(0, self.shape.size() as i64, 1);
        Tensor::from(numbers.array().view(self.region.clone()))
    }

    /// Records the write after its kernel was submitted. The history of the base value becomes a node with
    /// `derivative`, whose inputs are the base value before (unless all of it is overwritten), the source, and an
    /// optional index.
    pub(crate) fn record<D: Derivative>(self, target: &Tensor, source: &Tensor, index: Option<Array>, derivative: D) {
        let InPlaceWrite { base, region, .. } = self;
        let whole = index.is_none() && region.shape().size() >= base.layout.shape().size();
        // The edge is read before the lock: it may need the lock if the source is a view of this base.
        let source = source.edge();
        let old = {
            let mut edge = base.lock();
            base.convert_to_base_value(&mut edge);
            note_history(&base, &edge);
            let before = if whole { Edge::None } else { edge.clone() };
            let edges = if index.is_some() { smallvec![before, source, Edge::None] } else { smallvec![before, source] };
            let node = base.node(edges, index, derivative);
            note_forward_location(|| Some(node.clone()));
            base.writes.fetch_add(1, Ordering::Release);
            std::mem::replace(&mut *edge, Edge::Node(node, 0))
        };
        if engine::mode() != engine::ExecutionMode::Capture {
            engine::count_requires_grad_change(target.array());
        }
        add_writes([(base, old)]);
    }
}

/// True if the target's storage is used by an array other than the target, the written view of it, and the operands of
/// recorded kernels.
fn is_shared(target: &Tensor, view: &Array) -> bool {
    let storage = target.array().storage();
    let own = 1 + usize::from(!std::ptr::eq(view, target.array()));
    Arc::strong_count(storage) > own + engine::recorded_operands(storage)
}

/// Returns the layout with its offset moved by `by` elements.
pub(crate) fn shifted(layout: &Layout, by: isize) -> Layout {
    let offset = (layout.offset() as isize + by) as usize;
    match layout.is_contiguous() {
        true => Layout::contiguous_from(layout.shape().clone(), offset),
        false => Layout::strided(layout.shape().clone(), layout.strides(), offset),
    }
}

fn new_node<D: Derivative>(
    edges: SmallVec<[Edge; 2]>,
    meta: Meta,
    saved: Option<Array>,
    derivative: D,
) -> Arc<GraphNode> {
    let header = NodeHeader::new(edges, smallvec![meta], Weak::new());
    match saved {
        None => GraphNode::new(header, [], derivative),
        Some(array) => GraphNode::new(header, [SavedValue::constant(array)], derivative),
    }
}
