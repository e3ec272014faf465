//! The formulas of p-norms: the terms |x|ᵖ of the sum, and its root.
//!
//! The derivatives of every order follow the Taylor series at 0 where it exists. Where it does not exist, the
//! derivatives at 0 are 0: for odd p in order p, in which the one-sided derivatives have opposite signs, and for
//! fractional p in orders above p. So an element of 0 contributes nothing to the gradient, as in PyTorch.

use pellucid_ir::formula;
use pellucid_ir::formula::{Expr, Formula};

/// Returns the formula of |x|ᵖ, with x as input and p as parameter; p is neither 0 nor infinite.
pub(in crate::ops) fn absolute_power(p: f64) -> &'static Formula {
    if is_even(p) {
        return integer_power();
    }
    formula! { static power(x; p) = x.abs().pow(p); }
}

/// Returns the formula of |x|·|x/c|ᵖ⁻¹, with x and a constant c ≥ 0 as inputs and p as parameter; p is neither 0 nor
/// infinite. All derivatives are 0 for c = 0. The derivatives at x = 0 are described above.
pub(in crate::ops) fn relative_power(p: f64) -> &'static Formula {
    if is_even(p) {
        return formula! {
            static power(x, c; p) = x * (x / c).pow(p - 1.0);
            d x = g * (p * ratio(x, c).pow(p - 1.0));
        };
    }
    formula! {
        static power(x, c; p) = x.abs() * (x / c).abs().pow(p - 1.0);
        d x = g * absolute_power_slope(ratio(x, c), p);
    }
}

/// Returns x/c. For c = 0 the result and all its derivatives are 0.
fn ratio(x: Expr, c: Expr) -> Expr {
    x / c.eq(0.0).select(f64::INFINITY, c)
}

/// Returns the formula of x·(x/c)ᵖ⁻¹, with x and a constant c as inputs and p as parameter, and with the derivatives of
/// c·s(x/c), where s is the formula [`signed_power`]. All derivatives for c = 0 are 0.
pub(in crate::ops) fn relative_signed_power(p: f64) -> &'static Formula {
    if is_integer(p) {
        return formula! {
            static power(x, c; p) = x * (x / c).pow(p - 1.0);
            d x = g * (p * ratio(x, c).pow(p - 1.0));
        };
    }
    formula! {
        static power(x, c; p) = x * (x / c).pow(p - 1.0);
        d x = g * away_from_zero(ratio(x, c), |u| p * u.pow(p - 1.0));
    }
}

/// Returns true if xᵖ is a polynomial.
fn is_integer(p: f64) -> bool {
    p > 0.0 && p % 1.0 == 0.0
}

/// Returns true if |x|ᵖ is the polynomial xᵖ. Its derivative of order p at 0 is p!, which a formula with |x| would
/// lose.
pub(in crate::ops) fn is_even(p: f64) -> bool {
    p > 0.0 && p % 2.0 == 0.0
}

/// Returns the formula of |a − b|ᵖ with the derivatives of [`absolute_power`]. The inputs are a and b. The parameter is
/// p; the formulas for p = 0, 1 and 2 have no parameter. p is not infinite. For p = 0 the result is 1 where a and b
/// differ.
pub(in crate::ops) fn difference_power(p: f64) -> &'static Formula {
    if p == 0.0 {
        return formula! { static distance_count(a, b) = (a - b).eq(0.0).select(0.0, 1.0); };
    }
    if p == 1.0 {
        return formula! { static distance_sum(a, b) = (a - b).abs(); };
    }
    if p == 2.0 {
        return formula! {
            static distance_square(a, b) = { let d = a - b; d * d };
            d a = 2.0 * g * (a - b);
            d b = -(2.0 * g * (a - b));
        };
    }
    if is_even(p) {
        return formula! {
            static distance_power(a, b; p) = (a - b).pow(p);
            d a = g * (p * (a - b).pow(p - 1.0));
            d b = -(g * (p * (a - b).pow(p - 1.0)));
        };
    }
    formula! {
        static distance_power(a, b; p) = (a - b).abs().pow(p);
        d a = g * absolute_power_slope(a - b, p);
        d b = -(g * absolute_power_slope(a - b, p));
    }
}

/// Returns the formula of |a − b|·|(a − b)·r|ᵖ⁻¹ for a constant r > 0, with the parameter of [`difference_power`]; p is
/// neither 0 nor 1 nor infinite. For r = 1 its derivatives are bit-identical to those of [`difference_power`].
pub(in crate::ops) fn relative_difference_power(p: f64) -> &'static Formula {
    if p == 2.0 {
        return formula! {
            static distance_square(a, b, r) = { let d = a - b; d * (d * r) };
            d a = 2.0 * g * ((a - b) * r);
            d b = -(2.0 * g * ((a - b) * r));
        };
    }
    if is_even(p) {
        return formula! {
            static distance_power(a, b, r; p) = { let d = a - b; d * (d * r).pow(p - 1.0) };
            d a = g * (p * ((a - b) * r).pow(p - 1.0));
            d b = -(g * (p * ((a - b) * r).pow(p - 1.0)));
        };
    }
    formula! {
        static distance_power(a, b, r; p) = { let d = a - b; d.abs() * (d * r).abs().pow(p - 1.0) };
        d a = g * absolute_power_slope((a - b) * r, p);
        d b = -(g * absolute_power_slope((a - b) * r, p));
    }
}

/// Returns the derivative of |x|ᵖ with respect to x. It is 0 at x = 0.
fn absolute_power_slope(x: Expr, p: Expr) -> Expr {
    away_from_zero(x, |u| p * (u.abs().pow(p - 1.0) * u.signum()))
}

/// Returns the formula of xᵖ with the derivatives of [`absolute_power`] at 0; NaN for x < 0 and a fractional p.
pub(in crate::ops) fn signed_power(p: f64) -> &'static Formula {
    if is_integer(p) {
        return integer_power();
    }
    formula! {
        static power(x; p) = x.pow(p);
        d x = g * away_from_zero(x, |u| p * u.pow(p - 1.0));
    }
}

fn integer_power() -> &'static Formula {
    formula! { static power(x; p) = x.pow(p); }
}

/// Returns the formula of sᵖ for the exponent p = 1/q of a norm of order q. Its derivatives at 0 and at infinity are 0;
/// at 0, this is the norm's subgradient of least length. The derivatives are expressed by s and the result, so they
/// also hold for any constant multiple of sᵖ.
pub(in crate::ops) fn root() -> &'static Formula {
    formula! {
        static root(s; p) = s.pow(p);
        d s = {
            let is_end = s.eq(0.0) | s.eq(f64::INFINITY);
            is_end.select(0.0, g * p * (y / is_end.select(1.0, s)))
        };
    }
}

/// Returns the formula of √s. Its derivatives at 0 are 0, like the derivatives of [`root`].
pub(in crate::ops) fn square_root() -> &'static Formula {
    formula! {
        static root(s) = s.sqrt();
        d s = {
            let positive = y.gt(0.0);
            positive.select(g * 0.5 / positive.select(y, 1.0), 0.0)
        };
    }
}

/// Returns f(x). At x = 0 the result and all its derivatives are 0.
fn away_from_zero(x: Expr, f: impl Fn(Expr) -> Expr) -> Expr {
    let away = x.ne(0.0);
    away.select(f(away.select(x, 1.0)), 0.0)
}
