//! Comparisons and logic. Results have dtype bool and no gradient.

use super::table::{binary, unary};
use crate::ops::elementwise::arithmetic;
use crate::ops::primitive::{copy, fill};
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
    /// Returns true where the sign bit of x is set: for negative numbers, −0.0 and −∞. The sign of a NaN is
    /// unspecified.
    signbit(x) = Expr::literal(1.0, ValueKind::Number).copysign(x).lt(0.0);
}

/// Returns true where |a − b| ≤ atol + rtol·|b|, where both are the same infinity, and with `equal_nan` where both are
/// NaN. a and b broadcast.
///
/// # Errors
/// [`Error::ShapeMismatch`]; [`Error::InvalidArgument`] for a tolerance that is negative or NaN.
#[tensor_method]
pub fn isclose(a: &Tensor, b: &Tensor, rtol: f64, atol: f64, equal_nan: bool) -> Result<Tensor> {
    if !(rtol >= 0.0 && atol >= 0.0) {
        return Err(Error::invalid("isclose", format!("tolerances must be at least 0, got {rtol} and {atol}")));
    }
    let (a, b) = (a.detach(), b.detach());
    if !a.dtype().is_float() && !b.dtype().is_float() {
        return is_close_integer(&a, &b, rtol, atol);
    }
    let is_within_tolerance = le(
        &arithmetic::abs(&arithmetic::sub(&a, &b)?)?,
        &arithmetic::add(&arithmetic::mul(&arithmetic::abs(&b)?, rtol)?, atol)?,
    )?;
    let close = logical_or(&eq(&a, &b)?, &logical_and(&is_within_tolerance, &isfinite(&b)?)?)?;
    match equal_nan {
        true => logical_or(&close, &logical_and(&isnan(&a)?, &isnan(&b)?)?),
        false => Ok(close),
    }
}

/// Implements [`isclose`] for integers. The distance is computed modulo 2⁶⁴, because it may be outside the range of
/// `i64`.
fn is_close_integer(a: &Tensor, b: &Tensor, rtol: f64, atol: f64) -> Result<Tensor> {
    let (a, b) = (copy::to_dtype(a, DType::I64)?, copy::to_dtype(b, DType::I64)?);
    let distance = arithmetic::sub(&arithmetic::maximum(&a, &b)?, &arithmetic::minimum(&a, &b)?)?;
    let wrapped = arithmetic::where_(&lt(&distance, 0)?, 2f64.powi(64), fill::zeros((), DType::F64)?)?;
    let distance = arithmetic::add(&copy::to_dtype(&distance, DType::F64)?, &wrapped)?;
    let size = arithmetic::abs(&copy::to_dtype(&b, DType::F64)?)?;
    le(&distance, &arithmetic::add(&arithmetic::mul(&size, rtol)?, atol)?)
}
