//! `Tensor`: an array with its autograd history.
//!
//! A tensor is a cheap handle (one reference count). The methods of operations are defined in [`ops`](crate::ops),
//! next to the functions that they call: the functions return typed errors, the methods panic with them.
//!
//! The history of a tensor consists of the nodes that produced it (`graph`), its gradient (`gradient_slot`) with hooks,
//! and the state that it shares with its views (`view_base`, `history`). The recording of a captured step has separate
//! gradients (`gradient_slot`), and restores the histories that it changes (`rewritten`).

mod collect;
mod create;
mod gradient_slot;
mod graph;
mod history;
mod hook;
mod moved;
mod pinned;
mod read;
mod rewritten;
mod unwind;
mod view_base;

pub use create::{IntoTensor, Nested};
pub use graph::{InputGradients, NeedsInputGrad, Node, NodeInput, OutputGradients, SaveForBackward, SavedTensors};
pub use hook::HookHandle;

pub(crate) use collect::{Collection, collect};
pub(crate) use gradient_slot::{EntryGradients, GradientSlot, RecordedSlot, collect_recorded_slots};
pub(crate) use graph::{Derivative, Edge, GraphNode, NodeParts, OutputMeta, SavedValue, address, metas_of};
pub(crate) use hook::Hooks;
pub(crate) use rewritten::{collect_rewritten_histories, is_rewritten, note_history};
pub(crate) use view_base::{AsStrided, AsStridedTranspose, ViewBase, offset_layout};

use crate::array::{Array, StorageId};
use crate::device::Device;
use crate::engine;
use crate::panic::{self, unwrap};
use crate::warning::warn_of_result_without_gradient;
use graph::is_same_node;
use history::TensorDetails;
use pellucid_derive::panicking_form;
use pellucid_ir::{DType, Error, Result, Shape};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// An n-dimensional array of one dtype on one device, with the history of its computation.
///
/// Tensors are `Send + Sync`. `clone()` returns a second handle to the same tensor, with the same elements, history and
/// gradient; [`copy`](Tensor::copy) is PyTorch's `clone`. A write in place changes the history of the handle, of its
/// views, and of its base. `x += y` is not a write in place: a handle to the sum replaces x.
///
/// ```
/// use pellucid::Tensor;
/// let x = Tensor::from([[1.0f32, 2.0], [3.0, 4.0]]).requires_grad_(true);
/// let y = (&x * &x).sum(..);
/// y.backward();
/// assert_eq!(x.grad().unwrap().to_vec::<f32>(), [2.0, 4.0, 6.0, 8.0]);
/// ```
pub struct Tensor(Arc<TensorInner>);

impl AsRef<Tensor> for Tensor {
    #[inline]
    fn as_ref(&self) -> &Tensor {
        self
    }
}

impl Clone for Tensor {
    /// Returns another handle to the same tensor, at the cost of one reference count. [`Tensor::copy`] copies the
    /// elements, and [`Tensor::detach`] shares them without the history.
    ///
    /// ```
    /// use pellucid::Tensor;
    /// let x = Tensor::from([1.0, 2.0]);
    /// let (handle, copy) = (x.clone(), x.copy());
    /// x.set(0, 5.0);
    /// assert_eq!((handle.id(), handle.to_vec::<f64>()), (x.id(), vec![5.0, 2.0]));
    /// assert_eq!(copy.to_vec::<f64>(), [1.0, 2.0]);
    /// ```
    #[inline]
    fn clone(&self) -> Tensor {
        Tensor(self.0.clone())
    }
}

/// The identity of a tensor, see [`Tensor::id`]. It is unique while a handle to the tensor exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorId(usize);

/// The node that produced a tensor, and the index of the output.
pub(crate) type Creator = (Arc<GraphNode>, u32);

pub(crate) struct TensorInner {
    /// The initial array; [`Tensor::array`] returns the current one.
    array: Array,
    /// The creator until the first recorded write in place.
    creator: Option<Creator>,
    /// The state that is shared with views and their base. It is set at the first view or write.
    view_base: OnceLock<Arc<ViewBase>>,
    /// Rarely used fields. They are boxed because every recorded operation allocates a `TensorInner`.
    details: OnceLock<Box<TensorDetails>>,
    /// The number of recorded writes that `creator` includes.
    known_writes: AtomicU32,
    /// Whether a leaf requires a gradient. A result requires a gradient if it has a creator.
    requires_grad: AtomicBool,
    /// Whether a result retains its gradient.
    retains_grad: AtomicBool,
    /// True for the base tensor; all other tensors that share `view_base` are views of it.
    is_base: AtomicBool,
    /// True for a view that was created under `no_grad`.
    is_untracked_view: AtomicBool,
    /// Whether an operation may copy the tensor to another device.
    is_free: AtomicBool,
    /// The index of the current array: 0 for the initial one, larger after a move to another device or a conversion to
    /// another dtype in place.
    current: AtomicU32,
}

