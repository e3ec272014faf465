//! The engine: the one door through which every kernel goes.
//!
//! - **Eager**: the kernel runs now.
//! - **Deferred**: it is appended to a list; its outputs have shape and dtype, and no memory yet.
//!   [`lazy`] flushes the list when a value is read and at its end; [`capture`] refuses the read
//!   and turns the list into a [`Captured`] step.
//!
//! Recording runs no kernel, so it has no side effect. The engine never looks into an operation
//! and never touches a gradient's history.

mod capture;
mod list;

pub use capture::{Captured, IntoOutputs, Outputs, capture};
pub use list::lazy;
pub(crate) use list::{Recorded, Recording};

use crate::array::Array;
use pellucid_ir::backend::{POISONED, READY, Storage, View};
use pellucid_ir::kernel::Kernel;
use pellucid_ir::{Error, Result};
use smallvec::SmallVec;
use std::cell::Cell;
use std::panic::Location;
use std::sync::Arc;

/// What happens to a kernel that is submitted on this thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    Eager,
    Lazy,
    Capture,
}

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::Eager) };
}

pub(crate) fn mode() -> Mode {
    MODE.get()
}

/// Runs or records one kernel. Shapes and dtypes were checked by the operation.
pub fn submit(kernel: &Kernel, inputs: &[&Array], outputs: &[&Array]) -> Result<()> {
    if MODE.get() == Mode::Eager {
        for array in inputs.iter().chain(outputs) {
            ready(kernel.name(), array.storage())?;
        }
        run(kernel, inputs, outputs)?;
        bump(outputs);
        Ok(())
    } else {
        list::record(kernel.clone(), inputs, outputs)
    }
}

/// Makes sure that a storage's contents are there, running the list that will fill it if need be.
fn ready(op: &'static str, storage: &Storage) -> Result<()> {
    match storage.pending() {
        READY => Ok(()),
        POISONED => Err(Error::Poisoned { op }),
        pending => list::flush_list(op, pending),
    }
}

/// Runs a kernel on arrays whose contents are there.
fn run(kernel: &Kernel, inputs: &[&Array], outputs: &[&Array]) -> Result<()> {
    // An output that overlaps an input under another layout would be read after it was written.
    let overlaps = |a: &Array| outputs.iter().any(|o| o.shares_storage(a) && overlap(o, a));
    if inputs.iter().any(|a| overlaps(a)) {
        let copies: SmallVec<[Array; 4]> =
            inputs.iter().map(|a| if overlaps(a) { a.copy() } else { Ok((*a).clone()) }).collect::<Result<_>>()?;
        return run(kernel, &copies.iter().collect::<SmallVec<[&Array; 4]>>(), outputs);
    }
    let device = outputs.first().or(inputs.first()).expect("a kernel has an operand").device();
    let _held = Held::operands(inputs, outputs);
    // One list for all views, inputs first: filled by hand, since this runs for every small operation.
    let mut views: SmallVec<[View<'_>; 8]> = SmallVec::new();
    for array in inputs {
        views.push(array.as_view());
    }
    for array in outputs {
        views.push(array.as_view());
    }
    let (views_in, views_out) = views.split_at(inputs.len());
    device.backend().run(kernel, views_in, views_out)
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

/// The borrow words of storages, held: as a reader, or as the one writer.
pub(crate) struct Held<'a>(SmallVec<[(&'a Storage, bool); 6]>);

impl<'a> Held<'a> {
    /// The words of a kernel's operands. A storage named twice, or as input and output, is held once;
    /// a new output, which nobody else can see, needs no word.
    fn operands(inputs: &[&'a Array], outputs: &[&'a Array]) -> Held<'a> {
        let mut words: SmallVec<[(&Storage, bool); 6]> = SmallVec::new();
        let mut add = |array: &'a Array, write: bool| {
            let storage: &'a Storage = array.storage();
            if !words.iter().any(|(s, _)| std::ptr::addr_eq(*s, storage)) {
                words.push((storage, write));
            }
        };
        let new = |a: &Array| Arc::strong_count(a.storage()) == 1 && !a.storage().buffer().is_allocated();
        outputs.iter().filter(|a| !new(a)).for_each(|a| add(a, true));
        inputs.iter().for_each(|a| add(a, false));
        Held::all(words)
    }

    /// Waits for other threads' kernels; takes all words or none, so that two threads that want the
    /// same storages in another order never block each other.
    fn all(words: SmallVec<[(&'a Storage, bool); 6]>) -> Held<'a> {
        loop {
            let taken = words.iter().take_while(|(s, write)| if *write { s.try_write() } else { s.try_read() }).count();
            if taken == words.len() {
                return Held(words);
            }
            drop(Held(SmallVec::from_slice(&words[..taken])));
            std::thread::yield_now();
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        for (storage, write) in &self.0 {
            if *write { storage.end_write() } else { storage.end_read() }
        }
    }
}

/// Holds a storage as a reader while the host copies out of it.
pub(crate) fn reading<R>(storage: &Storage, read: impl FnOnce() -> R) -> R {
    let _held = Held::all(SmallVec::from_slice(&[(storage, false)]));
    read()
}

/// Makes a value's contents real because `op` is about to look at them.
///
/// # Errors
/// [`Error::ReadInCapture`] while a step is captured, [`Error::Poisoned`] for a tensor that was made
/// in a captured step.
#[track_caller]
pub(crate) fn force(op: &'static str, array: &Array) -> Result<()> {
    if MODE.get() == Mode::Capture {
        return Err(Error::ReadInCapture { op, location: Location::caller() });
    }
    if MODE.get() == Mode::Lazy {
        list::flush_current()?;
    }
    ready(op, array.storage())
}

/// Runs everything that is recorded for this array, without reading it.
pub(crate) fn eval(array: &Array) -> Result<()> {
    match MODE.get() {
        Mode::Capture => Ok(()),
        Mode::Lazy => list::flush_current(),
        Mode::Eager => ready("eval", array.storage()),
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

/// Runs `f` eagerly whatever mode this thread is in: for state that a recording only refers to.
pub(crate) fn outside<R>(f: impl FnOnce() -> R) -> R {
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
