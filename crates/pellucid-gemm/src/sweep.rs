//! Every kernel of the matrix product over all small shapes, and those around vectors, register tiles and blocks.

use super::kernels::Kernels;
use super::pack::{Source, pack_panels};
use super::tests::{STORAGES, product};
use super::*;
use pellucid_runtime::list::List;
use pellucid_runtime::testing::{Choices, Guarded, numbers};
use pellucid_runtime::threads::with_threads;

/// A type of element, from small integers, which every type adds and multiplies exactly.
trait Number: Element + bytemuck::Pod + PartialEq + std::fmt::Debug {
    fn of(value: f64) -> Self;
}

macro_rules! number {
    ($($t:ty)*) => {$(
        impl Number for $t {
            fn of(value: f64) -> $t {
                value as $t
            }
        }
    )*};
}
number!(f32 f64 i32 i64);

/// Factors of the largest shape of a sweep, and their product: those of the others are parts of them.
struct Reference<T> {
    a: Vec<f64>,
    b: Vec<f64>,
    c: Vec<T>,
    n: usize,
    k: usize,
}

impl<T: Number> Reference<T> {
    fn new((m, n, k): (usize, usize, usize)) -> Reference<T> {
        let (a, b) = (numbers(m * k, 3, 1), numbers(k * n, 3, 2));
        let sum = |i: usize| (0..k).map(|p| a[i / n * k + p] * b[p * n + i % n]).sum::<f64>();
        let c = (0..m * n).map(|i| T::of(sum(i))).collect();
        Reference { a, b, c, n, k }
    }

    /// The first `m` rows times the first `n` columns.
    fn check(&self, isa: Isa, (m, n): (usize, usize), choices: &Choices, threads: Threads) {
        let &Reference { k, n: all, .. } = self;
        let a: Vec<T> = self.a[..m * k].iter().map(|&x| T::of(x)).collect();
        let b: Vec<T> = (0..k * n).map(|i| T::of(self.b[i / n * all + i % n])).collect();
        let storage = [(); 3].map(|()| choices.of(&STORAGES));
        let accumulate = choices.below(3) == 0;
        let start: Vec<T> = (0..m * n).map(|i| T::of((i % 5) as f64)).collect();
        let found = product(isa, (m, n, k), storage, &a, &b, &start, accumulate, threads);
        let expected = (0..m * n).map(|i| {
            let sum = self.c[i / n * all + i % n];
            if accumulate { sum.add(start[i]) } else { sum }
        });
        let what = || format!("{m} × {n} × {k} of {} {isa:?} {storage:?}", std::any::type_name::<T>());
        assert!(found.iter().copied().eq(expected), "{} accumulate: {accumulate}", what());
    }
}

fn small<T: Number>(seed: u64) {
    let choices = &Choices::new(seed);
    for k in [1, 2, 3, 8, 15, 16, 17, 20] {
        let reference = Reference::<T>::new((20, 20, k));
        for (m, n) in (1..=20).flat_map(|m| (1..=20).map(move |n| (m, n))) {
            Isa::available().iter().for_each(|&isa| reference.check(isa, (m, n), choices, Threads::One));
        }
    }
}

#[test]
fn small_products_of_every_type() {
    small::<f32>(1);
    small::<f64>(2);
    small::<i32>(3);
    small::<i64>(4);
}

fn around_blocks<T: Number>(seed: u64) {
    let choices = &Choices::new(seed);
    // Heights around register tiles, widths around panels, depths around those that are packed together, and blocks.
    let heights = [1, 2, 5, 6, 7, 8, 11, 12, 13, 14, 15, 16, 24, 27, 28, 29, 32, 33];
    let widths = [1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40, 63, 64, 65];
    for k in [127, 128, 129, 144, 271, 272, 273, 300] {
        let reference = Reference::<T>::new((33, 65, k));
        for (m, n) in heights.into_iter().flat_map(|m| widths.map(|n| (m, n))) {
            Isa::available().iter().for_each(|&isa| reference.check(isa, (m, n), choices, Threads::One));
        }
    }
}

