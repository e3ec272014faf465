//! The core of a training step: the closure of forward pass, backward pass and update.

use super::check::{StepCheck, check_step};
use super::gradients::{GradientBuffers, Reached, ReachedParameters, ReplacedGradients, hide_skipped, zero};
use super::launcher::{Launcher, StepFn};
use super::options::{BeforeUpdate, StepOptions};
use crate::optim::{GradScaler, Optimizer};
use pellucid_tensor::{
    CacheStats, CaptureOptions, Error, GradOptions, Result, Shape, Tensor, ThreadStream, enable_grad, grad_if_reached,
    lock, no_grad, ops,
};
use std::sync::{Arc, Mutex};

/// The computation of a step: the loss, followed by other results.
pub(super) type StepComputation<'f> = Arc<dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'f>;

/// The name of a training step in errors.
pub(super) const STEP: &str = "step";

/// A training step of a computation and an optimizer, for inputs on its device. It has no type parameters, so it is
/// compiled once, in this crate.
pub(super) struct StepCore<'f> {
    pub(super) compute: StepComputation<'f>,
    pub(super) optimizer: Arc<dyn Optimizer + 'f>,
    pub(super) options: StepOptions<'f>,
    gradients: GradientBuffers,
    reached: ReachedParameters,
    /// The launcher of the step, created on first use. It contains no update if gradients accumulate.
    pub(super) pass: Option<Launcher<'f>>,
    /// The separate update of a step that accumulates gradients. It has no inputs, so it has one recording.
    update: Option<Launcher<'f>>,
    /// The number of launches since the last update, if gradients accumulate.
    pub(super) launches_since_update: usize,
    /// Whether the accumulated gradients are scaled to the mean over these launches. Otherwise each launch has the
    /// weight 1/`accumulate`.
    is_averaged: bool,
    /// The random stream of the thread that first recorded the step.
    random: Option<ThreadStream>,
}

