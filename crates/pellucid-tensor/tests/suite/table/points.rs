//! Derivatives of orders 1 to 4 at special points, compared with the page `docs/special-points.md`.
//!
//! The page is the table of expected values; `points.py` writes it.

use super::driver::Report;
use super::row::{Gradient, Row};
use super::rows;
use pellucid_tensor::{
    DType, GradCheckOptions, GradOptions, Result, Tensor, capture, formula, grad_one, gradcheck, gradgradcheck,
    hessian, lazy, ops,
};
use std::collections::{HashMap, HashSet};

type Call = Box<dyn Fn(&[Tensor]) -> Result<Tensor>>;

/// A line of the page: an operation, a point, and the mixed derivatives of every order.
struct Point {
    operation: String,
    at: Vec<f64>,
    orders: Vec<Vec<f64>>,
    /// The derivatives are the limits from both sides.
    is_smooth: bool,
}

fn page() -> Vec<Point> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/special-points.md");
    let text = std::fs::read_to_string(path).expect("the page of special points must exist");
    let number = |s: &str| match s {
        "∞" => f64::INFINITY,
        "-∞" => f64::NEG_INFINITY,
        s => s.parse().unwrap_or_else(|_| panic!("{s} must be a number")),
    };
    let numbers = |cell: &str| cell.trim().split(", ").map(number).collect::<Vec<f64>>();
    let line = |line: &str| {
        let cells: Vec<&str> = line.split('|').collect();
        let operation = cells[1].trim().trim_matches('`').to_string();
        let orders: Vec<Vec<f64>> = cells[3..7].iter().map(|c| numbers(c)).collect();
        let is_smooth = cells[7].trim().is_empty() && orders.iter().flatten().all(|v| v.is_finite());
        Point { operation, at: numbers(cells[2]), orders, is_smooth }
    };
    text.lines().filter(|l| l.starts_with("| `")).map(line).collect()
}

/// Returns Σ (∂y/∂x), which is zero if y does not depend on x.
fn derivative(y: &Tensor, x: &Tensor) -> Result<Tensor> {
    if !y.requires_grad() {
        return ops::zeros_like(x);
    }
    let options = GradOptions { create_graph: true, allow_unused: true, ..Default::default() };
    grad_one(y, x, options)
}

/// Returns the mixed derivatives of every order of the page, ∂ⁿ/∂aⁿ first. `last` is the variable of the last
/// derivative where the order can be chosen.
fn derivatives(call: &Call, point: &Point, dtype: DType, last: usize) -> Result<Vec<Vec<f64>>> {
    let leaves: Vec<Tensor> = point.at.iter().map(|&x| Tensor::from(x).to_dtype(dtype).requires_grad_(true)).collect();
    let mut lower = vec![call(&leaves)?];
    let mut orders = Vec::new();
    for order in 1..=point.orders.len() {
        let of = |j: usize| match leaves.len() {
            1 => derivative(&lower[0], &leaves[0]),
            // ∂ⁿ/∂aⁿ⁻ʲ∂bʲ is the derivative of the result with one ∂a or one ∂b less.
            _ if j == 0 || (j < order && last == 0) => derivative(&lower[j], &leaves[0]),
            _ => derivative(&lower[j - 1], &leaves[1]),
        };
        let count = if leaves.len() == 1 { 1 } else { order + 1 };
        lower = (0..count).map(of).collect::<Result<_>>()?;
        orders.push(lower.iter().map(|y| y.item::<f64>()).collect());
    }
    Ok(orders)
}

/// Returns the call of a row with one or two 0-d operands, or of an operation that needs other operands.
fn call_of(operation: &str, rows: &mut [Row]) -> Option<Call> {
    if let Some(call) = calls().into_iter().find(|(name, _)| *name == operation) {
        return Some(call.1);
    }
    let name = operation.split('(').next()?;
    let row = rows.iter_mut().find(|row| row.name == name && row.is_elementwise())?;
    let case = row.cases.iter_mut().find(|case| ["[]", "[] with []"].contains(&&case.label[..]))?;
    let call = std::mem::replace(&mut case.call, Box::new(|_| unreachable!("a call is read once")));
    Some(Box::new(move |x| Ok(call(x)?.remove(0))))
}

