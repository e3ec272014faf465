//! Sets: the unique elements of tensors, in ascending order. The number of elements of a result depends on values, so a
//! captured step cannot contain these operations.

use crate::ops;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{DType, Result};

/// Returns the elements of both tensors as vectors, in their promoted dtype.
fn vectors(a: &Tensor, b: &Tensor) -> Result<[Tensor; 2]> {
    let dtype = DType::promote(a.dtype(), b.dtype());
    Ok([ops::to_dtype(&ops::ravel(a)?, dtype)?, ops::to_dtype(&ops::ravel(b)?, dtype)?])
}

/// Returns the unique elements of a that are elements of b, or with `!member` that are not.
#[track_caller]
fn select(a: &Tensor, b: &Tensor, member: bool) -> Result<Tensor> {
    let values = ops::unique(a, None)?.values;
    let is_in = ops::isin(&values, b)?;
    ops::masked_select(&values, &if member { is_in } else { ops::logical_not(&is_in)? })
}

/// Returns the unique elements of a and b in ascending order, as a vector.
///
/// NaN elements count as different from each other and come last. The gradient goes to the first occurrence. See
/// [`unique`](ops::unique).
///
/// ```
/// use pellucid::Tensor;
/// let (a, b) = (Tensor::from([3, 1, 3]), Tensor::from([2, 1]));
/// assert_eq!(a.union1d(&b).to_vec::<i64>(), [1, 2, 3]);
/// assert_eq!(a.intersect1d(&b).to_vec::<i64>(), [1]);
/// assert_eq!(a.setdiff1d(&b).to_vec::<i64>(), [3]);
/// assert_eq!(a.setxor1d(&b).to_vec::<i64>(), [2, 3]);
/// ```
///
/// # Errors
/// [`Error::ReadInCapture`](crate::Error::ReadInCapture).
#[tensor_method]
#[track_caller]
pub fn union1d(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    Ok(ops::unique(&ops::concatenate(&vectors(a, b)?, 0)?, None)?.values)
}

/// Returns the unique elements of a that are also elements of b, in ascending order, as a vector. NaN equals nothing.
///
/// # Errors
/// [`Error::ReadInCapture`](crate::Error::ReadInCapture).
#[tensor_method]
#[track_caller]
pub fn intersect1d(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let [a, b] = vectors(a, b)?;
    select(&a, &b, true)
}

/// Returns the unique elements of a that are not elements of b, in ascending order, as a vector. NaN equals nothing.
///
/// # Errors
/// [`Error::ReadInCapture`](crate::Error::ReadInCapture).
#[tensor_method]
#[track_caller]
pub fn setdiff1d(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let [a, b] = vectors(a, b)?;
    select(&a, &b, false)
}

/// Returns the unique elements that only one of a and b has, in ascending order, as a vector. NaN equals nothing.
///
/// # Errors
/// [`Error::ReadInCapture`](crate::Error::ReadInCapture).
#[tensor_method]
#[track_caller]
pub fn setxor1d(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let [a, b] = vectors(a, b)?;
    Ok(ops::sort(&ops::concatenate(&[select(&a, &b, false)?, select(&b, &a, false)?], 0)?, 0, false)?.0)
}
