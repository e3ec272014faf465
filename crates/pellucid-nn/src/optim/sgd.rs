//! Stochastic gradient descent.

use super::rule::{Momentum, Rule, RuleState, UpdateContext, zeros};
use crate::option_range::check_options;
use pellucid_tensor::{Error, Formula, Result, Scalar, Tensor, formula};

/// Stochastic gradient descent (Robbins & Monro 1951) with momentum (Polyak 1964), as in PyTorch:
///
/// g ← g + λ·p,  v ← μ·v + (1 − τ)·g,  p ← p − η·v;  with Nesterov's momentum p ← p − η·(g + μ·v).
/// The first step uses no dampening: v ← g.
#[doc(alias = "SGD")]
pub type Sgd = super::RuleOptimizer<SgdOptions>;

/// Options of [`Sgd`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdOptions {
    /// The learning rate η; default 0.001.
    pub lr: f64,
    /// The momentum μ in [0, 1), the factor of the previous velocity; default 0.
    pub momentum: f64,
    /// The dampening τ in [0, 1]: the gradient's weight in the velocity is 1 − τ; default 0.
    pub dampening: f64,
    /// Whether to use Nesterov's momentum (Nesterov 1983; Sutskever et al. 2013), which needs momentum and no
    /// dampening; default false.
    pub nesterov: bool,
    /// The weight decay λ, added to the gradient as λ·p; default 0.
    pub weight_decay: f64,
    /// Whether to maximise the loss; default false.
    pub maximize: bool,
}

impl Default for SgdOptions {
    fn default() -> SgdOptions {
        SgdOptions { lr: 0.001, momentum: 0.0, dampening: 0.0, nesterov: false, weight_decay: 0.0, maximize: false }
    }
}

impl SgdOptions {
    fn is_dampened(&self) -> bool {
        self.momentum > 0.0 && self.dampening != 0.0
    }
}

impl Rule for SgdOptions {
    const NAME: &'static str = "sgd";

    fn check(&self) -> Result<()> {
        check_options!(Self::NAME, self;
            NONNEGATIVE: lr, weight_decay;
            FRACTION: momentum;
            PROBABILITY: dampening;
        );
        if self.nesterov && (self.momentum == 0.0 || self.dampening != 0.0) {
            return Err(Error::invalid(Self::NAME, "nesterov requires a momentum above 0 and a dampening of 0"));
        }
        Ok(())
    }

    fn lr(&self) -> f64 {
        self.lr
    }

    fn momentum(&self) -> Option<Momentum> {
        (self.momentum > 0.0).then_some(Momentum::Kept(self.momentum))
    }

    fn maximize(&self) -> bool {
        self.maximize
    }

    fn without_decay(&self) -> SgdOptions {
        SgdOptions { weight_decay: 0.0, ..*self }
    }

    fn state(&self, like: &Tensor) -> Result<RuleState> {
        zeros(like, if self.momentum > 0.0 { &["velocity"] } else { &[] })
    }

    fn clock(&self) -> Vec<(&'static str, f64)> {
        if self.is_dampened() { vec![("step", 0.0)] } else { vec![] }
    }

    fn tick(&self) -> Option<(&'static Formula, Vec<Scalar>)> {
        let joins = formula!(joins |t, lr, _momentum; rest| {
            let t = t + 1.0;
            (t, lr, t.le(1.0).select(1.0, rest))
        });
        self.is_dampened().then(|| (joins, vec![(1.0 - self.dampening).into()]))
    }

    fn update(&self, at: &UpdateContext<'_>) -> Result<()> {
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
        at.fused(formula, &[self.weight_decay.into()])
    }
}
