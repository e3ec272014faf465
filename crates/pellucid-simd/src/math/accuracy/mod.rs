//! Accuracy tests: every primitive is compared with the `libm` crate, with the same function of `f64`, or with known
//! values.
//!
//! The references are computed in `f64`. So the errors that are reported for `f32` functions are true errors, but the
//! errors of `f64` functions include the error of `libm` (usually below 1 ULP).

// The tests print the measured errors, which `--nocapture` shows.
#![allow(clippy::print_stdout, clippy::type_complexity, clippy::approx_constant)]

mod f32_functions;
mod f64_functions;
mod known_values;
mod special_values;

use std::fmt::Debug;

/// Returns the distance between `actual` and `expected` in units in the last place of an `f32` near `expected`.
fn ulps(actual: f32, expected: f64) -> f64 {
    let nearest = expected as f32;
    if actual.to_bits() == nearest.to_bits() || (actual.is_nan() && expected.is_nan()) {
        return 0.0;
    }
    if actual == nearest || actual.is_nan() || expected.is_nan() {
        return f64::INFINITY; // one value is a zero with the wrong sign, or only one value is NaN
    }
    // An infinite result counts as 2¹²⁸.
    let value = if actual.is_infinite() { 2f64.powi(128).copysign(actual as f64) } else { actual as f64 };
    let expected = expected.clamp(-2f64.powi(128), 2f64.powi(128));
    let exponent = (expected.abs().max(f64::MIN_POSITIVE).log2().floor() as i32).clamp(-126, 127);
    (value - expected).abs() / 2f64.powi(exponent - 23)
}

/// Returns the distance between two `f64`, counted in representable values.
fn ulps64(actual: f64, expected: f64) -> f64 {
    if actual.to_bits() == expected.to_bits() || (actual.is_nan() && expected.is_nan()) {
        return 0.0;
    }
    if actual == expected || actual.is_nan() || expected.is_nan() || (actual < 0.0) != (expected < 0.0) {
        return f64::INFINITY;
    }
    (actual.to_bits() as i64).abs_diff(expected.to_bits() as i64) as f64
}

/// Returns the largest error and the argument at which it occurs.
fn largest_error<X: Copy + Debug>(xs: impl Iterator<Item = X>, error: impl Fn(X) -> f64) -> (f64, Option<X>) {
    let mut worst = (0.0, None);
    for x in xs {
        let e = error(x);
        if e > worst.0 {
            worst = (e, Some(x));
        }
    }
    worst
}

/// Returns test arguments: every `step`-th bit pattern of `f32`, and the values around the critical points of
/// functions.
fn samples(step: usize) -> impl Iterator<Item = f32> {
    const CRITICAL: [f32; 34] = [
        0.0,
        f32::MIN_POSITIVE,
        1e-8,
        2.98e-8,
        5.96e-8,
        1e-4,
        0.25,
        0.346_573_6,
        0.414_213_57,
        0.5,
        0.693_147_2,
        0.707_106_77,
        0.785_398_2,
        0.927_734_4,
        1.0,
        1.414_213_5,
        1.570_796_4,
        2.414_213_7,
        3.141_592_7,
        4.0,
        6.283_185_5,
        9.0,
        10.0,
        10.05,
        17.3,
        18.0,
        65_536.0,
        86.99,
        87.336_55,
        88.722_84,
        89.0,
        103.972,
        104.0,
        f32::INFINITY,
    ];
    let all = (0..=u32::MAX).step_by(step).map(f32::from_bits);
    let near = CRITICAL
        .into_iter()
        .flat_map(|c| (-300i32..300).map(move |k| f32::from_bits(c.to_bits().wrapping_add_signed(k))));
    all.chain(near.flat_map(|x| [x, -x]))
}

/// Returns (1 + 1/x)⁶⁰⁰ˣ.
fn near_one_to_large(pow: fn(f64, f64) -> f64, x: f64) -> f64 {
    pow(1.0 + 1.0 / x, x * 600.0)
}
