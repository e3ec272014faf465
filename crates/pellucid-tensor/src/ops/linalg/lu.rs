//! LU factorization, and solving with it.

use super::triangular::triangular;
use super::{
    WithoutGradient, as_column, block, broadcast_batch, check_invertible, common_batch, factor, matrix_dims, mt,
    promote_operands, untracked_tensor,
};
use crate::autograd::{apply, apply_one, interface::*, placed_like};
use crate::engine::outermost_operation;
use crate::ops::elementwise::{arithmetic, compare};
use crate::ops::formula::broadcast;
use crate::ops::index::sort;
use crate::ops::primitive::concatenate::concatenate;
use crate::ops::primitive::via_definition::via_definition;
use crate::ops::primitive::{copy, create, fill, gather};
use crate::ops::products::matmul::matmul;
use crate::ops::shape::diagonal;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::kernel::Factorization;
use pellucid_ir::{DType, Error, Result, Shape};

/// Computes P·A = L·U. One matrix stores L and U.
///
/// For k = min(m, n), let L₁ and U₁ be the square blocks of L and U, L₂ the rows of L below L₁, and U₂ the columns of U
/// to the right of U₁. Then
///
/// P·∂A = [L₁⁻ᵀ·M·U₁⁻ᵀ, L₁⁻ᵀ·∂U₂; ∂L₂·U₁⁻ᵀ], where M is the strict lower triangle of L₁ᵀ·∂L₁ − ∂U₂·U₂ᵀ plus the upper
/// triangle of ∂U₁·U₁ᵀ − L₂ᵀ·∂L₂.
struct LuFactor;

impl Operation for LuFactor {
    fn name(&self) -> &'static str {
        "lu_factor"
    }
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        saves.output(0);
        saves.output(1);
        factor(Factorization::Lu, inputs)
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let (packed, g) = (saved.output(0)?, grads.get(0)?);
        let (m, n) = matrix_dims("lu_factor", &packed)?;
        let k = m.min(n);
        let first = block(&packed, (0, 0), k, k)?;
        let (l1, u1) = (diagonal::unit_lower(&first)?, diagonal::triu(&first, 0)?);
        let (l2, u2) = (block(&packed, (k, 0), m - k, k)?, block(&packed, (0, k), k, n - k)?);
        let (g1, gl2, gu2) = (block(&g, (0, 0), k, k)?, block(&g, (k, 0), m - k, k)?, block(&g, (0, k), k, n - k)?);
        let from_l = matmul(&mt(&l1)?, &diagonal::tril(&g1, -1)?)?;
        let from_u = matmul(&diagonal::triu(&g1, 0)?, &mt(&u1)?)?;
        let lower = diagonal::tril(&arithmetic::sub(&from_l, &matmul(&gu2, &mt(&u2)?)?)?, -1)?;
        let upper = diagonal::triu(&arithmetic::sub(&from_u, &matmul(&mt(&l2)?, &gl2)?)?, 0)?;
        // Both blocks are solved together: by L₁ᵀ from the left, and by U₁ᵀ from the right.
        let right_block = concatenate(&[&arithmetic::add(&lower, &upper)?, &gu2], -1)?;
        let top = triangular(&mt(&l1)?, &right_block, true, true)?;
        let (left, right) = (block(&top, (0, 0), k, k)?, block(&top, (0, k), k, n - k)?);
        let below = concatenate(&[&left, &gl2], -2)?;
        let left = mt(&triangular(&u1, &mt(&below)?, true, false)?)?;
        let under = fill::zeros(&[&left.shape()[..left.rank() - 2], &[m - k, n - k]].concat()[..], g.dtype())?;
        let rows = concatenate(&[&left, &concatenate(&[&right, &under], -2)?], -1)?;
        // Row i of P·A is row orderᵢ of A; the inverse permutation restores the order of A.
        let order = row_order("lu_factor", &saved.output(1)?, m)?;
        Ok(smallvec![Some(take_rows(&rows, &sort::argsort(&order, -1, false)?)?)])
    }
}

/// Returns the row order of P: row i of P·A is row orderᵢ of A. Errors name `op`.
fn row_order(op: &'static str, pivots: &Tensor, rows: usize) -> Result<Tensor> {
    let op = outermost_operation(op);
    apply_one(WithoutGradient(op, Factorization::RowOrder { op, rows }), &[pivots])
}

