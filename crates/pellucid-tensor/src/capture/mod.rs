//! `capture`: a step that is recorded once and launched many times.
//!
//! `recording.rs` records a closure, `step.rs` compiles the recording to a plan over storages and launches it,
//! `outputs.rs` reads results, `trace.rs` counts the work of a recording. The passes that optimize a plan are in
//! `pellucid_ir::plan`.

mod outputs;
mod recording;
mod slots;
mod step;
mod trace;

pub use outputs::{IntoOutputs, Outputs};
pub use trace::{KernelWork, placeholder, trace, traced};

use crate::engine::{self, COMPUTED_ELSEWHERE, is_capturing};
use crate::ops::random::ThreadStream;
use crate::tensor::{EntryGradients, Tensor};
use pellucid_ir::plan::{Passes, Plan};
use pellucid_ir::{Error, Result, Shape};
use std::fmt;
use std::marker::PhantomData;
use std::sync::{LazyLock, Mutex, PoisonError};
use step::{CompiledStep, StepKey};

/// The closure of a step, with its type erased.
type RecordedFn<'a> = &'a mut dyn FnMut(&[Tensor]) -> Result<Vec<Tensor>>;

/// Options of [`capture_with`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureOptions {
    /// The passes that optimize the plan. No pass changes a bit of any result.
    pub passes: Passes,
    /// The maximum number of cached recordings, for example for different shapes of the inputs. If the cache is full, a
    /// new recording replaces the least recently used one.
    pub max_recordings: usize,
    /// Whether the CPU packs, at the first launch, the right factors of matrix products if the step only reads them,
    /// such as `f32` and `f64` weights in inference. The packed weights take as much memory as the weights, and all
    /// recordings share them. A launch after a write to a weight packs it again, so a step between updates becomes
    /// slower.
    pub pack_weights: bool,
}

impl Default for CaptureOptions {
    fn default() -> CaptureOptions {
        CaptureOptions { passes: Passes::all(), max_recordings: 8, pack_weights: false }
    }
}

impl CaptureOptions {
    /// Returns the options for a plan that no pass changes.
    fn unchanged() -> CaptureOptions {
        CaptureOptions { passes: Passes::none(), ..CaptureOptions::default() }
    }
}

/// Statistics of the recordings of a captured step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// The number of launches that found a valid recording.
    pub hits: u64,
    /// The number of launches that recorded the step: the first launch of an unrecorded step, and launches with inputs
    /// of new shapes, other values of [host flags](crate::HostFlag), other hooks, or replaced state.
    pub misses: u64,
    /// The number of cached recordings.
    pub len: usize,
}

/// A captured step, which [`launch`](Captured::launch) executes.
///
/// It owns its closure, and a small cache of recordings. The key of a recording consists of the shapes, dtypes and
/// devices of the inputs, the grad mode, the autocast dtype, the values of the [host flags](crate::HostFlag) that the
/// closure reads, and the hooks that it calls. There is no global state.
///
/// # Threads
/// A step is `Send`: it may move to another thread between launches, and a service may hold it in a
/// [`Mutex`](std::sync::Mutex). The launching thread determines grad mode and autocast. Random numbers continue the
/// stream of the thread that recorded the step first, so a move does not change the results. While a step is recorded,
/// other threads may use and change gradients and write tensors of the step. They see the gradients from before the
/// step, and their changes count as changes between two launches. [`capture_local`] accepts closures that are not
/// `Send`.
///
/// A step has one arena, so it runs one launch at a time. To launch on several threads concurrently, capture a step for
/// each of them. The steps share all tensors that they only read, such as weights:
///
/// ```
/// use pellucid::{DType, Tensor, capture};
/// let weight = Tensor::randn([4, 3], DType::F32);
/// let forward = |inputs: &[Tensor]| inputs[0].matmul(&weight).relu();
/// let x = Tensor::randn([2, 4], DType::F32);
/// let expected = forward(&[x.clone()]).to_vec::<f32>();
/// std::thread::scope(|scope| {
///     let serve = || -> pellucid::Result<Vec<f32>> {
///         let mut step = capture(forward, &[&x])?;
///         Ok(step.launch(&[&x])?.to_vec(0))
///     };
///     let threads = [scope.spawn(serve), scope.spawn(serve)];
///     for thread in threads {
///         assert_eq!(thread.join().unwrap()?, expected);
///     }
///     Ok::<(), pellucid::Error>(())
/// })?;
/// # Ok::<(), pellucid::Error>(())
/// ```
pub struct Captured<'f, F: ?Sized = dyn FnMut(&[Tensor]) -> Result<Vec<Tensor>> + Send + 'f> {
    recordings: Recordings,
    lifetime: PhantomData<&'f ()>,
    /// The closure. The mutex is never locked: it only makes the step `Sync`, since a call needs exclusive access.
    step: Mutex<Box<F>>,
}

