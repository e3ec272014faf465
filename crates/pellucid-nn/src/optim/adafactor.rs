//! Adafactor.

use super::options::{options, rule_methods};
use super::rule::{Rule, RuleState, UpdateContext, zeros};
use pellucid_tensor::OptionRange;
use pellucid_tensor::ops::over;
use pellucid_tensor::{DType, Formula, Result, Scalar, Tensor, formula, ops};

/// Adafactor (Shazeer & Stern 2018), as in PyTorch. It stores second moments factored into a row and a column: in
/// step t, with ρₜ = min(η, 1/√t) and β̂ₜ = 1 − t^κ,
///
/// α = max(ε₂, rms(p))·ρₜ,  p ← (1 − η·λ)·p,  r ← β̂ₜ·r + (1 − β̂ₜ)·mean(g², last axis),
/// c ← β̂ₜ·c + (1 − β̂ₜ)·mean(g², last axis but one),  v̂ = r·c / max(mean(r), ε₁),
/// u = g / √max(v̂, ε₁²),  p ← p − α·u / max(1, rms(u)/d).
///
/// For a parameter of fewer than two axes it stores v̂ ← β̂ₜ·v̂ + (1 − β̂ₜ)·g² itself.
pub type Adafactor = super::RuleOptimizer<AdafactorOptions>;

options! {
    /// Options of [`Adafactor`].
    #[derive(Clone, Copy, Debug, PartialEq)]
    AdafactorOptions {
        /// The learning rate η.
        lr: f64 = 1e-2 => NONNEGATIVE;
        /// The exponent κ ≤ 0 of the decay rate of squares.
        beta2_decay: f64 = -0.8 => NONPOSITIVE;
        /// ε₁ (`None` means the machine epsilon of the state's dtype) and ε₂.
        eps: (Option<f64>, f64) = (None, 1e-3) => NONNEGATIVE(1);
        /// The clipping threshold d ≥ 1 of the root mean square of an update.
        d: f64 = 1.0 => AT_LEAST_ONE;
        /// The weight decay λ.
        weight_decay: f64 = 0.0 => NONNEGATIVE;
        /// Whether to maximize the loss.
        maximize: bool = false;
    }
}

impl Rule for AdafactorOptions {
    rule_methods!("adafactor": lr, maximize, weight_decay, step_clock);

    fn check(&self) -> Result<()> {
        self.check_ranges(self.name())?;
        self.eps.0.map_or(Ok(()), |eps| OptionRange::NONNEGATIVE.check(self.name(), "eps.0", eps, 1e-7))
    }

    fn state(&self, like: &Tensor) -> Result<RuleState> {
        if like.rank() < 2 {
            return zeros(like, &["square"]);
        }
        let without = |axis: usize| {
            let mut dims = like.shape().dims().to_vec();
            dims[axis] = 1;
            ops::zeros(dims, like.dtype())
        };
        Ok(vec![("row", without(like.rank() - 1)?), ("column", without(like.rank() - 2)?)])
    }

    fn tick(&self) -> Option<(&'static Formula, Vec<Scalar>)> {
        // The clock and the rates: (t, 1 − β̂, ρ, 1 − η·λ).
        let tick = formula!(tick |t, lr; power, decay| {
            let t = t + 1.0;
            (t, t.pow(power), lr.min(t.sqrt().recip()), 1.0 - lr * decay)
        });
        Some((tick, vec![self.beta2_decay.into(), self.weight_decay.into()]))
    }

    fn update(&self, context: &UpdateContext<'_>) -> Result<()> {
        let mix = formula!(mix | old, new, weight | old + weight * (new - old));
        let vector = formula!(vector |g, v; eps| g / v.max(eps * eps).sqrt());
        let matrix = formula!(matrix |g, row, column, mean; eps| {
            g / (row * column / mean.max(eps)).max(eps * eps).sqrt()
        });
        let rate = formula!(rate |of_p, of_u, rho; eps, root, d| {
            (of_p / root).max(eps) * rho / (of_u / (root * d)).max(1.0)
        });
        let [weight, rho, decay_factor] = context.rates()?;
        let (p, g) = (context.parameter()?, context.gradient()?);
        let eps = self.eps.0.or_else(|| p.dtype().promote(DType::F32).epsilon()).unwrap_or_default();
        let square = ops::square(&g)?;
        let u = if p.rank() < 2 {
            let [mean] = context.states()?;
            context.update_states(mix, &[mean], &[&square, weight], &[])?;
            ops::map(vector, &[&g, mean], &[eps.into()])?
        } else {
            let [row, column] = context.states()?;
            context.update_states(mix, &[row], &[&ops::mean(&square, over(-1).keepdims())?, weight], &[])?;
            context.update_states(mix, &[column], &[&ops::mean(&square, over(-2).keepdims())?, weight], &[])?;
            let mean = ops::mean(row, over(-2).keepdims())?;
            ops::map(matrix, &[&g, row, column, &mean], &[eps.into()])?
        };
        let norms = (ops::norm(p, 2.0, ..)?, ops::norm(&u, 2.0, ..)?);
        let params = [self.eps.1.into(), (p.size() as f64).sqrt().into(), self.d.into()];
        let rate = ops::map(rate, &[&norms.0, &norms.1, rho], &params)?;
        let descent = formula!(descent | p, u, rate, decay_factor | p * decay_factor - rate * u);
        context.update_parameter(descent, &[&u, &rate, decay_factor], &[])
    }
}
