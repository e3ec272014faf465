//! Tests the kernels for products and packing over all small shapes, and over shapes around vectors, register tiles and
//! blocks.

use super::kernels::Kernels;
use super::source::{PanelRange, pack_panels};
use super::tests::{MATRIX_LAYOUTS, multiply_in_layouts};
use super::*;
use pellucid_runtime::list::List;
use pellucid_runtime::testing::{Choices, Guarded, numbers};
use pellucid_runtime::threads::{SharedPtr, with_threads};

/// An element type with a conversion from small integers, whose sums and products are exact in every type.
trait TestElement: Element + bytemuck::Pod + PartialEq + std::fmt::Debug {
    /// Converts an integer.
    fn from_integer(value: f64) -> Self;
}

macro_rules! test_elements {
    ($($t:ty)*) => {$(
        impl TestElement for $t {
            fn from_integer(value: f64) -> $t {
                value as $t
            }
        }
    )*};
}
test_elements!(f32 f64 i32 i64);

/// The operands of the largest shape of a sweep, and their product. The operands of smaller shapes are parts of them.
struct ReferenceProduct<T> {
    a: Vec<f64>,
    b: Vec<f64>,
    c: Vec<T>,
    n: usize,
    k: usize,
}

impl<T: TestElement> ReferenceProduct<T> {
    fn new((m, n, k): (usize, usize, usize)) -> ReferenceProduct<T> {
        let (a, b) = (numbers(m * k, 3, 1), numbers(k * n, 3, 2));
        let sum = |i: usize| (0..k).map(|p| a[i / n * k + p] * b[p * n + i % n]).sum::<f64>();
        let c = (0..m * n).map(|i| T::from_integer(sum(i))).collect();
        ReferenceProduct { a, b, c, n, k }
    }

    /// Checks the product of the first `m` rows of A and the first `n` columns of B.
    fn check(&self, isa: Isa, (m, n): (usize, usize), choices: &Choices, threads: Threads) {
        let &ReferenceProduct { k, n: full_width, .. } = self;
        let a: Vec<T> = self.a[..m * k].iter().map(|&x| T::from_integer(x)).collect();
        let b: Vec<T> = (0..k * n).map(|i| T::from_integer(self.b[i / n * full_width + i % n])).collect();
        let layouts = [(); 3].map(|()| choices.of(&MATRIX_LAYOUTS));
        let accumulate = choices.below(3) == 0;
        let start: Vec<T> = (0..m * n).map(|i| T::from_integer((i % 5) as f64)).collect();
        let actual = multiply_in_layouts(isa, (m, n, k), layouts, [&a, &b], &start, accumulate, threads);
        let expected = (0..m * n).map(|i| {
            let sum = self.c[i / n * full_width + i % n];
            if accumulate { sum.add(start[i]) } else { sum }
        });
        let case = || format!("{m} × {n} × {k} of {} {isa:?} {layouts:?}", std::any::type_name::<T>());
        assert!(actual.iter().copied().eq(expected), "{} accumulate: {accumulate}", case());
    }
}

fn check_small_products<T: TestElement>(seed: u64) {
    let choices = &Choices::new(seed);
    for k in [1, 2, 3, 8, 15, 16, 17, 20] {
        let reference = ReferenceProduct::<T>::new((20, 20, k));
        for (m, n) in (1..=20).flat_map(|m| (1..=20).map(move |n| (m, n))) {
            Isa::available().iter().for_each(|&isa| reference.check(isa, (m, n), choices, Threads::One));
        }
    }
}

#[test]
fn small_products_of_all_types() {
    check_small_products::<f32>(1);
    check_small_products::<f64>(2);
    check_small_products::<i32>(3);
    check_small_products::<i64>(4);
}

