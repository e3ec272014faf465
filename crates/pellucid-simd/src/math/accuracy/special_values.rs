//! Special values, powers, and functions whose result is exactly defined.

use super::{largest_error, near_one_to_large, ulps, ulps64};
use crate::math::{Real, double, single};
use std::fmt::Debug;

/// Checks arguments for which the exact result is known.
#[test]
fn special_values() {
    fn check<T: Real + Debug>(zero: T, one: T, inf: T, nan: T, bits: fn(T) -> u64) {
        let assert_same = |label: &str, actual: T, expected: T| {
            assert!(
                bits(actual) == bits(expected) || (actual.is_nan() && expected.is_nan()),
                "{label} is {actual:?}, expected {expected:?}"
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

/// Compares `pow` and `atan2` with `libm`, including all special cases.
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
    // `libm` has an error of 460 ULP here. The expected value was computed with 50 digits.
    let x = -6044064.005444481;
    assert_eq!(near_one_to_large(double::pow, x), 3.7732068253896246e260);
    // The same cases in `f64`, including the exponents of `f64`.
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

/// Compares scaled numbers with the results of `libm`, even where the power of two overflows or underflows.
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

/// Checks floor division and remainder against Python's definitions.
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

/// Checks that the fast exponentials are bit-identical to the full exponentials within their range and at its ends.
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

/// Checks that the fast sigmoid and distribution function are bit-identical to the full functions within their range.
#[test]
fn fast_sigmoids_equal_the_full_functions() {
    for bits in (0..=f32::EXP_LIMIT.to_bits()).step_by(997).chain([f32::EXP_LIMIT.to_bits()]) {
        for x in [f32::from_bits(bits), -f32::from_bits(bits)] {
            assert_eq!(single::sigmoid_fast(x).to_bits(), single::sigmoid(x).to_bits(), "sigmoid_fast({x})");
        }
    }
    for bits in (0..=single::NDTR_LIMIT.to_bits()).step_by(997).chain([single::NDTR_LIMIT.to_bits()]) {
        for x in [f32::from_bits(bits), -f32::from_bits(bits)] {
            assert_eq!(single::ndtr_fast(x).to_bits(), single::ndtr(x).to_bits(), "ndtr_fast({x})");
        }
    }
}

/// Checks that the fast function is bit-identical to [`Real::ldexp`] within its range and at its ends.
#[test]
fn fast_ldexp_equals_the_full_function() {
    for k in -4000..=4000 {
        for a in [1.0, -0.7, 1.9e-20, 3e38, 0.0, f64::INFINITY] {
            let (x, b) = (a as f32, single::LDEXP_LIMIT * k as f32 / 4000.0);
            assert_eq!(single::ldexp_fast(x, b).to_bits(), single::ldexp(x, b).to_bits(), "ldexp_fast({x}, {b})");
            let b = double::LDEXP_LIMIT * k as f64 / 4000.0;
            assert_eq!(double::ldexp_fast(a, b).to_bits(), double::ldexp(a, b).to_bits(), "ldexp_fast({a}, {b})");
        }
    }
}

/// Returns pairs of pseudorandom integers, from which the tests derive dividends and divisors.
fn divisions() -> impl Iterator<Item = (u64, u64)> {
    let mut state = 7u64;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state ^ (state >> 29)
    };
    (0..300_000).map(move |_| (next(), next()))
}

#[test]
fn fast_divisions_have_the_bits_of_exact_ones() {
    let special = [0.0, -0.0, 1.0, -3.0, 1e-45, 1e38, f32::INFINITY, f32::NAN, 0.1, 16_777_216.0];
    let same = |a: f64, b: f64| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    let all = special.into_iter().flat_map(|a| special.map(|b| (a, b)));
    let random = divisions().flat_map(|(x, y)| {
        let b = f32::from_bits(y as u32);
        let quotient = (x % 600_000_000) as f32;
        let near = (quotient * b).to_bits().wrapping_add_signed((x >> 40) as i32 % 3 - 1);
        [(f32::from_bits(x as u32), b), (f32::from_bits(near), b), (f32::from_bits(near), -b)]
    });
    for (a, b) in all.chain(random).filter(|&(a, b)| !single::is_rare_quotient(a, b)) {
        assert!(same(single::rem_fast(a, b) as f64, single::rem(a, b) as f64), "{a:e} rem {b:e}");
        assert!(same(single::floor_div_fast(a, b) as f64, single::floor_div(a, b) as f64), "{a:e} floor_div {b:e}");
    }
    let random = divisions().flat_map(|(x, y)| {
        let b = f64::from_bits(y);
        let quotient = (x >> 11 >> (y % 50)) as f64;
        let near = (quotient * b).to_bits().wrapping_add_signed((x % 3) as i64 - 1);
        [(f64::from_bits(x), b), (f64::from_bits(near), b), (f64::from_bits(near), -b)]
    });
    for (a, b) in random.filter(|&(a, b)| !double::is_rare_quotient(a, b)) {
        assert!(same(double::rem_fast(a, b), double::rem(a, b)), "{a:e} rem {b:e}");
        assert!(same(double::floor_div_fast(a, b), double::floor_div(a, b)), "{a:e} floor_div {b:e}");
    }
}
