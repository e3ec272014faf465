//! A trainer that records training steps and launches them.

use super::batch::{Batch, BoundModel, Model};
use super::check::StepCheck;
use super::options::StepOptions;
use super::trainer_core::TrainerCore;
use crate::loss::Loss;
use crate::optim::Optimizer;
use pellucid_tensor::{CacheStats, Captured, Result, Tensor};
use std::fmt;
use std::sync::Arc;

/// A trainer: a model, a loss, an optimizer, and recorded training steps. The first [`step`](GraphTrainer::step) with a
/// batch of new shapes or dtypes records a step for it, as does a new [path](crate::paths::path_of) or mode of the
/// model, another dtype of [autocast](pellucid_tensor::autocast), and a [hook](crate::hook) that was added or removed.
/// The trainer keeps the recordings up to a [limit](StepOptions::max_recordings). They share parameters, gradients and
/// optimizer state. A [`TrainingStep`](super::TrainingStep) is a trainer for a closure.
///
/// Model, loss and optimizer may be owned, borrowed (`&M`, `&mut M`), boxed (`Box<dyn Layer>`, `Box<dyn Loss>`,
/// `Box<dyn Optimizer>`) or shared (`Arc<M>`). This holds for models of [several inputs](super::MultiInput) as well.
/// Between launches, [`model`](GraphTrainer::model) and [`optimizer`](GraphTrainer::optimizer) return references to
/// them.
///
/// A trainer is `Send`: it may move to another thread between steps, and a service may hold it in a
/// [`Mutex`](std::sync::Mutex). It continues with the random numbers of the thread that recorded its first step, so a
/// move does not change the results. A [`Checkpoint`](crate::Checkpoint) contains the random numbers of the thread that
/// saves it: a program that steps and saves on several threads opens the
/// [scope](pellucid_tensor::Generator::scope) of one generator on each of them.
/// [Autocast](pellucid_tensor::autocast) is a mode of the thread, and does not move with the trainer.
///
/// ```
/// use pellucid::nn::{Linear, Module, graph::GraphTrainer, loss::MseLoss, optim::{Sgd, SgdOptions}};
/// use pellucid::{DType, Tensor};
/// let model = Linear::new(3, 1);
/// let mut sgd = Sgd::new(model.parameters(), SgdOptions::default());
/// let mut trainer = GraphTrainer::new(&model, MseLoss::default(), &mut sgd);
/// for size in [8, 8, 5] {
///     let x = Tensor::randn([size, 3], DType::F32);
///     trainer.step(&x, &x.sum(1).reshape([size, 1]))?; // the first and the last record, all launch
///     println!("{}", trainer.loss()?);
/// }
/// assert_eq!(trainer.cache_stats().len, 2);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[doc(alias = "make_graphed_callables")]
#[doc(alias = "CUDAGraph")]
pub struct GraphTrainer<'f, M, O, X = Tensor> {
    model: Arc<BoundModel<Arc<M>, X>>,
    optimizer: Arc<O>,
    core: TrainerCore<'f>,
}

