//! RAdam.

use super::adam::{adam_state, correction, coupled_decay, decoupled_decay, update_moments, update_params};
use super::options::{options, rule_methods};
use super::rule::{Rule, RuleState, UpdateContext, ln};
use pellucid_tensor::{Formula, Result, Scalar, Tensor, formula};

/// RAdam, rectified Adam (Liu et al. 2020): like [`Adam`](super::Adam), but with the step
///
/// p ← p − η·m̂·rₜ / ((√v + ε) / √(1 − β₂ᵗ))  if ρₜ > 5, else  p ← p − η·m̂,
///
/// with ρ∞ = 2/(1 − β₂) − 1, ρₜ = ρ∞ − 2·t·β₂ᵗ/(1 − β₂ᵗ), rₜ = √((ρₜ − 4)(ρₜ − 2)ρ∞ / ((ρ∞ − 4)(ρ∞ − 2)ρₜ)). While ρₜ ≤
/// 5, the variance of the adaptive rate is not known well enough, and v is not used.
pub type RAdam = super::RuleOptimizer<RAdamOptions>;

options! {
    /// Options of [`RAdam`].
    #[derive(Clone, Copy, Debug, PartialEq)]
    RAdamOptions {
        /// The learning rate η.
        lr: f64 = 1e-3 => NONNEGATIVE;
        /// The decay rates β₁ and β₂ in [0, 1) of the running means of gradients and of their squares.
        betas: (f64, f64) = (0.9, 0.999) => FRACTION(0, 1);
        /// ε, added to the denominator for stability.
        eps: f64 = 1e-8 => NONNEGATIVE;
        /// The weight decay λ, added to the gradient as λ·p.
        weight_decay: f64 = 0.0 => NONNEGATIVE;
        /// Whether the weight decay scales the parameter by 1 − η·λ, as in [`AdamW`](super::AdamW), instead of changing
        /// the gradient.
        decoupled_weight_decay: bool = false;
        /// Whether to maximize the loss.
        maximize: bool = false;
    }
}

impl Rule for RAdamOptions {
    rule_methods!("radam": check, lr, betas, maximize, weight_decay, step_clock);

    fn state(&self, like: &Tensor) -> Result<RuleState> {
        adam_state(like, false)
    }

    fn tick(&self) -> Option<(&'static Formula, Vec<Scalar>)> {
        // The clock and the rates: (t, η/(1 − β₁ᵗ), r·√(1 − β₂ᵗ) or 0 while r is undefined, 1 − η·λ).
        let tick = formula!(tick |t, lr, one_minus_b1; ln_b2, longest, offset, decay| {
            let t = t + 1.0;
            let c2 = correction(t, ln_b2);
            // With x = −t·ln β₂, ρₜ = ρ∞ − 2·t/(eˣ − 1). For small x both terms are near 2/x·t, and cancel in f32. The
            // series of x/(eˣ − 1) leads to ρₜ = ρ∞ + 2/ln β₂ + t − t·(x/6 − x³/360 + x⁵/15120 − ..).
            let (x, cancelling) = (-t * ln_b2, longest - 2.0 * t * (t * ln_b2).exp() / c2);
            let y = x * x;
            let series = x * (1.0 / 6.0 - y * (1.0 / 360.0 - y * (1.0 / 15120.0 - y * (1.0 / 604_800.0))));
            let length = x.lt(0.1).select(offset + t - t * series, cancelling);
            let rectification =
                (length - 4.0) * (length - 2.0) * longest / ((longest - 4.0) * (longest - 2.0) * length);
            let rectified = length.gt(5.0).select((rectification * c2).sqrt(), 0.0);
            (t, lr / correction(t, (-one_minus_b1).ln_1p()), rectified, 1.0 - lr * decay)
        });
        let longest = 2.0 / (1.0 - self.betas.1) - 1.0;
        let decay = decoupled_decay(self.weight_decay, self.decoupled_weight_decay);
        let offset = longest + 2.0 / self.betas.1.max(f64::MIN_POSITIVE).ln();
        Some((tick, vec![ln(self.betas.1), longest.into(), offset.into(), decay.into()]))
    }

    fn update(&self, context: &UpdateContext<'_>) -> Result<()> {
        let radam = formula!(radam |
            p, m, v, g, rate, rectified, decay_factor, one_minus_b1; b2, one_minus_b2, eps, decay
        | {
            let (m, v) = update_moments(m, v, g + decay * p, one_minus_b1, b2, one_minus_b2);
            let adaptive = rectified.gt(0.0).select(rectified / (v.sqrt() + eps), 1.0);
            (p * decay_factor - rate * m * adaptive, m, v)
        });
        let decay = coupled_decay(self.weight_decay, self.decoupled_weight_decay);
        context.update(radam, &update_params(self.betas.1, self.eps, decay))
    }
}
