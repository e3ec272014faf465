//! The engine: the one door through which every kernel goes.
//!
//! - **Eager**: the kernel runs now.
//! - **Deferred**: it is appended to a list; its outputs have shape and dtype, and no memory yet.
//!   [`lazy`] runs the list when a value is read and at its end, without what nobody can see;
//!   [`capture`] refuses the read and turns the list into a [`Captured`] step; [`trace`] refuses it too, and
//!   only counts what would be done.
//!
//! Recording runs no kernel, so it has no side effect. The engine never looks into an operation
//! and never touches a gradient's history.

mod capture;
mod list;
mod many;
mod switch;
mod trace;

pub use capture::{CacheStats, CaptureOptions, Captured, IntoOutputs, Outputs, Placement, capture, capture_with};
pub use list::lazy;
pub(crate) use list::{Recorded, Recording, deferred};
pub(crate) use many::map_many;
pub use switch::HostFlag;
pub use trace::{Work, storages_written_since, trace, traced};

use crate::array::Array;
use crate::device::Device;
use pellucid_ir::backend::{Dense, POISONED, READY, Storage, View};
use pellucid_ir::borrow::BorrowGuard;
use pellucid_ir::formula::Program;
use pellucid_ir::kernel::{Kernel, Params};
use pellucid_ir::{Error, Result};
use smallvec::SmallVec;
use std::cell::Cell;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What happens to a kernel that is submitted on this thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    Eager,
    /// Eager, and results are looked at.
    Watched,
    Lazy,
    Capture,
}

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::Eager) };
}

#[inline]
pub(crate) fn mode() -> Mode {
    MODE.get()
}

/// True where a kernel runs when it is submitted.
#[inline]
pub(crate) fn is_eager() -> bool {
    matches!(MODE.get(), Mode::Eager | Mode::Watched)
}

/// How often it was switched in this process whether a tensor that a recorded step works on requires a gradient.
static SWITCHED: AtomicU64 = AtomicU64::new(0);

/// Says that this array's tensor requires a gradient now, or none any more. A captured step that works on it looks whether
/// it still holds before it is launched again.
pub(crate) fn gradient_switched(array: &Array) {
    if array.storage().kept() > 0 {
        SWITCHED.fetch_add(1, Ordering::Relaxed);
    }
}

fn gradients_switched() -> u64 {
    SWITCHED.load(Ordering::Relaxed)
}

/// The most elements of a view that repeats them (by strides of 0) which a kernel visits. A dense tensor is limited by
/// memory; a view of 2⁴⁰ elements takes none, and would take hours.
const MOST_REPEATED: usize = 1 << 34;

/// Refuses a view of more elements than a kernel would visit in any time that a user waits for.
#[cold]
fn visitable(kernel: &Kernel, array: &Array, outputs: &[&Array]) -> Result<()> {
    let (shape, size) = (array.shape(), array.shape().size());
    // An output of the size needs memory, which refuses it. A gather visits the elements at its index alone, which is as
    // large as its output.
    let limited = outputs.iter().any(|out| out.shape().size() >= size) || matches!(kernel, Kernel::Gather(_));
    if limited || !array.layout().is_broadcast() {
        return Ok(());
    }
    let reason =
        format!("a view of shape {shape} repeats few elements {size} times in all; reduce it before it is stretched");
    Err(Error::invalid(kernel.name(), reason))
}

/// Runs or records one kernel. Shapes and dtypes were checked by the operation.
pub fn submit(kernel: &Kernel, inputs: &[&Array], outputs: &[&Array]) -> Result<()> {
    for array in inputs {
        if !array.layout().is_contiguous() && array.shape().size() > MOST_REPEATED {
            visitable(kernel, array, outputs)?;
        }
    }
    match MODE.get() {
        Mode::Eager => now(kernel, inputs, outputs),
        Mode::Watched => watched(kernel, inputs, outputs),
        Mode::Lazy | Mode::Capture => match apart(inputs, outputs)? {
            Some(copies) => list::record(kernel.clone(), &copies.iter().collect::<Operands>(), outputs),
            None => list::record(kernel.clone(), inputs, outputs),
        },
    }
}

/// Runs one kernel.
fn now(kernel: &Kernel, inputs: &[&Array], outputs: &[&Array]) -> Result<()> {
    for array in inputs {
        ready(kernel.name(), array.storage())?;
    }
    // Most outputs are new: they overlap nothing, and nobody counts their first write.
    if outputs.iter().all(|a| a.is_new()) {
        return launch(kernel, inputs, outputs, Writes::Uncounted);
    }
    for array in outputs {
        ready(kernel.name(), array.storage())?;
    }
    run(kernel, inputs, outputs, Writes::Counted)
}

