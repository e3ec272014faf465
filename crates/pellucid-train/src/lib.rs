//! The training loop: progress, metrics, logs.
//!
//! | module | contents |
//! | --- | --- |
//! | `trainer` | [`Trainer`]: epochs of training and validation, checkpoints, early stopping |
//! | [`metrics`] | accuracy, ranking and regression metrics over any batches |
//! | `log` | [`Logger`]: values by step; [`History`]: values by epoch |
//! | `progress` | `Progress`: a bar (feature `progress`) |
#![forbid(unsafe_code)]

mod log;
pub mod metrics;
#[cfg(feature = "progress")]
mod progress;
mod trainer;

pub use log::{History, Logger};
#[cfg(feature = "progress")]
pub use progress::Progress;
pub use trainer::{
    BatchScores, Callback, EarlyStopping, EpochBatchIter, EpochLoader, FitControl, IntoBatch, NamedScalars, Scores,
    StopReason, Supervised, Trainer, TrainingEvent, TrainingTask,
};
