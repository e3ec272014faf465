//! Position encodings that are added to the elements of a sequence.

use crate::call;
use crate::init;
use crate::input_dtype::check_input_dtype;
use crate::layer::Layer;
use crate::parameter::Parameter;
use pellucid_derive::{Module, panicking_form};
use pellucid_tensor::{DType, Error, Result, Tensor, formula, ops, unwrap};

/// Returns the sinusoidal encoding of positions (Vaswani et al. 2017), `[.., width]` for integers `[..]`: for position
/// p, sin(p·10000^(−2i/width)) at index 2i, and the cosine of the same angle at index 2i + 1.
///
/// # Errors
/// [`Error::DTypeMismatch`] if the dtype of the result is not a float.
pub fn sinusoidal_positions(positions: &Tensor, width: usize, dtype: DType) -> Result<Tensor> {
    if !dtype.is_float() {
        let help = "sinusoidal positions must have a float dtype";
        return Err(Error::dtype_argument("sinusoidal_positions", dtype, help));
    }
    let pair = Tensor::arange(0, width.div_ceil(2) as i64, 1).to_dtype(DType::F64);
    let position = ops::unsqueeze(&ops::to_dtype(positions, DType::F64)?, -1)?;
    let f = formula!(|position, pair; log_base, width| {
        let angle = position * (-2.0 * log_base * pair / width).exp();
        (angle.sin(), angle.cos())
    });
    let waves = ops::map_all(f, &[&position, &pair], &[10_000f64.ln().into(), (width as f64).into()])?;
    let table = ops::flatten(&ops::stack(&[&waves[0], &waves[1]], -1)?, -2, -1)?;
    ops::to_dtype(&ops::narrow(&table, -1, 0, width)?, dtype)
}

/// Returns the positions 0, .., L − 1 of x `[.., L, E]`.
fn positions_of(op: &'static str, x: &Tensor) -> Result<Tensor> {
    match x.rank() {
        0 | 1 => Err(Error::shapes(op, [x.shape()], "x must have shape [.., L, E]")),
        rank => Ok(Tensor::arange(0, x.shape()[rank - 2] as i64, 1)),
    }
}

/// Adds the sinusoidal encoding of positions to x `[.., L, E]`; see [`sinusoidal_positions`]. It has no parameters, and
/// sequences may have any length.
#[derive(Clone, Copy, Debug, Default, Module)]
#[module(display)]
pub struct SinusoidalPositions;

impl Layer for SinusoidalPositions {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let op = "sinusoidal_positions";
        let positions = positions_of(op, x)?;
        if !x.dtype().is_float() {
            return Err(Error::dtypes(op, [x.dtype()], "sinusoidal positions must have a float dtype"));
        }
        ops::add(x, &sinusoidal_positions(&positions, x.shape()[x.rank() - 1], x.dtype())?)
    }
}

/// Adds a trained vector for each position to x `[.., L, E]` (Gehring et al. 2017).
#[derive(Clone, Debug, Module)]
#[module(display)]
pub struct LearnedPositions {
    /// The table of position vectors, `[longest, E]`.
    pub weight: Parameter,
}

impl LearnedPositions {
    /// Creates a table for sequences of at most `longest` elements of this width. Its values are drawn from a normal
    /// distribution with standard deviation 0.02 (Radford et al. 2019).
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_new(longest: usize, width: usize) -> Result<LearnedPositions> {
        Ok(LearnedPositions { weight: init::try_normal([longest, width], 0.0, 0.02)? })
    }

    /// Returns the rows of these positions, `[.., E]` for integers `[..]`.
    ///
    /// # Errors
    /// [`Error::IndexOutOfBounds`] for a position outside the table.
    #[panicking_form]
    pub fn try_forward_rows(&self, positions: &Tensor) -> Result<Tensor> {
        let rows = |x: &Tensor| ops::embedding(&self.weight, x, ops::EmbeddingOptions::default());
        call::call_unary(self, positions, rows)
    }
}

/// The name of the layer in errors.
const LEARNED_POSITIONS: &str = "learned_positions";

impl Layer for LearnedPositions {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        check_input_dtype(LEARNED_POSITIONS, x, &self.weight)?;
        let longest = self.weight.shape()[0];
        let length = positions_of(LEARNED_POSITIONS, x)?.size();
        if length > longest {
            let help = format!("the sequence must have at most {longest} elements; create a longer table");
            return Err(Error::shapes(LEARNED_POSITIONS, [x.shape()], help));
        }
        let sum = ops::narrow(&self.weight, 0, 0, length).and_then(|rows| ops::add(x, &rows));
        call::name_layer(LEARNED_POSITIONS, sum)
    }
}
