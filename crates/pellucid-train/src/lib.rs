//! The training loop: progress, metrics, logs.
#![forbid(unsafe_code)]

#[cfg(feature = "progress")]
mod progress;

#[cfg(feature = "progress")]
pub use progress::Progress;