impl TensorInner {
    #[inline]
    fn new(array: Array, creator: Option<Creator>) -> TensorInner {
        TensorInner {
            is_free: AtomicBool::new(!array.is_pinned()),
            current: AtomicU32::new(0),
            array,
            creator,
            view_base: OnceLock::new(),
            details: OnceLock::new(),
            known_writes: AtomicU32::new(0),
            requires_grad: AtomicBool::new(false),
            retains_grad: AtomicBool::new(false),
            is_base: AtomicBool::new(false),
            is_untracked_view: AtomicBool::new(false),
        }
    }

    /// Returns the gradient slot, if it exists.
    #[inline]
    fn existing_slot(&self) -> Option<&Arc<GradientSlot>> {
        self.details.get().and_then(|details| details.slot.get())
    }

    /// Returns the gradient slot; creates it on first use.
    fn slot(self: &Arc<TensorInner>) -> &Arc<GradientSlot> {
        let new = |array: &Array| Arc::new(GradientSlot::new(Arc::downgrade(self), array.meta(), array.device()));
        self.details().slot.get_or_init(|| new(self.moved_array(self.current.load(Ordering::Acquire))))
    }

    fn details(&self) -> &TensorDetails {
        self.details.get_or_init(Default::default)
    }
}

impl From<Array> for Tensor {
    /// Creates a leaf that requires no gradient.
    fn from(array: Array) -> Tensor {
        Tensor(Arc::new(TensorInner::new(array, None)))
    }
}

impl Tensor {
    /// Creates the single output of a new node together with the node. The node gets a weak handle to the output.
    #[inline]
    pub(crate) fn only_output(array: Array, node: impl FnOnce(&Array, Weak<TensorInner>) -> Arc<GraphNode>) -> Tensor {
        Tensor(Arc::new_cyclic(|handle| {
            let node = node(&array, handle.clone());
            TensorInner::new(array, Some((node, 0)))
        }))
    }

    pub(crate) fn from_inner(inner: Arc<TensorInner>) -> Tensor {
        Tensor(inner)
    }

    #[inline]
    pub(crate) fn as_inner(&self) -> &Arc<TensorInner> {
        &self.0
    }

    /// Creates output `index` of a node.
    pub(crate) fn recorded(array: Array, node: Arc<GraphNode>, index: usize) -> Tensor {
        Tensor(Arc::new(TensorInner::new(array, Some((node, index as u32)))))
    }

    /// Creates a leaf with this array and gradient slot. It requires a gradient if there is a slot.
    pub(crate) fn leaf(array: Array, slot: Option<Arc<GradientSlot>>) -> Tensor {
        let inner = TensorInner::new(array, None);
        if let Some(slot) = slot {
            inner.requires_grad.store(true, Ordering::Relaxed);
            let _ = inner.details().slot.set(slot);
        }
        Tensor(Arc::new(inner))
    }

    #[inline]
    pub(crate) fn edge(&self) -> Edge {
        self.with_creator(|creator| match creator {
            Some((node, index)) => Edge::Node(node.clone(), *index),
            None if self.0.requires_grad.load(Ordering::Relaxed) => Edge::Leaf(Arc::downgrade(self.0.slot())),
            None => Edge::None,
        })
    }

    /// Returns true if both handles refer to one tensor, or have the same creator output or gradient slot. Then their
    /// gradients are equal.
    #[inline]
    pub(crate) fn is_same_tensor(&self, other: &Tensor) -> bool {
        let slot =
            || matches!((self.0.existing_slot(), other.0.existing_slot()), (Some(a), Some(b)) if Arc::ptr_eq(a, b));
        let has_same_creator = || {
            self.with_creator(|creator| {
                other.with_creator(|other_creator| match (creator, other_creator) {
                    (Some((a, i)), Some((b, j))) => i == j && is_same_node(a, b),
                    (None, None) => slot(),
                    _ => false,
                })
            })
        };
        Arc::ptr_eq(&self.0, &other.0) || has_same_creator()
    }

