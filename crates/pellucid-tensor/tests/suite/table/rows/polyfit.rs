//! Polynomials given by coefficients, and piecewise linear functions.

use crate::table::nd::Nd;
use crate::table::row::{Gradient::Third, Row, Rule, real, shape_rejected};
use pellucid_tensor::ops::InterpOptions;
use pellucid_tensor::{DType, Error, Tensor, ops};

const POINTS: [f64; 4] = [-1.0, 0.0, 0.5, 1.5];

fn points(x: &Tensor) -> Tensor {
    Tensor::from(POINTS).to_dtype(x.dtype())
}

/// Evaluates the function through (pᵢ, vᵢ) at x by the segment that contains x.
fn linear(x: f64, p: &[f64], v: &[f64]) -> f64 {
    let last = p.len() - 1;
    match (0..last).find(|&i| p[i] <= x && x < p[i + 1]) {
        _ if x < p[0] => v[0],
        None => v[last],
        Some(i) => v[i] + (v[i + 1] - v[i]) / (p[i + 1] - p[i]) * (x - p[i]),
    }
}

/// Evaluates the function through (pᵢ, vᵢ) and its repetitions at x.
fn repeated(x: f64, p: &[f64], v: &[f64], period: f64) -> f64 {
    let mut points: Vec<(f64, f64)> = p.iter().zip(v).map(|(p, &v)| (p.rem_euclid(period), v)).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let shifted = |shift: f64| points.iter().map(move |&(p, v)| (p + shift, v));
    let (p, v): (Vec<f64>, Vec<f64>) = [-period, 0.0, period].into_iter().flat_map(shifted).unzip();
    linear(x.rem_euclid(period), &p, &v)
}

fn ends(left: Option<f64>, right: Option<f64>) -> InterpOptions {
    InterpOptions { left, right, ..Default::default() }
}

fn periodic(period: f64) -> InterpOptions {
    InterpOptions { period: Some(period), ..Default::default() }
}

/// Solves the normal equations of a line or a parabola by Gaussian elimination.
fn fitted(x: &[f64], y: &[f64], degree: usize) -> Vec<f64> {
    let n = degree + 1;
    let power = |x: f64, k: usize| x.powi((degree - k) as i32);
    let mut rows: Vec<Vec<f64>> = (0..n)
        .map(|i| {
            let left = (0..n).map(|j| x.iter().map(|&x| power(x, i) * power(x, j)).sum());
            let right: f64 = x.iter().zip(y).map(|(&x, &y)| power(x, i) * y).sum();
            left.chain([right]).collect()
        })
        .collect();
    for k in 0..n {
        let pivot = rows[k].clone();
        for (_, row) in rows.iter_mut().enumerate().filter(|(i, _)| *i != k) {
            let factor = row[k] / pivot[k];
            (0..=n).for_each(|j| row[j] -= factor * pivot[j]);
        }
    }
    (0..n).map(|k| rows[k][n] / rows[k][k]).collect()
}

