//! The core of a training step: the closure of forward pass, backward pass and update, and its gradient buffers.

use super::check::{StepCheck, check_step};
use super::launcher::{Launcher, PerRecording, StepFn};
use super::options::{BeforeUpdate, StepOptions};
use crate::optim::{GradScaler, Optimizer};
use crate::parameter::Parameter;
use pellucid_tensor::{
    CacheStats, CaptureOptions, Error, GradOptions, Result, Shape, Tensor, ThreadStream, enable_grad, grad_if_reached,
    lock, no_grad, ops,
};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};

/// The computation of a step: the loss, followed by other results.
pub(super) type StepComputation<'f> = Arc<dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'f>;

/// A function that is called with the gradient of each parameter after the backward pass.
pub(super) type GradientListener<'f> = Arc<dyn Fn(&Parameter, &Tensor) -> Result<()> + Send + Sync + 'f>;

/// The name of recording a step in errors.
const RECORD_STEP: &str = "record_step";

/// A training step of a computation and an optimizer, for inputs on its device. It has no type parameters, so it is
/// compiled once, in this crate.
pub(super) struct StepCore<'f> {
    compute: StepComputation<'f>,
    pub(super) optimizer: Arc<dyn Optimizer + 'f>,
    pub(super) options: StepOptions<'f>,
    /// The maximum number of recordings.
    pub(super) max_recordings: usize,
    gradients: GradientBuffers,
    reached_parameters: ReachedParameters,
    listener: Option<(Vec<Parameter>, GradientListener<'f>)>,
    /// The step, once it is needed; without the update if gradients accumulate.
    pub(super) pass: Option<Launcher<'f>>,
    /// The separate update of a step that accumulates gradients. It has no inputs, so it has one recording.
    update: Option<Launcher<'f>>,
    /// The number of launches since the last update.
    launches_since_update: usize,
    /// The random numbers of the thread that recorded the step first.
    random: Option<ThreadStream>,
}

