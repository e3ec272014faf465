//! Outputs and input gradients: weights times windows.
//!
//! An output is the product of the weights `[outputs, channels·taps]` with the windows of x.
//!
//! An input gradient is a product of weights with windows of y. Let ρ be the remainder of `q + before` modulo the
//! stride, for input coordinate q. Coordinates with equal ρ use the same taps t, for which `dilation·t ≡ ρ`, and tap t
//! reads output `(q + before − dilation·t) / stride`. There is one product for each remainder; for stride 1, there is
//! only one.

use super::problem::{ConvProblem, ImageSizes};
use super::stage::{ReadRegion, StagedImages, depth_offsets, tap_offsets};
use super::tasks::{for_each_task, worker_count};
use crate::strided::IndexSpace;
use pellucid_gemm::{ImplicitIm2col, OffsetDotRow, OffsetList, Strided};
use pellucid_ir::Result;
use pellucid_runtime::CpuBuffer;
use pellucid_runtime::list::List;
use pellucid_runtime::threads::SharedPtr;
use pellucid_simd::Element;
use pellucid_simd::Isa;

/// The maximum number of columns (windows) of one block of the matrix product.
const BLOCK_LANES: usize = 512;

/// The number of tasks below which the groups of a block are divided into several tasks.
const MIN_TASKS: usize = 16;

/// The approximate number of bytes of images that are staged at a time.
const STAGED_BYTES: usize = 8 << 20;

/// The largest number of rows for which a product is computed without packing.
pub(super) const MAX_UNPACKED_ROWS: usize = 2;

/// The weights of all groups as the products read them, `[group, row, k index]`.
struct GroupWeights<T> {
    data: SharedPtr<T>,
    /// The number of rows of each group.
    rows: usize,
    /// The memory of `data`, if the weights are a copy.
    _buffer: Option<CpuBuffer>,
}

impl<T: Element> GroupWeights<T> {
    /// Copies the taps `selected` of the weights `w`, `[group, outputs, channels, taps]`, to `[group, channels,
    /// outputs, selected taps]`.
    ///
    /// # Errors
    /// Returns an error if the memory of the copy cannot be allocated.
    ///
    /// # Safety
    /// `w` is valid for reading `groups · outputs · channels · taps` elements, and `selected` contains indices below
    /// `taps`.
    unsafe fn transposed(
        w: SharedPtr<T>,
        groups: usize,
        (outputs, channels, taps): (usize, usize, usize),
        selected: &[usize],
    ) -> Result<GroupWeights<T>> {
        let count = groups * outputs * channels * selected.len();
        let buffer = CpuBuffer::scratch(count.saturating_mul(size_of::<T>()))?;
        let data = SharedPtr(buffer.ensure()?.as_ptr().cast::<T>());
        let mut to = data.get();
        for group in 0..groups {
            for channel in 0..channels {
                for output in 0..outputs {
                    let from = w.offset((((group * outputs + output) * channels + channel) * taps) as isize);
                    for &tap in selected {
                        // SAFETY: `from + tap` is inside `w`, because `selected` contains indices below `taps` (this
                        // function's contract). The loops write `count` elements, the length of the buffer.
                        unsafe {
                            *to = *from.add(tap);
                            to = to.add(1);
                        }
                    }
                }
            }
        }
        Ok(GroupWeights { data, rows: channels, _buffer: Some(buffer) })
    }
}

/// A product of weights and windows for every group and image. A column of the product (a *lane*) is one window, which
/// is stored as its offsets in the staged images and in the result.
struct WindowProduct<'a, T> {
    problem: &'a ConvProblem,
    weights: GroupWeights<T>,
    /// The axes over which the windows extend, outermost first: image, z, y and x. Each axis has a length, a stride in
    /// the staged images and a stride in the result.
    axes: [(usize, [isize; 2]); 4],
    /// The offsets of the first window in the staged images and in the result.
    start: [isize; 2],
    /// The offset of each pair of a channel and a tap in the staged images, relative to a window. The index in this
    /// list is the k index of the product.
    depths: OffsetList,
    /// The stride from one group to the next in the staged images.
    group_stride: isize,
    /// The stride from one row of the result to the next.
    row_stride: isize,
    /// The stride from one group of the result to the next.
    out_group_stride: isize,
}

