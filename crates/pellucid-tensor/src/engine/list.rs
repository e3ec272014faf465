//! The list of recorded kernels, and `lazy`, which runs it when a value is needed.
//!
//! A kernel whose results nobody can see any more, and no later kernel reads, is not run.

use super::switch::HostFlags;
use super::{MODE, Mode, Switched, Writes};
use crate::array::Array;
use crate::autograd::{AddressHasher, Edge, Slot, ViewBase};
use crate::tensor::{Inner, Tensor};
use pellucid_ir::backend::{POISONED, READY, Storage};
use pellucid_ir::kernel::Kernel;
use pellucid_ir::{Error, Result};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

/// A kernel that has not run yet. It holds its operands, so they outlive their handles.
pub(crate) struct Recorded {
    pub(crate) kernel: Kernel,
    pub(crate) inputs: Vec<Array>,
    pub(crate) outputs: Vec<Array>,
}

/// How a captured step found a gradient slot.
pub(crate) struct Touched {
    pub(crate) slot: Arc<Slot>,
    pub(crate) entry: Option<Tensor>,
    /// The gradient at entry was set by the user.
    pub(crate) is_preset: bool,
    /// The step emptied it before it looked.
    pub(crate) cleared: bool,
}

/// Kernels in the order in which they were submitted, and what a capture must know beside them.
pub(crate) struct Recording {
    pub(crate) id: u64,
    pub(crate) kernels: Vec<Recorded>,
    /// Host values that became arrays, in a captured step.
    pub(crate) constants: Vec<Array>,
    pub(crate) touched: Vec<Touched>,
    /// What was written in place in a captured step, with its history at entry.
    pub(crate) rewritten: Vec<(Arc<ViewBase>, Edge)>,
    /// The tensors whose history the step has changed.
    pub(crate) rewrote: Vec<Weak<Inner>>,
    pub(crate) switches: HostFlags,
}

/// Kernels after which a lazy list runs by itself, so that memory stays bounded.
const LONG: usize = 10_000;

type Shared = Arc<Mutex<Recording>>;

thread_local! {
    static CURRENT: RefCell<Option<Shared>> = const { RefCell::new(None) };
}

/// Lists by number, for threads that meet a value of another thread's list.
fn registry() -> MutexGuard<'static, HashMap<u64, Shared>> {
    static LISTS: OnceLock<Mutex<HashMap<u64, Shared>>> = OnceLock::new();
    lock(LISTS.get_or_init(Default::default))
}

