//! The list of recorded kernels, and `lazy`, which runs it when a value is read.
//!
//! A kernel is skipped if no handle outside of the list and no later kernel can read its results.

use super::VersionUpdate;
use super::address_hasher::AddressHasher;
use super::host_flag_reads::HostFlagReads;
use crate::array::Array;
use crate::execution_mode::{ExecutionMode, MODE, ModeGuard};
use pellucid_ir::backend::{POISONED, READY, Storage};
use pellucid_ir::kernel::Kernel;
use pellucid_ir::{Error, Result};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// A kernel that has not run yet. It owns handles of its operands, so they outlive the handles of the caller.
pub(crate) struct RecordedKernel {
    pub(crate) kernel: Kernel,
    pub(crate) inputs: Vec<Array>,
    pub(crate) outputs: Vec<Array>,
}

/// Kernels in the order of submission, and the host values that a captured step depends on.
pub(crate) struct Recording {
    pub(crate) id: u64,
    pub(crate) kernels: Vec<RecordedKernel>,
    /// Arrays that a captured step creates from host values.
    pub(crate) constants: Vec<Array>,
    pub(crate) host_flags: HostFlagReads,
}

/// Length at which a lazy list runs by itself, so that memory stays bounded.
const MAX_LAZY_KERNELS: usize = 10_000;

type SharedRecording = Arc<Mutex<Recording>>;

thread_local! {
    static CURRENT: RefCell<Option<SharedRecording>> = const { RefCell::new(None) };
}

/// Lists by id, for threads that read a pending value of another thread's list.
fn registry() -> MutexGuard<'static, HashMap<u64, SharedRecording>> {
    static LISTS: OnceLock<Mutex<HashMap<u64, SharedRecording>>> = OnceLock::new();
    lock(LISTS.get_or_init(Default::default))
}

/// Locks a mutex and ignores poisoning: the data is consistent after every statement.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Recording {
    fn new() -> Recording {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Recording { id, kernels: Vec::new(), constants: Vec::new(), host_flags: HostFlagReads::default() }
    }

    pub(super) fn note(&mut self, flag: &Arc<AtomicUsize>, value: Option<usize>) {
        self.host_flags.note(flag, value);
    }

    fn push(&mut self, kernel: Kernel, inputs: &[&Array], outputs: &[&Array]) {
        for out in outputs {
            // In a captured step, tensors from outside are written only by a launch and are not pending.
            if MODE.get() == ExecutionMode::Lazy || !out.storage().buffer().is_allocated() {
                out.storage().set_pending(self.id);
            }
        }
        super::bump_versions(outputs);
        let own = |list: &[&Array]| list.iter().map(|&a| a.clone()).collect();
        self.kernels.push(RecordedKernel { kernel, inputs: own(inputs), outputs: own(outputs) });
    }

    /// Runs the observable kernels in order. Each operand is released after its last use.
    fn flush(&mut self) -> Result<()> {
        // The mode is eager because a kernel may have to copy an operand, and the copy must run before the kernel.
        let _eager = ModeGuard::to(ExecutionMode::Eager);
        let _flushing = FlushGuard(FLUSHING.replace(self.id));
        let kernels = observable_kernels(std::mem::take(&mut self.kernels));
        // Tensors from outside stay pending until the last write to them.
        let is_old = |out: &&Array| out.storage().buffer().is_allocated() && out.storage().pending() == self.id;
        let old: Vec<Array> = kernels.iter().flat_map(|k| &k.outputs).filter(is_old).cloned().collect();
        let result = self.run(kernels.into_iter());
        end_pending(self.id, &old);
        result
    }

    fn run(&self, mut kernels: impl Iterator<Item = RecordedKernel>) -> Result<()> {
        while let Some(k) = kernels.next() {
            let inputs: Vec<&Array> = k.inputs.iter().collect();
            let outputs: Vec<&Array> = k.outputs.iter().collect();
            let new: SmallVec<[&Array; 4]> =
                outputs.iter().copied().filter(|out| !out.storage().buffer().is_allocated()).collect();
            let result = super::run_kernel(&k.kernel, &inputs, &outputs, VersionUpdate::Skip);
            let settled = if result.is_ok() { READY } else { POISONED };
            for out in new.iter().filter(|out| out.storage().pending() == self.id) {
                out.storage().set_pending(settled);
            }
            if result.is_err() {
                // The outputs of later kernels may depend on the failed one, so they get no values.
                kernels.for_each(|rest| end_pending(self.id, &rest.outputs));
                return result;
            }
        }
        Ok(())
    }
}

/// Selects the kernels whose outputs have a handle outside of the list, and the kernels that these depend on.
fn observable_kernels(mut kernels: Vec<RecordedKernel>) -> Vec<RecordedKernel> {
    let address = |a: &Array| Arc::as_ptr(a.storage()).cast::<()>();
    // For each storage, the number of handles outside of the list. A storage that a selected kernel needs counts as
    // held.
    let mut held: HashMap<*const (), usize, BuildHasherDefault<AddressHasher>> = HashMap::default();
    for array in kernels.iter().flat_map(|k| k.inputs.iter().chain(&k.outputs)) {
        *held.entry(address(array)).or_insert_with(|| Arc::strong_count(array.storage())) -= 1;
    }
    let mut keep: Vec<bool> = vec![false; kernels.len()];
    for (k, keep) in kernels.iter().zip(&mut keep).rev() {
        *keep = k.outputs.iter().any(|out| held[&address(out)] != 0);
        if *keep {
            // The outputs are kept too, because the kernel may write only a part of them.
            k.inputs
                .iter()
                .chain(&k.outputs)
                .for_each(|a| *held.get_mut(&address(a)).expect("the loop above must count every storage") = 1);
        }
    }
    let mut keep = keep.into_iter();
    kernels.retain(|_| keep.next().expect("`keep` must have one flag for each kernel"));
    kernels
}

