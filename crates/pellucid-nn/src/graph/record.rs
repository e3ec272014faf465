//! Recording of training and evaluation steps over the buffers of a plan.
//!
//! A step is one closure. [`capture`] records it; on a device without capture the closure runs eagerly.

use super::batch::{Batch, BoundModel, Model, ModelWithBatch, StepLoss, placed_on, zeros_on};
use super::buffer_tracker::BufferTracker;
use super::coverage::{FrozenParameters, check_gradients};
use super::gradients::GradientBindings;
use super::plan::{BufferRole, LayerBuffers, PlannedBuffer, StepPlan};
use super::state::{ModelState, state_names};
use super::stream::Stream;
use crate::call::{LayerCall, trace_calls, with_call_listener};
use crate::loss::Loss;
use crate::module::ModuleParts;
use crate::optim::{GradScaler, Optimizer};
use crate::parameter::Parameter;
use crate::visit::ModulePart;
use pellucid_tensor::{BackwardOptions, Captured, Error, Result, Tensor, capture, enable_grad, no_grad, ops, unwrap};
use std::cell::RefCell;
use std::fmt;
use std::ops::Deref;
use std::rc::Rc;

/// A function that changes the gradients of these parameters before the update, such as clipping.
type BeforeUpdate<'f> = Rc<dyn Fn(&[Parameter]) -> Result<()> + 'f>;

/// Options for recording a step.
#[derive(Clone)]
pub struct StepOptions<'f> {
    /// The stream of the launches. `None` means the default stream of the model's device.
    pub stream: Option<Stream>,
    /// The number k of launches whose gradients are accumulated, each weighted by 1/k, in the plan's buffers. The k-th
    /// launch updates the parameters with the mean over the k batches and zeroes the buffers. With 1, the default, each
    /// launch starts without gradients.
    pub accumulate: u64,
    /// Scales the loss, for gradients in half precision, and skips updates with non-finite gradients. Gradients are
    /// divided by the scale before `before_update` runs.
    pub scaler: Option<Rc<GradScaler>>,
    /// A function that changes the gradients before the update.
    pub before_update: Option<BeforeUpdate<'f>>,
    /// Whether a parameter may require a gradient although the step's optimizer does not update it, as in a GAN. By
    /// default such a parameter is an error.
    pub allow_untrained_parameters: bool,
}

impl StepOptions<'_> {
    /// Returns these options with [`allow_untrained_parameters`](StepOptions#structfield.allow_untrained_parameters)
    /// set.
    #[must_use]
    pub fn allow_untrained_parameters(self) -> Self {
        StepOptions { allow_untrained_parameters: true, ..self }
    }
}

impl Default for StepOptions<'_> {
    fn default() -> Self {
        StepOptions {
            stream: None,
            accumulate: 1,
            scaler: None,
            before_update: None,
            allow_untrained_parameters: false,
        }
    }
}

/// A model with its inputs, a loss with its targets, and an optimizer, without their types.
#[derive(Clone)]
pub(super) struct StepComputation<'f> {
    pub(super) model: Rc<dyn BoundModel + 'f>,
    pub(super) loss: Rc<dyn StepLoss + 'f>,
    pub(super) targets: Tensor,
}