/// Returns the rows of matrices in the given order, `[.., m]`.
fn take_rows(x: &Tensor, order: &Tensor) -> Result<Tensor> {
    gather::take_along_axis(x, &broadcast::broadcast_to(&as_column(order)?, x.shape())?, -2)
}

/// An LU factorization without autograd history.
#[derive(Clone)]
pub(super) struct Factors {
    pub(super) packed: Tensor,
    pub(super) pivots: Tensor,
    pub(super) info: Tensor,
}

impl Factors {
    /// Saves the factors as the first three saved arrays of an operation.
    pub(super) fn save(&self, saves: &mut SaveForBackward) {
        [&self.packed, &self.pivots, &self.info].into_iter().for_each(|x| saves.array(x.array().clone()));
    }

    /// Returns the factors that [`save`](Factors::save) saved.
    pub(super) fn from_saved(saved: &SavedTensors) -> Result<Factors> {
        Ok(Factors { packed: saved.array(0)?, pivots: saved.array(1)?, info: saved.array(2)? })
    }
}

/// Computes the LU factorization of an array.
pub(super) fn lu_factors(a: &Array) -> Result<Factors> {
    let outputs = factor(Factorization::Lu, &[a])?;
    Ok(Factors {
        packed: untracked_tensor(&outputs[0]),
        pivots: untracked_tensor(&outputs[1]),
        info: untracked_tensor(&outputs[2]),
    })
}

/// Computes X with A·X = B (`is_transposed`: Aᵀ·X = B) from the factors and the pivots of A. ∂B solves the transposed
/// system.
struct LuSolve {
    is_transposed: bool,
}

impl LuSolve {
    /// Computes X by solving two triangular systems.
    fn definition(&self, packed: &Tensor, pivots: &Tensor, b: &Tensor) -> Result<Tensor> {
        let order = row_order("lu_solve", pivots, packed.shape()[packed.rank() - 1])?;
        if self.is_transposed {
            let x = triangular(&mt(packed)?, &triangular(&mt(packed)?, b, false, false)?, true, true)?;
            return take_rows(&x, &sort::argsort(&order, -1, false)?);
        }
        triangular(packed, &triangular(packed, &take_rows(b, &order)?, false, true)?, true, false)
    }
}

impl Operation for LuSolve {
    fn name(&self) -> &'static str {
        "lu_solve"
    }
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        saves.input(0);
        saves.input(1);
        if saves.needs(0) {
            saves.input(2);
        }
        factor(Factorization::LuSolve { transposed: self.is_transposed }, inputs)
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, needs: NeedsInputGrad) -> Result<InputGradients> {
        let (packed, pivots, g) = (saved.input(0)?, saved.input(1)?, grads.get(0)?);
        let mut gradients: InputGradients = smallvec![None, None, None];
        if needs.contains(0) {
            let b = saved.input(2)?;
            let definition = |packed: &[Tensor]| Ok(vec![self.definition(&packed[0], &pivots, &b)?]);
            gradients[0] = via_definition(&[&packed], &[&g], definition)?.pop();
        }
        if needs.contains(2) {
            let back = LuSolve { is_transposed: !self.is_transposed };
            gradients[2] = Some(apply_one(back, &[&packed, &pivots, &g])?);
        }
        Ok(gradients)
    }
}

/// Solves A·X = B (`transposed`: Aᵀ·X = B) from the factors of A. The batch axes of A and B broadcast.
pub(super) fn solve_by_factors(packed: &Tensor, pivots: &Tensor, b: &Tensor, transposed: bool) -> Result<Tensor> {
    let batch = common_batch("lu_solve", packed, b)?;
    let n = packed.shape()[packed.rank() - 1];
    let pivots = broadcast::broadcast_to(pivots, batch.iter().copied().chain([n]).collect::<Shape>())?;
    let (packed, b) = (broadcast_batch(packed, &batch)?, broadcast_batch(b, &batch)?);
    apply_one(LuSolve { is_transposed: transposed }, &[&packed, &pivots, &b])
}

/// Computes P, L and U with A = P·L·U, by partial pivoting.
///
/// A is `[.., m, n]`, P `[.., m, m]`, L `[.., m, k]` with ones on its diagonal, and U `[.., k, n]`, k = min(m, n). A
/// may be singular.
///
/// The gradient (of L and U) requires the first k columns to be linearly independent.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`].
#[tensor_method]
pub fn lu(a: &Tensor) -> Result<(Tensor, Tensor, Tensor)> {
    matrix_dims("lu", a)?;
    let outputs = apply(LuFactor, &[a])?;
    lu_unpack(&outputs[0], &outputs[1])
}

