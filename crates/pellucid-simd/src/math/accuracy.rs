//! Accuracy tests: every primitive against the `libm` crate, over the whole range of bit patterns.
//!
//! The `f32` functions are compared with `libm` in `f64`, so the reported values are true errors. The `f64`
//! functions are compared with `libm` in `f64`, whose own error (below 1 ULP) is part of the reported value.

// The tests print the measured errors, which `--nocapture` shows.
#![allow(clippy::print_stdout, clippy::type_complexity, clippy::approx_constant)]

use super::{Real, bessel, double, gamma, single};
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

/// Returns the distance between two `f64` in representable values.
fn ulps64(actual: f64, expected: f64) -> f64 {
    if actual.to_bits() == expected.to_bits() || (actual.is_nan() && expected.is_nan()) {
        return 0.0;
    }
    if actual == expected || actual.is_nan() || expected.is_nan() || (actual < 0.0) != (expected < 0.0) {
        return f64::INFINITY;
    }
    (actual.to_bits() as i64).abs_diff(expected.to_bits() as i64) as f64
}

/// Returns the largest error and its argument.
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

/// Defines tests of `f32` functions. Each line has the name, the largest allowed error in ULP, the sampling step, and
/// the reference function.
macro_rules! accuracy {
    ($($test:ident { $($name:ident $limit:literal / $step:literal $reference:expr;)* })*) => {$(
        #[test]
        fn $test() {
            let mut failures = vec![];
            $(
                let reference: fn(f64) -> f64 = $reference;
                let (error, at) = largest_error(samples($step), |x| ulps(single::$name(x), reference(x as f64)));
                println!("f32 {:8} {error:.3} ULP at {at:?}", stringify!($name));
                if error > $limit {
                    failures.push((stringify!($name), error, at));
                }
            )*
            assert!(failures.is_empty(), "the errors of these functions exceed their limits: {failures:?}");
        }
    )*};
}

accuracy! {
    f32_exponentials {
        exp 2.0 / 997 libm::exp;
        exp2 2.0 / 1999 libm::exp2;
        expm1 3.0 / 1999 libm::expm1;
        sigmoid 3.0 / 1999 |x| if x < 0.0 { libm::exp(x) / (1.0 + libm::exp(x)) } else { 1.0 / (1.0 + libm::exp(-x)) };
        tanh 3.0 / 997 libm::tanh;
    }
    f32_logarithms {
        ln 2.0 / 997 libm::log;
        log2 2.0 / 1999 libm::log2;
        log10 2.0 / 1999 libm::log10;
        ln_1p 3.0 / 1999 libm::log1p;
    }
    f32_circular {
        sin 2.0 / 997 libm::sin;
        cos 2.0 / 997 libm::cos;
        tan 4.0 / 1999 libm::tan;
        sin_pi 2.0 / 1999 double::sin_pi;
        cos_pi 2.0 / 1999 double::cos_pi;
        asin 4.0 / 1999 libm::asin;
        acos 4.0 / 1999 libm::acos;
        atan 4.0 / 1999 libm::atan;
    }
    f32_hyperbolic {
        sinh 4.0 / 3989 libm::sinh;
        cosh 4.0 / 3989 libm::cosh;
        asinh 4.0 / 3989 libm::asinh;
        acosh 4.0 / 3989 double::acosh;
        atanh 4.0 / 3989 libm::atanh;
    }
    f32_error_function {
        erf 2.0 / 997 libm::erf;
        erfc 4.0 / 1999 libm::erfc;
        ndtr 4.0 / 1999 double::ndtr;
    }
}

/// Checks arguments near multiples of π/2, where almost every bit of the argument cancels.
#[test]
fn trigonometric_functions_are_accurate_near_their_zeros() {
    for (name, f, reference) in [
        ("sin", single::sin as fn(f32) -> f32, libm::sin as fn(f64) -> f64),
        ("cos", single::cos, libm::cos),
        ("tan", single::tan, libm::tan),
    ] {
        let near = (0..60_000u32).flat_map(|k| {
            let x = (k as f64 * std::f64::consts::FRAC_PI_2) as f32;
            (-2i32..=2).map(move |d| f32::from_bits(x.to_bits().saturating_add_signed(d)))
        });
        let (error, at) = largest_error(near, |x| ulps(f(x), reference(x as f64)));
        println!("f32 {name:8} {error:.3} ULP at {at:?} near multiples of π/2");
        assert!(
            error <= if name == "tan" { 4.0 } else { 2.0 },
            "the error of {name}, {error} ULP at {at:?}, is too large"
        );
    }
}

