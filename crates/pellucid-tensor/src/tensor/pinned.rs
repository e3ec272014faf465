//! Free and pinned tensors, and cached copies of a tensor on other devices.

use super::Tensor;
use super::history::DeviceCopy;
use crate::array::Array;
use crate::device::Device;
use pellucid_ir::Result;
use std::sync::atomic::Ordering;

impl Tensor {
    /// Returns true if the tensor is free: an operation on it and on a tensor that is pinned to another device copies
    /// the free tensor to that device.
    ///
    /// A tensor that is created from host values is free, and so is the result of an operation on free tensors.
    /// [`Tensor::to`] pins a tensor.
    ///
    /// ```
    /// use pellucid::{Device, Tensor};
    /// let x = Tensor::from([1.0f32, 2.0]);
    /// let y = x.to(Device::cpu());
    /// assert!(x.is_free() && !y.is_free() && !(&x * &y).is_free());
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    #[inline]
    pub fn is_free(&self) -> bool {
        self.0.is_free.load(Ordering::Relaxed)
    }

    /// Marks the tensor as [free](Tensor::is_free). The history does not change, and results that were computed from it
    /// stay pinned.
    pub fn free(&self) {
        self.set_free(true);
    }

    /// Pins this tensor to its device, as [`Tensor::to`] pins its result, and returns the handle.
    #[doc(hidden)]
    pub fn pinned(self) -> Tensor {
        self.set_free(false);
        self
    }

    /// Sets the flag of the tensor and of its array. Gradient kernels read the flag of the array.
    fn set_free(&self, is_free: bool) {
        self.0.is_free.store(is_free, Ordering::Relaxed);
        self.array().set_pinned(!is_free);
    }

    /// Returns a copy of the elements on `device`. `copy` creates it if no copy of the current version exists.
    pub(crate) fn device_copy(&self, device: Device, copy: impl FnOnce() -> Result<Array>) -> Result<Array> {
        let version = self.array().storage().version();
        let mut copies = self.0.details().device_copies();
        copies.retain(|copy| copy.version == version);
        if let Some(copy) = copies.iter().find(|copy| copy.array.device() == device) {
            return Ok(copy.array.clone());
        }
        let array = copy()?;
        copies.push(DeviceCopy { version, array: array.clone() });
        Ok(array)
    }
}
