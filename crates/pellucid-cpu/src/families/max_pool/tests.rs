use super::*;
use crate::testing::{self, Choices, TestLayout, numbers};
use crate::with_threads;
use pellucid_ir::kernel::{Kernel, PoolPart};

/// Pools an array and returns the values and the positions.
fn pool(windows: impl Into<PoolWindows>, x: &testing::TestArray, out: &[usize]) -> Result<(Vec<f64>, Vec<i64>)> {
    let values = testing::TestArray::new(out, x.dtype, TestLayout::Plain);
    let positions = testing::TestArray::new(out, DType::I64, TestLayout::Plain);
    testing::run_kernel(
        Kernel::Pool(Pool { windows: windows.into(), part: PoolPart::Maximum }),
        &[x],
        &[&values, &positions],
    )?;
    Ok((values.reals(), positions.values::<i64>()))
}

/// Computes the values and positions by the definition: the first NaN of a window, or else the first largest element.
fn naive(window: Window, x: &[f64], shape: [usize; 4], out: [usize; 3]) -> (Vec<f64>, Vec<i64>) {
    let plane: usize = shape[1..].iter().product();
    let range = |end: [usize; 3]| {
        let [a, b, c] = end;
        (0..a * b * c).map(move |i| [i / (b * c), i / c % b, i % c])
    };
    let largest = |n: usize, o: [usize; 3]| {
        let taps = range(window.size).filter_map(move |t| {
            let tap = |a: usize| (o[a] * window.stride[a] + t[a] * window.dilation[a]).checked_sub(window.before[a]);
            let [z, y, c] = [tap(0)?, tap(1)?, tap(2)?];
            (z < shape[1] && y < shape[2] && c < shape[3]).then_some((z * shape[2] + y) * shape[3] + c)
        });
        let value = |&i: &usize| x[n * plane + i];
        let order = |i: &usize| (value(i).is_nan(), if value(i).is_nan() { 0.0 } else { value(i) });
        taps.reduce(|best, i| if order(&i) > order(&best) { i } else { best }).unwrap()
    };
    (0..shape[0])
        .flat_map(|n| range(out).map(move |o| (n, o)))
        .map(|(n, o)| (n, largest(n, o)))
        .map(|(n, position)| (x[n * plane + position], position as i64))
        .unzip()
}

#[test]
fn max_pool_equals_the_definition_in_every_layout_and_dtype() {
    let window = Window { size: [2, 3, 2], stride: [1, 2, 3], dilation: [1, 1, 2], before: [1, 1, 0] };
    let (shape, out) = ([3, 3, 5, 7], [3, 3, 2]);
    let x = numbers(shape.iter().product(), 3, 5);
    let expected = naive(window, &x, shape, out);
    for (layout, dtype) in TestLayout::ALL.into_iter().cycle().zip(DType::ALL.into_iter().skip(2)) {
        let x = testing::TestArray::cast(shape, layout, dtype, &x);
        for threads in [1, 2, 8] {
            let found = with_threads(threads, || pool(window, &x, &[3, 3, 3, 2]).unwrap());
            assert_eq!(found, expected, "{dtype} {layout:?}");
        }
    }
}

