//! A closure that is captured, or runs eagerly on a device without capture.

use pellucid_tensor::{
    CacheStats, CaptureOptions, Captured, DType, Error, IntoOutputs, Result, Shape, Tensor, enable_grad, lock,
};
use std::sync::{Arc, Mutex};

/// The operations of a step.
pub(super) type StepFn<'f> = Box<dyn FnMut(&[Tensor]) -> Result<Vec<Tensor>> + Send + 'f>;

/// A closure, captured or eager. [`Captured`] has the cache of recordings.
pub(super) enum Launcher<'f> {
    /// The captured closure, and the step for a device that cannot capture.
    Captured(Box<Captured<'f>>, EagerStep<'f>),
    Eager(EagerStep<'f>),
}

impl<'f> Launcher<'f> {
    /// Creates a launcher of a closure. Nothing is recorded.
    pub(super) fn new(is_eager: bool, options: CaptureOptions, step: StepFn<'f>) -> Launcher<'f> {
        let eager = EagerStep::of(step, options.max_recordings);
        if is_eager {
            return Launcher::Eager(eager.with_reason("its options set `eager`".into()));
        }
        let step = eager.step.clone();
        let recorded = move |inputs: &[Tensor]| lock(&step)(inputs);
        Launcher::Captured(Box::new(Captured::unrecorded(options, recorded)), eager)
    }

    /// Records the closure for inputs of these shapes and dtypes, unless it is recorded. Returns true if it recorded.
    pub(super) fn prepare(&mut self, inputs: &[Tensor]) -> Result<bool> {
        self.or_eagerly(|launcher| match launcher {
            Launcher::Captured(captured, _) => with_references(inputs, &mut |inputs| captured.prepare(inputs)),
            Launcher::Eager(step) => step.prepare(inputs),
        })
    }

    /// Executes the closure, recorded if possible, and returns its outputs. The next launch may overwrite them.
    pub(super) fn launch(&mut self, inputs: &[Tensor]) -> Result<&[Tensor]> {
        self.or_eagerly(|launcher| match launcher {
            Launcher::Captured(captured, _) => with_references(inputs, &mut |inputs| captured.launch(inputs).map(drop)),
            Launcher::Eager(step) => step.run(inputs),
        })?;
        Ok(self.outputs())
    }

    /// Returns the outputs of the latest launch.
    pub(super) fn outputs(&self) -> &[Tensor] {
        match self {
            Launcher::Captured(captured, _) => captured.outputs().tensors(),
            Launcher::Eager(step) => &step.outputs,
        }
    }

    /// Calls `run`. If the device cannot capture, logs a warning, and runs the closure eagerly now and later.
    fn or_eagerly<R>(&mut self, mut run: impl FnMut(&mut Self) -> Result<R>) -> Result<R> {
        let result = run(self);
        let (Err(Error::DeviceUnavailable { device, reason }), Launcher::Captured(_, eager)) = (&result, &*self) else {
            return result;
        };
        tracing::warn!(%device, %reason, "the device cannot capture: the step runs eagerly");
        let reason = format!("{device} cannot capture: {reason}");
        *self = Launcher::Eager(eager.with_reason(reason));
        run(self)
    }

    /// Returns the shape of output `index` of a launch with these inputs; `None` if the launch would record.
    pub(super) fn output_shape(&self, inputs: &[Tensor], index: usize) -> Option<Shape> {
        match self {
            Launcher::Captured(captured, _) => {
                with_references(inputs, &mut |inputs| captured.output_shapes(inputs)?.nth(index).cloned())
            }
            Launcher::Eager(step) => step.known[step.find(inputs)?].outputs.get(index).cloned(),
        }
    }

    /// Returns the statistics of the recordings. An eager closure counts one for each list of shapes and dtypes.
    pub(super) fn cache_stats(&self) -> CacheStats {
        match self {
            Launcher::Captured(captured, _) => captured.cache_stats(),
            Launcher::Eager(step) => CacheStats { len: step.known.len(), ..step.stats },
        }
    }

    /// Drops all recordings.
    pub(super) fn drop_recordings(&mut self) {
        match self {
            Launcher::Captured(captured, _) => captured.drop_recordings(),
            Launcher::Eager(step) => step.known.clear(),
        }
    }

    /// Returns the number of the recording that was launched or prepared last; `None` for a closure that runs eagerly.
    fn latest_recording(&self) -> Option<u64> {
        self.captured()?.recordings().next_back()
    }

    /// Returns the captured step.
    pub(super) fn captured(&self) -> Option<&Captured<'f>> {
        if let Launcher::Captured(captured, _) = self { Some(captured) } else { None }
    }

