//! L·D·Lᵀ of symmetric matrices that need not be positive, and equations solved with it.

use super::{common_batch, factor, matrices, promoted, regular, square, stretch};
use crate::array::Array;
use crate::autograd::{
    Arrays, Gradients, InputGradients, Needed, Operation, Saved, Saves, apply, apply_one, is_recorded,
};
use crate::ops;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::kernel::Factor;
use pellucid_ir::{DType, Error, Result, Shape};

/// Either kernel; none has a gradient.
struct Ldl(Factor);

impl Operation for Ldl {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn forward(&self, inputs: &[&Array], _: &mut Saves) -> Result<Arrays> {
        factor(self.0, inputs)
    }
    fn backward(&self, _: &Saved, _: &Gradients, _: Needed) -> Result<InputGradients> {
        Err(Error::NoGradient { op: self.0.name() })
    }
}

/// P·A·Pᵀ = L·D·Lᵀ for symmetric A `[.., n, n]`, of which the lower triangle is read, by the pivoting of Bunch and
/// Kaufman (1977): L is lower triangular with ones on its diagonal, D has blocks of one and of two. The results are
/// those of LAPACK's `sytrf`: D, and L below its blocks, in one matrix; and the pivots, `i32 [.., n]`, of which those
/// of a block of two are negative. [`ldl_solve`] takes both.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::NoGradient`] if A requires a gradient;
/// [`Error::Singular`] for a zero block of D (where work is deferred, nothing is said).
#[tensor_method]
pub fn ldl_factor(a: &Tensor) -> Result<(Tensor, Tensor)> {
    let (packed, pivots, info) = factored("ldl_factor", a)?;
    regular(
        "ldl_factor",
        &info,
        |place| format!("singular (block {place} of its D is 0)"),
        "; pinv() and lstsq() take it",
    )?;
    Ok((packed, pivots))
}

/// [`ldl_factor`] that goes on: the third result (`i32`) is 0, or the place, from 1, of the first zero block of D.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::NoGradient`] if A requires a gradient.
#[tensor_method]
pub fn ldl_factor_ex(a: &Tensor) -> Result<(Tensor, Tensor, Tensor)> {
    factored("ldl_factor_ex", a)
}

fn factored(op: &'static str, a: &Tensor) -> Result<(Tensor, Tensor, Tensor)> {
    square(op, a)?;
    if is_recorded(&[a]) {
        return Err(Error::NoGradient { op });
    }
    let outputs = apply(Ldl(Factor::Ldl), &[a])?;
    Ok((outputs[0].clone(), outputs[1].clone(), outputs[2].clone()))
}

/// Symmetric A's factors and pivots, as [`ldl_factor`] gives them, to X with A·X = B, B `[.., n, k]`. Batch axes
/// broadcast. Of singular A, X has infinities or NaN.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::InvalidArgument`] for pivots that are none;
/// [`Error::NoGradient`] if the factors or B require a gradient.
#[tensor_method]
pub fn ldl_solve(packed: &Tensor, pivots: &Tensor, b: &Tensor) -> Result<Tensor> {
    let op = "ldl_solve";
    let (packed, b) = &promoted(op, packed, b)?;
    let (n, (rows, _)) = (square(op, packed)?, matrices(op, b)?);
    if n != rows {
        return Err(Error::shapes(op, [packed.shape(), b.shape()], "B has as many rows as A"));
    }
    if !pivots.dtype().is_int() {
        return Err(Error::dtypes(op, [packed.dtype(), pivots.dtype()], "pivots are integers"));
    }
    if pivots.shape()[..] != packed.shape()[..packed.rank() - 1] {
        return Err(Error::shapes(op, [packed.shape(), pivots.shape()], "there is a pivot for every row"));
    }
    if is_recorded(&[packed, b]) {
        return Err(Error::NoGradient { op });
    }
    let batch = common_batch(op, packed, b)?;
    let pivots = ops::broadcast_to(pivots, batch.iter().copied().chain([n]).collect::<Shape>())?;
    let pivots = ops::to_dtype(&pivots, DType::I32)?;
    apply_one(Ldl(Factor::LdlSolve), &[&stretch(packed, &batch)?, &pivots, &stretch(b, &batch)?])
}
