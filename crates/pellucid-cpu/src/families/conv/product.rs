//! Outputs and input gradients: weights times windows.
//!
//! An output is the product of the weights `[outputs, channels·taps]` with the windows of x. An input gradient is
//! one too, of windows over y: the input's positions q with the same remainder ρ of `q + before` by the stride see the
//! same taps (those with `dilation·t ≡ ρ`), and tap t sees output `(q + before − dilation·t) / stride`. One product
//! for each remainder; for stride 1 there is one.

use super::stage::{Frame, Stage};
use super::{Problem, Sizes, each, worker_ids};
use crate::strided::IndexSpace;
use pellucid_gemm::{ImplicitIm2col, OffsetDotRow, OffsetList, Strided};
use pellucid_ir::Result;
use pellucid_runtime::CpuBuffer;
use pellucid_runtime::list::List;
use pellucid_runtime::threads::SharedPtr;
use pellucid_simd::Element;
use pellucid_simd::Isa;

/// Lanes that are computed at once: a block of columns of the matrix product.
const LANES: usize = 512;

/// Bytes of staged images at a time.
const STAGED: usize = 8 << 20;

/// Up to so many rows a product is not worth packing.
const FEW_ROWS: usize = 2;

/// The weights of all groups as products read them, `[group, row, depth]`.
struct Weights<T> {
    data: SharedPtr<T>,
    rows: usize,
    _room: Option<CpuBuffer>,
}

impl<T: Element> Weights<T> {
    /// The weights `w`, `[group, outputs, channels, taps]`, turned to `[group, channels, outputs, these taps]`.
    ///
    /// # Safety
    /// There are so many weights.
    unsafe fn turned(
        w: SharedPtr<T>,
        groups: usize,
        (outputs, channels, taps): (usize, usize, usize),
        these: &[usize],
    ) -> Result<Weights<T>> {
        let count = groups * outputs * channels * these.len();
        let room = CpuBuffer::scratch(count.saturating_mul(size_of::<T>()))?;
        let data = SharedPtr(room.ensure()?.as_ptr().cast::<T>());
        let mut to = data.get();
        for group in 0..groups {
            for channel in 0..channels {
                for output in 0..outputs {
                    let from = w.at((((group * outputs + output) * channels + channel) * taps) as isize);
                    for &tap in these {
                        // SAFETY: both lie in their arrays, the caller says, and the room is as large as what is written.
                        unsafe {
                            *to = *from.add(tap);
                            to = to.add(1);
                        }
                    }
                }
            }
        }
        Ok(Weights { data, rows: channels, _room: Some(room) })
    }
}

/// One product for every group and image: where lanes come from and where they go.
struct Product<'a, T> {
    problem: &'a Problem,
    weights: Weights<T>,
    /// Image, and the three axes: how many, the step in the stage, the step in the result.
    axes: [(usize, [isize; 2]); 4],
    /// Where the first lane comes from, and goes.
    start: [isize; 2],
    /// OffsetList of channels and taps in the stage.
    depths: OffsetList,
    /// From the images of one group to those of the next.
    group: isize,
    /// From one row of the result to the next, and from one group to the next.
    row: isize,
    out_group: isize,
}

