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
pub use switch::Switch;
pub use trace::{Work, made_since, trace, traced};

use crate::array::Array;
use crate::device::Device;
use pellucid_ir::backend::{Dense, POISONED, READY, Storage, View};
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

/// Runs or records one kernel. Shapes and dtypes were checked by the operation.
pub fn submit(kernel: &Kernel, inputs: &[&Array], outputs: &[&Array]) -> Result<()> {
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
        return launch(kernel, inputs, outputs);
    }
    for array in outputs {
        ready(kernel.name(), array.storage())?;
    }
    run(kernel, inputs, outputs)?;
    bump(outputs);
    Ok(())
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
        let held = Held::new(inputs, &[]);
        let storage = backend.map_new(program, params, size, inputs)?;
        drop(held);
        return Ok(storage);
    };
    let to = Dense { storage: output.storage(), offset: output.layout().offset(), once: false };
    let held = Held::new(inputs, std::slice::from_ref(&to));
    backend.map_dense(program, params, size, inputs, to)?;
    drop(held);
    to.storage.bump();
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
        Some(array) => Err(Error::Anomaly { op: kernel.name(), shape: array.shape().clone(), node: None }),
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
        pending => list::flush_list(op, pending),
    }
}

/// Runs a kernel on arrays whose contents are there.
fn run(kernel: &Kernel, inputs: &[&Array], outputs: &[&Array]) -> Result<()> {
    match apart(inputs, outputs)? {
        Some(copies) => launch(kernel, &copies.iter().collect::<Operands>(), outputs),
        None => launch(kernel, inputs, outputs),
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
fn launch(kernel: &Kernel, inputs: &[&Array], outputs: &[&Array]) -> Result<()> {
    let device = outputs.first().or(inputs.first()).expect("a kernel has an operand").device();
    let (inputs, outputs) = (views(inputs), views(outputs));
    let _held = Held::new(&inputs, &outputs);
    device.backend().run(kernel, &inputs, &outputs)
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

/// The borrow words of a kernel's operands, held: of inputs as a reader, of outputs as the one writer.
/// A storage that is an output too is held once.
struct Held<'v, V: Named> {
    inputs: &'v [V],
    outputs: &'v [V],
}

/// What names a storage.
pub(crate) trait Named {
    fn storage(&self) -> &Storage;
}

impl<'v, V: Named> Held<'v, V> {
    /// Waits for other threads' kernels; takes all words or none, so that two threads that want the
    /// same storages in another order never block each other.
    #[inline]
    fn new(inputs: &'v [V], outputs: &'v [V]) -> Held<'v, V> {
        let held = Held { inputs, outputs };
        while let Err(taken) = held.take() {
            held.give_back(taken);
            std::thread::yield_now();
        }
        held
    }

    /// Takes all words, or says how many operands it went through before one was not to be had.
    #[inline]
    fn take(&self) -> std::result::Result<(), usize> {
        for (k, output) in self.outputs.iter().enumerate() {
            if !names(&self.outputs[..k], output.storage()) && !output.storage().try_write() {
                return Err(k);
            }
        }
        for (k, input) in self.inputs.iter().enumerate() {
            if !names(self.outputs, input.storage()) && !input.storage().try_read() {
                return Err(self.outputs.len() + k);
            }
        }
        Ok(())
    }

    /// Gives back the words of the first `count` operands, outputs first.
    #[inline]
    fn give_back(&self, count: usize) {
        for (k, output) in self.outputs.iter().enumerate().take(count) {
            if !names(&self.outputs[..k], output.storage()) {
                output.storage().end_write();
            }
        }
        for input in &self.inputs[..count.saturating_sub(self.outputs.len())] {
            if !names(self.outputs, input.storage()) {
                input.storage().end_read();
            }
        }
    }
}

impl<V: Named> Drop for Held<'_, V> {
    #[inline]
    fn drop(&mut self) {
        self.give_back(self.outputs.len() + self.inputs.len());
    }
}

/// True if an operand of the list lies in `storage`.
#[inline]
fn names<V: Named>(list: &[V], storage: &Storage) -> bool {
    list.iter().any(|v| std::ptr::addr_eq(v.storage(), storage))
}

impl Named for View<'_> {
    #[inline]
    fn storage(&self) -> &Storage {
        self.storage
    }
}

impl Named for Dense<'_> {
    #[inline]
    fn storage(&self) -> &Storage {
        self.storage
    }
}

impl Named for Arc<Storage> {
    #[inline]
    fn storage(&self) -> &Storage {
        self
    }
}

impl Named for &Storage {
    #[inline]
    fn storage(&self) -> &Storage {
        self
    }
}

/// Holds a storage as a reader while the host copies out of it.
pub(crate) fn reading<R>(storage: &Storage, read: impl FnOnce() -> R) -> R {
    let _held = Held::new(std::slice::from_ref(&storage), &[]);
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

/// Refuses `op`, which needs values, while a step is captured; `mend` says what such a step does instead.
///
/// # Errors
/// [`Error::ReadInCapture`].
#[track_caller]
pub(crate) fn readable(op: &'static str, mend: &'static str) -> Result<()> {
    if MODE.get() == Mode::Capture {
        return Err(Error::ReadInCapture { op, location: Location::caller(), mend });
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

/// Runs `f` with every kernel run at once, whatever mode this thread is in: for state that a recording only
/// refers to, such as parameters that are made when a model first meets an input.
pub fn eager<R>(f: impl FnOnce() -> R) -> R {
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
