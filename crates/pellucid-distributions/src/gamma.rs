//! The gamma distribution and related families: [`Gamma`], [`Chi2`], [`StudentT`].

use crate::constraint::Constraint;
use crate::distribution::Distribution;
use crate::gamma_quantile::{log_gamma_quantile, sample_log_gamma};
use crate::location_scale::log_1p_square;
use crate::noise::{properties, standard_normal};
use crate::parameters::{elementwise, family};
use crate::stirling::{
    HALF_LN_2PI, SERIES_BEGIN, deviance, half_step, log_factorial_excess, remainder, remainder_slope,
};
use crate::support::{clamp_inside, log_density, probability, xlogy};
use pellucid_derive::panicking_form;
use pellucid_tensor::formula::Expr;
use pellucid_tensor::formula::remainders::log_ratio_minus;
use pellucid_tensor::{DType, Result, Shape, Tensor, ops, unwrap};

family! {
    /// The gamma distribution with density bᵃx^(a−1)e^(−bx) / Γ(a) for x > 0.
    ///
    /// Samples are quantiles of uniform numbers. Their gradients are computed by implicit reparametrization (Figurnov
    /// et al. 2018), with a relative error of about 1e-12.
    ///
    /// ```
    /// use pellucid::Tensor;
    /// use pellucid::distributions::{Distribution, Gamma};
    ///
    /// let gamma = Gamma::new(&Tensor::from([1.0, 4.0]), 2.0);
    /// assert_eq!(gamma.mean().to_vec::<f64>(), [0.5, 2.0]);
    /// assert_eq!(gamma.rsample([5]).shape(), [5, 2]);
    /// ```
    Gamma("gamma") {
        /// Returns a, the shape.
        concentration: Positive,
        /// Returns b, the inverse of the scale.
        rate: Positive,
    }
}

/// Converts ln x to x/rate in the dtype of the rate.
fn gamma_from_log(log: &Tensor, rate: &Tensor) -> Result<Tensor> {
    let x = elementwise!(gamma_from_log(y = log, rate = rate) => y.exp() / rate)?;
    ops::to_dtype(&x, rate.dtype())
}

/// Returns ln(y·p(y)) for the density p of Gamma(a, 1). For large a, all terms are small near the mode.
fn log_gamma_density(a: Expr, y: Expr) -> Expr {
    let is_large = a.ge(SERIES_BEGIN) & y.gt(0.0);
    let (large, at) = (is_large.select(a, 1.0), is_large.select(y, 1.0));
    let small = is_large.select(1.0, a);
    let below = is_large.select(1.0, y);
    let direct = xlogy(small - 1.0, below) - below - small.lgamma();
    is_large.select((large / at).ln() - deviance(large, at) - log_factorial_excess(large), direct)
}

/// Returns a + ln Γ(a) + (1 − a)·ψ(a), the entropy of Gamma(a, 1).
pub(crate) fn standard_gamma_entropy(a: Expr) -> Expr {
    let is_large = a.ge(SERIES_BEGIN);
    let (large, small) = (is_large.select(a, SERIES_BEGIN), is_large.select(1.0, a));
    // ψ(a) is ln a − 1/(2a) plus the derivative of the remainder of Stirling's formula.
    let series = 0.5 * large.ln() + (HALF_LN_2PI + 0.5) - 0.5 * large.recip()
        + remainder(large)
        + (1.0 - large) * remainder_slope(large);
    is_large.select(series, small + small.lgamma() + (1.0 - small) * small.digamma())
}

/// Returns the entropy of Gamma(a, b).
pub(crate) fn gamma_entropy(a: Expr, b: Expr) -> Expr {
    standard_gamma_entropy(a) - b.ln()
}

impl Distribution for Gamma {
    properties!("gamma", batch: rate, rsample: true);

