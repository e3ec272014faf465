//! Averaged stochastic gradient descent.

use super::rule::{Rule, RuleState, UpdateContext, zeros};
use crate::option_range::check_options;
use pellucid_tensor::{Formula, Result, Scalar, Tensor, formula};

/// Averaged stochastic gradient descent (Polyak & Juditsky 1992), as in PyTorch: in step t,
///
/// g ← g + λ·p,  p ← (1 − ϰ·ηₜ)·p − ηₜ·g,  a ← a + μₜ·(p − a),
/// ηₜ₊₁ = η / (1 + ϰ·η·t)^α,  μₜ₊₁ = 1 / max(1, t − t₀),
///
/// with η₁ = η and μ₁ = 1. The state `average` is a.
#[doc(alias = "ASGD")]
pub type Asgd = super::RuleOptimizer<AsgdOptions>;

/// Options of [`Asgd`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AsgdOptions {
    /// The learning rate η; default 0.01.
    pub lr: f64,
    /// The decay ϰ; default 10⁻⁴.
    pub lambd: f64,
    /// The power α of the learning rate's decay; default 0.75.
    pub alpha: f64,
    /// The step t₀ at which averaging starts; default 10⁶.
    pub t0: f64,
    /// The weight decay λ, added to the gradient as λ·p; default 0.
    pub weight_decay: f64,
    /// Whether to maximise the loss; default false.
    pub maximize: bool,
}

impl Default for AsgdOptions {
    fn default() -> AsgdOptions {
        AsgdOptions { lr: 1e-2, lambd: 1e-4, alpha: 0.75, t0: 1e6, weight_decay: 0.0, maximize: false }
    }
}

impl Rule for AsgdOptions {
    const NAME: &'static str = "asgd";

    fn check(&self) -> Result<()> {
        check_options!(Self::NAME, self; NONNEGATIVE: lr, lambd, alpha, t0, weight_decay;);
        Ok(())
    }

    fn lr(&self) -> f64 {
        self.lr
    }

    fn maximize(&self) -> bool {
        self.maximize
    }

    fn without_decay(&self) -> AsgdOptions {
        AsgdOptions { weight_decay: 0.0, ..*self }
    }

    fn state(&self, like: &Tensor) -> Result<RuleState> {
        zeros(like, &["average"])
    }

    fn clock(&self) -> Vec<(&'static str, f64)> {
        vec![("step", 0.0), ("eta", self.lr), ("mu", 1.0)]
    }

    fn tick(&self) -> Option<(&'static Formula, Vec<Scalar>)> {
        // The clock of the next step, then the rates of this one.
        let tick = formula!(tick |t, eta, mu, lr; lambd, alpha, t0| {
            let t = t + 1.0;
            (t, lr / (1.0 + lambd * lr * t).pow(alpha), (t - t0).max(1.0).recip(), eta, mu)
        });
        Some((tick, vec![self.lambd.into(), self.alpha.into(), self.t0.into()]))
    }

    fn update(&self, at: &UpdateContext<'_>) -> Result<()> {
        let asgd = formula!(asgd |p, a, g, eta, mu; lambd, decay| {
            let p = p * (1.0 - lambd * eta) - eta * (g + decay * p);
            (p, a + mu * (p - a))
        });
        at.fused(asgd, &[self.lambd.into(), self.weight_decay.into()])
    }
}
