//! Index spaces: the axes over which operands are walked, as few and as long as their strides allow.
//!
//! Strides are in bytes, one an operand. Axes of length 1 are dropped, a stretched axis has stride 0,
//! and neighbours that every operand walks as one axis become one.

use crate::operand::Operand;
use pellucid_runtime::list::List;

/// As many operands, those of an update of Adam's kind, need no heap.
pub(crate) const MANY: usize = 12;

/// One axis of an index space.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Axis {
    pub(crate) len: usize,
    /// Bytes from one index to the next, for every operand.
    pub(crate) steps: List<isize, MANY>,
}

/// Axes, outermost first.
pub(crate) type Axes = List<Axis, 4>;

/// The address of an operand's first element.
pub(crate) fn start(operand: &Operand<'_>) -> *mut u8 {
    operand.base.wrapping_add(operand.layout.offset() * operand.dtype.size())
}

/// The axes of `shape` that `keep` names, for operands that broadcast to it.
pub(crate) fn axes<'a>(
    shape: &[usize],
    operands: impl Iterator<Item = &'a Operand<'a>> + Clone,
    keep: impl Fn(usize) -> bool,
) -> Axes {
    let step = |operand: &Operand<'_>, axis: usize| {
        let own = operand.layout.shape();
        match axis.checked_sub(shape.len() - own.rank()) {
            Some(k) if own[k] != 1 => operand.layout.strides()[k] * operand.dtype.size() as isize,
            _ => 0,
        }
    };
    let kept = (0..shape.len()).filter(|&a| shape[a] != 1 && keep(a));
    kept.map(|a| Axis { len: shape[a], steps: operands.clone().map(|o| step(o, a)).collect() }).collect()
}

/// Joins neighbours that all operands walk as one axis.
pub(crate) fn merge(axes: &mut Axes) {
    let mut last = 0;
    for i in 1..axes.len() {
        let inner = &axes[i];
        let joins = axes[last].steps.iter().zip(&inner.steps).all(|(&o, &i)| o == i * inner.len as isize);
        if joins {
            let inner = axes[i].clone();
            axes[last] = Axis { len: axes[last].len * inner.len, ..inner };
        } else {
            last += 1;
            axes.swap(last, i);
        }
    }
    axes.truncate(last + 1);
}

/// Orders the axes so that `leader` is walked forwards through memory, where the order of elements
/// does not matter; moves `bases` to the first element of each operand.
pub(crate) fn reorder(axes: &mut Axes, leader: usize, bases: &mut [*mut u8]) {
    for axis in axes.iter_mut().filter(|a| a.steps[leader] < 0) {
        for (base, step) in bases.iter_mut().zip(&mut axis.steps) {
            *base = base.wrapping_offset((axis.len as isize - 1) * *step);
            *step = -*step;
        }
    }
    let key = |a: &Axis| (a.steps[leader], a.steps.iter().map(|s| s.unsigned_abs()).sum::<usize>());
    if !axes.is_sorted_by(|a, b| key(a) >= key(b)) {
        axes.sort_by_key(|a| std::cmp::Reverse(key(a)));
    }
}

/// The number of elements of an index space.
pub(crate) fn count(axes: &[Axis]) -> usize {
    axes.iter().map(|a| a.len).product()
}

/// How one operand lies in an index space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AccessPattern {
    /// Element after element.
    Dense,
    /// One element for all.
    Once,
    /// Anything else.
    Strided,
}

/// How operand `k` of `size`-byte elements lies in the space of `axes` (merged).
pub(crate) fn lie(axes: &[Axis], k: usize, size: usize) -> AccessPattern {
    if axes.iter().all(|a| a.steps[k] == 0) {
        return if axes.is_empty() { AccessPattern::Dense } else { AccessPattern::Once };
    }
    let mut expected = size as isize;
    for axis in axes.iter().rev() {
        if axis.steps[k] != expected {
            return AccessPattern::Strided;
        }
        expected *= axis.len as isize;
    }
    AccessPattern::Dense
}

/// A position in an index space, with the address of every operand there.
pub(crate) struct Cursor<'a> {
    axes: &'a [Axis],
    index: List<usize, 6>,
    /// Where each operand's element lies.
    pub(crate) at: List<*mut u8, MANY>,
}

impl<'a> Cursor<'a> {
    /// The position number `flat` in row-major order.
    pub(crate) fn new(axes: &'a [Axis], bases: &[*mut u8], mut flat: usize) -> Cursor<'a> {
        let mut cursor = Cursor { axes, index: List::repeated(0, axes.len()), at: bases.iter().copied().collect() };
        for (axis, index) in axes.iter().zip(&mut cursor.index).rev() {
            *index = flat % axis.len;
            flat /= axis.len;
            for (at, step) in cursor.at.iter_mut().zip(&axis.steps) {
                *at = at.wrapping_offset(*index as isize * step);
            }
        }
        cursor
    }

    /// Goes to the next position (after the last, to the first).
    pub(crate) fn advance(&mut self) {
        for (axis, index) in self.axes.iter().zip(&mut self.index).rev() {
            *index += 1;
            let wraps = *index == axis.len;
            let by = if wraps { 1 - axis.len as isize } else { 1 };
            for (at, step) in self.at.iter_mut().zip(&axis.steps) {
                *at = at.wrapping_offset(by * step);
            }
            if !wraps {
                return;
            }
            *index = 0;
        }
    }
}

/// Calls `run(address, step, first, len)` for every run of operand `k` along the innermost axis
/// that elements `start..start + n` of the index space consist of.
#[inline(always)]
pub(crate) fn runs(
    axes: &[Axis],
    k: usize,
    base: *mut u8,
    start: usize,
    n: usize,
    mut run: impl FnMut(*mut u8, isize, usize, usize),
) {
    let Some((inner, outer)) = axes.split_last() else {
        return run(base, 0, 0, n);
    };
    let step = inner.steps[k];
    let (mut flat, mut within) = (start / inner.len, start % inner.len);
    let mut index: List<usize, 6> = List::repeated(0, outer.len());
    let mut at = base;
    for (axis, index) in outer.iter().zip(&mut index).rev() {
        *index = flat % axis.len;
        flat /= axis.len;
        at = at.wrapping_offset(*index as isize * axis.steps[k]);
    }
    let mut done = 0;
    loop {
        let len = (inner.len - within).min(n - done);
        run(at.wrapping_offset(within as isize * step), step, done, len);
        done += len;
        if done == n {
            return;
        }
        within = 0;
        for (axis, index) in outer.iter().zip(&mut index).rev() {
            *index += 1;
            if *index < axis.len {
                at = at.wrapping_offset(axis.steps[k]);
                break;
            }
            at = at.wrapping_offset((1 - axis.len as isize) * axis.steps[k]);
            *index = 0;
        }
    }
}
