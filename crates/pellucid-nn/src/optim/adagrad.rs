//! Adagrad.

use super::rule::{Rule, RuleState, UpdateContext};
use crate::option_range::check_options;
use pellucid_tensor::{Formula, Result, Scalar, Tensor, formula, ops};

/// Adagrad (Duchi, Hazan & Singer 2011): in step t,
///
/// g ← g + λ·p,  s ← s + g²,  p ← p − η / (1 + (t − 1)·κ) · g / (√s + ε).
pub type Adagrad = super::RuleOptimizer<AdagradOptions>;

/// Options of [`Adagrad`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdagradOptions {
    /// The learning rate η; default 0.01.
    pub lr: f64,
    /// The decay κ of the learning rate; default 0.
    pub lr_decay: f64,
    /// The initial value of s; default 0.
    pub initial_accumulator: f64,
    /// ε, added to the denominator for stability; default 10⁻¹⁰.
    pub eps: f64,
    /// The weight decay λ, added to the gradient as λ·p; default 0.
    pub weight_decay: f64,
    /// Whether to maximise the loss; default false.
    pub maximize: bool,
}

impl Default for AdagradOptions {
    fn default() -> AdagradOptions {
        AdagradOptions {
            lr: 1e-2,
            lr_decay: 0.0,
            initial_accumulator: 0.0,
            eps: 1e-10,
            weight_decay: 0.0,
            maximize: false,
        }
    }
}

impl Rule for AdagradOptions {
    const NAME: &'static str = "adagrad";

    fn check(&self) -> Result<()> {
        check_options!(Self::NAME, self; NONNEGATIVE: lr, lr_decay, initial_accumulator, eps, weight_decay;);
        Ok(())
    }

    fn lr(&self) -> f64 {
        self.lr
    }

    fn maximize(&self) -> bool {
        self.maximize
    }

    fn without_decay(&self) -> AdagradOptions {
        AdagradOptions { weight_decay: 0.0, ..*self }
    }

    fn state(&self, like: &Tensor) -> Result<RuleState> {
        Ok(vec![("sum", ops::full_like(like, self.initial_accumulator)?)])
    }

    fn clock(&self) -> Vec<(&'static str, f64)> {
        vec![("step", 0.0)]
    }

    fn tick(&self) -> Option<(&'static Formula, Vec<Scalar>)> {
        let tick = formula!(tick |t, lr; decay| (t + 1.0, lr / (1.0 + t * decay)));
        Some((tick, vec![self.lr_decay.into()]))
    }

    fn update(&self, at: &UpdateContext<'_>) -> Result<()> {
        let adagrad = formula!(adagrad |p, s, g, rate; eps, decay| {
            let g = g + decay * p;
            let s = s + g * g;
            (p - rate * g / (s.sqrt() + eps), s)
        });
        at.fused(adagrad, &[self.eps.into(), self.weight_decay.into()])
    }
}
