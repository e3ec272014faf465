//! From a plan to a step that can be launched.
//!
//! A step is one closure. [`capture`] records it; where that cannot be, it runs as it is.

use super::batch::{Batch, Model};
use super::coverage::{Frozen, check_gradients};
use super::plan::{Buf, CapturePlan, PerLayerBufs, Role};
use super::rebind::Gradients;
use super::state::{self, State};
use super::stream::Stream;
use super::trail::BufferTracker;
use crate::call::{LayerCall, followed, watched};
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

/// What is done with the gradients of these parameters before the update, such as clipping.
pub type BeforeUpdate<'f> = Rc<dyn Fn(&[Parameter]) -> Result<()> + 'f>;

/// How a step is recorded.
#[derive(Clone)]
pub struct StepOptions<'f> {
    /// The queue that launches it; the device's own if there is none.
    pub stream: Option<Stream>,
    /// So many launches of one recording add up their gradients, each a share of 1/k, in the plan's buffers, zeros at first;
    /// the last of them makes the update and leaves zeros: the mean over k batches. With 1, the default, each launch starts
    /// from no gradient.
    pub accumulate: u64,
    /// Multiplies the loss by a scale, for gradients in half precision, and skips updates by gradients that are not finite.
    /// Parameters' gradients are divided by the scale before the update, and before what is done with them.
    pub scaler: Option<Rc<GradScaler>>,
    /// What is done with the gradients before the update.
    pub before_update: Option<BeforeUpdate<'f>>,
    /// Whether parameters that require a gradient may belong to no optimizer of the step: other optimizers update them, as in
    /// a GAN, or none does. Otherwise they are refused.
    pub allow_untrained_parameters: bool,
}

impl StepOptions<'_> {
    /// The same options with [`allow_untrained_parameters`](StepOptions#structfield.allow_untrained_parameters).
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

/// Records a training step: forward, loss, backward and update, on what lies in `x_buf` and `y_buf` when it is launched.
///
/// No kernel runs: parameters, the optimizer's state, statistics and random generators are as they were until the first
/// launch. Each launch starts from no gradient. The logits and the loss before the update are then in buffers of the result.
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
/// [`Error::Layer`] for buffers that the plan is not for, and names the layer that does not take what it gets, or that
/// cannot be captured; [`Error::ReadInCapture`] names the line that reads a value; [`Error::UntrainedParameters`] names
/// parameters that require a gradient and that the optimizer does not have; those of [`capture`].
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

/// [`record_step_graph`] with options. Model, loss and optimizer are what these point to.
///
/// # Errors
/// Those of [`record_step_graph`]; [`Error::InvalidArgument`] to accumulate over no launch, or gradients that do not all lie
/// in the plan's buffers, see [`try_rebind_grads`](super::try_rebind_grads).
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
    let gradients = Rc::new(Gradients::of(&**model, &*optimizer, plan));
    let StepOptions { stream, accumulate, scaler, before_update, allow_untrained_parameters } = options;
    let frozen = Frozen::of(op, &**model, &*loss, &*optimizer, allow_untrained_parameters)?;
    if accumulate == 0 || accumulate > 1 && !gradients.are_bound(&*optimizer) {
        let help = "gradients add up over one launch or more, in the plan's buffers: call try_rebind_grads() first";
        return Err(Error::invalid(op, help));
    }
    let stream = stream.unwrap_or_default();
    let (forward, trail) = Forward::new(op, model.clone(), loss, plan, x_buf, y_buf)?.pinning(plan).followed(&stream);
    let outputs = forward.outputs();
    let mut names = state::names(&**model, &*optimizer);
    names.extend(forward.inputs());
    let bound = Bound { state: State::of(model), gradients: Some(gradients.clone()), frozen: Some(frozen) };
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
            forward.passed();
            gradients.collect()?;
            check_gradients(op, &**updated)?;
            update()?;
            gradients.leave()
        };
        (Box::new(pass), None)
    } else {
        let collected = Rc::clone(&gradients);
        let pass = move || {
            let loss = scaled(forward.run()?)?;
            let share = ops::full(loss.shape(), 1.0 / accumulate as f64, loss.dtype())?;
            loss.try_backward(Backward { gradient: Some(share), ..Default::default() })?;
            forward.passed();
            collected.collect()?;
            collected.leave()
        };
        (Box::new(pass), Some(Box::new(move || update().and_then(|()| gradients.zero()))))
    };
    let update = update.map(|update| Run::new(update, &stream)).transpose()?.map(|run| (run, accumulate));
    Ok(GraphExec::new(Run::new(pass, &stream)?, update, (plan, &trail), (bound, names), outputs, stream))
}

