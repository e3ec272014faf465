//! From views to addresses: every operand of a kernel is checked against its buffer here, once.

use pellucid_ir::backend::{Buffer, Dense, Storage, View};
use pellucid_ir::{DType, Error, Layout, Result, Shape};
use pellucid_runtime::CpuBuffer;
use pellucid_runtime::list::List;
use pellucid_runtime::threads::SharedPtr;
use std::any::TypeId;
use std::ptr::NonNull;

/// An array with its memory: where the storage begins, how the elements lie in it, what they are.
///
/// All elements lie in one buffer, which outlives the operand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand<'a> {
    /// The start of the storage, aligned to 64 bytes.
    pub(crate) base: *mut u8,
    /// How the elements lie there; offset and strides in elements.
    pub(crate) layout: &'a Layout,
    /// What they are.
    pub(crate) dtype: DType,
}

/// The operands of a kernel; few enough, as a rule, to need no heap.
pub(crate) type Operands<'a> = List<Operand<'a>, 8>;

/// What the families ask of an operand.
pub(crate) trait Array<'a> {
    /// The length of every axis.
    fn shape(&self) -> &'a Shape;
    /// Element (0, 0, ..), as a pointer to a type as wide as the dtype.
    fn first<T>(&self) -> SharedPtr<T>;
}

impl<'a> Array<'a> for Operand<'a> {
    fn shape(&self) -> &'a Shape {
        self.layout.shape()
    }

    fn first<T>(&self) -> SharedPtr<T> {
        SharedPtr(self.base.wrapping_add(self.layout.offset() * self.dtype.size()).cast())
    }
}

/// Where the storage of something that a kernel reads begins: its memory must be there.
#[inline]
pub(crate) fn input(op: &'static str, view: &View<'_>) -> Result<NonNull<u8>> {
    let buffer = checked(op, view)?;
    match buffer.start() {
        Some(start) => Ok(start),
        None if view.layout.shape().size() == 0 => buffer.ensure(),
        None => Err(no_value(op)),
    }
}

/// Where the storage of something that a kernel writes begins: it gets memory if it has none.
#[inline]
pub(crate) fn output(op: &'static str, view: &View<'_>) -> Result<NonNull<u8>> {
    let buffer = checked(op, view)?;
    check_writable(op, view.layout)?;
    buffer.ensure()
}

/// Where the storage of something that a kernel reads and writes begins.
pub(crate) fn state(op: &'static str, view: &View<'_>) -> Result<NonNull<u8>> {
    check_writable(op, view.layout)?;
    input(op, view)
}

/// The buffer of a view that lies within it.
#[inline(always)]
fn checked<'a>(op: &'static str, view: &View<'a>) -> Result<&'a CpuBuffer> {
    // An `Option` while all is well: a `Result` of so large an error travels through memory.
    let buffer = downcast(view.storage).filter(|b| fits(view.layout, view.dtype.size(), b.bytes()));
    buffer.ok_or_else(|| outside(op, view))
}

/// Refuses a layout that means one element several times, of what a kernel writes.
#[inline]
pub(crate) fn check_writable(op: &'static str, layout: &Layout) -> Result<()> {
    if !layout.is_contiguous() && layout.is_broadcast() {
        let reason = format!("cannot write to a broadcast view of shape {}; copy it first", layout.shape());
        return Err(Error::invalid(op, reason));
    }
    Ok(())
}

/// Where the elements of something dense that a kernel reads begin: `size` of them, or one.
#[inline]
pub(crate) fn dense_input(op: &'static str, dense: &Dense<'_>, size: usize, element: usize) -> Result<NonNull<u8>> {
    let count = if dense.once { 1 } else { size };
    match dense_buffer(dense, count, element) {
        Some((buffer, skip)) => match buffer.start() {
            // SAFETY: `skip` bytes and more lie in the buffer.
            Some(start) => Ok(unsafe { start.add(skip) }),
            None if count == 0 => buffer.ensure(),
            None => Err(no_value(op)),
        },
        None => Err(dense_outside(op, dense, count)),
    }
}

/// Where the elements of something dense that a kernel writes begin; it gets memory if it has none.
#[inline]
pub(crate) fn dense_output(op: &'static str, dense: &Dense<'_>, size: usize, element: usize) -> Result<NonNull<u8>> {
    match dense_buffer(dense, size, element) {
        // SAFETY: as above.
        Some((buffer, skip)) => buffer.ensure().map(|start| unsafe { start.add(skip) }),
        None => Err(dense_outside(op, dense, size)),
    }
}

