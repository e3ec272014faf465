use super::*;
use crate::testing::{Choices, TestArray, TestLayout, numbers, run_kernel};
use crate::with_threads;
use pellucid_ir::Shape;
use pellucid_ir::kernel::Kernel;
use pellucid_ir::{Compute, Error};

/// Returns the lines of a row-major array along `axis`, as lists of indices of elements.
fn lines(shape: &Shape, axis: usize) -> Vec<Vec<usize>> {
    let inner: usize = shape[axis + 1..].iter().product();
    let outer: usize = shape[..axis].iter().product();
    let line = |o: usize, i: usize| (0..shape[axis]).map(|k| (o * shape[axis] + k) * inner + i).collect();
    (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))).map(|(o, i)| line(o, i)).collect()
}

/// Computes the values and positions by the definition, in `f64`.
fn naive(scan: &Scan, shape: &Shape, x: &[f64], round: impl Fn(f64) -> f64) -> (Vec<f64>, Vec<i64>) {
    let (mut y, mut p) = (vec![0.0; x.len()], vec![0; x.len()]);
    for mut line in lines(shape, scan.axis) {
        if scan.reverse {
            line.reverse();
        }
        let (mut acc, mut position) = (f64::NAN, 0);
        for (step, &i) in line.iter().enumerate() {
            let first = step == 0;
            let replaces = |better: bool| first || x[i].is_nan() || better;
            match scan.op {
                ScanOp::Sum => acc = if first { x[i] } else { acc + x[i] },
                ScanOp::Prod => acc = if first { x[i] } else { acc * x[i] },
                ScanOp::Max | ScanOp::Min => {
                    if replaces(if scan.op == ScanOp::Max { x[i] >= acc } else { x[i] <= acc }) {
                        (acc, position) = (x[i], if scan.reverse { line.len() - 1 - step } else { step } as i64);
                    }
                }
                ScanOp::LogSumExp => acc = if first { x[i] } else { (acc.exp() + x[i].exp()).ln() },
            }
            (y[i], p[i]) = (round(acc), position);
        }
    }
    (y, p)
}

const OPS: [ScanOp; 5] = [ScanOp::Sum, ScanOp::Prod, ScanOp::Max, ScanOp::Min, ScanOp::LogSumExp];

/// Runs a scan and returns the values and the positions. The positions are unwritten if the scan has none.
fn run_scan(scan: Scan, x: &TestArray, layout: TestLayout) -> Result<(TestArray, TestArray)> {
    let y = TestArray::new(x.layout.shape(), x.dtype, layout);
    let p = TestArray::new(x.layout.shape(), DType::I64, layout);
    let outputs = if matches!(scan.op, ScanOp::Max | ScanOp::Min) { vec![&y, &p] } else { vec![&y] };
    run_kernel(Kernel::Scan(scan), &[x], &outputs)?;
    Ok((y, p))
}

#[test]
fn scans_equal_the_definition_for_every_operation_axis_and_layout() {
    for shape in [Shape::from([5]), [3, 4].into(), [2, 7, 3].into(), [2, 3, 300].into(), [40, 9].into(), [1, 1].into()]
    {
        // The elements are small integers, so all results except ln Σ exp must be equal.
        let x = numbers(shape.size(), 2, 7);
        for (axis, op, reverse) in (0..shape.rank()).flat_map(|a| OPS.map(|o| [(a, o, false), (a, o, true)])).flatten()
        {
            let scan = Scan { op, axis, reverse };
            for (from, to) in TestLayout::ALL.into_iter().zip([
                TestLayout::Plain,
                TestLayout::Transposed,
                TestLayout::Plain,
                TestLayout::Gaps,
                TestLayout::Flipped,
            ]) {
                let (y, p) = run_scan(scan, &TestArray::cast(shape.clone(), from, DType::F32, &x), to).unwrap();
                let (value, position) = naive(&scan, &shape, &x, |v| v as f32 as f64);
                for (y, value) in y.reals().iter().zip(&value) {
                    let tolerance = if op == ScanOp::LogSumExp { 2e-6 * value.abs() + 1e-6 } else { 0.0 };
                    assert!((y - value).abs() <= tolerance || y == value, "{scan:?} {from:?}: {y} {value}");
                }
                if matches!(op, ScanOp::Max | ScanOp::Min) {
                    assert_eq!(p.values::<i64>(), position, "{scan:?} {from:?}");
                }
            }
        }
    }
}

