//! A trainer that records training steps and launches them.

use super::batch::{Batch, Model, ModelWithBatch};
use super::check::StepCheck;
use super::record::StepOptions;
use super::step_cache::StepCache;
use super::training_step::TrainingStep;
use crate::layer::Layer;
use crate::loss::Loss;
use crate::optim::Optimizer;
use crate::parameter::Parameter;
use pellucid_derive::panicking_form;
use pellucid_tensor::{CacheStats, Result, Tensor, ops, unwrap};
use std::marker::PhantomData;
use std::sync::Arc;

/// A trainer: a model, a loss, an optimizer, and recorded training steps. The first [`step`](GraphTrainer::step) with a
/// batch of new shapes or dtypes, or on a new [path](super::paths::path_of) of the model, records a step for it. The
/// trainer keeps the recordings up to a [limit](GraphTrainer::recordings). They share parameters, gradients and
/// optimizer state. A step is recorded again for another mode (training or evaluation), and after a
/// [hook](crate::hook) was added or removed.
///
/// Model, loss and optimizer may be owned, borrowed (`&M`, `&mut M`), boxed (`Box<dyn Layer>`, `Box<dyn Loss>`,
/// `Box<dyn Optimizer>`) or shared (`Arc<M>`). This holds for models of [several inputs](super::MultiInput) as well.
/// Between launches, [`model`](GraphTrainer::model) and [`optimizer`](GraphTrainer::optimizer) give access to them.
///
/// A trainer is `Send`: it may move to another thread between steps, and a service may hold it in a
/// [`Mutex`](std::sync::Mutex). It continues with the random numbers of the thread that recorded its first step, so a
/// move does not change the results. [Autocast](pellucid_tensor::autocast) is a mode of the thread, and does not move
/// with the trainer.
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
/// assert_eq!(trainer.cache().held, 2);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[doc(alias = "make_graphed_callables")]
#[doc(alias = "CUDAGraph")]
pub struct GraphTrainer<'f, M, L, O, X = Tensor> {
    model: Arc<M>,
    optimizer: Arc<O>,
    steps: StepCache<'f>,
    types: PhantomData<fn(X) -> L>,
}

