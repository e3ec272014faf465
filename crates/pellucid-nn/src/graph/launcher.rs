//! A closure that is captured, or runs eagerly on a device without capture.

use pellucid_tensor::{CacheStats, CaptureOptions, Captured, DType, Error, Result, Shape, Tensor, lock};
use std::sync::{Arc, Mutex};

/// The operations of a step.
pub(super) type StepFn<'f> = Box<dyn FnMut(&[Tensor]) -> Result<Vec<Tensor>> + Send + 'f>;

/// The closure of a step, which a recording and an eager step share.
type SharedStepFn<'f> = Arc<Mutex<StepFn<'f>>>;

/// A closure, captured or eager. [`Captured`] has the cache of recordings.
pub(super) enum Launcher<'f> {
    /// The captured closure, and the closure and the limit of the eager step for a device that cannot capture.
    Captured(Box<Captured<'f>>, SharedStepFn<'f>, usize),
    Eager(EagerStep<'f>),
}

impl<'f> Launcher<'f> {
    /// Creates a launcher of a closure. Nothing is recorded.
    pub(super) fn new(is_eager: bool, options: CaptureOptions, step: StepFn<'f>) -> Launcher<'f> {
        let (step, limit) = (Arc::new(Mutex::new(step)), options.max_recordings);
        if is_eager {
            return Launcher::Eager(EagerStep::new(step, limit, "it was created as an eager step".into()));
        }
        let shared = step.clone();
        let recorded = move |inputs: &[Tensor]| lock(&shared)(inputs);
        Launcher::Captured(Box::new(Captured::unrecorded(options, recorded)), step, limit)
    }

    /// Records the closure for inputs of these shapes and dtypes, unless it is recorded or runs eagerly. Returns true if
    /// it recorded.
    pub(super) fn prepare(&mut self, inputs: &[Tensor]) -> Result<bool> {
        self.or_eagerly(|launcher| match launcher {
            Launcher::Captured(captured, ..) => with_references(inputs, &mut |inputs| captured.prepare(inputs)),
            Launcher::Eager(_) => Ok(false),
        })
    }

    /// Executes the closure, recorded if possible, and returns its outputs. The next launch may overwrite them.
    pub(super) fn launch(&mut self, inputs: &[Tensor]) -> Result<&[Tensor]> {
        self.or_eagerly(|launcher| match launcher {
            Launcher::Captured(captured, ..) => {
                with_references(inputs, &mut |inputs| captured.launch(inputs).map(drop))
            }
            Launcher::Eager(step) => step.run(inputs),
        })?;
        Ok(self.outputs())
    }

    /// Returns the outputs of the latest launch.
    pub(super) fn outputs(&self) -> &[Tensor] {
        match self {
            Launcher::Captured(captured, ..) => captured.outputs().tensors(),
            Launcher::Eager(step) => &step.outputs,
        }
    }

    /// Calls `run`. If the device cannot capture, logs a warning, and runs the closure eagerly now and later.
    fn or_eagerly<R>(&mut self, mut run: impl FnMut(&mut Self) -> Result<R>) -> Result<R> {
        let result = run(self);
        let (Err(Error::DeviceUnavailable { device, reason }), Launcher::Captured(_, step, limit)) = (&result, &*self)
        else {
            return result;
        };
        tracing::warn!(%device, %reason, "the device cannot capture: the step runs eagerly");
        let reason = format!("{device} cannot capture: {reason}");
        *self = Launcher::Eager(EagerStep::new(step.clone(), *limit, reason));
        run(self)
    }

    /// Returns the shape of output `index` of a launch with these inputs; `None` if the launch would record.
    pub(super) fn output_shape(&self, inputs: &[Tensor], index: usize) -> Option<Shape> {
        match self {
            Launcher::Captured(captured, ..) => {
                with_references(inputs, &mut |inputs| captured.output_shapes(inputs)?.nth(index).cloned())
            }
            Launcher::Eager(step) => step.known[step.find(inputs)?].outputs.get(index).cloned(),
        }
    }

    /// Returns the statistics of the recordings. An eager closure counts one for each list of shapes and dtypes.
    pub(super) fn cache_stats(&self) -> CacheStats {
        match self {
            Launcher::Captured(captured, ..) => captured.cache_stats(),
            Launcher::Eager(step) => CacheStats { len: step.known.len(), ..step.stats },
        }
    }

    /// Drops all recordings.
    pub(super) fn drop_recordings(&mut self) {
        match self {
            Launcher::Captured(captured, ..) => captured.drop_recordings(),
            Launcher::Eager(step) => step.known.clear(),
        }
    }

    /// Returns the number of the recording that was launched or prepared last; `None` for a closure that runs eagerly.
    fn latest_recording(&self) -> Option<u64> {
        self.captured()?.recordings().next_back()
    }

    /// Returns the captured step.
    pub(super) fn captured(&self) -> Option<&Captured<'f>> {
        if let Launcher::Captured(captured, ..) = self { Some(captured) } else { None }
    }

