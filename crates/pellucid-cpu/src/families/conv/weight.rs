//! Weight gradients: windows times outputs, summed over all positions of all images.
//!
//! The gradient is computed transposed, `[channels·taps, outputs]`. A row is one tap of one channel over all positions,
//! which are contiguous in runs; the outputs are the columns. Images are processed in chunks of about 1,024 positions,
//! so that the depth of a product is about 1,024. The chunk size is a function of the shapes.

use super::product::tap_offsets;
use super::stage::{ReadRegion, StagedImages};
use super::{ConvProblem, for_each_task};
use crate::strided::IndexSpace;
use pellucid_gemm::{ImplicitIm2col, OffsetList, Strided, VIRTUAL_LANES, WeightGradDots, folded};
use pellucid_ir::Result;
use pellucid_runtime::CpuBuffer;
use pellucid_runtime::list::List;
use pellucid_runtime::threads::{self, SharedPtr};
use pellucid_simd::Element;

/// The number of positions that makes one product efficient.
const CHUNK_POSITIONS: usize = 1024;

/// The number of rows of one task, if there are several threads.
const TASK_ROWS: usize = 112;

/// The largest number of columns that are computed one by one, without packing.
const MAX_UNPACKED_COLUMNS: usize = 2;

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
    let ConvProblem { window, images, groups, isa, .. } = *problem;
    let (cin, cout) = problem.group_channels();
    let (taps, plane) = (window.taps(), problem.y.plane_len());
    let (rows, weight_count) = (cin * taps, groups * cout * cin * taps);
    if images * plane == 0 {
        (0..weight_count).for_each(|i| unsafe {
            // SAFETY: w has `weight_count` elements (array contract, *shape*) and is exclusive to this call
            // (*exclusive*).
            *w.get().add(i) = T::ZERO;
        });
        return Ok(());
    }
    let low = [0, 1, 2].map(|a| -(window.before[a] as isize));
    let len = [0, 1, 2].map(|a| window.stride[a] * (problem.y.dims[a] - 1) + window.reach(a) + 1);
    let phases = if problem.y.dims[2] == 1 { 1 } else { window.stride[2] };
    let region = ReadRegion { low, len, phases };
    let unpacked = cout <= MAX_UNPACKED_COLUMNS;
    // The sums of all groups: transposed, or, for few columns, in virtual lanes.
    let sums = CpuBuffer::scratch(weight_count * size_of::<T>() * if unpacked { VIRTUAL_LANES } else { 1 })?;
    let sums = SharedPtr(sums.ensure()?.as_ptr().cast::<T>());
    if unpacked {
        // SAFETY: the buffer has `weight_count · VIRTUAL_LANES` elements, and only this thread accesses it here.
        unsafe { std::slice::from_raw_parts_mut(sums.get(), weight_count * VIRTUAL_LANES) }.fill(T::ZERO);
    }
    let step = (CHUNK_POSITIONS / plane).max(1);
    for first in (0..images).step_by(step) {
        let count = step.min(images - first);
        let x = x.at((first * problem.x.channels * problem.x.plane_len()) as isize);
        let y = SharedPtr(y.at((first * problem.y.channels * plane) as isize));
        // SAFETY: x contains images `first..first + count` (array contract, *shape*), and the processor supports `isa`
        // (*isa*).
        let stage = unsafe { StagedImages::new(isa, x, count, &problem.x, &region)? };
        let taps = tap_offsets(problem, &stage);
        let channel_taps = |c: usize| taps.clone().map(move |(_, offset)| (c, offset));
        let lanes = (0..cin).flat_map(channel_taps);
        let lanes = lanes.map(|(c, offset)| c as isize * stage.channel_stride + offset).collect();
        let lanes = OffsetList::new(lanes);
        let positions = window_starts(problem, &stage, count);
        let data = SharedPtr(stage.data.cast_mut());
        let group_offset = |group: usize| group as isize * cin as isize * stage.channel_stride;
        let group_data = |group: usize| data.at(group_offset(group));
        debug_assert!(
            (0..groups).all(|g| stage.valid.contains_sums(group_offset(g), &lanes, &positions)),
            "a window reads outside of the staged images"
        );
        let y_image_stride = (problem.y.channels * plane) as isize;
        if unpacked {
            let image_positions = positions.len() / count;
            let window_starts = OffsetList::new(positions.all()[..image_positions].iter().copied().collect());
            for_each_task(groups * cout, rows * positions.len(), |_, output| {
                for i in 0..count as isize {
                    let y = y.at(i * y_image_stride + (output * plane) as isize);
                    let data = group_data(output / cout).wrapping_offset(i * stage.image_stride);
                    let sums = sums.at((output * rows * VIRTUAL_LANES) as isize);
                    // SAFETY: `lanes` plus `window_starts` are offsets of the staged images, y has one element per
                    // position (array contract, *shape*), and every output has sums of its own.
                    unsafe {
                        pellucid_gemm::weight_grad_dots(
                            isa,
                            &WeightGradDots { x: y, data, lanes: &window_starts, depths: &lanes, sums },
                        )
                    }
                }
                Ok(())
            })?;
            continue;
        }
        // y with its channels innermost. A single large image is read in place.
        let channels_last = if plane >= CHUNK_POSITIONS / 4 && count == 1 {
            None
        } else {
            let buffer = CpuBuffer::scratch(count * problem.y.channels * plane * size_of::<T>())?;
            let to = SharedPtr(buffer.ensure()?.as_ptr().cast::<T>());
            for_each_task(groups * count, cout * plane, |_, task| {
                let (group, i) = (task / count, task % count);
                let data = y.at(i as isize * y_image_stride + (group * cout * plane) as isize);
                let to = to.at(((group * count + i) * plane * cout) as isize);
                // SAFETY: `data` is one image of one group of y (array contract, *shape*), and `to` is the part of the
                // buffer that belongs to this image and group.
                unsafe {
                    let from = Strided { data: data.cast_const(), lane: plane as isize, depth: 1 };
                    pellucid_gemm::transpose(isa, from, (cout, plane), cout, to);
                }
                Ok(())
            })?;
            Some((to, buffer))
        };
        // Every task packs the outputs again, so a single thread uses one task per group.
        let task_rows = if threads::count() == 1 { rows } else { TASK_ROWS };
        let parts = rows.div_ceil(task_rows);
        for_each_task(groups * parts, rows.min(task_rows) * cout * positions.len(), |_, task| {
            let (group, part) = (task / parts, task % parts);
            let windows = ImplicitIm2col { data: group_data(group).cast_const(), lanes: &lanes, depths: &positions };
            let outputs = match &channels_last {
                None => {
                    Strided { data: y.at((group * cout * plane) as isize).cast_const(), lane: plane as isize, depth: 1 }
                }
                Some((to, _)) => {
                    let data = to.at((group * count * plane * cout) as isize).cast_const();
                    Strided { data, lane: 1, depth: cout as isize }
                }
            };
            let c = sums.at((group * rows * cout) as isize);
            let shape = (part * task_rows..rows.min((part + 1) * task_rows), 0..cout, positions.len());
            // SAFETY: `lanes` plus `positions` are offsets of the staged images, `outputs` has one element per position
            // and column, and every task writes rows of its own of the sums.
            unsafe { pellucid_gemm::multiply(isa, &windows, &outputs, shape, c, cout as isize, first > 0) }
            Ok(())
        })?;
    }
    // SAFETY: the sums and w have one element per weight (w by *shape* of the array contract), and w is exclusive to
    // this call (*exclusive*).
    unsafe {
        if unpacked {
            let sums = std::slice::from_raw_parts(sums.get(), weight_count * VIRTUAL_LANES);
            folded(sums).enumerate().for_each(|(i, sum)| *w.get().add(i) = sum);
        } else {
            for group in 0..groups {
                let from = Strided {
                    data: sums.at((group * rows * cout) as isize).cast_const(),
                    lane: 1,
                    depth: cout as isize,
                };
                for o in 0..cout {
                    let to = w.at(((group * cout + o) * rows) as isize);
                    (0..rows).for_each(|r| *to.add(r) = *from.data.add(r * cout + o));
                }
            }
        }
    }
    Ok(())
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