impl<F: ?Sized> fmt::Debug for Captured<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Captured").field("cache_stats", &self.recordings.stats).finish_non_exhaustive()
    }
}

/// A captured step that stays on its thread, because its closure is not `Send`. [`capture_local`] returns it.
pub type LocalCaptured<'f> = Captured<'f, dyn FnMut(&[Tensor]) -> Result<Vec<Tensor>> + 'f>;

/// The recordings of a step. The type has no type parameters, so its code is compiled once, in this crate.
struct Recordings {
    options: CaptureOptions,
    /// The cached recordings, in the order of their last launch or preparation; the latest is last.
    cached: Vec<CompiledStep>,
    /// The number of recordings so far.
    recorded: u64,
    /// The id of the recording that was launched last.
    launched: Option<u64>,
    launches: u64,
    stats: CacheStats,
    /// The random number stream of the thread that recorded the step first.
    stream: Option<ThreadStream>,
}

/// Records `step` for inputs of these shapes and dtypes, without running it: parameters, optimizer state and generators
/// do not change before the first launch.
///
/// Everything that changes between launches must be a tensor: an input, or a tensor that the step writes in place. Host
/// values are constants of the recording; [`Captured::verify`] detects changed ones. After a launch, a tensor that was
/// created outside the step has the values that the launch wrote and the autograd history that it had before the step.
///
/// ```
/// use pellucid::{capture, DType, Tensor};
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
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// The step may return a [`Result`], so that `?` can be used in it. `capture`, or the launch that records the step
/// again, returns this error:
///
/// ```
/// use pellucid::{Tensor, capture, ops};
/// let x = Tensor::from([3.0f32, 4.0]);
/// let mut step = capture(|inputs| Ok(ops::concatenate(&[&inputs[0], &x], 0)?.square()), &[&x])?;
/// assert_eq!(step.launch(&[&x])?.to_vec::<f32>(0), [9.0, 16.0, 9.0, 16.0]);
/// let row = Tensor::from([[1.0f32]]);
/// assert!(step.launch(&[&row]).is_err());
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// The error that the step returns; [`Error::ReadInCapture`] if the step reads a value, branches on one, or has a shape
/// that depends on one; [`Error::NotAFixedPoint`] if the step removes a gradient that existed before it, or creates a
/// gradient without clearing it first; [`Error::InvalidArgument`] if it writes into an input, if an input requires a
/// gradient, and inside another captured step; any error of an operation in it. Other panics of the step propagate.
#[doc(alias("compile", "CUDAGraph"))]
pub fn capture<'f, O: IntoOutputs>(
    step: impl FnMut(&[Tensor]) -> O + Send + 'f,
    inputs: &[&Tensor],
) -> Result<Captured<'f>> {
    capture_with(CaptureOptions::default(), step, inputs)
}