impl<'f> RecordedStep<'f> {
    /// Records a training step: forward, loss, backward and update, on the contents of `x` and `y` at each launch.
    ///
    /// Recording runs no kernel: parameters, optimizer state, statistics and random generators stay unchanged until the
    /// first launch. Each launch starts without gradients. The result holds buffers for the logits and for the loss
    /// before the update. Model and loss are passed as pointers; a reference to an optimizer is an optimizer.
    ///
    /// ```
    /// use pellucid_nn::graph::{RecordedStep, StepOptions, StepPlan};
    /// use pellucid_nn::loss::{LossKind, MseLoss};
    /// use pellucid_nn::{Linear, Module, optim::{Sgd, SgdOptions}, sequential};
    /// use pellucid_tensor::{DType, Tensor};
    ///
    /// let (model, loss) = (sequential![Linear::new(3, 1)], MseLoss::default());
    /// let optimizer = Sgd::new(model.parameters(), SgdOptions { lr: 0.1, ..Default::default() })?;
    /// let (x, y) = (Tensor::ones([4, 3], DType::F32), Tensor::ones([4, 1], DType::F32));
    /// let plan = StepPlan::new(&model, &x, LossKind::Mse, 8 << 20)?;
    /// assert_eq!(plan.bind_gradients(&model, &optimizer)?.bound, ["0.weight", "0.bias"]);
    ///
    /// let mut step = RecordedStep::training(&model, &loss, &optimizer, &plan, &x, &y, StepOptions::default())?;
    /// step.launch()?;
    /// let first = step.loss.item::<f32>();
    /// step.launch()?;
    /// assert!(step.loss.item::<f32>() < first);
    /// # Ok::<(), pellucid_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Layer`] for buffers that do not match the plan, for a layer that rejects its input, or for one that
    /// cannot be captured; [`Error::ReadInCapture`] names the line that reads a value; [`Error::UntrainedParameters`]
    /// names parameters that require a gradient but do not belong to the optimizer; [`Error::InvalidArgument`] if
    /// `accumulate` is 0, or if it is above 1 and not all gradients are stored in the plan's buffers, see
    /// [`StepPlan::bind_gradients`]; errors of [`capture`].
    pub fn training<X: Batch + 'f>(
        model: impl Deref<Target: Model<X>> + 'f,
        loss: impl Deref<Target: Loss> + 'f,
        optimizer: impl Optimizer + 'f,
        plan: &StepPlan,
        x: &X,
        y: &Tensor,
        options: StepOptions<'f>,
    ) -> Result<RecordedStep<'f>> {
        let model = Rc::new(ModelWithBatch::new(model, x)?);
        let computation = StepComputation { model, loss: Rc::new(loss), targets: y.clone() };
        record_training(computation, Rc::new(optimizer), plan, options)
    }

    /// Records an evaluation: logits and loss for the contents of `x` and `y`, without a backward pass. All layers are
    /// in evaluation mode, as after [`Module::eval`](crate::Module::eval); afterwards the model's mode is restored.
    ///
    /// # Errors
    /// Those of [`training`](RecordedStep::training).
    pub fn evaluation<X: Batch + 'f>(
        model: impl Deref<Target: Model<X>> + 'f,
        loss: impl Deref<Target: Loss> + 'f,
        plan: &StepPlan,
        x: &X,
        y: &Tensor,
        stream: Option<Stream>,
    ) -> Result<RecordedStep<'f>> {
        let model = Rc::new(ModelWithBatch::new(model, x)?);
        record_evaluation(StepComputation { model, loss: Rc::new(loss), targets: y.clone() }, plan, stream)
    }
}

/// The name of the recording of a training step in errors.
const RECORD_TRAINING: &str = "record_training";

/// Implements [`RecordedStep::training`] without type parameters.
pub(super) fn record_training<'f>(
    computation: StepComputation<'f>,
    optimizer: Rc<dyn Optimizer + 'f>,
    plan: &StepPlan,
    options: StepOptions<'f>,
) -> Result<RecordedStep<'f>> {
    let model: Rc<dyn ModuleParts + 'f> = computation.model.clone();
    let gradients = Rc::new(GradientBindings::of(&*model, &*optimizer, plan));
    let StepOptions { stream, accumulate, scaler, before_update, allow_untrained_parameters } = options;
    let frozen =
        FrozenParameters::of(RECORD_TRAINING, &*model, &*computation.loss, &*optimizer, allow_untrained_parameters)?;
    if accumulate == 0 || accumulate > 1 && !gradients.are_bound(&*optimizer) {
        let help = "accumulate must be at least 1; above 1 needs gradients in the plan's buffers: call \
                    bind_gradients() of the plan";
        return Err(Error::invalid(RECORD_TRAINING, help));
    }
    let stream = stream.unwrap_or_else(|| Stream::new(plan.device()));
    let (forward, tracker) =
        ForwardPass::new(RECORD_TRAINING, computation, plan)?.with_pins(plan).with_tracker(&stream);
    let outputs = forward.outputs();
    let mut names = state_names(&*model, &*optimizer);
    names.extend(forward.inputs());
    let bound = StepBindings { state: ModelState::of(model), gradients: Some(gradients.clone()), frozen: Some(frozen) };
    let update = StepUpdate { optimizer, scaler, before_update };
    let (pass, update): (Closure<'f>, Option<Closure<'f>>) = if accumulate == 1 {
        let pass = move || {
            gradients.clear();
            update.scaled(forward.run()?)?.try_backward(BackwardOptions::default())?;
            forward.track_gradients();
            gradients.collect()?;
            check_gradients(RECORD_TRAINING, &*update.optimizer)?;
            update.run()?;
            gradients.restore()
        };
        (Box::new(pass), None)
    } else {
        let (collected, update) = (Rc::clone(&gradients), Rc::new(update));
        let scaling = Rc::clone(&update);
        let pass = move || {
            let loss = scaling.scaled(forward.run()?)?;
            let share = ops::full(loss.shape(), 1.0 / accumulate as f64, loss.dtype())?;
            loss.try_backward(BackwardOptions { gradient: Some(share), ..Default::default() })?;
            forward.track_gradients();
            collected.collect()?;
            collected.restore()
        };
        (Box::new(pass), Some(Box::new(move || update.run().and_then(|()| gradients.zero()))))
    };
    let update = update.map(|update| StepRunner::new(update, &stream)).transpose()?.map(|run| (run, accumulate));
    Ok(RecordedStep::new(StepRunner::new(pass, &stream)?, update, (plan, &tracker), (bound, names), outputs, stream))
}

