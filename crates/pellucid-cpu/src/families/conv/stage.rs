//! Staged images: images with their padding, in a layout in which the elements that one tap reads in neighbouring
//! windows are contiguous.
//!
//! The elements of a row whose indices are equal modulo the stride are stored together, one phase after the other (a
//! polyphase layout). Element q is stored at the start of phase `q mod stride` plus `q / stride`, so one tap of
//! neighbouring windows is contiguous for any stride. Images that already have this layout are used in place.

use super::problem::{ConvProblem, ImageSizes};
use pellucid_gemm::{OffsetList, PackRuns};
use pellucid_ir::Result;
use pellucid_runtime::CpuBuffer;
use pellucid_runtime::list::List;
use pellucid_runtime::threads::{GRAIN, SharedPtr, parallel_ranges};
use pellucid_simd::Element;
use pellucid_simd::Isa;
use std::ops::Range;

/// The region of an image that windows read: from `low` to `low + len` along every axis, relative to the first element
/// of the image.
///
/// The region may extend beyond the image; elements outside it are 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadRegion {
    /// The coordinate of the first element along every axis.
    pub(super) low: [isize; 3],
    /// The number of elements along every axis.
    pub(super) len: [usize; 3],
    /// The number of phases of a row: the stride of the windows along the last axis.
    pub(super) phases: usize,
}

/// Images of a batch in the staged layout.
pub(super) struct StagedImages<T> {
    /// The address of the element with coordinates `low` in channel 0 of the first image.
    pub(super) data: *const T,
    /// The stride from one image to the next.
    pub(super) image_stride: isize,
    /// The stride from one channel to the next.
    pub(super) channel_stride: isize,
    /// The strides along the first two axes; for the last axis see [`StagedImages::column_offset`].
    pub(super) strides: [isize; 2],
    /// The number of elements of one phase of a row.
    phase_len: usize,
    /// The number of phases of a row.
    phases: usize,
    /// The range of valid offsets.
    pub(super) valid: ValidOffsets,
    /// The memory of `data`, if the images are a copy.
    _buffer: Option<CpuBuffer>,
}

/// The valid offsets of the elements of staged images, relative to their `data`.
pub(super) struct ValidOffsets(Range<isize>);

impl ValidOffsets {
    /// Returns true if all sums of `start`, an offset in `lanes` and an offset in `depths` are valid.
    pub(super) fn contains_sums(&self, start: isize, lanes: &OffsetList, depths: &OffsetList) -> bool {
        let (Some(lanes), Some(depths)) = (lanes.bounds(), depths.bounds()) else { return true };
        self.0.contains(&(start + lanes.0 + depths.0)) && self.0.contains(&(start + lanes.1 + depths.1))
    }
}

impl<T: Element> StagedImages<T> {
    /// Stages `images` images of sizes `sizes` that are stored starting at `data`.
    ///
    /// # Errors
    /// Returns an error if the memory of the copy cannot be allocated.
    ///
    /// # Safety
    /// `data` is valid for reading `images` row-major images of these sizes, and stays valid while the result is read
    /// if no copy is made; the processor supports `isa`.
    pub(super) unsafe fn new(
        isa: Isa,
        data: *const T,
        images: usize,
        sizes: &ImageSizes,
        region: &ReadRegion,
    ) -> Result<StagedImages<T>> {
        debug_assert!(region.phases >= 1 && region.len.iter().all(|&len| len >= 1), "the region is empty: {region:?}");
        let ImageSizes { channels, dims } = *sizes;
        let [_, h, w] = dims;
        let image_plane = dims.iter().product::<usize>();
        let is_inside = (0..3).all(|a| region.low[a] >= 0 && region.low[a] as usize + region.len[a] <= dims[a]);
        if is_inside && region.phases == 1 {
            let first = (region.low[0] as usize * h + region.low[1] as usize) * w + region.low[2] as usize;
            return Ok(StagedImages {
                data: data.wrapping_add(first),
                image_stride: (channels * image_plane) as isize,
                channel_stride: image_plane as isize,
                strides: [(h * w) as isize, w as isize],
                phase_len: w,
                phases: 1,
                valid: ValidOffsets(-(first as isize)..(images * channels * image_plane) as isize - first as isize),
                _buffer: None,
            });
        }
        let phase_len = region.len[2].div_ceil(region.phases);
        let row = phase_len * region.phases;
        let (rows, planes) = (region.len[0].saturating_mul(region.len[1]), images * channels);
        let bytes = [rows, row, planes, size_of::<T>()].into_iter().fold(1, usize::saturating_mul);
        let plane_len = rows.saturating_mul(row);
        let buffer = CpuBuffer::scratch(bytes)?;
        let (from, to) = (SharedPtr(data.cast_mut()), SharedPtr(buffer.ensure()?.as_ptr().cast::<T>()));
        // The range of indices in the region whose elements are inside the image, along one axis.
        let rows_inside_image = |a: usize| {
            let first = (-region.low[a]).clamp(0, region.len[a] as isize) as usize;
            let end = (dims[a] as isize - region.low[a]).clamp(first as isize, region.len[a] as isize) as usize;
            first..end
        };
        let (planes_inside, rows_inside) = (rows_inside_image(0), rows_inside_image(1));
        let sources: List<isize, 0> = rows_inside.clone().map(|y| (region.low[1] + y as isize) * w as isize).collect();
        let row_plan = RowPlan::new(region, w, phase_len);
        parallel_ranges(planes, GRAIN / (plane_len * size_of::<T>()).max(1) + 1, |range| {
            for plane in range {
                // SAFETY: `data` contains plane `plane`, its rows in the region are inside it, and the processor
                // supports `isa` (this function's contract). Every plane writes its own `plane_len` elements of the
                // buffer.
                unsafe {
                    let to = to.get().add(plane * plane_len);
                    std::slice::from_raw_parts_mut(to, plane_len).fill(T::ZERO);
                    for z in planes_inside.clone() {
                        let from = from.get().add(plane * image_plane + (region.low[0] + z as isize) as usize * h * w);
                        let to = to.add((z * region.len[1] + rows_inside.start) * row);
                        row_plan.stage_rows(isa, from, &sources, to, row);
                    }
                }
            }
        });
        Ok(StagedImages {
            data: to.get(),
            image_stride: (plane_len * channels) as isize,
            channel_stride: plane_len as isize,
            strides: [(region.len[1] * row) as isize, row as isize],
            phase_len,
            phases: region.phases,
            valid: ValidOffsets(0..(planes * plane_len) as isize),
            _buffer: Some(buffer),
        })
    }