    /// Returns the reason why the closure runs eagerly; `None` if it is captured.
    pub(super) fn eager_reason(&self) -> Option<&str> {
        if let Launcher::Eager(step) = self { Some(&step.reason) } else { None }
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
    /// Returns the value of the recording that was launched or prepared last, from `make` if it is new. A closure that
    /// runs eagerly has a new value each time.
    pub(super) fn of_latest(&mut self, launcher: &Launcher<'_>, make: impl FnOnce() -> Result<T>) -> Result<&T> {
        let number = launcher.latest_recording();
        let known = self.0.iter().position(|(known, _)| Some(*known) == number);
        let at = match known {
            Some(at) => at,
            None => {
                let value = make()?;
                let is_kept = |number| launcher.captured().is_some_and(|step| step.recordings().any(|n| n == number));
                self.0.retain(|(known, _)| is_kept(*known));
                self.0.push((number.unwrap_or(0), value));
                self.0.len() - 1
            }
        };
        Ok(&self.0[at].1)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
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

/// A closure that runs eagerly, and the shapes of its runs.
pub(super) struct EagerStep<'f> {
    step: SharedStepFn<'f>,
    reason: String,
    /// The maximum number of known lists of shapes.
    limit: usize,
    /// The shapes that were run; the last used ones are last.
    known: Vec<EagerShapes>,
    outputs: Vec<Tensor>,
    stats: CacheStats,
}

/// The shapes and dtypes of the inputs of an eager run, and the shapes of its outputs.
struct EagerShapes {
    inputs: Vec<(Shape, DType)>,
    outputs: Vec<Shape>,
}

impl<'f> EagerStep<'f> {
    fn new(step: SharedStepFn<'f>, limit: usize, reason: String) -> EagerStep<'f> {
        EagerStep { step, reason, limit, known: Vec::new(), outputs: Vec::new(), stats: CacheStats::default() }
    }

    fn find(&self, inputs: &[Tensor]) -> Option<usize> {
        let same = |((shape, dtype), x): (&(Shape, DType), &Tensor)| shape == x.shape() && *dtype == x.dtype();
        let fits =
            |known: &EagerShapes| known.inputs.len() == inputs.len() && known.inputs.iter().zip(inputs).all(same);
        self.known.iter().position(fits)
    }

    /// Runs the closure, and marks the shapes of its inputs as the most recently used ones. The oldest shapes beyond
    /// `limit` are dropped.
    fn run(&mut self, inputs: &[Tensor]) -> Result<()> {
        if let Some(known) = self.known.last().filter(|known| known.inputs.len() != inputs.len()) {
            return Err(Error::wrong_number_of_inputs(inputs.len(), known.inputs.len()));
        }
        self.outputs = lock(&self.step)(inputs)?;
        let found = self.find(inputs).map(|at| self.known.remove(at));
        *if found.is_some() { &mut self.stats.hits } else { &mut self.stats.misses } += 1;
        let shapes = || inputs.iter().map(|x| (x.shape().clone(), x.dtype())).collect();
        let inputs = found.map_or_else(shapes, |known| known.inputs);
        let outputs = self.outputs.iter().map(|output| output.shape().clone()).collect();
        self.known.push(EagerShapes { inputs, outputs });
        self.known.drain(..self.known.len().saturating_sub(self.limit));
        Ok(())
    }
}