    /// Returns the tensor's array: the elements without history.
    #[inline]
    pub fn array(&self) -> &Array {
        match self.0.current.load(Ordering::Acquire) {
            0 => &self.0.array,
            index => self.0.moved_array(index),
        }
    }

    /// Returns true if this is the only handle to the tensor and to its storage, and the layout repeats no element.
    #[inline]
    pub(crate) fn is_unique(&self) -> bool {
        Arc::strong_count(&self.0) == 1 && self.array().is_unique()
    }

    /// Returns the length of every axis, outermost first.
    #[doc(alias = "size")]
    #[inline]
    pub fn shape(&self) -> &Shape {
        self.0.array.shape()
    }

    /// Returns the number of axes.
    #[doc(alias("ndim", "dim"))]
    pub fn rank(&self) -> usize {
        self.shape().rank()
    }

    /// Returns the number of elements; [`Tensor::shape`] is PyTorch's `size`.
    #[doc(alias = "nelement")]
    pub fn size(&self) -> usize {
        self.shape().size()
    }

    /// Returns the number of elements: PyTorch's name for [`Tensor::size`].
    pub fn numel(&self) -> usize {
        self.size()
    }

    /// Returns the size of all elements in bytes: their number times [`DType::size`].
    ///
    /// ```
    /// use pellucid::{DType, Tensor};
    /// assert_eq!(Tensor::zeros([2, 3], DType::F64).nbytes(), 48);
    /// ```
    pub fn nbytes(&self) -> usize {
        self.size().saturating_mul(self.dtype().size())
    }

    /// Returns true if the elements are stored contiguously in row-major order. Otherwise,
    /// [`contiguous`](Tensor::contiguous) copies them to this order.
    ///
    /// ```
    /// use pellucid::{DType, Tensor};
    /// let x = Tensor::zeros([2, 3], DType::F32);
    /// assert!(x.is_contiguous() && !x.t().is_contiguous() && x.t().contiguous().is_contiguous());
    /// ```
    pub fn is_contiguous(&self) -> bool {
        self.array().layout().is_contiguous()
    }

    /// Returns the dtype of the elements.
    #[doc(alias = "type")]
    #[inline]
    pub fn dtype(&self) -> DType {
        self.array().dtype()
    }

    /// Returns the device that stores the elements.
    #[inline]
    pub fn device(&self) -> Device {
        self.array().device()
    }

    /// Returns true if gradients flow to or through this tensor.
    #[inline]
    pub fn requires_grad(&self) -> bool {
        self.with_creator(|creator| creator.is_some()) || self.0.requires_grad.load(Ordering::Relaxed)
    }

    /// Returns true if no recorded operation computed this tensor or wrote into it.
    #[inline]
    pub fn is_leaf(&self) -> bool {
        self.with_creator(|creator| creator.is_none())
    }

    /// Sets whether this leaf requires a gradient, and returns the handle.
    ///
    /// # Panics
    /// Panics if `required` is false and this is not a leaf (use [`Tensor::detach`]), or if `required` is true and the
    /// dtype is not a float.
    #[track_caller]
    pub fn requires_grad_(self, required: bool) -> Tensor {
        panic::unwrap(self.set_requires_grad(required));
        self
    }

    /// Sets whether this leaf requires a gradient.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `required` is false and this is not a leaf, [`Error::DTypeMismatch`] if `required`
    /// is true and the dtype is not a float.
    pub fn set_requires_grad(&self, required: bool) -> Result<()> {
        if !self.is_leaf() && !required {
            let help = "the tensor was computed or overwritten by a recorded operation; detach() it";
            return Err(Error::invalid("requires_grad", help));
        }
        if required && !self.dtype().is_float() {
            return Err(Error::dtypes(
                "requires_grad",
                [self.dtype()],
                "a tensor that requires a gradient must have a float dtype; use to_dtype()",
            ));
        }
        if self.is_leaf() && self.0.requires_grad.swap(required, Ordering::Relaxed) != required {
            engine::count_requires_grad_change(self.array());
            self.update_view_base();
        }
        Ok(())
    }

    /// Returns the node that computed this tensor or last wrote into it; `None` for a leaf.
    #[doc(alias = "grad_fn")]
    pub fn creator(&self) -> Option<Node> {
        self.with_creator(|creator| creator.map(|(node, _)| Node(node.clone())))
    }

