//! Lists of offsets, and the packing of elements that are stored at them.

use pellucid_runtime::list::List;
use pellucid_simd::Element;
use pellucid_simd::vector::Vector;

/// A list of offsets from a common origin, divided into runs. A run is a maximal sequence of consecutive offsets, so
/// its elements are contiguous in memory.
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

    /// Returns all offsets in order.
    pub fn all(&self) -> &[isize] {
        &self.offsets
    }

    /// Returns the smallest and the largest offset, or `None` if the list is empty.
    pub fn bounds(&self) -> Option<(isize, isize)> {
        Some((*self.offsets.iter().min()?, *self.offsets.iter().max()?))
    }

    /// Returns the runs of the offsets with indices in `range`, each as (index of its first offset, its first offset,
    /// its length).
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

/// Consecutive lanes of a vector whose elements are contiguous in memory: the element of lane l is stored at
/// `offset + l`.
pub(crate) struct LaneRun {
    pub(crate) offset: isize,
    /// The first lane.
    pub(crate) lane: usize,
    /// The number of lanes.
    pub(crate) count: usize,
}

/// The packing of one vector for each offset: `to[k·to_stride + l] = data[offsets[k] + run.offset + l]` for the lanes l
/// of each run, and 0 in the other lanes.
///
/// # Lane packing contract
///
/// - *Reads*: `data` is valid for reads of the elements of every run at every offset, and no thread writes them during
///   the call.
/// - *Writes*: `to` is valid for writes of a full vector at `k·to_stride` for each k. These vectors overlap neither
///   each other nor the source.
/// - *Runs*: every run is within the lanes of one vector.
pub(crate) struct PackLanes<'a, T> {
    pub(crate) data: *const T,
    pub(crate) runs: &'a [LaneRun],
    pub(crate) offsets: &'a [isize],
    pub(crate) to: *mut T,
    pub(crate) to_stride: usize,
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
        debug_assert!(self.runs.iter().all(|p| p.lane + p.count <= V::LANES), "a run extends beyond the vector");
        debug_assert!(
            self.offsets.len() <= 1 || self.to_stride >= V::LANES,
            "packed vectors overlap: their stride {} is less than their length",
            self.to_stride
        );
        // SAFETY: the masks select the lanes of the runs, so *Reads* of the lane packing contract covers every load,
        // and each closure reads only these lanes. The caller guarantees the contract of `copy`, which is the other
        // clause of `store_vectors`.
        unsafe {
            match *self.runs {
                // Nearly all vectors consist of one run or of two runs.
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
    /// - `load` reads only the elements of the runs, relative to the pointer that is its argument.
    #[inline(always)]
    unsafe fn store_vectors<V: Vector<Scalar = T>>(&self, load: impl Fn(*const T) -> V) {
        for (k, &offset) in self.offsets.iter().enumerate() {
            // SAFETY: *Writes* of the lane packing contract covers a full vector at `k · to_stride`. The caller
            // guarantees the contract of `Vector`.
            unsafe { load(self.data.wrapping_offset(offset)).store(self.to.add(k * self.to_stride)) }
        }
    }
}

/// A copy of equally long rows from a list of offsets: `to[k·step + i] = data[offsets[k] + i]` for `i < len`.
///
/// # Run packing contract
///
/// - *Reads*: `data` is valid for reads of `len` elements at every offset, and no thread writes them during the call.
/// - *Writes*: for each k, `to` is valid for writes of the `len` elements from `k·step` and of the `slack` elements
///   after them. The written elements do not overlap the source, the rows do not overlap each other, and no other
///   thread accesses the written elements.
pub struct PackRuns<'a, T> {
    /// The origin of the offsets.
    pub data: *const T,
    /// The offset of each row.
    pub offsets: &'a [isize],
    /// The length of the rows.
    pub len: usize,
    /// The first row of the target.
    pub to: *mut T,
    /// The stride between rows of the target, in elements.
    pub step: usize,
    /// The number of elements after each row that may be overwritten, up to the end of a vector. Storing full vectors
    /// is faster than storing under a mask.
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
            "packed rows overlap: their length {} exceeds their stride {}",
            self.len,
            self.step
        );
        let full_len = self.len - self.len % V::LANES;
        // SAFETY: *Reads* and *Writes* of the run packing contract cover the elements below `len`. The last vector is
        // loaded under a mask. It is stored under the same mask, or as a full vector if it ends within the slack, which
        // *Writes* includes.
        unsafe {
            for i in (0..full_len).step_by(V::LANES) {
                for (k, &offset) in self.offsets.iter().enumerate() {
                    V::load(self.data.wrapping_offset(offset).add(i)).store(self.to.add(k * self.step + i));
                }
            }
            if full_len < self.len {
                let mask = V::mask(self.len - full_len);
                let from = |offset: isize| self.data.wrapping_offset(offset).add(full_len);
                if full_len + V::LANES <= self.len + self.slack {
                    for (k, &offset) in self.offsets.iter().enumerate() {
                        V::load_part(from(offset), mask).store(self.to.add(k * self.step + full_len));
                    }
                } else {
                    for (k, &offset) in self.offsets.iter().enumerate() {
                        V::load_part(from(offset), mask).store_part(self.to.add(k * self.step + full_len), mask);
                    }
                }
            }
        }
    }
}
