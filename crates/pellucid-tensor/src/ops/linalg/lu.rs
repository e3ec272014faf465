//! LU factors, and equations solved with them.

use super::triangular::triangular;
use super::{block, column, common_batch, eye, factor, invertible, matrices, mt, plain, promoted, stretch};
use crate::array::Array;
use crate::autograd::{Arrays, Gradients, InputGradients, Needed, Operation, Saved, Saves, apply, apply_one};
use crate::ops;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::kernel::Factor;
use pellucid_ir::{DType, Error, Result, Shape};
use smallvec::smallvec;

/// P·A = L·U, L and U in one matrix.
///
/// With k = min(m, n), and L₁, U₁ the square parts of L and U, L₂ the rows of L below and U₂ the columns of U beside:
///
/// P·∂A = [L₁⁻ᵀ·M·U₁⁻ᵀ, L₁⁻ᵀ·∂U₂; ∂L₂·U₁⁻ᵀ], M = the strict lower triangle of L₁ᵀ·∂L₁ − ∂U₂·U₂ᵀ and the upper one of
/// ∂U₁·U₁ᵀ − L₂ᵀ·∂L₂.
struct LuFactor;

impl Operation for LuFactor {
    fn name(&self) -> &'static str {
        "lu_factor"
    }
    fn forward(&self, inputs: &[&Array], saves: &mut Saves) -> Result<Arrays> {
        saves.output(0);
        saves.output(1);
        factor(Factor::Lu, inputs)
    }
    fn backward(&self, saved: &Saved, grads: &Gradients, _: Needed) -> Result<InputGradients> {
        let (packed, g) = (saved.output(0)?, grads.get(0)?);
        let (m, n) = matrices("lu_factor", &packed)?;
        let k = m.min(n);
        let first = block(&packed, (0, 0), k, k)?;
        let (l1, u1) = (unit_lower(&first)?, ops::triu(&first, 0)?);
        let (l2, u2) = (block(&packed, (k, 0), m - k, k)?, block(&packed, (0, k), k, n - k)?);
        let (g1, gl2, gu2) = (block(&g, (0, 0), k, k)?, block(&g, (k, 0), m - k, k)?, block(&g, (0, k), k, n - k)?);
        let from_l = ops::matmul(&mt(&l1)?, &ops::tril(&g1, -1)?)?;
        let from_u = ops::matmul(&ops::triu(&g1, 0)?, &mt(&u1)?)?;
        let lower = ops::tril(&ops::sub(&from_l, &ops::matmul(&gu2, &mt(&u2)?)?)?, -1)?;
        let upper = ops::triu(&ops::sub(&from_u, &ops::matmul(&mt(&l2)?, &gl2)?)?, 0)?;
        // Both solved at once: L₁⁻ᵀ from the left, U₁⁻ᵀ from the right.
        let beside = ops::concatenate(&[&ops::add(&lower, &upper)?, &gu2], -1)?;
        let top = triangular(&mt(&l1)?, &beside, true, true)?;
        let (left, right) = (block(&top, (0, 0), k, k)?, block(&top, (0, k), k, n - k)?);
        let below = ops::concatenate(&[&left, &gl2], -2)?;
        let left = mt(&triangular(&u1, &mt(&below)?, true, false)?)?;
        let under = ops::zeros(&[&left.shape()[..left.rank() - 2], &[m - k, n - k]].concat()[..], g.dtype())?;
        let rows = ops::concatenate(&[&left, &ops::concatenate(&[&right, &under], -2)?], -1)?;
        // Row i of P·A is row orderᵢ of A: the rows go back where they came from.
        let order = row_order(&saved.output(1)?, m)?;
        Ok(smallvec![Some(take_rows(&rows, &ops::argsort(&order, -1, false)?)?)])
    }
}

/// The row order that pivots make.
struct RowOrder {
    rows: usize,
}

impl Operation for RowOrder {
    fn name(&self) -> &'static str {
        "row_order"
    }
    fn forward(&self, inputs: &[&Array], _: &mut Saves) -> Result<Arrays> {
        factor(Factor::RowOrder { rows: self.rows }, inputs)
    }
    fn backward(&self, _: &Saved, _: &Gradients, _: Needed) -> Result<InputGradients> {
        Ok(smallvec![None])
    }
}

/// Row i of P·A is row orderᵢ of A.
fn row_order(pivots: &Tensor, rows: usize) -> Result<Tensor> {
    apply_one(RowOrder { rows }, &[pivots])
}

/// The rows of matrices in this order, `[.., m]`.
fn take_rows(x: &Tensor, order: &Tensor) -> Result<Tensor> {
    ops::take_along_axis(x, &ops::broadcast_to(&column(order)?, x.shape())?, -2)
}

/// What lies strictly below the diagonal, and ones on it.
fn unit_lower(x: &Tensor) -> Result<Tensor> {
    let (m, n) = matrices("lu", x)?;
    ops::add(&ops::tril(x, -1)?, &eye(m, n, x.dtype())?)
}

/// An LU factorisation without history.
#[derive(Clone)]
pub(super) struct Factors {
    pub(super) packed: Tensor,
    pub(super) pivots: Tensor,
    pub(super) info: Tensor,
}

/// Factors an array.
pub(super) fn factors(a: &Array) -> Result<Factors> {
    let outputs = factor(Factor::Lu, &[a])?;
    Ok(Factors { packed: plain(&outputs[0]), pivots: plain(&outputs[1]), info: plain(&outputs[2]) })
}

