//! Recording of training and evaluation steps over the buffers of a plan.
//!
//! A step is one closure. [`capture`] records it; on a device without capture the closure runs eagerly.

use super::batch::{Batch, Model};
use super::buffer_tracker::BufferTracker;
use super::coverage::{FrozenParameters, check_gradients};
use super::plan::{Buf, BufferRole, CapturePlan, PerLayerBufs};
use super::rebind::GradientBindings;
use super::state::{self, ModelState};
use super::stream::Stream;
use crate::call::{LayerCall, trace_calls, with_call_listener};
use crate::loss::Loss;
use crate::module::{Module, parameters_so_far, walk};
use crate::optim::{GradScaler, Optimizer};
use crate::parameter::Parameter;
use crate::visit::Part;
use pellucid_tensor::{Backward, Captured, Error, Result, Tensor, capture, enable_grad, no_grad, ops, unwrap};
use std::cell::RefCell;
use std::fmt;
use std::ops::Deref;
use std::rc::Rc;

/// A function that changes the gradients of these parameters before the update, such as clipping.
pub type BeforeUpdate<'f> = Rc<dyn Fn(&[Parameter]) -> Result<()> + 'f>;

/// Options for recording a step.
#[derive(Clone)]
pub struct StepOptions<'f> {
    /// The stream of the launches. `None` means the device's default stream.
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

/// Records a training step: forward, loss, backward and update, on the contents of `x_buf` and `y_buf` at each launch.
///
/// Recording runs no kernel: parameters, optimizer state, statistics and random generators stay unchanged until the
/// first launch. Each launch starts without gradients. The result holds buffers for the logits and for the loss before
/// the update.
///
/// ```
/// use pellucid_nn::graph::{LossKind, make_plan_for_sequential, record_step_graph, try_rebind_grads};
/// use pellucid_nn::{Linear, Module, loss::MseLoss, optim::{Sgd, SgdOptions}, sequential};
/// use pellucid_tensor::{DType, Tensor};
///
/// let (model, loss) = (sequential![Linear::new(3, 1)], MseLoss::default());
/// let optimizer = Sgd::new(model.parameters(), SgdOptions { lr: 0.1, ..Default::default() })?;
/// let plan = make_plan_for_sequential(&model, &[4, 3], LossKind::Mse, 8 << 20)?;
/// assert_eq!(try_rebind_grads(&model, &optimizer, &plan)?.bound, ["0.weight", "0.bias"]);
///
/// let (x, y) = (Tensor::ones([4, 3], DType::F32), Tensor::ones([4, 1], DType::F32));
/// let mut exec = record_step_graph(&model, &loss, &optimizer, &plan, &x, &y, None)?;
/// exec.launch()?;
/// let first = exec.loss.item::<f32>();
/// exec.launch()?;
/// assert!(exec.loss.item::<f32>() < first);
/// # Ok::<(), pellucid_tensor::Error>(())
/// ```
///
/// # Errors
/// [`Error::Layer`] for buffers that do not match the plan, for a layer that rejects its input, or for one that cannot
/// be captured; [`Error::ReadInCapture`] names the line that reads a value; [`Error::UntrainedParameters`] names
/// parameters that require a gradient but do not belong to the optimizer; errors of [`capture`].
pub fn record_step_graph<'f, X, M, L, O>(
    model: &'f M,
    loss: &'f L,
    optimizer: &'f O,
    plan: &CapturePlan,
    x_buf: &X,
    y_buf: &Tensor,
    stream: Option<Stream>,
) -> Result<GraphExec<'f>>
where
    X: Batch + 'f,
    M: Model<X> + ?Sized,
    L: Loss + ?Sized,
    O: Optimizer + ?Sized,
{
    let options = StepOptions { stream, ..Default::default() };
    record_step_graph_with(model, loss, optimizer, plan, x_buf, y_buf, options)
}

