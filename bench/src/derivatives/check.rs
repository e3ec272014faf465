//! Compares derivatives with finite differences of the next lower order.
//!
//! For directions c₁, c₂, .., the scalars F₀ = ⟨c₀, f⟩ and Fₖ = ⟨cₖ, ∇Fₖ₋₁⟩ are directional derivatives: Fₖ(x) is the
//! derivative of Fₖ₋₁(x + h·cₖ) with respect to h at 0. Therefore, Fₖ from repeated gradients must agree with
//! differences of Fₖ₋₁.

use super::catalogue::Domain;
use super::random::SplitMix64;
use pellucid::{Error, GradOptions, Result, Tensor, grad, ops};
use std::time::{Duration, Instant};

/// The function whose derivatives are checked.
pub type TestedFn<'a> = &'a dyn Fn(&[Tensor]) -> Result<Tensor>;

/// A function, the point at which it is differentiated, and the directions.
pub struct DerivativeProblem<'a> {
    function: TestedFn<'a>,
    leaves: &'a [(Vec<usize>, Vec<f64>)],
    /// c₀, with the shape of the result of f.
    first: Vec<f64>,
    /// cₖ₊₁ for every order k and every leaf.
    directions: Vec<Vec<Vec<f64>>>,
    /// True if Fₖ is computed as a tensor. Otherwise, the cₖ are the incoming gradients of ∇Fₖ₋₁.
    is_summed: bool,
}

/// Fₖ and the sum of the absolute values of its terms.
#[derive(Clone, Copy, Debug)]
pub struct DirectionalDerivative {
    /// Fₖ.
    pub value: f64,
    /// Σ |cₖ·∇Fₖ₋₁|.
    pub terms: f64,
}

/// The result of checking the derivatives of one function.
#[derive(Default, Debug)]
pub struct DerivativeReport {
    /// The number of orders that agreed with differences.
    pub agreed: usize,
    /// The number of orders that were not compared, because the differences do not converge.
    pub skipped: usize,
    /// The highest order that agreed.
    pub highest: usize,
    /// The first order that disagrees, and the difference.
    pub wrong: Option<(usize, String)>,
    /// The first order with a constant gradient that could not be differentiated again.
    pub untracked: Option<usize>,
    /// The time of the function and of the gradients of every order, without differences.
    pub times: Vec<Duration>,
}

/// A failure and its order.
#[derive(Debug)]
pub struct DerivativeFailure {
    /// 0 for the function itself.
    pub order: usize,
    /// A description of the failure.
    pub error: Error,
}