#[test]
fn blocks_and_remainders_equal_the_definition() {
    // The rows are shorter than a block, one block or several blocks long. There are long windows and every stride.
    for (i, [len, size, stride, dilation, before]) in [
        [28, 2, 2, 1, 0],
        [15, 2, 2, 1, 0],
        [16, 1, 1, 1, 0],
        [70, 3, 2, 1, 1],
        [50, 3, 1, 1, 1],
        [40, 5, 1, 4, 8],
        [60, 5, 3, 3, 2],
        [64, 40, 1, 1, 3],
        [90, 4, 4, 1, 0],
        [99, 3, 3, 1, 0],
    ]
    .into_iter()
    .enumerate()
    {
        let window =
            Window { size: [1, 2, size], stride: [1, 2, stride], dilation: [1, 1, dilation], before: [0, 1, before] };
        let shape = [2, 1, 9, len];
        let out = [1, 5, (len + before - dilation * (size - 1) - 1) / stride + 1];
        let mut x = numbers(shape.iter().product(), 4, 3 + i as u64);
        x.iter_mut().skip(5).step_by(37).for_each(|x| *x = f64::NAN);
        x.iter_mut().skip(3).step_by(7).for_each(|x| *x = f64::NEG_INFINITY);
        let (values, positions) = naive(window, &x, shape, out);
        for dtype in [DType::F32, DType::F64, DType::BF16] {
            let x = testing::TestArray::cast(shape, TestLayout::Plain, dtype, &x);
            let found = pool(window, &x, &[2, out[0], out[1], out[2]]).unwrap();
            assert_eq!(found.1, positions, "{dtype} {window:?}");
            let is_equal = |(a, b): (&f64, &f64)| a == b || a.is_nan() && b.is_nan();
            assert!(found.0.iter().zip(&values).all(is_equal), "{dtype} {window:?}");
        }
    }
}

/// Compares max pooling with the definition, for a random number of threads, layout and dtype. The number of outputs is
/// at most the number of windows that have a tap inside the input. Returns false if there is no such window.
fn check_random_case(window: Window, x: [usize; 3], choices: &Choices) -> bool {
    let all = [0, 1, 2].map(|a| {
        let inside = |o: &usize| {
            (0..window.size[a])
                .map(|t| o * window.stride[a] + t * window.dilation[a])
                .any(|position| (window.before[a]..window.before[a] + x[a]).contains(&position))
        };
        (0..=x[a] + window.before[a]).take_while(inside).count()
    });
    if all.contains(&0) {
        return false;
    }
    let out = all.map(|n| if choices.below(3) == 0 { 1 + choices.below(n) } else { n });
    let shape = [1 + choices.below(3), x[0], x[1], x[2]];
    let mut values = numbers(shape.iter().product(), 4, 3);
    let dtype = choices.of(&DType::ALL);
    if dtype.is_float() {
        values.iter_mut().skip(2).step_by(7).for_each(|x| *x = f64::NAN);
    }
    let (layout, threads) = (choices.of(&TestLayout::ALL), choices.threads());
    let array = testing::TestArray::cast(shape, layout, dtype, &values);
    let (expected, positions) = naive(window, &array.reals(), shape, out);
    let found = with_threads(threads, || pool(window, &array, &[shape[0], out[0], out[1], out[2]]).unwrap());
    let case = || format!("{window:?} over {x:?} to {out:?} {dtype} {layout:?} {threads} threads");
    assert!(found.1 == positions, "{}", case());
    assert!(found.0.iter().zip(&expected).all(|(a, b)| a == b || a.is_nan() && b.is_nan()), "{}", case());
    true
}

#[test]
fn sweep_of_windows_along_one_axis() {
    let (choices, mut seen) = (&Choices::new(41), 0);
    for (len, size) in (1..=20).flat_map(|len| (1..=20).map(move |size| (len, size))) {
        for (stride, dilation) in (1..=4).flat_map(|s| (1..=3).map(move |d| (s, d))) {
            let before = [0, 1, size / 2, size - 1, choices.below(2 * size)];
            let before = before[choices.below(5)];
            let window = Window {
                size: [1, 1, size],
                stride: [1, 1, stride],
                dilation: [1, 1, dilation],
                before: [0, 0, before],
            };
            seen += usize::from(check_random_case(window, [1, 1, len], choices));
        }
    }
    assert!(seen > 2000, "too few random windows are valid: {seen}");
}

#[test]
fn sweep_of_windows_along_three_axes() {
    let (choices, mut seen) = (&Choices::new(42), 0);
    for _ in 0..1500 {
        let three = |choices: &Choices, n: usize| [(); 3].map(|()| 1 + choices.below(n));
        let (size, stride, dilation) = (three(choices, 5), three(choices, 4), three(choices, 3));
        let before = size.map(|size| choices.below(size + 1));
        let last = if choices.below(4) == 0 { 40 } else { 8 };
        let x = [1 + choices.below(4), 1 + choices.below(6), 1 + choices.below(last)];
        seen += usize::from(check_random_case(Window { size, stride, dilation, before }, x, choices));
    }
    assert!(seen > 500, "too few random windows are valid: {seen}");
}

