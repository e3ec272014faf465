//! Random number generators: a key and a counter, on the device.
//!
//! The process has one seed. Every thread that draws without an explicit generator has a stream of it, with a key of
//! its own, so no two threads draw equal numbers and no draw waits for another thread. [`manual_seed`] changes the seed
//! and with it the generation number of the seed; a thread compares that number before it draws, which costs one
//! atomic load.

use crate::engine;
use crate::ops;
use crate::tensor::Tensor;
use pellucid_ir::formula::Formula;
use pellucid_ir::{Result, formula};
use std::cell::RefCell;
use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// A stream of random numbers (Philox 4×32-10; Salmon et al. 2011): the same on every device and for
/// every number of threads. Its state is an `i64 [2]` tensor, (key, counter), that every draw reads
/// and advances on the device, so a replayed step goes on drawing. Clones share the stream.
#[derive(Clone, Debug)]
pub struct Generator {
    state: Tensor,
}

impl Generator {
    /// The stream of this key, from its start; one that is made inside a captured step starts in every launch.
    pub fn new(seed: u64) -> Generator {
        Generator { state: Tensor::from([seed as i64, 0]) }
    }

    /// The stream that continues at this state, which it advances.
    pub(crate) fn from_state(state: Tensor) -> Generator {
        Generator { state }
    }

    /// (key, counter), `i64 [2]`.
    pub fn state(&self) -> &Tensor {
        &self.state
    }

    /// Restarts the stream with another key.
    ///
    /// # Panics
    /// While a step is captured.
    #[track_caller]
    pub fn reseed(&self, seed: u64) {
        crate::panic::unwrap(ops::copy_(&self.state, &Tensor::from([seed as i64, 0])));
    }

    /// Returns a generator of another stream, at its start. The stream is a function of this generator's key and `key`
    /// alone, not of how much was drawn: equal calls return equal streams, other keys other streams.
    ///
    /// This is how threads draw numbers that do not depend on their order: fork one generator for each task, by the
    /// number of the task, and pass it along or draw in its [`scope`](Generator::scope).
    ///
    /// ```
    /// use pellucid_tensor::{DType, Generator, ops};
    /// let generator = Generator::new(7);
    /// let draw = |task: u64| {
    ///     let generator = generator.fork(task);
    ///     move || ops::rand_with([3], DType::F32, &generator).map(|x| x.to_vec::<f32>())
    /// };
    /// let drawn: Vec<_> = [0, 1, 0].map(|task| std::thread::spawn(draw(task))).into_iter().collect();
    /// let drawn: Vec<_> = drawn.into_iter().map(|task| task.join().unwrap()).collect::<Result<_, _>>()?;
    /// assert_eq!(drawn[0], drawn[2]);
    /// assert_ne!(drawn[0], drawn[1]);
    /// # Ok::<(), pellucid_tensor::Error>(())
    /// ```
    ///
    /// # Panics
    /// With [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    #[track_caller]
    pub fn fork(&self, key: u64) -> Generator {
        Generator { state: crate::panic::unwrap(forked(&self.state, key)) }
    }

    /// Makes this the generator of the current thread until the guard is dropped: operations that are given no
    /// generator draw from it, and [`manual_seed`] restarts it instead of the process's.
    ///
    /// ```
    /// use pellucid_tensor::{DType, Generator, Tensor};
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
    /// The generator of the current thread, from which operations draw that are given none: that of the innermost
    /// [`scope`](Generator::scope), else the thread's stream of the process's seed (see [`manual_seed`]).
    fn default() -> Generator {
        LOCAL.with_borrow_mut(|local| match local.scopes.last() {
            Some((_, generator)) => generator.clone(),
            None => local.own().clone(),
        })
    }
}

/// Ends a [`Generator::scope`] when it is dropped.
#[must_use = "the scope lasts as long as the guard: let _scope = generator.scope();"]
pub struct GeneratorScope {
    number: u64,
    /// The scope is the thread's, so the guard must not leave it.
    _not_send: PhantomData<*const ()>,
}

impl Drop for GeneratorScope {
    fn drop(&mut self) {
        // A thread that ends may have lost its scopes already.
        let _ = LOCAL.try_with(|local| local.borrow_mut().scopes.retain(|(number, _)| *number != self.number));
    }
}

/// Restarts the process's random numbers with this seed, in all threads: the current one at once, any other at its next
/// draw or launch of a captured step. Inside a [`Generator::scope`], restarts the generator of the scope.
///
/// The current thread continues with the stream of [`Generator::new`]`(seed)`. Every other thread gets a stream of its
/// own, whose key follows from the seed and the thread's name; threads without a name, or of one name, are told apart by
/// the order in which they draw first. Where numbers of several threads must be the same in every run, use
/// [`Generator::fork`]. Until the first call the seed is 0, and the main thread has the stream of [`Generator::new`]`(0)`.
///
/// ```
/// use pellucid_tensor::{manual_seed, DType, Tensor};
/// manual_seed(7);
/// let a = Tensor::rand([3], DType::F32);
/// manual_seed(7);
/// assert_eq!(a.to_vec::<f32>(), Tensor::rand([3], DType::F32).to_vec::<f32>());
/// ```
///
/// # Panics
/// While a step is captured.
#[track_caller]
pub fn manual_seed(seed: u64) {
    let scoped = LOCAL.with_borrow(|local| local.scopes.last().map(|(_, generator)| generator.clone()));
    if let Some(generator) = scoped {
        return generator.reseed(seed);
    }
    // First what can fail.
    Generator::default().reseed(seed);
    let generation = {
        let mut process = process();
        *process = Process { seed, generation: process.generation + 1, unnamed: 0, names: HashMap::new() };
        GENERATION.store(process.generation, Ordering::Release);
        process.generation
    };
    LOCAL.with_borrow_mut(|local| {
        if let Some(own) = &mut local.own {
            own.generation = generation;
        }
    });
}