/// Records a step as [`capture`] does, with options.
///
/// ```
/// use pellucid::{capture_with, CaptureOptions, Tensor, engine::Passes};
/// let x = Tensor::from([1.0f32, 2.0]);
/// let step = |inputs: &[Tensor]| (&inputs[0] * 2.0 + 1.0).exp();
/// let fused = capture_with(CaptureOptions::default(), step, &[&x])?;
/// let passes = Passes::all().without("fuse")?;
/// let plain = capture_with(CaptureOptions { passes, ..Default::default() }, step, &[&x])?;
/// assert_eq!((fused.plan().launches.len(), plain.plan().launches.len()), (1, 3));
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// The errors of [`capture`]; [`Error::InvalidArgument`] if `options.max_recordings` is 0.
pub fn capture_with<'f, O: IntoOutputs>(
    options: CaptureOptions,
    mut step: impl FnMut(&[Tensor]) -> O + Send + 'f,
    inputs: &[&Tensor],
) -> Result<Captured<'f>> {
    let mut step = Box::new(move |inputs: &[Tensor]| step(inputs).into_outputs());
    let recordings = Recordings::new(options, &mut *step, inputs)?;
    Ok(Captured { recordings, lifetime: PhantomData, step: Mutex::new(step) })
}

impl<'f> Captured<'f> {
    /// Creates a captured step without a recording. Its first launch, or [`prepare`](Captured::prepare), records it.
    /// The step always caches at least one recording.
    ///
    /// ```
    /// use pellucid::{CaptureOptions, Captured, Tensor};
    /// let mut step = Captured::unrecorded(CaptureOptions::default(), |inputs| inputs[0].square());
    /// assert_eq!(step.launch(&[&Tensor::from([3.0f32])])?.to_vec::<f32>(0), [9.0]);
    /// assert_eq!((step.cache_stats().misses, step.cache_stats().len), (1, 1));
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    pub fn unrecorded<O: IntoOutputs>(
        options: CaptureOptions,
        mut step: impl FnMut(&[Tensor]) -> O + Send + 'f,
    ) -> Captured<'f> {
        let recordings =
            Recordings::unrecorded(CaptureOptions { max_recordings: options.max_recordings.max(1), ..options });
        let step = Box::new(move |inputs: &[Tensor]| step(inputs).into_outputs());
        Captured { recordings, lifetime: PhantomData, step: Mutex::new(step) }
    }
}

/// Records a step as [`capture`] does, for closures that are not `Send`, for example because they use a
/// [`Cell`](std::cell::Cell) or an [`Rc`](std::rc::Rc). The result stays on its thread.
///
/// ```
/// use pellucid::{Tensor, capture_local};
/// use std::cell::Cell;
/// let (recorded, x) = (Cell::new(0), Tensor::from([1.0f32, 2.0]));
/// let step = |inputs: &[Tensor]| {
///     recorded.set(recorded.get() + 1);
///     inputs[0].square()
/// };
/// let mut step = capture_local(step, &[&x])?;
/// assert_eq!(step.launch(&[&x])?.to_vec::<f32>(0), [1.0, 4.0]);
/// assert_eq!(recorded.get(), 1);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// The errors of [`capture`].
pub fn capture_local<'f, O: IntoOutputs>(
    step: impl FnMut(&[Tensor]) -> O + 'f,
    inputs: &[&Tensor],
) -> Result<LocalCaptured<'f>> {
    capture_local_with(CaptureOptions::default(), step, inputs)
}

/// Records a step as [`capture_local`] does, with options.
///
/// # Errors
/// The errors of [`capture_with`].
pub fn capture_local_with<'f, O: IntoOutputs>(
    options: CaptureOptions,
    mut step: impl FnMut(&[Tensor]) -> O + 'f,
    inputs: &[&Tensor],
) -> Result<LocalCaptured<'f>> {
    let mut step = Box::new(move |inputs: &[Tensor]| step(inputs).into_outputs());
    let recordings = Recordings::new(options, &mut *step, inputs)?;
    Ok(Captured { recordings, lifetime: PhantomData, step: Mutex::new(step) })
}

