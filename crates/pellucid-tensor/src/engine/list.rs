//! Lists of deferred kernels. A thread has one for each scope of [`lazy`], for each captured step that it records, and
//! for each device that defers its kernels.
//!
//! A list runs when one of its results is read, when it reaches [`MAX_KERNELS`], on [`flush`], and at the end of its
//! scope of [`lazy`]. Kernels are skipped if neither a handle outside the list nor a later kernel can read their
//! results. A thread that uses a result of another thread's list, or writes a storage that the list reads, runs that
//! list first.

use super::deferred_plan::{has_needed_results, run_kernels};
use super::recording::{RecordedKernel, Recording};
use crate::array::Array;
use crate::device::Device;
use crate::execution_mode::{ExecutionMode, MODE, ModeGuard};
use crate::idle::release_idle_memory;
use pellucid_ir::backend::{FAILED, MANY_READERS, NO_READERS, READY, Storage};
use pellucid_ir::kernel::Kernel;
use pellucid_ir::{Error, Result, lock};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

/// The number of deferred kernels at which a list runs, so that the memory of a list is bounded.
const MAX_KERNELS: usize = 2_048;

/// The number of uploaded bytes at which a list runs: its kernels hold the uploaded arrays.
const MAX_UPLOADED: usize = 256 << 20;

/// A list of deferred kernels.
pub(crate) struct DeferredList {
    /// The id of the recording.
    id: u64,
    /// Whether the thread of the list has ended.
    has_ended_thread: AtomicBool,
    is_capture: bool,
    recording: Mutex<Recording>,
    /// The error of a run that another thread or a write caused. The next run that the list's thread requests, or its
    /// next read on the host, returns it.
    unreported: Mutex<Option<Error>>,
}

type SharedList = Arc<DeferredList>;

thread_local! {
    /// The list of this thread in a deferred mode.
    static CURRENT: RefCell<Option<SharedList>> = const { RefCell::new(None) };
    /// The lists of this thread for devices that defer their kernels.
    static DEVICE_LISTS: RefCell<DeviceLists> = const { RefCell::new(DeviceLists(Vec::new())) };
    /// The error of a kernel that failed at the end of a scope of [`lazy`]. The next read of this thread returns it.
    static SCOPE_ERROR: RefCell<Option<Error>> = const { RefCell::new(None) };
}

/// The lists of a thread for devices that defer their kernels.
struct DeviceLists(Vec<(Device, SharedList)>);

impl Drop for DeviceLists {
    /// Removes the lists from the registry. A list with results that another thread holds remains until that thread
    /// reads or drops them.
    fn drop(&mut self) {
        for (_, list) in &self.0 {
            // Another thread may remove the list as soon as its thread has ended.
            ORPHANS.fetch_add(1, Ordering::Relaxed);
            list.has_ended_thread.store(true, Ordering::Release);
            if !has_needed_results(&lock(&list.recording).kernels) {
                list.unregister();
            }
        }
    }
}

/// The number of registered lists whose thread has ended.
static ORPHANS: AtomicUsize = AtomicUsize::new(0);

/// Removes the lists whose thread has ended and whose results no longer have handles.
fn remove_orphans() {
    if ORPHANS.load(Ordering::Relaxed) == 0 {
        return;
    }
    let has_ended_thread = |list: &&SharedList| list.has_ended_thread.load(Ordering::Acquire);
    let ended_lists: Vec<SharedList> = registry().values().filter(has_ended_thread).cloned().collect();
    // A list that is locked is skipped: another thread runs or inspects it, and may wait for a list of this thread.
    let is_unneeded = |list: &&SharedList| match list.recording.try_lock() {
        Ok(recording) => !has_needed_results(&recording.kernels),
        Err(_) => false,
    };
    ended_lists.iter().filter(|list| !is_flushing(list.id)).filter(is_unneeded).for_each(|list| list.unregister());
}