impl<'a> DerivativeProblem<'a> {
    /// Creates a problem with random directions up to an order.
    ///
    /// # Errors
    /// The errors of the function.
    pub fn new(
        function: TestedFn<'a>,
        leaves: &'a [(Vec<usize>, Vec<f64>)],
        order: usize,
        random: &mut SplitMix64,
    ) -> Result<DerivativeProblem<'a>> {
        let size = function(&tensors(leaves, 0.0, &[]))?.size();
        let first = cotangent(size, random);
        let directions = (0..order).map(|_| leaves.iter().map(|(_, v)| cotangent(v.len(), random)).collect()).collect();
        Ok(DerivativeProblem { function, leaves, first, directions, is_summed: false })
    }

    /// Sets whether every Fₖ is computed as a tensor of one element, which is then differentiated.
    #[must_use]
    pub fn summed(self, is_summed: bool) -> DerivativeProblem<'a> {
        DerivativeProblem { is_summed, ..self }
    }

    /// Checks every order up to the number of directions.
    ///
    /// # Errors
    /// Errors of the function and of its gradients, with the order.
    pub fn check(&self) -> Result<DerivativeReport, DerivativeFailure> {
        let order = self.directions.len();
        let mut checked = DerivativeReport::default();
        let all = self.derivatives(0.0, order, order, &mut checked)?;
        let mut others = DerivativeReport::default();
        for k in 1..=order {
            self.compare(k, all[k - 1], all[k], &mut checked, &mut others)?;
            if checked.wrong.is_some() {
                break;
            }
        }
        Ok(checked)
    }

    /// Compares Fₖ with differences of decreasing step sizes until they agree.
    fn compare(
        &self,
        k: usize,
        below: DirectionalDerivative,
        exact: DirectionalDerivative,
        checked: &mut DerivativeReport,
        others: &mut DerivativeReport,
    ) -> Result<(), DerivativeFailure> {
        // Two step sizes must agree on the error: the first one may contain a kink or be too large.
        let (mut wrong, mut before): (Option<String>, Option<f64>) = (None, None);
        for step in [1e-3, 1e-4, 2e-5] {
            let mut at =
                |h: f64| -> Result<f64, DerivativeFailure> { Ok(self.derivatives(h, k, k - 1, others)?[k - 1].value) };
            let fine = (at(step)? - at(-step)?) / (2.0 * step);
            let coarse = (at(2.0 * step)? - at(-2.0 * step)?) / (4.0 * step);
            let difference = (4.0 * fine - coarse) / 3.0;
            let noise = 1e-12 * below.terms.max(1.0) / step;
            let size = difference.abs().max(exact.terms).max(1e-6);
            let spread = (fine - coarse).abs();
            if !difference.is_finite() || spread > 2e-3 * difference.abs().max(1e-3 * exact.terms) + noise {
                continue;
            }
            let error = (exact.value - difference).abs();
            if error <= 1e-5 * size + 0.2 * spread + noise {
                checked.agreed += 1;
                checked.highest = k;
                return Ok(());
            }
            let is_near = |before: f64| error.is_nan() || (difference - before).abs() <= 0.1 * error;
            let is_repeated = before.is_some_and(is_near);
            let exact = exact.value;
            wrong = is_repeated
                .then(|| format!("gradients give {exact:e}, differences {difference:e} (spread {spread:.0e})"));
            before = Some(difference);
        }
        match wrong {
            Some(reason) => checked.wrong = Some((k, reason)),
            None => checked.skipped += 1,
        }
        Ok(())
    }

    /// Returns F₀ .. F_order at the point that is displaced by `h` in the direction of order `along`.
    fn derivatives(
        &self,
        h: f64,
        along: usize,
        order: usize,
        checked: &mut DerivativeReport,
    ) -> Result<Vec<DirectionalDerivative>, DerivativeFailure> {
        let direction = if h == 0.0 { &[][..] } else { &self.directions[along - 1] };
        let gradients = self.gradients(&tensors(self.leaves, h, direction), order, checked)?;
        let product = |(k, gradients): (usize, &Vec<Tensor>)| {
            let weights = if k == 0 { std::slice::from_ref(&self.first) } else { &self.directions[k - 1] };
            product(gradients, weights).map_err(|error| DerivativeFailure { order: k, error })
        };
        gradients.iter().enumerate().map(product).collect()
    }

    /// Returns the value of the function at the leaves, and for every order the gradients of the next lower order,
    /// weighted by the directions.
    ///
    /// # Errors
    /// Errors of the function and of its gradients, with the order.
    pub fn gradients(
        &self,
        leaves: &[Tensor],
        order: usize,
        checked: &mut DerivativeReport,
    ) -> Result<Vec<Vec<Tensor>>, DerivativeFailure> {
        let leaves: Vec<Tensor> = leaves.iter().map(|t| t.detach().requires_grad_(true)).collect();
        let wanted: Vec<&Tensor> = leaves.iter().collect();
        let start = Instant::now();
        let y = (self.function)(&leaves).map_err(|error| DerivativeFailure { order: 0, error })?;
        checked.times.push(start.elapsed());
        let is_tracked = y.requires_grad();
        let mut all = vec![vec![y]];
        for k in 1..=order {
            let start = Instant::now();
            let outputs = &all[k - 1];
            let weights = if k == 1 { std::slice::from_ref(&self.first) } else { &self.directions[k - 2] };
            let seeds = outputs.iter().zip(weights).map(|(y, w)| Some(Tensor::new(&w[..], y.shape().clone())));
            // A function may be constant or independent of a leaf; its gradients can still be differentiated.
            let options = GradOptions { create_graph: k < order, allow_unused: true, ..GradOptions::default() };
            let mut tracked = outputs.iter().map(Tensor::requires_grad);
            let is_constant = if self.is_summed { !tracked.any(|t| t) } else { !tracked.all(|t| t) };
            if is_constant && k > 1 && is_tracked {
                checked.untracked.get_or_insert(k - 1);
            }
            let gradients = match self.is_summed {
                true => total(outputs, weights).and_then(|sum| grad(&[&sum], &wanted, options)),
                false => {
                    let options = GradOptions { grad_outputs: seeds.collect(), ..options };
                    grad(&outputs.iter().collect::<Vec<_>>(), &wanted, options)
                }
            };
            all.push(gradients.map_err(|error| DerivativeFailure { order: k, error })?);
            checked.times.push(start.elapsed());
        }
        Ok(all)
    }
}

/// Computes ⟨weights, tensors⟩ as a tensor.
fn total(tensors: &[Tensor], weights: &[Vec<f64>]) -> Result<Tensor> {
    let mut sum = Tensor::from(0.0f64);
    for (tensor, weights) in tensors.iter().zip(weights) {
        let weights = Tensor::new(&weights[..], tensor.shape().clone());
        sum = ops::add(&sum, &ops::sum(&ops::mul(tensor, &weights)?, ..)?)?;
    }
    Ok(sum)
}

/// Returns random numbers in ±[0.3, 1].
fn cotangent(n: usize, random: &mut SplitMix64) -> Vec<f64> {
    (0..n).map(|_| if random.coin() { 1.0 } else { -1.0 } * random.between(0.3, 1.0)).collect()
}

/// Returns the leaves, displaced by `h` in a direction.
fn tensors(leaves: &[(Vec<usize>, Vec<f64>)], h: f64, direction: &[Vec<f64>]) -> Vec<Tensor> {
    let moved = |(k, (shape, values)): (usize, &(Vec<usize>, Vec<f64>))| {
        let step = |i: usize| direction.get(k).map_or(0.0, |d| h * d[i]);
        let values: Vec<f64> = values.iter().enumerate().map(|(i, v)| v + step(i)).collect();
        Tensor::new(values, &shape[..])
    };
    leaves.iter().enumerate().map(moved).collect()
}

/// Computes ⟨weights, tensors⟩ on the host.
fn product(tensors: &[Tensor], weights: &[Vec<f64>]) -> Result<DirectionalDerivative> {
    let (mut value, mut terms) = (0.0, 0.0);
    for (tensor, weights) in tensors.iter().zip(weights) {
        for (x, w) in tensor.detach().try_to_vec::<f64>()?.iter().zip(weights.iter()) {
            value += x * w;
            terms += (x * w).abs();
        }
    }
    Ok(DirectionalDerivative { value, terms })
}

/// Returns leaves with random values in these domains.
pub fn leaves_in(shape: &[usize], domains: &[Domain], random: &mut SplitMix64) -> Vec<(Vec<usize>, Vec<f64>)> {
    domains.iter().map(|&d| (shape.to_vec(), super::catalogue::values(shape, d, random))).collect()
}
