//! Logs: CSV and JSON Lines, event files of TensorBoard, and the history of epochs.

mod files;
mod history;
mod scratch;
#[cfg(feature = "tensorboard")]
mod tensorboard;
