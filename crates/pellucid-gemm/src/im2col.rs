//! Operands whose elements are stored at sums of two offsets, such as the windows of a convolution.

use super::kernels::Kernels;
use super::offsets::{LaneRun, OffsetList, PackLanes, PackRuns};
use super::source::{PackSource, PanelRange, check_panel};
use pellucid_runtime::list::List;
use pellucid_simd::Element;

/// An operand whose element (i, p) is `data[lanes[i] + depths[p]]`.
///
/// The windows over a padded image have this form (implicit im2col): the offset of a window plus the offset of a tap in
/// the window.
pub struct ImplicitIm2col<'a, T> {
    /// The origin of the offsets.
    pub data: *const T,
    /// The offsets of the lanes, which are the windows.
    pub lanes: &'a OffsetList,
    /// The offsets of the k indices, which are the taps of a window.
    pub depths: &'a OffsetList,
}

// SAFETY: an `ImplicitIm2col` has no safe method that reads memory. The unsafe functions that read through it require
// that no thread writes the memory during the call (*Range* of the panel contract, *Operands* of `multiply`).
unsafe impl<T: Sync> Sync for ImplicitIm2col<'_, T> {}

// SAFETY: `pack` writes full vectors with the lanes of the runs, and zeros in the other lanes. `pack_rows` writes every
// run of all k indices of every lane. `strided` and `panel` return `None`.
unsafe impl<T: Element> PackSource<T> for ImplicitIm2col<'_, T> {
    #[allow(private_interfaces)]
    unsafe fn pack(&self, kernels: &Kernels<T>, range: PanelRange, width: usize, to: *mut T) {
        let PanelRange { first, lanes, start, depth } = range;
        check_panel(kernels, lanes, width);
        debug_assert!(
            first + lanes <= self.lanes.len() && start + depth <= self.depths.len(),
            "the panel is not within the operand"
        );
        // Packs one vector of lanes at a time: finds its runs, and then copies its elements for every k index.
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
            let offsets = &self.depths.all()[start..start + depth];
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
    unsafe fn pack_rows(&self, kernels: &Kernels<T>, range: PanelRange, step: usize, to: *mut T) {
        let PanelRange { first, lanes, start, depth } = range;
        debug_assert!(depth <= step, "rows of {depth} elements exceed their stride {step}");
        let offsets = &self.lanes.all()[first..first + lanes];
        for (p, offset, len) in self.depths.runs(start..start + depth) {
            let data = self.data.wrapping_offset(offset);
            let (to, slack) = (to.wrapping_add(p - start), step - (p - start) - len);
            // SAFETY: the run packing contract. *Reads* follows from *Range* of the row contract. *Writes* follows from
            // its *Target* and *Stride*: the run and the slack end at the end of each row. The caller guarantees *Isa*.
            unsafe { (kernels.pack_runs)(&PackRuns { data, offsets, len, to, step, slack }) }
        }
    }
}
