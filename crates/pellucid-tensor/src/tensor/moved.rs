//! Moving a tensor to another device, and converting it to another dtype, in place.

use super::{Tensor, TensorInner};
use crate::array::Array;
use crate::device::{Device, IntoDevice};
use crate::engine::{self, eager};
use crate::idle::{self, is_idle};
use crate::panic::unwrap;
use pellucid_derive::panicking_form;
use pellucid_ir::{DType, Error, Layout, Result, lock};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, OnceLock};

/// The additional arrays of a tensor that was moved or converted in place, one for each further device and dtype.
/// References to an array remain valid after a move, but its elements may be released. When the tensor returns to a
/// device and dtype, the array for them is used again, unless it still has other handles or is not contiguous. A second
/// array is then added for the same device and dtype.
#[derive(Default)]
pub(super) struct MovedArrays {
    arrays: ArrayList,
    /// Locked while the tensor moves.
    moving: Mutex<()>,
}

type ArrayList = OnceLock<Box<MovedArray>>;

struct MovedArray {
    array: Array,
    next: ArrayList,
}

impl MovedArrays {
    fn iter(&self) -> impl Iterator<Item = &Array> {
        std::iter::successors(self.arrays.get(), |moved| moved.next.get()).map(|moved| &moved.array)
    }

    /// Appends an array to the list.
    fn append(&self, array: Array) {
        let mut end = &self.arrays;
        while let Some(moved) = end.get() {
            end = &moved.next;
        }
        let moved = Box::new(MovedArray { array, next: OnceLock::new() });
        assert!(end.set(moved).is_ok(), "only one thread moves a tensor at a time");
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        lock(&self.moving)
    }
}

impl TensorInner {
    /// Iterates over the initial array and the arrays after moves.
    fn arrays(&self) -> impl Iterator<Item = &Array> {
        let moved = self.details.get().into_iter().flat_map(|details| details.moved.iter());
        std::iter::once(&self.array).chain(moved)
    }

    /// Returns the array with this index.
    #[cold]
    pub(super) fn moved_array(&self, index: u32) -> &Array {
        self.arrays().nth(index as usize).expect("the current array must be in the list")
    }

    /// Makes the array with this index the current one, and releases the memory of the previous one if no other handle
    /// uses it.
    fn set_current(&self, index: usize) {
        let index = u32::try_from(index).expect("a tensor must have fewer than 2^32 arrays");
        let before = self.current.swap(index, Ordering::AcqRel);
        idle::add_idle_handle(self.moved_array(before).storage());
        if let Some(details) = self.details.get() {
            details.drop_device_copies();
        }
    }
}

impl Drop for TensorInner {
    fn drop(&mut self) {
        let current = *self.current.get_mut() as usize;
        let is_idle = |(index, _): &(usize, &Array)| *index != current;
        self.arrays().enumerate().filter(is_idle).for_each(|(_, array)| array.storage().remove_idle());
    }
}

impl Tensor {
    /// Moves a leaf and its gradient to `device` in place. It stays the same tensor: all its handles, including those
    /// of optimizers, use the new elements. Existing views keep the elements on the old device. The tensor is pinned.
    ///
    /// ```
    /// use pellucid::{Device, Tensor};
    /// let weight = Tensor::from([1.0f32, 2.0]).requires_grad_(true);
    /// let handle = weight.clone();
    /// weight.to_(Device::best());
    /// assert_eq!(handle.device(), Device::best());
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the device differs: [`Error::InvalidArgument`] for a result (use [`Tensor::to`]), for a view, for a tensor
    /// with views that was written in place or is not contiguous, and inside a captured step; errors of the device.
    #[panicking_form]
    pub fn try_to_(&self, device: impl IntoDevice) -> Result<()> {
        let device = device.into_device()?;
        if self.device() == device {
            let _ = self.clone().pinned();
            return Ok(());
        }
        self.check_movable("to_")?;
        let gradient = match self.grad_untracked() {
            Some(gradient) if gradient.device() != device => Some(gradient.detach().try_to(device)?),
            _ => None,
        };
        self.replace_elements(device, self.dtype(), true, || self.array().to_bytes("to"))?;
        let _ = self.clone().pinned();
        if let Some(slot) = self.0.existing_slot() {
            slot.set_device(device);
            if gradient.is_some() {
                slot.set(gradient);
            }
        }
        Ok(())
    }

