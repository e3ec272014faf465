//! Type erasure of the task and the loaders of a run.

use super::loader::{EpochBatchIter, EpochLoader};
use super::task::{BatchScores, NamedScalars, TrainingTask};
use pellucid_data::BatchPosition;
use pellucid_nn::loss::BatchWeight;
use pellucid_nn::optim::Optimizer;
use pellucid_nn::{Checkpoint, StateDict, Stateful};
use pellucid_tensor::{Error, Result};

/// The operations of a training loop on a task and its loaders. Most methods call a method of [`TrainingTask`] with the
/// current batch.
pub(super) trait RunParts {
    fn batch_count(&self) -> Option<usize>;
    fn position(&self) -> BatchPosition;
    fn sample_indices(&self, position: BatchPosition) -> Result<Vec<usize>>;

    /// Returns the position of the loader as a state dict.
    fn batches_state(&self) -> Result<StateDict>;

    /// Restores a position of the loader.
    fn load_batches_state(&self, state: &StateDict) -> Result<()>;

    /// Begins the next epoch, or the rest of an epoch.
    fn begin_batches(&mut self) -> Result<()>;

    /// Reads the next batch, and returns its number of samples.
    fn next_batch(&mut self) -> Option<Result<usize>>;

    /// Ends the epoch of the loader.
    fn end_batches(&mut self);

    /// Pauses the epoch of the loader, so that the loader continues at this position.
    fn pause_batches(&mut self) -> Result<()>;

    fn train_step(&mut self) -> Result<NamedScalars>;

    /// Returns the weight of the current batch in the mean losses of the epoch.
    fn batch_weight(&self) -> Result<BatchWeight>;
    fn first_non_finite(&mut self) -> Option<String>;

    fn is_validated(&self) -> bool;

    /// Begins the batches of an evaluation, and returns their position.
    fn begin_validation(&mut self) -> Result<BatchPosition>;

    /// Reads the next batch of an evaluation, and returns its number of samples.
    fn next_validation(&mut self) -> Option<Result<usize>>;
    fn evaluate_step(&mut self) -> Result<BatchScores>;

    /// Ends the batches of an evaluation. If the evaluation is incomplete, the loader returns to its state before the
    /// evaluation.
    fn end_validation(&mut self) -> Result<()>;

    /// Returns the parts of the task and of the loaders.
    fn checkpoint(&self) -> Checkpoint<'_>;
    fn weights(&self) -> Result<StateDict>;
    fn begin_fit(&mut self) -> Result<()>;
    fn optimizers(&self) -> Vec<(&'static str, &dyn Optimizer)>;
    fn end_epoch(&mut self) -> Result<()>;
    fn is_between_updates(&self) -> bool;
    fn skips_updates(&self) -> bool;
    fn prepare_load(&mut self) -> Result<()>;
    fn eager_reason(&self) -> Option<&str>;
    fn apply_averages(&mut self) -> Result<()>;
    fn restore_weights(&mut self) -> Result<()>;
}

/// The task and the loaders of a run.
pub(super) struct BoundRun<'t, 'v, 'm, T: TrainingTask> {
    task: &'m mut T,
    /// The training loader; `None` for an evaluation.
    train: Option<&'t mut dyn EpochLoader<T::Batch>>,
    validation: Option<&'v mut dyn EpochLoader<T::Batch>>,
    batches: Option<EpochBatchIter<T::Batch>>,
    validated: Option<EpochBatchIter<T::Batch>>,
    /// The current batch.
    batch: Option<T::Batch>,
    /// The state to which the validation loader returns: the state before an incomplete evaluation, or the position
    /// within an epoch.
    before_validation: Option<StateDict>,
    /// Whether the validation loader was within an epoch before the evaluation.
    is_within_epoch: bool,
}

impl<'t, 'v, 'm, T: TrainingTask> BoundRun<'t, 'v, 'm, T> {
    pub(super) fn new(
        task: &'m mut T,
        train: &'t mut dyn EpochLoader<T::Batch>,
        validation: Option<&'v mut dyn EpochLoader<T::Batch>>,
    ) -> Self {
        BoundRun {
            task,
            train: Some(train),
            validation,
            batches: None,
            validated: None,
            batch: None,
            before_validation: None,
            is_within_epoch: false,
        }
    }

    pub(super) fn evaluation(task: &'m mut T, batches: &'v mut dyn EpochLoader<T::Batch>) -> Self {
        BoundRun {
            task,
            train: None,
            validation: Some(batches),
            batches: None,
            validated: None,
            batch: None,
            before_validation: None,
            is_within_epoch: false,
        }
    }

    /// Stores a batch, and returns its number of samples.
    fn keep(&mut self, batch: Result<T::Batch>) -> Result<usize> {
        let batch = batch?;
        let samples = self.task.batch_size(&batch);
        self.batch = Some(batch);
        Ok(samples)
    }
}

/// Returns the error for a call before the first batch was read.
fn no_batch() -> Error {
    Error::invalid("fit", "there is no batch")
}

