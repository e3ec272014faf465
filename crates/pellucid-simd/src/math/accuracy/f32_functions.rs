//! The errors of the `f32` functions over the entire range of bit patterns.

use super::{largest_error, samples, ulps};
use crate::math::{double, single};

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
