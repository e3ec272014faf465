//! Arithmetic, rounding, sign and bitwise operations.

use super::operand::TensorOrScalar;
use super::table::{binary, unary};
use crate::ops::formula::map;
use crate::ops::primitive::copy::copy;
use crate::ops::primitive::fill::full;
use crate::tensor::Tensor;
use pellucid_derive::{operation, tensor_method};
use pellucid_ir::formula::Expr;
use pellucid_ir::{DType, Error, Result, Scalar, formula};

binary! {
    /// Computes a + b; integers wrap.
    add(a, b) = a + b;
    /// Computes a − b; integers wrap.
    #[doc(alias = "subtract")]
    sub(a, b) = a - b;
    /// Computes a·b; integers wrap.
    #[doc(alias = "multiply")]
    mul(a, b) = a * b;
    /// Computes a / b; the result of integers is `f32`.
    #[doc(alias("divide", "true_divide"))]
    div(a, b) = a / b;
    /// Computes ⌊a / b⌋, like Python's `//`; an integer divided by 0 is 0, and the result for an infinite a is NaN. The
    /// gradient is zero.
    #[doc(alias = "floor_divide")]
    floor_div(a, b) = a.floor_div(b);
    /// Computes a − b·⌊a / b⌋, with the sign of b, like Python's `%`; an integer modulo 0 is 0.
    #[doc(alias("remainder", "mod"))]
    rem(a, b) = a.rem(b);
    /// Computes a − b·trunc(a / b), with the sign of a, like C's `fmod`; an integer modulo 0 is 0.
    fmod(a, b) = {
        let (p, q) = (a.abs(), b.abs());
        let m = p.rem(q);
        // The absolute value of the smallest integer overflows and is negative. If p or q is negative for this reason,
        // a nonzero m exceeds the truncated remainder by q.
        let overflow = (p.lt(0.0) | q.lt(0.0)).select(q, 0.0);
        let r = m.eq(0.0).select(m, m - overflow);
        let r = (a.lt(0.0) & p.ge(0.0)).select(-r, r);
        // If a is a zero, the result keeps its sign.
        (a.eq(0.0) & r.eq(0.0)).select(a, r)
    }, d a = g, d b = -(g * (a.abs().floor_div(b.abs()) * a.signum() * b.signum()));
    /// Computes aᵇ. Integer powers wrap; a negative power of an integer is 0 unless |a| = 1.
    #[doc(alias("power", "float_power"))]
    pow(a, b) = a.pow(b), autocast = Single, where b {
        2.0 => a * a,
        3.0 => a * a * a,
        -1.0 => a.recip(),
        // Adding 0 makes the root of −0 a positive zero.
        0.5 => a.eq(f64::NEG_INFINITY).select(f64::INFINITY, (a + 0.0).sqrt()),
    };
    /// Returns the larger of a and b; NaN if either is NaN. Equal operands share the gradient evenly.
    maximum(a, b) = a.max(b);
    /// Returns the smaller of a and b; NaN if either is NaN. Equal operands share the gradient evenly.
    minimum(a, b) = a.min(b);
    /// Returns the larger of a and b, ignoring a NaN if the other is a number. Equal operands share the gradient
    /// evenly.
    fmax(a, b) = a.is_nan().select(b, b.is_nan().select(a, a.max(b)));
    /// Returns the smaller of a and b, ignoring a NaN if the other is a number. Equal operands share the gradient
    /// evenly.
    fmin(a, b) = a.is_nan().select(b, b.is_nan().select(a, a.min(b)));
    /// Computes the angle of the point (b, a), in [−π, π]. All derivatives at the origin are 0.
    #[doc(alias = "arctan2")]
    atan2(a, b) = a.atan2(b);
    /// Returns |a| with the sign of b.
    copysign(a, b) = a.copysign(b);
    /// Computes the Heaviside step function: 0 for a < 0, 1 for a > 0, and b for a = 0; NaN stays NaN.
    heaviside(a, b) = a.eq(0.0).select(b, a.is_nan().select(a, a.gt(0.0).to_number()));
    /// Computes √(a² + b²), even if a square overflows or underflows. The result is ∞ if one operand is infinite, even
    /// if the other is NaN (as in C99). All derivatives at the origin are 0.
    hypot(a, b) = hypotenuse(a, b),
        d a = g * hypotenuse_slopes(a, b)[0], d b = g * hypotenuse_slopes(a, b)[1];
    /// Computes the bitwise AND of integers, or the logical AND of booleans.
    bitwise_and(a, b) = a & b;
    /// Computes the bitwise OR of integers, or the logical OR of booleans.
    bitwise_or(a, b) = a | b;
    /// Computes the bitwise XOR of integers, or the logical XOR of booleans.
    bitwise_xor(a, b) = a ^ b;
    /// Computes a·2ᵇ of integers; 0 if b is at least the bit width.
    #[doc(alias("left_shift", "bitwise_left_shift"))]
    shift_left(a, b) = a.shl(b);
    /// Computes ⌊a / 2ᵇ⌋ of integers.
    #[doc(alias("right_shift", "bitwise_right_shift"))]
    shift_right(a, b) = a.shr(b);
}

