use crate::families::conv::tests::{Case, PARTS, window};
use crate::families::conv::{Problem, Sizes, winograd};
use crate::testing::{self, TestLayout, numbers};
use crate::with_threads;
use pellucid_ir::DType;
use pellucid_ir::kernel::ConvPart;
use pellucid_runtime::threads::SharedPtr;
use pellucid_simd::Element;
use pellucid_simd::Isa;

fn case(images: usize, groups: usize, channels: [usize; 2], x: [usize; 2], pads: [[usize; 2]; 2]) -> Case {
    let [before, after] = pads.map(|[y, x]| [0, y, x]);
    Case { images, groups, channels, x: [1, x[0], x[1]], after, window: window([1, 3, 3], [1; 3], [1; 3], before) }
}

/// Sizes, paddings, groups and numbers of channels of every kind, also such that are not worth it.
fn cases() -> Vec<Case> {
    vec![
        case(3, 1, [16, 20], [14, 14], [[1, 1], [1, 1]]),
        case(9, 1, [16, 16], [15, 14], [[1, 1], [1, 1]]),
        case(2, 2, [17, 33], [5, 7], [[0, 2], [1, 0]]),
        case(2, 3, [5, 2], [3, 2], [[2, 2], [2, 2]]),
        case(3, 1, [4, 18], [2, 1], [[1, 1], [1, 1]]),
        case(1, 1, [3, 3], [1, 1], [[1, 1], [1, 1]]),
        case(2, 1, [3, 3], [3, 3], [[0, 0], [0, 0]]),
        // Padding beyond the window, on one side and on both.
        case(1, 1, [2, 3], [4, 15], [[4, 3], [0, 5]]),
        // An image of which windows see a part.
        case(2, 1, [2, 3], [1, 3], [[0, 0], [2, 4]]),
    ]
}

fn problem(case: &Case, isa: Isa) -> Problem {
    let [x, _, y] = case.shapes();
    let (x, y) = (Sizes::of(&x), Sizes::of(&y));
    Problem { isa, window: case.window, images: case.images, groups: case.groups, x, y }
}

/// The part by this way, whether or not it is worth it; the three arrays are values of x, w and y.
fn by_tiles<T: Element>(case: &Case, part: ConvPart, isa: Isa, arrays: &[Vec<T>; 3]) -> Option<Vec<T>> {
    let (mut arrays, which) = (arrays.clone(), place(part));
    let one = T::HALF.unwrap().add(T::HALF.unwrap());
    arrays[which].fill(one);
    let pointers = arrays.each_mut().map(|a| SharedPtr(a.as_mut_ptr()));
    // SAFETY: the arrays have the shapes of the case.
    let good = unsafe { winograd::run(&problem(case, isa), part, pointers).unwrap() };
    good.then(|| arrays[which].clone())
}

fn place(part: ConvPart) -> usize {
    match part {
        ConvPart::Input => 0,
        ConvPart::Weight => 1,
        ConvPart::Output => 2,
    }
}

/// Values of x, w and y.
fn values(case: &Case, range: i64, scale: f64) -> [Vec<f64>; 3] {
    let shapes = case.shapes();
    [0, 1, 2].map(|i| numbers(shapes[i].size(), range, i as u64 + 5).into_iter().map(|v| v * scale).collect())
}

fn singles(values: &[Vec<f64>; 3]) -> [Vec<f32>; 3] {
    values.each_ref().map(|v| v.iter().map(|&v| v as f32).collect())
}

#[test]
fn small_integers_are_exact_at_every_level() {
    for case in cases() {
        let values = values(&case, 3, 1.0);
        for part in PARTS {
            let expected = case.naive(part, values.each_ref().map(|v| &v[..]));
            for &isa in Isa::available() {
                assert_eq!(by_tiles(&case, part, isa, &values).unwrap(), expected, "{part:?} {isa:?} {case:?}");
                let found = by_tiles(&case, part, isa, &singles(&values)).unwrap();
                let found: Vec<f64> = found.into_iter().map(f64::from).collect();
                assert_eq!(found, expected, "f32 {part:?} {isa:?} {case:?}");
            }
        }
    }
}

#[test]
fn every_level_gives_the_same_bits() {
    for case in cases() {
        let values = values(&case, 1000, 1.0 / 777.0);
        for part in PARTS {
            let doubles = |isa| by_tiles(&case, part, isa, &values).unwrap();
            let floats = |isa| by_tiles(&case, part, isa, &singles(&values)).unwrap();
            for &isa in Isa::available() {
                assert_eq!(doubles(isa), doubles(Isa::Portable), "{part:?} {isa:?} {case:?}");
                assert_eq!(floats(isa), floats(Isa::Portable), "{part:?} {isa:?} {case:?}");
            }
        }
    }
}