fn check_products_around_blocks<T: TestElement>(seed: u64) {
    let choices = &Choices::new(seed);
    // Heights around the height of a register tile, widths around the width of a panel, and k around `MIN_JOINT_DEPTH`
    // and around the block sizes.
    let heights = [1, 2, 5, 6, 7, 8, 11, 12, 13, 14, 15, 16, 24, 27, 28, 29, 32, 33];
    let widths = [1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40, 63, 64, 65];
    for k in [127, 128, 129, 144, 271, 272, 273, 300] {
        let reference = ReferenceProduct::<T>::new((33, 65, k));
        for (m, n) in heights.into_iter().flat_map(|m| widths.map(|n| (m, n))) {
            Isa::available().iter().for_each(|&isa| reference.check(isa, (m, n), choices, Threads::One));
        }
    }
}

#[test]
fn products_around_tiles_and_blocks() {
    check_products_around_blocks::<f32>(5);
    check_products_around_blocks::<f64>(6);
}

#[test]
fn products_with_several_threads() {
    for (m, n, k) in [(129, 130, 131), (14, 512, 260), (700, 33, 90), (4000, 1, 600), (1, 2000, 1100)] {
        let reference = ReferenceProduct::<f32>::new((m, n, k));
        for threads in [1, 2, 4] {
            let check = || reference.check(Isa::best(), (m, n), &Choices::new(7), Threads::Pool);
            with_threads(threads, check);
        }
    }
}

/// A function that returns the strides (`lane`, `depth`) of a [`Strided`] operand with the given numbers of rows (of A)
/// and of k indices.
type LayoutStrides = fn(usize, usize) -> (isize, isize);

/// The layouts of the source matrices in the tests of packing.
const STRIDED_LAYOUTS: [LayoutStrides; 4] =
    [|lanes, _| (1, lanes as isize), |_, depth| (depth as isize, 1), |_, depth| (2 * depth as isize, 2), |_, _| (1, 1)];

/// Returns a matrix of distinct values, and its memory.
fn strided_matrix<T: TestElement>(lanes: usize, depth: usize, layout: usize) -> (Guarded<T>, Strided<T>) {
    let (lane, step) = STRIDED_LAYOUTS[layout](lanes, depth);
    let len = (lanes as isize - 1) * lane + (depth as isize - 1) * step + 1;
    let data = Guarded::from_slice(&(0..len).map(|i| T::from_integer(i as f64 + 1.0)).collect::<Vec<T>>());
    let from = Strided { data: data.as_ptr(), lane, depth: step };
    (data, from)
}

/// Returns the element with index `lane` and k index `step` of a matrix from [`strided_matrix`].
fn element<T: TestElement>(from: &Strided<T>, lane: usize, step: usize) -> T {
    T::from_integer((lane as isize * from.lane + step as isize * from.depth) as f64 + 1.0)
}

/// Checks a packed panel: its first `lanes` columns have the values of `element`, and its other columns are zeros.
#[track_caller]
fn check_panel<T: TestElement>(
    panel: &[T],
    lanes: usize,
    width: usize,
    case: &str,
    element: impl Fn(usize, usize) -> T,
) {
    for (i, &actual) in panel.iter().enumerate() {
        let (p, lane) = (i / width, i % width);
        let expected = if lane < lanes { element(lane, p) } else { T::ZERO };
        assert_eq!(actual, expected, "{case}: panel row {p}, panel column {lane}");
    }
}

/// Checks that packing by rows writes the rows and nothing else, with the values of `element`.
#[track_caller]
fn check_rows<T: TestElement>(
    kernels: &Kernels<T>,
    operand: &dyn PackSource<T>,
    range: PanelRange,
    case: &str,
    element: impl Fn(usize, usize) -> T,
) {
    let step = range.depth + 3;
    let mut to = Guarded::<T>::from_slice(&vec![T::ZERO; range.lanes * step]);
    // SAFETY: the operand has the lanes and the k indices of the range, the target has `lanes · step` elements, and the
    // instruction set is available.
    unsafe { operand.pack_rows(kernels, range, step, to.as_mut_ptr()) }
    for (i, &actual) in to.iter().enumerate() {
        let (lane, p) = (i / step, i % step);
        assert_eq!(actual, if p < range.depth { element(lane, p) } else { T::ZERO }, "{case}: row {lane}, {p}");
    }
}

const DEPTHS: [usize; 9] = [1, 2, 3, 7, 8, 9, 16, 17, 130];

