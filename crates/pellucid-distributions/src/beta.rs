//! Distributions of proportions: [`Beta`], [`Dirichlet`].

use crate::constraint::Constraint;
use crate::distribution::{Distribution, joined};
use crate::gamma::standard_gamma_entropy;
use crate::gamma_quantile::sample_log_gamma;
use crate::noise::properties;
use crate::parameters::{elementwise, family, float_tensors};
use crate::stirling::{HALF_LN_2PI, SERIES_BEGIN, deviance, log_beta, log_factorial_excess, remainder};
use crate::support::{clamp_inside, log_density, masked_log_density, xlog1py, xlogy};
use pellucid_derive::panicking_form;
use pellucid_tensor::formula::Expr;
use pellucid_tensor::ops::TensorOrScalar;
use pellucid_tensor::{Error, Result, Shape, Tensor, formula, ops, unwrap};

family! {
    /// The beta distribution with density x^(a−1)(1 − x)^(b−1) / B(a, b) for 0 ≤ x ≤ 1.
    ///
    /// A sample is X/(X + Y) for gamma samples X and Y, computed from their logarithms. Gradients are
    /// computed as for [`Gamma`](crate::Gamma).
    ///
    /// ```
    /// use pellucid::Tensor;
    /// use pellucid::distributions::{Beta, Distribution};
    ///
    /// let share = Beta::new(&Tensor::from(1.0), 3.0);
    /// assert_eq!(share.mean().item::<f64>(), 0.25);
    /// ```
    Beta("beta") {
        /// Returns a, the first shape parameter.
        concentration1: Positive,
        /// Returns b, the second shape parameter.
        concentration0: Positive,
    }
}

/// Returns ln(x·y·p(x)) for the density p of Beta(a, b), y = 1 − x and a, b ≥ 10. All terms are small near the mode.
pub(crate) fn log_logit_density(a: Expr, b: Expr, x: Expr, y: Expr) -> Expr {
    let n = a + b;
    0.5 * (a / n * b).ln() - HALF_LN_2PI - remainder(a) - remainder(b) + remainder(n)
        - deviance(a, n * x)
        - deviance(b, n * y)
}

/// Returns the logarithm of the density at x in [0, 1].
fn log_beta_density(a: Expr, b: Expr, x: Expr) -> Expr {
    let is_large = a.ge(SERIES_BEGIN) & b.ge(SERIES_BEGIN) & x.gt(0.0) & x.lt(1.0);
    let (c, d, at) = (is_large.select(a, SERIES_BEGIN), is_large.select(b, SERIES_BEGIN), is_large.select(x, 0.5));
    let series = log_logit_density(c, d, at, 1.0 - at) - at.ln() - (-at).ln_1p();
    let (c, d, at) = (is_large.select(1.0, a), is_large.select(1.0, b), is_large.select(0.5, x));
    is_large.select(series, xlogy(c - 1.0, at) + xlog1py(d - 1.0, -at) - log_beta(c, d))
}

/// Returns the entropy of Beta(a, b), computed from entropies of gamma distributions, which do not cancel for large a
/// and b.
pub(crate) fn beta_entropy(a: Expr, b: Expr) -> Expr {
    let n = a + b;
    standard_gamma_entropy(a) + standard_gamma_entropy(b) - standard_gamma_entropy(n) - n.digamma()
}

impl Distribution for Beta {
    properties!("beta", batch: concentration1, rsample: true);

    fn support(&self) -> Constraint {
        Constraint::UnitInterval
    }
    fn try_draw(&self, shape: &Shape) -> Result<Tensor> {
        let x = sample_log_gamma(&self.concentration1, shape)?;
        let y = sample_log_gamma(&self.concentration0, shape)?;
        let share = elementwise!(beta_sample(x = &x, y = &y) => (x - y).sigmoid())?;
        clamp_inside(&ops::to_dtype(&share, self.concentration1.dtype())?, &self.support())
    }
    fn try_log_prob(&self, x: &Tensor) -> Result<Tensor> {
        elementwise!(beta_log_prob(x = x, a = &self.concentration1, b = &self.concentration0) => {
            let inside = x.ge(0.0) & x.le(1.0);
            log_density(x, inside, log_beta_density(a, b, inside.select(x, 0.5)))
        })
    }
    fn try_cdf(&self, x: &Tensor) -> Result<Tensor> {
        let share = elementwise!(beta_share(x = x, a = &self.concentration1) => (0.0 * a + x).clamp(0.0, 1.0))?;
        ops::betainc(&self.concentration1, &self.concentration0, &share)
    }
    fn try_entropy(&self) -> Result<Tensor> {
        elementwise!(beta_entropy(a = &self.concentration1, b = &self.concentration0) => {
            beta_entropy(a, b)
        })
    }
    fn try_mean(&self) -> Result<Tensor> {
        elementwise!(beta_mean(a = &self.concentration1, b = &self.concentration0) => a / (a + b))
    }
    fn try_variance(&self) -> Result<Tensor> {
        elementwise!(beta_variance(a = &self.concentration1, b = &self.concentration0) => {
            let sum = a + b;
            (a / sum) * (b / sum) / (sum + 1.0)
        })
    }
}