/// Records an evaluation: logits and loss of what lies in `x_buf` and `y_buf`, with all layers in evaluation, as after
/// [`Module::eval`](crate::Module::eval), and no backward pass. The model's mode is as it was then.
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
        Forward::new("record_eval_graph", model.clone(), loss, plan, x_buf, y_buf)?.followed(&stream);
    let outputs = forward.outputs();
    let names = forward.inputs();
    let bound = Bound { state: State::of(model), gradients: None, frozen: None };
    let pass = move || {
        let _off = no_grad();
        let _evaluating = Evaluating::of(&**forward.model);
        forward.run().map(drop)
    };
    Ok(GraphExec::new(Run::new(Box::new(pass), &stream)?, None, (plan, &trail), (bound, names), outputs, stream))
}

type Closure<'f> = Box<dyn FnMut() -> Result<()> + 'f>;

/// What the model and the loss compute, from buffers and into buffers.
struct Forward<X, M, L> {
    model: Rc<M>,
    loss: L,
    x: X,
    y: Tensor,
    /// What was asked for of each layer of the plan, and which call of a layer it is.
    pins: Rc<[Option<Pin>]>,
    layers: Rc<[Option<usize>]>,
    d_y: Option<Tensor>,
    outputs: Outputs,
    /// What is found of the layers while they are recorded.
    trail: Option<BufferTracker>,
}

/// The buffers of a step's results.
#[derive(Clone)]
struct Outputs {
    logits: Tensor,
    loss: Tensor,
}

/// What was asked for of a layer.
struct Pin {
    y: Vec<Tensor>,
    g_a: Option<Tensor>,
}

impl<X: Batch, M: Deref<Target: Model<X>>, L: Deref<Target: Loss>> Forward<X, M, L> {
    fn new(op: &'static str, model: Rc<M>, loss: L, plan: &CapturePlan, x: &X, y: &Tensor) -> Result<Self> {
        plan.check(op, x, y)?;
        model.supports_capture()?;
        let x = x.map(&mut |_, tensor| Ok(tensor.detach()))?;
        let d_y = &plan.loss.d_y;
        let (made, _) = watched(&**model, || model.run(&x))?;
        if (made.shape(), made.dtype()) != (d_y.shape(), d_y.dtype()) {
            let help = "the plan is for other logits; make one of this model";
            return Err(Error::shapes(op, [made.shape(), d_y.shape()], help));
        }
        let logits = ops::zeros(d_y.shape(), d_y.dtype())?;
        let (value, _) = watched(&**model, || loss.try_forward(&logits, y))?;
        if *value.shape() != plan.loss.out_shape {
            return Err(Error::shapes(
                op,
                [value.shape()],
                "a step makes one number small; reduce the loss to its mean or sum",
            ));
        }
        let outputs = Outputs { logits, loss: ops::zeros(value.shape(), value.dtype())? };
        let layers = plan.per_layer.iter().map(|layer| layer.call).collect();
        let pins = plan.per_layer.iter().map(|_| None).collect();
        Ok(Forward { model, loss, x, y: y.detach(), pins, layers, d_y: None, outputs, trail: None })
    }

    /// The same, which leaves a trail where it is recorded.
    fn followed(mut self, stream: &Stream) -> (Self, BufferTracker) {
        let trail = BufferTracker::default();
        self.trail = (!stream.is_eager()).then(|| trail.clone());
        (self, trail)
    }

    /// The same, which writes what was asked for of its layers.
    fn pinning(mut self, plan: &CapturePlan) -> Self {
        let pin = |layer: &PerLayerBufs| {
            let y: Vec<_> = [Some(&layer.y), layer.z.as_ref()].into_iter().flatten().filter_map(Buf::pinned).collect();
            let g_a = layer.g_a.as_ref().and_then(Buf::pinned);
            (g_a.is_some() || !y.is_empty()).then(|| Pin { y: y.into_iter().cloned().collect(), g_a: g_a.cloned() })
        };
        self.pins = plan.per_layer.iter().map(pin).collect();
        self.d_y = plan.loss.d_y.pinned().cloned();
        self
    }