/// Runs a map of `size` elements now, all of whose inputs are dense. The output is new, or the
/// very view of an input; its storage is returned.
///
/// Nearly every kernel is of this kind, and has nothing in its way: nobody else knows a new output, and
/// nothing is said of shapes and strides.
pub(crate) fn map_dense(
    device: Device,
    program: &Arc<Program>,
    params: &Params,
    size: usize,
    inputs: &[Dense<'_>],
    output: Option<&Array>,
) -> Result<Arc<Storage>> {
    debug_assert!(MODE.get() == Mode::Eager);
    for input in inputs {
        ready(program.name, input.storage)?;
    }
    let backend = device.backend();
    let Some(output) = output else {
        let _guard = BorrowGuard::acquire(inputs, &[]);
        return backend.map_new(program, params, size, inputs);
    };
    let to = Dense { storage: output.storage(), offset: output.layout().offset(), once: false };
    let guard = BorrowGuard::acquire(inputs, std::slice::from_ref(&to));
    backend.map_dense(program, params, size, inputs, to)?;
    guard.count_writes();
    drop(guard);
    Ok(output.storage().clone())
}

/// Runs one kernel, and refuses a NaN that it makes.
fn watched(kernel: &Kernel, inputs: &[&Array], outputs: &[&Array]) -> Result<()> {
    let _eager = Switched::to(Mode::Eager);
    let nan = |array: &&&Array| {
        array.dtype().is_float()
            && crate::ops::any(&crate::ops::isnan(&(**array).clone().into()).unwrap_or_else(|_| true.into()), ..)
                .is_ok_and(|any| any.item())
    };
    // An output may be the very memory of an input: who has a NaN is asked first.
    let before = inputs.iter().any(|array| nan(&array));
    now(kernel, inputs, outputs)?;
    match outputs.iter().find(nan).filter(|_| !before) {
        Some(array) => {
            let (op, shape) = (kernel.name(), array.shape().clone());
            Err(Error::Anomaly { op, shape, node: None, location: None })
        }
        None => Ok(()),
    }
}

/// Anomaly mode while it lives.
pub(crate) struct Watch(#[allow(dead_code, reason = "its end is what it is for")] Switched);

/// Has this thread's kernels looked at, unless they are deferred.
pub(crate) fn watch() -> Option<Watch> {
    (MODE.get() == Mode::Eager).then(|| Watch(Switched::to(Mode::Watched)))
}

/// Makes sure that a storage's contents are there, running the list that will fill it if need be.
#[inline]
fn ready(op: &'static str, storage: &Storage) -> Result<()> {
    if storage.pending() == READY { Ok(()) } else { settle(op, storage) }
}

#[cold]
fn settle(op: &'static str, storage: &Storage) -> Result<()> {
    match storage.pending() {
        READY => Ok(()),
        POISONED => Err(Error::Poisoned { op }),
        pending if list::is_flushing(pending) => Ok(()),
        pending => list::flush_list(op, pending),
    }
}

/// Whether a kernel's writes change the versions of its outputs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writes {
    Counted,
    /// The first write, or one that was counted when it was recorded.
    Uncounted,
}

/// Runs a kernel on arrays whose contents are there.
fn run(kernel: &Kernel, inputs: &[&Array], outputs: &[&Array], writes: Writes) -> Result<()> {
    match apart(inputs, outputs)? {
        Some(copies) => launch(kernel, &copies.iter().collect::<Operands>(), outputs, writes),
        None => launch(kernel, inputs, outputs, writes),
    }
}

/// The inputs of a kernel, if they cannot stay as they are: one that overlaps an output under another layout would be
/// read after it was written, and is copied.
fn apart(inputs: &[&Array], outputs: &[&Array]) -> Result<Option<SmallVec<[Array; 4]>>> {
    let overlaps = |a: &Array| outputs.iter().any(|o| o.shares_storage(a) && overlap(o, a));
    if !inputs.iter().any(|a| overlaps(a)) {
        return Ok(None);
    }
    inputs.iter().map(|a| if overlaps(a) { a.copy() } else { Ok((*a).clone()) }).collect::<Result<_>>().map(Some)
}

type Operands<'a> = SmallVec<[&'a Array; 4]>;

