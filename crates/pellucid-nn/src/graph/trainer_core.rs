//! The steps and evaluations of a trainer, whose model, loss and optimizer are type-erased.

use super::batch::{BatchTensors, ModelOfInputs, as_step_input};
use super::check::StepCheck;
use super::coverage::{FrozenParameters, fill_optimizer};
use super::launcher::Launcher;
use super::options::StepOptions;
use super::state::ModelState;
use super::step::{STEP, StepComputation, StepCore};
use crate::call::{module_device, trace_output};
use crate::loss::Loss;
use crate::module::{DynModule, as_dyn};
use crate::optim::Optimizer;
use crate::parameter::with_evaluation_mode;
use pellucid_tensor::{
    CacheStats, Captured, DType, Error, Result, Shape, Tensor, enable_grad, eval, no_grad, placeholder,
};
use std::sync::Arc;

/// The steps of a trainer. It has no type parameters, so it is compiled once, in this crate.
pub(super) struct TrainerCore<'f> {
    model: Arc<dyn ModelOfInputs + 'f>,
    loss: Arc<dyn Loss + 'f>,
    step: StepCore<'f>,
    evaluation: Launcher<'f>,
    /// The tensors of the model, once a batch was accepted.
    state: Option<ModelState<'f>>,
    /// The parameters that must stay frozen, once a step has accepted a batch.
    frozen: Option<FrozenParameters>,
    /// The names of the inputs of the model, once a batch was accepted.
    names: Vec<String>,
    /// The inputs of the model and the targets of the current launch, on the device of the model.
    inputs: Vec<Tensor>,
    /// Loss and logits of the last step.
    results: Option<(Tensor, Tensor)>,
}

