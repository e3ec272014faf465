//! Rprop.

use super::options::{options, rule_methods};
use super::rule::{Rule, RuleState, UpdateContext, zeros};
use pellucid_tensor::{Error, Formula, Result, Scalar, Tensor, formula};

/// Rprop, resilient backpropagation (Riedmiller & Braun 1993), as in PyTorch. Every element has its own step size Δ,
/// which depends only on signs of gradients. With the previous gradient g′,
///
/// Δ ← clamp(Δ·η⁺) if g·g′ > 0;  Δ ← clamp(Δ·η⁻) and g ← 0 if g·g′ < 0;  p ← p − Δ·sign(g).
///
/// The learning rate is the initial Δ of a parameter, and has no effect later.
pub type Rprop = super::RuleOptimizer<RpropOptions>;

options! {
    /// Options of [`Rprop`].
    #[derive(Clone, Copy, Debug, PartialEq)]
    RpropOptions {
        /// The initial Δ.
        lr: f64 = 1e-2 => NONNEGATIVE;
        /// η⁻ in (0, 1) and η⁺ above 1.
        etas: (f64, f64) = (0.5, 1.2);
        /// The lower and the upper bound of Δ.
        step_sizes: (f64, f64) = (1e-6, 50.0) => NONNEGATIVE(0, 1);
        /// Whether to maximize the loss.
        maximize: bool = false;
    }
}

impl Rule for RpropOptions {
    rule_methods!("rprop": lr, maximize, step_clock);

    fn check(&self) -> Result<()> {
        let ((down, up), (min_step, max_step)) = (self.etas, self.step_sizes);
        if !(down > 0.0 && down < 1.0 && up > 1.0 && up.is_finite()) {
            return Err(Error::invalid(
                self.name(),
                format!(
                    "etas.0 must be in (0, 1), and etas.1 finite and above 1, got ({down}, {up}); the defaults are \
                     (0.5, 1.2)"
                ),
            ));
        }
        self.check_ranges(self.name())?;
        if max_step < min_step {
            return Err(Error::invalid(
                self.name(),
                format!("step_sizes.0 must be at most step_sizes.1, got ({min_step}, {max_step})"),
            ));
        }
        Ok(())
    }

    fn state(&self, like: &Tensor) -> Result<RuleState> {
        zeros(like, &["before", "step_size"])
    }

    fn tick(&self) -> Option<(&'static Formula, Vec<Scalar>)> {
        // The rate is η in the first step and 0 in all other steps.
        Some((formula!(tick | t, lr | (t + 1.0, t.eq(0.0).select(lr, 0.0))), vec![]))
    }

    fn update(&self, context: &UpdateContext<'_>) -> Result<()> {
        let rprop = formula!(rprop |p, before, size, g, first; down, up, min_step, max_step| {
            let agreement = g * before;
            let sign_changed = agreement.lt(0.0);
            let size = (size + first) * agreement.gt(0.0).select(up, sign_changed.select(down, 1.0));
            let (size, g) = (size.clamp(min_step, max_step), sign_changed.select(0.0, g));
            (p - g.signum() * size, g, size)
        });
        let ((down, up), (min_step, max_step)) = (self.etas, self.step_sizes);
        context.update(rprop, &[down.into(), up.into(), min_step.into(), max_step.into()])
    }
}
