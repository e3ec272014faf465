//! AdamW.

use super::adam::{adam_state, correction, update_moments};
use super::options::{options, rule_methods};
use super::rule::{Rule, RuleState, UpdateContext, ln};
use pellucid_tensor::{Formula, Result, Scalar, Tensor, formula};

/// AdamW: Adam (Kingma & Ba 2015) with decoupled weight decay (Loshchilov & Hutter 2019); in step t,
///
/// p ← (1 − η·λ)·p,  m ← β₁·m + (1 − β₁)·g,  v ← β₂·v + (1 − β₂)·g²,
/// p ← p − η·m̂ / (√v̂ + ε)  with m̂ = m / (1 − β₁ᵗ) and v̂ = v / (1 − β₂ᵗ).
///
/// AMSGrad (Reddi, Kale & Kumar 2018) uses the largest v so far instead of v.
pub type AdamW = super::RuleOptimizer<AdamWOptions>;

options! {
    /// Options of [`AdamW`].
    #[derive(Clone, Copy, Debug, PartialEq)]
    AdamWOptions {
        /// The learning rate η.
        lr: f64 = 1e-3 => NONNEGATIVE;
        /// The decay rates β₁ and β₂ in [0, 1) of the running means of gradients and of their squares.
        betas: (f64, f64) = (0.9, 0.999) => FRACTION(0, 1);
        /// ε, added to the denominator for stability.
        eps: f64 = 1e-8 => NONNEGATIVE;
        /// The weight decay λ.
        weight_decay: f64 = 0.01 => NONNEGATIVE;
        /// Whether to use AMSGrad.
        amsgrad: bool = false;
        /// Whether to maximize the loss.
        maximize: bool = false;
    }
}

impl Rule for AdamWOptions {
    rule_methods!("adamw": check, lr, betas, maximize, weight_decay, step_clock);

    fn state(&self, like: &Tensor) -> Result<RuleState> {
        adam_state(like, self.amsgrad)
    }

    fn tick(&self) -> Option<(&'static Formula, Vec<Scalar>)> {
        // The clock and the rates: (t, η/(1 − β₁ᵗ), 1/√(1 − β₂ᵗ), 1 − η·λ).
        let tick = formula!(tick |t, lr, one_minus_b1; ln_b2, decay| {
            let t = t + 1.0;
            let rate = lr / correction(t, (-one_minus_b1).ln_1p());
            (t, rate, correction(t, ln_b2).sqrt().recip(), 1.0 - lr * decay)
        });
        Some((tick, vec![ln(self.betas.1), self.weight_decay.into()]))
    }

    fn update(&self, context: &UpdateContext<'_>) -> Result<()> {
        let adamw = formula!(adamw |p, m, v, g, rate, scale, decay_factor, one_minus_b1; b2, one_minus_b2, eps| {
            let (m, v) = update_moments(m, v, g, one_minus_b1, b2, one_minus_b2);
            (p * decay_factor - rate * m / (v.sqrt() * scale + eps), m, v)
        });
        let amsgrad = formula!(amsgrad |p, m, v, u, g, rate, scale, decay_factor, one_minus_b1; b2, one_minus_b2, eps| {
            let (m, v) = update_moments(m, v, g, one_minus_b1, b2, one_minus_b2);
            let u = u.max(v);
            (p * decay_factor - rate * m / (u.sqrt() * scale + eps), m, v, u)
        });
        let b2 = self.betas.1;
        context.update(if self.amsgrad { amsgrad } else { adamw }, &[b2.into(), (1.0 - b2).into(), self.eps.into()])
    }
}
