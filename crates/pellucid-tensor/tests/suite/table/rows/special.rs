//! Special functions, compared with series and integrals.

use super::{binary_row as binary, unary_row as unary};
use crate::table::nd::{Nd, zip};
use crate::table::row::{Gradient::Third, Row, Rule, real, shape_rejected};
use crate::table::special::{
    airy, beta_share, digamma, gamma_share, hurwitz, mean_over_circle, series_j, series_y, tail_integral,
};
use pellucid_tensor::{DType, Error, Tensor, ops};
use std::f64::consts::{FRAC_1_SQRT_2, PI};

fn i(n: i32) -> impl Fn(f64) -> f64 + Copy {
    move |x| mean_over_circle(|t| (x * t.cos()).exp() * (n as f64 * t).cos())
}

fn k(n: i32) -> impl Fn(f64) -> f64 + Copy {
    move |x| match x {
        x if x < 0.0 => f64::NAN,
        0.0 => f64::INFINITY,
        _ => tail_integral(|t| (-x * t.cosh()).exp() * (n as f64 * t).cosh()),
    }
}

/// Computes the quantile by bisection, on the side where the function is small.
fn quantile(p: f64) -> f64 {
    match p {
        0.0 => return f64::NEG_INFINITY,
        1.0 => return f64::INFINITY,
        p if !(0.0..=1.0).contains(&p) => return f64::NAN,
        p if p > 0.5 => return -quantile(1.0 - p),
        _ => {}
    }
    let (mut low, mut high) = (-40.0, 0.0);
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        if 0.5 * libm::erfc(-middle * FRAC_1_SQRT_2) < p { low = middle } else { high = middle }
    }
    low
}

pub(super) fn rows() -> Vec<Row> {
    let scaled = |x: f64, y: f64| y * (-x.abs()).exp();
    let rows = vec![
        unary!(polygamma(0.0), digamma).within(0.4..=2.0).ulps(32.0).scale(2.0).check("orders 1 and 3", || {
            let close = |n: f64, want: f64| -> pellucid_tensor::Result<bool> {
                Ok((ops::polygamma(&Tensor::from(0.5), n)?.item::<f64>() - want).abs() < 1e-13 * want)
            };
            Ok(close(1.0, PI * PI / 2.0)? && close(3.0, PI.powi(4))?)
        }),
        unary!(erfcx, |x| (x * x).exp() * libm::erfc(x)).ulps(64.0).gradient(Third),
        unary!(ndtr, |x| 0.5 * libm::erfc(-x * FRAC_1_SQRT_2)).gradient(Third),
        unary!(ndtri, quantile).within(0.05..=0.95).ulps(32.0),
        unary!(log_ndtr, |x| (0.5 * libm::erfc(-x * FRAC_1_SQRT_2)).ln()).within(-4.5..=2.0).ulps(32.0).gradient(Third),
        unary!(i0, i(0)).ulps(32.0).gradient(Third),
        unary!(i0e, move |x| scaled(x, i(0)(x))).ulps(32.0).away(&[0.0]),
        unary!(i1, i(1)).ulps(32.0).scale(1.0).gradient(Third),
        unary!(i1e, move |x| scaled(x, i(1)(x))).ulps(32.0).scale(1.0).away(&[0.0]),
        unary!(k0, k(0)).within(0.4..=2.0).ulps(64.0),
        unary!(k0e, |x| k(0)(x) * x.exp()).within(0.4..=2.0).ulps(64.0),
        unary!(k1, k(1)).within(0.4..=2.0).ulps(64.0),
        unary!(k1e, |x| k(1)(x) * x.exp()).within(0.4..=2.0).ulps(64.0),
        unary!(bessel_j0, |x| series_j(0, x)).within(-1.3..=1.3).scale(1.0).gradient(Third),
        unary!(bessel_j1, |x| series_j(1, x)).within(-1.3..=1.3).scale(1.0).gradient(Third),
        unary!(bessel_y0, |x| series_y(0, x)).within(0.4..=1.3).ulps(64.0).scale(1.0),
        unary!(bessel_y1, |x| series_y(1, x)).within(0.4..=1.3).ulps(64.0).scale(1.0),
        unary!(airy_ai, airy).within(-4.0..=4.0).ulps(256.0).scale(1.0).gradient(Third).check(
            "large arguments",
            || {
                let y = ops::airy_ai(&Tensor::from([-30.0, 30.0, f64::INFINITY, f64::NAN]))?.to_vec::<f64>();
                let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-12;
                Ok(near(y[0], -0.087_968_188_456_842_2)
                    && near(y[1], 3.208_217_591_550_48e-49)
                    && y[2] == 0.0
                    && y[3].is_nan())
            },
        ),
        unary!(spherical_bessel_j0, |x| if x == 0.0 { 1.0 } else { x.sin() / x }),
        binary!(logaddexp2, |a, b| (a.exp2() + b.exp2()).log2()).scale(4.0).gradient(Third).check(
            "equal infinities",
            || {
                let x = Tensor::from([f64::INFINITY, f64::NEG_INFINITY]);
                Ok(ops::logaddexp2(&x, &x)?.to_vec::<f64>() == [f64::INFINITY, f64::NEG_INFINITY])
            },
        ),
    ];
    rows.into_iter().map(|row| row.rule(Rule::Floats).ordinary()).chain(further_rows()).collect()
}

