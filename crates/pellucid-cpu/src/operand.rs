//! Converts views to addresses. Every operand of a kernel is checked once here against the size of its buffer.

use pellucid_ir::backend::{Buffer, DenseView, Storage, View};
use pellucid_ir::kernel::KernelOperand;
use pellucid_ir::{DType, Error, Layout, Result, Shape};
use pellucid_runtime::CpuBuffer;
use pellucid_runtime::list::List;
use pellucid_runtime::threads::SharedPtr;
use std::any::TypeId;
use std::ptr::NonNull;

/// An array in CPU memory: the address of its storage, its layout and its dtype.
///
/// All elements are in one buffer, which outlives the operand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand<'a> {
    /// The start of the storage, aligned to 64 bytes.
    pub(crate) base: *mut u8,
    /// The layout in the storage; offset and strides in elements.
    pub(crate) layout: &'a Layout,
    /// The type of the elements.
    pub(crate) dtype: DType,
}

impl KernelOperand for Operand<'_> {
    #[inline]
    fn layout(&self) -> &Layout {
        self.layout
    }
    #[inline]
    fn dtype(&self) -> DType {
        self.dtype
    }
}

/// The operands of a kernel. Up to eight are stored without a heap allocation.
pub(crate) type Operands<'a> = List<Operand<'a>, 8>;

impl<'a> Operand<'a> {
    /// Returns the length of every axis.
    pub(crate) fn shape(&self) -> &'a Shape {
        self.layout.shape()
    }

    /// Returns a pointer to element (0, 0, ..). `T` must have the size of the dtype.
    pub(crate) fn first<T>(&self) -> SharedPtr<T> {
        SharedPtr(self.base.wrapping_add(self.layout.offset() * self.dtype.size()).cast())
    }
}

/// Returns the start of the storage of an input.
///
/// # Errors
/// Returns an error if the view exceeds its buffer or belongs to another device, or if the buffer has no memory
/// although the view has elements.
#[inline]
pub(crate) fn input(op: &'static str, view: &View<'_>) -> Result<NonNull<u8>> {
    let buffer = checked_buffer(op, view)?;
    match buffer.start() {
        Some(start) => Ok(start),
        None if view.layout.shape().size() == 0 => buffer.ensure(),
        None => Err(no_value(op)),
    }
}

/// Returns the start of the storage of an output. Allocates the memory if the buffer has none.
///
/// # Errors
/// Returns an error if the view exceeds its buffer or belongs to another device, or if the allocation fails.
#[inline]
pub(crate) fn output(op: &'static str, view: &View<'_>) -> Result<NonNull<u8>> {
    let buffer = checked_buffer(op, view)?;
    buffer.ensure()
}

/// Returns the buffer of a view, or an error if the view exceeds the buffer or belongs to another device.
#[inline(always)]
fn checked_buffer<'a>(op: &'static str, view: &View<'a>) -> Result<&'a CpuBuffer> {
    // Only the rare case of an error builds a `Result`: its error type is so large that it is passed through memory.
    let buffer = as_cpu_buffer(view.storage).filter(|b| fits_buffer(view.layout, view.dtype.size(), b.bytes()));
    buffer.ok_or_else(|| view_out_of_bounds(op, view))
}

/// Returns the address of the first element of an input that has `size` contiguous elements or is a single value.
///
/// `element` is the size of an element in bytes.
///
/// # Errors
/// Returns an error in the same cases as [`input`].
#[inline]
pub(crate) fn dense_input(op: &'static str, dense: &DenseView<'_>, size: usize, element: usize) -> Result<NonNull<u8>> {
    let count = if dense.once { 1 } else { size };
    match dense_buffer(dense, count, element) {
        Some((buffer, skip)) => match buffer.start() {
            // SAFETY: `dense_buffer` returns `skip` only if it is at most the size of the buffer.
            Some(start) => Ok(unsafe { start.add(skip) }),
            None if count == 0 => buffer.ensure(),
            None => Err(no_value(op)),
        },
        None => Err(dense_out_of_bounds(op, dense, count, element)),
    }
}

/// Returns the address of the first element of a contiguous output of `size` elements. Allocates the memory if the
/// buffer has none.
///
/// `element` is the size of an element in bytes.
///
/// # Errors
/// Returns an error if the elements exceed the buffer, if the storage belongs to another device, or if the allocation
/// fails.
#[inline]
pub(crate) fn dense_output(
    op: &'static str,
    dense: &DenseView<'_>,
    size: usize,
    element: usize,
) -> Result<NonNull<u8>> {
    match dense_buffer(dense, size, element) {
        // SAFETY: `dense_buffer` returns `skip` only if it is at most the size of the buffer.
        Some((buffer, skip)) => buffer.ensure().map(|start| unsafe { start.add(skip) }),
        None => Err(dense_out_of_bounds(op, dense, size, element)),
    }
}