fn check_panels<T: TestElement>() {
    for (isa, layout) in
        Isa::available().iter().flat_map(|&isa| (0..STRIDED_LAYOUTS.len()).map(move |layout| (isa, layout)))
    {
        let kernels: &Kernels<T> = Kernels::<T>::for_isa(isa);
        for (lanes, depth) in (1..=20).chain([31, 32, 33]).flat_map(|l| DEPTHS.map(|d| (l, d))) {
            let (_memory, from) = strided_matrix::<T>(lanes, depth, layout);
            let range = PanelRange::new(0..lanes, 0..depth);
            let case = format!("{lanes} × {depth} {isa:?} {from:?}");
            let width = lanes.next_multiple_of(kernels.lanes);
            for width in [width, width + kernels.lanes] {
                let mut to = Guarded::<T>::unwritten(depth * width);
                // SAFETY: the matrix has `lanes × depth` elements, the target is one panel, and the instruction set is
                // available.
                unsafe { from.pack(kernels, range, width, to.as_mut_ptr()) }
                check_panel(&to, lanes, width, &case, |lane, p| element(&from, lane, p));
            }
            if from.depth == 1 {
                for width in [lanes, lanes + 1, lanes + 5] {
                    let mut to = Guarded::<T>::unwritten(depth * width);
                    // SAFETY: the matrix has `lanes × depth` elements and is contiguous along k, the target has `depth
                    // · width` elements, and the instruction set is available.
                    unsafe { transpose(isa, from, (lanes, depth), width, to.as_mut_ptr()) }
                    check_panel(&to, lanes, width, &case, |lane, p| element(&from, lane, p));
                }
            }
            check_rows(kernels, &from, range, &case, |lane, p| element(&from, lane, p));
        }
    }
}

#[test]
fn packing_any_layout_writes_exactly_the_panel() {
    check_panels::<f32>();
    check_panels::<f64>();
    check_panels::<i32>();
}

fn check_consecutive_panels<T: TestElement>() {
    for (isa, layout) in Isa::available().iter().flat_map(|&isa| (0..3).map(move |layout| (isa, layout))) {
        let kernels: &Kernels<T> = Kernels::<T>::for_isa(isa);
        let width = kernels.rows.next_multiple_of(kernels.lanes);
        for (lanes, depth) in (1..=33).flat_map(|lanes| [20, 127, 128, 140].map(|depth| (lanes, depth))) {
            let (_memory, from) = strided_matrix::<T>(lanes, depth, layout);
            for lanes_per_panel in 1..=kernels.rows.min(lanes) {
                let (range, step) = (PanelRange::new(0..lanes, 0..depth), depth * width + 3);
                let count = lanes.div_ceil(lanes_per_panel);
                let mut to = Guarded::<T>::unwritten((count - 1) * step + depth * width);
                // SAFETY: the matrix has `lanes × depth` elements, the target holds all panels without overlap, and the
                // instruction set is available.
                unsafe { pack_panels(&from, kernels, range, lanes_per_panel, width, to.as_mut_ptr(), step) }
                for (s, panel) in to.chunks(step).enumerate() {
                    let (first, panel_lanes) = (s * lanes_per_panel, lanes_per_panel.min(lanes - s * lanes_per_panel));
                    let case = format!("{lanes} × {depth} by {lanes_per_panel} {isa:?} {from:?}");
                    check_panel(&panel[..depth * width], panel_lanes, width, &case, |lane, p| {
                        element(&from, first + lane, p)
                    });
                }
            }
        }
    }
}

#[test]
fn consecutive_panels_are_packed_together() {
    check_consecutive_panels::<f32>();
    check_consecutive_panels::<f64>();
}

