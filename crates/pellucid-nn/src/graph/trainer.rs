//! A recorded step with its buffers, and a trainer that records and launches such steps.

use super::batch::{Batch, Model};
use super::coverage::{FrozenParameters, fill};
use super::paths::{Path, is_on, path_of};
use super::plan::{CapturePlan, make_plan};
use super::rebind::{Rebound, try_rebind_grads};
use super::record::{GraphExec, StepOptions, record_eval_graph, record_step_graph_with};
use super::stream::Stream;
use crate::layer::Layer;
use crate::loss::Loss;
use crate::module::{Module, parameters_so_far};
use crate::optim::Optimizer;
use crate::parameter::Parameter;
use crate::sequential::Sequential;
use pellucid_tensor::{CacheStats, Error, Result, Shape, Tensor, no_grad, ops};
use std::ops::Deref;
use std::rc::Rc;

/// A recorded training step over fixed buffers of its own.
///
/// Made by [`Sequential::compile`] and [`GraphTrainer::compile`].
pub struct TrainGraph<'f, X = Tensor> {
    /// The input buffers: x `[B, K]`, for example.
    pub x_buf: X,
    /// The target buffer: class numbers `[B]`, or values of the logits' shape.
    pub y_buf: Tensor,
    /// The logits of the last launch, `[B, C]`.
    pub logits: Tensor,
    /// The loss of the last launch before the update: a 0-d tensor that stays on the device.
    pub loss: Tensor,
    /// The step.
    pub exec: GraphExec<'f>,
    /// Which gradients the optimizer reads from the plan's buffers.
    pub rebound: Rebound,
    /// The input buffers, in order.
    buffers: Vec<Tensor>,
}

impl<'f, X: Batch + 'f> TrainGraph<'f, X> {
    /// Builds, checks and plans the model, fills the optimizer, rebinds and records. `share` is a plan whose gradient
    /// buffers are used.
    fn compile(
        model: impl Deref<Target: Model<X>> + 'f,
        loss: impl Deref<Target: Loss> + 'f,
        optimizer: impl Deref<Target: Optimizer> + 'f,
        inputs: &X,
        lt_bytes: usize,
        share: Option<&CapturePlan>,
        options: StepOptions<'f>,
    ) -> Result<TrainGraph<'f, X>> {
        let Some(kind) = loss.kind() else {
            let help = "the targets of this loss are unknown; use loss.with_targets(shape, dtype)";
            return Err(Error::invalid("compile", help));
        };
        model.supports_capture()?;
        let plan = make_plan(&*model, inputs, kind, lt_bytes)?;
        let optimizer = Rc::new(optimizer);
        let is_filled = fill(&*model, &*loss, &**optimizer)?;
        let step = TrainGraph::record(model, loss, Rc::clone(&optimizer), inputs, (plan, share), options);
        if is_filled && step.is_err() {
            optimizer.unfill();
        }
        step
    }

    fn record(
        model: impl Deref<Target: Model<X>> + 'f,
        loss: impl Deref<Target: Loss> + 'f,
        optimizer: Rc<impl Deref<Target: Optimizer> + 'f>,
        inputs: &X,
        (plan, share): (CapturePlan, Option<&CapturePlan>),
        options: StepOptions<'f>,
    ) -> Result<TrainGraph<'f, X>> {
        FrozenParameters::of("compile", &*model, &*loss, &**optimizer, options.allow_untrained_parameters)?;
        if let Some(other) = share {
            plan.adopt_grads(other);
        }
        let x_buf = inputs.map(&mut |_, x| ops::zeros(x.shape(), x.dtype()))?;
        let (shape, dtype) = &plan.loss.target;
        let y_buf = ops::zeros(shape, *dtype)?;
        let parameters: Vec<Parameter> = parameters_so_far(&*model).into_iter().map(|(_, p)| p).collect();
        let before: Vec<Option<Tensor>> = parameters.iter().map(|p| p.grad()).collect();
        let rebound = try_rebind_grads(&*model, &**optimizer, &plan)?;
        let optimizer = SharedOptimizer(optimizer);
        let recorded = record_step_graph_with(model, loss, optimizer, &plan, &x_buf, &y_buf, options);
        // A failed recording restores the gradients.
        let put_back = |_: &Error| parameters.iter().zip(before).for_each(|(p, gradient)| p.set_grad(gradient));
        let exec = recorded.inspect_err(put_back)?;
        let (logits, loss) = (exec.logits.clone(), exec.loss.clone());
        let buffers = x_buf.named().into_iter().map(|(_, buffer)| buffer).collect();
        Ok(TrainGraph { x_buf, y_buf, logits, loss, exec, rebound, buffers })
    }

    /// Copies a batch into the fixed buffers, without synchronizing.
    ///
    /// # Errors
    /// [`Error::Layer`] names the layer that would read a batch of another shape or dtype; then nothing is copied.
    pub fn set_batch(&self, x: &X, y: &Tensor) -> Result<()> {
        self.exec.plan().check("set_batch", x, y)?;
        // Only the values of the batch are copied, not its autograd graph.
        let _off = no_grad();
        let (mut buffers, mut copied) = (self.buffers.iter(), Ok(()));
        x.each(&mut |_, x| {
            if let (Some(buffer), Ok(())) = (buffers.next(), &copied) {
                copied = ops::copy_(buffer, x);
            }
        });
        copied.and_then(|()| ops::copy_(&self.y_buf, y))
    }

    /// Executes the step on the batch in the buffers.
    ///
    /// # Errors
    /// Those of [`GraphExec::launch`].
    pub fn launch(&mut self) -> Result<()> {
        self.exec.launch()
    }
}

