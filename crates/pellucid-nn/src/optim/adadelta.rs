//! Adadelta.

use super::options::{options, rule_methods};
use super::rule::{Rule, RuleState, UpdateContext, zeros};
use pellucid_tensor::{Result, Tensor, formula};

/// Adadelta (Zeiler 2012):
///
/// g ← g + λ·p,  v ← ρ·v + (1 − ρ)·g²,  d = g·√(u + ε) / √(v + ε),  u ← ρ·u + (1 − ρ)·d²,  p ← p − η·d.
pub type Adadelta = super::RuleOptimizer<AdadeltaOptions>;

options! {
    /// Options of [`Adadelta`].
    #[derive(Clone, Copy, Debug, PartialEq)]
    AdadeltaOptions {
        /// The learning rate η.
        lr: f64 = 1.0 => NONNEGATIVE;
        /// The decay rate ρ in [0, 1] of the running means of squares.
        rho: f64 = 0.9 => PROBABILITY;
        /// ε, which sets the size of the first steps.
        eps: f64 = 1e-6 => NONNEGATIVE;
        /// The weight decay λ, added to the gradient as λ·p.
        weight_decay: f64 = 0.0 => NONNEGATIVE;
        /// Whether to maximize the loss.
        maximize: bool = false;
    }
}

impl Rule for AdadeltaOptions {
    rule_methods!("adadelta": check, lr, maximize, weight_decay);

    fn state(&self, like: &Tensor) -> Result<RuleState> {
        zeros(like, &["square", "change"])
    }

    fn update(&self, context: &UpdateContext<'_>) -> Result<()> {
        let adadelta = formula!(adadelta |p, v, u, g, lr; rho, one_minus_rho, eps, decay| {
            let g = g + decay * p;
            let v = rho * v + one_minus_rho * (g * g);
            let d = (u + eps).sqrt() / (v + eps).sqrt() * g;
            (p - lr * d, v, rho * u + one_minus_rho * (d * d))
        });
        let rho = self.rho;
        context.update(adadelta, &[rho.into(), (1.0 - rho).into(), self.eps.into(), self.weight_decay.into()])
    }
}
