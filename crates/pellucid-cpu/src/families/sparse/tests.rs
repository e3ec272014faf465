use super::*;
use crate::testing::{Choices, TestArray, TestLayout, numbers, run_kernel};
use crate::with_threads;
use pellucid_ir::Shape;
use pellucid_ir::kernel::Kernel;

/// A sparse matrix as lists of the columns and weights of each row.
type TermLists = Vec<Vec<(usize, f64)>>;

/// Returns the operands `starts`, `columns` and `weights` of a sparse matrix.
fn operands(rows: &TermLists, dtype: DType) -> [TestArray; 3] {
    let ends = rows.iter().scan(0, |end, row| {
        *end += row.len() as i64;
        Some(*end)
    });
    let starts: Vec<i64> = [0].into_iter().chain(ends).collect();
    let columns: Vec<i64> = rows.iter().flatten().map(|term| term.0 as i64).collect();
    let weights: Vec<f64> = rows.iter().flatten().map(|term| term.1).collect();
    [
        TestArray::of([starts.len()], TestLayout::Plain, &starts),
        TestArray::of([columns.len()], TestLayout::Gaps, &columns),
        TestArray::cast([weights.len()], TestLayout::Plain, dtype, &weights),
    ]
}

/// Returns a matrix of small integers, with up to `most` terms in each row.
fn random_rows(choices: &Choices, rows: usize, width: usize, most: usize) -> TermLists {
    let term = |_| (choices.below(width), choices.below(7) as f64 - 3.0);
    (0..rows).map(|_| (0..choices.below(most + 1)).map(term).collect()).collect()
}

/// Computes the product by its definition.
fn naive(rows: &TermLists, x: &[f64], [outer, len, inner]: [usize; 3]) -> Vec<f64> {
    let element = |o: usize, row: &[(usize, f64)], j: usize| {
        row.iter().map(|&(column, weight)| weight * x[(o * len + column) * inner + j]).sum::<f64>() + 0.0
    };
    (0..outer)
        .flat_map(|o| rows.iter().flat_map(move |row| (0..inner).map(move |j| (o, row, j))))
        .map(|(o, row, j)| element(o, row, j))
        .collect()
}

#[test]
fn products_equal_the_definition_around_vectors_and_groups() {
    let choices = &Choices::new(5);
    for inner in (1..=20).chain([31, 33, 63, 64, 65, 130]) {
        for outer in [1, 2, 15, 16, 17, 33] {
            let (len, count) = (1 + choices.below(40), 1 + choices.below(40));
            let rows = random_rows(choices, count, len, choices.of(&[1, 3, 16, 17, 40]));
            let x = numbers(outer * len * inner, 4, inner as u64);
            let expected = naive(&rows, &x, [outer, len, inner]);
            let (dtype, layout, to) =
                (choices.of(&[DType::F32, DType::F64]), choices.of(&TestLayout::ALL), choices.of(&TestLayout::ALL));
            let shape = Shape::from([outer, len, inner]);
            let [starts, columns, weights] = &operands(&rows, dtype);
            let x = &TestArray::cast(shape.clone(), layout, dtype, &x);
            let y = TestArray::new(shape.with_axis(1, count), dtype, to);
            let kernel = Kernel::SparseProduct(SparseProduct { op: "test", axis: 1 });
            let threads = choices.threads();
            with_threads(threads, || run_kernel(kernel, &[x, starts, columns, weights], &[&y])).unwrap();
            assert!(y.reals() == expected, "{outer} {len} {inner} {count} {dtype} {layout:?} {to:?} {threads} threads");
        }
    }
}

#[test]
fn instruction_sets_threads_and_axes_change_no_bit() {
    let choices = &Choices::new(6);
    // The transposed blocks exceed `BLOCK_BYTES`.
    let (outer, len, count) = (35, 1500, 1300);
    let mut rows = random_rows(choices, count, 9, 40);
    for (i, term) in rows.iter_mut().enumerate().flat_map(|(i, row)| row.iter_mut().map(move |term| (i, term))) {
        *term = (term.0 + i, term.1 / 7.0);
    }
    rows[70].push((len - 1, 1.0));
    let x: Vec<f64> = numbers(outer * len, 1000, 3).iter().map(|v| v / 777.0).collect();
    let transposed: Vec<f64> = (0..len * outer).map(|i| x[i % outer * len + i / outer]).collect();
    for dtype in [DType::F32, DType::F64] {
        let [starts, columns, weights] = &operands(&rows, dtype);
        let product = |isa: Isa, threads: usize, axis: usize| {
            let (shape, x) = if axis == 1 { ([outer, len], &x) } else { ([len, outer], &transposed) };
            let x = TestArray::cast(shape, TestLayout::Plain, dtype, x);
            let y = TestArray::new(Shape::from(shape).with_axis(axis, count), dtype, TestLayout::Plain);
            let kernel = SparseProduct { op: "test", axis };
            with_threads(threads, || {
                let inputs = crate::testing::operands([&x, starts, columns, weights], crate::operand::input).unwrap();
                let outputs = crate::testing::operands([&y], crate::operand::output).unwrap();
                match dtype {
                    DType::F32 => multiply::<f32>(isa, &kernel, &inputs, &outputs[0]),
                    _ => multiply::<f64>(isa, &kernel, &inputs, &outputs[0]),
                }
                .unwrap();
            });
            let y = y.reals();
            if axis == 1 { y } else { (0..outer * count).map(|i| y[i % count * outer + i / count]).collect() }
        };
        let expected = product(Isa::Portable, 1, 1);
        for (&isa, threads, axis) in
            Isa::available().iter().flat_map(|isa| [(isa, 1, 1), (isa, 3, 1), (isa, 1, 0), (isa, 3, 0)])
        {
            assert!(product(isa, threads, axis) == expected, "{isa:?}, {threads} threads, axis {axis}, {dtype}");
        }
    }
}