/// Returns (1 + 1/x)⁶⁰⁰ˣ.
fn near_one_to_large(pow: fn(f64, f64) -> f64, x: f64) -> f64 {
    pow(1.0 + 1.0 / x, x * 600.0)
}

#[test]
fn f64_functions_agree_with_libm() {
    const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
    let cases: [(&str, f64, fn(f64) -> f64, fn(f64) -> f64); 20] = [
        ("exp", 2.0, double::exp, libm::exp),
        ("expm1", 2.0, double::expm1, libm::expm1),
        ("sigmoid", 3.0, double::sigmoid, |x| {
            if x < 0.0 { libm::exp(x) / (1.0 + libm::exp(x)) } else { 1.0 / (1.0 + libm::exp(-x)) }
        }),
        ("tanh", 3.0, double::tanh, libm::tanh),
        ("ln", 2.0, double::ln, libm::log),
        ("ln_1p", 2.0, double::ln_1p, libm::log1p),
        ("sin", 1.0, double::sin, libm::sin),
        ("cos", 1.0, double::cos, libm::cos),
        ("erf", 2.0, double::erf, libm::erf),
        ("erfc", 4.0, double::erfc, libm::erfc),
        ("atan", 1.0, double::atan, libm::atan),
        ("pow, base", 1.0, |x| double::pow(x, 1.7), |x| libm::pow(x, 1.7)),
        ("pow, small", 1.0, |x| double::pow(x % 2.0, 40.0), |x| libm::pow(x % 2.0, 40.0)),
        ("pow", 1.0, |x| near_one_to_large(double::pow, x % 1e6), |x| near_one_to_large(libm::pow, x % 1e6)),
        ("lgamma", 4.0, |x| gamma::lgamma(x.abs()), |x| libm::lgamma(x.abs())),
        ("lgamma, small", 4.0, |x| gamma::lgamma(x % 20.0 + 22.1), |x| libm::lgamma(x % 20.0 + 22.1)),
        ("exp, small", 2.0, |x| double::exp(x % 50.0), |x| libm::exp(x % 50.0)),
        ("sin, small", 1.0, |x| double::sin(x % 50.0), |x| libm::sin(x % 50.0)),
        ("erfc, small", 4.0, |x| double::erfc(x % 10.0), |x| libm::erfc(x % 10.0)),
        ("tanh, small", 3.0, |x| double::tanh(x % 5.0), |x| libm::tanh(x % 5.0)),
    ];
    for (name, limit, f, reference) in cases {
        // Half of the arguments are arbitrary bit patterns. The other half has magnitudes between 2⁻³² and 2³².
        let sampled = (0..100_000u64).flat_map(|k| {
            let bits = k.wrapping_mul(MIX);
            let moderate = (bits & 0x800f_ffff_ffff_ffff) | ((991 + (bits >> 52) % 64) << 52);
            [f64::from_bits(bits), f64::from_bits(moderate)]
        });
        let edges = [0.0, 5e-324, 2.2e-308, 1.0, 709.8, 745.2, 746.0, f64::INFINITY, f64::NAN];
        let all = sampled.chain(edges.into_iter().flat_map(|x| [x, -x]));
        let (error, at) = largest_error(all, |x| ulps64(f(x), reference(x)));
        println!("f64 {name:12} {error} ULP from libm at {at:?}");
        assert!(error <= limit, "the error of {name} is {error} ULP at {at:?}, expected at most {limit}");
    }
}

