//! The normal distribution and related families: [`Normal`], [`LogNormal`], [`HalfNormal`].

use crate::constraint::Constraint;
use crate::distribution::Distribution;
use crate::noise::{properties, standard_normal};
use crate::parameters::{elementwise, family};
use crate::stirling::HALF_LN_2PI;
use crate::support::{clamp_inside, log_density, probability, within};
use pellucid_tensor::{Result, Shape, Tensor, ops, unwrap};
use std::f64::consts::{FRAC_2_PI, LN_2, PI, SQRT_2};

family! {
    /// The normal distribution with density e^(−z²/2) / (σ√(2π)), where z = (x − μ)/σ.
    ///
    /// ```
    /// use pellucid::Tensor;
    /// use pellucid::distributions::{Distribution, Normal};
    ///
    /// let normal = Normal::new(&Tensor::from([0.0, 1.0]), 2.0);
    /// assert_eq!(normal.sample([3]).shape(), [3, 2]);
    /// assert_eq!(normal.mean().to_vec::<f64>(), [0.0, 1.0]);
    /// assert_eq!(normal.cdf(&Tensor::from([0.0, 1.0])).to_vec::<f64>(), [0.5, 0.5]);
    /// ```
    Normal("normal") {
        /// Returns μ, the mean.
        loc: Real,
        /// Returns σ, the standard deviation.
        scale: Positive,
    }
}

impl Distribution for Normal {
    properties!("normal", batch: loc, rsample: true);

    fn support(&self) -> Constraint {
        Constraint::Real
    }
    fn try_draw(&self, shape: &Shape) -> Result<Tensor> {
        let z = standard_normal(&self.loc, shape)?;
        elementwise!(normal_sample(z = &z, loc = &self.loc, scale = &self.scale) => loc + scale * z)
    }
    fn try_log_prob(&self, x: &Tensor) -> Result<Tensor> {
        elementwise!(normal_log_prob(x = x, loc = &self.loc, scale = &self.scale) => {
            let z = (x - loc) / scale;
            -0.5 * z * z - scale.ln() - HALF_LN_2PI
        })
    }
    fn try_cdf(&self, x: &Tensor) -> Result<Tensor> {
        elementwise!(normal_cdf(x = x, loc = &self.loc, scale = &self.scale) => ((x - loc) / scale).ndtr())
    }
    fn try_icdf(&self, p: &Tensor) -> Result<Tensor> {
        elementwise!(normal_icdf(p = p, loc = &self.loc, scale = &self.scale) => {
            loc + scale * probability(p).ndtri()
        })
    }
    fn try_entropy(&self) -> Result<Tensor> {
        elementwise!(normal_entropy(scale = &self.scale) => scale.ln() + (0.5 + HALF_LN_2PI))
    }
    fn try_mean(&self) -> Result<Tensor> {
        Ok(self.loc.clone())
    }
    fn try_variance(&self) -> Result<Tensor> {
        ops::square(&self.scale)
    }
    fn try_std(&self) -> Result<Tensor> {
        Ok(self.scale.clone())
    }
}

family! {
    /// The distribution of eʸ for a normal y, with density e^(−z²/2) / (xσ√(2π)), where z = (ln x − μ)/σ.
    ///
    /// ```
    /// use pellucid::Tensor;
    /// use pellucid::distributions::{Distribution, LogNormal};
    ///
    /// let prices = LogNormal::new(0.0, &Tensor::from(0.5));
    /// assert_eq!(prices.icdf(&Tensor::from(0.5)).item::<f64>(), 1.0);
    /// assert_eq!(prices.log_prob(&Tensor::from(-1.0)).item::<f64>(), f64::NEG_INFINITY);
    /// ```
    LogNormal("log_normal") {
        /// Returns μ, the mean of ln x.
        loc: Real,
        /// Returns σ, the standard deviation of ln x.
        scale: Positive,
    }
}

impl Distribution for LogNormal {
    properties!("log_normal", batch: loc, rsample: true);