/// The lists by id. A thread that reads a pending value of another thread's list looks it up here.
fn registry() -> MutexGuard<'static, HashMap<u64, SharedList>> {
    static LISTS: OnceLock<Mutex<HashMap<u64, SharedList>>> = OnceLock::new();
    lock(LISTS.get_or_init(Default::default))
}

impl DeferredList {
    /// Creates a list that other threads find by its id.
    fn register(is_capture: bool) -> SharedList {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let list = Arc::new(DeferredList {
            id,
            has_ended_thread: AtomicBool::new(false),
            is_capture,
            recording: Mutex::new(Recording::new(id)),
            unreported: Mutex::default(),
        });
        registry().insert(id, list.clone());
        list
    }

    fn record(&self, kernel: Kernel, inputs: &[&Array], outputs: &[&Array]) -> Result<()> {
        let is_pending_elsewhere = |s: &Storage| s.pending() != READY && s.pending() != self.id;
        for array in inputs.iter().chain(outputs).filter(|a| is_pending_elsewhere(a.storage())) {
            super::ensure_ready(kernel.name(), array.storage())?;
        }
        if !self.is_capture {
            outputs
                .iter()
                .filter(|out| out.storage().readers() != self.id)
                .for_each(|out| ensure_unread(out.storage()));
            inputs.iter().for_each(|input| self.add_as_reader(input.storage()));
        }
        let mut recording = lock(&self.recording);
        // As in eager mode, the first write to a new storage does not change its version.
        if !outputs.iter().all(|out| out.is_new()) {
            super::bump_versions(outputs);
        }
        recording.push(kernel, inputs, outputs);
        for out in outputs {
            // In a captured step, tensors from outside are written only by a launch and are not pending.
            if !self.is_capture || !out.storage().buffer().is_allocated() {
                out.storage().set_pending(self.id);
            }
        }
        if self.is_capture {
            recording.note_writes(outputs);
            return Ok(());
        }
        if recording.kernels.len() < MAX_KERNELS {
            return Ok(());
        }
        let count = recording.repetition();
        self.run_first(&mut recording, count)
    }

    /// Marks a storage as read by this list. A list that has ended no longer counts as its reader.
    fn add_as_reader(&self, storage: &Storage) {
        let readers = storage.readers();
        if readers != self.id {
            if ![NO_READERS, MANY_READERS].contains(&readers) && !registry().contains_key(&readers) {
                storage.clear_readers();
            }
            storage.add_reader(self.id);
        }
    }

    /// Returns true if a kernel that has not run yet reads a storage.
    fn reads(&self, storage: &Storage) -> bool {
        let is_read = |array: &Array| std::ptr::eq(Arc::as_ptr(array.storage()), storage);
        !is_flushing(self.id) && lock(&self.recording).kernels.iter().any(|k| k.inputs.iter().any(is_read))
    }

