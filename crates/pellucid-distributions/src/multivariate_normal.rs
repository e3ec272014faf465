//! The multivariate normal distribution.

use crate::beta::batch_and_event;
use crate::constraint::Constraint;
use crate::distribution::{Distribution, joined};
use crate::noise::standard_normal;
use crate::parameters::float_tensors;
use pellucid_derive::panicking_form;
use pellucid_tensor::ops::TensorOrScalar;
use pellucid_tensor::{Error, Result, Shape, Tensor, ops, unwrap};
use std::f64::consts::PI;

/// The multivariate normal distribution with density e^(−½(x − μ)ᵀΣ⁻¹(x − μ)) / √((2π)ᵈ·det Σ), where Σ = L·Lᵀ.
///
/// Requires the feature `linalg`.
///
/// ```
/// use pellucid::Tensor;
/// use pellucid::distributions::{Distribution, MultivariateNormal};
///
/// let (mean, covariance) = (Tensor::from([0.0, 1.0]), Tensor::from([[2.0, 1.0], [1.0, 2.0]]));
/// let normal = MultivariateNormal::new(&mean, &covariance);
/// assert_eq!(normal.rsample([5]).shape(), [5, 2]);
/// assert_eq!(normal.log_prob(&mean).shape().rank(), 0);
/// ```
#[derive(Clone, Debug)]
pub struct MultivariateNormal {
    /// The mean, `[batch.., d]`.
    loc: Tensor,
    scale: Scale,
}

/// The parameter of the spread, `[batch.., d, d]`.
#[derive(Clone, Debug)]
enum Scale {
    /// The lower triangular factor L.
    Factor(Tensor),
    /// A covariance matrix with a gradient. Its factor is computed in every call, so that every result has its own
    /// graph.
    Covariance(Tensor),
}

impl Scale {
    fn parameter(&self) -> &Tensor {
        match self {
            Scale::Factor(matrix) | Scale::Covariance(matrix) => matrix,
        }
    }
}

impl MultivariateNormal {
    const OP: &'static str = "multivariate_normal";

    fn from_scale(loc: Tensor, scale: Scale, name: &str) -> Result<MultivariateNormal> {
        let (matrix, vector) = (scale.parameter().shape(), loc.shape());
        let (rank, d) = (matrix.rank(), vector.last().copied());
        let batch = match rank >= 2 && vector.rank() >= 1 && matrix[rank - 1] == matrix[rank - 2] {
            true if d == Some(matrix[rank - 1]) => {
                let (leading, _) = matrix.split_at(rank - 2);
                leading.iter().copied().collect::<Shape>().broadcast(&batch_and_event(vector).0)
            }
            _ => None,
        };
        let Some(batch) = batch else {
            let help = format!("`loc` must be [batch.., d] and `{name}` [batch.., d, d]");
            return Err(Error::shapes(Self::OP, [vector, matrix], help));
        };
        let d = d.unwrap_or(0);
        let loc = ops::broadcast_to(&loc, joined(&batch, &[d]))?;
        let expand = |matrix: &Tensor| ops::broadcast_to(matrix, joined(&batch, &[d, d]));
        let scale = match &scale {
            Scale::Factor(matrix) => Scale::Factor(expand(matrix)?),
            Scale::Covariance(matrix) => Scale::Covariance(expand(matrix)?),
        };
        Ok(MultivariateNormal { loc, scale })
    }

