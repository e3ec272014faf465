//! Distributions of counts: [`Binomial`], [`Geometric`], [`NegativeBinomial`], [`Poisson`].

use crate::constraint::Constraint;
use crate::distribution::{Distribution, joined};
use crate::gamma_quantile::sample_log_gamma;
use crate::noise::{open_uniform_f64, properties};
use crate::parameters::{broadcast_parameters, elementwise, family};
use crate::stirling::{deviance, log_factorial_excess};
use crate::success_probability::{LOGITS, SuccessProbability, trial_properties, trials};
use crate::support::{log_density, within, zero_times};
use pellucid_derive::panicking_form;
use pellucid_tensor::formula::Expr;
use pellucid_tensor::ops::TensorOrScalar;
use pellucid_tensor::{DType, Result, Shape, Tensor, ops, unwrap};

/// Returns a mask that is true where x is a nonnegative integer.
fn is_count(x: Expr) -> Expr {
    x.ge(0.0) & x.lt(f64::INFINITY) & x.eq(x.floor())
}

trials! {
    /// The binomial distribution of the number of successes in n trials: C(n, x)·pˣ(1 − p)^(n−x).
    ///
    /// Sampling sums n Bernoulli draws and needs memory for all of them.
    ///
    /// ```
    /// use pellucid::Tensor;
    /// use pellucid::distributions::{Binomial, Distribution};
    ///
    /// let heads = Binomial::new(10, &Tensor::from(0.5));
    /// assert_eq!((heads.mean().item::<f64>(), heads.variance().item::<f64>()), (5.0, 2.5));
    /// ```
    Binomial("binomial", probs: UnitInterval) {
        /// Returns n, the number of trials.
        total_count: usize
    }
}

impl Binomial {
    pub(crate) fn success(&self) -> &SuccessProbability {
        &self.success
    }
}

impl Distribution for Binomial {
    trial_properties!("binomial", rsample: false);

    fn support(&self) -> Constraint {
        Constraint::IntegerUpTo(Tensor::scalar(self.total_count as f64, self.success.parameter().dtype()))
    }
    fn try_draw(&self, shape: &Shape) -> Result<Tensor> {
        let probs = ops::unsqueeze(&self.success.probs()?.detach(), -1)?;
        let trials = ops::bernoulli(&ops::broadcast_to(&probs, joined(shape, &[self.total_count]))?)?;
        ops::sum(&trials, -1)
    }
    fn try_log_prob(&self, x: &Tensor) -> Result<Tensor> {
        let n = &ops::full(Shape::scalar(), self.total_count as f64, self.success.parameter().dtype())?;
        let successes = elementwise!(binomial_successes(x = x, n = n) => (is_count(x) & x.le(n)).select(x, 0.0))?;
        let deviance = self.success.deviance(&successes, &ops::sub(n, &successes)?)?;
        elementwise!(binomial_log_prob(x = x, k = &successes, n = n, deviance = &deviance) => {
            let choices = log_factorial_excess(n) - log_factorial_excess(k) - log_factorial_excess(n - k);
            log_density(x, is_count(x) & x.le(n), choices - deviance)
        })
    }
    fn try_cdf(&self, x: &Tensor) -> Result<Tensor> {
        let n = &ops::full(Shape::scalar(), self.total_count as f64, self.success.parameter().dtype())?;
        let given = elementwise!(binomial_counts(x = x, n = n) => (x.ge(0.0) & x.lt(n)).select(x.floor(), 0.0))?;
        let rest = ops::sub(n, &given)?;
        // `rest` is 0 only for n = 0, where `value` is not used.
        let value = self.success.count_cdf(&ops::maximum(&rest, 1.0)?, &given)?;
        elementwise!(binomial_cdf(x = x, n = n, value = &value) => within(x, x.ge(0.0), x.ge(n).select(1.0, value), 0.0))
    }
    fn try_entropy(&self) -> Result<Tensor> {
        let dtype = self.success.parameter().dtype();
        let counts = ops::arange(0, self.total_count as i64 + 1, 1, dtype)?;
        let is_certain = self.success.is_certain()?;
        let column = Binomial { total_count: self.total_count, success: self.success.column(&is_certain)? };
        let log_prob = column.try_log_prob(&counts)?;
        let sum = ops::sum(&elementwise!(binomial_entropy(l = &log_prob) => -zero_times(l.exp(), l))?, -1)?;
        // At a probability of 0 or 1, the entropy is 0 and its derivative is infinite, as for one trial.
        let trials = ops::mul(&self.success.entropy()?, self.total_count as f64)?;
        ops::where_(&is_certain, &trials, &sum)
    }
    fn try_mean(&self) -> Result<Tensor> {
        ops::mul(&self.success.probs()?, self.total_count as f64)
    }
    fn try_variance(&self) -> Result<Tensor> {
        ops::mul(&self.success.variance()?, self.total_count as f64)
    }
}

