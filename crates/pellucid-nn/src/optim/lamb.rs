//! LAMB.

use super::adam::{adam_state, correction, update_moments};
use super::options::{options, rule_methods};
use super::rule::{Rule, RuleState, UpdateContext, ln};
use pellucid_tensor::{Formula, Result, Scalar, Tensor, formula, ops};

/// LAMB, layerwise adaptive moments for large batches (You et al. 2020, algorithm 2): in step t,
///
/// m ← β₁·m + (1 − β₁)·g,  v ← β₂·v + (1 − β₂)·g²,  r = m̂ / (√v̂ + ε) + λ·p  with m̂ = m / (1 − β₁ᵗ) and
/// v̂ = v / (1 − β₂ᵗ),  p ← p − η·(‖p‖ / ‖r‖)·r.
///
/// Norms are 2-norms of an entire parameter; the ratio is 1 if one of them is 0.
#[doc(alias = "LAMB")]
pub type Lamb = super::RuleOptimizer<LambOptions>;

options! {
    /// Options of [`Lamb`].
    #[derive(Clone, Copy, Debug, PartialEq)]
    LambOptions {
        /// The learning rate η.
        lr: f64 = 1e-3 => NONNEGATIVE;
        /// The decay rates β₁ and β₂ in [0, 1) of the running means of gradients and of their squares.
        betas: (f64, f64) = (0.9, 0.999) => FRACTION(0, 1);
        /// ε, added to the denominator for stability.
        eps: f64 = 1e-6 => NONNEGATIVE;
        /// The weight decay λ.
        weight_decay: f64 = 0.01 => NONNEGATIVE;
        /// Whether to maximize the loss.
        maximize: bool = false;
    }
}

impl Rule for LambOptions {
    rule_methods!("lamb": check, lr, betas, maximize, weight_decay, step_clock);

    fn state(&self, like: &Tensor) -> Result<RuleState> {
        adam_state(like, false)
    }

    fn tick(&self) -> Option<(&'static Formula, Vec<Scalar>)> {
        // The clock and the rates: (t, η, 1/(1 − β₁ᵗ), 1/√(1 − β₂ᵗ)).
        let tick = formula!(tick |t, lr, one_minus_b1; ln_b2| {
            let t = t + 1.0;
            (t, lr, correction(t, (-one_minus_b1).ln_1p()).recip(), correction(t, ln_b2).sqrt().recip())
        });
        Some((tick, vec![ln(self.betas.1)]))
    }

    fn update(&self, context: &UpdateContext<'_>) -> Result<()> {
        let track = formula!(track |m, v, g, one_minus_b1; b2, one_minus_b2| {
            update_moments(m, v, g, one_minus_b1, b2, one_minus_b2)
        });
        let direction = formula!(direction |p, m, v, unbias, scale; eps, decay| {
            unbias * m / (v.sqrt() * scale + eps) + decay * p
        });
        let trust = formula!(
            trust | of_p,
            of_r,
            lr | {
                let both = of_p.gt(0.0) & of_r.gt(0.0);
                lr * both.select(of_p / of_r, 1.0)
            }
        );
        let ([lr, unbias, scale, one_minus_b1], [m, v]) = (context.rates()?, context.states()?);
        let (p, b2) = (context.parameter()?, self.betas.1);
        context.update_states(
            track,
            &[m, v],
            &[&context.gradient()?, one_minus_b1],
            &[b2.into(), (1.0 - b2).into()],
        )?;
        let params = [self.eps.into(), self.weight_decay.into()];
        let r = ops::map(direction, &[p, m, v, unbias, scale], &params)?;
        let norms = (ops::norm(p, 2.0, ..)?, ops::norm(&r, 2.0, ..)?);
        let rate = ops::map(trust, &[&norms.0, &norms.1, lr], &[])?;
        context.update_parameter(formula!(|p, r, rate| p - rate * r), &[&r, &rate], &[])
    }
}