    fn support(&self) -> Constraint {
        Constraint::NonNegative
    }
    fn try_draw(&self, shape: &Shape) -> Result<Tensor> {
        clamp_inside(&gamma_from_log(&sample_log_gamma(&self.concentration, shape)?, &self.rate)?, &self.support())
    }
    fn try_log_prob(&self, x: &Tensor) -> Result<Tensor> {
        elementwise!(gamma_log_prob(x = x, a = &self.concentration, b = &self.rate) => {
            let inside = x.ge(0.0) & x.lt(f64::INFINITY);
            let y = b * inside.select(x, 1.0);
            let is_finite = y.lt(f64::INFINITY);
            log_density(x, inside & is_finite, b.ln() + log_gamma_density(a, is_finite.select(y, 1.0)))
        })
    }
    fn try_cdf(&self, x: &Tensor) -> Result<Tensor> {
        let z = elementwise!(gamma_standardized(x = x, b = &self.rate) => (b * x).max(0.0))?;
        ops::igamma(&self.concentration, &z)
    }
    fn try_icdf(&self, p: &Tensor) -> Result<Tensor> {
        // The quantiles at 0 and 1 are 0 and ∞ for all parameters.
        let is_inside = ops::logical_and(&ops::gt(p, 0)?, &ops::lt(p, 1)?)?;
        let log = log_gamma_quantile(&self.concentration, &ops::where_(&is_inside, p, 0.5)?)?;
        let ends = elementwise!(gamma_ends(p = p) => {
            let p = probability(p);
            p.is_nan().select(p, p.eq(1.0).select(f64::INFINITY, 0.0))
        })?;
        let inner = clamp_inside(&gamma_from_log(&log, &self.rate)?, &self.support())?;
        ops::where_(&is_inside, &inner, &ops::to_dtype(&ends, self.rate.dtype())?)
    }
    fn try_entropy(&self) -> Result<Tensor> {
        elementwise!(gamma_entropy(a = &self.concentration, b = &self.rate) => {
            gamma_entropy(a, b)
        })
    }
    fn try_mean(&self) -> Result<Tensor> {
        elementwise!(gamma_mean(a = &self.concentration, b = &self.rate) => a / b)
    }
    fn try_variance(&self) -> Result<Tensor> {
        elementwise!(gamma_variance(a = &self.concentration, b = &self.rate) => a / (b * b))
    }
}

family! {
    /// The χ² distribution: the distribution of the sum of ν squared standard normal variables, [`Gamma`] with a = ν/2
    /// and b = ½.
    ///
    /// ```
    /// use pellucid::Tensor;
    /// use pellucid::distributions::{Chi2, Distribution};
    ///
    /// let chi2 = Chi2::new(&Tensor::from(3.0));
    /// assert_eq!((chi2.mean().item::<f64>(), chi2.variance().item::<f64>()), (3.0, 6.0));
    /// ```
    Chi2("chi2") {
        /// Returns ν, the degrees of freedom.
        df: Positive,
    }
}

impl Chi2 {
    /// Returns the equivalent gamma distribution.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
    #[panicking_form]
    pub fn try_to_gamma(&self) -> Result<Gamma> {
        Ok(Gamma { concentration: ops::mul(&self.df, 0.5)?, rate: ops::full_like(&self.df.detach(), 0.5)? })
    }
}

impl Distribution for Chi2 {
    properties!("chi2", batch: df, rsample: true);

    fn support(&self) -> Constraint {
        Constraint::NonNegative
    }
    fn try_draw(&self, shape: &Shape) -> Result<Tensor> {
        self.try_to_gamma()?.try_draw(shape)
    }
    fn try_log_prob(&self, x: &Tensor) -> Result<Tensor> {
        self.try_to_gamma()?.try_log_prob(x)
    }
    fn try_cdf(&self, x: &Tensor) -> Result<Tensor> {
        self.try_to_gamma()?.try_cdf(x)
    }
    fn try_icdf(&self, p: &Tensor) -> Result<Tensor> {
        self.try_to_gamma()?.try_icdf(p)
    }
    fn try_entropy(&self) -> Result<Tensor> {
        self.try_to_gamma()?.try_entropy()
    }
    fn try_mean(&self) -> Result<Tensor> {
        self.try_to_gamma()?.try_mean()
    }
    fn try_variance(&self) -> Result<Tensor> {
        self.try_to_gamma()?.try_variance()
    }
}