fn check_packed_panels<T: TestElement>() {
    for (isa, layout) in Isa::available().iter().flat_map(|&isa| (0..3).map(move |layout| (isa, layout))) {
        let kernels: &Kernels<T> = Kernels::<T>::for_isa(isa);
        let width = kernels.width();
        for (lanes, depth) in
            [1, width - 1, width, width + 1, 3 * width].into_iter().flat_map(|l| [1, 9, 273].map(|d| (l, d)))
        {
            for first in [0, width, 3 * width] {
                let (_memory, from) = strided_matrix::<T>(first + lanes, depth, layout);
                let mut memory = Guarded::<T>::unwritten(PackedPanels::<T>::len(kernels, (lanes, depth)));
                let start = SharedPtr(memory.as_mut_ptr());
                // SAFETY: the matrix has the lanes up to `first + lanes`, the memory has `len` elements, and the
                // instruction set is available.
                let panels = unsafe { PackedPanels::pack_range(kernels, from, first..first + lanes, depth, start) };
                for (s, panel) in memory.chunks(width * depth).enumerate() {
                    let lane = first + s * width;
                    assert_eq!(panels.panel(lane, 0, width), Some(panel.as_ptr()));
                    let case = format!("{lanes} × {depth} from lane {first} {isa:?} {from:?}");
                    check_panel(panel, first + lanes - lane, width, &case, |i, p| element(&from, lane + i, p));
                }
                let (range, case) = (PanelRange::new(first..first + lanes, 0..depth), format!("{lanes} × {depth}"));
                check_rows(kernels, &panels, range, &case, |i, p| element(&from, first + i, p));
            }
        }
    }
}

#[test]
fn packed_panels_hold_a_range_of_lanes() {
    check_packed_panels::<f32>();
    check_packed_panels::<f64>();
}

/// Returns `count` ascending offsets: runs of `run` consecutive offsets, separated by gaps of `gap`.
fn offset_list(count: usize, run: usize, gap: usize) -> OffsetList {
    OffsetList::new((0..count).map(|i| (i / run * (run + gap) + i % run) as isize).collect::<List<isize, 0>>())
}

fn check_implicit_im2col<T: TestElement>(seed: u64) {
    let choices = &Choices::new(seed);
    for (lanes, depth) in (1..=20).chain([33]).flat_map(|l| [1, 2, 5, 9, 20].map(|d| (l, d))) {
        for &isa in Isa::available() {
            let kernels: &Kernels<T> = Kernels::<T>::for_isa(isa);
            let [(run, gap), (deep_run, deep_gap)] =
                [(); 2].map(|()| (choices.of(&[1, 2, 3, 5, 8, 16, 40]), choices.of(&[1, 3])));
            let (lane_offsets, depth_offsets) = (offset_list(lanes, run, gap), offset_list(depth, deep_run, deep_gap));
            let last = |list: &OffsetList| *list.all().last().unwrap();
            let len = last(&lane_offsets) + last(&depth_offsets) + 1;
            let data = Guarded::from_slice(&(0..len).map(|i| T::from_integer(i as f64 + 1.0)).collect::<Vec<T>>());
            let operand = ImplicitIm2col { data: data.as_ptr(), lanes: &lane_offsets, depths: &depth_offsets };
            let element = |l: usize, p: usize| data[(lane_offsets.all()[l] + depth_offsets.all()[p]) as usize];
            let case = format!("{lanes} × {depth} {isa:?}, run lengths {run} and {deep_run} (along k)");
            let (range, width) = (PanelRange::new(0..lanes, 0..depth), lanes.next_multiple_of(kernels.lanes));
            let mut to = Guarded::<T>::unwritten(depth * width);
            // SAFETY: the operand has `lanes × depth` elements, the target is one panel, and the instruction set is
            // available.
            unsafe { operand.pack(kernels, range, width, to.as_mut_ptr()) }
            check_panel(&to, lanes, width, &case, element);
            let step = depth + choices.below(20);
            let mut to = Guarded::<T>::unwritten(lanes * step);
            // SAFETY: the operand has `lanes × depth` elements, the target has `lanes · step` elements, and the
            // instruction set is available.
            unsafe { operand.pack_rows(kernels, range, step, to.as_mut_ptr()) }
            (0..lanes * depth).for_each(|i| {
                let (lane, p) = (i / depth, i % depth);
                assert_eq!(to[lane * step + p], element(lane, p), "{case}");
            });
            // Without slack, no element after a row is written.
            let (offsets, step) = (lane_offsets.all(), depth + 2);
            let from = Guarded::from_slice(
                &(0..last(&lane_offsets) as usize + depth).map(|i| T::from_integer(i as f64)).collect::<Vec<T>>(),
            );
            let mut to = Guarded::<T>::from_slice(&vec![T::from_integer(-7.0); lanes * step]);
            let work = PackRuns { data: from.as_ptr(), offsets, len: depth, to: to.as_mut_ptr(), step, slack: 0 };
            // SAFETY: the source holds all rows, the target has `lanes · step` elements, and the instruction set is
            // available.
            unsafe { pack_runs(isa, &work) }
            for (i, &actual) in to.iter().enumerate() {
                let (row, p) = (i / step, i % step);
                let expected = if p < depth { from[offsets[row] as usize + p] } else { T::from_integer(-7.0) };
                assert_eq!(actual, expected, "{case}");
            }
        }
    }
}

