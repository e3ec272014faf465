//! `capture`: a step recorded once and launched many times.
//!
//! Read on in `recording.rs` (how a closure is recorded), `step.rs` (how the recording becomes a plan over
//! storages, and is launched) and `outputs.rs`. What makes a plan small and quick lies below, in `pellucid_ir::plan`.

mod outputs;
mod recording;
mod step;

pub use outputs::{IntoOutputs, Outputs};
pub(super) use recording::recorded;

use super::{MODE, Mode};
use crate::array::StorageId;
use crate::tensor::Tensor;
use pellucid_ir::plan::{Elision, Passes, Place, Plan};
use pellucid_ir::{Error, Result};
use step::{Key, Step};

type Closure<'f> = Box<dyn FnMut(&[Tensor]) -> Vec<Tensor> + 'f>;

/// How a step is captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureOptions {
    /// What is done to the plan. No pass changes a bit of any result.
    pub passes: Passes,
    /// Recordings that are kept for different shapes of the inputs; the one that was not launched for longest goes first.
    pub recordings: usize,
}

impl Default for CaptureOptions {
    fn default() -> CaptureOptions {
        CaptureOptions { passes: Passes::all(), recordings: 8 }
    }
}

/// How often a launch found a recording for its inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Launches that found one.
    pub hits: u64,
    /// Launches that had to record: for inputs of new shapes, other [switches](crate::HostFlag), or state that was replaced.
    pub misses: u64,
    /// Recordings that are kept now.
    pub held: usize,
}

/// Where a tensor of a captured step lies.
#[derive(Clone, Debug, PartialEq)]
pub enum Placement {
    /// In memory of its own, outside of the step.
    Outside,
    /// In the step's arena.
    Arena(Place),
    /// In a buffer of the step's own (if the pass `arena` is switched off).
    Buffer,
    /// Nowhere: it needs no memory.
    Elided(Elision),
    /// The step does not know it.
    Unknown,
}

/// A recorded step: [`launch`](Captured::launch) executes it.
///
/// It owns its closure, and a small cache of recordings keyed by the inputs' shapes and dtypes, by grad mode and by the
/// [switches](crate::HostFlag) that the closure reads; nothing is global.
pub struct Captured<'f> {
    step: Closure<'f>,
    options: CaptureOptions,
    /// The latest launched is the last.
    recordings: Vec<Step>,
    launches: u64,
    stats: CacheStats,
}

/// Records `step` for inputs of these shapes and dtypes. No kernel runs: parameters, optimizer state
/// and generators are untouched until the first launch.
///
/// Everything that changes between launches must be a tensor: inputs, and what the step writes in
/// place. Numbers of the host are part of the recording ([`Captured::verify`] finds them). The history of a write in place
/// ends with the step: a tensor of outside has the values that a launch has written, and the history that it had before.
///
/// ```
/// use pellucid_tensor::{capture, DType, Tensor};
/// let total = Tensor::zeros([2], DType::F32);
/// let x = Tensor::from([1.0f32, 2.0]);
/// let mut step = capture(
///     |inputs| {
///         let sum = &total + &inputs[0];
///         total.copy_(&sum);
///         sum * 10.0
///     },
///     &[&x],
/// )?;
/// assert_eq!(total.to_vec::<f32>(), [0.0, 0.0]);
/// assert_eq!(step.launch(&[&x])?.to_vec::<f32>(0), [10.0, 20.0]);
/// assert_eq!(step.launch(&[&x])?.to_vec::<f32>(0), [20.0, 40.0]);
/// # Ok::<(), pellucid_tensor::Error>(())
/// ```
///
/// # Errors
/// [`Error::ReadInCapture`] if the step reads a value, branches on one, or has a shape depend on one;
/// [`Error::NotAFixedPoint`] if it does not leave gradients as it found them; [`Error::InvalidArgument`] if it writes in place
/// into an input; any error of an operation in it. Any other panic of the step goes on.
pub fn capture<'f, O: IntoOutputs>(step: impl FnMut(&[Tensor]) -> O + 'f, inputs: &[&Tensor]) -> Result<Captured<'f>> {
    capture_with(CaptureOptions::default(), step, inputs)
}

/// [`capture`] with options.
///
/// ```
/// use pellucid_tensor::{capture_with, CaptureOptions, Passes, Tensor};
/// let x = Tensor::from([1.0f32, 2.0]);
/// let step = |inputs: &[Tensor]| (&inputs[0] * 2.0 + 1.0).exp();
/// let fused = capture_with(CaptureOptions::default(), step, &[&x])?;
/// let passes = Passes::all().without("fuse")?;
/// let plain = capture_with(CaptureOptions { passes, ..Default::default() }, step, &[&x])?;
/// assert_eq!((fused.plan().launches.len(), plain.plan().launches.len()), (1, 3));
/// # Ok::<(), pellucid_tensor::Error>(())
/// ```
///
/// # Errors
/// Those of [`capture`]; [`Error::InvalidArgument`] if no recording may be kept.
pub fn capture_with<'f, O: IntoOutputs>(
    options: CaptureOptions,
    mut step: impl FnMut(&[Tensor]) -> O + 'f,
    inputs: &[&Tensor],
) -> Result<Captured<'f>> {
    if options.recordings == 0 {
        return Err(Error::invalid("capture", "`recordings` must be at least 1"));
    }
    let step = Box::new(move |inputs: &[Tensor]| step(inputs).into_outputs());
    let mut captured = Captured { step, options, recordings: Vec::new(), launches: 0, stats: CacheStats::default() };
    captured.record(inputs)?;
    Ok(captured)
}