/// X with A·X = B, by A's factors; `transposed`: Aᵀ·X = B. A and B broadcast.
pub(super) fn solved(packed: &Tensor, pivots: &Tensor, b: &Tensor, transposed: bool) -> Result<Tensor> {
    let n = packed.shape()[packed.rank() - 1];
    let batch = common_batch("lu_solve", packed, b)?;
    let order = row_order(pivots, n)?;
    let order = ops::broadcast_to(&order, batch.iter().copied().chain([n]).collect::<Shape>())?;
    let b = stretch(b, &batch)?;
    if transposed {
        let x = triangular(&mt(packed)?, &triangular(&mt(packed)?, &b, false, false)?, true, true)?;
        return take_rows(&x, &ops::argsort(&order, -1, false)?);
    }
    triangular(packed, &triangular(packed, &take_rows(&b, &order)?, false, true)?, true, false)
}

/// P, L and U with A = P·L·U, by partial pivoting: A is `[.., m, n]`, P `[.., m, m]`, L `[.., m, k]` with ones on its
/// diagonal, U `[.., k, n]`, k = min(m, n). Singular matrices have factors too.
///
/// The gradient (of L and U) needs the first k columns to be independent.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`].
#[tensor_method]
pub fn lu(a: &Tensor) -> Result<(Tensor, Tensor, Tensor)> {
    matrices("lu", a)?;
    let outputs = apply(LuFactor, &[a])?;
    lu_unpack(&outputs[0], &outputs[1])
}

/// The factors of [`lu`] in one matrix, L's below the diagonal; and LAPACK's pivots, `i32 [.., k]`: row i was exchanged
/// with row pivotᵢ − 1, in order. [`lu_solve`] and [`lu_unpack`] take both.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::Singular`] for a pivot of zero (where work is deferred,
/// nothing is said).
#[tensor_method]
pub fn lu_factor(a: &Tensor) -> Result<(Tensor, Tensor)> {
    matrices("lu_factor", a)?;
    let outputs = apply(LuFactor, &[a])?;
    invertible("lu_factor", &outputs[2])?;
    Ok((outputs[0].clone(), outputs[1].clone()))
}

/// [`lu_factor`] that goes on: the third result (`i32`) is 0, or the place, from 1, of the first zero on U's diagonal.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`].
#[tensor_method]
pub fn lu_factor_ex(a: &Tensor) -> Result<(Tensor, Tensor, Tensor)> {
    matrices("lu_factor_ex", a)?;
    let outputs = apply(LuFactor, &[a])?;
    Ok((outputs[0].clone(), outputs[1].clone(), outputs[2].clone()))
}

/// Square A's factors and pivots, as [`lu_factor`] gives them, to X with A·X = B; `left` false: X·A = B; `transposed`:
/// with Aᵀ for A. B is `[.., n, k]` (`[.., k, n]`); batch axes broadcast.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::InvalidArgument`] for pivots that are no rows. Of
/// singular A, X is NaN.
#[tensor_method]
pub fn lu_solve(packed: &Tensor, pivots: &Tensor, b: &Tensor, left: bool, transposed: bool) -> Result<Tensor> {
    let op = "lu_solve";
    let (packed, b) = &promoted(op, packed, b)?;
    let n = super::square(op, packed)?;
    let (rows, columns) = matrices(op, b)?;
    if n != if left { rows } else { columns } {
        let help = if left { "B has as many rows as A" } else { "B has as many columns as A" };
        return Err(Error::shapes(op, [packed.shape(), b.shape()], help));
    }
    let pivots = as_pivots(op, packed, pivots)?;
    match left {
        true => solved(packed, &pivots, b, transposed),
        false => mt(&solved(packed, &pivots, &mt(b)?, !transposed)?),
    }
}

/// P, L and U of [`lu`] from the result of [`lu_factor`].
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::InvalidArgument`] for pivots that are no rows.
#[tensor_method]
pub fn lu_unpack(packed: &Tensor, pivots: &Tensor) -> Result<(Tensor, Tensor, Tensor)> {
    let (m, n) = matrices("lu_unpack", packed)?;
    let k = m.min(n);
    let order = row_order(&as_pivots("lu_unpack", packed, pivots)?, m)?;
    // Column i of P has its one at row orderᵢ.
    let rows = column(&ops::indices(m)?)?;
    let p = ops::to_dtype(&ops::eq(&rows, &super::row(&order)?)?, packed.dtype())?;
    let l = unit_lower(&block(packed, (0, 0), m, k)?)?;
    Ok((p, l, ops::triu(&block(packed, (0, 0), k, n)?, 0)?))
}

/// Pivots, of an integer dtype and the shape that fits the matrices.
fn as_pivots(op: &'static str, packed: &Tensor, pivots: &Tensor) -> Result<Tensor> {
    if !pivots.dtype().is_int() {
        return Err(Error::dtypes(op, [packed.dtype(), pivots.dtype()], "pivots are integers"));
    }
    let (m, n) = matrices(op, packed)?;
    let expected: Shape = super::batch(packed).iter().copied().chain([m.min(n)]).collect();
    if *pivots.shape() != expected {
        return Err(Error::shapes(op, [packed.shape(), pivots.shape()], format!("the pivots have shape {expected}")));
    }
    ops::to_dtype(pivots, DType::I32)
}
