//! Metrics of a model's outputs, accumulated over batches.
//!
//! A [`Metric`] reads the outputs and targets of each batch ([`update`](Metric::update)) and returns its value over all
//! added samples ([`compute`](Metric::compute)). The value is computed from all samples, so it does not depend on the
//! split into batches; it is not a mean of batch values.
//!
//! ```
//! use pellucid::Tensor;
//! use pellucid::train::metrics::{Accuracy, ClassAverage, F1Score, Metric};
//!
//! let mut metrics: Vec<Box<dyn Metric>> =
//!     vec![Box::new(Accuracy::new()), Box::new(F1Score::new(ClassAverage::Macro))];
//! let batches = [
//!     (Tensor::from([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]]), Tensor::from([0i64, 1])),
//!     (Tensor::from([[0.5, 0.0, 0.1]]), Tensor::from([2i64])),
//! ];
//! for (logits, labels) in &batches {
//!     for metric in &mut metrics {
//!         metric.update(logits, labels)?;
//!     }
//! }
//! assert_eq!(metrics[0].compute()?, 2.0 / 3.0);
//! assert_eq!(metrics[1].name(), "f1_macro");
//! # Ok::<(), pellucid::Error>(())
//! ```
//!
//! | metric | output | target | goal |
//! | --- | --- | --- | --- |
//! | [`Accuracy`], [`Precision`], [`Recall`], [`F1Score`], [`IntersectionOverUnion`] | scores or classes | labels | maximize |
//! | [`MultiLabelAccuracy`], [`MultiLabelF1Score`] | scores of labels `[N, L]` | labels 0 and 1 `[N, L]` | maximize |
//! | [`TopKAccuracy`] | scores of classes | labels | maximize |
//! | [`RocAuc`], [`AveragePrecision`] | scores | labels | maximize |
//! | [`LogLoss`], [`Perplexity`] | logits or probabilities | labels | minimize |
//! | [`MeanSquaredError`], [`RootMeanSquaredError`], [`MeanAbsoluteError`] | values | values | minimize |
//! | [`R2Score`] | values | values | maximize |
//! | [`MeanLoss`] | as for the loss | as for the loss | minimize |
//!
//! A [`ConfusionMatrix`] has one count for each pair of classes, and is updated like a metric.
//!
//! # Outputs and targets of classification
//!
//! - **Scores of classes**: floats `[N, C]` or `[N, C, d..]` with C ≥ 2, and labels `[N]` or `[N, d..]` of an integer
//!   dtype. The predicted class has the largest score.
//! - **Binary scores**: floats `[N]` or `[N, 1]`, and labels 0 and 1 of an integer dtype, `bool` or a float dtype, of
//!   shape `[N]` or `[N, 1]`. The predicted class is 1 if the score is greater than the
//!   [threshold](Accuracy::threshold). Masks `[N, 1, d..]` are also accepted.
//! - **Classes**: integers or `bool`, and labels of the same shape.
//!
//! # Special cases
//!
//! Without samples, or if all samples are ignored, every value is NaN. A NaN score makes every value NaN;
//! [`ConfusionMatrix`] returns an error. A batch without samples changes nothing. In the other degenerate cases the
//! metrics have scikit-learn's values, which the documentation of each metric states.

mod accuracy;
mod averaged;
mod class_counts;
mod confusion;
mod input;
mod likelihood;
mod mean;
mod multi_label;
mod ranking;
mod regression;
mod state;
mod sum;

pub use accuracy::{Accuracy, TopKAccuracy};
pub use averaged::{F1Score, IntersectionOverUnion, Precision, Recall};
pub use class_counts::ClassAverage;
pub use confusion::ConfusionMatrix;
pub use input::ScoreKind;
pub use likelihood::{LogLoss, Perplexity};
pub use mean::{Mean, MeanLoss};
pub use multi_label::{LabelAverage, MultiLabelAccuracy, MultiLabelF1Score};
pub use pellucid_nn::optim::schedule::Goal;
pub use ranking::{AveragePrecision, RocAuc};
pub use regression::{MeanAbsoluteError, MeanSquaredError, R2Score, RootMeanSquaredError};

use pellucid_tensor::{Result, Tensor};

/// A metric of a model's outputs, accumulated over batches.
///
/// ```
/// use pellucid::train::metrics::{Goal, Metric};
/// use pellucid::{Result, Tensor, no_grad, ops};
///
/// /// The largest absolute error.
/// #[derive(Default)]
/// struct MaxError(Option<f64>);
///
/// impl Metric for MaxError {
///     fn name(&self) -> String {
///         "max_error".into()
///     }
///
///     fn goal(&self) -> Goal {
///         Goal::Minimize
///     }
///
///     fn update(&mut self, output: &Tensor, target: &Tensor) -> Result<()> {
///         let _guard = no_grad();
///         let error = ops::max(&ops::abs(&ops::sub(output, target)?)?, ..)?.try_item::<f64>()?;
///         self.0 = Some(self.0.map_or(error, |largest| largest.max(error)));
///         Ok(())
///     }
///
///     fn compute(&self) -> Result<f64> {
///         Ok(self.0.unwrap_or(f64::NAN))
///     }
///
///     fn reset(&mut self) {
///         self.0 = None;
///     }
/// }
///
/// let mut metric = MaxError::default();
/// metric.update(&Tensor::from([1.0, 2.0]), &Tensor::from([1.5, 2.25]))?;
/// assert_eq!(metric.compute()?, 0.5);
/// # Ok::<(), pellucid::Error>(())
/// ```
pub trait Metric: Send {
    /// Returns the name under which the value is logged, such as `accuracy`. Names follow scikit-learn's score names.
    fn name(&self) -> String;

