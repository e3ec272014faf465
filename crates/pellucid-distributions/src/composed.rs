//! Distributions that are derived from others: [`Independent`], [`MixtureSameFamily`], [`TransformedDistribution`].

use crate::categorical::Categorical;
use crate::constraint::Constraint;
use crate::distribution::{Distribution, joined, undefined};
use crate::support::masked_log_density;
use crate::transform::Transform;
use pellucid_derive::panicking_form;
use pellucid_tensor::{DType, Error, Result, Shape, Tensor, ops, unwrap};

/// Sums over the last axes.
fn sum_last(x: &Tensor, axes: usize) -> Result<Tensor> {
    let axes: Vec<isize> = (1..=axes as isize).map(|k| -k).collect();
    if axes.is_empty() { Ok(x.clone()) } else { ops::sum(x, &axes[..]) }
}

/// Reduces a mask over the last axes: true if all elements are true.
fn all_last(mask: &Tensor, axes: usize) -> Result<Tensor> {
    let axes: Vec<isize> = (1..=axes as isize).map(|k| -k).collect();
    if axes.is_empty() { Ok(mask.clone()) } else { ops::all(mask, &axes[..]) }
}

/// The argument of the base density that replaces arguments outside its support.
const REPLACEMENT: f64 = 0.4;

/// A distribution whose last batch axes are reinterpreted as event axes: `log_prob` and `entropy` are summed over them.
///
/// ```
/// use pellucid::Tensor;
/// use pellucid::distributions::{Distribution, Independent, Normal};
///
/// let latent = Independent::new(Normal::new(&Tensor::zeros([8, 3], pellucid::DType::F32), 1.0), 1);
/// assert_eq!((latent.batch_shape(), latent.event_shape()), ([8].into(), [3].into()));
/// assert_eq!(latent.log_prob(&latent.sample(())).shape(), [8]);
/// ```
#[derive(Clone, Debug)]
pub struct Independent<D> {
    base: D,
    axes: usize,
}

impl<D: Distribution> Independent<D> {
    /// Creates the distribution. The last `axes` batch axes of `base` become event axes.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the batch has fewer axes.
    #[panicking_form]
    pub fn try_new(base: D, axes: usize) -> Result<Independent<D>> {
        let batch = base.batch_shape();
        if axes > batch.rank() {
            let reason =
                format!("`axes` must be at most {}, the rank of the batch shape {batch}, got {axes}", batch.rank());
            return Err(Error::invalid("independent", reason));
        }
        Ok(Independent { base, axes })
    }

    /// Returns the base distribution.
    pub fn base(&self) -> &D {
        &self.base
    }

    /// Returns the number of batch axes of the base that are event axes.
    pub(crate) fn axes(&self) -> usize {
        self.axes
    }

    /// Sums over the batch axes of the base that are event axes.
    pub(crate) fn summed(&self, x: &Tensor) -> Result<Tensor> {
        sum_last(x, self.axes)
    }

    fn split(&self) -> (Shape, Shape) {
        let batch = self.base.batch_shape();
        let (outer, inner) = batch.split_at(batch.rank() - self.axes);
        (outer.iter().copied().collect(), joined(inner, &self.base.event_shape()))
    }
}

impl<D: Distribution> Distribution for Independent<D> {
    fn name(&self) -> &'static str {
        self.base.name()
    }
    fn batch_shape(&self) -> Shape {
        self.split().0
    }
    fn event_shape(&self) -> Shape {
        self.split().1
    }
    fn has_rsample(&self) -> bool {
        self.base.has_rsample()
    }
    fn support(&self) -> Constraint {
        self.base.support()
    }
    fn try_draw(&self, shape: &Shape) -> Result<Tensor> {
        let batch = self.base.batch_shape();
        self.base.try_draw(&joined(shape, &batch[batch.rank() - self.axes..]))
    }
    fn try_log_prob(&self, x: &Tensor) -> Result<Tensor> {
        self.summed(&self.base.try_log_prob(x)?)
    }
    fn try_entropy(&self) -> Result<Tensor> {
        self.summed(&self.base.try_entropy()?)
    }
    fn try_mean(&self) -> Result<Tensor> {
        self.base.try_mean()
    }
    fn try_variance(&self) -> Result<Tensor> {
        self.base.try_variance()
    }
}

