//! Gradient slots, to which backward passes add the gradients of leaves.

use super::collect::{Collection, collect};
use super::hook::Hooks;
use super::{Tensor, TensorInner};
use crate::device::Device;
use crate::engine;
use pellucid_ir::kernel::Meta;
use pellucid_ir::{DType, Result, lock};
use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

/// The gradient and the hooks of a leaf, or of another tensor that retains its gradient.
pub(crate) struct GradientSlot {
    /// The tensor that owns the slot.
    owner: Weak<TensorInner>,
    /// The shape and dtype of the tensor when the slot was created.
    first_meta: Meta,
    /// The shape and dtype after an in-place change of the dtype.
    converted: OnceLock<Box<ConvertedMeta>>,
    /// The device of the tensor when the slot was created.
    first_device: Device,
    /// The device of the tensor after its last move in place.
    moved_to: OnceLock<Mutex<Device>>,
    pub(crate) hooks: Arc<Hooks>,
    /// The gradient that all threads see, except threads that record a step; see [`RecordedSlot`].
    shared: Mutex<SlotGradient>,
}

/// The gradient of a slot.
#[derive(Clone, Default)]
pub(crate) struct SlotGradient {
    pub(crate) gradient: Option<Tensor>,
    /// Whether the user has set the gradient, and no backward pass has added to it.
    is_preset: bool,
}

/// The shape with each float dtype, so that references remain valid after another change of the dtype.
struct ConvertedMeta {
    metas: [Meta; 4],
    /// The index of the current dtype.
    current: AtomicUsize,
}

impl GradientSlot {
    pub(crate) fn new(owner: Weak<TensorInner>, meta: Meta, device: Device) -> GradientSlot {
        GradientSlot {
            owner,
            first_meta: meta,
            converted: OnceLock::new(),
            first_device: device,
            moved_to: OnceLock::new(),
            hooks: Arc::default(),
            shared: Mutex::default(),
        }
    }

    /// Returns the tensor that owns the slot, unless it was dropped.
    pub(crate) fn tensor(&self) -> Option<Tensor> {
        self.owner.upgrade().map(Tensor::from_inner)
    }

    /// Returns the shape and dtype of the tensor and its gradient.
    #[inline]
    pub(crate) fn meta(&self) -> &Meta {
        match self.converted.get() {
            None => &self.first_meta,
            Some(converted) => &converted.metas[converted.current.load(Ordering::Acquire)],
        }
    }

    /// Returns true if the dtype of the tensor was changed in place.
    #[inline]
    pub(crate) fn is_converted(&self) -> bool {
        self.converted.get().is_some()
    }

    /// Stores the dtype of the tensor after a change in place. Only tensors of float dtypes have gradients.
    pub(super) fn set_dtype(&self, dtype: DType) {
        let floats = [DType::F16, DType::BF16, DType::F32, DType::F64];
        let Some(index) = floats.iter().position(|&float| float == dtype) else { return };
        let metas = || floats.map(|dtype| Meta { shape: self.first_meta.shape.clone(), dtype });
        let new = || Box::new(ConvertedMeta { metas: metas(), current: AtomicUsize::new(index) });
        self.converted.get_or_init(new).current.store(index, Ordering::Release);
    }

    /// Returns the device of the tensor after its last move in place, if it has moved.
    pub(crate) fn moved_to(&self) -> Option<Device> {
        self.moved_to.get().map(|device| *lock(device))
    }

    /// Returns the device of the tensor and its gradient.
    pub(crate) fn device(&self) -> Device {
        self.moved_to().unwrap_or(self.first_device)
    }

    /// Stores the device of the tensor after a move in place.
    pub(super) fn set_device(&self, device: Device) {
        let moved_to = self.moved_to.get_or_init(|| Mutex::new(device));
        *lock(moved_to) = device;
    }