    /// Replaces the elements of the tensor by converted ones, and sets a new gradient; see [`Tensor::to_dtype_`].
    pub(crate) fn set_converted(&self, converted: &Array, gradient: Option<Tensor>) -> Result<()> {
        self.replace_elements(self.device(), converted.dtype(), !self.is_free(), || converted.to_bytes("to_dtype_"))?;
        if let Some(slot) = self.0.existing_slot() {
            slot.set_dtype(converted.dtype());
            slot.set(gradient);
        }
        Ok(())
    }

    /// Returns the gradient, without recording the access in a captured step.
    pub(crate) fn grad_untracked(&self) -> Option<Tensor> {
        self.0.existing_slot().and_then(|slot| slot.get_untracked())
    }

    /// Writes the result of `bytes` to an array of `device` and `dtype`, and makes this array the current one.
    fn replace_elements(
        &self,
        device: Device,
        dtype: DType,
        is_pinned: bool,
        bytes: impl FnOnce() -> Result<Vec<u8>>,
    ) -> Result<()> {
        let moved = &self.0.details().moved;
        let _moving = moved.lock();
        let bytes = bytes()?;
        self.prepare_move();
        let layout = Layout::contiguous(self.shape().clone());
        let is_reusable = |array: &Array| {
            array.device() == device
                && array.dtype() == dtype
                && *array.layout() == layout
                && array.storage().buffer().bytes() == bytes.len()
                && is_idle(array.storage())
        };
        let existing = self.0.arrays().enumerate().find(|(_, array)| is_reusable(array));
        let index = eager(|| match existing {
            Some((index, array)) => {
                array.storage().remove_idle();
                let filled = array.refill(&bytes).map_err(|error| self.array().copy_error(error));
                filled.inspect_err(|_| idle::add_idle_handle(array.storage()))?;
                Ok(index)
            }
            None => {
                let copied = Array::from_bytes(device, dtype, &bytes, self.shape().clone());
                let array = copied.map_err(|error| self.array().copy_error(error))?;
                array.set_pinned(is_pinned);
                moved.append(array);
                Ok::<usize, Error>(moved.iter().count())
            }
        })?;
        self.0.set_current(index);
        if let Some(base) = self.0.view_base.get() {
            base.set_moved();
        }
        Ok(())
    }

    /// Makes this tensor a view of `base` on the current device of `base`, after [`Tensor::to_`] has moved `base`. The
    /// view keeps its layout, and is free if `base` is free.
    #[doc(hidden)]
    pub fn move_view_to_base_(&self, base: &Tensor) {
        if self.device() != base.device() {
            let moved = &self.0.details().moved;
            let _moving = moved.lock();
            self.prepare_move();
            let view = base.array().view(self.array().layout().clone());
            let is_same = |array: &Array| array.shares_storage(&view) && array.layout() == view.layout();
            let existing = self.0.arrays().position(is_same);
            let index = existing.unwrap_or_else(|| {
                moved.append(view.clone());
                moved.iter().count()
            });
            if existing.is_some() {
                view.storage().remove_idle();
            }
            drop(view);
            self.0.set_current(index);
        }
        if base.is_free() {
            self.free();
        }
    }

    /// Returns an error unless the tensor can be moved and converted in place.
    ///
    /// # Errors
    /// The errors of [`Tensor::to_`] and [`Tensor::to_dtype_`] that do not depend on the device and the dtype. They
    /// name the operation `op`.
    pub fn check_movable(&self, op: &'static str) -> Result<()> {
        let reason = if !self.is_leaf() {
            "the tensor was computed from other tensors; use to(device) or to_dtype(dtype)"
        } else if engine::is_capturing() {
            "a captured step cannot move or convert a tensor in place; do it before the step"
        } else if let Some(base) = self.0.view_base.get() {
            let moved = Layout::contiguous(self.shape().clone());
            if !self.is_base() {
                "the tensor is a view; move or convert the tensor that it is a view of"
            } else if base.is_written() || *self.array().layout() != moved {
                "the tensor has views, and it was written in place or is not contiguous; use a copy() of it"
            } else {
                return Ok(());
            }
        } else {
            return Ok(());
        };
        Err(Error::invalid(op, format!("{reason} (shape {})", self.shape())))
    }

    /// Runs the deferred kernels of this thread, and makes captured steps that use the current array check whether they
    /// must be recorded again.
    fn prepare_move(&self) {
        // Before its next launch, a captured step that uses the array compares its recording with a new one.
        engine::count_requires_grad_change(self.array());
        // Deferred kernels may read the array.
        engine::flush_unreported();
    }
}
