//! The engine, through which every kernel is submitted.
//!
//! - **Eager**: the kernel runs immediately.
//! - **Deferred**: the kernel is appended to a list. Its outputs have a shape and a dtype, but no memory yet. [`lazy`],
//!   and devices that defer their kernels, run the list as a plan when a value is read, and skip kernels whose results
//!   cannot be read. [`capture`](crate::capture()) rejects reads and compiles the list to a
//!   [`Captured`](crate::Captured) step. [`trace`](crate::trace) rejects reads and only counts the work.
//!
//! Recording has no side effect: it runs only kernels that compute constants from host values. The engine works on
//! arrays and is independent of tensors and operations.

mod address_hasher;
mod call_scope;
mod deferred_plan;
mod fallback;
mod fill;
mod hook_list;
mod host_constants;
mod host_dependencies;
mod host_flag;
mod list;
mod map_batch;
mod plan_cache;
mod recording;
mod slot_writes;
mod stats;
mod storage_numbers;
mod transfer;

pub use crate::execution_mode::is_capturing;
pub(crate) use crate::execution_mode::{ExecutionMode, is_eager, mode};
pub(crate) use address_hasher::AddressHasher;
pub(crate) use call_scope::{CallScope, OperationScope, outermost_operation};
pub(crate) use fallback::prepare;
pub use hook_list::HookList;
pub(crate) use host_dependencies::HostDependencies;
pub use host_flag::HostFlag;
pub(crate) use list::{DeferredGuard, ensure_unread, flush_unreported, preserving_errors, run_deferred, with_current};
pub use list::{flush, lazy};
pub(crate) use map_batch::submit_map_batch;
pub(crate) use recording::{RecordedKernel, Recording};
pub use stats::{DeferredStats, deferred_stats};
pub(crate) use storage_numbers::StorageNumbers;
pub(crate) use transfer::COMPUTED_ELSEWHERE;

use crate::array::Array;
use crate::device::Device;
use crate::execution_mode::{MODE, ModeGuard};
use pellucid_ir::backend::{CheckedKernel, DenseView, FAILED, POISONED, READY, Storage, View};
use pellucid_ir::borrow::BorrowGuard;
use pellucid_ir::formula::Program;
use pellucid_ir::kernel::{AxisSet, IndexedOperand, Kernel, Params, Reduce, ReduceOp};
use pellucid_ir::{DType, Error, Result, formula};
use smallvec::SmallVec;
use std::cell::Cell;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The process-wide count of `requires_grad` changes of tensors that captured steps use.
static REQUIRES_GRAD_CHANGES: AtomicU64 = AtomicU64::new(0);

/// Counts a `requires_grad` change of this array's tensor, if a captured step uses the storage. The step checks before
/// its next launch whether its recording is still valid.
pub(crate) fn count_requires_grad_change(array: &Array) {
    if array.storage().kept() > 0 {
        REQUIRES_GRAD_CHANGES.fetch_add(1, Ordering::Relaxed);
    }
}

pub(crate) fn requires_grad_changes() -> u64 {
    REQUIRES_GRAD_CHANGES.load(Ordering::Relaxed)
}

/// The maximum number of elements of a broadcast view that a kernel visits. The size of a dense tensor is limited by
/// memory; a view of 2⁴⁰ repeated elements needs no memory but hours of time.
const MAX_BROADCAST_SIZE: u64 = 1 << 34;

/// Returns an error if the kernel would visit a broadcast view of more than [`MAX_BROADCAST_SIZE`] elements.
#[cold]
fn check_broadcast_size(kernel: &Kernel, array: &Array, outputs: &[&Array]) -> Result<()> {
    let (shape, size) = (array.shape(), array.shape().size());
    // The allocation of an output as large as the view fails with a more helpful error. A kernel that indexes its input
    // visits only the selected elements.
    let selects = matches!(kernel.index(), Some((_, IndexedOperand::Input)));
    let limited = selects || outputs.iter().any(|out| out.shape().size() >= size);
    if limited || !array.layout().may_repeat() {
        return Ok(());
    }
    let reason = format!(
        "a broadcast view of shape {shape} has too many elements ({size}); apply the reduction before the broadcast"
    );
    Err(Error::invalid(kernel.name(), reason))
}