/// Checks arguments for which the exact result is known.
#[test]
fn special_values() {
    fn check<T: Real + Debug>(zero: T, one: T, inf: T, nan: T, bits: fn(T) -> u64) {
        let assert_same = |what: &str, actual: T, expected: T| {
            assert!(
                bits(actual) == bits(expected) || (actual.is_nan() && expected.is_nan()),
                "{what} is {actual:?}, expected {expected:?}"
            );
        };
        let odd: [(&str, fn(T) -> T, T, T); 13] = [
            ("sin", T::sin, nan, nan),
            ("sin_pi", T::sin_pi, nan, nan),
            ("tan", T::tan, nan, nan),
            ("asin", T::asin, nan, nan),
            ("sinh", T::sinh, -inf, inf),
            ("tanh", T::tanh, -one, one),
            ("asinh", T::asinh, -inf, inf),
            ("atanh", T::atanh, nan, nan),
            ("erf", T::erf, -one, one),
            ("erfinv", T::erfinv, nan, nan),
            ("expm1", T::expm1, -one, inf),
            ("ln_1p", T::ln_1p, nan, inf),
            ("sign", T::sign, -one, one),
        ];
        for (name, f, low, high) in odd {
            assert_same(name, f(-zero), -zero);
            assert_same(name, f(zero), zero);
            assert_same(name, f(-inf), low);
            assert_same(name, f(inf), high);
            assert_same(name, f(nan), nan);
        }
        for (name, f, at_zero, low, high) in [
            ("exp", T::exp as fn(T) -> T, one, zero, inf),
            ("exp2", T::exp2, one, zero, inf),
            ("ln", T::ln, -inf, nan, inf),
            ("log2", T::log2, -inf, nan, inf),
            ("log10", T::log10, -inf, nan, inf),
            ("cos", T::cos, one, nan, nan),
            ("cos_pi", T::cos_pi, one, nan, nan),
            ("cosh", T::cosh, one, inf, inf),
            ("erfc", T::erfc, one, one + one, zero),
            ("ndtr", T::ndtr, one / (one + one), zero, one),
            ("sigmoid", T::sigmoid, one / (one + one), zero, one),
            ("lgamma", T::lgamma, inf, inf, inf),
        ] {
            assert_same(name, f(-zero), at_zero);
            assert_same(name, f(zero), at_zero);
            assert_same(name, f(-inf), low);
            assert_same(name, f(inf), high);
            assert_same(name, f(nan), nan);
        }
        assert_same("ln 1", one.ln(), zero);
        assert_same("log2 1", one.log2(), zero);
        assert_same("acos 1", one.acos(), zero);
        assert_same("acosh 1", one.acosh(), zero);
        assert_same("acosh 0", zero.acosh(), nan);
        assert_same("atanh 1", one.atanh(), inf);
        assert_same("atanh -1", (-one).atanh(), -inf);
        assert_same("ln_1p -1", (-one).ln_1p(), -inf);
        assert_same("erfinv 1", one.erfinv(), inf);
        assert_same("erfinv -1", (-one).erfinv(), -inf);
        assert_same("digamma 0", zero.digamma(), -inf);
        assert_same("digamma -0", (-zero).digamma(), inf);
        assert_same("digamma -1", (-one).digamma(), nan);
        assert_same("max nan", nan.max(one), nan);
        assert_same("max nan", one.max(nan), nan);
        assert_same("min nan", nan.min(one), nan);
        assert_same("min nan", one.min(nan), nan);
    }
    check::<f32>(0.0, 1.0, f32::INFINITY, f32::NAN, |x| x.to_bits() as u64);
    check::<f64>(0.0, 1.0, f64::INFINITY, f64::NAN, f64::to_bits);
    assert_eq!(<f32 as Real>::round(2.5), 2.0);
    assert_eq!(<f64 as Real>::round(-3.5), -4.0);
}