/// Returns the calls of operations that are not elementwise, or whose operands are not the variables of the page.
fn calls() -> Vec<(&'static str, Call)> {
    fn call(f: impl Fn(&Tensor) -> Result<Tensor> + 'static) -> Call {
        Box::new(move |x| f(&x[0]))
    }
    let number = |k: f64, like: &Tensor| Tensor::from(k).to_dtype(like.dtype());
    let vector = |x: &Tensor, rest: &[f64]| {
        let rest = Tensor::from(rest.to_vec()).to_dtype(x.dtype());
        ops::concatenate(&[&ops::reshape(x, [1])?, &rest], 0)
    };
    let row = move |x: &Tensor, rest: &[f64]| {
        let x = vector(x, rest)?;
        ops::reshape(&x, [1, x.size()])
    };
    let norm = move |rest: f64, p: f64| call(move |x| ops::norm(&vector(x, &[rest])?, p, ..));
    let zeros = |n: usize, like: &Tensor| ops::zeros([1, n], like.dtype());
    let pool = move |rest: f64, p: f64| {
        call(move |x| {
            let x = ops::reshape(&vector(x, &[rest])?, [1, 1, 2])?;
            ops::sum(&ops::lp_pool1d(&x, p, ops::PoolOptions::new(2))?, ..)
        })
    };
    let twice = move |x: &Tensor| ops::concatenate(&[&ops::reshape(x, [1])?, &vector(x, &[3.0])?], 0);
    let with_nan = move |x: &Tensor| {
        let rest = vector(x, &[f64::NAN, 3.0])?;
        ops::concatenate(&[&ops::reshape(x, [1])?, &rest], 0)
    };
    let first = |y: Result<Tensor>| ops::select(&y?, 0, 0);
    let last = |y: Result<Tensor>| ops::select(&y?, 0, -1);
    vec![
        ("polygamma(x, 1)", call(|x| ops::polygamma(x, 1.0))),
        ("polygamma(x, 2)", call(|x| ops::polygamma(x, 2.0))),
        ("pow(x, 0)", call(|x| ops::pow(x, 0.0))),
        ("pow(x, 0.5)", call(|x| ops::pow(x, 0.5))),
        ("pow(x, 1.5)", call(|x| ops::pow(x, 1.5))),
        ("pow(x, 2)", call(|x| ops::pow(x, 2.0))),
        ("pow(x, 3)", call(|x| ops::pow(x, 3.0))),
        ("pow(x, -1)", call(|x| ops::pow(x, -1.0))),
        ("pow(2, x)", call(|x| ops::pow(2.0, x))),
        ("pow(x, x)", call(|x| ops::pow(x, x))),
        ("igamma(0.5, x)", call(move |x| ops::igamma(&number(0.5, x), x))),
        ("igamma(1, x)", call(move |x| ops::igamma(&number(1.0, x), x))),
        ("igamma(2, x)", call(move |x| ops::igamma(&number(2.0, x), x))),
        ("igammac(3, x)", call(move |x| ops::igammac(&number(3.0, x), x))),
        ("zeta(3, x)", call(move |x| ops::zeta(&number(3.0, x), x))),
        ("multigammaln(x, 2)", call(|x| ops::multigammaln(x, 2))),
        ("norm([x, 3], 0.5)", norm(3.0, 0.5)),
        ("norm([x, 3], 1)", norm(3.0, 1.0)),
        ("norm([x, 3], 1.5)", norm(3.0, 1.5)),
        ("norm([x, 3], 2)", norm(3.0, 2.0)),
        ("norm([x, 3], 3)", norm(3.0, 3.0)),
        ("norm([x, 3], 4)", norm(3.0, 4.0)),
        ("norm([x, 3], -1)", norm(3.0, -1.0)),
        ("norm([x, 0], 2)", norm(0.0, 2.0)),
        ("norm([x, 0], 3)", norm(0.0, 3.0)),
        ("norm([x, 3], inf)", norm(3.0, f64::INFINITY)),
        ("cdist([x], [0], 0.5)", call(move |x| ops::sum(&ops::cdist(&row(x, &[])?, &zeros(1, x)?, 0.5)?, ..))),
        ("cdist([x, 3], [0, 0], 4)", call(move |x| ops::sum(&ops::cdist(&row(x, &[3.0])?, &zeros(2, x)?, 4.0)?, ..))),
        (
            "pdist([x, 3], [0, 0], 0.5)",
            call(move |x| ops::sum(&ops::pdist(&ops::vstack(&[&row(x, &[3.0])?, &zeros(2, x)?])?, 0.5)?, ..)),
        ),
        (
            "pairwise_distance([x, 3], [0, 0], 0.5)",
            call(move |x| ops::pairwise_distance(&vector(x, &[3.0])?, &zeros(2, x)?.reshape([2]), 0.5, 0.0, false)),
        ),
        ("normalize([x, 3], 4)", call(move |x| last(ops::normalize(&vector(x, &[3.0])?, 4.0, 0, 1e-12)))),
        ("lp_pool1d([x, 3], 0.5)", pool(3.0, 0.5)),
        ("lp_pool1d([x, 0], 2)", pool(0.0, 2.0)),
        ("lp_pool1d([x, 3], 3)", pool(3.0, 3.0)),
        ("var([x, 2])", call(move |x| ops::var(&vector(x, &[2.0])?, ..))),
        ("std([x, 2])", call(move |x| ops::std(&vector(x, &[2.0])?, ..))),
        (
            "masked_std([x, 2])",
            call(move |x| ops::masked_std(&vector(x, &[2.0, 9.0])?, &Tensor::from([true, true, false]), ..)),
        ),
        ("max([x, 2])", call(move |x| ops::max(&vector(x, &[2.0])?, ..))),
        ("min([x, 2])", call(move |x| ops::min(&vector(x, &[2.0])?, ..))),
        ("prod([x, 0, 3])", call(move |x| ops::prod(&vector(x, &[0.0, 3.0])?, ..))),
        ("prod([x, x, 3])", call(move |x| ops::prod(&twice(x)?, ..))),
        ("cumprod([x, x, 3])", call(move |x| last(ops::cumprod(&twice(x)?, 0)))),
        ("logsumexp([x, 0])", call(move |x| ops::logsumexp(&vector(x, &[0.0])?, ..))),
        ("logsumexp([x, -inf])", call(move |x| ops::logsumexp(&vector(x, &[f64::NEG_INFINITY])?, ..))),
        ("logcumsumexp([x, 0])", call(move |x| last(ops::logcumsumexp(&vector(x, &[0.0])?, 0)))),
        ("softmax([x, 0])", call(move |x| first(ops::softmax(&vector(x, &[0.0])?, ..)))),
        ("ptp([x, 2])", call(move |x| ops::ptp(&vector(x, &[2.0])?, ..))),
        ("nanmax([x, 2, nan])", call(move |x| ops::nanmax(&vector(x, &[2.0, f64::NAN])?, ..))),
        ("nanmax([x, nan])", call(move |x| ops::nanmax(&vector(x, &[f64::NAN])?, ..))),
        ("nanmin([x, 2, nan])", call(move |x| ops::nanmin(&vector(x, &[2.0, f64::NAN])?, ..))),
        ("nanprod([x, 0, nan, 3])", call(move |x| ops::nanprod(&vector(x, &[0.0, f64::NAN, 3.0])?, ..))),
        ("nanprod([x, x, nan, 3])", call(move |x| ops::nanprod(&with_nan(x)?, ..))),
        ("nancumprod([x, x, nan, 3])", call(move |x| last(ops::nancumprod(&with_nan(x)?, 0)))),
        ("nanvar([x, 2, nan])", call(move |x| ops::nanvar(&vector(x, &[2.0, f64::NAN])?, ..))),
        ("nanstd([x, 2, nan])", call(move |x| ops::nanstd(&vector(x, &[2.0, f64::NAN])?, ..))),
        (
            "masked_max([x, 2])",
            call(move |x| ops::masked_max(&vector(x, &[2.0, 9.0])?, &Tensor::from([true, true, false]), ..)),
        ),
        ("masked_max([x])", call(move |x| ops::masked_max(&vector(x, &[9.0])?, &Tensor::from([true, false]), ..))),
        (
            "masked_prod([x, 0, 3])",
            call(move |x| ops::masked_prod(&vector(x, &[0.0, 3.0, 9.0])?, &[true, true, true, false].into(), ..)),
        ),
        ("dist([x, 3], [0, 0], 0.5)", call(move |x| ops::dist(&vector(x, &[3.0])?, &zeros(2, x)?.reshape([2]), 0.5))),
        ("dist([x], [0], 2)", call(move |x| ops::dist(&vector(x, &[])?, &zeros(1, x)?.reshape([1]), 2.0))),
        (
            "cdist([x, 3], [0, 0], inf)",
            call(move |x| ops::sum(&ops::cdist(&row(x, &[3.0])?, &zeros(2, x)?, f64::INFINITY)?, ..)),
        ),
        (
            "interp([0, 1, 3], [5, 7, 3])",
            call(|x| {
                let points = Tensor::from([0.0, 1.0, 3.0]).to_dtype(x.dtype());
                let values = Tensor::from([5.0, 7.0, 3.0]).to_dtype(x.dtype());
                ops::interp(x, &points, &values, ops::InterpOptions::default())
            }),
        ),
        ("polyval([1, 0, 0], x)", call(|x| ops::polyval(&Tensor::from([1.0, 0.0, 0.0]).to_dtype(x.dtype()), x))),
        ("lerp(x, 3, 0.5)", call(move |x| ops::lerp(x, &number(3.0, x), &number(0.5, x)))),
        ("addcmul(x, x, x)", call(|x| ops::addcmul(x, x, x, 1.0))),
        ("addcdiv(1, 1, x)", call(move |x| ops::addcdiv(&number(1.0, x), &number(1.0, x), x, 1.0))),
    ]
}

