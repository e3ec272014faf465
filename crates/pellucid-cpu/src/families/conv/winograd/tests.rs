//! Compares Winograd convolutions with naive loops and with direct products, and their bits across instruction sets.

use crate::families::conv::tests::{ALL_PARTS, ConvCase, window};
use crate::families::conv::{ConvProblem, ImageSizes, winograd};
use crate::testing::{self, TestLayout, numbers};
use crate::with_threads;
use pellucid_ir::DType;
use pellucid_ir::kernel::ConvPart;
use pellucid_runtime::threads::SharedPtr;
use pellucid_simd::Element;
use pellucid_simd::Isa;

/// Returns a case with a 3 × 3 window, stride 1 and the given padding before and after.
fn case(images: usize, groups: usize, channels: [usize; 2], x: [usize; 2], pads: [[usize; 2]; 2]) -> ConvCase {
    let [before, after] = pads.map(|[y, x]| [0, y, x]);
    ConvCase { images, groups, channels, x: [1, x[0], x[1]], after, window: window([1, 3, 3], [1; 3], [1; 3], before) }
}

/// Returns cases with various sizes, paddings, groups and channel counts, including cases for which Winograd is not
/// faster.
fn cases() -> Vec<ConvCase> {
    vec![
        case(3, 1, [16, 20], [14, 14], [[1, 1], [1, 1]]),
        case(9, 1, [16, 16], [15, 14], [[1, 1], [1, 1]]),
        case(2, 2, [17, 33], [5, 7], [[0, 2], [1, 0]]),
        case(2, 3, [5, 2], [3, 2], [[2, 2], [2, 2]]),
        case(3, 1, [4, 18], [2, 1], [[1, 1], [1, 1]]),
        case(1, 1, [3, 3], [1, 1], [[1, 1], [1, 1]]),
        case(2, 1, [3, 3], [3, 3], [[0, 0], [0, 0]]),
        // Padding larger than the window, on one side and on both.
        case(1, 1, [2, 3], [4, 15], [[4, 3], [0, 5]]),
        // The windows read only a part of the image.
        case(2, 1, [2, 3], [1, 3], [[0, 0], [2, 4]]),
    ]
}

/// Returns the problem of a case.
fn problem(case: &ConvCase, isa: Isa) -> ConvProblem {
    let [x, _, y] = case.shapes();
    let (x, y) = (ImageSizes::from_shape(&x), ImageSizes::from_shape(&y));
    ConvProblem { isa, window: case.window, images: case.images, groups: case.groups, x, y }
}

/// Computes one [`ConvPart`] with Winograd, whether or not Winograd is applicable, from the values of x, w and y.
/// Returns `None` if a result is not finite.
fn compute_by_tiles<T: Element>(case: &ConvCase, part: ConvPart, isa: Isa, arrays: &[Vec<T>; 3]) -> Option<Vec<T>> {
    let (mut arrays, which) = (arrays.clone(), computed_index(part));
    let one = T::HALF.unwrap().add(T::HALF.unwrap());
    arrays[which].fill(one);
    let pointers = arrays.each_mut().map(|a| SharedPtr(a.as_mut_ptr()));
    // SAFETY: the array contract. The arrays are row-major with the shapes of the case, the computed one is a clone
    // that only this thread accesses, and the tests pass instruction sets that the processor supports.
    let not_finite = unsafe { winograd::compute(&problem(case, isa), part, pointers).unwrap() };
    not_finite.is_empty().then(|| arrays[which].clone())
}

/// Returns the index of the computed array among x, w and y.
fn computed_index(part: ConvPart) -> usize {
    match part {
        ConvPart::Input => 0,
        ConvPart::Weight => 1,
        ConvPart::Output => 2,
    }
}

/// Returns values of x, w and y: integers of magnitude up to `range`, times `scale`.
fn values(case: &ConvCase, range: i64, scale: f64) -> [Vec<f64>; 3] {
    let shapes = case.shapes();
    [0, 1, 2].map(|i| numbers(shapes[i].size(), range, i as u64 + 5).into_iter().map(|v| v * scale).collect())
}

/// Converts the values to `f32`.
fn to_f32(values: &[Vec<f64>; 3]) -> [Vec<f32>; 3] {
    values.each_ref().map(|v| v.iter().map(|&v| v as f32).collect())
}

