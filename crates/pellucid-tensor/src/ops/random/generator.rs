//! Random number generators. Their state, a key and a counter, is stored on the device that draws.
//!
//! The process has one seed. Every thread that draws without an explicit generator has a stream with a separate key. So
//! no two threads draw the same numbers. A thread uses the lock of the seed only in its first draw after a change of
//! the seed. [`manual_seed`] changes the seed and increments its generation. Before a thread draws, it compares this
//! generation with the generation of its stream, by one atomic load.

use crate::device::Device;
use crate::engine;
use crate::ops::elementwise::arithmetic;
use crate::ops::formula::user;
use crate::ops::index::in_place;
use crate::ops::primitive::copy;
use crate::panic::unwrap;
use crate::tensor::Tensor;
use pellucid_derive::panicking_form;
use pellucid_ir::{DType, Error, Result, formula, lock};
use std::cell::RefCell;
use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::Thread;

/// A stream of random numbers (Philox 4×32-10; Salmon et al. 2011). It is the same on every device and for every number
/// of threads. Its state is an `i64 [2]` tensor, (key, counter). Every draw reads and advances it on the device, so a
/// replayed step continues the stream. Clones share the stream.
///
/// Every device has a separate counter, which starts at 0: draws on one device do not advance the stream on another.
#[derive(Clone, Debug)]
pub struct Generator {
    /// The state on the CPU.
    state: Tensor,
    /// The states on other devices on which the generator has drawn.
    others: Arc<Mutex<DeviceStates>>,
    /// The records to which this handle adds the state of a device, before the first draw on the device.
    records: Vec<StateRecord>,
}

type DeviceStates = Vec<(Device, Tensor)>;

/// The states of a generator on the devices of a computation, before the first draw on each device.
#[derive(Clone, Debug, Default)]
pub(crate) struct StateRecord(Arc<Mutex<DeviceStates>>);

impl StateRecord {
    fn lock(&self) -> MutexGuard<'_, DeviceStates> {
        lock(&self.0)
    }

    /// Adds a copy of the state of a device, unless the record has one.
    fn add(&self, device: Device, state: &Tensor) -> Result<()> {
        if self.lock().iter().all(|(other, _)| *other != device) {
            let copy = copy::copy(state)?;
            self.lock().push((device, copy));
        }
        Ok(())
    }
}

impl Generator {
    /// Creates the stream with the key `seed`, at its start. A generator that is created inside a captured step
    /// restarts in every launch.
    pub fn new(seed: u64) -> Generator {
        Generator::from_states(Tensor::from([seed as i64, 0]), Vec::new())
    }

    /// Creates a generator that continues at these states, on the CPU and on other devices. Draws advance the given
    /// tensors.
    fn from_states(state: Tensor, others: DeviceStates) -> Generator {
        Generator { state, others: Arc::new(Mutex::new(others)), records: Vec::new() }
    }

    /// Returns a handle to this generator that adds the state of each device to `record` before the first draw on the
    /// device. So a step on one device does not copy the states of other devices.
    pub(crate) fn recorded(&self, record: &StateRecord) -> Generator {
        let records = self.records.iter().chain([record]).cloned().collect();
        Generator { records, ..self.clone() }
    }

    /// Returns a generator that continues at the recorded states, without advancing them. On the CPU without a recorded
    /// state, it shares the state of this generator. On any other device without one, it starts at counter 0 with the
    /// key of the CPU state.
    pub(crate) fn at_states(&self, record: &StateRecord) -> Result<Generator> {
        let copied = |(device, state): &(Device, Tensor)| Ok((*device, copy::copy(state)?));
        let (mut cpu, others): (DeviceStates, DeviceStates) = record
            .lock()
            .iter()
            .map(copied)
            .collect::<Result<DeviceStates>>()?
            .into_iter()
            .partition(|(d, _)| d.is_cpu());
        let state = cpu.pop().map_or_else(|| self.state.clone(), |(_, state)| state);
        Ok(Generator::from_states(state, others))
    }

