//! Outputs and input gradients: weights times windows.
//!
//! An output is the product of the weights `[outputs, channels·taps]` with the windows of x.
//!
//! An input gradient is a product of weights with windows of y. Let ρ be the remainder of `q + before` modulo the
//! stride, for input coordinate q. Coordinates with equal ρ use the same taps t, for which `dilation·t ≡ ρ`, and tap t
//! reads output `(q + before − dilation·t) / stride`. There is one product for each remainder; for stride 1, there is
//! only one. The results of different remainders are interleaved in memory. Therefore a few images are computed at a
//! time, which stay in a cache until the last product has written its results.

use super::problem::{ConvProblem, ImageSizes};
use super::stage::{ReadRegion, StagedImages, depth_offsets, tap_offsets};
use super::tasks::{for_each_task, worker_count};
use crate::strided::IndexSpace;
use pellucid_gemm::{ImplicitIm2col, OffsetDotRow, OffsetList, Strided};
use pellucid_ir::Result;
use pellucid_ir::kernel::Window;
use pellucid_runtime::CpuBuffer;
use pellucid_runtime::list::List;
use pellucid_runtime::threads::{self, SharedPtr};
use pellucid_simd::Element;
use std::ops::Range;

/// The maximum number of columns (windows) of one block of the matrix product.
const BLOCK_LANES: usize = 512;

/// The number of tasks below which the groups of a block are divided into several tasks.
const MIN_TASKS: usize = 16;

/// The approximate number of bytes of images that are staged at a time.
const STAGED_BYTES: usize = 8 << 20;

/// The approximate number of bytes of staged images and of their interleaved results that are computed at a time, for
/// each thread. They fit a cache of 1 MiB.
const INTERLEAVED_BYTES: usize = 768 << 10;

/// The largest number of rows for which a product is computed without packing.
pub(super) const MAX_UNPACKED_ROWS: usize = 2;

/// Copies weights `w`, `[group, outputs, channels, taps]`, for several products: for each product, `[group, channels,
/// outputs, taps of the product]`. `taps_of(product)` are the indices of the taps of a product.
///
/// # Errors
/// Returns an error if the memory of the copy cannot be allocated.
///
/// # Safety
/// `w` is valid for reading `groups · outputs · channels · taps` elements, and the taps of all products are distinct
/// and below `taps`.
unsafe fn transpose_weights<T: Element>(
    w: SharedPtr<T>,
    groups: usize,
    (outputs, channels, taps): (usize, usize, usize),
    products: Range<isize>,
    taps_of: impl Fn(isize) -> List<usize, 32>,
) -> Result<(SharedPtr<T>, CpuBuffer)> {
    let count = groups * outputs * channels * taps;
    let buffer = CpuBuffer::scratch(count.saturating_mul(size_of::<T>()))?;
    let data = SharedPtr(buffer.ensure()?.as_ptr().cast::<T>());
    let mut to = data.get();
    for product in products {
        let selected = taps_of(product);
        for (group, channel) in (0..groups).flat_map(|group| (0..channels).map(move |channel| (group, channel))) {
            for output in 0..outputs {
                let from = w.offset((((group * outputs + output) * channels + channel) * taps) as isize);
                for &tap in selected.iter() {
                    // SAFETY: `from + tap` is inside `w`, because the taps are below `taps` (this function's contract).
                    // They are distinct, so the loops write at most `count` elements, the length of the buffer.
                    unsafe {
                        *to = *from.add(tap);
                        to = to.add(1);
                    }
                }
            }
        }
    }
    Ok((data, buffer))
}

/// A product of weights and windows for every group and image. A column of the product (a *lane*) is one window, which
/// is stored as its offsets in the staged images and in the result.
struct WindowProduct<'a, T> {
    problem: &'a ConvProblem,
    /// The weights of all groups, `[group, row, k index]`.
    weights: SharedPtr<T>,
    /// The number of rows of each group.
    rows: usize,
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
    let window = &problem.window;
    let (cin, cout) = problem.group_channels();
    let [oz, oy, ox] = problem.y.dims;
    let low = [0, 1, 2].map(|a| -(window.before[a] as isize));
    let len = [0, 1, 2].map(|a| window.covered_length(a, problem.y.dims[a]));
    // If there is a single window along the last axis, splitting the rows of an image into phases has no benefit.
    let phases = if ox == 1 { 1 } else { window.stride[2] };
    let region = ReadRegion { low, len, phases };
    let plane = problem.y.plane_len();
    let out_image_len = problem.y.channels * plane;
    let chunk_images = images_within::<T>(STAGED_BYTES, staged_len(&problem.x, &region));
    // SAFETY: `x` has the images of sizes `problem.x` (array contract, *shape*). The region contains every element that
    // a window reads, so the sums of `axes` offsets and `depths` are valid offsets. Every pair of a window and a row is
    // one element of y, which is exclusive to this call (array contract, *exclusive*).
    unsafe {
        for_each_staged_chunk(problem, &problem.x, &region, x, chunk_images, |first_image, images, stage| {
            let depths =
                depth_offsets(cin, stage, &tap_offsets(problem, stage).map(|(_, at)| at).collect::<List<isize, 0>>());
            let [sz, sy, _] = window.stride.map(|s| s as isize);
            let axes = [
                (images, [stage.image_stride, out_image_len as isize]),
                (oz, [sz * stage.strides[0], (oy * ox) as isize]),
                (oy, [sy * stage.strides[1], ox as isize]),
                (ox, [1, 1]),
            ];
            let product = WindowProduct {
                problem,
                weights: w,
                rows: cout,
                axes,
                start: [0, 0],
                depths,
                group_stride: cin as isize * stage.channel_stride,
                row_stride: plane as isize,
                out_group_stride: (cout * plane) as isize,
            };
            product.compute(stage, SharedPtr(y.offset((first_image * out_image_len) as isize)))
        })
    }
}

