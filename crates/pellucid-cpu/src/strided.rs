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
        if range.is_empty() {
            return;
        }
        let Some((&(inner, stride), outer)) = self.axes.split_last() else {
            return f([0; N], 1);
        };
        let (mut flat, mut within) = (range.start / inner, range.start % inner);
        let mut index: List<usize, 4> = List::repeated(0, outer.len());
        let mut offsets = [0; N];
        for ((dim, strides), i) in outer.iter().zip(&mut index).rev() {
            *i = flat % dim;
            flat /= dim;
            (0..N).for_each(|k| offsets[k] += *i as isize * strides[k]);
        }
        let mut left = range.len();
        loop {
            let n = left.min(inner - within);
            f(std::array::from_fn(|k| offsets[k] + within as isize * stride[k]), n);
            left -= n;
            if left == 0 {
                return;
            }
            within = 0;
            for ((dim, strides), i) in outer.iter().zip(&mut index).rev() {
                *i += 1;
                if *i < *dim {
                    (0..N).for_each(|k| offsets[k] += strides[k]);
                    break;
                }
                *i = 0;
                (0..N).for_each(|k| offsets[k] -= (*dim as isize - 1) * strides[k]);
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