    /// Creates the distribution from the mean `[batch.., d]` and the covariance matrix Σ `[batch.., d, d]`.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`]; [`Error::InvalidArgument`] unless Σ is symmetric, if values can be read;
    /// [`Error::Singular`] unless Σ is positive definite; [`Error::DTypeMismatch`] for integers.
    #[panicking_form]
    pub fn try_new<'a>(
        loc: impl Into<TensorOrScalar<'a>>,
        covariance_matrix: impl Into<TensorOrScalar<'a>>,
    ) -> Result<MultivariateNormal> {
        let parameters = [("loc", loc.into()), ("covariance_matrix", covariance_matrix.into())];
        let [loc, covariance] = float_tensors(Self::OP, parameters)?;
        Constraint::Real.check(Self::OP, "loc", &loc)?;
        let shape = covariance.shape();
        if shape.rank() >= 2 && shape[shape.rank() - 1] == shape[shape.rank() - 2] {
            Constraint::Symmetric.check(Self::OP, "covariance_matrix", &covariance)?;
        }
        let factor = ops::cholesky(&covariance.detach(), false)?;
        let scale = if covariance.requires_grad() { Scale::Covariance(covariance) } else { Scale::Factor(factor) };
        MultivariateNormal::from_scale(loc, scale, "covariance_matrix")
    }

    /// Creates the distribution from the mean `[batch.., d]` and the lower triangular L `[batch.., d, d]`.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`]; [`Error::InvalidArgument`] unless L is lower triangular with a positive diagonal, if
    /// values can be read; [`Error::DTypeMismatch`] for integers.
    #[panicking_form]
    pub fn try_from_scale_tril<'a>(
        loc: impl Into<TensorOrScalar<'a>>,
        scale_tril: impl Into<TensorOrScalar<'a>>,
    ) -> Result<MultivariateNormal> {
        let [loc, scale] = float_tensors(Self::OP, [("loc", loc.into()), ("scale_tril", scale_tril.into())])?;
        Constraint::Real.check(Self::OP, "loc", &loc)?;
        Constraint::LowerCholesky.check(Self::OP, "scale_tril", &scale)?;
        MultivariateNormal::from_scale(loc, Scale::Factor(scale), "scale_tril")
    }

    /// Returns μ, `[batch.., d]`.
    pub fn loc(&self) -> &Tensor {
        &self.loc
    }

    /// Returns L, `[batch.., d, d]`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_scale_tril(&self) -> Result<Tensor> {
        match &self.scale {
            Scale::Factor(factor) => Ok(factor.clone()),
            Scale::Covariance(covariance) => ops::cholesky(covariance, false),
        }
    }

    /// Returns Σ = L·Lᵀ, `[batch.., d, d]`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_covariance_matrix(&self) -> Result<Tensor> {
        let factor = self.try_scale_tril()?;
        ops::matmul(&factor, &ops::transpose(&factor, -1, -2)?)
    }

    /// Returns ½·ln det Σ = Σ ln Lₖₖ.
    pub(crate) fn half_log_det(factor: &Tensor) -> Result<Tensor> {
        ops::sum(&ops::ln(&ops::diagonal(factor, 0, -2, -1)?)?, -1)
    }

    /// Returns L⁻¹·v for vectors v `[.., d]`.
    pub(crate) fn whitened(factor: &Tensor, v: &Tensor) -> Result<Tensor> {
        ops::squeeze(&ops::solve_triangular(factor, &ops::unsqueeze(v, -1)?, false, true, false)?, -1)
    }

    /// Returns d, the length of an event.
    pub(crate) fn dimension(&self) -> f64 {
        self.loc.shape()[self.loc.rank() - 1] as f64
    }
}

impl Distribution for MultivariateNormal {
    fn name(&self) -> &'static str {
        Self::OP
    }
    fn batch_shape(&self) -> Shape {
        batch_and_event(self.loc.shape()).0
    }
    fn event_shape(&self) -> Shape {
        batch_and_event(self.loc.shape()).1
    }
    fn has_rsample(&self) -> bool {
        true
    }
    fn support(&self) -> Constraint {
        Constraint::RealVector
    }
    fn try_draw(&self, shape: &Shape) -> Result<Tensor> {
        let z = standard_normal(&self.loc, &joined(shape, &self.event_shape()))?;
        let offset = ops::squeeze(&ops::matmul(&self.try_scale_tril()?, &ops::unsqueeze(&z, -1)?)?, -1)?;
        ops::add(&self.loc, &offset)
    }
    fn try_log_prob(&self, x: &Tensor) -> Result<Tensor> {
        let factor = self.try_scale_tril()?;
        let z = Self::whitened(&factor, &ops::sub(x, &self.loc)?)?;
        let norm = ops::add(&Self::half_log_det(&factor)?, 0.5 * self.dimension() * (2.0 * PI).ln())?;
        ops::sub(&ops::mul(&ops::sum(&ops::square(&z)?, -1)?, -0.5)?, &norm)
    }
    fn try_entropy(&self) -> Result<Tensor> {
        ops::add(&Self::half_log_det(&self.try_scale_tril()?)?, 0.5 * self.dimension() * (1.0 + (2.0 * PI).ln()))
    }
    fn try_mean(&self) -> Result<Tensor> {
        Ok(self.loc.clone())
    }
    fn try_variance(&self) -> Result<Tensor> {
        match &self.scale {
            Scale::Factor(factor) => ops::sum(&ops::square(factor)?, -1),
            Scale::Covariance(covariance) => ops::diagonal(covariance, 0, -2, -1),
        }
    }
}
