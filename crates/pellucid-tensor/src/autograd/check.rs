//! Numerical checks of first and second derivatives by central differences.

use super::transform::{GradOptions, grad, grad_one};
use crate::grad_mode::enable_grad;
use crate::ops;
use crate::tensor::Tensor;
use pellucid_ir::{DType, Error, Result};

/// The step and the tolerances of a gradient check; the defaults are PyTorch's.
#[derive(Clone, Copy, Debug)]
pub struct GradCheckOptions {
    /// The step of a central difference: half the distance between its two points.
    pub eps: f64,
    /// The allowed absolute deviation of a derivative from its difference quotient.
    pub atol: f64,
    /// The allowed deviation relative to the difference quotient.
    pub rtol: f64,
}

impl Default for GradCheckOptions {
    fn default() -> GradCheckOptions {
        GradCheckOptions { eps: 1e-6, atol: 1e-5, rtol: 1e-3 }
    }
}

/// Compares every entry of the Jacobian of `f` at `inputs`, computed by backward passes, with the central difference
/// (f(x + eps) − f(x − eps)) / (2·eps). Inputs that require a gradient are varied, and must be `f64`.
///
/// ```
/// use pellucid::{gradcheck, gradgradcheck, GradCheckOptions, Tensor};
/// let x = Tensor::from([0.3f64, -1.2]).requires_grad_(true);
/// gradcheck(|x| Ok(vec![x[0].sin()]), &[&x], GradCheckOptions::default())?;
/// gradgradcheck(|x| Ok(vec![x[0].sin()]), &[&x], GradCheckOptions::default())?;
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// [`Error::GradCheck`] names the first entry that differs; [`Error::InvalidArgument`] if no input requires a gradient;
/// [`Error::DTypeMismatch`] if an input that requires a gradient is not `f64`; the errors of `f`.
pub fn gradcheck(
    f: impl Fn(&[Tensor]) -> Result<Vec<Tensor>>,
    inputs: &[&Tensor],
    check: GradCheckOptions,
) -> Result<()> {
    check_tracked("gradcheck", inputs)?;
    check_jacobian("gradcheck", &f, inputs, check)
}

/// Returns an error if no input requires a gradient, since nothing would be compared.
fn check_tracked(name: &'static str, inputs: &[&Tensor]) -> Result<()> {
    match inputs.iter().any(|x| x.requires_grad()) {
        true => Ok(()),
        false => Err(Error::invalid(
            name,
            "no input requires a gradient, so nothing would be compared; use requires_grad_(true)",
        )),
    }
}

/// Checks the second derivatives of `f`: applies [`gradcheck`] to the gradient of `f`, as a function of the inputs and
/// of the incoming gradients.
///
/// # Errors
/// The errors of [`gradcheck`].
pub fn gradgradcheck(
    f: impl Fn(&[Tensor]) -> Result<Vec<Tensor>>,
    inputs: &[&Tensor],
    check: GradCheckOptions,
) -> Result<()> {
    check_tracked("gradgradcheck", inputs)?;
    // The inputs are tracked, because `f` may compute gradients itself.
    let outputs = {
        let _on = enable_grad();
        f(&inputs.iter().map(|t| t.detach().requires_grad_(t.requires_grad())).collect::<Vec<_>>())?
    };
    // The incoming gradients have no symmetry that could hide errors, and are the same in every run.
    let incoming: Vec<Tensor> = outputs
        .iter()
        .map(|y| {
            let gradient_values: Vec<f64> = (0..y.size()).map(|i| (0.7 + 1.3 * i as f64).sin() + 0.3).collect();
            Tensor::new(gradient_values, y.shape().clone()).requires_grad_(true)
        })
        .collect();
    let count = inputs.len();
    let gradient = |all: &[Tensor]| -> Result<Vec<Tensor>> {
        let (inputs, incoming) = all.split_at(count);
        let outputs = f(inputs)?;
        let outputs: Vec<&Tensor> = outputs.iter().collect();
        let grad_outputs = incoming.iter().map(|g| Some(g.clone())).collect();
        let tracked: Vec<&Tensor> = inputs.iter().filter(|t| t.requires_grad()).collect();
        grad(
            &outputs,
            &tracked,
            GradOptions { grad_outputs, create_graph: true, retain_graph: true, allow_unused: true },
        )
    };
    let gradient_inputs: Vec<&Tensor> = inputs.iter().copied().chain(&incoming).collect();
    check_jacobian("gradgradcheck", &gradient, &gradient_inputs, check)
}