/// Convolves x with w to y.
///
/// # Safety
/// The arrays have the shapes of the problem, row-major; nobody else touches y.
pub(super) unsafe fn output<T: Element>(
    problem: &Problem,
    x: SharedPtr<T>,
    w: SharedPtr<T>,
    y: SharedPtr<T>,
) -> Result<()> {
    let Problem { window, images, .. } = *problem;
    let (cin, cout) = problem.channels();
    let [oz, oy, ox] = problem.y.dims;
    let low = [0, 1, 2].map(|a| -(window.before[a] as isize));
    let len = [0, 1, 2].map(|a| window.stride[a] * (problem.y.dims[a] - 1) + window.reach(a) + 1);
    // One window along the last axis needs no neighbours.
    let classes = if ox == 1 { 1 } else { window.stride[2] };
    let frame = Frame { low, len, classes };
    let plane = problem.y.plane();
    let (whole, size) = (problem.x.channels * problem.x.plane(), problem.y.channels * plane);
    // SAFETY: the caller's; the stage has every element that a window reads, and each lane and row is a place in y.
    unsafe {
        staged(problem.isa, &problem.x, images, &frame, x, whole, |first, images, stage| {
            let depths = depths(cin, stage, &taps_of(problem, stage).map(|(_, at)| at).collect::<List<isize, 0>>());
            let [sz, sy, _] = window.stride.map(|s| s as isize);
            let axes = [
                (images, [stage.image, size as isize]),
                (oz, [sz * stage.steps[0], (oy * ox) as isize]),
                (oy, [sy * stage.steps[1], ox as isize]),
                (ox, [1, 1]),
            ];
            let weights = Weights { data: w, rows: cout, _room: None };
            let group = cin as isize * stage.channel;
            let (row, out_group) = (plane as isize, (cout * plane) as isize);
            Product { problem, weights, axes, start: [0, 0], depths, group, row, out_group }
                .run(stage, SharedPtr(y.at((first * size) as isize)))
        })
    }
}

/// Gives each x what the windows over it have made of w and y.
///
/// # Safety
/// The arrays have the shapes of the problem, row-major; nobody else touches x.
pub(super) unsafe fn input<T: Element>(
    problem: &Problem,
    y: SharedPtr<T>,
    w: SharedPtr<T>,
    x: SharedPtr<T>,
) -> Result<()> {
    let Problem { window, images, .. } = *problem;
    let (cin, cout) = problem.channels();
    let dims = problem.x.dims.map(|d| d as isize);
    let (stride, before) = (window.stride.map(|s| s as isize), window.before.map(|b| b as isize));
    let dilation = window.dilation.map(|d| d as isize);
    // The outputs that the first and the last position see.
    let low = [0, 1, 2].map(|a| (before[a] - window.reach(a) as isize).div_euclid(stride[a]));
    let high = [0, 1, 2].map(|a| (dims[a] - 1 + before[a]).div_euclid(stride[a]));
    let len = [0, 1, 2].map(|a| (high[a] - low[a] + 1).max(1) as usize);
    let frame = Frame { low, len, classes: 1 };
    let (taps, plane) = (window.taps(), problem.x.plane());
    let (whole, size) = (problem.y.channels * problem.y.plane(), problem.x.channels * plane);
    // Along one axis, for a remainder: the taps, each with the output it sees from position 0 of the remainder's own
    // counting, the first such position, and how many there are.
    let class = |a: usize, rest: isize| {
        let taps = (0..window.size[a] as isize).filter(move |t| (rest - dilation[a] * t).rem_euclid(stride[a]) == 0);
        let taps: List<(usize, isize), 8> =
            taps.map(|t| (t as usize, (rest - dilation[a] * t).div_euclid(stride[a]) - low[a])).collect();
        let first = (before[a] - rest + stride[a] - 1).div_euclid(stride[a]);
        let last = (dims[a] - 1 + before[a] - rest).div_euclid(stride[a]);
        (taps, first, (last - first + 1).max(0) as usize)
    };
    // SAFETY: as in `output`; the positions of all remainders together are those of x.
    unsafe {
        staged(problem.isa, &problem.y, images, &frame, y, whole, |first, images, stage| {
            for rest in 0..stride.iter().product::<isize>() {
                let rest = [rest / (stride[1] * stride[2]), rest / stride[2] % stride[1], rest % stride[2]];
                let [z, y, c] = [0, 1, 2].map(|a| class(a, rest[a]));
                let mut numbers = List::<usize, 0>::new();
                let mut places = List::new();
                for &(tz, pz) in &z.0 {
                    for &(ty, py) in &y.0 {
                        for &(tx, px) in &c.0 {
                            numbers.push((tz * window.size[1] + ty) * window.size[2] + tx);
                            places.push(pz * stage.steps[0] + py * stage.steps[1] + px);
                        }
                    }
                }
                let to = [dims[1] * dims[2], dims[2], 1];
                let begin = [z.1, y.1, c.1];
                let start = [
                    begin[0] * stage.steps[0] + begin[1] * stage.steps[1] + begin[2],
                    (0..3).map(|a| (rest[a] + stride[a] * begin[a] - before[a]) * to[a]).sum(),
                ];
                let axes = [
                    (images, [stage.image, size as isize]),
                    (z.2, [stage.steps[0], stride[0] * to[0]]),
                    (y.2, [stage.steps[1], stride[1] * to[1]]),
                    (c.2, [1, stride[2] * to[2]]),
                ];
                let weights = Weights::turned(w, problem.groups, (cout, cin, taps), &numbers)?;
                let depths = depths(cout, stage, &places);
                let group = cout as isize * stage.channel;
                let (row, out_group) = (plane as isize, (cin * plane) as isize);
                Product { problem, weights, axes, start, depths, group, row, out_group }
                    .run(stage, SharedPtr(x.at(first as isize * size as isize)))?;
            }
            Ok(())
        })
    }
}