impl<'f, M, L, O, X> GraphTrainer<'f, M, L, O, X>
where
    M: Model<X> + 'f,
    L: Loss + 'f,
    O: Optimizer + 'f,
    X: Batch + 'f,
{
    /// Creates a trainer without recordings.
    pub fn new(model: M, loss: L, optimizer: O) -> Self {
        let (model, optimizer) = (Arc::new(model), Arc::new(optimizer));
        let steps = StepCache::new(model.clone(), Arc::new(Box::new(loss)), optimizer.clone());
        GraphTrainer { model, optimizer, steps, types: PhantomData }
    }

    /// Sets the maximum scratch of one matrix product in bytes,
    /// [`DEFAULT_MAX_SCRATCH`](super::plan::DEFAULT_MAX_SCRATCH) by default; see
    /// [`StepPlan`](super::StepPlan#structfield.max_scratch). Steps that were recorded before keep theirs.
    pub fn max_scratch(mut self, bytes: usize) -> Self {
        self.steps.max_scratch = bytes;
        self
    }

    /// Sets the maximum number of recorded steps (shapes and paths), 8 by default. The least recently used step is
    /// dropped first, and is recorded again when it is needed.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) if `limit` is 0.
    #[panicking_form]
    pub fn try_recordings(mut self, limit: usize) -> Result<Self> {
        self.steps.set_limit(limit).map(|()| self)
    }

    /// Returns the number of kept recordings, and the hits and misses of steps and evaluations.
    ///
    /// A step for one shape of the batch and one [path](super::paths::path_of) has a recording for each mode (training
    /// or evaluation) and each set of hooks with which it ran, and one more for its evaluation. Each of them counts, as
    /// does the separate update of a step that accumulates gradients. A step that runs eagerly counts as one recording.
    pub fn cache(&self) -> CacheStats {
        self.steps.stats()
    }

    /// Sets the options for recording. Settings of [`before_update`](GraphTrainer::before_update) and
    /// [`allow_untrained_parameters`](GraphTrainer::allow_untrained_parameters) stay, unless the options set them.
    pub fn with_options(mut self, options: StepOptions<'f>) -> Self {
        self.steps.set_options(options);
        self
    }

    /// Permits parameters that require a gradient and that the optimizer does not update, as in a GAN.
    ///
    /// ```
    /// use pellucid::nn::graph::GraphTrainer;
    /// use pellucid::nn::{Linear, Module, loss::BceWithLogitsLoss, optim::{Sgd, SgdOptions}};
    /// // The generator learns to deceive the discriminator, which has an optimizer of its own.
    /// let (generator, discriminator) = (Linear::new(2, 4), Linear::new(4, 1));
    /// let sgd = Sgd::new(generator.parameters(), SgdOptions::default());
    /// let model = (generator, discriminator.clone());
    /// let mut trainer = GraphTrainer::new(model, BceWithLogitsLoss::default(), sgd).allow_untrained_parameters();
    /// trainer.compile(&[8, 2])?;
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    pub fn allow_untrained_parameters(mut self) -> Self {
        self.steps.options.allow_untrained_parameters = true;
        self
    }

    /// Sets a function that changes the gradients before each update:
    ///
    /// ```
    /// use pellucid::nn::optim::{Sgd, SgdOptions, clip_grad_norm};
    /// use pellucid::nn::{Linear, Module, graph::GraphTrainer, loss::MseLoss};
    /// let model = Linear::new(3, 1);
    /// let sgd = Sgd::new(model.parameters(), SgdOptions::default());
    /// let mut trainer = GraphTrainer::new(model, MseLoss::default(), sgd)
    ///     .before_update(|parameters| clip_grad_norm(parameters, 1.0).map(drop));
    /// trainer.compile(&[8, 3])?;
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    pub fn before_update(mut self, f: impl Fn(&[Parameter]) -> Result<()> + Send + Sync + 'f) -> Self {
        self.steps.options.before_update = Some(Arc::new(f));
        self
    }

    /// Returns the model.
    pub fn model(&self) -> &M {
        &self.model
    }

    /// Returns the optimizer.
    pub fn optimizer(&self) -> &O {
        &self.optimizer
    }

    /// Returns the training step that was compiled or used last; `None` before the first.
    pub fn current(&self) -> Option<&TrainingStep<'f>> {
        self.steps.latest()
    }

    /// Returns the loss of the last [`step`](GraphTrainer::step) before its update. This call waits for the step and
    /// reads the value; [`loss_tensor`](GraphTrainer::loss_tensor) does not. It is NaN for a batch with a value that
    /// the loss does not accept and that was not checked, see [`step`](GraphTrainer::step).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) before the first step; errors of the step on
    /// a device that runs it later.
    pub fn loss(&self) -> Result<f32> {
        self.steps.results("loss")?.1.try_item()
    }

    /// Returns the loss of the last step before its update: a 0-d tensor on the device, which the next step of these
    /// shapes overwrites.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) before the first step.
    pub fn loss_tensor(&self) -> Result<&Tensor> {
        self.steps.results("loss").map(|(_, loss)| loss)
    }

    /// Returns the logits of the last step, `[B, C]`: a tensor on the device, which the next step of these shapes
    /// overwrites.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) before the first step.
    pub fn logits(&self) -> Result<&Tensor> {
        self.steps.results("logits").map(|(logits, _)| logits)
    }

    /// Records a step for the shapes and dtypes of this batch, on the path that the model is set to, before the first
    /// [`step`](GraphTrainer::step) needs it. The values are not used. Steps for other shapes are kept.
    ///
    /// # Errors
    /// The errors of [`Sequential::compile`](crate::Sequential::compile).
    pub fn compile_for(&mut self, inputs: &X) -> Result<&mut TrainingStep<'f>> {
        let model = ModelWithBatch::with_buffers(self.model.clone(), inputs)?;
        self.steps.compile(model, None)
    }

    /// Copies a batch into the buffers and launches the step, without synchronizing. The loss before the update stays
    /// on the device until [`loss`](GraphTrainer::loss) reads it.
    ///
    /// A step for other shapes or dtypes, or for another path of the model, is recorded first, as by
    /// [`compile`](GraphTrainer::compile). The targets of a loss without a [kind](Loss::kind), such as a closure, then
    /// have the shape and dtype of `y`.
    ///
    /// Values of targets on the host are checked before the launch ([`Loss::check_targets`]). No other values of a
    /// batch are: a class number of targets on another device, or a predicted probability outside [0, 1], makes the
    /// loss NaN, and the update makes the parameters NaN, whereas an eager loss returns an error.
    ///
    /// # Errors
    /// The errors of [`Sequential::compile`](crate::Sequential::compile), if the step is recorded; the errors of
    /// [`TrainingStep::set_batch`] and of [`TrainingStep::launch`]. A batch whose shapes, dtypes or targets the model
    /// or the loss rejects changes nothing. If the launch finds an index out of bounds, for example in an
    /// [`Embedding`](crate::Embedding), parameters and optimizer are unchanged, but the statistics of earlier layers,
    /// such as [`BatchNorm`](crate::BatchNorm), have been updated.
    pub fn step(&mut self, x: &X, y: &Tensor) -> Result<()> {
        let model = &self.model;
        self.steps.step(x, y, &|| ModelWithBatch::with_buffers(model.clone(), x))
    }

    /// Runs a [`step`](GraphTrainer::step) and returns the loss of the same batch after the update, in evaluation mode,
    /// from a recorded evaluation ([`RecordedStep::evaluation`](super::RecordedStep::evaluation)).
    ///
    /// # Errors
    /// The errors of [`step`](GraphTrainer::step).
    pub fn one_step(&mut self, x: &X, y: &Tensor) -> Result<f32> {
        self.step(x, y)?;
        self.steps.evaluate_buffers()
    }

    /// Launches the step of this batch twice, and returns whether the loss falls and the update opposes the gradient.
    /// Then all state is restored, as [`RecordedStep::check_step`](super::RecordedStep::check_step) describes, so
    /// nothing is trained.
    ///
    /// ```
    /// use pellucid::nn::{Linear, graph::GraphTrainer, loss::MseLoss, optim::{AdamW, AdamWOptions}};
    /// use pellucid::{DType, Tensor};
    /// let adamw = AdamW::new(vec![], AdamWOptions { lr: 1e-3, weight_decay: 0.0, ..Default::default() });
    /// let mut trainer = GraphTrainer::new(Linear::new(3, 1), MseLoss::default(), adamw);
    /// let (x, y) = (Tensor::randn([8, 3], DType::F32), Tensor::ones([8, 1], DType::F32));
    /// trainer.check_step(&x, &y)?.ensure()?;
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`step`](GraphTrainer::step) and of [`RecordedStep::check_step`](super::RecordedStep::check_step).
    pub fn check_step(&mut self, x: &X, y: &Tensor) -> Result<StepCheck> {
        let model = &self.model;
        self.steps.check_step(x, y, &|| ModelWithBatch::with_buffers(model.clone(), x))
    }

    /// Returns the loss of a batch in evaluation mode, without training. It needs no training step: the first batch of
    /// new shapes records an evaluation.
    ///
    /// # Errors
    /// [`Error::Layer`](pellucid_tensor::Error::Layer) names a layer, or `loss`, that rejects the batch; the errors of
    /// [`RecordedStep::evaluation`](super::RecordedStep::evaluation).
    pub fn evaluate(&mut self, x: &X, y: &Tensor) -> Result<f32> {
        let model = &self.model;
        self.steps.evaluate(x, y, &|| ModelWithBatch::with_buffers(model.clone(), x))
    }
}

impl<'f, M: Layer + 'f, L: Loss + 'f, O: Optimizer + 'f> GraphTrainer<'f, M, L, O> {
    /// Records a step for inputs of this shape, for example `[B, K]`, of the model's [input dtype](Layer::input_dtype),
    /// before the first [`step`](GraphTrainer::step) needs it.
    ///
    /// # Errors
    /// The errors of [`Sequential::compile`](crate::Sequential::compile).
    pub fn compile(&mut self, input_shape: &[usize]) -> Result<&mut TrainingStep<'f>> {
        let inputs = ops::zeros(input_shape, self.model.input_dtype())?;
        self.compile_for(&inputs)
    }
}