/// The coordinates of x along one axis with one remainder (see the module documentation). They form an arithmetic
/// sequence.
struct CongruentCoordinates {
    /// The taps that these coordinates use, each with the output that it reads for the coordinate with index 0.
    taps: List<(usize, isize), 8>,
    /// The coordinate with index 0.
    origin: isize,
    /// The indices of the coordinates that are inside x.
    inside: Range<isize>,
}

impl CongruentCoordinates {
    /// Returns the coordinates along axis `a` with this remainder, which is from 0 to the stride.
    fn new(problem: &ConvProblem, a: usize, remainder: isize) -> CongruentCoordinates {
        let Window { size, stride, dilation, before } = problem.window;
        let [size, stride, dilation, before, len] =
            [size, stride, dilation, before, problem.x.dims].map(|values| values[a] as isize);
        let output_of = |tap: isize| {
            let distance = remainder - dilation * tap;
            (distance.rem_euclid(stride) == 0).then(|| (tap as usize, distance.div_euclid(stride)))
        };
        let first = (before - remainder + stride - 1).div_euclid(stride);
        let end = (len - 1 + before - remainder).div_euclid(stride) + 1;
        CongruentCoordinates {
            taps: (0..size).filter_map(output_of).collect(),
            origin: remainder - before,
            inside: first..end.max(first),
        }
    }

    /// Returns the coordinates along all axes for product `product`: one for each combination of remainders.
    fn of_product(problem: &ConvProblem, product: isize) -> [CongruentCoordinates; 3] {
        let [_, y, x] = problem.window.stride.map(|stride| stride as isize);
        let remainders = [product / (y * x), product / x % y, product % x];
        [0, 1, 2].map(|a| CongruentCoordinates::new(problem, a, remainders[a]))
    }

