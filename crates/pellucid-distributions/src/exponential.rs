//! Waiting times and heavy tails: [`Exponential`], [`Weibull`], [`Pareto`].

use crate::constraint::Constraint;
use crate::distribution::Distribution;
use crate::location_scale::EULER_GAMMA;
use crate::noise::{draw_by, properties};
use crate::parameters::{elementwise, family};
use crate::stirling::log_gamma_second_difference;
use crate::support::{clamp_inside, log_density, probability, within, xlogy};
use pellucid_tensor::{Result, Shape, Tensor, unwrap};

family! {
    /// The exponential distribution with density λe^(−λx) for x ≥ 0.
    ///
    /// ```
    /// use pellucid::Tensor;
    /// use pellucid::distributions::{Distribution, Exponential};
    ///
    /// let waiting = Exponential::new(&Tensor::from([0.5, 2.0]));
    /// assert_eq!(waiting.mean().to_vec::<f64>(), [2.0, 0.5]);
    /// ```
    Exponential("exponential") {
        /// Returns λ, the rate: the inverse of the mean.
        rate: Positive,
    }
}

impl Distribution for Exponential {
    properties!("exponential", batch: rate, rsample: true);

    fn support(&self) -> Constraint {
        Constraint::NonNegative
    }
    fn try_draw(&self, shape: &Shape) -> Result<Tensor> {
        draw_by(&self.rate, shape, |u| elementwise!(exponential_sample(u = u, rate = &self.rate) => -u.ln() / rate))
    }
    fn try_log_prob(&self, x: &Tensor) -> Result<Tensor> {
        elementwise!(exponential_log_prob(x = x, rate = &self.rate) => {
            let inside = x.ge(0.0);
            log_density(x, inside, rate.ln() - rate * inside.select(x, 0.0))
        })
    }
    fn try_cdf(&self, x: &Tensor) -> Result<Tensor> {
        elementwise!(exponential_cdf(x = x, rate = &self.rate) => {
            let inside = x.ge(0.0);
            within(x, inside, -(-rate * inside.select(x, 0.0)).exp_m1(), 0.0)
        })
    }
    fn try_icdf(&self, p: &Tensor) -> Result<Tensor> {
        elementwise!(exponential_icdf(p = p, rate = &self.rate) => -(-probability(p)).ln_1p() / rate)
    }
    fn try_entropy(&self) -> Result<Tensor> {
        elementwise!(exponential_entropy(rate = &self.rate) => 1.0 - rate.ln())
    }
    fn try_mean(&self) -> Result<Tensor> {
        elementwise!(exponential_mean(rate = &self.rate) => rate.recip())
    }
    fn try_variance(&self) -> Result<Tensor> {
        elementwise!(exponential_variance(rate = &self.rate) => (rate * rate).recip())
    }
}

family! {
    /// The Weibull distribution with density k/λ·z^(k−1)·e^(−z^k), where z = x/λ ≥ 0.
    ///
    /// ```
    /// use pellucid::Tensor;
    /// use pellucid::distributions::{Distribution, Weibull};
    ///
    /// let lifetime = Weibull::new(3.0, &Tensor::from(1.0));
    /// assert_eq!(lifetime.mean().item::<f64>(), 3.0);
    /// ```
    Weibull("weibull") {
        /// Returns λ, the scale.
        scale: Positive,
        /// Returns k, the shape.
        concentration: Positive,
    }
}

impl Distribution for Weibull {
    properties!("weibull", batch: scale, rsample: true);

