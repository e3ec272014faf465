//! Distributions over classes: [`Categorical`], [`OneHotCategorical`], [`Multinomial`].

use crate::beta::batch_and_event;
use crate::constraint::Constraint;
use crate::count::Binomial;
use crate::distribution::{Distribution, joined};
use crate::parameters::{elementwise, float_tensors};
use crate::stirling::{deviance, deviance_with, log_factorial_excess};
use crate::support::{log_ratio, masked_log_density, quotient, xlogy, zero_times};
use pellucid_derive::panicking_form;
use pellucid_tensor::formula::Expr;
use pellucid_tensor::ops::TensorOrScalar;
use pellucid_tensor::{DType, Error, Result, Shape, Tensor, formula, ops, unwrap};

/// The parameter of class probabilities along the last axis. The probabilities and their logarithms are computed from
/// it in every call, so that every result has its own graph.
#[derive(Clone, Debug)]
pub(crate) struct ClassProbabilities {
    parameter: Tensor,
    /// True if the parameter is a tensor of weights, false if it is a tensor of logits.
    is_from_weights: bool,
}

/// Returns x, or 0 for a class whose log probability is −∞.
fn unmasked(log: Expr, x: Expr) -> Expr {
    log.gt(f64::NEG_INFINITY).select(x, 0.0)
}

impl ClassProbabilities {
    /// Returns an error that names `op` unless the last axis of the parameter has at least one class.
    fn check_classes(op: &'static str, name: &str, x: &Tensor) -> Result<()> {
        match x.shape().last() {
            Some(&classes) if classes > 0 => Ok(()),
            _ => Err(Error::shapes(op, [x.shape()], format!("`{name}` must be [batch.., K] with at least one class"))),
        }
    }

    /// Normalizes nonnegative weights.
    pub(crate) fn from_probs(op: &'static str, probs: TensorOrScalar<'_>) -> Result<ClassProbabilities> {
        let [weights] = float_tensors(op, [("probs", probs)])?;
        ClassProbabilities::check_classes(op, "probs", &weights)?;
        Constraint::NonNegative.check(op, "probs", &weights)?;
        if weights.is_readable() && weights.size() > 0 {
            let min_row_max = ops::min(&ops::max(&weights, -1)?, ..)?.try_item::<f64>()?;
            if min_row_max <= 0.0 {
                return Err(Error::invalid(op, "`probs` must have a positive sum along the last axis"));
            }
        }
        Ok(ClassProbabilities { parameter: weights, is_from_weights: true })
    }

    /// Returns the softmax of log weights.
    pub(crate) fn from_logits(op: &'static str, logits: TensorOrScalar<'_>) -> Result<ClassProbabilities> {
        let [logits] = float_tensors(op, [("logits", logits)])?;
        ClassProbabilities::check_classes(op, "logits", &logits)?;
        // −∞ masks a class. The maximum is finite if at least one logit is finite and no logit is ∞ or NaN.
        Constraint::Real.check(op, "logits", &ops::max(&logits, -1)?)?;
        Ok(ClassProbabilities { parameter: logits, is_from_weights: false })
    }

    /// Returns the parameter, which has the shape and the dtype of all derived values.
    pub(crate) fn parameter(&self) -> &Tensor {
        &self.parameter
    }

    /// Returns the weights, if the distribution was created from weights and not from logits.
    fn weights(&self) -> Option<&Tensor> {
        self.is_from_weights.then_some(&self.parameter)
    }

    /// Returns the probabilities.
    pub(crate) fn probs(&self) -> Result<Tensor> {
        let Some(weights) = self.weights() else { return ops::softmax(&self.parameter, -1) };
        ops::map_rows(formula! { static class_probs(p) = p / p.row_sum(); }, &[weights], &[], -1)
    }

    /// Returns the logarithms of the probabilities.
    pub(crate) fn logs(&self) -> Result<Tensor> {
        let Some(weights) = self.weights() else { return ops::log_softmax(&self.parameter, -1) };
        let logs = formula! {
            static class_logs(p) = (p / p.row_sum()).ln();
            d p = quotient(g, p) - g.row_sum() / p.row_sum();
        };
        ops::map_rows(logs, &[weights], &[], -1)
    }

    pub(crate) fn batch_shape(&self) -> Shape {
        batch_and_event(self.parameter.shape()).0
    }

    pub(crate) fn event_shape(&self) -> Shape {
        batch_and_event(self.parameter.shape()).1
    }

    pub(crate) fn classes(&self) -> usize {
        self.event_shape()[0]
    }

