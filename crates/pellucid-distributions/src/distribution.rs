//! The trait [`Distribution`].

use crate::constraint::Constraint;
use pellucid_derive::panicking_form;
use pellucid_tensor::{Error, Result, Shape, Tensor, no_grad, ops, unwrap};

/// A probability distribution, or a batch of distributions of one family.
///
/// A sample has the shape `[sample.., batch.., event..]`. The batch shape is the broadcast shape of the parameters. The
/// event shape is the shape of one draw: `[]` for numbers, `[d]` for vectors. [`log_prob`](Self::log_prob) returns
/// `[sample.., batch..]`.
///
/// All results are differentiable to any order with respect to the parameters and to x. Random numbers come from the
/// generator of the thread, so a captured step draws new numbers in every launch.
///
/// A custom distribution implements `name`, `batch_shape`, `support`, `has_rsample`, `try_draw` and `try_log_prob`. The
/// other `try_` methods are optional.
pub trait Distribution {
    /// Returns the name in error messages.
    fn name(&self) -> &'static str;

    /// Returns the shape of the batch of distributions.
    fn batch_shape(&self) -> Shape;

    /// Returns the shape of one draw.
    fn event_shape(&self) -> Shape {
        Shape::scalar()
    }

    /// Returns the support: the set of values with a positive density.
    fn support(&self) -> Constraint;

    /// Returns true if samples are differentiable with respect to the parameters.
    fn has_rsample(&self) -> bool;

    /// Draws samples of the shape `[shape.., event..]`; `shape` ends with the batch shape, or with a shape to which the
    /// batch shape broadcasts. If [`has_rsample`](Self::has_rsample) is true, the samples are differentiable.
    /// [`sample`](Self::sample) and [`rsample`](Self::rsample) call this method.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], and the errors of operations.
    fn try_draw(&self, shape: &Shape) -> Result<Tensor>;

    /// Draws samples `[shape.., batch.., event..]` without gradient.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[panicking_form]
    fn try_sample(&self, shape: impl Into<Shape>) -> Result<Tensor>
    where
        Self: Sized,
    {
        let _off = no_grad();
        self.try_draw(&joined(&shape.into(), &self.batch_shape()))
    }

    /// Draws samples `[shape.., batch.., event..]` that are differentiable with respect to the parameters (the
    /// reparametrization trick; Kingma & Welling 2014).
    ///
    /// # Errors
    /// [`Error::NoGradient`] if the samples of the family are not differentiable; [`Error::OutOfMemory`].
    #[panicking_form]
    fn try_rsample(&self, shape: impl Into<Shape>) -> Result<Tensor>
    where
        Self: Sized,
    {
        if !self.has_rsample() {
            return Err(Error::NoGradient { op: self.name() });
        }
        self.try_draw(&joined(&shape.into(), &self.batch_shape()))
    }

    /// Returns the logarithm of the density or of the probability at x: −∞ outside the support, NaN for NaN. At a bound
    /// of the support, it is the limit from inside, which can be ∞.
    ///
    /// # Panics
    /// Panics if [`try_log_prob`](Self::try_log_prob) returns an error.
    #[track_caller]
    fn log_prob(&self, x: &Tensor) -> Tensor {
        unwrap(self.try_log_prob(x))
    }

    /// Returns the result of [`log_prob`](Self::log_prob), or its error.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if x does not broadcast with the batch and event shapes.
    fn try_log_prob(&self, x: &Tensor) -> Result<Tensor>;

    /// Returns the cumulative distribution function at x; NaN for NaN.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the family does not define it; [`Error::ShapeMismatch`].
    #[panicking_form]
    fn try_cdf(&self, x: &Tensor) -> Result<Tensor> {
        let _ = x;
        Err(undefined(self.name(), "cdf"))
    }

    /// Returns the quantile function, the inverse of [`cdf`](Self::cdf), for p in [0, 1]. At 0 and 1 it returns the
    /// bounds of the support. For other p it is NaN.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the family does not define it; [`Error::ShapeMismatch`].
    #[panicking_form]
    fn try_icdf(&self, p: &Tensor) -> Result<Tensor> {
        let _ = p;
        Err(undefined(self.name(), "icdf"))
    }

    /// Returns the entropy −E[ln p(x)] in nats, `[batch..]`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the family does not define it.
    #[panicking_form]
    fn try_entropy(&self) -> Result<Tensor> {
        Err(undefined(self.name(), "entropy"))
    }

    /// Returns the mean, `[batch.., event..]`. It is NaN or ∞ where it does not exist.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the family does not define it.
    #[panicking_form]
    fn try_mean(&self) -> Result<Tensor> {
        Err(undefined(self.name(), "mean"))
    }

    /// Returns the variance of every element, `[batch.., event..]`. It is NaN or ∞ where it does not exist.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the family does not define it.
    #[panicking_form]
    fn try_variance(&self) -> Result<Tensor> {
        Err(undefined(self.name(), "variance"))
    }

    /// Returns the standard deviation of every element, `[batch.., event..]`.
    ///
    /// # Errors
    /// The errors of [`variance`](Self::variance).
    #[doc(alias = "stddev")]
    #[panicking_form]
    fn try_std(&self) -> Result<Tensor> {
        ops::sqrt(&self.try_variance()?)
    }
}

/// Returns the error for a property that a family does not define.
pub(crate) fn undefined(op: &'static str, property: &str) -> Error {
    Error::invalid(op, format!("{property} is not defined for this distribution; estimate it from sample()"))
}

/// Returns the shape `[a.., b..]`.
pub(crate) fn joined(a: &[usize], b: &[usize]) -> Shape {
    a.iter().chain(b).copied().collect()
}
