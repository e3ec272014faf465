//! Differentiable relaxations of discrete distributions: [`RelaxedBernoulli`], [`RelaxedOneHotCategorical`].

use crate::categorical::ClassProbabilities;
use crate::constraint::Constraint;
use crate::distribution::{Distribution, joined};
use crate::location_scale::log_logistic_density;
use crate::noise::draw_by;
use crate::parameters::{elementwise, float_tensors};
use crate::success_probability::{LOGITS, SuccessProbability};
use crate::support::{clamp_inside, masked_log_density, probability, within};
use pellucid_derive::panicking_form;
use pellucid_tensor::ops::TensorOrScalar;
use pellucid_tensor::{Error, Result, Shape, Tensor, formula, ops, unwrap};

/// The relaxed Bernoulli distribution of σ((l + L)/τ) for log odds l and a logistic variable L (Maddison et al. 2017;
/// Jang et al. 2017). Samples are differentiable and approach 0 or 1 for small temperatures τ.
///
/// ```
/// use pellucid::Tensor;
/// use pellucid::distributions::{Distribution, RelaxedBernoulli};
///
/// let gate = RelaxedBernoulli::new(&Tensor::from(0.5), 0.3);
/// assert!((0.0..=1.0).contains(&gate.rsample(()).item::<f64>()));
/// ```
#[derive(Clone, Debug)]
pub struct RelaxedBernoulli {
    temperature: Tensor,
    success: SuccessProbability,
}

impl RelaxedBernoulli {
    fn from_parameter(temperature: TensorOrScalar<'_>, parameter: (&'static str, TensorOrScalar<'_>)) -> Result<Self> {
        let op = "relaxed_bernoulli";
        let (name, value) = parameter;
        let [temperature, value] = float_tensors(op, [("temperature", temperature), (name, value)])?;
        Constraint::Positive.check(op, "temperature", &temperature)?;
        let is_probs = name == "probs";
        if is_probs { Constraint::OpenUnitInterval } else { LOGITS }.check(op, name, &value)?;
        let Some(shape) = temperature.shape().broadcast(value.shape()) else {
            let help = format!("`temperature` and `{name}` must broadcast");
            return Err(Error::shapes(op, [temperature.shape(), value.shape()], help));
        };
        let (temperature, value) = (ops::broadcast_to(&temperature, shape.clone())?, ops::broadcast_to(&value, shape)?);
        let success =
            if is_probs { SuccessProbability::from_probs(value) } else { SuccessProbability::from_logits(value) };
        Ok(RelaxedBernoulli { temperature, success })
    }

    /// Creates the distribution from the temperature and the probability of success, which broadcast.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `temperature` is positive and `probs` in (0, 1), if values can be read;
    /// [`Error::ShapeMismatch`]; [`Error::DTypeMismatch`] for integers.
    #[panicking_form]
    pub fn try_new<'a>(
        temperature: impl Into<TensorOrScalar<'a>>,
        probs: impl Into<TensorOrScalar<'a>>,
    ) -> Result<RelaxedBernoulli> {
        RelaxedBernoulli::from_parameter(temperature.into(), ("probs", probs.into()))
    }

    /// Creates the distribution from the temperature and the log odds, which broadcast.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `temperature` is positive and `logits` is finite, if values can be read;
    /// [`Error::ShapeMismatch`]; [`Error::DTypeMismatch`] for integers.
    #[panicking_form]
    pub fn try_from_logits<'a>(
        temperature: impl Into<TensorOrScalar<'a>>,
        logits: impl Into<TensorOrScalar<'a>>,
    ) -> Result<RelaxedBernoulli> {
        RelaxedBernoulli::from_parameter(temperature.into(), ("logits", logits.into()))
    }

    /// Returns τ, the temperature.
    pub fn temperature(&self) -> &Tensor {
        &self.temperature
    }

    /// Returns the probabilities p of the limit τ → 0.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_probs(&self) -> Result<Tensor> {
        self.success.probs()
    }

    /// Returns the log odds.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_logits(&self) -> Result<Tensor> {
        self.success.logits()
    }
}

