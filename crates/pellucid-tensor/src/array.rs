//! `Array`: elements on a device and their layout, without gradients or history.
//!
//! Operations and the engine work on arrays; users and layers work on [`Tensor`](crate::Tensor)s. The engine implements
//! the methods that run kernels (`engine/transfer.rs`).

use crate::device::Device;
use pellucid_ir::backend::{DenseView, READY, Storage, View};
use pellucid_ir::kernel::Meta;
use pellucid_ir::{DType, Error, Layout, Overlap, Result, Shape};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// An array of elements of one dtype in a storage, laid out by strides. Clones and views share the storage.
#[derive(Debug)]
pub struct Array {
    storage: Arc<Storage>,
    layout: Layout,
    dtype: DType,
    /// Whether the array must stay on its device, because a device was chosen for it or for an operand from which it
    /// was computed.
    is_pinned: AtomicBool,
    device: Device,
}

/// The identity of a storage. All views of a storage have the same identity, which is unique while the storage exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StorageId(usize);

impl StorageId {
    pub(crate) fn from_storage(storage: &Arc<Storage>) -> StorageId {
        StorageId(Arc::as_ptr(storage).addr())
    }
}

/// Returns the number of elements.
///
/// # Errors
/// [`Error::InvalidArgument`] for a negative length; [`Error::OutOfMemory`] for a size that no memory could hold.
#[inline]
pub(crate) fn checked_size(shape: &Shape) -> Result<usize> {
    shape.checked_size().ok_or_else(|| impossible_shape(shape))
}

#[cold]
fn impossible_shape(shape: &Shape) -> Error {
    match shape.has_negative_length() {
        true => {
            // Lengths above `isize::MAX` are also printed as negative numbers.
            let help = "lengths must be ≥ 0 and at most isize::MAX, got";
            Error::invalid("shape", format!("{help} {shape}; only reshape() infers a length of -1"))
        }
        false => Error::size_overflow().with_shape(shape),
    }
}

/// Returns the memory order of the axes, from the largest stride to the smallest, in which a map over `shape` reads its
/// inputs: the order of the first input of full shape. The result is `None` if this order is row-major or has gaps, or
/// if another full input has a different order. A map in this order reads and writes contiguous memory, as in PyTorch.
#[cold]
pub(crate) fn storage_order(shape: &Shape, inputs: &[&Array]) -> Option<SmallVec<[usize; 6]>> {
    let is_full = |array: &&&Array| array.shape() == shape && shape.size() > 0 && !array.layout().is_broadcast();
    let mut full = inputs.iter().filter(is_full).map(|array| array.layout());
    let strides = full.next().filter(|first| !first.is_contiguous())?.strides();
    if !full.all(|other| *other.strides() == *strides) {
        return None;
    }
    let mut order: SmallVec<[usize; 6]> = (0..shape.rank()).collect();
    order.sort_by_key(|&axis| std::cmp::Reverse(strides[axis]));
    let mut step = 1;
    for &axis in order.iter().rev().filter(|&&axis| shape[axis] != 1) {
        if strides[axis] != step {
            return None;
        }
        step *= shape[axis] as isize;
    }
    Some(order)
}

/// Returns the permutation that undoes the permutation of axes `order`.
pub(crate) fn inverse_order(order: &[usize]) -> SmallVec<[usize; 6]> {
    let mut inverse = SmallVec::from_elem(0, order.len());
    order.iter().enumerate().for_each(|(at, &axis)| inverse[axis] = at);
    inverse
}

/// Returns an empty vector with memory for `count` elements. An allocation whose size follows from a user's argument
/// must not abort the process, as the allocations of `Vec::with_capacity` and `collect` do.
///
/// # Errors
/// [`Error::OutOfMemory`] if the allocation fails, or if a long vector exceeds the memory cap of the CPU.
pub(crate) fn host_vec<T>(count: usize) -> Result<Vec<T>> {
    let bytes = count.saturating_mul(size_of::<T>());
    if bytes >= CHECKED_BYTES {
        Device::cpu().backend().check_memory(bytes)?;
    }
    let mut values = Vec::new();
    match values.try_reserve_exact(count) {
        Ok(()) => Ok(values),
        Err(_) => Err(Error::out_of_memory(bytes)),
    }
}

/// The minimum size in bytes for which a host vector is compared with the memory cap.
const CHECKED_BYTES: usize = 1 << 20;

/// Collects the first `count` values of an iterator.
pub(crate) fn host_values<T>(count: usize, values: impl IntoIterator<Item = T>) -> Result<Vec<T>> {
    let mut list = host_vec(count)?;
    list.extend(values.into_iter().take(count));
    Ok(list)
}

impl Clone for Array {
    #[inline]
    fn clone(&self) -> Array {
        self.view(self.layout.clone())
    }
}

impl Array {
    /// Creates an array without values. The first kernel that writes it allocates its memory.
    pub fn new(device: Device, dtype: DType, shape: Shape) -> Result<Array> {
        let storage = device.backend().storage(checked_size(&shape)? * dtype.size());
        let storage = storage.map_err(|error| error.with_shape(&shape))?;
        Ok(Array::dense(storage, 0, dtype, shape, device))
    }

