//! Recorded steps over fixed buffers.

use super::forward::{ForwardPass, ModelAndLoss};
use super::observer::BufferObserver;
use super::plan::{BufferRole, CapturePlan, NamedTensors, Rebound};
use super::stream::Stream;
use crate::graph::batch::{Batch, BatchTensors};
use crate::graph::check::StepCheck;
use crate::graph::coverage::FrozenParameters;
use crate::graph::launcher::{EagerStep, Launcher};
use crate::graph::options::StepOptions;
use crate::graph::state::ModelState;
use crate::graph::step::{GradientListener, StepCore};
use crate::graph::trainer_core::check_targets;
use crate::module::DynModule;
use crate::optim::Optimizer;
use crate::parameter::{Parameter, with_evaluation_mode};
use pellucid_tensor::{CaptureOptions, Captured, Device, Error, Generator, Result, StorageId, Tensor, no_grad, ops};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// A recorded step over fixed buffers, and the buffers of its results.
pub struct GraphExec<'f> {
    /// The logits of the last launch.
    pub logits: Tensor,
    /// The loss of the last launch before the update: a 0-d tensor that stays on the device.
    pub loss: Tensor,
    plan: CapturePlan,
    forward: Arc<ForwardPass<'f>>,
    state: ModelState<'f>,
    kind: ExecKind<'f>,
    stream: Stream,
}

