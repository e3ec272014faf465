//! Arithmetic, rounding, parts of numbers, selection.

use super::{binary_row as binary, unary_row as unary};
use crate::table::nd::zip;
use crate::table::row::{
    Gradient::{Third, Zero},
    Row, Rule, mask, real,
};
use crate::table::special::{floor_div, floor_of_quotient, floor_rem, integer_pow};
use pellucid_tensor::{Tensor, ops};

pub(super) fn rows() -> Vec<Row> {
    let mut rows = binary_rows();
    rows.extend(unary_rows());
    rows.extend(selection_rows());
    rows
}

fn nan_or(a: f64, b: f64, value: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { value }
}

fn binary_rows() -> Vec<Row> {
    vec![
        binary!(add, |a, b| a + b),
        binary!(sub, |a, b| a - b).rule(Rule::Numbers),
        binary!(mul, |a, b| a * b).gradient(Third),
        binary!(div, |a, b| a / b).rule(Rule::Floats).input_within(1, 0.4..=2.0).gradient(Third),
        binary!(floor_div, floor_of_quotient)
            .rule(Rule::Numbers)
            .integers(|x| floor_div(x[0], x[1]))
            .input_within(0, 2.1..=2.9)
            .input_within(1, 1.1..=1.4)
            .gradient(Zero),
        binary!(rem, |a, b| a - b * (a / b).floor())
            .rule(Rule::Numbers)
            .integers(|x| floor_rem(x[0], x[1]))
            .input_within(0, 2.3..=2.6)
            .input_within(1, 1.3..=2.0)
            .ordinary()
            .check("division by zero and by NaN must give NaN", || {
                Ok(ops::rem(Tensor::from([1.0, f64::NAN]), Tensor::from([0.0, 2.0]))?
                    .to_vec::<f64>()
                    .iter()
                    .all(|x| x.is_nan()))
            }),
        binary!(heaviside, |a, b| match a {
            0.0 => b,
            a if a.is_nan() => a,
            a => f64::from(a > 0.0),
        })
        .away(&[0.0])
        .any_zero(),
        binary!(fmod, |a, b| a % b)
            .rule(Rule::Numbers)
            .integers(|x| if x[1] == 0 { 0 } else { x[0].wrapping_rem(x[1]) })
            .input_within(0, -2.6..=-2.3)
            .input_within(1, 1.3..=2.0)
            .ordinary(),
        binary!(pow, f64::powf)
            .rule(Rule::Numbers)
            .integers(|x| integer_pow(x[0], x[1]))
            .input_within(0, 0.5..=2.0)
            .gradient(Third),
        binary!(maximum, |a: f64, b: f64| nan_or(a, b, a.max(b))).any_zero(),
        binary!(minimum, |a: f64, b: f64| nan_or(a, b, a.min(b))).any_zero(),
        binary!(fmax, f64::max).any_zero(),
        binary!(fmin, f64::min).any_zero(),
        binary!(atan2, f64::atan2).rule(Rule::Floats).input_within(0, 0.3..=2.0),
        binary!(copysign, f64::copysign).rule(Rule::Floats).away(&[0.0]),
        binary!(hypot, f64::hypot).rule(Rule::Floats).input_within(0, 0.3..=2.0),
        binary!(bitwise_and, |a, b| (a as i64 & b as i64) as f64).rule(Rule::Bits).untracked(),
        binary!(bitwise_or, |a, b| (a as i64 | b as i64) as f64).rule(Rule::Bits).untracked(),
        binary!(bitwise_xor, |a, b| (a as i64 ^ b as i64) as f64).rule(Rule::Bits).untracked(),
        binary!(shift_left, |a, b| if b < 0.0 { 0.0 } else { a * b.exp2() })
            .rule(Rule::Shifts)
            .untracked()
            .check("a shift beyond the width must give 0", || {
                Ok(ops::shift_left(Tensor::from([3i32, 3]), Tensor::from([32i32, 99]))?.to_vec::<i32>() == [0, 0])
            }),
        binary!(shift_right, |a, b| if b < 0.0 { if a < 0.0 { -1.0 } else { 0.0 } } else { (a / b.exp2()).floor() })
            .rule(Rule::Shifts)
            .untracked(),
    ]
}

const WHOLE: &[f64] = &[-2.0, -1.0, 0.0, 1.0, 2.0];
const HALVES: &[f64] = &[-1.5, -0.5, 0.5, 1.5];