/// A shared pointer to an optimizer pointer that dereferences to the optimizer.
struct SharedOptimizer<P>(Rc<P>);

impl<P: Deref> Deref for SharedOptimizer<P> {
    type Target = P::Target;

    fn deref(&self) -> &P::Target {
        &self.0
    }
}

/// The arguments of [`Sequential::compile`] besides the model.
pub struct CompileOptions<'f, L: ?Sized, O: ?Sized> {
    /// The loss to minimise.
    pub loss: &'f L,
    /// The optimizer.
    pub optimizer: &'f O,
    /// The maximum scratch of one matrix product in bytes, usually `8 << 20`.
    pub lt_bytes: usize,
    /// The stream of the launches. `None` means the device's default stream.
    pub stream: Option<Stream>,
}

impl<'f, L: ?Sized, O: ?Sized> CompileOptions<'f, L, O> {
    /// Returns these options for a step that may leave parameters untrained, as in a GAN.
    #[must_use]
    pub fn allow_untrained_parameters(self) -> CompileSettings<'f, L, O> {
        CompileSettings { options: self, allow_untrained_parameters: true }
    }
}

/// [`CompileOptions`] with the settings of their methods.
pub struct CompileSettings<'f, L: ?Sized, O: ?Sized> {
    options: CompileOptions<'f, L, O>,
    allow_untrained_parameters: bool,
}

impl<'f, L: ?Sized, O: ?Sized> From<CompileOptions<'f, L, O>> for CompileSettings<'f, L, O> {
    fn from(options: CompileOptions<'f, L, O>) -> Self {
        CompileSettings { options, allow_untrained_parameters: false }
    }
}

impl Sequential {
    /// Records a training step for inputs of this shape; see [`graph`](crate::graph). Lazy layers are built, and an
    /// optimizer without parameters gets those of the model.
    ///
    /// ```
    /// use pellucid_nn::graph::CompileOptions;
    /// use pellucid_nn::{Linear, Module, Tanh, loss::MseLoss, optim::{AdamW, AdamWOptions, Optimizer}, sequential};
    /// use pellucid_tensor::{DType, Tensor};
    ///
    /// let model = sequential![Linear::lazy(8), Tanh, Linear::lazy(1)];
    /// let optimizer = AdamW::new(vec![], AdamWOptions::default())?;
    /// let loss = MseLoss::default();
    /// let options = CompileOptions { loss: &loss, optimizer: &optimizer, lt_bytes: 8 << 20, stream: None };
    /// let mut step = model.compile(&[16, 3], options)?;
    /// for epoch in 0..3 {
    ///     optimizer.set_lr(0.01 / (epoch + 1) as f64);
    ///     let x = Tensor::randn([16, 3], DType::F32);
    ///     step.set_batch(&x, &x.sum(1).reshape([16, 1]))?;
    ///     step.launch()?;
    /// }
    /// assert!(step.loss.item::<f32>().is_finite());
    /// # Ok::<(), pellucid_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Layer`] names a layer that rejects its input, whose output shape depends on values, or that cannot be
    /// captured; [`Error::UntrainedParameters`] names parameters that require a gradient and do not belong to the
    /// optimizer, unless [`CompileOptions::allow_untrained_parameters`] was called; those of
    /// [`record_step_graph`](crate::graph::record_step_graph). On error, parameters, gradients and optimizer are
    /// unchanged.
    pub fn compile<'f, L: Loss + ?Sized + 'f, O: Optimizer + ?Sized + 'f>(
        &'f self,
        input_shape: &[usize],
        options: impl Into<CompileSettings<'f, L, O>>,
    ) -> Result<TrainGraph<'f>> {
        let CompileSettings { options, allow_untrained_parameters } = options.into();
        let CompileOptions { loss, optimizer, lt_bytes, stream } = options;
        let inputs = ops::zeros(input_shape, self.input_dtype())?;
        let options = StepOptions { stream, allow_untrained_parameters, ..Default::default() };
        TrainGraph::compile(self, loss, optimizer, &inputs, lt_bytes, None, options)
    }
}