#[test]
fn sweep_of_lengths_axes_and_dtypes() {
    let choices = &Choices::new(61);
    let small = (1..=20).flat_map(|n| (1..=20).map(move |m| [n, m]));
    let long = [63, 64, 65, 255, 256, 257, 300, 1025].into_iter().flat_map(|n| [[n, 3], [3, n], [n, 17], [17, n]]);
    for shape in small.chain(long).chain([[40, 3000], [3000, 40]]).map(Shape::from) {
        for axis in [0, 1] {
            let op = choices.of(&OPS);
            let scan = Scan { op, axis, reverse: choices.below(2) == 0 };
            let dtype = match op {
                ScanOp::LogSumExp => choices.of(&[DType::F32, DType::F64]),
                _ => choices.of(&[DType::F32, DType::F64, DType::I32, DType::I64]),
            };
            let (from, to, threads) = (choices.of(&TestLayout::ALL), choices.of(&TestLayout::ALL), choices.threads());
            // Products of 1 and −1 and sums of small integers are exact.
            let x = numbers(shape.size(), 2, 7).into_iter();
            let x: Vec<f64> = x.map(|x| if op == ScanOp::Prod && x != -1.0 { 1.0 } else { x }).collect();
            let array = TestArray::cast(shape.clone(), from, dtype, &x);
            let (y, p) = with_threads(threads, || run_scan(scan, &array, to).unwrap());
            let (value, position) = naive(&scan, &shape, &x, |v| v);
            let case = || format!("{scan:?} {shape} {dtype} {from:?} {to:?} {threads} threads");
            for (y, value) in y.reals().iter().zip(&value) {
                let tolerance = if op == ScanOp::LogSumExp { 1e-5 * (1.0 + value.abs()) } else { 0.0 };
                assert!((y - value).abs() <= tolerance, "{}: {y} {value}", case());
            }
            if matches!(op, ScanOp::Max | ScanOp::Min) {
                assert_eq!(p.values::<i64>(), position, "{}", case());
            }
        }
    }
}

#[test]
fn integers_wrap_and_half_precision_rounds_only_its_results() {
    let scan = |op| Scan { op, axis: 0, reverse: false };
    let x: Vec<f64> = (1..40).map(|i| i as f64).collect();
    for (dtype, wrap) in [(DType::U8, 256.0), (DType::I16, 65536.0)] {
        let (y, _) =
            run_scan(scan(ScanOp::Sum), &TestArray::cast([39], TestLayout::Plain, dtype, &x), TestLayout::Plain)
                .unwrap();
        for (i, y) in y.reals().iter().enumerate() {
            assert_eq!(y.rem_euclid(wrap), ((i + 1) * (i + 2) / 2) as f64 % wrap);
        }
    }
    let (y, _) =
        run_scan(scan(ScanOp::Prod), &TestArray::cast([39], TestLayout::Plain, DType::I64, &x), TestLayout::Plain)
            .unwrap();
    assert_eq!(y.values::<i64>()[38], (1..40i64).fold(1, i64::wrapping_mul));
    // 2048 + 1 + 1 would be 2048 if every step were rounded to f16.
    let (y, _) = run_scan(
        scan(ScanOp::Sum),
        &TestArray::cast([3], TestLayout::Plain, DType::F16, &[2048.0, 1.0, 1.0]),
        TestLayout::Plain,
    )
    .unwrap();
    assert_eq!(y.reals(), [2048.0, 2048.0, 2050.0]);
    let (y, _) = run_scan(
        scan(ScanOp::Sum),
        &TestArray::cast([3], TestLayout::Plain, DType::BF16, &[256.0, 1.0, 1.0]),
        TestLayout::Plain,
    )
    .unwrap();
    assert_eq!(y.reals(), [256.0, 256.0, 258.0]);
}