/// Returns true if a value equals the value of the page, up to rounding and the range of the dtype. `scale` is the
/// magnitude of the derivatives of all orders.
fn is_near(got: f64, expected: f64, scale: f64, dtype: DType) -> bool {
    let (relative, least, most) = match dtype {
        DType::F64 => (1e-8, f64::MIN_POSITIVE, f64::MAX),
        _ => (1e-3, f64::from(f32::MIN_POSITIVE), f64::from(f32::MAX)),
    };
    let tolerance = relative * (expected.abs() + 0.1 * scale.min(1e6)) + least;
    match expected.abs() > most {
        true => got == f64::INFINITY.copysign(expected),
        false => (got - expected).abs() <= tolerance || (got.is_nan() && expected.is_nan()),
    }
}

#[test]
fn derivatives_at_special_points_match_the_page() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let mut report = Report::default();
    let (mut rows, mut known) = (rows::all(), Vec::<(String, Call)>::new());
    for point in page() {
        if known.iter().all(|(name, _)| *name != point.operation) {
            let call = call_of(&point.operation, &mut rows);
            known.push((point.operation.clone(), call.unwrap_or_else(|| panic!("no call of {}", point.operation))));
        }
        let (_, call) = known.iter().find(|(name, _)| *name == point.operation).expect("the call was added");
        for (dtype, last) in [(DType::F64, 1), (DType::F64, 0), (DType::F32, 1)] {
            if point.at.len() == 1 && last == 0 {
                continue;
            }
            report.section(format!("{} at {:?}, {dtype}", point.operation, point.at), |report| {
                let found = derivatives(call, &point, dtype, last)?;
                let expected = || point.orders.iter().flatten().copied();
                let scale = expected().filter(|v| v.is_finite()).fold(0.0, |most, v| v.abs().max(most));
                let near = found.iter().flatten().zip(expected()).all(|(&got, v)| is_near(got, v, scale, dtype));
                report.expect(near, || format!("got {found:?}, expected {:?}", point.orders));
                Ok(())
            });
        }
    }
    report.finish();
}