/// Records a training step as [`record_step_graph`] does, with options. Model, loss and optimizer are passed as
/// pointers.
///
/// # Errors
/// Those of [`record_step_graph`]; [`Error::InvalidArgument`] if `accumulate` is 0, or if it is above 1 and not all
/// gradients are stored in the plan's buffers, see [`try_rebind_grads`](super::try_rebind_grads).
pub fn record_step_graph_with<'f, X: Batch + 'f>(
    model: impl Deref<Target: Model<X>> + 'f,
    loss: impl Deref<Target: Loss> + 'f,
    optimizer: impl Deref<Target: Optimizer> + 'f,
    plan: &CapturePlan,
    x_buf: &X,
    y_buf: &Tensor,
    options: StepOptions<'f>,
) -> Result<GraphExec<'f>> {
    let op = "record_step_graph";
    let model = Rc::new(model);
    let gradients = Rc::new(GradientBindings::of(&**model, &*optimizer, plan));
    let StepOptions { stream, accumulate, scaler, before_update, allow_untrained_parameters } = options;
    let frozen = FrozenParameters::of(op, &**model, &*loss, &*optimizer, allow_untrained_parameters)?;
    if accumulate == 0 || accumulate > 1 && !gradients.are_bound(&*optimizer) {
        let help =
            "accumulate must be at least 1; above 1 needs gradients in the plan's buffers: call try_rebind_grads()";
        return Err(Error::invalid(op, help));
    }
    let stream = stream.unwrap_or_default();
    let (forward, trail) =
        ForwardPass::new(op, model.clone(), loss, plan, x_buf, y_buf)?.with_pins(plan).with_tracker(&stream);
    let outputs = forward.outputs();
    let mut names = state::names(&**model, &*optimizer);
    names.extend(forward.inputs());
    let bound = StepBindings { state: ModelState::of(model), gradients: Some(gradients.clone()), frozen: Some(frozen) };
    let optimizer = Rc::new(optimizer);
    let updated = Rc::clone(&optimizer);
    let scale = scaler.clone();
    let update = move || -> Result<()> {
        let _off = no_grad();
        let unscaled = scaler.as_ref().map(|scaler| scaler.unscale(&**optimizer)).transpose()?;
        if let Some(before_update) = &before_update {
            before_update(optimizer.parameters())?;
        }
        match unscaled.zip(scaler.as_ref()) {
            Some((unscaled, scaler)) => unscaled.step(&**optimizer).and_then(|()| scaler.update()),
            None => optimizer.try_step(),
        }
    };
    let scaled = move |loss: Tensor| match &scale {
        Some(scaler) => ops::mul(&loss, scaler.scale_tensor()),
        None => Ok(loss),
    };
    let (pass, update): (Closure<'f>, Option<Closure<'f>>) = if accumulate == 1 {
        let pass = move || {
            gradients.clear();
            scaled(forward.run()?)?.try_backward(Backward::default())?;
            forward.track_gradients();
            gradients.collect()?;
            check_gradients(op, &**updated)?;
            update()?;
            gradients.restore()
        };
        (Box::new(pass), None)
    } else {
        let collected = Rc::clone(&gradients);
        let pass = move || {
            let loss = scaled(forward.run()?)?;
            let share = ops::full(loss.shape(), 1.0 / accumulate as f64, loss.dtype())?;
            loss.try_backward(Backward { gradient: Some(share), ..Default::default() })?;
            forward.track_gradients();
            collected.collect()?;
            collected.restore()
        };
        (Box::new(pass), Some(Box::new(move || update().and_then(|()| gradients.zero()))))
    };
    let update = update.map(|update| StepRunner::new(update, &stream)).transpose()?.map(|run| (run, accumulate));
    Ok(GraphExec::new(StepRunner::new(pass, &stream)?, update, (plan, &trail), (bound, names), outputs, stream))
}