/// Computes the output y of a convolution of x with w.
///
/// # Errors
/// Returns an error if scratch memory cannot be allocated.
///
/// # Safety
/// The [array contract](ConvProblem#the-array-contract) holds; y is the computed array.
pub(super) unsafe fn compute_output<T: Element>(
    problem: &ConvProblem,
    x: SharedPtr<T>,
    w: SharedPtr<T>,
    y: SharedPtr<T>,
) -> Result<()> {
    let ConvProblem { window, images, .. } = *problem;
    let (cin, cout) = problem.group_channels();
    let [oz, oy, ox] = problem.y.dims;
    let low = [0, 1, 2].map(|a| -(window.before[a] as isize));
    let len = [0, 1, 2].map(|a| window.covered_length(a, problem.y.dims[a]));
    // If there is a single window along the last axis, splitting the rows of an image into phases has no benefit.
    let phases = if ox == 1 { 1 } else { window.stride[2] };
    let region = ReadRegion { low, len, phases };
    let plane = problem.y.plane_len();
    let (image_len, out_image_len) = (problem.x.channels * problem.x.plane_len(), problem.y.channels * plane);
    // SAFETY: `x` has `images` images of sizes `problem.x`, `image_len` elements apart (array contract, *shape*). The
    // region contains every element that a window reads, so the sums of `axes` offsets and `depths` are valid offsets.
    // Every pair of a window and a row is one element of y, which is exclusive to this call (array contract,
    // *exclusive*).
    unsafe {
        for_each_staged_chunk(problem.isa, &problem.x, images, &region, x, image_len, |first_image, images, stage| {
            let depths =
                depth_offsets(cin, stage, &tap_offsets(problem, stage).map(|(_, at)| at).collect::<List<isize, 0>>());
            let [sz, sy, _] = window.stride.map(|s| s as isize);
            let axes = [
                (images, [stage.image_stride, out_image_len as isize]),
                (oz, [sz * stage.strides[0], (oy * ox) as isize]),
                (oy, [sy * stage.strides[1], ox as isize]),
                (ox, [1, 1]),
            ];
            let weights = GroupWeights { data: w, rows: cout, _buffer: None };
            let group_stride = cin as isize * stage.channel_stride;
            let (row_stride, out_group_stride) = (plane as isize, (cout * plane) as isize);
            WindowProduct { problem, weights, axes, start: [0, 0], depths, group_stride, row_stride, out_group_stride }
                .compute(stage, SharedPtr(y.offset((first_image * out_image_len) as isize)))
        })
    }
}