    fn lock(&self) -> MutexGuard<'_, DeviceStates> {
        lock(&self.others)
    }

    /// Returns the state on the CPU, (key, counter), as an `i64 [2]` tensor.
    pub fn state(&self) -> &Tensor {
        &self.state
    }

    /// Returns the state on a device, (key, counter), as an `i64 [2]` tensor there. The first call for a device copies
    /// the key and starts the counter at 0.
    ///
    /// # Errors
    /// The errors of the device.
    pub fn state_on(&self, device: Device) -> Result<Tensor> {
        let state = self.own_state_on(device)?;
        self.records.iter().try_for_each(|record| record.add(device, &state))?;
        Ok(state)
    }

    fn own_state_on(&self, device: Device) -> Result<Tensor> {
        if device.is_cpu() {
            return Ok(self.state.clone());
        }
        let mut others = self.lock();
        if let Some((_, state)) = others.iter().find(|(other, _)| *other == device) {
            return Ok(state.clone());
        }
        // The state is created in eager mode, so that it continues from launch to launch, even if a captured step draws
        // first.
        let state = engine::eager(|| start_of(&self.state)?.try_to(device))?;
        others.push((device, state.clone()));
        Ok(state)
    }

    /// Returns the states on the CPU, which is first, and on all devices on which the generator has drawn.
    pub fn states(&self) -> Vec<(Device, Tensor)> {
        let others = self.lock();
        [(Device::cpu(), self.state.clone())].into_iter().chain(others.iter().cloned()).collect()
    }

    /// Continues the stream at a state (key, counter): an `i64 [2]` tensor that [`state`](Generator::state) returned
    /// earlier, possibly in another process. The state is written in place, so a captured step also continues there. On
    /// other devices the stream restarts with this key; [`set_states`](Generator::set_states) sets their counters.
    ///
    /// ```
    /// use pellucid::{DType, Generator, ops};
    /// let generator = Generator::new(7);
    /// let saved = generator.state().copy();
    /// let first = ops::rand_with([3], DType::F32, &generator)?.to_vec::<f32>();
    /// generator.set_state(&saved)?;
    /// assert_eq!(ops::rand_with([3], DType::F32, &generator)?.to_vec::<f32>(), first);
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// The generator of the current thread is `Generator::default()`. [`manual_seed`] in any thread replaces its state.
    ///
    /// # Errors
    /// The errors of [`set_states`](Generator::set_states).
    pub fn set_state(&self, state: &Tensor) -> Result<()> {
        self.set_states(&[(Device::cpu(), state.clone())])
    }

    /// Continues the stream on each listed device at the given state, as returned by [`states`](Generator::states). On
    /// any other device, the stream restarts with the key of the state on the CPU.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] or [`Error::DTypeMismatch`] for a state that is not `i64 [2]`;
    /// [`Error::InvalidArgument`] without a state on the CPU, and while a step is captured; the errors of the devices.
    /// On error nothing is changed.
    pub fn set_states(&self, states: &[(Device, Tensor)]) -> Result<()> {
        self.prepare_states(states)?.iter().try_for_each(|(state, value)| in_place::copy_(state, value))
    }

    /// Checks states, and returns the tensors that [`set_states`](Generator::set_states) writes with their new values.
    ///
    /// # Errors
    /// The errors of [`set_states`](Generator::set_states).
    pub fn prepare_states(&self, states: &[(Device, Tensor)]) -> Result<Vec<(Tensor, Tensor)>> {
        let op = "set_state";
        if engine::is_capturing() {
            let reason = "every launch of a captured step would set the state again; set it outside the step";
            return Err(Error::invalid(op, reason));
        }
        for (_, state) in states {
            let help = "the state of a generator is an i64 tensor of shape [2]: (key, counter)";
            if state.shape().dims() != [2] {
                return Err(Error::shapes(op, [state.shape()], help));
            }
            if state.dtype() != DType::I64 {
                return Err(Error::dtypes(op, [state.dtype()], help));
            }
        }
        let new_state = |device: Device| states.iter().find(|(other, _)| *other == device).map(|(_, state)| state);
        let Some(cpu) = new_state(Device::cpu()) else {
            let reason = "the states must include the state on the CPU, which determines the key on other devices";
            return Err(Error::invalid(op, reason));
        };
        for (device, _) in states {
            self.state_on(*device)?;
        }
        let start = start_of(&cpu.try_to(Device::cpu())?)?;
        let value = |(device, state): (Device, Tensor)| {
            Ok((state, copy::copy(new_state(device).unwrap_or(&start))?.try_to(device)?))
        };
        self.states().into_iter().map(value).collect()
    }

    /// Resets all devices to counter 0 of the stream `key`.
    fn restart(&self, key: u64) -> Result<()> {
        self.set_state(&Tensor::from([key as i64, 0]))
    }

    /// Restarts the stream with the key `seed` on all devices.
    ///
    /// # Errors
    /// The errors of [`set_states`](Generator::set_states).
    #[panicking_form]
    pub fn try_reseed(&self, seed: u64) -> Result<()> {
        self.restart(seed)
    }

    /// Returns a generator of another stream, at its start. The stream depends only on this generator's key and on
    /// `key`, not on the number of earlier draws. Forks with equal keys have equal streams, and forks with different
    /// keys have different streams.
    ///
    /// Use it for draws on several threads that must not depend on their order: fork one generator for each task, with
    /// the index of the task as the key. Pass the generator to the task, or draw in its [`scope`](Generator::scope).
    ///
    /// ```
    /// use pellucid::{DType, Generator, ops};
    /// let generator = Generator::new(7);
    /// let draw = |task: u64| {
    ///     let generator = generator.fork(task);
    ///     move || ops::rand_with([3], DType::F32, &generator).map(|x| x.to_vec::<f32>())
    /// };
    /// let drawn: Vec<_> = [0, 1, 0].map(|task| std::thread::spawn(draw(task))).into_iter().collect();
    /// let drawn: Vec<_> = drawn.into_iter().map(|task| task.join().unwrap()).collect::<Result<_, _>>()?;
    /// assert_eq!(drawn[0], drawn[2]);
    /// assert_ne!(drawn[0], drawn[1]);
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    #[panicking_form]
    pub fn try_fork(&self, key: u64) -> Result<Generator> {
        Ok(Generator::from_states(fork_state(&self.state, key)?, Vec::new()))
    }

    /// Makes this the generator of the current thread until the guard is dropped. Operations without an explicit
    /// generator draw from it, and [`manual_seed`] restarts it instead of the process's random numbers.
    ///
    /// ```
    /// use pellucid::{DType, Generator, Tensor};
    /// let draw = || {
    ///     let _scope = Generator::new(7).scope();
    ///     Tensor::rand([3], DType::F32).to_vec::<f32>()
    /// };
    /// assert_eq!(draw(), draw());
    /// ```
    pub fn scope(&self) -> GeneratorScope {
        let number = LOCAL.with_borrow_mut(|local| {
            let number = local.scopes.last().map_or(0, |(number, _)| number + 1);
            local.scopes.push((number, self.clone()));
            number
        });
        GeneratorScope { number, _not_send: PhantomData }
    }
}

