//! Linear algebra: decompositions of matrices, which are stored in the last two axes, and operations based on them. The
//! other axes are batch axes.
//!
//! Matrices are `f32` or `f64`, promoted to the wider dtype; other dtypes are rejected. The result for a matrix with
//! NaN or infinity is NaN. Operations are differentiable to every order, unless their documentation names
//! [`Error::NoGradient`]. Where a gradient is undefined (equal singular values, rank-deficient matrices), it is NaN or
//! infinite, and the documentation of the operation says so.
//!
//! Singular matrices are detected only by the kernel. In eager mode on the CPU, they are an [`Error::Singular`], which
//! names the matrix. Otherwise (in lazy and captured steps, and on other devices), the result is NaN. An iteration for
//! eigenvalues or singular values that does not converge is an [`Error::NotConverged`]. General eigenvalues are not
//! supported, because there are no complex dtypes.

mod cholesky;
mod det;
mod eigh;
mod exp;
mod inv;
mod ldl;
mod lstsq;
mod lu;
mod lyapunov;
mod norm;
mod pinv;
mod product;
mod qr;
mod svd;
mod triangular;

pub use cholesky::{cholesky, cholesky_ex, cholesky_inverse, cholesky_solve};
pub use det::{det, logdet, slogdet};
pub use eigh::{eigh, eigvalsh, matrix_sqrth};
pub use exp::matrix_exp;
pub use inv::{inv, inv_ex, solve, solve_ex, tensorinv, tensorsolve};
pub use ldl::{ldl_factor, ldl_factor_ex, ldl_solve};
pub use lstsq::{Lstsq, lstsq};
pub(in crate::ops) use lstsq::{default_rcond, least_squares};
pub use lu::{lu, lu_factor, lu_factor_ex, lu_solve, lu_unpack};
pub use norm::{MatrixNorm, cond, matrix_norm};
pub use pinv::{Cutoff, matrix_rank, pinv};
pub(in crate::ops) use product::powers;
pub use product::{matrix_power, multi_dot, vander, vecdot};
pub use qr::{QrMode, geqrf, householder_product, ormqr, qr};
pub use svd::{polar, svd, svdvals};
pub use triangular::solve_triangular;

use crate::autograd::interface::*;
use crate::engine;
use crate::ops::call::check;
use crate::ops::formula::broadcast;
use crate::ops::primitive::{copy, view};
use crate::ops::shape::diagonal::{diagonal, eye};
use crate::tensor::Tensor;
use pellucid_ir::kernel::{Factorization, Kernel, Meta};
use pellucid_ir::{DType, Error, Result, Shape};

/// Submits the kernel of a factorization, which writes into new arrays.
fn factor(kernel: Factorization, inputs: &[&Array]) -> Result<Arrays> {
    let kernel = Kernel::Factorization(kernel);
    let device = Array::common_device(kernel.name(), inputs)?;
    let metas: Vec<Meta> = inputs.iter().map(|a| Meta { shape: a.shape().clone(), dtype: a.dtype() }).collect();
    let new = |m: Meta| Array::new(device, m.dtype, m.shape);
    let outputs: Arrays = kernel.infer(&metas)?.into_iter().map(new).collect::<Result<_>>()?;
    engine::submit(&kernel, inputs, &outputs.iter().collect::<Vec<_>>())?;
    Ok(outputs)
}

/// An operation that runs a kernel whose derivative does not exist or is not implemented. The fields are the name and
/// the kernel.
struct WithoutGradient(&'static str, Factorization);

impl Operation for WithoutGradient {
    fn name(&self) -> &'static str {
        self.0
    }
    fn forward(&self, inputs: &[&Array], _: &mut SaveForBackward) -> Result<Arrays> {
        factor(self.1, inputs)
    }
    fn backward(&self, _: &SavedTensors, _: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        Err(Error::NoGradient { op: self.0 })
    }
    fn has_gradient(&self) -> bool {
        false
    }
}

/// Returns a tensor of an array, without autograd history.
fn untracked_tensor(array: &Array) -> Tensor {
    Tensor::from(array.clone())
}

/// Returns the row and column counts of matrices, or an error for dtypes other than `f32` and `f64`.
fn matrix_dims(op: &'static str, x: &Tensor) -> Result<(usize, usize)> {
    check_precision(op, x)?;
    match x.shape().dims() {
        [.., m, n] => Ok((*m, *n)),
        _ => Err(Error::shapes(
            op,
            [x.shape()],
            "the input must be a matrix or a batch of matrices, with at least two axes; unsqueeze() adds an axis",
        )),
    }
}

