//! RMSprop.

use super::options::{options, rule_methods};
use super::rule::{Rule, RuleState, UpdateContext, zeros};
use pellucid_tensor::{Result, Tensor, formula};

/// RMSprop (Tieleman & Hinton 2012), as in PyTorch:
///
/// g ← g + λ·p,  v ← α·v + (1 − α)·g²,  r = √v + ε,  p ← p − η·g/r.
///
/// With `centered` (Graves 2013), ḡ ← α·ḡ + (1 − α)·g and r = √(v − ḡ²) + ε; with momentum,
/// b ← μ·b + g/r and p ← p − η·b.
#[doc(alias = "RMSprop")]
pub type RmsProp = super::RuleOptimizer<RmsPropOptions>;

options! {
    /// Options of [`RmsProp`].
    #[derive(Clone, Copy, Debug, PartialEq)]
    RmsPropOptions {
        /// The learning rate η.
        lr: f64 = 1e-2 => NONNEGATIVE;
        /// The decay rate α ≥ 0 of the running means.
        alpha: f64 = 0.99 => NONNEGATIVE;
        /// ε, added to the denominator for stability.
        eps: f64 = 1e-8 => NONNEGATIVE;
        /// The momentum μ in [0, 1).
        momentum: f64 = 0.0 => FRACTION;
        /// Whether to divide by the standard deviation of the gradient instead of its root mean square.
        centered: bool = false;
        /// The weight decay λ, added to the gradient as λ·p.
        weight_decay: f64 = 0.0 => NONNEGATIVE;
        /// Whether to maximize the loss.
        maximize: bool = false;
    }
}

impl Rule for RmsPropOptions {
    rule_methods!("rmsprop": check, lr, momentum, maximize, weight_decay);

    fn state(&self, like: &Tensor) -> Result<RuleState> {
        zeros(
            like,
            match (self.centered, self.momentum > 0.0) {
                (false, false) => &["square"],
                (true, false) => &["square", "mean"],
                (false, true) => &["square", "velocity"],
                (true, true) => &["square", "mean", "velocity"],
            },
        )
    }

    fn update(&self, context: &UpdateContext<'_>) -> Result<()> {
        let rmsprop = formula!(rmsprop |p, v, g, lr; alpha, one_minus_alpha, eps, decay| {
            let g = g + decay * p;
            let v = alpha * v + one_minus_alpha * (g * g);
            (p - lr * g / (v.sqrt() + eps), v)
        });
        let rmsprop_centered = formula!(rmsprop_centered |p, v, mean, g, lr; alpha, one_minus_alpha, eps, decay| {
            let g = g + decay * p;
            let (v, mean) = (alpha * v + one_minus_alpha * (g * g), mean + one_minus_alpha * (g - mean));
            (p - lr * g / ((v - mean * mean).sqrt() + eps), v, mean)
        });
        let rmsprop_momentum = formula!(rmsprop_momentum |
            p, v, b, g, lr, momentum; alpha, one_minus_alpha, eps, decay
        | {
            let g = g + decay * p;
            let v = alpha * v + one_minus_alpha * (g * g);
            let b = momentum * b + g / (v.sqrt() + eps);
            (p - lr * b, v, b)
        });
        let rmsprop_centered_momentum = formula!(rmsprop_centered_momentum |
            p, v, mean, b, g, lr, momentum; alpha, one_minus_alpha, eps, decay
        | {
            let g = g + decay * p;
            let (v, mean) = (alpha * v + one_minus_alpha * (g * g), mean + one_minus_alpha * (g - mean));
            let b = momentum * b + g / ((v - mean * mean).sqrt() + eps);
            (p - lr * b, v, mean, b)
        });
        let formula = match (self.centered, self.momentum > 0.0) {
            (false, false) => rmsprop,
            (true, false) => rmsprop_centered,
            (false, true) => rmsprop_momentum,
            (true, true) => rmsprop_centered_momentum,
        };
        let alpha = self.alpha;
        context.update(formula, &[alpha.into(), (1.0 - alpha).into(), self.eps.into(), self.weight_decay.into()])
    }
}
