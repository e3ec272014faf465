//! Lion.

use super::rule::{Momentum, Rule, RuleState, UpdateContext, zeros};
use crate::option_range::check_options;
use pellucid_tensor::{Result, Tensor, formula};

/// Lion, evolved sign momentum (Chen et al. 2023, algorithm 2):
///
/// c = β₁·m + (1 − β₁)·g,  p ← p − η·(sign(c) + λ·p),  m ← β₂·m + (1 − β₂)·g.
///
/// Steps are larger than Adam's: use a learning rate 3 to 10 times smaller, and a weight decay as much larger.
pub type Lion = super::RuleOptimizer<LionOptions>;

/// Options of [`Lion`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LionOptions {
    /// The learning rate η; default 10⁻⁴.
    pub lr: f64,
    /// β₁ and β₂ in [0, 1), the weight of the mean in the step and its decay rate; default (0.9, 0.99).
    pub betas: (f64, f64),
    /// The weight decay λ; default 0.
    pub weight_decay: f64,
    /// Whether to maximise the loss; default false.
    pub maximize: bool,
}

impl Default for LionOptions {
    fn default() -> LionOptions {
        LionOptions { lr: 1e-4, betas: (0.9, 0.99), weight_decay: 0.0, maximize: false }
    }
}

impl Rule for LionOptions {
    const NAME: &'static str = "lion";

    fn check(&self) -> Result<()> {
        check_options!(Self::NAME, self; NONNEGATIVE: lr, weight_decay; FRACTION: betas.0, betas.1;);
        Ok(())
    }

    fn lr(&self) -> f64 {
        self.lr
    }

    fn momentum(&self) -> Option<Momentum> {
        Some(Momentum::Mean(self.betas.0))
    }

    fn maximize(&self) -> bool {
        self.maximize
    }

    fn without_decay(&self) -> LionOptions {
        LionOptions { weight_decay: 0.0, ..*self }
    }

    fn state(&self, like: &Tensor) -> Result<RuleState> {
        zeros(like, &["mean"])
    }

    fn update(&self, at: &UpdateContext<'_>) -> Result<()> {
        let lion = formula!(lion |p, m, g, lr, rest1; rest2, decay| {
            let c = m + rest1 * (g - m);
            (p - lr * (c.signum() + decay * p), m + rest2 * (g - m))
        });
        at.fused(lion, &[(1.0 - self.betas.1).into(), self.weight_decay.into()])
    }
}
