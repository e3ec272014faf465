//! The probability of success of one trial, given as a probability or as log odds.

use crate::constraint::Constraint;
use crate::gamma::zero_times;
use crate::parameters::elementwise;
use pellucid_tensor::{Result, Tensor, ops};

/// A success probability p with ln p and ln(1 − p), each computed from the given parameter without cancellation.
#[derive(Clone, Debug)]
pub(crate) struct SuccessProbability {
    pub(crate) probs: Tensor,
    pub(crate) log_success: Tensor,
    pub(crate) log_failure: Tensor,
}

impl SuccessProbability {
    pub(crate) fn from_probs(probs: Tensor) -> Result<SuccessProbability> {
        let log_success = elementwise!(log_success_of_probs(p = &probs) => p.ln())?;
        let log_failure = elementwise!(log_failure_of_probs(p = &probs) => (-p).ln_1p())?;
        Ok(SuccessProbability { probs, log_success, log_failure })
    }

    pub(crate) fn from_logits(logits: &Tensor) -> Result<SuccessProbability> {
        let log_failure = ops::neg(&ops::softplus(logits)?)?;
        let log_success = ops::logsigmoid(logits)?;
        let probs = ops::sigmoid(logits)?;
        Ok(SuccessProbability { probs, log_success, log_failure })
    }

    /// Returns ln(p / (1 − p)).
    pub(crate) fn logits(&self) -> Result<Tensor> {
        ops::sub(&self.log_success, &self.log_failure)
    }

    /// Returns the entropy of one trial.
    pub(crate) fn entropy(&self) -> Result<Tensor> {
        let (p, log_success, log_failure) = (&self.probs, &self.log_success, &self.log_failure);
        elementwise!(bernoulli_entropy(p = p, log_success = log_success, log_failure = log_failure) => {
            -zero_times(p, log_success) - zero_times(1.0 - p, log_failure)
        })
    }
}

/// The constraint of log odds: infinite odds have no finite derivative.
pub(crate) const LOGITS: Constraint = Constraint::Real;

/// Defines a family of trials: the struct, its constructors from probabilities and from log odds, and their methods.
/// `extra` is a parameter before the probability.
macro_rules! trials {
    (
        $(#[$doc:meta])*
        $family:ident($op:literal, probs: $constraint:ident) $({ $(#[$extra_doc:meta])+ $extra:ident: $extra_type:ty })?
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $family {
            $($extra: $extra_type,)?
            success: crate::success_probability::SuccessProbability,
        }

        impl $family {
            /// Creates the distribution from the probability of success, a tensor or a number.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) for a probability outside its range,
            /// if values can be read; [`Error::DTypeMismatch`](pellucid_tensor::Error::DTypeMismatch) for integers.
            #[pellucid_derive::panicking_form]
            pub fn try_new<'a>(
                $($extra: $extra_type,)?
                probs: impl Into<pellucid_tensor::ops::TensorOrScalar<'a>>,
            ) -> pellucid_tensor::Result<$family> {
                let parameters = [("probs", probs.into(), crate::Constraint::$constraint)];
                let [probs] = crate::parameters::broadcast_parameters($op, parameters)?;
                let success = crate::success_probability::SuccessProbability::from_probs(probs)?;
                Ok($family { $($extra,)? success })
            }

            /// Creates the distribution from the log odds ln(p / (1 − p)), a tensor or a number.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) for log odds that are not finite, if
            /// values can be read; [`Error::DTypeMismatch`](pellucid_tensor::Error::DTypeMismatch) for integers.
            #[pellucid_derive::panicking_form]
            pub fn try_from_logits<'a>(
                $($extra: $extra_type,)?
                logits: impl Into<pellucid_tensor::ops::TensorOrScalar<'a>>,
            ) -> pellucid_tensor::Result<$family> {
                let parameters = [("logits", logits.into(), crate::success_probability::LOGITS)];
                let [logits] = crate::parameters::broadcast_parameters($op, parameters)?;
                let success = crate::success_probability::SuccessProbability::from_logits(&logits)?;
                Ok($family { $($extra,)? success })
            }

            $(
                $(#[$extra_doc])+
                pub fn $extra(&self) -> $extra_type {
                    self.$extra
                }
            )?

            /// Returns the probability of success.
            pub fn probs(&self) -> &pellucid_tensor::Tensor {
                &self.success.probs
            }

            /// Returns the log odds ln(p / (1 − p)).
            ///
            /// # Errors
            /// [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
            #[pellucid_derive::panicking_form]
            pub fn try_logits(&self) -> pellucid_tensor::Result<pellucid_tensor::Tensor> {
                self.success.logits()
            }
        }
    };
}

/// Defines the methods of [`Distribution`](crate::Distribution) that only name a property of a family of trials.
macro_rules! trial_properties {
    ($op:literal, rsample: $has_rsample:literal) => {
        fn name(&self) -> &'static str {
            $op
        }
        fn batch_shape(&self) -> pellucid_tensor::Shape {
            self.success.probs.shape().clone()
        }
        fn has_rsample(&self) -> bool {
            $has_rsample
        }
    };
}

pub(crate) use {trial_properties, trials};