    /// Returns the direction in which the value improves.
    fn goal(&self) -> Goal;

    /// Adds the samples of a batch: the outputs of a model and their targets. The host reads the values, so the call
    /// waits for the kernels that compute them. Gradients are not tracked.
    ///
    /// # Errors
    /// Returns an error if shapes or dtypes do not match, or a target has an invalid value. The metric is then
    /// unchanged.
    fn update(&mut self, output: &Tensor, target: &Tensor) -> Result<()>;

    /// Returns the value over all samples since the creation or the last [`reset`](Metric::reset). Further updates are
    /// allowed.
    ///
    /// # Errors
    /// The metrics of this module return no errors. Custom metrics may.
    fn compute(&self) -> Result<f64>;

    /// Removes all samples.
    fn reset(&mut self);

    /// Returns the accumulated values as a list of numbers, which [`load_state`](Metric::load_state) reads. A
    /// [`Trainer`](crate::Trainer) saves the state of its [training metrics](crate::Trainer::train_metric). By default
    /// `None`: the metric cannot be saved.
    fn state(&self) -> Option<Vec<f64>> {
        None
    }

    /// Replaces the accumulated values with those of a [`state`](Metric::state).
    ///
    /// # Errors
    /// Returns an error if the numbers are not a state of this metric. The metric is then unchanged.
    fn load_state(&mut self, state: &[f64]) -> Result<()> {
        Err(state::wrong_state(&self.name(), state.len()))
    }

    /// Returns numbers from which [`roll_back`](Metric::roll_back) restores the current values, by default the
    /// [`state`](Metric::state). A [`Trainer`](crate::Trainer) with several training metrics calls it before each
    /// update, so a metric that stores all samples should return only their number. `None` means that the metric cannot
    /// be rolled back.
    fn savepoint(&self) -> Option<Vec<f64>> {
        self.state()
    }

    /// Undoes the updates since a [`savepoint`](Metric::savepoint).
    ///
    /// # Errors
    /// Returns an error if the numbers are not a savepoint of this metric. The metric is then unchanged.
    fn roll_back(&mut self, savepoint: &[f64]) -> Result<()> {
        self.load_state(savepoint)
    }

    /// Returns this metric with another name, so that a run can have several metrics of the same type:
    ///
    /// ```
    /// use pellucid::prelude::*;
    /// use pellucid::train::metrics::{Accuracy, Metric};
    ///
    /// let (x, y) = (Tensor::randn([32, 3], DType::F32), Tensor::zeros([32], DType::I64));
    /// let model = Linear::new(3, 1);
    /// let loss = nn::loss::from_fn(|output, _| ops::mean(&ops::square(output)?, ..));
    /// let sgd = Sgd::new(model.parameters(), SgdOptions::default());
    /// let mut trainer = Trainer::new(model, loss, sgd).quiet(true).metric(Accuracy::new());
    /// trainer = trainer.metric(Accuracy::new().threshold(2.0).named("strict_accuracy"));
    /// let scores = trainer.evaluate(&mut Batches::new(&[&x, &y], 8))?;
    /// assert!(scores["strict_accuracy"] >= scores["accuracy"]);
    /// # Ok::<(), Error>(())
    /// ```
    fn named(self, name: impl Into<String>) -> NamedMetric<Self>
    where
        Self: Sized,
    {
        NamedMetric { metric: self, name: name.into() }
    }
}

/// A metric with another name; see [`Metric::named`].
#[derive(Clone, Debug)]
pub struct NamedMetric<M> {
    metric: M,
    name: String,
}

/// Implements all methods of a metric except `name` by delegating to `$target`.
macro_rules! delegate_metric {
    ($self:ident => $target:expr) => {
        fn goal(&$self) -> Goal {
            $target.goal()
        }

        fn update(&mut $self, output: &Tensor, target: &Tensor) -> Result<()> {
            $target.update(output, target)
        }

        fn compute(&$self) -> Result<f64> {
            $target.compute()
        }

        fn reset(&mut $self) {
            $target.reset();
        }

        fn state(&$self) -> Option<Vec<f64>> {
            $target.state()
        }

        fn load_state(&mut $self, state: &[f64]) -> Result<()> {
            $target.load_state(state)
        }

        fn savepoint(&$self) -> Option<Vec<f64>> {
            $target.savepoint()
        }

        fn roll_back(&mut $self, savepoint: &[f64]) -> Result<()> {
            $target.roll_back(savepoint)
        }
    };
}

impl<M: Metric> Metric for NamedMetric<M> {
    fn name(&self) -> String {
        self.name.clone()
    }

    delegate_metric! { self => self.metric }
}

impl<M: Metric + ?Sized> Metric for Box<M> {
    fn name(&self) -> String {
        (**self).name()
    }

    delegate_metric! { self => **self }
}