/// Stages a part of the batch after the other, and calls `work` with the first image, their number and the stage.
///
/// # Safety
/// There are so many images of these sizes at `data`, `whole` elements apart.
unsafe fn staged<T: Element>(
    isa: Isa,
    sizes: &Sizes,
    images: usize,
    frame: &Frame,
    data: SharedPtr<T>,
    whole: usize,
    work: impl Fn(usize, usize, &Stage<T>) -> Result<()>,
) -> Result<()> {
    let one = frame.len.iter().fold(sizes.channels * size_of::<T>(), |all, &len| all.saturating_mul(len));
    let step = (STAGED / one.max(1)).max(1);
    for first in (0..images).step_by(step) {
        let count = step.min(images - first);
        // SAFETY: the caller's.
        let stage = unsafe { Stage::new(isa, data.at((first * whole) as isize), count, sizes, frame)? };
        work(first, count, &stage)?;
    }
    Ok(())
}

/// Every tap's number with its offset in the stage of the input.
pub(super) fn taps_of<'a, T: Element>(
    problem: &Problem,
    stage: &'a Stage<T>,
) -> impl Iterator<Item = (usize, isize)> + Clone + use<'a, T> {
    let [kz, ky, kx] = problem.window.size;
    let [dz, dy, dx] = problem.window.dilation.map(|d| d as isize);
    let offset = move |t: usize| {
        let [z, y, x] = [t / (ky * kx), t / kx % ky, t % kx].map(|t| t as isize);
        (t, z * dz * stage.steps[0] + y * dy * stage.steps[1] + stage.along(x * dx))
    };
    (0..kz * ky * kx).map(offset)
}

/// The offsets of the same taps in so many channels.
pub(super) fn depths<T>(channels: usize, stage: &Stage<T>, taps: &List<isize, 0>) -> OffsetList {
    OffsetList::new((0..channels as isize).flat_map(|c| taps.iter().map(move |t| c * stage.channel + t)).collect())
}