/// Returns the side length of square matrices. Returns an error for other shapes, and for dtypes other than `f32` and
/// `f64`.
fn square_side(op: &'static str, x: &Tensor) -> Result<usize> {
    let (m, n) = matrix_dims(op, x)?;
    if m != n {
        let help = "the matrices must be square; pinv(), lstsq(), qr() and svd() accept all shapes";
        return Err(Error::shapes(op, [x.shape()], help));
    }
    Ok(n)
}

/// Returns an error for dtypes other than `f32` and `f64`.
fn check_precision(op: &'static str, x: &Tensor) -> Result<()> {
    match x.dtype() {
        DType::F32 | DType::F64 => Ok(()),
        other => Err(Error::dtypes(op, [other], "the inputs must be f32 or f64; use to_dtype()")),
    }
}

/// Converts both operands to their promoted dtype, which must be `f32` or `f64`.
fn promote_operands(op: &'static str, a: &Tensor, b: &Tensor) -> Result<(Tensor, Tensor)> {
    match a.dtype().promote(b.dtype()) {
        dtype @ (DType::F32 | DType::F64) => Ok((copy::to_dtype(a, dtype)?, copy::to_dtype(b, dtype)?)),
        _ => Err(Error::dtypes(op, [a.dtype(), b.dtype()], "the inputs must be f32 or f64; use to_dtype()")),
    }
}

/// Transposes matrices.
fn mt(x: &Tensor) -> Result<Tensor> {
    view::transpose(x, -2, -1)
}

/// Reshapes vectors to matrices with one column.
fn as_column(x: &Tensor) -> Result<Tensor> {
    view::unsqueeze(x, -1)
}

/// Reshapes vectors to matrices with one row.
fn as_row(x: &Tensor) -> Result<Tensor> {
    view::unsqueeze(x, -2)
}

/// Reshapes elements to 1 × 1 matrices.
fn scalar_matrix(x: &Tensor) -> Result<Tensor> {
    as_column(&as_column(x)?)
}

fn main_diagonal(x: &Tensor) -> Result<Tensor> {
    diagonal(x, 0, -2, -1)
}

/// Returns the block of `rows` rows and `columns` columns that starts at row `start.0` and column `start.1`.
fn block(x: &Tensor, start: (usize, usize), rows: usize, columns: usize) -> Result<Tensor> {
    view::narrow(&view::narrow(x, -2, start.0, rows)?, -1, start.1, columns)
}

/// Returns the shape of the batch axes.
fn batch(x: &Tensor) -> Shape {
    Shape::from(&x.shape()[..x.rank() - 2])
}

/// Broadcasts the batch axes of x to `batch`.
fn broadcast_batch(x: &Tensor, batch: &Shape) -> Result<Tensor> {
    let shape: Shape = batch.iter().chain(&x.shape()[x.rank() - 2..]).copied().collect();
    broadcast::broadcast_to(x, shape)
}

/// Returns the broadcast shape of the batch axes of two stacks of matrices.
fn common_batch(op: &'static str, a: &Tensor, b: &Tensor) -> Result<Shape> {
    let help = "the axes before the last two must have equal lengths or length 1";
    batch(a).broadcast(&batch(b)).ok_or_else(|| Error::shapes(op, [a.shape(), b.shape()], help))
}

/// Returns an error if a factorization failed for a matrix (its info is not 0) and values can be read.
fn check_info(op: &'static str, info: &Tensor, describe: impl Fn(i32) -> String, help: &'static str) -> Result<()> {
    if !check::is_readable(info) {
        return Ok(());
    }
    let failed = info.array().to_vec::<i32>(op)?.into_iter().enumerate().find(|(_, info)| *info != 0);
    match failed {
        Some((batch, info)) => Err(Error::Singular { op, batch, what: describe(info), help }),
        None => Ok(()),
    }
}

/// Calls [`check_info`] for a factorization whose info is the position of a zero pivot.
fn check_invertible(op: &'static str, info: &Tensor) -> Result<()> {
    let describe = |k: i32| format!("singular (pivot {k} of its LU factorization is 0)");
    check_info(op, info, describe, "; pinv() and lstsq() accept singular matrices")
}
