//! Distributions of one trial: [`Bernoulli`], [`ContinuousBernoulli`].

use crate::constraint::Constraint;
use crate::distribution::Distribution;
use crate::noise::open_uniform;
use crate::parameters::elementwise;
use crate::success_probability::{SuccessProbability, trial_properties, trials};
use crate::support::{log_density, probability, within};
use pellucid_tensor::formula::Expr;
use pellucid_tensor::{Result, Shape, Tensor, ops, unwrap};

trials! {
    /// The Bernoulli distribution: 1 with probability p, else 0.
    ///
    /// ```
    /// use pellucid::Tensor;
    /// use pellucid::distributions::{Bernoulli, Distribution};
    ///
    /// let coin = Bernoulli::new(&Tensor::from([0.25, 0.5]));
    /// assert_eq!(coin.log_prob(&Tensor::from([1.0, 0.0])).exp().to_vec::<f64>(), [0.25, 0.5]);
    /// assert_eq!(coin.sample([7]).shape(), [7, 2]);
    /// assert!(coin.try_rsample([7]).is_err());
    /// ```
    Bernoulli("bernoulli", probs: UnitInterval)
}

impl Bernoulli {
    pub(crate) fn success(&self) -> &SuccessProbability {
        &self.success
    }
}

/// Returns a mask that is true where x is 0 or 1.
fn is_outcome(x: Expr) -> Expr {
    x.eq(0.0) | x.eq(1.0)
}

impl Distribution for Bernoulli {
    trial_properties!("bernoulli", rsample: false);

    fn support(&self) -> Constraint {
        Constraint::Boolean
    }
    fn try_draw(&self, shape: &Shape) -> Result<Tensor> {
        ops::bernoulli(&ops::broadcast_to(&self.success.probs.detach(), shape.clone())?)
    }
    fn try_log_prob(&self, x: &Tensor) -> Result<Tensor> {
        let p = &self.success.probs;
        let successes = elementwise!(bernoulli_successes(x = x, p = p) => is_outcome(x).select(x, 0.0 * p))?;
        let value = self.success.log_likelihood(&successes, &ops::sub(1.0, &successes)?)?;
        elementwise!(bernoulli_log_prob(x = x, value = &value) => log_density(x, is_outcome(x), value))
    }
    fn try_cdf(&self, x: &Tensor) -> Result<Tensor> {
        elementwise!(bernoulli_cdf(x = x, failure = &self.success.failure()?) => {
            within(x, x.ge(0.0), x.ge(1.0).select(1.0, failure), 0.0)
        })
    }
    fn try_entropy(&self) -> Result<Tensor> {
        self.success.entropy()
    }
    fn try_mean(&self) -> Result<Tensor> {
        Ok(self.success.probs.clone())
    }
    fn try_variance(&self) -> Result<Tensor> {
        self.success.variance()
    }
}

trials! {
    /// The continuous Bernoulli distribution with density C(λ)·λˣ(1 − λ)^(1−x) for 0 ≤ x ≤ 1 (Loaiza-Ganem &
    /// Cunningham 2019).
    ///
    /// With l = ln(λ/(1 − λ)), ln C = ln(l / tanh(l/2)).
    ///
    /// ```
    /// use pellucid::Tensor;
    /// use pellucid::distributions::{ContinuousBernoulli, Distribution};
    ///
    /// let pixel = ContinuousBernoulli::new(&Tensor::from(0.5));
    /// assert_eq!(pixel.mean().item::<f64>(), 0.5);
    /// ```
    ContinuousBernoulli("continuous_bernoulli", probs: OpenUnitInterval)
}

impl ContinuousBernoulli {
    pub(crate) fn success(&self) -> &SuccessProbability {
        &self.success
    }
}

/// Below this |l|, functions of the log odds are computed by their series at 0.
const SMALL_LOGIT: f64 = 1e-2;

/// Returns f(l) for a function with a removable singularity at 0. Near 0, a polynomial in l² replaces `f`.
fn with_series(l: Expr, f: impl Fn(Expr) -> Expr, coefficients: &[f64]) -> Expr {
    let is_small = l.abs().lt(SMALL_LOGIT);
    let small = is_small.select(l, 0.0);
    let (first, rest) = coefficients.split_last().expect("a series must have a coefficient");
    let square = small * small;
    let series = rest.iter().rev().fold(0.0 * square + *first, |sum, &c| sum * square + c);
    is_small.select(series, f(is_small.select(1.0, l)))
}