#[test]
fn products_around_tiles_and_blocks() {
    around_blocks::<f32>(5);
    around_blocks::<f64>(6);
}

#[test]
fn products_of_several_threads() {
    for (m, n, k) in [(129, 130, 131), (14, 512, 260), (700, 33, 90), (4000, 1, 600), (1, 2000, 1100)] {
        let reference = Reference::<f32>::new((m, n, k));
        for threads in [1, 2, 4] {
            let run = || reference.check(Isa::best(), (m, n), &Choices::new(7), Threads::Pool);
            with_threads(threads, run);
        }
    }
}

/// How a matrix of `lanes × depth` is stored.
/// The strides of a matrix with this number of rows and of columns.
type Strides = fn(usize, usize) -> (isize, isize);

const LAYOUTS: [Strides; 4] =
    [|lanes, _| (1, lanes as isize), |_, depth| (depth as isize, 1), |_, depth| (2 * depth as isize, 2), |_, _| (1, 1)];

/// A matrix whose elements are all different, with its memory.
fn matrix<T: Number>(lanes: usize, depth: usize, layout: usize) -> (Guarded<T>, Strided<T>) {
    let (lane, step) = LAYOUTS[layout](lanes, depth);
    let len = (lanes as isize - 1) * lane + (depth as isize - 1) * step + 1;
    let data = Guarded::of(&(0..len).map(|i| T::of(i as f64 + 1.0)).collect::<Vec<T>>());
    let from = Strided { data: data.as_ptr(), lane, depth: step };
    (data, from)
}

/// Element (lane, step) of a matrix of [`matrix`].
fn element<T: Number>(from: &Strided<T>, lane: usize, step: usize) -> T {
    T::of((lane as isize * from.lane + step as isize * from.depth) as f64 + 1.0)
}

/// Checks one packed panel of `lanes` lanes.
#[track_caller]
fn check_panel<T: Number>(panel: &[T], lanes: usize, width: usize, what: &str, element: impl Fn(usize, usize) -> T) {
    for (i, &found) in panel.iter().enumerate() {
        let (p, lane) = (i / width, i % width);
        let expected = if lane < lanes { element(lane, p) } else { T::ZERO };
        assert_eq!(found, expected, "{what}: step {p}, lane {lane}");
    }
}

const DEPTHS: [usize; 9] = [1, 2, 3, 7, 8, 9, 16, 17, 130];

fn panels<T: Number>() {
    for (isa, layout) in Isa::available().iter().flat_map(|&isa| (0..LAYOUTS.len()).map(move |layout| (isa, layout))) {
        let kernels: &Kernels<T> = Kernels::<T>::of(isa);
        for (lanes, depth) in (1..=20).chain([31, 32, 33]).flat_map(|l| DEPTHS.map(|d| (l, d))) {
            let (_memory, from) = matrix::<T>(lanes, depth, layout);
            let what = format!("{lanes} × {depth} {isa:?} {from:?}");
            let width = lanes.next_multiple_of(kernels.lanes);
            for width in [width, width + kernels.lanes] {
                let mut to = Guarded::<T>::unwritten(depth * width);
                // SAFETY: the matrix has as many lanes and steps; the target is one panel.
                unsafe { from.pack(kernels, 0, lanes, 0, depth, width, to.as_mut_ptr()) }
                check_panel(&to, lanes, width, &what, |lane, p| element(&from, lane, p));
            }
            if from.depth == 1 {
                for width in [lanes, lanes + 1, lanes + 5] {
                    let mut to = Guarded::<T>::unwritten(depth * width);
                    // SAFETY: as above; the depth is contiguous.
                    unsafe { transpose(isa, from, (lanes, depth), width, to.as_mut_ptr()) }
                    check_panel(&to, lanes, width, &what, |lane, p| element(&from, lane, p));
                }
                let step = depth + 3;
                let mut to = Guarded::<T>::of(&vec![T::ZERO; lanes * step]);
                // SAFETY: as above; the target is as large as the rows.
                unsafe { from.pack_rows(kernels, 0, lanes, 0, depth, step, to.as_mut_ptr()) }
                for (i, &found) in to.iter().enumerate() {
                    let (lane, p) = (i / step, i % step);
                    assert_eq!(found, if p < depth { element(&from, lane, p) } else { T::ZERO }, "{what}");
                }
            }
        }
    }
}