fn unary_rows() -> Vec<Row> {
    let sign = |x: f64| if x == 0.0 || x.is_nan() { x } else { x.signum() };
    vec![
        unary!(neg, |x| -x).rule(Rule::Numbers),
        unary!(angle, |x| if x.is_nan() { x } else { f64::from(x < 0.0) * std::f64::consts::PI })
            .rule(Rule::Floats)
            .gradient(Zero)
            .any_zero(),
        unary!(abs, f64::abs).away(&[0.0]),
        unary!(sign, sign).away(&[0.0]).gradient(Zero),
        unary!(floor, f64::floor).away(WHOLE).gradient(Zero),
        unary!(ceil, f64::ceil).away(WHOLE).gradient(Zero),
        unary!(round, f64::round_ties_even).away(HALVES).gradient(Zero),
        unary!(trunc, f64::trunc).away(WHOLE).gradient(Zero),
        unary!(frac, |x| x - x.trunc()).rule(Rule::Numbers).away(WHOLE),
        unary!(sqrt, f64::sqrt).rule(Rule::Floats).within(0.2..=3.0),
        unary!(rsqrt, |x| 1.0 / x.sqrt()).rule(Rule::Floats).within(0.2..=3.0),
        unary!(reciprocal, |x| 1.0 / x).rule(Rule::Floats).away(&[0.0]).within(0.2..=3.0).gradient(Third),
        unary!(square, |x| x * x),
        unary!(cube, |x| x * x * x).gradient(Third),
        // The negation of booleans, the complement of integers.
        unary!(bitwise_not, |x| 1.0 - x).rule(Rule::Bits).untracked().integers(|x| !x[0]),
        unary!(nan_to_num(0.5, 7.0, -7.0), |x| match x {
            _ if x.is_nan() => 0.5,
            f64::INFINITY => 7.0,
            f64::NEG_INFINITY => -7.0,
            _ => x,
        }),
        unary!(clamp(-0.5, 0.75), |x: f64| x.clamp(-0.5, 0.75)).rule(Rule::Floats).away(&[-0.5, 0.75]),
    ]
}

/// Returns a where the mask is 1, else b.
fn choose(x: &[f64]) -> f64 {
    if x[0] != 0.0 { x[1] } else { x[2] }
}

fn selection_rows() -> Vec<Row> {
    let where_ = Row::new("where_")
        .case(
            "one shape",
            [mask([2, 3]), real([2, 3]), real([2, 3])],
            |x| ops::where_(&x[0], &x[1], &x[2]),
            |x| zip(x, choose),
        )
        .case(
            "broadcast",
            [mask([3]), real([2, 1]), real([])],
            |x| ops::where_(&x[0], &x[1], &x[2]),
            |x| zip(x, choose),
        )
        .floats_only()
        .case(
            "a wide mask",
            [mask([2, 2, 3]), real([2, 1]), real([3])],
            |x| ops::where_(&x[0], &x[1], &x[2]),
            |x| zip(x, choose),
        )
        .floats_only()
        .case("empty", [mask([0]), real([1]), real([])], |x| ops::where_(&x[0], &x[1], &x[2]), |x| zip(x, choose))
        .floats_only()
        .case("numbers", [mask([4]), real([4])], |x| ops::where_(&x[0], &x[1], 0), |x| zip(x, |v| v[0] * v[1]))
        .floats_only()
        .ordinary()
        .check("two numbers must give a tensor", || Ok(ops::where_(&[true].into(), 1.5, 2.5)?.item::<f32>() == 1.5))
        .check("a condition of another dtype must be an error", || Ok(ops::where_(&[1i64].into(), 1.5, 2.5).is_err()));
    let line = |v: &[f64]| v[0] + v[2] * (v[1] - v[0]);
    let lerp = Row::new("lerp")
        .rule(Rule::Numbers)
        .case(
            "one shape",
            [real([2, 3]), real([2, 3]), real([2, 3])],
            |x| ops::lerp(&x[0], &x[1], &x[2]),
            move |x| zip(x, line),
        )
        .case(
            "one weight",
            [real([2, 3]), real([3]), real([])],
            |x| ops::lerp(&x[0], &x[1], &x[2]),
            move |x| zip(x, line),
        )
        .floats_only();
    let triple = || [real([2, 3]), real([3]), real([2, 1]).within(0.5..=2.0)];
    let with = |name, call: fn(&[Tensor]) -> pellucid_tensor::Result<Tensor>, value: fn(&[f64]) -> f64| {
        Row::new(name)
            .case("broadcast", triple(), call, move |x| zip(x, value))
            .floats_only()
            .gradient(Third)
            .ordinary()
    };
    let addcmul = with("addcmul", |x| ops::addcmul(&x[0], &x[1], &x[2], 1.5), |v| v[0] + 1.5 * v[1] * v[2]);
    let addcdiv = with("addcdiv", |x| ops::addcdiv(&x[0], &x[1], &x[2], 1.5), |v| v[0] + 1.5 * v[1] / v[2]);
    vec![where_, lerp, addcmul.scale(4.0), addcdiv.scale(4.0)]
}