impl<'f, M, O, X> GraphTrainer<'f, M, O, X>
where
    M: Model<X> + 'f,
    O: Optimizer + 'f,
    X: Batch + 'f,
{
    /// Creates a trainer without recordings.
    pub fn new(model: M, loss: impl Loss + 'f, optimizer: O) -> Self {
        let (model, optimizer) = (Arc::new(BoundModel::new(Arc::new(model))), Arc::new(optimizer));
        let core = TrainerCore::new(model.clone(), Arc::new(loss), optimizer.clone());
        GraphTrainer { model, optimizer, core }
    }

    /// Returns the number of kept recordings, and how often a step or an evaluation found a recording (hits) or created
    /// one (misses).
    ///
    /// Steps and evaluations have one recording each for every shape of the batch, [path](crate::paths::path_of), mode
    /// (training or evaluation) and set of hooks with which they ran. The separate update of a step that accumulates
    /// gradients is one more. Steps that run eagerly have none.
    pub fn cache_stats(&self) -> CacheStats {
        self.core.cache_stats()
    }

    /// Sets all options, and drops earlier recordings and accumulated gradients.
    pub fn with_options(mut self, options: StepOptions<'f>) -> Self {
        self.set_options(options);
        self
    }

    /// Sets all options, as [`with_options`](GraphTrainer::with_options) does.
    pub fn set_options(&mut self, options: StepOptions<'f>) {
        self.core.set_options(options);
    }

    /// Adds the parameters of model and loss that require a gradient to an optimizer without parameters, as the first
    /// step does. Returns true if it added some.
    ///
    /// # Errors
    /// [`Error::Layer`](pellucid_tensor::Error::Layer) names a lazy layer that is not built;
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) for an optimizer without parameters that has
    /// several groups, or is no [`RuleOptimizer`](crate::optim::RuleOptimizer).
    pub fn fill_optimizer(&self) -> Result<bool> {
        self.core.fill_optimizer()
    }

    /// Returns the model.
    pub fn model(&self) -> &M {
        &self.model.model
    }

    /// Returns the model, and drops the recordings.
    pub fn into_model(self) -> M {
        let GraphTrainer { model, core, .. } = self;
        drop(core);
        let model = Arc::into_inner(model).and_then(|bound| Arc::into_inner(bound.model));
        model.expect("only the recordings must share the model with their trainer")
    }

    /// Returns the optimizer.
    pub fn optimizer(&self) -> &O {
        &self.optimizer
    }

    /// Returns the captured step, with its plan; `None` before the first recording, and for a step that runs eagerly.
    /// For a step that accumulates gradients, it does not contain the update.
    pub fn captured(&self) -> Option<&Captured<'f>> {
        self.core.captured()
    }

    /// Returns the loss of the last [`step`](GraphTrainer::step) before its update. This call waits for the step and
    /// reads the value; [`loss_tensor`](GraphTrainer::loss_tensor) does not. The loss is NaN for a batch with a value
    /// that the loss does not accept and that was not checked, see [`step`](GraphTrainer::step).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) before the first step; errors of the step on
    /// a device that executes it asynchronously.
    pub fn loss(&self) -> Result<f64> {
        self.core.results("loss")?.0.try_item()
    }

    /// Returns the loss of the last step before its update: a 0-d tensor on the device, which the next step of these
    /// shapes overwrites.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) before the first step.
    pub fn loss_tensor(&self) -> Result<&Tensor> {
        self.core.results("loss").map(|(loss, _)| loss)
    }

    /// Returns the outputs of the model in the last step, such as logits `[B, C]`: a tensor on the device, which the
    /// next step of these shapes overwrites.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) before the first step.
    pub fn logits(&self) -> Result<&Tensor> {
        self.core.results("logits").map(|(_, logits)| logits)
    }

    /// Records a step for the shapes and dtypes of this batch, on the path and in the mode that the model is set to,
    /// before the first [`step`](GraphTrainer::step) needs it. The values are not used. Targets have the dtype of the
    /// first input if the loss expects floats. Steps for other shapes are kept.
    ///
    /// # Errors
    /// [`Error::Layer`](pellucid_tensor::Error::Layer) names a layer that rejects its input, whose output shape depends
    /// on values, or that cannot be captured;
    /// [`Error::UntrainedParameters`](pellucid_tensor::Error::UntrainedParameters) names parameters that require a
    /// gradient and do not belong to the optimizer, unless that is
    /// [allowed](StepOptions::allow_untrained_parameters);
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) for a loss without
    /// [expected targets](Loss::expected_targets); the errors of [`capture`](pellucid_tensor::capture()). On error,
    /// parameters, gradients and optimizer are unchanged.
    pub fn prepare(&mut self, inputs: &X) -> Result<()> {
        self.set_structure(inputs)?;
        self.core.prepare(inputs)
    }

    /// Launches the step for a batch, without synchronizing. The loss before the update stays on the device until
    /// [`loss`](GraphTrainer::loss) reads it. Free tensors are copied to the device of the model.
    ///
    /// A step for other shapes or dtypes, or for another path of the model, is recorded first, as by
    /// [`prepare`](GraphTrainer::prepare). The targets of a loss without
    /// [expected targets](Loss::expected_targets), such as one of [`loss::from_fn`](crate::loss::from_fn), then have
    /// the shape and dtype of `y`.
    ///
    /// Values of targets on the host are checked before the launch ([`Loss::check_targets`]). No other values of a
    /// batch are checked: an invalid class index on another device, or a predicted probability outside [0, 1], makes
    /// the loss NaN, and the update makes the parameters NaN, whereas an eager loss returns an error.
    ///
    /// # Errors
    /// The errors of [`prepare`](GraphTrainer::prepare), if the step is recorded;
    /// [`Error::Layer`](pellucid_tensor::Error::Layer) for targets that the loss rejects;
    /// [`Error::Rebound`](pellucid_tensor::Error::Rebound) names a parameter or buffer that was replaced since the
    /// first recording; the optimizer does not know the new tensor. Errors of [`Captured::launch`]. A batch with
    /// shapes, dtypes or targets that the model or the loss rejects changes nothing. If the launch finds an index out
    /// of bounds, for example in an [`Embedding`](crate::Embedding), parameters and optimizer are unchanged, but the
    /// statistics of earlier layers, such as [`BatchNorm`](crate::BatchNorm), have been updated.
    pub fn step(&mut self, x: &X, y: &Tensor) -> Result<()> {
        self.set_structure(x)?;
        self.core.step(x, y)
    }

    /// Runs a [`step`](GraphTrainer::step), then an evaluation of the same batch. Returns the loss of the evaluation:
    /// the loss of the updated parameters, in evaluation mode. [`loss`](GraphTrainer::loss) returns the loss before the
    /// update, in the mode of the model. Both wait for the device.
    ///
    /// # Errors
    /// The errors of [`step`](GraphTrainer::step).
    pub fn step_and_evaluate(&mut self, x: &X, y: &Tensor) -> Result<f64> {
        self.step(x, y)?;
        self.core.evaluate_again()?[0].try_item()
    }

    /// Launches the step of this batch twice, and returns whether the loss falls and the update opposes the gradient.
    /// Both launches draw the same random numbers. Parameters, buffers, gradients, the optimizer, a scaler, the default
    /// random generator and the results of the last step are restored, so the call trains nothing.
    ///
    /// ```
    /// use pellucid::nn::{Linear, Module, graph::GraphTrainer, loss::MseLoss, optim::{AdamW, AdamWOptions}};
    /// use pellucid::{DType, Tensor};
    /// let model = Linear::new(3, 1);
    /// let adamw = AdamW::new(model.parameters(), AdamWOptions { lr: 1e-3, weight_decay: 0.0, ..Default::default() });
    /// let mut trainer = GraphTrainer::new(model, MseLoss::default(), adamw);
    /// let (x, y) = (Tensor::randn([8, 3], DType::F32), Tensor::ones([8, 1], DType::F32));
    /// trainer.check_step(&x, &y)?.ensure()?;
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`step`](GraphTrainer::step);
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) for a step that accumulates gradients.
    pub fn check_step(&mut self, x: &X, y: &Tensor) -> Result<StepCheck> {
        self.set_structure(x)?;
        self.core.check_step(x, y)
    }

    /// Returns the loss of a batch in evaluation mode, without training. It needs no training step: the first batch of
    /// new shapes records an evaluation.
    ///
    /// # Errors
    /// [`Error::Layer`](pellucid_tensor::Error::Layer) names a layer, or `loss`, that rejects the batch; errors of
    /// [`capture`](pellucid_tensor::capture()) and of [`Captured::launch`].
    pub fn evaluate(&mut self, x: &X, y: &Tensor) -> Result<f64> {
        self.evaluate_with_logits(x, y)?.0.try_item()
    }

    /// Evaluates a batch as [`evaluate`](GraphTrainer::evaluate) does, and returns its loss, a 0-d tensor, and the
    /// outputs of the model, such as logits `[B, C]`. They are on the device, and the next evaluation of these shapes
    /// overwrites them.
    ///
    /// # Errors
    /// The errors of [`evaluate`](GraphTrainer::evaluate).
    pub fn evaluate_with_logits(&mut self, x: &X, y: &Tensor) -> Result<(&Tensor, &Tensor)> {
        self.set_structure(x)?;
        let results = self.core.evaluate(x, y)?;
        Ok((&results[0], &results[1]))
    }

    /// Updates the parameters with the mean of the gradients that were accumulated since the last update, without
    /// waiting for [`accumulate`](StepOptions::accumulate) launches, for example after the last batch of an epoch. The
    /// next step begins without gradients. Returns false if no gradients were accumulated.
    ///
    /// ```
    /// use pellucid::nn::graph::{GraphTrainer, StepOptions};
    /// use pellucid::nn::{Linear, Module, loss::MseLoss, optim::{Sgd, SgdOptions}};
    /// use pellucid::{DType, Tensor};
    /// let model = Linear::new(3, 1);
    /// let sgd = Sgd::new(model.parameters(), SgdOptions::default());
    /// let options = StepOptions { accumulate: 4, ..Default::default() };
    /// let mut trainer = GraphTrainer::new(model, MseLoss::default(), sgd).with_options(options);
    /// trainer.step(&Tensor::randn([8, 3], DType::F32), &Tensor::zeros([8, 1], DType::F32))?;
    /// assert!(trainer.update_early()?);
    /// assert!(!trainer.update_early()?);
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Rebound`](pellucid_tensor::Error::Rebound) for a replaced parameter; the errors of the update. After an
    /// error or a panic of the update, the accumulated gradients are discarded.
    pub fn update_early(&mut self) -> Result<bool> {
        self.core.update_early()
    }

    /// Returns the number of steps since the last update whose gradients are accumulated. It is 0 after an update, and
    /// if gradients do not accumulate.
    pub fn steps_since_update(&self) -> usize {
        self.core.steps_since_update()
    }

    fn set_structure(&self, x: &X) -> Result<()> {
        if self.core.knows_inputs() { Ok(()) } else { self.model.set_structure(x) }
    }
}

impl<M, O, X> fmt::Debug for GraphTrainer<'_, M, O, X> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GraphTrainer").field("cache_stats", &self.core.cache_stats()).finish_non_exhaustive()
    }
}