trials! {
    /// The geometric distribution of the number of failures before the first success: p(1 − p)ˣ for x = 0, 1, 2, ..
    ///
    /// ```
    /// use pellucid::Tensor;
    /// use pellucid::distributions::{Distribution, Geometric};
    ///
    /// let failures = Geometric::new(&Tensor::from(0.25));
    /// assert_eq!(failures.mean().item::<f64>(), 3.0);
    /// ```
    Geometric("geometric", probs: PositiveProbability)
}

impl Geometric {
    pub(crate) fn success(&self) -> &SuccessProbability {
        &self.success
    }
}

impl Distribution for Geometric {
    trial_properties!("geometric", rsample: false);

    fn support(&self) -> Constraint {
        Constraint::NonNegativeInteger
    }
    fn try_draw(&self, shape: &Shape) -> Result<Tensor> {
        let u = open_uniform_f64(self.success.parameter(), shape)?;
        let log_failure = &self.success.log_failure()?.detach();
        let x = elementwise!(geometric_sample(u = &u, log_failure = log_failure) => (u.ln() / log_failure).floor())?;
        ops::to_dtype(&x, log_failure.dtype())
    }
    fn try_log_prob(&self, x: &Tensor) -> Result<Tensor> {
        let p = self.success.parameter();
        let failures = elementwise!(geometric_failures(x = x, p = p) => is_count(x).select(x, 0.0 * p))?;
        let value = self.success.log_likelihood(&ops::ones_like(p)?, &failures)?;
        elementwise!(geometric_log_prob(x = x, value = &value) => log_density(x, is_count(x), value))
    }
    fn try_cdf(&self, x: &Tensor) -> Result<Tensor> {
        elementwise!(geometric_cdf(x = x, log_failure = &self.success.log_failure()?) => {
            let inside = x.ge(0.0);
            within(x, inside, -((inside.select(x, 0.0).floor() + 1.0) * log_failure).exp_m1(), 0.0)
        })
    }
    fn try_entropy(&self) -> Result<Tensor> {
        ops::div(&self.success.entropy()?, &self.success.probs()?)
    }
    fn try_mean(&self) -> Result<Tensor> {
        ops::div(&self.success.failure()?, &self.success.probs()?)
    }
    fn try_variance(&self) -> Result<Tensor> {
        elementwise!(geometric_variance(p = &self.success.probs()?, q = &self.success.failure()?) => q / (p * p))
    }
}

/// The negative binomial distribution Γ(x + r)/(x!·Γ(r))·pˣ(1 − p)ʳ of the number of successes before the r-th failure.
///
/// r need not be an integer. A sample is a Poisson sample whose rate is a gamma sample.
///
/// ```
/// use pellucid::Tensor;
/// use pellucid::distributions::{Distribution, NegativeBinomial};
///
/// let successes = NegativeBinomial::new(3.0, &Tensor::from(0.5));
/// assert_eq!((successes.mean().item::<f64>(), successes.variance().item::<f64>()), (3.0, 6.0));
/// ```
#[derive(Clone, Debug)]
pub struct NegativeBinomial {
    total_count: Tensor,
    success: SuccessProbability,
}

