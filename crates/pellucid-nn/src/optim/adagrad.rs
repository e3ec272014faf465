//! Adagrad.

use super::options::{options, rule_methods};
use super::rule::{Rule, RuleState, UpdateContext};
use pellucid_tensor::{Formula, Result, Scalar, Tensor, formula, ops};

/// Adagrad (Duchi, Hazan & Singer 2011): in step t,
///
/// g ← g + λ·p,  s ← s + g²,  p ← p − η / (1 + (t − 1)·κ) · g / (√s + ε).
pub type Adagrad = super::RuleOptimizer<AdagradOptions>;

options! {
    /// Options of [`Adagrad`].
    #[derive(Clone, Copy, Debug, PartialEq)]
    AdagradOptions {
        /// The learning rate η.
        lr: f64 = 1e-2 => NONNEGATIVE;
        /// The decay κ of the learning rate.
        lr_decay: f64 = 0.0 => NONNEGATIVE;
        /// The initial value of s.
        initial_accumulator: f64 = 0.0 => NONNEGATIVE;
        /// ε, added to the denominator for stability.
        eps: f64 = 1e-10 => NONNEGATIVE;
        /// The weight decay λ, added to the gradient as λ·p.
        weight_decay: f64 = 0.0 => NONNEGATIVE;
        /// Whether to maximize the loss.
        maximize: bool = false;
    }
}

impl Rule for AdagradOptions {
    rule_methods!("adagrad": check, lr, maximize, weight_decay, step_clock);

    fn state(&self, like: &Tensor) -> Result<RuleState> {
        Ok(vec![("sum", ops::full_like(like, self.initial_accumulator)?)])
    }

    fn tick(&self) -> Option<(&'static Formula, Vec<Scalar>)> {
        let tick = formula!(tick |t, lr; decay| (t + 1.0, lr / (1.0 + t * decay)));
        Some((tick, vec![self.lr_decay.into()]))
    }

    fn update(&self, context: &UpdateContext<'_>) -> Result<()> {
        let adagrad = formula!(adagrad |p, s, g, rate; eps, decay| {
            let g = g + decay * p;
            let s = s + g * g;
            (p - rate * g / (s.sqrt() + eps), s)
        });
        context.update(adagrad, &[self.eps.into(), self.weight_decay.into()])
    }
}