/// Compares powers with those of `libm`, including all special cases.
#[test]
fn powers() {
    let values = [
        0.0,
        1.0,
        0.5,
        2.0,
        3.0,
        1.5,
        0.999,
        1e-40,
        1e-30,
        7e20,
        1e38,
        16_777_215.0,
        16_777_216.0,
        33.0,
        f32::INFINITY,
        f32::NAN,
        0.333_333_34,
        149.0,
        150.0,
        1.000_000_1,
    ];
    let values: Vec<f32> = values.into_iter().flat_map(|x| [x, -x]).collect();
    let sampled = (0..200_000u32).map(|k| {
        let a = f32::from_bits(k.wrapping_mul(0x9e37_79b9) & 0x7fff_ffff);
        (a, (k % 1001) as f32 / 37.0 - 13.0)
    });
    let pairs = values.iter().flat_map(|&a| values.iter().map(move |&b| (a, b)));
    let (error, at) =
        largest_error(pairs.chain(sampled), |(a, b)| ulps(single::pow(a, b), libm::pow(a as f64, b as f64)));
    println!("f32 pow {error:.3} ULP at {at:?}");
    assert!(error <= 1.0, "the error of pow is {error} ULP at {at:?}, expected at most 1");
    let (error, at) = largest_error(values.iter().flat_map(|&a| values.iter().map(move |&b| (a, b))), |(a, b)| {
        ulps(single::atan2(a, b), libm::atan2(a as f64, b as f64))
    });
    assert!(error <= 1.0, "the error of atan2 is {error} ULP at {at:?}, expected at most 1");
    // The error of libm is 460 ULP here; the expected value has 50 digits of working precision.
    let x = -6044064.005444481;
    assert_eq!(near_one_to_large(double::pow, x), 3.7732068253896246e260);
    // The same in `f64`, also with the exponents of `f64`.
    let wide = values.iter().flat_map(|&a| [a as f64, a as f64 * 1e270, a as f64 * 1e-280]);
    let wide: Vec<f64> = wide.collect();
    let pairs = || wide.iter().flat_map(|&a| wide.iter().map(move |&b| (a, b)));
    for (name, f, reference) in [
        ("pow", double::pow as fn(f64, f64) -> f64, libm::pow as fn(f64, f64) -> f64),
        ("atan2", double::atan2, libm::atan2),
    ] {
        let (error, at) = largest_error(pairs(), |(a, b)| ulps64(f(a, b), reference(a, b)));
        println!("f64 {name} {error:.3} ULP from libm at {at:?}");
        assert!(error <= 1.0, "the error of {name} is {error} ULP at {at:?}, expected at most 1");
    }
}

/// Compares with values that mpmath computed to 17 digits, and with those at integers and halves.
#[test]
fn functions_of_half_turns() {
    for (x, sine, cosine) in [
        (1e-300, 3.1415926535897936e-300, 1.0),
        (0.1, 0.30901699437494745, 0.9510565162951535),
        (-0.25, -0.7071067811865476, 0.7071067811865476),
        (0.499999, 0.9999999999950652, 3.1415926535005707e-06),
        (0.75, 0.7071067811865476, -0.7071067811865476),
        (-1.000001, 3.141592653326177e-06, -0.9999999999950652),
        (1.5, -1.0, 0.0),
        (2.9999999, 3.1415926484482773e-07, -0.9999999999999507),
        (-17.3, 0.8090169943749488, -0.5877852522924714),
        (123456.7890625, 0.6152315905806268, -0.7883464276266062),
        (1000000000.001, 0.0031417342919101586, 0.9999950647406411),
        (4503599627370495.5, -1.0, 0.0),
    ] {
        for (name, actual, expected) in [("sin_pi", double::sin_pi(x), sine), ("cos_pi", double::cos_pi(x), cosine)] {
            let error = ulps64(actual, expected);
            assert!(error <= 1.0, "{name}({x}) is {actual}, expected {expected}, {error} ULP");
        }
    }
    for k in [0.0, 1.0, -2.0, 3.0, 16_777_215.0, 1e30] {
        let sign = if k % 2.0 == 0.0 { 1.0 } else { -1.0 };
        assert_eq!((single::sin_pi(k), single::cos_pi(k)), (0.0, sign), "{k}");
        assert_eq!((double::sin_pi(k as f64), double::cos_pi(k as f64)), (0.0, sign as f64), "{k}");
        if k < 1e6 {
            assert_eq!((single::sin_pi(k + 0.5), single::cos_pi(k + 0.5)), (sign, 0.0), "{k}");
            assert_eq!((double::sin_pi(k as f64 + 0.5), double::cos_pi(k as f64 + 0.5)), (sign as f64, 0.0), "{k}");
        }
    }
}