/// Points of the page at which the function jumps or its domain ends, although the derivatives have limits.
const JUMPS_AND_ENDS: [(&str, &[f64]); 11] = [
    ("sign", &[0.0]),
    ("angle", &[0.0]),
    ("floor", &[2.0]),
    ("ceil", &[2.0]),
    ("round", &[2.5]),
    ("trunc", &[2.0]),
    ("frac", &[2.0]),
    ("floor_div", &[2.0, 2.0]),
    ("igamma(1, x)", &[0.0]),
    ("igamma(2, x)", &[0.0]),
    ("igammac(3, x)", &[0.0]),
];

/// The central differences of both checks read the function on both sides of the point.
#[test]
fn gradgradcheck_holds_at_smooth_special_points() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let mut report = Report::default();
    let mut rows = rows::all();
    let mut known: HashMap<String, Call> = HashMap::new();
    let mut checked = 0;
    let is_continuous = |point: &Point| !JUMPS_AND_ENDS.contains(&(&point.operation[..], &point.at[..]));
    for point in page().into_iter().filter(|point| point.is_smooth && is_continuous(point)) {
        let call = known.entry(point.operation.clone());
        let call = call.or_insert_with(|| call_of(&point.operation, &mut rows).expect("every operation has a call"));
        let leaves: Vec<Tensor> = point.at.iter().map(|&x| Tensor::from(x).requires_grad_(true)).collect();
        let inputs: Vec<&Tensor> = leaves.iter().collect();
        report.section(format!("{} at {:?}", point.operation, point.at), |report| {
            let f = |x: &[Tensor]| Ok(vec![call(x)?]);
            checked += 1;
            report.section("first order", |_| gradcheck(f, &inputs, GradCheckOptions::default()));
            report.section("second order", |_| gradgradcheck(f, &inputs, GradCheckOptions::default()));
            Ok(())
        });
    }
    report.finish();
    assert!(checked >= 200, "the page must have at least 200 smooth points, but has {checked}");
}

