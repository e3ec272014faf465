//! The events of a training run, and the callbacks that observe them.

use super::scores::Scores;
use pellucid_tensor::Result;
use std::path::Path;

/// An event of a run, in the order of their occurrence.
///
/// A change that a callback makes in `EpochBegan`, `StepEnded` or `EpochEnded`, for example of a learning rate, is part
/// of the state that the run saves after the event, so a resumed run is bit-identical. `FitBegan`, `Saved` and
/// `FitEnded` occur in each call of `fit`, or after a file was written: the files do not contain changes that are made
/// there.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum TrainingEvent<'a> {
    /// The run begins, or is resumed after this number of steps.
    FitBegan {
        /// The number of steps before the first one of this run.
        step: usize,
    },
    /// An epoch begins. The rest of an epoch in which a run was stopped does not begin again.
    EpochBegan {
        /// The number of the epoch, from 1.
        epoch: usize,
    },
    /// A step has trained on a batch.
    StepEnded {
        /// The number of the step, from 1.
        step: usize,
        /// The losses of the step by name. Empty on a device whose values are read only at the steps that are logged.
        scalars: &'a [(&'static str, f64)],
    },
    /// An epoch has ended, and its model was validated. The weights of a best epoch are already saved, the state of the
    /// run is not. In a run that [`steps`](super::Trainer::steps) ends within an epoch, the state is saved before this
    /// event, because a run of more steps continues the epoch.
    EpochEnded {
        /// The number of the epoch, from 1.
        epoch: usize,
        /// The values of the epoch: means of losses, metrics, learning rates.
        scores: &'a Scores,
    },
    /// A file was written.
    Saved {
        /// The path of the file.
        path: &'a Path,
    },
    /// The run has ended.
    FitEnded {
        /// The reason.
        reason: StopReason,
    },
}

/// The reason why a run has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// All epochs or steps were completed.
    Completed,
    /// The monitored value has not improved for too long.
    NotImproving,
    /// A callback has called [`FitControl::stop`].
    Requested,
    /// The process received an interrupt (Ctrl-C) or a termination signal.
    Interrupted,
}

/// The means by which a callback controls the run.
#[derive(Debug, Default)]
pub struct FitControl {
    pub(super) stops: bool,
}

impl FitControl {
    /// Ends the run after the current step, or after the current epoch at its end. The state is saved.
    pub fn stop(&mut self) {
        self.stops = true;
    }
}

/// A function that observes a run. Closures are callbacks:
///
/// ```
/// use pellucid::prelude::*;
/// use pellucid::nn::loss::MseLoss;
/// use pellucid::train::{FitControl, Trainer, TrainingEvent};
///
/// let (x, y) = (Tensor::randn([32, 3], DType::F32), Tensor::zeros([32, 1], DType::F32));
/// let model = Linear::new(3, 1);
/// let sgd = Sgd::new(model.parameters(), SgdOptions { lr: 0.1, ..Default::default() });
/// let mut trainer = Trainer::new(model, MseLoss::default(), sgd).epochs(100).quiet().callback(
///     |event: &TrainingEvent<'_>, control: &mut FitControl| {
///         if let TrainingEvent::EpochEnded { scores, .. } = event
///             && scores["train_loss"] < 0.5
///         {
///             control.stop();
///         }
///         Ok(())
///     },
/// );
/// let history = trainer.fit(&mut Batches::new(&[&x, &y], 8), None)?;
/// assert!(history.column("train_loss").unwrap().last().unwrap() < &0.5);
/// # Ok::<(), Error>(())
/// ```
pub trait Callback: Send {
    /// Observes an event.
    ///
    /// # Errors
    /// An error ends the run, which returns it. The files then have the state before the event.
    fn on_event(&mut self, event: &TrainingEvent<'_>, control: &mut FitControl) -> Result<()>;
}

impl<F: FnMut(&TrainingEvent<'_>, &mut FitControl) -> Result<()> + Send> Callback for F {
    fn on_event(&mut self, event: &TrainingEvent<'_>, control: &mut FitControl) -> Result<()> {
        self(event, control)
    }
}