impl<F: FnMut(&[Tensor]) -> Result<Vec<Tensor>> + ?Sized> Captured<'_, F> {
    /// Executes the step on these inputs. An input that the step only reads, and does not return, is used in place if
    /// it is contiguous and starts at the beginning of its storage. Other inputs are copied into buffers of the step.
    ///
    /// # Errors
    /// [`Error::InputMismatch`] for a different number of inputs, or for an input that was moved away from the device
    /// of the step; [`Error::ReadInCapture`] or [`Error::DeviceMismatch`] for an input that is not on the device of the
    /// tensors that the closure uses; [`Error::InvalidArgument`] for an input that requires a gradient, for an input
    /// that shares memory with a tensor that the step writes before its last read of the input, and inside another
    /// captured step; the error of a kernel that rejects a value, such as an index out of bounds: kernels before it
    /// have then written. The step is recorded again, with the errors of [`capture`], if no cached recording has the
    /// [key](Captured) of this launch, if a gradient has a new storage, or if the closure uses different tensors than
    /// before. A tensor counts as replaced if only recorded steps hold it. In debug builds, launches 2 and 3 run
    /// [`verify`](Captured::verify) first, which may return [`Error::CaptureChanged`].
    pub fn launch(&mut self, inputs: &[&Tensor]) -> Result<Outputs<'_>> {
        self.recordings.launch(closure(&mut self.step), inputs)
    }

    /// Records the step for inputs of these shapes and dtypes, without running a kernel, unless a launch with them
    /// would find a valid recording. Returns true if it recorded. The [statistics](Captured::cache_stats) count neither
    /// a hit nor a miss.
    ///
    /// ```
    /// use pellucid::{DType, Tensor, capture};
    /// let (x, wide) = (Tensor::ones([2], DType::F32), Tensor::ones([3], DType::F32));
    /// let mut step = capture(|inputs| inputs[0].exp(), &[&x])?;
    /// assert!(step.prepare(&[&wide])? && !step.prepare(&[&wide])?);
    /// assert!(step.output_shapes(&[&wide]).is_some());
    /// step.launch(&[&wide])?; // the first launch with this shape does not record
    /// assert_eq!((step.cache_stats().hits, step.cache_stats().misses, step.cache_stats().len), (1, 0, 2));
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`capture`]; [`Error::InputMismatch`] for a different number of inputs.
    pub fn prepare(&mut self, inputs: &[&Tensor]) -> Result<bool> {
        self.recordings.prepare(closure(&mut self.step), inputs)
    }

    /// Returns the outputs of the latest launch. There are none before the first launch, or after the recording of the
    /// latest launch was dropped.
    pub fn outputs(&self) -> Outputs<'_> {
        let Recordings { cached, launched, .. } = &self.recordings;
        let latest = cached.iter().rev().find(|step| Some(step.number()) == *launched);
        Outputs { tensors: latest.map_or(&[], CompiledStep::outputs) }
    }

    /// Returns the identifiers of the cached recordings. The last one was launched or prepared last. Recordings are
    /// numbered in the order of their creation, and no number is used again.
    pub fn recordings(&self) -> impl DoubleEndedIterator<Item = u64> + ExactSizeIterator {
        self.recordings.cached.iter().map(CompiledStep::number)
    }

    /// Drops all recordings. The next launch records the step.
    pub fn drop_recordings(&mut self) {
        self.recordings.cached.clear();
    }

    /// Returns the shapes of the outputs of a launch with these inputs, or `None` if there is no recording for them.
    pub fn output_shapes(&self, inputs: &[&Tensor]) -> Option<impl ExactSizeIterator<Item = &Shape>> {
        let is_valid = |step: &&CompiledStep| step.fits(inputs) && step.has_current_bindings();
        let step = self.recordings.cached.iter().rev().find(is_valid)?;
        Some(step.outputs().iter().map(Tensor::shape))
    }

    /// Records the step again, without running a kernel, and compares the recordings. The new recording starts with the
    /// gradients with which the existing one started, because a launch detects replaced gradients.
    ///
    /// # Errors
    /// [`Error::CaptureChanged`] names the first difference, such as a host value that has changed since the recording.
    pub fn verify(&mut self) -> Result<()> {
        match self.recordings.cached.len().checked_sub(1) {
            Some(last) => self.recordings.verify(closure(&mut self.step), last),
            None => Ok(()),
        }
    }

    /// Returns the plan of the latest recording, or an empty plan if there is no recording. It implements `Display`,
    /// and [`Plan::to_svg`] draws it.
    pub fn plan(&self) -> &Plan {
        static EMPTY: LazyLock<Plan> = LazyLock::new(Plan::default);
        self.recordings.cached.last().map_or(&EMPTY, CompiledStep::plan)
    }

    /// Names a tensor that the step uses. [`plan`](Captured::plan) prints the name until the step is recorded again.
    pub fn name(&mut self, tensor: &Tensor, name: &str) {
        if let Some(latest) = self.recordings.cached.last_mut() {
            latest.name(tensor.storage_id(), name);
        }
    }

    /// Returns the statistics of the recordings.
    pub fn cache_stats(&self) -> CacheStats {
        CacheStats { len: self.recordings.cached.len(), ..self.recordings.stats }
    }
}

