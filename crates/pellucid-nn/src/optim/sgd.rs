//! Stochastic gradient descent.

use super::{Optimizer, device_scalar, dtype_of, each, named, nonnegative, zeros_like};
use crate::parameter::{Buffer, Parameter};
use pellucid_tensor::{Error, Formula, Result, Tensor, formula, ops};

/// Options of [`Sgd`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdOptions {
    /// The learning rate η; 0.01.
    pub lr: f64,
    /// The momentum μ in [0, 1): how much of the velocity is kept; 0.
    pub momentum: f64,
    /// Looks ahead along the velocity (Nesterov 1983; Sutskever et al. 2013); needs momentum.
    pub nesterov: bool,
    /// The weight decay λ, added to the gradient as λ·p; 0.
    pub weight_decay: f64,
}

impl Default for SgdOptions {
    fn default() -> SgdOptions {
        SgdOptions { lr: 0.01, momentum: 0.0, nesterov: false, weight_decay: 0.0 }
    }
}

/// Stochastic gradient descent (Robbins & Monro 1951) with momentum (Polyak 1964), as PyTorch has it:
///
/// g ← g + λ·p,  v ← μ·v + g,  p ← p − η·v;  with Nesterov's momentum p ← p − η·(g + μ·v).
pub struct Sgd {
    parameters: Vec<Parameter>,
    /// One a parameter, or none without momentum.
    velocity: Vec<Buffer>,
    lr: Buffer,
    options: SgdOptions,
}

impl Sgd {
    /// An optimizer of these parameters, which are all `f32` or all `f64`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for options out of range or a parameter listed twice,
    /// [`Error::DTypeMismatch`].
    pub fn new(parameters: Vec<Parameter>, options: SgdOptions) -> Result<Sgd> {
        let op = "sgd";
        let dtype = dtype_of(op, &parameters)?;
        nonnegative(op, "lr", options.lr)?;
        nonnegative(op, "weight_decay", options.weight_decay)?;
        if !(0.0..1.0).contains(&options.momentum) {
            return Err(Error::invalid(op, format!("momentum must be in [0, 1), got {}", options.momentum)));
        }
        if options.nesterov && options.momentum == 0.0 {
            return Err(Error::invalid(op, "nesterov needs a momentum above 0"));
        }
        let velocity = if options.momentum > 0.0 { zeros_like(&parameters)? } else { Vec::new() };
        Ok(Sgd { parameters, velocity, lr: device_scalar(options.lr, dtype)?, options })
    }
}

/// (p) from p, g, η.
fn plain() -> &'static Formula {
    formula!(|p, g, lr; decay| p - lr * (g + decay * p))
}

/// (p, v) from p, v, g, η.
fn heavy_ball() -> &'static Formula {
    formula!(|p, v, g, lr; decay, momentum| {
        let v = momentum * v + (g + decay * p);
        (p - lr * v, v)
    })
}

/// (p, v) from p, v, g, η.
fn nesterov() -> &'static Formula {
    formula!(|p, v, g, lr; decay, momentum| {
        let g = g + decay * p;
        let v = momentum * v + g;
        (p - lr * (g + momentum * v), v)
    })
}

impl Optimizer for Sgd {
    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn lr_tensor(&self) -> &Tensor {
        &self.lr
    }

    fn state(&self) -> Vec<(String, Tensor)> {
        let lr = [("lr".to_string(), self.lr.tensor().clone())];
        lr.into_iter().chain(named("velocity", &self.velocity)).collect()
    }

    fn try_step(&self) -> Result<()> {
        let decay = self.options.weight_decay.into();
        if self.velocity.is_empty() {
            return each(&self.parameters, |_, p, g| ops::update(plain(), &[p], &[g, &self.lr], &[decay]));
        }
        let formula = if self.options.nesterov { nesterov() } else { heavy_ball() };
        let params = [decay, self.options.momentum.into()];
        each(&self.parameters, |i, p, g| ops::update(formula, &[p, &self.velocity[i]], &[g, &self.lr], &params))
    }
}