impl<'f> StepCore<'f> {
    pub(super) fn new(optimizer: Arc<dyn Optimizer + 'f>, compute: StepComputation<'f>) -> StepCore<'f> {
        StepCore {
            compute,
            optimizer,
            options: StepOptions::default(),
            max_recordings: CaptureOptions::default().max_recordings,
            gradients: GradientBuffers { buffers: Vec::new(), owner: BufferOwner::Step },
            reached_parameters: ReachedParameters::default(),
            listener: None,
            pass: None,
            update: None,
            launches_since_update: 0,
            random: None,
        }
    }

    /// Returns this step without gradient buffers: a parameter without gradient now has none between launches.
    pub(super) fn with_present_gradients(mut self) -> Self {
        self.gradients = GradientBuffers {
            buffers: self.optimizer.parameters().iter().map(|p| p.grad()).collect(),
            owner: BufferOwner::Caller,
        };
        self
    }

    /// Returns this step with a function that is called with the gradient of each parameter of the optimizer and of
    /// `others`.
    pub(super) fn with_listener(mut self, others: Vec<Parameter>, listener: GradientListener<'f>) -> Self {
        self.listener = Some((others, listener));
        self
    }

    /// Sets the options, and drops all recordings. Gradients that were accumulated so far are not used.
    pub(super) fn set_options(&mut self, options: StepOptions<'f>) {
        self.options = options;
        self.drop_recordings();
        self.begin_accumulation();
    }

    /// Restarts accumulation: the next launch is its first.
    fn begin_accumulation(&mut self) {
        self.launches_since_update = 0;
        self.reached_parameters.holding = Flags::default();
        if self.gradients.owner == BufferOwner::Step {
            self.gradients.buffers.clear();
        }
    }

    pub(super) fn set_limit(&mut self, limit: usize) -> Result<()> {
        if limit == 0 {
            return Err(Error::invalid("max_recordings", "`limit` must be at least 1, got 0"));
        }
        self.max_recordings = limit;
        self.drop_recordings();
        Ok(())
    }

    /// Drops all recordings. The next launch records with the current options.
    pub(super) fn drop_recordings(&mut self) {
        (self.pass, self.update) = (None, None);
        self.reached_parameters.known.clear();
    }

    pub(super) fn cache_stats(&self) -> CacheStats {
        let stats = |launcher: &Option<Launcher<'f>>| launcher.as_ref().map(Launcher::cache_stats).unwrap_or_default();
        let (pass, update) = (stats(&self.pass), stats(&self.update));
        CacheStats { misses: pass.misses + update.misses, len: pass.len + update.len, ..pass }
    }

    /// Returns the random numbers of the thread that recorded the step first.
    pub(super) fn random(&mut self) -> ThreadStream {
        self.random.get_or_insert_with(ThreadStream::current).clone()
    }

    /// Records the step for inputs of these shapes and dtypes, unless it is recorded. Returns true if it recorded.
    pub(super) fn prepare(&mut self, inputs: &[Tensor]) -> Result<bool> {
        self.with_gradients(|step| {
            let is_new = step.launcher()?.prepare(inputs)?;
            if step.update.is_some() {
                step.prepare_update()?;
            }
            Ok(is_new)
        })
    }

    /// Returns the shape of output 1 of a launch with these inputs; `None` if the launch would record.
    pub(super) fn logits_shape(&mut self, inputs: &[Tensor]) -> Result<Option<Shape>> {
        let _on = enable_grad();
        let parameters = self.optimizer.parameters();
        let replaced = self.gradients.restore(&parameters, false)?;
        let shape = self.pass.as_ref().and_then(|pass| pass.output_shape(inputs, 1));
        self.gradients.undo(&parameters, replaced);
        Ok(shape)
    }

    /// Executes the step, and returns the loss before the update and the other results.
    pub(super) fn launch(&mut self, inputs: &[Tensor]) -> Result<&[Tensor]> {
        self.with_gradients(|step| {
            step.launcher()?;
            if step.update.is_some() { step.accumulate(inputs) } else { step.launch_whole(inputs) }
        })?;
        Ok(self.pass.as_ref().map_or(&[], Launcher::outputs))
    }

    /// Launches a step that does not accumulate gradients.
    fn launch_whole(&mut self, inputs: &[Tensor]) -> Result<()> {
        self.launcher()?.launch(inputs)?;
        let now = self.reached_now()?;
        let before = std::mem::replace(&mut self.reached_parameters.holding, now.clone());
        if Arc::ptr_eq(&before, &now) {
            return Ok(());
        }
        // A buffer without gradient contains zeros. The pass does not write it, and another one may have, or the caller
        // before the first launch.
        self.zero_buffers(|at| (before.is_empty() || is_set(&before, at)) && !is_set(&now, at))
    }

    /// Adds the gradients of a batch. The last launch of a cycle updates the parameters.
    fn accumulate(&mut self, inputs: &[Tensor]) -> Result<()> {
        let is_last = self.launches_since_update + 1 >= self.options.accumulate;
        if is_last {
            // If one of both cannot be recorded, the gradients so far are unchanged.
            self.launcher()?.prepare(inputs)?;
            self.prepare_update()?;
        }
        self.launcher()?.launch(inputs)?;
        self.launches_since_update += 1;
        let now = self.reached_now()?;
        self.reached_parameters.holding = either(&self.reached_parameters.holding, &now);
        if is_last { self.update_accumulated() } else { Ok(()) }
    }

    /// Updates the parameters with the gradients that were accumulated, and zeroes these.
    fn update_accumulated(&mut self) -> Result<()> {
        let reached = std::mem::take(&mut self.reached_parameters.holding);
        let updated = self.with_update(&reached, |update| update.launch(&[]).map(drop));
        // A failed update does not zero the gradients.
        updated.inspect_err(|_| self.begin_accumulation())?;
        // The update zeroes the gradients of the parameters that it has updated.
        let parameters = self.optimizer.clone();
        let parameters = parameters.parameters();
        self.zero_buffers(|at| is_set(&reached, at) && !parameters[at].requires_grad())?;
        self.launches_since_update = 0;
        Ok(())
    }

    /// Updates the parameters with the gradients of fewer launches than `accumulate`, if there are some. Returns true
    /// if it did.
    pub(super) fn update_early(&mut self) -> Result<bool> {
        if self.options.accumulate <= 1 || self.launches_since_update == 0 {
            return Ok(false);
        }
        self.with_gradients(Self::update_accumulated).map(|()| true)
    }

    /// Zeroes the buffers of the parameters of these indices.
    fn zero_buffers(&self, is_zeroed: impl Fn(usize) -> bool) -> Result<()> {
        let GradientBuffers { buffers, owner } = &self.gradients;
        let parameters = self.optimizer.parameters();
        let mut zeroed =
            parameters.iter().enumerate().filter(|(at, _)| is_zeroed(*at)).filter_map(|(at, p)| match owner {
                BufferOwner::Step => buffers.get(at).cloned().flatten(),
                BufferOwner::Caller => p.grad(),
            });
        zeroed.try_for_each(|buf| zero(&buf))
    }

    /// Returns which parameters of the optimizer the latest pass reaches.
    fn reached_now(&mut self) -> Result<Flags> {
        let Some(pass) = &self.pass else { return Ok(Flags::default()) };
        let recorded = &self.reached_parameters.recorded;
        let reached = || Ok(lock(recorded).clone());
        self.reached_parameters.known.of_latest(pass, reached).cloned()
    }

    /// Records the update after the launches so far and one of the pass that was prepared last.
    fn prepare_update(&mut self) -> Result<()> {
        let reached = either(&self.reached_parameters.holding.clone(), &self.reached_now()?);
        self.with_update(&reached, |update| update.prepare(&[]).map(drop))
    }

    /// Calls `f` with the update, while only parameters that were reached have a gradient: the optimizer skips others.
    fn with_update(&mut self, reached: &Flags, f: impl FnOnce(&mut Launcher<'f>) -> Result<()>) -> Result<()> {
        let parameters = self.optimizer.parameters();
        let is_skipped = |at: usize, p: &Parameter| !p.requires_grad() || !is_set(reached, at);
        let skipped = parameters.iter().enumerate().filter(|(at, p)| is_skipped(*at, p) && p.grad().is_some());
        let gradients: ReplacedGradients = skipped.map(|(_, p)| (p.clone(), p.grad())).collect();
        gradients.iter().for_each(|(p, _)| p.set_grad(None));
        let result = self.update.as_mut().map_or(Ok(()), f);
        gradients.into_iter().for_each(|(p, gradient)| p.set_grad(gradient));
        result
    }

    /// Calls `f` with gradient buffers. If it fails or panics and records nothing, the gradients are as before.
    fn with_gradients<R>(&mut self, f: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        let random = self.random();
        let _random = random.enter();
        let _on = enable_grad();
        let replaced = self.gradients.bind(&self.optimizer.parameters(), self.options.accumulate > 1)?;
        if self.options.accumulate > 1 {
            self.reached_parameters.remove(&replaced);
        }
        let recorded = self.cache_stats().len;
        let result = catch_unwind(AssertUnwindSafe(|| f(self)));
        if !matches!(result, Ok(Ok(_))) && self.cache_stats().len <= recorded {
            self.gradients.undo(&self.optimizer.parameters(), replaced);
        }
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Returns the launcher of the step, which is created if it is missing.
    fn launcher(&mut self) -> Result<&mut Launcher<'f>> {
        if self.pass.is_none() {
            self.create_launchers()?;
        }
        Ok(self.pass.as_mut().expect("create_launchers() must have set the launcher"))
    }

    fn create_launchers(&mut self) -> Result<()> {
        let StepOptions { eager, accumulate, scaler, before_update, .. } = self.options.clone();
        let has_gradient = |p: &Parameter| !p.requires_grad() || p.grad().is_some();
        if accumulate == 0 {
            return Err(Error::invalid(RECORD_STEP, "accumulate must be at least 1"));
        }
        if accumulate > 1 && !self.optimizer.parameters().iter().all(has_gradient) {
            let help = "accumulate above 1 requires gradients in the plan's buffers; call try_rebind_grads()";
            return Err(Error::invalid(RECORD_STEP, help));
        }
        let (optimizer, reached) = (self.optimizer.clone(), self.reached_parameters.recorded.clone());
        let update = StepUpdate { optimizer, scaler, before_update, accumulate, reached };
        let (compute, update, listener) = (self.compute.clone(), Arc::new(update), self.listener.clone());
        let accumulated = update.clone();
        let pass: StepFn<'f> = Box::new(move |inputs| {
            let results = compute(inputs)?;
            let replaced = update.collect(&results, listener.as_ref())?;
            if accumulate == 1 {
                let _off = no_grad();
                let updated = update.run();
                replaced.into_iter().for_each(|(parameter, gradient)| parameter.set_grad(gradient));
                updated?;
            }
            Ok(results.iter().map(Tensor::detach).collect())
        });
        let options = CaptureOptions { max_recordings: self.max_recordings, ..CaptureOptions::default() };
        self.pass = Some(Launcher::new(eager, options, pass));
        if accumulate > 1 {
            let update: StepFn<'f> = Box::new(move |_| {
                let _off = no_grad();
                accumulated.run()?;
                accumulated.zero()?;
                Ok(Vec::new())
            });
            self.update = Some(Launcher::new(eager, CaptureOptions::default(), update));
        }
        Ok(())
    }

    /// Launches the step twice and restores all tensors that the optimizer changes, and `written`.
    pub(super) fn check(&mut self, inputs: &[Tensor], mut written: Vec<Tensor>) -> Result<StepCheck> {
        if self.options.accumulate != 1 {
            let help = "a step that accumulates gradients does not update in every launch; check a training step with \
                        accumulate = 1";
            return Err(Error::invalid("check_step", help));
        }
        let parameters = self.optimizer.parameters().to_vec();
        let scaler = self.options.scaler.iter().flat_map(|scaler| scaler.values());
        written.extend(self.optimizer.state().into_iter().chain(scaler).map(|(_, tensor)| tensor));
        written.extend(parameters.iter().map(|p| p.tensor().clone()));
        let random = self.random();
        let _random = random.enter();
        check_step(written, &parameters, &mut || self.launch(inputs)?[0].try_item::<f64>())
    }
}