/// Computes the gradient of a convolution with respect to its input x, from the gradient y of its output and the
/// weights w.
///
/// # Errors
/// Returns an error if scratch memory cannot be allocated.
///
/// # Safety
/// The [array contract](ConvProblem#the-array-contract) holds; x is the computed array.
pub(super) unsafe fn compute_input_gradient<T: Element>(
    problem: &ConvProblem,
    y: SharedPtr<T>,
    w: SharedPtr<T>,
    x: SharedPtr<T>,
) -> Result<()> {
    let ConvProblem { window, images, .. } = *problem;
    let (cin, cout) = problem.group_channels();
    let dims = problem.x.dims.map(|d| d as isize);
    let (stride, before) = (window.stride.map(|s| s as isize), window.before.map(|b| b as isize));
    let dilation = window.dilation.map(|d| d as isize);
    // The region of y that the windows read: from the first output on which the first element of x depends to the last
    // output on which the last element of x depends.
    let low = [0, 1, 2].map(|a| (before[a] - window.span(a) as isize).div_euclid(stride[a]));
    let high = [0, 1, 2].map(|a| (dims[a] - 1 + before[a]).div_euclid(stride[a]));
    let len = [0, 1, 2].map(|a| (high[a] - low[a] + 1).max(1) as usize);
    let region = ReadRegion { low, len, phases: 1 };
    let (taps, plane) = (window.taps(), problem.x.plane_len());
    let (image_len, out_image_len) = (problem.y.channels * problem.y.plane_len(), problem.x.channels * plane);
    // For one axis and one remainder, the coordinates of x with this remainder form an arithmetic sequence. Returns the
    // taps, each with the output that it reads for the first coordinate of the sequence; the index of the first
    // coordinate that is inside x; and the number of coordinates.
    let positions_of = |a: usize, remainder: isize| {
        let taps =
            (0..window.size[a] as isize).filter(move |t| (remainder - dilation[a] * t).rem_euclid(stride[a]) == 0);
        let taps: List<(usize, isize), 8> =
            taps.map(|t| (t as usize, (remainder - dilation[a] * t).div_euclid(stride[a]) - low[a])).collect();
        let first = (before[a] - remainder + stride[a] - 1).div_euclid(stride[a]);
        let last = (dims[a] - 1 + before[a] - remainder).div_euclid(stride[a]);
        (taps, first, (last - first + 1).max(0) as usize)
    };
    // SAFETY: `y` has `images` images of sizes `problem.y`, `image_len` elements apart (array contract, *shape*). The
    // region contains every output that a position reads. The positions of different remainders are disjoint and
    // together cover x, which is exclusive to this call (array contract, *exclusive*). `w` has `groups · outputs ·
    // channels · taps` elements (*shape*), and `tap_indices` are indices of taps.
    unsafe {
        for_each_staged_chunk(problem.isa, &problem.y, images, &region, y, image_len, |first_image, images, stage| {
            for remainder in 0..stride.iter().product::<isize>() {
                let remainder =
                    [remainder / (stride[1] * stride[2]), remainder / stride[2] % stride[1], remainder % stride[2]];
                let [z, y, x_axis] = [0, 1, 2].map(|a| positions_of(a, remainder[a]));
                let mut tap_indices = List::<usize, 0>::new();
                let mut offsets = List::new();
                for &(tz, pz) in &z.0 {
                    for &(ty, py) in &y.0 {
                        for &(tx, px) in &x_axis.0 {
                            tap_indices.push((tz * window.size[1] + ty) * window.size[2] + tx);
                            offsets.push(pz * stage.strides[0] + py * stage.strides[1] + px);
                        }
                    }
                }
                let strides = [dims[1] * dims[2], dims[2], 1];
                let begin = [z.1, y.1, x_axis.1];
                let start = [
                    begin[0] * stage.strides[0] + begin[1] * stage.strides[1] + begin[2],
                    (0..3).map(|a| (remainder[a] + stride[a] * begin[a] - before[a]) * strides[a]).sum(),
                ];
                let axes = [
                    (images, [stage.image_stride, out_image_len as isize]),
                    (z.2, [stage.strides[0], stride[0] * strides[0]]),
                    (y.2, [stage.strides[1], stride[1] * strides[1]]),
                    (x_axis.2, [1, stride[2] * strides[2]]),
                ];
                let weights = GroupWeights::transposed(w, problem.groups, (cout, cin, taps), &tap_indices)?;
                let depths = depth_offsets(cout, stage, &offsets);
                let group_stride = cout as isize * stage.channel_stride;
                let (row_stride, out_group_stride) = (plane as isize, (cin * plane) as isize);
                WindowProduct { problem, weights, axes, start, depths, group_stride, row_stride, out_group_stride }
                    .compute(stage, SharedPtr(x.offset(first_image as isize * out_image_len as isize)))?;
            }
            Ok(())
        })
    }
}

