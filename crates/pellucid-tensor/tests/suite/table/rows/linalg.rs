//! Linear algebra, against elimination and Jacobi's rotations in plain loops.

use crate::table::algebra::{
    Mat, each, eigen, function, identity, inverse, lists, mat, numbers, singular_values, solved, times, transposed,
};
use crate::table::nd::Nd;
use crate::table::row::{Gradient, Row, Rule, argument_refused, one, real, shape_refused};
use pellucid_tensor::ops::{self, Cutoff, MatrixNorm, QrMode};
use pellucid_tensor::{Check, DType, Error, Result, Tensor, gradcheck, gradgradcheck, lazy};

/// A row of an operation that takes `f32` and `f64`; some of its results lost a few digits on their way.
fn row(name: &'static str) -> Row {
    Row::new(name).rule(Rule::Precise).gradient(Gradient::Third).ulps(4096.0).scale(1.0).ordinary().any_zero()
}

/// x + 4·I: far from singular.
fn regular(x: &Tensor) -> Result<Tensor> {
    let ones = ops::ones(&x.shape()[..x.rank() - 1], x.dtype())?;
    ops::add(x, ops::mul(&ops::diag_embed(&ones, 0, -2, -1)?, 4)?)
}

fn regular_of(x: &Mat) -> Mat {
    mat(x.len(), x.len(), |i, j| x[i][j] + if i == j { 4.0 } else { 0.0 })
}

/// x + xᵀ.
fn symmetric(x: &Tensor) -> Result<Tensor> {
    ops::add(x, ops::transpose(x, -2, -1)?)
}

fn symmetric_of(x: &Mat) -> Mat {
    mat(x.len(), x.len(), |i, j| x[i][j] + x[j][i])
}

/// x·xᵀ + 4·I: positive definite.
fn positive(x: &Tensor) -> Result<Tensor> {
    regular(&ops::matmul(x, &ops::transpose(x, -2, -1)?)?)
}

fn positive_of(x: &Mat) -> Mat {
    regular_of(&times(x, &transposed(x)))
}

fn mt(x: &Tensor) -> Result<Tensor> {
    ops::transpose(x, -2, -1)
}

fn zeros(shape: &[usize]) -> Tensor {
    Tensor::zeros(shape, DType::F64)
}

/// Two matrices of which the second is singular.
fn singular() -> Tensor {
    Tensor::from([[[2.0, 1.0], [1.0, 2.0]], [[1.0, 2.0], [2.0, 4.0]]])
}

/// True if the second matrix of a batch is named.
fn names_the_second<T>(result: Result<T>) -> Result<bool> {
    Ok(matches!(result, Err(Error::Singular { batch: 1, .. })))
}

/// True if, where work is deferred, the first matrix of two has numbers, and the second NaN.
fn second_is_nan(f: impl Fn() -> Result<Tensor>) -> Result<bool> {
    let values = lazy(f)?.to_vec::<f64>();
    let (first, second) = values.split_at(values.len() / 2);
    Ok(first.iter().all(|x| x.is_finite()) && second.iter().all(|x| x.is_nan()))
}

fn not_square<T>(f: impl Fn(&Tensor) -> Result<T>) -> Result<bool> {
    Ok(shape_refused(f(&zeros(&[2, 3])))? && shape_refused(f(&zeros(&[3])))?)
}

/// Adds what every operation of one square matrix stands: a batch, and nothing at all.
fn square(
    name: &'static str,
    call: impl Fn(&Tensor) -> Result<Tensor> + Copy + 'static,
    reference: impl Fn(&Mat) -> Mat + Copy + 'static,
) -> Row {
    row(name)
        .case("one", [real([3, 3])], move |x| call(&x[0]), move |x| each(x, |a| reference(&a[0])))
        .case("a batch", [real([2, 1, 2, 2])], move |x| call(&x[0]), move |x| each(x, |a| reference(&a[0])))
        .floats_only()
        .case("an empty batch", [real([0, 2, 2])], move |x| call(&x[0]), |x| x[0].clone())
        .floats_only()
        .case("empty matrices", [real([2, 0, 0])], move |x| call(&x[0]), |x| x[0].clone())
        .floats_only()
}