impl Distribution for RelaxedBernoulli {
    fn name(&self) -> &'static str {
        "relaxed_bernoulli"
    }
    fn batch_shape(&self) -> Shape {
        self.temperature.shape().clone()
    }
    fn has_rsample(&self) -> bool {
        true
    }
    fn support(&self) -> Constraint {
        Constraint::OpenUnitInterval
    }
    fn try_draw(&self, shape: &Shape) -> Result<Tensor> {
        let (t, l) = (&self.temperature, &self.try_logits()?);
        let x = draw_by(
            t,
            shape,
            |u| elementwise!(relaxed_bernoulli_sample(noise = &ops::logit(u)?, t = t, l = l) => ((l + noise) / t).sigmoid()),
        )?;
        clamp_inside(&x, &self.support())
    }
    fn try_log_prob(&self, x: &Tensor) -> Result<Tensor> {
        // y = logit x has the density of (l + L)/τ, and dx/dy is x(1 − x).
        let inside = Constraint::OpenUnitInterval.try_contains(x)?;
        let safe = &ops::where_(&inside, x, 0.5)?;
        let y = &ops::logit(safe)?;
        let (t, l) = (&self.temperature, &self.try_logits()?);
        let density = elementwise!(relaxed_bernoulli_log_prob(x = safe, y = y, t = t, l = l) => {
            log_logistic_density(l - y * t) + t.ln() - x.ln() - (-x).ln_1p()
        })?;
        masked_log_density(x, 0, &inside, &density)
    }
    fn try_cdf(&self, x: &Tensor) -> Result<Tensor> {
        elementwise!(relaxed_bernoulli_cdf(x = x, t = &self.temperature, l = &self.try_logits()?) => {
            let inside = x.gt(0.0) & x.lt(1.0);
            let safe = inside.select(x, 0.5);
            let value = (t * (safe.ln() - (-safe).ln_1p()) - l).sigmoid();
            within(x, inside | x.ge(1.0), x.ge(1.0).select(1.0, value), 0.0)
        })
    }
    fn try_icdf(&self, p: &Tensor) -> Result<Tensor> {
        elementwise!(relaxed_bernoulli_icdf(p = p, t = &self.temperature, l = &self.try_logits()?) => {
            let p = probability(p);
            ((l + p.ln() - (-p).ln_1p()) / t).sigmoid()
        })
    }
}

/// The relaxed one-hot (concrete) distribution of softmax((l + G)/τ) for log weights l and independent Gumbel variables
/// G (Maddison et al. 2017; Jang et al. 2017). Samples are differentiable and approach one-hot vectors for small
/// temperatures τ.
///
/// The density is (K − 1)!·τ^(K−1)·Π pₖxₖ^(−τ−1) / (Σ pₖxₖ^(−τ))ᴷ for positive elements xₖ that sum to 1.
///
/// ```
/// use pellucid::Tensor;
/// use pellucid::distributions::{Distribution, RelaxedOneHotCategorical};
///
/// let choice = RelaxedOneHotCategorical::new(0.5, &Tensor::from([0.2, 0.8]));
/// let total = choice.rsample(()).sum(..).item::<f64>();
/// assert!((total - 1.0).abs() < 1e-12);
/// ```
#[derive(Clone, Debug)]
pub struct RelaxedOneHotCategorical {
    /// The temperature τ: `[batch.., 1]` or 0-d.
    temperature: Tensor,
    classes: ClassProbabilities,
}

impl RelaxedOneHotCategorical {
    fn from_classes(temperature: TensorOrScalar<'_>, classes: ClassProbabilities) -> Result<Self> {
        let op = "relaxed_one_hot_categorical";
        let logs = TensorOrScalar::from(classes.parameter());
        let [temperature, _] = float_tensors(op, [("temperature", temperature), ("probs", logs)])?;
        Constraint::Positive.check(op, "temperature", &temperature)?;
        if temperature.rank() > 0 {
            let help = "`temperature` must be a number or a 0-d tensor";
            return Err(Error::shapes(op, [temperature.shape()], help));
        }
        Ok(RelaxedOneHotCategorical { temperature, classes })
    }

