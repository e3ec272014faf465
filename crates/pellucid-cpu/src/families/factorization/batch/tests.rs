//! Tests of every factorization of a batch, in every layout and on several threads. The products of the factors are
//! computed by naive loops.

use crate::testing::{TestArray, TestLayout, numbers, run_kernel};
use crate::with_threads;
use pellucid_ir::kernel::{Factorization, Kernel, Meta, SvdVectors};
use pellucid_ir::{DType, Error};

const BATCH: [usize; 2] = [3, 2];

/// The matrices of an array [3, 2, rows, columns], in row-major order.
#[derive(Clone)]
struct MatrixStack {
    rows: usize,
    columns: usize,
    data: Vec<f64>,
}

impl MatrixStack {
    fn from_fn(rows: usize, columns: usize, f: impl Fn(usize, usize, usize) -> f64) -> MatrixStack {
        let index = |k: usize| (k / (rows * columns), k / columns % rows, k % columns);
        let data = (0..6 * rows * columns).map(index).map(|(b, i, j)| f(b, i, j)).collect();
        MatrixStack { rows, columns, data }
    }

    fn from_array(array: &TestArray) -> MatrixStack {
        let shape = array.layout.shape();
        let axis = |k: usize| shape.get(2 + k).copied().unwrap_or(1);
        MatrixStack { rows: axis(0), columns: axis(1), data: array.reals() }
    }

    fn at(&self, b: usize, i: usize, j: usize) -> f64 {
        self.data[(b * self.rows + i) * self.columns + j]
    }

    fn transpose(&self) -> MatrixStack {
        MatrixStack::from_fn(self.columns, self.rows, |b, i, j| self.at(b, j, i))
    }

    fn times(&self, other: &MatrixStack) -> MatrixStack {
        let sum = |b, i, j| (0..self.columns).map(|k| self.at(b, i, k) * other.at(b, k, j)).sum();
        MatrixStack::from_fn(self.rows, other.columns, sum)
    }

    fn array(&self, dtype: DType, layout: TestLayout) -> TestArray {
        TestArray::cast([BATCH[0], BATCH[1], self.rows, self.columns], layout, dtype, &self.data)
    }

    /// Returns vectors of `i32`, for matrices with one column.
    fn pivots(&self, layout: TestLayout) -> TestArray {
        TestArray::cast([BATCH[0], BATCH[1], self.rows], layout, DType::I32, &self.data)
    }
}

fn random(rows: usize, columns: usize) -> MatrixStack {
    let values = numbers(6 * rows * columns, 1000, 77);
    MatrixStack { rows, columns, data: values.into_iter().map(|x| x / 1000.0).collect() }
}

/// Runs a factorization whose inputs and outputs have the given dtype and layout, and returns the outputs.
fn factors(kernel: Factorization, inputs: &[&MatrixStack], dtype: DType, layout: TestLayout) -> Vec<TestArray> {
    let has_pivots =
        matches!(kernel, Factorization::LuSolve { .. } | Factorization::Cofactors | Factorization::LdlSolve);
    let input = |(k, stack): (usize, &&MatrixStack)| match has_pivots && k == 1 {
        true => stack.pivots(layout),
        false => stack.array(dtype, layout),
    };
    let inputs: Vec<TestArray> = inputs.iter().enumerate().map(input).collect();
    let metas: Vec<Meta> = inputs.iter().map(|a| Meta { shape: a.layout.shape().clone(), dtype: a.dtype }).collect();
    let kernel = Kernel::Factorization(kernel);
    let outputs: Vec<TestArray> =
        kernel.infer(&metas).unwrap().into_iter().map(|m| TestArray::new(m.shape, m.dtype, layout)).collect();
    run_kernel(kernel, &inputs.iter().collect::<Vec<_>>(), &outputs.iter().collect::<Vec<_>>()).unwrap();
    outputs
}

/// Runs a factorization in both dtypes and all layouts, on 1, 2 and 8 threads, and asserts that all results of a dtype
/// have the same bits. Calls `check` with the factors and the tolerance of each dtype.
fn check_all(kernel: Factorization, inputs: &[&MatrixStack], check: impl Fn(&[MatrixStack], f64)) {
    for (dtype, tolerance) in [(DType::F64, 1e-12), (DType::F32, 2e-5)] {
        let plain = factors(kernel, inputs, dtype, TestLayout::Plain);
        check(&plain.iter().map(MatrixStack::from_array).collect::<Vec<_>>(), tolerance);
        let bits =
            |arrays: &[TestArray]| -> Vec<u64> { arrays.iter().flat_map(|a| a.reals()).map(f64::to_bits).collect() };
        for layout in TestLayout::ALL {
            for threads in [1, 2, 8] {
                let again = with_threads(threads, || factors(kernel, inputs, dtype, layout));
                assert_eq!(bits(&again), bits(&plain), "{kernel:?} {dtype} {layout:?} {threads}");
            }
        }
    }
}

