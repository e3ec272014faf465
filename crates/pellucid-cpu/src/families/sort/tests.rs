use super::*;
use crate::testing::{self, Choices, TestLayout, numbers};
use crate::with_threads;
use pellucid_ir::Shape;
use pellucid_ir::kernel::Kernel;
use std::cmp::Ordering;

fn go(kernel: Sort, x: &testing::TestArray, lie: TestLayout) -> (testing::TestArray, Vec<i64>) {
    let shape = x.layout.shape().with_axis(kernel.axis, kernel.k);
    let (y, p) = (testing::TestArray::new(shape.clone(), x.dtype, lie), testing::TestArray::new(shape, DType::I64, lie));
    testing::run_kernel(Kernel::Sort(kernel), &[x], &[&y, &p]).unwrap();
    let p = p.values();
    (y, p)
}

/// The order of the documentation, by the standard library's stable sort.
fn naive(x: &[f64], descending: bool) -> Vec<usize> {
    let mut order: Vec<usize> = (0..x.len()).collect();
    let compare = |a: usize, b: usize| match (x[a].is_nan(), x[b].is_nan()) {
        (false, false) => x[a].partial_cmp(&x[b]).unwrap(),
        (a, b) => a.cmp(&b),
    };
    order.sort_by(|&a, &b| if descending { compare(b, a) } else { compare(a, b) });
    order
}

fn special(n: usize, range: i64) -> Vec<f64> {
    let odd = [f64::NAN, f64::INFINITY, -0.0, 0.0, f64::NEG_INFINITY];
    numbers(n, range, 5).into_iter().enumerate().map(|(i, v)| if i % 11 == 3 { odd[i / 11 % 5] } else { v }).collect()
}

#[test]
fn every_dtype_direction_and_k_is_the_stable_order() {
    for (dtype, n) in DType::ALL.into_iter().flat_map(|d| [(d, 1), (d, 40), (d, 1000)]) {
        let range = if dtype == DType::Bool { 1 } else { 100 };
        let values = if dtype.is_float() { special(n, range) } else { numbers(n, range, 5) };
        let x = testing::TestArray::cast([n], TestLayout::Plain, dtype, &values);
        let reals = x.reals();
        for (descending, k) in [false, true].into_iter().flat_map(|d| [(d, n), (d, 0), (d, 1), (d, n / 3), (d, n - 1)])
        {
            let (y, p) = go(Sort { axis: 0, descending, k }, &x, TestLayout::Plain);
            let order = &naive(&reals, descending)[..k];
            assert!(p.iter().map(|&p| p as usize).eq(order.iter().copied()), "{dtype} {n} {k} {descending}");
            for (y, &i) in y.reals().into_iter().zip(order) {
                assert_eq!(y.to_bits(), reals[i].to_bits(), "the value itself, with its sign");
            }
        }
    }
}

#[test]
fn every_axis_layout_and_number_of_threads() {
    let shape = Shape::from([12, 20, 16]);
    let values = special(shape.size(), 50);
    for axis in 0..3 {
        let kernel = Sort { axis, descending: true, k: 9 };
        let of = |lie, threads| {
            with_threads(threads, || go(kernel, &testing::TestArray::cast(shape.clone(), lie, DType::F32, &values), lie).1)
        };
        let plain = of(TestLayout::Plain, 1);
        TestLayout::ALL.into_iter().for_each(|lie| assert_eq!(of(lie, 3), plain, "{axis} {lie:?}"));
        let inner: usize = shape[axis + 1..].iter().product();
        let line: Vec<f64> = (0..shape[axis]).map(|i| values[i * inner]).collect();
        let order = naive(&line, true);
        (0..9).for_each(|i| assert_eq!(plain[i * inner] as usize, order[i]));
    }
}

#[test]
fn long_lines_across_memory_are_the_same_order() {
    let shape = Shape::from([3, 90, 7]);
    let values = special(shape.size(), 50);
    for (dtype, k) in [(DType::F32, 90), (DType::F64, 5), (DType::I16, 40)] {
        let values: Vec<f64> = if dtype.is_float() { values.clone() } else { numbers(shape.size(), 50, 1) };
        for lie in TestLayout::ALL {
            let (y, p) = go(
                Sort { axis: 1, descending: false, k },
                &testing::TestArray::cast(shape.clone(), lie, dtype, &values),
                lie,
            );
            let y = y.reals();
            for (outer, inner) in (0..3).flat_map(|o| (0..7).map(move |i| (o, i))) {
                let line: Vec<f64> = (0..90).map(|i| values[(outer * 90 + i) * 7 + inner]).collect();
                for (i, at) in naive(&line, false)[..k].iter().copied().enumerate() {
                    let place = (outer * k + i) * 7 + inner;
                    assert_eq!(p[place] as usize, at, "{dtype} {lie:?}");
                    assert!(y[place] == line[at] || y[place].is_nan() && line[at].is_nan());
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
            let (dtype, lie, threads) = (choices.of(&DType::ALL), choices.of(&TestLayout::ALL), choices.threads());
            let k = [len, 1, choices.below(len + 1)][choices.below(3)];
            let kernel = Sort { axis, descending: choices.below(2) == 0, k };
            let range = if dtype == DType::Bool { 1 } else { 20 };
            let wild = if dtype.is_float() { special(len * lines, range) } else { numbers(len * lines, range, 5) };
            let x = testing::TestArray::cast(shape, lie, dtype, &wild);
            let values = x.reals();
            let (y, p) = with_threads(threads, || go(kernel, &x, lie));
            let y = y.reals();
            let place = |line: usize, i: usize, len: usize| if axis == 0 { i * lines + line } else { line * len + i };
            for line in 0..lines {
                let own: Vec<f64> = (0..len).map(|i| values[place(line, i, len)]).collect();
                for (i, at) in naive(&own, kernel.descending)[..k].iter().copied().enumerate() {
                    let found = place(line, i, k);
                    let what = || format!("{kernel:?} of {len} in {lines} {dtype} {lie:?} {threads} threads");
                    assert_eq!(p[found] as usize, at, "{}", what());
                    assert_eq!(y[found].to_bits(), own[at].to_bits(), "{}", what());
                }
            }
        }
    }
}

#[test]
fn wide_packing_agrees_with_narrow() {
    let values: Vec<f32> = special(700, 50).into_iter().map(|v| v as f32).collect();
    let mut rooms = (vec![0u64; 2000], vec![0u128; 2000]);
    let narrow = all(700, |i| u64::pack(directed(values[i], false), i), &mut rooms.0, 32);
    let wide = all(700, |i| u128::pack(directed(values[i], false), i), &mut rooms.1, 32);
    assert!(narrow.iter().map(|p| p.position()).eq(wide.iter().map(|p| p.position())));
    assert!(directed(f32::INFINITY, false).cmp(&directed(f32::NAN, false)) == Ordering::Less);
    assert!(directed(f32::NAN, true).cmp(&directed(f32::INFINITY, true)) == Ordering::Less);
}
