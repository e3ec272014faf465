//! `ViewBase`: the history that a tensor and its views share after writes in place.
//!
//! A *base value* is the part of a storage from the first to the last element of a base tensor. All other tensors that
//! share the history are views of the base tensor. Each tensor stores the number of recorded writes that its history
//! includes. After a further write, its next use derives its history from the history of the base value. So the base
//! and its views can be written and read in any order.

use super::graph::{Derivative, Edge, GraphNode, OutputMeta, SavedValue};
use super::{Creator, Tensor, TensorInner};
use crate::array::Array;
use crate::device::Device;
use pellucid_ir::kernel::Meta;
use pellucid_ir::{DType, Layout, Shape, lock};
use smallvec::{SmallVec, smallvec};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// The state that a tensor and its views share: the layout of the base value and its history.
pub(crate) struct ViewBase {
    /// The layout of the base tensor.
    layout: Layout,
    dtype: DType,
    /// The number of recorded writes and of restored histories. While it is 0, every tensor has its original history.
    writes: AtomicU64,
    /// Whether an operation that is not declared as a view returned memory of this base.
    is_opaque: AtomicBool,
    /// Whether the base tensor has moved to another device or was converted to another dtype, but its views were not.
    is_moved: AtomicBool,
    /// Whether the base tensor is a view that was created under `no_grad`. The history of the tensor whose memory it
    /// shares would not include writes into the view.
    is_untracked_view: bool,
    /// Whether the base tensor is a leaf that requires a gradient.
    is_tracked_leaf: AtomicBool,
    /// Whether a view has become a leaf that requires a gradient.
    has_leaf_views: AtomicBool,
    /// The views that became such leaves. The next check removes dropped views.
    leaf_views: Mutex<Vec<Weak<TensorInner>>>,
    /// The history of the base value. Until the first write, it is the history of the base tensor.
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
            is_moved: AtomicBool::new(false),
            is_untracked_view: tensor.is_untracked_view(),
            is_tracked_leaf: AtomicBool::new(matches!(edge, Edge::Leaf(_))),
            has_leaf_views: AtomicBool::new(false),
            leaf_views: Mutex::default(),
            edge: Mutex::new(edge),
        }
    }

    /// Locks the history of the base value.
    pub(crate) fn lock_edge(&self) -> MutexGuard<'_, Edge> {
        lock(&self.edge)
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

    /// Counts a recorded write while the history is locked.
    pub(crate) fn count_write(&self) {
        self.writes.fetch_add(1, Ordering::Release);
    }

    /// Returns true if an operation that is not declared as a view returned memory of this base.
    pub(crate) fn is_opaque(&self) -> bool {
        self.is_opaque.load(Ordering::Relaxed)
    }

    /// Returns true if the base tensor, but not its views, has moved to another device or was converted to another
    /// dtype.
    pub(crate) fn is_moved(&self) -> bool {
        self.is_moved.load(Ordering::Relaxed)
    }

    /// Marks that the base tensor, but not its views, has moved to another device or was converted to another dtype.
    /// Later recorded writes return errors.
    pub(crate) fn set_moved(&self) {
        self.is_moved.store(true, Ordering::Relaxed);
    }

    /// Returns true if the base tensor is a view that was created under `no_grad`.
    pub(crate) fn is_untracked_view(&self) -> bool {
        self.is_untracked_view
    }

    /// Returns the number of elements of the base tensor.
    pub(crate) fn size(&self) -> usize {
        self.layout.shape().size()
    }

    /// Marks that an operation that is not a view returned memory of this base. Later recorded writes return errors.
    pub(crate) fn set_opaque(&self) {
        self.is_opaque.store(true, Ordering::Relaxed);
    }

    /// Updates the history after a `requires_grad` change of the base tensor.
    pub(crate) fn set_leaf(&self, edge: Edge) {
        self.is_tracked_leaf.store(matches!(edge, Edge::Leaf(_)), Ordering::Relaxed);
        let old = {
            let mut current = self.lock_edge();
            if self.is_written() { edge } else { std::mem::replace(&mut *current, edge) }
        };
        drop(old);
    }

    /// Adds a view that became a leaf that requires a gradient.
    pub(crate) fn add_leaf_view(&self, view: &Tensor) {
        lock(&self.leaf_views).push(view.downgrade());
        self.has_leaf_views.store(true, Ordering::Relaxed);
    }

    /// Returns true if a view exists that is a leaf and requires a gradient.
    #[cold]
    fn has_tracked_leaf_view(&self) -> bool {
        let mut views = lock(&self.leaf_views);
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
        self.lock_edge().is_tracked()
    }

    /// Returns the offset of the contiguous base value in the storage, in elements.
    fn start(&self) -> isize {
        self.layout.extent().start
    }

    /// Returns the shape of the base value: the shape of the tensor if it is contiguous, otherwise one axis over its
    /// entire extent.
    pub(crate) fn shape(&self) -> Shape {
        if self.layout.is_contiguous() { self.layout.shape().clone() } else { [self.layout.extent().len()].into() }
    }

    /// Converts a layout in the storage to a layout in the base value.
    pub(crate) fn relative(&self, layout: &Layout) -> Layout {
        if layout.shape().contains(&0) {
            return Layout::contiguous(layout.shape().clone());
        }
        offset_layout(layout, -self.start())
    }

    /// Converts the history of the base tensor to the history of the base value, before the first write.
    pub(crate) fn convert_to_base_value(&self, edge: &mut Edge, device: Device) {
        if !self.is_written() && !self.layout.is_contiguous() && edge.is_tracked() {
            let embedded = AsStridedTranspose { layout: self.relative(&self.layout), shape: self.shape() };
            let before = std::mem::replace(edge, Edge::None);
            *edge = Edge::Node(self.node(smallvec![before], device, None, embedded), 0);
        }
    }

    /// Creates a node whose output is the base value on `device`.
    pub(crate) fn node<D: Derivative>(
        &self,
        edges: SmallVec<[Edge; 2]>,
        device: Device,
        saved: Option<Array>,
        derivative: D,
    ) -> Arc<GraphNode> {
        new_node(edges, OutputMeta { meta: Meta { shape: self.shape(), dtype: self.dtype }, device }, saved, derivative)
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
                let strided = AsStrided { layout: self.relative(tensor.array().layout()), shape: self.shape() };
                let meta = OutputMeta { meta: tensor.array().meta(), device: tensor.device() };
                let node = new_node(smallvec![edge.clone()], meta, None, strided);
                node.set_output_of_write(tensor);
                Some((node, 0))
            }
        }
    }

    /// Returns the history of the base value and the number of writes.
    pub(crate) fn state(&self) -> (Edge, u64) {
        let edge = self.lock_edge();
        (edge.clone(), self.writes())
    }

    /// Restores the history from before the writes of a recording or of a failed checkpoint.
    pub(crate) fn restore(&self, edge: Edge) {
        let old = {
            let mut current = self.lock_edge();
            self.count_write();
            std::mem::replace(&mut *current, edge)
        };
        drop(old);
    }
}