#[test]
fn packing_implicit_im2col_writes_exactly_the_panel() {
    check_implicit_im2col::<f32>(8);
    check_implicit_im2col::<f64>(9);
}

fn check_offset_dots<T: TestElement>(seed: u64) {
    let choices = &Choices::new(seed);
    for (lanes, depth) in (1..=20).chain([63, 64, 65, 130]).flat_map(|l| [1, 3, 17].map(|d| (l, d))) {
        for &isa in Isa::available() {
            let (lane_offsets, depth_offsets) =
                (offset_list(lanes, choices.of(&[1, 4, 200]), 2), offset_list(depth, 3, 1));
            let len = lane_offsets.all()[lanes - 1] + depth_offsets.all()[depth - 1] + 1;
            let data = Guarded::from_slice(
                &numbers(len as usize, 3, 5).iter().map(|&x| T::from_integer(x)).collect::<Vec<T>>(),
            );
            let element = |l: usize, p: usize| data[(lane_offsets.all()[l] + depth_offsets.all()[p]) as usize];
            let weights: Vec<T> = numbers(depth, 3, 6).into_iter().map(T::from_integer).collect();
            let mut to = Guarded::<T>::unwritten(lanes);
            let (data, lane_offsets, depth_offsets) = (data.as_ptr(), &lane_offsets, &depth_offsets);
            let work = OffsetDotRow {
                data,
                lanes: lane_offsets,
                depths: depth_offsets,
                weights: &weights,
                to: to.as_mut_ptr(),
            };
            // SAFETY: the data holds the element at every sum of two offsets, there are `depth` weights, the target has
            // `lanes` elements, and the instruction set is available.
            unsafe { offset_dot_row(isa, &work) }
            let zero = T::ZERO;
            for (l, &actual) in to.iter().enumerate() {
                let expected = (0..depth).fold(zero, |sum, p| weights[p].mul_add(element(l, p), sum));
                assert_eq!(actual, expected, "{lanes} × {depth} {isa:?}");
            }
            let x = Guarded::from_slice(&numbers(lanes, 3, 7).into_iter().map(T::from_integer).collect::<Vec<T>>());
            let mut sums = Guarded::from_slice(&vec![zero; depth * VIRTUAL_LANES]);
            let work = WeightGradDots {
                x: x.as_ptr(),
                data,
                lanes: lane_offsets,
                depths: depth_offsets,
                sums: sums.as_mut_ptr(),
            };
            // SAFETY: the data holds the element at every sum of two offsets, x has `lanes` elements, there are 16
            // partial sums for each of the `depth` results, and the instruction set is available.
            unsafe { weight_grad_dots(isa, &work) }
            for (p, actual) in sum_virtual_lanes(&sums).enumerate() {
                let expected = (0..lanes).fold(zero, |sum, l| x[l].mul_add(element(l, p), sum));
                assert_eq!(actual, expected, "{lanes} × {depth} {isa:?}");
            }
        }
    }
}

#[test]
fn offset_dots_match_their_definitions() {
    check_offset_dots::<f32>(10);
    check_offset_dots::<f64>(11);
    check_offset_dots::<i32>(12);
}
