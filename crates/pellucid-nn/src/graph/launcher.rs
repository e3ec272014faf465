//! A closure that is captured when it is first needed, or runs eagerly on a device without capture.

use super::stream::Stream;
use pellucid_tensor::{
    CacheStats, CaptureOptions, Captured, DType, Device, Error, IntoOutputs, Outputs, Result, Shape, Tensor,
    capture_with, enable_grad,
};
use std::sync::{Arc, Mutex, PoisonError};

/// The operations of a step.
pub(super) type StepFn<'f> = Box<dyn FnMut(&[Tensor]) -> Result<Vec<Tensor>> + Send + 'f>;

/// A closure, and its recordings. [`Captured`] has the cache of recordings; nothing is cached here.
pub(super) struct Launcher<'f> {
    step: Arc<Mutex<StepFn<'f>>>,
    options: CaptureOptions,
    runner: Option<Runner<'f>>,
    /// The number of launches for which the closure was recorded right before, so that they count as hits of the cache.
    prepared: u64,
    /// The statistics of recordings from before the model was moved.
    before: CacheStats,
}

enum Runner<'f> {
    /// The step, and the device of its inputs. After a move of the model, all recordings are dropped.
    Captured(Box<Captured<'f>>, Option<Device>),
    Eager(GraphExecLike<'f>),
}

impl<'f> Launcher<'f> {
    /// Creates a launcher of a closure. Nothing is recorded.
    pub(super) fn new(stream: Option<&Stream>, options: CaptureOptions, step: StepFn<'f>) -> Launcher<'f> {
        let step = Arc::new(Mutex::new(step));
        let runs_eagerly = stream.is_some_and(Stream::is_eager);
        let runner = runs_eagerly.then(|| Runner::Eager(GraphExecLike::of(step.clone(), "its stream is eager".into())));
        Launcher { step, options, runner, prepared: 0, before: CacheStats::default() }
    }

    /// Records the closure for inputs of these shapes and dtypes, unless it is recorded. Returns true if it recorded.
    pub(super) fn prepare(&mut self, inputs: &[Tensor]) -> Result<bool> {
        with_references(inputs, &mut |inputs| self.prepare_for(inputs))
    }

    fn prepare_for(&mut self, inputs: &[&Tensor]) -> Result<bool> {
        if self.is_moved(inputs) {
            self.drop_recordings();
        }
        match &mut self.runner {
            Some(Runner::Captured(captured, _)) => captured.prepare(inputs),
            Some(Runner::Eager(step)) => Ok(step.prepare(inputs, self.options.recordings)),
            None => self.capture(inputs).map(|()| true),
        }
    }

    /// Drops all recordings, but not their statistics.
    pub(super) fn drop_recordings(&mut self) {
        if self.captured().is_some() {
            (self.before, self.runner, self.prepared) = (self.cache(), None, 0);
        }
    }

    /// Counts the next launch, which finds the recording of [`prepare`](Launcher::prepare), as a miss.
    pub(super) fn count_miss(&mut self) {
        self.prepared += 1;
    }

    /// Captures the closure. On a device without capture, logs a warning and keeps the closure for eager runs.
    fn capture(&mut self, inputs: &[&Tensor]) -> Result<()> {
        let step = self.step.clone();
        let recorded = move |inputs: &[Tensor]| (step.lock().unwrap_or_else(PoisonError::into_inner))(inputs);
        self.runner = Some(match capture_with(self.options, recorded, inputs) {
            Ok(captured) => Runner::Captured(Box::new(captured), inputs.first().map(|x| x.device())),
            Err(Error::DeviceUnavailable { device, reason }) => {
                tracing::warn!(%device, %reason, "the device cannot capture: the step runs eagerly");
                let mut step = GraphExecLike::of(self.step.clone(), format!("{device} cannot capture: {reason}"));
                step.prepare(inputs, self.options.recordings);
                Runner::Eager(step)
            }
            Err(error) => return Err(error),
        });
        Ok(())
    }

    fn is_moved(&self, inputs: &[&Tensor]) -> bool {
        matches!(&self.runner, Some(Runner::Captured(_, device)) if *device != inputs.first().map(|x| x.device()))
    }

    /// Captures the closure if it is not captured for the device of these inputs.
    fn ensure_captured(&mut self, inputs: &[Tensor]) -> Result<()> {
        if self.runner.is_none() || with_references(inputs, &mut |inputs| self.is_moved(inputs)) {
            self.prepare(inputs)?;
            self.count_miss();
        }
        Ok(())
    }

    /// Executes the captured closure, and returns its outputs.
    ///
    /// # Errors
    /// [`Error::DeviceUnavailable`] on a device without capture.
    pub(super) fn launch_captured(&mut self, inputs: &[Tensor]) -> Result<Outputs<'_>> {
        self.ensure_captured(inputs)?;
        match self.runner.as_mut().expect("ensure_captured() must have set the runner") {
            Runner::Captured(captured, _) => launch_captured(captured, inputs),
            Runner::Eager(step) => {
                let device = inputs.first().map_or(Device::cpu(), Tensor::device).to_string();
                Err(Error::DeviceUnavailable { device, reason: step.reason.clone() })
            }
        }
    }

    /// Executes the closure, recorded if possible, and returns its outputs. The next launch may overwrite them.
    pub(super) fn launch(&mut self, inputs: &[Tensor]) -> Result<&[Tensor]> {
        self.ensure_captured(inputs)?;
        match self.runner.as_mut().expect("ensure_captured() must have set the runner") {
            Runner::Captured(captured, _) => launch_captured(captured, inputs).map(|outputs| outputs.tensors()),
            Runner::Eager(step) => step.run(inputs, self.options.recordings),
        }
    }

    /// Returns the shape of output `index` of a launch with these inputs; `None` if the launch would record.
    pub(super) fn output_shape(&self, inputs: &[Tensor], index: usize) -> Option<Shape> {
        with_references(inputs, &mut |inputs| match self.runner.as_ref()? {
            Runner::Captured(captured, _) => captured.output_shapes(inputs)?.nth(index).cloned(),
            Runner::Eager(step) => step.known[step.find(inputs)?].1.get(index).cloned(),
        })
    }

    /// Returns the statistics of the recordings. An eager closure counts one for each list of shapes and dtypes.
    pub(super) fn cache(&self) -> CacheStats {
        let CacheStats { hits, misses, held } = match &self.runner {
            Some(Runner::Captured(captured, _)) => captured.cache(),
            Some(Runner::Eager(step)) => CacheStats { held: step.known.len(), ..step.stats },
            None => CacheStats::default(),
        };
        CacheStats {
            hits: self.before.hits + hits.saturating_sub(self.prepared),
            misses: self.before.misses + misses + self.prepared,
            held,
        }
    }

    /// Returns the captured step, once recorded.
    pub(super) fn captured(&self) -> Option<&Captured<'f>> {
        match &self.runner {
            Some(Runner::Captured(captured, _)) => Some(captured),
            _ => None,
        }
    }

    pub(super) fn captured_mut(&mut self) -> Option<&mut Captured<'f>> {
        match &mut self.runner {
            Some(Runner::Captured(captured, _)) => Some(captured),
            _ => None,
        }
    }

    /// Returns the step if it runs eagerly.
    pub(super) fn eager(&self) -> Option<&GraphExecLike<'f>> {
        match &self.runner {
            Some(Runner::Eager(step)) => Some(step),
            _ => None,
        }
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