/// The buffer, and how many of its bytes lie before the first element, if all elements lie within.
#[inline(always)]
fn dense_buffer<'a>(dense: &Dense<'a>, count: usize, element: usize) -> Option<(&'a CpuBuffer, usize)> {
    let buffer = downcast(dense.storage)?;
    if count == 0 {
        return Some((buffer, 0));
    }
    let end = dense.offset.checked_add(count)?.checked_mul(element)?;
    (end <= buffer.bytes()).then_some((buffer, dense.offset * element))
}

#[cold]
fn dense_outside(op: &'static str, dense: &Dense<'_>, count: usize) -> Error {
    match downcast(dense.storage) {
        None => elsewhere(op),
        Some(buffer) => {
            let (bytes, offset) = (buffer.bytes(), dense.offset);
            Error::invalid(op, format!("{count} elements from {offset} on reach beyond a buffer of {bytes} bytes"))
        }
    }
}

/// The buffer of a storage of this backend.
pub(crate) fn cpu_buffer<'a>(op: &'static str, storage: &'a Storage) -> Result<&'a CpuBuffer> {
    downcast(storage).ok_or_else(|| elsewhere(op))
}

#[inline(always)]
fn downcast(storage: &Storage) -> Option<&CpuBuffer> {
    let buffer = storage.buffer();
    // SAFETY: the buffer is of this type; nobody can implement `Typed` to say so of another.
    buffer.is_of(&TypeId::of::<CpuBuffer>()).then(|| unsafe { &*(&raw const *buffer).cast::<CpuBuffer>() })
}

/// True if every element of `layout` lies within `bytes` bytes; absurd layouts, whose positions
/// overflow, do not.
#[inline]
pub(crate) fn fits(layout: &Layout, element: usize, bytes: usize) -> bool {
    let room = bytes >> element.trailing_zeros();
    if !layout.is_contiguous() {
        return strided_fits(layout, room);
    }
    let size = layout.shape().iter().try_fold(1usize, |size, &dim| size.checked_mul(dim));
    size.is_some_and(|size| size == 0 || layout.offset().checked_add(size).is_some_and(|end| end <= room))
}

fn strided_fits(layout: &Layout, room: usize) -> bool {
    let Some(size) = layout.shape().checked_size() else { return false };
    // The lengths' product is below 2⁶⁰, hence the sum of all reaches below 2¹²⁴.
    let (mut low, mut high) = (layout.offset() as i128, layout.offset() as i128);
    for (&dim, &stride) in layout.shape().iter().zip(&*layout.strides()) {
        let reach = (dim as i128 - 1) * stride as i128;
        if reach < 0 { low += reach } else { high += reach }
    }
    size == 0 || low >= 0 && high < room as i128
}

#[cold]
fn elsewhere(op: &'static str) -> Error {
    Error::DeviceMismatch { op, devices: vec!["cpu".into(), "another device".into()] }
}

/// An input that nobody has written.
#[cold]
pub(crate) fn no_value(op: &'static str) -> Error {
    Error::invalid(op, "an input has no memory: nothing has been written to it yet")
}

#[cold]
fn outside(op: &'static str, view: &View<'_>) -> Error {
    if downcast(view.storage).is_none() {
        return elsewhere(op);
    }
    let (layout, bytes) = (view.layout, view.storage.buffer().bytes());
    Error::invalid(op, format!("a view reaches beyond its buffer of {bytes} bytes: {layout:?} of {}", view.dtype))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_fits_or_is_refused() {
        let base = Layout::contiguous([4, 6].into());
        assert!(fits(&base, 4, 96) && !fits(&base, 4, 95) && !fits(&base, 8, 96));
        let flipped = base.slice(0, 3, -1, 4);
        assert!(fits(&flipped, 4, 96) && !fits(&flipped, 4, 95));
        let shifted = Layout::strided([4].into(), [1].into_iter().collect(), 20);
        assert!(fits(&shifted, 4, 96) && !fits(&shifted, 4, 95));
        assert!(fits(&Layout::contiguous([0, 3].into()), 4, 0));
        let huge = isize::MAX as usize / 8;
        for dims in [[huge, 8], [huge, 1 << 40]] {
            let layout = Layout::contiguous([1].into()).broadcast_to(&[1, 1].into()).unwrap();
            let wild = layout.slice(0, 0, 1, dims[0]).slice(1, 0, isize::MAX, dims[1]);
            assert!(!fits(&wild, 1, 1 << 20), "{dims:?}");
        }
    }
}