impl<'f> TrainerCore<'f> {
    pub(super) fn new(
        model: Arc<dyn ModelOfInputs + 'f>,
        loss: Arc<dyn Loss + 'f>,
        optimizer: Arc<dyn Optimizer + 'f>,
    ) -> TrainerCore<'f> {
        let step = StepCore::new(optimizer, loss_and_logits(model.clone(), loss.clone()));
        let evaluation = evaluation_of(&step);
        TrainerCore {
            model,
            loss,
            step,
            evaluation,
            state: None,
            frozen: None,
            names: Vec::new(),
            inputs: Vec::new(),
            results: None,
        }
    }

    /// Sets the options, and drops all recordings.
    pub(super) fn set_options(&mut self, options: StepOptions<'f>) {
        self.step.set_options(options);
        self.frozen = None;
        self.evaluation = evaluation_of(&self.step);
    }

    /// Adds the parameters of model and loss to an optimizer without parameters.
    pub(super) fn fill_optimizer(&self) -> Result<bool> {
        let model: &dyn DynModule = &*self.model;
        model.built_parameters()?;
        fill_optimizer(model, &*self.loss, &*self.step.optimizer)
    }

    pub(super) fn cache_stats(&self) -> CacheStats {
        let (step, evaluation) = (self.step.cache_stats(), self.evaluation.cache_stats());
        CacheStats {
            hits: step.hits + evaluation.hits,
            misses: step.misses + evaluation.misses,
            len: step.len + evaluation.len,
        }
    }

    pub(super) fn captured(&self) -> Option<&Captured<'f>> {
        self.step.pass.as_ref()?.captured()
    }

    /// Returns loss and logits of the last step.
    pub(super) fn results(&self, op: &'static str) -> Result<&(Tensor, Tensor)> {
        self.results.as_ref().ok_or_else(|| Error::invalid(op, "no step has run; call step() first"))
    }

    /// Returns true once a batch was accepted. Its inputs define the input names.
    pub(super) fn knows_inputs(&self) -> bool {
        !self.names.is_empty()
    }

    /// Records a step for a batch of these shapes and dtypes.
    pub(super) fn prepare(&mut self, x: &dyn BatchTensors) -> Result<()> {
        self.set_inputs(x, None)?;
        let targets = self.check_new_batch(None)?;
        self.inputs.extend(targets);
        self.recording(x, |core| core.step.prepare(&core.inputs))
    }

    /// Launches the step for a batch.
    pub(super) fn step(&mut self, x: &dyn BatchTensors, y: &Tensor) -> Result<()> {
        let launched = self.with_batch(x, y, |core| {
            let outputs = core.step.launch(&core.inputs)?;
            core.results = Some((outputs[0].clone(), outputs[1].clone()));
            Ok(())
        });
        launched.inspect_err(|error| tracing::info!(%error, "rejected a step"))
    }

    /// Checks the step for a batch.
    pub(super) fn check_step(&mut self, x: &dyn BatchTensors, y: &Tensor) -> Result<StepCheck> {
        self.with_batch(x, y, |core| {
            let buffers = ModelState::new(core.model.clone());
            let of_loss = as_dyn(&&*core.loss).unnamed_buffers();
            let of_loss = of_loss.iter().map(|buffer| buffer.tensor());
            let results = core.results.iter().flat_map(|(loss, logits)| [loss, logits]);
            let written = buffers.tensors().iter().chain(of_loss).chain(results).cloned().collect();
            core.step.check(&core.inputs, written)
        })
    }

    /// Checks the inputs of a step, and calls `launch` with them. If the launch would record, or is the first eager
    /// launch, the optimizer is filled and checked as well.
    fn with_batch<R>(
        &mut self,
        x: &dyn BatchTensors,
        y: &Tensor,
        launch: impl FnOnce(&mut Self) -> Result<R>,
    ) -> Result<R> {
        self.set_inputs(x, Some(y))?;
        self.check_state()?;
        let logits = self.step.logits_shape(&self.inputs)?;
        match &self.frozen {
            Some(frozen) if logits.is_some() || self.step.is_eager() => {
                frozen.check()?;
                logits.map_or(Ok(()), |logits| self.check_targets(&logits, y))?;
                launch(self)
            }
            _ => {
                self.check_new_batch(Some(y))?;
                self.recording(x, launch)
            }
        }
    }

    /// Updates the parameters with the gradients of fewer launches than `accumulate`.
    pub(super) fn update_early(&mut self) -> Result<bool> {
        self.check_state()?;
        self.step.update_early()
    }

    /// Returns the number of steps since the last update whose gradients are accumulated.
    pub(super) fn steps_since_update(&self) -> usize {
        self.step.launches_since_update
    }

    /// Returns loss and logits of a batch in evaluation mode.
    pub(super) fn evaluate(&mut self, x: &dyn BatchTensors, y: &Tensor) -> Result<&[Tensor]> {
        self.set_inputs(x, Some(y))?;
        self.check_state()?;
        match self.evaluation.output_shape(&self.inputs, 1) {
            Some(logits) => self.check_targets(&logits, y)?,
            None => with_evaluation_mode(|| self.check_new_batch(Some(y))).map(drop)?,
        }
        self.evaluate_again()?;
        self.accept(x);
        Ok(self.evaluation.outputs())
    }

    /// Evaluates the current inputs in evaluation mode, and returns loss and logits.
    pub(super) fn evaluate_again(&mut self) -> Result<&[Tensor]> {
        let random = self.step.random();
        let _random = random.enter();
        let _off = no_grad();
        let before = self.evaluation.cache_stats();
        self.evaluation.launch(&self.inputs)?;
        log_recording(before, self.evaluation.cache_stats(), &self.inputs, self.step.options.max_recordings);
        Ok(self.evaluation.outputs())
    }

    /// Places the inputs and the targets of a launch on the device of the model.
    fn set_inputs(&mut self, x: &dyn BatchTensors, y: Option<&Tensor>) -> Result<()> {
        let model: &dyn DynModule = &*self.model;
        let device = self.state.as_ref().map_or_else(|| module_device(model), ModelState::device);
        let TrainerCore { names, inputs, .. } = self;
        inputs.clear();
        x.try_each_tensor(STEP, names, &mut |_, _, x| {
            if x.shape().first() == Some(&0) {
                return Err(Error::invalid(STEP, "the batch has no samples; skip it"));
            }
            as_step_input(STEP, device, x).map(|x| inputs.push(x))
        })?;
        if let Some(y) = y {
            inputs.push(as_step_input(STEP, device, y)?);
        }
        Ok(())
    }

    /// Traces the model for the current inputs without using their values. This builds lazy layers, and an error names
    /// the layer that rejects its input. Returns a placeholder of the targets; `y` are the targets, if they are known.
    ///
    /// If the step runs eagerly, the model is traced only while it has lazy layers, because an eager step may read
    /// values and its operations check the inputs. The method then returns `None`.
    fn check_new_batch(&self, y: Option<&Tensor>) -> Result<Option<Tensor>> {
        self.step.options.check(STEP)?;
        let (model, is_eager): (&dyn DynModule, _) = (&*self.model, self.step.is_eager());
        match is_eager {
            true if model.built_parameters().is_ok() => return Ok(None),
            true => {}
            false => {
                model.supports_capture()?;
                as_dyn(&&*self.loss).supports_capture().map_err(of_loss)?;
            }
        }
        let like = |x: &Tensor| placeholder(x.device(), x.shape(), x.dtype());
        let inputs = &self.inputs[..self.inputs.len() - usize::from(y.is_some())];
        let inputs = inputs.iter().map(like).collect::<Result<Vec<_>>>()?;
        let logits = trace_output(model, &mut || {
            let _on = enable_grad();
            self.model.output(&inputs)
        });
        match is_eager {
            // If all layers are built, an error of the trace is ignored: the eager step returns it too, unless the
            // trace failed only because it cannot read values, which an eager step can.
            true if model.built_parameters().is_ok() => Ok(None),
            true => logits.map(|_| None),
            false => self.targets(&logits?, inputs.first().map(Tensor::dtype), y).map(Some),
        }
    }

    /// Returns an error for targets of the right shape and dtype with a value that the loss rejects.
    fn check_targets(&self, logits: &Shape, y: &Tensor) -> Result<()> {
        // Computing the targets now costs nothing, because the launch needs them in any case.
        if y.device().is_cpu() && !y.is_readable() {
            eval([y])?;
        }
        self.loss.check_targets(logits, y).map_err(of_loss)
    }

    /// Returns targets without values for these logits, and checks the targets `y`, if they are known.
    fn targets(&self, logits: &Tensor, input_dtype: Option<DType>, y: Option<&Tensor>) -> Result<Tensor> {
        let are_probabilities =
            |y: &Tensor| self.loss.accepts_probabilities() && y.dtype().is_float() && y.shape() == logits.shape();
        let expected = match (self.loss.expected_targets(logits.shape(), logits.dtype())?, y) {
            (_, Some(y)) if are_probabilities(y) => (y.shape().clone(), y.dtype()),
            (Some(expected), _) => expected,
            (None, Some(y)) => (y.shape().clone(), y.dtype()),
            (None, None) => {
                let help = "the targets of this loss are unknown; use loss.with_targets(shape, dtype), or let the \
                            first step() record";
                return Err(Error::invalid("prepare", help));
            }
        };
        if let Some(y) = y {
            check_target_shape(STEP, y, &expected, logits.shape()).map_err(of_loss)?;
            self.check_targets(logits.shape(), y)?;
        }
        let (shape, dtype) = expected;
        // Under autocast, targets usually have the dtype of the input, not of the logits.
        let assumed = input_dtype.filter(|x| x.is_float() && dtype == logits.dtype());
        placeholder(logits.device(), shape, y.map(Tensor::dtype).or(assumed).unwrap_or(dtype))
    }

    /// Adds parameters to an empty optimizer, checks it, and calls `record`, which records the step. If this fails
    /// before a step is recorded, the added parameters are removed.
    fn recording<R>(&mut self, x: &dyn BatchTensors, record: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        let optimizer = self.step.optimizer.clone();
        let is_filled = fill_optimizer(&*self.model, &*self.loss, &*optimizer)?;
        let (before, is_allowed) = (self.step.cache_stats(), self.step.options.allow_untrained_parameters);
        let frozen = FrozenParameters::checked(STEP, &*self.model, &*self.loss, &*optimizer, is_allowed);
        let result = frozen.and_then(|frozen| record(self).inspect(|_| self.frozen = Some(frozen)));
        if result.is_ok() || self.step.cache_stats().len > before.len {
            self.accept(x);
            log_recording(before, self.step.cache_stats(), &self.inputs, self.step.options.max_recordings);
        } else if is_filled && let Some(deferred) = optimizer.deferred_parameters() {
            deferred.remove_added();
        }
        result
    }

    /// Stores the names of the inputs and the tensors of the model.
    fn accept(&mut self, x: &dyn BatchTensors) {
        if self.names.is_empty() {
            x.each_tensor(&mut |name, _| self.names.push(name.to_string()));
        }
        if self.state.is_none() {
            self.state = Some(ModelState::new(self.model.clone()));
        }
    }

    /// Returns an error if a tensor of the model was replaced.
    fn check_state(&self) -> Result<()> {
        self.state.as_ref().map_or(Ok(()), ModelState::check)
    }
}