/// The bound of the module's documentation: a result of n products is made of 8 · 8 (6 · 6 · n / 4 in a sum over tiles)
/// magnitudes for each channel (tile), rounded in at most 12 maps and as often as there are steps in the sum.
#[test]
fn rounding_errors_are_those_of_the_sum() {
    for case in cases() {
        let values = values(&case, 1000, 1.0 / 1000.0);
        let [xs, ws, ys] = case.shapes();
        for part in PARTS {
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
            let found = by_tiles(&case, part, Isa::best(), &values).unwrap();
            for (f, e) in found.iter().zip(&expected) {
                assert!((f - e).abs() <= bound * f64::EPSILON, "{f} {e} {part:?} {case:?}");
            }
            // Of the rounded values.
            let singles = singles(&values);
            let rounded = singles.each_ref().map(|v| v.iter().map(|&v| f64::from(v)).collect::<Vec<f64>>());
            let expected = case.naive(part, rounded.each_ref().map(|v| &v[..]));
            let found = by_tiles(&case, part, Isa::best(), &singles).unwrap();
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
fn the_mean_error_is_less_than_twice_that_of_the_direct_way() {
    let case = case(4, 1, [32, 32], [14, 14], [[1, 1], [1, 1]]);
    let values = values(&case, 1 << 20, 1.0 / (1 << 20) as f64);
    let arrays = singles(&values);
    for part in PARTS {
        let expected = case.naive(part, values.each_ref().map(|v| &v[..]));
        let error = |found: &[f32]| -> f64 {
            found.iter().zip(&expected).map(|(f, e)| (f64::from(*f) - e).powi(2)).sum::<f64>().sqrt()
        };
        let mut direct = arrays.clone();
        let pointers = direct.each_mut().map(|a| SharedPtr(a.as_mut_ptr()));
        // SAFETY: the arrays have the shapes of the case.
        unsafe { crate::families::conv::direct(&problem(&case, Isa::best()), part, pointers).unwrap() };
        let direct = error(&direct[place(part)]);
        let tiles = error(&by_tiles(&case, part, Isa::best(), &arrays).unwrap());
        assert!(direct > 0.0 && tiles < 2.0 * direct, "{part:?} {tiles} {direct}");
    }
}

#[test]
fn an_image_does_not_see_its_batch() {
    let [a, b] = [2, 9].map(|images| case(images, 1, [16, 16], [15, 14], [[1, 1], [1, 1]]));
    let (mut first, all) = (singles(&values(&a, 1000, 1.0 / 777.0)), singles(&values(&b, 1000, 1.0 / 777.0)));
    for part in [ConvPart::Output, ConvPart::Input] {
        for (first, all) in first.iter_mut().zip(&all) {
            let len = first.len();
            first.copy_from_slice(&all[..len]);
        }
        let few = by_tiles(&a, part, Isa::best(), &first).unwrap();
        assert_eq!(few, by_tiles(&b, part, Isa::best(), &all).unwrap()[..few.len()], "{part:?}");
    }
}

#[test]
fn threads_share_blocks_and_change_nothing() {
    // Several blocks, of which the last is not full.
    let case = case(9, 2, [16, 18], [15, 14], [[1, 1], [1, 1]]);
    assert!(winograd::applies::<f32>(&problem(&case, Isa::best())));
    let arrays = singles(&values(&case, 1000, 1.0 / 777.0));
    for part in PARTS {
        let run = |threads| with_threads(threads, || by_tiles(&case, part, Isa::best(), &arrays).unwrap());
        let one = run(1);
        assert_eq!(run(2), one, "{part:?}");
        assert_eq!(run(8), one, "{part:?}");
    }
}

/// Runs the kernel, which chooses the way.
fn whole(case: &Case, part: ConvPart, values: &[Vec<f32>; 3]) -> Vec<f32> {
    assert!(winograd::applies::<f32>(&problem(case, Isa::best())));
    let shapes = case.shapes();
    let arrays = [0, 1, 2].map(|i| testing::TestArray::of(shapes[i].clone(), TestLayout::Plain, &values[i]));
    case.run(part, &arrays, TestLayout::Plain).values::<f32>()
}

#[test]
fn what_is_not_finite_stays_in_its_windows() {
    let case = case(2, 1, [16, 16], [8, 8], [[1, 1], [1, 1]]);
    let plane = 64;
    for bad in [f32::NAN, f32::INFINITY] {
        let arrays = singles(&values(&case, 1, 1.0)).map(|v| v.iter().map(|v| v.abs() + 1.0).collect::<Vec<f32>>());
        // An element of the first image: its windows, in all outputs.
        for (part, which) in [(ConvPart::Output, 0), (ConvPart::Input, 2)] {
            let clean = whole(&case, part, &arrays);
            let mut spoiled = arrays.clone();
            spoiled[which][3 * plane + 8 * 3 + 4] = bad;
            let found = whole(&case, part, &spoiled);
            for (i, (f, c)) in found.iter().zip(&clean).enumerate() {
                let (y, x) = (i % plane / 8, i % 8);
                if i < 16 * plane && (2..=4).contains(&y) && (3..=5).contains(&x) {
                    assert!(!f.is_finite(), "{part:?} {i}");
                } else {
                    assert_eq!(f, c, "{part:?} {i}");
                }
            }
        }
        // A tap of an output: all of the output, since padding is a zero that is multiplied.
        let mut spoiled = arrays.clone();
        spoiled[1][(5 * 16 + 2) * 9 + 8] = bad;
        let (found, clean) = (whole(&case, ConvPart::Output, &spoiled), whole(&case, ConvPart::Output, &arrays));
        for (i, (f, c)) in found.iter().zip(&clean).enumerate() {
            if i / plane % 16 == 5 {
                assert!(!f.is_finite(), "{i}");
            } else {
                assert_eq!(f, c, "{i}");
            }
        }
        // A corner is seen by four of the nine taps.
        let mut spoiled = arrays.clone();
        spoiled[0][2 * plane] = bad;
        let found = whole(&case, ConvPart::Weight, &spoiled);
        let clean = whole(&case, ConvPart::Weight, &arrays);
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
fn what_overflows_in_between_is_computed_directly() {
    let case = case(2, 1, [16, 16], [8, 8], [[1, 1], [1, 1]]);
    let [mut x, mut w, y] = singles(&values(&case, 1, 1.0));
    // Neighbours of opposite signs: their difference is no number, and no result needs it.
    for (i, x) in x.iter_mut().enumerate() {
        *x = if i / 8 % 4 < 2 { 3e38 } else { -3e38 };
    }
    w.fill(0.0);
    for output in 0..16 {
        w[(output * 16 + output) * 9 + 4] = 1.0;
    }
    assert!(by_tiles(&case, ConvPart::Output, Isa::best(), &[x.clone(), w.clone(), y.clone()]).is_none());
    assert_eq!(whole(&case, ConvPart::Output, &[x.clone(), w, y]), x);
}

#[test]
fn it_is_chosen_by_shape() {
    let fits = |case: Case| winograd::applies::<f32>(&problem(&case, Isa::best()));
    let same = [[1, 1], [1, 1]];
    assert!(fits(case(1, 1, [16, 16], [7, 7], same)));
    assert!(winograd::applies::<f64>(&problem(&case(1, 1, [16, 16], [7, 7], same), Isa::best())));
    assert!(!winograd::applies::<i32>(&problem(&case(1, 1, [16, 16], [7, 7], same), Isa::best())));
    assert!(!fits(case(1, 1, [15, 16], [7, 7], same)));
    assert!(!fits(case(1, 1, [16, 15], [7, 7], same)));
    assert!(!fits(case(1, 1, [16, 16], [4, 7], same)));
    assert!(!fits(case(99, 1, [16, 16], [3, 3], same)));
    assert!(!fits(case(9, 1, [17, 17], [9, 9], same)) && fits(case(9, 1, [17, 32], [9, 9], same)));
    assert!(!fits(case(1, 1, [512, 512], [7, 7], same)) && fits(case(4, 1, [512, 512], [7, 7], same)));
    let good = case(1, 1, [16, 16], [9, 9], same);
    let with = |f: fn(&mut Case)| {
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
fn half_types_are_rounded_once() {
    let case = case(2, 1, [16, 16], [8, 8], [[1, 1], [1, 1]]);
    let values = values(&case, 4, 0.25);
    let shapes = case.shapes();
    for part in PARTS {
        let arrays =
            [0, 1, 2].map(|i| testing::TestArray::cast(shapes[i].clone(), TestLayout::Plain, DType::F16, &values[i]));
        let expected = case.naive(part, values.each_ref().map(|v| &v[..]));
        let expected: Vec<f64> = expected.iter().map(|&v| pellucid_ir::f16::from_f64(v).to_f64()).collect();
        assert_eq!(case.run(part, &arrays, TestLayout::Plain).reals(), expected, "{part:?}");
    }
}