    /// Returns the taps that the coordinates along all axes use: the index of each in the window, and the output along
    /// each axis that it reads for the coordinates with index 0.
    fn joint_taps(problem: &ConvProblem, coordinates: &[CongruentCoordinates; 3]) -> List<(usize, [isize; 3]), 32> {
        let [_, height, width] = problem.window.size;
        let [z, y, x] = coordinates.each_ref().map(|axis| &axis.taps);
        let lines = z.iter().flat_map(|z| y.iter().map(move |y| (z, y)));
        lines.flat_map(|(z, y)| x.iter().map(move |x| ((z.0 * height + y.0) * width + x.0, [z.1, y.1, x.1]))).collect()
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
    let window = &problem.window;
    let (cin, cout) = problem.group_channels();
    let dims = problem.x.dims.map(|d| d as isize);
    let (stride, before) = (window.stride.map(|s| s as isize), window.before.map(|b| b as isize));
    // The region of y that the windows read: from the first output on which the first element of x depends to the last
    // output on which the last element of x depends.
    let low = [0, 1, 2].map(|a| (before[a] - window.span(a) as isize).div_euclid(stride[a]));
    let high = [0, 1, 2].map(|a| (dims[a] - 1 + before[a]).div_euclid(stride[a]));
    let len = [0, 1, 2].map(|a| (high[a] - low[a] + 1).max(1) as usize);
    let region = ReadRegion { low, len, phases: 1 };
    let (plane, staged) = (problem.x.plane_len(), staged_len(&problem.y, &region));
    let out_image_len = problem.x.channels * plane;
    let products = 0..stride.iter().product::<isize>();
    // The number of images does not affect the results, so it may depend on the number of threads. Every product has at
    // least about one block of windows.
    let chunk_images = match products.end as usize {
        1 => images_within::<T>(STAGED_BYTES, staged),
        products => images_within::<T>(INTERLEAVED_BYTES * threads::count(), staged.saturating_add(out_image_len))
            .max(BLOCK_LANES.div_ceil((plane / products).max(1))),
    };
    let taps_of = |product: isize| {
        let coordinates = CongruentCoordinates::of_product(problem, product);
        CongruentCoordinates::joint_taps(problem, &coordinates).iter().map(|tap| tap.0).collect()
    };
    // SAFETY: `y` has the images of sizes `problem.y`, and `w` has `groups · outputs · channels · taps` elements (array
    // contract, *shape*). Every tap has one remainder along each axis. The region contains every output that a
    // coordinate reads. The coordinates of different products are disjoint and together cover x, which is exclusive to
    // this call (array contract, *exclusive*).
    unsafe {
        let (weights, _weights) =
            transpose_weights(w, problem.groups, (cout, cin, window.taps()), products.clone(), taps_of)?;
        for_each_staged_chunk(problem, &problem.y, &region, y, chunk_images, |first_image, images, stage| {
            let mut weights = weights;
            for product in products.clone() {
                let coordinates = CongruentCoordinates::of_product(problem, product);
                let taps = CongruentCoordinates::joint_taps(problem, &coordinates);
                let offset_of = |outputs: [isize; 3]| {
                    let [z, y, x] = [0, 1, 2].map(|a| outputs[a] - low[a]);
                    z * stage.strides[0] + y * stage.strides[1] + x
                };
                let depths = depth_offsets(cout, stage, &taps.iter().map(|tap| offset_of(tap.1)).collect());
                let first = coordinates.each_ref().map(|axis| axis.inside.start);
                let [z, y, x_axis] = coordinates.each_ref().map(|axis| (axis.inside.end - axis.inside.start) as usize);
                let strides = [dims[1] * dims[2], dims[2], 1];
                let windows = WindowProduct {
                    problem,
                    weights,
                    rows: cin,
                    axes: [
                        (images, [stage.image_stride, out_image_len as isize]),
                        (z, [stage.strides[0], stride[0] * strides[0]]),
                        (y, [stage.strides[1], stride[1] * strides[1]]),
                        (x_axis, [1, stride[2] * strides[2]]),
                    ],
                    start: [
                        first[0] * stage.strides[0] + first[1] * stage.strides[1] + first[2],
                        (0..3).map(|a| (coordinates[a].origin + stride[a] * first[a]) * strides[a]).sum(),
                    ],
                    depths,
                    group_stride: cout as isize * stage.channel_stride,
                    row_stride: plane as isize,
                    out_group_stride: (cin * plane) as isize,
                };
                windows.compute(stage, SharedPtr(x.offset((first_image * out_image_len) as isize)))?;
                weights = SharedPtr(weights.offset((problem.groups * cin * cout * taps.len()) as isize));
            }
            Ok(())
        })
    }
}

/// Returns the number of elements of an image of these sizes after staging.
fn staged_len(sizes: &ImageSizes, region: &ReadRegion) -> usize {
    region.len.iter().fold(sizes.channels, |all, &len| all.saturating_mul(len))
}

/// Returns the number of images, of `len` elements each, that need at most `bytes` bytes, but at least 1.
fn images_within<T>(bytes: usize, len: usize) -> usize {
    (bytes / len.saturating_mul(size_of::<T>()).max(1)).max(1)
}

/// Stages the batch in chunks of at most `step` images, and calls `work` with the first image, the number of images and
/// the staged images of each chunk.
///
/// # Errors
/// Returns an error of `work`, or an error if scratch memory cannot be allocated.
///
/// # Safety
/// `data` is valid for reading the images of the problem, row-major and of these sizes; the processor supports
/// `problem.isa`.
unsafe fn for_each_staged_chunk<T: Element>(
    problem: &ConvProblem,
    sizes: &ImageSizes,
    region: &ReadRegion,
    data: SharedPtr<T>,
    step: usize,
    work: impl Fn(usize, usize, &StagedImages<T>) -> Result<()>,
) -> Result<()> {
    let image_len = sizes.channels * sizes.plane_len();
    for first in (0..problem.images).step_by(step) {
        let count = step.min(problem.images - first);
        let images = data.offset((first * image_len) as isize);
        // SAFETY: images `first..first + count` are valid for reads, and the processor supports the instruction set
        // (this function's contract).
        let stage = unsafe { StagedImages::new(problem.isa, images, count, sizes, region)? };
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
        let [source, result] = [0, 1].map(|k| IndexSpace::new(self.axes.map(|(len, strides)| (len, [strides[k]]))));
        let (windows, groups, rows) = (source.len(), self.problem.groups, self.rows);
        let image_lanes: usize = self.axes[1..].iter().map(|axis| axis.0).product();
        let data = SharedPtr(stage.data.cast_mut());
        // A block is a part of one image, or several entire images. Products without packing use blocks of at most one
        // image, because larger blocks would not be faster.
        let lanes = match BLOCK_LANES / image_lanes.max(1) {
            0 => image_lanes.div_ceil(image_lanes.div_ceil(BLOCK_LANES)).next_multiple_of(32),
            _ if rows <= MAX_UNPACKED_ROWS => image_lanes,
            images => images * image_lanes,
        };
        let span = lanes.max(image_lanes) / image_lanes.max(1) * image_lanes;
        let blocks: List<(usize, usize), 16> = (0..windows)
            .step_by(span.max(1))
            .flat_map(|first| {
                let end = windows.min(first + span);
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
        let is_scattered = |&(first, end): &(usize, usize)| {
            end - first > 1 && (result.step() != [1] || first / result.run_len() != (end - 1) / result.run_len())
        };
        let tasks = blocks.len() * group_parts;
        let scratch_len = if blocks.iter().any(is_scattered) { rows * lanes.min(windows) } else { 0 };
        let scratch =
            CpuBuffer::scratch(scratch_len.saturating_mul(worker_count(tasks, cost)).saturating_mul(size_of::<T>()))?;
        let scratch = SharedPtr(scratch.ensure()?.as_ptr().cast::<T>());
        let valid = &stage.valid;
        for_each_task(tasks, cost, |worker, task| {
            let (part, block) = (task / blocks.len(), blocks[task % blocks.len()]);
            let (mut from, [step]) = (List::with_capacity(block.1 - block.0), source.step());
            source.runs(block.0..block.1, |[at], count| {
                from.extend((0..count as isize).map(|i| self.start[0] + at + i * step));
            });
            let from = OffsetList::new(from);
            let mut runs = List::new();
            result.runs(block.0..block.1, |[at], count| runs.push((self.start[1] + at, count)));
            let to = BlockResults { runs, step: result.step()[0], is_contiguous: !is_scattered(&block) };
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

    /// Computes all rows of one group for the windows at the offsets `from`, and stores them in each row of the result
    /// as `to` describes.
    ///
    /// # Safety
    /// The contract of [`compute`](Self::compute) holds for these windows. If the results are not contiguous, `scratch`
    /// is valid for `rows · from.len()` elements that no other thread accesses.
    unsafe fn compute_block(
        &self,
        group: usize,
        data: *const T,
        from: &OffsetList,
        to: &BlockResults,
        out: *mut T,
        scratch: *mut T,
    ) {
        let (isa, lanes) = (self.problem.isa, from.len());
        let (rows, depth) = (self.rows, self.depths.len());
        let weights: *const T = self.weights.offset((group * rows * depth) as isize);
        let (c, c_row_stride) = match to.is_contiguous {
            true => (out.wrapping_offset(to.runs[0].0), self.row_stride),
            false => (scratch, lanes as isize),
        };
        // SAFETY: by this function's contract, every sum of an offset in `from` and an offset in `depths` is a valid
        // offset of `data`, the weights of the group have `rows · depth` elements, and `c` is valid for `rows` rows of
        // `lanes` elements: in the result if the results are contiguous, otherwise in `scratch`. The runs of `to` have
        // `lanes` elements together, which are in each row of the result.
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
            if !to.is_contiguous {
                for r in 0..rows as isize {
                    to.store(c.wrapping_offset(r * c_row_stride), out.wrapping_offset(r * self.row_stride));
                }
            }
        }
    }
}

/// The offsets of the results of a block of windows, in each row of the result.
struct BlockResults {
    /// The runs of equally spaced results: the offset of the first, and the number of results.
    runs: List<(isize, usize), 16>,
    /// The distance between the results of a run.
    step: isize,
    /// Whether all results are contiguous.
    is_contiguous: bool,
}

impl BlockResults {
    /// Copies the contiguous results `from` to their offsets in the row `to`.
    ///
    /// # Safety
    /// `from` is valid for reads of all results, and `to` is valid for writes at their offsets. No other thread
    /// accesses the written elements, which do not overlap `from`.
    unsafe fn store<T: Element>(&self, mut from: *const T, to: *mut T) {
        for &(at, count) in self.runs.iter() {
            let to = to.wrapping_offset(at);
            // SAFETY: `from` has all results, and `to` is valid for writes at the offsets of the run (this function's
            // contract).
            unsafe {
                match self.step {
                    1 => to.copy_from_nonoverlapping(from, count),
                    // With a constant distance, the loop has fewer instructions.
                    2 => (0..count).for_each(|i| *to.add(2 * i) = *from.add(i)),
                    step => (0..count).for_each(|i| *to.wrapping_offset(i as isize * step) = *from.add(i)),
                }
                from = from.add(count);
            }
        }
    }
}
