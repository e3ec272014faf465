//! Iteration of several strided operands over one index space, in row-major order.

use pellucid_ir::{Layout, Shape};
use pellucid_runtime::list::List;
use std::ops::Range;

/// An index space and the strides of `N` operands over it.
///
/// Axes of length 1 are removed. Adjacent axes are merged if they can be merged for all operands.
pub(crate) struct IndexSpace<const N: usize> {
    /// The axes, outermost first: the length, and the stride in elements of every operand.
    axes: List<(usize, [isize; N]), 4>,
    len: usize,
}

impl<const N: usize> IndexSpace<N> {
    /// Creates the index space of the given axes, outermost first: the length and the strides of each.
    pub(crate) fn new(all: impl IntoIterator<Item = (usize, [isize; N])>) -> IndexSpace<N> {
        let (mut axes, mut len) = (List::<(usize, [isize; N]), 4>::new(), 1);
        for (dim, strides) in all {
            len *= dim;
            if dim == 1 {
                continue;
            }
            match axes.last_mut() {
                Some(outer) if (0..N).all(|k| outer.1[k] == strides[k] * dim as isize) => {
                    *outer = (outer.0 * dim, strides);
                }
                _ => axes.push((dim, strides)),
            }
        }
        IndexSpace { axes, len }
    }

    /// Returns the number of points.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the stride along the innermost axis, in elements, for every operand.
    pub(crate) fn step(&self) -> [isize; N] {
        self.axes.last().map_or([0; N], |a| a.1)
    }

    /// Returns the length of a full run, which is the length of the innermost axis.
    pub(crate) fn run_len(&self) -> usize {
        self.axes.last().map_or(1, |a| a.0)
    }

    /// Calls `f(offsets, n)` for every run of points within `range`, in order.
    ///
    /// A run is a sequence of `n` adjacent points along the innermost axis. `offsets` are the offsets of its first
    /// point, in elements, in every operand.
    #[inline]
    pub(crate) fn runs(&self, range: Range<usize>, mut f: impl FnMut([isize; N], usize)) {
        let mut cursor = RunCursor::new(self, range);
        while let Some((offsets, n)) = cursor.next_run() {
            f(offsets, n);
        }
    }
}

/// A position in an index space that moves from run to run. It does not depend on the closure of
/// [`IndexSpace::runs`], so it is compiled once for each number of operands.
struct RunCursor<'a, const N: usize> {
    /// The innermost axis: its length, and its stride in every operand.
    inner: (usize, [isize; N]),
    outer: &'a [(usize, [isize; N])],
    /// The position along each outer axis.
    index: List<usize, 4>,
    /// The offsets of the point at `index` whose position along the innermost axis is 0.
    offsets: [isize; N],
    /// The position along the innermost axis.
    within: usize,
    /// The number of points that remain.
    left: usize,
}

impl<'a, const N: usize> RunCursor<'a, N> {
    fn new(space: &'a IndexSpace<N>, range: Range<usize>) -> RunCursor<'a, N> {
        let (inner, outer) = space.axes.split_last().map_or(((1, [0; N]), &[][..]), |(inner, outer)| (*inner, outer));
        let mut cursor =
            RunCursor { inner, outer, index: List::repeated(0, outer.len()), offsets: [0; N], within: 0, left: 0 };
        cursor.left = range.len();
        if cursor.left > 0 {
            cursor.within = range.start % inner.0;
            let mut flat = range.start / inner.0;
            for ((dim, strides), i) in outer.iter().zip(&mut cursor.index).rev() {
                *i = flat % dim;
                flat /= dim;
                for k in 0..N {
                    cursor.offsets[k] += *i as isize * strides[k];
                }
            }
        }
        cursor
    }

    /// Returns the offsets and the length of the next run, and moves behind it.
    #[inline]
    fn next_run(&mut self) -> Option<([isize; N], usize)> {
        if self.left == 0 {
            return None;
        }
        let n = self.left.min(self.inner.0 - self.within);
        let mut offsets = self.offsets;
        for k in 0..N {
            offsets[k] += self.within as isize * self.inner.1[k];
        }
        self.left -= n;
        if self.left > 0 {
            self.within = 0;
            self.advance();
        }
        Some((offsets, n))
    }

    /// Moves to the next position along the outer axes.
    fn advance(&mut self) {
        for ((dim, strides), i) in self.outer.iter().zip(&mut self.index).rev() {
            *i += 1;
            if *i < *dim {
                for k in 0..N {
                    self.offsets[k] += strides[k];
                }
                return;
            }
            *i = 0;
            for k in 0..N {
                self.offsets[k] -= (*dim as isize - 1) * strides[k];
            }
        }
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
