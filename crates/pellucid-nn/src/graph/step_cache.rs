//! The recorded steps of a trainer, one for each shape of the batch and each path of the model.

use super::batch::{BatchTensors, BoundModel, StepLoss};
use super::check::StepCheck;
use super::paths::{ModelPath, current_path, is_on_path};
use super::plan::DEFAULT_MAX_SCRATCH;
use super::record::{RecordedStep, StepOptions, record_evaluation};
use super::training_step::{SET_BATCH, TrainingSetup, TrainingStep};
use crate::module::ModuleParts;
use crate::optim::Optimizer;
use crate::parameter::Parameter;
use pellucid_tensor::{CacheStats, DType, Error, Result, Tensor, ThreadStream, autocast_dtype};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The recorded steps of a trainer. It has no type parameters, so it is compiled once, in this crate.
pub(super) struct StepCache<'f> {
    model: Arc<dyn ModuleParts + Send + Sync + 'f>,
    loss: Arc<dyn StepLoss + 'f>,
    optimizer: Arc<dyn Optimizer + 'f>,
    pub(super) max_scratch: usize,
    pub(super) options: StepOptions<'f>,
    /// The steps, least recently used first.
    kept: Vec<KeptStep<'f>>,
    /// The gradient buffers of all training steps, by the names of the parameters.
    gradients: HashMap<String, Tensor>,
    /// The number of launches of training steps.
    passes: Arc<AtomicU64>,
    /// Logits and loss of the last step.
    results: Option<(Tensor, Tensor)>,
    limit: usize,
    stats: CacheStats,
    /// The random numbers of the thread that recorded the first step.
    random: Option<ThreadStream>,
}

/// A step, and the path that it was recorded for.
struct KeptStep<'f> {
    path: ModelPath,
    recording: KeptRecording<'f>,
    /// The first parameter of the model, whose device tells whether the model was moved.
    parameter: Option<Parameter>,
    /// The parameters that were frozen at recording. The step has no gradients for them.
    frozen: Vec<Parameter>,
    /// The dtype of autocast at recording, which determines the dtype of the logits.
    autocast: Option<DType>,
}

/// The recordings over one set of buffers.
enum KeptRecording<'f> {
    /// A training step, and its evaluation over the same buffers, once recorded.
    Training(TrainingStep<'f>, Option<Box<RecordedStep<'f>>>),
    /// An evaluation for shapes that were not trained.
    Evaluation(TrainingStep<'f>),
}

impl<'f> KeptStep<'f> {
    /// Returns the buffers.
    fn buffers(&self) -> &TrainingStep<'f> {
        match &self.recording {
            KeptRecording::Training(step, _) | KeptRecording::Evaluation(step) => step,
        }
    }

    /// Returns how often the step and its evaluation were recorded, and the number of their kept recordings.
    fn recordings(&self) -> (u64, usize) {
        let (recorded, held) = self.buffers().recorded.recordings();
        match &self.recording {
            KeptRecording::Training(_, Some(evaluation)) => {
                let (of_evaluation, more) = evaluation.recordings();
                (recorded + of_evaluation, held + more)
            }
            _ => (recorded, held),
        }
    }

    fn training(&self) -> Option<&TrainingStep<'f>> {
        match &self.recording {
            KeptRecording::Training(step, _) => Some(step),
            KeptRecording::Evaluation(_) => None,
        }
    }
}

/// Binds the trainer's model to buffers for a batch.
pub(super) type BindModel<'a, 'f> = &'a dyn Fn() -> Result<Arc<dyn BoundModel + 'f>>;

impl<'f> StepCache<'f> {
    pub(super) fn new(
        model: Arc<dyn ModuleParts + Send + Sync + 'f>,
        loss: Arc<dyn StepLoss + 'f>,
        optimizer: Arc<dyn Optimizer + 'f>,
    ) -> Self {
        StepCache {
            model,
            loss,
            optimizer,
            max_scratch: DEFAULT_MAX_SCRATCH,
            options: StepOptions::default(),
            kept: Vec::new(),
            gradients: HashMap::new(),
            passes: Arc::default(),
            results: None,
            limit: 8,
            stats: CacheStats::default(),
            random: None,
        }
    }

    pub(super) fn set_limit(&mut self, limit: usize) -> Result<()> {
        if limit == 0 {
            return Err(Error::invalid("recordings", "a trainer keeps at least 1 recorded step"));
        }
        self.limit = limit;
        Ok(())
    }

