//! Elementwise operations.

use super::{CatalogueOperation, Domain, OperationFamily, fit};
use Domain::{AboveOne, Any, Apart, Positive, Share, Unit};
use pellucid::{Tensor, formula, ops};

macro_rules! unary {
    ($all:ident: $($domain:ident { $($name:ident $(($($k:expr),+))?),* $(,)? })*) => {$($(
        $all.push(CatalogueOperation::new(OperationFamily::Elementwise, stringify!($name), &[$domain], |x, _| {
            ops::$name(&x[0] $(, $($k),+)?)
        }));
    )*)*};
}

macro_rules! several {
    ($all:ident: $($name:literal [$($domain:ident),+] $x:ident, $random:pat => $body:expr;)*) => {$(
        $all.push(CatalogueOperation::new(OperationFamily::Elementwise, $name, &[$($domain),+], |x, $random| {
            let shape = common(x);
            let fitted: Vec<Tensor> = x.iter().map(|t| fit(t, &shape)).collect::<pellucid::Result<_>>()?;
            let $x = &fitted[..];
            $body
        }));
    )*};
}

/// Returns the shape of the first operand that has more than one element.
fn common(x: &[Tensor]) -> Vec<usize> {
    x.iter().find(|t| t.size() > 1).unwrap_or(&x[0]).shape()[..].to_vec()
}

pub(super) fn operations() -> Vec<CatalogueOperation> {
    let mut all = unary();
    all.extend(several_inputs());
    all.extend(broadcast_inputs());
    all
}

fn unary() -> Vec<CatalogueOperation> {
    let mut all = Vec::new();
    unary! { all:
        Any {
            neg, square, cube, exp, exp2, expm1, sin, cos, atan, sinh, cosh, tanh, asinh, erf, erfc, sigmoid, elu(0.7),
            celu(1.3), selu, gelu, gelu_tanh, silu, mish, softplus, softplus_beta(2.0, 20.0), logsigmoid, tanhshrink,
            sinc, deg2rad, rad2deg, ndtr, log_ndtr, erfcx, i0, i0e, i1, i1e, bessel_j0, bessel_j1, spherical_bessel_j0,
            airy_ai, copy, contiguous,
        }
        Apart {
            abs, sign, floor, ceil, round, trunc, frac, relu, relu6, leaky_relu(0.1), softsign, hardsigmoid, hardswish,
            hardshrink(0.5), softshrink(0.5), threshold(0.1, 0.2), hardtanh(-1.0, 1.0), clamp(-0.5, 0.5), angle,
            nan_to_num(0.0, 1.0, -1.0), cbrt, around(1),
        }
        Positive {
            sqrt, rsqrt, reciprocal, log, log2, log10, log1p, lgamma, digamma, polygamma(1), polygamma(2), k0, k0e, k1,
            k1e, bessel_y0, bessel_y1, entr, multigammaln(1),
        }
        Unit { asin, acos, atanh, erfinv, tan }
        Share { logit, logit_with(0.05), ndtri }
        AboveOne { acosh, multigammaln(2) }
    }
    all
}

