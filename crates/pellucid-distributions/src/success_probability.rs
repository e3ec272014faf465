//! The probability of success of one trial, given as a probability or as log odds.

use crate::constraint::Constraint;
use crate::parameters::elementwise;
use crate::stirling::{deviance, deviance_with};
use crate::support::{log_ratio, quotient, xlog1py, xlogy, zero_times};
use pellucid_tensor::formula::Expr;
use pellucid_tensor::{DType, Result, Tensor, ops};

/// The parameter of a trial. p, ln p and ln(1 − p) are computed from it without cancellation, in every call, so that
/// every result has its own graph.
///
/// If the parameter is p, it can be 0 or 1. There, the derivatives of the logarithms are infinite, and a gradient of 0
/// stays 0.
#[derive(Clone, Debug)]
pub(crate) struct SuccessProbability {
    parameter: Tensor,
    /// True if the parameter is p, false if it is the log odds.
    is_from_probs: bool,
}

impl SuccessProbability {
    pub(crate) fn from_probs(probs: Tensor) -> SuccessProbability {
        SuccessProbability { parameter: probs, is_from_probs: true }
    }

    pub(crate) fn from_logits(logits: Tensor) -> SuccessProbability {
        SuccessProbability { parameter: logits, is_from_probs: false }
    }

    /// Returns the parameter, which has the shape and the dtype of all derived values.
    pub(crate) fn parameter(&self) -> &Tensor {
        &self.parameter
    }

    /// Returns p, the probability of success.
    pub(crate) fn probs(&self) -> Result<Tensor> {
        if self.is_from_probs { Ok(self.parameter.clone()) } else { ops::sigmoid(&self.parameter) }
    }

    /// Returns ln p, the log probability of success.
    pub(crate) fn log_success(&self) -> Result<Tensor> {
        if self.is_from_probs {
            return elementwise!(log_success_of_probs(p = &self.parameter) => p.ln(); d p = quotient(g, p););
        }
        ops::logsigmoid(&self.parameter)
    }

    /// Returns ln(1 − p), the log probability of failure.
    pub(crate) fn log_failure(&self) -> Result<Tensor> {
        if self.is_from_probs {
            let p = &self.parameter;
            return elementwise!(log_failure_of_probs(p = p) => (-p).ln_1p(); d p = -quotient(g, 1.0 - p););
        }
        ops::neg(&ops::softplus(&self.parameter)?)
    }

    /// Returns the log odds ln(p / (1 − p)).
    pub(crate) fn logits(&self) -> Result<Tensor> {
        if self.is_from_probs { ops::logit(&self.parameter) } else { Ok(self.parameter.clone()) }
    }

    /// Returns a mask of parameters p that are 0 or 1, which need special derivatives.
    pub(crate) fn is_certain(&self) -> Result<Tensor> {
        let p = self.parameter.detach();
        let is_end = ops::logical_or(&ops::eq(&p, 0)?, &ops::eq(&p, 1)?)?;
        if self.is_from_probs { Ok(is_end) } else { ops::zeros_like(&is_end) }
    }

    /// Appends an axis of length 1, and replaces the masked probabilities by ½.
    pub(crate) fn column(&self, replaced: &Tensor) -> Result<SuccessProbability> {
        let is_from_probs = self.is_from_probs;
        let parameter =
            if is_from_probs { ops::where_(replaced, 0.5, &self.parameter)? } else { self.parameter.clone() };
        Ok(SuccessProbability { parameter: ops::unsqueeze(&parameter, -1)?, is_from_probs })
    }

    /// Returns the variance of one trial.
    pub(crate) fn variance(&self) -> Result<Tensor> {
        ops::mul(&self.probs()?, &self.failure()?)
    }

    /// Returns the probability of failure.
    pub(crate) fn failure(&self) -> Result<Tensor> {
        if self.is_from_probs { ops::sub(1.0, &self.parameter) } else { ops::sigmoid(&ops::neg(&self.parameter)?) }
    }

    /// Returns k·ln p + l·ln(1 − p) for k successes and l failures; 0·ln 0 is 0.
    pub(crate) fn log_likelihood(&self, k: &Tensor, l: &Tensor) -> Result<Tensor> {
        if self.is_from_probs {
            return elementwise!(log_likelihood_of_probs(k = k, l = l, p = &self.parameter) => xlogy(k, p) + xlog1py(l, -p));
        }
        let (log_success, log_failure) = (&self.log_success()?, &self.log_failure()?);
        elementwise!(log_likelihood(k = k, l = l, log_success = log_success, log_failure = log_failure) => {
            k * log_success + l * log_failure
        })
    }