/// Compares scaled numbers with those of `libm`, also where the power leaves the range.
#[test]
fn products_with_powers_of_two() {
    let numbers = [0.0, 1.0, -1.5, 1.1754944e-38, 3.4028235e38, 1e-45, 7e-40, 0.3, -1e30, f32::INFINITY];
    for a in numbers {
        for b in -310..=310 {
            let expected = libm::scalbn(a as f64, b) as f32;
            assert_eq!(single::ldexp(a, b as f32).to_bits(), expected.to_bits(), "{a}·2^{b}");
        }
        let wide = [a as f64, a as f64 * 1e270, a as f64 * 1e-280];
        for (a, b) in wide.into_iter().flat_map(|a| (-2210..=2210).step_by(3).map(move |b| (a, b))) {
            // `libm` rounds a subnormal result once.
            assert_eq!(double::ldexp(a, b as f64).to_bits(), libm::scalbn(a, b).to_bits(), "{a}·2^{b}");
        }
        for b in [0.5f32, -3.25, 140.75, -100.1] {
            let expected = a as f64 * libm::exp2(b as f64);
            assert!(ulps(single::ldexp(a, b), expected) <= 1.5, "{a}·2^{b}");
            assert!(ulps64(double::ldexp(a as f64, b as f64), expected) <= 2.0, "{a}·2^{b}");
        }
    }
    assert!(single::ldexp(1.0, f32::NAN).is_nan() && double::ldexp(f64::NAN, 1.0).is_nan());
    assert_eq!((single::ldexp(-0.0, f32::INFINITY), double::ldexp(1.0, f64::NEG_INFINITY)), (0.0, 0.0));
}

/// Checks floor division and remainder against the definitions of Python.
#[test]
fn floor_division() {
    // The double 0.1 is slightly more than a tenth, so ⌊1 / 0.1⌋ is 9.
    assert_eq!((Real::floor_div(1.0f64, 0.1), Real::rem(1.0f64, 0.1)), (9.0, 0.099_999_999_999_999_95));
    for (a, b, quotient, remainder) in [
        (7.0, 2.0, 3.0, 1.0),
        (-7.0, 2.0, -4.0, 1.0),
        (7.0, -2.0, -4.0, -1.0),
        (-7.0, -2.0, 3.0, -1.0),
        (6.0, -2.0, -3.0, -0.0),
        (5.0, f32::INFINITY, 0.0, 5.0),
        (-5.0, f32::INFINITY, -1.0, f32::INFINITY),
    ] {
        assert_eq!(Real::floor_div(a, b), quotient, "the floor division {a} // {b} is wrong");
        assert_eq!(Real::rem(a, b).to_bits(), f32::to_bits(remainder), "the remainder {a} % {b} is wrong");
        assert_eq!(Real::floor_div(a as f64, b as f64), quotient as f64);
        assert_eq!(Real::rem(a as f64, b as f64).to_bits(), (remainder as f64).to_bits());
    }
    assert_eq!(Real::floor_div(1.0f32, 0.0), f32::INFINITY);
    assert_eq!(Real::floor_div(-1.0f64, 0.0), f64::NEG_INFINITY);
    assert_eq!(Real::floor_div(1e300, 1e-300), f64::INFINITY);
    for (a, b) in [(f32::INFINITY, 1.0), (f32::NEG_INFINITY, -2.0), (f32::INFINITY, f32::INFINITY), (0.0, 0.0)] {
        assert!(
            Real::floor_div(a, b).is_nan() && Real::floor_div(a as f64, b as f64).is_nan(),
            "the floor division {a} // {b} must be NaN"
        );
    }
    assert!(Real::rem(1.0f32, 0.0).is_nan());
}