    /// Removes the list of an ended thread from the registry. A second call does nothing.
    fn unregister(&self) {
        if registry().remove(&self.id).is_some() {
            ORPHANS.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Runs all kernels. A nested call on the thread that runs this list, for example for a copy of an operand, does
    /// nothing.
    ///
    /// # Errors
    /// The error of an earlier run that was not reported, otherwise the error of this run.
    fn flush(&self) -> Result<()> {
        if is_flushing(self.id) {
            return Ok(());
        }
        let outcome = {
            let mut recording = lock(&self.recording);
            let count = recording.kernels.len();
            self.run_first(&mut recording, count)
        };
        if self.has_ended_thread.load(Ordering::Acquire) {
            self.unregister();
        }
        remove_orphans();
        self.take_unreported().map_or(outcome, Err)
    }

    /// Takes the unreported error of an earlier run.
    fn take_unreported(&self) -> Option<Error> {
        lock(&self.unreported).take()
    }

    /// Runs all kernels. An error is stored for the thread of the list.
    fn flush_unreported(&self) {
        if let Err(error) = self.flush() {
            lock(&self.unreported).get_or_insert(error);
        }
    }

    /// Returns true if this thread appends kernels to the list.
    fn is_of_this_thread(&self) -> bool {
        let is_current = || CURRENT.with_borrow(|current| current.as_ref().is_some_and(|list| list.id == self.id));
        is_current() || DEVICE_LISTS.with_borrow(|DeviceLists(lists)| lists.iter().any(|(_, l)| l.id == self.id))
    }

    /// Runs the first `count` kernels.
    fn run_first(&self, recording: &mut Recording, count: usize) -> Result<()> {
        release_idle_memory();
        recording.uploaded = 0;
        if count == 0 {
            return Ok(());
        }
        let _immediate = ModeGuard::to(ExecutionMode::Immediate);
        let _flushing = FlushGuard(FLUSHING.replace(self.id));
        // Kernels of different devices use different arrays. The list reuses its memory for later kernels.
        let mut by_device: Vec<(Device, Vec<RecordedKernel>)> = Vec::with_capacity(1);
        for kernel in recording.kernels.drain(..count) {
            let operand = kernel.outputs.first().or(kernel.inputs.first());
            let device = operand.expect("a kernel must have at least one operand").device();
            let index = by_device.iter().position(|(other, _)| *other == device).unwrap_or_else(|| {
                by_device.push((device, Vec::with_capacity(count)));
                by_device.len() - 1
            });
            by_device[index].1.push(kernel);
        }
        let later: HashSet<*const Storage> =
            recording.kernels.iter().flat_map(|k| &k.outputs).map(|out| Arc::as_ptr(out.storage())).collect();
        let is_written_later = |storage: &Arc<Storage>| later.contains(&Arc::as_ptr(storage));
        let run = |(device, kernels)| run_kernels(self.id, device, kernels, is_written_later);
        let outcome = by_device.into_iter().map(run).fold(Ok(()), Result::and);
        if outcome.is_err() {
            // Later kernels may depend on the failed one, so their outputs get no values.
            end_pending(self.id, &std::mem::take(&mut recording.kernels));
        }
        outcome
    }
}

/// Ends the pending state of the outputs of kernels that will never run. A storage with memory keeps its values, unless
/// it is the result of a call of which some kernels have run. A storage without memory never gets values.
fn end_pending(list: u64, kernels: &[RecordedKernel]) {
    for (out, &is_result) in kernels.iter().flat_map(|kernel| kernel.outputs.iter().zip(&kernel.results)) {
        let storage = out.storage();
        if storage.pending() == list {
            let has_values = storage.buffer().is_allocated() && !is_result;
            storage.set_pending(if has_values { READY } else { FAILED });
        }
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

/// Returns the list of this thread, which must be in a deferred mode.
fn current() -> SharedList {
    CURRENT.with_borrow(|c| c.clone()).expect("a thread in a deferred mode must have a list")
}

/// Calls `f` with the recording of this thread, which must be in a deferred mode.
pub(crate) fn with_current<R>(f: impl FnOnce(&mut Recording) -> R) -> R {
    f(&mut lock(&current().recording))
}

/// Returns the list of this thread for a device that defers its kernels.
fn device_list(device: Device) -> SharedList {
    DEVICE_LISTS.with_borrow_mut(|DeviceLists(lists)| {
        if let Some((_, list)) = lists.iter().find(|(other, _)| *other == device) {
            return list.clone();
        }
        remove_orphans();
        let list = DeferredList::register(false);
        lists.push((device, list.clone()));
        list
    })
}

/// Returns the list to which this thread appends kernels on a device, if it defers them.
fn list_for(device: Device) -> Option<SharedList> {
    match MODE.get() {
        ExecutionMode::Capture => Some(current()),
        ExecutionMode::Immediate | ExecutionMode::NanChecked => None,
        ExecutionMode::Eager | ExecutionMode::Lazy if device.is_deferred() => Some(device_list(device)),
        ExecutionMode::Lazy => Some(current()),
        ExecutionMode::Eager => None,
    }
}

/// Appends a kernel on a device to the thread's current list, or to its list for the device.
pub(super) fn record(device: Device, kernel: Kernel, inputs: &[&Array], outputs: &[&Array]) -> Result<()> {
    list_for(device).expect("the caller must defer the kernels of the device").record(kernel, inputs, outputs)
}

/// Counts bytes that were copied to a new array of a device. The list runs if its kernels may hold many uploaded bytes.
pub(super) fn count_upload(device: Device, bytes: usize) -> Result<()> {
    let Some(list) = list_for(device).filter(|list| !list.is_capture) else { return Ok(()) };
    let mut recording = lock(&list.recording);
    recording.uploaded += bytes;
    if recording.uploaded < MAX_UPLOADED {
        return Ok(());
    }
    let count = recording.kernels.len();
    list.run_first(&mut recording, count)
}

/// Calls `f` with the recording to which this thread appends kernels on a device, if it defers them.
pub(super) fn with_list_for<R>(device: Device, f: impl FnOnce(&Recording) -> R) -> Option<R> {
    list_for(device).map(|list| f(&lock(&list.recording)))
}

/// Runs the kernels that this thread has deferred, on all devices, without waiting for the devices. A captured step is
/// not affected.
///
/// No program needs this call: a read runs the kernels that it needs, an optimizer step runs the list, and a long list
/// runs automatically.
///
/// ```
/// use pellucid::{flush, lazy, Tensor};
/// let y = lazy(|| {
///     let y = Tensor::from([1.0f32, 2.0]) * 3.0;
///     flush()?; // the product is computed here
///     Ok::<_, pellucid::Error>(y)
/// })?;
/// assert_eq!(y.to_vec::<f32>(), [3.0, 6.0]);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// The error of a deferred kernel that failed.
pub fn flush() -> Result<()> {
    let current_result = match MODE.get() {
        ExecutionMode::Lazy => current().flush(),
        _ => Ok(()),
    };
    let lists = DEVICE_LISTS.with_borrow(|DeviceLists(lists)| lists.clone());
    let flushed = lists.iter().map(|(_, list)| list.flush()).fold(current_result, Result::and);
    flushed.and_then(|()| SCOPE_ERROR.take().map_or(Ok(()), Err))
}

impl Device {
    /// Runs the kernels that this thread has deferred on the device, and waits for all kernels of the device.
    ///
    /// # Errors
    /// The error of a deferred kernel that failed; the loss of the device.
    pub fn synchronize(&self) -> Result<()> {
        flush_device(*self)?;
        self.backend().synchronize()
    }

    /// Runs `work` and returns its result and the time that the device needs for it: from the end of all earlier work
    /// of the device to the end of the kernels that `work` submits on this device. Kernels that other threads submit
    /// meanwhile count too.
    ///
    /// A GPU measures the time with its own events, if it can. Otherwise, it is the time of the host until the device
    /// has finished. Waits for the device, so measure many steps at once.
    ///
    /// ```
    /// use pellucid::{DType, Device, Tensor};
    /// let x = Tensor::ones([64, 64], DType::F32);
    /// let (y, time) = Device::cpu().time(|| Ok(x.matmul(&x)))?;
    /// assert_eq!(y.shape()[..], [64, 64]);
    /// assert!(time.as_nanos() > 0);
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// # Errors
    /// The error of `work` or of a deferred kernel; the loss of the device.
    pub fn time<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<(T, Duration)> {
        self.synchronize()?;
        let start = Instant::now();
        let (mut work, mut result) = (Some(work), None);
        let measured = self.backend().device_time(&mut || {
            result = work.take().map(|work| work()).transpose()?;
            flush_device(*self)
        })?;
        self.backend().synchronize()?;
        let time = measured.unwrap_or_else(|| start.elapsed());
        Ok((result.expect("a backend must run the work once"), time))
    }
}

/// Runs the kernels that this thread has deferred. Errors are returned by the next flush or read.
pub(crate) fn flush_unreported() {
    let current = (MODE.get() == ExecutionMode::Lazy).then(current);
    let lists = DEVICE_LISTS.with_borrow(|DeviceLists(lists)| lists.clone());
    current.iter().chain(lists.iter().map(|(_, list)| list)).for_each(|list| list.flush_unreported());
}

/// Returns the unreported error of a deferred kernel on a device as an `Err`, and marks it as reported.
pub(super) fn report(device: Device) -> Result<()> {
    take_unreported(device).map_or(Ok(()), Err)
}

/// Takes the error that the next read of this thread on a device would return.
fn take_unreported(device: Device) -> Option<Error> {
    reporting_list(device).and_then(|list| list.take_unreported()).or_else(|| SCOPE_ERROR.take())
}

/// Returns the list that stores the errors of this thread's deferred kernels on a device.
fn reporting_list(device: Device) -> Option<SharedList> {
    let is_deferred = device.is_deferred() || MODE.get() == ExecutionMode::Lazy;
    is_deferred.then(|| list_for(device)).flatten()
}

/// Takes the unreported error of a deferred kernel on any device.
pub(super) fn take_first_unreported() -> Option<Error> {
    let current = CURRENT.with_borrow(|current| current.as_ref().and_then(|list| list.take_unreported()));
    current
        .or_else(|| DEVICE_LISTS.with_borrow(|DeviceLists(lists)| lists.iter().find_map(|(_, l)| l.take_unreported())))
        .or_else(|| SCOPE_ERROR.take())
}

/// Runs `read`, which reads values on a device to print them. Errors of deferred kernels are preserved: the next call
/// that reads or runs the kernels returns them.
pub(crate) fn preserving_errors<R>(device: Device, read: impl FnOnce() -> Result<R>) -> Result<R> {
    let before = take_unreported(device);
    let result = match (read(), &before) {
        (Err(Error::NotComputed { .. }), Some(cause)) => Err(cause.clone()),
        (result, _) => result,
    };
    let is_lost = |error: &&Error| {
        !matches!(error, Error::ReadInCapture { .. } | Error::Poisoned { .. } | Error::NotComputed { .. })
    };
    match reporting_list(device) {
        Some(list) => {
            let preserved = before.or_else(|| result.as_ref().err().filter(is_lost).cloned());
            if let Some(error) = preserved {
                lock(&list.unreported).get_or_insert(error);
            }
        }
        None => keep_scope_error(before),
    }
    result
}

/// Stores the error of a scope of [`lazy`] for the next read of this thread, unless an earlier error is stored.
fn keep_scope_error(error: Option<Error>) {
    if error.is_some() {
        SCOPE_ERROR.with_borrow_mut(|stored| *stored = stored.take().or(error));
    }
}

/// Runs the kernels that this thread has deferred on a device.
fn flush_device(device: Device) -> Result<()> {
    let flushed = match MODE.get() {
        _ if device.is_deferred() => device_list(device).flush(),
        ExecutionMode::Lazy => current().flush(),
        _ => Ok(()),
    };
    flushed.and_then(|()| SCOPE_ERROR.take().map_or(Ok(()), Err))
}

/// Runs the deferred kernels that read a storage, before the storage is written. Their errors are stored for the
/// threads that deferred them.
#[inline]
pub(crate) fn ensure_unread(storage: &Storage) {
    if storage.readers() != NO_READERS {
        run_readers(storage);
    }
}

#[cold]
fn run_readers(storage: &Storage) {
    let lists: Vec<SharedList> = match storage.readers() {
        MANY_READERS => registry().values().cloned().collect(),
        list => registry().get(&list).cloned().into_iter().collect(),
    };
    lists.iter().filter(|list| !list.is_capture && list.reads(storage)).for_each(|list| list.flush_unreported());
    storage.clear_readers();
}

/// Runs the list on which a storage is pending, because `op` needs its values. An error of another thread's list is
/// stored for that thread.
///
/// # Errors
/// The error of a deferred kernel; [`Error::NotComputed`] if a kernel of another thread failed, so that the storage has
/// no values; [`Error::Poisoned`] if the list has ended, or if it is a captured step that another thread records.
pub(super) fn flush_list_of(op: &'static str, storage: &Storage) -> Result<()> {
    let list = registry().get(&storage.pending()).cloned();
    match list {
        Some(list) if list.is_of_this_thread() || list.has_ended_thread.load(Ordering::Acquire) => list.flush(),
        // Another thread records this step. Its kernels run only in launches.
        Some(list) if list.is_capture => Err(Error::Poisoned { op }),
        Some(list) => {
            list.flush_unreported();
            if storage.pending() == FAILED { Err(Error::NotComputed { op }) } else { Ok(()) }
        }
        // Another thread has already run the list.
        None if [READY, FAILED].contains(&storage.pending()) => super::ensure_ready(op, storage),
        None => Err(Error::Poisoned { op }),
    }
}

/// Guard that sets a deferred mode on this thread. It restores the previous mode when it is dropped, even during a
/// panic.
pub(crate) struct DeferredGuard {
    before: (ExecutionMode, Option<SharedList>),
    list: SharedList,
}

impl DeferredGuard {
    pub(crate) fn enter(mode: ExecutionMode) -> DeferredGuard {
        let list = DeferredList::register(mode == ExecutionMode::Capture);
        let before = (MODE.replace(mode), CURRENT.replace(Some(list.clone())));
        DeferredGuard { before, list }
    }

    /// Takes the recording out of the list, which is then empty.
    pub(crate) fn take(&self) -> Recording {
        std::mem::replace(&mut *lock(&self.list.recording), Recording::new(self.list.id))
    }
}

impl Drop for DeferredGuard {
    fn drop(&mut self) {
        if !self.list.is_capture && std::thread::panicking() {
            // The kernels that were recorded before the panic run, as in eager mode.
            let _ = catch_unwind(AssertUnwindSafe(|| self.list.flush()));
        }
        MODE.set(self.before.0);
        CURRENT.replace(self.before.1.take());
        let recording = lock(&self.list.recording);
        registry().remove(&self.list.id);
        end_pending(self.list.id, &recording.kernels);
    }
}

/// Runs `f` with every operation deferred. The kernels are collected. They run when a value is read, at the end of an
/// optimizer step, when the list is long, and at the end of `f`. They run as a plan with the passes of captured steps
/// (except constant folding), which fuse kernels and skip those whose results cannot be read. The optimized plan is
/// cached, and used again for lists of the same structure. The results are bit-identical to eager mode.
///
/// Devices whose launches cost more than small kernels defer all kernels, without `lazy`.
///
/// Other threads see the deferred writes of this one, because a read runs the list first. A write into a tensor that
/// deferred kernels read runs these kernels first, even if another thread deferred them.
///
/// ```
/// use pellucid::{lazy, Tensor};
/// let y = lazy(|| {
///     let x = Tensor::from([1.0f32, 2.0, 3.0]);
///     (&x * &x).sum(..)
/// });
/// assert_eq!(y.item::<f32>(), 14.0);
/// ```
///
/// If a kernel fails at the end of `f`, for example because of an index out of bounds, the next read or [`flush`] of
/// this thread returns its error. The results of the failed kernel and of later kernels have no values.
///
/// ```
/// use pellucid::{lazy, ops, Error, Tensor};
/// let y = lazy(|| ops::take(&Tensor::from([1.0f32, 2.0]), &Tensor::from([5i64])))?;
/// assert!(matches!(y.try_to_vec::<f32>(), Err(Error::IndexOutOfBounds { index: 5, .. })));
/// # Ok::<(), Error>(())
/// ```
pub fn lazy<R>(f: impl FnOnce() -> R) -> R {
    if !super::is_eager() {
        return f();
    }
    let deferred = DeferredGuard::enter(ExecutionMode::Lazy);
    let result = f();
    let flushed = deferred.list.flush();
    keep_scope_error(flushed.err());
    result
}

/// Runs `f` as [`lazy`] does, and returns errors of `f` or of a recorded kernel.
pub(crate) fn run_deferred<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
    if !super::is_eager() {
        return f();
    }
    let deferred = DeferredGuard::enter(ExecutionMode::Lazy);
    let result = f();
    let flushed = deferred.list.flush();
    result.and_then(|value| flushed.map(|()| value))
}