/// A lock whose holder panicked guards data that is consistent at every step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Recording {
    fn new() -> Recording {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Recording {
            id,
            kernels: Vec::new(),
            constants: Vec::new(),
            touched: Vec::new(),
            rewritten: Vec::new(),
            rewrote: Vec::new(),
            switches: HostFlags::default(),
        }
    }

    pub(super) fn note(&mut self, switch: &Arc<AtomicUsize>, value: Option<usize>) {
        self.switches.note(switch, value);
    }

    pub(crate) fn touch(&mut self, slot: &Arc<Slot>, clears: bool) {
        if !self.touched.iter().any(|t| Arc::ptr_eq(&t.slot, slot)) {
            let (entry, is_preset) = (slot.get_untracked(), slot.is_preset());
            self.touched.push(Touched { slot: slot.clone(), entry, is_preset, cleared: clears });
        }
    }

    pub(super) fn rewriting(&mut self, base: &Arc<ViewBase>, edge: &Edge) {
        if !self.rewritten.iter().any(|(known, _)| Arc::ptr_eq(known, base)) {
            self.rewritten.push((base.clone(), edge.clone()));
        }
    }

    /// Gives everything that was written in place the history that it had at entry: a graph does not outlive its recording.
    pub(super) fn restore_histories(&mut self) {
        for (base, edge) in self.rewritten.drain(..) {
            base.restore(edge);
        }
        for inner in std::mem::take(&mut self.rewrote).iter().filter_map(Weak::upgrade) {
            Tensor::from_inner(inner).refresh_history();
        }
    }

    fn push(&mut self, kernel: Kernel, inputs: &[&Array], outputs: &[&Array]) {
        for out in outputs {
            // A captured step writes to tensors from outside only when it is launched.
            if MODE.get() == Mode::Lazy || !out.storage().buffer().is_allocated() {
                out.storage().set_pending(self.id);
            }
        }
        super::bump(outputs);
        let own = |list: &[&Array]| list.iter().map(|&a| a.clone()).collect();
        self.kernels.push(Recorded { kernel, inputs: own(inputs), outputs: own(outputs) });
    }

    /// Runs everything that is wanted, in order; each operand is let go as soon as it was last needed.
    fn flush(&mut self) -> Result<()> {
        // A kernel that must copy an operand first does so at once, not at this list's end.
        let _eager = Switched::to(Mode::Eager);
        let _flushing = Flushing(FLUSHING.replace(self.id));
        let kernels = wanted(std::mem::take(&mut self.kernels));
        // Tensors from outside wait for the last of their writes.
        let is_old = |out: &&Array| out.storage().buffer().is_allocated() && out.storage().pending() == self.id;
        let old: Vec<Array> = kernels.iter().flat_map(|k| &k.outputs).filter(is_old).cloned().collect();
        let result = self.run(kernels.into_iter());
        end_wait(self.id, &old);
        result
    }

    fn run(&self, mut kernels: impl Iterator<Item = Recorded>) -> Result<()> {
        while let Some(k) = kernels.next() {
            let inputs: Vec<&Array> = k.inputs.iter().collect();
            let outputs: Vec<&Array> = k.outputs.iter().collect();
            let new: SmallVec<[&Array; 4]> =
                outputs.iter().copied().filter(|out| !out.storage().buffer().is_allocated()).collect();
            let result = super::run(&k.kernel, &inputs, &outputs, Writes::Uncounted);
            let settled = if result.is_ok() { READY } else { POISONED };
            for out in new.iter().filter(|out| out.storage().pending() == self.id) {
                out.storage().set_pending(settled);
            }
            if result.is_err() {
                // Nothing that depends on the failed kernel gets a value.
                kernels.for_each(|rest| end_wait(self.id, &rest.outputs));
                return result;
            }
        }
        Ok(())
    }
}

/// The kernels that write what somebody outside of the list holds, and those that they depend on. (A
/// storage that only the list holds cannot be found by anybody any more.)
fn wanted(mut kernels: Vec<Recorded>) -> Vec<Recorded> {
    let address = |a: &Array| Arc::as_ptr(a.storage()).cast::<()>();
    // Of every storage, the handles outside that are not accounted for yet; what is needed has one for good.
    let mut held: HashMap<*const (), usize, BuildHasherDefault<AddressHasher>> = HashMap::default();
    for array in kernels.iter().flat_map(|k| k.inputs.iter().chain(&k.outputs)) {
        *held.entry(address(array)).or_insert_with(|| Arc::strong_count(array.storage())) -= 1;
    }
    let mut keep: Vec<bool> = vec![false; kernels.len()];
    for (k, keep) in kernels.iter().zip(&mut keep).rev() {
        *keep = k.outputs.iter().any(|out| held[&address(out)] != 0);
        if *keep {
            // Its outputs too: it may write a part of them only.
            k.inputs.iter().chain(&k.outputs).for_each(|a| *held.get_mut(&address(a)).expect("counted") = 1);
        }
    }
    let mut keep = keep.into_iter();
    kernels.retain(|_| keep.next().expect("one for every kernel"));
    kernels
}

/// Ends the wait for the kernels of a list. A tensor with contents has those; one without never gets any.
fn end_wait(list: u64, arrays: &[Array]) {
    for storage in arrays.iter().map(|a| a.storage()).filter(|storage| storage.pending() == list) {
        storage.set_pending(if storage.buffer().is_allocated() { READY } else { POISONED });
    }
}

thread_local! {
    /// The list that this thread runs, or 0.
    static FLUSHING: Cell<u64> = const { Cell::new(0) };
}

/// Restores the list that was run before.
struct Flushing(u64);