#[test]
fn small_integers_are_exact_on_all_instruction_sets() {
    for case in cases() {
        let values = values(&case, 3, 1.0);
        for part in ALL_PARTS {
            let expected = case.naive(part, values.each_ref().map(|v| &v[..]));
            for &isa in Isa::available() {
                assert_eq!(compute_by_tiles(&case, part, isa, &values).unwrap(), expected, "{part:?} {isa:?} {case:?}");
                let found = compute_by_tiles(&case, part, isa, &to_f32(&values)).unwrap();
                let found: Vec<f64> = found.into_iter().map(f64::from).collect();
                assert_eq!(found, expected, "f32 {part:?} {isa:?} {case:?}");
            }
        }
    }
}

#[test]
fn all_instruction_sets_give_the_same_bits() {
    for case in cases() {
        let values = values(&case, 1000, 1.0 / 777.0);
        for part in ALL_PARTS {
            let doubles = |isa| compute_by_tiles(&case, part, isa, &values).unwrap();
            let floats = |isa| compute_by_tiles(&case, part, isa, &to_f32(&values)).unwrap();
            for &isa in Isa::available() {
                assert_eq!(doubles(isa), doubles(Isa::Portable), "{part:?} {isa:?} {case:?}");
                assert_eq!(floats(isa), floats(Isa::Portable), "{part:?} {isa:?} {case:?}");
            }
        }
    }
}

/// The error bound of the module documentation: for values of magnitude up to 1, a result is a sum of 8 · 8 magnitudes
/// per channel, or of 6 · 6 per tile in a weight gradient. It is rounded in at most 12 transform steps and once per
/// step of the sum.
#[test]
fn rounding_errors_are_within_the_documented_bound() {
    for case in cases() {
        let values = values(&case, 1000, 1.0 / 1000.0);
        let [xs, ws, ys] = case.shapes();
        for part in ALL_PARTS {
            let (steps, magnitudes) = match part {
                ConvPart::Output => (ws[1], 64 * ws[1]),
                ConvPart::Input => (case.channels[1], 64 * case.channels[1]),
                ConvPart::Weight => {
                    let tiles = xs[0] * ys[3].div_ceil(2) * ys[4].div_ceil(2);
                    (tiles, 36 * tiles)
                }
            };
            let bound = ((steps + 12) * magnitudes) as f64;
            let expected = case.naive(part, values.each_ref().map(|v| &v[..]));
            let found = compute_by_tiles(&case, part, Isa::best(), &values).unwrap();
            for (f, e) in found.iter().zip(&expected) {
                assert!((f - e).abs() <= bound * f64::EPSILON, "{f} {e} {part:?} {case:?}");
            }
            // The same bound holds for `f32`, relative to the exact result for the rounded values.
            let singles = to_f32(&values);
            let rounded = singles.each_ref().map(|v| v.iter().map(|&v| f64::from(v)).collect::<Vec<f64>>());
            let expected = case.naive(part, rounded.each_ref().map(|v| &v[..]));
            let found = compute_by_tiles(&case, part, Isa::best(), &singles).unwrap();
            for (f, e) in found.iter().zip(&expected) {
                assert!(
                    (f64::from(*f) - e).abs() <= bound * f64::from(f32::EPSILON) / 2.0,
                    "{f} {e} {part:?} {case:?}"
                );
            }
        }
    }
}

#[test]
fn mean_error_is_less_than_twice_that_of_direct_products() {
    let case = case(4, 1, [32, 32], [14, 14], [[1, 1], [1, 1]]);
    let values = values(&case, 1 << 20, 1.0 / (1 << 20) as f64);
    let arrays = to_f32(&values);
    for part in ALL_PARTS {
        let expected = case.naive(part, values.each_ref().map(|v| &v[..]));
        let error = |found: &[f32]| -> f64 {
            found.iter().zip(&expected).map(|(f, e)| (f64::from(*f) - e).powi(2)).sum::<f64>().sqrt()
        };
        let mut direct = arrays.clone();
        let pointers = direct.each_mut().map(|a| SharedPtr(a.as_mut_ptr()));
        // SAFETY: the array contract. The arrays are row-major with the shapes of the case, and only this thread
        // accesses them; `Isa::best` is an instruction set that the processor supports.
        unsafe { crate::families::conv::compute_direct(&problem(&case, Isa::best()), part, pointers).unwrap() };
        let direct = error(&direct[computed_index(part)]);
        let tiles = error(&compute_by_tiles(&case, part, Isa::best(), &arrays).unwrap());
        assert!(direct > 0.0 && tiles < 2.0 * direct, "{part:?} {tiles} {direct}");
    }
}

