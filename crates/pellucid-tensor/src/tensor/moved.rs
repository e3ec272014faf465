//! Moving a tensor to another device in place.

use super::Tensor;
use crate::array::Array;
use crate::device::Device;
use crate::engine;
use pellucid_ir::{Error, Layout, Result};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

/// The array of a tensor after a move to another device. References to the arrays before the move stay valid.
pub(super) struct MovedArray {
    array: Array,
    next: OnceLock<Box<MovedArray>>,
}

/// The arrays of a tensor after its first array, in the order of the moves.
pub(super) type MovedArrays = OnceLock<Box<MovedArray>>;

impl MovedArray {
    /// Returns the array after the last move.
    pub(super) fn last(&self) -> &Array {
        let mut moved = self;
        while let Some(next) = moved.next.get() {
            moved = next;
        }
        &moved.array
    }
}

/// Appends an array to the list.
fn append(list: &MovedArrays, array: Array) {
    let mut entry = Box::new(MovedArray { array, next: OnceLock::new() });
    let mut end = list;
    loop {
        // Another thread may append at the same time; then the search for the end goes on.
        match end.set(entry) {
            Ok(()) => return,
            Err(refused) => entry = refused,
        }
        end = &end.get().expect("a cell that refuses a value must have one").next;
    }
}

impl Tensor {
    /// Moves a leaf to `device` in place, with its gradient. It stays the same tensor: all handles of it, and the
    /// optimizers that hold one, use the new elements. Views that exist already keep the elements on the old device.
    /// The tensor is pinned.
    ///
    /// ```
    /// use pellucid_tensor::{Device, Tensor};
    /// let weight = Tensor::from([1.0f32, 2.0]).requires_grad_(true);
    /// let handle = weight.clone();
    /// weight.to_(Device::best())?;
    /// assert_eq!(handle.device(), Device::best());
    /// # Ok::<(), pellucid_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the tensor is on another device: [`Error::InvalidArgument`] for a result (use [`Tensor::to`]), for a view, for a
    /// tensor with views and a layout that is not contiguous, and inside a captured step; errors of the device.
    #[track_caller]
    pub fn to_(&self, device: Device) -> Result<()> {
        if self.device() == device {
            let _ = self.clone().pinned();
            return Ok(());
        }
        self.check_movable()?;
        let gradient = self.0.existing_slot().and_then(|slot| slot.get_untracked());
        let mut array = self.array().copy_to_device(device)?;
        let gradient = match gradient {
            Some(gradient) if gradient.device() != device => Some(gradient.detach().to(device)?),
            _ => None,
        };
        array.set_pinned(true);
        self.replace_array(array);
        let _ = self.clone().pinned();
        if gradient.is_some() {
            self.0.slot().set(gradient);
        }
        Ok(())
    }

    /// Makes this view a view of `base` where `base` is now, after [`Tensor::to_`] has moved it. The view keeps its
    /// layout, and is free if `base` is.
    #[doc(hidden)]
    pub fn follow_(&self, base: &Tensor) {
        if self.device() != base.device() {
            self.replace_array(base.array().view(self.array().layout().clone()));
        }
        if base.is_free() {
            self.free();
        }
    }

    /// Returns an error unless the tensor can be moved in place.
    ///
    /// # Errors
    /// Those of [`Tensor::to_`] that do not depend on the device.
    pub fn check_movable(&self) -> Result<()> {
        let reason = if !self.is_leaf() {
            "the tensor was computed from other tensors; use to(device)"
        } else if engine::is_capturing() {
            "a captured step cannot move a tensor"
        } else if let Some(base) = self.0.view_base.get() {
            let moved = Layout::contiguous(self.shape().clone());
            if !self.is_base() {
                "the tensor is a view; move the tensor that it is a view of"
            } else if base.is_written() || *self.array().layout() != moved {
                "the tensor has views, and it was written in place or is not contiguous; move a copy() of it"
            } else {
                return Ok(());
            }
        } else {
            return Ok(());
        };
        Err(Error::invalid("to_", format!("{reason} (shape {})", self.shape())))
    }

    /// Returns the array after the last move.
    #[cold]
    pub(super) fn moved_array(&self) -> &Array {
        self.0.details().moved.get().map_or(&self.0.array, |moved| moved.last())
    }

    /// Replaces the array, and releases the memory of the old one if no other array uses it.
    fn replace_array(&self, array: Array) {
        // A captured step that uses the old array must be recorded again.
        engine::count_requires_grad_change(self.array());
        // Deferred kernels may read the old array.
        engine::flush_unreported();
        let old = self.array().storage().clone();
        append(&self.0.details().moved, array);
        self.0.is_moved.store(true, Ordering::Release);
        // The list of arrays and `old` are the only owners.
        if Arc::strong_count(&old) == 2 {
            engine::discard(&old);
        }
    }
}