/// Returns a row of P(a, x) for a = 1, 2 and 3, where P is 1 − e⁻ˣ·Σ xᵏ/k! over k < a.
fn incomplete(
    name: &'static str,
    call: fn(&Tensor, &Tensor) -> pellucid_tensor::Result<Tensor>,
    of: fn(f64) -> f64,
) -> Row {
    let shape = || Tensor::from([1.0, 2.0, 3.0]);
    let p = move |a: f64, x: f64| of(1.0 - (-x).exp() * [1.0, 1.0 + x, 1.0 + x + 0.5 * x * x][a as usize - 1]);
    Row::new(name)
        .ulps(64.0)
        .scale(1.0)
        .gradient(Third)
        .case(
            "of x",
            [real([2, 3]).within(0.3..=6.0)],
            move |x| call(&shape().to_dtype(x[0].dtype()), &x[0]),
            move |x| Nd::from_fn(&[2, 3], |ix| p(ix[1] as f64 + 1.0, x[0].at(ix))),
        )
        .floats_only()
        .ordinary()
        .check("the ends of the domain, and beyond", move || {
            let (a, x) = (Tensor::from([2.0, 2.0, -1.0, 2.0]), Tensor::from([0.0, f64::INFINITY, 1.0, -1.0]));
            let y = call(&a, &x)?.to_vec::<f64>();
            Ok(y[0] == of(0.0) && y[1] == of(1.0) && y[2].is_nan() && y[3].is_nan())
        })
        .case(
            "of a and x",
            [real([2, 1]).within(0.4..=5.0), real([2, 3]).within(0.3..=6.0)],
            move |x| call(&x[0], &x[1]),
            move |x| zip(x, |v| of(gamma_share(v[0], v[1]))),
        )
        .floats_only()
        .check("a tracked first argument must give the same bits", move || {
            let (a, x) = (Tensor::from([0.3f32, 2.0, 40.0]), Tensor::from([0.1f32, 3.0, 35.0]));
            let tracked = call(&a.detach().requires_grad_(true), &x)?;
            Ok(tracked.requires_grad() && tracked.to_vec::<f32>() == call(&a, &x)?.to_vec::<f32>())
        })
        .check("the derivative with respect to a at the ends of the domain, and beyond", move || {
            let a = Tensor::from([2.0, 2.0, -1.0]).requires_grad_(true);
            ops::sum(&call(&a, &Tensor::from([0.0, f64::INFINITY, 1.0]))?, ..)?.backward();
            let slopes = a.grad().expect("the tensor must have a gradient").to_vec::<f64>();
            Ok(slopes[0] == 0.0 && slopes[1] == 0.0 && slopes[2].is_nan())
        })
}

/// Returns a row of I_x(a, b), or of its complement.
fn incomplete_beta(
    name: &'static str,
    call: fn(&Tensor, &Tensor, &Tensor) -> pellucid_tensor::Result<Tensor>,
    of: fn(f64) -> f64,
) -> Row {
    let at = move |x: [f64; 6]| call(&Tensor::from([2.0]), &Tensor::from([0.5]), &Tensor::from(x));
    Row::new(name)
        .rule(Rule::Floats)
        .ulps(64.0)
        .scale(1.0)
        .gradient(Third)
        .case(
            "of a, b and x",
            [real([2, 1]).within(0.4..=4.0), real([3]).within(0.4..=4.0), real([2, 3]).within(0.1..=0.9)],
            move |x| call(&x[0], &x[1], &x[2]),
            move |x| zip(x, |v| of(beta_share(v[0], v[1], v[2]))),
        )
        .floats_only()
        .ordinary()
        .check("integers are promoted", move || {
            let (two, three) = (Tensor::from([2i64]), Tensor::from([3i64]));
            let float = |t: &Tensor| t.to_dtype(DType::F32);
            let x = Tensor::from([0.25f32]);
            let y = call(&two, &three, &x)?;
            let ends = call(&two, &three, &Tensor::from([0i64, 1]))?;
            Ok(y.to_vec::<f32>() == call(&float(&two), &float(&three), &x)?.to_vec::<f32>()
                && ends.dtype() == DType::F32
                && ends.to_vec::<f64>() == [of(0.0), of(1.0)])
        })
        .check("the ends of the domain, and beyond", move || {
            let y = at([0.0, 1.0, -0.1, 1.1, f64::NAN, 5e-324])?.to_vec::<f64>();
            Ok(y[..2] == [of(0.0), of(1.0)] && y[2..5].iter().all(|y| y.is_nan()) && y[5] == of(0.0))
        })
        .check("invalid parameters", move || {
            let x = Tensor::from(0.5);
            let (a, b) =
                (Tensor::from([0.0, -1.0, f64::INFINITY, f64::NAN, 1.0]), Tensor::from([1.0, 1.0, 1.0, 1.0, -1.0]));
            Ok(call(&a, &b, &x)?.to_vec::<f64>().iter().all(|y| y.is_nan()))
        })
        .check("the derivatives with respect to a and b at the ends of the domain", move || {
            let [a, b] = [2.0, 0.5].map(|p| Tensor::from([p, p]).requires_grad_(true));
            ops::sum(&call(&a, &b, &Tensor::from([0.0, 1.0]))?, ..)?.backward();
            let slopes = [a, b].map(|p| p.grad().expect("the tensor must have a gradient").to_vec::<f64>());
            Ok(slopes == [[0.0, 0.0], [0.0, 0.0]])
        })
        .check("shapes that do not broadcast must be an error", move || {
            let (two, three) = (Tensor::from([2.0, 3.0]), Tensor::from([0.1, 0.2, 0.3]));
            shape_rejected(call(&two, &two, &three))
        })
}