impl<'f> StepCore<'f> {
    pub(super) fn new(optimizer: Arc<dyn Optimizer + 'f>, compute: StepComputation<'f>) -> StepCore<'f> {
        StepCore {
            compute,
            optimizer,
            options: StepOptions::default(),
            gradients: GradientBuffers::default(),
            reached: ReachedParameters::default(),
            pass: None,
            update: None,
            launches_since_update: 0,
            is_averaged: false,
            random: None,
        }
    }

    /// Sets the options, and drops all recordings and accumulated gradients.
    pub(super) fn set_options(&mut self, options: StepOptions<'f>) {
        let unrecorded = StepCore::new(self.optimizer.clone(), self.compute.clone());
        *self = StepCore { options, random: self.random.take(), ..unrecorded };
    }

    fn accumulates(&self) -> bool {
        self.options.accumulate > 1
    }

    pub(super) fn cache_stats(&self) -> CacheStats {
        let stats = |launcher: &Option<Launcher<'f>>| launcher.as_ref().map(Launcher::cache_stats).unwrap_or_default();
        let (pass, update) = (stats(&self.pass), stats(&self.update));
        CacheStats { misses: pass.misses + update.misses, len: pass.len + update.len, ..pass }
    }

    /// Returns the random stream of the thread that first recorded the step.
    pub(super) fn random(&mut self) -> ThreadStream {
        self.random.get_or_insert_with(ThreadStream::current).clone()
    }

    /// Records the step for inputs of these shapes and dtypes, unless such a recording exists.
    pub(super) fn prepare(&mut self, inputs: &[Tensor]) -> Result<()> {
        self.with_gradients(|step| {
            step.launcher()?.prepare(inputs)?;
            step.prepare_update()
        })
    }

    /// Returns true if the step runs eagerly, because of its options or because its device cannot capture.
    pub(super) fn is_eager(&self) -> bool {
        self.options.eager || self.pass.as_ref().is_some_and(|pass| pass.eager_reason().is_some())
    }

    /// Returns the shape of the logits, output 1 of the recording for these inputs; `None` without such a recording.
    pub(super) fn logits_shape(&mut self, inputs: &[Tensor]) -> Result<Option<Shape>> {
        let _on = enable_grad();
        let _bound = self.gradients.bind(&self.optimizer.parameters(), false)?;
        Ok(self.pass.as_ref().and_then(|pass| pass.output_shape(inputs, 1)))
    }

    /// Executes the step, and returns the loss before the update and the other results.
    pub(super) fn launch(&mut self, inputs: &[Tensor]) -> Result<&[Tensor]> {
        self.with_gradients(|step| step.launch_pass(inputs))?;
        Ok(self.pass.as_ref().map_or(&[], Launcher::outputs))
    }

    /// Launches the pass. The last launch of an accumulation updates the parameters; without accumulation, the pass
    /// contains the update.
    fn launch_pass(&mut self, inputs: &[Tensor]) -> Result<()> {
        let accumulates = self.accumulates();
        let is_last = accumulates && self.launches_since_update + 1 >= self.options.accumulate;
        self.set_averaged(false)?;
        if is_last {
            // The pass and the update are recorded before the launch, so that the accumulated gradients are unchanged
            // if recording fails.
            self.launcher()?.prepare(inputs)?;
            self.prepare_update()?;
        }
        let launched = self.launcher()?.launch(inputs).map(drop);
        // A recording is kept even if its first launch fails. Its later launches need the reached parameters, so these
        // are stored before the error is returned.
        let reached = self.reached_now()?;
        launched?;
        self.gradients.mark_filled(&reached, accumulates)?;
        self.launches_since_update += usize::from(accumulates);
        if is_last { self.update_accumulated() } else { Ok(()) }
    }

    /// Updates the parameters with the accumulated gradients, and zeroes these gradients. An update that fails or
    /// panics may have changed some of the gradients, so the next accumulation begins with new buffers.
    fn update_accumulated(&mut self) -> Result<()> {
        let Some(update) = &mut self.update else { return Ok(()) };
        let mut gradients = std::mem::take(&mut self.gradients);
        (self.launches_since_update, self.is_averaged) = (0, false);
        let parameters = self.optimizer.parameters();
        let hidden = hide_skipped(&parameters, |index| gradients.is_filled(index));
        update.launch(&[])?;
        drop(hidden);
        gradients.mark_zero(&parameters)?;
        self.gradients = gradients;
        Ok(())
    }

    /// Scales the accumulated gradients, to which each launch since the last update has added its gradient with the
    /// weight 1/`accumulate`, to the mean over these launches. If `is_averaged` is false, it undoes this scaling.
    fn set_averaged(&mut self, is_averaged: bool) -> Result<()> {
        if self.is_averaged != is_averaged {
            let factor = self.options.accumulate as f64 / self.launches_since_update as f64;
            self.gradients.scale(if is_averaged { factor } else { factor.recip() })?;
            self.is_averaged = is_averaged;
        }
        Ok(())
    }

    /// Updates the parameters with the mean of the gradients of fewer launches than `accumulate`, if there are any.
    /// Returns true if it updated them.
    pub(super) fn update_early(&mut self) -> Result<bool> {
        if !self.accumulates() || self.launches_since_update == 0 {
            return Ok(false);
        }
        self.with_gradients(|step| {
            let parameters = step.optimizer.parameters();
            let mut trained = parameters.iter().enumerate().filter(|(_, parameter)| parameter.requires_grad());
            let has_gradients = trained.any(|(index, _)| step.gradients.is_filled(index));
            if has_gradients {
                step.set_averaged(true)?;
                step.update_accumulated()?;
            } else {
                // The gradients were removed, for example by zero_grad(), or their parameters were frozen.
                step.gradients.mark_zero(&parameters)?;
                (step.launches_since_update, step.is_averaged) = (0, false);
            }
            Ok(has_gradients)
        })
    }

    /// Returns which parameters of the optimizer the latest pass reaches.
    fn reached_now(&mut self) -> Result<Reached> {
        self.pass.as_ref().map_or_else(|| Ok(Reached::default()), |pass| self.reached.of_latest(pass))
    }

    /// Records the separate update, if there is one, for the gradients of the launches so far and of the pass that was
    /// prepared last. Other parameters are hidden, so that the optimizer skips them.
    fn prepare_update(&mut self) -> Result<()> {
        let reached = self.reached_now()?;
        let Some(update) = &mut self.update else { return Ok(()) };
        let has_gradient = |index: usize| self.gradients.is_filled(index) || reached.get(index) == Some(&true);
        let _hidden = hide_skipped(&self.optimizer.parameters(), has_gradient);
        update.prepare(&[]).map(drop)
    }

    /// Sets the buffers of the step as the gradients of the parameters, and calls `f`. If `f` fails or panics, the
    /// previous gradients are restored.
    fn with_gradients<R>(&mut self, f: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        let random = self.random();
        let _random = random.enter();
        let _on = enable_grad();
        let accumulates = self.accumulates();
        let replaced = self.gradients.bind(&self.optimizer.parameters(), accumulates)?;
        let result = f(self)?;
        replaced.keep();
        Ok(result)
    }

    /// Returns the launcher of the step, which is created if it is missing.
    fn launcher(&mut self) -> Result<&mut Launcher<'f>> {
        if self.pass.is_none() {
            self.create_launchers()?;
        }
        Ok(self.pass.as_mut().expect("create_launchers() must have set the launcher"))
    }

    fn create_launchers(&mut self) -> Result<()> {
        self.options.check(STEP)?;
        let StepOptions { eager, accumulate, scaler, before_update, .. } = self.options.clone();
        let (optimizer, reached) = (self.optimizer.clone(), self.reached.recorded.clone());
        let update = Arc::new(StepUpdate { optimizer, scaler, before_update, accumulate, reached });
        let (compute, accumulated) = (self.compute.clone(), update.clone());
        let pass: StepFn<'f> = Box::new(move |inputs| {
            let results = compute(inputs)?;
            let mut replaced = ReplacedGradients::default();
            let reached = update.collect(&results, &mut replaced)?;
            if accumulate > 1 {
                replaced.keep();
            } else {
                let _off = no_grad();
                let _hidden = hide_skipped(&update.optimizer.parameters(), |index| reached[index]);
                update.run()?;
            }
            Ok(results.iter().map(Tensor::detach).collect())
        });
        self.pass = Some(Launcher::new(eager, self.options.capture_options(), pass));
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
        let parameters = self.optimizer.parameters();
        let scaler = self.options.scaler.iter().flat_map(|scaler| scaler.values());
        written.extend(self.optimizer.state().into_iter().chain(scaler).map(|(_, tensor)| tensor));
        written.extend(parameters.iter().map(|p| p.tensor().clone()));
        let random = self.random();
        let _random = random.enter();
        check_step(written, &parameters, &mut || self.launch(inputs)?[0].try_item::<f64>())
    }
}