#[test]
fn panels_of_every_layout_fill_their_memory_and_no_more() {
    panels::<f32>();
    panels::<f64>();
    panels::<i32>();
}

fn neighbours<T: Number>() {
    for (isa, layout) in Isa::available().iter().flat_map(|&isa| (0..3).map(move |layout| (isa, layout))) {
        let kernels: &Kernels<T> = Kernels::<T>::of(isa);
        let width = kernels.rows.next_multiple_of(kernels.lanes);
        for (lanes, depth) in (1..=33).flat_map(|lanes| [20, 127, 128, 140].map(|depth| (lanes, depth))) {
            let (_memory, from) = matrix::<T>(lanes, depth, layout);
            for each in 1..=kernels.rows.min(lanes) {
                let step = depth * width + 3;
                let count = lanes.div_ceil(each);
                let mut to = Guarded::<T>::unwritten((count - 1) * step + depth * width);
                // SAFETY: the matrix has as many lanes and steps; the target is as large as the panels.
                unsafe { pack_panels(&from, kernels, 0..lanes, each, 0..depth, width, to.as_mut_ptr(), step) }
                for (s, panel) in to.chunks(step).enumerate() {
                    let (first, own) = (s * each, each.min(lanes - s * each));
                    let what = format!("{lanes} × {depth} by {each} {isa:?} {from:?}");
                    check_panel(&panel[..depth * width], own, width, &what, |lane, p| element(&from, first + lane, p));
                }
            }
        }
    }
}

#[test]
fn neighbouring_panels_are_packed_together() {
    neighbours::<f32>();
    neighbours::<f64>();
}

/// Positions in runs of several lengths, all different.
fn places(count: usize, run: usize, gap: usize) -> OffsetList {
    OffsetList::new((0..count).map(|i| (i / run * (run + gap) + i % run) as isize).collect::<List<isize, 0>>())
}

fn tables<T: Number>(seed: u64) {
    let choices = &Choices::new(seed);
    for (lanes, depth) in (1..=20).chain([33]).flat_map(|l| [1, 2, 5, 9, 20].map(|d| (l, d))) {
        for &isa in Isa::available() {
            let kernels: &Kernels<T> = Kernels::<T>::of(isa);
            let [(run, gap), (deep_run, deep_gap)] =
                [(); 2].map(|()| (choices.of(&[1, 2, 3, 5, 8, 16, 40]), choices.of(&[1, 3])));
            let (lane_places, depth_places) = (places(lanes, run, gap), places(depth, deep_run, deep_gap));
            let last = |places: &OffsetList| *places.all().last().unwrap();
            let len = last(&lane_places) + last(&depth_places) + 1;
            let data = Guarded::of(&(0..len).map(|i| T::of(i as f64 + 1.0)).collect::<Vec<T>>());
            let table = ImplicitIm2col { data: data.as_ptr(), lanes: &lane_places, depths: &depth_places };
            let element = |l: usize, p: usize| data[(lane_places.all()[l] + depth_places.all()[p]) as usize];
            let what = format!("{lanes} × {depth} {isa:?} runs {run} {deep_run}");
            let width = lanes.next_multiple_of(kernels.lanes);
            let mut to = Guarded::<T>::unwritten(depth * width);
            // SAFETY: the table has as many lanes and steps; the target is one panel.
            unsafe { table.pack(kernels, 0, lanes, 0, depth, width, to.as_mut_ptr()) }
            check_panel(&to, lanes, width, &what, element);
            let step = depth + choices.below(20);
            let mut to = Guarded::<T>::unwritten(lanes * step);
            // SAFETY: as above; the target is as large as the rows.
            unsafe { table.pack_rows(kernels, 0, lanes, 0, depth, step, to.as_mut_ptr()) }
            (0..lanes * depth).for_each(|i| {
                let (lane, p) = (i / depth, i % depth);
                assert_eq!(to[lane * step + p], element(lane, p), "{what}");
            });
            // RowMatVec without slack: nothing behind them is written.
            let (offsets, step) = (lane_places.all(), depth + 2);
            let from =
                Guarded::of(&(0..last(&lane_places) as usize + depth).map(|i| T::of(i as f64)).collect::<Vec<T>>());
            let mut to = Guarded::<T>::of(&vec![T::of(-7.0); lanes * step]);
            let work = PackRuns { data: from.as_ptr(), offsets, len: depth, to: to.as_mut_ptr(), step, slack: 0 };
            // SAFETY: the rows are in the source, and the target is as large as they are.
            unsafe { pack_runs(isa, &work) }
            for (i, &found) in to.iter().enumerate() {
                let (row, p) = (i / step, i % step);
                let expected = if p < depth { from[offsets[row] as usize + p] } else { T::of(-7.0) };
                assert_eq!(found, expected, "{what}");
            }
        }
    }
}

