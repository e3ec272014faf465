//! Weight gradients: windows times outputs, summed over all positions of all images.
//!
//! The transposed gradient, `[channels·taps, outputs]`, is the product of the matrix `[channels·taps, positions]` of
//! all windows with the matrix `[positions, outputs]` of y. Images are processed in chunks of up to 1,024 positions, or
//! of a single image that has more. Each product sums over the positions of one chunk. The chunk size depends only on
//! the shapes.

use super::problem::ConvProblem;
use super::stage::{ReadRegion, StagedImages, tap_offsets};
use super::tasks::for_each_task;
use crate::strided::IndexSpace;
use pellucid_gemm::{ImplicitIm2col, OffsetList, Strided, VIRTUAL_LANES, WeightGradDots, sum_virtual_lanes};
use pellucid_ir::Result;
use pellucid_runtime::CpuBuffer;
use pellucid_runtime::list::List;
use pellucid_runtime::threads::{self, SharedPtr};
use pellucid_simd::Element;
use std::ops::Range;

/// The largest number of output positions of a chunk, unless a single image has more. One product sums over a chunk, so
/// a smaller number would be less efficient.
const CHUNK_POSITIONS: usize = 1024;

/// The number of rows of one task, if there are several threads.
const TASK_ROWS: usize = 112;

/// The largest number of columns that are computed one by one, without packing.
pub(super) const MAX_UNPACKED_COLUMNS: usize = 2;

/// Computes the gradient of a convolution with respect to its weights w, from its input x and the gradient y of its
/// output.
///
/// # Errors
/// Returns an error if scratch memory cannot be allocated.
///
/// # Safety
/// The [array contract](ConvProblem#the-array-contract) holds; w is the computed array.
pub(super) unsafe fn compute_weight_gradient<T: Element>(
    problem: &ConvProblem,
    x: SharedPtr<T>,
    y: SharedPtr<T>,
    w: SharedPtr<T>,
) -> Result<()> {
    let (images, plane) = (problem.images, problem.y.plane_len());
    let (cin, cout) = problem.group_channels();
    let rows = cin * problem.window.taps();
    let weight_count = problem.groups * cout * rows;
    if images * plane == 0 {
        (0..weight_count).for_each(|i| unsafe {
            // SAFETY: w has `weight_count` elements (array contract, *shape*) and is exclusive to this call
            // (*exclusive*).
            *w.get().add(i) = T::ZERO;
        });
        return Ok(());
    }
    let is_packed = cout > MAX_UNPACKED_COLUMNS;
    let sums_len = weight_count * if is_packed { 1 } else { VIRTUAL_LANES };
    let sums = CpuBuffer::scratch(sums_len * size_of::<T>())?;
    let gradient =
        WeightGradient { problem, cin, cout, rows, plane, sums: SharedPtr(sums.ensure()?.as_ptr().cast::<T>()) };
    if !is_packed {
        // SAFETY: the buffer has `sums_len` elements, and only this thread accesses it here.
        unsafe { std::slice::from_raw_parts_mut(gradient.sums.get(), sums_len) }.fill(T::ZERO);
    }
    let region = read_region(problem);
    let step = (CHUNK_POSITIONS / plane).max(1);
    for first in (0..images).step_by(step) {
        let count = step.min(images - first);
        let x = x.offset((first * problem.x.channels * problem.x.plane_len()) as isize);
        // SAFETY: the array contract, which is this function's contract: x contains images `first..first + count`
        // (*shape*), and the processor supports `isa` (*isa*). The sums have the size of the variant.
        unsafe {
            let stage = StagedImages::new(problem.isa, x, count, &problem.x, &region)?;
            let chunk = ImageChunk::new(&gradient, &stage, y, first..first + count);
            match is_packed {
                true => gradient.add_products(&chunk)?,
                false => gradient.add_dots(&chunk)?,
            }
        }
    }
    // SAFETY: w has one element per weight (*shape* of the array contract) and is exclusive to this call (*exclusive*).
    unsafe { gradient.store(w, is_packed) };
    Ok(())
}

/// Returns the region of the input that the windows read.
fn read_region(problem: &ConvProblem) -> ReadRegion {
    let (window, y) = (&problem.window, &problem.y);
    ReadRegion {
        low: [0, 1, 2].map(|a| -(window.before[a] as isize)),
        len: [0, 1, 2].map(|a| window.covered_length(a, y.dims[a])),
        phases: if y.dims[2] == 1 { 1 } else { window.stride[2] },
    }
}

/// The sums of a weight gradient.
struct WeightGradient<'a, T> {
    /// The convolution.
    problem: &'a ConvProblem,
    /// The number of channels of x in a group.
    cin: usize,
    /// The number of channels of y in a group.
    cout: usize,
    /// The number of weights of one output channel: channels times taps.
    rows: usize,
    /// The number of output positions of one image.
    plane: usize,
    /// The sums of all groups: `[group, row, output]` or, for few outputs, `[group, output, row, VIRTUAL_LANES]`, where
    /// each gradient has [`VIRTUAL_LANES`] partial sums.
    sums: SharedPtr<T>,
}

