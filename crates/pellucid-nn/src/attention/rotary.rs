//! Rotary position embeddings.

use pellucid_derive::panicking_form;
use pellucid_tensor::{DType, Error, OptionRange, Result, Tensor, formula, ops, unwrap};

/// The pairs of elements that a rotary position embedding rotates together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RotaryPairing {
    /// Elements 2i and 2i + 1, as in the paper.
    #[default]
    Neighbours,
    /// Elements i and i + D/2 of a head of width D, as in GPT-NeoX and in the Hugging Face weights of LLaMA.
    Halves,
}

/// Rotary position embedding (Su et al. 2021): at position p, the i-th pair of elements of a query or key of width D,
/// as a complex number, is rotated by the angle p·base^(−2i/D). Scores then depend on positions only through their
/// differences.
///
/// ```
/// use pellucid::nn::Rotary;
/// use pellucid::Tensor;
/// let x = Tensor::from([[1.0f64, 0.0], [1.0, 0.0]]);
/// let y = Rotary::default().rotate(&x, &Tensor::from([0i64, 1]));
/// assert_eq!(y.to_vec::<f64>(), [1.0, 0.0, 1f64.cos(), 1f64.sin()]);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rotary {
    /// The base of the geometric sequence of frequencies, from 1 down towards 1/base; finite and above 0.
    pub base: f64,
    /// The elements that form a pair.
    pub pairs: RotaryPairing,
}

impl Default for Rotary {
    fn default() -> Rotary {
        Rotary { base: 10_000.0, pairs: RotaryPairing::default() }
    }
}

/// The name of the operation in errors.
const OP: &str = "rotary";

impl Rotary {
    /// Returns an error for a base out of range.
    pub(super) fn check(&self) -> Result<()> {
        OptionRange::POSITIVE.check(OP, "base", self.base, Rotary::default().base)
    }

    /// Rotates x `[.., L, D]` by its positions: integers that broadcast to `[.., L]`. Angles are computed in `f64`.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if D is odd, or positions do not broadcast; [`Error::DTypeMismatch`] unless x has a
    /// float dtype; [`Error::InvalidArgument`] for a base out of range.
    #[panicking_form]
    pub fn try_rotate(&self, x: &Tensor, positions: &Tensor) -> Result<Tensor> {
        self.check()?;
        let op = OP;
        if x.rank() < 2 || !x.shape()[x.rank() - 1].is_multiple_of(2) {
            return Err(Error::shapes(op, [x.shape()], "x must have shape [.., L, D] with an even D"));
        }
        if !x.dtype().is_float() {
            return Err(Error::dtypes(op, [x.dtype()], "`x` must have a float dtype; use to_dtype()"));
        }
        let position_shape = &x.shape()[..x.rank() - 1];
        if !positions.shape().broadcasts_to(&position_shape.into()) {
            let help = "the positions must broadcast to the shape of x without the last axis";
            return Err(Error::shapes(op, [x.shape(), positions.shape()], help));
        }
        let half = x.shape()[x.rank() - 1] / 2;
        let pair = Tensor::arange(0, half as i64, 1).to_dtype(DType::F64);
        let position = ops::unsqueeze(&ops::to_dtype(positions, DType::F64)?, -1)?;
        let f = formula!(|position, pair; log_base, half| {
            let angle = position * (-log_base * pair / half).exp();
            (angle.cos(), angle.sin())
        });
        let cos_sin = ops::map_all(f, &[&position, &pair], &[self.base.ln().into(), (half as f64).into()])?;
        let [cos, sin] = [ops::to_dtype(&cos_sin[0], x.dtype())?, ops::to_dtype(&cos_sin[1], x.dtype())?];
        let (a, b) = match self.pairs {
            RotaryPairing::Neighbours => {
                let pairs = ops::unflatten(x, -1, [half, 2])?;
                (ops::select(&pairs, -1, 0)?, ops::select(&pairs, -1, 1)?)
            }
            RotaryPairing::Halves => (ops::narrow(x, -1, 0, half)?, ops::narrow(x, -1, half, half)?),
        };
        let f = formula!(|a, b, cos, sin| (a * cos - b * sin, a * sin + b * cos));
        let rotated = ops::map_all(f, &[&a, &b, &cos, &sin], &[])?;
        match self.pairs {
            RotaryPairing::Neighbours => ops::flatten(&ops::stack(&[&rotated[0], &rotated[1]], -1)?, -2, -1),
            RotaryPairing::Halves => ops::concatenate(&[&rotated[0], &rotated[1]], -1),
        }
    }
}
