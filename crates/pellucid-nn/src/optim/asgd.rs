//! Averaged stochastic gradient descent.

use super::options::{options, rule_methods};
use super::rule::{Rule, RuleState, UpdateContext, zeros};
use pellucid_tensor::{Formula, Result, Scalar, Tensor, formula};

/// Averaged stochastic gradient descent (Polyak & Juditsky 1992), as in PyTorch: in step t,
///
/// g ← g + λ·p,  p ← (1 − ϰ·ηₜ)·p − ηₜ·g,  a ← a + μₜ·(p − a),
/// ηₜ₊₁ = η / (1 + ϰ·η·t)^α,  μₜ₊₁ = 1 / max(1, t − t₀),
///
/// with η₁ = η and μ₁ = 1. The state `average` is a.
#[doc(alias = "ASGD")]
pub type Asgd = super::RuleOptimizer<AsgdOptions>;

options! {
    /// Options of [`Asgd`].
    #[derive(Clone, Copy, Debug, PartialEq)]
    AsgdOptions {
        /// The learning rate η.
        lr: f64 = 1e-2 => NONNEGATIVE;
        /// The decay rate ϰ of the parameters and of the learning rate.
        lambd: f64 = 1e-4 => NONNEGATIVE;
        /// The exponent α of the learning rate's decay.
        alpha: f64 = 0.75 => NONNEGATIVE;
        /// The step t₀ at which averaging starts.
        t0: f64 = 1e6 => NONNEGATIVE;
        /// The weight decay λ, added to the gradient as λ·p.
        weight_decay: f64 = 0.0 => NONNEGATIVE;
        /// Whether to maximize the loss.
        maximize: bool = false;
    }
}

impl Rule for AsgdOptions {
    rule_methods!("asgd": check, lr, maximize, weight_decay);

    fn state(&self, like: &Tensor) -> Result<RuleState> {
        zeros(like, &["average"])
    }

    fn clock(&self) -> Vec<(&'static str, f64)> {
        vec![("step", 0.0), ("eta", 0.0), ("mu", 1.0)]
    }

    fn tick(&self) -> Option<(&'static Formula, Vec<Scalar>)> {
        // The clock for the next step, then the rates of this step. The first step uses the current learning rate.
        let tick = formula!(tick |t, eta, mu, lr; lambd, alpha, t0| {
            let eta = t.eq(0.0).select(lr, eta);
            let t = t + 1.0;
            (t, lr / (1.0 + lambd * lr * t).pow(alpha), (t - t0).max(1.0).recip(), eta, mu)
        });
        Some((tick, vec![self.lambd.into(), self.alpha.into(), self.t0.into()]))
    }

    fn update(&self, context: &UpdateContext<'_>) -> Result<()> {
        let asgd = formula!(asgd |p, a, g, eta, mu; lambd, decay| {
            let p = p * (1.0 - lambd * eta) - eta * (g + decay * p);
            (p, a + mu * (p - a))
        });
        context.update(asgd, &[self.lambd.into(), self.weight_decay.into()])
    }
}