/// Implements [`RecordedStep::evaluation`] without type parameters.
pub(super) fn record_evaluation<'f>(
    computation: StepComputation<'f>,
    plan: &StepPlan,
    stream: Option<Stream>,
) -> Result<RecordedStep<'f>> {
    let stream = stream.unwrap_or_else(|| Stream::new(plan.device()));
    let model: Rc<dyn ModuleParts + 'f> = computation.model.clone();
    let (forward, tracker) = ForwardPass::new("record_evaluation", computation, plan)?.with_tracker(&stream);
    let outputs = forward.outputs();
    let names = forward.inputs();
    let bound = StepBindings { state: ModelState::of(model), gradients: None, frozen: None };
    let pass = move || {
        let _off = no_grad();
        let _evaluating = EvalModeGuard::of(&*forward.computation.model);
        forward.run().map(drop)
    };
    let pass = StepRunner::new(Box::new(pass), &stream)?;
    Ok(RecordedStep::new(pass, None, (plan, &tracker), (bound, names), outputs, stream))
}

type Closure<'f> = Box<dyn FnMut() -> Result<()> + 'f>;

/// The update of a training step, after its backward pass.
struct StepUpdate<'f> {
    optimizer: Rc<dyn Optimizer + 'f>,
    scaler: Option<Rc<GradScaler>>,
    before_update: Option<BeforeUpdate<'f>>,
}

impl StepUpdate<'_> {
    /// Returns the loss, multiplied by the scale if there is a scaler.
    fn scaled(&self, loss: Tensor) -> Result<Tensor> {
        match &self.scaler {
            Some(scaler) => scaler.try_scale(&loss),
            None => Ok(loss),
        }
    }

    fn run(&self) -> Result<()> {
        let _off = no_grad();
        let optimizer = &*self.optimizer;
        let unscaled = self.scaler.as_ref().map(|scaler| scaler.unscale(optimizer)).transpose()?;
        if let Some(before_update) = &self.before_update {
            before_update(optimizer.parameters())?;
        }
        match unscaled.zip(self.scaler.as_ref()) {
            Some((unscaled, scaler)) => unscaled.step(optimizer).and_then(|()| scaler.update()),
            None => optimizer.try_step(),
        }
    }
}

/// The forward pass of a step: model and loss, with their input and output buffers.
struct ForwardPass<'f> {
    computation: StepComputation<'f>,
    /// The pinned buffers of each layer of the plan, and the number of the layer's call.
    pins: Rc<[Option<PinnedBuffers>]>,
    layers: Rc<[Option<usize>]>,
    logits_gradient: Option<Tensor>,
    outputs: StepOutputs,
    /// Records which storages hold the plan's buffers.
    tracker: Option<BufferTracker>,
}

/// The result buffers of a step.
#[derive(Clone)]
struct StepOutputs {
    logits: Tensor,
    loss: Tensor,
}

/// The pinned buffers of a layer: of its output, and of its input gradient.
struct PinnedBuffers {
    output: Vec<Tensor>,
    input_gradient: Option<Tensor>,
}

