//! Every factorisation of a batch, in every layout and on several threads: what the factors make of one another,
//! by plain loops.

use crate::testing::{Array, TestLayout, numbers, run};
use crate::with_threads;
use pellucid_ir::kernel::{Factor, Kernel, Meta, Vectors};
use pellucid_ir::{DType, Error};

const BATCH: [usize; 2] = [3, 2];

/// All matrices of `[3, 2, rows, columns]`, one after the other.
#[derive(Clone)]
struct Stack {
    rows: usize,
    columns: usize,
    data: Vec<f64>,
}

impl Stack {
    fn from_fn(rows: usize, columns: usize, f: impl Fn(usize, usize, usize) -> f64) -> Stack {
        let at = |k: usize| (k / (rows * columns), k / columns % rows, k % columns);
        let data = (0..6 * rows * columns).map(at).map(|(b, i, j)| f(b, i, j)).collect();
        Stack { rows, columns, data }
    }

    fn of(array: &Array) -> Stack {
        let shape = array.layout.shape();
        let axis = |k: usize| shape.get(2 + k).copied().unwrap_or(1);
        Stack { rows: axis(0), columns: axis(1), data: array.reals() }
    }

    fn at(&self, b: usize, i: usize, j: usize) -> f64 {
        self.data[(b * self.rows + i) * self.columns + j]
    }

    fn t(&self) -> Stack {
        Stack::from_fn(self.columns, self.rows, |b, i, j| self.at(b, j, i))
    }

    fn times(&self, other: &Stack) -> Stack {
        let sum = |b, i, j| (0..self.columns).map(|k| self.at(b, i, k) * other.at(b, k, j)).sum();
        Stack::from_fn(self.rows, other.columns, sum)
    }

    fn array(&self, dtype: DType, lie: TestLayout) -> Array {
        Array::cast([BATCH[0], BATCH[1], self.rows, self.columns], lie, dtype, &self.data)
    }
}

fn random(rows: usize, columns: usize) -> Stack {
    let values = numbers(6 * rows * columns, 1000, 77);
    Stack { rows, columns, data: values.into_iter().map(|x| x / 1000.0).collect() }
}

/// The factors of inputs that lie like this.
fn factors(kernel: Factor, inputs: &[&Stack], dtype: DType, lie: TestLayout) -> Vec<Array> {
    let inputs: Vec<Array> = inputs.iter().map(|s| s.array(dtype, lie)).collect();
    let metas: Vec<Meta> = inputs.iter().map(|a| Meta { shape: a.layout.shape().clone(), dtype: a.dtype }).collect();
    let kernel = Kernel::Factor(kernel);
    let outputs: Vec<Array> =
        kernel.infer(&metas).unwrap().into_iter().map(|m| Array::new(m.shape, m.dtype, lie)).collect();
    run(kernel, &inputs.iter().collect::<Vec<_>>(), &outputs.iter().collect::<Vec<_>>()).unwrap();
    outputs
}

/// Runs a factorisation in both dtypes and all layouts, on 1, 2 and 8 threads: the same bits every time. Gives the
/// factors of each dtype to `check`, with the tolerance.
fn all(kernel: Factor, inputs: &[&Stack], check: impl Fn(&[Stack], f64)) {
    for (dtype, tolerance) in [(DType::F64, 1e-12), (DType::F32, 2e-5)] {
        let plain = factors(kernel, inputs, dtype, TestLayout::Plain);
        check(&plain.iter().map(Stack::of).collect::<Vec<_>>(), tolerance);
        let bits = |arrays: &[Array]| -> Vec<u64> { arrays.iter().flat_map(|a| a.reals()).map(f64::to_bits).collect() };
        for lie in TestLayout::ALL {
            for threads in [1, 2, 8] {
                let again = with_threads(threads, || factors(kernel, inputs, dtype, lie));
                assert_eq!(bits(&again), bits(&plain), "{kernel:?} {dtype} {lie:?} {threads}");
            }
        }
    }
}

#[track_caller]
fn close(got: &Stack, expected: &Stack, tolerance: f64) {
    assert_eq!((got.rows, got.columns), (expected.rows, expected.columns));
    let far = got.data.iter().zip(&expected.data).find(|(a, b)| (*a - *b).abs() > tolerance);
    assert!(far.is_none(), "{far:?}");
}

fn identity(n: usize) -> Stack {
    Stack::from_fn(n, n, |_, i, j| f64::from(u8::from(i == j)))
}

fn lower(a: &Stack) -> Stack {
    Stack::from_fn(a.rows, a.columns, |b, i, j| if i > j { a.at(b, i, j) } else { 0.0 })
}

fn upper(a: &Stack) -> Stack {
    Stack::from_fn(a.rows, a.columns, |b, i, j| if i <= j { a.at(b, i, j) } else { 0.0 })
}

