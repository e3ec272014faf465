//! The errors of the `f64` functions against `libm`.

use super::{largest_error, near_one_to_large, ulps64};
use crate::math::{bessel, double, gamma};

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

/// Compares the Bessel functions of the first and second kind with `libm`, for all orders from −12 to 12 and x up to
/// 10²⁰. Errors are relative to the amplitude √(2/πx) where the function oscillates.
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
        assert!(worst.0 < 2e-14, "{name} differs from libm, (error, order, x) = {worst:?}");
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
