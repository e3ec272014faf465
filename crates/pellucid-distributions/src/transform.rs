//! Invertible functions of one number, for [`TransformedDistribution`](crate::TransformedDistribution).

use crate::constraint::Constraint;
use crate::parameters::{elementwise, float_tensors};
use crate::support::{beyond, clamp_inside, xlogy};
use pellucid_derive::panicking_form;
use pellucid_tensor::ops::TensorOrScalar;
use pellucid_tensor::{DType, Error, Result, Shape, Tensor, ops, unwrap};
use std::fmt;
use std::sync::Arc;

/// An invertible, differentiable function y = f(x), applied to every element.
pub trait Transform: fmt::Debug + Send + Sync {
    /// Applies the transform: returns f(x).
    ///
    /// # Panics
    /// Panics if [`try_forward`](Self::try_forward) returns an error.
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        unwrap(self.try_forward(x))
    }

    /// Applies the transform: returns f(x).
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`](pellucid_tensor::Error::ShapeMismatch) if x does not broadcast with the parameters.
    fn try_forward(&self, x: &Tensor) -> Result<Tensor>;

    /// Applies the inverse: returns f⁻¹(y).
    ///
    /// # Panics
    /// Panics if [`try_inverse`](Self::try_inverse) returns an error.
    #[track_caller]
    fn inverse(&self, y: &Tensor) -> Tensor {
        unwrap(self.try_inverse(y))
    }

    /// Applies the inverse: returns f⁻¹(y).
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`](pellucid_tensor::Error::ShapeMismatch) if y does not broadcast with the parameters.
    fn try_inverse(&self, y: &Tensor) -> Result<Tensor>;

    /// Returns ln |f'(x)|, where y is f(x).
    ///
    /// # Panics
    /// Panics if [`try_log_abs_det_jacobian`](Self::try_log_abs_det_jacobian) returns an error.
    #[track_caller]
    fn log_abs_det_jacobian(&self, x: &Tensor, y: &Tensor) -> Tensor {
        unwrap(self.try_log_abs_det_jacobian(x, y))
    }

    /// Returns ln |f'(x)|, where y is f(x).
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`](pellucid_tensor::Error::ShapeMismatch) if x does not broadcast with the parameters.
    fn try_log_abs_det_jacobian(&self, x: &Tensor, y: &Tensor) -> Result<Tensor>;

    /// Returns a mask of the parameters for which f is increasing.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
    #[panicking_form]
    fn try_is_increasing(&self) -> Result<Tensor> {
        Tensor::try_from_nested(true)
    }

    /// Returns the codomain of f.
    fn codomain(&self) -> Constraint {
        Constraint::Real
    }

    /// Returns f(x), clamped to the nearest number inside the codomain if it rounds to a bound. Sampling calls this
    /// method.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`](pellucid_tensor::Error::ShapeMismatch) if x does not broadcast with the parameters.
    #[panicking_form]
    fn try_inner_forward(&self, x: &Tensor) -> Result<Tensor> {
        clamp_inside(&self.try_forward(x)?, &self.codomain())
    }

    /// Returns f⁻¹(y). For y outside the codomain, returns −∞ or ∞: the limit of x at which f(x) approaches the bound
    /// that is closer to y.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`](pellucid_tensor::Error::ShapeMismatch) if y does not broadcast with the parameters.
    #[panicking_form]
    fn try_extended_inverse(&self, y: &Tensor) -> Result<Tensor> {
        let (below, above) = beyond(y, &self.codomain())?;
        let is_outside = ops::logical_or(&below, &above)?;
        let inner = clamp_inside(&y.detach(), &self.codomain())?;
        let x = self.try_inverse(&ops::where_(&is_outside, &inner, y)?)?;
        let is_lower_end = ops::eq(&below, &ops::to_dtype(&self.try_is_increasing()?, DType::Bool)?)?;
        let end = ops::where_(&is_lower_end, &ops::full_like(&x.detach(), f64::NEG_INFINITY)?, f64::INFINITY)?;
        ops::where_(&is_outside, &end, &x)
    }

    /// Returns a and b if f(x) = a + b·x, so that the mean and the variance can be transformed; `None` for other
    /// transforms.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
    #[panicking_form]
    fn try_affine_coefficients(&self) -> Result<Option<(Tensor, Tensor)>> {
        Ok(None)
    }

    /// Returns the broadcast shape of the parameters.
    fn parameter_shape(&self) -> Shape {
        Shape::scalar()
    }

    /// Returns the names and the parameters of the functions that f applies, for comparison with other transforms;
    /// `None` if f cannot be compared.
    fn signature(&self) -> Option<Vec<(&'static str, Vec<Tensor>)>> {
        None
    }

    /// Returns true if f and g apply the same functions with equal parameters. Parameters that cannot be read without
    /// waiting are assumed to be equal.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
    #[panicking_form]
    fn try_is_equal(&self, g: &dyn Transform) -> Result<bool> {
        let (Some(a), Some(b)) = (self.signature(), g.signature()) else { return Ok(false) };
        if a.len() != b.len() {
            return Ok(false);
        }
        for ((name, parameters), (other, others)) in a.iter().zip(&b) {
            if name != other || parameters.len() != others.len() {
                return Ok(false);
            }
            for (x, y) in parameters.iter().zip(others) {
                if !is_equal_parameter(x, y)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

/// Returns true if two tensors have equal elements after broadcasting, or cannot be read without waiting.
fn is_equal_parameter(x: &Tensor, y: &Tensor) -> Result<bool> {
    if !x.is_readable() || !y.is_readable() {
        return Ok(true);
    }
    match x.shape().broadcast(y.shape()) {
        Some(_) => ops::all(&ops::eq(x.detach(), y.detach())?, ..)?.try_item::<bool>(),
        None => Ok(false),
    }
}

/// The transform y = a + b·x.
///
/// ```
/// use pellucid::Tensor;
/// use pellucid::distributions::{AffineTransform, Transform};
///
/// let fahrenheit = AffineTransform::new(32.0, &Tensor::from(1.8));
/// assert_eq!(fahrenheit.forward(&Tensor::from(100.0)).item::<f64>(), 212.0);
/// ```
#[derive(Clone, Debug)]
pub struct AffineTransform {
    loc: Tensor,
    scale: Tensor,
}

impl AffineTransform {
    /// Creates the transform from a and b, tensors or numbers, which broadcast with each other and with x.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`](pellucid_tensor::Error::ShapeMismatch);
    /// [`Error::DTypeMismatch`](pellucid_tensor::Error::DTypeMismatch) for integers.
    #[panicking_form]
    pub fn try_new<'a>(
        loc: impl Into<TensorOrScalar<'a>>,
        scale: impl Into<TensorOrScalar<'a>>,
    ) -> Result<AffineTransform> {
        let [loc, scale] = float_tensors("affine_transform", [("loc", loc.into()), ("scale", scale.into())])?;
        if loc.shape().broadcast(scale.shape()).is_none() {
            let help = "`loc` and `scale` must broadcast";
            return Err(Error::shapes("affine_transform", [loc.shape(), scale.shape()], help));
        }
        Ok(AffineTransform { loc, scale })
    }
}

impl Transform for AffineTransform {
    fn try_forward(&self, x: &Tensor) -> Result<Tensor> {
        elementwise!(affine(x = x, loc = &self.loc, scale = &self.scale) => loc + scale * x)
    }
    fn try_inverse(&self, y: &Tensor) -> Result<Tensor> {
        elementwise!(affine_inverse(y = y, loc = &self.loc, scale = &self.scale) => (y - loc) / scale)
    }
    fn try_log_abs_det_jacobian(&self, x: &Tensor, _: &Tensor) -> Result<Tensor> {
        elementwise!(affine_jacobian(x = x, scale = &self.scale) => 0.0 * x + scale.abs().ln())
    }
    fn parameter_shape(&self) -> Shape {
        self.loc.shape().broadcast(self.scale.shape()).unwrap_or_else(Shape::scalar)
    }
    fn try_affine_coefficients(&self) -> Result<Option<(Tensor, Tensor)>> {
        Ok(Some((self.loc.clone(), self.scale.clone())))
    }
    fn signature(&self) -> Option<Vec<(&'static str, Vec<Tensor>)>> {
        Some(vec![("affine", vec![self.loc.clone(), self.scale.clone()])])
    }
    fn try_is_increasing(&self) -> Result<Tensor> {
        ops::gt(self.scale.detach(), 0)
    }
}

/// The transform y = eˣ.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExpTransform;

impl Transform for ExpTransform {
    fn try_forward(&self, x: &Tensor) -> Result<Tensor> {
        ops::exp(x)
    }
    fn try_inverse(&self, y: &Tensor) -> Result<Tensor> {
        ops::ln(y)
    }
    fn try_log_abs_det_jacobian(&self, x: &Tensor, _: &Tensor) -> Result<Tensor> {
        Ok(x.clone())
    }
    fn signature(&self) -> Option<Vec<(&'static str, Vec<Tensor>)>> {
        Some(vec![("exp", Vec::new())])
    }
    fn codomain(&self) -> Constraint {
        Constraint::Positive
    }
}

/// The transform y = 1/(1 + e⁻ˣ).
#[derive(Clone, Copy, Debug, Default)]
pub struct SigmoidTransform;

impl Transform for SigmoidTransform {
    fn try_forward(&self, x: &Tensor) -> Result<Tensor> {
        ops::sigmoid(x)
    }
    fn try_inverse(&self, y: &Tensor) -> Result<Tensor> {
        ops::logit(y)
    }
    fn try_log_abs_det_jacobian(&self, x: &Tensor, _: &Tensor) -> Result<Tensor> {
        elementwise!(sigmoid_jacobian(x = x) => crate::location_scale::log_logistic_density(x))
    }
    fn signature(&self) -> Option<Vec<(&'static str, Vec<Tensor>)>> {
        Some(vec![("sigmoid", Vec::new())])
    }
    fn codomain(&self) -> Constraint {
        Constraint::OpenUnitInterval
    }
}

/// The transform y = tanh x.
#[derive(Clone, Copy, Debug, Default)]
pub struct TanhTransform;

impl Transform for TanhTransform {
    fn try_forward(&self, x: &Tensor) -> Result<Tensor> {
        ops::tanh(x)
    }
    fn try_inverse(&self, y: &Tensor) -> Result<Tensor> {
        ops::atanh(y)
    }
    fn try_log_abs_det_jacobian(&self, x: &Tensor, _: &Tensor) -> Result<Tensor> {
        // tanh'(x) is 4·σ'(2x).
        elementwise!(tanh_jacobian(x = x) => crate::location_scale::log_logistic_density(2.0 * x) + 4f64.ln())
    }
    fn signature(&self) -> Option<Vec<(&'static str, Vec<Tensor>)>> {
        Some(vec![("tanh", Vec::new())])
    }
    fn codomain(&self) -> Constraint {
        Constraint::OpenInterval(Tensor::from(-1f32), Tensor::from(1f32))
    }
}

/// The transform y = ln(1 + eˣ).
#[derive(Clone, Copy, Debug, Default)]
pub struct SoftplusTransform;

impl Transform for SoftplusTransform {
    fn try_forward(&self, x: &Tensor) -> Result<Tensor> {
        ops::softplus(x)
    }
    fn try_inverse(&self, y: &Tensor) -> Result<Tensor> {
        elementwise!(softplus_inverse(y = y) => y + (-(-y).exp_m1()).ln())
    }
    fn try_log_abs_det_jacobian(&self, x: &Tensor, _: &Tensor) -> Result<Tensor> {
        ops::logsigmoid(x)
    }
    fn signature(&self) -> Option<Vec<(&'static str, Vec<Tensor>)>> {
        Some(vec![("softplus", Vec::new())])
    }
    fn codomain(&self) -> Constraint {
        Constraint::Positive
    }
}

/// The transform y = xᵖ for x > 0 and p ≠ 0.
#[derive(Clone, Debug)]
pub struct PowerTransform {
    exponent: Tensor,
}

impl PowerTransform {
    /// Creates the transform from p, a tensor or a number, which broadcasts with x.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`](pellucid_tensor::Error::DTypeMismatch) for integers.
    #[panicking_form]
    pub fn try_new<'a>(exponent: impl Into<TensorOrScalar<'a>>) -> Result<PowerTransform> {
        let [exponent] = float_tensors("power_transform", [("exponent", exponent.into())])?;
        Ok(PowerTransform { exponent })
    }
}

impl Transform for PowerTransform {
    fn try_forward(&self, x: &Tensor) -> Result<Tensor> {
        ops::pow(x, &self.exponent)
    }
    fn try_inverse(&self, y: &Tensor) -> Result<Tensor> {
        ops::pow(y, &ops::div(1.0, &self.exponent)?)
    }
    fn try_log_abs_det_jacobian(&self, x: &Tensor, _: &Tensor) -> Result<Tensor> {
        elementwise!(power_jacobian(x = x, p = &self.exponent) => p.abs().ln() + xlogy(p - 1.0, x))
    }
    fn parameter_shape(&self) -> Shape {
        self.exponent.shape().clone()
    }
    fn signature(&self) -> Option<Vec<(&'static str, Vec<Tensor>)>> {
        Some(vec![("power", vec![self.exponent.clone()])])
    }
    fn try_is_increasing(&self) -> Result<Tensor> {
        ops::gt(self.exponent.detach(), 0)
    }
    fn codomain(&self) -> Constraint {
        Constraint::Positive
    }
}

/// A composition of transforms, applied from first to last.
///
/// ```
/// use pellucid::Tensor;
/// use pellucid::distributions::{AffineTransform, ComposeTransform, ExpTransform, Transform};
///
/// let affine = ComposeTransform::part(AffineTransform::new(1.0, 2.0));
/// let f = ComposeTransform::new([affine, ComposeTransform::part(ExpTransform)]);
/// assert_eq!(f.forward(&Tensor::from(-0.5)).item::<f64>(), 1.0);
/// ```
#[derive(Clone, Debug)]
pub struct ComposeTransform {
    parts: Vec<Arc<dyn Transform>>,
}

impl ComposeTransform {
    /// Creates the composition. The first transform is applied first.
    pub fn new(parts: impl IntoIterator<Item = Arc<dyn Transform>>) -> ComposeTransform {
        ComposeTransform { parts: parts.into_iter().collect() }
    }

    /// Converts a transform to a part of a composition.
    pub fn part(transform: impl Transform + 'static) -> Arc<dyn Transform> {
        Arc::new(transform)
    }
}

impl Transform for ComposeTransform {
    fn try_forward(&self, x: &Tensor) -> Result<Tensor> {
        self.parts.iter().try_fold(x.clone(), |x, part| part.try_forward(&x))
    }
    fn try_inverse(&self, y: &Tensor) -> Result<Tensor> {
        self.parts.iter().rev().try_fold(y.clone(), |y, part| part.try_inverse(&y))
    }
    fn try_log_abs_det_jacobian(&self, x: &Tensor, _: &Tensor) -> Result<Tensor> {
        let (mut x, mut sum) = (x.clone(), ops::zeros_like(x)?);
        for part in &self.parts {
            let y = part.try_forward(&x)?;
            sum = ops::add(&sum, &part.try_log_abs_det_jacobian(&x, &y)?)?;
            x = y;
        }
        Ok(sum)
    }
    fn try_is_increasing(&self) -> Result<Tensor> {
        // A composition is increasing if the number of decreasing parts is even.
        let is_increasing = Tensor::try_from_nested(true)?;
        self.parts
            .iter()
            .try_fold(is_increasing, |is_increasing, part| ops::eq(&is_increasing, &part.try_is_increasing()?))
    }
    fn codomain(&self) -> Constraint {
        self.parts.last().map_or(Constraint::Real, |part| part.codomain())
    }
    fn try_inner_forward(&self, x: &Tensor) -> Result<Tensor> {
        self.parts.iter().try_fold(x.clone(), |x, part| part.try_inner_forward(&x))
    }
    fn try_extended_inverse(&self, y: &Tensor) -> Result<Tensor> {
        self.parts.iter().rev().try_fold(y.clone(), |y, part| part.try_extended_inverse(&y))
    }
    fn parameter_shape(&self) -> Shape {
        let shapes = self.parts.iter().map(|part| part.parameter_shape());
        shapes.fold(Shape::scalar(), |all, shape| all.broadcast(&shape).unwrap_or(all))
    }
    fn try_affine_coefficients(&self) -> Result<Option<(Tensor, Tensor)>> {
        let mut sum: Option<(Tensor, Tensor)> = None;
        for part in &self.parts {
            let Some((a, b)) = part.try_affine_coefficients()? else { return Ok(None) };
            sum = Some(match sum {
                Some((c, d)) => (ops::add(&a, &ops::mul(&b, &c)?)?, ops::mul(&b, &d)?),
                None => (a, b),
            });
        }
        Ok(sum)
    }
    fn signature(&self) -> Option<Vec<(&'static str, Vec<Tensor>)>> {
        let parts: Option<Vec<_>> = self.parts.iter().map(|part| part.signature()).collect();
        Some(parts?.into_iter().flatten().collect())
    }
}
