//! [`Hyperparameter`]: a number that kernels read and the host sets.

use super::free_buffer::free_buffer;
use crate::parameter::Buffer;
use pellucid_derive::panicking_form;
use pellucid_tensor::{DType, Error, Result, Tensor, ops, unwrap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that the kernels of a step read and the host sets, such as a learning rate.
///
/// Its value is stored in a 0-d tensor, usually of `f32`. [`Hyperparameter::get`] returns the number that was set last,
/// if the tensor still holds the rounding of this number. If the tensor was written since, for example by a loaded
/// state dict or a captured step, it returns the decimal number with the fewest digits that rounds to the tensor's
/// value. So a rate of 0.01 is always read as 0.01, never as 0.009999999776482582.
///
/// Clones are handles of the same number.
///
/// ```
/// use pellucid::nn::optim::Hyperparameter;
/// use pellucid::{DType, Tensor, ops};
/// let rate = Hyperparameter::new(0.1 / 3.0, DType::F32);
/// assert_eq!(rate.get(), 0.1 / 3.0);
/// ops::copy_(rate.tensor(), &Tensor::from(0.07f32))?;
/// assert_eq!(rate.get(), 0.07);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Clone)]
pub struct Hyperparameter {
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
    /// Creates a number that is stored in a tensor of this dtype, `f32` or `f64`. The tensor is
    /// [free](Tensor::is_free).
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] for other dtypes; [`Error::InvalidArgument`] for a finite number outside the range of
    /// the dtype; [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_new(value: f64, dtype: DType) -> Result<Hyperparameter> {
        if !matches!(dtype, DType::F32 | DType::F64) {
            return Err(Error::dtypes("hyperparameter", [dtype], "a hyperparameter is stored in f32 or f64"));
        }
        Hyperparameter::stored_as(value, dtype, |value| value)
    }

    /// Creates a number x that is stored as `conversion(x)`; `conversion` is its own inverse.
    pub(super) fn stored_as(value: f64, dtype: DType, conversion: fn(f64) -> f64) -> Result<Hyperparameter> {
        check_range(value, conversion(value), dtype)?;
        let stored = free_buffer(ops::full((), conversion(value), dtype)?);
        Ok(Hyperparameter { stored, set: Arc::new(AtomicU64::new(value.to_bits())), conversion })
    }

    /// Returns the 0-d tensor, which kernels read.
    pub fn tensor(&self) -> &Tensor {
        &self.stored
    }

    /// Returns the number.
    ///
    /// # Errors
    /// [`Error::ReadInCapture`](pellucid_tensor::Error::ReadInCapture) inside a captured step.
    #[panicking_form]
    pub fn try_get(&self) -> Result<f64> {
        let stored: f64 = self.stored.try_item()?;
        let is_stored = |number: &f64| round((self.conversion)(*number), self.stored.dtype()) == stored;
        let set = f64::from_bits(self.set.load(Ordering::Relaxed));
        Ok(if is_stored(&set) { set } else { shortest_decimal((self.conversion)(stored), is_stored) })
    }

    /// Sets the number; replays of a captured step use it. Inside a captured step, the write is a part of the step.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a finite number outside the range of the dtype; the errors of [`ops::copy_`].
    #[panicking_form]
    pub fn try_set(&self, value: f64) -> Result<()> {
        check_range(value, (self.conversion)(value), self.stored.dtype())?;
        ops::copy_(&self.stored, &Tensor::from((self.conversion)(value)))?;
        self.set.store(value.to_bits(), Ordering::Relaxed);
        Ok(())
    }

    /// Copies the number of `other`, whose tensor may have another dtype.
    pub(super) fn copy_from(&self, other: &Hyperparameter) -> Result<()> {
        ops::copy_(&self.stored, &other.stored)?;
        self.set.store(other.set.load(Ordering::Relaxed), Ordering::Relaxed);
        Ok(())
    }

    /// Returns the same number, stored in another dtype. Handles of both are [the same](Self::is_same).
    pub(super) fn with_dtype(&self, dtype: DType) -> Result<Hyperparameter> {
        let number = self.try_get()?;
        check_range(number, (self.conversion)(number), dtype)?;
        let stored = free_buffer(ops::to_dtype(&self.stored.detach(), dtype)?);
        Ok(Hyperparameter { stored, set: self.set.clone(), conversion: self.conversion })
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