    /// Returns −Σ p·ln p. The derivative with respect to a weight of 0 is infinite. The derivative with respect to a
    /// logit of −∞ is 0.
    pub(crate) fn entropy(&self) -> Result<Tensor> {
        if let Some(weights) = self.weights() {
            let entropy = formula! {
                static entropy_of_weights(p) = (-zero_times(p / p.row_sum(), (p / p.row_sum()).ln())).row_sum();
                d p = g * (p.row_sum().ln() - p.ln() - y) / p.row_sum();
            };
            return ops::squeeze(&ops::map_rows(entropy, &[weights], &[], -1)?, -1);
        }
        let entropy = formula! { static categorical_entropy(l) = (-(l.exp() * unmasked(l, l))).row_sum(); };
        ops::squeeze(&ops::map_rows(entropy, &[&self.logs()?], &[], -1)?, -1)
    }

    /// Returns Σ p·(ln p − ln q).
    pub(crate) fn divergence(&self, q: &ClassProbabilities) -> Result<Tensor> {
        if let (Some(p), Some(q)) = (self.weights(), q.weights()) {
            let sum = formula! {
                static kl_of_weights(p, q) = {
                    let (a, b) = (p / p.row_sum(), q / q.row_sum());
                    zero_times(a, log_ratio(a, b)).row_sum()
                };
                d p = g * (log_ratio(p / p.row_sum(), q / q.row_sum()) - y) / p.row_sum();
                d q = g * (1.0 - quotient(p / p.row_sum(), q / q.row_sum())) / q.row_sum();
            };
            return ops::squeeze(&ops::map_rows(sum, &[p, q], &[], -1)?, -1);
        }
        if self.is_from_weights || q.is_from_weights {
            return ops::neg(&ops::add(&self.entropy()?, &q.weighted_logs(&self.probs()?)?)?);
        }
        let sum = formula! {
            static kl_categorical(a, b) = (a.exp() * (unmasked(a, a) - unmasked(a, b))).row_sum();
        };
        ops::squeeze(&ops::map_rows(sum, &[&self.logs()?, &q.logs()?], &[], -1)?, -1)
    }

    /// Returns Σ x·ln p over the classes; 0·(−∞) is 0.
    fn weighted_logs(&self, x: &Tensor) -> Result<Tensor> {
        if let Some(weights) = self.weights() {
            let sum = formula! { static weighted_logs_of_weights(x, p) = xlogy(x, p / p.row_sum()).row_sum(); };
            return ops::squeeze(&ops::map_rows(sum, &[x, weights], &[], -1)?, -1);
        }
        let sum = formula! { static weighted_class_logs(x, l) = zero_times(x, l).row_sum(); };
        ops::squeeze(&ops::map_rows(sum, &[x, &self.logs()?], &[], -1)?, -1)
    }

    /// Returns the log probability of the selected class of each row, for an index `[.., 1]` and the shape of rows
    /// `[.., K]`. Weights that are not selected affect only the normalization.
    fn selected_log_prob(&self, index: &Tensor, rows: Shape) -> Result<Tensor> {
        let choose = |x: &Tensor| {
            let rows = ops::broadcast_to(x, rows.clone())?;
            ops::squeeze(&ops::take_along_axis(&rows, index, -1)?, -1)
        };
        match self.weights() {
            Some(weights) => {
                let (chosen, total) = (choose(weights)?, ops::sum(weights, -1)?);
                elementwise!(chosen_class_log(w = &chosen, total = &total) => (w / total).ln())
            }
            None => choose(&self.logs()?),
        }
    }

    /// Returns Σ (ln xₖ! − xₖ·ln pₖ) − (n·ln n − n) over the classes, for counts x.
    fn deviance_and_excess(&self, x: &Tensor) -> Result<Tensor> {
        let sum = match self.weights() {
            Some(weights) => {
                let sum = formula! {
                    static multinomial_deviance_of_weights(x, p) =
                        (deviance(x, x.row_sum() * (p / p.row_sum())) + log_factorial_excess(x)).row_sum();
                };
                ops::map_rows(sum, &[x, weights], &[], -1)?
            }
            None => {
                let sum = formula! {
                    static multinomial_deviance(x, p, l) = {
                        let n = x.row_sum();
                        let share = x.eq(0.0).select(1.0, x) / n.eq(0.0).select(1.0, n);
                        (deviance_with(x, n * p, share.ln() - l) + log_factorial_excess(x)).row_sum()
                    };
                };
                ops::map_rows(sum, &[x, &self.probs()?, &self.logs()?], &[], -1)?
            }
        };
        ops::squeeze(&sum, -1)
    }

    /// Draws `count` classes (`i64`) for each element of `shape`, along a new last axis.
    fn draw(&self, shape: &Shape, count: usize) -> Result<Tensor> {
        let probs = ops::broadcast_to(&self.probs()?.detach(), joined(shape, &[self.classes()]))?;
        ops::multinomial(&probs, count, true)
    }
}