/// Stages the batch in chunks of at most about [`STAGED_BYTES`], and calls `work` with the first image, the number of
/// images and the staged images of each chunk.
///
/// # Errors
/// Returns an error of `work`, or an error if scratch memory cannot be allocated.
///
/// # Safety
/// `data` is valid for reading `images` row-major images of these sizes, `image_len` elements apart; the processor
/// supports `isa`.
unsafe fn for_each_staged_chunk<T: Element>(
    isa: Isa,
    sizes: &ImageSizes,
    images: usize,
    region: &ReadRegion,
    data: SharedPtr<T>,
    image_len: usize,
    work: impl Fn(usize, usize, &StagedImages<T>) -> Result<()>,
) -> Result<()> {
    let image_bytes = region.len.iter().fold(sizes.channels * size_of::<T>(), |all, &len| all.saturating_mul(len));
    let step = (STAGED_BYTES / image_bytes.max(1)).max(1);
    for first in (0..images).step_by(step) {
        let count = step.min(images - first);
        // SAFETY: images `first..first + count` are valid for reads, and the processor supports `isa` (this function's
        // contract).
        let stage = unsafe { StagedImages::new(isa, data.offset((first * image_len) as isize), count, sizes, region)? };
        work(first, count, &stage)?;
    }
    Ok(())
}