fn plus(a: &Stack, b: &Stack) -> Stack {
    Stack { data: a.data.iter().zip(&b.data).map(|(a, b)| a + b).collect(), ..*a }
}

#[test]
fn cholesky() {
    for n in (0..=20).chain([40]) {
        let x = random(n, n);
        let a = plus(&x.times(&x.t()), &identity(n));
        all(Factor::Cholesky, &[&a], |f, tolerance| {
            close(&f[0].times(&f[0].t()), &a, tolerance * (1 + n) as f64);
            assert!(f[1].data.iter().all(|&minor| minor == 0.0));
        });
    }
    let indefinite = Stack::from_fn(3, 3, |b, i, j| {
        if i != j {
            0.0
        } else if (b, i) == (4, 1) {
            -1.0
        } else {
            1.0
        }
    });
    all(Factor::Cholesky, &[&indefinite], |f, _| {
        assert_eq!(f[1].data, [0.0, 0.0, 0.0, 0.0, 2.0, 0.0]);
        assert_eq!(f[0].data.iter().filter(|x| x.is_nan()).count(), 9);
    });
}

#[test]
fn lu_and_its_row_order() {
    for (m, n) in [(0, 2), (1, 1), (4, 4), (3, 6), (6, 3), (40, 40)] {
        let a = random(m, n);
        all(Factor::Lu, &[&a], |f, tolerance| {
            let k = m.min(n);
            let l = Stack::from_fn(m, k, |b, i, j| if i == j { 1.0 } else { lower(&f[0]).at(b, i, j) });
            let u = Stack::from_fn(k, n, |b, i, j| upper(&f[0]).at(b, i, j));
            let pivots = Array::cast([BATCH[0], BATCH[1], k], TestLayout::Gaps, DType::I32, &f[1].data);
            let order = Array::new([BATCH[0], BATCH[1], m], DType::I64, TestLayout::Turned);
            run(Kernel::Factor(Factor::RowOrder { rows: m }), &[&pivots], &[&order]).unwrap();
            let order = order.reals();
            let pa = Stack::from_fn(m, n, |b, i, j| a.at(b, order[b * m + i] as usize, j));
            close(&l.times(&u), &pa, tolerance);
            assert!(f[2].data.iter().all(|&zero| zero == 0.0));
        });
    }
    let singular = Stack::from_fn(3, 3, |b, i, j| if b == 3 && j == 1 { 0.0 } else { identity(3).at(b, i, j) });
    all(Factor::Lu, &[&singular], |f, _| assert_eq!(f[2].data, [0.0, 0.0, 0.0, 2.0, 0.0, 0.0]));
}

#[test]
fn pivots_that_are_no_rows_are_refused() {
    let order = Array::new([3], DType::I64, TestLayout::Plain);
    for pivots in [[0, 1], [1, 4], [-1, 2]] {
        let pivots = Array::of([2], TestLayout::Plain, &pivots);
        let result = run(Kernel::Factor(Factor::RowOrder { rows: 3 }), &[&pivots], &[&order]);
        assert!(matches!(result, Err(Error::InvalidArgument { .. })));
    }
}

#[test]
fn ldl_and_what_is_solved_with_it() {
    for n in [0, 2, 5, 30] {
        let half = random(n, n);
        // Without a diagonal there are blocks of two.
        let a = Stack::from_fn(n, n, |b, i, j| if i == j && b > 2 { 0.0 } else { half.at(b, i, j) + half.at(b, j, i) });
        let b = random(n, 3);
        all(Factor::Ldl, &[&a], |f, tolerance| {
            let packed = f[0].array(DType::F64, TestLayout::Turned);
            let pivots = Array::cast([BATCH[0], BATCH[1], n], TestLayout::Gaps, DType::I32, &f[1].data);
            let right = b.array(DType::F64, TestLayout::Plain);
            let x = Array::new([BATCH[0], BATCH[1], n, 3], DType::F64, TestLayout::Plain);
            run(Kernel::Factor(Factor::LdlSolve), &[&packed, &pivots, &right], &[&x]).unwrap();
            let x = x.reals();
            let x = Stack::from_fn(n, 3, |b, i, j| x[(b * n + i) * 3 + j]);
            close(&a.times(&x), &b, tolerance * 1e3);
        });
    }
}

#[test]
fn pivots_of_half_a_pair_are_refused() {
    let (a, x) = (Array::of([2, 2], TestLayout::Plain, &[1.0; 4]), Array::new([2, 1], DType::F64, TestLayout::Plain));
    let b = Array::of([2, 1], TestLayout::Plain, &[1.0; 2]);
    for pivots in [[-1i32, 1], [1, -2], [0, 1], [3, 1], [-1, -2]] {
        let pivots = Array::of([2], TestLayout::Plain, &pivots);
        let result = run(Kernel::Factor(Factor::LdlSolve), &[&a, &pivots, &b], &[&x]);
        assert!(matches!(result, Err(Error::InvalidArgument { .. })));
    }
}