#[track_caller]
fn close(got: &MatrixStack, expected: &MatrixStack, tolerance: f64) {
    assert_eq!((got.rows, got.columns), (expected.rows, expected.columns));
    let mismatch = got.data.iter().zip(&expected.data).find(|(a, b)| (*a - *b).abs() > tolerance);
    assert!(mismatch.is_none(), "{mismatch:?}");
}

fn identity(n: usize) -> MatrixStack {
    MatrixStack::from_fn(n, n, |_, i, j| f64::from(u8::from(i == j)))
}

fn lower(a: &MatrixStack) -> MatrixStack {
    MatrixStack::from_fn(a.rows, a.columns, |b, i, j| if i > j { a.at(b, i, j) } else { 0.0 })
}

fn upper(a: &MatrixStack) -> MatrixStack {
    MatrixStack::from_fn(a.rows, a.columns, |b, i, j| if i <= j { a.at(b, i, j) } else { 0.0 })
}

fn plus(a: &MatrixStack, b: &MatrixStack) -> MatrixStack {
    MatrixStack { data: a.data.iter().zip(&b.data).map(|(a, b)| a + b).collect(), ..*a }
}

#[test]
fn cholesky() {
    for n in (0..=20).chain([40]) {
        let x = random(n, n);
        let a = plus(&x.times(&x.transpose()), &identity(n));
        check_all(Factorization::Cholesky, &[&a], |f, tolerance| {
            close(&f[0].times(&f[0].transpose()), &a, tolerance * (1 + n) as f64);
            assert!(f[1].data.iter().all(|&minor| minor == 0.0));
        });
    }
    let indefinite = MatrixStack::from_fn(3, 3, |b, i, j| {
        if i != j {
            0.0
        } else if (b, i) == (4, 1) {
            -1.0
        } else {
            1.0
        }
    });
    check_all(Factorization::Cholesky, &[&indefinite], |f, _| {
        assert_eq!(f[1].data, [0.0, 0.0, 0.0, 0.0, 2.0, 0.0]);
        assert_eq!(f[0].data.iter().filter(|x| x.is_nan()).count(), 9);
    });
}

#[test]
fn lu_and_row_order() {
    for (m, n) in [(0, 2), (1, 1), (4, 4), (3, 6), (6, 3), (40, 40)] {
        let a = random(m, n);
        check_all(Factorization::Lu, &[&a], |f, tolerance| {
            let k = m.min(n);
            let l = MatrixStack::from_fn(m, k, |b, i, j| if i == j { 1.0 } else { lower(&f[0]).at(b, i, j) });
            let u = MatrixStack::from_fn(k, n, |b, i, j| upper(&f[0]).at(b, i, j));
            let pivots = TestArray::cast([BATCH[0], BATCH[1], k], TestLayout::Gaps, DType::I32, &f[1].data);
            let order = TestArray::new([BATCH[0], BATCH[1], m], DType::I64, TestLayout::Transposed);
            run_kernel(
                Kernel::Factorization(Factorization::RowOrder { op: "lu_unpack", rows: m }),
                &[&pivots],
                &[&order],
            )
            .unwrap();
            let order = order.reals();
            let pa = MatrixStack::from_fn(m, n, |b, i, j| a.at(b, order[b * m + i] as usize, j));
            close(&l.times(&u), &pa, tolerance);
            assert!(f[2].data.iter().all(|&zero| zero == 0.0));
        });
    }
    let singular = MatrixStack::from_fn(3, 3, |b, i, j| if b == 3 && j == 1 { 0.0 } else { identity(3).at(b, i, j) });
    check_all(Factorization::Lu, &[&singular], |f, _| assert_eq!(f[2].data, [0.0, 0.0, 0.0, 2.0, 0.0, 0.0]));
}