/// Compares with values that mpmath computed to 17 digits.
#[test]
fn gamma_family_and_inverse_error_function() {
    let assert_close = |what: &str, actual: f64, expected: f64, limit: f64| {
        let error = ulps64(actual, expected);
        println!("f64 {what:10} {expected:25} {error} ULP");
        assert!(error <= limit, "{what} is {actual}, expected {expected}");
    };
    for (x, expected) in [
        (1e-10, -10000000000.577215),
        (0.1, -10.423754940411076),
        (0.75, -1.0858608797864722),
        (1.4, -0.06138454458511624),
        (1.5, 0.03648997397857652),
        (1.9, 0.35618416116405965),
        (2.5, 0.7031566406452432),
        (7.25, 1.910453526883736),
        (9.999, 2.2516474172057355),
        (10.5, 2.3030010342976865),
        (123.456, 4.811829323828985),
        (10000000000.0, 23.025850929890456),
        (-0.25, 2.9141391202135276),
        (-0.5, 0.03648997397857652),
        (-1.5, 0.7031566406452432),
        (-10.3, 4.662403493582087),
    ] {
        assert_close("digamma", gamma::digamma(x), expected, 4.0);
    }
    for (x, expected) in [
        (0.1, 2.252712651734206),
        (0.5, 0.5723649429247001),
        (1.5, -0.12078223763524522),
        (3.7, 1.428072326665388),
        (50.25, 145.54187159633213),
        (100000.0, 1051287.7089736569),
        (-0.5, 1.2655121234846454),
        (-2.25, 0.5555015450206475),
    ] {
        assert_close("lgamma", gamma::lgamma(x), expected, 4.0);
    }
    for (x, expected) in [
        (1e-300, 8.86226925452758e-301),
        (1e-10, 8.862269254527581e-11),
        (0.01, 0.008862501280950598),
        (0.3, 0.2724627147267543),
        (0.7, 0.7328690779592167),
        (0.84, 0.9935356283473041),
        (0.851, 1.0204064737926706),
        (0.9, 1.1630871536766743),
        (0.99, 1.8213863677184494),
        (0.9999, 2.75106390571208),
        (0.9999999, 3.7665625816384707),
        (0.9999999999999, 5.261483331372676),
        (-0.5, -0.4769362762044699),
        (-0.97, -1.5344856217777179),
    ] {
        assert_close("erfinv", double::erfinv(x), expected, 4.0);
    }
    for (n, x, expected) in [
        (1.0, 0.5, 4.934802200544679),
        (1.0, 1.0, 1.6449340668482264),
        (1.0, 20.5, 0.04998959242996099),
        (1.0, 0.001, 1000001.6425331958),
        (1.0, -0.25, 18.541879647671607),
        (1.0, -7.75, 19.61814433435229),
        (2.0, 0.3, -75.27253658872604),
        (2.0, -1.5, -0.2362040516417274),
        (2.0, 5.0, -0.048789732245114494),
        (3.0, 2.5, 0.22390584881725206),
        (3.0, -0.7, 768.1313523268526),
        (5.0, 12.0, 0.00011820829051081491),
        (10.0, 3.3, -7.616805535818377),
        (20.0, 0.9, -2.2234736404228567e+19),
        (40.0, 60.0, -2.092026225149306e-25),
    ] {
        assert_close("polygamma", gamma::polygamma(n, x), expected, 16.0);
    }
    for (x, expected) in [
        (-20.0, 1.0442939379528289e+174),
        (-3.5, 417962.4224457703),
        (-0.5, 1.952360489182557),
        (0.25, 0.7703465477309968),
        (1.0, 0.427583576155807),
        (4.0, 0.13699945762506138),
        (27.5, 0.0205024473846148),
        (29.0, 0.019443267318222844),
        (1000.0, 0.0005641893014533876),
        (10000000000.0, 5.641895835477563e-11),
    ] {
        assert_close("erfcx", double::erfcx(x), expected, 6.0);
    }
    for (x, expected) in [
        (-38.0, 2.88542835e-316),
        (-37.40858, 1.4170223112575925e-306),
        (-36.01898, 2.1105581168689325e-284),
        (-30.1, 2.4226672179857586e-199),
        (-16.48443, 2.3737544292506155e-61),
        (-5.3, 5.790134039964594e-08),
        (-1.0, 0.15865525393145705),
        (-0.71, 0.23885206808998674),
        (-0.69, 0.24509709367430949),
        (-1e-10, 0.49999999996010575),
        (0.3, 0.6179114221889527),
        (2.0, 0.9772498680518208),
        (8.0, 0.9999999999999993),
    ] {
        assert_close("ndtr", double::ndtr(x), expected, 4.0);
    }
    for (x, expected) in [
        (1e-300, -37.0470962993612),
        (1e-12, -7.034483825301132),
        (0.001, -3.0902323061678136),
        (0.074, -1.4466320671589785),
        (0.2, -0.8416212335729142),
        (0.5, 0.0),
        (0.8, 0.8416212335729144),
        (0.93, 1.475791028179171),
        (0.999, 3.090232306167813),
    ] {
        assert_close("ndtri", double::ndtri(x), expected, 6.0);
    }
}

