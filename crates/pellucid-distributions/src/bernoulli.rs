//! Distributions of one trial: [`Bernoulli`], [`ContinuousBernoulli`].

use crate::constraint::Constraint;
use crate::distribution::Distribution;
use crate::noise::draw_by;
use crate::parameters::elementwise;
use crate::success_probability::{SuccessProbability, trial_properties, trials};
use crate::support::{clamp_inside, log_density, probability, within};
use pellucid_tensor::formula::Expr;
use pellucid_tensor::{Result, Shape, Tensor, ops, unwrap};
use std::f64::consts::PI;

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
        ops::bernoulli(&ops::broadcast_to(&self.success.probs()?.detach(), shape.clone())?)
    }
    fn try_log_prob(&self, x: &Tensor) -> Result<Tensor> {
        let p = self.success.parameter();
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
        self.success.probs()
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
const SMALL_LOGIT: f64 = 1.0;

/// The number of terms of a power series in l² that reaches the precision of `f64` for |l| below [`SMALL_LOGIT`].
const TERMS: usize = 17;

/// Returns f(l) for a function with a removable singularity at 0. Near 0, the polynomial Σ c(k)·l²ᵏ replaces `f`.
fn with_series(l: Expr, f: impl Fn(Expr) -> Expr, coefficient: impl Fn(usize) -> f64) -> Expr {
    let is_small = l.abs().lt(SMALL_LOGIT);
    let small = is_small.select(l, 0.0);
    let square = small * small;
    let series = (0..TERMS).rev().fold(0.0 * square, |sum, k| sum * square + coefficient(k));
    is_small.select(series, f(is_small.select(1.0, l)))
}

/// Returns B₂ₖ/(2k)! for the Bernoulli numbers, k ≥ 1: ±2·ζ(2k)/(2π)²ᵏ.
fn bernoulli_ratio(k: usize) -> f64 {
    let zeta = match k {
        1 => PI.powi(2) / 6.0,
        2 => PI.powi(4) / 90.0,
        3 => PI.powi(6) / 945.0,
        _ => (1..=200).rev().map(|n| f64::from(n).powi(-2 * k as i32)).sum(),
    };
    let sign = if k % 2 == 1 { 2.0 } else { -2.0 };
    sign * zeta / (2.0 * PI).powi(2 * k as i32)
}

/// Returns ln C(λ).
pub(crate) fn log_normalizer(l: Expr) -> Expr {
    let coefficient = |k: usize| match k {
        0 => std::f64::consts::LN_2,
        k => (2f64.powi(2 * k as i32 - 1) - 1.0) * bernoulli_ratio(k) / k as f64,
    };
    with_series(l, |l| (l / (0.5 * l).tanh()).ln(), coefficient)
}

/// Returns the mean of x − ½.
pub(crate) fn centred_mean(l: Expr) -> Expr {
    l * with_series(l, |l| (0.5 / (0.5 * l).tanh() - l.recip()) / l, |k| bernoulli_ratio(k + 1))
}

/// Returns the variance.
pub(crate) fn variance(l: Expr) -> Expr {
    let f = |l: Expr| {
        let s = 2.0 * (0.5 * l).sinh();
        (l * l).recip() - (s * s).recip()
    };
    with_series(l, f, |k| (2 * k + 1) as f64 * bernoulli_ratio(k + 1))
}

/// Returns the entropy, ln(sinh(l/2)/(l/2)) − l·m for the mean m of x − ½.
fn entropy(l: Expr) -> Expr {
    let f = |l: Expr| {
        let l = l.abs();
        let decay = (-l).exp_m1();
        (-decay).ln() - l.ln() + 1.0 + l * (-l).exp() / decay
    };
    let coefficient = |k: usize| match k {
        0 => 0.0,
        k => (0.5 / k as f64 - 1.0) * bernoulli_ratio(k),
    };
    with_series(l, f, coefficient)
}

impl Distribution for ContinuousBernoulli {
    trial_properties!("continuous_bernoulli", rsample: true);

    fn support(&self) -> Constraint {
        Constraint::UnitInterval
    }
    fn try_draw(&self, shape: &Shape) -> Result<Tensor> {
        let x = draw_by(self.success.parameter(), shape, |u| self.try_icdf(u))?;
        clamp_inside(&x, &self.support())
    }
    fn try_log_prob(&self, x: &Tensor) -> Result<Tensor> {
        let (log_success, log_failure) = (&self.success.log_success()?, &self.success.log_failure()?);
        let inputs = [x, &self.try_logits()?, log_success, log_failure];
        elementwise!(continuous_bernoulli_log_prob(x = inputs[0], l = inputs[1], success = inputs[2], rest = inputs[3]) => {
            let inside = x.ge(0.0) & x.le(1.0);
            let share = inside.select(x, 0.5);
            log_density(x, inside, share * success + (1.0 - share) * rest + log_normalizer(l))
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
            let is_falling = safe_l.lt(0.0);
            // The quantile is ln(1 + p·(eˡ − 1))/l. Where eˡ would overflow, or the argument of the logarithm is near
            // 0, it is y = −ln(q + (1 − q)·e⁻ᵐ)/m for m = |l|: y with q = 1 − p for negative l, and 1 − y with q = p
            // for positive l.
            let change = p * safe_l.exp_m1();
            let is_direct = change.gt(-0.5) & change.lt(f64::INFINITY);
            let direct_l = is_direct.select(safe_l, 1.0);
            let direct = (p * direct_l.exp_m1()).ln_1p() / direct_l;
            let m = is_direct.select(1.0, safe_l.abs());
            let q = is_falling.select(1.0 - p, p);
            let mixture = q + (1.0 - q) * (-m).exp();
            // e⁻ᵐ may be 0 or subnormal.
            let is_zero = q.eq(0.0) | mixture.eq(0.0);
            let y = is_zero.select(1.0, -is_zero.select(1.0, mixture).ln() / m);
            let reflected = is_falling.select(y, 1.0 - y);
            let c = p * (1.0 - p);
            let series = p + c * l * 0.5 + c * (1.0 - 2.0 * p) * l * l / 6.0;
            is_small.select(series, is_direct.select(direct, reflected))
        })
    }
    fn try_entropy(&self) -> Result<Tensor> {
        elementwise!(continuous_bernoulli_entropy(l = &self.try_logits()?) => entropy(l))
    }
    fn try_mean(&self) -> Result<Tensor> {
        elementwise!(continuous_bernoulli_mean(l = &self.try_logits()?) => 0.5 + centred_mean(l))
    }
    fn try_variance(&self) -> Result<Tensor> {
        elementwise!(continuous_bernoulli_variance(l = &self.try_logits()?) => variance(l))
    }
}
