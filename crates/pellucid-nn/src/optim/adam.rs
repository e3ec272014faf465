//! Adam and AMSGrad.

use super::options::{options, rule_methods};
use super::rule::{Rule, RuleState, UpdateContext, ln, zeros};
use pellucid_tensor::formula::Expr;
use pellucid_tensor::{Formula, Result, Scalar, Tensor, formula};

/// Adam (Kingma & Ba 2015): in step t,
///
/// g ← g + λ·p,  m ← β₁·m + (1 − β₁)·g,  v ← β₂·v + (1 − β₂)·g²,
/// p ← p − η·m̂ / (√v̂ + ε)  with m̂ = m / (1 − β₁ᵗ) and v̂ = v / (1 − β₂ᵗ).
///
/// AMSGrad (Reddi, Kale & Kumar 2018) uses the largest v so far instead of v.
pub type Adam = super::RuleOptimizer<AdamOptions>;

options! {
    /// Options of [`Adam`].
    #[derive(Clone, Copy, Debug, PartialEq)]
    AdamOptions {
        /// The learning rate η.
        lr: f64 = 1e-3 => NONNEGATIVE;
        /// The decay rates β₁ and β₂ in [0, 1) of the running means of gradients and of their squares.
        betas: (f64, f64) = (0.9, 0.999) => FRACTION(0, 1);
        /// ε, added to the denominator for stability.
        eps: f64 = 1e-8 => NONNEGATIVE;
        /// The weight decay λ, added to the gradient as λ·p.
        weight_decay: f64 = 0.0 => NONNEGATIVE;
        /// Whether to use AMSGrad.
        amsgrad: bool = false;
        /// Whether to maximize the loss.
        maximize: bool = false;
    }
}

/// Updates the running means of g and g². 1 − β is computed in f64: in f32, 1 − 0.999 loses three digits.
pub(super) fn update_moments(
    m: Expr,
    v: Expr,
    g: Expr,
    one_minus_b1: Expr,
    b2: Expr,
    one_minus_b2: Expr,
) -> (Expr, Expr) {
    (m + one_minus_b1 * (g - m), b2 * v + one_minus_b2 * (g * g))
}

/// Returns the weight decay that is added to the gradient.
pub(super) fn coupled_decay(weight_decay: f64, is_decoupled: bool) -> f64 {
    if is_decoupled { 0.0 } else { weight_decay }
}

/// Returns the weight decay by which the parameter is scaled.
pub(super) fn decoupled_decay(weight_decay: f64, is_decoupled: bool) -> f64 {
    if is_decoupled { weight_decay } else { 0.0 }
}

/// Returns 1 − βᵗ, as −expm1(t·ln β), which is accurate in f32 for β near 1.
pub(super) fn correction(t: Expr, ln_b: Expr) -> Expr {
    -(t * ln_b).exp_m1()
}

/// Returns β₂, 1 − β₂, ε and the coupled decay, the parameters of an update of moments.
pub(super) fn update_params(b2: f64, eps: f64, decay: f64) -> [Scalar; 4] {
    [b2, 1.0 - b2, eps, decay].map(Scalar::from)
}

/// Returns the initial state of Adam and AMSGrad.
pub(super) fn adam_state(like: &Tensor, amsgrad: bool) -> Result<RuleState> {
    zeros(like, if amsgrad { &["mean", "square", "largest"] } else { &["mean", "square"] })
}

impl Rule for AdamOptions {
    rule_methods!("adam": check, lr, betas, maximize, weight_decay, step_clock);

    fn state(&self, like: &Tensor) -> Result<RuleState> {
        adam_state(like, self.amsgrad)
    }

    fn tick(&self) -> Option<(&'static Formula, Vec<Scalar>)> {
        // The clock and the rates: (t, η/(1 − β₁ᵗ), 1/√(1 − β₂ᵗ)).
        let tick = formula!(tick |t, lr, one_minus_b1; ln_b2| {
            let t = t + 1.0;
            (t, lr / correction(t, (-one_minus_b1).ln_1p()), correction(t, ln_b2).sqrt().recip())
        });
        Some((tick, vec![ln(self.betas.1)]))
    }

    fn update(&self, context: &UpdateContext<'_>) -> Result<()> {
        let adam = formula!(adam |p, m, v, g, rate, scale, one_minus_b1; b2, one_minus_b2, eps, decay| {
            let (m, v) = update_moments(m, v, g + decay * p, one_minus_b1, b2, one_minus_b2);
            (p - rate * m / (v.sqrt() * scale + eps), m, v)
        });
        let amsgrad = formula!(amsgrad |p, m, v, u, g, rate, scale, one_minus_b1; b2, one_minus_b2, eps, decay| {
            let (m, v) = update_moments(m, v, g + decay * p, one_minus_b1, b2, one_minus_b2);
            let u = u.max(v);
            (p - rate * m / (u.sqrt() * scale + eps), m, v, u)
        });
        let params = update_params(self.betas.1, self.eps, self.weight_decay);
        context.update(if self.amsgrad { amsgrad } else { adam }, &params)
    }
}
