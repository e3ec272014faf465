//! Operands whose elements are stored at sums of two offsets, as the windows of a convolution are.

use super::kernels::Kernels;
use super::pack::{Source, check_panel};
use pellucid_runtime::list::List;
use pellucid_simd::Element;
use pellucid_simd::vector::Vector;

/// A list of offsets from a common origin, with its runs of consecutive offsets.
#[derive(Debug)]
pub struct OffsetList {
    offsets: List<isize, 0>,
    /// For every offset, the index after the last offset of its run.
    run_ends: List<usize, 0>,
}

impl OffsetList {
    /// Creates a list of offsets, in the given order, and finds its runs.
    pub fn new(offsets: List<isize, 0>) -> Self {
        let mut run_ends = List::repeated(offsets.len(), offsets.len());
        for i in (1..offsets.len()).rev() {
            run_ends[i - 1] = if offsets[i] == offsets[i - 1] + 1 { run_ends[i] } else { i };
        }
        Self { offsets, run_ends }
    }

    /// Returns the number of offsets.
    pub fn len(&self) -> usize {
        self.offsets.len()
    }

    /// Returns true if the list has no offsets.
    pub fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }

    /// Returns the offsets.
    pub fn all(&self) -> &[isize] {
        &self.offsets
    }

    /// Returns the least and the largest offset, or `None` if the list is empty.
    pub fn bounds(&self) -> Option<(isize, isize)> {
        Some((*self.offsets.iter().min()?, *self.offsets.iter().max()?))
    }

    /// Returns the runs of the offsets with indices in `range`, each as (index of the first offset, the first offset,
    /// length).
    pub fn runs(&self, range: std::ops::Range<usize>) -> impl Iterator<Item = (usize, isize, usize)> {
        let mut next = range.start;
        std::iter::from_fn(move || {
            let first = next;
            (first < range.end).then(|| {
                next = self.run_ends[first].min(range.end);
                (first, self.offsets[first], next - first)
            })
        })
    }
}

/// An operand whose element (i, p) is `data[lanes[i] + depths[p]]`.
///
/// The windows over a padded image have this form (implicit im2col): the offset of a window plus the offset of a tap in
/// the window.
pub struct ImplicitIm2col<'a, T> {
    /// The origin of the offsets.
    pub data: *const T,
    /// Offsets of the lanes, which are the windows.
    pub lanes: &'a OffsetList,
    /// Offsets of the steps of the depth, which are the taps of a window.
    pub depths: &'a OffsetList,
}

// SAFETY: an `ImplicitIm2col` has no safe method that reads memory. The unsafe functions that read through it require
// that no thread writes the memory meanwhile (*Range* of the panel contract, *Operands* of `multiply`).
unsafe impl<T: Sync> Sync for ImplicitIm2col<'_, T> {}

// SAFETY: `pack` writes whole vectors with the lanes of the runs, and zeros in the others. `pack_rows` writes every run
// of the depth of every lane. `strided` and `panel` return `None`.
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
            "the panel is not within the operand"
        );
        // One vector of lanes of the panel after another: first its runs, then its elements for every step of the
        // depth.
        for vector_start in (0..width).step_by(kernels.lanes) {
            let (begin, end) = (lanes.min(vector_start), lanes.min(vector_start + kernels.lanes));
            let runs: List<LaneRun, 4> = self
                .lanes
                .runs(first + begin..first + end)
                .map(|(i, offset, count)| {
                    let lane = i - first - vector_start;
                    LaneRun { offset: offset - lane as isize, lane, count }
                })
                .collect();
            let offsets = &self.depths.offsets[start..start + depth];
            let work = PackLanes {
                data: self.data,
                runs: &runs,
                offsets,
                to: to.wrapping_add(vector_start),
                to_stride: width,
            };
            // SAFETY: the lane packing contract. *Reads* follows from *Range* of the panel contract, and *Writes* from
            // its *Target* and *Width*: every row of the panel contains this vector. The runs are within one vector by
            // their construction. The caller guarantees *Isa*.
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
        debug_assert!(depth <= step, "{depth} elements in rows of stride {step}");
        let offsets = &self.lanes.offsets[first..first + lanes];
        for (p, offset, len) in self.depths.runs(start..start + depth) {
            let data = self.data.wrapping_offset(offset);
            let (to, slack) = (to.wrapping_add(p - start), step - (p - start) - len);
            // SAFETY: the run packing contract. *Reads* follows from *Range* of the row contract. *Writes* follows from
            // its *Target* and *Stride*: the run and the slack end at the end of each row. The caller guarantees *Isa*.
            unsafe { (kernels.pack_runs)(&PackRuns { data, offsets, len, to, step, slack }) }
        }
    }
}

/// Consecutive lanes of a vector that are contiguous in memory: lane l is stored at `offset + l`.
pub(crate) struct LaneRun {
    offset: isize,
    /// The first lane.
    lane: usize,
    /// The number of lanes.
    count: usize,
}

