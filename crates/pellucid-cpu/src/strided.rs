//! Walking several strided operands over one index space, in row-major order.

use pellucid_ir::{Layout, Shape};
use pellucid_runtime::list::List;
use std::ops::Range;

/// An index space with `N` operands: axes of length 1 are gone, and neighbours that all operands
/// walk as one axis are one.
pub(crate) struct IndexSpace<const N: usize> {
    /// Outermost first: length, and elements from one index to the next for every operand.
    axes: List<(usize, [isize; N]), 4>,
    len: usize,
}

impl<const N: usize> IndexSpace<N> {
    /// The space of these axes, outermost first.
    pub(crate) fn new(all: impl IntoIterator<Item = (usize, [isize; N])>) -> IndexSpace<N> {
        let (mut axes, mut len) = (List::<(usize, [isize; N]), 4>::new(), 1);
        for (dim, steps) in all {
            len *= dim;
            if dim == 1 {
                continue;
            }
            match axes.last_mut() {
                Some(outer) if (0..N).all(|k| outer.1[k] == steps[k] * dim as isize) => *outer = (outer.0 * dim, steps),
                _ => axes.push((dim, steps)),
            }
        }
        IndexSpace { axes, len }
    }

    /// The number of its points.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Elements from one point of a run to the next, for every operand.
    pub(crate) fn step(&self) -> [isize; N] {
        self.axes.last().map_or([0; N], |a| a.1)
    }

    /// The length of a full run: of the innermost axis.
    pub(crate) fn run(&self) -> usize {
        self.axes.last().map_or(1, |a| a.0)
    }

    /// Calls `f(offsets, n)` for the points `range` in order, run by run along the innermost
    /// axis: the offsets of the run's first point in every operand, and its number of points.
    #[inline]
    pub(crate) fn runs(&self, range: Range<usize>, mut f: impl FnMut([isize; N], usize)) {
        if range.is_empty() {
            return;
        }
        let Some((&(inner, step), outer)) = self.axes.split_last() else {
            return f([0; N], 1);
        };
        let (mut flat, mut within) = (range.start / inner, range.start % inner);
        let mut index: List<usize, 4> = List::repeated(0, outer.len());
        let mut at = [0; N];
        for ((dim, steps), i) in outer.iter().zip(&mut index).rev() {
            *i = flat % dim;
            flat /= dim;
            (0..N).for_each(|k| at[k] += *i as isize * steps[k]);
        }
        let mut left = range.len();
        loop {
            let n = left.min(inner - within);
            f(std::array::from_fn(|k| at[k] + within as isize * step[k]), n);
            left -= n;
            if left == 0 {
                return;
            }
            within = 0;
            for ((dim, steps), i) in outer.iter().zip(&mut index).rev() {
                *i += 1;
                if *i < *dim {
                    (0..N).for_each(|k| at[k] += steps[k]);
                    break;
                }
                *i = 0;
                (0..N).for_each(|k| at[k] -= (*dim as isize - 1) * steps[k]);
            }
        }
    }
}

/// The axes of `shape`, outermost first, with the strides of layouts of that rank.
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
        assert_eq!((space.len(), space.run(), space.step()), (60, 5, [1, -1]));
        let all: Vec<_> = (0..60isize).map(|i| [i, i / 5 * 5 + (4 - i % 5)]).collect();
        for (from, to) in [(0, 60), (7, 7), (3, 4), (3, 29), (59, 60)] {
            let mut seen = vec![];
            // The offset of the layout is not part of the walk.
            space.runs(from..to, |at, n| (0..n as isize).for_each(|i| seen.push([at[0] + i, at[1] + 4 - i])));
            assert_eq!(seen, all[from..to]);
        }
        assert_eq!(IndexSpace::new(axes(a.shape(), [&a])).run(), 60);
        let mut seen = 0;
        IndexSpace::<1>::new([]).runs(0..1, |_, n| seen += n);
        IndexSpace::new([(0, [5]), (3, [1])]).runs(0..0, |_, n| seen += n);
        assert_eq!(seen, 1);
    }
}