/// Returns an error if an output of `size` elements overlaps an input, unless both have the same elements. Each operand
/// is a pair with its element size in bytes. The caller has checked that the output is within its buffer.
#[inline]
pub(crate) fn check_dense_overlap(
    op: &'static str,
    (input, input_element): (&DenseView<'_>, usize),
    (output, output_element): (&DenseView<'_>, usize),
    size: usize,
) -> Result<()> {
    if !std::ptr::eq(input.storage, output.storage) {
        return Ok(());
    }
    let bytes = |offset: usize, count: usize, element: usize| {
        offset.saturating_mul(element)..offset.saturating_add(count).saturating_mul(element)
    };
    let a = bytes(input.offset, if input.once { 1 } else { size }, input_element);
    let b = bytes(output.offset, size, output_element);
    match a == b && input_element == output_element || a.end <= b.start || b.end <= a.start {
        true => Ok(()),
        false => Err(Error::invalid(op, "an output overlaps an input that it must not overwrite; copy that input")),
    }
}

/// Returns the buffer and the offset in bytes of the first element, or `None` if an element is outside the buffer.
#[inline(always)]
fn dense_buffer<'a>(dense: &DenseView<'a>, count: usize, element: usize) -> Option<(&'a CpuBuffer, usize)> {
    let buffer = as_cpu_buffer(dense.storage)?;
    if count == 0 {
        return Some((buffer, 0));
    }
    let end = dense.offset.checked_add(count)?.checked_mul(element)?;
    (end <= buffer.bytes()).then_some((buffer, dense.offset * element))
}

/// Returns the error of a contiguous operand that is not within a buffer of this backend.
#[cold]
fn dense_out_of_bounds(op: &'static str, dense: &DenseView<'_>, count: usize, element: usize) -> Error {
    match as_cpu_buffer(dense.storage) {
        None => wrong_device(op),
        Some(buffer) => {
            let (bytes, offset) = (buffer.bytes(), dense.offset);
            let elements = format!("{count} elements of {element} bytes at element offset {offset}");
            Error::invalid(op, format!("{elements} exceed a buffer of {bytes} bytes"))
        }
    }
}

/// Returns the buffer of a storage, or an error if the storage belongs to another backend.
pub(crate) fn cpu_buffer<'a>(op: &'static str, storage: &'a Storage) -> Result<&'a CpuBuffer> {
    as_cpu_buffer(storage).ok_or_else(|| wrong_device(op))
}

#[inline(always)]
fn as_cpu_buffer(storage: &Storage) -> Option<&CpuBuffer> {
    let buffer = storage.buffer();
    // SAFETY: `is_type` returns true only if the buffer is a `CpuBuffer`: no implementation of `Buffer` can override
    // it.
    buffer.is_type(&TypeId::of::<CpuBuffer>()).then(|| unsafe { &*(&raw const *buffer).cast::<CpuBuffer>() })
}

/// Returns true if every element of `layout` is within the first `bytes` bytes of the storage.
///
/// `element` is the size of an element in bytes, a power of two. Returns false if the offset of an element overflows.
#[inline]
pub(crate) fn fits_buffer(layout: &Layout, element: usize, bytes: usize) -> bool {
    let capacity = bytes >> element.trailing_zeros();
    if !layout.is_contiguous() {
        return strided_fits(layout, capacity);
    }
    let size = layout.shape().iter().try_fold(1usize, |size, &dim| size.checked_mul(dim));
    size.is_some_and(|size| size == 0 || layout.offset().checked_add(size).is_some_and(|end| end <= capacity))
}

fn strided_fits(layout: &Layout, capacity: usize) -> bool {
    let Some(size) = layout.shape().checked_size() else { return false };
    // The product of the lengths is below 2⁶⁰, hence the sum of all extents is below 2¹²⁴.
    let (mut low, mut high) = (layout.offset() as i128, layout.offset() as i128);
    for (&dim, &stride) in layout.shape().iter().zip(&*layout.strides()) {
        let extent = (dim as i128 - 1) * stride as i128;
        if extent < 0 { low += extent } else { high += extent }
    }
    size == 0 || low >= 0 && high < capacity as i128
}

/// Returns the error of a storage that belongs to another backend.
#[cold]
fn wrong_device(op: &'static str) -> Error {
    Error::DeviceMismatch { op, devices: vec!["cpu".into(), "another device".into()] }
}

/// Returns the error of an input that has never been written.
#[cold]
pub(crate) fn no_value(op: &'static str) -> Error {
    Error::invalid(op, "an input has no memory, because it has never been written; write it first")
}

/// Returns the error of a view that is not within a buffer of this backend.
#[cold]
fn view_out_of_bounds(op: &'static str, view: &View<'_>) -> Error {
    if as_cpu_buffer(view.storage).is_none() {
        return wrong_device(op);
    }
    let (layout, bytes) = (view.layout, view.storage.buffer().bytes());
    Error::invalid(op, format!("a view exceeds its buffer of {bytes} bytes: {layout:?} of {}", view.dtype))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_checked_against_the_size_of_the_buffer() {
        let base = Layout::contiguous([4, 6].into());
        assert!(fits_buffer(&base, 4, 96) && !fits_buffer(&base, 4, 95) && !fits_buffer(&base, 8, 96));
        let flipped = base.slice(0, 3, -1, 4);
        assert!(fits_buffer(&flipped, 4, 96) && !fits_buffer(&flipped, 4, 95));
        let shifted = Layout::strided([4].into(), [1].into_iter().collect(), 20);
        assert!(fits_buffer(&shifted, 4, 96) && !fits_buffer(&shifted, 4, 95));
        assert!(fits_buffer(&Layout::contiguous([0, 3].into()), 4, 0));
        let huge = isize::MAX as usize / 8;
        for dims in [[huge, 8], [huge, 1 << 40]] {
            let layout = Layout::contiguous([1].into()).broadcast_to(&[1, 1].into()).unwrap();
            let overflowing = layout.slice(0, 0, 1, dims[0]).slice(1, 0, isize::MAX, dims[1]);
            assert!(!fits_buffer(&overflowing, 1, 1 << 20), "{dims:?}");
        }
    }
}