unary! {
    /// Computes −x.
    #[doc(alias = "negative")]
    neg(x) = -x;
    /// Computes |x|; its derivative at 0 is 0.
    #[doc(alias("absolute", "fabs"))]
    abs(x) = x.abs();
    /// Returns the sign: −1, 0 or 1; NaN stays NaN. The gradient is zero.
    #[doc(alias = "sgn")]
    sign(x) = x.signum();
    /// Returns the largest integer ≤ x. The gradient is zero.
    floor(x) = x.floor();
    /// Returns the smallest integer ≥ x. The gradient is zero.
    ceil(x) = x.ceil();
    /// Rounds to the nearest integer, ties to even. The gradient is zero.
    #[doc(alias = "rint")]
    round(x) = x.round_ties_even();
    /// Rounds towards zero. The gradient is zero.
    #[doc(alias = "fix")]
    trunc(x) = x.trunc();
    /// Returns the fractional part x − trunc(x), which has the sign of x.
    frac(x) = x - x.trunc();
    /// Computes √x.
    sqrt(x) = x.sqrt();
    /// Computes 1/√x.
    rsqrt(x) = x.sqrt().recip(), autocast = Single;
    /// Computes 1/x.
    reciprocal(x) = x.recip(), autocast = Single;
    /// Returns the angle of a real number: π for x < 0, else 0; NaN stays NaN. The gradient is zero.
    angle(x) = x.is_nan().select(x, x.lt(0.0).select(std::f64::consts::PI, 0.0));
    /// Computes x².
    square(x) = x * x, autocast = Single;
    /// Computes x³.
    cube(x) = x * x * x;
    /// Complements the bits of an integer, or negates a boolean.
    #[doc(alias = "invert")]
    bitwise_not(x) = !x;
}

/// Computes √(a² + b²). If a square could overflow, or both squares could underflow in `f32`, the larger side is
/// factored out.
fn hypotenuse(a: Expr, b: Expr) -> Expr {
    let (p, q) = (a.abs(), b.abs());
    let (large, small) = (p.max(q), p.min(q));
    let ratio = small / large;
    let scaled = large * ratio.mul_add(ratio, 1.0).sqrt();
    let scaled = large.eq(0.0).select(large, scaled);
    let plain = (a * a + b * b).sqrt();
    // If the larger side is between 2⁻⁵⁰ and 2⁵⁰, no square overflows, and a smaller side whose square underflows is
    // negligible.
    let safe = large.ge(8.881_784_197_001_252e-16) & large.le(1125899906842624.0);
    (p.eq(f64::INFINITY) | q.eq(f64::INFINITY)).select(f64::INFINITY, safe.select(plain, scaled))
}

