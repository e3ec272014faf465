//! [`ParamGroup`]: the learning rate and the momentum of a group of parameters.

use super::hyperparameter::Hyperparameter;
use super::rule::Momentum;
use pellucid_derive::panicking_form;
use pellucid_tensor::{DType, Error, OptionRange, Result, Tensor, unwrap};

/// The learning rate and the momentum of a group of an optimizer's parameters. Clones are handles of the same numbers;
/// a [`Scheduler`](super::schedule::Scheduler) keeps clones of the groups.
///
/// Each number is stored in a 0-d tensor, in the dtype of the group's state. [`ParamGroup::lr`] returns the rate that
/// was set last, if the tensor still holds the rounding of this rate. If the tensor was written since, for example by a
/// loaded state dict or a captured step, it returns the decimal number with the fewest digits that rounds to the
/// tensor's value. So a rate of 0.01 is always read as 0.01, never as 0.009999999776482582. A rate that rounds to 0
/// in the dtype is read as 0.
///
/// ```
/// use pellucid::nn::optim::ParamGroup;
/// use pellucid::{DType, Tensor, ops};
/// let group = ParamGroup::new(0.1 / 3.0, None, DType::F32);
/// assert_eq!(group.lr(), 0.1 / 3.0);
/// ops::copy_(group.lr_tensor(), &Tensor::from(0.07f32))?;
/// assert_eq!(group.lr(), 0.07);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ParamGroup {
    lr: Hyperparameter,
    momentum: Option<Hyperparameter>,
}

impl ParamGroup {
    /// Creates a group with this learning rate, and a momentum if a schedule may change it. They are stored in tensors
    /// of this dtype, `f32` or `f64`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a rate that is negative, not finite, or outside the range of the dtype, and for a
    /// momentum outside [0, 1); [`Error::DTypeMismatch`] for other dtypes; [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_new(lr: f64, momentum: Option<Momentum>, dtype: DType) -> Result<ParamGroup> {
        let op = "param_group";
        check_lr(op, lr)?;
        let momentum = momentum.map(|momentum| {
            check_momentum(op, momentum.value())?;
            Hyperparameter::stored_as(op, momentum.value(), dtype, momentum.conversion())
        });
        Ok(ParamGroup { lr: Hyperparameter::stored_as(op, lr, dtype, |lr| lr)?, momentum: momentum.transpose()? })
    }

    /// Returns the learning rate.
    ///
    /// # Errors
    /// [`Error::ReadInCapture`] while a step is captured, since values cannot be read then.
    #[track_caller]
    #[panicking_form]
    pub fn try_lr(&self) -> Result<f64> {
        self.lr.try_get()
    }

    /// Sets the learning rate in place; replays of a captured step use it. Call it between launches: inside a captured
    /// step, the write is a part of the step.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the rate is negative, not finite, or outside the range of the tensor's dtype.
    #[panicking_form]
    pub fn try_set_lr(&self, lr: f64) -> Result<()> {
        let op = "set_lr";
        self.check_lr(op, lr)?;
        self.lr.try_set(op, lr)
    }

    /// Returns the error of [`ParamGroup::try_set_lr`] with this rate, if any, under the name of the operation `op`.
    pub(super) fn check_lr(&self, op: &'static str, lr: f64) -> Result<()> {
        check_lr(op, lr)?;
        self.lr.check(op, lr)
    }

    /// Returns the rate that [`ParamGroup::try_lr`] returns after the current state of the group is saved and loaded.
    ///
    /// # Errors
    /// The errors of [`ParamGroup::try_lr`].
    pub(super) fn try_loaded_lr(&self) -> Result<f64> {
        self.lr.try_get_loaded()
    }

    /// Returns the 0-d tensor of the learning rate, which kernels read.
    pub fn lr_tensor(&self) -> &Tensor {
        self.lr.tensor()
    }

    /// Returns the momentum (β₁ for Adam and its variants); `None` if the optimizer has none, or was created without
    /// momentum.
    ///
    /// # Errors
    /// [`Error::ReadInCapture`] while a step is captured.
    #[panicking_form]
    pub fn try_momentum(&self) -> Result<Option<f64>> {
        self.momentum.as_ref().map(Hyperparameter::try_get).transpose()
    }

    /// Sets the momentum in place; replays of a captured step use it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a value outside [0, 1), or if the group has no momentum.
    #[panicking_form]
    pub fn try_set_momentum(&self, momentum: f64) -> Result<()> {
        let op = "set_momentum";
        self.checked_momentum(op, momentum)?.try_set(op, momentum)
    }

    /// Returns the hyperparameter of the momentum, or the error of [`ParamGroup::try_set_momentum`] with this value.
    pub(super) fn checked_momentum(&self, op: &'static str, momentum: f64) -> Result<&Hyperparameter> {
        check_momentum(op, momentum)?;
        let missing = || Error::invalid(op, "the group has no momentum; create the optimizer with a nonzero momentum");
        self.momentum.as_ref().ok_or_else(missing)
    }

    /// Returns the 0-d tensor of the momentum, which kernels read: μ or 1 − β₁, see [`Momentum`].
    pub fn momentum_tensor(&self) -> Option<&Tensor> {
        self.momentum.as_ref().map(Hyperparameter::tensor)
    }

    /// Returns true for a handle of the same group.
    pub(super) fn is_same(&self, other: &ParamGroup) -> bool {
        self.lr.is_same(&other.lr)
    }

    /// Stores the numbers in another dtype in place; on error nothing is changed.
    pub(super) fn try_to_dtype_(&self, op: &'static str, dtype: DType) -> Result<()> {
        let before = self.lr_tensor().dtype();
        self.lr.try_to_dtype_(op, dtype)?;
        match self.momentum.as_ref().map_or(Ok(()), |momentum| momentum.try_to_dtype_(op, dtype)) {
            Ok(()) => Ok(()),
            Err(error) => self.lr.try_to_dtype_(op, before).and(Err(error)),
        }
    }
}

/// Returns an error unless the learning rate is finite and at least 0.
pub(super) fn check_lr(op: &'static str, lr: f64) -> Result<()> {
    OptionRange::NONNEGATIVE.check(op, "lr", lr, 1e-3)
}

/// Returns an error unless the momentum is in [0, 1).
pub(super) fn check_momentum(op: &'static str, momentum: f64) -> Result<()> {
    OptionRange::FRACTION.check(op, "momentum", momentum, 0.9)
}