/// A trainer: a model, a loss, an optimizer, and recorded training steps. It keeps one step for each compiled shape and
/// each [path](super::path_of) of the model, up to a [limit](GraphTrainer::recordings). All steps share parameters,
/// gradients and optimizer state.
///
/// Model, loss and optimizer may be owned or borrowed: `&Sequential` is a model, as is `&M` for a model `M` of
/// [several inputs](super::MultiInput); `&Sgd` is an optimizer and `&MseLoss` a loss. Between launches,
/// [`model`](GraphTrainer::model) and [`optimizer`](GraphTrainer::optimizer) give access to them.
pub struct GraphTrainer<'f, M, L, O, X = Tensor> {
    model: Rc<M>,
    loss: Rc<L>,
    optimizer: Rc<O>,
    lt_bytes: usize,
    options: StepOptions<'f>,
    /// The step that was used last; none before [`compile`](GraphTrainer::compile).
    pub tg: Option<TrainGraph<'f, X>>,
    current: Option<RecordedPath<'f>>,
    /// The other recorded steps, least recently used first.
    others: Vec<(RecordedPath<'f>, TrainGraph<'f, X>)>,
    /// The shapes of all compiled batches.
    shapes: Vec<Vec<Shape>>,
    limit: usize,
    stats: CacheStats,
}

/// The path that a step was recorded for, and its evaluation over the same buffers, once recorded.
struct RecordedPath<'f> {
    path: Path,
    evaluation: Option<GraphExec<'f>>,
}

