//! Derivatives of orders 1 to 4 between the points of `docs/special-points.md`, compared with `between_points.txt`.
//!
//! `between_points.py` writes the expected values. The arguments are small and large: a formula can be accurate at the
//! special points and lose its digits between them.

use super::driver::Report;
use pellucid_tensor::{DType, GradOptions, Result, Tensor, grad_one};

/// Returns the derivatives of orders 1 to 4 of an operation.
fn derivatives(f: fn(&Tensor) -> Tensor, at: f64, dtype: DType) -> Result<Vec<f64>> {
    let x = Tensor::from(at).to_dtype(dtype).requires_grad_(true);
    let mut y = f(&x);
    let mut orders = Vec::new();
    for _ in 0..4 {
        y = grad_one(&y, &x, GradOptions { create_graph: true, ..Default::default() })?;
        orders.push(y.item::<f64>());
    }
    Ok(orders)
}

/// An operation of one tensor, with its name.
type Operation = (&'static str, fn(&Tensor) -> Tensor);

/// The operations of the file.
const OPERATIONS: [Operation; 16] = [
    ("sigmoid", |x| x.sigmoid()),
    ("tanh", |x| x.tanh()),
    ("tanhshrink", |x| x.tanhshrink()),
    ("softplus", |x| x.softplus()),
    ("logsigmoid", |x| x.logsigmoid()),
    ("silu", |x| x.silu()),
    ("mish", |x| x.mish()),
    ("gelu", |x| x.gelu()),
    ("gelu_tanh", |x| x.gelu_tanh()),
    ("log_ndtr", |x| x.log_ndtr()),
    ("erfcx", |x| x.erfcx()),
    ("asin", |x| x.asin()),
    ("acos", |x| x.acos()),
    ("atanh", |x| x.atanh()),
    ("asinh", |x| x.asinh()),
    ("atan", |x| x.atan()),
];

#[test]
fn derivatives_between_special_points_keep_their_digits() {
    let mut report = Report::default();
    let mut checked = 0;
    for line in include_str!("between_points.txt").lines() {
        let (name, numbers) = line.split_once(' ').expect("a line begins with the operation");
        let numbers: Vec<f64> = numbers.split(' ').map(|v| v.parse().expect("a number")).collect();
        let (at, expected) = (numbers[0], &numbers[1..]);
        let (_, f) = OPERATIONS.into_iter().find(|(known, _)| *known == name).expect("the operation is in the list");
        // The derivatives of these two are computed from the result, whose rounding is relative to 1.
        let is_of_result = ["sigmoid", "tanh"].contains(&name);
        let single = (DType::F32, 1e-3, f64::from(f32::MIN_POSITIVE), f64::from(f32::EPSILON));
        for (dtype, relative, least, epsilon) in [(DType::F64, 1e-10, f64::MIN_POSITIVE, f64::EPSILON), single] {
            let absolute = 8.0 * if is_of_result { epsilon } else { least };
            report.section(format!("{name} at {at}, {dtype}"), |report| {
                let found = derivatives(f, at, dtype)?;
                let errors: Vec<String> =
                    found.iter().zip(expected).map(|(v, e)| format!("{:.0e}", (v / e - 1.0).abs())).collect();
                let is_near = |(v, e): (&f64, &f64)| (v - e).abs() <= relative * e.abs() + absolute;
                report.expect(found.iter().zip(expected).all(is_near), || {
                    format!("errors {errors:?}: got {found:?}, expected {expected:?}")
                });
                checked += 1;
                Ok(())
            });
        }
    }
    report.finish();
    assert!(checked >= 2 * 16 * 20, "every operation must have at least 20 points, but {checked} were checked");
}