/// Calls `change`, then restores the earlier state of the loader.
fn keep_state(loader: &dyn Stateful, change: &mut dyn FnMut()) -> Result<()> {
    let state: StateDict = loader.state()?.into_iter().collect();
    change();
    loader.prepare_load(&state)?.commit()
}

impl<T: TrainingTask> RunParts for BoundRun<'_, '_, '_, T> {
    fn batch_count(&self) -> Option<usize> {
        self.train.as_ref()?.batch_count()
    }

    fn position(&self) -> BatchPosition {
        self.train.as_ref().map_or_else(BatchPosition::default, |train| train.position())
    }

    fn sample_indices(&self, position: BatchPosition) -> Result<Vec<usize>> {
        self.train.as_ref().map_or_else(|| Err(no_batch()), |train| train.sample_indices(position))
    }

    fn batches_state(&self) -> Result<StateDict> {
        let state = self.train.as_ref().map_or_else(|| Ok(Vec::new()), |train| train.as_stateful().state())?;
        Ok(state.into_iter().collect())
    }

    fn load_batches_state(&self, state: &StateDict) -> Result<()> {
        self.train.as_ref().map_or(Ok(()), |train| train.as_stateful().prepare_load(state)?.commit())
    }

    fn begin_fit(&mut self) -> Result<()> {
        self.task.begin_fit()
    }

    fn begin_batches(&mut self) -> Result<()> {
        self.batches = self.train.as_mut().map(|train| train.begin_epoch()).transpose()?;
        Ok(())
    }

    fn next_batch(&mut self) -> Option<Result<usize>> {
        let batch = self.batches.as_mut()?.next()?;
        Some(self.keep(batch))
    }

    fn end_batches(&mut self) {
        (self.batches, self.batch) = (None, None);
    }

    fn pause_batches(&mut self) -> Result<()> {
        let Some(train) = &self.train else { return Ok(()) };
        let (mut batches, mut batch) = (self.batches.take(), self.batch.take());
        keep_state(train.as_stateful(), &mut || drop((batches.take(), batch.take())))
    }

    fn train_step(&mut self) -> Result<NamedScalars> {
        self.task.train_step(self.batch.as_ref().ok_or_else(no_batch)?)
    }

    fn batch_weight(&self) -> Result<BatchWeight> {
        self.task.batch_weight(self.batch.as_ref().ok_or_else(no_batch)?)
    }

    fn first_non_finite(&mut self) -> Option<String> {
        self.task.first_non_finite(self.batch.as_ref()?)
    }

    fn is_validated(&self) -> bool {
        self.validation.is_some()
    }

    fn begin_validation(&mut self) -> Result<BatchPosition> {
        let validation = self.validation.as_mut().ok_or_else(no_batch)?;
        self.before_validation = Some(validation.as_stateful().state()?.into_iter().collect());
        self.is_within_epoch = validation.position().batch > 0;
        if self.is_within_epoch {
            // An evaluation reads an entire epoch. The loader of a stopped training then continues at its earlier
            // position.
            drop(validation.begin_epoch()?);
        }
        let position = validation.position();
        self.validated = Some(validation.begin_epoch()?);
        Ok(position)
    }

    fn next_validation(&mut self) -> Option<Result<usize>> {
        match self.validated.as_mut()?.next() {
            Some(batch) => Some(self.keep(batch)),
            None => {
                if !self.is_within_epoch {
                    self.before_validation = None;
                }
                self.end_validation().err().map(Err)
            }
        }
    }

    fn evaluate_step(&mut self) -> Result<BatchScores> {
        self.task.evaluate_step(self.batch.as_ref().ok_or_else(no_batch)?)
    }

    fn end_validation(&mut self) -> Result<()> {
        (self.validated, self.batch) = (None, None);
        match (self.before_validation.take(), &self.validation) {
            (Some(state), Some(validation)) => validation.as_stateful().prepare_load(&state)?.commit(),
            _ => Ok(()),
        }
    }

    fn checkpoint(&self) -> Checkpoint<'_> {
        let mut checkpoint = self.task.checkpoint();
        if let Some(train) = &self.train {
            checkpoint = checkpoint.batches(train.as_stateful());
        }
        match &self.validation {
            Some(validation) => checkpoint.part("validation_batches", validation.as_stateful()),
            None => checkpoint,
        }
    }

    fn weights(&self) -> Result<StateDict> {
        self.task.weights()
    }

    fn optimizers(&self) -> Vec<(&'static str, &dyn Optimizer)> {
        self.task.optimizers()
    }

    fn end_epoch(&mut self) -> Result<()> {
        self.task.end_epoch()
    }

    fn is_between_updates(&self) -> bool {
        self.task.is_between_updates()
    }

    fn skips_updates(&self) -> bool {
        self.task.skips_updates()
    }

    fn prepare_load(&mut self) -> Result<()> {
        self.task.prepare_load()
    }

    fn eager_reason(&self) -> Option<&str> {
        self.task.eager_reason()
    }

    fn apply_averages(&mut self) -> Result<()> {
        self.task.apply_averages()
    }

    fn restore_weights(&mut self) -> Result<()> {
        self.task.restore_weights()
    }
}