family! {
    /// Student's t distribution with density (1 + z²/ν)^(−(ν+1)/2) / (σ√ν·B(½, ν/2)), where z = (x − μ)/σ.
    ///
    /// ```
    /// use pellucid::Tensor;
    /// use pellucid::distributions::{Distribution, StudentT};
    ///
    /// let t = StudentT::new(&Tensor::from([4.0, 2.0]), 1.0, 1.0);
    /// assert_eq!(t.variance().to_vec::<f64>(), [2.0, f64::INFINITY]);
    /// ```
    StudentT("student_t") {
        /// Returns ν, the degrees of freedom.
        df: Positive,
        /// Returns μ, the median.
        loc: Real,
        /// Returns σ, the scale.
        scale: Positive,
    }
}

/// Returns the derivative of −(ν + 1)·ln(1 + z²) with respect to ν, where z is proportional to 1/√ν: −ln(1 + z²) +
/// (1 + 1/ν)·z²/(1 + z²), without cancellation for large ν.
fn log_density_slope(z: Expr, df: Expr) -> Expr {
    let is_small = z.abs().lt(1.0);
    let (small, large) = (is_small.select(z, 0.0), is_small.select(1.0, z));
    let square = small * small;
    let share = is_small.select(square / (1.0 + square), (1.0 + (large * large).recip()).recip());
    // ln(1 + q) − q/(1 + q) is ln(1 + q) − q + q·(q/(1 + q)).
    let near = log_ratio_minus(square, 1.0 + square) + square * share;
    share / df - is_small.select(near, log_1p_square(large) - share)
}

impl Distribution for StudentT {
    properties!("student_t", batch: loc, rsample: true);

    fn support(&self) -> Constraint {
        Constraint::Real
    }
    fn try_draw(&self, shape: &Shape) -> Result<Tensor> {
        let z = standard_normal(&self.loc, shape)?;
        let half_df = ops::mul(&ops::to_dtype(&self.df, DType::F64)?, 0.5)?;
        let y = sample_log_gamma(&half_df, shape)?;
        let x = elementwise!(student_t_sample(z = &z, y = &y, a = &half_df, loc = &self.loc, scale = &self.scale) => {
            loc + scale * z * (0.5 * (a.ln() - y)).exp()
        })?;
        ops::to_dtype(&x, self.loc.dtype())
    }
    fn try_log_prob(&self, x: &Tensor) -> Result<Tensor> {
        elementwise!(student_t_log_prob(x = x, df = &self.df, loc = &self.loc, scale = &self.scale) => {
            let z = (x - loc) / scale;
            let (log_ratio, _) = half_step(0.5 * df);
            log_ratio - 0.5 * (df + 1.0) * log_1p_square(z / df.sqrt()) - scale.ln() - HALF_LN_2PI
        };
            d df = g * 0.5 * (half_step(0.5 * df).1 + log_density_slope((x - loc) / scale / df.sqrt(), df));)
    }
    fn try_cdf(&self, x: &Tensor) -> Result<Tensor> {
        let z = elementwise!(student_t_standardized(x = x, loc = &self.loc, scale = &self.scale) => (x - loc) / scale)?;
        let dtype = z.dtype();
        ops::to_dtype(&ops::student_t_cdf(&self.df, &z)?, dtype)
    }
    fn try_entropy(&self) -> Result<Tensor> {
        elementwise!(student_t_entropy(df = &self.df, scale = &self.scale) => {
            // ψ(h + ½) − ψ(h) is 1/(2h) plus the slope, the derivative that `half_step` returns.
            let half = 0.5 * df;
            let (log_ratio, slope) = half_step(half);
            scale.ln() + (half + 0.5) * slope + 0.25 * half.recip() - log_ratio + (HALF_LN_2PI + 0.5)
        })
    }
    fn try_mean(&self) -> Result<Tensor> {
        elementwise!(student_t_mean(df = &self.df, loc = &self.loc) => df.gt(1.0).select(loc, f64::NAN))
    }
    fn try_variance(&self) -> Result<Tensor> {
        elementwise!(student_t_variance(df = &self.df, scale = &self.scale) => {
            let exists = df.gt(2.0);
            let n = exists.select(df, 3.0);
            exists.select(scale * scale * n / (n - 2.0), df.gt(1.0).select(f64::INFINITY, f64::NAN))
        })
    }
}
