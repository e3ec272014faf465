//! Adamax.

use super::adam::correction;
use super::options::{options, rule_methods};
use super::rule::{Rule, RuleState, UpdateContext, zeros};
use pellucid_tensor::{Formula, Result, Scalar, Tensor, formula};

/// Adamax, Adam with the maximum norm (Kingma & Ba 2015, section 7.1): in step t,
///
/// g ← g + λ·p,  m ← β₁·m + (1 − β₁)·g,  u ← max(β₂·u, |g| + ε),  p ← p − η·m / ((1 − β₁ᵗ)·u).
pub type Adamax = super::RuleOptimizer<AdamaxOptions>;

options! {
    /// Options of [`Adamax`].
    #[derive(Clone, Copy, Debug, PartialEq)]
    AdamaxOptions {
        /// The learning rate η.
        lr: f64 = 2e-3 => NONNEGATIVE;
        /// The decay rates β₁ and β₂ in [0, 1) of the running mean m and of the running maximum u.
        betas: (f64, f64) = (0.9, 0.999) => FRACTION(0, 1);
        /// ε, which keeps the maximum above 0.
        eps: f64 = 1e-8 => NONNEGATIVE;
        /// The weight decay λ, added to the gradient as λ·p.
        weight_decay: f64 = 0.0 => NONNEGATIVE;
        /// Whether to maximize the loss.
        maximize: bool = false;
    }
}

impl Rule for AdamaxOptions {
    rule_methods!("adamax": check, lr, betas, maximize, weight_decay, step_clock);

    fn state(&self, like: &Tensor) -> Result<RuleState> {
        zeros(like, &["mean", "largest"])
    }

    fn tick(&self) -> Option<(&'static Formula, Vec<Scalar>)> {
        let tick = formula!(tick |t, lr, one_minus_b1;| {
            let t = t + 1.0;
            (t, lr / correction(t, (-one_minus_b1).ln_1p()))
        });
        Some((tick, vec![]))
    }

    fn update(&self, context: &UpdateContext<'_>) -> Result<()> {
        let adamax = formula!(adamax |p, m, u, g, rate, one_minus_b1; b2, eps, decay| {
            let g = g + decay * p;
            let m = m + one_minus_b1 * (g - m);
            let u = (b2 * u).max(g.abs() + eps);
            (p - rate * m / u, m, u)
        });
        context.update(adamax, &[self.betas.1.into(), self.eps.into(), self.weight_decay.into()])
    }
}