    fn outputs(&self) -> Outputs {
        self.outputs.clone()
    }

    /// What it reads, by name.
    fn inputs(&self) -> Vec<(String, Tensor)> {
        let mut inputs = self.x.named();
        inputs.push(("y".into(), self.y.clone()));
        inputs
    }

    /// Follows the gradients that a pass has found.
    fn passed(&self) {
        if let Some(trail) = &self.trail {
            for (name, parameter) in parameters_so_far(&**self.model) {
                parameter.grad().iter().for_each(|grad| trail.found(Role::Gradient(name.clone()), grad));
            }
        }
    }

    /// The loss, with its history.
    fn run(&self) -> Result<Tensor> {
        let (trail, layers, pins) = (self.trail.clone(), self.layers.clone(), self.pins.clone());
        trail.iter().for_each(BufferTracker::clear);
        let meet = move |call: LayerCall<'_>| {
            let Some(layer) = layers.iter().position(|own| *own == Some(call.call)) else { return };
            pins[layer].iter().for_each(|pin| pin.write(call.x, call.y));
            trail.iter().for_each(|trail| trail.called(layer, &call));
        };
        let logits = followed(Rc::new(meet), || self.model.run(&self.x))?;
        if let Some(trail) = &self.trail {
            trail.gradient(&logits, Role::LogitsGradient);
        }
        if let Some(d_y) = &self.d_y {
            written_with(&logits, d_y);
        }
        let loss = self.loss.try_forward(&logits, &self.y)?;
        // The buffers have values, and no history.
        let _off = no_grad();
        ops::copy_(&self.outputs.logits, &logits)?;
        ops::copy_(&self.outputs.loss, &loss)?;
        Ok(loss)
    }
}

impl Pin {
    /// Has the values of a call written.
    fn write(&self, x: &Tensor, y: &Tensor) {
        self.y.iter().for_each(|to| {
            let _off = no_grad();
            unwrap(ops::copy_(to, y));
        });
        if let Some(g_a) = &self.g_a {
            written_with(x, g_a);
        }
    }
}

/// Has the gradient of x written into a buffer, where a backward pass finds one.
fn written_with(x: &Tensor, buf: &Tensor) {
    if x.requires_grad() {
        let buf = buf.clone();
        x.register_hook(move |gradient| {
            let _off = no_grad();
            unwrap(ops::copy_(&buf, gradient));
            None
        });
    }
}

/// All layers of a model in evaluation while it lives.
struct Evaluating<'m, M: Module + ?Sized> {
    model: &'m M,
    /// Whether each was in training, in the order of the walk.
    training: Vec<bool>,
}

impl<'m, M: Module + ?Sized> Evaluating<'m, M> {
    fn of(model: &'m M) -> Self {
        let mut training = Vec::new();
        walk(model, |_, part| {
            if let Part::Training(mode) = part {
                training.push(mode.replace(false));
            }
        });
        Evaluating { model, training }
    }
}

impl<M: Module + ?Sized> Drop for Evaluating<'_, M> {
    fn drop(&mut self) {
        let mut training = self.training.iter();
        walk(self.model, |_, part| {
            // A mode that two layers share was in evaluation already when it was met again.
            if let Part::Training(mode) = part
                && *training.next().expect("one a mode")
            {
                mode.set(true);
            }
        });
    }
}

