//! Type erasure of the task and the loaders of a run.

use super::loader::{EntireEpoch, EpochBatchIter, EpochLoader, state_of};
use super::task::{BatchScores, NamedScalars, TrainingTask};
use pellucid_data::BatchPosition;
use pellucid_nn::loss::BatchWeight;
use pellucid_nn::optim::Optimizer;
use pellucid_nn::{Checkpoint, StateDict, Stateful};
use pellucid_tensor::{Error, Result, Tensor};

/// The operations of a training loop on a task and its loaders. Most methods call a method of [`TrainingTask`] with the
/// current batch.
pub(super) trait RunParts {
    fn batch_count(&self) -> Option<usize>;
    fn position(&self) -> BatchPosition;
    fn sample_indices(&self, position: BatchPosition) -> Result<Vec<usize>>;

    /// Returns the positions of the training loader and of the validation loader.
    fn batches_state(&self) -> Result<[StateDict; 2]>;

    /// Restores the positions of the loaders.
    fn load_batches_state(&self, states: &[StateDict; 2]) -> Result<()>;

    /// Restores the position of the validation loader.
    fn load_validation_state(&self, state: &StateDict) -> Result<()>;

    /// Begins the next epoch of the training loader, or the rest of an unfinished epoch.
    fn begin_batches(&mut self) -> Result<()>;

    /// Reads the next batch, and returns its number of samples.
    fn next_batch(&mut self) -> Option<Result<usize>>;

    /// Ends the epoch of the training loader.
    fn end_batches(&mut self);

    /// Pauses the epoch of the training loader, which later continues at this position.
    fn pause_batches(&mut self) -> Result<()>;

    fn train_step(&mut self) -> Result<NamedScalars>;

    /// Returns the outputs and the targets of the last step.
    fn train_predictions(&self) -> Result<Option<(Tensor, Tensor)>>;

    /// Returns the weight of the current batch in the mean losses of the epoch.
    fn batch_weight(&self) -> Result<BatchWeight>;
    fn first_non_finite(&mut self) -> Option<String>;
    fn loss_names(&self) -> Option<&[&'static str]>;

    fn is_validated(&self) -> bool;

    /// Begins the batches of an evaluation.
    fn begin_validation(&mut self) -> Result<()>;

    /// Reads the next batch of an evaluation, and returns its number of samples.
    fn next_validation(&mut self) -> Option<Result<usize>>;
    fn evaluate_step(&mut self) -> Result<BatchScores>;

    /// Ends an evaluation, even if batches remain.
    fn end_validation(&mut self) -> Result<()>;

    /// Returns a checkpoint with the parts of the task and the positions of the loaders.
    fn checkpoint(&self) -> Checkpoint<'_>;
    fn settings(&self) -> Vec<(&'static str, String)>;
    fn weights(&self) -> Result<StateDict>;
    fn begin_fit(&mut self) -> Result<()>;
    fn optimizers(&self) -> Vec<(&'static str, &dyn Optimizer)>;
    fn end_epoch(&mut self) -> Result<()>;
    fn is_between_updates(&self) -> bool;
    fn skipped_updates(&self) -> Result<Option<usize>>;
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
    validated: Option<EntireEpoch<T::Batch>>,
    /// The current batch.
    batch: Option<T::Batch>,
}

impl<'t, 'v, 'm, T: TrainingTask> BoundRun<'t, 'v, 'm, T> {
    pub(super) fn new(
        task: &'m mut T,
        train: &'t mut dyn EpochLoader<T::Batch>,
        validation: Option<&'v mut dyn EpochLoader<T::Batch>>,
    ) -> Self {
        BoundRun { task, train: Some(train), validation, batches: None, validated: None, batch: None }
    }

    pub(super) fn evaluation(task: &'m mut T, batches: &'v mut dyn EpochLoader<T::Batch>) -> Self {
        BoundRun { task, train: None, validation: Some(batches), batches: None, validated: None, batch: None }
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
    Error::invalid("fit", "no batch was read before the step")
}

/// Calls `change`, and then restores the earlier state of a loader.
fn keep_state(loader: &dyn Stateful, change: &mut dyn FnMut()) -> Result<()> {
    let state = state_of(loader)?;
    change();
    loader.prepare_load(&state)?.commit()
}

/// Defines methods that delegate to the task: first the methods with `&self`, then the methods with `&mut self`.
macro_rules! of_task {
    ($($read:ident -> $value:ty),*; $($change:ident -> $result:ty),*) => {
        $(fn $read(&self) -> $value {
            self.task.$read()
        })*
        $(fn $change(&mut self) -> $result {
            self.task.$change()
        })*
    };
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

    fn batches_state(&self) -> Result<[StateDict; 2]> {
        let train = self.train.as_ref().map(|loader| state_of(loader.as_stateful()));
        let validation = self.validation.as_ref().map(|loader| state_of(loader.as_stateful()));
        Ok([train.transpose()?.unwrap_or_default(), validation.transpose()?.unwrap_or_default()])
    }

    fn load_batches_state(&self, [train, validation]: &[StateDict; 2]) -> Result<()> {
        let loads = [
            self.train.as_ref().map(|loader| loader.as_stateful().prepare_load(train)),
            self.validation.as_ref().map(|loader| loader.as_stateful().prepare_load(validation)),
        ];
        loads.into_iter().flatten().try_for_each(|load| load?.commit())
    }

    fn load_validation_state(&self, state: &StateDict) -> Result<()> {
        let validation = self.validation.as_ref();
        validation.map_or(Ok(()), |loader| loader.as_stateful().prepare_load(state)?.commit())
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

    fn train_predictions(&self) -> Result<Option<(Tensor, Tensor)>> {
        self.task.train_predictions(self.batch.as_ref().ok_or_else(no_batch)?)
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

    fn begin_validation(&mut self) -> Result<()> {
        // An evaluation outside of a run does not change the batches of a later run.
        let returns = self.train.is_none();
        let validation = self.validation.as_mut().ok_or_else(no_batch)?;
        self.validated = Some(EntireEpoch::begin(&mut **validation, returns)?);
        Ok(())
    }

    fn next_validation(&mut self) -> Option<Result<usize>> {
        let batch = self.validated.as_mut()?.batches.next()?;
        Some(self.keep(batch))
    }

    fn evaluate_step(&mut self) -> Result<BatchScores> {
        self.task.evaluate_step(self.batch.as_ref().ok_or_else(no_batch)?)
    }

    fn end_validation(&mut self) -> Result<()> {
        self.batch = None;
        match (self.validated.take(), &self.validation) {
            (Some(epoch), Some(validation)) => epoch.end(&**validation),
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

    of_task! {
        loss_names -> Option<&[&'static str]>,
        settings -> Vec<(&'static str, String)>,
        weights -> Result<StateDict>,
        optimizers -> Vec<(&'static str, &dyn Optimizer)>,
        is_between_updates -> bool,
        skipped_updates -> Result<Option<usize>>,
        eager_reason -> Option<&str>;
        begin_fit -> Result<()>,
        end_epoch -> Result<()>,
        prepare_load -> Result<()>,
        apply_averages -> Result<()>,
        restore_weights -> Result<()>
    }
}
