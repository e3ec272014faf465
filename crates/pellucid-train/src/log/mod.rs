//! Logs of a training run: values of each step in files, and the history of its epochs.

mod append;
mod csv;
mod csv_logger;
mod history;
mod json_lines;
mod names;
#[cfg(feature = "tensorboard")]
mod tensorboard;

pub use csv_logger::CsvLogger;
pub use history::History;
pub use json_lines::JsonLinesLogger;
#[cfg(feature = "tensorboard")]
pub use tensorboard::{HyperparameterValue, TensorBoard};

use pellucid_tensor::{Result, lock};
use std::sync::{Arc, Mutex};

/// A destination for the values that a training run logs, such as a file.
///
/// A list of loggers is a logger: `Vec<Box<dyn Logger>>` implements `Logger`.
///
/// ```
/// # let directory = std::env::temp_dir().join(format!("pellucid-doc-loggers-{}", std::process::id()));
/// # std::fs::create_dir_all(&directory).unwrap();
/// use pellucid::train::{CsvLogger, JsonLinesLogger, Logger};
/// let mut log: Vec<Box<dyn Logger>> = vec![
///     Box::new(CsvLogger::new(directory.join("log.csv"))?),
///     Box::new(JsonLinesLogger::new(directory.join("log.jsonl"))?),
/// ];
/// log.scalars(1, &[("loss", 0.5), ("accuracy", 0.75)])?;
/// assert_eq!(std::fs::read_to_string(directory.join("log.csv")).unwrap(), "step,loss,accuracy\n1,0.5,0.75\n");
/// # std::fs::remove_dir_all(&directory).unwrap();
/// # Ok::<(), pellucid::Error>(())
/// ```
pub trait Logger: Send {
    /// Logs named values of a step. The loggers of this crate accept NaN and infinite values.
    ///
    /// # Errors
    /// Returns an error if the destination cannot be written. The log then contains none of the values.
    fn scalars(&mut self, step: usize, values: &[(&str, f64)]) -> Result<()>;

    /// Writes all buffered values.
    ///
    /// # Errors
    /// Returns an error if the destination cannot be written.
    fn flush(&mut self) -> Result<()>;
}

impl<L: Logger + ?Sized> Logger for Box<L> {
    fn scalars(&mut self, step: usize, values: &[(&str, f64)]) -> Result<()> {
        (**self).scalars(step, values)
    }

    fn flush(&mut self) -> Result<()> {
        (**self).flush()
    }
}

/// A logger that a run and a callback share, for example to add histograms to a TensorBoard log.
impl<L: Logger + ?Sized> Logger for Arc<Mutex<L>> {
    fn scalars(&mut self, step: usize, values: &[(&str, f64)]) -> Result<()> {
        lock(self).scalars(step, values)
    }

    fn flush(&mut self) -> Result<()> {
        lock(self).flush()
    }
}

/// Calls every logger, even if another logger returns an error. Returns the first error.
impl<L: Logger> Logger for Vec<L> {
    fn scalars(&mut self, step: usize, values: &[(&str, f64)]) -> Result<()> {
        self.iter_mut().map(|logger| logger.scalars(step, values)).fold(Ok(()), Result::and)
    }

    fn flush(&mut self) -> Result<()> {
        self.iter_mut().map(Logger::flush).fold(Ok(()), Result::and)
    }
}
