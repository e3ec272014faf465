//! Lion.

use super::options::{options, rule_methods};
use super::rule::{Rule, RuleState, UpdateContext, zeros};
use pellucid_tensor::{Result, Tensor, formula};

/// Lion, evolved sign momentum (Chen et al. 2023, algorithm 2):
///
/// c = β₁·m + (1 − β₁)·g,  p ← p − η·(sign(c) + λ·p),  m ← β₂·m + (1 − β₂)·g.
///
/// Steps are larger than Adam's: use a learning rate 3 to 10 times smaller, and a weight decay larger by the same
/// factor.
pub type Lion = super::RuleOptimizer<LionOptions>;

options! {
    /// Options of [`Lion`].
    #[derive(Clone, Copy, Debug, PartialEq)]
    LionOptions {
        /// The learning rate η.
        lr: f64 = 1e-4 => NONNEGATIVE;
        /// β₁, the weight of the running mean m in the step, and β₂, the decay rate of m, both in [0, 1).
        betas: (f64, f64) = (0.9, 0.99) => FRACTION(0, 1);
        /// The weight decay λ.
        weight_decay: f64 = 0.0 => NONNEGATIVE;
        /// Whether to maximize the loss.
        maximize: bool = false;
    }
}

impl Rule for LionOptions {
    rule_methods!("lion": check, lr, betas, maximize, weight_decay);

    fn state(&self, like: &Tensor) -> Result<RuleState> {
        zeros(like, &["mean"])
    }

    fn update(&self, context: &UpdateContext<'_>) -> Result<()> {
        let lion = formula!(lion |p, m, g, lr, one_minus_b1; one_minus_b2, decay| {
            let c = m + one_minus_b1 * (g - m);
            (p - lr * (c.signum() + decay * p), m + one_minus_b2 * (g - m))
        });
        context.update(lion, &[(1.0 - self.betas.1).into(), self.weight_decay.into()])
    }
}
