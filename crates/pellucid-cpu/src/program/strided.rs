//! Index spaces of strided operands: as few and as long axes as the strides of all operands allow.
//!
//! Strides are in bytes; every axis stores one for each operand. Axes of length 1 are dropped, a broadcast axis has
//! stride 0, and two neighbouring axes are merged if one stride per operand describes both.

use crate::operand::Operand;
use pellucid_runtime::list::List;

/// The number of operands whose strides and addresses are stored inline. An Adam update has this many.
pub(crate) const INLINE_OPERANDS: usize = 12;

/// One axis of an index space.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StridedAxis {
    /// The number of indices.
    pub(crate) len: usize,
    /// The stride of every operand, in bytes.
    pub(crate) strides: List<isize, INLINE_OPERANDS>,
}

/// The axes of an index space, outermost first.
pub(crate) type StridedAxes = List<StridedAxis, 4>;

/// Returns the address of the first element of an operand.
pub(crate) fn base_address(operand: &Operand<'_>) -> *mut u8 {
    operand.base.wrapping_add(operand.layout.offset() * operand.dtype.size())
}

/// Returns the axes of `shape` for which `keep` is true, with the strides of operands that broadcast to `shape`.
/// Axes of length 1 are dropped.
pub(crate) fn broadcast_axes<'a>(
    shape: &[usize],
    operands: impl Iterator<Item = &'a Operand<'a>> + Clone,
    keep: impl Fn(usize) -> bool,
) -> StridedAxes {
    let stride = |operand: &Operand<'_>, axis: usize| {
        let own = operand.layout.shape();
        match axis.checked_sub(shape.len() - own.rank()) {
            Some(k) if own[k] != 1 => operand.layout.strides()[k] * operand.dtype.size() as isize,
            _ => 0,
        }
    };
    let kept = (0..shape.len()).filter(|&a| shape[a] != 1 && keep(a));
    kept.map(|a| StridedAxis { len: shape[a], strides: operands.clone().map(|o| stride(o, a)).collect() }).collect()
}

/// Merges neighbouring axes that one stride per operand describes.
pub(crate) fn merge(axes: &mut StridedAxes) {
    let mut last = 0;
    for i in 1..axes.len() {
        let inner = &axes[i];
        let merges = axes[last].strides.iter().zip(&inner.strides).all(|(&o, &i)| o == i * inner.len as isize);
        if merges {
            let inner = axes[i].clone();
            axes[last] = StridedAxis { len: axes[last].len * inner.len, ..inner };
        } else {
            last += 1;
            axes.swap(last, i);
        }
    }
    axes.truncate(last + 1);
}

/// Orders the axes by decreasing stride of operand `leader` and reverses those on which its stride is negative.
///
/// `leader` is then traversed forwards through memory. Use it only where the order of elements does not matter.
/// `bases` are moved to the new first element of each operand.
pub(crate) fn reorder(axes: &mut StridedAxes, leader: usize, bases: &mut [*mut u8]) {
    for axis in axes.iter_mut().filter(|a| a.strides[leader] < 0) {
        for (base, stride) in bases.iter_mut().zip(&mut axis.strides) {
            *base = base.wrapping_offset((axis.len as isize - 1) * *stride);
            *stride = -*stride;
        }
    }
    let key = |a: &StridedAxis| (a.strides[leader], a.strides.iter().map(|s| s.unsigned_abs()).sum::<usize>());
    if !axes.is_sorted_by(|a, b| key(a) >= key(b)) {
        axes.sort_by_key(|a| std::cmp::Reverse(key(a)));
    }
}

/// Returns the number of elements of an index space.
pub(crate) fn element_count(axes: &[StridedAxis]) -> usize {
    axes.iter().map(|a| a.len).product()
}

/// How one operand is stored over an index space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AccessPattern {
    /// Contiguous in row-major order.
    Dense,
    /// One element, broadcast over the whole space.
    Uniform,
    /// Any other strides.
    Strided,
}

/// Returns the access pattern of operand `k`, whose elements have `size` bytes, over the merged `axes`.
pub(crate) fn access_pattern(axes: &[StridedAxis], k: usize, size: usize) -> AccessPattern {
    if axes.iter().all(|a| a.strides[k] == 0) {
        return if axes.is_empty() { AccessPattern::Dense } else { AccessPattern::Uniform };
    }
    let mut expected = size as isize;
    for axis in axes.iter().rev() {
        if axis.strides[k] != expected {
            return AccessPattern::Strided;
        }
        expected *= axis.len as isize;
    }
    AccessPattern::Dense
}

/// A position in an index space, with the address of every operand's element there.
pub(crate) struct Cursor<'a> {
    axes: &'a [StridedAxis],
    index: List<usize, 6>,
    /// The address of the current element of every operand.
    pub(crate) addresses: List<*mut u8, INLINE_OPERANDS>,
}

impl<'a> Cursor<'a> {
    /// Creates a cursor at the position with row-major index `flat`.
    pub(crate) fn new(axes: &'a [StridedAxis], bases: &[*mut u8], mut flat: usize) -> Cursor<'a> {
        let index = List::repeated(0, axes.len());
        let mut cursor = Cursor { axes, index, addresses: bases.iter().copied().collect() };
        for (axis, index) in axes.iter().zip(&mut cursor.index).rev() {
            *index = flat % axis.len;
            flat /= axis.len;
            for (address, stride) in cursor.addresses.iter_mut().zip(&axis.strides) {
                *address = address.wrapping_offset(*index as isize * stride);
            }
        }
        cursor
    }

    /// Moves to the next position in row-major order; the first position follows the last.
    pub(crate) fn advance(&mut self) {
        for (axis, index) in self.axes.iter().zip(&mut self.index).rev() {
            *index += 1;
            let wraps = *index == axis.len;
            let by = if wraps { 1 - axis.len as isize } else { 1 };
            for (address, stride) in self.addresses.iter_mut().zip(&axis.strides) {
                *address = address.wrapping_offset(by * stride);
            }
            if !wraps {
                return;
            }
            *index = 0;
        }
    }
}

/// Calls `visit(address, stride, first, len)` for every run of operand `k` along the innermost axis.
///
/// The runs together are elements `start..start + n` of the index space, in row-major order. `first` is the offset of
/// the run's first element from `start`.
#[inline(always)]
pub(crate) fn for_each_run(
    axes: &[StridedAxis],
    k: usize,
    base: *mut u8,
    start: usize,
    n: usize,
    mut visit: impl FnMut(*mut u8, isize, usize, usize),
) {
    let Some((inner, outer)) = axes.split_last() else {
        return visit(base, 0, 0, n);
    };
    let stride = inner.strides[k];
    let (mut flat, mut within) = (start / inner.len, start % inner.len);
    let mut index: List<usize, 6> = List::repeated(0, outer.len());
    let mut row = base;
    for (axis, index) in outer.iter().zip(&mut index).rev() {
        *index = flat % axis.len;
        flat /= axis.len;
        row = row.wrapping_offset(*index as isize * axis.strides[k]);
    }
    let mut done = 0;
    loop {
        let len = (inner.len - within).min(n - done);
        visit(row.wrapping_offset(within as isize * stride), stride, done, len);
        done += len;
        if done == n {
            return;
        }
        within = 0;
        for (axis, index) in outer.iter().zip(&mut index).rev() {
            *index += 1;
            if *index < axis.len {
                row = row.wrapping_offset(axis.strides[k]);
                break;
            }
            row = row.wrapping_offset((1 - axis.len as isize) * axis.strides[k]);
            *index = 0;
        }
    }
}