/// Returns the computation of loss and logits from the inputs of a model and targets.
fn loss_and_logits<'f>(model: Arc<dyn ModelOfInputs + 'f>, loss: Arc<dyn Loss + 'f>) -> StepComputation<'f> {
    Arc::new(move |inputs| {
        let (y, x) = inputs.split_last().ok_or_else(|| Error::invalid(STEP, "the batch has no targets"))?;
        let logits = model.output(x)?;
        Ok(vec![loss.try_forward(&logits, y)?, logits])
    })
}

/// Returns the computation of a step in evaluation mode, without gradients.
fn evaluation_of<'f>(step: &StepCore<'f>) -> Launcher<'f> {
    let compute = step.compute.clone();
    let evaluate = move |inputs: &[Tensor]| {
        let _off = no_grad();
        with_evaluation_mode(|| compute(inputs))
    };
    Launcher::new(step.options.eager, step.options.capture_options(), Box::new(evaluate))
}

/// Returns an error unless the targets have the expected shape and kind of dtype (integer, float or boolean).
pub(super) fn check_target_shape(
    op: &'static str,
    y: &Tensor,
    (shape, dtype): &(Shape, DType),
    logits: &Shape,
) -> Result<()> {
    if dtype.is_int() && y.dtype().is_float() && y.shape() == logits {
        let help = format!("the step expects class indices of shape {shape}; argmax() returns them for scores");
        return Err(Error::shapes(op, [y.shape(), shape], help));
    }
    if y.shape() != shape {
        let help =
            format!("the step expects targets of shape {shape}, got {}; reshape() or index the targets", y.shape());
        return Err(Error::shapes(op, [y.shape(), shape], help));
    }
    if y.dtype().is_int() != dtype.is_int() || y.dtype().is_float() != dtype.is_float() {
        let help = format!("the step expects targets of dtype {dtype}; use to_dtype()");
        return Err(Error::dtypes(op, [y.dtype(), *dtype], help));
    }
    Ok(())
}

/// Wraps the error of a loss, so that it names the part `loss`.
pub(super) fn of_loss(source: Error) -> Error {
    Error::Layer { layer: "loss".into(), source: Box::new(source) }
}

/// Compares the statistics before and after a launch, and logs a new recording and the recordings that were dropped for
/// it.
fn log_recording(before: CacheStats, after: CacheStats, inputs: &[Tensor], limit: usize) {
    if after.misses + after.len as u64 <= before.misses + before.len as u64 {
        return;
    }
    let shape = inputs.first().map(|x| tracing::field::display(x.shape()));
    tracing::info!(shape, steps = after.len, "recorded a step");
    let dropped = (before.len + 1).saturating_sub(after.len);
    if dropped > 0 {
        tracing::debug!(dropped, limit, "dropped the least recently used steps");
    }
}
