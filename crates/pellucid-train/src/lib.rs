//! The training loop: trainer, metrics, logs and progress bars.
//!
//! | module | contents |
//! | --- | --- |
//! | `trainer` | [`Trainer`]: epochs of training and validation, checkpoints, early stopping |
//! | `log` | [`Logger`] and its file formats, and [`History`] |
//! | [`metrics`] | accuracy, F1, ROC AUC, R² and others, accumulated over batches |
//! | `progress` | `Progress`, a progress bar (feature `progress`) |
//! | `text_table` | aligned text tables |
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

mod log;
pub mod metrics;
#[cfg(feature = "progress")]
mod progress;
mod text_table;
mod trainer;

pub use log::{CsvLogger, History, JsonLinesLogger, Logger};
#[cfg(feature = "tensorboard")]
pub use log::{HyperparameterValue, TensorBoard};
#[cfg(feature = "progress")]
pub use progress::Progress;
pub use trainer::{
    BatchScores, Callback, EarlyStopping, EpochBatchIter, EpochLoader, FindLrOptions, FitControl, IntoBatch, LrCurve,
    NamedScalars, ScheduleUnit, Scores, StopReason, Supervised, Trainer, TrainingEvent, TrainingTask,
};