    fn lock(&self) -> MutexGuard<'_, SlotGradient> {
        lock(&self.shared)
    }

    /// Calls `f` with the gradient that this thread sees: in a captured step the gradient of the step, otherwise the
    /// gradient that all threads share, which is locked during the call. `clears` is true if `f` overwrites the
    /// gradient without reading it.
    fn with_gradient<R>(self: &Arc<GradientSlot>, clears: bool, f: impl FnOnce(&mut SlotGradient) -> R) -> R {
        if engine::is_capturing()
            && let Some(mut current) = recorded_gradient(self, clears)
        {
            let result = f(&mut current);
            set_recorded_gradient(self, current);
            return result;
        }
        f(&mut self.lock())
    }

    /// Returns the gradient that this thread sees, without recording the access in a captured step.
    pub(crate) fn get_untracked(&self) -> Option<Tensor> {
        let recorded = if engine::is_capturing() { used_gradient(self) } else { None };
        recorded.unwrap_or_else(|| self.lock().clone()).gradient
    }

    /// Returns the gradient.
    pub(crate) fn get(self: &Arc<GradientSlot>) -> Option<Tensor> {
        self.with_gradient(false, |current| current.gradient.clone())
    }

    /// Calls `f` with the gradient while the slot is locked.
    pub(crate) fn inspect<R>(self: &Arc<GradientSlot>, f: impl FnOnce(&Option<Tensor>) -> R) -> R {
        self.with_gradient(false, |current| f(&current.gradient))
    }

    /// Changes the gradient while the slot is locked, so that concurrent backward passes lose no contribution.
    pub(crate) fn update(
        self: &Arc<GradientSlot>,
        change: impl FnOnce(&mut Option<Tensor>) -> Result<()>,
    ) -> Result<()> {
        self.with_gradient(false, |current| {
            change(&mut current.gradient)?;
            current.is_preset = false;
            Ok(())
        })
    }

    /// Returns the gradient that [`set_grad`](Tensor::set_grad) has set, unless a backward pass has added to it since.
    /// A pass from this tensor starts with it.
    pub(crate) fn preset(self: &Arc<GradientSlot>) -> Option<Tensor> {
        self.with_gradient(false, |current| current.gradient.clone().filter(|_| current.is_preset))
    }

    /// Replaces the gradient without reading it.
    pub(crate) fn set(self: &Arc<GradientSlot>, gradient: Option<Tensor>) {
        let new = SlotGradient { is_preset: gradient.is_some(), gradient };
        // The old gradient is dropped after the lock is released: it may own a long graph.
        let old = self.with_gradient(true, |current| std::mem::replace(current, new));
        drop(old);
    }
}

/// A gradient slot that a captured step uses, with the gradients of the step. No other thread sees them.
pub(crate) struct RecordedSlot {
    pub(crate) slot: Arc<GradientSlot>,
    /// The gradient before the step.
    pub(crate) entry: SlotGradient,
    /// The current gradient of the step. After the recording, it is the gradient at the end of the step.
    pub(crate) current: SlotGradient,
    /// Whether the step overwrites the slot before it reads it.
    pub(crate) is_cleared: bool,
}

/// Gradient slots with their gradients before a step.
pub(crate) type EntryGradients = Vec<(Arc<GradientSlot>, SlotGradient)>;

/// The gradient slots of a captured step.
#[derive(Default)]
struct RecordedSlots {
    /// The slots that the step has used.
    used: Vec<RecordedSlot>,
    /// The gradients with which the step starts, instead of the current gradients of these slots.
    entries: EntryGradients,
}

thread_local! {
    /// The gradient slots of the step of this thread, while [`collect_recorded_slots`] runs.
    static RECORDED: Collection<RecordedSlots> = const { RefCell::new(None) };
}

/// Runs `f`, and returns its result with the gradient slots that it used in capture mode. `f` reads and changes private
/// gradients: each slot starts with its gradient in `entries`, or otherwise with its gradient at the first use. Other
/// threads see no change.
pub(crate) fn collect_recorded_slots<R>(entries: EntryGradients, f: impl FnOnce() -> R) -> (R, Vec<RecordedSlot>) {
    let (result, recorded) = collect(&RECORDED, RecordedSlots { used: Vec::new(), entries }, f);
    (result, recorded.used)
}

/// Returns the gradient of a slot in the step that this thread records, and marks the slot as used. Returns `None` if
/// the thread records no step.
fn recorded_gradient(slot: &Arc<GradientSlot>, clears: bool) -> Option<SlotGradient> {
    RECORDED.with_borrow_mut(|recorded| {
        let RecordedSlots { used, entries } = recorded.as_mut()?;
        if let Some(recorded) = used.iter().find(|recorded| Arc::ptr_eq(&recorded.slot, slot)) {
            return Some(recorded.current.clone());
        }
        let entry = entries.iter().find(|(recorded, _)| Arc::ptr_eq(recorded, slot));
        let entry = entry.map_or_else(|| slot.lock().clone(), |(_, entry)| entry.clone());
        let current = entry.clone();
        used.push(RecordedSlot { slot: slot.clone(), entry: entry.clone(), current, is_cleared: clears });
        Some(entry)
    })
}

/// Returns the gradient of a slot that the step of this thread has used.
fn used_gradient(slot: &GradientSlot) -> Option<SlotGradient> {
    let is_known = |recorded_slot: &&RecordedSlot| std::ptr::eq(&*recorded_slot.slot, slot);
    RECORDED.with_borrow(|recorded| {
        recorded.as_ref()?.used.iter().find(is_known).map(|recorded_slot| recorded_slot.current.clone())
    })
}

/// Sets the gradient of a slot that the step of this thread has used.
fn set_recorded_gradient(slot: &Arc<GradientSlot>, gradient: SlotGradient) {
    let old = RECORDED.with_borrow_mut(|recorded| {
        let recorded_slot =
            recorded.as_mut()?.used.iter_mut().find(|recorded_slot| Arc::ptr_eq(&recorded_slot.slot, slot))?;
        Some(std::mem::replace(&mut recorded_slot.current, gradient))
    });
    drop(old);
}
