//! Derivatives of high order of every smooth row, compared with differences of the next lower order.

use super::data::{operands, tensor};
use super::driver::Report;
use super::nd::Nd;
use super::row::{Case, Gradient, Row};
use pellucid_tensor::{DType, GradOptions, Result, Tensor, grad};

/// The highest order of derivatives for elementwise rows.
const ELEMENTWISE: usize = 8;
/// The highest order of derivatives for all other rows.
const OTHERS: usize = 4;
/// Cases with more elements are skipped: they differ from smaller ones only in size.
const MAX_ELEMENTS: usize = 24;

/// Returns the weighted sum Σ wᵢ·yᵢ of all outputs, with weights between 0.5 and 1.5.
fn weighted(outputs: &[Tensor], salt: f64) -> Result<(Vec<Option<Tensor>>, f64)> {
    let (mut weights, mut sum) = (Vec::new(), 0.0);
    for y in outputs {
        let wave = (0..y.size()).map(|i| 1.0 + 0.5 * (salt + 1.7 * i as f64).sin()).collect();
        let w = tensor(&Nd { shape: y.shape().to_vec(), data: wave }, y.dtype());
        sum += (y.detach() * &w).sum(..).item::<f64>();
        weights.push(Some(w));
    }
    Ok((weights, sum))
}

/// Returns the sums S₁ … Sₙ at x + h·u, and for h = 0 their slopes along u. Sₖ is the weighted sum of the gradients of
/// Sₖ₋₁, and S₀ the sum of the outputs.
fn sums(case: &Case, tensors: &[Tensor], which: &[usize], h: f64, orders: usize) -> Result<(Vec<f64>, Vec<f64>)> {
    let directions: Vec<Tensor> = which.iter().map(|&i| direction(&tensors[i])).collect();
    let mut all = tensors.to_vec();
    for (&i, u) in which.iter().zip(&directions) {
        all[i] = (&tensors[i] + u * h).detach().requires_grad_(true);
    }
    let leaves: Vec<Tensor> = which.iter().map(|&i| all[i].clone()).collect();
    let leaves: Vec<&Tensor> = leaves.iter().collect();
    let mut current: Vec<Tensor> = (case.call)(&all)?.into_iter().filter(|y| y.requires_grad()).collect();
    let (mut sums, mut slopes) = (Vec::new(), Vec::new());
    for order in 0..orders {
        let (grad_outputs, sum) = weighted(&current, order as f64)?;
        sums.push(sum);
        let outputs: Vec<&Tensor> = current.iter().collect();
        // A derivative may no longer depend on a leaf.
        let options = GradOptions { grad_outputs, create_graph: true, allow_unused: true, ..Default::default() };
        current = grad(&outputs, &leaves, options)?;
        slopes.push(current.iter().zip(&directions).map(|(g, u)| (g.detach() * u).sum(..).item::<f64>()).sum());
    }
    Ok((sums, slopes))
}

fn direction(x: &Tensor) -> Tensor {
    let wave = (0..x.size()).map(|i| (0.3 + 2.1 * i as f64).cos()).collect();
    tensor(&Nd { shape: x.shape().to_vec(), data: wave }, x.dtype())
}

/// Checks every order of a row's derivatives against central differences of the next lower order. The differences for
/// two step sizes estimate the error of the differences.
pub fn all(row: &Row, case: &Case, report: &mut Report) -> Result<()> {
    let (_, tensors) = operands(row.name, case, &[DType::F64]);
    let which: Vec<usize> = (0..tensors.len()).filter(|&i| case.inputs[i].is_number()).collect();
    let elements: usize = which.iter().map(|&i| tensors[i].size()).sum();
    let skipped = case.values_only || elements == 0 || elements > MAX_ELEMENTS;
    if skipped || matches!(row.gradient, Gradient::Untracked | Gradient::Zero) {
        return Ok(());
    }
    let orders = if row.is_elementwise() { ELEMENTWISE } else { OTHERS };
    let (values, slopes) = sums(case, &tensors, &which, 0.0, orders)?;
    let at = |h: f64| sums(case, &tensors, &which, h, orders).map(|(sums, _)| sums);
    let difference = |h: f64| -> Result<Vec<f64>> {
        let (inner, outer) = ((at(h)?, at(-h)?), (at(2.0 * h)?, at(-2.0 * h)?));
        let slope = |k: usize| (8.0 * (inner.0[k] - inner.1[k]) - (outer.0[k] - outer.1[k])) / (12.0 * h);
        Ok((0..orders).map(slope).collect())
    };
    let (coarse, fine) = (difference(4e-4)?, difference(2e-4)?);
    for k in 0..orders {
        let trust = (coarse[k] - fine[k]).abs() * 4.0;
        let rounding = values[k].abs() * 1e-9 + slopes[k].abs() * 1e-5 + 1e-8;
        let off = (slopes[k] - fine[k]).abs();
        report.expect(off <= trust + rounding, || {
            format!("order {}: slope {}, by differences {} (±{trust:e})", k + 1, slopes[k], fine[k])
        });
        // Where differences are unreliable, the values must at least be finite.
        report.expect(slopes[k].is_finite(), || format!("order {}: {}", k + 1, slopes[k]));
    }
    Ok(())
}