/// The lower factor, column by column.
fn cholesky_of(a: &Mat) -> Mat {
    let n = a.len();
    let mut l = mat(n, n, |_, _| 0.0);
    for j in 0..n {
        let rest = |l: &Mat, i: usize| a[i][j] - (0..j).map(|k| l[i][k] * l[j][k]).sum::<f64>();
        l[j][j] = rest(&l, j).sqrt();
        (j + 1..n).for_each(|i| l[i][j] = rest(&l, i) / l[j][j]);
    }
    l
}

/// The factors of matrices whose rows need no exchange: L below the diagonal, U.
fn lu_of(a: &Mat) -> Mat {
    let (m, n) = (a.len(), a[0].len());
    let mut a = a.clone();
    for k in 0..m.min(n) {
        for i in k + 1..m {
            a[i][k] /= a[k][k];
            (k + 1..n).for_each(|j| a[i][j] -= a[i][k] * a[k][j]);
        }
    }
    a
}

fn triangle(a: &Mat, upper: bool, unit: bool) -> Mat {
    mat(a.len(), a.len(), |i, j| match i == j {
        true if unit => 1.0,
        true => a[i][j],
        false => if (i < j) == upper { a[i][j] } else { 0.0 },
    })
}

fn cholesky_rows() -> Vec<Row> {
    let indefinite = || Tensor::from([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, -1.0]]]);
    vec![
        square("cholesky", |x| ops::cholesky(&positive(x)?, false), |x| cholesky_of(&positive_of(x)))
            .case(
                "upper",
                [real([2, 2])],
                |x| ops::cholesky(&positive(&x[0])?, true),
                |x| each(x, |a| transposed(&cholesky_of(&positive_of(&a[0])))),
            )
            .floats_only()
            .also("not positive definite", move || names_the_second(ops::cholesky(&indefinite(), false)))
            .also("the same, deferred", move || second_is_nan(|| ops::cholesky(&indefinite(), false)))
            .also("NaN is no reason to refuse", || {
                Ok(ops::cholesky(&Tensor::full([2, 2], f64::NAN, DType::F64), false)?.to_vec::<f64>().iter().all(|x| x.is_nan()))
            })
            .also("square matrices only", || not_square(|x| ops::cholesky(x, false))),
        row("cholesky_ex")
            .rules([Rule::Precise, Rule::OfPrecise(DType::I32)])
            .outputs(
                "good ones",
                [real([2, 2])],
                |x| ops::cholesky_ex(&positive(&x[0])?, false).map(|(l, info)| vec![l, info]),
                |x| vec![each(x, |a| cholesky_of(&positive_of(&a[0]))), Nd::scalar(0.0)],
            )
            .also("the minor of bad ones", move || Ok(ops::cholesky_ex(&indefinite(), true)?.1.to_vec::<i32>() == [0, 2])),
        square(
            "cholesky_inverse",
            |x| ops::cholesky_inverse(&regular(x)?, false),
            |x| {
                let l = triangle(&regular_of(x), false, false);
                inverse(&times(&l, &transposed(&l)))
            },
        )
        .case(
            "upper",
            [real([2, 2])],
            |x| ops::cholesky_inverse(&regular(&x[0])?, true),
            |x| each(x, |a| {
                let u = triangle(&regular_of(&a[0]), true, false);
                inverse(&times(&transposed(&u), &u))
            }),
        )
        .floats_only()
        .also("no inverse", || names_the_second(ops::cholesky_inverse(&ops::triu(&singular(), 0)?.mul(&Tensor::from([[[1.0]], [[0.0]]])), true))),
        row("cholesky_solve")
            .case(
                "lower",
                [real([3, 2]), real([3, 3])],
                |x| ops::cholesky_solve(&x[0], &regular(&x[1])?, false),
                |x| each(&[x[1].clone(), x[0].clone()], |a| {
                    let l = triangle(&regular_of(&a[0]), false, false);
                    solved(&times(&l, &transposed(&l)), &a[1]).0
                }),
            )
            .case(
                "upper",
                [real([2, 2, 1]), real([2, 2, 2])],
                |x| ops::cholesky_solve(&x[0], &regular(&x[1])?, true),
                |x| each(&[x[1].clone(), x[0].clone()], |a| {
                    let u = triangle(&regular_of(&a[0]), true, false);
                    solved(&times(&transposed(&u), &u), &a[1]).0
                }),
            )
            .floats_only()
            .also("rows that differ", || shape_refused(ops::cholesky_solve(&zeros(&[2, 1]), &zeros(&[3, 3]), false))),
    ]
}

