//! NAdam.

use super::adam::{adam_state, correction, coupled_decay, decoupled_decay, update_moments, update_params};
use super::options::{options, rule_methods};
use super::rule::{Rule, RuleState, UpdateContext, ln};
use pellucid_tensor::formula::Expr;
use pellucid_tensor::{Formula, Result, Scalar, Tensor, formula};

/// NAdam, Adam with Nesterov's momentum (Dozat 2016) and PyTorch's momentum schedule: in step t,
///
/// g ← g + λ·p,  μₜ = β₁·(1 − ½·0.96^(t·ψ)),  m ← β₁·m + (1 − β₁)·g,  v ← β₂·v + (1 − β₂)·g²,
/// p ← p − η·((1 − μₜ)·g / (1 − ∏ᵢ₌₁ᵗ μᵢ) + μₜ₊₁·m / (1 − ∏ᵢ₌₁ᵗ⁺¹ μᵢ)) / (√v̂ + ε)  with v̂ = v / (1 − β₂ᵗ).
pub type NAdam = super::RuleOptimizer<NAdamOptions>;

options! {
    /// Options of [`NAdam`].
    #[derive(Clone, Copy, Debug, PartialEq)]
    NAdamOptions {
        /// The learning rate η.
        lr: f64 = 2e-3 => NONNEGATIVE;
        /// The decay rates β₁ and β₂ in [0, 1) of the running means of gradients and of their squares.
        betas: (f64, f64) = (0.9, 0.999) => FRACTION(0, 1);
        /// ε, added to the denominator for stability.
        eps: f64 = 1e-8 => NONNEGATIVE;
        /// The weight decay λ, added to the gradient as λ·p.
        weight_decay: f64 = 0.0 => NONNEGATIVE;
        /// The decay ψ of the momentum schedule.
        momentum_decay: f64 = 4e-3 => NONNEGATIVE;
        /// Whether the weight decay scales the parameter by 1 − η·λ, as in [`AdamW`](super::AdamW), instead of changing
        /// the gradient.
        decoupled_weight_decay: bool = false;
        /// Whether to maximize the loss.
        maximize: bool = false;
    }
}

impl Rule for NAdamOptions {
    rule_methods!("nadam": check, lr, betas, maximize, weight_decay);

    fn state(&self, like: &Tensor) -> Result<RuleState> {
        adam_state(like, false)
    }

    fn clock(&self) -> Vec<(&'static str, f64)> {
        vec![("step", 0.0), ("momentum_product", 1.0)]
    }

    fn tick(&self) -> Option<(&'static Formula, Vec<Scalar>)> {
        // The clock and the rates: (t, ∏μ, the factors of g and of m, 1/√(1 − β₂ᵗ), 1 − η·λ).
        let tick = formula!(tick |t, product, lr, one_minus_b1; ln_b2, psi, decay| {
            let t = t + 1.0;
            let momentum = |t: Expr| (1.0 - one_minus_b1) * (1.0 - 0.5 * (t * psi).exp());
            let (now, next) = (momentum(t), momentum(t + 1.0));
            let product = product * now;
            let (of_gradient, of_mean) = (lr * (1.0 - now) / (1.0 - product), lr * next / (1.0 - product * next));
            (t, product, of_gradient, of_mean, correction(t, ln_b2).sqrt().recip(), 1.0 - lr * decay)
        });
        let psi = self.momentum_decay * 0.96f64.ln();
        let decay = decoupled_decay(self.weight_decay, self.decoupled_weight_decay);
        Some((tick, vec![ln(self.betas.1), psi.into(), decay.into()]))
    }

    fn update(&self, context: &UpdateContext<'_>) -> Result<()> {
        let nadam = formula!(nadam |
            p, m, v, g, of_gradient, of_mean, scale, decay_factor, one_minus_b1; b2, one_minus_b2, eps, decay
        | {
            let g = g + decay * p;
            let (m, v) = update_moments(m, v, g, one_minus_b1, b2, one_minus_b2);
            (p * decay_factor - (of_gradient * g + of_mean * m) / (v.sqrt() * scale + eps), m, v)
        });
        let decay = coupled_decay(self.weight_decay, self.decoupled_weight_decay);
        context.update(nadam, &update_params(self.betas.1, self.eps, decay))
    }
}