/// Defines the constructors and parameter methods of a distribution over classes.
macro_rules! class_parameters {
    ($family:ident($op:literal $(, $extra:ident: $extra_type:ty)?)) => {
        impl $family {
            /// Creates the distribution from nonnegative weights `[batch.., K]`, which are normalized.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] for a weight that is negative or not finite, and for a sum of 0, if values
            /// can be read; [`Error::ShapeMismatch`] for 0 classes; [`Error::DTypeMismatch`] for integers.
            #[panicking_form]
            pub fn try_new<'a>(
                $($extra: $extra_type,)?
                probs: impl Into<TensorOrScalar<'a>>,
            ) -> Result<$family> {
                let classes = ClassProbabilities::from_probs($op, probs.into())?;
                Ok($family { $($extra,)? classes })
            }

            /// Creates the distribution from the logarithms of weights `[batch.., K]`, such as the outputs of a model.
            /// A class of logit −∞ has probability 0.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] for ∞, NaN, and a row in which all logits are −∞, if values can be read;
            /// [`Error::ShapeMismatch`] for 0 classes; [`Error::DTypeMismatch`] for integers.
            #[panicking_form]
            pub fn try_from_logits<'a>(
                $($extra: $extra_type,)?
                logits: impl Into<TensorOrScalar<'a>>,
            ) -> Result<$family> {
                let classes = ClassProbabilities::from_logits($op, logits.into())?;
                Ok($family { $($extra,)? classes })
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

            #[allow(dead_code)]
            pub(crate) fn class_probabilities(&self) -> &ClassProbabilities {
                &self.classes
            }
        }
    };
}

/// The categorical distribution over the classes 0, .., K − 1. Samples are `i64`.
///
/// ```
/// use pellucid::Tensor;
/// use pellucid::distributions::{Categorical, Distribution};
///
/// let policy = Categorical::from_logits(&Tensor::from([[0.0, 0.0], [50.0, 0.0]]));
/// let action = policy.sample(());
/// assert_eq!((action.shape().dims(), policy.log_prob(&action).shape().dims()), (&[2][..], &[2][..]));
/// assert_eq!(action.to_vec::<i64>()[1], 0);
/// ```
#[derive(Clone, Debug)]
pub struct Categorical {
    classes: ClassProbabilities,
}

class_parameters!(Categorical("categorical"));

impl Distribution for Categorical {
    fn name(&self) -> &'static str {
        "categorical"
    }
    fn batch_shape(&self) -> Shape {
        self.classes.batch_shape()
    }
    fn has_rsample(&self) -> bool {
        false
    }
    fn support(&self) -> Constraint {
        Constraint::IntegerUpTo(Tensor::from(self.classes.classes() as i64 - 1))
    }
    fn try_draw(&self, shape: &Shape) -> Result<Tensor> {
        ops::squeeze(&self.classes.draw(shape, 1)?, -1)
    }
    /// Returns the log probabilities of the classes x, which may have any dtype.
    fn try_log_prob(&self, x: &Tensor) -> Result<Tensor> {
        let Some(shape) = x.shape().broadcast(&self.batch_shape()) else {
            let help = "x must broadcast with the batch shape";
            return Err(Error::shapes("categorical", [x.shape(), &self.batch_shape()], help));
        };
        let inside = self.support().try_contains(x)?;
        let index = ops::where_(&inside, &ops::to_dtype(&x.detach(), DType::I64)?, 0)?;
        let index = ops::unsqueeze(&ops::broadcast_to(&index, shape.clone())?, -1)?;
        let rows = joined(&shape, &[self.classes.classes()]);
        masked_log_density(x, 0, &inside, &self.classes.selected_log_prob(&index, rows)?)
    }
    fn try_entropy(&self) -> Result<Tensor> {
        self.classes.entropy()
    }
}

/// The categorical distribution over one-hot vectors.
///
/// ```
/// use pellucid::Tensor;
/// use pellucid::distributions::{Distribution, OneHotCategorical};
///
/// let letters = OneHotCategorical::new(&Tensor::from([1.0, 1.0, 2.0]));
/// assert_eq!(letters.sample([4]).sum(-1).to_vec::<f64>(), [1.0; 4]);
/// assert_eq!(letters.mean().to_vec::<f64>(), [0.25, 0.25, 0.5]);
/// ```
#[derive(Clone, Debug)]
pub struct OneHotCategorical {
    classes: ClassProbabilities,
}

class_parameters!(OneHotCategorical("one_hot_categorical"));