#[test]
fn infinities_and_nan_follow_the_definition() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let assert_equal =
        |a: &[f64], b: &[f64]| assert!(a.iter().zip(b).all(|(a, b)| a == b || a.is_nan() && b.is_nan()), "{a:?} {b:?}");
    for (shape, axis) in [([8, 1], 0), ([1, 8], 1)] {
        for dtype in [DType::F32, DType::F64] {
            let x = TestArray::cast(shape, TestLayout::Plain, dtype, &[-inf, -inf, 0.0, 0.0, inf, 1.0, nan, inf]);
            let (y, _) = run_scan(Scan { op: ScanOp::LogSumExp, axis, reverse: false }, &x, TestLayout::Plain).unwrap();
            let ln2 = if dtype == DType::F32 { std::f32::consts::LN_2 as f64 } else { std::f64::consts::LN_2 };
            assert_equal(&y.reals(), &[-inf, -inf, 0.0, ln2, inf, inf, nan, nan]);
            let x = TestArray::cast(shape, TestLayout::Plain, dtype, &[-inf, -0.0, 0.0, 1.0, nan, 2.0, nan, inf]);
            let (y, p) = run_scan(Scan { op: ScanOp::Max, axis, reverse: false }, &x, TestLayout::Plain).unwrap();
            assert_equal(&y.reals(), &[-inf, -0.0, 0.0, 1.0, nan, nan, nan, nan]);
            assert_eq!(p.values::<i64>(), [0, 1, 2, 3, 4, 4, 6, 6]);
        }
    }
}

#[test]
fn threads_and_layouts_change_no_bit() {
    let shape = Shape::from([70, 60, 50]);
    let x: Vec<f64> = numbers(shape.size(), 1000, 3).iter().map(|v| v / 777.0).collect();
    for (op, axis) in OPS.into_iter().flat_map(|op| [(op, 0), (op, 1), (op, 2)]) {
        let scan = Scan { op, axis, reverse: false };
        let plain =
            run_scan(scan, &TestArray::cast(shape.clone(), TestLayout::Plain, DType::F32, &x), TestLayout::Plain)
                .unwrap()
                .0
                .values::<f32>();
        let transposed = with_threads(3, || {
            run_scan(
                scan,
                &TestArray::cast(shape.clone(), TestLayout::Transposed, DType::F32, &x),
                TestLayout::Transposed,
            )
            .unwrap()
            .0
            .values::<f32>()
        });
        assert!(plain.iter().zip(&transposed).all(|(a, b)| a.to_bits() == b.to_bits()), "{scan:?}");
    }
}

#[test]
fn empty_arrays_are_accepted_and_invalid_operands_are_errors() {
    let scan = Scan { op: ScanOp::Sum, axis: 1, reverse: true };
    run_scan(scan, &TestArray::new([3, 0], DType::F32, TestLayout::Plain), TestLayout::Plain).unwrap();
    run_scan(scan, &TestArray::new([0, 3], DType::F32, TestLayout::Plain), TestLayout::Plain).unwrap();
    let mask = TestArray::of([1, 2], TestLayout::Plain, &[true, false]);
    assert!(matches!(run_scan(scan, &mask, TestLayout::Plain), Err(Error::DTypeMismatch { .. })));
    let x = TestArray::of([2, 2], TestLayout::Plain, &[1.0f32; 4]);
    let short = TestArray::new([2, 1], DType::F32, TestLayout::Plain);
    assert!(run_kernel(Kernel::Scan(scan), &[&x], &[&short]).is_err());
    assert!(
        run_kernel(Kernel::Scan(scan), &[&TestArray::new([2, 2], DType::F32, TestLayout::Plain)], &[&x]).is_err(),
        "a scan of an input whose buffer was never allocated must be an error"
    );
}

#[test]
fn sums_and_products_accumulate_in_the_type_of_the_kernel() {
    fn check<T: Accumulate>(compute: Compute) {
        assert_eq!(size_of::<T::Total>(), ScanOp::accumulator(compute).size(), "{compute:?}");
    }
    check::<i32>(Compute::I32);
    check::<i64>(Compute::I64);
    check::<f32>(Compute::F32);
    check::<f64>(Compute::F64);
}