pub(super) fn rows() -> Vec<Row> {
    let value = |p: &[f64], x: f64| (0..p.len()).map(|k| p[k] * x.powi((p.len() - 1 - k) as i32)).sum::<f64>();
    // Points that are far enough apart for a well-conditioned fit.
    let abscissae = |x: &Tensor| &(x * 0.1) + &points(x);
    let near = |x: &Nd| x.data.iter().zip(POINTS).map(|(x, p)| p + 0.1 * x).collect::<Vec<f64>>();
    vec![
        Row::new("polyval")
            .rule(Rule::Numbers)
            .scale(32.0)
            .gradient(Third)
            .case(
                "a cubic polynomial",
                [real([4]), real([2, 3])],
                |x| ops::polyval(&x[0], &x[1]),
                move |x| x[1].map(|v| value(&x[0].data, v)),
            )
            .check("a constant, and no coefficients", || {
                let x = Tensor::from([1.0, 7.0]);
                let constant = ops::polyval(&Tensor::from([3.0]), &x)?;
                let none = ops::polyval(&Tensor::zeros([0], DType::F64), &x)?;
                Ok(constant.to_vec::<f64>() == [3.0; 2] && none.to_vec::<f64>() == [0.0; 2])
            })
            .ordinary()
            .check("a matrix of coefficients must be an error", || {
                shape_rejected(ops::polyval(&Tensor::from([[1.0]]), &Tensor::from(1.0)))
            }),
        Row::new("polyfit")
            .rule(Rule::FloatsOnly)
            .scale(64.0)
            .ulps(64.0)
            .case(
                "a line",
                [real([4]), real([4])],
                move |x| ops::polyfit(&abscissae(&x[0]), &x[1], 1),
                move |x| Nd { shape: vec![2], data: fitted(&near(&x[0]), &x[1].data, 1) },
            )
            .floats_only()
            .case(
                "two parabolas",
                [real([4]), real([4, 2])],
                move |x| ops::polyfit(&abscissae(&x[0]), &x[1], 2),
                move |x| {
                    let column = |k: usize| (0..4).map(|i| x[1].at(&[i, k])).collect::<Vec<f64>>();
                    let both = [0, 1].map(|k| fitted(&near(&x[0]), &column(k), 2));
                    Nd::from_fn(&[3, 2], |ix| both[ix[1]][ix[0]])
                },
            )
            .floats_only()
            .ordinary()
            .check("a power that is 0 at all points must have the coefficient 0", || {
                let fit = ops::polyfit(&Tensor::from([0.0, 0.0]), &Tensor::from([1.0, 3.0]), 1)?;
                Ok(fit.to_vec::<f64>()[0] == 0.0 && (fit.to_vec::<f64>()[1] - 2.0).abs() < 1e-12)
            })
            .check("unequal lengths must be an error", || {
                shape_rejected(ops::polyfit(&Tensor::from([1.0]), &Tensor::from([1.0, 2.0]), 1))
            })
            .check("no points must be an error", || {
                let nothing = Tensor::zeros([0], DType::F64);
                shape_rejected(ops::polyfit(&nothing, &nothing, 1))
            })
            .check("integers must be an error", || {
                let x = Tensor::from([1i64, 2]);
                Ok(matches!(ops::polyfit(&x, &x, 1), Err(Error::DTypeMismatch { .. })))
            }),
        Row::new("interp")
            .rule(Rule::Floats)
            .scale(4.0)
            .ulps(16.0)
            .case(
                "given points",
                [real([2, 3]), real([4])],
                |x| ops::interp(&x[0], &points(&x[0]), &x[1], InterpOptions::default()),
                |x| x[0].map(|v| linear(v, &POINTS, &x[1].data)),
            )
            .floats_only()
            .case(
                "points with a gradient",
                [real([3]), real([4]), real([4])],
                |x| {
                    // The points of integers are not ascending otherwise.
                    let points = (&points(&x[1]) + &(&x[1] * 0.1)).sort(0, false).0;
                    ops::interp(&x[0], &points, &x[2], InterpOptions::default())
                },
                |x| {
                    let p: Vec<f64> = POINTS.iter().zip(&x[1].data).map(|(p, d)| p + 0.1 * d).collect();
                    x[0].map(|v| linear(v, &p, &x[2].data))
                },
            )
            .floats_only()
            .case(
                "one point",
                [real([3]), real([1])],
                |x| ops::interp(&x[0], &x[1], &x[1], InterpOptions::default()),
                |x| x[0].map(|_| x[1].data[0]),
            )
            .case(
                "ends",
                [real([2, 3]), real([4])],
                |x| ops::interp(&x[0], &points(&x[0]), &x[1], ends(Some(3.0), Some(-2.0))),
                |x| {
                    let inner = |v: f64| linear(v, &POINTS, &x[1].data);
                    x[0].map(|v| {
                        if v < POINTS[0] {
                            3.0
                        } else if v > POINTS[3] {
                            -2.0
                        } else {
                            inner(v)
                        }
                    })
                },
            )
            .floats_only()
            .case(
                "a period",
                [real([2, 3]), real([4])],
                |x| ops::interp(&x[0], &points(&x[0]), &x[1], periodic(-2.75)),
                |x| x[0].map(|v| repeated(v, &POINTS, &x[1].data, 2.75)),
            )
            .floats_only()
            .case(
                "a period of points with a gradient",
                [real([3]), real([4]), real([4])],
                |x| ops::interp(&x[0], &(&points(&x[1]) + &(&x[1] * 0.1)), &x[2], periodic(3.0)),
                |x| {
                    let p: Vec<f64> = POINTS.iter().zip(&x[1].data).map(|(p, d)| p + 0.1 * d).collect();
                    x[0].map(|v| repeated(v, &p, &x[2].data, 3.0))
                },
            )
            .floats_only()
            .away(&[-1.0, 0.0, 0.5, 1.5, 1.75, 0.25])
            .ordinary()
            .check("ends must not change the points, NaN, or the other end", || {
                let (p, v) = (Tensor::from([0.0, 1.0]), Tensor::from([5.0, 6.0]));
                let x = Tensor::from([-0.5, 0.0, 1.0, 2.0, f64::NAN]);
                let low = ops::interp(&x, &p, &v, ends(Some(9.0), None))?.to_vec::<f64>();
                let high = ops::interp(&x, &p, &v, ends(None, Some(9.0)))?.to_vec::<f64>();
                Ok(low[..4] == [9.0, 5.0, 6.0, 6.0] && high[..4] == [5.0, 5.0, 6.0, 9.0] && high[4].is_nan())
            })
            .check("the example of NumPy's documentation, with unsorted points", || {
                let x = Tensor::from([-180.0, -170.0, -185.0, 185.0, -10.0, -5.0, 0.0, 365.0]);
                let (p, v) = (Tensor::from([190.0, -190.0, 350.0, -350.0]), Tensor::from([5.0, 10.0, 3.0, 4.0]));
                let y = ops::interp(&x, &p, &v, periodic(360.0))?;
                Ok(y.to_vec::<f64>() == [7.5, 5.0, 8.75, 6.25, 3.0, 3.25, 3.5, 3.75])
            })
            .check("points that descend must be an error in eager mode, unless there is a period", || {
                let (p, x) = (Tensor::from([0.0, 2.0, 1.0]), Tensor::from([0.5]));
                let rejected = |options| matches!(ops::interp(&x, &p, &p, options), Err(Error::InvalidArgument { .. }));
                Ok(rejected(InterpOptions::default()) && !rejected(periodic(4.0)))
            })
            .check("a period of 0, an infinite one, or one with ends must be an error", || {
                let x = Tensor::from([1.0]);
                let rejected = |options| matches!(ops::interp(&x, &x, &x, options), Err(Error::InvalidArgument { .. }));
                let both = InterpOptions { left: Some(0.0), ..periodic(1.0) };
                Ok(rejected(periodic(0.0)) && rejected(periodic(f64::INFINITY)) && rejected(both))
            })
            .check("an infinite value must reach up to the neighbouring points, as in NumPy", || {
                let [points, values, down] =
                    [[0.0, 1.0, 2.0], [1.0, f64::INFINITY, 3.0], [1.0, f64::NEG_INFINITY, 3.0]];
                let [points, values, down] = [points, values, down].map(Tensor::from);
                let x = Tensor::from([-1.0, 0.0, 0.25, 0.75, 1.0, 1.5, 2.0, 3.0]);
                let y =
                    |values: &Tensor| ops::interp(&x, &points, values, InterpOptions::default())?.try_to_vec::<f64>();
                let expected = |inf: f64| [1.0, 1.0, inf, inf, inf, inf, 3.0, 3.0];
                let nan = ops::interp(&Tensor::from([f64::NAN]), &points, &values, InterpOptions::default())?;
                Ok(nan.item::<f64>().is_nan()
                    && y(&values)? == expected(f64::INFINITY)
                    && y(&down)? == expected(f64::NEG_INFINITY))
            })
            .check("the function must be exact at the points, and constant beyond them", || {
                let (p, v) = (Tensor::from([0.1, 0.7, 0.9]), Tensor::from([1.3, -0.1, 1e9]));
                let x = Tensor::from([0.1, 0.7, 0.9, -5.0, 5.0, f64::INFINITY, f64::NAN]);
                let y = ops::interp(&x, &p, &v, InterpOptions::default())?.to_vec::<f64>();
                Ok(y[..6] == [1.3, -0.1, 1e9, 1.3, 1e9, 1e9] && y[6].is_nan())
            })
            .check("a step must have the last value at its point", || {
                let (p, v) = (Tensor::from([0.0, 1.0, 1.0, 2.0]), Tensor::from([0.0, 1.0, 5.0, 6.0]));
                let y = ops::interp(&Tensor::from([0.5, 1.0, 1.5]), &p, &v, InterpOptions::default())?;
                Ok(y.to_vec::<f64>() == [0.5, 5.0, 5.5])
            })
            .check("unequal lengths must be an error", || {
                let x = Tensor::from([1.0, 2.0]);
                shape_rejected(ops::interp(&x, &x, &Tensor::from([1.0]), InterpOptions::default()))
            })
            .check("no points must be an error", || {
                let nothing = Tensor::zeros([0], DType::F64);
                shape_rejected(ops::interp(&Tensor::from(1.0), &nothing, &nothing, InterpOptions::default()))
            }),
    ]
}