enum ExecKind<'f> {
    Training(Box<StepCore<'f>>, FrozenParameters),
    Evaluation(Launcher<'f>),
}

/// The name of the recording of a training step in errors.
const RECORD_TRAINING: &str = "record_training";

impl<'f> GraphExec<'f> {
    /// Records a training step: forward, loss, backward and update.
    pub(super) fn training(
        pair: ModelAndLoss<'f>,
        (optimizer, is_closure): (Arc<dyn Optimizer + 'f>, bool),
        plan: &CapturePlan,
        buffers: (&NamedTensors, &Tensor),
        options: StepOptions<'f>,
    ) -> Result<GraphExec<'f>> {
        let model = pair.0.clone();
        let updated = optimizer.parameters();
        let is_allowed = options.allow_untrained_parameters;
        let frozen = FrozenParameters::of(RECORD_TRAINING, &*model, &*pair.1, &updated, is_allowed)?;
        if options.scaler.is_some() && is_closure {
            let help = "a scaler skips updates of an optimizer; pass the optimizer instead of a closure";
            return Err(Error::invalid(RECORD_TRAINING, help));
        }
        let forward = Arc::new(ForwardPass::new(RECORD_TRAINING, pair, plan, buffers)?);
        let (pass, model): (_, &dyn DynModule) = (forward.clone(), &*model);
        let others = model.parameters().into_iter().map(|(_, p)| p);
        let others = others.filter(|p| updated.iter().all(|q| p.id() != q.id())).collect();
        let mut step = StepCore::new(optimizer.clone(), Arc::new(move |_| Ok(vec![pass.run()?])))
            .with_present_gradients()
            .with_listener(others, gradient_listener(&forward.observer, model));
        let stream = Stream::of_steps(plan.device(), options.eager);
        step.options = options;
        step.prepare(&[])?;
        let names = state_names(model, &*optimizer);
        Ok(GraphExec::new(ExecKind::Training(Box::new(step), frozen), forward, plan, stream, names))
    }

    /// Records an evaluation: logits and loss, without a backward pass, in evaluation mode.
    pub(super) fn evaluation(
        pair: ModelAndLoss<'f>,
        plan: &CapturePlan,
        buffers: (&NamedTensors, &Tensor),
        eager: bool,
    ) -> Result<GraphExec<'f>> {
        let forward = with_evaluation_mode(|| ForwardPass::new("record_evaluation", pair, plan, buffers))?;
        let forward = Arc::new(forward);
        let pass = forward.clone();
        let evaluate = move |_: &[Tensor]| {
            let _off = no_grad();
            with_evaluation_mode(|| pass.run()).map(|_| Vec::new())
        };
        let mut launcher = Launcher::new(eager, CaptureOptions::default(), Box::new(evaluate));
        let _off = no_grad();
        launcher.prepare(&[])?;
        let stream = Stream::of_steps(plan.device(), eager);
        Ok(GraphExec::new(ExecKind::Evaluation(launcher), forward, plan, stream, Vec::new()))
    }

    /// Creates the step, names the tensors of the recording, and stores the locations of the buffers.
    fn new(
        kind: ExecKind<'f>,
        forward: Arc<ForwardPass<'f>>,
        plan: &CapturePlan,
        stream: Stream,
        mut names: NamedTensors,
    ) -> GraphExec<'f> {
        let (logits, loss) = (forward.logits.clone(), forward.loss.clone());
        let state = ModelState::of(forward.pair.0.clone());
        let inputs = plan.inputs.iter().map(|(name, ..)| name.clone()).zip(forward.inputs.iter().cloned());
        names.extend(inputs.chain([("y".to_string(), forward.targets.clone())]));
        state.each(&mut |name, tensor| names.push((name.to_string(), tensor.clone())));
        names.extend([("logits".to_string(), logits.clone()), ("loss".to_string(), loss.clone())]);
        let mut exec = GraphExec { logits, loss, plan: plan.clone(), forward, state, kind, stream };
        if let Some(captured) = exec.captured() {
            // A shared tensor is labelled with its first name.
            names.iter().rev().for_each(|(name, tensor)| captured.name(tensor, name));
        }
        let mut plan = plan.clone();
        let captured = exec.launcher().captured();
        plan.set_locations(|role, buf| exec.forward.observer.location(role, buf, captured));
        exec.plan = plan;
        exec
    }

    fn launcher(&self) -> &Launcher<'f> {
        match &self.kind {
            ExecKind::Training(step, _) => step.pass.as_ref().expect("the step must be recorded"),
            ExecKind::Evaluation(launcher) => launcher,
        }
    }

    /// Executes the step on the contents of its buffers.
    ///
    /// Gradients that were removed since the last launch, for example by `zero_grad`, are first restored to the
    /// plan's buffers. If a gradient is bound to another tensor, the step is recorded again.
    ///
    /// # Errors
    /// [`Error::Rebound`] names a parameter or buffer that is not the tensor of the recording.
    /// [`Error::UntrainedParameters`] names a parameter that was frozen at recording, requires a gradient now and does
    /// not belong to the optimizer. Also errors of [`Captured::launch`], or of eager operations.
    pub fn launch(&mut self) -> Result<()> {
        self.state.check()?;
        match &mut self.kind {
            ExecKind::Training(step, frozen) => frozen.check().and_then(|()| step.launch(&[]).map(drop)),
            ExecKind::Evaluation(launcher) => {
                let _off = no_grad();
                launcher.launch(&[]).map(drop)
            }
        }
    }

    /// Launches a training step twice and restores all state, as
    /// [`GraphTrainer::check_step`](crate::graph::GraphTrainer::check_step) does; only state inside a closure that is
    /// the [update](super::ParameterUpdate) is not restored.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an evaluation, for a step that accumulates gradients, and for one that keeps no
    /// gradients, see [`try_rebind_grads`](super::try_rebind_grads); the errors of [`launch`](GraphExec::launch).
    pub fn check_step(&mut self) -> Result<StepCheck> {
        let written = self.state.tensors().iter().chain([&self.logits, &self.loss]).cloned().collect();
        match &mut self.kind {
            ExecKind::Training(step, _) => step.check(&[], written),
            ExecKind::Evaluation(_) => {
                Err(Error::invalid("check_step", "an evaluation never updates; check a training step"))
            }
        }
    }

    /// Returns an error for a batch that the step cannot run.
    pub(super) fn check_batch(&self, op: &'static str, x: &NamedTensors, y: &Tensor) -> Result<()> {
        self.plan.check(op, x, y)?;
        check_targets(&*self.forward.pair.1, self.logits.shape(), y)
    }

    /// Returns which gradients the update reads from the plan's buffers.
    fn bound(&self) -> Rebound {
        match &self.kind {
            ExecKind::Training(step, _) => self.plan.bound(&*self.forward.pair.0, &step.optimizer.parameters()),
            ExecKind::Evaluation(_) => Rebound::default(),
        }
    }

    /// Whether launches replay a recording.
    pub fn is_captured(&self) -> bool {
        self.launcher().captured().is_some()
    }

    /// Returns the step if it runs eagerly; [`reason`](EagerStep::reason) tells why.
    pub fn eager(&self) -> Option<&EagerStep<'f>> {
        self.launcher().eager()
    }

    /// Returns the recording; for a step that accumulates, the recording of its passes.
    pub fn captured(&mut self) -> Option<&mut Captured<'f>> {
        match &mut self.kind {
            ExecKind::Training(step, _) => step.pass.as_mut()?.captured_mut(),
            ExecKind::Evaluation(launcher) => launcher.captured_mut(),
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
        match (self.launcher().captured(), self.eager()) {
            (Some(captured), _) => write!(f, "captured {}", captured.plan()),
            (None, eager) => write!(f, "eager step: {}", eager.map_or("it was not recorded", EagerStep::reason)),
        }
    }
}

/// Returns the function that observes the gradients of the model's parameters.
fn gradient_listener<'f>(observer: &BufferObserver, model: &dyn DynModule) -> GradientListener<'f> {
    let observer = observer.clone();
    let names: HashMap<_, _> = model.parameters().into_iter().map(|(name, p)| (p.id(), name)).collect();
    Arc::new(move |parameter: &Parameter, gradient: &Tensor| {
        let Some(name) = names.get(&parameter.id()) else { return Ok(()) };
        let bound = parameter.grad().map(|gradient| gradient.storage_id());
        observer.observe(BufferRole::Gradient(name.clone()), gradient, bound)
    })
}

