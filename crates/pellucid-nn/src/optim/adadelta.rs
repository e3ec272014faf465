//! Adadelta.

use super::rule::{Rule, RuleState, UpdateContext, zeros};
use crate::option_range::check_options;
use pellucid_tensor::{Result, Tensor, formula};

/// Adadelta (Zeiler 2012):
///
/// g ← g + λ·p,  v ← ρ·v + (1 − ρ)·g²,  d = g·√(u + ε) / √(v + ε),  u ← ρ·u + (1 − ρ)·d²,  p ← p − η·d.
pub type Adadelta = super::RuleOptimizer<AdadeltaOptions>;

/// Options of [`Adadelta`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdadeltaOptions {
    /// The learning rate η; default 1.
    pub lr: f64,
    /// The decay rate ρ in [0, 1] of the running means of squares; default 0.9.
    pub rho: f64,
    /// ε, which sets the size of the first steps; default 10⁻⁶.
    pub eps: f64,
    /// The weight decay λ, added to the gradient as λ·p; default 0.
    pub weight_decay: f64,
    /// Whether to maximise the loss; default false.
    pub maximize: bool,
}

impl Default for AdadeltaOptions {
    fn default() -> AdadeltaOptions {
        AdadeltaOptions { lr: 1.0, rho: 0.9, eps: 1e-6, weight_decay: 0.0, maximize: false }
    }
}

impl Rule for AdadeltaOptions {
    const NAME: &'static str = "adadelta";

    fn check(&self) -> Result<()> {
        check_options!(Self::NAME, self; NONNEGATIVE: lr, eps, weight_decay; PROBABILITY: rho;);
        Ok(())
    }

    fn lr(&self) -> f64 {
        self.lr
    }

    fn maximize(&self) -> bool {
        self.maximize
    }

    fn without_decay(&self) -> AdadeltaOptions {
        AdadeltaOptions { weight_decay: 0.0, ..*self }
    }

    fn state(&self, like: &Tensor) -> Result<RuleState> {
        zeros(like, &["square", "change"])
    }

    fn update(&self, at: &UpdateContext<'_>) -> Result<()> {
        let adadelta = formula!(adadelta |p, v, u, g, lr; rho, rest, eps, decay| {
            let g = g + decay * p;
            let v = rho * v + rest * (g * g);
            let d = (u + eps).sqrt() / (v + eps).sqrt() * g;
            (p - lr * d, v, rho * u + rest * (d * d))
        });
        let rho = self.rho;
        at.fused(adadelta, &[rho.into(), (1.0 - rho).into(), self.eps.into(), self.weight_decay.into()])
    }
}