impl<'f> ForwardPass<'f> {
    fn new(op: &'static str, computation: StepComputation<'f>, plan: &StepPlan) -> Result<Self> {
        let StepComputation { model, loss, targets } = computation;
        plan.check(op, model.batch(), &targets)?;
        let device = plan.device();
        let targets = placed_on(device, &targets.detach())?;
        let parts: &dyn ModuleParts = &*model;
        parts.supports_capture()?;
        let planned = &plan.loss.logits_gradient;
        let (made, _) = trace_calls(parts, &mut || model.logits())?;
        if (made.shape(), made.dtype()) != (planned.shape(), planned.dtype()) {
            let help = "shape or dtype of the model's logits differs from that in the plan; make a plan of this model";
            return Err(Error::shapes(op, [made.shape(), planned.shape()], help));
        }
        let logits = zeros_on(device, planned.shape(), planned.dtype())?;
        let (value, _) = trace_calls(parts, &mut || loss.value(&logits, &targets))?;
        if *value.shape() != plan.loss.out_shape {
            let help = "the loss of a training step must be a scalar; reduce the loss to its mean or sum";
            return Err(Error::shapes(op, [value.shape()], help));
        }
        let outputs = StepOutputs { logits, loss: zeros_on(device, value.shape(), value.dtype())? };
        let computation = StepComputation { targets, model, loss };
        let layers = plan.layers.iter().map(|layer| layer.call).collect();
        let pins = plan.layers.iter().map(|_| None).collect();
        Ok(ForwardPass { computation, pins, layers, logits_gradient: None, outputs, tracker: None })
    }

    /// Returns this pass with a tracker of buffers, if it will be recorded.
    fn with_tracker(mut self, stream: &Stream) -> (Self, BufferTracker) {
        let tracker = BufferTracker::default();
        self.tracker = (!stream.is_eager()).then(|| tracker.clone());
        (self, tracker)
    }

    /// Returns this pass with copies into the pinned buffers of the plan.
    fn with_pins(mut self, plan: &StepPlan) -> Self {
        let pin = |layer: &LayerBuffers| {
            let outputs = [Some(&layer.output), layer.pre_activation.as_ref()];
            let output: Vec<_> = outputs.into_iter().flatten().filter_map(PlannedBuffer::pinned).cloned().collect();
            let input_gradient = layer.input_gradient.as_ref().and_then(PlannedBuffer::pinned).cloned();
            (input_gradient.is_some() || !output.is_empty()).then_some(PinnedBuffers { output, input_gradient })
        };
        self.pins = plan.layers.iter().map(pin).collect();
        self.logits_gradient = plan.loss.logits_gradient.pinned().cloned();
        self
    }

    fn outputs(&self) -> StepOutputs {
        self.outputs.clone()
    }

    /// Returns the input buffers, by name.
    fn inputs(&self) -> Vec<(String, Tensor)> {
        let mut inputs = self.computation.model.batch().named();
        inputs.push(("y".into(), self.computation.targets.clone()));
        inputs
    }

    /// Tracks the parameter gradients after a backward pass.
    fn track_gradients(&self) {
        if let Some(tracker) = &self.tracker {
            let parts: &dyn ModuleParts = &*self.computation.model;
            for (name, parameter) in parts.parameters() {
                parameter.grad().iter().for_each(|grad| tracker.track(BufferRole::Gradient(name.clone()), grad));
            }
        }
    }

    /// Returns the loss, tracked for a backward pass, and fills the output buffers.
    fn run(&self) -> Result<Tensor> {
        let StepComputation { model, loss, targets } = &self.computation;
        let (tracker, layers, pins) = (self.tracker.clone(), self.layers.clone(), self.pins.clone());
        tracker.iter().for_each(BufferTracker::clear);
        let on_call = move |call: LayerCall<'_>| {
            let Some(layer) = layers.iter().position(|own| *own == Some(call.call)) else { return };
            pins[layer].iter().for_each(|pin| pin.write(call.x, call.y));
            tracker.iter().for_each(|tracker| tracker.track_call(layer, &call));
        };
        let logits = with_call_listener(Rc::new(on_call), || model.logits())?;
        if let Some(tracker) = &self.tracker {
            tracker.track_gradient(&logits, BufferRole::LogitsGradient);
        }
        if let Some(buf) = &self.logits_gradient {
            copy_gradient_on_backward(&logits, buf);
        }
        let loss = loss.value(&logits, targets)?;
        // The output buffers hold values only; they are not part of the autograd graph.
        let _off = no_grad();
        ops::copy_(&self.outputs.logits, &logits)?;
        ops::copy_(&self.outputs.loss, &loss)?;
        Ok(loss)
    }
}

