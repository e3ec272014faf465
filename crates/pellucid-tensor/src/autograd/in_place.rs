//! The history of memory that is written in place: what a tensor and its views share.
//!
//! A recorded write replaces the history of a *base value*: the elements of the tensor of which all others that share
//! its history are views. The node of the write has two inputs, the base value before it and the source. A tensor that was
//! made before the write looks, when it is used next, how often the base value was written, and derives its history
//! from the base value's. So the order in which base and views are written and read does not matter.
//!
//! A node of a write saves no element: its gradient is the incoming one, 0 where it wrote, and that part of it.

use super::anomaly::note_line;
use super::applied::SavedDerivativeOf;
use super::graph::{Edge, Recorded};
use super::operation::{Derivative, SavedValue};
use crate::array::Array;
use crate::engine;
use crate::ops::{Embedded, Strided};
use crate::tensor::{Creator, Inner, Tensor};
use pellucid_ir::kernel::Meta;
use pellucid_ir::{DType, Error, Layout, Result, Shape};
use smallvec::{SmallVec, smallvec};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// What a tensor and its views share: how the base value is stored, and how it was computed.
pub(crate) struct ViewBase {
    /// The layout of the tensor whose views the others are.
    layout: Layout,
    dtype: DType,
    /// The number of recorded writes. While it is 0 every tensor has the history with which it was made.
    writes: AtomicU64,
    /// A view was made by an operation whose gradient is not that of a view.
    is_opaque: AtomicBool,
    /// The tensor is a view that was made under `no_grad`: what it is a view of would not follow it.
    is_apart: bool,
    /// The tensor is a leaf that requires a gradient.
    is_tracked_leaf: AtomicBool,
    /// True after a view became a leaf that requires a gradient.
    has_leaf_views: AtomicBool,
    /// The views that became such leaves. Dropped ones are removed at the next check.
    leaf_views: Mutex<Vec<Weak<Inner>>>,
    /// How the base value was computed; until the first write, in the shape of `layout`.
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
            is_apart: tensor.is_apart(),
            is_tracked_leaf: AtomicBool::new(matches!(edge, Edge::Leaf(_))),
            has_leaf_views: AtomicBool::new(false),
            leaf_views: Mutex::default(),
            edge: Mutex::new(edge),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Edge> {
        self.edge.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// True after the first recorded write.
    #[inline]
    pub(crate) fn is_written(&self) -> bool {
        self.writes() != 0
    }

    /// The number of recorded writes.
    #[inline]
    pub(crate) fn writes(&self) -> u64 {
        self.writes.load(Ordering::Acquire)
    }

    /// Notes a view whose gradient is not that of a view: writes cannot be recorded any more.
    pub(crate) fn set_opaque(&self) {
        self.is_opaque.store(true, Ordering::Relaxed);
    }

    /// Follows a base that came to require a gradient, or ceased to.
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

    /// True if a view that is a leaf exists and requires a gradient.
    #[cold]
    fn has_tracked_leaf_view(&self) -> bool {
        let mut views = self.leaf_views.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        views.retain(|view| view.strong_count() > 0);
        let views: Vec<Tensor> = views.iter().filter_map(Weak::upgrade).map(Tensor::from_inner).collect();
        views.iter().any(|view| view.is_required_leaf())
    }

    /// True if the base, or a view of it, is a leaf that requires a gradient.
    pub(crate) fn has_tracked_leaf(&self) -> bool {
        self.is_tracked_leaf.load(Ordering::Relaxed)
            || (self.has_leaf_views.load(Ordering::Relaxed) && self.has_tracked_leaf_view())
    }

    /// True if the base value has a history.
    pub(crate) fn is_tracked(&self) -> bool {
        self.lock().is_tracked()
    }

    /// The base value is stored without gaps from here on, in elements of the storage.
    fn start(&self) -> isize {
        self.layout.extent().start
    }

    /// The shape of the base value: that of the tensor if it is contiguous, else one axis over all that it spans.
    fn shape(&self) -> Shape {
        if self.layout.is_contiguous() { self.layout.shape().clone() } else { [self.layout.extent().len()].into() }
    }

    /// A layout in the storage as one in the base value.
    fn relative(&self, layout: &Layout) -> Layout {
        if layout.shape().contains(&0) {
            return Layout::contiguous(layout.shape().clone());
        }
        shifted(layout, -self.start())
    }

    /// How the base value, in its own shape, was computed.
    fn value(&self, edge: &mut Edge) {
        if !self.is_written() && !self.layout.is_contiguous() && edge.is_tracked() {
            let embedded = Embedded { layout: self.relative(&self.layout), shape: self.shape() };
            let before = std::mem::replace(edge, Edge::None);
            *edge = Edge::Node(self.node(smallvec![before], None, embedded), 0);
        }
    }

    /// A node whose output is the base value.
    fn node<D: Derivative>(&self, edges: SmallVec<[Edge; 2]>, saved: Option<Array>, derivative: D) -> Arc<Recorded> {
        new_node(edges, Meta { shape: self.shape(), dtype: self.dtype }, saved, derivative)
    }

    /// The history that a tensor has where the base value has this one.
    pub(crate) fn history(&self, edge: &Edge, tensor: &Tensor) -> Option<Creator> {
        if !edge.is_tracked() {
            return None;
        }
        match edge {
            Edge::Node(node, index) if tensor.is_base() && self.layout.is_contiguous() => {
                node.note_late(tensor);
                Some((node.clone(), *index))
            }
            _ => {
                let strided = Strided { layout: self.relative(tensor.array().layout()), shape: self.shape() };
                let node = new_node(smallvec![edge.clone()], tensor.array().meta(), None, strided);
                node.note_late(tensor);
                Some((node, 0))
            }
        }
    }

    /// How the base value was computed, and how often it was written.
    pub(crate) fn state(&self) -> (Edge, u64) {
        let edge = self.lock();
        (edge.clone(), self.writes())
    }

    /// Undoes the writes of a recording, of which only the kernels remain.
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
    static WRITTEN: RefCell<Option<Vec<WrittenBase>>> = const { RefCell::new(None) };
}

/// Runs `f`, and returns with its result every recorded write of this thread in it.
pub(crate) fn collect_writes<R>(f: impl FnOnce() -> R) -> (R, Vec<WrittenBase>) {
    /// Restores the collection around this one, also when `f` panics.
    struct Outer(Option<Vec<WrittenBase>>);
    impl Drop for Outer {
        fn drop(&mut self) {
            WRITTEN.set(self.0.take());
        }
    }
    let outer = Outer(WRITTEN.replace(Some(Vec::new())));
    let result = f();
    let written = WRITTEN.take().unwrap_or_default();
    drop(outer);
    (result, written)
}

/// Adds writes to the collection of this thread, if there is one.
pub(crate) fn add_writes(written: impl IntoIterator<Item = WrittenBase>) {
    WRITTEN.with_borrow_mut(|list| {
        if let Some(list) = list {
            list.extend(written);
        }
    });
}

/// A write in place that is about to be recorded.
pub(crate) struct Rewrite {
    base: Arc<ViewBase>,
    /// Where it writes, in the base value.
    pub(crate) region: Layout,
    /// The shape of the base value.
    pub(crate) shape: Shape,
}

impl Rewrite {
    /// A write through `target` into `view`, a part of its storage.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if an operation of unknown gradient returned memory of this tensor, or if it is a view that
    /// was made under `no_grad`.
    pub(crate) fn new(op: &'static str, target: &Tensor, view: &Array) -> Result<Rewrite> {
        let base = target.view_base().clone();
        if base.is_opaque.load(Ordering::Relaxed) {
            let reason = format!(
                "the target of shape {} shares its memory with the output of an operation that is not a view \
                 (Operation::is_view); write into a copy() of it, or under no_grad()",
                target.shape()
            );
            return Err(Error::invalid(op, reason));
        }
        if base.is_apart && is_shared(target, view) {
            let reason = format!(
                "the target of shape {} is a view that was made under no_grad(), and the tensor whose memory it shares would \
                 get no gradient; make the view outside of no_grad(), or detach() it to give it a history of its own",
                target.shape()
            );
            return Err(Error::invalid(op, reason));
        }
        let (region, shape) = (base.relative(view.layout()), base.shape());
        Ok(Rewrite { base, region, shape })
    }