    /// Creates the distribution from the temperature and nonnegative weights `[batch.., K]`, which are normalized.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `temperature` is positive, and for weights that are negative, not finite or
    /// without a positive sum, if values can be read; [`Error::ShapeMismatch`]; [`Error::DTypeMismatch`] for integers.
    #[panicking_form]
    pub fn try_new<'a>(
        temperature: impl Into<TensorOrScalar<'a>>,
        probs: impl Into<TensorOrScalar<'a>>,
    ) -> Result<RelaxedOneHotCategorical> {
        let classes = ClassProbabilities::from_probs("relaxed_one_hot_categorical", probs.into())?;
        RelaxedOneHotCategorical::from_classes(temperature.into(), classes)
    }

    /// Creates the distribution from the temperature and the logarithms of weights `[batch.., K]`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `temperature` is positive and `logits` finite, if values can be read;
    /// [`Error::ShapeMismatch`]; [`Error::DTypeMismatch`] for integers.
    #[panicking_form]
    pub fn try_from_logits<'a>(
        temperature: impl Into<TensorOrScalar<'a>>,
        logits: impl Into<TensorOrScalar<'a>>,
    ) -> Result<RelaxedOneHotCategorical> {
        let classes = ClassProbabilities::from_logits("relaxed_one_hot_categorical", logits.into())?;
        RelaxedOneHotCategorical::from_classes(temperature.into(), classes)
    }

    /// Returns τ, the temperature.
    pub fn temperature(&self) -> &Tensor {
        &self.temperature
    }

    /// Returns the probabilities, `[batch.., K]`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_probs(&self) -> Result<Tensor> {
        self.classes.probs()
    }

    /// Returns the logarithms of the probabilities, `[batch.., K]`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_logits(&self) -> Result<Tensor> {
        self.classes.logs()
    }
}

impl Distribution for RelaxedOneHotCategorical {
    fn name(&self) -> &'static str {
        "relaxed_one_hot_categorical"
    }
    fn batch_shape(&self) -> Shape {
        self.classes.batch_shape()
    }
    fn event_shape(&self) -> Shape {
        self.classes.event_shape()
    }
    fn has_rsample(&self) -> bool {
        true
    }
    fn support(&self) -> Constraint {
        Constraint::Simplex
    }
    fn try_draw(&self, shape: &Shape) -> Result<Tensor> {
        let (l, t) = (&self.classes.logs()?, &self.temperature);
        let x = draw_by(self.classes.parameter(), &joined(shape, &self.event_shape()), |u| {
            let scores = elementwise!(concrete_scores(u = u, l = l, t = t) => (l - (-u.ln()).ln()) / t)?;
            ops::softmax(&scores, -1)
        })?;
        clamp_inside(&x, &self.support())
    }
    fn try_log_prob(&self, x: &Tensor) -> Result<Tensor> {
        // The density is undefined if an element is 0.
        let positive = ops::all(&ops::gt(x.detach(), 0)?, -1)?;
        let inside = ops::logical_and(&self.support().try_contains(x)?, &positive)?;
        let (given, x) = (x, &ops::where_(&ops::unsqueeze(&inside, -1)?, x, 0.5)?);
        let scores = elementwise!(concrete_log_ratio(x = x, l = &self.classes.logs()?, t = &self.temperature) => {
            l - t * x.ln()
        })?;
        let total = ops::logsumexp(&scores, ops::over(-1).keepdims())?;
        let sum = formula! { static concrete_log_prob(x, s, total) = (s - total - x.ln()).row_sum(); };
        let sum = ops::squeeze(&ops::map_rows(sum, &[x, &scores, &total], &[], -1)?, -1)?;
        let log_orders = (1..self.classes.classes()).map(|k| (k as f64).ln()).sum::<f64>();
        let scale = ops::mul(&ops::ln(&self.temperature)?, self.classes.classes() as f64 - 1.0)?;
        masked_log_density(given, 1, &inside, &ops::add(&sum, &ops::add(&scale, log_orders)?)?)
    }
}
