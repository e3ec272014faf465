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
pub(crate) use list::{Recorded, Recording};
pub use list::lazy;

use crate::array::Array;
use pellucid_ir::backend::{POISONED, READY, Storage, View};
use pellucid_ir::kernel::Kernel;
use pellucid_ir::{Error, Result};
use smallvec::SmallVec;
use std::cell::Cell;
use std::panic::Location;

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
    let _borrows = Borrows::of(inputs, outputs);
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

/// The borrow words of a kernel's storages: readers for its inputs, the one writer for its outputs.
struct Borrows<'a> {
    inputs: &'a [&'a Array],
    outputs: &'a [&'a Array],
}

impl<'a> Borrows<'a> {
    /// Waits for other threads' kernels; takes all words or none, so that two threads that want
    /// the same storages in another order never block each other.
    fn of(inputs: &'a [&'a Array], outputs: &'a [&'a Array]) -> Borrows<'a> {
        let all = Borrows { inputs, outputs };
        let count = inputs.len() + outputs.len();
        loop {
            let taken = (0..count).take_while(|&i| all.take(i)).count();
            if taken == count {
                return all;
            }
            (0..taken).for_each(|i| all.give_back(i));
            std::thread::yield_now();
        }
    }

    fn first(list: &[&Array], i: usize) -> bool {
        !list[..i].iter().any(|a| a.shares_storage(list[i]))
    }

    /// An operand named twice, or an input that is also an output, is borrowed once.
    fn borrowed(&self, i: usize) -> Option<(&'a Storage, bool)> {
        match i.checked_sub(self.outputs.len()) {
            None => Borrows::first(self.outputs, i).then(|| (&**self.outputs[i].storage(), true)),
            Some(k) => {
                let array = self.inputs[k];
                let written = self.outputs.iter().any(|o| o.shares_storage(array));
                (!written && Borrows::first(self.inputs, k)).then(|| (&**array.storage(), false))
            }
        }
    }

    fn take(&self, i: usize) -> bool {
        match self.borrowed(i) {
            Some((storage, true)) => storage.try_write(),
            Some((storage, false)) => storage.try_read(),
            None => true,
        }
    }

    fn give_back(&self, i: usize) {
        match self.borrowed(i) {
            Some((storage, true)) => storage.end_write(),
            Some((storage, false)) => storage.end_read(),
            None => {}
        }
    }
}

impl Drop for Borrows<'_> {
    fn drop(&mut self) {
        (0..self.inputs.len() + self.outputs.len()).for_each(|i| self.give_back(i));
    }
}

/// Holds a storage as a reader while the host copies out of it.
pub(crate) fn reading<R>(storage: &Storage, read: impl FnOnce() -> R) -> R {
    while !storage.try_read() {
        std::thread::yield_now();
    }
    let result = read();
    storage.end_read();
    result
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
pub(crate) fn touch(slot: &std::sync::Arc<crate::autograd::Slot>, clears: bool) {
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