    /// The number of every element of the region in the base value, in row-major order.
    pub(crate) fn numbers(&self) -> Tensor {
        let numbers = Tensor::arange(0, self.shape.size() as i64, 1);
        Tensor::from(numbers.array().view(self.region.clone()))
    }

    /// Records the write, after it was made or deferred: the base value is now what `derivative` makes of the base value
    /// before (unless all of it was overwritten), the source, and an index.
    pub(crate) fn record<D: Derivative>(self, target: &Tensor, source: &Tensor, index: Option<Array>, derivative: D) {
        let Rewrite { base, region, .. } = self;
        let whole = index.is_none() && region.shape().size() >= base.layout.shape().size();
        // A view of this very base looks at it.
        let source = source.edge();
        let old = {
            let mut edge = base.lock();
            base.value(&mut edge);
            engine::rewriting(&base, &edge);
            let before = if whole { Edge::None } else { edge.clone() };
            let edges = if index.is_some() { smallvec![before, source, Edge::None] } else { smallvec![before, source] };
            let node = base.node(edges, index, derivative);
            note_line(|| Some(node.clone()));
            base.writes.fetch_add(1, Ordering::Release);
            std::mem::replace(&mut *edge, Edge::Node(node, 0))
        };
        if engine::mode() != engine::Mode::Capture {
            engine::gradient_switched(target.array());
        }
        add_writes([(base, old)]);
    }
}

/// True if an array other than the target, the view of it that is written, and the operands of recorded kernels has the
/// target's storage.
fn is_shared(target: &Tensor, view: &Array) -> bool {
    let storage = target.array().storage();
    let own = 1 + usize::from(!std::ptr::eq(view, target.array()));
    Arc::strong_count(storage) > own + engine::recorded_operands(storage)
}

/// The same layout further back in its storage.
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
) -> Arc<Recorded> {
    let saved: Vec<SavedValue> = saved.into_iter().map(SavedValue::constant).collect();
    Arc::new(Recorded::new(edges, smallvec![meta], Weak::new(), SavedDerivativeOf::new(saved, derivative)))
}
