//! Families with a location and a scale: [`Laplace`], [`Logistic`], [`Gumbel`], [`Cauchy`], [`HalfCauchy`].

use crate::constraint::Constraint;
use crate::distribution::Distribution;
use crate::noise::{draw_by, properties};
use crate::parameters::{elementwise, family};
use crate::support::{log_density, probability, within};
use pellucid_tensor::formula::Expr;
use pellucid_tensor::{Result, Shape, Tensor, ops, unwrap};
use std::f64::consts::{LN_2, PI};

/// Euler's constant γ = −ψ(1).
pub(crate) const EULER_GAMMA: f64 = 0.577_215_664_901_532_9;

family! {
    /// The Laplace distribution with density e^(−|z|) / (2b), where z = (x − μ)/b.
    ///
    /// ```
    /// use pellucid::Tensor;
    /// use pellucid::distributions::{Distribution, Laplace};
    ///
    /// let laplace = Laplace::new(0.0, &Tensor::from(0.5));
    /// assert_eq!(laplace.log_prob(&Tensor::from(1.0)).item::<f64>(), -2.0);
    /// ```
    Laplace("laplace") {
        /// Returns μ, the mean.
        loc: Real,
        /// Returns b, the scale.
        scale: Positive,
    }
}

impl Distribution for Laplace {
    properties!("laplace", batch: loc, rsample: true);

    fn support(&self) -> Constraint {
        Constraint::Real
    }
    fn try_draw(&self, shape: &Shape) -> Result<Tensor> {
        draw_by(&self.loc, shape, |u| self.try_icdf(u))
    }
    fn try_log_prob(&self, x: &Tensor) -> Result<Tensor> {
        elementwise!(laplace_log_prob(x = x, loc = &self.loc, scale = &self.scale) => {
            -((x - loc) / scale).abs() - scale.ln() - LN_2
        })
    }
    fn try_cdf(&self, x: &Tensor) -> Result<Tensor> {
        elementwise!(laplace_cdf(x = x, loc = &self.loc, scale = &self.scale) => {
            let z = (x - loc) / scale;
            let tail = 0.5 * z.lt(0.0).select(z, -z).exp();
            z.lt(0.0).select(tail, 1.0 - tail)
        })
    }
    fn try_icdf(&self, p: &Tensor) -> Result<Tensor> {
        elementwise!(laplace_icdf(p = p, loc = &self.loc, scale = &self.scale) => {
            let p = probability(p);
            let is_left = p.lt(0.5);
            let tail = is_left.select(p, 1.0 - p);
            let y = (2.0 * tail).ln();
            loc + scale * is_left.select(y, -y)
        })
    }
    fn try_entropy(&self) -> Result<Tensor> {
        elementwise!(laplace_entropy(scale = &self.scale) => scale.ln() + (1.0 + LN_2))
    }
    fn try_mean(&self) -> Result<Tensor> {
        Ok(self.loc.clone())
    }
    fn try_variance(&self) -> Result<Tensor> {
        elementwise!(laplace_variance(scale = &self.scale) => 2.0 * scale * scale)
    }
}

family! {
    /// The logistic distribution with density e^(−z) / (s(1 + e^(−z))²), where z = (x − μ)/s.
    ///
    /// ```
    /// use pellucid::Tensor;
    /// use pellucid::distributions::{Distribution, Logistic};
    ///
    /// let logistic = Logistic::new(1.0, &Tensor::from(2.0));
    /// assert_eq!(logistic.cdf(&Tensor::from(1.0)).item::<f64>(), 0.5);
    /// ```
    Logistic("logistic") {
        /// Returns μ, the mean.
        loc: Real,
        /// Returns s.
        scale: Positive,
    }
}

/// Returns ln σ(z) + ln σ(−z), which is −|z| for large |z|. All derivatives at 0 exist.
pub(crate) fn log_logistic_density(z: Expr) -> Expr {
    let is_far = z.abs().gt(40.0);
    let near = is_far.select(0.0, z);
    is_far.select(-z.abs(), near.sigmoid().ln() + (-near).sigmoid().ln())
}

impl Distribution for Logistic {
    properties!("logistic", batch: loc, rsample: true);