impl Recordings {
    fn new(options: CaptureOptions, step: RecordedFn<'_>, inputs: &[&Tensor]) -> Result<Recordings> {
        if options.max_recordings == 0 {
            return Err(Error::invalid("capture", "`max_recordings` must be at least 1, got 0"));
        }
        let mut recordings = Recordings::unrecorded(options);
        recordings.record(step, inputs)?;
        Ok(recordings)
    }

    fn unrecorded(options: CaptureOptions) -> Recordings {
        let stats = CacheStats::default();
        Recordings { options, cached: Vec::new(), recorded: 0, launched: None, launches: 0, stats, stream: None }
    }

    fn launch(&mut self, step: RecordedFn<'_>, inputs: &[&Tensor]) -> Result<Outputs<'_>> {
        if is_capturing() {
            return Err(Error::invalid("launch", "a captured step cannot be launched inside a captured step"));
        }
        // Deferred kernels of this thread may read or write tensors of the step, and hold handles to replaced tensors.
        engine::flush()?;
        self.stream.iter().for_each(ThreadStream::refresh);
        let index = self.find_or_record(step, inputs)?;
        if cfg!(debug_assertions) && (1..3).contains(&self.launches) {
            self.verify(step, index)?;
        }
        self.launches += 1;
        let step = &mut self.cached[index];
        step.launch(inputs)?;
        self.launched = Some(step.number());
        Ok(Outputs { tensors: step.outputs() })
    }

    fn verify(&mut self, step: RecordedFn<'_>, index: usize) -> Result<()> {
        // A gradient that was replaced since the recording, perhaps by another thread, does not count as a difference:
        // the next launch records the step again.
        let (key, entries) = (self.cached[index].key(), self.cached[index].entry_gradients().clone());
        let again = self.compiled(step, key, entries, CaptureOptions::unchanged())?;
        match self.cached[index].difference(&again) {
            Some(difference) => Err(Error::CaptureChanged { difference }),
            None => Ok(()),
        }
    }

    /// Records the step with the random number stream of the thread that recorded it first. Gradient slots start with
    /// their gradients in `entries`, or otherwise with their current ones.
    fn compiled(
        &self,
        step: RecordedFn<'_>,
        key: &StepKey,
        entries: EntryGradients,
        options: CaptureOptions,
    ) -> Result<CompiledStep> {
        let _stream = self.stream.as_ref().map(ThreadStream::enter);
        CompiledStep::record(step, key, entries, options)
    }

    fn prepare(&mut self, step: RecordedFn<'_>, inputs: &[&Tensor]) -> Result<bool> {
        let existing = self.find(step, inputs)?;
        match existing {
            Some(at) => self.cached[at..].rotate_left(1),
            None => _ = self.record(step, inputs).map_err(|error| self.with_moved_input(inputs, error))?,
        }
        Ok(existing.is_none())
    }

    /// Returns the index of a valid recording for these inputs, or `None`. Recordings for these inputs whose gradients
    /// or tensors were replaced are dropped.
    fn find(&mut self, step: RecordedFn<'_>, inputs: &[&Tensor]) -> Result<Option<usize>> {
        check_untracked(inputs)?;
        let expected = self.cached.last().map_or(inputs.len(), |s| s.key().inputs());
        if inputs.len() != expected {
            return Err(Error::wrong_number_of_inputs(inputs.len(), expected));
        }
        self.cached.retain(|step| !step.key().is_key_of(inputs) || step.has_current_bindings());
        let current = self.cached.iter().position(|step| step.fits(inputs) && step.is_current());
        match current {
            Some(at) => Ok(Some(at)),
            None if self.cached.iter().any(|step| step.fits(inputs)) => self.find_still_valid(step, inputs),
            None => Ok(None),
        }
    }

    /// Returns the index of a valid recording for these inputs; records the step if there is none.
    fn find_or_record(&mut self, step: RecordedFn<'_>, inputs: &[&Tensor]) -> Result<usize> {
        if let Some(index) = self.find(step, inputs)? {
            self.stats.hits += 1;
            self.cached[index..].rotate_left(1);
            return Ok(self.cached.len() - 1);
        }
        self.stats.misses += 1;
        self.record(step, inputs).map_err(|error| self.with_moved_input(inputs, error))
    }

    /// Returns the error of a new recording. If it concerns the devices of tensors, and the device of an input has
    /// changed, the error names the input and both devices.
    fn with_moved_input(&self, inputs: &[&Tensor], error: Error) -> Error {
        if !matches!(error, Error::DeviceMismatch { .. } | Error::ReadInCapture { help: COMPUTED_ELSEWHERE, .. }) {
            return error;
        }
        match self.cached.last().and_then(|latest| latest.key().moved_input(inputs)) {
            Some((index, device)) => Error::InputMismatch {
                index,
                got: format!("on {}", inputs[index].device()),
                expected: format!("an input on {device}, the device of the step; move the input with to(device)"),
            },
            None => error,
        }
    }

    /// Finds a recording that is still valid after a `requires_grad` change, by a comparison with a new recording.
    fn find_still_valid(&mut self, step: RecordedFn<'_>, inputs: &[&Tensor]) -> Result<Option<usize>> {
        let again = self.compiled(step, &StepKey::new(inputs), Vec::new(), CaptureOptions::unchanged())?;
        let valid = |step: &CompiledStep| step.fits(inputs) && step.difference(&again).is_none();
        let valid_index = self.cached.iter().position(valid);
        if let Some(index) = valid_index {
            self.cached[index].mark_current();
        }
        Ok(valid_index)
    }

    fn record(&mut self, step: RecordedFn<'_>, inputs: &[&Tensor]) -> Result<usize> {
        check_untracked(inputs)?;
        if is_capturing() {
            return Err(Error::invalid("capture", "a step cannot be captured inside a captured step"));
        }
        self.stream.get_or_insert_with(ThreadStream::current);
        let mut step = self.compiled(step, &StepKey::new(inputs), Vec::new(), self.options)?;
        self.recorded += 1;
        step.set_number(self.recorded);
        // A recording that depends on a removed hook never becomes valid again.
        self.cached.retain(CompiledStep::can_match_again);
        if self.cached.len() == self.options.max_recordings {
            self.cached.remove(0);
        }
        tracing::debug!(
            inputs = inputs.len(),
            kernels = step.plan().launches.len(),
            recordings = self.cached.len() + 1,
            "captured a step"
        );
        self.cached.push(step);
        Ok(self.cached.len() - 1)
    }
}

/// Returns the closure of a step.
fn closure<F: ?Sized>(step: &mut Mutex<Box<F>>) -> &mut Box<F> {
    step.get_mut().unwrap_or_else(PoisonError::into_inner)
}

/// Rejects inputs that require a gradient, because a launch computes no gradients of its inputs.
fn check_untracked(inputs: &[&Tensor]) -> Result<()> {
    let Some(input) = inputs.iter().find(|x| x.requires_grad()) else { return Ok(()) };
    let reason = format!(
        "an input of shape {} requires a gradient, and a captured step computes none for its inputs; detach() it, or \
         use it in the step as a captured variable",
        input.shape()
    );
    Err(Error::invalid("capture", reason))
}