/// Returns the sum of terms in nested groups: the total of the sums of groups of `size` terms.
fn nested_sum(terms: &[f32], size: usize) -> f32 {
    match size {
        1 => terms.iter().copied().reduce(|a, b| a + b).unwrap_or(0.0),
        _ => terms.chunks(size).map(|group| nested_sum(group, size / SparseProduct::GROUP)).fold(-0.0, |a, b| a + b),
    }
}

#[test]
fn long_sums_are_sums_of_nested_groups() {
    let choices = &Choices::new(7);
    let width = 300;
    let around = |n: usize| [n - 1, n, n + 1];
    let lengths = [8, 64, 512, 4096, 32_768].into_iter().flat_map(around).chain([66_000, 200_000]);
    let rows: TermLists = lengths
        .map(|terms| (0..terms).map(|_| (choices.below(width), (choices.below(1 << 20) as f64 + 1.0) / 3e6)).collect())
        .collect();
    // The sizes cover full and partial vectors, in place and in transposed blocks.
    for (outer, inner) in [(1, 1), (1, 19), (17, 1)] {
        let x: Vec<f64> = numbers(outer * width * inner, 1000, 4).iter().map(|v| (v.abs() + 1.0) / 777.0).collect();
        let [starts, columns, weights] = &operands(&rows, DType::F32);
        let x = &TestArray::cast([outer, width, inner], TestLayout::Plain, DType::F32, &x);
        let y = TestArray::new([outer, rows.len(), inner], DType::F32, TestLayout::Plain);
        let kernel = Kernel::SparseProduct(SparseProduct { op: "test", axis: 1 });
        run_kernel(kernel, &[x, starts, columns, weights], &[&y]).unwrap();
        let (x, found) = (x.values::<f32>(), y.values::<f32>());
        for (at, &found) in found.iter().enumerate() {
            let (o, row, j) = (at / inner / rows.len(), &rows[at / inner % rows.len()], at % inner);
            let factor = |column: usize| x[(o * width + column) * inner + j];
            let terms: Vec<f32> = row.iter().map(|&(column, weight)| factor(column) * weight as f32).collect();
            assert_eq!(found.to_bits(), nested_sum(&terms, SparseProduct::LARGEST_GROUP).to_bits(), "{}", row.len());
            // All terms are positive. Adding the terms one after another would cause relative errors of up to 1e-3 for
            // the longest rows.
            let exact: f64 = terms.iter().map(|&term| f64::from(term)).sum();
            assert!((f64::from(found) / exact - 1.0).abs() < 4e-7, "{found} instead of {exact}, {} terms", row.len());
        }
    }
}

#[test]
fn invalid_matrices_are_rejected_before_a_write() {
    let x = TestArray::of([3, 2], TestLayout::Plain, &[1f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let weights = TestArray::of([2], TestLayout::Plain, &[1f32, 1.0]);
    let kernel = || Kernel::SparseProduct(SparseProduct { op: "test", axis: 0 });
    for (starts, columns) in [([0, 1, 2], [0, 3]), ([0, 1, 2], [-1, 0]), ([0, 2, 1], [0, 1]), ([0, 1, 3], [0, 1])] {
        let y = TestArray::of([2, 2], TestLayout::Plain, &[9f32; 4]);
        let starts = TestArray::of([3], TestLayout::Plain, &starts.map(i64::from));
        let columns = TestArray::of([2], TestLayout::Plain, &columns.map(i64::from));
        assert!(run_kernel(kernel(), &[&x, &starts, &columns, &weights], &[&y]).is_err());
        assert_eq!(y.values::<f32>(), [9.0; 4]);
    }
}