    /// Returns 0 for a leaf, otherwise the generation of its creator plus one.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.with_creator(|creator| creator.map_or(0, |(node, _)| node.generation + 1))
    }

    /// Returns the gradient that backward passes have accumulated or [`set_grad`](Tensor::set_grad) has set, with this
    /// tensor's shape, dtype and device.
    ///
    /// Backward passes retain the gradients of leaves, and of results after [`retain_grad`](Tensor::retain_grad); for
    /// other results, the gradient is `None`. The first call in a process that returns `None` for such a result is
    /// reported to the subscriber of `tracing`, or on standard error without one.
    pub fn grad(&self) -> Option<Tensor> {
        let gradient = self.0.existing_slot().and_then(|slot| slot.get());
        if gradient.is_none() && !self.is_leaf() && !self.retains_grad() {
            warn_of_result_without_gradient(self.shape());
        }
        gradient
    }

    /// Replaces the gradient. A backward pass from a result starts with the gradient that was set on the result, unless
    /// a pass has added to it since.
    ///
    /// ```
    /// use pellucid::Tensor;
    /// let x = Tensor::from([3.0f64]).requires_grad_(true);
    /// let y = x.square();
    /// y.set_grad(Some(Tensor::from([10.0f64])));
    /// y.backward();
    /// assert_eq!(x.grad().unwrap().item::<f64>(), 60.0);
    /// ```
    ///
    /// A [free](Tensor::is_free) gradient is copied to the device of this tensor if it is on another one. It becomes
    /// pinned if it is copied, or if this tensor is pinned.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] and [`Error::DTypeMismatch`] if its shape or dtype differs from this tensor's,
    /// [`Error::DeviceMismatch`] if it is pinned to another device; errors of the device.
    #[panicking_form]
    pub fn try_set_grad(&self, gradient: Option<Tensor>) -> Result<()> {
        let help = "a gradient must have its tensor's shape and dtype; use reshape() or to_dtype()";
        let device = self.device();
        let checked = |g: Tensor| {
            if g.shape() != self.shape() {
                return Err(Error::shapes("set_grad", [g.shape(), self.shape()], help));
            }
            if g.dtype() != self.dtype() {
                return Err(Error::dtypes("set_grad", [g.dtype(), self.dtype()], help));
            }
            if g.device() == device {
                return if self.is_free() || !g.is_free() { Ok(g) } else { g.try_to(device) };
            }
            if !g.is_free() {
                let devices = [g.device(), device].map(|device| device.name().to_string()).into();
                return Err(Error::DeviceMismatch { op: "set_grad", devices });
            }
            Ok(Tensor::from(g.device_copy(device, || g.array().copy_to_device(device))?).pinned())
        };
        let gradient = gradient.map(checked).transpose()?;
        if gradient.is_some() || self.0.existing_slot().is_some() {
            self.0.slot().set(gradient);
        }
        Ok(())
    }

    /// Returns the gradient that was set on this result. A pass from the result starts with it.
    pub(crate) fn preset_grad(&self) -> Option<Tensor> {
        self.0.existing_slot().filter(|_| !self.is_leaf()).and_then(|slot| slot.preset())
    }

    /// Removes the gradient, even if the tensor was frozen after its gradient was accumulated.
    pub fn zero_grad(&self) {
        if self.requires_grad() || self.0.existing_slot().is_some() {
            self.0.slot().set(None);
        }
    }

    /// Makes backward passes retain the gradient of this result, as they do for leaves. This is equivalent to
    /// [`set_retain_grad(true)`](Tensor::set_retain_grad), which also accepts a tensor that requires no gradient yet.
    ///
    /// # Errors
    /// [`Error::NotTracked`] if the tensor requires no gradient.
    #[panicking_form]
    pub fn try_retain_grad(&self) -> Result<()> {
        if !self.requires_grad() {
            return Err(self.not_tracked("retain_grad", "the tensor"));
        }
        self.set_retain_grad(true);
        Ok(())
    }

    /// Returns true if backward passes retain the gradient of this tensor when it is a result. The gradients of leaves
    /// are always retained.
    #[inline]
    pub fn retains_grad(&self) -> bool {
        self.0.retains_grad.load(Ordering::Acquire)
    }

    /// Sets whether backward passes retain the gradient of this tensor when it is a result. A retained gradient remains
    /// until [`Tensor::zero_grad`]. For a leaf, the setting has an effect after a recorded write in place, which makes
    /// the leaf a result.
    ///
    /// ```
    /// use pellucid::{BackwardOptions, Tensor};
    /// let x = Tensor::from([3.0f64]).requires_grad_(true);
    /// let y = x.square();
    /// let z = &y * 2.0;
    /// y.retain_grad();
    /// z.backward_with(BackwardOptions { retain_graph: true, ..Default::default() });
    /// assert_eq!(y.grad().unwrap().item::<f64>(), 2.0);
    /// y.set_retain_grad(false);
    /// y.zero_grad();
    /// z.backward();
    /// assert!(!y.retains_grad() && y.grad().is_none());
    /// ```
    pub fn set_retain_grad(&self, retained: bool) {
        self.0.retains_grad.store(retained, Ordering::Release);
        if !retained {
            return;
        }
        self.with_creator(|creator| {
            if let Some((node, _)) = creator {
                node.is_observed.store(true, Ordering::Release);
            }
        });
    }

    /// Calls `hook` with the complete gradient of this tensor in every pass. A returned tensor replaces the gradient.
    /// If it is [free](Tensor::is_free), it is copied to the device of this tensor; if it is pinned to another device,
    /// the pass fails with [`Error::DeviceMismatch`]. The hook exists until it is removed, or until the graph (for a
    /// leaf: the tensor) is dropped. After a write in place, it receives the gradient of the value before the write. A
    /// captured step calls it when the step is recorded. The step is recorded again after a hook of one of its tensors
    /// was added or removed.
    ///
    /// # Errors
    /// [`Error::NotTracked`] if the tensor requires no gradient.
    #[panicking_form]
    pub fn try_register_hook(
        &self,
        hook: impl Fn(&Tensor) -> Option<Tensor> + Send + Sync + 'static,
    ) -> Result<HookHandle> {
        let result_hooks = |(node, index): &Creator| node.hooks_of(*index as usize).clone();
        let hooks = match self.with_creator(|creator| creator.map(result_hooks)) {
            Some(hooks) => hooks,
            None if self.requires_grad() => self.0.slot().hooks.clone(),
            None => return Err(self.not_tracked("register_hook", "the tensor")),
        };
        Ok(hooks.add(Arc::new(hook)))
    }

    /// Returns the error of `op` for this tensor, which requires no gradient. `role` is the tensor's role in the call.
    pub(crate) fn not_tracked(&self, op: &'static str, role: &str) -> Error {
        let help = "set requires_grad on a leaf before the forward pass, outside no_grad(); the results of detach(), \
                    argmax(), comparisons and launches require no gradient, frozen parameters need unfreeze(), and a \
                    gradient is differentiable only with create_graph: true";
        Error::NotTracked { op, what: role.into(), shape: self.shape().clone(), help }
    }

    /// Returns the identity of this tensor. Clones, which share elements, history and gradient, have the same identity.
    /// Views and [detached](Tensor::detach) handles, which share only elements, have a different one.
    pub fn id(&self) -> TensorId {
        TensorId(Arc::as_ptr(&self.0).addr())
    }

    /// Returns the identity of the storage that holds the elements.
    pub fn storage_id(&self) -> StorageId {
        StorageId::from_storage(self.array().storage())
    }

    /// Returns the same elements without history: a leaf that requires no gradient and shares the storage. A recorded
    /// write through one of the two tensors does not change the history of the other tensor.
    #[doc(alias("detach_", "data"))]
    pub fn detach(&self) -> Tensor {
        let array = self.array().clone();
        array.set_pinned(!self.is_free());
        Tensor::from(array)
    }

    /// Runs the pending kernels of this tensor and waits for them. Reads do this automatically. Use it to measure time
    /// or to bound the deferred work. It does nothing in eager mode on the CPU. [`eval`](crate::eval()) evaluates
    /// several tensors, and [`flush`](crate::flush) runs all deferred kernels.
    ///
    /// # Errors
    /// The error of a deferred kernel that failed.
    #[doc(alias = "synchronize")]
    #[panicking_form]
    pub fn try_eval(&self) -> Result<()> {
        eval([self])
    }
}

/// Runs the pending kernels of these tensors and waits for them. See [`Tensor::eval`].
///
/// ```
/// use pellucid::{eval, lazy, Tensor};
/// let x = Tensor::from([1.0f32, 2.0]);
/// let (y, z) = lazy(|| {
///     let (y, z) = (&x * 2.0, x.exp());
///     eval([&y, &z]).map(|()| (y, z))
/// })?;
/// # drop((y, z));
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// The error of a deferred kernel that failed.
pub fn eval<'a, I>(tensors: I) -> Result<()>
where
    I: IntoIterator<Item = &'a Tensor>,
    I::IntoIter: Clone,
{
    crate::engine::eval(tensors.into_iter().map(Tensor::array))
}
