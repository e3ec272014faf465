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
    /// Formats the number, or `None` inside a captured step, where the number cannot be read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Hyperparameter").field(&self.try_get().ok()).finish()
    }
}

impl Hyperparameter {
    /// Creates a number x that is stored as `conversion(x)` in a tensor of this dtype, `f32` or `f64`. The tensor is
    /// [free](Tensor::is_free), and `conversion` is its own inverse. Errors name the operation `op`.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] for other dtypes; [`Error::InvalidArgument`] for a finite number outside the range of
    /// the dtype; [`Error::OutOfMemory`].
    pub(super) fn stored_as(
        op: &'static str,
        value: f64,
        dtype: DType,
        conversion: fn(f64) -> f64,
    ) -> Result<Hyperparameter> {
        if !matches!(dtype, DType::F32 | DType::F64) {
            return Err(Error::dtypes(op, [dtype], "a hyperparameter must be stored in f32 or f64"));
        }
        check_range(op, value, conversion(value), dtype)?;
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
        let set = f64::from_bits(self.set.load(Ordering::Relaxed));
        Ok(if self.rounds_to(set, stored) { set } else { self.shortest_decimal(stored) })
    }

    /// Returns the number that [`Hyperparameter::try_get`] returns after the tensor's value was saved and loaded.
    ///
    /// # Errors
    /// The errors of [`Hyperparameter::try_get`].
    pub(super) fn try_get_loaded(&self) -> Result<f64> {
        Ok(self.shortest_decimal(self.stored.try_item()?))
    }

    /// Returns true if `stored` is the rounding of `number`; the host then reads `number`. For a number that underflows
    /// to 0 it returns false, so that the host reads 0, as the kernels do.
    fn rounds_to(&self, number: f64, stored: f64) -> bool {
        let exact = (self.conversion)(number);
        round(exact, self.stored.dtype()) == stored && (stored != 0.0 || exact == 0.0)
    }

    /// Returns the decimal number with the fewest digits that is stored as this value of the tensor.
    fn shortest_decimal(&self, stored: f64) -> f64 {
        shortest_decimal((self.conversion)(stored), |number| self.rounds_to(*number, stored))
    }

    /// Sets the number; replays of a captured step use it. Inside a captured step, the write is a part of the step.
    ///
    /// # Errors
    /// The errors of [`Hyperparameter::check`] and [`ops::copy_`].
    pub(super) fn try_set(&self, op: &'static str, value: f64) -> Result<()> {
        self.check(op, value)?;
        ops::copy_(&self.stored, &Tensor::from((self.conversion)(value)))?;
        self.set.store(value.to_bits(), Ordering::Relaxed);
        Ok(())
    }

    /// Checks a number before it is set.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a finite number outside the range of the dtype.
    pub(super) fn check(&self, op: &'static str, value: f64) -> Result<()> {
        check_range(op, value, (self.conversion)(value), self.stored.dtype())
    }

    /// Stores the number in another dtype in place. All handles use the new tensor.
    pub(super) fn try_to_dtype_(&self, op: &'static str, dtype: DType) -> Result<()> {
        if dtype == self.stored.dtype() {
            return Ok(());
        }
        let number = self.try_get()?;
        check_range(op, number, (self.conversion)(number), dtype)?;
        self.stored.try_to_dtype_(dtype)?;
        // The converted tensor contains the number as rounded to the previous dtype.
        self.try_set(op, number)
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

/// Returns an error if `number` is finite, but `stored`, its value in this dtype, is infinite.
fn check_range(op: &'static str, number: f64, stored: f64, dtype: DType) -> Result<()> {
    if number.is_finite() && !round(stored, dtype).is_finite() {
        let reason = format!("{number:e} is outside the range of {dtype}, in which it is stored; use a smaller number");
        return Err(Error::invalid(op, reason));
    }
    Ok(())
}

/// Rounds a number to `f32` or `f64`.
fn round(number: f64, dtype: DType) -> f64 {
    if dtype == DType::F32 { f64::from(number as f32) } else { number }
}

/// Rounds `number` to decimals with more and more significant digits, and returns the first for which `fits` is true;
/// `number` itself if there is none.
fn shortest_decimal(number: f64, fits: impl Fn(&f64) -> bool) -> f64 {
    let rounded = |digits: usize| format!("{number:.digits$e}").parse().ok();
    (0..f64::DIGITS as usize + 2).filter_map(rounded).find(fits).unwrap_or(number)
}