/// A flag for each parameter of an optimizer; false if it is missing.
type Flags = Arc<[bool]>;

fn is_set(flags: &Flags, at: usize) -> bool {
    flags.get(at).is_some_and(|&is| is)
}

fn either(a: &Flags, b: &Flags) -> Flags {
    (0..a.len().max(b.len())).map(|at| is_set(a, at) || is_set(b, at)).collect()
}

/// The parameters of an optimizer on which the losses of a step depend.
#[derive(Default)]
struct ReachedParameters {
    /// The parameters that the pass reaches which was recorded last, or run eagerly.
    recorded: Arc<Mutex<Flags>>,
    known: PerRecording<Flags>,
    /// The parameters whose buffer contains a gradient: of the last launch, or since the last update.
    holding: Flags,
}

impl ReachedParameters {
    /// Notes that these gradients were removed.
    fn remove(&mut self, replaced: &[ReplacedBuffer]) {
        let is_removed = |at: usize| replaced.iter().any(|buffer| buffer.at == at && buffer.gradient.is_none());
        if replaced.iter().any(|buffer| is_set(&self.holding, buffer.at) && buffer.gradient.is_none()) {
            self.holding = self.holding.iter().enumerate().map(|(at, &is)| is && !is_removed(at)).collect();
        }
    }
}