    pub(super) fn captured_mut(&mut self) -> Option<&mut Captured<'f>> {
        if let Launcher::Captured(captured, _) = self { Some(captured) } else { None }
    }

    /// Returns the step if it runs eagerly.
    pub(super) fn eager(&self) -> Option<&EagerStep<'f>> {
        if let Launcher::Eager(step) = self { Some(step) } else { None }
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

/// A step that runs eagerly: on a device without capture, because its options set `eager`, or because it was
/// created from a closure.
///
/// ```
/// use pellucid::nn::graph::mirror::GraphExecLike;
/// let mut launches = 0;
/// let mut step = GraphExecLike::new(|| {
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
    step: Arc<Mutex<StepFn<'f>>>,
    reason: String,
    /// The maximum number of known lists of shapes.
    limit: usize,
    /// The shapes that were run; the last used ones are last.
    known: Vec<EagerShapes>,
    outputs: Vec<Tensor>,
    stats: CacheStats,
}

/// The shapes and dtypes of the inputs of an eager step, and the shapes of its outputs.
struct EagerShapes {
    inputs: Vec<(Shape, DType)>,
    /// Empty before the first run.
    outputs: Vec<Shape>,
}

impl<'f> EagerStep<'f> {
    /// Creates a step that calls `step` at each launch.
    pub fn new(mut step: impl FnMut() -> Result<()> + Send + 'f) -> EagerStep<'f> {
        EagerStep::of(Box::new(move |_| step().into_outputs()), 1)
    }

    fn of(step: StepFn<'f>, limit: usize) -> EagerStep<'f> {
        let (step, reason) = (Arc::new(Mutex::new(step)), "it was created from a closure".into());
        EagerStep { step, reason, limit, known: Vec::new(), outputs: Vec::new(), stats: CacheStats::default() }
    }

    /// Returns this step without results, and with a reason for its eager runs.
    fn with_reason(&self, reason: String) -> EagerStep<'f> {
        let (step, limit, stats) = (self.step.clone(), self.limit, CacheStats::default());
        EagerStep { step, reason, limit, known: Vec::new(), outputs: Vec::new(), stats }
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
        self.run(&[])
    }

    fn find(&self, inputs: &[Tensor]) -> Option<usize> {
        let same = |((shape, dtype), x): (&(Shape, DType), &Tensor)| shape == x.shape() && *dtype == x.dtype();
        let fits =
            |known: &EagerShapes| known.inputs.len() == inputs.len() && known.inputs.iter().zip(inputs).all(same);
        self.known.iter().position(fits)
    }

    /// Returns an error for another number of inputs than before.
    fn check_number(&self, inputs: &[Tensor]) -> Result<()> {
        match self.known.last() {
            Some(known) if known.inputs.len() != inputs.len() => {
                Err(Error::wrong_number_of_inputs(inputs.len(), known.inputs.len()))
            }
            _ => Ok(()),
        }
    }

    /// Marks the shapes of these inputs as the most recently used ones, and drops the oldest beyond `limit`. Returns
    /// true if they are new.
    fn prepare(&mut self, inputs: &[Tensor]) -> Result<bool> {
        self.check_number(inputs)?;
        let found = self.find(inputs);
        match found {
            Some(at) => self.known[at..].rotate_left(1),
            None => {
                let inputs = inputs.iter().map(|x| (x.shape().clone(), x.dtype())).collect();
                self.known.push(EagerShapes { inputs, outputs: Vec::new() });
                self.known.drain(..self.known.len().saturating_sub(self.limit));
            }
        }
        Ok(found.is_none())
    }

    fn run(&mut self, inputs: &[Tensor]) -> Result<()> {
        self.check_number(inputs)?;
        match self.find(inputs) {
            None => self.stats.misses += 1,
            Some(_) => self.stats.hits += 1,
        }
        self.outputs = lock(&self.step)(inputs)?;
        self.prepare(inputs)?;
        if let Some(last) = self.known.last_mut() {
            last.outputs = self.outputs.iter().map(|output| output.shape().clone()).collect();
        }
        Ok(())
    }
}