/// The gradients of det at a matrix, of three orders.
fn det_gradients(x: Tensor) -> Result<bool> {
    let x = x.requires_grad_(true);
    let f = |x: &[Tensor]| one(ops::det(&x[0]));
    gradcheck(f, &[&x], Check::default())?;
    gradgradcheck(f, &[&x], Check::default())?;
    Ok(true)
}

fn determinant_rows() -> Vec<Row> {
    let det = |x: &Mat| solved(x, &identity(x.len())).1;
    let of = move |x: &[Nd]| numbers(&x[0], |a| det(&regular_of(a)));
    let number = |name| row(name).scale(64.0);
    vec![
        number("det")
            .case("one", [real([3, 3])], |x| ops::det(&regular(&x[0])?), of)
            .case("a batch", [real([2, 1, 2, 2])], |x| ops::det(&regular(&x[0])?), of)
            .floats_only()
            .case("an empty batch", [real([0, 2, 2])], |x| ops::det(&x[0]), |x| x[0].reshape(&[0]))
            .floats_only()
            .also("of nothing 1", || Ok(ops::det(&zeros(&[2, 0, 0]))?.to_vec::<f64>() == [1.0, 1.0]))
            .also("of rank 1", || {
                let x = Tensor::from([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [-1.0, -2.0, -3.0]]);
                Ok(ops::det(&x)?.item::<f64>() == 0.0 && det_gradients(x)?)
            })
            .also("of rank 2", || {
                let x = Tensor::from([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [5.0, 7.0, 9.0]]);
                Ok(ops::det(&x)?.item::<f64>().abs() < 1e-14 && det_gradients(x)?)
            })
            .also("of zeros", || det_gradients(zeros(&[2, 2, 2])))
            .also("of a large one without full rank", || {
                let x = ops::sin(&ops::reshape(&Tensor::arange(1.0, 101.0, 1.0), [10, 10])?)?;
                det_gradients(ops::concatenate(&[&ops::narrow(&x, 0, 0, 9)?, &ops::sum(&ops::narrow(&x, 0, 0, 2)?, ops::over(0).keepdims())?], 0)?)
            })
            .also("square matrices only", || not_square(ops::det)),
        number("slogdet")
            .rules([Rule::Precise, Rule::Precise])
            .outputs(
                "one",
                [real([3, 3])],
                |x| ops::slogdet(&regular(&x[0])?).map(|(sign, log)| vec![sign, log]),
                move |x| vec![of(x).map(f64::signum), of(x).map(|d| d.abs().ln())],
            )
            .outputs(
                "negative ones",
                [real([2, 3, 3])],
                |x| ops::slogdet(&ops::neg(&regular(&x[0])?)?).map(|(sign, log)| vec![sign, log]),
                move |x| vec![of(x).map(|d| -d.signum()), of(x).map(|d| d.abs().ln())],
            )
            .floats_only()
            .also("of a singular matrix", || {
                let (sign, log) = ops::slogdet(&singular())?;
                Ok(sign.to_vec::<f64>() == [1.0, 0.0] && log.to_vec::<f64>()[1] == f64::NEG_INFINITY)
            })
            .also("of nothing", || {
                let (sign, log) = ops::slogdet(&zeros(&[0, 0]))?;
                Ok((sign.item::<f64>(), log.item::<f64>()) == (1.0, 0.0))
            }),
        number("logdet")
            .case("one", [real([3, 3])], |x| ops::logdet(&positive(&x[0])?), move |x| numbers(&x[0], |a| det(&positive_of(a)).ln()))
            .also("of a negative determinant NaN, of zero −∞", || {
                let x = Tensor::from([[[1.0, 0.0], [0.0, -1.0]], [[1.0, 2.0], [2.0, 4.0]]]);
                let y = ops::logdet(&x)?.to_vec::<f64>();
                Ok(y[0].is_nan() && y[1] == f64::NEG_INFINITY)
            }),
    ]
}