/// The packing of one vector for each offset: `to[k·to_stride + l] = data[offsets[k] + run.offset + l]` for the lanes l
/// of each run, and 0 in the other lanes.
///
/// # Lane packing contract
///
/// - *Reads*: `data` is valid for reads of the lanes of every run at every offset, and no thread writes them meanwhile.
/// - *Writes*: `to` is valid for writes of a whole vector for each offset. The vectors overlap neither each other nor
///   the source.
/// - *Runs*: every run is within the lanes of one vector.
pub(crate) struct PackLanes<'a, T> {
    data: *const T,
    runs: &'a [LaneRun],
    offsets: &'a [isize],
    to: *mut T,
    to_stride: usize,
}

impl<T: Element> PackLanes<'_, T> {
    /// Packs the vectors.
    ///
    /// # Safety
    ///
    /// - The lane packing contract of [`PackLanes`] holds.
    /// - The contract of [`Vector`] holds: the instruction set of `V` is enabled in the calling function.
    #[inline(always)]
    pub(crate) unsafe fn copy<V: Vector<Scalar = T>>(&self) {
        debug_assert!(self.runs.iter().all(|p| p.lane + p.count <= V::LANES), "a run is longer than a vector");
        debug_assert!(
            self.offsets.len() <= 1 || self.to_stride >= V::LANES,
            "vectors overlap: their stride is {}",
            self.to_stride
        );
        // SAFETY: the masks select the lanes of the runs, so that *Reads* covers every load. The caller guarantees the
        // lane packing contract for `store_vectors`.
        unsafe {
            match *self.runs {
                // Nearly all vectors are part of one run, or of two consecutive runs.
                [ref a] if a.count == V::LANES => self.store_vectors(
                    #[inline(always)]
                    |from| V::load(from.wrapping_offset(a.offset)),
                ),
                [ref a] => {
                    let mask = V::mask_from(a.lane, a.count);
                    self.store_vectors(
                        #[inline(always)]
                        |from| V::load_part(from.wrapping_offset(a.offset), mask),
                    );
                }
                [ref a, ref b] => {
                    let masks = [V::mask_from(a.lane, a.count), V::mask_from(b.lane, b.count)];
                    self.store_vectors(
                        #[inline(always)]
                        |from| {
                            let first = V::load_part(from.wrapping_offset(a.offset), masks[0]);
                            first.load_over(from.wrapping_offset(b.offset), masks[1])
                        },
                    );
                }
                ref runs => self.store_vectors(
                    #[inline(always)]
                    |from| {
                        runs.iter().fold(V::zero(), |v, p| {
                            v.load_over(from.wrapping_offset(p.offset), V::mask_from(p.lane, p.count))
                        })
                    },
                ),
            }
        }
    }

    /// Stores the vector that `load` returns for each offset.
    ///
    /// # Safety
    ///
    /// - The contract of [`copy`](Self::copy) holds.
    /// - `load` reads only lanes of the runs relative to its argument.
    #[inline(always)]
    unsafe fn store_vectors<V: Vector<Scalar = T>>(&self, load: impl Fn(*const T) -> V) {
        for (k, &offset) in self.offsets.iter().enumerate() {
            // SAFETY: *Writes* of the lane packing contract covers a whole vector at `k · to_stride`. The caller
            // guarantees the contract of `Vector`.
            unsafe { load(self.data.wrapping_offset(offset)).store(self.to.add(k * self.to_stride)) }
        }
    }
}

/// A copy of equally long rows from a list of offsets: `to[k·step + i] = data[offsets[k] + i]` for `i < len`.
///
/// # Run packing contract
///
/// - *Reads*: `data` is valid for reads of `len` elements at every offset, and no thread writes them meanwhile.
/// - *Writes*: `to` is valid for writes of `len` elements at every `k·step`, and of `slack` elements after them. They
///   do not overlap the source, rows do not overlap each other, and no other thread accesses them.
pub struct PackRuns<'a, T> {
    /// The origin of the offsets.
    pub data: *const T,
    /// The offset of each row.
    pub offsets: &'a [isize],
    /// Length of the rows.
    pub len: usize,
    /// The first row of the target.
    pub to: *mut T,
    /// Stride between rows of the target, in elements.
    pub step: usize,
    /// Number of elements after each row that may be overwritten, up to the end of a vector. Storing whole vectors is
    /// faster than storing under a mask.
    pub slack: usize,
}

impl<T: Element> PackRuns<'_, T> {
    /// Copies the rows.
    ///
    /// # Safety
    ///
    /// - The run packing contract of [`PackRuns`] holds.
    /// - The contract of [`Vector`] holds: the instruction set of `V` is enabled in the calling function.
    #[inline(always)]
    pub(crate) unsafe fn copy<V: Vector<Scalar = T>>(&self) {
        debug_assert!(
            self.offsets.len() <= 1 || self.len <= self.step,
            "rows overlap: their length is {}, their stride {}",
            self.len,
            self.step
        );
        let whole = self.len - self.len % V::LANES;
        // SAFETY: `i` stays below `len` (*Reads*, *Writes*). The last vector is loaded under a mask, and stored under
        // that mask or, where it fits, within the slack (*Writes*).
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