impl NegativeBinomial {
    /// Creates the distribution from the number of failures r and the probability of success, which broadcast.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) unless `total_count` is positive and `probs`
    /// in [0, 1), if values can be read; [`Error::ShapeMismatch`](pellucid_tensor::Error::ShapeMismatch),
    /// [`Error::DTypeMismatch`](pellucid_tensor::Error::DTypeMismatch) for integers.
    #[panicking_form]
    pub fn try_new<'a>(
        total_count: impl Into<TensorOrScalar<'a>>,
        probs: impl Into<TensorOrScalar<'a>>,
    ) -> Result<NegativeBinomial> {
        let count = ("total_count", total_count.into(), Constraint::Positive);
        let probs = ("probs", probs.into(), Constraint::ProbabilityBelowOne);
        let [total_count, probs] = broadcast_parameters("negative_binomial", [count, probs])?;
        Ok(NegativeBinomial { total_count, success: SuccessProbability::from_probs(probs) })
    }

    /// Creates the distribution from the number of failures r and the log odds of success, which broadcast.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) unless `total_count` is positive and
    /// `logits` finite, if values can be read; [`Error::ShapeMismatch`](pellucid_tensor::Error::ShapeMismatch),
    /// [`Error::DTypeMismatch`](pellucid_tensor::Error::DTypeMismatch) for integers.
    #[panicking_form]
    pub fn try_from_logits<'a>(
        total_count: impl Into<TensorOrScalar<'a>>,
        logits: impl Into<TensorOrScalar<'a>>,
    ) -> Result<NegativeBinomial> {
        let count = ("total_count", total_count.into(), Constraint::Positive);
        let [total_count, logits] =
            broadcast_parameters("negative_binomial", [count, ("logits", logits.into(), LOGITS)])?;
        Ok(NegativeBinomial { total_count, success: SuccessProbability::from_logits(logits) })
    }

    /// Returns r, the number of failures.
    pub fn total_count(&self) -> &Tensor {
        &self.total_count
    }

    /// Returns the probability of success.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
    #[panicking_form]
    pub fn try_probs(&self) -> Result<Tensor> {
        self.success.probs()
    }
}

impl Distribution for NegativeBinomial {
    trial_properties!("negative_binomial", rsample: false);

    fn support(&self) -> Constraint {
        Constraint::NonNegativeInteger
    }
    fn try_draw(&self, shape: &Shape) -> Result<Tensor> {
        let log = sample_log_gamma(&self.total_count.detach(), shape)?;
        let odds = &self.success.logits()?.detach();
        let rate = elementwise!(negative_binomial_rate(y = &log, l = odds) => (y + l).exp())?;
        ops::to_dtype(&draw_poisson(&rate, shape)?, odds.dtype())
    }
    fn try_log_prob(&self, x: &Tensor) -> Result<Tensor> {
        let r = &self.total_count;
        let successes = elementwise!(negative_binomial_successes(x = x, r = r) => is_count(x).select(x, 0.0 * r))?;
        let deviance = self.success.deviance(&successes, r)?;
        elementwise!(negative_binomial_log_prob(x = x, k = &successes, r = r, deviance = &deviance) => {
            let n = k + r;
            let choices = log_factorial_excess(n) - log_factorial_excess(k) - log_factorial_excess(r);
            log_density(x, is_count(x), (r / n).ln() + choices - deviance)
        })
    }
    fn try_cdf(&self, x: &Tensor) -> Result<Tensor> {
        let r = &self.total_count;
        let successes = elementwise!(negative_binomial_counts(x = x, r = r) => {
            (x.ge(0.0) & x.lt(f64::INFINITY)).select(x.floor(), 0.0 * r)
        })?;
        let value = self.success.count_cdf(r, &successes)?;
        elementwise!(negative_binomial_cdf(x = x, value = &value) => {
            within(x, x.ge(0.0), x.eq(f64::INFINITY).select(1.0, value), 0.0)
        })
    }
    fn try_mean(&self) -> Result<Tensor> {
        let (r, p, q) = (&self.total_count, &self.success.probs()?, &self.success.failure()?);
        elementwise!(negative_binomial_mean(r = r, p = p, q = q) => r * p / q)
    }
    fn try_variance(&self) -> Result<Tensor> {
        let (r, p, q) = (&self.total_count, &self.success.probs()?, &self.success.failure()?);
        elementwise!(negative_binomial_variance(r = r, p = p, q = q) => r * p / (q * q))
    }
}