/// Records an evaluation: logits and loss for the contents of `x_buf` and `y_buf`, without a backward pass. All layers
/// are in evaluation mode, as after [`Module::eval`](crate::Module::eval); afterwards the model's mode is restored.
///
/// # Errors
/// Those of [`record_step_graph`].
pub fn record_eval_graph<'f, X: Batch + 'f>(
    model: impl Deref<Target: Model<X>> + 'f,
    loss: impl Deref<Target: Loss> + 'f,
    plan: &CapturePlan,
    x_buf: &X,
    y_buf: &Tensor,
    stream: Option<Stream>,
) -> Result<GraphExec<'f>> {
    let stream = stream.unwrap_or_default();
    let model = Rc::new(model);
    let (forward, trail) =
        ForwardPass::new("record_eval_graph", model.clone(), loss, plan, x_buf, y_buf)?.with_tracker(&stream);
    let outputs = forward.outputs();
    let names = forward.inputs();
    let bound = StepBindings { state: ModelState::of(model), gradients: None, frozen: None };
    let pass = move || {
        let _off = no_grad();
        let _evaluating = EvalModeGuard::of(&**forward.model);
        forward.run().map(drop)
    };
    Ok(GraphExec::new(StepRunner::new(Box::new(pass), &stream)?, None, (plan, &trail), (bound, names), outputs, stream))
}

type Closure<'f> = Box<dyn FnMut() -> Result<()> + 'f>;

/// The forward pass of a step: model and loss, with their input and output buffers.
struct ForwardPass<X, M, L> {
    model: Rc<M>,
    loss: L,
    x: X,
    y: Tensor,
    /// The pinned buffers of each layer of the plan, and the number of the layer's call.
    pins: Rc<[Option<PinnedBuffers>]>,
    layers: Rc<[Option<usize>]>,
    d_y: Option<Tensor>,
    outputs: StepOutputs,
    /// Records which storages hold the plan's buffers.
    trail: Option<BufferTracker>,
}

/// The result buffers of a step.
#[derive(Clone)]
struct StepOutputs {
    logits: Tensor,
    loss: Tensor,
}

/// The pinned buffers of a layer: of its output, and of its input gradient.
struct PinnedBuffers {
    y: Vec<Tensor>,
    g_a: Option<Tensor>,
}

impl<X: Batch, M: Deref<Target: Model<X>>, L: Deref<Target: Loss>> ForwardPass<X, M, L> {
    fn new(op: &'static str, model: Rc<M>, loss: L, plan: &CapturePlan, x: &X, y: &Tensor) -> Result<Self> {
        plan.check(op, x, y)?;
        model.supports_capture()?;
        let x = x.map(&mut |_, tensor| Ok(tensor.detach()))?;
        let d_y = &plan.loss.d_y;
        let (made, _) = trace_calls(&**model, || model.run(&x))?;
        if (made.shape(), made.dtype()) != (d_y.shape(), d_y.dtype()) {
            let help = "the model's logits differ from the plan's; make a plan of this model";
            return Err(Error::shapes(op, [made.shape(), d_y.shape()], help));
        }
        let logits = ops::zeros(d_y.shape(), d_y.dtype())?;
        let (value, _) = trace_calls(&**model, || loss.try_forward(&logits, y))?;
        if *value.shape() != plan.loss.out_shape {
            return Err(Error::shapes(
                op,
                [value.shape()],
                "a step minimises a scalar; reduce the loss to its mean or sum",
            ));
        }
        let outputs = StepOutputs { logits, loss: ops::zeros(value.shape(), value.dtype())? };
        let layers = plan.per_layer.iter().map(|layer| layer.call).collect();
        let pins = plan.per_layer.iter().map(|_| None).collect();
        Ok(ForwardPass { model, loss, x, y: y.detach(), pins, layers, d_y: None, outputs, trail: None })
    }

    /// Returns this pass with a tracker of buffers, if it will be recorded.
    fn with_tracker(mut self, stream: &Stream) -> (Self, BufferTracker) {
        let trail = BufferTracker::default();
        self.trail = (!stream.is_eager()).then(|| trail.clone());
        (self, trail)
    }

