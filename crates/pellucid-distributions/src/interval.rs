//! Distributions on an interval: [`Uniform`], [`Kumaraswamy`].

use crate::constraint::Constraint;
use crate::distribution::Distribution;
use crate::location_scale::EULER_GAMMA;
use crate::noise::{draw_by, properties};
use crate::parameters::{broadcast_parameters, elementwise, family};
use crate::stirling::{log_gamma_second_difference, log_gamma_step};
use crate::support::{clamp_inside, log_density, probability, xlogy, zero_times};
use pellucid_derive::panicking_form;
use pellucid_tensor::formula::Expr;
use pellucid_tensor::ops::TensorOrScalar;
use pellucid_tensor::{Error, Result, Shape, Tensor, unwrap};

/// The uniform distribution with density 1 / (high − low) for low ≤ x ≤ high.
///
/// ```
/// use pellucid::Tensor;
/// use pellucid::distributions::{Distribution, Uniform};
///
/// let angle = Uniform::new(-1.0, &Tensor::from(3.0));
/// assert_eq!(angle.cdf(&Tensor::from([-2.0, 0.0, 5.0])).to_vec::<f64>(), [0.0, 0.25, 1.0]);
/// ```
#[derive(Clone, Debug)]
pub struct Uniform {
    low: Tensor,
    high: Tensor,
}

impl Uniform {
    /// Creates the distribution from tensors or numbers, which broadcast.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless low < high, if values can be read; [`Error::ShapeMismatch`],
    /// [`Error::DTypeMismatch`] for integers.
    #[panicking_form]
    pub fn try_new<'a>(low: impl Into<TensorOrScalar<'a>>, high: impl Into<TensorOrScalar<'a>>) -> Result<Uniform> {
        let bounds = [("low", low.into(), Constraint::Real), ("high", high.into(), Constraint::Real)];
        let [low, high] = broadcast_parameters("uniform", bounds)?;
        if low.is_readable() && high.is_readable() {
            let (lows, highs) = (low.try_to_vec::<f64>()?, high.try_to_vec::<f64>()?);
            if let Some((low, high)) = lows.iter().zip(&highs).find(|(low, high)| low >= high) {
                let reason = format!("`low` must be below `high`, got {low:?} and {high:?}");
                return Err(Error::invalid("uniform", reason));
            }
        }
        Ok(Uniform { low, high })
    }

    /// Returns the lower bound.
    pub fn low(&self) -> &Tensor {
        &self.low
    }

    /// Returns the upper bound.
    pub fn high(&self) -> &Tensor {
        &self.high
    }
}

impl Distribution for Uniform {
    properties!("uniform", batch: low, rsample: true);

    fn support(&self) -> Constraint {
        Constraint::Interval(self.low.clone(), self.high.clone())
    }
    fn try_draw(&self, shape: &Shape) -> Result<Tensor> {
        draw_by(&self.low, shape, |u| self.try_icdf(u))
    }
    fn try_log_prob(&self, x: &Tensor) -> Result<Tensor> {
        elementwise!(uniform_log_prob(x = x, low = &self.low, high = &self.high) => {
            log_density(x, x.ge(low) & x.le(high), -(high - low).ln())
        })
    }
    fn try_cdf(&self, x: &Tensor) -> Result<Tensor> {
        elementwise!(uniform_cdf(x = x, low = &self.low, high = &self.high) => {
            ((x - low) / (high - low)).clamp(0.0, 1.0)
        })
    }
    fn try_icdf(&self, p: &Tensor) -> Result<Tensor> {
        elementwise!(uniform_icdf(p = p, low = &self.low, high = &self.high) => {
            low + probability(p) * (high - low)
        })
    }
    fn try_entropy(&self) -> Result<Tensor> {
        elementwise!(uniform_entropy(low = &self.low, high = &self.high) => (high - low).ln())
    }
    fn try_mean(&self) -> Result<Tensor> {
        elementwise!(uniform_mean(low = &self.low, high = &self.high) => 0.5 * (low + high))
    }
    fn try_variance(&self) -> Result<Tensor> {
        elementwise!(uniform_variance(low = &self.low, high = &self.high) => (high - low) * (high - low) / 12.0)
    }
}