impl Distribution for OneHotCategorical {
    fn name(&self) -> &'static str {
        "one_hot_categorical"
    }
    fn batch_shape(&self) -> Shape {
        self.classes.batch_shape()
    }
    fn event_shape(&self) -> Shape {
        self.classes.event_shape()
    }
    fn has_rsample(&self) -> bool {
        false
    }
    fn support(&self) -> Constraint {
        Constraint::OneHot
    }
    fn try_draw(&self, shape: &Shape) -> Result<Tensor> {
        let class = ops::squeeze(&self.classes.draw(shape, 1)?, -1)?;
        ops::to_dtype(&ops::one_hot(&class, self.classes.classes())?, self.classes.parameter().dtype())
    }
    fn try_log_prob(&self, x: &Tensor) -> Result<Tensor> {
        let inside = self.support().try_contains(x)?;
        let safe = ops::where_(&ops::unsqueeze(&inside, -1)?, x, 0.0)?;
        masked_log_density(x, 1, &inside, &self.classes.weighted_logs(&safe)?)
    }
    fn try_entropy(&self) -> Result<Tensor> {
        self.classes.entropy()
    }
    fn try_mean(&self) -> Result<Tensor> {
        self.classes.probs()
    }
    fn try_variance(&self) -> Result<Tensor> {
        elementwise!(one_hot_variance(p = &self.classes.probs()?) => p * (1.0 - p))
    }
}

/// The multinomial distribution of the counts of K classes in n draws: n!·Π pₖ^xₖ/xₖ!.
///
/// ```
/// use pellucid::Tensor;
/// use pellucid::distributions::{Distribution, Multinomial};
///
/// let votes = Multinomial::new(8, &Tensor::from([0.25, 0.75]));
/// assert_eq!(votes.mean().to_vec::<f64>(), [2.0, 6.0]);
/// assert_eq!(votes.sample([3]).sum(-1).to_vec::<f64>(), [8.0; 3]);
/// ```
#[derive(Clone, Debug)]
pub struct Multinomial {
    total_count: usize,
    classes: ClassProbabilities,
}

class_parameters!(Multinomial("multinomial", total_count: usize));

impl Multinomial {
    /// Returns n, the number of draws.
    pub fn total_count(&self) -> usize {
        self.total_count
    }
}

impl Distribution for Multinomial {
    fn name(&self) -> &'static str {
        "multinomial"
    }
    fn batch_shape(&self) -> Shape {
        self.classes.batch_shape()
    }
    fn event_shape(&self) -> Shape {
        self.classes.event_shape()
    }
    fn has_rsample(&self) -> bool {
        false
    }
    fn support(&self) -> Constraint {
        Constraint::Counts(self.total_count)
    }
    fn try_draw(&self, shape: &Shape) -> Result<Tensor> {
        let drawn = ops::one_hot(&self.classes.draw(shape, self.total_count)?, self.classes.classes())?;
        ops::sum(&ops::to_dtype(&drawn, self.classes.parameter().dtype())?, -2)
    }
    fn try_log_prob(&self, x: &Tensor) -> Result<Tensor> {
        let inside = self.support().try_contains(x)?;
        let safe = &ops::where_(&ops::unsqueeze(&inside, -1)?, x, 0.0)?;
        // Computes ln n! − Σ ln xₖ! + Σ xₖ·ln pₖ from terms that do not cancel for large n.
        let n = ops::full(Shape::scalar(), self.total_count as f64, self.classes.parameter().dtype())?;
        let excess = elementwise!(log_factorial_excess_of_total(n = &n) => log_factorial_excess(n))?;
        masked_log_density(x, 1, &inside, &ops::sub(&excess, &self.classes.deviance_and_excess(safe)?)?)
    }
    /// Returns n·H − ln n! + Σₖ E[ln xₖ!], where H is the entropy of one draw.
    fn try_entropy(&self) -> Result<Tensor> {
        let (n, dtype) = (self.total_count as f64, self.classes.parameter().dtype());
        let marginal = Binomial::try_new(self.total_count, &ops::unsqueeze(&self.classes.probs()?, -1)?)?;
        let counts = ops::arange(0, self.total_count as i64 + 1, 1, dtype)?;
        let expected = ops::mul(&ops::exp(&marginal.try_log_prob(&counts)?)?, &ops::lgamma(&ops::add(&counts, 1.0)?)?)?;
        let expected = ops::sum(&expected, [-2, -1])?;
        let orders = ops::lgamma(&ops::full(Shape::scalar(), n + 1.0, dtype)?)?;
        ops::add(&ops::sub(&ops::mul(&self.classes.entropy()?, n)?, &orders)?, &expected)
    }
    fn try_mean(&self) -> Result<Tensor> {
        ops::mul(&self.classes.probs()?, self.total_count as f64)
    }
    fn try_variance(&self) -> Result<Tensor> {
        let variance = elementwise!(multinomial_variance(p = &self.classes.probs()?) => p * (1.0 - p))?;
        ops::mul(&variance, self.total_count as f64)
    }
}