/// Returns ln C(λ).
pub(crate) fn log_normalizer(l: Expr) -> Expr {
    let coefficients = [std::f64::consts::LN_2, 1.0 / 12.0, -7.0 / 1440.0, 31.0 / 90720.0];
    with_series(l, |l| (l / (0.5 * l).tanh()).ln(), &coefficients)
}

/// Returns the mean of x − ½.
pub(crate) fn centred_mean(l: Expr) -> Expr {
    let coefficients = [1.0 / 12.0, -1.0 / 720.0, 1.0 / 30240.0, -1.0 / 1_209_600.0];
    l * with_series(l, |l| (0.5 / (0.5 * l).tanh() - l.recip()) / l, &coefficients)
}

/// Returns the variance.
pub(crate) fn variance(l: Expr) -> Expr {
    let coefficients = [1.0 / 12.0, -1.0 / 240.0, 1.0 / 6048.0, -1.0 / 172_800.0];
    let f = |l: Expr| {
        let s = 2.0 * (0.5 * l).sinh();
        (l * l).recip() - (s * s).recip()
    };
    with_series(l, f, &coefficients)
}

impl Distribution for ContinuousBernoulli {
    trial_properties!("continuous_bernoulli", rsample: true);

    fn support(&self) -> Constraint {
        Constraint::UnitInterval
    }
    fn try_draw(&self, shape: &Shape) -> Result<Tensor> {
        self.try_icdf(&open_uniform(&self.success.probs, shape)?)
    }
    fn try_log_prob(&self, x: &Tensor) -> Result<Tensor> {
        let (log_success, log_failure) = (&self.success.log_success, &self.success.log_failure);
        elementwise!(continuous_bernoulli_log_prob(x = x, log_success = log_success, log_failure = log_failure) => {
            let inside = x.ge(0.0) & x.le(1.0);
            let share = inside.select(x, 0.5);
            let value = share * log_success + (1.0 - share) * log_failure + log_normalizer(log_success - log_failure);
            log_density(x, inside, value)
        })
    }
    fn try_cdf(&self, x: &Tensor) -> Result<Tensor> {
        elementwise!(continuous_bernoulli_cdf(x = x, l = &self.try_logits()?) => {
            let x = x.clamp(0.0, 1.0);
            let is_small = l.abs().lt(1e-4);
            let safe_l = is_small.select(1.0, l);
            // The exponents are negative, so that no exponential overflows.
            let m = -safe_l.abs();
            let rising = (m * x).exp_m1() / m.exp_m1();
            let falling = ((1.0 - x) * m).exp() * rising;
            let c = x * (x - 1.0);
            let series = x + c * l * 0.5 + c * (2.0 * x - 1.0) * l * l / 12.0;
            is_small.select(series, safe_l.gt(0.0).select(falling, rising))
        })
    }
    fn try_icdf(&self, p: &Tensor) -> Result<Tensor> {
        elementwise!(continuous_bernoulli_icdf(p = p, l = &self.try_logits()?) => {
            let p = probability(p);
            let is_small = l.abs().lt(1e-4);
            let safe_l = is_small.select(1.0, l);
            let m = -safe_l.abs();
            let is_positive = safe_l.gt(0.0);
            let y = (is_positive.select(1.0 - p, p) * m.exp_m1()).ln_1p() / m;
            let c = p * (1.0 - p);
            let series = p + c * l * 0.5 + c * (1.0 - 2.0 * p) * l * l / 6.0;
            is_small.select(series, is_positive.select(1.0 - y, y))
        })
    }
    fn try_entropy(&self) -> Result<Tensor> {
        let (log_success, log_failure) = (&self.success.log_success, &self.success.log_failure);
        elementwise!(continuous_bernoulli_entropy(log_success = log_success, log_failure = log_failure) => {
            let mean = 0.5 + centred_mean(log_success - log_failure);
            -mean * log_success - (1.0 - mean) * log_failure - log_normalizer(log_success - log_failure)
        })
    }
    fn try_mean(&self) -> Result<Tensor> {
        elementwise!(continuous_bernoulli_mean(l = &self.try_logits()?) => 0.5 + centred_mean(l))
    }
    fn try_variance(&self) -> Result<Tensor> {
        elementwise!(continuous_bernoulli_variance(l = &self.try_logits()?) => variance(l))
    }
}