impl<'f, M, L, O, X> GraphTrainer<'f, M, L, O, X>
where
    M: Model<X> + 'f,
    L: Loss + 'f,
    O: Optimizer + 'f,
    X: Batch + 'f,
{
    /// Creates a trainer without recordings. `lt_bytes` is the maximum scratch of one matrix product in bytes, usually
    /// `8 << 20`.
    pub fn new(model: M, loss: L, optimizer: O, lt_bytes: usize) -> Self {
        GraphTrainer {
            model: Rc::new(model),
            loss: Rc::new(loss),
            optimizer: Rc::new(optimizer),
            lt_bytes,
            options: StepOptions::default(),
            tg: None,
            current: None,
            others: Vec::new(),
            shapes: Vec::new(),
            limit: 8,
            stats: CacheStats::default(),
        }
    }

    /// Sets the maximum number of recorded steps, 8 by default. The least recently used one is dropped first, and is
    /// recorded again when it is needed.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `limit` is 0.
    pub fn recordings(self, limit: usize) -> Result<Self> {
        match limit {
            0 => Err(Error::invalid("recordings", "a trainer keeps at least 1 recorded step")),
            _ => Ok(GraphTrainer { limit, ..self }),
        }
    }

    /// Returns the number of kept recordings, and the hits and misses of steps and evaluations.
    pub fn cache(&self) -> CacheStats {
        CacheStats { held: self.others.len() + usize::from(self.tg.is_some()), ..self.stats }
    }

    /// Sets the options for recording. Settings of [`before_update`](GraphTrainer::before_update) and
    /// [`allow_untrained_parameters`](GraphTrainer::allow_untrained_parameters) stay, unless the options set them.
    pub fn with(self, options: StepOptions<'f>) -> Self {
        let mut options = options;
        options.before_update = options.before_update.or(self.options.before_update);
        options.allow_untrained_parameters |= self.options.allow_untrained_parameters;
        GraphTrainer { options, ..self }
    }

    /// Permits parameters that require a gradient and that the optimizer does not update, as in a GAN.
    ///
    /// ```
    /// use pellucid_nn::graph::GraphTrainer;
    /// use pellucid_nn::{Linear, Module, loss::BceWithLogitsLoss, optim::{Sgd, SgdOptions}};
    /// // The generator learns to deceive the discriminator, which has an optimizer of its own.
    /// let (generator, discriminator) = (Linear::new(2, 4), Linear::new(4, 1));
    /// let sgd = Sgd::new(generator.parameters(), SgdOptions::default())?;
    /// let model = (generator, discriminator.clone());
    /// let mut trainer =
    ///     GraphTrainer::new(model, BceWithLogitsLoss::default(), sgd, 8 << 20).allow_untrained_parameters();
    /// trainer.compile(&[8, 2])?;
    /// # Ok::<(), pellucid_tensor::Error>(())
    /// ```
    pub fn allow_untrained_parameters(mut self) -> Self {
        self.options.allow_untrained_parameters = true;
        self
    }

    /// Sets a function that changes the gradients before each update:
    ///
    /// ```
    /// use pellucid_nn::{graph::GraphTrainer, Linear, Module, loss::MseLoss, optim::{clip_grad_norm, Sgd, SgdOptions}};
    /// let model = Linear::new(3, 1);
    /// let sgd = Sgd::new(model.parameters(), SgdOptions::default())?;
    /// let mut trainer = GraphTrainer::new(model, MseLoss::default(), sgd, 8 << 20)
    ///     .before_update(|parameters| clip_grad_norm(parameters, 1.0).map(drop));
    /// trainer.compile(&[8, 3])?;
    /// # Ok::<(), pellucid_tensor::Error>(())
    /// ```
    pub fn before_update(mut self, f: impl Fn(&[Parameter]) -> Result<()> + 'f) -> Self {
        self.options.before_update = Some(Rc::new(f));
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

    /// Records a step for the shapes of this batch, on the path that the model is set to. The values are not used.
    /// Steps for other shapes are kept.
    ///
    /// # Errors
    /// Those of [`Sequential::compile`].
    pub fn compile_for(&mut self, inputs: &X) -> Result<&mut TrainGraph<'f, X>> {
        let share = self.tg.as_ref().map(|tg| tg.exec.plan());
        let (model, loss, optimizer) = (self.model.clone(), self.loss.clone(), self.optimizer.clone());
        let tg = TrainGraph::compile(model, loss, optimizer, inputs, self.lt_bytes, share, self.options.clone())?;
        let recorded = RecordedPath { path: path_of(&*self.model), evaluation: None };
        // A step recorded earlier for the same shapes and path is replaced.
        let is_same =
            |other: &RecordedPath<'f>, tg: &TrainGraph<'f, X>| other.path == recorded.path && matches_batch(tg, inputs);
        self.others.retain(|(other, tg)| !is_same(other, tg));
        if self.current.as_ref().zip(self.tg.as_ref()).is_some_and(|(other, tg)| is_same(other, tg)) {
            (self.current, self.tg) = (None, None);
        }
        if !self.is_known(inputs) {
            self.shapes.push(inputs.named().iter().map(|(_, x)| x.shape().clone()).collect());
        }
        self.make_current(recorded, tg);
        self.others.drain(..self.others.len().saturating_sub(self.limit - 1));
        Ok(self.tg.as_mut().expect("make_current() stored a step"))
    }

    /// Copies a batch into the buffers and launches the step, without synchronizing. The loss before the update stays
    /// on the device in `tg.loss`. If the model was set to another path, the step of that path is launched, and
    /// recorded the first time.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] before [`compile`](GraphTrainer::compile); those of [`TrainGraph::set_batch`] for
    /// shapes that were not compiled; those of recording and of [`TrainGraph::launch`].
    pub fn step(&mut self, x: &X, y: &Tensor) -> Result<()> {
        self.select(x)?;
        let tg = self.tg.as_mut().expect("select() fails without a step");
        tg.set_batch(x, y)?;
        tg.launch()
    }

    /// Runs a [`step`](GraphTrainer::step) and returns the loss of the same batch after the update, in evaluation mode,
    /// from a recorded evaluation ([`record_eval_graph`]).
    ///
    /// # Errors
    /// Those of [`step`](GraphTrainer::step).
    pub fn one_step(&mut self, x: &X, y: &Tensor) -> Result<f32> {
        self.step(x, y)?;
        self.evaluate_buffers()
    }

    /// Returns the loss of a batch in evaluation mode, without training.
    ///
    /// # Errors
    /// Those of [`step`](GraphTrainer::step).
    pub fn evaluate(&mut self, x: &X, y: &Tensor) -> Result<f32> {
        self.select(x)?;
        self.tg.as_ref().expect("select() fails without a step").set_batch(x, y)?;
        self.evaluate_buffers()
    }

    fn evaluate_buffers(&mut self) -> Result<f32> {
        let (Some(tg), Some(recorded)) = (&self.tg, &mut self.current) else { unreachable!("a step was selected") };
        if recorded.evaluation.is_none() {
            let (model, loss, stream) = (self.model.clone(), self.loss.clone(), self.options.stream.clone());
            let made = record_eval_graph(model, loss, tg.exec.plan(), &tg.x_buf, &tg.y_buf, stream)?;
            recorded.evaluation = Some(made);
        }
        let evaluation = recorded.evaluation.as_mut().expect("the step was recorded above");
        evaluation.launch()?;
        evaluation.loss.try_item()
    }

    /// Makes the step for this batch and the model's path the current one.
    fn select(&mut self, x: &X) -> Result<()> {
        let (Some(tg), Some(current)) = (&self.tg, &self.current) else {
            return Err(Error::invalid("step", "no step is recorded; call compile() first"));
        };
        if is_on(&current.path, &*self.model) && matches_batch(tg, x) {
            self.stats.hits += 1;
            return Ok(());
        }
        let is_wanted = |(other, tg): &(RecordedPath<'f>, _)| is_on(&other.path, &*self.model) && matches_batch(tg, x);
        if let Some(at) = self.others.iter().position(is_wanted) {
            self.stats.hits += 1;
            let (recorded, tg) = self.others.remove(at);
            self.make_current(recorded, tg);
            return Ok(());
        }
        // Another path is recorded for known shapes only. For unknown shapes, set_batch of the current step fails.
        if self.is_known(x) {
            self.stats.misses += 1;
            self.compile_for(x)?;
        }
        Ok(())
    }

    /// Whether a step was compiled for batches of these shapes, on any path.
    fn is_known(&self, x: &X) -> bool {
        self.shapes.iter().any(|shapes| are_shapes_of(shapes.iter(), x))
    }

    fn make_current(&mut self, recorded: RecordedPath<'f>, tg: TrainGraph<'f, X>) {
        if let (Some(recorded), Some(tg)) = (self.current.replace(recorded), self.tg.replace(tg)) {
            self.others.push((recorded, tg));
        }
    }
}

impl<'f, M: Layer + 'f, L: Loss + 'f, O: Optimizer + 'f> GraphTrainer<'f, M, L, O> {
    /// Records a step for inputs of this shape, for example `[B, K]`, of the model's [input dtype](Layer::input_dtype).
    ///
    /// # Errors
    /// Those of [`Sequential::compile`].
    pub fn compile(&mut self, input_shape: &[usize]) -> Result<&mut TrainGraph<'f>> {
        let inputs = ops::zeros(input_shape, self.model.input_dtype())?;
        self.compile_for(&inputs)
    }
}

/// Whether a step is for batches of these shapes.
fn matches_batch<X: Batch>(tg: &TrainGraph<'_, X>, x: &X) -> bool {
    are_shapes_of(tg.buffers.iter().map(|buffer| buffer.shape()), x)
}

fn are_shapes_of<'a>(mut shapes: impl Iterator<Item = &'a Shape>, x: &impl Batch) -> bool {
    let mut same = true;
    x.each(&mut |_, x| same &= shapes.next() == Some(x.shape()));
    same && shapes.next().is_none()
}
