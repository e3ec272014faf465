//! The core of a training step: the closure of forward pass, backward pass and update, and its gradient buffers.

use super::check::{StepCheck, check_step};
use super::launcher::{Launcher, StepFn};
use super::options::{BeforeUpdate, StepOptions};
use crate::optim::{GradScaler, Optimizer};
use crate::parameter::Parameter;
use pellucid_tensor::{
    CacheStats, CaptureOptions, Error, GradOptions, Result, Shape, Tensor, ThreadStream, enable_grad, grad_if_reached,
    no_grad, ops,
};
use std::sync::Arc;

/// The computation of a step: the loss, followed by other results.
pub(super) type Compute<'f> = Arc<dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'f>;

/// A function that is called with the gradient of each parameter after the backward pass.
pub(super) type GradientListener<'f> = Arc<dyn Fn(&Parameter, &Tensor) -> Result<()> + Send + Sync + 'f>;

/// The name of recording a step in errors.
const RECORD_STEP: &str = "record_step";

/// A training step of a computation and an optimizer, for inputs on its device. It has no type parameters, so it is
/// compiled once, in this crate.
pub(super) struct StepCore<'f> {
    compute: Compute<'f>,
    pub(super) optimizer: Arc<dyn Optimizer + 'f>,
    pub(super) options: StepOptions<'f>,
    /// The maximum number of recordings.
    pub(super) limit: usize,
    gradients: GradientBuffers,
    listener: Option<(Vec<Parameter>, GradientListener<'f>)>,
    /// The step, once it is needed; without the update if gradients accumulate.
    pub(super) pass: Option<Launcher<'f>>,
    /// The separate update of a step that accumulates gradients. It has no inputs, so it has one recording.
    update: Option<Launcher<'f>>,
    /// The number of launches.
    passes: u64,
    /// The random numbers of the thread that recorded the step first.
    random: Option<ThreadStream>,
}