/// Some images of the batch, with the offsets of their windows.
struct ImageChunk<T> {
    /// The number of images.
    count: usize,
    /// Whether these are the first images of the batch.
    is_first: bool,
    /// The staged images of x.
    data: SharedPtr<T>,
    /// The stride from one staged image to the next.
    image_stride: isize,
    /// The stride from one channel of a staged image to the next.
    channel_stride: isize,
    /// The images of y.
    y: SharedPtr<T>,
    /// The stride from one image of y to the next.
    y_image_stride: isize,
    /// The offset of every tap of every channel of a group.
    taps: OffsetList,
    /// The offset of every window of the chunk: for each of its images and each output position.
    windows: OffsetList,
}

impl<T: Element> ImageChunk<T> {
    /// Creates the chunk of the images `range`, which `stage` contains.
    fn new(
        gradient: &WeightGradient<'_, T>,
        stage: &StagedImages<T>,
        y: SharedPtr<T>,
        range: Range<usize>,
    ) -> ImageChunk<T> {
        let problem = gradient.problem;
        let y_image_stride = (problem.y.channels * gradient.plane) as isize;
        let channel_taps =
            |c: usize| tap_offsets(problem, stage).map(move |(_, offset)| c as isize * stage.channel_stride + offset);
        let chunk = ImageChunk {
            count: range.len(),
            is_first: range.start == 0,
            data: SharedPtr(stage.data.cast_mut()),
            image_stride: stage.image_stride,
            channel_stride: stage.channel_stride,
            y: SharedPtr(y.offset(range.start as isize * y_image_stride)),
            y_image_stride,
            taps: OffsetList::new((0..gradient.cin).flat_map(channel_taps).collect()),
            windows: window_starts(problem, stage, range.len()),
        };
        debug_assert!(
            (0..problem.groups).all(|group| {
                stage.valid.contains_sums(gradient.group_offset(&chunk, group), &chunk.taps, &chunk.windows)
            }),
            "a window extends beyond the staged images"
        );
        chunk
    }
}