#[test]
fn lu_solve_and_cofactors() {
    for n in [0, 1, 4, 16, 20] {
        let (a, b) = (random(n, n), random(n, 3));
        let lu = factors(Factorization::Lu, &[&a], DType::F64, TestLayout::Plain);
        let (packed, pivots) = (MatrixStack::from_array(&lu[0]), MatrixStack::from_array(&lu[1]));
        for transposed in [false, true] {
            let matrix = if transposed { a.transpose() } else { a.clone() };
            check_all(Factorization::LuSolve { transposed }, &[&packed, &pivots, &b], |f, tolerance| {
                close(&matrix.times(&f[0]), &b, tolerance * 1e3);
            });
        }
        check_all(Factorization::Cofactors, &[&packed, &pivots], |f, tolerance| {
            let product = a.times(&f[0].transpose());
            let expected = MatrixStack::from_fn(n, n, |b, i, j| if i == j { product.at(b, 0, 0) } else { 0.0 });
            let size = f[0].data.iter().fold(1.0, |size: f64, x| size.max(x.abs()));
            close(&product, &expected, tolerance * size * (1 + n) as f64);
        });
    }
}

/// The bits of the factors of a matrix do not depend on its position in the batch, although a batch is factored in
/// groups of 16 matrices.
#[test]
fn a_matrix_has_the_same_bits_alone_and_in_a_batch() {
    let values = numbers(40 * 64, 1000, 5);
    for (count, kernel) in [0, 1, 5, 6, 7, 15, 16, 17, 21, 22, 40]
        .into_iter()
        .flat_map(|count| [Factorization::Lu, Factorization::Cholesky].map(|kernel| (count, kernel)))
    {
        let run = |first: usize, count: usize| -> Vec<Vec<f64>> {
            let a = TestArray::of([count, 8, 8], TestLayout::Plain, &values[first * 64..][..count * 64]);
            let meta = Meta { shape: a.layout.shape().clone(), dtype: a.dtype };
            let kernel = Kernel::Factorization(kernel);
            let outputs: Vec<TestArray> = kernel
                .infer(&[meta])
                .unwrap()
                .into_iter()
                .map(|m| TestArray::new(m.shape, m.dtype, TestLayout::Plain))
                .collect();
            run_kernel(kernel, &[&a], &outputs.iter().collect::<Vec<_>>()).unwrap();
            outputs.iter().map(TestArray::reals).collect()
        };
        for (k, together) in run(0, count).into_iter().enumerate() {
            let alone: Vec<f64> = (0..count).flat_map(|b| run(b, 1).swap_remove(k)).collect();
            let bits = |values: &[f64]| -> Vec<u64> { values.iter().map(|x| x.to_bits()).collect() };
            assert_eq!(bits(&together), bits(&alone), "output {k} of {kernel:?} of {count} matrices");
        }
    }
}

#[test]
fn pivots_out_of_range_are_errors() {
    let order = TestArray::new([3], DType::I64, TestLayout::Plain);
    for pivots in [[0, 1], [1, 4], [-1, 2]] {
        let pivots = TestArray::of([2], TestLayout::Plain, &pivots);
        let result = run_kernel(
            Kernel::Factorization(Factorization::RowOrder { op: "lu_unpack", rows: 3 }),
            &[&pivots],
            &[&order],
        );
        assert!(matches!(result, Err(Error::InvalidArgument { .. })));
    }
}

#[test]
fn ldl_and_ldl_solve() {
    for n in [0, 2, 5, 30] {
        let half = random(n, n);
        // A zero diagonal requires 2×2 blocks.
        let a = MatrixStack::from_fn(
            n,
            n,
            |b, i, j| if i == j && b > 2 { 0.0 } else { half.at(b, i, j) + half.at(b, j, i) },
        );
        let b = random(n, 3);
        check_all(Factorization::Ldl, &[&a], |f, tolerance| {
            let packed = f[0].array(DType::F64, TestLayout::Transposed);
            let pivots = TestArray::cast([BATCH[0], BATCH[1], n], TestLayout::Gaps, DType::I32, &f[1].data);
            let right = b.array(DType::F64, TestLayout::Plain);
            let x = TestArray::new([BATCH[0], BATCH[1], n, 3], DType::F64, TestLayout::Plain);
            run_kernel(Kernel::Factorization(Factorization::LdlSolve), &[&packed, &pivots, &right], &[&x]).unwrap();
            let x = x.reals();
            let x = MatrixStack::from_fn(n, 3, |b, i, j| x[(b * n + i) * 3 + j]);
            close(&a.times(&x), &b, tolerance * 1e3);
        });
    }
}

#[test]
fn invalid_ldl_pivots_are_errors() {
    let (a, x) =
        (TestArray::of([2, 2], TestLayout::Plain, &[1.0; 4]), TestArray::new([2, 1], DType::F64, TestLayout::Plain));
    let b = TestArray::of([2, 1], TestLayout::Plain, &[1.0; 2]);
    for pivots in [[-1i32, 1], [1, -2], [0, 1], [3, 1], [-1, -2]] {
        let pivots = TestArray::of([2], TestLayout::Plain, &pivots);
        let result = run_kernel(Kernel::Factorization(Factorization::LdlSolve), &[&a, &pivots, &b], &[&x]);
        assert!(matches!(result, Err(Error::InvalidArgument { .. })));
    }
}