family! {
    /// The Poisson distribution λˣe^(−λ)/x! of counts x = 0, 1, 2, ..
    ///
    /// ```
    /// use pellucid::Tensor;
    /// use pellucid::distributions::{Distribution, Poisson};
    ///
    /// let calls = Poisson::new(&Tensor::from(4.0));
    /// assert_eq!(calls.mean().item::<f64>(), 4.0);
    /// assert_eq!(calls.log_prob(&Tensor::from(0.0)).item::<f64>(), -4.0);
    /// ```
    Poisson("poisson") {
        /// Returns λ, the mean.
        rate: NonNegative,
    }
}

/// The number of candidates for a Poisson quantile. For rates below 2, the first candidate is 0, and the probability
/// above the last candidate is below 1e-17. For larger rates, the first candidate is 8 below the approximation of
/// Cornish & Fisher, whose error is at most 8.
const CANDIDATES: i64 = 24;

/// Draws Poisson samples in `f64`, by inversion of the distribution function Q(k + 1, λ). The quantile is the first
/// candidate plus the number of candidates at which the distribution function is below u.
fn draw_poisson(rate: &Tensor, shape: &Shape) -> Result<Tensor> {
    let rate = ops::to_dtype(&rate.detach(), DType::F64)?;
    let u = open_uniform_f64(&rate, shape)?;
    let first = elementwise!(poisson_guess(u = &u, rate = &rate) => {
        let z = u.ndtri();
        let root = rate.max(2.0).sqrt();
        let guess = rate + z * root + (z * z - 1.0) / 6.0 + (z - z * z * z) / (72.0 * root);
        rate.lt(2.0).select(0.0, (guess - 8.0).floor().max(0.0))
    })?;
    let column = |x: &Tensor| ops::unsqueeze(x, -1);
    let candidates = ops::add(&column(&first)?, &ops::arange(0, CANDIDATES, 1, DType::F64)?)?;
    let rates = column(&rate)?;
    let below = elementwise!(poisson_below(k = &candidates, u = &column(&u)?, rate = &rates) => {
        rate.igamma(k + 1.0).1.lt(u).select(1.0, 0.0)
    })?;
    ops::add(&first, &ops::sum(&below, -1)?)
}

impl Distribution for Poisson {
    properties!("poisson", batch: rate, rsample: false);

    fn support(&self) -> Constraint {
        Constraint::NonNegativeInteger
    }
    fn try_draw(&self, shape: &Shape) -> Result<Tensor> {
        ops::to_dtype(&draw_poisson(&self.rate, shape)?, self.rate.dtype())
    }
    fn try_log_prob(&self, x: &Tensor) -> Result<Tensor> {
        elementwise!(poisson_log_prob(x = x, rate = &self.rate) => {
            let inside = is_count(x);
            let k = inside.select(x, 0.0);
            log_density(x, inside, -deviance(k, rate) - log_factorial_excess(k))
        })
    }
    fn try_cdf(&self, x: &Tensor) -> Result<Tensor> {
        elementwise!(poisson_cdf(x = x, rate = &self.rate) => {
            let inside = x.ge(0.0);
            within(x, inside, rate.igamma(inside.select(x, 0.0).floor() + 1.0).1, 0.0)
        })
    }
    fn try_mean(&self) -> Result<Tensor> {
        Ok(self.rate.clone())
    }
    fn try_variance(&self) -> Result<Tensor> {
        Ok(self.rate.clone())
    }
}