/// The gradients of the parameters of an optimizer between launches.
struct GradientBuffers {
    /// The buffer of each parameter, once it is known.
    buffers: Vec<Option<Tensor>>,
    owner: BufferOwner,
}

/// The side that creates gradient buffers.
#[derive(Clone, Copy, PartialEq)]
enum BufferOwner {
    /// Each parameter has a buffer of the step.
    Step,
    /// The step uses the gradients that the caller has bound.
    Caller,
}

/// Parameters whose gradients were replaced, with their gradients before.
type ReplacedGradients = Vec<(Parameter, Option<Tensor>)>;

/// A gradient that a buffer of the step replaced.
struct ReplacedBuffer {
    /// The index of the parameter.
    at: usize,
    gradient: Option<Tensor>,
    /// Whether the buffer was created for it.
    is_new: bool,
}

impl GradientBuffers {
    /// Sets the buffers as gradients. Parameters that require a gradient and have no buffer get one.
    fn bind(&mut self, parameters: &[Parameter], zeroed: bool) -> Result<Vec<ReplacedBuffer>> {
        let mut replaced = self.restore(parameters, zeroed)?;
        self.buffers.resize(parameters.len(), None);
        let is_own = self.owner == BufferOwner::Step;
        let trained = parameters.iter().zip(&mut self.buffers).enumerate();
        let trained = trained.filter(|(_, (p, buffer))| is_own && p.requires_grad() && !has_buffer(p, buffer));
        for (at, (parameter, buffer)) in trained {
            let zeros = ops::zeros(parameter.shape(), parameter.dtype())?.try_to(parameter.device())?;
            replaced.push(ReplacedBuffer { at, gradient: parameter.grad(), is_new: true });
            parameter.set_grad(Some(zeros.clone()));
            *buffer = Some(zeros);
        }
        Ok(replaced)
    }

