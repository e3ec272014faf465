//! Reductions without NaN, compared with reductions of the other elements.

use crate::table::nd::Nd;
use crate::table::row::{Row, Rule, argument_rejected, axis_rejected, real};
use ops::{Axes, over};
use pellucid_tensor::{DType, Error, Result, Tensor, ops};

type Call = fn(&Tensor, Axes) -> Result<Tensor>;

const X: [[f64; 3]; 3] = [[f64::NAN, 2.0, -1.0], [f64::NAN, f64::NEG_INFINITY, f64::NAN], [f64::NAN; 3]];

fn numbers(x: &[f64]) -> Vec<f64> {
    x.iter().copied().filter(|v| !v.is_nan()).collect()
}

fn moments(x: &[f64], ddof: f64) -> f64 {
    let x = numbers(x);
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    x.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / (x.len() as f64 - ddof)
}

/// Returns a row of a reduction of the elements that are not NaN.
fn row(name: &'static str, call: Call, value: fn(&[f64]) -> f64) -> Row {
    Row::new(name)
        .scale(2.0)
        .ulps(32.0)
        .case("all axes", [real([2, 3])], move |x| call(&x[0], (..).into()), move |x| x[0].reduce(&[0, 1], value))
        .case("the first", [real([3, 2])], move |x| call(&x[0], 0.into()), move |x| x[0].reduce(&[0], value))
        .floats_only()
        .case("kept", [real([2, 4])], move |x| call(&x[0], over(1).keepdims()), move |x| x[0].fold(&[1], value))
        .floats_only()
        .check("NaN must have no effect on values and gradients", move || {
            let x = Tensor::from([f64::NAN, 0.5, 1.25, 2.5]).requires_grad_(true);
            let without = Tensor::from([0.5, 1.25, 2.5]).requires_grad_(true);
            let (y, expected) = (call(&x, 0.into())?, call(&without, 0.into())?);
            if !y.requires_grad() {
                return Ok(y.item::<i64>() == expected.item::<i64>() + 1);
            }
            let near = |a: f64, b: f64| (a - b).abs() < 1e-15 * b.abs().max(1.0);
            let same = near(y.item::<f64>(), expected.item::<f64>());
            y.backward();
            expected.backward();
            let [g, h] = [&x, &without].map(|t| t.grad().expect("the tensor must have a gradient").to_vec::<f64>());
            Ok(same && g[0] == 0.0 && g[1..].iter().zip(&h).all(|(&a, &b)| near(a, b)))
        })
        .check("an invalid axis must be an error", move || axis_rejected(call(&Tensor::from([1.0]), 1.into())))
}

/// Checks the results of rows with some and with only NaN.
fn of_nan(row: Row, call: Call, expected: [f64; 3]) -> Row {
    row.check("rows with some and with only NaN", move || {
        let y = call(&Tensor::from(X), 1.into())?.to_vec::<f64>();
        let near = |a: f64, b: f64| a == b || (a - b).abs() < 1e-15 * b.abs() || a.is_nan() && b.is_nan();
        Ok((0..3).all(|i| near(y[i], expected[i])))
    })
}

fn no_elements(row: Row, call: Call) -> Row {
    row.check("zero elements must be an error", move || {
        argument_rejected(call(&Tensor::zeros([2, 0], DType::F32), 1.into()))
    })
}

/// Returns the position of the element that `extremum` returns of the numbers.
fn position(x: &[f64], extremum: fn(&[f64]) -> f64) -> f64 {
    x.iter().position(|&v| v == extremum(x)).unwrap_or(0) as f64
}

fn most(x: &[f64]) -> f64 {
    numbers(x).into_iter().reduce(f64::max).unwrap_or(f64::NAN)
}

fn least(x: &[f64]) -> f64 {
    numbers(x).into_iter().reduce(f64::min).unwrap_or(f64::NAN)
}

/// Returns a row of a cumulative operation.
fn cumulative(name: &'static str, call: Call, value: fn(&[f64]) -> f64) -> Row {
    let along =
        move |x: &Nd, axis: usize| x.rows(&[axis], |row| (1..=row.len()).map(|n| value(&numbers(&row[..n]))).collect());
    Row::new(name)
        .rule(Rule::Counts)
        .scale(4.0)
        .ulps(32.0)
        .case("the last axis", [real([2, 4])], move |x| call(&x[0], (-1).into()), move |x| along(&x[0], 1))
        .case("all", [real([2, 2])], move |x| call(&x[0], (..).into()), move |x| along(&x[0].reshape(&[4]), 0))
        .floats_only()
        .check("several axes must be an error", move || argument_rejected(call(&Tensor::from([[1.0]]), [0, 1].into())))
}

pub(super) fn rows() -> Vec<Row> {
    let (infinite, nan) = (f64::NEG_INFINITY, f64::NAN);
    let positions = |row: Row| row.rule(Rule::Always(DType::I64)).untracked();
    let moment_of_integers = |row: Row, call: Call| {
        row.rule(Rule::FloatsOnly).ordinary().check("integers must be an error", move || {
            Ok(matches!(call(&Tensor::from([1i64, 2]), 0.into()), Err(Error::DTypeMismatch { .. })))
        })
    };
    let deviation = row("nanstd", ops::nanstd, |x| moments(x, 0.0).sqrt()).case(
        "with a degree of freedom",
        [real([2, 4])],
        |x| ops::nanstd(&x[0], over(1).ddof(1)),
        |x| x[0].reduce(&[1], |x| moments(x, 1.0).sqrt()),
    );
    vec![
        no_elements(of_nan(row("nanmax", ops::nanmax, most), ops::nanmax, [2.0, infinite, nan]), ops::nanmax),
        no_elements(of_nan(row("nanmin", ops::nanmin, least), ops::nanmin, [-1.0, infinite, nan]), ops::nanmin),
        no_elements(
            positions(of_nan(row("nanargmax", ops::nanargmax, |x| position(x, most)), ops::nanargmax, [1.0, 1.0, 0.0])),
            ops::nanargmax,
        ),
        no_elements(
            positions(of_nan(
                row("nanargmin", ops::nanargmin, |x| position(x, least)),
                ops::nanargmin,
                [2.0, 1.0, 0.0],
            )),
            ops::nanargmin,
        ),
        of_nan(
            row("nanprod", ops::nanprod, |x| numbers(x).iter().product()).rule(Rule::Counts),
            ops::nanprod,
            [-2.0, infinite, 1.0],
        ),
        moment_of_integers(
            of_nan(row("nanvar", ops::nanvar, |x| moments(x, 0.0)), ops::nanvar, [2.25, nan, nan]),
            ops::nanvar,
        ),
        moment_of_integers(of_nan(deviation, ops::nanstd, [1.5, nan, nan]), ops::nanstd),
        cumulative("nancumsum", ops::nancumsum, |x| x.iter().sum()),
        cumulative("nancumprod", ops::nancumprod, |x| x.iter().product()),
    ]
}
