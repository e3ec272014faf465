//! Quantiles of the gamma distribution and their derivatives, for sampling by inversion.
//!
//! A sample of Gamma(a, 1) is the quantile of a uniform u. With y = ln x, P(a, eʸ) = u defines y as a smooth function
//! of a. Its derivative is −(∂P/∂a) / (x·p(x)) (implicit reparametrization; Figurnov et al. 2018). It is the integral
//! of (ln t − ψ(a))·p(t) / (x·p(x)), on the shorter side of x. It is computed in `f64` with a relative error of at most
//! 1e-12 for a from 1e-3 to 1e5, and is differentiable to any order itself.

use crate::noise::open_uniform_f64;
use crate::parameters::elementwise;
use pellucid_tensor::formula::Expr;
use pellucid_tensor::{
    Array, Arrays, DType, InputGradients, NeedsInputGrad, Operation, OutputGradients, Result, SaveForBackward,
    SavedTensors, Shape, Tensor, apply_one, formula, ops,
};
use std::f64::consts::PI;
use std::sync::LazyLock;

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
        let by_a = needed.contains(0).then(|| ops::mul(&g, &slope(&a, &y)?)).transpose()?;
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
        // In these ranges, the leading term of the series or the approximation of Wilson & Hilferty is exact.
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

/// Returns dy/da = −(∂P/∂a) / (x·p(x)) at x = eʸ, computed by differentiable operations.
fn slope(a: &Tensor, y: &Tensor) -> Result<Tensor> {
    let is_large = ops::gt(a.detach(), MAX_ITERATED)?;
    let large = elementwise!(gamma_slope_of_large(a = &ops::where_(&is_large, a, 2.0 * MAX_ITERATED)?, y = y) => {
        // y = ln a + 3·ln r with r = 1 − 1/9a + z/3√a.
        let r = ((y - a.ln()) / 3.0).exp();
        let r = a.le(MAX_ITERATED).select(1.0, r);
        a.recip() * (1.0 + 3.0 * ((9.0 * a).recip() - 0.5 * (r - 1.0 + (9.0 * a).recip())) / r)
    })?;
    let (a, y) = (&ops::where_(&is_large, 1.0, a)?, &ops::where_(&is_large, 0.0, y)?);
    ops::where_(&is_large, &large, &slope_of_iterated(a, y)?)
}

/// Returns dy/da for concentrations up to [`MAX_ITERATED`].
fn slope_of_iterated(a: &Tensor, y: &Tensor) -> Result<Tensor> {
    let near = elementwise!(gamma_slope_series(a = a, y = y) => slope_near_0(a, y.min(SERIES_END)))?;
    let distant = slope_by_quadrature(a, &ops::maximum(y, SERIES_END)?)?;
    let is_near = ops::le(y.detach(), SERIES_END)?;
    ops::where_(&is_near, &near, &distant)
}

/// The upper bound of ln x for the power series of the slope.
const SERIES_END: f64 = 0.4;

/// Returns −Σ eˣ·(−x)ᵏ/k!·((ln x − ψ(a))/(a + k) − 1/(a + k)²).
fn slope_near_0(a: Expr, y: Expr) -> Expr {
    let x = y.exp();
    let c = y - a.digamma();
    // The term k = 0 is (ln x − ψ(a + 1))/a, because its terms 1/a² cancel.
    let mut sum = (y - (a + 1.0).digamma()) / a;
    let mut factor = -x;
    for k in 1..28 {
        let n = a + f64::from(k);
        sum = sum + factor * (c - n.recip()) / n;
        factor = factor * -x / f64::from(k + 1);
    }
    -(x.exp() * sum)
}

/// Returns T·Σ wₖ·(ln x − ψ(a) + tₖ)·exp(a·tₖ − x(e^tₖ − 1)) with tₖ = T·ξₖ, the Gauss-Legendre quadrature over [0, T].
/// T has the sign of x − a, and the integrand is negligible beyond T.
fn slope_by_quadrature(a: &Tensor, y: &Tensor) -> Result<Tensor> {
    let end = elementwise!(gamma_slope_end(a = &a.detach(), y = &y.detach()) => {
        let x = y.exp();
        let linear = 38.0 / (x - a).abs().max(1e-300);
        let left = (19.0 + (361.0 + 76.0 * x).sqrt()) / x;
        let right = (76.0 / x).sqrt().min((228.0 / x).pow(1.0 / 3.0));
        x.gt(a).select(linear.min(right), -linear.min(left))
    })?;
    let column = |x: &Tensor| ops::unsqueeze(x, -1);
    let offset = ops::sub(y, &ops::digamma(a)?)?;
    let nodes = Tensor::try_new(NODES.iter().map(|node| node.0).collect::<Vec<_>>(), [NODES.len()])?;
    let weights = Tensor::try_new(NODES.iter().map(|node| node.1).collect::<Vec<_>>(), [NODES.len()])?;
    let integral = formula! {
        static gamma_slope_integral(a, y, end, offset, node, weight) = {
            let t = end * node;
            (end * weight * (offset + t) * (a * t - y.exp() * t.exp_m1()).exp()).row_sum()
        };
    };
    let columns = [column(a)?, column(y)?, column(&end)?, column(&offset)?];
    let inputs = [&columns[0], &columns[1], &columns[2], &columns[3], &nodes, &weights];
    ops::squeeze(&ops::map_rows(integral, &inputs, &[], -1)?, -1)
}

/// The nodes and weights of the Gauss-Legendre quadrature on [0, 1].
static NODES: LazyLock<Vec<(f64, f64)>> = LazyLock::new(|| gauss_legendre(56));

/// Returns the `count` nodes and weights on [0, 1]. The nodes are zeros of a Legendre polynomial, computed by Newton's
/// method.
fn gauss_legendre(count: usize) -> Vec<(f64, f64)> {
    let n = count as f64;
    let node = |i: usize| {
        let mut x = (PI * (i as f64 + 0.75) / (n + 0.5)).cos();
        let mut slope = 1.0;
        for _ in 0..10 {
            let (mut low, mut high) = (1.0, x);
            for k in 2..=count {
                let k = k as f64;
                (low, high) = (high, ((2.0 * k - 1.0) * x * high - (k - 1.0) * low) / k);
            }
            slope = n * (x * high - low) / (x * x - 1.0);
            x -= high / slope;
        }
        (0.5 * (1.0 - x), 1.0 / ((1.0 - x * x) * slope * slope))
    };
    (0..count).map(node).collect()
}
