//! Comparisons and logic. Results have dtype bool and no gradient.

use super::table::{binary, unary};
use crate::ops;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::formula::{Expr, ValueKind};
use pellucid_ir::{DType, Error, Result};

binary! {
    /// Returns the mask a = b.
    #[doc(alias = "equal")]
    eq(a, b) = a.eq(b);
    /// Returns the mask a ≠ b.
    #[doc(alias = "not_equal")]
    ne(a, b) = a.ne(b);
    /// Returns the mask a < b.
    #[doc(alias = "less")]
    lt(a, b) = a.lt(b);
    /// Returns the mask a ≤ b.
    #[doc(alias = "less_equal")]
    le(a, b) = a.le(b);
    /// Returns the mask a > b.
    #[doc(alias = "greater")]
    gt(a, b) = a.gt(b);
    /// Returns the mask a ≥ b.
    #[doc(alias = "greater_equal")]
    ge(a, b) = a.ge(b);
    /// Returns true where both operands are nonzero.
    logical_and(a, b) = a.to_mask() & b.to_mask();
    /// Returns true where at least one operand is nonzero.
    logical_or(a, b) = a.to_mask() | b.to_mask();
    /// Returns true where exactly one operand is nonzero.
    logical_xor(a, b) = a.to_mask() ^ b.to_mask();
}

unary! {
    /// Returns true where x is 0.
    logical_not(x) = !x.to_mask();
    /// Returns true where x is NaN.
    isnan(x) = x.is_nan();
    /// Returns true where x is neither infinite nor NaN.
    isfinite(x) = x.is_finite();
    /// Returns true where x is +∞ or −∞.
    isinf(x) = x.abs().eq(f64::INFINITY);
    /// Returns true where x is +∞.
    isposinf(x) = x.eq(f64::INFINITY);
    /// Returns true where x is −∞.
    isneginf(x) = x.eq(f64::NEG_INFINITY);
    /// Returns true where the sign bit of x is set: for negative numbers, −0.0 and −∞. The sign of a NaN is unspecified.
    signbit(x) = Expr::literal(1.0, ValueKind::Number).copysign(x).lt(0.0);
}

/// Returns true where |a − b| ≤ atol + rtol·|b|, where both are the same infinity, and with `equal_nan` where both are
/// NaN. a and b broadcast.
///
/// # Errors
/// [`Error::ShapeMismatch`]; [`Error::InvalidArgument`] for a negative tolerance.
#[tensor_method]
pub fn isclose(a: &Tensor, b: &Tensor, rtol: f64, atol: f64, equal_nan: bool) -> Result<Tensor> {
    if !(rtol >= 0.0 && atol >= 0.0) {
        return Err(Error::invalid("isclose", format!("tolerances must not be negative, got {rtol} and {atol}")));
    }
    let (a, b) = (a.detach(), b.detach());
    let near = ops::le(&ops::abs(&ops::sub(&a, &b)?)?, &ops::add(&ops::mul(&ops::abs(&b)?, rtol)?, atol)?)?;
    let close = ops::logical_or(&ops::eq(&a, &b)?, &ops::logical_and(&near, &ops::isfinite(&b)?)?)?;
    match equal_nan {
        true => ops::logical_or(&close, &ops::logical_and(&ops::isnan(&a)?, &ops::isnan(&b)?)?),
        false => Ok(close),
    }
}

/// Returns true, as a 0-d bool tensor, if all elements are close (see [`isclose`]).
///
/// # Errors
/// Those of [`isclose`].
#[tensor_method]
pub fn allclose(a: &Tensor, b: &Tensor, rtol: f64, atol: f64, equal_nan: bool) -> Result<Tensor> {
    ops::all(&isclose(a, b, rtol, atol, equal_nan)?, ..)
}

/// Returns true, as a 0-d bool tensor, if shapes and elements are equal (NumPy's `array_equal`).
///
/// # Errors
/// [`Error::OutOfMemory`].
#[doc(alias = "array_equal")]
#[tensor_method]
pub fn equal(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if a.shape() != b.shape() {
        return ops::full_on_device_of(a, (), false, DType::Bool);
    }
    ops::all(&ops::eq(a, b)?, ..)
}

/// Returns true where x equals one of `elements`, by binary search. NaN equals nothing.
///
/// Besides operands and result, the operation stores the sorted elements with their `i64` order, and a few arrays of x's
/// shape, two of them in `i64` (see [`searchsorted`](crate::ops::searchsorted)).
///
/// # Errors
/// [`Error::OutOfMemory`].
#[doc(alias = "in1d")]
#[tensor_method]
pub fn isin(x: &Tensor, elements: &Tensor) -> Result<Tensor> {
    if elements.size() == 0 {
        // `any` of no elements is false, on the device of the elements.
        return ops::logical_and(&ops::zeros_like(x)?, &ops::any(&elements.detach(), ..)?);
    }
    let dtype = x.dtype().promote(elements.dtype());
    let (x, elements) = (ops::to_dtype(&x.detach(), dtype)?, ops::to_dtype(&ops::ravel(&elements.detach())?, dtype)?);
    let sorted = ops::sort(&elements, 0, false)?.0;
    let place = ops::minimum(&ops::searchsorted(&sorted, &x, false)?, sorted.size() as i64 - 1)?;
    ops::eq(&x, &ops::index_select(&sorted, 0, &place)?)
}
