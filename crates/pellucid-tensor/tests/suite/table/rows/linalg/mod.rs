//! Linear algebra, compared with elimination and Jacobi's rotations in plain loops.

mod determinant;
mod equations;
mod ldl;
mod norm;
mod product;
mod reflections;
mod spectrum;
mod triangles;

use crate::table::algebra::{Mat, each, mat, times, transposed};
use crate::table::row::{Gradient, Row, Rule, real, shape_rejected};
use pellucid_tensor::{DType, Error, Result, Tensor, lazy, ops};

pub(super) fn rows() -> Vec<Row> {
    let factors = [triangles::cholesky_rows(), triangles::lu_rows(), reflections::qr_rows()];
    let spectra = [spectrum::singular_rows(), spectrum::symmetric_rows()];
    let others = [determinant::rows(), equations::rows(), ldl::rows(), norm::rows(), product::rows()];
    factors.into_iter().chain(spectra).chain(others).flatten().collect()
}

/// Returns a row of an operation on `f32` and `f64` with a tolerance for the loss of a few digits.
fn row(name: &'static str) -> Row {
    Row::new(name).rule(Rule::Precise).gradient(Gradient::Third).ulps(4096.0).scale(1.0).ordinary().any_zero()
}

/// Computes x + 4·I, which is far from singular.
fn regular(x: &Tensor) -> Result<Tensor> {
    let ones = ops::ones(&x.shape()[..x.rank() - 1], x.dtype())?;
    ops::add(x, ops::mul(&ops::diag_embed(&ones, 0, -2, -1)?, 4)?)
}

fn regular_of(x: &Mat) -> Mat {
    mat(x.len(), x.len(), |i, j| x[i][j] + if i == j { 4.0 } else { 0.0 })
}

/// Computes x + xᵀ.
fn symmetric(x: &Tensor) -> Result<Tensor> {
    ops::add(x, ops::transpose(x, -2, -1)?)
}

fn symmetric_of(x: &Mat) -> Mat {
    mat(x.len(), x.len(), |i, j| x[i][j] + x[j][i])
}

/// Computes x·xᵀ + 4·I, which is positive definite.
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

/// Returns two matrices; the second is singular.
fn singular() -> Tensor {
    Tensor::from([[[2.0, 1.0], [1.0, 2.0]], [[1.0, 2.0], [2.0, 4.0]]])
}

/// Returns true if the error names the second matrix of a batch.
fn names_the_second<T>(result: Result<T>) -> Result<bool> {
    Ok(matches!(result, Err(Error::Singular { batch: 1, .. })))
}

/// Returns true if deferred execution gives numbers for the first matrix and NaN for the second.
fn second_is_nan(f: impl Fn() -> Result<Tensor>) -> Result<bool> {
    let values = lazy(f)?.to_vec::<f64>();
    let (first, second) = values.split_at(values.len() / 2);
    Ok(first.iter().all(|x| x.is_finite()) && second.iter().all(|x| x.is_nan()))
}

fn not_square<T>(f: impl Fn(&Tensor) -> Result<T>) -> Result<bool> {
    Ok(shape_rejected(f(&zeros(&[2, 3])))? && shape_rejected(f(&zeros(&[3])))?)
}

/// Adds the cases of every operation of one square matrix: a batch, and empty inputs.
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

/// Returns true if an operation of two operands computes in their common dtype, and half precision is an error. The
/// elements of both operands are 1 and 0.
fn promotes(a: Tensor, b: Tensor, f: impl Fn(&Tensor, &Tensor) -> Result<Tensor>) -> Result<bool> {
    let of = |x, y| f(&a.to_dtype(x), &b.to_dtype(y)).map(|t| t.dtype());
    let wide = of(DType::F32, DType::F64)? == DType::F64 && of(DType::I32, DType::F32)? == DType::F32;
    let rejected = |x, y| matches!(of(x, y), Err(Error::DTypeMismatch { .. }));
    Ok(wide
        && rejected(DType::F16, DType::F16)
        && rejected(DType::I64, DType::I64)
        && rejected(DType::Bool, DType::BF16))
}

fn triangle(a: &Mat, upper: bool, unit: bool) -> Mat {
    mat(a.len(), a.len(), |i, j| match i == j {
        true if unit => 1.0,
        true => a[i][j],
        false => {
            if (i < j) == upper {
                a[i][j]
            } else {
                0.0
            }
        }
    })
}
