//! Quantiles of the gamma distribution and their derivatives, for sampling by inversion.
//!
//! A sample of Gamma(a, 1) is the quantile of a uniform u. With y = ln x, P(a, eʸ) = u defines y as a smooth function
//! of a. Its derivative is −(∂P/∂a) / (x·p(x)) (implicit reparametrization; Figurnov et al. 2018), which is computed in
//! `f64` and is differentiable to any order itself.

use crate::noise::open_uniform_f64;
use crate::parameters::elementwise;
use pellucid_tensor::{
    Array, Arrays, DType, InputGradients, NeedsInputGrad, Operation, OutputGradients, Result, SaveForBackward,
    SavedTensors, Shape, Tensor, apply_one, ops,
};

/// Draws ln x for x ~ Gamma(concentration, 1), in `f64`. The result is differentiable with respect to the
/// concentration, and accurate even if x underflows.
pub(crate) fn sample_log_gamma(concentration: &Tensor, shape: &Shape) -> Result<Tensor> {
    let u = open_uniform_f64(concentration, shape)?;
    log_gamma_quantile(concentration, &u)
}

/// Returns ln x for the quantile x of Gamma(concentration, 1) at p in (0, 1), in `f64`. The operands broadcast.
pub(crate) fn log_gamma_quantile(concentration: &Tensor, p: &Tensor) -> Result<Tensor> {
    let operands = [ops::to_dtype(concentration, DType::F64)?, ops::to_dtype(p, DType::F64)?];
    let operands = ops::broadcast_tensors(&operands)?;
    apply_one(LogGammaQuantile, &[&operands[0], &operands[1]])
}

/// The operation that computes y = ln x such that P(a, x) = p.
struct LogGammaQuantile;

impl Operation for LogGammaQuantile {
    fn name(&self) -> &'static str {
        "log_gamma_quantile"
    }
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        saves.input(0);
        saves.output(0);
        let (a, p) = (Tensor::from(inputs[0].clone()), Tensor::from(inputs[1].clone()));
        let mut y = first_guess(&a, &p)?;
        for _ in 0..HALLEY_STEPS {
            y = halley_step(&y, &a, &p)?;
        }
        Ok(std::iter::once(y.array().clone()).collect())
    }
    fn backward(
        &self,
        saved: &SavedTensors,
        grads: &OutputGradients,
        needed: NeedsInputGrad,
    ) -> Result<InputGradients> {
        let (a, y, g) = (saved.input(0)?, saved.output(0)?, grads.get(0)?);
        let by_a = needed.contains(0).then(|| ops::mul(&g, &ops::log_gamma_quantile_slope(&a, &y)?)).transpose()?;
        let by_p = needed.contains(1).then(|| {
            // 1 / (x·p(x)).
            elementwise!(gamma_quantile_slope(g = &g, a = &a, y = &y) => g * (a.lgamma() - a * y + y.exp()).exp())
        });
        Ok([by_a, by_p.transpose()?].into_iter().collect())
    }
}

/// The concentration above which the approximation of Wilson & Hilferty has the accuracy of `f64`: its relative error
/// is of the order of a^(−3/2).
const MAX_ITERATED: f64 = 1e9;

/// The number of Halley steps from the first guess. The result has the accuracy of `f64` for concentrations from 1e-4
/// to 1e5.
const HALLEY_STEPS: usize = 6;

/// Returns the leading term of the series for small x, ln x = (ln p + ln Γ(a + 1))/a, or the approximation of Wilson &
/// Hilferty (1931) where it is larger.
fn first_guess(a: &Tensor, p: &Tensor) -> Result<Tensor> {
    elementwise!(gamma_quantile_guess(a = a, p = p) => {
        let small = (p.ln() + (a + 1.0).lgamma()) / a;
        let ninth = (9.0 * a).recip();
        let root = 1.0 - ninth + p.ndtri() * ninth.sqrt();
        let is_usable = root.gt(0.0);
        let large = a.ln() + 3.0 * is_usable.select(root, 1.0).ln();
        (is_usable & (a.gt(0.5) | p.gt(0.5)) & large.gt(small)).select(large, small)
    })
}

/// Improves y by Halley's method for ln P(a, eʸ) = ln p, or for ln Q(a, eʸ) = ln(1 − p) if p > ½.
fn halley_step(y: &Tensor, a: &Tensor, p: &Tensor) -> Result<Tensor> {
    elementwise!(gamma_quantile_step(y = y, a = a, p = p) => {
        // In these ranges, the leading term of the series or the approximation of Wilson & Hilferty has the accuracy of
        // `f64`.
        let is_exact = y.lt(-40.0) | a.gt(MAX_ITERATED);
        let x = y.exp();
        let (lower, upper) = x.igamma(a);
        let is_left = p.lt(0.5);
        let tail = is_left.select(lower, upper).max(1e-300);
        let error = (tail / is_left.select(p, 1.0 - p)).ln();
        let density = (a * y - x - a.lgamma()).exp() / tail;
        let hazard = is_left.select(density, -density).abs().max(1e-300);
        let hazard = is_left.select(hazard, -hazard);
        let newton = error / hazard;
        let curvature = a - x - hazard;
        let denominator = (1.0 - 0.5 * newton * curvature).max(0.5).min(2.0);
        let step = (newton / denominator).max(-2.0).min(2.0);
        is_exact.select(y, y - step)
    })
}
