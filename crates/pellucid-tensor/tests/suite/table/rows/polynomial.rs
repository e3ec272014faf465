//! Orthogonal polynomials, compared with their closed forms.

use crate::table::nd::Nd;
use crate::table::row::{Gradient::Third, Row, Rule, argument_rejected, real, shape_rejected};
use pellucid_tensor::{DType, Error, Result, Tensor, ops};

type Polynomial = fn(&Tensor, &Tensor) -> Result<Tensor>;

/// Returns a row of the polynomials of orders −1 to 4.
fn row(name: &'static str, call: Polynomial, value: fn(i32, f64) -> f64) -> Row {
    let orders = || Tensor::from([[-1i64], [0], [1], [2], [3], [4]]);
    Row::new(name)
        .rule(Rule::FloatsOnly)
        .ulps(64.0)
        .scale(64.0)
        .gradient(Third)
        .case(
            "orders −1 to 4",
            [real([3]).within(0.1..=0.9)],
            move |x| call(&x[0], &orders()),
            move |x| {
                Nd::from_fn(&[6, 3], |ix| if ix[0] == 0 { 0.0 } else { value(ix[0] as i32 - 1, x[0].data[ix[1]]) })
            },
        )
        .floats_only()
        .ordinary()
        .check("an empty input", move || Ok(call(&Tensor::zeros([0], DType::F32), &Tensor::from(3i64))?.size() == 0))
        .check("shapes that do not broadcast must be an error", move || {
            shape_rejected(call(&Tensor::from([0.1, 0.2]), &Tensor::from([1i64, 2, 3])))
        })
        .check("an extreme order must be an error", move || {
            argument_rejected(call(&Tensor::from([0.5]), &Tensor::from(i64::MAX)))
        })
        .check("integer points", move || {
            Ok(matches!(call(&Tensor::from([1i64]), &Tensor::from(1i64)), Err(Error::DTypeMismatch { .. })))
        })
}

fn t(n: i32, x: f64) -> f64 {
    (n as f64 * x.acos()).cos()
}

fn u(n: i32, x: f64) -> f64 {
    ((n as f64 + 1.0) * x.acos()).sin() / x.acos().sin()
}

fn v(n: i32, x: f64) -> f64 {
    ((n as f64 + 0.5) * x.acos()).cos() / (0.5 * x.acos()).cos()
}

fn w(n: i32, x: f64) -> f64 {
    ((n as f64 + 0.5) * x.acos()).sin() / (0.5 * x.acos()).sin()
}

/// Σ cₖ·xᵏ
fn sum(coefficients: &[f64], x: f64) -> f64 {
    coefficients.iter().enumerate().map(|(k, c)| c * x.powi(k as i32)).sum()
}

pub(super) fn rows() -> Vec<Row> {
    vec![
        row("chebyshev_t", ops::chebyshev_t, t),
        row("chebyshev_u", ops::chebyshev_u, u),
        row("chebyshev_v", ops::chebyshev_v, v),
        row("chebyshev_w", ops::chebyshev_w, w),
        row("shifted_chebyshev_t", ops::shifted_chebyshev_t, |n, x| t(n, 2.0 * x - 1.0)),
        row("shifted_chebyshev_u", ops::shifted_chebyshev_u, |n, x| u(n, 2.0 * x - 1.0)),
        row("shifted_chebyshev_v", ops::shifted_chebyshev_v, |n, x| v(n, 2.0 * x - 1.0)),
        row("shifted_chebyshev_w", ops::shifted_chebyshev_w, |n, x| w(n, 2.0 * x - 1.0)),
        row("hermite_h", ops::hermite_h, |n, x| {
            let rows: [&[f64]; 5] =
                [&[1.0], &[0.0, 2.0], &[-2.0, 0.0, 4.0], &[0.0, -12.0, 0.0, 8.0], &[12.0, 0.0, -48.0, 0.0, 16.0]];
            sum(rows[n as usize], x)
        }),
        row("hermite_he", ops::hermite_he, |n, x| {
            let rows: [&[f64]; 5] =
                [&[1.0], &[0.0, 1.0], &[-1.0, 0.0, 1.0], &[0.0, -3.0, 0.0, 1.0], &[3.0, 0.0, -6.0, 0.0, 1.0]];
            sum(rows[n as usize], x)
        }),
        row("laguerre_l", ops::laguerre_l, |n, x| {
            let rows: [&[f64]; 5] = [
                &[1.0],
                &[1.0, -1.0],
                &[1.0, -2.0, 0.5],
                &[1.0, -3.0, 1.5, -1.0 / 6.0],
                &[1.0, -4.0, 3.0, -2.0 / 3.0, 1.0 / 24.0],
            ];
            sum(rows[n as usize], x)
        }),
        row("legendre_p", ops::legendre_p, |n, x| {
            let rows: [&[f64]; 5] =
                [&[1.0], &[0.0, 1.0], &[-0.5, 0.0, 1.5], &[0.0, -1.5, 0.0, 2.5], &[0.375, 0.0, -3.75, 0.0, 4.375]];
            sum(rows[n as usize], x)
        }),
    ]
}
