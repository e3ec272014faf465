//! A closure that is ready to be launched: recorded, or run eagerly on a device without capture.

use super::stream::Stream;
use pellucid_tensor::{CacheStats, Captured, Error, Result, Tensor, capture, enable_grad, unwrap};
use std::sync::{Arc, Mutex, PoisonError};

/// The operations of a step.
pub(super) type StepClosure<'f> = Box<dyn FnMut() -> Result<()> + Send + 'f>;

/// A closure that is ready to be launched: recorded or eager.
pub(super) enum StepRunner<'f> {
    Captured(Captured<'f>),
    Eager(EagerStep<'f>),
}

impl<'f> StepRunner<'f> {
    /// Records the closure. On a device without capture, logs a warning and keeps the closure for eager runs.
    pub(super) fn new(step: StepClosure<'f>, stream: &Stream) -> Result<StepRunner<'f>> {
        if stream.is_eager() {
            return Ok(StepRunner::Eager(EagerStep { step: Mutex::new(step), reason: "its stream is eager".into() }));
        }
        let step = Arc::new(Mutex::new(step));
        let recorded = Arc::clone(&step);
        // A later re-recording may run under another grad mode.
        let _on = enable_grad();
        match capture(move |_: &[Tensor]| unwrap((recorded.lock().unwrap_or_else(PoisonError::into_inner))()), &[]) {
            Ok(captured) => Ok(StepRunner::Captured(captured)),
            Err(Error::DeviceUnavailable { device, reason }) => {
                tracing::warn!(%device, %reason, "the device cannot capture: the step runs eagerly");
                let step = Arc::into_inner(step).expect("a failed capture must drop its closure");
                Ok(StepRunner::Eager(EagerStep { step, reason: format!("{device} cannot capture: {reason}") }))
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn captured(&self) -> Option<&Captured<'f>> {
        match self {
            StepRunner::Captured(captured) => Some(captured),
            StepRunner::Eager(_) => None,
        }
    }

    /// Returns the statistics of the recordings. An eager closure counts as one that is kept.
    pub(super) fn recordings(&self) -> CacheStats {
        self.captured().map_or(CacheStats { held: 1, ..CacheStats::default() }, Captured::cache)
    }

    pub(super) fn launch(&mut self) -> Result<()> {
        let _on = enable_grad();
        match self {
            StepRunner::Captured(captured) => captured.launch(&[]).map(drop),
            StepRunner::Eager(step) => step.launch(),
        }
    }
}

/// A step that runs eagerly: on a device without capture, which is logged, on an eager stream ([`Stream::eager`]), or
/// because it was created from a closure.
///
/// ```
/// use pellucid::nn::graph::EagerStep;
/// let mut launches = 0;
/// let mut step = EagerStep::new(|| {
///     launches += 1;
///     Ok(())
/// });
/// step.launch()?;
/// step.launch()?;
/// drop(step);
/// assert_eq!(launches, 2);
/// # Ok::<(), pellucid::Error>(())
/// ```
pub struct EagerStep<'f> {
    /// The closure. The mutex is never locked: it only makes the step `Sync`, since a call needs exclusive access.
    step: Mutex<StepClosure<'f>>,
    reason: String,
}

impl<'f> EagerStep<'f> {
    /// Creates a step that calls `step` at each launch.
    pub fn new(step: impl FnMut() -> Result<()> + Send + 'f) -> EagerStep<'f> {
        EagerStep { step: Mutex::new(Box::new(step)), reason: "it was created from a closure".into() }
    }

    /// Returns the reason why the step is not captured.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Runs the step.
    ///
    /// # Errors
    /// The errors of its operations.
    pub fn launch(&mut self) -> Result<()> {
        let _on = enable_grad();
        (self.step.get_mut().unwrap_or_else(PoisonError::into_inner))()
    }
}