/// Returns a/√(a² + b²) and b/√(a² + b²), and 0 at the origin, computed from the ratio of the smaller to the larger
/// side. Their derivatives, such as b²/√(a² + b²)³, then contain no difference that cancels.
fn hypotenuse_slopes(a: Expr, b: Expr) -> [Expr; 2] {
    let a_is_larger = a.abs().ge(b.abs());
    let (large, small) = (a_is_larger.select(a, b), a_is_larger.select(b, a));
    let ratio = small / large.eq(0.0).select(f64::INFINITY, large);
    let cosine = large.signum() / ratio.mul_add(ratio, 1.0).sqrt();
    let sine = ratio * cosine;
    [a_is_larger.select(cosine, sine), a_is_larger.select(sine, cosine)]
}

/// Limits x to [low, high]; the derivative is 1 on the closed range. NaN stays NaN, and a NaN bound makes all elements
/// NaN. Integer bounds outside the range of an integer dtype saturate.
///
/// # Errors
/// [`Error::DTypeMismatch`] for a dtype that the formula is not defined for.
#[doc(alias("clip", "clamp_min", "clamp_max"))]
#[tensor_method]
pub fn clamp(x: &Tensor, low: impl Into<Scalar>, high: impl Into<Scalar>) -> Result<Tensor> {
    let within = |bound: Scalar| match bound {
        Scalar::Int(bound) if x.dtype().is_int() => Scalar::Int(x.dtype().saturate(bound)),
        other => other,
    };
    let (low, high) = (within(low.into()), within(high.into()));
    if low.to_f64().is_nan() || high.to_f64().is_nan() {
        let unbounded = formula! { static clamp(x; low, high) = x.is_nan().select(x, low + high); };
        return map(unbounded, &[x], &[low, high]);
    }
    map(formula! { static clamp(x; low, high) = x.clamp(low, high); }, &[x], &[low, high])
}

/// Replaces NaN, +∞ and −∞ by the given values. Integers and booleans are copied.
///
/// # Errors
/// [`Error::OutOfMemory`].
#[tensor_method]
pub fn nan_to_num(
    x: &Tensor,
    nan: impl Into<Scalar>,
    highest: impl Into<Scalar>,
    lowest: impl Into<Scalar>,
) -> Result<Tensor> {
    if !x.dtype().is_float() {
        return copy(x);
    }
    let formula = formula! {
        static nan_to_num(x; nan, highest, lowest) = {
            let infinite = x.gt(0.0).select(highest, lowest);
            x.is_finite().select(x, x.is_nan().select(nan, infinite))
        };
    };
    map(formula, &[x], &[nan.into(), highest.into(), lowest.into()])
}

/// Returns a where the condition is true, else b, with broadcasting. The condition has dtype bool and no gradient; a
/// and b are tensors or scalars.
///
/// # Errors
/// [`Error::DTypeMismatch`] if the condition is not of dtype bool; [`Error::ShapeMismatch`].
#[doc(alias = "where")]
#[operation]
pub fn where_<'a>(
    condition: &Tensor,
    a: impl Into<TensorOrScalar<'a>>,
    b: impl Into<TensorOrScalar<'a>>,
) -> Result<Tensor> {
    let (a, b): (TensorOrScalar<'a>, TensorOrScalar<'a>) = (a.into(), b.into());
    if condition.dtype() != DType::Bool {
        let is_mask = |x: &TensorOrScalar<'a>| x.tensor().is_some_and(|x| x.dtype() == DType::Bool);
        let help = match is_mask(&a) || is_mask(&b) {
            true => "the condition must be a bool tensor; call ops::where_(condition, x, y) or x.where_(condition, y)",
            false => "the condition must be a bool tensor; compare with ne(0)",
        };
        return Err(Error::dtypes("where_", [condition.dtype()], help));
    }
    let filled = |x: &TensorOrScalar<'a>, like: &TensorOrScalar<'a>| -> Result<Tensor> {
        match (x, like.tensor()) {
            (TensorOrScalar::Scalar(k), Some(t)) => full((), *k, k.promote_into(t.dtype())),
            (TensorOrScalar::Scalar(k), None) => full((), *k, k.promote_into(DType::Bool)),
            (tensor, _) => Ok(tensor.expect_tensor().clone()),
        }
    };
    let formula = formula! { static where_(c: mask, a, b) = c.select(a, b); };
    map(formula, &[condition, &filled(&a, &b)?, &filled(&b, &a)?], &[])
}

