//! Matrix norms and condition numbers.

use super::inv::inv_ex;
use super::{check_precision, square_side, svdvals};
use crate::ops::call::axes::over;
use crate::ops::elementwise::{arithmetic, compare};
use crate::ops::primitive::{fill, view};
use crate::ops::reduce::reductions;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{Error, Result};

/// A matrix norm. Converts from an order (±1, ±2 or ±∞).
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum MatrixNorm {
    /// √Σ aᵢⱼ².
    #[default]
    Frobenius,
    /// The sum of the singular values.
    Nuclear,
    /// ±1: the largest (smallest) column sum of |aᵢⱼ|; ±∞: row sum; ±2: the largest (smallest) singular value.
    Order(f64),
}

impl From<f64> for MatrixNorm {
    fn from(order: f64) -> MatrixNorm {
        MatrixNorm::Order(order)
    }
}

impl From<i32> for MatrixNorm {
    fn from(order: i32) -> MatrixNorm {
        MatrixNorm::Order(f64::from(order))
    }
}

/// Computes the norm of the matrices that two axes (rows, columns) contain. With `keepdims` these axes keep length 1.
///
/// Equal extreme column or row sums share the gradient evenly, and so do equal extreme singular values. The gradient of
/// the nuclear norm exists at equal nonzero singular values. Second derivatives with respect to singular values require
/// distinct singular values.
///
/// # Errors
/// [`Error::AxisOutOfRange`]; [`Error::DTypeMismatch`]; [`Error::InvalidArgument`] for an unsupported order, for equal
/// axes, and for the extremum over zero elements.
#[tensor_method]
pub fn matrix_norm(x: &Tensor, order: impl Into<MatrixNorm>, axes: [isize; 2], keepdims: bool) -> Result<Tensor> {
    let op = "matrix_norm";
    let order = order.into();
    check_precision(op, x)?;
    let (rows, columns) = (x.shape().axis(op, axes[0])?, x.shape().axis(op, axes[1])?);
    if rows == columns {
        return Err(Error::invalid(op, format!("the two axes of a matrix must differ, got {axes:?}")));
    }
    let matrix_axes = over([rows as isize, columns as isize]).keepdims();
    let along = |axis: usize| over(axis as isize).keepdims();
    let sums = |axis: usize| reductions::sum(&arithmetic::abs(x)?, along(axis));
    let values = || svdvals(&view::movedim(x, [rows as isize, columns as isize], [-2, -1])?);
    // The singular values are on the last axis. Two axes of length 1 replace it, at the axes of the matrix.
    let placed = |norm: Tensor| {
        let shape: pellucid_ir::Shape =
            (0..x.rank()).map(|k| if k == rows || k == columns { 1 } else { x.shape()[k] }).collect();
        view::reshape_to(&norm, &shape)
    };
    let norm = match order {
        MatrixNorm::Frobenius => reductions::norm(x, 2.0, matrix_axes)?,
        MatrixNorm::Nuclear => placed(reductions::sum(&values()?, -1)?)?,
        MatrixNorm::Order(1.0) => reductions::max(&sums(rows)?, along(columns))?,
        MatrixNorm::Order(-1.0) => reductions::min(&sums(rows)?, along(columns))?,
        MatrixNorm::Order(f64::INFINITY) => reductions::max(&sums(columns)?, along(rows))?,
        MatrixNorm::Order(f64::NEG_INFINITY) => reductions::min(&sums(columns)?, along(rows))?,
        MatrixNorm::Order(2.0) => placed(reductions::max(&values()?, over(-1))?)?,
        MatrixNorm::Order(-2.0) => placed(reductions::min(&values()?, -1)?)?,
        MatrixNorm::Order(p) => {
            return Err(Error::invalid(op, format!("the order of a matrix norm must be ±1, ±2 or ±inf, got {p}")));
        }
    };
    if keepdims {
        return Ok(norm);
    }
    let (first, second) = (rows.max(columns) as isize, rows.min(columns) as isize);
    view::squeeze(&view::squeeze(&norm, first)?, second)
}

/// Computes the condition number ‖A‖·‖A⁻¹‖. It bounds the factor by which the solution of A·X = B amplifies a relative
/// error of B.
///
/// For order ±2 it is the largest (smallest) singular value over the smallest (largest), and A may have any shape;
/// other norms require square matrices. If A is singular it is infinite, except for order -2, where it is 0 unless
/// A = 0. It is 0 if A has no elements. Second derivatives with respect to singular values require distinct singular
/// values.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::InvalidArgument`] for an unsupported order.
#[tensor_method]
pub fn cond(a: &Tensor, order: impl Into<MatrixNorm>) -> Result<Tensor> {
    let order = order.into();
    if let MatrixNorm::Order(p @ (2.0 | -2.0)) = order {
        super::matrix_dims("cond", a)?;
        if a.size() == 0 {
            return fill::full_on_device_of(a, super::batch(a), 0, a.dtype());
        }
        let s = svdvals(a)?;
        let (first, last) = (view::select(&s, -1, 0)?, view::select(&s, -1, -1)?);
        let quotient = if p > 0.0 { arithmetic::div(&first, &last)? } else { arithmetic::div(&last, &first)? };
        // If the largest singular value is 0, A is 0, and the quotient is NaN.
        return arithmetic::where_(&compare::eq(&first, 0.0)?, f64::INFINITY, &quotient);
    }
    square_side("cond", a)?;
    let (inverse, info) = inv_ex(a)?;
    let product =
        arithmetic::mul(&matrix_norm(a, order, [-2, -1], false)?, &matrix_norm(&inverse, order, [-2, -1], false)?)?;
    arithmetic::where_(&compare::ne(&info, 0)?, f64::INFINITY, &product)
}