fn several_inputs() -> Vec<CatalogueOperation> {
    let mut all = Vec::new();
    several! { all:
        "add" [Any, Any] x, _ => ops::add(&x[0], &x[1]);
        "sub" [Any, Any] x, _ => ops::sub(&x[0], &x[1]);
        "mul" [Any, Any] x, _ => ops::mul(&x[0], &x[1]);
        "div" [Any, Positive] x, _ => ops::div(&x[0], &x[1]);
        "pow" [Positive, Any] x, _ => ops::pow(&x[0], &x[1]);
        "maximum" [Apart, Apart] x, _ => ops::maximum(&x[0], &x[1]);
        "minimum" [Apart, Apart] x, _ => ops::minimum(&x[0], &x[1]);
        "fmax" [Apart, Apart] x, _ => ops::fmax(&x[0], &x[1]);
        "fmin" [Apart, Apart] x, _ => ops::fmin(&x[0], &x[1]);
        "atan2" [Positive, Any] x, _ => ops::atan2(&x[0], &x[1]);
        "copysign" [Apart, Apart] x, _ => ops::copysign(&x[0], &x[1]);
        "heaviside" [Apart, Any] x, _ => ops::heaviside(&x[0], &x[1]);
        "hypot" [Positive, Any] x, _ => ops::hypot(&x[0], &x[1]);
        "rem" [Apart, Positive] x, _ => ops::rem(&x[0], &x[1]);
        "fmod" [Apart, Positive] x, _ => ops::fmod(&x[0], &x[1]);
        "floor_div" [Apart, Positive] x, _ => ops::floor_div(&x[0], &x[1]);
        "logaddexp" [Any, Apart] x, _ => ops::logaddexp(&x[0], &x[1]);
        "logaddexp2" [Any, Apart] x, _ => ops::logaddexp2(&x[0], &x[1]);
        "xlogy" [Positive, Positive] x, _ => ops::xlogy(&x[0], &x[1]);
        "xlog1py" [Positive, Positive] x, _ => ops::xlog1py(&x[0], &x[1]);
        "ldexp" [Any, Any] x, _ => ops::ldexp(&x[0], &x[1]);
        "nextafter" [Any, Apart] x, _ => ops::nextafter(&x[0], &x[1]);
        "where_" [Any, Any] x, random => ops::where_(&random.mask(&x[0].shape()[..]), &x[0], &x[1]);
        "where_ with a number" [Any] x, random => ops::where_(&random.mask(&x[0].shape()[..]), &x[0], 0.5);
        "lerp" [Any, Any, Any] x, _ => ops::lerp(&x[0], &x[1], &x[2]);
        "addcmul" [Any, Any, Any] x, _ => ops::addcmul(&x[0], &x[1], &x[2], 0.7);
        "addcdiv" [Any, Any, Positive] x, _ => ops::addcdiv(&x[0], &x[1], &x[2], 0.7);
        "add a number" [Any] x, _ => ops::add(&x[0], 0.75);
        "subtract from a number" [Any] x, _ => ops::sub(0.75, &x[0]);
        "mul by a number" [Any] x, _ => ops::mul(&x[0], -1.5);
        "number divided" [Positive] x, _ => ops::div(2.0, &x[0]);
        "pow 2" [Any] x, _ => ops::pow(&x[0], 2);
        "pow 3" [Any] x, _ => ops::pow(&x[0], 3);
        "pow 0.5" [Positive] x, _ => ops::pow(&x[0], 0.5);
        "pow -2.5" [Positive] x, _ => ops::pow(&x[0], -2.5);
        "number to the power" [Any] x, _ => ops::pow(1.7, &x[0]);
        "x / (1 + x²)" [Any] x, _ => ops::div(&x[0], &ops::add(&ops::mul(&x[0], &x[0])?, 1.0)?);
        "sin(x²)" [Any] x, _ => ops::sin(&ops::mul(&x[0], &x[0])?);
        "exp(-x²)" [Any] x, _ => ops::exp(&ops::neg(&ops::mul(&x[0], &x[0])?)?);
        "xˣ" [Positive] x, _ => ops::pow(&x[0], &x[0]);
        "divmod" [Apart, Positive] x, _ => Ok(ops::divmod(&x[0], &x[1])?.1);
        "modf" [Apart] x, _ => Ok(ops::modf(&x[0])?.0);
        "frexp" [Apart] x, _ => Ok(ops::frexp(&x[0])?.0);
        "igamma" [Positive] x, random => ops::igamma(&random.tensor(&x[0].shape()[..], 0.7, 2.5), &x[0]);
        "igammac" [Positive] x, random => ops::igammac(&random.tensor(&x[0].shape()[..], 0.7, 2.5), &x[0]);
        "zeta" [Positive] x, random => ops::zeta(&random.tensor(&x[0].shape()[..], 1.6, 3.5), &x[0]);
        "igamma of a" [Positive, Positive] x, _ => ops::igamma(&x[0], &x[1]);
        "zeta of s" [AboveOne, Positive] x, _ => ops::zeta(&x[0], &x[1]);
        "chebyshev_t" [Unit] x, random => ops::chebyshev_t(&x[0], &random.indices(&x[0].shape()[..], 5));
        "chebyshev_u" [Unit] x, random => ops::chebyshev_u(&x[0], &random.indices(&x[0].shape()[..], 5));
        "chebyshev_v" [Unit] x, random => ops::chebyshev_v(&x[0], &random.indices(&x[0].shape()[..], 5));
        "chebyshev_w" [Unit] x, random => ops::chebyshev_w(&x[0], &random.indices(&x[0].shape()[..], 5));
        "shifted_chebyshev_t" [Share] x, random => ops::shifted_chebyshev_t(&x[0], &random.indices(&x[0].shape()[..], 5));
        "shifted_chebyshev_u" [Share] x, random => ops::shifted_chebyshev_u(&x[0], &random.indices(&x[0].shape()[..], 5));
        "shifted_chebyshev_v" [Share] x, random => ops::shifted_chebyshev_v(&x[0], &random.indices(&x[0].shape()[..], 5));
        "shifted_chebyshev_w" [Share] x, random => ops::shifted_chebyshev_w(&x[0], &random.indices(&x[0].shape()[..], 5));
        "hermite_h" [Unit] x, random => ops::hermite_h(&x[0], &random.indices(&x[0].shape()[..], 5));
        "hermite_he" [Unit] x, random => ops::hermite_he(&x[0], &random.indices(&x[0].shape()[..], 5));
        "laguerre_l" [Unit] x, random => ops::laguerre_l(&x[0], &random.indices(&x[0].shape()[..], 5));
        "legendre_p" [Unit] x, random => ops::legendre_p(&x[0], &random.indices(&x[0].shape()[..], 5));
        "a formula of one input" [Positive] x, _ => ops::map(
            formula!(|x; k| (k * x).sin() * x.ln() + x.sqrt()), &[&x[0]], &[1.5.into()]);
        "a formula of three inputs" [Any, Any, Positive] x, _ => ops::map(
            formula!(|a, b, c| (a * b).tanh() / c + (a - c).exp() * b), &[&x[0], &x[1], &x[2]], &[]);
        "a formula of six inputs" [Any, Any, Any, Any, Any, Positive] x, _ => ops::map(
            formula!(|a, b, c, d, e, f| (a * b - c).sin() * (d + e * a).tanh() / f),
            &[&x[0], &x[1], &x[2], &x[3], &x[4], &x[5]], &[]);
    }
    all
}

fn broadcast_inputs() -> Vec<CatalogueOperation> {
    let operation = |name, domains, f| CatalogueOperation::new(OperationFamily::Elementwise, name, domains, f);
    vec![
        operation("mul of a broadcast row", &[Any, Any], |x, _| ops::mul(&fit(&x[0], &[2, 3])?, &fit(&x[1], &[3])?)),
        operation("div by a broadcast column", &[Any, Positive], |x, _| {
            ops::div(&fit(&x[0], &[2, 3])?, &fit(&x[1], &[2, 1])?)
        }),
    ]
}