/// Returns names for the tensors of a training step that are not part of the model: gradients, optimizer state, and the
/// random generator. State that several parameters share is named without a parameter. The printed form of a plan
/// contains these names.
fn state_names(model: &dyn DynModule, optimizer: &dyn Optimizer) -> NamedTensors {
    let own = model.parameters();
    let name_of = |parameter: &str| {
        // The optimizer names a parameter by its index if it was not given a name.
        let known = parameter.parse::<usize>().ok().and_then(|i| optimizer.parameters().get(i).cloned());
        let found = known.and_then(|p| own.iter().find(|(_, q)| p.id() == q.id()));
        found.map_or_else(|| parameter.to_string(), |(name, _)| name.clone())
    };
    let state = optimizer.state();
    let mut uses: HashMap<StorageId, usize> = HashMap::new();
    state.iter().for_each(|(_, tensor)| *uses.entry(tensor.storage_id()).or_default() += 1);
    let kept = state.iter().map(|(name, tensor)| {
        let shared = uses[&tensor.storage_id()] > 1;
        let name = match name.strip_prefix("state.").and_then(|rest| rest.rsplit_once('.')) {
            Some((_, what)) if shared => what.to_string(),
            Some((parameter, what)) => format!("{what} of {}", name_of(parameter)),
            None => name.clone(),
        };
        (name, tensor.clone())
    });
    let gradients = own.iter().filter_map(|(name, p)| Some((format!("gradient of {name}"), p.grad()?)));
    let generators = Generator::default().states().into_iter().map(|(device, state)| match device == Device::cpu() {
        true => ("generator".to_string(), state),
        false => (format!("generator of {device}"), state),
    });
    gradients.chain(kept).chain(generators).collect()
}

/// A recorded step with the copy of batches into its buffers.
pub struct TrainGraph<'f> {
    /// The input buffers, in order: x `[B, K]`, for example.
    pub inputs: Vec<Tensor>,
    /// The target buffer: class indices `[B]`, or values of the logits' shape.
    pub y_buf: Tensor,
    /// The logits of the last launch, `[B, C]`.
    pub logits: Tensor,
    /// The loss of the last launch before the update: a 0-d tensor that stays on the device.
    pub loss: Tensor,
    /// The step.
    pub exec: GraphExec<'f>,
    /// Which gradients the optimizer reads from the plan's buffers.
    pub gradients: Rebound,
}

impl<'f> TrainGraph<'f> {
    /// Returns the first input buffer.
    pub fn x_buf(&self) -> &Tensor {
        &self.inputs[0]
    }

    /// Copies a batch into the fixed buffers, without synchronizing.
    ///
    /// # Errors
    /// [`Error::Layer`] names the layer that would read a batch of another shape or dtype; then nothing is copied.
    pub fn set_batch(&self, x: &impl Batch, y: &Tensor) -> Result<()> {
        let op = "set_batch";
        let named = named_tensors(x);
        self.exec.check_batch(op, &named, y)?;
        // Only the values of the batch are copied, not its autograd graph.
        let _off = no_grad();
        let copies = named.iter().map(|(_, x)| x).zip(&self.inputs).chain([(y, &self.y_buf)]);
        copies.into_iter().try_for_each(|(x, buffer)| ops::copy_(buffer, x)).map_err(|mut error| {
            error.set_operation(op);
            error
        })
    }

    /// Executes the step on the batch in the buffers.
    ///
    /// # Errors
    /// The errors of [`GraphExec::launch`].
    pub fn launch(&mut self) -> Result<()> {
        self.exec.launch()
    }

    /// Returns the plan of the step; see [`GraphExec::plan`].
    pub fn plan(&self) -> &CapturePlan {
        self.exec.plan()
    }
}

/// Creates a train graph from a recording. It keeps the buffers of the recording, on the device of the step.
impl<'f> From<GraphExec<'f>> for TrainGraph<'f> {
    fn from(recorded: GraphExec<'f>) -> TrainGraph<'f> {
        TrainGraph {
            inputs: recorded.forward.inputs.clone(),
            y_buf: recorded.forward.targets.clone(),
            logits: recorded.logits.clone(),
            loss: recorded.loss.clone(),
            gradients: recorded.bound(),
            exec: recorded,
        }
    }
}

/// Returns the tensors of a batch with their names, in order.
pub(super) fn named_tensors(x: &dyn BatchTensors) -> NamedTensors {
    let mut named = Vec::new();
    x.each_tensor(&mut |name, tensor| named.push((name.to_string(), tensor.clone())));
    named
}