#[test]
fn qr() {
    for (m, n) in [(2, 0), (1, 1), (4, 4), (3, 6), (6, 3)] {
        let a = random(m, n);
        all(Factor::Qr, &[&a], |f, tolerance| {
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
                let one = |b, i, j| identity(m).at(b, i, j) - f[1].at(b, k, 0) * v(b, i) * v(b, j);
                q.times(&Stack::from_fn(m, m, one))
            });
            close(&q.t().times(&q), &identity(m), tolerance);
            close(&q.times(&upper(&f[0])), &a, tolerance);
        });
    }
}

#[test]
fn svd() {
    for (m, n) in [(0, 2), (1, 1), (4, 4), (3, 6), (6, 3), (20, 20)] {
        let (a, k) = (random(m, n), m.min(n));
        for vectors in [Vectors::Thin, Vectors::Full] {
            all(Factor::Svd(vectors), &[&a], |f, tolerance| {
                let (u, s, vt) = (&f[0], &f[1], &f[2]);
                let tolerance = tolerance * (1 + m + n) as f64;
                close(&u.t().times(u), &identity(u.columns), tolerance);
                close(&vt.times(&vt.t()), &identity(vt.rows), tolerance);
                let us = Stack::from_fn(m, k, |b, i, j| u.at(b, i, j) * s.at(b, j, 0));
                close(&us.times(&Stack::from_fn(k, n, |b, i, j| vt.at(b, i, j))), &a, tolerance);
            });
        }
        all(Factor::Svd(Vectors::Without), &[&a], |f, tolerance| {
            let whole = factors(Factor::Svd(Vectors::Thin), &[&a], DType::F64, TestLayout::Plain);
            close(&f[0], &Stack::of(&whole[1]), tolerance * (1 + m + n) as f64);
        });
    }
}

#[test]
fn eigh() {
    for n in [0, 1, 4, 20] {
        let x = random(n, n);
        let a = plus(&x, &x.t());
        all(Factor::Eigh { vectors: true }, &[&a], |f, tolerance| {
            let (w, v) = (&f[0], &f[1]);
            let tolerance = tolerance * (1 + n) as f64;
            close(&v.t().times(v), &identity(n), tolerance);
            let vw = Stack::from_fn(n, n, |b, i, j| v.at(b, i, j) * w.at(b, j, 0));
            close(&vw.times(&v.t()), &a, tolerance);
        });
        all(Factor::Eigh { vectors: false }, &[&a], |f, tolerance| {
            let whole = factors(Factor::Eigh { vectors: true }, &[&a], DType::F64, TestLayout::Plain);
            close(&f[0], &Stack::of(&whole[0]), tolerance * (1 + n) as f64);
        });
    }
}

#[test]
fn solve_triangular() {
    for (n, k) in [(0, 2), (1, 1), (5, 3), (20, 1)] {
        let (x, b) = (random(n, n), random(n, k));
        for unit in [false, true] {
            let own = |b, i| if unit { 1.0 } else { 3.0 + x.at(b, i, i) };
            for up in [false, true] {
                let a = Stack::from_fn(n, n, |b, i, j| match i == j {
                    true => own(b, i),
                    false if (i < j) == up => x.at(b, i, j) / n as f64,
                    false => 0.0,
                });
                all(Factor::TriangularSolve { upper: up, unit }, &[&a, &b], |f, tolerance| {
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
        all(Factor::Exp, &[&a], |f, tolerance| {
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
fn operands_that_break_the_rule_are_refused() {
    let a = random(3, 3).array(DType::F64, TestLayout::Plain);
    let (out, count) =
        (Array::new([3, 2, 3, 3], DType::F64, TestLayout::Plain), Array::new([3, 2], DType::I32, TestLayout::Plain));
    run(Kernel::Factor(Factor::Cholesky), &[&a], &[&out, &count]).unwrap();
    assert!(run(Kernel::Factor(Factor::Cholesky), &[&a], &[&out]).is_err());
    assert!(matches!(
        run(Kernel::Factor(Factor::Cholesky), &[&a], &[&count, &count]),
        Err(Error::ShapeMismatch { .. })
    ));
    let narrow = Array::new([3, 2, 3, 3], DType::F32, TestLayout::Plain);
    assert!(matches!(run(Kernel::Factor(Factor::Exp), &[&a], &[&narrow]), Err(Error::DTypeMismatch { .. })));
    let half = Array::cast([3, 2, 3, 3], TestLayout::Plain, DType::F16, &[0.0; 54]);
    assert!(matches!(run(Kernel::Factor(Factor::Exp), &[&half], &[&half]), Err(Error::DTypeMismatch { .. })));
    let wide = random(2, 3).array(DType::F64, TestLayout::Plain);
    assert!(matches!(run(Kernel::Factor(Factor::Exp), &[&wide], &[&wide]), Err(Error::ShapeMismatch { .. })));
}