    /// Returns this pass so that it writes the pinned buffers of the plan.
    fn with_pins(mut self, plan: &CapturePlan) -> Self {
        let pin = |layer: &PerLayerBufs| {
            let y: Vec<_> = [Some(&layer.y), layer.z.as_ref()].into_iter().flatten().filter_map(Buf::pinned).collect();
            let g_a = layer.g_a.as_ref().and_then(Buf::pinned);
            (g_a.is_some() || !y.is_empty())
                .then(|| PinnedBuffers { y: y.into_iter().cloned().collect(), g_a: g_a.cloned() })
        };
        self.pins = plan.per_layer.iter().map(pin).collect();
        self.d_y = plan.loss.d_y.pinned().cloned();
        self
    }

    fn outputs(&self) -> StepOutputs {
        self.outputs.clone()
    }

    /// Returns the input buffers, by name.
    fn inputs(&self) -> Vec<(String, Tensor)> {
        let mut inputs = self.x.named();
        inputs.push(("y".into(), self.y.clone()));
        inputs
    }

    /// Tracks the parameter gradients after a backward pass.
    fn track_gradients(&self) {
        if let Some(trail) = &self.trail {
            for (name, parameter) in parameters_so_far(&**self.model) {
                parameter.grad().iter().for_each(|grad| trail.track(BufferRole::Gradient(name.clone()), grad));
            }
        }
    }

    /// Returns the loss, tracked for a backward pass, and fills the output buffers.
    fn run(&self) -> Result<Tensor> {
        let (trail, layers, pins) = (self.trail.clone(), self.layers.clone(), self.pins.clone());
        trail.iter().for_each(BufferTracker::clear);
        let meet = move |call: LayerCall<'_>| {
            let Some(layer) = layers.iter().position(|own| *own == Some(call.call)) else { return };
            pins[layer].iter().for_each(|pin| pin.write(call.x, call.y));
            trail.iter().for_each(|trail| trail.track_call(layer, &call));
        };
        let logits = with_call_listener(Rc::new(meet), || self.model.run(&self.x))?;
        if let Some(trail) = &self.trail {
            trail.track_gradient(&logits, BufferRole::LogitsGradient);
        }
        if let Some(d_y) = &self.d_y {
            copy_gradient_on_backward(&logits, d_y);
        }
        let loss = self.loss.try_forward(&logits, &self.y)?;
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
        self.y.iter().for_each(|to| {
            let _off = no_grad();
            unwrap(ops::copy_(to, y));
        });
        if let Some(g_a) = &self.g_a {
            copy_gradient_on_backward(x, g_a);
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
struct EvalModeGuard<'m, M: Module + ?Sized> {
    model: &'m M,
    /// The earlier mode of each layer, in visiting order: true for training.
    training: Vec<bool>,
}

impl<'m, M: Module + ?Sized> EvalModeGuard<'m, M> {
    fn of(model: &'m M) -> Self {
        let mut training = Vec::new();
        walk(model, |_, part| {
            if let Part::Training(mode) = part {
                training.push(mode.replace(false));
            }
        });
        EvalModeGuard { model, training }
    }
}

impl<M: Module + ?Sized> Drop for EvalModeGuard<'_, M> {
    fn drop(&mut self) {
        let mut training = self.training.iter();
        walk(self.model, |_, part| {
            // A mode that two layers share is visited twice, and is in evaluation mode at the second visit.
            if let Part::Training(mode) = part
                && *training.next().expect("one saved mode for each visited mode")
            {
                mode.set(true);
            }
        });
    }
}

