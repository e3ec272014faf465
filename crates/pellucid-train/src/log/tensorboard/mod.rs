//! [`TensorBoard`]: event files of TensorBoard.

mod proto;
mod record;
mod summary;

pub use summary::HyperparameterValue;

use super::Logger;
use super::append::AppendFile;
use pellucid_tensor::{Error, Result, Tensor};
use proto::ProtoMessage;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use summary::summary;

/// The name of the logger in error messages.
const OP: &str = "tensorboard";

/// Writes scalars, histograms, images, text and hyperparameters to an event file, which TensorBoard displays:
/// `tensorboard --logdir runs`.
///
/// The methods have the order of arguments of PyTorch's `SummaryWriter`: the tag, the value, the step.
///
/// Each directory is one run. Each event is written immediately, without a buffer, so TensorBoard shows it while the
/// program runs. Scalars are stored as `f32`, as in PyTorch's `SummaryWriter`.
///
/// ```
/// # let runs = std::env::temp_dir().join(format!("pellucid-doc-runs-{}", std::process::id()));
/// use pellucid::train::{Logger, TensorBoard};
/// use pellucid::{DType, Tensor};
/// let mut log = TensorBoard::new(runs.join("first"))?;
/// for step in 0..10 {
///     log.scalar("loss", 1.0 / (step + 1) as f64, step)?;
/// }
/// log.scalars(10, &[("train/loss", 0.1), ("train/accuracy", 0.75)])?;
/// log.histogram("weight", &Tensor::randn([100], DType::F32), 10)?;
/// log.image("sample", &Tensor::rand([3, 8, 8], DType::F32), 10)?;
/// log.text("note", "The **first** run.", 10)?;
/// log.hyperparameters(&[("lr", 0.1.into()), ("optimizer", "adam".into())], &[("accuracy", 0.75)])?;
/// # std::fs::remove_dir_all(&runs).unwrap();
/// # Ok::<(), pellucid::Error>(())
/// ```
#[doc(alias("SummaryWriter", "add_scalar", "tfevents"))]
#[derive(Debug)]
pub struct TensorBoard {
    file: AppendFile,
}

impl TensorBoard {
    /// Creates an event file with a new name in a directory, which is created if it does not exist.
    ///
    /// # Errors
    /// [`Error::File`] if the directory or the file cannot be written.
    pub fn new(directory: impl AsRef<Path>) -> Result<TensorBoard> {
        let directory = directory.as_ref();
        if directory.exists() && !directory.is_dir() {
            let reason = "the path is a file; a TensorBoard log is a directory of event files: choose another path";
            return Err(Error::file(OP, directory, reason));
        }
        fs::create_dir_all(directory).map_err(|error| Error::unwritable_file(OP, directory, &error))?;
        // TensorBoard reads the files of a directory sorted by name.
        let start = format!("events.out.tfevents.{:010}.{}", time().as_secs(), std::process::id());
        let mut suffix = 0;
        let file = loop {
            match AppendFile::create_new(OP, &directory.join(format!("{start}.{suffix}")))? {
                Some(file) => break file,
                None => suffix += 1,
            }
        };
        let mut log = TensorBoard { file };
        log.event(0, |event| event.bytes(3, "brain.Event:2"))?;
        Ok(log)
    }

    /// Continues the run of a directory after step `step`, in a new event file. TensorBoard hides the values of later
    /// steps in the earlier files.
    ///
    /// # Errors
    /// [`Error::File`] if the directory or the file cannot be written.
    pub fn resume(directory: impl AsRef<Path>, step: usize) -> Result<TensorBoard> {
        let mut log = TensorBoard::new(directory)?;
        // A `SessionLog` with the status START hides the values of earlier files at its step and later steps.
        log.event(step.saturating_add(1), |event| event.message(7, &ProtoMessage::new().int(1, 1)))?;
        Ok(log)
    }

    /// Logs a scalar.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be written.
    pub fn scalar(&mut self, tag: &str, value: f64, step: usize) -> Result<()> {
        self.scalars(step, &[(tag, value)])
    }

    /// Logs the distribution of a tensor's elements, in 64 buckets of equal width. NaN and infinite elements are not
    /// counted.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be written; the errors of reading the tensor.
    pub fn histogram(&mut self, tag: &str, tensor: &Tensor, step: usize) -> Result<()> {
        self.summary(step, [summary::histogram(tag, tensor)?])
    }

    /// Logs an image `[C, H, W]` of `u8`, or of floats in [0, 1], which are clamped. It has 1 (grayscale), 2
    /// (grayscale, alpha), 3 (RGB) or 4 (RGB, alpha) channels.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::InvalidArgument`] for an image without pixels;
    /// [`Error::File`] if the file cannot be written.
    pub fn image(&mut self, tag: &str, image: &Tensor, step: usize) -> Result<()> {
        self.summary(step, [summary::image(tag, image)?])
    }

    /// Logs a string, which TensorBoard displays as Markdown.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be written.
    pub fn text(&mut self, tag: &str, text: &str, step: usize) -> Result<()> {
        self.summary(step, [summary::text(tag, text)])
    }

    /// Logs the hyperparameters and the final metrics of the run. TensorBoard compares them for all runs of a parent
    /// directory. Call it once, at the end of the run.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be written.
    pub fn hyperparameters(
        &mut self,
        parameters: &[(&str, HyperparameterValue)],
        metrics: &[(&str, f64)],
    ) -> Result<()> {
        self.summary(0, summary::hyperparameters(time().as_secs_f64(), parameters, metrics))?;
        self.scalars(0, metrics)
    }

    /// Writes an event with a summary.
    fn summary(&mut self, step: usize, values: impl IntoIterator<Item = ProtoMessage>) -> Result<()> {
        self.event(step, |event| event.message(5, &summary(values)))
    }

    /// Writes an event: its time, its step, and the field that `content` adds.
    fn event(&mut self, step: usize, content: impl FnOnce(ProtoMessage) -> ProtoMessage) -> Result<()> {
        let step = i64::try_from(step).unwrap_or(i64::MAX);
        let event = ProtoMessage::new().double(1, time().as_secs_f64()).int(2, step);
        self.file.append(&record::encode_record(content(event).as_bytes()))
    }
}

/// Returns the time since the Unix epoch.
fn time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

impl Logger for TensorBoard {
    fn scalars(&mut self, step: usize, values: &[(&str, f64)]) -> Result<()> {
        self.summary(step, values.iter().map(|(tag, value)| summary::scalar(tag, *value)))
    }

    /// Does nothing: events are not buffered.
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}