#[test]
fn windows_and_padding_may_be_longer_than_the_input() {
    let choices = &Choices::new(43);
    for (len, size) in [(3, 13), (1, 13), (2, 9), (5, 20), (16, 33), (17, 64)] {
        let window =
            Window { size: [1, size, size], stride: [1, 1, 1], dilation: [1, 1, 1], before: [0, size / 2, size / 2] };
        assert!(check_random_case(window, [1, len, len], choices), "{len} {size}");
    }
}

#[test]
fn nan_is_the_largest_and_windows_in_the_padding_are_errors() {
    let ones = [1; 3];
    let window = Window { size: [1, 1, 2], stride: ones, dilation: ones, before: [0, 0, 1] };
    let x = testing::TestArray::of([1, 1, 3], TestLayout::Plain, &[f32::NEG_INFINITY, f32::NAN, 1.0]);
    let (values, positions) = pool(window, &x, &[1, 1, 4]).unwrap();
    assert_eq!(positions, [0, 1, 1, 2]);
    assert!(values[0] == f64::NEG_INFINITY && values[1].is_nan() && values[2].is_nan() && values[3] == 1.0);
    assert!(pool(window, &x, &[1, 1, 5]).is_err());
    assert!(pool(Window { before: [0, 0, 2], ..window }, &x, &[1, 1, 1]).is_err());
    assert!(pool(Window { stride: [1, 1, usize::MAX], ..window }, &x, &[1, 1, 2]).is_err());
}

#[test]
fn gradients_are_sums_at_the_positions_in_every_layout_and_dtype() {
    let choices = &Choices::new(44);
    for case in 0..300 {
        let three = |n: usize| [(); 3].map(|()| 1 + choices.below(n));
        let (size, stride, dilation) = (three(4), three(3), three(2));
        let window = Window { size, stride, dilation, before: size.map(|size| choices.below(size)) };
        let x = [1 + choices.below(3), 1 + choices.below(6), 1 + choices.below(20)];
        let count = |a: usize| (0..).take_while(|o| o * stride[a] < x[a] + window.before[a]).count();
        let taps = |a: usize, o: usize| {
            (0..size[a]).any(|t| {
                let at = o * stride[a] + t * dilation[a];
                (window.before[a]..window.before[a] + x[a]).contains(&at)
            })
        };
        let out = [0, 1, 2].map(|a| (0..count(a)).take_while(|&o| taps(a, o)).count());
        if out.contains(&0) {
            continue;
        }
        let (shape, windows) = ([2, x[0], x[1], x[2]], [2, out[0], out[1], out[2]]);
        let (_, places) = naive(window, &numbers(shape.iter().product(), 4, case), shape, out);
        let g = numbers(places.len(), 8, case + 1);
        let (plane, each) = (x.iter().product::<usize>(), out.iter().product::<usize>());
        let mut expected = vec![0.0; 2 * plane];
        for (i, (g, place)) in g.iter().zip(&places).enumerate() {
            expected[i / each * plane + *place as usize] += g;
        }
        let dtype = choices.of(&[DType::F32, DType::F64, DType::F16, DType::BF16]);
        let layout = |_| choices.of(&TestLayout::ALL);
        let [g_layout, place_layout, out_layout] = [0; 3].map(layout);
        let g = testing::TestArray::cast(windows, g_layout, dtype, &g);
        let places: Vec<f64> = places.iter().map(|&place| place as f64).collect();
        let places = testing::TestArray::cast(windows, place_layout, DType::I64, &places);
        let sums = testing::TestArray::new(shape, dtype, out_layout);
        let kernel = Kernel::Pool(Pool { windows: window.into(), part: PoolPart::Gradient });
        with_threads(choices.threads(), || testing::run_kernel(kernel, &[&g, &places], &[&sums]).unwrap());
        assert_eq!(sums.reals(), expected, "{window:?} over {x:?} {dtype} {out_layout:?}");
    }
}