#[test]
fn qr() {
    for (m, n) in [(2, 0), (1, 1), (4, 4), (3, 6), (6, 3), (20, 2), (18, 18)] {
        let a = random(m, n);
        check_all(Factorization::Qr, &[&a], |f, tolerance| {
            let q = (0..m.min(n)).fold(identity(m), |q, k| {
                let v = |b, i: usize| {
                    if i == k {
                        1.0
                    } else if i > k {
                        f[0].at(b, i, k)
                    } else {
                        0.0
                    }
                };
                let reflection = |b, i, j| identity(m).at(b, i, j) - f[1].at(b, k, 0) * v(b, i) * v(b, j);
                q.times(&MatrixStack::from_fn(m, m, reflection))
            });
            close(&q.transpose().times(&q), &identity(m), tolerance);
            close(&q.times(&upper(&f[0])), &a, tolerance);
            let taus = TestArray::cast([BATCH[0], BATCH[1], m.min(n)], TestLayout::Gaps, DType::F64, &f[1].data);
            let packed = f[0].array(DType::F64, TestLayout::Transposed);
            for columns in [m.min(n), m] {
                let basis = TestArray::new([BATCH[0], BATCH[1], m, columns], DType::F64, TestLayout::Plain);
                let kernel = Kernel::Factorization(Factorization::HouseholderBasis { columns });
                run_kernel(kernel, &[&packed, &taus], &[&basis]).unwrap();
                let expected = MatrixStack::from_fn(m, columns, |b, i, j| q.at(b, i, j));
                close(&MatrixStack::from_array(&basis), &expected, tolerance);
            }
        });
    }
}

#[test]
fn svd() {
    for (m, n) in [(0, 2), (1, 1), (4, 4), (3, 6), (6, 3), (20, 20)] {
        let (a, k) = (random(m, n), m.min(n));
        for vectors in [SvdVectors::Thin, SvdVectors::Full] {
            check_all(Factorization::Svd(vectors), &[&a], |f, tolerance| {
                let (u, s, vt) = (&f[0], &f[1], &f[2]);
                let tolerance = tolerance * (1 + m + n) as f64;
                close(&u.transpose().times(u), &identity(u.columns), tolerance);
                close(&vt.times(&vt.transpose()), &identity(vt.rows), tolerance);
                let us = MatrixStack::from_fn(m, k, |b, i, j| u.at(b, i, j) * s.at(b, j, 0));
                close(&us.times(&MatrixStack::from_fn(k, n, |b, i, j| vt.at(b, i, j))), &a, tolerance);
            });
        }
        check_all(Factorization::Svd(SvdVectors::Without), &[&a], |f, tolerance| {
            let full = factors(Factorization::Svd(SvdVectors::Thin), &[&a], DType::F64, TestLayout::Plain);
            close(&f[0], &MatrixStack::from_array(&full[1]), tolerance * (1 + m + n) as f64);
        });
    }
}

#[test]
fn eigh() {
    for n in [0, 1, 4, 20] {
        let x = random(n, n);
        let a = plus(&x, &x.transpose());
        check_all(Factorization::Eigh { vectors: true }, &[&a], |f, tolerance| {
            let (w, v) = (&f[0], &f[1]);
            let tolerance = tolerance * (1 + n) as f64;
            close(&v.transpose().times(v), &identity(n), tolerance);
            let vw = MatrixStack::from_fn(n, n, |b, i, j| v.at(b, i, j) * w.at(b, j, 0));
            close(&vw.times(&v.transpose()), &a, tolerance);
        });
        check_all(Factorization::Eigh { vectors: false }, &[&a], |f, tolerance| {
            let full = factors(Factorization::Eigh { vectors: true }, &[&a], DType::F64, TestLayout::Plain);
            close(&f[0], &MatrixStack::from_array(&full[0]), tolerance * (1 + n) as f64);
        });
    }
}

#[test]
fn solve_triangular() {
    for (n, k) in [(0, 2), (1, 1), (5, 3), (20, 1)] {
        let (x, b) = (random(n, n), random(n, k));
        for unit in [false, true] {
            let diagonal = |b, i| if unit { 1.0 } else { 3.0 + x.at(b, i, i) };
            for up in [false, true] {
                let a = MatrixStack::from_fn(n, n, |b, i, j| match i == j {
                    true => diagonal(b, i),
                    false if (i < j) == up => x.at(b, i, j) / n as f64,
                    false => 0.0,
                });
                check_all(Factorization::TriangularSolve { upper: up, unit }, &[&a, &b], |f, tolerance| {
                    close(&a.times(&f[0]), &b, tolerance * (1 + n) as f64);
                });
            }
        }
    }
}