/// Restarts the current thread's stream if another thread has called [`manual_seed`] since: a captured step draws from it
/// without asking for a generator.
#[inline]
pub(crate) fn refresh() {
    LOCAL.with_borrow_mut(|local| {
        if local.own.is_some() {
            local.own();
        }
    });
}

/// What a thread draws from.
#[derive(Default)]
struct Local {
    /// The open scopes, the innermost last, with ascending numbers.
    scopes: Vec<(u64, Generator)>,
    own: Option<Own>,
}

/// The stream that a thread has of the process's seed.
struct Own {
    generation: u64,
    generator: Generator,
}

thread_local! {
    static LOCAL: RefCell<Local> = const { RefCell::new(Local { scopes: Vec::new(), own: None }) };
}

impl Local {
    #[inline]
    fn own(&mut self) -> &Generator {
        let current = GENERATION.load(Ordering::Acquire);
        if self.own.as_ref().is_none_or(|own| own.generation != current) {
            self.restart();
        }
        &self.own.as_ref().expect("made above").generator
    }

    #[cold]
    fn restart(&mut self) {
        let (generation, key) = process().stream();
        match &mut self.own {
            // It continues from launch to launch, even if a captured step is the first to ask for it.
            None => self.own = Some(Own { generation, generator: engine::eager(|| Generator::new(key)) }),
            Some(own) => {
                // In place: captured steps hold the state. A recording only refers to it, and must not write it.
                let restart = || ops::copy_(own.generator.state(), &Tensor::from([key as i64, 0]));
                let capturing = engine::mode() == engine::Mode::Capture;
                // If another thread uses the state now, the next draw tries again.
                if (if capturing { engine::eager(restart) } else { restart() }).is_ok() {
                    own.generation = generation;
                }
            }
        }
    }
}

/// The generation of the process's seed: how often [`manual_seed`] changed it.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// The process's seed, and which of its streams threads have.
struct Process {
    seed: u64,
    generation: u64,
    /// Threads without a name that have a stream.
    unnamed: u64,
    /// How many threads of a name have one, by the name's hash.
    names: HashMap<u64, u64>,
}

fn process() -> std::sync::MutexGuard<'static, Process> {
    static PROCESS: OnceLock<Mutex<Process>> = OnceLock::new();
    let first = || Mutex::new(Process { seed: 0, generation: 0, unnamed: 0, names: HashMap::new() });
    PROCESS.get_or_init(first).lock().unwrap_or_else(PoisonError::into_inner)
}

impl Process {
    /// A stream that no thread has yet, for the current thread: the generation of the seed, and the key.
    fn stream(&mut self) -> (u64, u64) {
        let thread = std::thread::current();
        let number = match thread.name() {
            Some(name) => {
                let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, fnv_1a);
                let same = self.names.entry(hash).or_insert(0);
                *same += 1;
                // Until a thread seeds, the main thread has the seed itself.
                let is_main = name == "main" && self.generation == 0 && *same == 1;
                // Streams of names are numbers of the upper half, others of the lower.
                if is_main { 0 } else { same.to_le_bytes().into_iter().fold(hash, fnv_1a) | 1 << 63 }
            }
            None => {
                self.unnamed += 1;
                self.unnamed
            }
        };
        (self.generation, self.seed.wrapping_add(mixed(number)))
    }
}

/// A step of the hash FNV-1a (Fowler, Noll & Vo).
fn fnv_1a(hash: u64, byte: u8) -> u64 {
    (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
}

/// The multipliers of [`mixed`].
const MIX: [u64; 3] = [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb];

/// SplitMix64 (Steele, Lea & Flood 2014): a bijection that maps 0 to 0.
fn mixed(number: u64) -> u64 {
    let z = number.wrapping_mul(MIX[0]);
    let z = (z ^ z >> 30).wrapping_mul(MIX[1]);
    let z = (z ^ z >> 27).wrapping_mul(MIX[2]);
    z ^ z >> 31
}

/// The state at the start of the stream that follows from the key of `state` and `key`, computed on the device.
fn forked(state: &Tensor, key: u64) -> Result<Tensor> {
    static FORK: OnceLock<Formula> = OnceLock::new();
    let formula = FORK.get_or_init(|| {
        formula! {
            // `mixed` of the parent's key plus `add`; masks make its arithmetic shifts logical ones.
            fork(state, first; add, m30, m27, m31, a, b, c) = {
                let z = (state + add) * a;
                let z = (z ^ (z.shr(30) & m30)) * b;
                let z = (z ^ (z.shr(27) & m27)) * c;
                first * (z ^ (z.shr(31) & m31))
            };
        }
        .eternal()
    });
    let mask = |shift: u32| (u64::MAX >> shift) as i64;
    // Odd multiples of the constant keep a fork apart from the parent and from its threads' streams.
    let add = mixed(key).wrapping_add(MIX[2]) as i64;
    let [a, b, c] = MIX.map(|m| m as i64);
    let params = [add, mask(30), mask(27), mask(31), a, b, c].map(Into::into);
    let first = Tensor::from([1i64, 0]);
    ops::to_dtype(&ops::map(formula, &[state, &first], &params)?.remove(0), pellucid_ir::DType::I64)
}