impl<T: Element> WindowProduct<'_, T> {
    /// Computes the products of all groups, in blocks of windows.
    ///
    /// # Errors
    /// Returns an error if scratch memory cannot be allocated.
    ///
    /// # Safety
    /// - *operands*: for every group, every offset of a window plus every offset in `depths` is a valid offset of the
    ///   staged images, and the weights have `groups · rows · depths.len()` elements;
    /// - *result*: `out` is valid for writes at the offset of every window in every row, these offsets are distinct,
    ///   and no other thread accesses these elements;
    /// - *isa*: the processor supports `problem.isa`.
    unsafe fn compute(&self, stage: &StagedImages<T>, out: SharedPtr<T>) -> Result<()> {
        let (space, groups) = (IndexSpace::new(self.axes), self.problem.groups);
        let image_lanes: usize = self.axes[1..].iter().map(|axis| axis.0).product();
        let (rows, data) = (self.weights.rows, SharedPtr(stage.data.cast_mut()));
        // A block is a part of one image, or several entire images. Products without packing use blocks of at most one
        // image, because larger blocks would not be faster.
        let lanes = match BLOCK_LANES / image_lanes.max(1) {
            0 => image_lanes.div_ceil(image_lanes.div_ceil(BLOCK_LANES)).next_multiple_of(32),
            _ if rows <= MAX_UNPACKED_ROWS => image_lanes,
            images => images * image_lanes,
        };
        let span = lanes.max(image_lanes) / image_lanes.max(1) * image_lanes;
        let blocks: List<(usize, usize), 0> = (0..space.len())
            .step_by(span.max(1))
            .flat_map(|first| {
                let end = space.len().min(first + span);
                (first..end).step_by(lanes).map(move |start| (start, end.min(start + lanes)))
            })
            .collect();
        // All groups of a task share the offset lists of a block. Therefore groups are separate tasks only if there are
        // few blocks.
        let group_parts = groups.min(MIN_TASKS.div_ceil(blocks.len().max(1)));
        let part_groups = groups.div_ceil(group_parts);
        let cost = rows * self.depths.len() * lanes * part_groups;
        // Blocks in which the rows of the result are not contiguous are computed in scratch memory, one block per
        // worker, and then copied.
        let result = IndexSpace::new(self.axes.map(|(len, [_, to])| (len, [to])));
        let is_scattered = |&(first, end): &(usize, usize)| {
            end - first > 1 && (result.step() != [1] || first / result.run_len() != (end - 1) / result.run_len())
        };
        let tasks = blocks.len() * group_parts;
        let scratch_len = if blocks.iter().any(is_scattered) { rows * lanes.min(space.len()) } else { 0 };
        let scratch =
            CpuBuffer::scratch(scratch_len.saturating_mul(worker_count(tasks, cost)).saturating_mul(size_of::<T>()))?;
        let scratch = SharedPtr(scratch.ensure()?.as_ptr().cast::<T>());
        let valid = &stage.valid;
        for_each_task(tasks, cost, |worker, task| {
            let (part, (first, end)) = (task / blocks.len(), blocks[task % blocks.len()]);
            let mut offsets = [List::with_capacity(end - first), List::with_capacity(end - first)];
            let step = space.step();
            space.runs(first..end, |at, count| {
                for (k, offsets) in offsets.iter_mut().enumerate() {
                    offsets.extend((0..count as isize).map(|i| self.start[k] + at[k] + i * step[k]));
                }
            });
            let [from, to] = offsets.map(OffsetList::new);
            let scratch = scratch.offset((worker * scratch_len) as isize);
            for group in part * part_groups..groups.min((part + 1) * part_groups) {
                debug_assert!(
                    valid.contains_sums(group as isize * self.group_stride, &from, &self.depths),
                    "a window extends beyond the staged images"
                );
                // SAFETY: by this function's contract, the sums of the group's offset, an offset in `from` and an
                // offset in `depths` are valid offsets of the staged images (*operands*), and the blocks and groups of
                // different tasks write disjoint elements of the result (*result*). `scratch` belongs to this worker,
                // and has `rows · lanes` elements if the result of some block is not contiguous.
                unsafe {
                    let data = data.offset(group as isize * self.group_stride);
                    self.compute_block(
                        group,
                        data,
                        &from,
                        &to,
                        out.offset(group as isize * self.out_group_stride),
                        scratch,
                    );
                }
            }
            Ok(())
        })
    }

    /// Computes all rows of one group for the windows at the offsets `from`, and stores them at the offsets `to` in
    /// each row of the result.
    ///
    /// # Safety
    /// The contract of [`compute`](Self::compute) holds for these windows. If the offsets `to` are not consecutive,
    /// `scratch` is valid for `rows · from.len()` elements that no other thread accesses.
    unsafe fn compute_block(
        &self,
        group: usize,
        data: *const T,
        from: &OffsetList,
        to: &OffsetList,
        out: *mut T,
        scratch: *mut T,
    ) {
        let (isa, lanes) = (self.problem.isa, from.len());
        debug_assert_eq!(lanes, to.len(), "there must be one result offset for each window");
        let (rows, depth) = (self.weights.rows, self.depths.len());
        let weights: *const T = self.weights.data.offset((group * rows * depth) as isize);
        let single_run = to.runs(0..lanes).next().filter(|run| run.2 == lanes);
        let (c, c_row_stride) = match single_run {
            Some((_, at, _)) => (out.wrapping_offset(at), self.row_stride),
            None => (scratch, lanes as isize),
        };
        // SAFETY: by this function's contract, every sum of an offset in `from` and an offset in `depths` is a valid
        // offset of `data`, the weights of the group have `rows · depth` elements, and `c` is valid for `rows` rows of
        // `lanes` elements: in the result if the offsets `to` are consecutive, otherwise in `scratch`.
        unsafe {
            if rows <= MAX_UNPACKED_ROWS {
                for r in 0..rows {
                    let weights = std::slice::from_raw_parts(weights.add(r * depth), depth);
                    let to = c.wrapping_offset(r as isize * c_row_stride);
                    pellucid_gemm::offset_dot_row(
                        isa,
                        &OffsetDotRow { data, lanes: from, depths: &self.depths, weights, to },
                    );
                }
            } else {
                let weights = Strided { data: weights, lane: depth as isize, depth: 1 };
                let windows = ImplicitIm2col { data, lanes: from, depths: &self.depths };
                pellucid_gemm::multiply(isa, &weights, &windows, (0..rows, 0..lanes, depth), c, c_row_stride, false);
            }
            if single_run.is_none() {
                for r in 0..rows {
                    let (from, to_row) = (
                        c.wrapping_offset(r as isize * c_row_stride),
                        out.wrapping_offset(r as isize * self.row_stride),
                    );
                    for (first, at, count) in to.runs(0..lanes) {
                        to_row.wrapping_offset(at).copy_from_nonoverlapping(from.add(first), count);
                    }
                }
            }
        }
    }
}