    /// Sets the known buffers as gradients. With `zeroed`, a buffer whose gradient was removed, for example by
    /// `zero_grad`, is set to zero, for accumulation.
    fn restore(&self, parameters: &[Parameter], zeroed: bool) -> Result<Vec<ReplacedBuffer>> {
        let mut replaced = Vec::new();
        let trained = parameters.iter().zip(&self.buffers).enumerate();
        for (at, (parameter, buffer)) in trained.filter(|(_, (p, buffer))| p.requires_grad() && has_buffer(p, buffer)) {
            let gradient = parameter.grad();
            let is_bound = gradient.as_ref().is_some_and(|gradient| {
                // Another step may have bound a buffer of its own.
                self.owner == BufferOwner::Caller
                    || buffer.as_ref().is_some_and(|buffer| buffer.storage_id() == gradient.storage_id())
            });
            if is_bound {
                continue;
            }
            if zeroed && gradient.is_none() {
                buffer.iter().try_for_each(zero)?;
            }
            replaced.push(ReplacedBuffer { at, gradient, is_new: false });
            parameter.set_grad(buffer.clone());
        }
        Ok(replaced)
    }

    /// Restores replaced gradients, and forgets buffers that were created for them.
    fn undo(&mut self, parameters: &[Parameter], replaced: Vec<ReplacedBuffer>) {
        for ReplacedBuffer { at, gradient, is_new } in replaced {
            // A failed update has cleared the buffers.
            if let Some(buffer) = self.buffers.get_mut(at).filter(|_| is_new) {
                *buffer = None;
            }
            parameters[at].set_grad(gradient);
        }
    }
}

/// Whether a parameter has a buffer of its device and dtype.
fn has_buffer(parameter: &Parameter, buffer: &Option<Tensor>) -> bool {
    buffer.as_ref().is_some_and(|buf| buf.device() == parameter.device() && buf.dtype() == parameter.dtype())
}

/// The backward pass and the update of a step. The gradients of parameters that have one before a step are buffers.
struct StepUpdate<'f> {
    optimizer: Arc<dyn Optimizer + 'f>,
    scaler: Option<Arc<GradScaler>>,
    before_update: Option<BeforeUpdate<'f>>,
    accumulate: usize,
    /// The parameters that the last pass has reached.
    reached: Arc<Mutex<Flags>>,
}

