//! Comparisons and logic: results are of dtype bool, and untracked.

use super::{binary, unary};

binary! {
    /// a = b
    eq(a, b) = a.eq(b);
    /// a ≠ b
    ne(a, b) = a.ne(b);
    /// a < b
    lt(a, b) = a.lt(b);
    /// a ≤ b
    le(a, b) = a.le(b);
    /// a > b
    gt(a, b) = a.gt(b);
    /// a ≥ b
    ge(a, b) = a.ge(b);
    /// Both are not 0.
    logical_and(a, b) = a.to_mask() & b.to_mask();
    /// At least one is not 0.
    logical_or(a, b) = a.to_mask() | b.to_mask();
    /// Exactly one is not 0.
    logical_xor(a, b) = a.to_mask() ^ b.to_mask();
}

unary! {
    /// x = 0
    logical_not(x) = !x.to_mask();
    /// x is NaN.
    isnan(x) = x.is_nan();
    /// x is neither infinite nor NaN.
    isfinite(x) = x.is_finite();
    /// x is +∞ or −∞.
    isinf(x) = x.abs().eq(f64::INFINITY);
    /// x is +∞.
    isposinf(x) = x.eq(f64::INFINITY);
    /// x is −∞.
    isneginf(x) = x.eq(f64::NEG_INFINITY);
}
