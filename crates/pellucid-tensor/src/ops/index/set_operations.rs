//! Sets: the unique elements of tensors in ascending order, and membership. The size of a set depends on values, so a
//! captured step can contain only `isin`.

use crate::ops::elementwise::{arithmetic, compare};
use crate::ops::index::sort::sort;
use crate::ops::index::unique::unique;
use crate::ops::index::{masked, search};
use crate::ops::primitive::concatenate::concatenate;
use crate::ops::primitive::{copy, fill, gather, view};
use crate::ops::reduce::reductions;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{DType, Result};

/// Returns the elements of both tensors as vectors, in their promoted dtype.
fn vectors(a: &Tensor, b: &Tensor) -> Result<[Tensor; 2]> {
    let dtype = DType::promote(a.dtype(), b.dtype());
    Ok([copy::to_dtype(&view::ravel(a)?, dtype)?, copy::to_dtype(&view::ravel(b)?, dtype)?])
}

/// Returns the unique elements of a that are elements of b or, if `member` is false, that are not elements of b.
#[track_caller]
fn select(a: &Tensor, b: &Tensor, member: bool) -> Result<Tensor> {
    let values = unique(a, None)?.values;
    let is_in = isin(&values, b)?;
    masked::masked_select(&values, &if member { is_in } else { compare::logical_not(&is_in)? })
}

/// Returns the unique elements of a and b in ascending order, as a vector.
///
/// NaN elements count as different from each other and come last. The gradient goes to the first occurrence. See
/// [`unique`](crate::ops::unique).
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
    Ok(unique(&concatenate(&vectors(a, b)?, 0)?, None)?.values)
}

/// Returns the unique elements of a that are also elements of b, in ascending order, as a vector. NaN is not equal to
/// any element.
///
/// # Errors
/// [`Error::ReadInCapture`](crate::Error::ReadInCapture).
#[tensor_method]
#[track_caller]
pub fn intersect1d(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let [a, b] = vectors(a, b)?;
    select(&a, &b, true)
}

/// Returns the unique elements of a that are not elements of b, in ascending order, as a vector. NaN is not equal to
/// any element.
///
/// # Errors
/// [`Error::ReadInCapture`](crate::Error::ReadInCapture).
#[tensor_method]
#[track_caller]
pub fn setdiff1d(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let [a, b] = vectors(a, b)?;
    select(&a, &b, false)
}

/// Returns the unique elements that are in exactly one of a and b, in ascending order, as a vector. NaN is not equal to
/// any element.
///
/// # Errors
/// [`Error::ReadInCapture`](crate::Error::ReadInCapture).
#[tensor_method]
#[track_caller]
pub fn setxor1d(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let [a, b] = vectors(a, b)?;
    Ok(sort(&concatenate(&[select(&a, &b, false)?, select(&b, &a, false)?], 0)?, 0, false)?.0)
}

/// Returns true where x equals one of `elements`, by binary search. NaN equals nothing.
///
/// In addition to operands and result, the operation stores the sorted elements with their `i64` order, and a few
/// arrays of x's shape, two of them in `i64`.
///
/// # Errors
/// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
#[doc(alias = "in1d")]
#[tensor_method]
pub fn isin(x: &Tensor, elements: &Tensor) -> Result<Tensor> {
    if elements.size() == 0 {
        // `any` of no elements is false, and is on the device of the elements.
        return compare::logical_and(&fill::zeros_like(x)?, &reductions::any(&elements.detach(), ..)?);
    }
    let dtype = x.dtype().promote(elements.dtype());
    let (x, elements) =
        (copy::to_dtype(&x.detach(), dtype)?, copy::to_dtype(&view::ravel(&elements.detach())?, dtype)?);
    let sorted = sort(&elements, 0, false)?.0;
    let position = arithmetic::minimum(&search::searchsorted(&sorted, &x, false)?, sorted.size() as i64 - 1)?;
    compare::eq(&x, &gather::index_select(&sorted, 0, &position)?)
}