impl<T: Element> WeightGradient<'_, T> {
    /// Returns the offset of a group in the staged images.
    fn group_offset(&self, chunk: &ImageChunk<T>, group: usize) -> isize {
        (group * self.cin) as isize * chunk.channel_stride
    }

    /// Adds the products of a chunk, one output at a time, without packing.
    ///
    /// # Errors
    /// This method never fails; it has the return type of [`for_each_task`].
    ///
    /// # Safety
    /// The [array contract](ConvProblem#the-array-contract) holds, and there are [`VIRTUAL_LANES`] partial sums for
    /// each weight.
    unsafe fn add_dots(&self, chunk: &ImageChunk<T>) -> Result<()> {
        let (rows, isa) = (self.rows, self.problem.isa);
        let &ImageChunk { count, data, image_stride, y, y_image_stride, ref taps, ref windows, .. } = chunk;
        let image_windows = OffsetList::new(windows.all()[..windows.len() / count].iter().copied().collect());
        let group_offset = |group: usize| self.group_offset(chunk, group);
        for_each_task(self.problem.groups * self.cout, rows * windows.len(), |_, output| {
            for i in 0..count as isize {
                let x = y.offset(i * y_image_stride + (output * self.plane) as isize);
                let data = data.offset(group_offset(output / self.cout)).wrapping_offset(i * image_stride);
                let sums = self.sums.offset((output * rows * VIRTUAL_LANES) as isize);
                // SAFETY: every sum of an offset in `taps` and an offset in `image_windows` is a valid offset of the
                // image, y has one element per window (array contract, *shape*), and each task writes the sums of its
                // own output.
                unsafe {
                    pellucid_gemm::weight_grad_dots(
                        isa,
                        &WeightGradDots { x, data, lanes: &image_windows, depths: taps, sums },
                    )
                }
            }
            Ok(())
        })
    }

    /// Adds the products of a chunk: for each group, the matrix product of its windows of x with its channels of y.
    ///
    /// # Errors
    /// Returns an error if scratch memory cannot be allocated.
    ///
    /// # Safety
    /// The [array contract](ConvProblem#the-array-contract) holds, and there is one sum for each weight.
    unsafe fn add_products(&self, chunk: &ImageChunk<T>) -> Result<()> {
        let &WeightGradient { cout, rows, plane, sums, .. } = self;
        let (isa, count, depth) = (self.problem.isa, chunk.count, chunk.windows.len());
        // A single large image is read in place.
        let is_in_place = plane >= CHUNK_POSITIONS / 4 && count == 1;
        // SAFETY: the array contract, which is this function's contract.
        let channels_last = if is_in_place { None } else { Some(unsafe { self.to_channels_last(chunk)? }) };
        // Every task packs the matrix of y again, so a single thread uses one task per group.
        let task_rows = if threads::count() == 1 { rows } else { TASK_ROWS };
        let parts = rows.div_ceil(task_rows);
        for_each_task(self.problem.groups * parts, rows.min(task_rows) * cout * depth, |_, task| {
            let (group, part) = (task / parts, task % parts);
            let data = chunk.data.offset(self.group_offset(chunk, group)).cast_const();
            let windows = ImplicitIm2col { data, lanes: &chunk.taps, depths: &chunk.windows };
            let outputs = match &channels_last {
                None => {
                    let data = chunk.y.offset((group * cout * plane) as isize).cast_const();
                    Strided { data, lane: plane as isize, depth: 1 }
                }
                Some((to, _)) => {
                    let data = to.offset((group * count * plane * cout) as isize).cast_const();
                    Strided { data, lane: 1, depth: cout as isize }
                }
            };
            let c = sums.offset((group * rows * cout) as isize);
            let shape = (part * task_rows..rows.min((part + 1) * task_rows), 0..cout, depth);
            // SAFETY: every sum of an offset in `taps` and an offset in `windows` is a valid offset of the staged
            // images, `outputs` has one element for each window and column, and each task writes its own rows of the
            // sums.
            unsafe { pellucid_gemm::multiply(isa, &windows, &outputs, shape, c, cout as isize, !chunk.is_first) }
            Ok(())
        })
    }

    /// Returns a copy of the images of y with the channels of a group innermost, `[group, image, position, channel]`.
    ///
    /// # Errors
    /// Returns an error if the memory of the copy cannot be allocated.
    ///
    /// # Safety
    /// The [array contract](ConvProblem#the-array-contract) holds.
    unsafe fn to_channels_last(&self, chunk: &ImageChunk<T>) -> Result<(SharedPtr<T>, CpuBuffer)> {
        let &WeightGradient { problem, cout, plane, .. } = self;
        let count = chunk.count;
        let buffer = CpuBuffer::scratch(count * problem.y.channels * plane * size_of::<T>())?;
        let to = SharedPtr(buffer.ensure()?.as_ptr().cast::<T>());
        for_each_task(problem.groups * count, cout * plane, |_, task| {
            let (group, i) = (task / count, task % count);
            let data = chunk.y.offset(i as isize * chunk.y_image_stride + (group * cout * plane) as isize);
            let to = to.offset(((group * count + i) * plane * cout) as isize);
            // SAFETY: `data` is one image of one group of y (array contract, *shape*), and `to` is the part of the
            // buffer that belongs to this image and group.
            unsafe {
                let from = Strided { data: data.cast_const(), lane: plane as isize, depth: 1 };
                pellucid_gemm::transpose(problem.isa, from, (cout, plane), cout, to);
            }
            Ok(())
        })?;
        Ok((to, buffer))
    }

    /// Writes the gradient w: the transposed sums if `is_packed`, otherwise the totals of the partial sums.
    ///
    /// # Safety
    /// The sums are complete, and w is valid for writing all weights, which no other thread accesses.
    unsafe fn store(&self, w: SharedPtr<T>, is_packed: bool) {
        let &WeightGradient { cout, rows, sums, .. } = self;
        let groups = self.problem.groups;
        // SAFETY: w has one element for each weight, and there are one or `VIRTUAL_LANES` sums for each weight; w is
        // exclusive to this call (this function's contract).
        unsafe {
            if !is_packed {
                let sums = std::slice::from_raw_parts(sums.get(), groups * cout * rows * VIRTUAL_LANES);
                sum_virtual_lanes(sums).enumerate().for_each(|(i, sum)| *w.get().add(i) = sum);
                return;
            }
            for group in 0..groups {
                let from = sums.offset((group * rows * cout) as isize).cast_const();
                for o in 0..cout {
                    let to = w.offset(((group * cout + o) * rows) as isize);
                    (0..rows).for_each(|r| *to.add(r) = *from.add(r * cout + o));
                }
            }
        }
    }
}

/// Returns the offset of the first element of every window: of all images and all output positions.
fn window_starts<T: Element>(problem: &ConvProblem, stage: &StagedImages<T>, images: usize) -> OffsetList {
    let [oz, oy, ox] = problem.y.dims;
    let [sz, sy, _] = problem.window.stride.map(|s| s as isize);
    let space = IndexSpace::new([
        (images, [stage.image_stride]),
        (oz, [sz * stage.strides[0]]),
        (oy, [sy * stage.strides[1]]),
        (ox, [1]),
    ]);
    let (step, mut offsets) = (space.step(), List::with_capacity(space.len()));
    space.runs(0..space.len(), |at, count| offsets.extend((0..count as isize).map(|i| at[0] + i * step[0])));
    OffsetList::new(offsets)
}
