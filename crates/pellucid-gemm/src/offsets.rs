//! An operand whose elements lie at sums of two offsets: the windows of a convolution.

use super::kernels::Kernels;
use super::pack::{Source, check_panel};
use pellucid_runtime::list::List;
use pellucid_simd::Element;
use pellucid_simd::vector::Vector;

/// Positions, relative to a common start, with the runs of neighbours among them.
#[derive(Debug)]
pub struct OffsetList {
    at: List<isize, 0>,
    /// For every position the index after the last of its run.
    until: List<usize, 0>,
}

impl OffsetList {
    /// The positions in their order.
    pub fn new(at: List<isize, 0>) -> Self {
        let mut until = List::repeated(at.len(), at.len());
        for i in (1..at.len()).rev() {
            until[i - 1] = if at[i] == at[i - 1] + 1 { until[i] } else { i };
        }
        Self { at, until }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.at.len()
    }

    /// The positions.
    pub fn all(&self) -> &[isize] {
        &self.at
    }

    /// The least and the largest position; none of no positions.
    pub fn bounds(&self) -> Option<(isize, isize)> {
        Some((*self.at.iter().min()?, *self.at.iter().max()?))
    }

    /// The runs that make up `range`: index of the first, its position, how many.
    pub fn runs(&self, range: std::ops::Range<usize>) -> impl Iterator<Item = (usize, isize, usize)> {
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
pub struct ImplicitIm2col<'a, T> {
    pub data: *const T,
    pub lanes: &'a OffsetList,
    pub depths: &'a OffsetList,
}

// SAFETY: a `ImplicitIm2col` only reads, and whoever makes one vouches that the memory stays unchanged for as long as the
// product runs.
unsafe impl<T: Sync> Sync for ImplicitIm2col<'_, T> {}

// SAFETY: `pack` writes whole vectors: the lanes of the runs, and zeros.
unsafe impl<T: Element> Source<T> for ImplicitIm2col<'_, T> {
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
        check_panel(kernels, lanes, width);
        debug_assert!(
            first + lanes <= self.lanes.len() && start + depth <= self.depths.len(),
            "outside of the operand"
        );
        // Vector by vector of the panel: what a vector is made of, and then that for every step of the depth.
        for slot in (0..width).step_by(kernels.lanes) {
            let (begin, end) = (lanes.min(slot), lanes.min(slot + kernels.lanes));
            let pieces: List<Piece, 4> = self
                .lanes
                .runs(first + begin..first + end)
                .map(|(i, at, count)| {
                    let lane = i - first - slot;
                    Piece { at: at - lane as isize, lane, count }
                })
                .collect();
            let offsets = &self.depths.at[start..start + depth];
            let work = PackLanes { data: self.data, pieces: &pieces, offsets, to: to.wrapping_add(slot), step: width };
            // SAFETY: the elements exist, the caller says; the panel has room for the vector in every row.
            unsafe { (kernels.pack_lanes)(&work) }
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
        debug_assert!(depth <= step, "{depth} steps in rows of {step}");
        let offsets = &self.lanes.at[first..first + lanes];
        for (p, at, len) in self.depths.runs(start..start + depth) {
            let data = self.data.wrapping_offset(at);
            let (to, slack) = (to.wrapping_add(p - start), step - (p - start) - len);
            // SAFETY: as above.
            unsafe { (kernels.pack_runs)(&PackRuns { data, offsets, len, to, step, slack }) }
        }
    }
}

/// Neighbouring lanes of a vector that are neighbours in memory: lane l is at `at + l`.
pub(crate) struct Piece {
    at: isize,
    lane: usize,
    count: usize,
}

/// One vector for every offset: `to[k·step + l] = data[offsets[k] + at + l]` for the lanes l of each piece, 0 for the
/// others.
pub(crate) struct PackLanes<'a, T> {
    data: *const T,
    pieces: &'a [Piece],
    offsets: &'a [isize],
    to: *mut T,
    step: usize,
}

impl<T: Element> PackLanes<'_, T> {
    /// # Safety
    ///
    /// As for [`Vector`]; the elements exist, and there is room for whole vectors.
    #[inline(always)]
    pub(crate) unsafe fn copy<V: Vector<Scalar = T>>(&self) {
        debug_assert!(self.pieces.iter().all(|p| p.lane + p.count <= V::LANES), "pieces of more than a vector");
        debug_assert!(self.offsets.len() <= 1 || self.step >= V::LANES, "vectors are {} apart", self.step);
        // SAFETY: masks select the lanes of the pieces.
        unsafe {
            match *self.pieces {
                // Nearly all vectors are one run, or the end of one and the beginning of the next.
                [ref a] if a.count == V::LANES => self.vectors(
                    #[inline(always)]
                    |from| V::load(from.wrapping_offset(a.at)),
                ),
                [ref a] => {
                    let mask = V::mask_from(a.lane, a.count);
                    self.vectors(
                        #[inline(always)]
                        |from| V::load_part(from.wrapping_offset(a.at), mask),
                    );
                }
                [ref a, ref b] => {
                    let masks = [V::mask_from(a.lane, a.count), V::mask_from(b.lane, b.count)];
                    self.vectors(
                        #[inline(always)]
                        |from| {
                            let first = V::load_part(from.wrapping_offset(a.at), masks[0]);
                            first.load_over(from.wrapping_offset(b.at), masks[1])
                        },
                    );
                }
                ref pieces => self.vectors(
                    #[inline(always)]
                    |from| {
                        pieces.iter().fold(V::zero(), |v, p| {
                            v.load_over(from.wrapping_offset(p.at), V::mask_from(p.lane, p.count))
                        })
                    },
                ),
            }
        }
    }

    /// # Safety
    ///
    /// As for [`copy`](Self::copy); `load` gives the vector of an offset.
    #[inline(always)]
    unsafe fn vectors<V: Vector<Scalar = T>>(&self, load: impl Fn(*const T) -> V) {
        for (k, &offset) in self.offsets.iter().enumerate() {
            // SAFETY: the caller's.
            unsafe { load(self.data.wrapping_offset(offset)).store(self.to.add(k * self.step)) }
        }
    }
}

/// `to[k·step + i] = data[offsets[k] + i]` for `i < len`.
pub struct PackRuns<'a, T> {
    pub data: *const T,
    pub offsets: &'a [isize],
    pub len: usize,
    pub to: *mut T,
    pub step: usize,
    /// So many numbers after the last of a row, up to a whole vector, may be overwritten: whole vectors are stored faster.
    pub slack: usize,
}

impl<T: Element> PackRuns<'_, T> {
    /// # Safety
    ///
    /// As for [`Vector`]; the elements exist, and there is room for them.
    #[inline(always)]
    pub(crate) unsafe fn copy<V: Vector<Scalar = T>>(&self) {
        debug_assert!(self.offsets.len() <= 1 || self.len <= self.step, "rows of {}, {} apart", self.len, self.step);
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