    fn support(&self) -> Constraint {
        Constraint::Real
    }
    fn try_draw(&self, shape: &Shape) -> Result<Tensor> {
        draw_by(&self.loc, shape, |u| self.try_icdf(u))
    }
    fn try_log_prob(&self, x: &Tensor) -> Result<Tensor> {
        elementwise!(logistic_log_prob(x = x, loc = &self.loc, scale = &self.scale) => {
            log_logistic_density((x - loc) / scale) - scale.ln()
        })
    }
    fn try_cdf(&self, x: &Tensor) -> Result<Tensor> {
        elementwise!(logistic_cdf(x = x, loc = &self.loc, scale = &self.scale) => ((x - loc) / scale).sigmoid())
    }
    fn try_icdf(&self, p: &Tensor) -> Result<Tensor> {
        let z = ops::logit(&elementwise!(logistic_probability(p = p) => probability(p))?)?;
        elementwise!(logistic_icdf(z = &z, loc = &self.loc, scale = &self.scale) => loc + scale * z)
    }
    fn try_entropy(&self) -> Result<Tensor> {
        elementwise!(logistic_entropy(scale = &self.scale) => scale.ln() + 2.0)
    }
    fn try_mean(&self) -> Result<Tensor> {
        Ok(self.loc.clone())
    }
    fn try_variance(&self) -> Result<Tensor> {
        elementwise!(logistic_variance(scale = &self.scale) => scale * scale * (PI * PI / 3.0))
    }
}

family! {
    /// The Gumbel distribution of maxima with density e^(−z − e^(−z)) / β, where z = (x − μ)/β.
    ///
    /// ```
    /// use pellucid::Tensor;
    /// use pellucid::distributions::{Distribution, Gumbel};
    ///
    /// let gumbel = Gumbel::new(0.0, &Tensor::from(1.0));
    /// assert_eq!(gumbel.log_prob(&Tensor::from(0.0)).item::<f64>(), -1.0);
    /// ```
    Gumbel("gumbel") {
        /// Returns μ, the mode.
        loc: Real,
        /// Returns β, the scale.
        scale: Positive,
    }
}

impl Distribution for Gumbel {
    properties!("gumbel", batch: loc, rsample: true);

    fn support(&self) -> Constraint {
        Constraint::Real
    }
    fn try_draw(&self, shape: &Shape) -> Result<Tensor> {
        draw_by(&self.loc, shape, |u| self.try_icdf(u))
    }
    fn try_log_prob(&self, x: &Tensor) -> Result<Tensor> {
        elementwise!(gumbel_log_prob(x = x, loc = &self.loc, scale = &self.scale) => {
            let inside = x.gt(f64::NEG_INFINITY);
            let z = (inside.select(x, loc) - loc) / scale;
            log_density(x, inside, -z - (-z).exp() - scale.ln())
        })
    }
    fn try_cdf(&self, x: &Tensor) -> Result<Tensor> {
        elementwise!(gumbel_cdf(x = x, loc = &self.loc, scale = &self.scale) => (-(-((x - loc) / scale)).exp()).exp())
    }
    fn try_icdf(&self, p: &Tensor) -> Result<Tensor> {
        elementwise!(gumbel_icdf(p = p, loc = &self.loc, scale = &self.scale) => {
            loc - scale * (-probability(p).ln()).ln()
        })
    }
    fn try_entropy(&self) -> Result<Tensor> {
        elementwise!(gumbel_entropy(scale = &self.scale) => scale.ln() + (1.0 + EULER_GAMMA))
    }
    fn try_mean(&self) -> Result<Tensor> {
        elementwise!(gumbel_mean(loc = &self.loc, scale = &self.scale) => loc + scale * EULER_GAMMA)
    }
    fn try_variance(&self) -> Result<Tensor> {
        elementwise!(gumbel_variance(scale = &self.scale) => scale * scale * (PI * PI / 6.0))
    }
}

/// Returns ln(1 + z²) without overflow of the square.
pub(crate) fn log_1p_square(z: Expr) -> Expr {
    let is_far = z.abs().gt(1e9);
    let near = is_far.select(0.0, z);
    is_far.select(2.0 * is_far.select(z.abs(), 1.0).ln(), (near * near).ln_1p())
}

family! {
    /// The Cauchy distribution with density 1 / (πγ(1 + z²)), where z = (x − x₀)/γ. The mean does not exist, and the
    /// variance is infinite.
    ///
    /// ```
    /// use pellucid::Tensor;
    /// use pellucid::distributions::{Cauchy, Distribution};
    ///
    /// let cauchy = Cauchy::new(0.0, &Tensor::from(1.0));
    /// assert_eq!(cauchy.cdf(&Tensor::from(1.0)).item::<f64>(), 0.75);
    /// assert!(cauchy.mean().item::<f64>().is_nan());
    /// ```
    Cauchy("cauchy") {
        /// Returns x₀, the median.
        loc: Real,
        /// Returns γ, half of the interquartile range.
        scale: Positive,
    }
}