/// Returns the elements of a value of shape `shape` in the layout `layout`. The result is a view if the value is
/// contiguous.
pub(crate) struct AsStrided {
    pub(crate) layout: Layout,
    pub(crate) shape: Shape,
}

/// The transpose of [`AsStrided`]: adds x, in the layout `layout`, to zeros of shape `shape`.
pub(crate) struct AsStridedTranspose {
    pub(crate) layout: Layout,
    pub(crate) shape: Shape,
}

/// Returns the layout with its offset increased by `by` elements.
pub(crate) fn offset_layout(layout: &Layout, by: isize) -> Layout {
    let offset = (layout.offset() as isize + by) as usize;
    match layout.is_contiguous() {
        true => Layout::contiguous_from(layout.shape().clone(), offset),
        false => Layout::strided(layout.shape().clone(), layout.strides(), offset),
    }
}

fn new_node<D: Derivative>(
    edges: SmallVec<[Edge; 2]>,
    meta: OutputMeta,
    saved: Option<Array>,
    derivative: D,
) -> Arc<GraphNode> {
    let (metas, output) = (SmallVec::from_buf([meta]), Weak::new());
    match saved {
        None => GraphNode::new(edges, metas, output, [], derivative),
        Some(array) => GraphNode::new(edges, metas, output, [SavedValue::constant(array)], derivative),
    }
}