family! {
    /// The Kumaraswamy distribution with density abx^(a−1)(1 − xᵃ)^(b−1) for 0 ≤ x ≤ 1.
    ///
    /// ```
    /// use pellucid::Tensor;
    /// use pellucid::distributions::{Distribution, Kumaraswamy};
    ///
    /// let share = Kumaraswamy::new(1.0, &Tensor::from(1.0));
    /// assert!((share.cdf(&Tensor::from(0.25)).item::<f64>() - 0.25).abs() < 1e-15);
    /// ```
    Kumaraswamy("kumaraswamy") {
        /// Returns a, the first shape parameter.
        concentration1: Positive,
        /// Returns b, the second shape parameter.
        concentration0: Positive,
    }
}

/// Returns ln(1 − xᵃ) for 0 ≤ x ≤ 1.
fn log_1m_power(x: Expr, a: Expr) -> Expr {
    let is_inner = x.gt(0.0) & x.lt(1.0);
    let log_power = a * is_inner.select(x, 0.5).ln();
    let is_small = log_power.lt(-std::f64::consts::LN_2);
    let small = (-is_small.select(log_power, -1.0).exp()).ln_1p();
    let large = (-is_small.select(-0.5, log_power).exp_m1()).ln();
    is_inner.select(is_small.select(small, large), x.le(0.0).select(0.0, f64::NEG_INFINITY))
}

/// Returns ln E[x], where E[x] = b·B(1 + 1/a, b).
fn log_mean(a: Expr, b: Expr) -> Expr {
    let step = a.recip();
    (1.0 + step).lgamma() - log_gamma_step(1.0 + b, step)
}

impl Distribution for Kumaraswamy {
    properties!("kumaraswamy", batch: concentration1, rsample: true);

    fn support(&self) -> Constraint {
        Constraint::UnitInterval
    }
    fn try_draw(&self, shape: &Shape) -> Result<Tensor> {
        let x = draw_by(&self.concentration1, shape, |u| self.try_icdf(u))?;
        clamp_inside(&x, &self.support())
    }
    fn try_log_prob(&self, x: &Tensor) -> Result<Tensor> {
        elementwise!(kumaraswamy_log_prob(x = x, a = &self.concentration1, b = &self.concentration0) => {
            let inside = x.ge(0.0) & x.le(1.0);
            let share = inside.select(x, 0.5);
            let ends = xlogy(a - 1.0, share) + zero_times(b - 1.0, log_1m_power(share, a));
            log_density(x, inside, a.ln() + b.ln() + ends)
        })
    }
    fn try_cdf(&self, x: &Tensor) -> Result<Tensor> {
        elementwise!(kumaraswamy_cdf(x = x, a = &self.concentration1, b = &self.concentration0) => {
            let inside = x.gt(0.0) & x.lt(1.0);
            let value = -(b * log_1m_power(inside.select(x, 0.5), a)).exp_m1();
            inside.select(value, x.is_nan().select(x, x.ge(1.0).select(1.0, 0.0)))
        })
    }
    fn try_icdf(&self, p: &Tensor) -> Result<Tensor> {
        elementwise!(kumaraswamy_icdf(p = p, a = &self.concentration1, b = &self.concentration0) => {
            ((-((-probability(p)).ln_1p() / b).exp_m1()).ln() / a).exp()
        })
    }
    fn try_entropy(&self) -> Result<Tensor> {
        elementwise!(kumaraswamy_entropy(a = &self.concentration1, b = &self.concentration0) => {
            let harmonic = (b + 1.0).digamma() + EULER_GAMMA;
            1.0 - b.recip() + (1.0 - a.recip()) * harmonic - a.ln() - b.ln()
        })
    }
    fn try_mean(&self) -> Result<Tensor> {
        elementwise!(kumaraswamy_mean(a = &self.concentration1, b = &self.concentration0) => log_mean(a, b).exp())
    }
    fn try_variance(&self) -> Result<Tensor> {
        elementwise!(kumaraswamy_variance(a = &self.concentration1, b = &self.concentration0) => {
            // E[x²]/E[x]² − 1 without cancellation for large a.
            let difference = |z: Expr| log_gamma_second_difference(z, a.recip());
            let ratio = difference(0.0 * b + 1.0) - difference(1.0 + b);
            (2.0 * log_mean(a, b)).exp() * ratio.exp_m1()
        })
    }
}