impl PinnedBuffers {
    /// Copies the output of a call, and registers the copy of its input gradient.
    fn write(&self, x: &Tensor, y: &Tensor) {
        self.output.iter().for_each(|to| {
            let _off = no_grad();
            unwrap(ops::copy_(to, y));
        });
        if let Some(buf) = &self.input_gradient {
            copy_gradient_on_backward(x, buf);
        }
    }
}

/// Registers a hook that copies the gradient of x into a buffer.
fn copy_gradient_on_backward(x: &Tensor, buf: &Tensor) {
    if x.requires_grad() {
        let buf = buf.clone();
        x.register_hook(move |gradient| {
            let _off = no_grad();
            unwrap(ops::copy_(&buf, gradient));
            None
        });
    }
}

/// A guard that keeps all layers of a model in evaluation mode.
pub(super) struct EvalModeGuard<'m> {
    model: &'m dyn ModuleParts,
    /// The earlier mode of each layer, in visiting order: true for training.
    training: Vec<bool>,
}

impl<'m> EvalModeGuard<'m> {
    pub(super) fn of(model: &'m dyn ModuleParts) -> Self {
        let mut training = Vec::new();
        model.walk(&mut |_, part| {
            if let ModulePart::TrainingMode(mode) = part {
                training.push(mode.replace(false));
            }
        });
        EvalModeGuard { model, training }
    }
}

impl Drop for EvalModeGuard<'_> {
    fn drop(&mut self) {
        let mut training = self.training.iter();
        self.model.walk(&mut |_, part| {
            // A mode that two layers share is visited twice, and is in evaluation mode at the second visit.
            if let ModulePart::TrainingMode(mode) = part
                && *training.next().expect("the list must contain one saved mode for each visited mode")
            {
                mode.set(true);
            }
        });
    }
}

/// A closure that is ready to be launched: recorded or eager.
enum StepRunner<'f> {
    Captured(Captured<'f>),
    Eager(EagerStep<'f>),
}

impl<'f> StepRunner<'f> {
    /// Records the closure. On a device without capture, logs a warning and keeps the closure for eager runs.
    fn new(step: Closure<'f>, stream: &Stream) -> Result<StepRunner<'f>> {
        if stream.is_eager() {
            return Ok(StepRunner::Eager(EagerStep { step, reason: "its stream is eager".into() }));
        }
        let step = Rc::new(RefCell::new(step));
        let recorded = Rc::clone(&step);
        // A later re-recording may run under another grad mode.
        let _on = enable_grad();
        match capture(move |_: &[Tensor]| unwrap((*recorded.borrow_mut())()), &[]) {
            Ok(captured) => Ok(StepRunner::Captured(captured)),
            Err(Error::DeviceUnavailable { device, reason }) => {
                tracing::warn!(%device, %reason, "the device cannot capture: the step runs eagerly");
                let step = Rc::into_inner(step).expect("a failed capture must drop its closure").into_inner();
                Ok(StepRunner::Eager(EagerStep { step, reason: format!("{device} cannot capture: {reason}") }))
            }
            Err(error) => Err(error),
        }
    }

    fn captured(&self) -> Option<&Captured<'f>> {
        match self {
            StepRunner::Captured(captured) => Some(captured),
            StepRunner::Eager(_) => None,
        }
    }

    fn launch(&mut self) -> Result<()> {
        let _on = enable_grad();
        match self {
            StepRunner::Captured(captured) => captured.launch(&[]).map(drop),
            StepRunner::Eager(step) => step.launch(),
        }
    }
}

/// A step that runs eagerly: on a device without capture, which is logged, or on an eager stream ([`Stream::eager`]).
pub struct EagerStep<'f> {
    step: Closure<'f>,
    reason: String,
}