/// Compares with known values (order, x, value), computed with 40 digits.
#[test]
fn functions_with_a_parameter_match_known_values() {
    type BinaryFunction = fn(f64, f64) -> f64;
    let check = |name: &str, f: BinaryFunction, values: &[(f64, f64, f64)]| {
        for &(n, x, expected) in values {
            let actual = f(n, x);
            assert!(
                (actual - expected).abs() <= 80.0 * f64::EPSILON * expected.abs(),
                "{name} of order {n} at {x} is {actual:e}, expected {expected:e}"
            );
        }
    };
    let zeta = [
        (1.5, 0.5, 4.776537947554833),
        (2.0, 1.0, 1.6449340668482264),
        (3.0, -2.5, 0.0541020258208637),
        (2.5, 40.0, 0.002685156581146319),
        (1.01, 3.0, 99.08139709077827),
        (30.0, 0.7, 44366.870862485186),
        (1e30, 2.0, 0.0),
    ];
    check("zeta", gamma::zeta, &zeta);
    let lower = [
        (0.5, 0.3, 0.5614219739190002),
        (4.0, 2.0, 0.14287653950145296),
        (30.0, 25.0, 0.18210391597745512),
        (2.0, 0.0, 0.0),
        (1e-5, 0.25, 0.99998955716741648),
        (5000.0, 4100.0, 2.6808477638660332e-42),
        (1e4, 9900.0, 0.15865119219356466),
        (1e8, 99_990_000.0, 0.15865525352814383),
    ];
    check("igamma", gamma::igamma, &lower);
    let upper = [
        (0.5, 9.0, 2.209049699858544e-05),
        (4.0, 20.0, 3.2037197804769982e-06),
        (2.0, f64::INFINITY, 0.0),
        (1e-10, 0.25, 1.044282634449978e-10),
        (1e-5, 0.25, 1.0442832583522804e-5),
        (0.3, 0.9, 0.097747351970330455),
        (1e4, 10_100.0, 0.15865124955282038),
        (2e5, 2e5, 0.49970264597238146),
        (1e6, 1_003_000.0, 0.0013617406462175915),
    ];
    check("igammac", gamma::igammac, &upper);
    let scaled = [
        (0.0, 0.1, 0.9071009257823011),
        (0.0, 5.0, 0.18354081260932836),
        (0.0, 19.9, 0.0900085888643896),
        (0.0, 20.1, 0.08955376362061344),
        (1.0, -3.0, -0.19682671329730086),
        (1.0, 300.0, 0.02300412204026895),
        (2.0, 0.001, 1.2487507288542742e-07),
        (3.0, 24.0, 0.06761253759970373),
        (5.0, 40.0, 0.04612998291495681),
        (30.0, 100.0, 0.00044869877569209864),
        (0.0, 1000000.0, 0.00039894233026924577),
    ];
    check("bessel_ie", bessel::bessel_ie, &scaled);
    let first =
        [(0.0, 700.0, 1.5295933476718737e+302), (1.0, -0.7, -0.37187967777700864), (4.0, 12.0, 9508.920698040949)];
    check("bessel_i", bessel::bessel_i, &first);
    let scaled = [
        (0.0, 1e-300, 690.8914594138721),
        (0.0, 0.01, 4.768694028544462),
        (0.0, 1.0, 1.144463079806895),
        (1.0, 2.5, 0.900174423907878),
        (1.0, 9.9, 0.41297840031680255),
        (2.0, 10.1, 0.4706412434161406),
        (0.0, 300.0, 0.0723300317396073),
        (3.0, 100000.0, 0.003963500696101345),
        (1.0, 1e-10, 10000000001.0),
    ];
    check("bessel_ke", bessel::bessel_ke, &scaled);
    let second = [
        (0.0, 600.0, 1.3558285309948523e-262),
        (0.0, 2.0, 0.11389387274953344),
        (1.0, 0.3, 3.055992033457325),
        (5.0, 3.0, 0.93777360238680803),
        (30.0, 7.0, 138_474_972_596_570.72),
    ];
    check("bessel_k", bessel::bessel_k, &second);
    let first = [
        (0.0, 1.0, 0.7651976865579666),
        (0.0, 2.5, -0.048383776468197996),
        (1.0, 7.5, 0.1352484275797055),
        (1.0, 40.0, 0.126038318037585),
        (-3.0, 2.0, -0.12894324947440206),
        (5.0, 3.0, 0.043028434877047584),
        (7.0, 1e-12, 1.5500992063492061e-90),
        (12.0, 30.0, 0.1482533510996601),
        (20.0, 1.5, 1.268997218933256e-21),
    ];
    check("bessel_j", bessel::bessel_j, &first);
    let second = [
        (0.0, 1.0, 0.08825696421567696),
        (0.0, 2.5, 0.49807035961523189),
        (1.0, 7.5, -0.25912851048611624),
        (1.0, 40.0, -0.0057935058215496329),
        (2.0, 0.001, -1_273_239.8630456674),
        (-3.0, 2.0, 1.1277837768404277),
        (5.0, 3.0, -1.9059459538286737),
        (12.0, 30.0, 0.034143171346460225),
    ];
    check("bessel_y", bessel::bessel_y, &second);
    assert!(
        bessel::bessel_i(0.5, 1.0).is_nan() && bessel::bessel_k(0.0, -1.0).is_nan() && gamma::zeta(0.5, 1.0).is_nan()
    );
    assert_eq!(bessel::bessel_i(1.0, f64::NEG_INFINITY), f64::NEG_INFINITY);
    assert_eq!(bessel::bessel_k(1.0, 0.0), f64::INFINITY);
}