/// Computes the factors of [`lu`] in one matrix (L below the diagonal), and the pivots in LAPACK's form.
///
/// The pivots are `i32 [.., k]`: row i was exchanged with row pivotᵢ − 1, in ascending order of i. The results are
/// arguments of [`lu_solve`] and [`lu_unpack`].
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::Singular`] for a zero pivot (only in eager mode on the
/// CPU).
#[tensor_method]
pub fn lu_factor(a: &Tensor) -> Result<(Tensor, Tensor)> {
    matrix_dims("lu_factor", a)?;
    let outputs = apply(LuFactor, &[a])?;
    check_invertible("lu_factor", &outputs[2])?;
    Ok((outputs[0].clone(), outputs[1].clone()))
}

/// Computes the factors of [`lu_factor`], and an `i32` info instead of an error.
///
/// The info is the position, counted from 1, of the first zero on the diagonal of U; 0 if there is none.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`].
#[tensor_method]
pub fn lu_factor_ex(a: &Tensor) -> Result<(Tensor, Tensor, Tensor)> {
    matrix_dims("lu_factor_ex", a)?;
    let outputs = apply(LuFactor, &[a])?;
    Ok((outputs[0].clone(), outputs[1].clone(), outputs[2].clone()))
}

/// Solves A·X = B (X·A = B if `left` is false; `transposed` replaces A by Aᵀ) from the factors of [`lu_factor`].
///
/// A is square, and B is `[.., n, k]` (`[.., k, n]` if `left` is false); batch axes broadcast. For singular A, X is
/// NaN.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::InvalidArgument`] for pivots that are not row indices.
#[tensor_method]
pub fn lu_solve(packed: &Tensor, pivots: &Tensor, b: &Tensor, left: bool, transposed: bool) -> Result<Tensor> {
    let op = "lu_solve";
    let (packed, b) = &promote_operands(op, packed, b)?;
    let n = super::square_side(op, packed)?;
    let (rows, columns) = matrix_dims(op, b)?;
    if n != if left { rows } else { columns } {
        let help = if left { "B must have as many rows as A" } else { "B must have as many columns as A" };
        return Err(Error::shapes(op, [packed.shape(), b.shape()], help));
    }
    let pivots = as_pivots(op, packed, pivots)?;
    match left {
        true => solve_by_factors(packed, &pivots, b, transposed),
        false => mt(&solve_by_factors(packed, &pivots, &mt(b)?, !transposed)?),
    }
}

/// Unpacks P, L and U of [`lu`] from the result of [`lu_factor`].
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::InvalidArgument`] for pivots that are not row indices.
#[tensor_method]
pub fn lu_unpack(packed: &Tensor, pivots: &Tensor) -> Result<(Tensor, Tensor, Tensor)> {
    let (m, n) = matrix_dims("lu_unpack", packed)?;
    let k = m.min(n);
    let order = row_order("lu_unpack", &as_pivots("lu_unpack", packed, pivots)?, m)?;
    // Column i of P has its 1 in row orderᵢ.
    let rows = as_column(&create::indices(m)?)?;
    let p = copy::to_dtype(&compare::eq(&rows, &super::as_row(&order)?)?, packed.dtype())?;
    let l = diagonal::unit_lower(&block(packed, (0, 0), m, k)?)?;
    Ok((placed_like("lu_unpack", packed, &p)?, l, diagonal::triu(&block(packed, (0, 0), k, n)?, 0)?))
}

/// Converts pivots to `i32`. Returns an error if their dtype or shape does not fit the matrices.
fn as_pivots(op: &'static str, packed: &Tensor, pivots: &Tensor) -> Result<Tensor> {
    if !pivots.dtype().is_int() {
        return Err(Error::dtypes(op, [packed.dtype(), pivots.dtype()], "pivots must be integers"));
    }
    let (m, n) = matrix_dims(op, packed)?;
    let expected: Shape = super::batch(packed).iter().copied().chain([m.min(n)]).collect();
    if *pivots.shape() != expected {
        return Err(Error::shapes(op, [packed.shape(), pivots.shape()], format!("pivots must have shape {expected}")));
    }
    copy::to_dtype(pivots, DType::I32)
}
