//! The formulas of p-norms: the terms |x|ᵖ of the sum, and its root.
//!
//! The derivatives of every order are those of the Taylor series at 0 where it exists. Elsewhere they are 0 at 0: for
//! odd p in order p, where the one-sided derivatives have opposite signs, and for fractional p in orders above p. An
//! element of 0 then contributes nothing to the gradient, as in PyTorch.

use pellucid_ir::formula;
use pellucid_ir::formula::{Expr, Formula};

/// Returns the formula of |x|ᵖ, with x as input and p as parameter; p is neither 0 nor infinite.
pub(super) fn absolute_power(p: f64) -> &'static Formula {
    if p > 0.0 && p % 2.0 == 0.0 {
        // A polynomial: its derivatives of order p at 0 are p!, which |x| would lose.
        return whole_power();
    }
    formula! {
        static power(x; p) = x.abs().pow(p);
        d x = g * away_from_zero(x, |u| p * (u.abs().pow(p - 1.0) * u.signum()));
    }
}

/// Returns the formula of xᵖ with the derivatives of [`absolute_power`] at 0; NaN for x < 0 and a fractional p.
pub(super) fn signed_power(p: f64) -> &'static Formula {
    if p > 0.0 && p % 1.0 == 0.0 {
        return whole_power();
    }
    formula! {
        static power(x; p) = x.pow(p);
        d x = g * away_from_zero(x, |u| p * u.pow(p - 1.0));
    }
}

fn whole_power() -> &'static Formula {
    formula! { static power(x; p) = x.pow(p); }
}

/// Returns the formula of sᵖ for the exponent p = 1/q of a norm of order q. Its derivatives at 0 are 0: the subgradient
/// of least length of the norm.
pub(super) fn root() -> &'static Formula {
    formula! {
        static root(s; p) = s.pow(p);
        d s = {
            let zero = s.eq(0.0);
            zero.select(0.0, g * p * y / zero.select(1.0, s))
        };
    }
}

/// Returns f(x), and 0 at 0 with all its derivatives.
fn away_from_zero(x: Expr, f: impl Fn(Expr) -> Expr) -> Expr {
    let away = x.ne(0.0);
    away.select(f(away.select(x, 1.0)), 0.0)
}
