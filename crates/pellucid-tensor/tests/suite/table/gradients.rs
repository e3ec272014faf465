//! The gradients of a row: compared with central differences in several orders, and their shapes and dtypes.

use super::data::{operands, tensor, values};
use super::driver::Report;
use super::nd::Nd;
use super::row::{Case, Gradient, Kind, Row};
use crate::tensor::promotion::join;
use pellucid_tensor::{DType, GradCheckOptions, GradOptions, Result, Scalar, Tensor, grad, gradcheck, gradgradcheck};

/// Runs all checks of a differentiable row.
pub fn all(row: &Row, case: &Case, report: &mut Report) {
    let (_, tensors) = operands(row.name, case, &[DType::F64]);
    let numbers: Vec<usize> = (0..tensors.len()).filter(|&i| case.inputs[i].is_number()).collect();
    let mut subsets = vec![numbers.clone()];
    if numbers.len() > 1 {
        subsets.extend(numbers.iter().map(|&i| vec![i]));
    }
    for subset in subsets {
        report.section(format!("gradient of {subset:?}"), |report| {
            let inputs = tracked(&tensors, &subset);
            both_orders(&*case.call, &inputs.iter().collect::<Vec<_>>(), row.gradient, report)
        });
    }
    if let &[first, second, ..] = &numbers[..]
        && fits(case, first, second)
    {
        report.section("gradient of one tensor twice", |report| {
            let twice = |x: &[Tensor]| {
                let mut all = tensors.clone();
                (all[first], all[second]) = (x[0].clone(), x[0].clone());
                (case.call)(&all)
            };
            let x = tensors[first].detach().requires_grad_(true);
            both_orders(&twice, &[&x], row.gradient, report)
        });
    }
    report.section("gradient through views", |_| {
        // The leaves are stored transposed and reversed; the operation receives views of them.
        let view = |x: &[Tensor]| (case.call)(&x.iter().map(|t| t.t().flip(..)).collect::<Vec<_>>());
        let turned: Vec<Tensor> = tensors.iter().map(|t| t.flip(..).t().copy()).collect();
        let inputs = tracked(&turned, &numbers);
        gradcheck(view, &inputs.iter().collect::<Vec<_>>(), GradCheckOptions::default())
    });
    report.section("shapes and dtypes of gradients", |report| metadata(row, case, report));
}

fn tracked(tensors: &[Tensor], which: &[usize]) -> Vec<Tensor> {
    let track = |(i, t): (usize, &Tensor)| t.detach().requires_grad_(which.contains(&i));
    tensors.iter().enumerate().map(track).collect()
}

/// Returns true if input `first` satisfies the constraints of input `second`.
fn fits(case: &Case, first: usize, second: usize) -> bool {
    let (a, b) = (&case.inputs[first], &case.inputs[second]);
    match (&a.kind, &b.kind) {
        (Kind::Number { range: inner, .. }, Kind::Number { range: outer, away }) => {
            a.shape == b.shape && outer.contains(inner.start()) && outer.contains(inner.end()) && away.is_empty()
        }
        _ => false,
    }
}

fn both_orders(
    call: &dyn Fn(&[Tensor]) -> Result<Vec<Tensor>>,
    inputs: &[&Tensor],
    gradient: Gradient,
    report: &mut Report,
) -> Result<()> {
    report.section("first order", |_| gradcheck(call, inputs, GradCheckOptions::default()));
    report.section("second order", |_| gradgradcheck(call, inputs, GradCheckOptions::default()));
    if gradient == Gradient::Third && inputs.iter().map(|t| t.size()).sum::<usize>() <= 12 {
        let first = |x: &[Tensor]| gradient_of(call, x);
        report.section("third order", |_| gradgradcheck(first, inputs, GradCheckOptions::default()));
    }
    if gradient == Gradient::Zero {
        for output in call(&inputs.iter().map(|&t| t.clone()).collect::<Vec<_>>())? {
            report.expect(output.requires_grad(), || "a piecewise constant float result must be tracked".into());
        }
    }
    Ok(())
}

