//! An operand whose elements lie at sums of two offsets: the windows of a convolution.

use super::element::Element;
use super::level::Kernels;
use super::pack::Source;
use crate::vector::Vector;

/// Positions, relative to a common start, with the runs of neighbours among them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places {
    at: Vec<isize>,
    /// For every position the index after the last of its run.
    until: Vec<usize>,
}

impl Places {
    /// The positions in their order.
    pub(crate) fn new(at: Vec<isize>) -> Self {
        let mut until = vec![at.len(); at.len()];
        for i in (1..at.len()).rev() {
            until[i - 1] = if at[i] == at[i - 1] + 1 { until[i] } else { i };
        }
        Self { at, until }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.at.len()
    }

    /// The positions.
    pub(crate) fn all(&self) -> &[isize] {
        &self.at
    }

    /// The runs that make up `range`: index of the first, its position, how many.
    pub(crate) fn runs(&self, range: std::ops::Range<usize>) -> impl Iterator<Item = (usize, isize, usize)> {
        let mut next = range.start;
        std::iter::from_fn(move || {
            let first = next;
            (first < range.end).then(|| {
                next = self.until[first].min(range.end);
                (first, self.at[first], next - first)
            })
        })
    }
}

/// The matrix with element (i, p) at `data[lanes[i] + depths[p]]`.
///
/// Windows over an image with its padding are of this kind: where a window begins, plus where in it a tap is.
pub(crate) struct Table<'a, T> {
    pub(crate) data: *const T,
    pub(crate) lanes: &'a Places,
    pub(crate) depths: &'a Places,
}

// SAFETY: a `Table` only reads, and whoever makes one vouches that the memory stays unchanged for as long as the
// product runs.
unsafe impl<T: Sync> Sync for Table<'_, T> {}

/// Depth steps of a panel that are packed together: they stay in L1 while one run after the other is written.
const STEPS: usize = 64;

// SAFETY: `pack` writes the lanes of the runs, and the zeros after them.
unsafe impl<T: Element> Source<T> for Table<'_, T> {
    #[allow(private_interfaces)]
    unsafe fn pack(
        &self,
        kernels: &Kernels<T>,
        first: usize,
        lanes: usize,
        start: usize,
        depth: usize,
        width: usize,
        to: *mut T,
    ) {
        for skip in (0..depth).step_by(STEPS) {
            let offsets = &self.depths.at[start + skip..start + depth.min(skip + STEPS)];
            let to = to.wrapping_add(skip * width);
            for (i, at, len) in self.lanes.runs(first..first + lanes) {
                let data = self.data.wrapping_offset(at);
                // What is overwritten in the same row of the panel is written later.
                let (to, slack) = (to.wrapping_add(i - first), width - (i - first) - len);
                // SAFETY: the elements exist, the caller says; the panel has room for them.
                unsafe { (kernels.spread)(&Spread { data, offsets, len, to, step: width, slack }) }
            }
            if lanes < width {
                for p in 0..offsets.len() {
                    // SAFETY: the panel is `width` wide.
                    unsafe { std::slice::from_raw_parts_mut(to.add(p * width + lanes), width - lanes) }.fill(T::ZERO);
                }
            }
        }
    }

    fn in_rows(&self) -> bool {
        true
    }

    #[allow(private_interfaces)]
    unsafe fn pack_rows(
        &self,
        kernels: &Kernels<T>,
        first: usize,
        lanes: usize,
        start: usize,
        depth: usize,
        step: usize,
        to: *mut T,
    ) {
        let offsets = &self.lanes.at[first..first + lanes];
        for (p, at, len) in self.depths.runs(start..start + depth) {
            let data = self.data.wrapping_offset(at);
            let (to, slack) = (to.wrapping_add(p - start), step - (p - start) - len);
            // SAFETY: as above.
            unsafe { (kernels.spread)(&Spread { data, offsets, len, to, step, slack }) }
        }
    }
}

/// `to[k·step + i] = data[offsets[k] + i]` for `i < len`.
pub(super) struct Spread<'a, T> {
    data: *const T,
    offsets: &'a [isize],
    len: usize,
    to: *mut T,
    step: usize,
    /// So many numbers after the last of a row, up to a whole vector, may be overwritten: whole vectors are stored faster.
    slack: usize,
}

impl<T: Element> Spread<'_, T> {
    /// # Safety
    ///
    /// As for [`Vector`]; the elements exist, and there is room for them.
    #[inline(always)]
    pub(super) unsafe fn copy<V: Vector<Scalar = T>>(&self) {
        let whole = self.len - self.len % V::LANES;
        // SAFETY: `i` stays below `len`, the last vector under a mask, or within the slack.
        unsafe {
            for i in (0..whole).step_by(V::LANES) {
                for (k, &offset) in self.offsets.iter().enumerate() {
                    V::load(self.data.wrapping_offset(offset).add(i)).store(self.to.add(k * self.step + i));
                }
            }
            if whole < self.len {
                let mask = V::mask(self.len - whole);
                let from = |offset: isize| self.data.wrapping_offset(offset).add(whole);
                if whole + V::LANES <= self.len + self.slack {
                    for (k, &offset) in self.offsets.iter().enumerate() {
                        V::load_part(from(offset), mask).store(self.to.add(k * self.step + whole));
                    }
                } else {
                    for (k, &offset) in self.offsets.iter().enumerate() {
                        V::load_part(from(offset), mask).store_part(self.to.add(k * self.step + whole), mask);
                    }
                }
            }
        }
    }
}