impl Default for Generator {
    /// Returns the generator of the current thread, from which operations without an explicit generator draw. This is
    /// the generator of the innermost [`scope`](Generator::scope). Outside of scopes, it is the stream that the
    /// process's seed assigns to the thread (see [`manual_seed`]).
    fn default() -> Generator {
        LOCAL.with_borrow_mut(|local| match local.scopes.last() {
            Some((_, generator)) => generator.clone(),
            None => local.current_stream().clone(),
        })
    }
}

/// Guard that ends a [`Generator::scope`] when it is dropped.
#[must_use = "the scope lasts as long as the guard: let _scope = generator.scope();"]
#[derive(Debug)]
pub struct GeneratorScope {
    number: u64,
    /// The scope is thread-local, so the guard must not be sent to another thread.
    _not_send: PhantomData<*const ()>,
}

impl Drop for GeneratorScope {
    fn drop(&mut self) {
        // The thread-local may be destroyed already if the thread is ending.
        let _ = LOCAL.try_with(|local| local.borrow_mut().scopes.retain(|(number, _)| *number != self.number));
    }
}

/// Sets the seed of the process and restarts the random numbers of all threads. The current thread restarts
/// immediately, other threads at their next draw or launch of a captured step. Inside a [`Generator::scope`], only the
/// generator of the scope restarts.
///
/// The current thread continues with the stream of [`Generator::new`]`(seed)`. Every other thread gets a separate
/// stream, whose key is derived from the seed and the thread's name. Threads without a name, or with equal names, are
/// distinguished by the order of their first draws. A captured step keeps the stream of the thread that first recorded
/// it, even when it moves to another thread. Use [`Generator::fork`] if the random numbers of several threads must be
/// equal in every run. The initial seed is 0, and the main thread then has the stream of [`Generator::new`]`(0)`.
///
/// ```
/// use pellucid::{manual_seed, DType, Tensor};
/// manual_seed(7);
/// let a = Tensor::rand([3], DType::F32);
/// manual_seed(7);
/// assert_eq!(a.to_vec::<f32>(), Tensor::rand([3], DType::F32).to_vec::<f32>());
/// ```
///
/// # Panics
/// While a step is captured.
#[doc(alias = "seed")]
#[track_caller]
pub fn manual_seed(seed: u64) {
    let scoped = LOCAL.with_borrow(|local| local.scopes.last().map(|(_, generator)| generator.clone()));
    if let Some(generator) = scoped {
        return generator.reseed(seed);
    }
    // The restart of this thread's stream can fail, so it precedes the change of the seed.
    Generator::default().reseed(seed);
    let generation = {
        let mut process = lock_process_seed();
        *process = ProcessSeed { seed, generation: process.generation + 1, unnamed: 0, names: HashMap::new() };
        GENERATION.store(process.generation, Ordering::Release);
        process.generation
    };
    LOCAL.with_borrow_mut(|local| {
        let own = local.own_stream();
        own.stream.0.generation.store(generation, Ordering::Release);
        own.generation = generation;
    });
}