/// A mixture Σ pₖ·fₖ(x) of components of one family. The components are the last batch axis of one distribution.
///
/// ```
/// use pellucid::Tensor;
/// use pellucid::distributions::{Categorical, Distribution, MixtureSameFamily, Normal};
///
/// let weights = Categorical::new(&Tensor::from([0.5, 0.5]));
/// let mixture = MixtureSameFamily::new(weights, Normal::new(&Tensor::from([-2.0, 2.0]), 1.0));
/// assert_eq!((mixture.mean().item::<f64>(), mixture.variance().item::<f64>()), (0.0, 5.0));
/// ```
#[derive(Clone, Debug)]
pub struct MixtureSameFamily<D> {
    mixture: Categorical,
    components: D,
}

impl<D: Distribution> MixtureSameFamily<D> {
    /// Creates a mixture of K components `[batch.., K]` with weights that broadcast to this shape, such as `[K]`.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] unless the weights broadcast to the batch shape of the components, with the same K.
    #[panicking_form]
    pub fn try_new(mixture: Categorical, components: D) -> Result<MixtureSameFamily<D>> {
        let (weights, batch) = (mixture.class_probabilities().parameter().shape(), components.batch_shape());
        let last = |shape: &Shape| shape.last().copied();
        let fits = batch.broadcast(weights).is_some_and(|common| common == batch) && last(weights) == last(&batch);
        if !fits {
            let help = "the weights must broadcast to the batch shape [batch.., K] of the components, with the same K";
            return Err(Error::shapes("mixture_same_family", [weights, &batch], help));
        }
        Ok(MixtureSameFamily { mixture, components })
    }

    /// Returns the distribution of the component index.
    pub fn mixture(&self) -> &Categorical {
        &self.mixture
    }

    /// Returns the components, which are the last batch axis.
    pub fn components(&self) -> &D {
        &self.components
    }

    /// Returns the negative index of the component axis in `[.., K, event..]`.
    fn axis(&self) -> isize {
        -1 - self.components.event_shape().rank() as isize
    }

    /// Returns Σ pₖ·xₖ over the components of x, `[.., K, event..]`.
    fn average(&self, x: &Tensor) -> Result<Tensor> {
        let mut probs = self.mixture.try_probs()?;
        for _ in 0..self.components.event_shape().rank() {
            probs = ops::unsqueeze(&probs, -1)?;
        }
        ops::sum(&ops::mul(&probs, x)?, self.axis())
    }
}

impl<D: Distribution> Distribution for MixtureSameFamily<D> {
    fn name(&self) -> &'static str {
        "mixture_same_family"
    }
    fn batch_shape(&self) -> Shape {
        let batch = self.components.batch_shape();
        batch[..batch.rank() - 1].iter().copied().collect()
    }
    fn event_shape(&self) -> Shape {
        self.components.event_shape()
    }
    fn has_rsample(&self) -> bool {
        false
    }
    fn support(&self) -> Constraint {
        self.components.support()
    }
    fn try_draw(&self, shape: &Shape) -> Result<Tensor> {
        let (event, batch) = (self.event_shape(), self.components.batch_shape());
        let drawn = self.components.try_draw(&joined(shape, &batch[batch.rank() - 1..]))?;
        let mut class = ops::unsqueeze(&self.mixture.try_draw(shape)?, -1)?;
        for _ in 0..event.rank() {
            class = ops::unsqueeze(&class, -1)?;
        }
        let class = ops::broadcast_to(&class, joined(&joined(shape, &[1]), &event))?;
        ops::squeeze(&ops::take_along_axis(&drawn, &class, self.axis())?, self.axis())
    }
    fn try_log_prob(&self, x: &Tensor) -> Result<Tensor> {
        let component_values = self.components.try_log_prob(&ops::unsqueeze(x, self.axis())?)?;
        ops::logsumexp(&ops::add(&self.mixture.try_logits()?, &component_values)?, -1)
    }
    fn try_cdf(&self, x: &Tensor) -> Result<Tensor> {
        let component_values = self.components.try_cdf(&ops::unsqueeze(x, self.axis())?)?;
        ops::sum(&ops::mul(&self.mixture.try_probs()?, &component_values)?, -1)
    }
    fn try_mean(&self) -> Result<Tensor> {
        self.average(&self.components.try_mean()?)
    }
    /// Returns the mean of the variances plus the variance of the means of the components.
    fn try_variance(&self) -> Result<Tensor> {
        let means = self.components.try_mean()?;
        let centred = ops::sub(&means, &ops::unsqueeze(&self.average(&means)?, self.axis())?)?;
        ops::add(&self.average(&self.components.try_variance()?)?, &self.average(&ops::square(&centred)?)?)
    }
}