impl Drop for Flushing {
    fn drop(&mut self) {
        FLUSHING.set(self.0);
    }
}

/// True while this thread runs the list of this number: then its kernels see memory as it is.
pub(super) fn is_flushing(id: u64) -> bool {
    FLUSHING.get() == id
}

/// Looks at the recording of this thread, which must be in a deferred mode.
pub(super) fn with_current<R>(look: impl FnOnce(&mut Recording) -> R) -> R {
    let shared = CURRENT.with_borrow(|c| c.clone()).expect("a deferred mode has a recording");
    look(&mut lock(&shared))
}

pub(super) fn record(kernel: Kernel, inputs: &[&Array], outputs: &[&Array]) -> Result<()> {
    let shared = CURRENT.with_borrow(|c| c.clone()).expect("a deferred mode has a recording");
    let id = lock(&shared).id;
    let elsewhere = |s: &Storage| s.pending() != READY && s.pending() != id;
    for array in inputs.iter().chain(outputs).filter(|a| elsewhere(a.storage())) {
        super::ready(kernel.name(), array.storage())?;
    }
    let mut recording = lock(&shared);
    recording.push(kernel, inputs, outputs);
    if MODE.get() == Mode::Lazy && recording.kernels.len() >= LONG { recording.flush() } else { Ok(()) }
}

/// Runs what this thread has recorded so far.
pub(super) fn flush_current() -> Result<()> {
    with_current(Recording::flush)
}

/// Runs the list of this number, whichever thread records it.
pub(super) fn flush_list(op: &'static str, id: u64) -> Result<()> {
    let list = registry().get(&id).cloned();
    match list {
        Some(list) => lock(&list).flush(),
        None => Err(Error::Poisoned { op }),
    }
}

/// Puts this thread in a deferred mode while it lives; the mode before comes back, whatever happens.
pub(super) struct Deferred {
    before: (Mode, Option<Shared>),
    shared: Shared,
}

impl Deferred {
    pub(super) fn enter(mode: Mode) -> Deferred {
        let recording = Recording::new();
        let id = recording.id;
        let shared = Arc::new(Mutex::new(recording));
        registry().insert(id, shared.clone());
        let before = (MODE.replace(mode), CURRENT.replace(Some(shared.clone())));
        Deferred { before, shared }
    }

    /// The recording, taken out of the list.
    pub(super) fn take(&self) -> Recording {
        let mut recording = lock(&self.shared);
        let id = recording.id;
        std::mem::replace(&mut *recording, Recording { id, ..Recording::new() })
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        MODE.set(self.before.0);
        CURRENT.replace(self.before.1.take());
        let recording = lock(&self.shared);
        registry().remove(&recording.id);
        for k in &recording.kernels {
            end_wait(recording.id, &k.outputs);
        }
    }
}

/// Runs `f` with every operation deferred: kernels are collected and run when a value is read, when
/// the list is long, and at the end. The results are those of running eagerly, bit for bit. What
/// nobody can see by then is never computed.
///
/// Other threads see the deferred writes of this one: they run the list first. They must not write into a tensor that a
/// deferred kernel reads.
///
/// ```
/// use pellucid_tensor::{lazy, Tensor};
/// let y = lazy(|| {
///     let x = Tensor::from([1.0f32, 2.0, 3.0]);
///     (&x * &x).sum(..)
/// });
/// assert_eq!(y.item::<f32>(), 14.0);
/// ```
///
/// # Panics
/// With the typed error, if a recorded kernel fails at the end (an index out of bounds).
#[track_caller]
pub fn lazy<R>(f: impl FnOnce() -> R) -> R {
    crate::panic::unwrap(deferred(|| Ok(f())))
}

/// [`lazy`], with the error of `f` or of a recorded kernel as a value.
pub(crate) fn deferred<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
    if !super::is_eager() {
        return f();
    }
    let deferred = Deferred::enter(Mode::Lazy);
    let result = f();
    let flushed = lock(&deferred.shared).flush();
    result.and_then(|value| flushed.map(|()| value))
}