/// Returns an error if elements of an output may share memory, since their value would depend on the order of the
/// writes.
#[cold]
fn check_distinct(kernel: &Kernel, output: &Array) -> Result<()> {
    if !output.layout().may_repeat() {
        return Ok(());
    }
    let (shape, strides) = (output.shape(), output.layout().strides());
    let reason = format!(
        "elements of the output of shape {shape} and strides {:?} share memory; write to a tensor whose elements are \
         distinct, for example its copy()",
        &*strides
    );
    Err(Error::invalid(kernel.name(), reason))
}

/// Runs or records one kernel. The operation has checked shapes and dtypes.
///
/// # Errors
/// The errors of the kernel and of the device; [`Error::DeviceMismatch`] for operands on several devices;
/// [`Error::InvalidArgument`] for an output whose elements share memory, and for a kernel without outputs.
pub fn submit(kernel: &Kernel, inputs: &[&Array], outputs: &[&Array]) -> Result<()> {
    for array in inputs {
        if !array.layout().is_contiguous() && array.shape().size() as u64 > MAX_BROADCAST_SIZE {
            check_broadcast_size(kernel, array, outputs)?;
        }
    }
    for output in outputs {
        if !output.layout().is_contiguous() {
            check_distinct(kernel, output)?;
        }
    }
    let device = device_of(kernel, inputs, outputs)?;
    match MODE.get() {
        ExecutionMode::Eager if !device.is_deferred() => run_eager(kernel, inputs, outputs),
        ExecutionMode::Immediate => run_eager(kernel, inputs, outputs),
        ExecutionMode::NanChecked => run_nan_checked(kernel, inputs, outputs),
        ExecutionMode::Eager | ExecutionMode::Lazy | ExecutionMode::Capture => {
            match copy_overlapping(kernel, inputs, outputs)? {
                Some(copies) => {
                    list::record(device, kernel.clone(), &copies.iter().collect::<OperandArrays>(), outputs)
                }
                None => list::record(device, kernel.clone(), inputs, outputs),
            }
        }
    }
}

/// Returns the device of a kernel's operands, or an error if there is no output or the devices differ.
#[inline]
fn device_of(kernel: &Kernel, inputs: &[&Array], outputs: &[&Array]) -> Result<Device> {
    let Some(output) = outputs.first() else {
        return Err(Error::invalid(kernel.name(), "the kernel has no outputs, but must have at least one"));
    };
    let device = output.device();
    match inputs.iter().chain(outputs).all(|operand| operand.device() == device) {
        true => Ok(device),
        false => Err(Array::device_mismatch(kernel.name(), inputs.iter().chain(outputs))),
    }
}

/// Returns true if this thread's kernels on a device run when they are submitted.
#[inline]
pub(crate) fn is_immediate(device: Device) -> bool {
    match MODE.get() {
        ExecutionMode::Eager => !device.is_deferred(),
        ExecutionMode::Immediate | ExecutionMode::NanChecked => true,
        ExecutionMode::Lazy | ExecutionMode::Capture => false,
    }
}

/// Runs one kernel immediately. Deferred kernels that produce its inputs or read its outputs run first.
fn run_eager(kernel: &Kernel, inputs: &[&Array], outputs: &[&Array]) -> Result<()> {
    for array in inputs {
        ensure_ready(kernel.name(), array.storage())?;
    }
    // Fast path: new outputs overlap no input, and their first write does not change a version.
    if outputs.iter().all(|a| a.is_new()) {
        return launch_kernel(kernel, inputs, outputs, VersionUpdate::Skip);
    }
    for array in outputs {
        ensure_ready(kernel.name(), array.storage())?;
        list::ensure_unread(array.storage());
    }
    run_kernel(kernel, inputs, outputs, VersionUpdate::Count)
}