impl Tensor {
    /// Returns this tensor where the condition is true, else `other`, with broadcasting.
    ///
    /// # Panics
    /// Panics if [`ops::where_`](where_) returns an error.
    #[doc(alias = "where")]
    #[track_caller]
    pub fn where_<'a>(&'a self, condition: &Tensor, other: impl Into<TensorOrScalar<'a>>) -> Tensor {
        crate::panic::unwrap(where_(condition, self, other))
    }
}

/// Interpolates linearly, a + w·(b − a): exactly a at w = 0, exactly b at w = 1. All three tensors broadcast.
///
/// For w ≥ ½ the formula is b − (1 − w)·(b − a). If b − a overflows or an end is infinite, it is (1 − w)·a + w·b.
/// Between equal infinities the result is this infinity.
///
/// # Errors
/// [`Error::ShapeMismatch`].
#[tensor_method]
pub fn lerp(a: &Tensor, b: &Tensor, weight: &Tensor) -> Result<Tensor> {
    if ![a, b, weight].iter().any(|t| t.dtype().is_float()) {
        return map(formula! { static lerp(a, b, w) = a + w * (b - a); }, &[a, b, weight], &[]);
    }
    macro_rules! lerp_formula {
        ($value:expr) => {
            formula! {
                static lerp(a, b, w) = {
                    let value: fn(Expr, Expr, Expr) -> Expr = $value;
                    value(a, b, w)
                };
                d a = g * (1.0 - w);
                d b = g * w;
                d w = g * (a.eq(b) & !a.is_finite()).select(0.0, b - a);
            }
        };
    }
    // If the side of a single weight is known, the kernel selects nothing. The results are the same.
    let is_known = weight.size() == 1 && weight.is_readable() && [a, b].iter().all(|t| t.dtype() == weight.dtype());
    let formula = match if is_known { weight.try_item::<f64>()? } else { f64::NAN } {
        w if w < 0.5 => lerp_formula!(|a, b, w| interpolate_from((a, w), a, b, w)),
        w if w >= 0.5 => lerp_formula!(|a, b, w| interpolate_from((b, w - 1.0), a, b, w)),
        _ => lerp_formula!(interpolate),
    };
    map(formula, &[a, b, weight], &[])
}

/// Returns the linear interpolation of floats a and b with weight w, which [`lerp`] describes.
pub(in crate::ops) fn interpolate(a: Expr, b: Expr, w: Expr) -> Expr {
    interpolate_from((w.lt(0.5).select(a, b), w.lt(0.5).select(w, w - 1.0)), a, b, w)
}

/// Returns the linear interpolation of a and b with weight w: the nearer end plus a part of b − a.
fn interpolate_from((end, part): (Expr, Expr), a: Expr, b: Expr, w: Expr) -> Expr {
    let value = end + part * (b - a);
    // Two equal infinities have no difference. The rare case computes b − a in another form, so that the common case
    // keeps its difference in registers.
    let rise = a.eq(b).select(0.0, -(a - b));
    let weighted = w.eq(0.0).select(a, w.eq(1.0).select(b, (1.0 - w) * a + w * b));
    value.is_finite().select(value, rise.is_finite().select(end + part * rise, weighted))
}

/// Computes x + value·a·b. All three tensors broadcast.
///
/// # Errors
/// [`Error::ShapeMismatch`].
#[tensor_method]
pub fn addcmul(x: &Tensor, a: &Tensor, b: &Tensor, value: impl Into<Scalar>) -> Result<Tensor> {
    let formula = formula! { static addcmul(x, a, b; value) = x + value * (a * b); };
    map(formula, &[x, a, b], &[value.into()])
}

/// Computes x + value·a/b. All three tensors broadcast.
///
/// # Errors
/// [`Error::ShapeMismatch`].
#[tensor_method]
pub fn addcdiv(x: &Tensor, a: &Tensor, b: &Tensor, value: impl Into<Scalar>) -> Result<Tensor> {
    let formula = formula! { static addcdiv(x, a, b; value) = x + value * (a / b); };
    map(formula, &[x, a, b], &[value.into()])
}