/// Hands a kernel to its device, holding the borrow words of its operands.
fn launch(kernel: &Kernel, inputs: &[&Array], outputs: &[&Array], writes: Writes) -> Result<()> {
    let device = outputs.first().or(inputs.first()).expect("a kernel has an operand").device();
    // Without elements in the outputs there is nothing to compute, however long the other axes are. A scatter still checks
    // its index.
    let nothing = |out: &&Array| out.shape().size() == 0 && out.storage().buffer().bytes() == 0;
    if outputs.iter().all(nothing) && !matches!(kernel, Kernel::Scatter(_)) {
        return outputs.iter().try_for_each(|out| device.backend().upload(&[], out.storage()));
    }
    let (inputs, outputs) = (views(inputs), views(outputs));
    let guard = BorrowGuard::acquire(&inputs, &outputs);
    // Memory is taken from the device when an output is first written.
    device.backend().run(kernel, &inputs, &outputs).map_err(|error| {
        match outputs.iter().max_by_key(|out| out.layout.shape().size()) {
            Some(largest) => error.with_shape(largest.layout.shape()),
            None => error,
        }
    })?;
    if writes == Writes::Counted {
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

/// Counts a write to every output. A deferred kernel counts when it is recorded, not when it runs:
/// versions follow the program's order.
fn bump(outputs: &[&Array]) {
    for out in outputs {
        out.storage().bump();
    }
}

/// Whether two arrays of one storage touch common elements under different layouts.
fn overlap(output: &Array, input: &Array) -> bool {
    let same = output.layout() == input.layout() && output.dtype() == input.dtype();
    let (a, b) = (output.layout().extent(), input.layout().extent());
    !same && a.start < b.end && b.start < a.end
}

/// Holds a storage as a reader while the host copies out of it.
pub(crate) fn reading<R>(storage: &Storage, read: impl FnOnce() -> R) -> R {
    let _guard = BorrowGuard::acquire(std::slice::from_ref(&storage), &[]);
    read()
}

/// Makes a value's contents real because `op` is about to look at them.
///
/// # Errors
/// [`Error::ReadInCapture`] while a step is captured, [`Error::Poisoned`] for a tensor that was made
/// in a captured step.
#[track_caller]
pub(crate) fn force(op: &'static str, array: &Array) -> Result<()> {
    readable(
        op,
        "move the read outside of it, return the tensor from the step, or compute with tensors (e.g. where_) instead",
    )?;
    if MODE.get() == Mode::Lazy {
        list::flush_current()?;
    }
    ready(op, array.storage())
}

/// Refuses `op`, which needs values, while a step is captured; `help` says what such a step does instead.
///
/// # Errors
/// [`Error::ReadInCapture`].
#[track_caller]
pub(crate) fn readable(op: &'static str, help: &'static str) -> Result<()> {
    if MODE.get() == Mode::Capture {
        return Err(Error::ReadInCapture { op, location: Location::caller(), help });
    }
    Ok(())
}

/// Runs everything that is recorded for this array, without reading it.
pub(crate) fn eval(array: &Array) -> Result<()> {
    match MODE.get() {
        Mode::Capture => Ok(()),
        Mode::Lazy => list::flush_current(),
        Mode::Eager | Mode::Watched => ready("eval", array.storage()),
    }
}

/// Whether this thread is recording a captured step: values do not exist then.
pub fn is_capturing() -> bool {
    MODE.get() == Mode::Capture
}

/// Notes that host values went into a new array: in a captured step they are constants.
pub(crate) fn uploaded(array: &Array) {
    if MODE.get() == Mode::Capture {
        list::with_current(|r| r.constants.push(array.clone()));
    }
}

/// A gradient slot is about to be read or changed: a captured step remembers how it found it.
pub(crate) fn touch(slot: &Arc<crate::autograd::Slot>, clears: bool) {
    if MODE.get() == Mode::Capture {
        list::with_current(|r| r.touch(slot, clears));
    }
}

/// A write in place to what this tensor and its views share is about to be recorded: a captured step restores the history.
pub(crate) fn rewriting(base: &Arc<crate::autograd::ViewBase>, edge: &crate::autograd::Edge) {
    if MODE.get() == Mode::Capture {
        list::with_current(|r| r.rewriting(base, edge));
    }
}

/// True if the step that is captured has written into this base: then the recording holds it too.
pub(crate) fn is_rewritten(base: &Arc<crate::autograd::ViewBase>) -> bool {
    MODE.get() == Mode::Capture && list::with_current(|r| r.rewritten.iter().any(|(known, _)| Arc::ptr_eq(known, base)))
}

/// The number of operands of this thread's recorded kernels, and of constants, that have this storage.
pub(crate) fn recorded_operands(storage: &Arc<Storage>) -> usize {
    if !matches!(MODE.get(), Mode::Lazy | Mode::Capture) {
        return 0;
    }
    list::with_current(|r| {
        let operands = r.kernels.iter().flat_map(|k| k.inputs.iter().chain(&k.outputs));
        operands.chain(&r.constants).filter(|array| Arc::ptr_eq(array.storage(), storage)).count()
    })
}

/// The history of a tensor has changed by a write in place.
pub(crate) fn rewrote(tensor: &crate::tensor::Tensor) {
    if MODE.get() == Mode::Capture {
        list::with_current(|r| r.rewrote.push(tensor.downgrade()));
    }
}

/// Runs `f` with every kernel run at once, whatever mode this thread is in: for state that a recording only
/// refers to, such as parameters that are made when a model first meets an input. The kernels that [`lazy`] has deferred on this
/// thread run first.
///
/// # Panics
/// With the typed error of a deferred kernel that failed.
#[track_caller]
pub fn eager<R>(f: impl FnOnce() -> R) -> R {
    if MODE.get() == Mode::Lazy {
        crate::panic::unwrap(list::flush_current());
    }
    let _eager = Switched::to(Mode::Eager);
    f()
}

/// Another mode while it lives.
struct Switched(Mode);

impl Switched {
    fn to(mode: Mode) -> Switched {
        Switched(MODE.replace(mode))
    }
}

impl Drop for Switched {
    fn drop(&mut self) {
        MODE.set(self.0);
    }
}