/// Returns the gradients of all tracked inputs, weighted so that symmetry does not hide errors.
pub fn gradient_of(call: &dyn Fn(&[Tensor]) -> Result<Vec<Tensor>>, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let outputs: Vec<Tensor> = call(inputs)?.into_iter().filter(|y| y.requires_grad()).collect();
    let weights = |y: &Tensor| {
        let wave =
            Nd { shape: y.shape().to_vec(), data: (0..y.size()).map(|i| (0.4 + i as f64).cos() + 1.5).collect() };
        Some(tensor(&wave, y.dtype()))
    };
    let grad_outputs = outputs.iter().map(weights).collect();
    let wanted: Vec<&Tensor> = inputs.iter().filter(|x| x.requires_grad()).collect();
    let options = GradOptions { grad_outputs, create_graph: true, ..Default::default() };
    grad(&outputs.iter().collect::<Vec<_>>(), &wanted, options)
}

/// Checks that a gradient has the shape and dtype of its tensor for all dtypes of the other inputs, and the value that
/// it has in `f64`.
fn metadata(row: &Row, case: &Case, report: &mut Report) -> Result<()> {
    let numbers = case.inputs.iter().filter(|i| i.is_number()).count();
    let mut choices = vec![vec![DType::F32], vec![DType::F16], vec![DType::BF16]];
    if numbers > 1 {
        choices.extend([vec![DType::F32, DType::F64], vec![DType::F64, DType::F32], vec![DType::BF16, DType::F32]]);
    }
    // Some operations are undefined for narrow dtypes.
    let taken = |dtype: &DType| row.rules.iter().all(|rule| rule.result(*dtype).is_some());
    for dtypes in choices.into_iter().filter(|dtypes| dtypes.iter().copied().reduce(join).is_some_and(|d| taken(&d))) {
        let (exact, tensors) = operands(row.name, case, &dtypes);
        let which: Vec<usize> = (0..tensors.len()).filter(|&i| case.inputs[i].is_number()).collect();
        let wide: Vec<Tensor> = exact
            .iter()
            .zip(&tensors)
            .map(|(v, t)| tensor(v, if t.dtype().is_float() { DType::F64 } else { t.dtype() }))
            .collect();
        let narrow = tracked(&tensors, &which);
        let got = gradient_of(&*case.call, &narrow)?;
        let expected = gradient_of(&*case.call, &tracked(&wide, &which))?;
        for ((&i, got), expected) in which.iter().zip(&got).zip(&expected) {
            let meta = (got.shape(), got.dtype());
            report.expect(meta == (tensors[i].shape(), tensors[i].dtype()), || {
                format!("the gradient of input {i} ({dtypes:?}) is {} {}", meta.0, meta.1)
            });
            // Rounding to narrow dtypes may create ties and cancel digits. A wrong formula causes a larger error.
            let slack = dtypes.iter().map(|&d| super::data::epsilon(d)).fold(0.0, f64::max) * 100.0;
            let size = values(expected).iter().fold(1.0, |m: f64, v| m.max(v.abs()));
            let near = values(got).iter().zip(values(expected)).all(|(a, b)| (a - b).abs() <= slack * size);
            report.expect(near, || {
                format!("the gradient of input {i} ({dtypes:?}) is {got:?}, expected {expected:?} as in f64")
            });
        }
    }
    Ok(())
}

/// Checks that a boolean or integer result is untracked.
pub fn untracked(row: &Row, case: &Case, report: &mut Report) -> Result<()> {
    let floats = row.rules.iter().all(|r| r.result(DType::F64).is_some());
    let (_, tensors) = operands(row.name, case, &[if floats { DType::F64 } else { DType::I32 }]);
    let inputs = tensors.iter().map(|t| t.detach().requires_grad_(t.dtype().is_float())).collect::<Vec<_>>();
    for output in (case.call)(&inputs)? {
        report.expect(!output.requires_grad() && output.is_leaf(), || format!("{output:?} must be untracked"));
    }
    Ok(())
}

/// Checks gradients of an operation with a host number on either side.
pub fn with_a_number(
    row: &Row,
    right: &fn(&Tensor, Scalar) -> Result<Tensor>,
    left: &fn(Scalar, &Tensor) -> Result<Tensor>,
    report: &mut Report,
) -> Result<()> {
    if row.gradient == Gradient::Untracked {
        return Ok(());
    }
    let (_, tensors) = operands(row.name, &row.cases[0], &[DType::F64]);
    let tensors = tracked(&tensors, &[0, 1]);
    let k = Scalar::Float(1.25);
    report.section("gradient, number on the right", |report| {
        both_orders(&|x| Ok(vec![right(&x[0], k)?]), &[&tensors[0]], row.gradient, report)
    });
    report.section("gradient, number on the left", |report| {
        both_orders(&|x| Ok(vec![left(k, &x[0])?]), &[&tensors[1]], row.gradient, report)
    });
    Ok(())
}