/// Runs a map of `size` elements on dense inputs immediately, and returns the storage of the output. If `output` is
/// `None` the storage is new; otherwise `output` has the storage and layout of an input.
///
/// This fast path serves most kernels on the CPU: it passes no shapes or strides, and a new output needs no borrow.
pub(crate) fn map_dense(
    device: Device,
    program: &Arc<Program>,
    params: &Params,
    size: usize,
    inputs: &[DenseView<'_>],
    output: Option<&Array>,
) -> Result<Arc<Storage>> {
    debug_assert!(MODE.get() == ExecutionMode::Eager);
    for input in inputs {
        ensure_ready(program.name, input.storage)?;
    }
    let backend = device.backend();
    let Some(output) = output else {
        return backend.map_new(program, params, size, &BorrowGuard::acquire(inputs, &[]));
    };
    let to = DenseView { storage: output.storage(), offset: output.layout().offset(), once: false };
    list::ensure_unread(to.storage);
    let guard = BorrowGuard::acquire(inputs, std::slice::from_ref(&to));
    backend.map_dense(program, params, size, &guard)?;
    guard.count_writes();
    drop(guard);
    Ok(output.storage().clone())
}

/// Runs one kernel immediately, and fails if an output contains NaN and no input does.
fn run_nan_checked(kernel: &Kernel, inputs: &[&Array], outputs: &[&Array]) -> Result<()> {
    let _immediate = ModeGuard::to(ExecutionMode::Immediate);
    // An array that cannot be checked counts as free of NaN.
    let contains_nan = |array: &&&Array| has_nan(array).unwrap_or(false);
    // The inputs are checked before the kernel, which may overwrite them.
    let has_nan_input = inputs.iter().any(|array| contains_nan(&array));
    run_eager(kernel, inputs, outputs)?;
    // A kernel without inputs writes a constant. NaN is a valid constant, for example in a reduction that ignores NaN.
    match outputs.iter().find(contains_nan).filter(|_| !has_nan_input && !inputs.is_empty()) {
        Some(array) => {
            let (op, shape) = (kernel.name(), array.shape().clone());
            Err(Error::Anomaly { op, shape, node: None, location: None })
        }
        None => Ok(()),
    }
}

/// Returns true if an element is NaN.
fn has_nan(array: &Array) -> Result<bool> {
    if !array.dtype().is_float() || array.shape().rank() > AxisSet::MAX_RANK {
        return Ok(false);
    }
    // An axis with stride 0 is read once.
    let strides = array.layout().strides();
    let is_repeated = |&axis: &usize| strides[axis] == 0 && array.shape()[axis] > 1;
    let repeated = (0..array.shape().rank()).filter(is_repeated);
    let layout = repeated.fold(array.layout().clone(), |layout, axis| layout.slice(axis, 0, 1, 1));
    let array = &array.view(layout);
    let (axes, output) = (AxisSet::all(array.shape().rank()), DType::Bool);
    let program = formula!(|x| x.is_nan()).uniform_program(array.dtype())?.clone();
    let result = Array::new(array.device(), output, axes.keepdims(array.shape()))?;
    let (params, finish_params) = (Params::new(), Params::new());
    let reduce = Reduce { op: ReduceOp::Any, axes, program, params, finish: None, finish_params, output };
    run_eager(&Kernel::Reduce(reduce), &[array], &[&result])?;
    Ok(result.to_vec::<bool>("isnan")? == [true])
}

thread_local! {
    /// The number of guards that check kernels for NaN.
    static NAN_CHECKS: Cell<usize> = const { Cell::new(0) };
}

/// Guard that keeps the NaN check of this thread enabled. Several guards may be dropped in any order.
#[derive(Debug)]
pub(crate) struct NanCheckGuard(());

impl Drop for NanCheckGuard {
    fn drop(&mut self) {
        NAN_CHECKS.set(NAN_CHECKS.get() - 1);
        if NAN_CHECKS.get() == 0 && MODE.get() == ExecutionMode::NanChecked {
            MODE.set(ExecutionMode::Eager);
        }
    }
}

/// Enables the NaN check on this thread. Returns `None` unless the mode is eager: deferred modes do not support it.
pub(crate) fn enable_nan_check() -> Option<NanCheckGuard> {
    if !matches!(MODE.get(), ExecutionMode::Eager | ExecutionMode::NanChecked) {
        return None;
    }
    MODE.set(ExecutionMode::NanChecked);
    NAN_CHECKS.set(NAN_CHECKS.get() + 1);
    Some(NanCheckGuard(()))
}

/// Ensures that a storage has its contents: runs the deferred list that has a pending write to it.
#[inline]
pub(crate) fn ensure_ready(op: &'static str, storage: &Storage) -> Result<()> {
    if storage.pending() == READY { Ok(()) } else { resolve_pending(op, storage) }
}

#[cold]
fn resolve_pending(op: &'static str, storage: &Storage) -> Result<()> {
    match storage.pending() {
        READY => Ok(()),
        POISONED => Err(Error::Poisoned { op }),
        // If this thread has not returned the error of the failed kernel yet, that error is returned: it is the cause.
        FAILED => Err(list::take_first_unreported().unwrap_or(Error::NotComputed { op })),
        pending if list::is_flushing(pending) => Ok(()),
        _ => list::flush_list_of(op, storage),
    }
}

/// Whether a kernel increments the versions of its outputs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum VersionUpdate {
    Count,
    /// No version is incremented: the kernel is the first write to a new storage, or its write was counted when it was
    /// recorded.
    Skip,
}