/// The distribution of y = f(x) for an invertible, differentiable f and x of a base distribution, with the density
/// p(f⁻¹(y)) / |f'(f⁻¹(y))|.
///
/// The batch of the base is broadcast with the parameters of f, and the elements are sampled independently.
///
/// ```
/// use pellucid::Tensor;
/// use pellucid::distributions::{Distribution, Normal, TanhTransform, TransformedDistribution};
///
/// let action = TransformedDistribution::new(Normal::new(&Tensor::from(0.0), 1.0), TanhTransform);
/// let x = action.rsample([10]);
/// assert!(x.abs().max(..).item::<f64>() < 1.0);
/// assert_eq!(action.log_prob(&x).shape(), [10]);
/// ```
#[derive(Clone, Debug)]
pub struct TransformedDistribution<D, T> {
    base: D,
    transform: T,
}

impl<D: Distribution, T: Transform> TransformedDistribution<D, T> {
    /// Creates the distribution of f(x). To apply several functions, use a
    /// [`ComposeTransform`](crate::ComposeTransform).
    pub fn new(base: D, transform: T) -> TransformedDistribution<D, T> {
        TransformedDistribution { base, transform }
    }

    /// Returns the distribution of x.
    pub fn base(&self) -> &D {
        &self.base
    }

    /// Returns the transform f.
    pub fn transform(&self) -> &T {
        &self.transform
    }
}

impl<D: Distribution, T: Transform> Distribution for TransformedDistribution<D, T> {
    fn name(&self) -> &'static str {
        "transformed_distribution"
    }
    /// Returns the broadcast shape of the base batch and the parameters of f.
    fn batch_shape(&self) -> Shape {
        let (batch, event) = (self.base.batch_shape(), self.base.event_shape());
        let parameters = self.transform.parameter_shape();
        let expanded = joined(&batch, &event).broadcast(&parameters);
        expanded.map_or(batch, |shape| shape[..shape.rank() - event.rank()].iter().copied().collect())
    }
    fn event_shape(&self) -> Shape {
        self.base.event_shape()
    }
    fn has_rsample(&self) -> bool {
        self.base.has_rsample()
    }
    fn support(&self) -> Constraint {
        self.transform.codomain()
    }
    fn try_draw(&self, shape: &Shape) -> Result<Tensor> {
        self.transform.try_inner_forward(&self.base.try_draw(shape)?)
    }
    fn try_log_prob(&self, y: &Tensor) -> Result<Tensor> {
        let x = self.transform.try_extended_inverse(y)?;
        // x is infinite where y is outside the support. The replacement is inside the support of all usual bases, so
        // derivatives are finite.
        let is_inside = ops::isfinite(&x.detach())?;
        let safe_x = ops::where_(&is_inside, &x, REPLACEMENT)?;
        let safe_y = ops::where_(&is_inside, y, &self.transform.try_forward(&safe_x.detach())?)?;
        let axes = self.base.event_shape().rank();
        let volume = sum_last(&self.transform.try_log_abs_det_jacobian(&safe_x, &safe_y)?, axes)?;
        let value = ops::sub(&self.base.try_log_prob(&safe_x)?, &volume)?;
        masked_log_density(&x, axes, &all_last(&is_inside, axes)?, &value)
    }
    fn try_cdf(&self, y: &Tensor) -> Result<Tensor> {
        let p = self.base.try_cdf(&self.transform.try_extended_inverse(y)?)?;
        let rises = self.transform.try_is_increasing()?;
        ops::where_(&ops::to_dtype(&rises, DType::Bool)?, &p, &ops::sub(1.0, &p)?)
    }
    fn try_icdf(&self, p: &Tensor) -> Result<Tensor> {
        let rises = self.transform.try_is_increasing()?;
        let p = ops::where_(&ops::to_dtype(&rises, DType::Bool)?, p, &ops::sub(1.0, p)?)?;
        self.transform.try_forward(&self.base.try_icdf(&p)?)
    }
    /// Returns the mean of an affine transform.
    fn try_mean(&self) -> Result<Tensor> {
        match self.transform.try_affine_coefficients()? {
            Some((loc, scale)) => ops::add(&loc, &ops::mul(&scale, &self.base.try_mean()?)?),
            None => Err(undefined(self.name(), "mean")),
        }
    }
    /// Returns the variance of an affine transform.
    fn try_variance(&self) -> Result<Tensor> {
        match self.transform.try_affine_coefficients()? {
            Some((loc, scale)) => {
                let variance = ops::mul(&ops::square(&scale)?, &self.base.try_variance()?)?;
                ops::add(&variance, &ops::zeros_like(&loc)?)
            }
            None => Err(undefined(self.name(), "variance")),
        }
    }
}
