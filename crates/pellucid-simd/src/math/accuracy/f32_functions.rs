//! The errors of the `f32` functions over the entire range of bit patterns.

use super::{largest_error, samples, ulps};
use crate::math::single::{BesselI, BesselJ, BesselK, BesselY, FunctionOfOrder, Polygamma};
use crate::math::{bessel, double, gamma, single};

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
            "the error of {name} is {error} ULP at {at:?}, which is too large"
        );
    }
}

/// Returns arguments of all magnitudes of `f32`, and many between 0 and 100, of both signs.
fn magnitudes_and_moderate_arguments() -> impl Iterator<Item = f32> {
    let all = (0..f32::INFINITY.to_bits()).step_by(60_013).map(f32::from_bits);
    all.chain((1..40_000).map(|k| k as f32 * 0.002_5)).flat_map(|x| [x, -x])
}

/// The gamma family in `f32` rounds nearly exact results: the error exceeds half an ULP by at most a thousandth of an
/// ULP.
#[test]
fn f32_gamma_family_rounds_the_functions_of_f64() {
    let limit = 0.501;
    for (name, f, reference) in [
        ("lgamma", single::lgamma as fn(f32) -> f32, gamma::lgamma as fn(f64) -> f64),
        ("digamma", single::digamma, gamma::digamma),
    ] {
        let (error, at) = largest_error(magnitudes_and_moderate_arguments(), |x| ulps(f(x), reference(x as f64)));
        println!("f32 {name:8} {error:.5} ULP at {at:?}");
        assert!(error <= limit, "the error of {name} is {error} ULP at {at:?}, expected at most {limit}");
        for x in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1.0, 2.0, 3.0, 0.0, -0.0, f32::MIN_POSITIVE, 1e-45] {
            let expected = reference(x as f64) as f32;
            assert!(
                f(x).to_bits() == expected.to_bits() || (f(x).is_nan() && expected.is_nan()),
                "{name}({x}) is {}, expected {expected}",
                f(x)
            );
        }
    }
    for n in 1..=3 {
        let reference = |x: f32| gamma::polygamma(n as f64, x as f64);
        let positive = magnitudes_and_moderate_arguments().filter(|&x| x > 0.0);
        let (error, at) = largest_error(positive, |x| ulps(Polygamma::value(n as f32, x), reference(x)));
        println!("f32 polygamma of order {n} {error:.5} ULP at {at:?}");
        assert!(error <= limit, "the error of polygamma of order {n} is {error} ULP at {at:?}");
        for x in [f32::INFINITY, 0.0, -0.0, -1.0, -0.5, f32::NAN] {
            let (actual, expected) = (Polygamma::value(n as f32, x), reference(x) as f32);
            assert!(
                actual.to_bits() == expected.to_bits() || (actual.is_nan() && expected.is_nan()),
                "polygamma of order {n} at {x} is {actual}, expected {expected}"
            );
        }
    }
}