fn check_jacobian(
    name: &'static str,
    f: &dyn Fn(&[Tensor]) -> Result<Vec<Tensor>>,
    inputs: &[&Tensor],
    check: GradCheckOptions,
) -> Result<()> {
    if let Some(input) = inputs.iter().find(|t| t.requires_grad() && t.dtype() != DType::F64) {
        let help = "central differences require the precision of f64; use to_dtype()";
        return Err(Error::dtypes(name, [input.dtype()], help));
    }
    let _on = enable_grad();
    let fresh: Vec<Tensor> = inputs.iter().map(|t| t.detach().requires_grad_(t.requires_grad())).collect();
    let outputs = f(&fresh)?;
    for (input, x) in fresh.iter().enumerate().filter(|(_, x)| x.requires_grad()) {
        let differences = central_differences(f, &fresh, input, check.eps)?;
        for (output, y) in outputs.iter().enumerate().filter(|(_, y)| y.dtype().is_float()) {
            for row in 0..y.size() {
                let analytic = jacobian_row(y, x, row)?;
                for (column, &got) in analytic.iter().enumerate() {
                    let expected = differences[column][output][row];
                    let close = (got - expected).abs() <= check.atol + check.rtol * expected.abs();
                    if !close {
                        let detail = format!(
                            "the derivative of element {row} with respect to element {column} is {got} by backward() \
                             and {expected} by central differences: correct the gradient of an operation of the \
                             function, do not detach its tensors, or choose inputs away from kinks"
                        );
                        return Err(Error::GradCheck { check: name, output, input, detail });
                    }
                }
            }
        }
    }
    Ok(())
}

/// Computes ∂y[row]/∂x by a backward pass from one element.
fn jacobian_row(y: &Tensor, x: &Tensor, row: usize) -> Result<Vec<f64>> {
    let mut one_hot = vec![0.0f64; y.size()];
    one_hot[row] = 1.0;
    let seed = ops::to_dtype(&Tensor::new(one_hot, y.shape().clone()), y.dtype())?;
    let options =
        GradOptions { grad_outputs: vec![Some(seed)], retain_graph: true, allow_unused: true, ..Default::default() };
    grad_one(y, x, options)?.try_to_vec()
}

/// Computes, for every element of one input, the central difference of every element of every output.
fn central_differences(
    f: &dyn Fn(&[Tensor]) -> Result<Vec<Tensor>>,
    inputs: &[Tensor],
    perturbed_input: usize,
    eps: f64,
) -> Result<Vec<Vec<Vec<f64>>>> {
    let values: Vec<f64> = inputs[perturbed_input].try_to_vec()?;
    let evaluate_at = |column: usize, step: f64| -> Result<Vec<Vec<f64>>> {
        let mut shifted = values.clone();
        shifted[column] += step;
        let mut shifted_inputs = inputs.to_vec();
        shifted_inputs[perturbed_input] =
            Tensor::new(shifted, inputs[perturbed_input].shape().clone()).requires_grad_(true);
        f(&shifted_inputs)?.iter().map(|y| y.try_to_vec()).collect()
    };
    (0..values.len())
        .map(|column| {
            let (high, low) = (evaluate_at(column, eps)?, evaluate_at(column, -eps)?);
            let slope = |(h, l): (Vec<f64>, Vec<f64>)| h.iter().zip(&l).map(|(h, l)| (h - l) / (2.0 * eps)).collect();
            Ok(high.into_iter().zip(low).map(slope).collect())
        })
        .collect()
}
