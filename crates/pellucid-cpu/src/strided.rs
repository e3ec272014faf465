//! Index spaces of strided operands, and their traversal in row-major order.
//!
//! An index space has the fewest axes that the strides of all operands allow: axes of length 1 are dropped, a broadcast
//! axis has stride 0, and two neighbouring axes are merged if, in every operand, one stride describes both.
//!
//! [`Cursor`] implements all traversals. The kernel families have a fixed number of operands and offsets in elements
//! ([`IndexSpace`]); programs have any number of operands, addresses, and strides in bytes.

use crate::operand::Operand;
use pellucid_ir::{Layout, Shape, are_one_axis};
use pellucid_runtime::list::List;
use std::ops::Range;

/// The number of operands whose strides and addresses are stored inline, without a heap allocation. It is sufficient
/// for the inputs and outputs of an AdamW update, also with the maximum of the second moments.
pub(crate) const INLINE_OPERANDS: usize = 13;

/// The strides of the operands of a program, in bytes.
pub(crate) type ByteStrides = List<isize, INLINE_OPERANDS>;

/// The addresses of the operands of a program.
pub(crate) type Addresses = List<*mut u8, INLINE_OPERANDS>;

/// One axis of an index space. `S` is a list of strides, one per operand.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StridedAxis<S = ByteStrides> {
    /// The number of indices.
    pub(crate) len: usize,
    /// The stride of every operand.
    pub(crate) strides: S,
}

/// The axes of an index space, outermost first.
pub(crate) type StridedAxes<S = ByteStrides> = List<StridedAxis<S>, 4>;

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
        operand.layout.broadcast_stride(axis, shape.len()) * operand.dtype.size() as isize
    };
    let kept_axes = (0..shape.len()).filter(|&a| shape[a] != 1 && keep(a));
    kept_axes
        .map(|a| StridedAxis { len: shape[a], strides: operands.clone().map(|o| stride(o, a)).collect() })
        .collect()
}