/// One closure, ready to be launched.
enum Run<'f> {
    Captured(Captured<'f>),
    Like(GraphExecLike<'f>),
}

impl<'f> Run<'f> {
    /// Records the closure; where the device cannot, says so and keeps it as it is.
    fn new(step: Closure<'f>, stream: &Stream) -> Result<Run<'f>> {
        if stream.is_eager() {
            return Ok(Run::Like(GraphExecLike { step, why: "its stream is eager".into() }));
        }
        let step = Rc::new(RefCell::new(step));
        let recorded = Rc::clone(&step);
        // A step that records again may find another grad mode than this one.
        let _on = enable_grad();
        match capture(move |_: &[Tensor]| unwrap((*recorded.borrow_mut())()), &[]) {
            Ok(captured) => Ok(Run::Captured(captured)),
            Err(Error::DeviceUnavailable { device, reason }) => {
                tracing::warn!(%device, %reason, "the device cannot capture: the step runs eagerly");
                let step = Rc::into_inner(step).expect("a recording that failed lets go of it").into_inner();
                Ok(Run::Like(GraphExecLike { step, why: format!("{device} cannot capture: {reason}") }))
            }
            Err(error) => Err(error),
        }
    }

    fn captured(&self) -> Option<&Captured<'f>> {
        match self {
            Run::Captured(captured) => Some(captured),
            Run::Like(_) => None,
        }
    }

    fn launch(&mut self) -> Result<()> {
        let _on = enable_grad();
        match self {
            Run::Captured(captured) => captured.launch(&[]).map(drop),
            Run::Like(like) => like.launch(),
        }
    }
}

/// What a recorded step does, run eagerly: where a device cannot capture, which is reported, or where it was asked for
/// ([`Stream::eager`]).
pub struct GraphExecLike<'f> {
    step: Closure<'f>,
    why: String,
}

impl GraphExecLike<'_> {
    /// Why the step is not captured.
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
    /// Its loss, before the update: a 0-d tensor, which stays on the device until somebody reads it.
    pub loss: Tensor,
    plan: CapturePlan,
    pass: Run<'f>,
    /// The update, where it comes after several passes.
    update: Option<(Run<'f>, u64)>,
    launches: u64,
    bound: Bound<'f>,
    stream: Stream,
}

/// What a step works on.
struct Bound<'f> {
    state: State<'f>,
    /// Of a training step.
    gradients: Option<Rc<Gradients>>,
    /// Of a training step: what it must find frozen.
    frozen: Option<Frozen>,
}

impl<'f> GraphExec<'f> {
    fn new(
        mut pass: Run<'f>,
        update: Option<(Run<'f>, u64)>,
        (plan, trail): (&CapturePlan, &BufferTracker),
        (bound, mut names): (Bound<'f>, Vec<(String, Tensor)>),
        Outputs { logits, loss }: Outputs,
        stream: Stream,
    ) -> GraphExec<'f> {
        let mut plan = plan.clone();
        if let Run::Captured(captured) = &mut pass {
            bound.state.each(|name, tensor| names.push((name.to_string(), tensor.clone())));
            names.extend([("logits".to_string(), logits.clone()), ("loss".to_string(), loss.clone())]);
            // A shared one goes by its first name.
            names.iter().rev().for_each(|(name, tensor)| captured.name(tensor, name));
        }
        trail.settle(&mut plan, pass.captured());
        GraphExec { logits, loss, plan, pass, update, launches: 0, bound, stream }
    }

    /// Executes the step on what lies in its buffers. Gradients that were taken away since, as by `zero_grad`, are back in
    /// the plan's buffers before; for those that were bound to other tensors the step is recorded again.
    ///
    /// # Errors
    /// [`Error::Rebound`] names a parameter or buffer of the model that is another tensor than when the step was recorded,
    /// of which the optimizer and the plan know nothing; [`Error::UntrainedParameters`] one that was frozen then, requires a
    /// gradient now, and does not belong to the optimizer; those of [`Captured::launch`], or of the operations of a step that
    /// runs eagerly.
    pub fn launch(&mut self) -> Result<()> {
        self.bound.state.check()?;
        self.bound.frozen.as_ref().map_or(Ok(()), Frozen::check)?;
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
        matches!(self.pass, Run::Captured(_))
    }

    /// The step that runs eagerly instead of a recording, and [why](GraphExecLike::why).
    pub fn like(&self) -> Option<&GraphExecLike<'f>> {
        match &self.pass {
            Run::Like(like) => Some(like),
            Run::Captured(_) => None,
        }
    }

    /// The recording; of a step that accumulates, that of its passes.
    pub fn captured(&mut self) -> Option<&mut Captured<'f>> {
        match &mut self.pass {
            Run::Captured(captured) => Some(captured),
            Run::Like(_) => None,
        }
    }

    /// The queue on which it is launched.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The plan, with what is known of where each buffer is.
    pub fn plan(&self) -> &CapturePlan {
        &self.plan
    }
}

impl fmt::Debug for GraphExec<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.pass {
            Run::Captured(captured) => write!(f, "captured {}", captured.plan()),
            Run::Like(like) => write!(f, "run eagerly, since {}", like.why),
        }
    }
}