/// Compares the Bessel functions of the first and second kind with `libm`, for all orders up to 12 and x up to 10²⁰.
/// Errors are relative to the amplitude √(2/πx) where the function oscillates.
#[test]
fn bessel_functions_agree_with_libm() {
    for (name, f, reference) in [
        ("bessel_j", bessel::bessel_j as fn(f64, f64) -> f64, libm::jn as fn(i32, f64) -> f64),
        ("bessel_y", bessel::bessel_y, libm::yn),
    ] {
        let mut worst = (0.0, 0, 0.0);
        for n in -12..=12 {
            for k in 0..20_000 {
                let x = if k % 4 == 0 { (k as f64 * 0.005 - 33.0).exp2() } else { k as f64 * 0.002 };
                let expected = reference(n, x);
                let size = expected.abs().max(if x > n.abs() as f64 { (x * 1.6).sqrt().recip() } else { 1e-300 });
                let error = if expected.is_finite() { (f(n as f64, x) - expected).abs() / size } else { 0.0 };
                if error > worst.0 {
                    worst = (error, n, x);
                }
            }
        }
        println!("f64 {name} {:e} of order {} at {}", worst.0, worst.1, worst.2);
        assert!(worst.0 < 2e-14, "{name} differs from libm: {worst:?}");
        for x in [0.0, -0.0, f64::INFINITY, f64::NAN] {
            for n in [0, 1, 2, 3, -1, -2, -3] {
                let (actual, expected) = (f(n as f64, x), reference(n, x));
                assert!(
                    actual == expected || (actual.is_nan() && expected.is_nan()),
                    "{name} of order {n} at {x} is {actual}, expected {expected}"
                );
            }
        }
        assert!(f(0.5, 1.0).is_nan() && f(20_000.0, 1.0).is_nan());
    }
    assert!(bessel::bessel_y(0.0, -1.0).is_nan());
}

/// Checks that the fast exponentials return the bits of the full exponentials within their range and at its ends.
#[test]
fn fast_exponentials_equal_the_full_exponentials() {
    let limit = f32::EXP_LIMIT;
    for bits in (0..=limit.to_bits()).step_by(997).chain([limit.to_bits()]) {
        for x in [f32::from_bits(bits), -f32::from_bits(bits)] {
            assert_eq!(Real::exp_fast(x).to_bits(), Real::exp(x).to_bits(), "exp_fast({x}) differs from exp({x})");
        }
    }
    let limit = f64::EXP_LIMIT;
    for k in 0..=1_000_000 {
        for x in [limit * k as f64 / 1e6, -limit * k as f64 / 1e6] {
            assert_eq!(Real::exp_fast(x).to_bits(), Real::exp(x).to_bits(), "exp_fast({x}) differs from exp({x})");
        }
    }
}
