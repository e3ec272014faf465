//! Stochastic gradient descent.

use super::options::{options, rule_methods};
use super::rule::{Rule, RuleState, UpdateContext, zeros};
use pellucid_tensor::{Error, Formula, Result, Scalar, Tensor, formula};

/// Stochastic gradient descent (Robbins & Monro 1951) with momentum (Polyak 1964), as in PyTorch:
///
/// g ← g + λ·p,  v ← μ·v + (1 − τ)·g,  p ← p − η·v;  with Nesterov's momentum p ← p − η·(g + μ·v).
/// The first step uses no dampening: v ← g.
#[doc(alias = "SGD")]
pub type Sgd = super::RuleOptimizer<SgdOptions>;

options! {
    /// Options of [`Sgd`].
    #[derive(Clone, Copy, Debug, PartialEq)]
    SgdOptions {
        /// The learning rate η.
        lr: f64 = 0.001 => NONNEGATIVE;
        /// The momentum μ in [0, 1), the factor of the previous velocity.
        momentum: f64 = 0.0 => FRACTION;
        /// The dampening τ in [0, 1]: the gradient's weight in the velocity is 1 − τ.
        dampening: f64 = 0.0 => PROBABILITY;
        /// Whether to use Nesterov's momentum (Nesterov 1983; Sutskever et al. 2013), which needs momentum and no
        /// dampening.
        nesterov: bool = false;
        /// The weight decay λ, added to the gradient as λ·p.
        weight_decay: f64 = 0.0 => NONNEGATIVE;
        /// Whether to maximize the loss.
        maximize: bool = false;
    }
}

impl SgdOptions {
    fn is_dampened(&self) -> bool {
        self.momentum > 0.0 && self.dampening != 0.0
    }
}

impl Rule for SgdOptions {
    rule_methods!("sgd": lr, momentum, maximize, weight_decay);

    fn check(&self) -> Result<()> {
        self.check_ranges(self.name())?;
        if self.nesterov && (self.momentum == 0.0 || self.dampening != 0.0) {
            let SgdOptions { momentum, dampening, .. } = self;
            let reason = format!(
                "`nesterov` requires a momentum above 0 and a dampening of 0, got momentum {momentum} and dampening \
                 {dampening}"
            );
            return Err(Error::invalid(self.name(), reason));
        }
        Ok(())
    }

    fn state(&self, like: &Tensor) -> Result<RuleState> {
        zeros(like, if self.momentum > 0.0 { &["velocity"] } else { &[] })
    }

    fn clock(&self) -> Vec<(&'static str, f64)> {
        if self.is_dampened() { vec![("step", 0.0)] } else { vec![] }
    }

    fn tick(&self) -> Option<(&'static Formula, Vec<Scalar>)> {
        let joins = formula!(joins |t, lr, _momentum; one_minus_dampening| {
            let t = t + 1.0;
            (t, lr, t.le(1.0).select(1.0, one_minus_dampening))
        });
        self.is_dampened().then(|| (joins, vec![(1.0 - self.dampening).into()]))
    }

    fn update(&self, context: &UpdateContext<'_>) -> Result<()> {
        let sgd = formula!(sgd |p, g, lr; decay| p - lr * (g + decay * p));
        let sgd_momentum = formula!(sgd_momentum |p, v, g, lr, momentum; decay| {
            let v = momentum * v + (g + decay * p);
            (p - lr * v, v)
        });
        let sgd_dampened = formula!(sgd_dampened |p, v, g, lr, joins, momentum; decay| {
            let v = momentum * v + joins * (g + decay * p);
            (p - lr * v, v)
        });
        let sgd_nesterov = formula!(sgd_nesterov |p, v, g, lr, momentum; decay| {
            let g = g + decay * p;
            let v = momentum * v + g;
            (p - lr * (g + momentum * v), v)
        });
        let formula = match self {
            _ if self.momentum == 0.0 => sgd,
            _ if self.nesterov => sgd_nesterov,
            _ if self.is_dampened() => sgd_dampened,
            _ => sgd_momentum,
        };
        context.update(formula, &[self.weight_decay.into()])
    }
}
