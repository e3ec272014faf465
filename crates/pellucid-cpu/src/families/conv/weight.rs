//! Weight gradients: windows times outputs, summed over all positions of all images.
//!
//! The result is computed turned, `[channels·taps, outputs]`: a row is one tap of one channel, seen from every
//! position, which lies in runs, and the outputs are the columns. Images are taken a few at a time, so many that a
//! step of the depth is about 1,024 positions; how many is a function of the shapes.

use super::product::taps_of;
use super::stage::{Frame, Stage};
use super::{Problem, each};
use crate::strided::IndexSpace;
use pellucid_gemm::{ImplicitIm2col, OffsetList, Strided, VIRTUAL_LANES, WeightGradDots, folded};
use pellucid_ir::Result;
use pellucid_runtime::CpuBuffer;
use pellucid_runtime::list::List;
use pellucid_runtime::threads::{self, SharedPtr};
use pellucid_simd::Element;

/// Positions that are worth a product.
const POSITIONS: usize = 1024;

/// Rows that one of several tasks computes.
const ROWS: usize = 112;

/// Up to so many columns the outputs are multiplied one by one, without packing.
const FEW_COLUMNS: usize = 2;

/// Sums x·y over all positions into w.
///
/// # Safety
/// The arrays have the shapes of the problem, row-major; nobody else touches w.
pub(super) unsafe fn weight<T: Element>(
    problem: &Problem,
    x: SharedPtr<T>,
    y: SharedPtr<T>,
    w: SharedPtr<T>,
) -> Result<()> {
    let Problem { window, images, groups, isa, .. } = *problem;
    let (cin, cout) = problem.channels();
    let (taps, plane) = (window.taps(), problem.y.plane());
    let (rows, size) = (cin * taps, groups * cout * cin * taps);
    if images * plane == 0 {
        (0..size).for_each(|i| unsafe {
            // SAFETY: w has so many elements.
            *w.get().add(i) = T::ZERO;
        });
        return Ok(());
    }
    let low = [0, 1, 2].map(|a| -(window.before[a] as isize));
    let len = [0, 1, 2].map(|a| window.stride[a] * (problem.y.dims[a] - 1) + window.reach(a) + 1);
    let classes = if problem.y.dims[2] == 1 { 1 } else { window.stride[2] };
    let frame = Frame { low, len, classes };
    let few = cout <= FEW_COLUMNS;
    // The sums of all groups, turned, or in virtual lanes.
    let sums = CpuBuffer::scratch(size * size_of::<T>() * if few { VIRTUAL_LANES } else { 1 })?;
    let sums = SharedPtr(sums.ensure()?.as_ptr().cast::<T>());
    if few {
        // SAFETY: the sums are so many.
        unsafe { std::slice::from_raw_parts_mut(sums.get(), size * VIRTUAL_LANES) }.fill(T::ZERO);
    }
    let step = (POSITIONS / plane).max(1);
    for first in (0..images).step_by(step) {
        let count = step.min(images - first);
        let x = x.at((first * problem.x.channels * problem.x.plane()) as isize);
        let y = SharedPtr(y.at((first * problem.y.channels * plane) as isize));
        // SAFETY: the caller's.
        let stage = unsafe { Stage::new(isa, x, count, &problem.x, &frame)? };
        let channels = taps_of(problem, &stage);
        let lane = |c: usize| channels.clone().map(move |(_, at)| (c, at));
        let lanes = (0..cin).flat_map(lane).map(|(c, at)| c as isize * stage.channel + at).collect();
        let lanes = OffsetList::new(lanes);
        let positions = positions(problem, &stage, count);
        let data = SharedPtr(stage.data.cast_mut());
        let start = |group: usize| group as isize * cin as isize * stage.channel;
        let at_group = |group: usize| data.at(start(group));
        debug_assert!((0..groups).all(|g| stage.valid.cover(start(g), &lanes, &positions)), "outside of the stage");
        let image = (problem.y.channels * plane) as isize;
        if few {
            let one = positions.len() / count;
            let places = OffsetList::new(positions.all()[..one].iter().copied().collect());
            each(groups * cout, rows * positions.len(), |_, output| {
                for i in 0..count as isize {
                    let y = y.at(i * image + (output * plane) as isize);
                    let data = at_group(output / cout).wrapping_offset(i * stage.image);
                    let sums = sums.at((output * rows * VIRTUAL_LANES) as isize);
                    // SAFETY: the windows lie in the stage; every output has sums of its own.
                    unsafe {
                        pellucid_gemm::weight_grad_dots(
                            isa,
                            &WeightGradDots { x: y, data, lanes: &places, depths: &lanes, sums },
                        )
                    }
                }
                Ok(())
            })?;
            continue;
        }
        // y with its channels innermost; a large image is read where it is.
        let room = if plane >= POSITIONS / 4 && count == 1 {
            None
        } else {
            let room = CpuBuffer::scratch(count * problem.y.channels * plane * size_of::<T>())?;
            let to = SharedPtr(room.ensure()?.as_ptr().cast::<T>());
            each(groups * count, cout * plane, |_, task| {
                let (group, i) = (task / count, task % count);
                let data = y.at(i as isize * image + (group * cout * plane) as isize);
                let to = to.at(((group * count + i) * plane * cout) as isize);
                // SAFETY: both are whole images of one group.
                unsafe {
                    let from = Strided { data: data.cast_const(), lane: plane as isize, depth: 1 };
                    pellucid_gemm::transpose(isa, from, (cout, plane), cout, to);
                }
                Ok(())
            })?;
            Some((to, room))
        };
        // Every task packs the outputs for itself.
        let height = if threads::count() == 1 { rows } else { ROWS };
        let parts = rows.div_ceil(height);
        each(groups * parts, rows.min(height) * cout * positions.len(), |_, task| {
            let (group, part) = (task / parts, task % parts);
            let windows = ImplicitIm2col { data: at_group(group).cast_const(), lanes: &lanes, depths: &positions };
            let outputs = match &room {
                None => {
                    Strided { data: y.at((group * cout * plane) as isize).cast_const(), lane: plane as isize, depth: 1 }
                }
                Some((to, _)) => {
                    let data = to.at((group * count * plane * cout) as isize).cast_const();
                    Strided { data, lane: 1, depth: cout as isize }
                }
            };
            let c = sums.at((group * rows * cout) as isize);
            let shape = (part * height..rows.min((part + 1) * height), 0..cout, positions.len());
            // SAFETY: the windows lie in the stage; each task has rows of its own.
            unsafe { pellucid_gemm::multiply(isa, &windows, &outputs, shape, c, cout as isize, first > 0) }
            Ok(())
        })?;
    }
    // SAFETY: the sums and w have a place for every weight.
    unsafe {
        if few {
            let sums = std::slice::from_raw_parts(sums.get(), size * VIRTUAL_LANES);
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

/// Where every window begins: images, and the positions of the output.
fn positions<T: Element>(problem: &Problem, stage: &Stage<T>, images: usize) -> OffsetList {
    let [oz, oy, ox] = problem.y.dims;
    let [sz, sy, _] = problem.window.stride.map(|s| s as isize);
    let space =
        IndexSpace::new([(images, [stage.image]), (oz, [sz * stage.steps[0]]), (oy, [sy * stage.steps[1]]), (ox, [1])]);
    let (step, mut places) = (space.step(), List::with_capacity(space.len()));
    space.runs(0..space.len(), |at, count| places.extend((0..count as isize).map(|i| at[0] + i * step[0])));
    OffsetList::new(places)
}