fn further_rows() -> Vec<Row> {
    let s = || Tensor::from([1.5, 2.0, 4.0]);
    vec![
        unary!(logit_with(0.2), |x: f64| {
            let z = x.clamp(0.2, 0.8);
            (z / (1.0 - z)).ln()
        })
        .rule(Rule::Floats)
        .within(0.25..=0.75)
        .gradient(Third)
        .check("the gradient outside the bounds must be 0", || {
            let x = Tensor::from([-1.0, 0.1, 0.5, 0.9, 2.0]).requires_grad_(true);
            ops::sum(&ops::logit_with(&x, 0.2)?, ..)?.backward();
            Ok(x.grad().expect("the tensor must have a gradient").to_vec::<f64>() == [0.0, 0.0, 4.0, 0.0, 0.0])
        })
        .check("bounds in the wrong order must be an error", || {
            let rejected =
                |eps: f64| matches!(ops::logit_with(&Tensor::from(0.5), eps), Err(Error::InvalidArgument { .. }));
            Ok(rejected(0.6) && rejected(-0.1) && rejected(f64::NAN))
        }),
        Row::new("zeta")
            .ulps(64.0)
            .case(
                "of q",
                [real([2, 3]).within(0.3..=4.0)],
                move |x| ops::zeta(&s().to_dtype(x[0].dtype()), &x[0]),
                |x| zip(&[Nd { shape: vec![3], data: vec![1.5, 2.0, 4.0] }, x[0].clone()], |v| hurwitz(v[0], v[1])),
            )
            .floats_only()
            .ordinary()
            .check("poles and undefined arguments", || {
                let (s, q) = (Tensor::from([1.0, 0.5, 2.0, 3.0, 2.5]), Tensor::from([3.0, 1.0, -1.0, -2.5, -0.5]));
                let y = ops::zeta(&s, &q)?.to_vec::<f64>();
                Ok(y[0] == f64::INFINITY
                    && y[1].is_nan()
                    && y[2] == f64::INFINITY
                    && y[4].is_nan()
                    && (y[3] - 0.054_102_025_820_863_7).abs() < 1e-12)
            })
            .check("a tracked first argument must be an error", || {
                let s = Tensor::from(2.0).requires_grad_(true);
                Ok(matches!(ops::zeta(&s, &Tensor::from(1.0)), Err(Error::NoGradient { op: "zeta" })))
            })
            .check("shapes that do not broadcast must be an error", || {
                shape_rejected(ops::zeta(&Tensor::from([2.0, 3.0]), &Tensor::from([1.0, 2.0, 3.0])))
            }),
        incomplete("igamma", ops::igamma, |p| p),
        incomplete("igammac", ops::igammac, |p| 1.0 - p),
        incomplete_beta("betainc", ops::betainc, |p| p),
        incomplete_beta("betaincc", ops::betaincc, |p| 1.0 - p),
        Row::new("multigammaln")
            .rule(Rule::FloatsOnly)
            .ulps(64.0)
            .scale(4.0)
            .case(
                "of dimension 3",
                [real([2, 3]).within(1.3..=6.0)],
                |x| ops::multigammaln(&x[0], 3),
                |x| x[0].map(|x| 1.5 * PI.ln() + libm::lgamma(x) + libm::lgamma(x - 0.5) + libm::lgamma(x - 1.0)),
            )
            .ordinary()
            .check("dimension 0 must be an error", || {
                Ok(matches!(ops::multigammaln(&Tensor::zeros([1], DType::F32), 0), Err(Error::InvalidArgument { .. })))
            }),
    ]
}
