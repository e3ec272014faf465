//! The training loop: progress, metrics, logs.
//!
//! | module | contents |
//! | --- | --- |
//! | [`metrics`] | accuracy, F1, ROC AUC, R², .. over batches |
//! | `progress` | [`Progress`], a progress bar (feature `progress`) |
//! | `text_table` | aligned tables of text |
#![forbid(unsafe_code)]

pub mod metrics;
#[cfg(feature = "progress")]
mod progress;
mod text_table;

#[cfg(feature = "progress")]
pub use progress::Progress;