#[test]
fn gradients_with_wrong_shapes_or_dtypes_are_errors() {
    let window = Window { size: [1, 1, 2], stride: [1, 1, 2], dilation: [1; 3], before: [0; 3] };
    let kernel = || Kernel::Pool(Pool { windows: window.into(), part: PoolPart::Gradient });
    let array = |shape: &[usize], dtype| {
        testing::TestArray::cast(shape, TestLayout::Plain, dtype, &vec![0.0; shape.iter().product()])
    };
    let run = |g: &testing::TestArray, places: &testing::TestArray, out: &testing::TestArray| {
        testing::run_kernel(kernel(), &[g, places], &[out])
    };
    let (g, places) = (array(&[3, 1, 1, 2], DType::F32), array(&[3, 1, 1, 2], DType::I64));
    assert!(run(&g, &places, &array(&[3, 1, 1, 4], DType::F32)).is_ok());
    assert!(run(&g, &places, &array(&[3, 1, 1, 4], DType::F64)).is_err());
    assert!(run(&g, &places, &array(&[2, 1, 1, 4], DType::F32)).is_err());
    assert!(run(&g, &places, &array(&[1, 1, 4], DType::F32)).is_err());
    assert!(run(&g, &array(&[3, 1, 2, 1], DType::I64), &array(&[3, 1, 1, 4], DType::F32)).is_err());
    assert!(run(&g, &array(&[3, 1, 1, 2], DType::I32), &array(&[3, 1, 1, 4], DType::F32)).is_err());
    let integers = array(&[3, 1, 1, 2], DType::I32);
    assert!(run(&integers, &places, &array(&[3, 1, 1, 4], DType::I32)).is_err());
}

#[test]
fn adaptive_windows_equal_the_definition() {
    let choices = &Choices::new(9);
    for len in [1, 2, 5, 16, 17, 33, 50, 64, 131] {
        for outputs in [1, 2, 3, 7, len, len + 3] {
            let (shape, out) =
                ([2, 1 + choices.below(4), 1 + choices.below(9), len], [2, 1, 1 + choices.below(4), outputs]);
            let mut x = numbers(shape.iter().product(), 3, len as u64);
            if choices.below(2) == 0 {
                let at = choices.below(x.len());
                x[at] = f64::NAN;
            }
            let range = |a: usize, o: usize| adaptive_window(shape[a], out[a], o);
            let mut expected: (Vec<f64>, Vec<i64>) = Default::default();
            for n in 0..2 {
                for (y, c) in (0..out[2]).flat_map(|y| (0..outputs).map(move |c| (y, c))) {
                    let lines = range(1, 0).flat_map(|z| range(2, y).map(move |y| z * shape[2] + y));
                    let taps = lines.flat_map(|line| range(3, c).map(move |c| line * len + c));
                    let value = |i: usize| x[n * shape[1] * shape[2] * len + i];
                    let replaces = |new: f64, old: f64| new > old || new.is_nan() && !old.is_nan();
                    let found = taps.reduce(|best, i| if replaces(value(i), value(best)) { i } else { best }).unwrap();
                    expected.0.push(value(found));
                    expected.1.push(found as i64);
                }
            }
            let (layout, dtype) = (choices.of(&TestLayout::ALL), choices.of(&[DType::F32, DType::F64, DType::BF16]));
            let x = testing::TestArray::cast(shape, layout, dtype, &x);
            let found = with_threads(choices.threads(), || pool(PoolWindows::Adaptive, &x, &out).unwrap());
            assert_eq!(found.1, expected.1, "{shape:?} {out:?} {layout:?} {dtype}");
            let same = |(a, b): (&f64, &f64)| a == b || a.is_nan() && b.is_nan();
            assert!(found.0.iter().zip(&expected.0).all(same), "{shape:?} {out:?} {layout:?} {dtype}");
        }
    }
}