    fn support(&self) -> Constraint {
        Constraint::Positive
    }
    fn try_draw(&self, shape: &Shape) -> Result<Tensor> {
        let z = standard_normal(&self.loc, shape)?;
        let x =
            elementwise!(log_normal_sample(z = &z, loc = &self.loc, scale = &self.scale) => (loc + scale * z).exp())?;
        clamp_inside(&x, &self.support())
    }
    fn try_log_prob(&self, x: &Tensor) -> Result<Tensor> {
        elementwise!(log_normal_log_prob(x = x, loc = &self.loc, scale = &self.scale) => {
            let inside = x.gt(0.0) & x.lt(f64::INFINITY);
            let y = inside.select(x, 1.0).ln();
            let z = (y - loc) / scale;
            log_density(x, inside, -0.5 * z * z - scale.ln() - y - HALF_LN_2PI)
        })
    }
    fn try_cdf(&self, x: &Tensor) -> Result<Tensor> {
        elementwise!(log_normal_cdf(x = x, loc = &self.loc, scale = &self.scale) => {
            let inside = x.gt(0.0);
            within(x, inside, ((inside.select(x, 1.0).ln() - loc) / scale).ndtr(), 0.0)
        })
    }
    fn try_icdf(&self, p: &Tensor) -> Result<Tensor> {
        elementwise!(log_normal_icdf(p = p, loc = &self.loc, scale = &self.scale) => {
            (loc + scale * probability(p).ndtri()).exp()
        })
    }
    fn try_entropy(&self) -> Result<Tensor> {
        elementwise!(log_normal_entropy(loc = &self.loc, scale = &self.scale) => {
            loc + scale.ln() + (0.5 + HALF_LN_2PI)
        })
    }
    fn try_mean(&self) -> Result<Tensor> {
        elementwise!(log_normal_mean(loc = &self.loc, scale = &self.scale) => (loc + 0.5 * scale * scale).exp())
    }
    fn try_variance(&self) -> Result<Tensor> {
        elementwise!(log_normal_variance(loc = &self.loc, scale = &self.scale) => {
            // (eᵛ − 1)·e^(2μ + v), without an overflow of eᵛ.
            let v = scale * scale;
            -(-v).exp_m1() * (2.0 * (loc + v)).exp()
        })
    }
}

family! {
    /// The distribution of |y| for a normal y with mean 0, with density e^(−x²/(2σ²))·√(2/π)/σ for x ≥ 0.
    ///
    /// ```
    /// use pellucid::Tensor;
    /// use pellucid::distributions::{Distribution, HalfNormal};
    ///
    /// let half = HalfNormal::new(&Tensor::from(1.0));
    /// assert!((half.mean().item::<f64>() - 0.7978845608).abs() < 1e-9);
    /// assert!(half.sample([100]).min(..).item::<f64>() >= 0.0);
    /// ```
    HalfNormal("half_normal") {
        /// Returns σ, the standard deviation of y.
        scale: Positive,
    }
}

impl Distribution for HalfNormal {
    properties!("half_normal", batch: scale, rsample: true);

    fn support(&self) -> Constraint {
        Constraint::NonNegative
    }
    fn try_draw(&self, shape: &Shape) -> Result<Tensor> {
        let z = standard_normal(&self.scale, shape)?;
        elementwise!(half_normal_sample(z = &z, scale = &self.scale) => scale * z.abs())
    }
    fn try_log_prob(&self, x: &Tensor) -> Result<Tensor> {
        elementwise!(half_normal_log_prob(x = x, scale = &self.scale) => {
            let inside = x.ge(0.0);
            let z = inside.select(x, 0.0) / scale;
            log_density(x, inside, -0.5 * z * z - scale.ln() + (LN_2 - HALF_LN_2PI))
        })
    }
    fn try_cdf(&self, x: &Tensor) -> Result<Tensor> {
        elementwise!(half_normal_cdf(x = x, scale = &self.scale) => {
            let inside = x.ge(0.0);
            within(x, inside, (inside.select(x, 0.0) / (scale * SQRT_2)).erf(), 0.0)
        })
    }
    fn try_icdf(&self, p: &Tensor) -> Result<Tensor> {
        elementwise!(half_normal_icdf(p = p, scale = &self.scale) => {
            scale * SQRT_2 * probability(p).erfinv()
        })
    }
    fn try_entropy(&self) -> Result<Tensor> {
        elementwise!(half_normal_entropy(scale = &self.scale) => scale.ln() + (0.5 * (0.5 * PI).ln() + 0.5))
    }
    fn try_mean(&self) -> Result<Tensor> {
        elementwise!(half_normal_mean(scale = &self.scale) => scale * FRAC_2_PI.sqrt())
    }
    fn try_variance(&self) -> Result<Tensor> {
        elementwise!(half_normal_variance(scale = &self.scale) => scale * scale * (1.0 - FRAC_2_PI))
    }
}