    /// Returns the offset of element q of the last axis in its row.
    ///
    /// If q or r is a multiple of the stride, the offset of q + r is the sum of the offsets of q and r.
    pub(super) fn column_offset(&self, q: isize) -> isize {
        let phases = self.phases as isize;
        q.rem_euclid(phases) * self.phase_len as isize + q.div_euclid(phases)
    }
}

/// Returns the index of every tap with its offset in the staged images of the input.
pub(super) fn tap_offsets<'a, T: Element>(
    problem: &ConvProblem,
    stage: &'a StagedImages<T>,
) -> impl Iterator<Item = (usize, isize)> + Clone + use<'a, T> {
    let [kz, ky, kx] = problem.window.size;
    let [dz, dy, dx] = problem.window.dilation.map(|d| d as isize);
    let offset = move |t: usize| {
        let [z, y, x] = [t / (ky * kx), t / kx % ky, t % kx].map(|t| t as isize);
        (t, z * dz * stage.strides[0] + y * dy * stage.strides[1] + stage.column_offset(x * dx))
    };
    (0..kz * ky * kx).map(offset)
}

/// Returns the offsets of the taps `taps` in `channels` neighbouring channels.
pub(super) fn depth_offsets<T>(channels: usize, stage: &StagedImages<T>, taps: &List<isize, 0>) -> OffsetList {
    OffsetList::new(
        (0..channels as isize).flat_map(|c| taps.iter().map(move |t| c * stage.channel_stride + t)).collect(),
    )
}

/// The plan for staging one row: the part of the region that is inside the image. The elements around it are 0.
struct RowPlan {
    /// The column of the image at which the region begins; it may be negative.
    low: isize,
    /// The number of elements of one phase.
    phase_len: usize,
    /// The number of phases.
    phases: usize,
    /// For every phase, the range of the elements that are inside the image.
    inside: List<(usize, usize), 4>,
}

impl RowPlan {
    /// Returns the plan for rows of an image of `width` columns, in phases of `phase_len` elements.
    fn new(region: &ReadRegion, width: usize, phase_len: usize) -> RowPlan {
        let (low, phases) = (region.low[2], region.phases);
        // Element i of a phase is the element low + phase + phases·i of the image.
        let first_from = |phase: usize, element: isize| {
            let i = (element - low - phase as isize + phases as isize - 1).div_euclid(phases as isize);
            i.clamp(0, phase_len as isize) as usize
        };
        let inside = (0..phases).map(|phase| (first_from(phase, 0), first_from(phase, width as isize))).collect();
        RowPlan { low, phase_len, phases, inside }
    }

    /// Copies the rows that begin at the offsets `sources` from `from` to staged rows, which begin at `to` and are
    /// `step` elements apart.
    ///
    /// # Safety
    /// Each source row is valid for reading the width passed to [`new`](Self::new); `to` is valid for writing one
    /// staged row per source, and no other thread accesses these; the processor supports `isa`.
    unsafe fn stage_rows<T: Element>(&self, isa: Isa, from: *const T, sources: &[isize], to: *mut T, step: usize) {
        for (c, &(start, end)) in self.inside.iter().enumerate().filter(|(_, (start, end))| start < end) {
            let first = (self.low + (c + self.phases * start) as isize) as usize;
            // SAFETY: elements `start..end` of a phase are inside the image row and inside the staged row by
            // construction of `inside`; both rows are valid, and the processor supports `isa` (this function's
            // contract).
            unsafe {
                let (from, to) = (from.add(first), to.add(c * self.phase_len + start));
                if self.phases == 1 {
                    let work = PackRuns { data: from, offsets: sources, len: end - start, to, step, slack: 0 };
                    pellucid_gemm::pack_runs(isa, &work);
                    continue;
                }
                for (k, &source) in sources.iter().enumerate() {
                    let (from, to) = (from.wrapping_offset(source), to.add(k * step));
                    for i in 0..end - start {
                        *to.add(i) = *from.add(i * self.phases);
                    }
                }
            }
        }
    }
}