/// Runs a kernel on arrays without pending writes.
pub(crate) fn run_kernel(kernel: &Kernel, inputs: &[&Array], outputs: &[&Array], writes: VersionUpdate) -> Result<()> {
    match copy_overlapping(kernel, inputs, outputs)? {
        Some(copies) => launch_kernel(kernel, &copies.iter().collect::<OperandArrays>(), outputs, writes),
        None => launch_kernel(kernel, inputs, outputs, writes),
    }
}

/// Returns the inputs, or `None` if no copy is needed. A copy replaces each input whose overlap with an output the
/// kernel does not [allow](pellucid_ir::kernel::ReadOrder::allows).
fn copy_overlapping(kernel: &Kernel, inputs: &[&Array], outputs: &[&Array]) -> Result<Option<SmallVec<[Array; 4]>>> {
    let reads = kernel.info().reads;
    let is_copied = |(k, a): (usize, &Array)| outputs.iter().any(|o| !reads.allows(k, o.overlap(a)));
    if !inputs.iter().enumerate().any(|(k, a)| is_copied((k, a))) {
        return Ok(None);
    }
    let copied = |(k, a): (usize, &&Array)| if is_copied((k, a)) { a.copy() } else { Ok((*a).clone()) };
    inputs.iter().enumerate().map(copied).collect::<Result<_>>().map(Some)
}

type OperandArrays<'a> = SmallVec<[&'a Array; 4]>;

/// Runs a kernel on its device while it holds the borrows of its operands.
fn launch_kernel(kernel: &Kernel, inputs: &[&Array], outputs: &[&Array], writes: VersionUpdate) -> Result<()> {
    let device = device_of(kernel, inputs, outputs)?;
    // Outputs without elements need no computation, even if the inputs are large. Indices are still checked.
    let nothing = |out: &&Array| out.shape().size() == 0 && out.storage().buffer().bytes() == 0;
    if outputs.iter().all(nothing) && !kernel.info().rejects_values {
        return outputs.iter().try_for_each(|out| device.backend().upload(&[], out.storage()));
    }
    let (inputs, outputs) = (views(inputs), views(outputs));
    let guard = BorrowGuard::acquire(&inputs, &outputs);
    // The device allocates memory at the first write to an output.
    CheckedKernel::new(kernel, &guard).and_then(|launch| fallback::run_on(device, launch)).map_err(|error| {
        // The shape is added to the error only if the output covers its entire storage, because memory is allocated for
        // entire storages.
        let is_whole = |out: &&View<'_>| out.layout.shape().size() * out.dtype.size() == out.storage.buffer().bytes();
        match outputs.iter().filter(is_whole).max_by_key(|out| out.layout.shape().size()) {
            Some(largest) => error.with_shape(largest.layout.shape()),
            None => error,
        }
    })?;
    // A write of no elements changes no value. All outputs that exist before the kernel have the same shape, so either
    // all or none of them have elements.
    if writes == VersionUpdate::Count && outputs.iter().any(|out| out.layout.shape().size() > 0) {
        guard.count_writes();
    }
    Ok(())
}

fn views<'a>(arrays: &[&'a Array]) -> SmallVec<[View<'a>; 4]> {
    let mut views = SmallVec::new();
    for array in arrays {
        views.push(array.as_view());
    }
    views
}

/// Increments the version of every output that has elements. A deferred kernel is counted when it is recorded, not when
/// it runs, so that versions follow the order of the program.
fn bump_versions(outputs: &[&Array]) {
    for out in outputs.iter().filter(|out| out.shape().size() > 0) {
        out.storage().bump();
    }
}

/// Ensures that the values of an array exist, because `op` reads them.
///
/// # Errors
/// [`Error::ReadInCapture`] while a step is captured; [`Error::Poisoned`] for a tensor that was created in a captured
/// step; [`Error::NotComputed`] for a tensor whose kernel has failed or follows a failed kernel.
#[track_caller]
pub(crate) fn ensure_readable(op: &'static str, array: &Array) -> Result<()> {
    check_readable(
        op,
        "move the read outside the step, return the tensor from it, or compute with tensors (e.g. where_) instead",
    )?;
    let ready = ensure_ready(op, array.storage());
    // If an error was not returned yet, it is the cause of the missing values.
    list::report(array.device()).and(ready)
}

