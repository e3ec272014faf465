//! [`Hyperparameter`]: a number that kernels read and the host sets.

use super::free_buffer::free_buffer;
use crate::parameter::Buffer;
use pellucid_tensor::{DType, Error, Result, Tensor, ops};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that the kernels of a step read and the host sets, such as a learning rate. [`ParamGroup`] documents its
/// rounding.
///
/// Clones are handles of the same number.
///
/// [`ParamGroup`]: super::ParamGroup
#[derive(Clone)]
pub(super) struct Hyperparameter {
    stored: Buffer,
    /// The bits of the number that was set last.
    set: Arc<AtomicU64>,
    /// Converts the number to the value of the tensor, or back; the function is its own inverse.
    conversion: fn(f64) -> f64,
}

impl fmt::Debug for Hyperparameter {
    /// Formats the number; `None` inside a captured step.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Hyperparameter").field(&self.try_get().ok()).finish()
    }
}

impl Hyperparameter {
    /// Creates a number x that is stored as `conversion(x)` in a tensor of this dtype, `f32` or `f64`. The tensor is
    /// [free](Tensor::is_free), and `conversion` is its own inverse.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] for other dtypes; [`Error::InvalidArgument`] for a finite number outside the range of
    /// the dtype; [`Error::OutOfMemory`].
    pub(super) fn stored_as(value: f64, dtype: DType, conversion: fn(f64) -> f64) -> Result<Hyperparameter> {
        if !matches!(dtype, DType::F32 | DType::F64) {
            return Err(Error::dtypes("hyperparameter", [dtype], "a hyperparameter is stored in f32 or f64"));
        }
        check_range(value, conversion(value), dtype)?;
        let stored = free_buffer(ops::full((), conversion(value), dtype)?);
        Ok(Hyperparameter { stored, set: Arc::new(AtomicU64::new(value.to_bits())), conversion })
    }

    /// Returns the 0-d tensor, which kernels read.
    pub(super) fn tensor(&self) -> &Tensor {
        &self.stored
    }

    /// Returns the number.
    ///
    /// # Errors
    /// [`Error::ReadInCapture`](pellucid_tensor::Error::ReadInCapture) inside a captured step.
    #[track_caller]
    pub(super) fn try_get(&self) -> Result<f64> {
        let stored: f64 = self.stored.try_item()?;
        let is_stored = |number: &f64| round((self.conversion)(*number), self.stored.dtype()) == stored;
        let set = f64::from_bits(self.set.load(Ordering::Relaxed));
        Ok(if is_stored(&set) { set } else { shortest_decimal((self.conversion)(stored), is_stored) })
    }

    /// Sets the number; replays of a captured step use it. Inside a captured step, the write is a part of the step.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a finite number outside the range of the dtype; the errors of [`ops::copy_`].
    pub(super) fn try_set(&self, value: f64) -> Result<()> {
        check_range(value, (self.conversion)(value), self.stored.dtype())?;
        ops::copy_(&self.stored, &Tensor::from((self.conversion)(value)))?;
        self.set.store(value.to_bits(), Ordering::Relaxed);
        Ok(())
    }

    /// Stores the number in another dtype in place. All handles use the new tensor.
    pub(super) fn try_to_dtype_(&self, dtype: DType) -> Result<()> {
        let number = self.try_get()?;
        check_range(number, (self.conversion)(number), dtype)?;
        self.stored.try_to_dtype_(dtype)
    }

    /// Returns true for a handle of the same number.
    pub(super) fn is_same(&self, other: &Hyperparameter) -> bool {
        Arc::ptr_eq(&self.set, &other.set)
    }

    /// Returns the buffer of the tensor.
    pub(super) fn buffer(&self) -> &Buffer {
        &self.stored
    }
}

/// Returns an error if a finite number is infinite in the dtype in which it is `stored`.
fn check_range(number: f64, stored: f64, dtype: DType) -> Result<()> {
    if number.is_finite() && !round(stored, dtype).is_finite() {
        return Err(Error::invalid(
            "hyperparameter",
            format!(
                "{number:e} is outside the range of {dtype}, in which the optimizer stores it; use a smaller number"
            ),
        ));
    }
    Ok(())
}

/// Rounds a number to `f32` or `f64`.
fn round(number: f64, dtype: DType) -> f64 {
    if dtype == DType::F32 { f64::from(number as f32) } else { number }
}

/// Returns the decimal number with the fewest significant digits for which `fits` is true, among those nearest to
/// `number`; else `number`.
fn shortest_decimal(number: f64, fits: impl Fn(&f64) -> bool) -> f64 {
    let rounded = |digits: usize| format!("{number:.digits$e}").parse().ok();
    (0..f64::DIGITS as usize + 2).filter_map(rounded).find(fits).unwrap_or(number)
}