impl Captured<'_> {
    /// Executes the step on these inputs. What the step only reads, and is contiguous from the start of its storage on, is
    /// read where it lies; the values of other inputs are copied into the step's own buffers.
    ///
    /// # Errors
    /// [`Error::InputMismatch`] for another number of inputs; [`Error::InvalidArgument`] for an input that shares memory with
    /// a tensor which the step writes in place before it reads the input. Other shapes or dtypes, gradients that were bound to other
    /// storage since, and tensors that the closure has replaced by others record the step again, with its errors: a tensor
    /// counts as replaced when nobody but recorded steps holds it any more.
    /// [`Error::CaptureChanged`] in debug builds, which [`verify`](Captured::verify) before launches 2 and 3.
    pub fn launch(&mut self, inputs: &[&Tensor]) -> Result<Outputs<'_>> {
        if MODE.get() == Mode::Capture {
            return Err(Error::invalid("launch", "a captured step cannot be launched inside a captured step"));
        }
        crate::random::refresh();
        let at = self.recording_for(inputs)?;
        if cfg!(debug_assertions) && (1..3).contains(&self.launches) {
            self.compare(at)?;
        }
        self.launches += 1;
        let step = &mut self.recordings[at];
        step.launch(inputs)?;
        Ok(Outputs { arrays: step.outputs() })
    }

    /// Records the step again, without running a kernel, and compares.
    ///
    /// # Errors
    /// [`Error::CaptureChanged`] names the first difference: a number of the host that was baked in
    /// and has changed since.
    pub fn verify(&mut self) -> Result<()> {
        self.compare(self.recordings.len() - 1)
    }

    /// The plan of the recording that was made or launched last. It prints itself, and draws itself
    /// ([`Plan::to_svg`]).
    pub fn plan(&self) -> &Plan {
        self.latest().plan()
    }

    /// Gives a tensor that the step uses a name, under which [`plan`](Captured::plan) prints it until a launch records
    /// again.
    pub fn name(&mut self, tensor: &Tensor, name: &str) {
        self.recordings.last_mut().expect("a captured step has a recording").name(tensor.storage_id(), name);
    }

    /// Where a tensor ([`Tensor::storage_id`]) that the closure made, used or was given lies, by the latest recording's plan.
    pub fn placement(&self, id: StorageId) -> Placement {
        self.latest().placement(id)
    }

    /// How often launches found a recording.
    pub fn cache(&self) -> CacheStats {
        CacheStats { held: self.recordings.len(), ..self.stats }
    }

    fn latest(&self) -> &Step {
        self.recordings.last().expect("a captured step has a recording")
    }

    fn compare(&mut self, at: usize) -> Result<()> {
        let again = Step::record(&mut self.step, self.recordings[at].key(), Passes::none())?;
        match self.recordings[at].difference(&again) {
            Some(difference) => Err(Error::CaptureChanged { difference }),
            None => Ok(()),
        }
    }

    /// The recording for these inputs, made if there is none that still holds.
    fn recording_for(&mut self, inputs: &[&Tensor]) -> Result<usize> {
        untracked(inputs)?;
        let expected = self.recordings.last().map_or(inputs.len(), |s| s.key().inputs());
        if inputs.len() != expected {
            let index = inputs.len().min(expected);
            let (got, expected) = (format!("one of {} inputs", inputs.len()), format!("{expected} inputs"));
            return Err(Error::InputMismatch { index, got, expected });
        }
        self.recordings.retain(|step| !step.key().fits(inputs) || step.still_bound());
        let fits = |step: &Step| step.key().fits(inputs) && step.flags_match();
        let current = self.recordings.iter().position(|step| fits(step) && step.is_current());
        let found = match current {
            Some(at) => Some(at),
            None if self.recordings.iter().any(fits) => self.still_valid(inputs)?,
            None => None,
        };
        if let Some(at) = found {
            self.stats.hits += 1;
            self.recordings[at..].rotate_left(1);
            return Ok(self.recordings.len() - 1);
        }
        self.stats.misses += 1;
        self.record(inputs)
    }

    /// A tensor came to require a gradient, or ceased to, since there was a recording for these inputs: which of them still
    /// holds, by what the step would record now.
    fn still_valid(&mut self, inputs: &[&Tensor]) -> Result<Option<usize>> {
        let again = Step::record(&mut self.step, &Key::of(inputs), Passes::none())?;
        let valid = |step: &Step| step.key().fits(inputs) && step.flags_match() && step.difference(&again).is_none();
        let found = self.recordings.iter().position(valid);
        if let Some(at) = found {
            self.recordings[at].mark_current();
        }
        Ok(found)
    }

    fn record(&mut self, inputs: &[&Tensor]) -> Result<usize> {
        untracked(inputs)?;
        if MODE.get() == Mode::Capture {
            return Err(Error::invalid("capture", "a step cannot be captured inside a captured step"));
        }
        let step = Step::record(&mut self.step, &Key::of(inputs), self.options.passes)?;
        if self.recordings.len() == self.options.recordings {
            self.recordings.remove(0);
        }
        self.recordings.push(step);
        Ok(self.recordings.len() - 1)
    }
}

/// Refuses inputs that a step would have to give a gradient.
fn untracked(inputs: &[&Tensor]) -> Result<()> {
    let Some(input) = inputs.iter().find(|x| x.requires_grad()) else { return Ok(()) };
    let reason = format!(
        "an input of shape {} requires a gradient, and a captured step would give it none; detach() it, or let the step \
         close over the tensor",
        input.shape()
    );
    Err(Error::invalid("capture", reason))
}
