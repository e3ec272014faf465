//! A closure that is captured, or runs eagerly on a device without capture.

use pellucid_tensor::{CacheStats, CaptureOptions, Captured, Error, Result, Shape, Tensor, lock};
use std::sync::{Arc, Mutex};

/// The operations of a step.
pub(super) type StepFn<'f> = Box<dyn FnMut(&[Tensor]) -> Result<Vec<Tensor>> + Send + 'f>;

/// The closure of a step, which a recording and an eager step share.
type SharedStepFn<'f> = Arc<Mutex<StepFn<'f>>>;

/// A closure that is captured or runs eagerly. [`Captured`] holds the cache of recordings.
pub(super) struct Launcher<'f> {
    step: SharedStepFn<'f>,
    /// The captured closure, or the reason why it runs eagerly.
    captured: std::result::Result<Box<Captured<'f>>, String>,
    /// The outputs of the latest eager run.
    outputs: Vec<Tensor>,
    /// The number of inputs, once the closure has run eagerly.
    count: Option<usize>,
}

impl<'f> Launcher<'f> {
    /// Creates a launcher of a closure. Nothing is recorded.
    pub(super) fn new(is_eager: bool, options: CaptureOptions, step: StepFn<'f>) -> Launcher<'f> {
        let step = Arc::new(Mutex::new(step));
        let shared = step.clone();
        let captured = match is_eager {
            true => Err("it was created as an eager step".into()),
            false => Ok(Box::new(Captured::unrecorded(options, move |inputs: &[Tensor]| lock(&shared)(inputs)))),
        };
        Launcher { step, captured, outputs: Vec::new(), count: None }
    }

    /// Records the closure for inputs of these shapes and dtypes, unless it is recorded or runs eagerly. Returns true
    /// if it recorded.
    pub(super) fn prepare(&mut self, inputs: &[Tensor]) -> Result<bool> {
        Ok(self.with_captured(inputs, |captured, inputs| captured.prepare(inputs))?.unwrap_or(false))
    }

    /// Executes the closure, recorded if possible, and returns its outputs. The next launch may overwrite them.
    pub(super) fn launch(&mut self, inputs: &[Tensor]) -> Result<&[Tensor]> {
        if self.with_captured(inputs, |captured, inputs| captured.launch(inputs).map(drop))?.is_none() {
            if let Some(count) = self.count.filter(|&count| count != inputs.len()) {
                return Err(Error::wrong_number_of_inputs(inputs.len(), count));
            }
            self.outputs = lock(&self.step)(inputs)?;
            self.count = Some(inputs.len());
        }
        Ok(self.outputs())
    }

    /// Returns the outputs of the latest launch.
    pub(super) fn outputs(&self) -> &[Tensor] {
        self.captured().map_or(&self.outputs, |captured| captured.outputs().tensors())
    }

    /// Calls `run` with the captured closure. Returns `None` if the closure runs eagerly; if the device cannot capture,
    /// the closure runs eagerly in all later launches, and a warning is logged.
    fn with_captured<R>(
        &mut self,
        inputs: &[Tensor],
        run: impl Fn(&mut Captured<'f>, &[&Tensor]) -> Result<R>,
    ) -> Result<Option<R>> {
        let Ok(captured) = &mut self.captured else { return Ok(None) };
        match with_references(inputs, &mut |inputs| run(captured, inputs)) {
            Err(Error::DeviceUnavailable { device, reason }) => {
                tracing::warn!(%device, %reason, "the device cannot capture: the step runs eagerly");
                self.captured = Err(format!("{device} cannot capture: {reason}"));
                Ok(None)
            }
            result => result.map(Some),
        }
    }

    /// Returns the shape of output `index` of the recording for these inputs; `None` without such a recording or
    /// output.
    pub(super) fn output_shape(&self, inputs: &[Tensor], index: usize) -> Option<Shape> {
        let captured = self.captured()?;
        with_references(inputs, &mut |inputs| captured.output_shapes(inputs)?.nth(index).cloned())
    }

    /// Returns the statistics of the recordings.
    pub(super) fn cache_stats(&self) -> CacheStats {
        self.captured().map_or_else(CacheStats::default, |captured| captured.cache_stats())
    }

    /// Drops all recordings.
    pub(super) fn drop_recordings(&mut self) {
        self.count = None;
        _ = self.captured.as_mut().map(|captured| captured.drop_recordings());
    }

    /// Returns the id of the recording that was launched or prepared last; `None` for a closure that runs eagerly.
    fn latest_recording(&self) -> Option<u64> {
        self.captured()?.recordings().next_back()
    }

    /// Returns the captured step.
    pub(super) fn captured(&self) -> Option<&Captured<'f>> {
        self.captured.as_deref().ok()
    }

    /// Returns the reason why the closure runs eagerly; `None` if it is captured.
    pub(super) fn eager_reason(&self) -> Option<&str> {
        self.captured.as_ref().err().map(String::as_str)
    }
}

/// A value for each recording of a launcher.
pub(super) struct PerRecording<T>(Vec<(u64, T)>);

impl<T> Default for PerRecording<T> {
    fn default() -> PerRecording<T> {
        PerRecording(Vec::new())
    }
}

impl<T> PerRecording<T> {
    /// Returns the value of the recording that was launched or prepared last, from `make` if it is new. For a closure
    /// that runs eagerly, `make` is called each time.
    pub(super) fn of_latest(&mut self, launcher: &Launcher<'_>, make: impl FnOnce() -> Result<T>) -> Result<&T> {
        let number = launcher.latest_recording();
        let known = self.0.iter().position(|(known, _)| Some(*known) == number);
        let index = match known {
            Some(index) => index,
            None => {
                let value = make()?;
                let is_kept = |number| launcher.captured().is_some_and(|step| step.recordings().any(|n| n == number));
                self.0.retain(|(known, _)| is_kept(*known));
                self.0.push((number.unwrap_or(0), value));
                self.0.len() - 1
            }
        };
        Ok(&self.0[index].1)
    }
}

/// Calls `f` with references to the inputs, without an allocation for up to four inputs.
fn with_references<R>(inputs: &[Tensor], f: &mut dyn FnMut(&[&Tensor]) -> R) -> R {
    match inputs {
        [] => f(&[]),
        [a] => f(&[a]),
        [a, b] => f(&[a, b]),
        [a, b, c] => f(&[a, b, c]),
        [a, b, c, d] => f(&[a, b, c, d]),
        many => f(&many.iter().collect::<Vec<_>>()),
    }
}