impl<'f> StepUpdate<'f> {
    /// Writes or adds the gradients of the loss, the first of the results, to the buffers. Returns the parameters whose
    /// gradients must be restored after the update, with these gradients.
    fn collect(
        &self,
        results: &[Tensor],
        listener: Option<&(Vec<Parameter>, GradientListener<'f>)>,
    ) -> Result<ReplacedGradients> {
        let own = self.optimizer.parameters();
        let trained: Vec<&Parameter> = own.iter().filter(|p| p.requires_grad()).collect();
        let others = listener.iter().flat_map(|(others, _)| others).filter(|p| p.requires_grad());
        let parameters: Vec<&Parameter> = trained.iter().copied().chain(others).collect();
        let gradients = self.gradients(results, &parameters)?;
        if gradients[..trained.len()].iter().all(Option::is_none) {
            let help = "the loss depends on no trainable parameter of the optimizer, so nothing would be trained; \
                        create the optimizer with the parameters() of this model, and unfreeze() some of them";
            return Err(Error::invalid(RECORD_STEP, help));
        }
        if let Some((_, listener)) = listener {
            let mut found = parameters.iter().zip(&gradients).filter_map(|(p, gradient)| Some((p, gradient.as_ref()?)));
            found.try_for_each(|(parameter, gradient)| listener(parameter, gradient))?;
        }
        // In the order of the parameters, whichever of them are frozen: a recording stays valid if a parameter on which
        // it does not depend is frozen.
        let mut gradients = gradients.into_iter();
        let gradients = own.iter().map(|p| if p.requires_grad() { gradients.next().flatten() } else { None });
        let gradients: Vec<Option<Tensor>> = gradients.collect();
        let reached = gradients.iter().map(Option::is_some).collect();
        *lock(&self.reached) = reached;
        let _off = no_grad();
        let mut replaced = ReplacedGradients::new();
        let mut replace = |parameter: &Parameter, gradient: Option<Tensor>| {
            replaced.push((parameter.clone(), parameter.grad()));
            parameter.set_grad(gradient);
        };
        for (parameter, gradient) in own.iter().zip(gradients) {
            match (parameter.grad(), gradient) {
                (Some(buf), Some(gradient)) if self.accumulate > 1 => ops::copy_(&buf, &ops::add(&buf, &gradient)?)?,
                (Some(buf), Some(gradient)) => ops::copy_(&buf, &gradient)?,
                // The optimizer skips a parameter without gradient.
                (Some(_), None) if self.accumulate == 1 => replace(parameter, None),
                (None, Some(gradient)) => replace(parameter, Some(gradient)),
                (_, None) => {}
            }
        }
        Ok(replaced)
    }

    /// Returns the gradient of each parameter on which the loss depends.
    fn gradients(&self, results: &[Tensor], parameters: &[&Parameter]) -> Result<Vec<Option<Tensor>>> {
        let loss = results.first().ok_or_else(|| Error::invalid(RECORD_STEP, "the step must return its loss"))?;
        if loss.rank() > 0 {
            let help = "the loss of a training step must be a scalar; reduce the loss to its mean or sum";
            return Err(Error::shapes(RECORD_STEP, [loss.shape()], help));
        }
        let loss = match &self.scaler {
            Some(scaler) => scaler.try_scale(loss)?,
            None => loss.clone(),
        };
        let grad_outputs = match self.accumulate {
            1 => Vec::new(),
            k => vec![Some(ops::full(loss.shape(), 1.0 / k as f64, loss.dtype())?)],
        };
        let tensors: Vec<&Tensor> = parameters.iter().map(|p| p.tensor()).collect();
        grad_if_reached(&[&loss], &tensors, GradOptions { grad_outputs, allow_unused: true, ..Default::default() })
    }

    /// Updates the parameters.
    fn run(&self) -> Result<()> {
        let before_update = || match &self.before_update {
            Some(before_update) => before_update(&self.optimizer.parameters()),
            None => Ok(()),
        };
        match &self.scaler {
            Some(scaler) => scaler.with_unscaled(&*self.optimizer, |unscaled| {
                before_update()?;
                unscaled.try_step()?;
                scaler.try_update()
            }),
            None => before_update().and_then(|()| self.optimizer.try_step()),
        }
    }

    /// Zeroes all gradients.
    fn zero(&self) -> Result<()> {
        self.optimizer.parameters().iter().try_for_each(|p| p.grad().iter().try_for_each(zero))
    }
}

fn zero(buf: &Tensor) -> Result<()> {
    ops::copy_(buf, &ops::zeros_like(buf)?)
}