/// The Bessel functions in `f32` round nearly exact results: the error exceeds half an ULP by at most a thousandth of
/// an ULP. Where a function oscillates, the unit is an ULP of the amplitude.
#[test]
fn f32_bessel_functions_round_the_functions_of_f64() {
    fn check<F: FunctionOfOrder>(name: &str, reference: fn(f64, f64) -> f64, oscillates: bool) {
        for n in [0.0, 1.0, 2.0, -1.0, -2.0, 3.0] {
            let arguments = magnitudes_and_moderate_arguments().chain([f32::INFINITY, f32::NAN, 8.0, 2.0, 1e8, 2e8]);
            let error = |x: f32| {
                let (actual, expected) = (F::value(n, x), reference(n as f64, x as f64));
                let near_amplitude = oscillates && x.abs() > 1.0;
                if !near_amplitude || !expected.is_finite() || actual == expected as f32 {
                    return ulps(actual, expected);
                }
                let amplitude = (x.abs() as f64 * 1.6).sqrt().recip();
                // An ULP of the amplitude is 2⁻²⁴ to 2⁻²³ of it. The unit of the error is 2⁻²³ of the amplitude.
                (actual as f64 - expected).abs() / amplitude * 8_388_608.0
            };
            let (error, at) = largest_error(arguments, error);
            println!("f32 {name:10} of order {n} {error:.5} ULP at {at:?}");
            assert!(error <= 0.501, "the error of {name} of order {n} is {error} ULP at {at:?}");
        }
        assert!(F::of_order(2.0).is_some() && F::of_order(3.0).is_none() && F::of_order(0.5).is_none());
    }
    check::<BesselJ>("bessel_j", bessel::bessel_j, true);
    check::<BesselY>("bessel_y", bessel::bessel_y, true);
    check::<BesselI<false>>("bessel_i", bessel::bessel_i, false);
    check::<BesselI<true>>("bessel_ie", bessel::bessel_ie, false);
    check::<BesselK<false>>("bessel_k", bessel::bessel_k, false);
    check::<BesselK<true>>("bessel_ke", bessel::bessel_ke, false);
}

/// Checks binary functions and inverse functions that are computed in `f64` with reduced accuracy, and rounded.
#[test]
fn f32_functions_in_short_f64_arithmetic_round_the_functions_of_f64() {
    let limit = 0.505;
    let (powers, unit) = (|k: i32| (k as f32 * 0.37).exp2(), |k: i32| k as f32 / 4001.0);
    let check = |name: &str, (error, at): (f64, Option<[f32; 2]>)| {
        println!("f32 {name:8} {error:.5} ULP at {at:?}");
        assert!(error <= limit, "the error of {name} is {error} ULP at {at:?}, expected at most {limit}");
    };
    type Pair = (&'static str, fn(f32, f32) -> f32, fn(f64, f64) -> f64);
    let grid = |from: [i32; 2], to: [i32; 2]| {
        let row = move |k: i32| (from[1]..to[1]).map(move |l| [powers(k), powers(l)]);
        (from[0]..to[0]).flat_map(row)
    };
    let pairs: [(Pair, [i32; 2], [i32; 2]); 5] = [
        (("pow", single::pow, libm::pow), [-350, -60], [345, 20]),
        (("atan2", single::atan2, libm::atan2), [-400, -400], [345, 345]),
        (("zeta", single::zeta, gamma::zeta), [0, -60], [9, 40]),
        (("igamma", single::igamma, gamma::igamma), [-20, -50], [12, 12]),
        (("igammac", single::igammac, gamma::igammac), [-20, -50], [12, 12]),
    ];
    for ((name, f, reference), from, to) in pairs {
        let near_one =
            (-200..200).flat_map(|k| (-40..40).map(move |l| [1.0 + k as f32 * 0.004, 1.0 + l as f32 * 0.02]));
        let points = grid(from, to).chain(near_one);
        let expected = |[a, b]: [f32; 2]| reference(a as f64, b as f64);
        let is_subnormal = |p: [f32; 2]| expected(p).abs() < f64::from(f32::MIN_POSITIVE);
        let normal = points.filter(|&p| !is_subnormal(p));
        check(name, largest_error(normal, |[a, b]| ulps(f(a, b), expected([a, b]))));
    }
    let inverse: [(&str, fn(f32) -> f32, fn(f64) -> f64); 2] =
        [("erfinv", single::erfinv, double::erfinv), ("atanh", single::atanh, libm::atanh)];
    for (name, f, reference) in inverse {
        let near_zero = (-400..-3).map(powers);
        let near_one = (1..400).map(|k| f32::from_bits(1f32.to_bits() - k * k * 37));
        let points = near_zero.chain(near_one).chain((-4000..4001).map(unit)).map(|x| [x, 0.0]);
        check(name, largest_error(points, |[x, _]| ulps(f(x), reference(x as f64))));
    }
}