#[test]
fn results_of_an_image_are_independent_of_its_batch() {
    let [a, b] = [2, 9].map(|images| case(images, 1, [16, 16], [15, 14], [[1, 1], [1, 1]]));
    let (mut first, all) = (to_f32(&values(&a, 1000, 1.0 / 777.0)), to_f32(&values(&b, 1000, 1.0 / 777.0)));
    for part in [ConvPart::Output, ConvPart::Input] {
        for (first, all) in first.iter_mut().zip(&all) {
            let len = first.len();
            first.copy_from_slice(&all[..len]);
        }
        let few = compute_by_tiles(&a, part, Isa::best(), &first).unwrap();
        assert_eq!(few, compute_by_tiles(&b, part, Isa::best(), &all).unwrap()[..few.len()], "{part:?}");
    }
}

#[test]
fn a_value_that_is_not_finite_changes_no_bit_of_other_images() {
    // One block contains tiles of several images.
    let case = case(9, 1, [16, 16], [8, 8], [[1, 1], [1, 1]]);
    for (part, which) in [(ConvPart::Output, 0), (ConvPart::Input, 2)] {
        let mut arrays = to_f32(&values(&case, 1000, 1.0 / 777.0));
        let clean = compute_by_kernel(&case, part, &arrays);
        let image = clean.len() / 9;
        arrays[which][4 * image + 64 + 9] = f32::NAN;
        let found = compute_by_kernel(&case, part, &arrays);
        for (i, (found, clean)) in found.chunks(image).zip(clean.chunks(image)).enumerate() {
            assert_eq!(found == clean, i != 4, "{part:?}, image {i}");
        }
    }
}

#[test]
fn bits_are_independent_of_threads() {
    // There are several blocks; the last one is not full.
    let case = case(9, 2, [16, 18], [15, 14], [[1, 1], [1, 1]]);
    assert!(winograd::is_applicable::<f32>(&problem(&case, Isa::best())));
    let arrays = to_f32(&values(&case, 1000, 1.0 / 777.0));
    for part in ALL_PARTS {
        let result = |threads| with_threads(threads, || compute_by_tiles(&case, part, Isa::best(), &arrays).unwrap());
        let expected = result(1);
        assert_eq!(result(2), expected, "{part:?}");
        assert_eq!(result(8), expected, "{part:?}");
    }
}

/// Computes one [`ConvPart`] with the kernel, which selects the algorithm.
fn compute_by_kernel(case: &ConvCase, part: ConvPart, values: &[Vec<f32>; 3]) -> Vec<f32> {
    assert!(winograd::is_applicable::<f32>(&problem(case, Isa::best())));
    let shapes = case.shapes();
    let arrays = [0, 1, 2].map(|i| testing::TestArray::of(shapes[i].clone(), TestLayout::Plain, &values[i]));
    case.compute(part, &arrays, TestLayout::Plain).values::<f32>()
}

#[test]
fn non_finite_values_affect_only_their_windows() {
    let case = case(2, 1, [16, 16], [8, 8], [[1, 1], [1, 1]]);
    let plane = 64;
    for bad in [f32::NAN, f32::INFINITY] {
        let arrays = to_f32(&values(&case, 1, 1.0)).map(|v| v.iter().map(|v| v.abs() + 1.0).collect::<Vec<f32>>());
        // A non-finite element of the first image makes the results of all windows that contain it non-finite, in every
        // channel of the result.
        for (part, which) in [(ConvPart::Output, 0), (ConvPart::Input, 2)] {
            let clean = compute_by_kernel(&case, part, &arrays);
            let mut spoiled = arrays.clone();
            spoiled[which][3 * plane + 8 * 3 + 4] = bad;
            let found = compute_by_kernel(&case, part, &spoiled);
            for (i, (f, c)) in found.iter().zip(&clean).enumerate() {
                let (y, x) = (i % plane / 8, i % 8);
                if i < 16 * plane && (2..=4).contains(&y) && (3..=5).contains(&x) {
                    assert!(!f.is_finite(), "{part:?} {i}");
                } else {
                    assert_eq!(f, c, "{part:?} {i}");
                }
            }
        }
        // A non-finite tap makes all positions of its output channel non-finite, because the padding is multiplied by
        // it too.
        let mut spoiled = arrays.clone();
        spoiled[1][(5 * 16 + 2) * 9 + 8] = bad;
        let (found, clean) =
            (compute_by_kernel(&case, ConvPart::Output, &spoiled), compute_by_kernel(&case, ConvPart::Output, &arrays));
        for (i, (f, c)) in found.iter().zip(&clean).enumerate() {
            if i / plane % 16 == 5 {
                assert!(!f.is_finite(), "{i}");
            } else {
                assert_eq!(f, c, "{i}");
            }
        }
        // A corner element is read by four of the nine taps.
        let mut spoiled = arrays.clone();
        spoiled[0][2 * plane] = bad;
        let found = compute_by_kernel(&case, ConvPart::Weight, &spoiled);
        let clean = compute_by_kernel(&case, ConvPart::Weight, &arrays);
        for (i, (f, c)) in found.iter().zip(&clean).enumerate() {
            if i / 9 % 16 == 2 && [0, 1, 3, 4].contains(&(i % 9)) {
                assert!(!f.is_finite(), "{i}");
            } else {
                assert_eq!(f, c, "{i}");
            }
        }
    }
}