#[test]
fn tables_fill_their_panels_and_no_more() {
    tables::<f32>(8);
    tables::<f64>(9);
}

fn unpacked<T: Number>(seed: u64) {
    let choices = &Choices::new(seed);
    for (lanes, depth) in (1..=20).chain([63, 64, 65, 130]).flat_map(|l| [1, 3, 17].map(|d| (l, d))) {
        for &isa in Isa::available() {
            let (lane_places, depth_places) = (places(lanes, choices.of(&[1, 4, 200]), 2), places(depth, 3, 1));
            let len = lane_places.all()[lanes - 1] + depth_places.all()[depth - 1] + 1;
            let data = Guarded::of(&numbers(len as usize, 3, 5).iter().map(|&x| T::of(x)).collect::<Vec<T>>());
            let at = |l: usize, p: usize| data[(lane_places.all()[l] + depth_places.all()[p]) as usize];
            let weights: Vec<T> = numbers(depth, 3, 6).into_iter().map(T::of).collect();
            let mut to = Guarded::<T>::unwritten(lanes);
            let (data, lane_places, depth_places) = (data.as_ptr(), &lane_places, &depth_places);
            let work =
                OffsetDotRow { data, lanes: lane_places, depths: depth_places, weights: &weights, to: to.as_mut_ptr() };
            // SAFETY: the elements exist, and the target has as many lanes.
            unsafe { offset_dot_row(isa, &work) }
            let zero = T::ZERO;
            for (l, &found) in to.iter().enumerate() {
                let expected = (0..depth).fold(zero, |sum, p| weights[p].mul_add(at(l, p), sum));
                assert_eq!(found, expected, "{lanes} × {depth} {isa:?}");
            }
            let x = Guarded::of(&numbers(lanes, 3, 7).into_iter().map(T::of).collect::<Vec<T>>());
            let mut sums = Guarded::of(&vec![zero; depth * VIRTUAL_LANES]);
            let work = WeightGradDots {
                x: x.as_ptr(),
                data,
                lanes: lane_places,
                depths: depth_places,
                sums: sums.as_mut_ptr(),
            };
            // SAFETY: as above, with 16 sums for each depth.
            unsafe { weight_grad_dots(isa, &work) }
            for (p, found) in folded(&sums).enumerate() {
                let expected = (0..lanes).fold(zero, |sum, l| x[l].mul_add(at(l, p), sum));
                assert_eq!(found, expected, "{lanes} × {depth} {isa:?}");
            }
        }
    }
}

#[test]
fn products_that_are_not_packed() {
    unpacked::<f32>(10);
    unpacked::<f64>(11);
    unpacked::<i32>(12);
}
