//! AdamW.

use super::{Optimizer, device_scalar, dtype_of, each, named, nonnegative, zeros_like};
use crate::parameter::{Buffer, Parameter};
use pellucid_tensor::{Error, Formula, Result, Scalar, Tensor, formula, no_grad, ops};

/// Options of [`AdamW`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWOptions {
    /// The learning rate η; 0.001.
    pub lr: f64,
    /// β₁ and β₂ in [0, 1): how much of the means of gradients and of their squares is kept;
    /// (0.9, 0.999).
    pub betas: (f64, f64),
    /// ε, which bounds the step where gradients vanish; 10⁻⁸.
    pub eps: f64,
    /// The weight decay λ; 0.01.
    pub weight_decay: f64,
}

impl Default for AdamWOptions {
    fn default() -> AdamWOptions {
        AdamWOptions { lr: 1e-3, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.01 }
    }
}

/// Adam (Kingma & Ba 2015) with decoupled weight decay (Loshchilov & Hutter 2019): in step t
///
/// p ← (1 − η·λ)·p,  m ← β₁·m + (1 − β₁)·g,  v ← β₂·v + (1 − β₂)·g²,
/// p ← p − η·m̂ / (√v̂ + ε)  with m̂ = m / (1 − β₁ᵗ) and v̂ = v / (1 − β₂ᵗ).
///
/// One step count holds for all parameters: one whose first gradient comes late is corrected as if
/// earlier gradients had been 0.
pub struct AdamW {
    parameters: Vec<Parameter>,
    /// m and v, one a parameter.
    mean: Vec<Buffer>,
    square: Vec<Buffer>,
    lr: Buffer,
    clock: Clock,
    options: AdamWOptions,
}

/// What all parameters share in a step; 0-d tensors, so that a replayed step moves them on.
struct Clock {
    /// t, the number of steps so far.
    step: Buffer,
    /// η / (1 − β₁ᵗ)
    rate: Buffer,
    /// 1 / √(1 − β₂ᵗ)
    scale: Buffer,
    /// 1 − η·λ
    shrink: Buffer,
}

impl AdamW {
    /// An optimizer of these parameters, which are all `f32` or all `f64`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for options out of range or a parameter listed twice,
    /// [`Error::DTypeMismatch`].
    pub fn new(parameters: Vec<Parameter>, options: AdamWOptions) -> Result<AdamW> {
        let op = "adamw";
        let dtype = dtype_of(op, &parameters)?;
        nonnegative(op, "lr", options.lr)?;
        nonnegative(op, "eps", options.eps)?;
        nonnegative(op, "weight_decay", options.weight_decay)?;
        let (b1, b2) = options.betas;
        if !(0.0..1.0).contains(&b1) || !(0.0..1.0).contains(&b2) {
            return Err(Error::invalid(op, format!("betas must be in [0, 1), got ({b1}, {b2})")));
        }
        let scalar = |value| device_scalar(value, dtype);
        Ok(AdamW {
            mean: zeros_like(&parameters)?,
            square: zeros_like(&parameters)?,
            lr: scalar(options.lr)?,
            clock: Clock { step: scalar(0.0)?, rate: scalar(0.0)?, scale: scalar(0.0)?, shrink: scalar(0.0)? },
            parameters,
            options,
        })
    }

    /// The number of steps so far, a 0-d tensor.
    pub fn step_tensor(&self) -> &Tensor {
        &self.clock.step
    }

    /// Moves the clock on, once a step.
    fn tick(&self) -> Result<()> {
        let _guard = no_grad();
        let Clock { step, rate, scale, shrink } = &self.clock;
        let (b1, b2) = self.options.betas;
        // ln 0 = −∞ has no product with 0; the smallest number stands in, and β⁰ stays 1.
        let log = |beta: f64| Scalar::from(beta.max(f64::MIN_POSITIVE).ln());
        let params = [log(b1), log(b2), self.options.weight_decay.into()];
        ops::update(tick(), &[step, rate, scale, shrink], &[&self.lr], &params)
    }
}

/// (t, η/(1 − β₁ᵗ), 1/√(1 − β₂ᵗ), 1 − η·λ) from themselves and η. 1 − βᵗ = −expm1(t·ln β) keeps its
/// digits where β is near 1 and the number has but 24 bits.
fn tick() -> &'static Formula {
    formula!(|t, _rate, _scale, _shrink, lr; ln_b1, ln_b2, decay| {
        let t = t + 1.0;
        let (c1, c2) = (-(t * ln_b1).exp_m1(), -(t * ln_b2).exp_m1());
        (t, lr / c1, c2.sqrt().recip(), 1.0 - lr * decay)
    })
}

/// (p, m, v) from p, m, v, g and the clock.
fn adamw() -> &'static Formula {
    formula!(|p, m, v, g, rate, scale, shrink; rest1, b2, rest2, eps| {
        let m = m + rest1 * (g - m);
        let v = b2 * v + rest2 * (g * g);
        (p * shrink - rate * m / (v.sqrt() * scale + eps), m, v)
    })
}

impl Optimizer for AdamW {
    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn lr_tensor(&self) -> &Tensor {
        &self.lr
    }

    fn state(&self) -> Vec<(String, Tensor)> {
        // The rest of the clock is computed anew in every step.
        let scalars = [("lr", &self.lr), ("step", &self.clock.step)];
        let scalars = scalars.into_iter().map(|(name, buffer)| (name.to_string(), buffer.tensor().clone()));
        scalars.chain(named("mean", &self.mean)).chain(named("square", &self.square)).collect()
    }

    fn try_step(&self) -> Result<()> {
        self.tick()?;
        let Clock { rate, scale, shrink, .. } = &self.clock;
        let (b1, b2) = self.options.betas;
        // 1 − β is taken at full width: in f32, 1 − 0.999 has lost three digits.
        let params = [(1.0 - b1).into(), b2.into(), (1.0 - b2).into(), self.options.eps.into()];
        each(&self.parameters, |i, p, g| {
            ops::update(adamw(), &[p, &self.mean[i], &self.square[i]], &[g, rate, scale, shrink], &params)
        })
    }
}