#[test]
fn intermediate_overflow_falls_back_to_direct_products() {
    let case = case(2, 1, [16, 16], [8, 8], [[1, 1], [1, 1]]);
    let [mut x, mut w, y] = to_f32(&values(&case, 1, 1.0));
    // The transform subtracts neighbours of opposite signs, which overflows, although direct products do not.
    for (i, x) in x.iter_mut().enumerate() {
        *x = if i / 8 % 4 < 2 { 3e38 } else { -3e38 };
    }
    w.fill(0.0);
    for output in 0..16 {
        w[(output * 16 + output) * 9 + 4] = 1.0;
    }
    assert!(compute_by_tiles(&case, ConvPart::Output, Isa::best(), &[x.clone(), w.clone(), y.clone()]).is_none());
    assert_eq!(compute_by_kernel(&case, ConvPart::Output, &[x.clone(), w, y]), x);
}

#[test]
fn selection_depends_on_shapes() {
    let fits = |case: ConvCase| winograd::is_applicable::<f32>(&problem(&case, Isa::best()));
    let same = [[1, 1], [1, 1]];
    assert!(fits(case(1, 1, [16, 16], [7, 7], same)));
    assert!(winograd::is_applicable::<f64>(&problem(&case(1, 1, [16, 16], [7, 7], same), Isa::best())));
    assert!(!winograd::is_applicable::<i32>(&problem(&case(1, 1, [16, 16], [7, 7], same), Isa::best())));
    assert!(!fits(case(1, 1, [15, 16], [7, 7], same)));
    assert!(!fits(case(1, 1, [16, 15], [7, 7], same)));
    assert!(!fits(case(1, 1, [16, 16], [4, 7], same)));
    assert!(!fits(case(99, 1, [16, 16], [3, 3], same)));
    assert!(!fits(case(9, 1, [17, 17], [9, 9], same)) && fits(case(9, 1, [17, 32], [9, 9], same)));
    assert!(!fits(case(1, 1, [512, 512], [7, 7], same)) && fits(case(4, 1, [512, 512], [7, 7], same)));
    let good = case(1, 1, [16, 16], [9, 9], same);
    let with = |f: fn(&mut ConvCase)| {
        let mut case = good;
        f(&mut case);
        fits(case)
    };
    assert!(with(|_| ()));
    assert!(!with(|c| c.window.stride = [1, 1, 2]));
    assert!(!with(|c| c.window.dilation = [1, 2, 1]));
    assert!(!with(|c| c.window.size = [1, 3, 2]));
    assert!(!with(|c| c.x = [2, 9, 9]));
    assert!(!with(|c| (c.x, c.window.size) = ([2, 9, 9], [2, 3, 3])));
}

#[test]
fn half_precision_results_are_rounded_once() {
    let case = case(2, 1, [16, 16], [8, 8], [[1, 1], [1, 1]]);
    let values = values(&case, 4, 0.25);
    let shapes = case.shapes();
    for part in ALL_PARTS {
        let arrays =
            [0, 1, 2].map(|i| testing::TestArray::cast(shapes[i].clone(), TestLayout::Plain, DType::F16, &values[i]));
        let expected = case.naive(part, values.each_ref().map(|v| &v[..]));
        let expected: Vec<f64> = expected.iter().map(|&v| pellucid_ir::f16::from_f64(v).to_f64()).collect();
        assert_eq!(case.compute(part, &arrays, TestLayout::Plain).reals(), expected, "{part:?}");
    }
}
