//! Muon.

use super::options::{options, rule_methods};
use super::rule::{Momentum, Rule, RuleState, UpdateContext, zeros};
use pellucid_tensor::{DType, Error, Result, Tensor, formula, ops};

/// Muon, orthogonalised momentum by Newton-Schulz iterations (Jordan et al. 2024), for the matrices of hidden layers:
///
/// b ← μ·b + (1 − μ)·g,  u = μ·b + (1 − μ)·g with Nesterov's momentum, else b,  x = u / max(‖u‖, ε),
/// k times x ← a·x + (b₂·xxᵀ + c·(xxᵀ)²)·x,  p ← (1 − η·λ)·p − η·s·x,
///
/// where s depends on the shape ([`MuonLr`]). The polynomial maps all singular values close to 1. A matrix with more
/// rows than columns is transposed first. The iteration needs little precision and runs in `bf16` by default. Give
/// other parameters (biases, embeddings, heads) to another optimizer, such as [`AdamW`](super::AdamW).
pub type Muon = super::RuleOptimizer<MuonOptions>;

options! {
    /// Options of [`Muon`].
    #[derive(Clone, Copy, Debug, PartialEq)]
    MuonOptions {
        /// The learning rate η.
        lr: f64 = 1e-3 => NONNEGATIVE;
        /// The weight decay λ.
        weight_decay: f64 = 0.1 => NONNEGATIVE;
        /// The momentum μ in [0, 1).
        momentum: f64 = 0.95 => FRACTION;
        /// Whether to use Nesterov's momentum.
        nesterov: bool = true;
        /// The coefficients (a, b₂, c) of the polynomial.
        ns_coefficients: (f64, f64, f64) = (3.4445, -4.775, 2.0315);
        /// The lower bound of the norm in the division.
        eps: f64 = 1e-7 => NONNEGATIVE;
        /// The number k of Newton-Schulz iterations.
        ns_steps: usize = 5;
        /// The dtype of the Newton-Schulz iteration: `bf16` as in PyTorch, or another float. `None` means the state's
        /// dtype.
        ns_dtype: Option<DType> = Some(DType::BF16);
        /// The adjustment of the learning rate to the shape.
        adjust_lr: MuonLr = MuonLr::Original;
    }
}

/// The factor of Muon's learning rate for a matrix of shape [rows, columns].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MuonLr {
    /// The factor √max(1, rows/columns) (Jordan et al. 2024).
    #[default]
    Original,
    /// The factor 0.2·√max(rows, columns), with which AdamW's learning rate and decay can be used (Liu et al. 2025).
    MatchRmsAdamW,
    /// The factor √(rows/columns) (Bernstein 2025).
    SpectralUnclamped,
}

impl MuonLr {
    fn factor(self, dims: &[usize]) -> f64 {
        let (rows, columns) = (dims[0] as f64, dims[1] as f64);
        match self {
            MuonLr::Original => (rows / columns).max(1.0).sqrt(),
            MuonLr::MatchRmsAdamW => 0.2 * rows.max(columns).sqrt(),
            MuonLr::SpectralUnclamped => (rows / columns).sqrt(),
        }
    }
}

impl MuonOptions {
    /// Runs the Newton-Schulz iteration. In half precision, sums of products are accumulated in `f32` and rounded once,
    /// after the addition.
    fn orthogonal(&self, u: &Tensor) -> Result<Tensor> {
        let dtype = self.ns_dtype.unwrap_or(u.dtype());
        let rounded = |x: &Tensor| ops::to_dtype(x, dtype);
        let full = |x: &Tensor| ops::to_dtype(x, dtype.promote(DType::F32));
        let is_tall = u.shape().dims()[0] > u.shape().dims()[1];
        let u = rounded(u)?;
        let norm = rounded(&ops::norm(&full(&u)?, 2.0, ..)?)?;
        let mut x = ops::map(formula!(|u, norm; eps| u / norm.max(eps)), &[&u, &norm], &[self.eps.into()])?;
        if is_tall {
            x = ops::t(&x)?;
        }
        let (a, b, c) = self.ns_coefficients;
        for _ in 0..self.ns_steps {
            let before = full(&x)?;
            let gram = full(&rounded(&ops::matmul(&before, &ops::t(&before)?)?)?)?;
            let twice = ops::matmul(&gram, &gram)?;
            let mixed = ops::map(formula!(|y, z; b, c| b * y + c * z), &[&gram, &twice], &[b.into(), c.into()])?;
            let moved = ops::matmul(&full(&rounded(&mixed)?)?, &before)?;
            x = rounded(&ops::map(formula!(|x, y; a| a * x + y), &[&before, &moved], &[a.into()])?)?;
        }
        if is_tall { ops::t(&x) } else { Ok(x) }
    }
}

impl Rule for MuonOptions {
    rule_methods!("muon": lr, weight_decay);

    fn check(&self) -> Result<()> {
        self.check_ranges(self.name())?;
        if let Some(dtype) = self.ns_dtype.filter(|dtype| !dtype.is_float()) {
            return Err(Error::dtype_argument(
                self.name(),
                dtype,
                "ns_dtype must be a float dtype, such as DType::BF16",
            ));
        }
        Ok(())
    }

    fn momentum(&self) -> Option<Momentum> {
        Some(Momentum::Kept(self.momentum))
    }

    fn state(&self, like: &Tensor) -> Result<RuleState> {
        if like.rank() != 2 {
            let help = "muon updates matrices only; give other parameters to another optimizer";
            return Err(Error::shapes(self.name(), [like.shape()], help));
        }
        zeros(like, &["velocity"])
    }

    fn update(&self, context: &UpdateContext<'_>) -> Result<()> {
        let mix = formula!(mix | b, g, momentum | b + (1.0 - momentum) * (g - b));
        let ahead = formula!(ahead | b, g, momentum | g + momentum * (b - g));
        let ([lr, momentum], [velocity], g) = (context.rates()?, context.states()?, context.gradient()?);
        context.update_states(mix, &[velocity], &[&g, momentum], &[])?;
        let u = if self.nesterov { ops::map(ahead, &[velocity, &g, momentum], &[])? } else { velocity.clone() };
        let shrunk = formula!(shrunk |p, x, lr; decay, s| p * (1.0 - lr * decay) - lr * s * x);
        let s = self.adjust_lr.factor(u.shape().dims());
        let x = ops::to_dtype(&self.orthogonal(&u)?, u.dtype())?;
        context.update_parameter(shrunk, &[&x, lr], &[self.weight_decay.into(), s.into()])
    }
}
