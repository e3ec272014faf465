//! Distributions of proportions: [`Beta`], [`Dirichlet`].

use crate::constraint::Constraint;
use crate::distribution::{Distribution, joined};
use crate::gamma::zero_times;
use crate::gamma_quantile::sample_log_gamma;
use crate::noise::properties;
use crate::parameters::{elementwise, family, float_tensors};
use pellucid_derive::panicking_form;
use pellucid_tensor::formula::Expr;
use pellucid_tensor::ops::TensorOrScalar;
use pellucid_tensor::{Error, Result, Shape, Tensor, formula, ops, unwrap};

family! {
    /// The beta distribution with density x^(a−1)(1 − x)^(b−1) / B(a, b) for 0 < x < 1.
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
        /// Returns a.
        concentration1: Positive,
        /// Returns b.
        concentration0: Positive,
    }
}

/// Returns ln B(a, b).
pub(crate) fn log_beta(a: Expr, b: Expr) -> Expr {
    a.lgamma() + b.lgamma() - (a + b).lgamma()
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
        ops::to_dtype(&share, self.concentration1.dtype())
    }
    fn try_log_prob(&self, x: &Tensor) -> Result<Tensor> {
        elementwise!(beta_log_prob(x = x, a = &self.concentration1, b = &self.concentration0) => {
            let inside = x.ge(0.0) & x.le(1.0);
            let x = inside.select(x, 0.5);
            let value = zero_times(a - 1.0, x.ln()) + zero_times(b - 1.0, (-x).ln_1p()) - log_beta(a, b);
            inside.select(value, f64::NEG_INFINITY)
        })
    }
    fn try_entropy(&self) -> Result<Tensor> {
        elementwise!(beta_entropy(a = &self.concentration1, b = &self.concentration0) => {
            log_beta(a, b) - (a - 1.0) * a.digamma() - (b - 1.0) * b.digamma() + (a + b - 2.0) * (a + b).digamma()
        })
    }
    fn try_mean(&self) -> Result<Tensor> {
        elementwise!(beta_mean(a = &self.concentration1, b = &self.concentration0) => a / (a + b))
    }
    fn try_variance(&self) -> Result<Tensor> {
        elementwise!(beta_variance(a = &self.concentration1, b = &self.concentration0) => {
            let sum = a + b;
            a * b / (sum * sum * (sum + 1.0))
        })
    }
}

/// The Dirichlet distribution with density Π xₖ^(αₖ−1) / B(α) for vectors of nonnegative elements with the sum 1.
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
    /// Creates the distribution with α `[batch.., K]`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `concentration` is above 0, if values can be read; [`Error::ShapeMismatch`]
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

    /// Returns α.
    pub fn concentration(&self) -> &Tensor {
        &self.concentration
    }
}

/// Splits the shape of a parameter of vectors into the batch shape and the event shape.
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
        ops::to_dtype(&ops::softmax(&logs, -1)?, self.concentration.dtype())
    }
    fn try_log_prob(&self, x: &Tensor) -> Result<Tensor> {
        let density = formula! {
            static dirichlet_log_prob(x, a) = {
                let inside = x.ge(0.0);
                let term = zero_times(a - 1.0, inside.select(x, 1.0).ln()) - a.lgamma();
                inside.select(term, f64::NEG_INFINITY).row_sum() + a.row_sum().lgamma()
            };
        };
        ops::squeeze(&ops::map_rows(density, &[x, &self.concentration], &[], -1)?, -1)
    }
    fn try_entropy(&self) -> Result<Tensor> {
        let entropy = formula! {
            static dirichlet_entropy(a) = {
                let (sum, count) = (a.row_sum(), (0.0 * a + 1.0).row_sum());
                let terms = (a.lgamma() - (a - 1.0) * a.digamma()).row_sum();
                terms - sum.lgamma() + (sum - count) * sum.digamma()
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
                a * (sum - a) / (sum * sum * (sum + 1.0))
            };
        };
        ops::map_rows(variance, &[&self.concentration], &[], -1)
    }
}
