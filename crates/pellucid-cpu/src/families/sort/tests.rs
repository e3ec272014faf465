use super::*;
use crate::testing::{self, Choices, TestLayout, numbers};
use crate::with_threads;
use pellucid_ir::kernel::Kernel;
use pellucid_ir::{DType, Shape};
use std::cmp::Ordering;

/// Sorts an array and returns the values and the positions.
fn sort(kernel: Sort, x: &testing::TestArray, layout: TestLayout) -> (testing::TestArray, Vec<i64>) {
    let shape = x.layout.shape().with_axis(kernel.axis, kernel.k);
    let (y, p) =
        (testing::TestArray::new(shape.clone(), x.dtype, layout), testing::TestArray::new(shape, DType::I64, layout));
    testing::run_kernel(Kernel::Sort(kernel), &[x], &[&y, &p]).unwrap();
    let p = p.values();
    (y, p)
}

/// Returns the stable order of a line, by the sort of the standard library.
fn naive(x: &[f64], descending: bool) -> Vec<usize> {
    let mut order: Vec<usize> = (0..x.len()).collect();
    let compare = |a: usize, b: usize| match (x[a].is_nan(), x[b].is_nan()) {
        (false, false) => x[a].partial_cmp(&x[b]).unwrap(),
        (a, b) => a.cmp(&b),
    };
    order.sort_by(|&a, &b| if descending { compare(b, a) } else { compare(a, b) });
    order
}

/// Returns random integers with some NaNs, infinities and zeros of both signs.
fn with_special_values(n: usize, range: i64) -> Vec<f64> {
    let special = [f64::NAN, f64::INFINITY, -0.0, 0.0, f64::NEG_INFINITY];
    numbers(n, range, 5)
        .into_iter()
        .enumerate()
        .map(|(i, v)| if i % 11 == 3 { special[i / 11 % 5] } else { v })
        .collect()
}

#[test]
fn the_order_is_stable_for_every_dtype_direction_and_k() {
    for (dtype, n) in DType::ALL.into_iter().flat_map(|d| [(d, 1), (d, 40), (d, 1000)]) {
        let range = if dtype == DType::Bool { 1 } else { 100 };
        let values = if dtype.is_float() { with_special_values(n, range) } else { numbers(n, range, 5) };
        let x = testing::TestArray::cast([n], TestLayout::Plain, dtype, &values);
        let reals = x.reals();
        for (descending, k) in [false, true].into_iter().flat_map(|d| [(d, n), (d, 0), (d, 1), (d, n / 3), (d, n - 1)])
        {
            let (y, p) = sort(Sort { axis: 0, descending, k }, &x, TestLayout::Plain);
            let order = &naive(&reals, descending)[..k];
            assert!(p.iter().map(|&p| p as usize).eq(order.iter().copied()), "{dtype} {n} {k} {descending}");
            for (y, &i) in y.reals().into_iter().zip(order) {
                assert_eq!(y.to_bits(), reals[i].to_bits(), "the values must keep the sign of zero");
            }
        }
    }
}

#[test]
fn the_order_does_not_depend_on_axis_layout_or_threads() {
    let shape = Shape::from([12, 20, 16]);
    let values = with_special_values(shape.size(), 50);
    for axis in 0..3 {
        let kernel = Sort { axis, descending: true, k: 9 };
        let positions = |layout, threads| {
            with_threads(threads, || {
                sort(kernel, &testing::TestArray::cast(shape.clone(), layout, DType::F32, &values), layout).1
            })
        };
        let plain = positions(TestLayout::Plain, 1);
        TestLayout::ALL.into_iter().for_each(|layout| assert_eq!(positions(layout, 3), plain, "{axis} {layout:?}"));
        let inner: usize = shape[axis + 1..].iter().product();
        let line: Vec<f64> = (0..shape[axis]).map(|i| values[i * inner]).collect();
        let order = naive(&line, true);
        (0..9).for_each(|i| assert_eq!(plain[i * inner] as usize, order[i]));
    }
}