    fn support(&self) -> Constraint {
        Constraint::NonNegative
    }
    fn try_draw(&self, shape: &Shape) -> Result<Tensor> {
        let x = draw_by(&self.scale, shape, |u| {
            elementwise!(weibull_sample(u = u, scale = &self.scale, k = &self.concentration) => {
                scale * ((-u.ln()).ln() / k).exp()
            })
        })?;
        clamp_inside(&x, &self.support())
    }
    fn try_log_prob(&self, x: &Tensor) -> Result<Tensor> {
        elementwise!(weibull_log_prob(x = x, scale = &self.scale, k = &self.concentration) => {
            let inside = x.ge(0.0) & x.lt(f64::INFINITY);
            let z = inside.select(x, scale) / scale;
            log_density(x, inside, (k / scale).ln() + xlogy(k - 1.0, z) - z.pow(k))
        })
    }
    fn try_cdf(&self, x: &Tensor) -> Result<Tensor> {
        elementwise!(weibull_cdf(x = x, scale = &self.scale, k = &self.concentration) => {
            let inside = x.gt(0.0);
            let y = (inside.select(x, 1.0) / scale).ln();
            within(x, inside, -(-(k * y).exp()).exp_m1(), 0.0)
        })
    }
    fn try_icdf(&self, p: &Tensor) -> Result<Tensor> {
        elementwise!(weibull_icdf(p = p, scale = &self.scale, k = &self.concentration) => {
            scale * ((-(-probability(p)).ln_1p()).ln() / k).exp()
        })
    }
    fn try_entropy(&self) -> Result<Tensor> {
        elementwise!(weibull_entropy(scale = &self.scale, k = &self.concentration) => {
            EULER_GAMMA * (1.0 - k.recip()) + (scale / k).ln() + 1.0
        })
    }
    fn try_mean(&self) -> Result<Tensor> {
        elementwise!(weibull_mean(scale = &self.scale, k = &self.concentration) => {
            scale * (1.0 + k.recip()).lgamma().exp()
        })
    }
    fn try_variance(&self) -> Result<Tensor> {
        elementwise!(weibull_variance(scale = &self.scale, k = &self.concentration) => {
            // Computes Γ(1 + 2/k) − Γ(1 + 1/k)² without cancellation for large k.
            let twice_log_mean = 2.0 * (1.0 + k.recip()).lgamma();
            let ratio = log_gamma_second_difference(0.0 * k + 1.0, k.recip());
            scale * scale * twice_log_mean.exp() * ratio.exp_m1()
        })
    }
}

family! {
    /// The Pareto distribution with density αmᵅ / x^(α+1) for x ≥ m.
    ///
    /// ```
    /// use pellucid::Tensor;
    /// use pellucid::distributions::{Distribution, Pareto};
    ///
    /// let wealth = Pareto::new(1.0, &Tensor::from([3.0, 0.5]));
    /// assert_eq!(wealth.mean().to_vec::<f64>(), [1.5, f64::INFINITY]);
    /// ```
    Pareto("pareto") {
        /// Returns m, the minimum of the support.
        scale: Positive,
        /// Returns α, the shape.
        alpha: Positive,
    }
}

impl Distribution for Pareto {
    properties!("pareto", batch: scale, rsample: true);

    fn support(&self) -> Constraint {
        Constraint::AtLeast(self.scale.clone())
    }
    fn try_draw(&self, shape: &Shape) -> Result<Tensor> {
        let x = draw_by(&self.scale, shape, |u| {
            elementwise!(pareto_sample(u = u, scale = &self.scale, alpha = &self.alpha) => {
                scale * (-u.ln() / alpha).exp()
            })
        })?;
        clamp_inside(&x, &Constraint::Positive)
    }
    fn try_log_prob(&self, x: &Tensor) -> Result<Tensor> {
        elementwise!(pareto_log_prob(x = x, scale = &self.scale, alpha = &self.alpha) => {
            let (given, inside) = (x, x.ge(scale));
            let x = inside.select(x, scale);
            log_density(given, inside, alpha.ln() - alpha * (x / scale).ln() - x.ln())
        })
    }
    fn try_cdf(&self, x: &Tensor) -> Result<Tensor> {
        elementwise!(pareto_cdf(x = x, scale = &self.scale, alpha = &self.alpha) => {
            let (given, inside) = (x, x.ge(scale));
            let x = inside.select(x, scale);
            within(given, inside, -(-alpha * (x / scale).ln()).exp_m1(), 0.0)
        })
    }
    fn try_icdf(&self, p: &Tensor) -> Result<Tensor> {
        elementwise!(pareto_icdf(p = p, scale = &self.scale, alpha = &self.alpha) => {
            scale * (-(-probability(p)).ln_1p() / alpha).exp()
        })
    }
    fn try_entropy(&self) -> Result<Tensor> {
        elementwise!(pareto_entropy(scale = &self.scale, alpha = &self.alpha) => {
            (scale / alpha).ln() + 1.0 + alpha.recip()
        })
    }
    fn try_mean(&self) -> Result<Tensor> {
        elementwise!(pareto_mean(scale = &self.scale, alpha = &self.alpha) => {
            let a = alpha.gt(1.0).select(alpha, 2.0);
            alpha.gt(1.0).select(a * scale / (a - 1.0), f64::INFINITY)
        })
    }
    fn try_variance(&self) -> Result<Tensor> {
        elementwise!(pareto_variance(scale = &self.scale, alpha = &self.alpha) => {
            let a = alpha.gt(2.0).select(alpha, 3.0);
            let b = a - 1.0;
            alpha.gt(2.0).select(scale * scale * a / (b * b * (a - 2.0)), f64::INFINITY)
        })
    }
}