/// The Dirichlet distribution with density Π xₖ^(αₖ−1) / B(α) on the simplex: vectors of nonnegative elements that sum
/// to 1.
///
/// A sample is the softmax of the logarithms of gamma samples. Gradients are computed as for
/// [`Gamma`](crate::Gamma).
///
/// ```
/// use pellucid::Tensor;
/// use pellucid::distributions::{Dirichlet, Distribution};
///
/// let shares = Dirichlet::new(&Tensor::from([1.0, 1.0, 2.0]));
/// assert_eq!(shares.mean().to_vec::<f64>(), [0.25, 0.25, 0.5]);
/// assert_eq!(shares.sample([2]).shape(), [2, 3]);
/// ```
#[derive(Clone, Debug)]
pub struct Dirichlet {
    concentration: Tensor,
}

impl Dirichlet {
    /// Creates the distribution from the concentrations α `[batch.., K]`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `concentration` is positive, if values can be read; [`Error::ShapeMismatch`]
    /// for a 0-d tensor; [`Error::DTypeMismatch`] for integers.
    #[panicking_form]
    pub fn try_new<'a>(concentration: impl Into<TensorOrScalar<'a>>) -> Result<Dirichlet> {
        let [concentration] = float_tensors("dirichlet", [("concentration", concentration.into())])?;
        if concentration.rank() == 0 {
            let help = "`concentration` must have the shape [batch.., K]";
            return Err(Error::shapes("dirichlet", [concentration.shape()], help));
        }
        Constraint::Positive.check("dirichlet", "concentration", &concentration)?;
        Ok(Dirichlet { concentration })
    }

    /// Returns α, the concentration of every class.
    pub fn concentration(&self) -> &Tensor {
        &self.concentration
    }
}

/// Splits the shape of a vector parameter into the batch shape and the event shape.
pub(crate) fn batch_and_event(shape: &Shape) -> (Shape, Shape) {
    let (batch, event) = shape.split_at(shape.rank() - 1);
    (batch.iter().copied().collect(), event.iter().copied().collect())
}

impl Distribution for Dirichlet {
    fn name(&self) -> &'static str {
        "dirichlet"
    }
    fn batch_shape(&self) -> Shape {
        batch_and_event(self.concentration.shape()).0
    }
    fn event_shape(&self) -> Shape {
        batch_and_event(self.concentration.shape()).1
    }
    fn has_rsample(&self) -> bool {
        true
    }
    fn support(&self) -> Constraint {
        Constraint::Simplex
    }
    fn try_draw(&self, shape: &Shape) -> Result<Tensor> {
        let logs = sample_log_gamma(&self.concentration, &joined(shape, &self.event_shape()))?;
        clamp_inside(&ops::to_dtype(&ops::softmax(&logs, -1)?, self.concentration.dtype())?, &self.support())
    }
    fn try_log_prob(&self, x: &Tensor) -> Result<Tensor> {
        let density = formula! {
            static dirichlet_log_prob(x, a) = {
                // The term n·ln n − n of ln Γ(n), n = Σ aₖ, is distributed over the other terms.
                let n = a.row_sum();
                let is_large = a.ge(SERIES_BEGIN) & x.gt(0.0);
                let (c, at) = (is_large.select(a, SERIES_BEGIN), is_large.select(x, 1.0));
                let large = (c / at).ln() - deviance(c, n * at) - log_factorial_excess(c);
                let (c, at) = (is_large.select(1.0, a), is_large.select(1.0, x));
                let small = xlogy(c - 1.0, at) - c.lgamma() + c * n.ln() - n * at;
                // The terms −n·xₖ sum to −n only up to rounding, because the sum of x is not exactly 1.
                let slack = n * (x.row_sum() - 1.0);
                is_large.select(large, small).row_sum() + slack + log_factorial_excess(n) - n.ln()
            };
        };
        let inside = self.support().try_contains(x)?;
        let safe = ops::where_(&ops::unsqueeze(&inside, -1)?, x, 0.5)?;
        let value = ops::squeeze(&ops::map_rows(density, &[&safe, &self.concentration], &[], -1)?, -1)?;
        masked_log_density(x, 1, &inside, &value)
    }
    fn try_entropy(&self) -> Result<Tensor> {
        let entropy = formula! {
            static dirichlet_entropy(a) = {
                let (n, count) = (a.row_sum(), (0.0 * a + 1.0).row_sum());
                standard_gamma_entropy(a).row_sum() - standard_gamma_entropy(n) - (count - 1.0) * n.digamma()
            };
        };
        ops::squeeze(&ops::map_rows(entropy, &[&self.concentration], &[], -1)?, -1)
    }
    fn try_mean(&self) -> Result<Tensor> {
        ops::map_rows(formula! { static dirichlet_mean(a) = a / a.row_sum(); }, &[&self.concentration], &[], -1)
    }
    fn try_variance(&self) -> Result<Tensor> {
        let variance = formula! {
            static dirichlet_variance(a) = {
                let sum = a.row_sum();
                (a / sum) * ((sum - a) / sum) / (sum + 1.0)
            };
        };
        ops::map_rows(variance, &[&self.concentration], &[], -1)
    }
}