#[test]
fn long_strided_lines_have_the_same_order() {
    let shape = Shape::from([3, 90, 7]);
    let values = with_special_values(shape.size(), 50);
    for (dtype, k) in [(DType::F32, 90), (DType::F64, 5), (DType::I16, 40)] {
        let values: Vec<f64> = if dtype.is_float() { values.clone() } else { numbers(shape.size(), 50, 1) };
        for layout in TestLayout::ALL {
            let (y, p) = sort(
                Sort { axis: 1, descending: false, k },
                &testing::TestArray::cast(shape.clone(), layout, dtype, &values),
                layout,
            );
            let y = y.reals();
            for (outer, inner) in (0..3).flat_map(|o| (0..7).map(move |i| (o, i))) {
                let line: Vec<f64> = (0..90).map(|i| values[(outer * 90 + i) * 7 + inner]).collect();
                for (i, expected) in naive(&line, false)[..k].iter().copied().enumerate() {
                    let found = (outer * k + i) * 7 + inner;
                    assert_eq!(p[found] as usize, expected, "{dtype} {layout:?}");
                    assert!(y[found] == line[expected] || y[found].is_nan() && line[expected].is_nan());
                }
            }
        }
    }
}

#[test]
fn sweep_of_lengths_counts_and_dtypes() {
    let choices = &Choices::new(71);
    let lengths = (1..=20).chain([31, 32, 33, 63, 64, 65, 127, 128, 129, 191, 192, 193, 257, 1025]);
    for (len, lines) in lengths.flat_map(|len| [1, 2, 3, 7, 16, 17].map(|lines| (len, lines))) {
        for axis in [0, 1] {
            let shape = Shape::from(if axis == 0 { [len, lines] } else { [lines, len] });
            let (dtype, layout, threads) = (choices.of(&DType::ALL), choices.of(&TestLayout::ALL), choices.threads());
            let k = [len, 1, choices.below(len + 1)][choices.below(3)];
            let kernel = Sort { axis, descending: choices.below(2) == 0, k };
            let range = if dtype == DType::Bool { 1 } else { 20 };
            let numbers =
                if dtype.is_float() { with_special_values(len * lines, range) } else { numbers(len * lines, range, 5) };
            let x = testing::TestArray::cast(shape, layout, dtype, &numbers);
            let values = x.reals();
            let (y, p) = with_threads(threads, || sort(kernel, &x, layout));
            let y = y.reals();
            let position =
                |line: usize, i: usize, len: usize| if axis == 0 { i * lines + line } else { line * len + i };
            for line in 0..lines {
                let elements: Vec<f64> = (0..len).map(|i| values[position(line, i, len)]).collect();
                for (i, expected) in naive(&elements, kernel.descending)[..k].iter().copied().enumerate() {
                    let found = position(line, i, k);
                    let case = || format!("{kernel:?} of {len} in {lines} {dtype} {layout:?} {threads} threads");
                    assert_eq!(p[found] as usize, expected, "{}", case());
                    assert_eq!(y[found].to_bits(), elements[expected].to_bits(), "{}", case());
                }
            }
        }
    }
}

#[test]
fn u128_keys_sort_like_u64_keys() {
    let values: Vec<f32> = with_special_values(700, 50).into_iter().map(|v| v as f32).collect();
    let mut narrow: Vec<u64> = (0..700).map(|i| u64::pack(directed_key(values[i], false), i)).collect();
    let mut wide: Vec<u128> = (0..700).map(|i| u128::pack(directed_key(values[i], false), i)).collect();
    let mut scratch = (vec![0u64; 1300], vec![0u128; 1300]);
    let narrow = sort_packed::<u32, _>(&mut narrow, &mut scratch.0);
    let wide = sort_packed::<u32, _>(&mut wide, &mut scratch.1);
    assert!(narrow.iter().map(|p| p.position()).eq(wide.iter().map(|p| p.position())));
    assert!(directed_key(f32::INFINITY, false).cmp(&directed_key(f32::NAN, false)) == Ordering::Less);
    assert!(directed_key(f32::NAN, true).cmp(&directed_key(f32::INFINITY, true)) == Ordering::Less);
}
