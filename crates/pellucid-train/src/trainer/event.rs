//! The events of a training run, and the callbacks that observe them.

use super::scores::Scores;
use pellucid_tensor::Result;
use std::path::Path;

/// An event of a run. The variants are in the order in which they occur.
///
/// In `EpochBegan`, `StepEnded`, `Validated` and `EpochEnded`, a callback may change the run, for example a learning
/// rate. The run saves its state after the event, so a resumed run is bit-identical. If a callback changes the run in
/// another event, a resumed run may differ: `FitBegan` and `FitEnded` occur in every call of `fit`, and the file of
/// `Saved` is written before the change.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum TrainingEvent<'a> {
    /// The run begins or is resumed.
    FitBegan {
        /// The number of steps before this call of `fit`.
        step: usize,
    },
    /// An epoch begins. The event does not occur again when a run resumes within an epoch.
    EpochBegan {
        /// The epoch number, counted from 1.
        epoch: usize,
    },
    /// A step has trained on a batch.
    StepEnded {
        /// The step number, counted from 1.
        step: usize,
        /// The losses of the step by name. On a device other than the CPU, the list is empty except at logged steps.
        scalars: &'a [(&'static str, f64)],
    },
    /// The model was validated within an epoch ([`validate_every`](super::Trainer::validate_every)). If the validation
    /// is the best so far, its weights are already saved; the state of the run is not. If
    /// [`steps`](super::Trainer::steps) ends the run at this step, `EpochEnded` does not occur.
    Validated {
        /// The epoch number, from 1.
        epoch: usize,
        /// The values of the epoch so far and of the validation.
        scores: &'a Scores,
    },
    /// An epoch has ended, and the model was validated. If the epoch is the best so far, its weights are already saved;
    /// the state of the run is not. If [`steps`](super::Trainer::steps) ends the run within an epoch, the state is
    /// saved before this event, because a run with more steps continues the epoch.
    EpochEnded {
        /// The epoch number, counted from 1.
        epoch: usize,
        /// The values of the epoch: means of losses, metrics, learning rates.
        scores: &'a Scores,
    },
    /// A checkpoint file was written.
    Saved {
        /// The path of the file.
        path: &'a Path,
    },
    /// The run has ended.
    FitEnded {
        /// The reason why the run ended.
        reason: StopReason,
    },
}

/// The reason why a run has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// All epochs or steps were completed.
    Completed,
    /// Early stopping: the monitored value has stopped improving.
    NotImproving,
    /// A callback has called [`FitControl::stop`].
    Requested,
    /// The process received an interrupt (Ctrl-C) or a termination signal.
    Interrupted,
}

/// Lets a callback control the run.
#[derive(Debug, Default)]
pub struct FitControl {
    pub(super) stops: bool,
}

impl FitControl {
    /// Ends the run after the current step, or, at the end of an epoch, after the epoch. The state is saved. In
    /// `FitBegan` the run ends before its first step. In `EpochBegan` it ends after the first step of the epoch,
    /// because the event does not occur again when the run continues.
    pub fn stop(&mut self) {
        self.stops = true;
    }
}

/// A function that observes a run. [`Trainer::on_event`](super::Trainer::on_event) adds a closure:
///
/// ```
/// use pellucid::prelude::*;
/// use pellucid::nn::loss::MseLoss;
/// use pellucid::train::{Trainer, TrainingEvent};
///
/// let (x, y) = (Tensor::randn([32, 3], DType::F32), Tensor::zeros([32, 1], DType::F32));
/// let model = Linear::new(3, 1);
/// let sgd = Sgd::new(model.parameters(), SgdOptions { lr: 0.1, ..Default::default() });
/// let mut trainer = Trainer::new(model, MseLoss::default(), sgd).epochs(100).quiet(true);
/// trainer = trainer.on_event(|event, control| {
///     if let TrainingEvent::EpochEnded { scores, .. } = event
///         && scores["train_loss"] < 0.5
///     {
///         control.stop();
///     }
///     Ok(())
/// });
/// let history = trainer.fit(&mut Batches::new(&[&x, &y], 8), None)?;
/// assert!(history.column("train_loss").unwrap().last().unwrap() < &0.5);
/// # Ok::<(), Error>(())
/// ```
pub trait Callback: Send {
    /// Observes an event.
    ///
    /// # Errors
    /// An error ends the run, and `fit` returns it. The files then contain the state before the event.
    fn on_event(&mut self, event: &TrainingEvent<'_>, control: &mut FitControl) -> Result<()>;
}

impl<F: FnMut(&TrainingEvent<'_>, &mut FitControl) -> Result<()> + Send> Callback for F {
    fn on_event(&mut self, event: &TrainingEvent<'_>, control: &mut FitControl) -> Result<()> {
        self(event, control)
    }
}
