//! L·D·Lᵀ of symmetric matrices.

use super::{names_the_second, not_square, promotes, row, singular, symmetric, symmetric_of, zeros};
use crate::table::algebra::{Mat, each, mat, solve_with_determinant};
use crate::table::nd::Nd;
use crate::table::row::{Row, Rule, argument_rejected, real, shape_rejected};
use pellucid_tensor::{DType, Error, Result, Tensor, ops};

/// Returns a symmetric matrix with a dominant diagonal, for which no rows are exchanged.
fn diagonally_dominant(x: &Tensor) -> Result<Tensor> {
    let twelve = ops::diag_embed(&ops::full(&x.shape()[..x.rank() - 1], 12.0, x.dtype())?, 0, -2, -1)?;
    ops::add(&symmetric(x)?, &twelve)
}

fn diagonally_dominant_of(x: &Mat) -> Mat {
    let x = symmetric_of(x);
    mat(x.len(), x.len(), |i, j| x[i][j] + if i == j { 12.0 } else { 0.0 })
}

/// Returns the factors of A = L·D·Lᵀ by elimination, in one matrix: D on the diagonal, L below.
fn ldl_of(a: &Mat) -> Mat {
    let n = a.len();
    let mut a = a.clone();
    for k in 0..n {
        for i in k + 1..n {
            let factor = a[i][k] / a[k][k];
            (k + 1..n).for_each(|j| a[i][j] -= factor * a[k][j]);
        }
        (k + 1..n).for_each(|i| a[i][k] = a[k][i] / a[k][k]);
    }
    mat(n, n, |i, j| if i >= j { a[i][j] } else { 0.0 })
}

/// Returns a matrix with a zero diagonal, so that every block is 2×2.
fn hollow(x: &Tensor) -> Result<Tensor> {
    let x = symmetric(x)?;
    ops::sub(&x, &ops::diag_embed(&ops::diagonal(&x, 0, -2, -1)?, 0, -2, -1)?)
}

fn no_gradient<T>(f: impl Fn(&Tensor) -> Result<T>) -> Result<bool> {
    let x = Tensor::from([[2.0, 1.0], [1.0, 3.0]]).requires_grad_(true);
    Ok(matches!(f(&x), Err(Error::NoGradient { .. })))
}

pub(super) fn rows() -> Vec<Row> {
    let factors = |x: &[Nd]| each(x, |a| ldl_of(&diagonally_dominant_of(&a[0])));
    let places = |_: &[Nd]| Nd { shape: vec![3], data: vec![1.0, 2.0, 3.0] };
    vec![
        row("ldl_factor")
            .rules([Rule::Precise, Rule::OfPrecise(DType::I32)])
            .untracked()
            .outputs(
                "without exchanges",
                [real([3, 3])],
                |x| ops::ldl_factor(&diagonally_dominant(&x[0].detach())?).map(|(a, b)| vec![a, b]),
                move |x| vec![factors(x), places(x)],
            )
            .check("pivots of 2×2 blocks must be stored twice and negative", || {
                let a = Tensor::from([[0.0, 1.0], [1.0, 0.0]]);
                let (packed, pivots) = ops::ldl_factor(&a)?;
                Ok(packed.to_vec::<f64>() == [0.0, 0.0, 1.0, 0.0] && pivots.to_vec::<i32>() == [-2, -2])
            })
            .check("a zero block must be an error", || names_the_second(ops::ldl_factor(&singular())))
            .check("tracked inputs must be an error", || no_gradient(ops::ldl_factor))
            .check("a matrix that is not square must be an error", || not_square(ops::ldl_factor)),
        row("ldl_factor_ex")
            .rules([Rule::Precise, Rule::OfPrecise(DType::I32), Rule::OfPrecise(DType::I32)])
            .untracked()
            .outputs(
                "without exchanges",
                [real([3, 3])],
                |x| ops::ldl_factor_ex(&diagonally_dominant(&x[0].detach())?).map(|(a, b, c)| vec![a, b, c]),
                move |x| vec![factors(x), places(x), Nd::scalar(0.0)],
            )
            .check("a zero block must be an error", || Ok(ops::ldl_factor_ex(&singular())?.2.to_vec::<i32>() == [0, 2]))
            .check("tracked inputs must be an error", || no_gradient(ops::ldl_factor_ex)),
        row("ldl_solve")
            .untracked()
            .case(
                "several right sides",
                [real([4, 4]), real([4, 3])],
                |x| {
                    let (packed, pivots) = ops::ldl_factor(&diagonally_dominant(&x[0].detach())?)?;
                    ops::ldl_solve(&packed, &pivots, &x[1].detach())
                },
                |x| each(x, |a| solve_with_determinant(&diagonally_dominant_of(&a[0]), &a[1]).0),
            )
            .floats_only()
            .check("a batch of right sides", || {
                let (packed, pivots) = ops::ldl_factor(&Tensor::from([[2.0, 1.0], [1.0, 3.0]]))?;
                let (b, x) =
                    (Tensor::from([[[5.0], [5.0]], [[3.0], [4.0]]]), Tensor::from([[[2.0], [1.0]], [[1.0], [1.0]]]));
                let error = ops::sub(&ops::ldl_solve(&packed, &pivots, &b)?, &x)?;
                Ok(ops::norm(&error, f64::INFINITY, ..)?.item::<f64>() < 1e-15)
            })
            .check("2×2 blocks", || {
                let x = Tensor::from([[1.0, 2.0, -1.0, 0.5], [3.0, 1.0, 2.0, 4.0], [0.0, 1.0, 2.0, -3.0], [1.0; 4]]);
                let a = hollow(&x)?;
                let (packed, pivots) = ops::ldl_factor(&a)?;
                let b = ops::matmul(&a, &x)?;
                let error = ops::sub(&ops::ldl_solve(&packed, &pivots, &b)?, &x)?;
                Ok(pivots.to_vec::<i32>()[0] < 0 && ops::norm(&error, 2.0, ..)?.item::<f64>() < 1e-13)
            })
            .check("dtypes must be promoted, and half precision must be an error", || {
                promotes(Tensor::from([[1i64, 0], [0, 1]]), Tensor::from([[1i64], [0]]), |a, b| {
                    ops::ldl_solve(a, &Tensor::from([1i32, 2]), b)
                })
            })
            .check("incompatible shapes must be an error", || {
                let (two, three) = (Tensor::from([1i32, 2]), Tensor::from([1i32, 2, 3]));
                Ok(shape_rejected(ops::ldl_solve(&zeros(&[2, 2]), &two, &zeros(&[3, 1])))?
                    && shape_rejected(ops::ldl_solve(&zeros(&[2, 2]), &three, &zeros(&[2, 1])))?)
            })
            .check("invalid pivots must be an error", || {
                let rejected =
                    |p: [i32; 2]| argument_rejected(ops::ldl_solve(&zeros(&[2, 2]), &p.into(), &zeros(&[2, 1])));
                Ok(rejected([0, 1])? && rejected([1, 3])? && rejected([1, -2])?)
            })
            .check("tracked inputs must be an error", || {
                no_gradient(|x| ops::ldl_solve(&zeros(&[2, 2]), &Tensor::from([1i32, 2]), x))
            }),
    ]
}