impl Distribution for Cauchy {
    properties!("cauchy", batch: loc, rsample: true);

    fn support(&self) -> Constraint {
        Constraint::Real
    }
    fn try_draw(&self, shape: &Shape) -> Result<Tensor> {
        draw_by(&self.loc, shape, |u| self.try_icdf(u))
    }
    fn try_log_prob(&self, x: &Tensor) -> Result<Tensor> {
        elementwise!(cauchy_log_prob(x = x, loc = &self.loc, scale = &self.scale) => {
            -log_1p_square((x - loc) / scale) - scale.ln() - PI.ln()
        })
    }
    fn try_cdf(&self, x: &Tensor) -> Result<Tensor> {
        // The angle of the point (x₀ − x, γ) does not cancel in either tail.
        elementwise!(cauchy_cdf(x = x, loc = &self.loc, scale = &self.scale) => scale.atan2(loc - x) * PI.recip())
    }
    fn try_icdf(&self, p: &Tensor) -> Result<Tensor> {
        elementwise!(cauchy_icdf(p = p, loc = &self.loc, scale = &self.scale) => {
            let p = probability(p);
            let is_left = p.lt(0.5);
            let tail = is_left.select(p, 1.0 - p);
            let distance = scale * tail.cos_pi() / tail.sin_pi();
            loc + is_left.select(-distance, distance)
        })
    }
    fn try_entropy(&self) -> Result<Tensor> {
        elementwise!(cauchy_entropy(scale = &self.scale) => scale.ln() + (4.0 * PI).ln())
    }
    fn try_mean(&self) -> Result<Tensor> {
        ops::full_like(&self.loc, f64::NAN)
    }
    fn try_variance(&self) -> Result<Tensor> {
        ops::full_like(&self.loc, f64::INFINITY)
    }
}

family! {
    /// The distribution of |y| for a Cauchy y around 0, with density 2 / (πγ(1 + z²)), where z = x/γ ≥ 0. The mean is
    /// infinite.
    ///
    /// ```
    /// use pellucid::Tensor;
    /// use pellucid::distributions::{Distribution, HalfCauchy};
    ///
    /// let half = HalfCauchy::new(&Tensor::from(1.0));
    /// assert_eq!(half.cdf(&Tensor::from(1.0)).item::<f64>(), 0.5);
    /// ```
    HalfCauchy("half_cauchy") {
        /// Returns γ, the median.
        scale: Positive,
    }
}

impl Distribution for HalfCauchy {
    properties!("half_cauchy", batch: scale, rsample: true);

    fn support(&self) -> Constraint {
        Constraint::NonNegative
    }
    fn try_draw(&self, shape: &Shape) -> Result<Tensor> {
        draw_by(&self.scale, shape, |u| self.try_icdf(u))
    }
    fn try_log_prob(&self, x: &Tensor) -> Result<Tensor> {
        elementwise!(half_cauchy_log_prob(x = x, scale = &self.scale) => {
            let inside = x.ge(0.0);
            log_density(x, inside, -log_1p_square(inside.select(x, 0.0) / scale) - scale.ln() + (2.0 / PI).ln())
        })
    }
    fn try_cdf(&self, x: &Tensor) -> Result<Tensor> {
        elementwise!(half_cauchy_cdf(x = x, scale = &self.scale) => {
            let inside = x.ge(0.0);
            within(x, inside, (inside.select(x, 0.0) / scale).atan() * (2.0 / PI), 0.0)
        })
    }
    fn try_icdf(&self, p: &Tensor) -> Result<Tensor> {
        elementwise!(half_cauchy_icdf(p = p, scale = &self.scale) => {
            let p = probability(p);
            let is_left = p.lt(0.5);
            let half = 0.5 * is_left.select(p, 1.0 - p);
            let (sin, cos) = (half.sin_pi(), half.cos_pi());
            scale * is_left.select(sin, cos) / is_left.select(cos, sin)
        })
    }
    fn try_entropy(&self) -> Result<Tensor> {
        elementwise!(half_cauchy_entropy(scale = &self.scale) => scale.ln() + (2.0 * PI).ln())
    }
    fn try_mean(&self) -> Result<Tensor> {
        ops::full_like(&self.scale, f64::INFINITY)
    }
    fn try_variance(&self) -> Result<Tensor> {
        ops::full_like(&self.scale, f64::INFINITY)
    }
}