/// Returns the derivatives of orders 1, 2, .. at a point, in `f32`.
fn single_orders(f: impl Fn(&Tensor) -> Tensor, at: f32, count: usize) -> Vec<f64> {
    let x = Tensor::from(at).requires_grad_(true);
    let mut y = f(&x);
    (0..count)
        .map(|_| {
            let options = GradOptions { create_graph: true, ..Default::default() };
            y = grad_one(&y, &x, options).expect("the derivative must exist");
            y.item::<f64>()
        })
        .collect()
}

/// Far from the origin, terms of a derivative that cancel would lose all digits in `f32`.
#[test]
fn derivatives_far_from_the_origin_keep_their_digits() {
    type Function = fn(&Tensor) -> Tensor;
    let cases: [(&str, Function, f32, &[f64]); 8] = [
        ("expm1", |x| x.expm1(), -20.0, &[2.06115362244e-9; 4]),
        ("softsign", |x| x.softsign(), 1e8, &[9.9999998e-17, -1.99999994e-24, 5.99999976e-32]),
        ("hypot", |x| x.hypot(1.0f32), 1e3, &[0.9999995, 9.99998500002e-10, -2.99999250001e-12]),
        ("hypot", |x| x.hypot(1.0f32), -1e4, &[-0.999999995, 9.99999985e-13, 2.999999925e-16]),
        ("mish", |x| x.mish(), 10.0, &[1.00000007831, -1.48371621785e-7, 2.80225946616e-7, -5.27392604444e-7]),
        ("mish", |x| x.mish(), -10.0, &[-4.08579786903e-4, -3.63162337335e-4, -3.17729429115e-4, -2.72267664746e-4]),
        ("gelu_tanh", |x| x.gelu_tanh(), 1e20, &[1.0, 0.0, 0.0, 0.0]),
        ("gelu_tanh", |x| x.gelu_tanh(), -1e20, &[0.0; 4]),
    ];
    for (name, f, at, expected) in cases {
        let found = single_orders(f, at, expected.len());
        let near =
            found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() <= 1e-4 * expected.abs());
        assert!(near, "{name} at {at}: got {found:?}, expected {expected:?}");
    }
}