impl<'f> StepCore<'f> {
    pub(super) fn new(optimizer: Arc<dyn Optimizer + 'f>, compute: Compute<'f>) -> StepCore<'f> {
        StepCore {
            compute,
            optimizer,
            options: StepOptions::default(),
            limit: CaptureOptions::default().recordings,
            gradients: GradientBuffers { buffers: Vec::new(), binds: true },
            listener: None,
            pass: None,
            update: None,
            passes: 0,
            random: None,
        }
    }

    /// Returns this step without gradient buffers: a parameter without gradient now has none between launches.
    pub(super) fn with_present_gradients(mut self) -> Self {
        self.gradients =
            GradientBuffers { buffers: self.optimizer.parameters().iter().map(|p| p.grad()).collect(), binds: false };
        self
    }

    /// Returns this step with a function that is called with the gradient of each parameter of the optimizer and of
    /// `others`.
    pub(super) fn with_listener(mut self, others: Vec<Parameter>, listener: GradientListener<'f>) -> Self {
        self.listener = Some((others, listener));
        self
    }

    pub(super) fn set_limit(&mut self, limit: usize) -> Result<()> {
        if limit == 0 {
            return Err(Error::invalid("recordings", "a step keeps at least 1 recording"));
        }
        self.limit = limit;
        self.drop_recordings();
        Ok(())
    }

    /// Drops all recordings. The next launch records with the present options.
    pub(super) fn drop_recordings(&mut self) {
        (self.pass, self.update) = (None, None);
    }

    pub(super) fn cache(&self) -> CacheStats {
        let stats = |launcher: &Option<Launcher<'f>>| launcher.as_ref().map(Launcher::cache).unwrap_or_default();
        let (pass, update) = (stats(&self.pass), stats(&self.update));
        CacheStats { misses: pass.misses + update.misses, held: pass.held + update.held, ..pass }
    }

    /// Returns the random numbers of the thread that recorded the step first.
    pub(super) fn random(&mut self) -> ThreadStream {
        self.random.get_or_insert_with(ThreadStream::current).clone()
    }

    /// Records the step for inputs of these shapes and dtypes, unless it is recorded. Returns true if it recorded.
    pub(super) fn prepare(&mut self, inputs: &[Tensor]) -> Result<bool> {
        self.with_gradients(|step| {
            let is_new = step.launcher()?.prepare(inputs)?;
            step.update.as_mut().map_or(Ok(false), |update| update.prepare(&[]))?;
            Ok(is_new)
        })
    }

    /// Returns the shape of output 1 of a launch with these inputs; `None` if the launch would record. Removed
    /// gradients are restored.
    pub(super) fn logits_shape(&mut self, inputs: &[Tensor]) -> Result<Option<Shape>> {
        let _on = enable_grad();
        self.gradients.restore(self.optimizer.parameters(), self.options.accumulate > 1)?;
        Ok(self.pass.as_ref().and_then(|pass| pass.output_shape(inputs, 1)))
    }

    /// Executes the step, and returns the loss before the update and the other results.
    pub(super) fn launch(&mut self, inputs: &[Tensor]) -> Result<&[Tensor]> {
        self.with_gradients(|step| {
            step.launcher()?.launch(inputs)?;
            step.passes += 1;
            match &mut step.update {
                Some(update) if step.passes.is_multiple_of(step.options.accumulate) => update.launch(&[]).map(drop),
                _ => Ok(()),
            }
        })?;
        Ok(self.pass.as_ref().map_or(&[], Launcher::outputs))
    }

    /// Calls `f` with gradient buffers. If it fails and records nothing, new buffers are removed again.
    fn with_gradients<R>(&mut self, f: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        let random = self.random();
        let _random = random.enter();
        let _on = enable_grad();
        let replaced = self.gradients.bind(self.optimizer.parameters(), self.options.accumulate > 1)?;
        let recorded = self.cache().held;
        let result = f(self);
        if result.is_err() && self.cache().held <= recorded {
            self.gradients.undo(self.optimizer.parameters(), replaced);
        }
        result
    }

    /// Returns the launcher of the step, which is created if it is missing.
    fn launcher(&mut self) -> Result<&mut Launcher<'f>> {
        if self.pass.is_none() {
            self.create_launchers()?;
        }
        Ok(self.pass.as_mut().expect("create_launchers() must have set the launcher"))
    }

    fn create_launchers(&mut self) -> Result<()> {
        let StepOptions { stream, accumulate, scaler, before_update, .. } = self.options.clone();
        let has_gradient = |p: &Parameter| !p.requires_grad() || p.grad().is_some();
        if accumulate == 0 || accumulate > 1 && !self.optimizer.parameters().iter().all(has_gradient) {
            let help = "accumulate must be at least 1; above 1 needs gradients in the plan's buffers: call \
                        try_rebind_grads()";
            return Err(Error::invalid(RECORD_STEP, help));
        }
        let update = StepUpdate { optimizer: self.optimizer.clone(), scaler, before_update, accumulate };
        let (compute, update, listener) = (self.compute.clone(), Arc::new(update), self.listener.clone());
        let accumulated = update.clone();
        let pass: StepFn<'f> = Box::new(move |inputs| {
            let results = compute(inputs)?;
            let replaced = update.collect(&results, listener.as_ref())?;
            if accumulate == 1 {
                let _off = no_grad();
                let updated = update.run();
                restore(replaced)?;
                updated?;
            }
            Ok(results.iter().map(Tensor::detach).collect())
        });
        let options = CaptureOptions { recordings: self.limit, ..CaptureOptions::default() };
        self.pass = Some(Launcher::new(stream.as_ref(), options, pass));
        if accumulate > 1 {
            let update: StepFn<'f> = Box::new(move |_| {
                let _off = no_grad();
                accumulated.run()?;
                accumulated.zero()?;
                Ok(Vec::new())
            });
            self.update = Some(Launcher::new(stream.as_ref(), CaptureOptions::default(), update));
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

/// The gradients of the parameters of an optimizer between launches.
struct GradientBuffers {
    /// The buffer of each parameter, once it is known.
    buffers: Vec<Option<Tensor>>,
    /// Whether parameters without a buffer get one.
    binds: bool,
}

/// Parameters whose gradients were replaced, with their gradients before.
type ReplacedGradients = Vec<(Parameter, Option<Tensor>)>;

impl GradientBuffers {
    /// Sets the buffers as gradients where these were removed, for example by `zero_grad`. With `zeroed`, the restored
    /// buffers are set to zero, for accumulation. Parameters that require a gradient and have no buffer get one. A
    /// gradient that was bound to another tensor stays.
    fn bind(&mut self, parameters: &[Parameter], zeroed: bool) -> Result<ReplacedGradients> {
        self.restore(parameters, zeroed)?;
        self.buffers.resize(parameters.len(), None);
        let mut replaced = ReplacedGradients::new();
        let trained = parameters.iter().zip(&mut self.buffers).filter(|(p, _)| self.binds && p.requires_grad());
        for (parameter, buffer) in trained.filter(|(p, buffer)| !has_buffer(p, buffer.as_ref())) {
            let zeros = ops::zeros(parameter.shape(), parameter.dtype())?.try_to(parameter.device())?;
            replaced.push((parameter.clone(), parameter.grad()));
            parameter.set_grad(Some(zeros.clone()));
            *buffer = Some(zeros);
        }
        Ok(replaced)
    }

