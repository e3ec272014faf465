//! Gradient slots: where backward passes add the gradients of leaves.

use super::collect::{Collection, collect};
use super::hook::Hooks;
use super::{Tensor, TensorInner};
use crate::device::Device;
use crate::engine;
use pellucid_ir::kernel::Meta;
use pellucid_ir::{DType, Result};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

/// The gradient and the hooks of a leaf, or of another tensor that keeps its gradient.
pub(crate) struct GradientSlot {
    /// The tensor that owns the slot.
    owner: Weak<TensorInner>,
    /// Shape and dtype of the tensor when the slot was created.
    first_meta: Meta,
    /// Shape and dtype after the dtype was changed in place.
    converted: OnceLock<Box<ConvertedMeta>>,
    /// The device of the tensor when the slot was created.
    first_device: Device,
    /// The device of the tensor after its last move in place.
    moved_to: OnceLock<Mutex<Device>>,
    pub(crate) hooks: Arc<Hooks>,
    grad: Mutex<Option<Tensor>>,
    /// The user has set the gradient, and no backward pass has added to it.
    preset: AtomicBool,
}

/// The shape with each float dtype, so that references stay valid after another change of the dtype.
struct ConvertedMeta {
    metas: [Meta; 4],
    /// The index of the present dtype.
    present: AtomicUsize,
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
            grad: Mutex::new(None),
            preset: AtomicBool::new(false),
        }
    }

    /// Returns the tensor that owns the slot, unless it was dropped.
    pub(crate) fn tensor(&self) -> Option<Tensor> {
        self.owner.upgrade().map(Tensor::from_inner)
    }

    /// Returns shape and dtype of the tensor, which its gradient has too.
    #[inline]
    pub(crate) fn meta(&self) -> &Meta {
        match self.converted.get() {
            None => &self.first_meta,
            Some(converted) => &converted.metas[converted.present.load(Ordering::Acquire)],
        }
    }

    /// Returns whether the dtype of the tensor was changed in place.
    #[inline]
    pub(crate) fn is_converted(&self) -> bool {
        self.converted.get().is_some()
    }

    /// Stores the dtype of the tensor after a change in place. Tensors of other dtypes than floats have no gradients.
    pub(super) fn set_dtype(&self, dtype: DType) {
        let floats = [DType::F16, DType::BF16, DType::F32, DType::F64];
        let Some(index) = floats.iter().position(|&float| float == dtype) else { return };
        let metas = || floats.map(|dtype| Meta { shape: self.first_meta.shape.clone(), dtype });
        let new = || Box::new(ConvertedMeta { metas: metas(), present: AtomicUsize::new(index) });
        self.converted.get_or_init(new).present.store(index, Ordering::Release);
    }

    /// Returns the device of the tensor after its last move in place, if it has moved.
    pub(crate) fn moved_to(&self) -> Option<Device> {
        self.moved_to.get().map(|device| *device.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// Returns the device of the tensor, where its gradient is.
    pub(crate) fn device(&self) -> Device {
        self.moved_to().unwrap_or(self.first_device)
    }

    /// Stores the device of the tensor after a move in place.
    pub(super) fn set_device(&self, device: Device) {
        let moved_to = self.moved_to.get_or_init(|| Mutex::new(device));
        *moved_to.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = device;
    }

    fn lock(&self) -> MutexGuard<'_, Option<Tensor>> {
        self.grad.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Returns the gradient, without recording the access in a captured step.
    pub(crate) fn get_untracked(&self) -> Option<Tensor> {
        self.lock().clone()
    }

    /// Returns the gradient.
    pub(crate) fn get(self: &Arc<GradientSlot>) -> Option<Tensor> {
        note_slot_access(self, false);
        self.get_untracked()
    }

    /// Changes the gradient while the slot is locked, so that concurrent backward passes add up.
    pub(crate) fn update(
        self: &Arc<GradientSlot>,
        change: impl FnOnce(&mut Option<Tensor>) -> Result<()>,
    ) -> Result<()> {
        note_slot_access(self, false);
        change(&mut self.lock())?;
        self.preset.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the gradient that [`set_grad`](Tensor::set_grad) has set, with which a pass from this tensor starts.
    pub(crate) fn preset(self: &Arc<GradientSlot>) -> Option<Tensor> {
        if self.preset.load(Ordering::Relaxed) { self.get() } else { None }
    }

    /// Replaces the gradient without reading it.
    pub(crate) fn set(self: &Arc<GradientSlot>, grad: Option<Tensor>) {
        note_slot_access(self, true);
        self.preset.store(grad.is_some(), Ordering::Relaxed);
        // The old gradient is dropped after the lock is released: it may own a long graph.
        let old = std::mem::replace(&mut *self.lock(), grad);
        drop(old);
    }

    /// True if the user set the gradient and no pass has added to it.
    pub(crate) fn is_preset(&self) -> bool {
        self.preset.load(Ordering::Relaxed)
    }

    /// Replaces the gradient, without recording the access in a captured step.
    pub(crate) fn set_untracked(&self, grad: Option<Tensor>, is_preset: bool) {
        self.preset.store(is_preset, Ordering::Relaxed);
        let old = std::mem::replace(&mut *self.lock(), grad);
        drop(old);
    }
}

/// A gradient slot that a captured step uses, with its gradient before the step.
pub(crate) struct TouchedSlot {
    pub(crate) slot: Arc<GradientSlot>,
    pub(crate) entry: Option<Tensor>,
    /// The user set the gradient before the step.
    pub(crate) is_preset: bool,
    /// The step overwrites the slot before it reads it.
    pub(crate) cleared: bool,
}

thread_local! {
    /// The slots that the step of this thread uses, while [`collect_touched_slots`] runs.
    static TOUCHED: Collection<Vec<TouchedSlot>> = const { RefCell::new(None) };
}

/// Runs `f`, and returns its result with the gradient slots that it used in capture mode, as before their first use.
pub(crate) fn collect_touched_slots<R>(f: impl FnOnce() -> R) -> (R, Vec<TouchedSlot>) {
    collect(&TOUCHED, f)
}

/// Records the gradient slot before its first read or change in a captured step. `clears` is true if it is overwritten
/// without being read.
fn note_slot_access(slot: &Arc<GradientSlot>, clears: bool) {
    if !engine::is_capturing() {
        return;
    }
    TOUCHED.with_borrow_mut(|touched| {
        let Some(touched) = touched else { return };
        if !touched.iter().any(|t| Arc::ptr_eq(&t.slot, slot)) {
            let (entry, is_preset) = (slot.get_untracked(), slot.is_preset());
            touched.push(TouchedSlot { slot: slot.clone(), entry, is_preset, cleared: clears });
        }
    });
}