    /// Returns the entropy of one trial. Its derivative with respect to a probability of 0 or 1 is infinite.
    pub(crate) fn entropy(&self) -> Result<Tensor> {
        if self.is_from_probs {
            return elementwise!(bernoulli_entropy_of_probs(p = &self.parameter) => {
                -zero_times(p, p.ln()) - zero_times(1.0 - p, (-p).ln_1p())
            };
                d p = g * ((-p).ln_1p() - p.ln()););
        }
        let (log_success, log_failure) = (&self.log_success()?, &self.log_failure()?);
        elementwise!(bernoulli_entropy(log_success = log_success, log_failure = log_failure) => {
            -zero_times(log_success.exp(), log_success) - zero_times(log_failure.exp(), log_failure)
        })
    }

    /// Returns the divergence of one trial, p·ln(p/q) + (1 − p)·ln((1 − p)/(1 − q)).
    pub(crate) fn divergence(&self, q: &SuccessProbability) -> Result<Tensor> {
        if self.is_from_probs && q.is_from_probs {
            return elementwise!(kl_of_probs(p = &self.parameter, q = &q.parameter) => {
                deviance(p, q) + deviance(1.0 - p, 1.0 - q)
            };
                d p = g * (log_ratio(p, q) - log_ratio_of_failures(p, q));
                d q = g * (quotient(1.0 - p, 1.0 - q) - quotient(p, q)););
        }
        let (entropy, probs, failure) = (&self.entropy()?, &self.probs()?, &self.failure()?);
        let (other, rest) = (&q.log_success()?, &q.log_failure()?);
        elementwise!(kl_of_trials(h = entropy, p = probs, f = failure, other = other, rest = rest) => {
            -h - zero_times(p, other) - zero_times(f, rest)
        })
    }

    /// Returns the probability of at most k successes before the r-th failure: I(r, k + 1) at the probability of
    /// failure.
    pub(crate) fn count_cdf(&self, r: &Tensor, k: &Tensor) -> Result<Tensor> {
        let float = |x: Tensor| ops::to_dtype(&x, DType::F64);
        let value = ops::betainc_of_pair(r, &ops::add(k, 1.0)?, &float(self.failure()?)?, &float(self.probs()?)?)?;
        ops::to_dtype(&value, self.parameter.dtype())
    }

    /// Returns ln(xˣ·yʸ/nⁿ) − ln(pˣ(1 − p)ʸ) for x successes, y failures and n = x + y, without cancellation.
    pub(crate) fn deviance(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        if self.is_from_probs {
            return elementwise!(trial_deviance_of_probs(k = x, rest = y, p = &self.parameter) => {
                let n = k + rest;
                deviance(k, n * p) + deviance(rest, n * (1.0 - p))
            };
                d p = quotient(g * rest, 1.0 - p) - quotient(g * k, p););
        }
        let (p, log_success, log_failure) = (&self.probs()?, &self.log_success()?, &self.log_failure()?);
        elementwise!(trial_deviance(x = x, y = y, p = p, log_success = log_success, log_failure = log_failure) => {
            let n = x + y;
            let share = |k: Expr| (k.eq(0.0).select(1.0, k) / n.eq(0.0).select(1.0, n)).ln();
            deviance_with(x, n * p, share(x) - log_success)
                + deviance_with(y, n * log_failure.exp(), share(y) - log_failure)
        })
    }
}

/// Returns ln((1 − p)/(1 − q)), and 0 if both probabilities are 1.
fn log_ratio_of_failures(p: Expr, q: Expr) -> Expr {
    let skips = p.eq(1.0) & q.eq(1.0);
    (-skips.select(0.0, p)).ln_1p() - (-skips.select(0.0, q)).ln_1p()
}

/// The constraint of log odds, which must be finite, because infinite log odds have no finite derivative.
pub(crate) const LOGITS: Constraint = Constraint::Real;

/// Defines a family of trials: the struct, constructors from probabilities and from log odds, and parameter methods.
/// `extra` is a parameter that precedes the probability, such as the number of trials.
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
                let success = crate::success_probability::SuccessProbability::from_probs(probs);
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
                let success = crate::success_probability::SuccessProbability::from_logits(logits);
                Ok($family { $($extra,)? success })
            }

            $(
                $(#[$extra_doc])+
                pub fn $extra(&self) -> $extra_type {
                    self.$extra
                }
            )?

            /// Returns the probability of success.
            ///
            /// # Errors
            /// [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
            #[pellucid_derive::panicking_form]
            pub fn try_probs(&self) -> pellucid_tensor::Result<pellucid_tensor::Tensor> {
                self.success.probs()
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

/// Defines the constant properties of a family of trials: methods of [`Distribution`](crate::Distribution).
macro_rules! trial_properties {
    ($op:literal, rsample: $has_rsample:literal) => {
        fn name(&self) -> &'static str {
            $op
        }
        fn batch_shape(&self) -> pellucid_tensor::Shape {
            self.success.parameter().shape().clone()
        }
        fn has_rsample(&self) -> bool {
            $has_rsample
        }
    };
}

pub(crate) use {trial_properties, trials};