/// Returns an error while a step is captured, because `op` reads values. `help` names the alternative.
///
/// # Errors
/// [`Error::ReadInCapture`].
#[track_caller]
pub(crate) fn check_readable(op: &'static str, help: &'static str) -> Result<()> {
    if is_capturing() {
        return Err(Error::ReadInCapture { op, location: Location::caller(), help });
    }
    Ok(())
}

/// Runs the pending kernels of these arrays, without reading them, and waits for their devices. In a captured step it
/// does nothing.
pub(crate) fn eval<'a>(arrays: impl Iterator<Item = &'a Array> + Clone) -> Result<()> {
    if is_capturing() {
        return Ok(());
    }
    arrays.clone().try_for_each(|array| ensure_ready("eval", array.storage()))?;
    let mut waited = SmallVec::<[Device; 2]>::new();
    for device in arrays.map(Array::device) {
        if !waited.contains(&device) {
            device.synchronize()?;
            waited.push(device);
        }
    }
    Ok(())
}

/// Records that an array was created from host values: it is a constant of a captured step.
pub(crate) fn record_constant(array: &Array) {
    if is_capturing() {
        list::with_current(|r| r.constants.push(array.clone()));
    }
}

/// Returns true if the step that this thread captures computes the array.
pub(crate) fn is_recorded(array: &Array) -> bool {
    is_capturing() && list::with_current(|r| r.id == array.storage().pending())
}

/// Returns the id of the recording of the step that this thread captures; 0 outside captured steps.
#[inline]
pub fn recording_id() -> u32 {
    if is_capturing() { list::with_current(|r| r.id as u32) } else { 0 }
}

/// Returns false if this thread captures the recording with this id, and no kernel of the recording has written the
/// array since its storage had this version. Otherwise, the array may have been written.
#[cold]
pub(crate) fn may_be_written_since(recording: u32, array: &Array, version: u64) -> bool {
    recording == 0 || recording != recording_id() || list::with_current(|r| r.has_written_since(array, version))
}

/// Returns true if the step that this thread captures writes into the storage of the array.
fn is_written(array: &Array) -> bool {
    let writes = |r: &mut Recording| r.kernels.iter().flat_map(|k| &k.outputs).any(|out| out.shares_storage(array));
    is_capturing() && list::with_current(writes)
}

/// Records that a captured step reads `copy`, a copy of `source` on the step's device. The copy is a constant; if the
/// source changes later, the step is recorded again.
pub(crate) fn record_device_copy(source: &Array, copy: &Array) {
    if is_capturing() {
        list::with_current(|r| {
            let is_constant = |array: &Array| r.constants.iter().any(|constant| constant.shares_storage(array));
            let (is_new, is_outside) = (!is_constant(copy), !is_constant(source));
            if is_new {
                r.constants.push(copy.clone());
            }
            if is_outside {
                r.dependencies.note_source(source);
            }
        });
    }
}

/// Records that a captured step depends on the elements of `source`, unless it created them.
fn record_source(source: &Array) {
    list::with_current(|r| {
        if !r.constants.iter().any(|constant| constant.shares_storage(source)) {
            r.dependencies.note_source(source);
        }
    });
}

/// Returns the number of operands of recorded kernels, and of constants, that share the storage of this array.
pub(crate) fn recorded_operands(array: &Array) -> usize {
    let count = |r: &Recording| {
        let operands = r.kernels.iter().flat_map(|k| k.inputs.iter().chain(&k.outputs));
        operands.chain(&r.constants).filter(|operand| operand.shares_storage(array)).count()
    };
    list::with_list_for(array.device(), count).unwrap_or(0)
}

/// Runs `f` in eager mode, regardless of the mode of this thread. Devices that always defer their kernels still do. Use
/// it for state that a recording only references, such as parameters that a model creates at its first input. Kernels
/// that [`lazy`] has deferred on this thread run first.
///
/// # Panics
/// Panics with the typed error of a deferred kernel that failed.
#[track_caller]
pub fn eager<R>(f: impl FnOnce() -> R) -> R {
    if MODE.get() == ExecutionMode::Lazy {
        crate::panic::unwrap(flush());
    }
    let _eager = ModeGuard::to(ExecutionMode::Eager);
    f()
}