/// Powers and products of a large argument must not overflow if the derivative is finite.
#[test]
fn derivatives_of_activations_are_finite_for_large_arguments() {
    type Function = fn(&Tensor) -> Tensor;
    let activations: [(&str, Function); 16] = [
        ("gelu", |x| x.gelu()),
        ("gelu_tanh", |x| x.gelu_tanh()),
        ("silu", |x| x.silu()),
        ("mish", |x| x.mish()),
        ("softplus", |x| x.softplus()),
        ("logsigmoid", |x| x.logsigmoid()),
        ("softsign", |x| x.softsign()),
        ("tanhshrink", |x| x.tanhshrink()),
        ("hardswish", |x| x.hardswish()),
        ("elu", |x| x.elu(1.0)),
        ("selu", |x| x.selu()),
        ("tanh", |x| x.tanh()),
        ("sigmoid", |x| x.sigmoid()),
        ("erf", |x| x.erf()),
        ("atan", |x| x.atan()),
        ("hypot", |x| x.hypot(1.0f32)),
    ];
    for (name, f) in activations {
        for at in [1e20, -1e20, 1e30, -1e30] {
            let found = single_orders(f, at, 4);
            assert!(found.iter().all(|v| v.is_finite()), "{name} at {at}: {found:?}");
        }
    }
}

#[test]
fn every_elementwise_operation_has_a_special_point() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let page = page();
    let listed: HashSet<&str> = page.iter().map(|p| p.operation.split('(').next().unwrap_or_default()).collect();
    let rows = rows::all();
    let differentiable = rows.iter().filter(|row| row.is_elementwise() && row.gradient != Gradient::Untracked);
    let missing: Vec<&str> = differentiable.map(|row| row.name).filter(|name| !listed.contains(name)).collect();
    assert!(missing.is_empty(), "docs/special-points.md must have a row of {missing:?}; add them to points.py");
    let operations: HashSet<&str> = page.iter().map(|p| &p.operation[..]).collect();
    let unused: Vec<&str> = calls().iter().map(|c| c.0).filter(|name| !operations.contains(name)).collect();
    assert!(unused.is_empty(), "calls without a row in docs/special-points.md: {unused:?}");
}

#[test]
fn derivatives_of_powers_by_an_exponent_of_zero_in_every_mode() {
    let own = formula!(|x| (2.0 + x).pow(x));
    for (dtype, tolerance) in [(DType::F64, 1e-14), (DType::F32, 1e-6)] {
        let x = Tensor::zeros([1], dtype);
        let by_operation = |x: &Tensor| ops::sum(&ops::pow(&ops::add(2.0, x)?, x)?, ..);
        let by_formula = |x: &Tensor| ops::sum(&ops::map(own, &[x], &[])?, ..);
        // (ln 2)² + 2·½
        let expected = std::f64::consts::LN_2.powi(2) + 1.0;
        let values = [
            hessian(by_operation, &x).unwrap().1.to_vec::<f64>()[0],
            hessian(by_formula, &x).unwrap().1.to_vec::<f64>()[0],
            capture(|x| hessian(by_operation, &x[0]).unwrap().1, &[&x]).unwrap().launch(&[&x]).unwrap().to_vec(0)[0],
            lazy(|| hessian(by_operation, &x).unwrap().1).to_vec::<f64>()[0],
        ];
        for value in values {
            assert!((value - expected).abs() < tolerance, "{dtype}: {values:?}, expected {expected}");
        }
    }
}

#[test]
fn angles_have_finite_gradients_near_the_origin_and_behind_masks() {
    let slopes = |a: f32, b: f32| {
        let x = [a, b].map(|v| Tensor::from(v).requires_grad_(true));
        x[0].atan2(&x[1]).backward();
        x.map(|x| x.grad().expect("a leaf must have a gradient").item::<f32>())
    };
    let near = |[a, b]: [f32; 2], [p, q]: [f32; 2]| (a / p - 1.0).abs() < 1e-6 && (b / q - 1.0).abs() < 1e-6;
    assert!(near(slopes(1e-25, 1e-25), [5e24, -5e24]));
    assert!(near(slopes(1e25, -1e25), [-5e-26, -5e-26]));
    assert!(near(slopes(3e-30, 4e-30), [4.0 / 25.0 * 1e30, -3.0 / 25.0 * 1e30]));
    let (a, b) = (Tensor::from([0.0, 1.0]).requires_grad_(true), Tensor::from([0.0, 1.0]).requires_grad_(true));
    a.atan2(&b).where_(&Tensor::from([false, true]), 0.0).sum(..).backward();
    assert_eq!(a.grad().expect("a leaf must have a gradient").to_vec::<f64>(), [0.0, 0.5]);
    assert_eq!(b.grad().expect("a leaf must have a gradient").to_vec::<f64>(), [0.0, -0.5]);
}