fn solve_rows() -> Vec<Row> {
    let both = |x: &[Tensor], left| ops::solve(&regular(&x[0])?, &x[1], left);
    let of = |x: &[Nd]| each(x, |a| solved(&regular_of(&a[0]), &a[1]).0);
    let ones = || Tensor::ones([2, 2, 1], DType::F64);
    let tri = |x: &[Tensor], upper, left, unit| ops::solve_triangular(&regular(&x[0])?, &x[1], upper, left, unit);
    let tri_of = |x: &[Nd], upper, unit| each(x, |a| solved(&triangle(&regular_of(&a[0]), upper, unit), &a[1]).0);
    vec![
        square("inv", |x| ops::inv(&regular(x)?), |x| inverse(&regular_of(x)))
            .also("singular", || names_the_second(ops::inv(&singular())))
            .also("singular, deferred", || second_is_nan(|| ops::inv(&singular())))
            .also("NaN is no reason to refuse", || {
                Ok(ops::inv(&Tensor::full([2, 2], f64::NAN, DType::F64))?.to_vec::<f64>().iter().all(|x| x.is_nan()))
            })
            .also("square matrices only", || not_square(ops::inv)),
        row("inv_ex")
            .rules([Rule::Precise, Rule::OfPrecise(DType::I32)])
            .outputs(
                "regular",
                [real([2, 2])],
                |x| ops::inv_ex(&regular(&x[0])?).map(|(x, info)| vec![x, info]),
                |x| vec![each(x, |a| inverse(&regular_of(&a[0]))), Nd::scalar(0.0)],
            )
            .also("singular", || {
                let (x, info) = ops::inv_ex(&singular())?;
                Ok(info.to_vec::<i32>() == [0, 2] && x.to_vec::<f64>()[4..].iter().all(|x| x.is_nan()))
            }),
        row("solve")
            .case("matrices", [real([3, 3]), real([3, 2])], move |x| both(x, true), of)
            .case("a batch", [real([2, 2, 2]), real([2, 2, 1])], move |x| both(x, true), of)
            .floats_only()
            .case(
                "broadcast",
                [real([2, 2]), real([3, 2, 1])],
                move |x| both(x, true),
                move |x| of(&[Nd::from_fn(&[3, 2, 2], |ix| x[0].at(&ix[1..])), x[1].clone()]),
            )
            .floats_only()
            .case(
                "a vector",
                [real([2, 2]), real([2])],
                move |x| both(x, true),
                move |x| of(&[x[0].clone(), x[1].reshape(&[2, 1])]).reshape(&[2]),
            )
            .floats_only()
            .case(
                "from the right",
                [real([2, 2]), real([3, 2])],
                move |x| both(x, false),
                move |x| of(&[x[0].permute(&[1, 0]), x[1].permute(&[1, 0])]).permute(&[1, 0]),
            )
            .floats_only()
            .case("nothing", [real([0, 2, 2]), real([0, 2, 3])], |x| ops::solve(&x[0], &x[1], true), |x| x[1].clone())
            .floats_only()
            .also("singular", move || names_the_second(ops::solve(&singular(), &ones(), true)))
            .also("singular, deferred", move || second_is_nan(|| ops::solve(&singular(), &ones(), true)))
            .also("vectors from the right", || argument_refused(ops::solve(&regular(&zeros(&[2, 2]))?, &zeros(&[2]), false)))
            .also("lengths that differ", || shape_refused(ops::solve(&zeros(&[2, 2]), &zeros(&[3, 1]), true)))
            .also("batches that differ", || shape_refused(ops::solve(&zeros(&[2, 2, 2]), &zeros(&[3, 2, 1]), true))),
        row("solve_ex")
            .rules([Rule::Precise, Rule::OfPrecise(DType::I32)])
            .outputs(
                "regular",
                [real([2, 2]), real([2, 1])],
                |x| ops::solve_ex(&regular(&x[0])?, &x[1], true).map(|(x, info)| vec![x, info]),
                move |x| vec![of(x), Nd::scalar(0.0)],
            )
            .also("singular", move || Ok(ops::solve_ex(&singular(), &ones(), true)?.1.to_vec::<i32>() == [0, 2])),
        row("solve_triangular")
            .case("upper", [real([3, 3]), real([3, 2])], move |x| tri(x, true, true, false), move |x| tri_of(x, true, false))
            .case("lower", [real([2, 2]), real([2, 1])], move |x| tri(x, false, true, false), move |x| tri_of(x, false, false))
            .floats_only()
            .case("a diagonal of ones", [real([2, 2]), real([2, 1])], move |x| tri(x, false, true, true), move |x| tri_of(x, false, true))
            .floats_only()
            .case(
                "from the right",
                [real([2, 2]), real([1, 2])],
                move |x| tri(x, true, false, false),
                move |x| tri_of(&[x[0].permute(&[1, 0]), x[1].permute(&[1, 0])], false, false).permute(&[1, 0]),
            )
            .floats_only()
            .case(
                "broadcast",
                [real([2, 2]), real([3, 2, 1])],
                move |x| tri(x, true, true, false),
                move |x| tri_of(&[Nd::from_fn(&[3, 2, 2], |ix| x[0].at(&ix[1..])), x[1].clone()], true, false),
            )
            .floats_only()
            .also("a zero on the diagonal", move || {
                let a = Tensor::from([[[1.0, 2.0], [0.0, 1.0]], [[1.0, 2.0], [5.0, 0.0]]]);
                let go = || ops::solve_triangular(&a, &ones(), true, true, false);
                Ok(names_the_second(go())? && second_is_nan(go)?)
            })
            .also("lengths that differ", || shape_refused(ops::solve_triangular(&zeros(&[2, 2]), &zeros(&[3, 1]), true, true, false))),
        row("tensorinv")
            .case(
                "two axes to one",
                [real([2, 2, 4])],
                |x| {
                    let y = regular(&ops::reshape(&x[0], [4, 4])?)?;
                    ops::tensorinv(&ops::reshape(&y, [2, 2, 4])?, 2)
                },
                |x| each(&[x[0].reshape(&[4, 4])], |a| inverse(&regular_of(&a[0]))).reshape(&[4, 2, 2]),
            )
            .also("lengths that differ", || shape_refused(ops::tensorinv(&zeros(&[2, 3]), 1)))
            .also("no axes", || argument_refused(ops::tensorinv(&zeros(&[2, 2]), 0))),
        row("tensorsolve")
            .case(
                "two axes",
                [real([2, 1, 2]), real([2, 1])],
                |x| {
                    let y = regular(&ops::reshape(&x[0], [2, 2])?)?;
                    ops::tensorsolve(&ops::reshape(&y, [2, 1, 2])?, &x[1], &[])
                },
                move |x| of(&[x[0].reshape(&[2, 2]), x[1].clone()]).reshape(&[2]),
            )
            .case(
                "moved ones",
                [real([2, 2]), real([2])],
                |x| ops::tensorsolve(&ops::t(&regular(&x[0])?)?, &x[1], &[0]),
                move |x| of(&[x[0].clone(), x[1].reshape(&[2, 1])]).reshape(&[2]),
            )
            .floats_only()
            .also("sizes that differ", || shape_refused(ops::tensorsolve(&zeros(&[2, 3]), &zeros(&[2]), &[]))),
    ]
}