#[test]
fn exp() {
    for n in [0, 1, 4] {
        let a = random(n, n);
        check_all(Factorization::Exp, &[&a], |f, tolerance| {
            let mut term = identity(n);
            let mut sum = identity(n);
            for k in 1..40 {
                term = term.times(&a);
                term.data.iter_mut().for_each(|x| *x /= f64::from(k));
                sum = plus(&sum, &term);
            }
            close(&f[0], &sum, tolerance * (1 + n) as f64 * 10.0);
        });
    }
}

#[test]
fn wrong_shapes_dtypes_and_arities_are_errors() {
    let a = random(3, 3).array(DType::F64, TestLayout::Plain);
    let (out, count) = (
        TestArray::new([3, 2, 3, 3], DType::F64, TestLayout::Plain),
        TestArray::new([3, 2], DType::I32, TestLayout::Plain),
    );
    run_kernel(Kernel::Factorization(Factorization::Cholesky), &[&a], &[&out, &count]).unwrap();
    assert!(run_kernel(Kernel::Factorization(Factorization::Cholesky), &[&a], &[&out]).is_err());
    assert!(matches!(
        run_kernel(Kernel::Factorization(Factorization::Cholesky), &[&a], &[&count, &count]),
        Err(Error::ShapeMismatch { .. })
    ));
    let narrow = TestArray::new([3, 2, 3, 3], DType::F32, TestLayout::Plain);
    assert!(matches!(
        run_kernel(Kernel::Factorization(Factorization::Exp), &[&a], &[&narrow]),
        Err(Error::DTypeMismatch { .. })
    ));
    let half_precision = TestArray::cast([3, 2, 3, 3], TestLayout::Plain, DType::F16, &[0.0; 54]);
    assert!(matches!(
        run_kernel(Kernel::Factorization(Factorization::Exp), &[&half_precision], &[&half_precision]),
        Err(Error::DTypeMismatch { .. })
    ));
    let wide = random(2, 3).array(DType::F64, TestLayout::Plain);
    assert!(matches!(
        run_kernel(Kernel::Factorization(Factorization::Exp), &[&wide], &[&wide]),
        Err(Error::ShapeMismatch { .. })
    ));
}

#[test]
fn least_squares() {
    for (m, n, k) in [(4, 4, 1), (9, 3, 2), (40, 5, 3), (30, 20, 1), (3, 7, 2), (1, 1, 20)] {
        let (a, b) = (random(m, n), random(m, k));
        let bound = MatrixStack::from_fn(1, 1, |_, _, _| 1e-4);
        let at = a.transpose();
        let inputs = |dtype, layout| {
            let bounds = TestArray::cast([BATCH[0], BATCH[1], 1], layout, dtype, &bound.data);
            [a.array(dtype, layout), b.array(dtype, layout), bounds]
        };
        for (dtype, tolerance) in [(DType::F64, 1e-11), (DType::F32, 1e-4)] {
            let solve = |layout, threads| {
                with_threads(threads, || {
                    let inputs = inputs(dtype, layout);
                    let solution = TestArray::new([BATCH[0], BATCH[1], n, k], dtype, layout);
                    let values = TestArray::new([BATCH[0], BATCH[1], m.min(n)], dtype, layout);
                    let rank = TestArray::new(BATCH, DType::I32, layout);
                    let kernel = Kernel::Factorization(Factorization::LeastSquares);
                    run_kernel(kernel, &inputs.each_ref(), &[&solution, &values, &rank]).unwrap();
                    [solution, values, rank]
                })
            };
            let plain = solve(TestLayout::Plain, 1);
            let x = MatrixStack::from_array(&plain[0]);
            close(&at.times(&a.times(&x)), &at.times(&b), tolerance * m as f64);
            assert_eq!(plain[2].reals(), [m.min(n) as f64; 6]);
            let bits = |arrays: &[TestArray; 3]| {
                arrays.each_ref().map(|array| array.reals().iter().map(|x| x.to_bits()).collect::<Vec<_>>())
            };
            for layout in TestLayout::ALL {
                for threads in [1, 2, 8] {
                    assert_eq!(bits(&solve(layout, threads)), bits(&plain), "{m} {n} {k} {dtype} {layout:?} {threads}");
                }
            }
        }
    }
}