/// The stream that the process's seed assigns to a thread. A captured step keeps the stream of the thread that recorded
/// it, and draws from it on any thread that launches it. Clones share the stream.
#[doc(hidden)]
#[derive(Clone)]
pub struct ThreadStream(Arc<SharedStream>);

struct SharedStream {
    /// The thread to which the stream belongs.
    thread: Thread,
    /// The generation of the seed at which the generator was started; [`NOT_STARTED`] before the first draw.
    generation: AtomicU64,
    generator: Mutex<Option<Generator>>,
}

/// The generation of a stream from which no thread has drawn.
const NOT_STARTED: u64 = u64::MAX;

impl ThreadStream {
    /// Returns the stream of the current thread.
    pub fn current() -> ThreadStream {
        LOCAL.with_borrow_mut(|local| local.own_stream().stream.clone())
    }

    /// Makes this the stream of the current thread until the guard is dropped. An open [`Generator::scope`] has
    /// precedence.
    #[inline]
    pub fn enter(&self) -> ThreadStreamGuard {
        LOCAL.with_borrow_mut(|local| {
            let own = local.own_stream();
            let is_own = Arc::ptr_eq(&own.stream.0, &self.0);
            let before = (!is_own).then(|| std::mem::replace(own, OwnStream::new(self.clone())));
            ThreadStreamGuard { before, _not_send: PhantomData }
        })
    }

