//! Adamax.

use super::adam::correction;
use super::rule::{Rule, RuleState, UpdateContext, adam_rule_methods, zeros};
use pellucid_tensor::{Formula, Result, Scalar, Tensor, formula};

/// Adamax, Adam with the maximum norm (Kingma & Ba 2015, section 7.1): in step t,
///
/// g ← g + λ·p,  m ← β₁·m + (1 − β₁)·g,  u ← max(β₂·u, |g| + ε),  p ← p − η·m / ((1 − β₁ᵗ)·u).
pub type Adamax = super::RuleOptimizer<AdamaxOptions>;

/// Options of [`Adamax`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamaxOptions {
    /// The learning rate η; default 0.002.
    pub lr: f64,
    /// The decay rates β₁ and β₂ in [0, 1) of the mean and of the maximum; default (0.9, 0.999).
    pub betas: (f64, f64),
    /// ε, which keeps the maximum above 0; default 10⁻⁸.
    pub eps: f64,
    /// The weight decay λ, added to the gradient as λ·p; default 0.
    pub weight_decay: f64,
    /// Whether to maximise the loss; default false.
    pub maximize: bool,
}

impl Default for AdamaxOptions {
    fn default() -> AdamaxOptions {
        AdamaxOptions { lr: 2e-3, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.0, maximize: false }
    }
}

impl Rule for AdamaxOptions {
    const NAME: &'static str = "adamax";

    adam_rule_methods!();

    fn state(&self, like: &Tensor) -> Result<RuleState> {
        zeros(like, &["mean", "largest"])
    }

    fn clock(&self) -> Vec<(&'static str, f64)> {
        vec![("step", 0.0)]
    }

    fn tick(&self) -> Option<(&'static Formula, Vec<Scalar>)> {
        let tick = formula!(
            tick | t,
            lr,
            rest1 | {
                let t = t + 1.0;
                (t, lr / correction(t, (-rest1).ln_1p()))
            }
        );
        Some((tick, vec![]))
    }

    fn update(&self, at: &UpdateContext<'_>) -> Result<()> {
        let adamax = formula!(adamax |p, m, u, g, rate, rest1; b2, eps, decay| {
            let g = g + decay * p;
            let m = m + rest1 * (g - m);
            let u = (b2 * u).max(g.abs() + eps);
            (p - rate * m / u, m, u)
        });
        at.fused(adamax, &[self.betas.1.into(), self.eps.into(), self.weight_decay.into()])
    }
}