    pub(super) fn set_options(&mut self, mut options: StepOptions<'f>) {
        options.before_update = options.before_update.or(self.options.before_update.take());
        options.allow_untrained_parameters |= self.options.allow_untrained_parameters;
        self.options = options;
    }

    pub(super) fn stats(&self) -> CacheStats {
        CacheStats { held: self.kept.iter().map(|kept| kept.recordings().1).sum(), ..self.stats }
    }

    /// Removes the steps that were recorded before the model moved to another device, or before a parameter was
    /// unfrozen.
    fn remove_outdated(&mut self) {
        let moved = |parameter: &Parameter, step: &TrainingStep<'f>| {
            step.inputs.first().is_some_and(|buffer| buffer.device() != parameter.device())
        };
        self.kept.retain(|kept| {
            let is_moved = kept.parameter.as_ref().is_some_and(|parameter| moved(parameter, kept.buffers()));
            !is_moved && kept.frozen.iter().all(|parameter| !parameter.requires_grad())
        });
    }

    /// Returns the training step that was compiled or used last.
    pub(super) fn latest(&self) -> Option<&TrainingStep<'f>> {
        self.kept.iter().rev().find_map(KeptStep::training)
    }

    /// Returns logits and loss of the last step.
    pub(super) fn results(&self, op: &'static str) -> Result<&(Tensor, Tensor)> {
        self.results.as_ref().ok_or_else(|| Error::invalid(op, "no step has run; call step() first"))
    }

    fn setup(&self, model: Arc<dyn BoundModel + 'f>) -> TrainingSetup<'f> {
        TrainingSetup {
            model,
            loss: self.loss.clone(),
            optimizer: self.optimizer.clone(),
            max_scratch: self.max_scratch,
            options: self.options.clone(),
            passes: self.passes.clone(),
        }
    }

    /// Records a step for the buffers of the model, on its present path. `first` is the first batch, if it is known.
    pub(super) fn compile(
        &mut self,
        model: Arc<dyn BoundModel + 'f>,
        first: Option<(&dyn BatchTensors, &Tensor)>,
    ) -> Result<&mut TrainingStep<'f>> {
        self.remove_outdated();
        let _random = self.random.get_or_insert_with(ThreadStream::current).enter();
        let step = TrainingStep::compile(self.setup(model.clone()), &self.gradients, first)?;
        let buffers = step.plan().gradients();
        let pinned = buffers.filter_map(|(name, buf)| Some((name.to_string(), buf.pinned()?.clone())));
        self.gradients.extend(pinned);
        self.keep(model.batch(), KeptRecording::Training(step, None));
        Ok(self.current())
    }

    /// Keeps a recording for this batch, in place of one that was recorded earlier for the same shapes, path and
    /// autocast.
    fn keep(&mut self, batch: &dyn BatchTensors, recording: KeptRecording<'f>) {
        let (path, autocast) = (current_path(&*self.model), autocast_dtype());
        self.kept.retain(|other| other.path != path || other.autocast != autocast || !other.buffers().fits(batch));
        let model: &dyn ModuleParts = &*self.model;
        let parameters: Vec<Parameter> = model.parameters().into_iter().map(|(_, parameter)| parameter).collect();
        let frozen = parameters.iter().filter(|parameter| !parameter.requires_grad()).cloned().collect();
        let parameter = parameters.into_iter().next();
        self.kept.push(KeptStep { path, recording, parameter, frozen, autocast });
        let surplus = self.kept.len().saturating_sub(self.limit);
        self.kept.drain(..surplus);
        let mut shape = None;
        batch.each_tensor(&mut |_, x| shape = shape.take().or_else(|| Some(x.shape().clone())));
        tracing::info!(shape = shape.map(tracing::field::display), steps = self.kept.len(), "recorded a step");
        if surplus > 0 {
            tracing::debug!(dropped = surplus, limit = self.limit, "dropped the steps that were not used for longest");
        }
    }

    /// Returns the step that was compiled or selected last.
    fn current(&mut self) -> &mut TrainingStep<'f> {
        match self.kept.last_mut().map(|kept| &mut kept.recording) {
            Some(KeptRecording::Training(step, _) | KeptRecording::Evaluation(step)) => step,
            None => unreachable!("a step must be compiled or selected before it is used"),
        }
    }

    /// Launches the step for a batch.
    pub(super) fn step(&mut self, x: &dyn BatchTensors, y: &Tensor, bind: BindModel<'_, 'f>) -> Result<()> {
        let launched = self.set_batch(true, x, y, bind).and_then(|is_kept| {
            self.counted(is_kept, |cache| cache.current().launch())?;
            let step = self.current();
            self.results = Some((step.logits.clone(), step.loss.clone()));
            Ok(())
        });
        launched.inspect_err(|error| tracing::info!(%error, "refused a step"))
    }

    /// Checks the step for a batch.
    pub(super) fn check_step(
        &mut self,
        x: &dyn BatchTensors,
        y: &Tensor,
        bind: BindModel<'_, 'f>,
    ) -> Result<StepCheck> {
        let is_kept = self.set_batch(true, x, y, bind)?;
        self.counted(is_kept, |cache| cache.current().check_step())
    }

    /// Returns the loss of a batch in evaluation mode.
    pub(super) fn evaluate(&mut self, x: &dyn BatchTensors, y: &Tensor, bind: BindModel<'_, 'f>) -> Result<f32> {
        let is_kept = self.set_batch(false, x, y, bind)?;
        self.counted(is_kept, Self::launch_evaluation)
    }

    /// Returns the loss of the batch in the buffers, in evaluation mode.
    pub(super) fn evaluate_buffers(&mut self) -> Result<f32> {
        self.counted(true, Self::launch_evaluation)
    }

    /// Launches the current step by `launch`, and counts a hit if its recording was kept.
    fn counted<R>(&mut self, is_kept: bool, launch: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        let recordings = |cache: &Self| cache.kept.last().map(|kept| kept.recordings().0);
        let before = recordings(self);
        let result = launch(self);
        match is_kept && recordings(self) == before {
            true => self.stats.hits += 1,
            false => self.stats.misses += 1,
        }
        result
    }

    /// Launches the evaluation of the current step, which is recorded at its first launch, and returns the loss.
    fn launch_evaluation(&mut self) -> Result<f32> {
        let stream = self.options.stream.clone();
        let evaluation = match self.kept.last_mut().map(|kept| &mut kept.recording) {
            Some(KeptRecording::Training(step, evaluation)) => {
                let recorded = match evaluation.take() {
                    Some(recorded) => recorded,
                    None => {
                        let _random = self.random.get_or_insert_with(ThreadStream::current).enter();
                        let computation = step.recorded.computation().clone();
                        Box::new(record_evaluation(computation, step.plan(), stream)?)
                    }
                };
                evaluation.insert(recorded)
            }
            Some(KeptRecording::Evaluation(step)) => &mut step.recorded,
            None => unreachable!("a step must be compiled or selected before it is evaluated"),
        };
        evaluation.launch()?;
        evaluation.loss.try_item()
    }

    /// Copies a batch into the buffers of the step for its shapes and the model's path, which becomes the current step.
    /// Returns whether the step was kept.
    fn set_batch(
        &mut self,
        is_training: bool,
        x: &dyn BatchTensors,
        y: &Tensor,
        bind: BindModel<'_, 'f>,
    ) -> Result<bool> {
        let is_kept = self.select(is_training, x, y, bind)?;
        self.current().copy_batch(x, y).map(|()| is_kept)
    }

    /// Makes the step for this batch and the model's path the current one; compiles it if it is missing. Returns
    /// whether the step was kept.
    fn select(&mut self, is_training: bool, x: &dyn BatchTensors, y: &Tensor, bind: BindModel<'_, 'f>) -> Result<bool> {
        check_samples(x)?;
        self.remove_outdated();
        let is_wanted = |kept: &KeptStep<'f>| {
            (kept.training().is_some() || !is_training)
                && kept.autocast == autocast_dtype()
                && is_on_path(&*self.model, &kept.path)
                && kept.buffers().fits(x)
        };
        if let Some(at) = self.kept.iter().rposition(is_wanted) {
            self.kept[at..].rotate_left(1);
            return Ok(true);
        }
        let model = bind()?;
        if is_training {
            self.compile(model, Some((x, y)))?;
        } else {
            let _random = self.random.get_or_insert_with(ThreadStream::current).enter();
            let step = TrainingStep::compile_evaluation(self.setup(model), (x, y))?;
            self.keep(x, KeptRecording::Evaluation(step));
        }
        Ok(false)
    }
}

/// Returns an error for a batch without samples, whose mean loss would be NaN.
fn check_samples(x: &dyn BatchTensors) -> Result<()> {
    let mut is_empty = false;
    x.each_tensor(&mut |_, x| is_empty |= x.shape().first() == Some(&0));
    match is_empty {
        true => Err(Error::invalid(SET_BATCH, "the batch has no samples; leave it out")),
        false => Ok(()),
    }
}