    /// Restarts the stream if a thread has called [`manual_seed`] since the last use. The launch of a captured step
    /// calls this, because its kernels read the state without a call of [`Generator::default`].
    #[inline]
    pub(crate) fn refresh(&self) {
        let started = self.0.generation.load(Ordering::Acquire);
        if started != NOT_STARTED && started != GENERATION.load(Ordering::Acquire) {
            self.started();
        }
    }

    /// Starts the stream unless it was started in the current generation. Returns the generation in which it was
    /// started, and its generator.
    #[cold]
    fn started(&self) -> (u64, Generator) {
        let mut current_generator = lock(&self.0.generator);
        let mut generation = self.0.generation.load(Ordering::Acquire);
        if let (Some(generator), true) = (&*current_generator, generation == GENERATION.load(Ordering::Acquire)) {
            return (generation, generator.clone());
        }
        let (current, key) = lock_process_seed().stream_of(&self.0.thread);
        let generator = match &*current_generator {
            Some(generator) => {
                // The state is written in place, because captured steps refer to its storage. While a step is captured,
                // the restart runs in eager mode, so that it is not recorded.
                let restart = || generator.restart(key);
                let capturing = engine::mode() == engine::ExecutionMode::Capture;
                // If another thread is using the state, the next draw tries again.
                if (if capturing { engine::eager(restart) } else { restart() }).is_ok() {
                    generation = current;
                }
                generator.clone()
            }
            None => {
                generation = current;
                // The state is created in eager mode, so that it continues from launch to launch, even if a captured
                // step draws first.
                current_generator.insert(engine::eager(|| Generator::new(key))).clone()
            }
        };
        self.0.generation.store(generation, Ordering::Release);
        (generation, generator)
    }
}

/// Guard that ends a [`ThreadStream::enter`] when it is dropped.
#[doc(hidden)]
#[must_use = "the stream is in use only until the guard is dropped"]
pub struct ThreadStreamGuard {
    /// The previous stream; `None` if it was the same stream.
    before: Option<OwnStream>,
    /// The guard restores the stream of its thread, so it must not be sent to another thread.
    _not_send: PhantomData<*const ()>,
}

impl Drop for ThreadStreamGuard {
    #[inline]
    fn drop(&mut self) {
        if let Some(before) = self.before.take() {
            // The thread-local may be destroyed already if the thread is ending.
            let _ = LOCAL.try_with(|local| local.borrow_mut().own_stream.replace(before));
        }
    }
}

/// The generators of a thread.
#[derive(Default)]
struct ThreadGenerators {
    /// The open scopes with ascending ids; the innermost is last.
    scopes: Vec<(u64, Generator)>,
    own_stream: Option<OwnStream>,
}

/// The stream from which a thread draws, with its generator, which is read without a lock.
struct OwnStream {
    stream: ThreadStream,
    /// The generation of the seed at which the generator was started.
    generation: u64,
    generator: Option<Generator>,
}

impl OwnStream {
    fn new(stream: ThreadStream) -> OwnStream {
        OwnStream { stream, generation: NOT_STARTED, generator: None }
    }
}

thread_local! {
    static LOCAL: RefCell<ThreadGenerators> =
        const { RefCell::new(ThreadGenerators { scopes: Vec::new(), own_stream: None }) };
}

impl ThreadGenerators {
    /// Returns the thread's default stream, which has no key before the first draw.
    #[inline]
    fn own_stream(&mut self) -> &mut OwnStream {
        self.own_stream.get_or_insert_with(|| {
            let (thread, generation) = (std::thread::current(), AtomicU64::new(NOT_STARTED));
            OwnStream::new(ThreadStream(Arc::new(SharedStream { thread, generation, generator: Mutex::default() })))
        })
    }