/// Resolves arrays that are pending on a list. A storage that has memory is ready; one without never gets values.
fn end_pending(list: u64, arrays: &[Array]) {
    for storage in arrays.iter().map(|a| a.storage()).filter(|storage| storage.pending() == list) {
        storage.set_pending(if storage.buffer().is_allocated() { READY } else { POISONED });
    }
}

thread_local! {
    /// The id of the list that this thread runs, or 0.
    static FLUSHING: Cell<u64> = const { Cell::new(0) };
}

/// Guard that restores the id of the list that ran before.
struct FlushGuard(u64);

impl Drop for FlushGuard {
    fn drop(&mut self) {
        FLUSHING.set(self.0);
    }
}

/// Returns true while this thread runs this list. Its kernels then read memory without waiting for pending writes.
pub(super) fn is_flushing(id: u64) -> bool {
    FLUSHING.get() == id
}

/// Calls `look` with the recording of this thread, which must be in a deferred mode.
pub(crate) fn with_current<R>(look: impl FnOnce(&mut Recording) -> R) -> R {
    let shared = CURRENT.with_borrow(|c| c.clone()).expect("a thread in a deferred mode must have a recording");
    look(&mut lock(&shared))
}

pub(super) fn record(kernel: Kernel, inputs: &[&Array], outputs: &[&Array]) -> Result<()> {
    let shared = CURRENT.with_borrow(|c| c.clone()).expect("a thread in a deferred mode must have a recording");
    let id = lock(&shared).id;
    let elsewhere = |s: &Storage| s.pending() != READY && s.pending() != id;
    for array in inputs.iter().chain(outputs).filter(|a| elsewhere(a.storage())) {
        super::ensure_ready(kernel.name(), array.storage())?;
    }
    let mut recording = lock(&shared);
    recording.push(kernel, inputs, outputs);
    if MODE.get() == ExecutionMode::Lazy && recording.kernels.len() >= MAX_LAZY_KERNELS {
        recording.flush()
    } else {
        Ok(())
    }
}

/// Runs the kernels that this thread has recorded.
pub(crate) fn flush_current() -> Result<()> {
    with_current(Recording::flush)
}

/// Runs a list by its id; any thread may be recording it.
pub(super) fn flush_list(op: &'static str, id: u64) -> Result<()> {
    let list = registry().get(&id).cloned();
    match list {
        Some(list) => lock(&list).flush(),
        None => Err(Error::Poisoned { op }),
    }
}

/// Guard that puts this thread in a deferred mode and restores the previous mode when it is dropped, also by a panic.
pub(crate) struct DeferredGuard {
    before: (ExecutionMode, Option<SharedRecording>),
    shared: SharedRecording,
}

impl DeferredGuard {
    pub(crate) fn enter(mode: ExecutionMode) -> DeferredGuard {
        let recording = Recording::new();
        let id = recording.id;
        let shared = Arc::new(Mutex::new(recording));
        registry().insert(id, shared.clone());
        let before = (MODE.replace(mode), CURRENT.replace(Some(shared.clone())));
        DeferredGuard { before, shared }
    }

    /// Takes the recording out of the list.
    pub(crate) fn take(&self) -> Recording {
        let mut recording = lock(&self.shared);
        let id = recording.id;
        std::mem::replace(&mut *recording, Recording { id, ..Recording::new() })
    }
}

impl Drop for DeferredGuard {
    fn drop(&mut self) {
        MODE.set(self.before.0);
        CURRENT.replace(self.before.1.take());
        let recording = lock(&self.shared);
        registry().remove(&recording.id);
        for k in &recording.kernels {
            end_pending(recording.id, &k.outputs);
        }
    }
}

/// Runs `f` with every operation deferred. Kernels are collected and run when a value is read, when the list is long,
/// and at the end. The results equal those of eager mode bit for bit. Kernels whose results cannot be read are skipped.
///
/// Other threads see the deferred writes of this one, because a read runs the list first. Other threads must not write
/// into a tensor that a deferred kernel reads.
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
/// With the typed error, if a recorded kernel fails at the end, for example by an index out of bounds.
#[track_caller]
pub fn lazy<R>(f: impl FnOnce() -> R) -> R {
    crate::panic::unwrap(run_deferred(|| Ok(f())))
}

/// Runs `f` as [`lazy`] does, and returns errors of `f` or of a recorded kernel.
pub(crate) fn run_deferred<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
    if !super::is_eager() {
        return f();
    }
    let deferred = DeferredGuard::enter(ExecutionMode::Lazy);
    let result = f();
    let flushed = lock(&deferred.shared).flush();
    result.and_then(|value| flushed.map(|()| value))
}