    /// Sets the buffers as gradients where these were removed.
    fn restore(&self, parameters: &[Parameter], zeroed: bool) -> Result<()> {
        let trained = parameters.iter().zip(&self.buffers).filter(|(p, _)| p.requires_grad());
        for (parameter, buffer) in trained.filter(|(p, buffer)| has_buffer(p, buffer.as_ref()) && p.grad().is_none()) {
            if zeroed {
                buffer.iter().try_for_each(zero)?;
            }
            parameter.set_grad(buffer.clone());
        }
        Ok(())
    }

    /// Restores gradients that [`bind`](GradientBuffers::bind) replaced, and forgets their buffers.
    fn undo(&mut self, parameters: &[Parameter], replaced: ReplacedGradients) {
        for (parameter, gradient) in replaced {
            let known = parameters.iter().zip(&mut self.buffers).filter(|(p, _)| p.id() == parameter.id());
            known.for_each(|(_, buffer)| *buffer = None);
            parameter.set_grad(gradient);
        }
    }
}

/// Whether a parameter has a buffer of its device and dtype.
fn has_buffer(parameter: &Parameter, buffer: Option<&Tensor>) -> bool {
    buffer.is_some_and(|buf| buf.device() == parameter.device() && buf.dtype() == parameter.dtype())
}

/// The backward pass and the update of a step. The gradients of parameters that have one before a step are buffers.
struct StepUpdate<'f> {
    optimizer: Arc<dyn Optimizer + 'f>,
    scaler: Option<Arc<GradScaler>>,
    before_update: Option<BeforeUpdate<'f>>,
    accumulate: u64,
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
        let (trained, frozen): (Vec<&Parameter>, Vec<&Parameter>) = own.iter().partition(|p| p.requires_grad());
        let others = listener.iter().flat_map(|(others, _)| others).filter(|p| p.requires_grad());
        let parameters: Vec<&Parameter> = trained.iter().copied().chain(others).collect();
        let gradients = self.gradients(results, &parameters)?;
        if gradients[..trained.len()].iter().all(Option::is_none) {
            let help = "the loss depends on no trainable parameter of the optimizer, so nothing would be trained; make \
                        the optimizer with the parameters() of this model, and unfreeze() some of them";
            return Err(Error::invalid(RECORD_STEP, help));
        }
        if let Some((_, listener)) = listener {
            let mut found = parameters.iter().zip(&gradients).filter_map(|(p, gradient)| Some((p, gradient.as_ref()?)));
            found.try_for_each(|(parameter, gradient)| listener(parameter, gradient))?;
        }
        let _off = no_grad();
        let mut replaced = ReplacedGradients::new();
        let mut replace = |parameter: &Parameter, gradient: Option<Tensor>| {
            replaced.push((parameter.clone(), parameter.grad()));
            parameter.set_grad(gradient);
        };
        for (parameter, gradient) in trained.into_iter().zip(gradients) {
            match (parameter.grad(), gradient) {
                (Some(buf), Some(gradient)) if self.accumulate > 1 => ops::copy_(&buf, &ops::add(&buf, &gradient)?)?,
                (Some(buf), Some(gradient)) => ops::copy_(&buf, &gradient)?,
                // The optimizer skips a parameter without gradient.
                (Some(_), None) if self.accumulate == 1 => replace(parameter, None),
                (None, Some(gradient)) => replace(parameter, Some(gradient)),
                (_, None) => {}
            }
        }
        if self.accumulate == 1 {
            frozen.into_iter().filter(|p| p.grad().is_some()).for_each(|p| replace(p, None));
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
        let unscaled = self.scaler.as_ref().map(|scaler| scaler.unscale(&*self.optimizer)).transpose()?;
        if let Some(before_update) = &self.before_update {
            before_update(self.optimizer.parameters())?;
        }
        match unscaled.zip(self.scaler.as_ref()) {
            Some((unscaled, scaler)) => unscaled.step(&*self.optimizer).and_then(|()| scaler.update()),
            None => self.optimizer.try_step(),
        }
    }

    /// Zeroes all gradients.
    fn zero(&self) -> Result<()> {
        self.optimizer.parameters().iter().try_for_each(|p| p.grad().iter().try_for_each(zero))
    }
}

/// Restores gradients after the update. A buffer without gradient contains zeros.
fn restore(replaced: ReplacedGradients) -> Result<()> {
    for (parameter, buffer) in replaced {
        buffer.iter().try_for_each(zero)?;
        parameter.set_grad(buffer);
    }
    Ok(())
}

fn zero(buf: &Tensor) -> Result<()> {
    ops::copy_(buf, &ops::zeros_like(buf)?)
}
