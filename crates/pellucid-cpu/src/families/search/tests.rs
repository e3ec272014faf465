use super::*;
use crate::testing::{Choices, TestArray, TestLayout, numbers, run_kernel};
use crate::with_threads;
use pellucid_ir::kernel::Kernel;
use pellucid_ir::{DType, Shape};

/// Returns the positions of values in rows, by the definition of the family: NaN is the largest element.
fn expected(right: bool, row: &[f64], value: f64) -> i64 {
    let precedes = |x: f64| match (x.is_nan(), value.is_nan()) {
        (false, false) => x < value || (right && x == value),
        (x_is_nan, value_is_nan) => value_is_nan && (!x_is_nan || right),
    };
    match value.is_nan() {
        true => row.len() as i64,
        false => row.iter().filter(|&&x| precedes(x)).count() as i64,
    }
}

/// Returns random integers with some zeros of both signs, infinities and NaNs.
fn with_special_values(n: usize, dtype: DType, seed: u64) -> Vec<f64> {
    let special = [f64::NAN, f64::INFINITY, -0.0, 0.0, f64::NEG_INFINITY];
    let range = if dtype == DType::Bool { 1 } else { 40 };
    let values = numbers(n, range, seed).into_iter().enumerate();
    values.map(|(i, v)| if dtype.is_float() && i % 7 == 3 { special[i / 7 % 5] } else { v }).collect()
}

/// Searches rows of `len` elements and compares all positions.
fn check_positions(right: bool, (rows, len, count): (usize, usize, usize), dtype: DType, layouts: [TestLayout; 3]) {
    let seed = (rows + 3 * len + 7 * count) as u64;
    // The values are rounded to the dtype before they are sorted.
    let elements =
        TestArray::cast([rows, len], TestLayout::Plain, dtype, &with_special_values(rows * len, dtype, seed));
    let mut elements = elements.reals();
    elements.chunks_mut(len.max(1)).for_each(|row| {
        row.sort_by(|a, b| a.is_nan().cmp(&b.is_nan()).then(a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal)))
    });
    let values = TestArray::cast([rows, count], layouts[1], dtype, &with_special_values(rows * count, dtype, seed + 1));
    let y = TestArray::new([rows, count], DType::I64, layouts[2]);
    let sorted = TestArray::cast([rows, len], layouts[0], dtype, &elements);
    run_kernel(Kernel::Search(Search { right }), &[&sorted, &values], &[&y]).unwrap();
    let found = y.values::<i64>();
    for (i, &value) in values.reals().iter().enumerate() {
        let row = &elements[i / count * len..][..len];
        assert_eq!(found[i], expected(right, row, value), "{value} in {row:?}, {right} {dtype} {layouts:?}");
    }
}

#[test]
fn positions_follow_the_definition() {
    let choices = &Choices::new(17);
    for dtype in DType::ALL {
        for len in (0..=9).chain([15, 16, 17, 31, 33, 64, 100]) {
            for (rows, count) in [(1, 1), (1, 15), (1, 16), (1, 33), (3, 1), (3, 5), (2, 0), (5, 17)] {
                let layouts = [(); 3].map(|()| choices.of(&TestLayout::ALL));
                with_threads(choices.threads(), || check_positions(len % 2 == 0, (rows, len, count), dtype, layouts));
                with_threads(choices.threads(), || check_positions(len % 2 == 1, (rows, len, count), dtype, layouts));
            }
        }
    }
}

#[test]
fn one_row_serves_values_of_every_shape() {
    let row: Vec<f64> = (0..50).map(|i| f64::from(i / 2)).collect();
    let values: Vec<f64> = numbers(2 * 300 * 40, 30, 3);
    for layout in TestLayout::ALL {
        let sorted = TestArray::cast([50], layout, DType::F32, &row);
        let values_array = TestArray::cast([2, 300, 40], layout, DType::F32, &values);
        let y = TestArray::new([2, 300, 40], DType::I64, layout);
        with_threads(3, || run_kernel(Kernel::Search(Search { right: true }), &[&sorted, &values_array], &[&y]))
            .unwrap();
        assert!(y.values::<i64>().iter().zip(&values).all(|(&at, &value)| at == expected(true, &row, value)));
    }
}

#[test]
fn rows_that_are_not_sorted_have_the_documented_result() {
    let row = [5.0, 1.0, 4.0, 2.0, 3.0];
    let naive = |value: f64| {
        let (mut low, mut count) = (0, row.len());
        while count > 0 {
            let half = count.div_ceil(2);
            low += if row[low + half - 1] < value { half } else { 0 };
            count /= 2;
        }
        low as i64
    };
    let values: Vec<f64> = (0..14).map(|i| f64::from(i) / 2.0).collect();
    let sorted = TestArray::cast([5], TestLayout::Plain, DType::F64, &row);
    let y = TestArray::new([14], DType::I64, TestLayout::Plain);
    let values_array = TestArray::cast([14], TestLayout::Plain, DType::F64, &values);
    run_kernel(Kernel::Search(Search { right: false }), &[&sorted, &values_array], &[&y]).unwrap();
    assert_eq!(y.values::<i64>(), values.iter().map(|&value| naive(value)).collect::<Vec<_>>());
}

#[test]
fn operands_that_do_not_fit_are_errors() {
    let array = |shape: &[usize], dtype| {
        TestArray::cast(shape, TestLayout::Plain, dtype, &vec![0.0; Shape::from(shape).size()])
    };
    let [row, rows] = [array(&[3], DType::F32), array(&[2, 3], DType::F32)];
    let (values, wide, y) = (array(&[3, 4], DType::F32), array(&[3, 4], DType::F64), array(&[3, 4], DType::I64));
    let run = |sorted: &TestArray, values: &TestArray, y: &TestArray| {
        run_kernel(Kernel::Search(Search { right: false }), &[sorted, values], &[y])
    };
    assert!(run(&row, &values, &y).is_ok());
    assert!(run(&rows, &values, &y).is_err(), "the leading axes differ");
    assert!(run(&row, &wide, &y).is_err(), "the dtypes differ");
    assert!(run(&row, &values, &values).is_err(), "the output is not i64");
    assert!(run(&row, &values, &array(&[4, 3], DType::I64)).is_err(), "the output has another shape");
}