    /// Creates a contiguous array that starts at element `offset` of a storage.
    #[inline]
    pub(crate) fn dense(storage: Arc<Storage>, offset: usize, dtype: DType, shape: Shape, device: Device) -> Array {
        Array {
            storage,
            layout: Layout::contiguous_from(shape, offset),
            dtype,
            is_pinned: AtomicBool::new(false),
            device,
        }
    }

    /// Returns the length of every axis.
    #[inline]
    pub fn shape(&self) -> &Shape {
        self.layout.shape()
    }

    /// Returns the layout of the elements in the storage.
    #[inline]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the dtype of the elements.
    #[inline]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the shape and dtype, from which a kernel infers the shapes and dtypes of its outputs.
    #[inline]
    pub(crate) fn meta(&self) -> Meta {
        Meta { shape: self.shape().clone(), dtype: self.dtype }
    }

    /// Returns the device that stores the elements.
    #[inline]
    pub fn device(&self) -> Device {
        self.device
    }

    /// Returns true if the array must stay on its device.
    #[inline]
    pub(crate) fn is_pinned(&self) -> bool {
        self.is_pinned.load(Ordering::Relaxed)
    }

    /// Sets whether the array must stay on its device.
    #[inline]
    pub(crate) fn set_pinned(&self, pinned: bool) {
        self.is_pinned.store(pinned, Ordering::Relaxed);
    }

    /// Returns the common device of several arrays.
    ///
    /// # Errors
    /// [`Error::DeviceMismatch`] if they are on different devices.
    #[inline]
    pub(crate) fn common_device(op: &'static str, arrays: &[&Array]) -> Result<Device> {
        let [first, rest @ ..] = arrays else { return Ok(Device::cpu()) };
        match rest.iter().all(|array| array.device == first.device) {
            true => Ok(first.device),
            false => Err(Array::device_mismatch(op, arrays.iter())),
        }
    }

    /// Returns the error for operands that are on different devices.
    #[cold]
    pub(crate) fn device_mismatch<'a>(op: &'static str, arrays: impl Iterator<Item = &'a &'a Array>) -> Error {
        let names = arrays.map(|array| array.device.name().to_string()).collect();
        Error::DeviceMismatch { op, devices: names }
    }

    /// Returns the storage, which all views share.
    #[inline]
    pub fn storage(&self) -> &Arc<Storage> {
        &self.storage
    }

    /// Returns true if both arrays share one storage.
    #[inline]
    pub fn shares_storage(&self, other: &Array) -> bool {
        Arc::ptr_eq(&self.storage, &other.storage)
    }

    /// Returns how the elements of both arrays overlap in memory.
    pub(crate) fn overlap(&self, other: &Array) -> Overlap {
        if !self.shares_storage(other) {
            return Overlap::Disjoint;
        }
        self.layout.overlap(self.dtype.size(), &other.layout, other.dtype.size())
    }

    /// Returns true if this is the only handle to the storage and the layout repeats no element, so the storage may be
    /// overwritten.
    #[inline]
    pub(crate) fn is_unique(&self) -> bool {
        Arc::strong_count(&self.storage) == 1 && !self.layout.may_repeat()
    }

    /// Returns true if the array is the only handle to its storage, no kernel has written the storage, and no recorded
    /// kernel will write it.
    #[inline]
    pub(crate) fn is_new(&self) -> bool {
        let storage: &Storage = &self.storage;
        Arc::strong_count(&self.storage) == 1 && !storage.buffer().is_allocated() && storage.pending() == READY
    }

    /// Returns an array with the layout `layout` that shares the storage.
    pub fn view(&self, layout: Layout) -> Array {
        Array {
            storage: self.storage.clone(),
            layout,
            dtype: self.dtype,
            is_pinned: AtomicBool::new(self.is_pinned()),
            device: self.device,
        }
    }

    /// Broadcasts the array to `shape`, without a copy.
    pub fn broadcast_to(&self, op: &'static str, shape: &Shape) -> Result<Array> {
        checked_size(shape)?;
        match self.layout.broadcast_to(shape) {
            Some(layout) => Ok(self.view(layout)),
            None => {
                let help = if self.shape().rank() > shape.rank() {
                    "the target shape must have at least as many axes; use reshape(), or index or reduce an axis"
                } else {
                    "with shapes aligned at the last axis, each length must be 1 or equal to the target's; use \
                     reshape() or unsqueeze()"
                };
                Err(Error::shapes(op, [self.shape(), shape], help))
            }
        }
    }

    /// Returns the array as a dense operand if it is contiguous and has `size` elements or one element, otherwise
    /// `None`.
    #[inline]
    pub(crate) fn as_dense(&self, size: usize) -> Option<DenseView<'_>> {
        let count = self.shape().size();
        let dense = self.layout.is_contiguous() && (count == size || count == 1);
        dense.then(|| DenseView { storage: &self.storage, offset: self.layout.offset(), once: count != size })
    }

    #[inline]
    pub(crate) fn as_view(&self) -> View<'_> {
        View { storage: &self.storage, layout: &self.layout, dtype: self.dtype }
    }
}