/// Merges neighbouring axes that, in every operand, are equivalent to one axis with one stride.
#[inline]
pub(crate) fn merge<S: AsRef<[isize]> + Clone>(axes: &mut StridedAxes<S>) {
    let mut last = 0;
    for i in 1..axes.len() {
        let (outer, inner) = (axes[last].strides.as_ref(), &axes[i]);
        let merges = outer.iter().zip(inner.strides.as_ref()).all(|(&o, &i)| are_one_axis(o, i, inner.len));
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

/// Orders the axes by decreasing stride of operand `leader`, and reverses the axes along which this stride is negative.
///
/// The traversal then moves forwards through the memory of `leader`. Use this function only if the order of the
/// elements does not affect the result. `bases` are moved to the new first element of each operand.
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
    /// One element, broadcast over the entire space.
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

/// Returns the number of elements after which operand `k`, whose elements have `size` bytes, repeats: the operand is
/// contiguous along the innermost of the merged `axes`, and constant along the others. Returns `None` for all other
/// operands.
pub(crate) fn period(axes: &[StridedAxis], k: usize, size: usize) -> Option<usize> {
    let mut period = 1;
    let mut outer = axes.iter().rev().skip_while(|axis| {
        let is_contiguous = axis.strides[k] == (size * period) as isize;
        period *= if is_contiguous { axis.len } else { 1 };
        is_contiguous
    });
    let is_constant = outer.all(|axis| axis.strides[k] == 0);
    (is_constant && period > 1).then_some(period)
}

/// The location of the current element in every operand, at one point of an index space: offsets in elements, or
/// addresses.
pub(crate) trait Positions {
    /// Moves every operand by `count` of its strides.
    fn advance(&mut self, strides: &[isize], count: isize);
}

impl<const N: usize> Positions for [isize; N] {
    #[inline(always)]
    fn advance(&mut self, strides: &[isize], count: isize) {
        for (offset, stride) in self.iter_mut().zip(strides) {
            *offset += count * stride;
        }
    }
}

impl Positions for Addresses {
    #[inline(always)]
    fn advance(&mut self, strides: &[isize], count: isize) {
        for (address, stride) in self.iter_mut().zip(strides) {
            *address = address.wrapping_offset(count * stride);
        }
    }
}

/// A point of an index space, with the location of its element in every operand.
pub(crate) struct Cursor<'a, S = ByteStrides, P = Addresses> {
    axes: &'a [StridedAxis<S>],
    index: List<usize, 6>,
    /// The location of the current element in every operand.
    pub(crate) positions: P,
}

impl<'a> Cursor<'a> {
    /// Creates a cursor at the point with row-major index `flat`. `bases` are the addresses at index 0.
    pub(crate) fn at(axes: &'a [StridedAxis], bases: &[*mut u8], flat: usize) -> Cursor<'a> {
        Cursor::new(axes, bases.iter().copied().collect(), flat)
    }
}

impl<'a, S: AsRef<[isize]>, P: Positions> Cursor<'a, S, P> {
    /// Creates a cursor at the point with row-major index `flat`. `origin` are the locations at index 0.
    #[inline]
    fn new(axes: &'a [StridedAxis<S>], origin: P, mut flat: usize) -> Cursor<'a, S, P> {
        let mut cursor = Cursor { axes, index: List::repeated(0, axes.len()), positions: origin };
        for (axis, index) in axes.iter().zip(&mut cursor.index).rev() {
            *index = flat % axis.len;
            flat /= axis.len;
            cursor.positions.advance(axis.strides.as_ref(), *index as isize);
        }
        cursor
    }

    /// Moves to the next point in row-major order, and from the last point to the first.
    #[inline]
    pub(crate) fn advance(&mut self) {
        for (axis, index) in self.axes.iter().zip(&mut self.index).rev() {
            *index += 1;
            let wraps = *index == axis.len;
            let by = if wraps { 1 - axis.len as isize } else { 1 };
            self.positions.advance(axis.strides.as_ref(), by);
            if !wraps {
                return;
            }
            *index = 0;
        }
    }
}

/// An index space with `N` operands, whose strides are in elements.
pub(crate) struct IndexSpace<const N: usize> {
    axes: StridedAxes<[isize; N]>,
    len: usize,
}

impl<const N: usize> IndexSpace<N> {
    /// Creates the index space of the given axes, outermost first: the length and the strides of each.
    pub(crate) fn new(all: impl IntoIterator<Item = (usize, [isize; N])>) -> IndexSpace<N> {
        let (mut axes, mut points) = (StridedAxes::new(), 1);
        for (len, strides) in all {
            points *= len;
            if len != 1 {
                axes.push(StridedAxis { len, strides });
            }
        }
        merge(&mut axes);
        IndexSpace { axes, len: points }
    }

    /// Returns the number of points.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the stride along the innermost axis, in elements, for every operand.
    pub(crate) fn step(&self) -> [isize; N] {
        self.axes.last().map_or([0; N], |axis| axis.strides)
    }

    /// Returns the length of a full run, which is the length of the innermost axis.
    pub(crate) fn run_len(&self) -> usize {
        self.axes.last().map_or(1, |axis| axis.len)
    }

    /// Calls `f(offsets, n)` for every run of points within `range`, in order.
    ///
    /// A run is a sequence of `n` adjacent points along the innermost axis. `offsets` are the offsets of its first
    /// point, in elements, in every operand.
    #[inline]
    pub(crate) fn runs(&self, range: Range<usize>, mut f: impl FnMut([isize; N], usize)) {
        let mut runs = Runs::new(self, range);
        while let Some((offsets, n)) = runs.next_run() {
            f(offsets, n);
        }
    }
}

/// An iteration over the runs of a range of an index space. The type does not depend on the closure of
/// [`IndexSpace::runs`], so it is compiled once for each number of operands.
struct Runs<'a, const N: usize> {
    /// The length of the innermost axis, and its stride in every operand.
    inner: (usize, [isize; N]),
    /// The point at index 0 of the innermost axis, for the current run.
    outer: Cursor<'a, [isize; N], [isize; N]>,
    /// The index along the innermost axis.
    within: usize,
    /// The number of points that remain.
    left: usize,
}

impl<'a, const N: usize> Runs<'a, N> {
    fn new(space: &'a IndexSpace<N>, range: Range<usize>) -> Runs<'a, N> {
        let (inner, outer) = match space.axes.split_last() {
            Some((inner, outer)) => ((inner.len, inner.strides), outer),
            None => ((1, [0; N]), &[][..]),
        };
        // A range without points may belong to a space with an axis of length 0.
        let (first, outer) = if range.is_empty() { (0, &[][..]) } else { (range.start, outer) };
        let width = inner.0.max(1);
        Runs { inner, outer: Cursor::new(outer, [0; N], first / width), within: first % width, left: range.len() }
    }

    /// Returns the offsets and the length of the next run, and moves to the point after it.
    #[inline]
    fn next_run(&mut self) -> Option<([isize; N], usize)> {
        if self.left == 0 {
            return None;
        }
        let n = self.left.min(self.inner.0 - self.within);
        let mut offsets = self.outer.positions;
        offsets.advance(&self.inner.1, self.within as isize);
        self.left -= n;
        if self.left > 0 {
            self.within = 0;
            self.outer.advance();
        }
        Some((offsets, n))
    }
}

/// Returns the axes of `shape`, outermost first: the length of each, and its stride in every layout.
///
/// The layouts have the rank of `shape`.
pub(crate) fn axes<'a, const N: usize>(
    shape: &'a Shape,
    layouts: [&'a Layout; N],
) -> impl DoubleEndedIterator<Item = (usize, [isize; N])> + ExactSizeIterator {
    (0..shape.rank()).map(move |axis| (shape[axis], layouts.map(|l| l.strides()[axis])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_visit_any_range_in_row_major_order() {
        let a = Layout::contiguous([3, 4, 1, 5].into());
        let b = a.permute(&[1, 0, 2, 3]).slice(3, 4, -1, 5).permute(&[1, 0, 2, 3]);
        let space = IndexSpace::new(axes(a.shape(), [&a, &b]));
        assert_eq!((space.len(), space.run_len(), space.step()), (60, 5, [1, -1]));
        let all: Vec<_> = (0..60isize).map(|i| [i, i / 5 * 5 + (4 - i % 5)]).collect();
        for (from, to) in [(0, 60), (7, 7), (3, 4), (3, 29), (59, 60)] {
            let mut seen = vec![];
            // The offsets passed to `runs` exclude the offset of the layout, which is 4 for `b`.
            space.runs(from..to, |o, n| (0..n as isize).for_each(|i| seen.push([o[0] + i, o[1] + 4 - i])));
            assert_eq!(seen, all[from..to]);
        }
        assert_eq!(IndexSpace::new(axes(a.shape(), [&a])).run_len(), 60);
        let mut seen = 0;
        IndexSpace::<1>::new([]).runs(0..1, |_, n| seen += n);
        IndexSpace::new([(0, [5]), (3, [1])]).runs(0..0, |_, n| seen += n);
        assert_eq!(seen, 1);
    }
}