impl<T: Element> Product<'_, T> {
    /// Computes all groups, in blocks of lanes.
    ///
    /// # Safety
    /// All lanes, steps and rows lie in the stage, the weights and the result.
    unsafe fn run(&self, stage: &Stage<T>, out: SharedPtr<T>) -> Result<()> {
        let (space, groups) = (IndexSpace::new(self.axes), self.problem.groups);
        let one: usize = self.axes[1..].iter().map(|axis| axis.0).product();
        let (rows, data) = (self.weights.rows, SharedPtr(stage.data.cast_mut()));
        // Blocks of whole images, or parts of one: then its rows are written where they belong. Without packing
        // nothing is gained by several images.
        let lanes = match LANES / one.max(1) {
            0 => one.div_ceil(one.div_ceil(LANES)).next_multiple_of(32),
            _ if rows <= FEW_ROWS => one,
            several => several * one,
        };
        let whole = lanes.max(one) / one.max(1) * one;
        let blocks: List<(usize, usize), 0> = (0..space.len())
            .step_by(whole.max(1))
            .flat_map(|first| {
                let end = space.len().min(first + whole);
                (first..end).step_by(lanes).map(move |at| (at, end.min(at + lanes)))
            })
            .collect();
        // A block's lanes are the same in all groups: many groups are several tasks only where blocks are few.
        let parts = if blocks.len() >= 16 { 1 } else { groups.min(16) };
        let each_part = groups.div_ceil(parts);
        let cost = rows * self.depths.len() * lanes * each_part;
        // Results that do not lie side by side are made in a room, one for each worker, and brought there.
        let to = IndexSpace::new(self.axes.map(|(len, [_, to])| (len, [to])));
        let scattered = |&(first, end): &(usize, usize)| {
            end - first > 1 && (to.step() != [1] || first / to.run_len() != (end - 1) / to.run_len())
        };
        let tasks = blocks.len() * parts;
        let one = if blocks.iter().any(scattered) { rows * lanes.min(space.len()) } else { 0 };
        let rooms = CpuBuffer::scratch(one.saturating_mul(worker_ids(tasks, cost)).saturating_mul(size_of::<T>()))?;
        let rooms = SharedPtr(rooms.ensure()?.as_ptr().cast::<T>());
        let valid = &stage.valid;
        each(tasks, cost, |worker, task| {
            let (part, (first, end)) = (task / blocks.len(), blocks[task % blocks.len()]);
            let mut places = [List::with_capacity(end - first), List::with_capacity(end - first)];
            let step = space.step();
            space.runs(first..end, |at, count| {
                for (k, places) in places.iter_mut().enumerate() {
                    places.extend((0..count as isize).map(|i| self.start[k] + at[k] + i * step[k]));
                }
            });
            let [from, to] = places.map(OffsetList::new);
            let room = rooms.at((worker * one) as isize);
            for group in part * each_part..groups.min((part + 1) * each_part) {
                debug_assert!(valid.cover(group as isize * self.group, &from, &self.depths), "outside of the stage");
                // SAFETY: the caller's.
                unsafe {
                    let data = data.at(group as isize * self.group);
                    self.block(group, data, &from, &to, out.at(group as isize * self.out_group), room);
                }
            }
            Ok(())
        })
    }

    /// Computes all rows of some lanes of one group, and brings them where they belong.
    ///
    /// # Safety
    /// As for [`run`](Self::run); if the lanes are not one run of the result, there is room for all of them.
    unsafe fn block(
        &self,
        group: usize,
        data: *const T,
        from: &OffsetList,
        to: &OffsetList,
        out: *mut T,
        room: *mut T,
    ) {
        let (isa, lanes) = (self.problem.isa, from.len());
        debug_assert_eq!(lanes, to.len(), "a place for every lane");
        let (rows, depth) = (self.weights.rows, self.depths.len());
        let weights: *const T = self.weights.data.at((group * rows * depth) as isize);
        let whole = to.runs(0..lanes).next().filter(|run| run.2 == lanes);
        let (c, row) = match whole {
            Some((_, at, _)) => (out.wrapping_offset(at), self.row),
            None => (room, lanes as isize),
        };
        // SAFETY: the caller's.
        unsafe {
            if rows <= FEW_ROWS {
                for r in 0..rows {
                    let weights = std::slice::from_raw_parts(weights.add(r * depth), depth);
                    let to = c.wrapping_offset(r as isize * row);
                    pellucid_gemm::offset_dot_row(
                        isa,
                        &OffsetDotRow { data, lanes: from, depths: &self.depths, weights, to },
                    );
                }
            } else {
                let weights = Strided { data: weights, lane: depth as isize, depth: 1 };
                let windows = ImplicitIm2col { data, lanes: from, depths: &self.depths };
                pellucid_gemm::multiply(isa, &weights, &windows, (0..rows, 0..lanes, depth), c, row, false);
            }
            if whole.is_none() {
                for r in 0..rows {
                    let (from, to_row) =
                        (c.wrapping_offset(r as isize * row), out.wrapping_offset(r as isize * self.row));
                    for (first, at, count) in to.runs(0..lanes) {
                        to_row.wrapping_offset(at).copy_from_nonoverlapping(from.add(first), count);
                    }
                }
            }
        }
    }
}