/// The backward pass and the update of a step.
struct StepUpdate<'f> {
    optimizer: Arc<dyn Optimizer + 'f>,
    scaler: Option<Arc<GradScaler>>,
    before_update: Option<BeforeUpdate<'f>>,
    accumulate: usize,
    /// The parameters that the last pass has reached.
    reached: Arc<Mutex<Reached>>,
}

impl<'f> StepUpdate<'f> {
    /// Writes or adds the gradients of the loss, the first of the results, to the buffers. If a buffer is missing, the
    /// gradient itself becomes the gradient of the parameter, and `replaced` records this. Returns which parameters the
    /// loss reaches.
    fn collect(&self, results: &[Tensor], replaced: &mut ReplacedGradients) -> Result<Reached> {
        let parameters = self.optimizer.parameters();
        let trained: Vec<_> = parameters.iter().enumerate().filter(|(_, p)| p.requires_grad()).collect();
        let gradients = self.gradients(results, &trained.iter().map(|(_, p)| p.tensor()).collect::<Vec<_>>())?;
        let _off = no_grad();
        // The results follow the order of all parameters, including frozen ones: a recording stays valid if a parameter
        // on which it does not depend is frozen.
        let mut reached = vec![false; parameters.len()];
        for ((index, parameter), gradient) in trained.into_iter().zip(gradients) {
            let Some(gradient) = gradient else { continue };
            reached[index] = true;
            match parameter.grad() {
                Some(buffer) if self.accumulate > 1 => ops::copy_(&buffer, &ops::add(&buffer, &gradient)?)?,
                Some(buffer) => ops::copy_(&buffer, &gradient)?,
                // The computation or another thread has removed the buffer, for example by zero_grad().
                None => replaced.replace(parameter, Some(gradient)),
            }
        }
        if !reached.contains(&true) {
            let help = "the loss depends on no trainable parameter of the optimizer, so nothing would be trained; \
                        create the optimizer with the parameters() of this model, and unfreeze() some of them";
            return Err(Error::invalid(STEP, help));
        }
        let reached = Reached::from(reached);
        *lock(&self.reached) = reached.clone();
        Ok(reached)
    }

    /// Returns the gradient of each parameter on which the loss depends.
    fn gradients(&self, results: &[Tensor], parameters: &[&Tensor]) -> Result<Vec<Option<Tensor>>> {
        let loss =
            results.first().ok_or_else(|| Error::invalid(STEP, "the step must return its loss as the first result"))?;
        if loss.rank() > 0 {
            let help = "the loss of a training step must be a scalar; reduce the loss to its mean or sum";
            return Err(Error::shapes(STEP, [loss.shape()], help));
        }
        let loss = match &self.scaler {
            Some(scaler) => scaler.try_scale(loss)?,
            None => loss.clone(),
        };
        let grad_outputs = match self.accumulate {
            1 => Vec::new(),
            k => vec![Some(ops::full(loss.shape(), 1.0 / k as f64, loss.dtype())?)],
        };
        grad_if_reached(&[&loss], parameters, GradOptions { grad_outputs, allow_unused: true, ..Default::default() })
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