impl EagerStep<'_> {
    /// Returns the reason why the step is not captured.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Runs the step.
    ///
    /// # Errors
    /// Those of its operations.
    pub fn launch(&mut self) -> Result<()> {
        let _on = enable_grad();
        (self.step)()
    }
}

/// A recorded step, and the buffers of its results.
pub struct RecordedStep<'f> {
    /// The logits of the last launch.
    pub logits: Tensor,
    /// The loss of the last launch before the update: a 0-d tensor that stays on the device.
    pub loss: Tensor,
    plan: StepPlan,
    pass: StepRunner<'f>,
    /// The update and the number of passes before it, for a step that accumulates gradients.
    update: Option<(StepRunner<'f>, u64)>,
    launches: u64,
    bound: StepBindings<'f>,
    stream: Stream,
}

/// The tensors that a step is bound to.
struct StepBindings<'f> {
    state: ModelState<'f>,
    /// The gradients; `None` for an evaluation.
    gradients: Option<Rc<GradientBindings>>,
    /// The parameters that must stay frozen; `None` for an evaluation.
    frozen: Option<FrozenParameters>,
}

impl<'f> RecordedStep<'f> {
    fn new(
        mut pass: StepRunner<'f>,
        update: Option<(StepRunner<'f>, u64)>,
        (plan, tracker): (&StepPlan, &BufferTracker),
        (bound, mut names): (StepBindings<'f>, Vec<(String, Tensor)>),
        StepOutputs { logits, loss }: StepOutputs,
        stream: Stream,
    ) -> RecordedStep<'f> {
        let mut plan = plan.clone();
        if let StepRunner::Captured(captured) = &mut pass {
            bound.state.each(&mut |name, tensor| names.push((name.to_string(), tensor.clone())));
            names.extend([("logits".to_string(), logits.clone()), ("loss".to_string(), loss.clone())]);
            // A shared tensor is labelled with its first name.
            names.iter().rev().for_each(|(name, tensor)| captured.name(tensor, name));
        }
        tracker.store_locations(&mut plan, pass.captured());
        RecordedStep { logits, loss, plan, pass, update, launches: 0, bound, stream }
    }

    /// Executes the step on the contents of its buffers.
    ///
    /// Gradients that were removed since the last launch, for example by `zero_grad`, are first restored to the
    /// plan's buffers. If a gradient is bound to another tensor, the step is recorded again.
    ///
    /// # Errors
    /// [`Error::Rebound`] names a parameter or buffer that is not the tensor of the recording; the optimizer and the
    /// plan do not know the new tensor. [`Error::UntrainedParameters`] names a parameter that was frozen at recording,
    /// requires a gradient now and does not belong to the optimizer. Also errors of [`Captured::launch`], or of eager
    /// operations.
    pub fn launch(&mut self) -> Result<()> {
        self.bound.state.check()?;
        self.bound.frozen.as_ref().map_or(Ok(()), FrozenParameters::check)?;
        if let Some(gradients) = &self.bound.gradients {
            gradients.put_back(self.update.is_some())?;
        }
        self.pass.launch()?;
        self.launches += 1;
        match &mut self.update {
            Some((update, every)) if self.launches.is_multiple_of(*every) => update.launch(),
            _ => Ok(()),
        }
    }

    /// Whether launches replay a recording.
    pub fn is_captured(&self) -> bool {
        matches!(self.pass, StepRunner::Captured(_))
    }

    /// Returns the step if it runs eagerly; [`reason`](EagerStep::reason) tells why.
    pub fn eager(&self) -> Option<&EagerStep<'f>> {
        match &self.pass {
            StepRunner::Eager(step) => Some(step),
            StepRunner::Captured(_) => None,
        }
    }

    /// Returns the recording; for a step that accumulates, the recording of its passes.
    pub fn captured(&mut self) -> Option<&mut Captured<'f>> {
        match &mut self.pass {
            StepRunner::Captured(captured) => Some(captured),
            StepRunner::Eager(_) => None,
        }
    }

    /// Returns the stream of the launches.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Returns the plan, with the known location of each buffer.
    pub fn plan(&self) -> &StepPlan {
        &self.plan
    }
}

impl fmt::Debug for RecordedStep<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.pass {
            StepRunner::Captured(captured) => write!(f, "captured {}", captured.plan()),
            StepRunner::Eager(step) => write!(f, "eager step: {}", step.reason),
        }
    }
}