    #[inline]
    fn current_stream(&mut self) -> &Generator {
        let own = self.own_stream();
        if own.generation != GENERATION.load(Ordering::Acquire) {
            own.generator = None;
        }
        own.generator.get_or_insert_with(|| {
            let (generation, generator) = own.stream.started();
            own.generation = generation;
            generator
        })
    }
}

/// The generation of the process's seed: how often [`manual_seed`] has changed the seed.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// The process's seed, and counts of the streams that were assigned to threads.
struct ProcessSeed {
    seed: u64,
    generation: u64,
    /// The number of unnamed threads with a stream.
    unnamed: u64,
    /// The number of threads with a stream for each name, by the hash of the name.
    names: HashMap<u64, u64>,
}

fn lock_process_seed() -> std::sync::MutexGuard<'static, ProcessSeed> {
    static PROCESS: OnceLock<Mutex<ProcessSeed>> = OnceLock::new();
    let first = || Mutex::new(ProcessSeed { seed: 0, generation: 0, unnamed: 0, names: HashMap::new() });
    lock(PROCESS.get_or_init(first))
}

impl ProcessSeed {
    /// Assigns an unused stream to a thread, and returns the generation of the seed and the key.
    fn stream_of(&mut self, thread: &Thread) -> (u64, u64) {
        let stream_index = match thread.name() {
            Some(name) => {
                let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, fnv_1a);
                let same = self.names.entry(hash).or_insert(0);
                *same += 1;
                // Before the first `manual_seed`, the main thread uses the seed itself as the key.
                let is_main = name == "main" && self.generation == 0 && *same == 1;
                // The indices of named threads are in the upper half of the range, other indices in the lower half.
                if is_main { 0 } else { same.to_le_bytes().into_iter().fold(hash, fnv_1a) | 1 << 63 }
            }
            None => {
                self.unnamed += 1;
                self.unnamed
            }
        };
        (self.generation, self.seed.wrapping_add(split_mix_64(stream_index)))
    }
}

/// Computes one step of the hash FNV-1a (Fowler, Noll & Vo).
fn fnv_1a(hash: u64, byte: u8) -> u64 {
    (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
}

/// The multipliers of [`split_mix_64`].
const MIX: [u64; 3] = [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb];

/// Computes SplitMix64 (Steele, Lea & Flood 2014), a bijection that maps 0 to 0.
fn split_mix_64(number: u64) -> u64 {
    let z = number.wrapping_mul(MIX[0]);
    let z = (z ^ z >> 30).wrapping_mul(MIX[1]);
    let z = (z ^ z >> 27).wrapping_mul(MIX[2]);
    z ^ z >> 31
}

/// Returns the initial state of the stream with the key of `state`.
fn start_of(state: &Tensor) -> Result<Tensor> {
    arithmetic::mul(state, Tensor::from([1i64, 0]))
}

/// Computes, on the device, the initial state of the stream that is derived from the key of `state` and from `key`.
fn fork_state(state: &Tensor, key: u64) -> Result<Tensor> {
    let formula = formula! {
        // Computes `split_mix_64(k + add)` for the key k of the parent. The masks make the arithmetic shifts logical.
        static fork(state, first; add, m30, m27, m31, a, b, c) = {
            let z = (state + add) * a;
            let z = (z ^ (z.shr(30) & m30)) * b;
            let z = (z ^ (z.shr(27) & m27)) * c;
            first * (z ^ (z.shr(31) & m31))
        };
    };
    let mask = |shift: u32| (u64::MAX >> shift) as i64;
    // The added constant separates a fork from its parent and from the streams of threads.
    let add = split_mix_64(key).wrapping_add(MIX[2]) as i64;
    let [a, b, c] = MIX.map(|m| m as i64);
    let params = [add, mask(30), mask(27), mask(31), a, b, c].map(Into::into);
    let first = Tensor::from([1i64, 0]);
    copy::to_dtype(&user::map(formula, &[state, &first], &params)?, DType::I64)
}