/// A closure that is ready to be launched: recorded or eager.
enum StepRunner<'f> {
    Captured(Captured<'f>),
    Like(GraphExecLike<'f>),
}

impl<'f> StepRunner<'f> {
    /// Records the closure. On a device without capture, logs a warning and keeps the closure for eager runs.
    fn new(step: Closure<'f>, stream: &Stream) -> Result<StepRunner<'f>> {
        if stream.is_eager() {
            return Ok(StepRunner::Like(GraphExecLike { step, why: "its stream is eager".into() }));
        }
        let step = Rc::new(RefCell::new(step));
        let recorded = Rc::clone(&step);
        // A later re-recording may run under another grad mode.
        let _on = enable_grad();
        match capture(move |_: &[Tensor]| unwrap((*recorded.borrow_mut())()), &[]) {
            Ok(captured) => Ok(StepRunner::Captured(captured)),
            Err(Error::DeviceUnavailable { device, reason }) => {
                tracing::warn!(%device, %reason, "the device cannot capture: the step runs eagerly");
                let step = Rc::into_inner(step).expect("a failed capture drops its closure").into_inner();
                Ok(StepRunner::Like(GraphExecLike { step, why: format!("{device} cannot capture: {reason}") }))
            }
            Err(error) => Err(error),
        }
    }

    fn captured(&self) -> Option<&Captured<'f>> {
        match self {
            StepRunner::Captured(captured) => Some(captured),
            StepRunner::Like(_) => None,
        }
    }

    fn launch(&mut self) -> Result<()> {
        let _on = enable_grad();
        match self {
            StepRunner::Captured(captured) => captured.launch(&[]).map(drop),
            StepRunner::Like(like) => like.launch(),
        }
    }
}

/// A step that runs eagerly: on a device without capture, which is logged, or on an eager stream ([`Stream::eager`]).
pub struct GraphExecLike<'f> {
    step: Closure<'f>,
    why: String,
}

impl GraphExecLike<'_> {
    /// Returns the reason why the step is not captured.
    pub fn why(&self) -> &str {
        &self.why
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
pub struct GraphExec<'f> {
    /// The logits of the last launch.
    pub logits: Tensor,
    /// The loss of the last launch before the update: a 0-d tensor that stays on the device.
    pub loss: Tensor,
    plan: CapturePlan,
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

impl<'f> GraphExec<'f> {
    fn new(
        mut pass: StepRunner<'f>,
        update: Option<(StepRunner<'f>, u64)>,
        (plan, trail): (&CapturePlan, &BufferTracker),
        (bound, mut names): (StepBindings<'f>, Vec<(String, Tensor)>),
        StepOutputs { logits, loss }: StepOutputs,
        stream: Stream,
    ) -> GraphExec<'f> {
        let mut plan = plan.clone();
        if let StepRunner::Captured(captured) = &mut pass {
            bound.state.each(|name, tensor| names.push((name.to_string(), tensor.clone())));
            names.extend([("logits".to_string(), logits.clone()), ("loss".to_string(), loss.clone())]);
            // A shared tensor is labelled with its first name.
            names.iter().rev().for_each(|(name, tensor)| captured.name(tensor, name));
        }
        trail.store_locations(&mut plan, pass.captured());
        GraphExec { logits, loss, plan, pass, update, launches: 0, bound, stream }
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

    /// Returns the step if it runs eagerly; [`why`](GraphExecLike::why) gives the reason.
    pub fn like(&self) -> Option<&GraphExecLike<'f>> {
        match &self.pass {
            StepRunner::Like(like) => Some(like),
            StepRunner::Captured(_) => None,
        }
    }

    /// Returns the recording; for a step that accumulates, the recording of its passes.
    pub fn captured(&mut self) -> Option<&mut Captured<'f>> {
        match &mut self.pass {
            StepRunner::Captured(captured) => Some(captured),
            StepRunner::Like(_) => None,
        }
    }

    /// Returns the stream of the launches.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Returns the plan, with the known location of each buffer.
    pub fn plan(&self) -> &CapturePlan {
        &self.plan
    }
}

impl fmt::Debug for GraphExec<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.pass {
            StepRunner::Captured(captured) => write!(f, "captured {}", captured.plan()),
            StepRunner::Like(like) => write!(f, "eager step: {}", like.why),
        }
    }
}