/// Launches a captured step as [`Captured::launch`] does.
fn launch_captured<'a>(captured: &'a mut Captured<'_>, inputs: &[Tensor]) -> Result<Outputs<'a>> {
    match inputs {
        [] => captured.launch(&[]),
        [a] => captured.launch(&[a]),
        [a, b] => captured.launch(&[a, b]),
        [a, b, c] => captured.launch(&[a, b, c]),
        [a, b, c, d] => captured.launch(&[a, b, c, d]),
        many => captured.launch(&many.iter().collect::<Vec<_>>()),
    }
}

/// A step that runs eagerly: on a device without capture, on an eager stream ([`Stream::eager`]), or because it was
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
pub struct GraphExecLike<'f> {
    step: Arc<Mutex<StepFn<'f>>>,
    reason: String,
    /// Shapes and dtypes of inputs that were run, and then the shapes of the outputs; the last used ones are last.
    known: Vec<(Vec<(Shape, DType)>, Vec<Shape>)>,
    outputs: Vec<Tensor>,
    stats: CacheStats,
}

impl<'f> GraphExecLike<'f> {
    /// Creates a step that calls `step` at each launch.
    pub fn new(mut step: impl FnMut() -> Result<()> + Send + 'f) -> GraphExecLike<'f> {
        let step: StepFn<'f> = Box::new(move |_| step().into_outputs());
        GraphExecLike::of(Arc::new(Mutex::new(step)), "it was created from a closure".into())
    }

    fn of(step: Arc<Mutex<StepFn<'f>>>, reason: String) -> GraphExecLike<'f> {
        GraphExecLike { step, reason, known: Vec::new(), outputs: Vec::new(), stats: CacheStats::default() }
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
        self.run(&[], 1).map(drop)
    }

    fn find(&self, inputs: &[&Tensor]) -> Option<usize> {
        let same = |(known, x): (&(Shape, DType), &&Tensor)| known.0 == *x.shape() && known.1 == x.dtype();
        self.known.iter().position(|(known, _)| known.len() == inputs.len() && known.iter().zip(inputs).all(same))
    }

    /// Keeps the shapes of these inputs as the last used ones. Returns true if they are new.
    fn prepare(&mut self, inputs: &[&Tensor], limit: usize) -> bool {
        let found = self.find(inputs);
        match found {
            Some(at) => self.known[at..].rotate_left(1),
            None => {
                let key = inputs.iter().map(|x| (x.shape().clone(), x.dtype())).collect();
                self.known.push((key, Vec::new()));
                self.known.drain(..self.known.len().saturating_sub(limit));
            }
        }
        found.is_none()
    }

    fn run(&mut self, inputs: &[Tensor], limit: usize) -> Result<&[Tensor]> {
        match with_references(inputs, &mut |inputs| self.prepare(inputs, limit)) {
            true => self.stats.misses += 1,
            false => self.stats.hits += 1,
        }
        self.outputs = (self.step.lock().unwrap_or_else(PoisonError::into_inner))(inputs)?;
        if let Some((_, shapes)) = self.known.last_mut() {
            *shapes = self.outputs.iter().map(|output| output.shape().clone()).collect();
        }
        Ok(&self.outputs)
    }
}
