//! QR factorization, and products of Householder reflections.

use super::triangular::triangular;
use super::{WithoutGradient, as_column, block, eye, factor, matrix_dims, mt, promote_operands, untracked_tensor};
use crate::autograd::{apply, apply_one, interface::*, is_recorded};
use crate::ops::elementwise::arithmetic;
use crate::ops::primitive::concatenate::concatenate;
use crate::ops::primitive::via_definition::via_definition;
use crate::ops::primitive::{copy, fill};
use crate::ops::products::matmul::matmul;
use crate::ops::shape::diagonal;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::kernel::Factorization;
use pellucid_ir::{Error, Result};

/// The factors that [`qr`] computes; k = min(m, n).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum QrMode {
    /// Q `[.., m, k]` and R `[.., k, n]`.
    #[default]
    Reduced,
    /// Q `[.., m, m]` and R `[.., m, n]`.
    Complete,
    /// R `[.., k, n]`; Q is empty.
    R,
}

/// Computes Q `[.., m, k]` and R `[.., k, n]` for k = min(m, n). R₁ is the first square block of R.
///
/// ∂A = Q·(∂R + [L·R₁⁻ᵀ, 0]) + (I − Q·Qᵀ)·∂Q·R⁻ᵀ, where L is the strict lower triangle of W − Wᵀ and W = Qᵀ·∂Q − ∂R·Rᵀ.
/// The last term exists only for m > n (Walter & Lehmann 2010; Seeger et al. 2017).
struct Qr;

impl Operation for Qr {
    fn name(&self) -> &'static str {
        "qr"
    }
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        saves.output(0);
        saves.output(1);
        let outputs = factor(Factorization::Qr, inputs)?;
        let packed = untracked_tensor(&outputs[0]);
        let (m, n) = matrix_dims("qr", &packed)?;
        let columns = m.min(n);
        let q = factor(Factorization::HouseholderBasis { columns }, &[&outputs[0], &outputs[1]])?;
        let r = diagonal::triu(&block(&packed, (0, 0), columns, n)?, 0)?;
        Ok(smallvec![q[0].clone(), r.array().clone()])
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let (q, r, gq, gr) = (saved.output(0)?, saved.output(1)?, grads.get(0)?, grads.get(1)?);
        let (m, n) = (q.shape()[q.rank() - 2], r.shape()[r.rank() - 1]);
        let k = m.min(n);
        let first = block(&r, (0, 0), k, k)?;
        let divided = |x: &Tensor| mt(&triangular(&first, &mt(x)?, true, false)?);
        let inside = matmul(&mt(&q)?, &gq)?;
        let w = arithmetic::sub(&inside, &matmul(&gr, &mt(&r)?)?)?;
        let lower = divided(&diagonal::tril(&arithmetic::sub(&w, &mt(&w)?)?, -1)?)?;
        let square = arithmetic::add(&block(&gr, (0, 0), k, k)?, &lower)?;
        let inner = concatenate(&[&square, &block(&gr, (0, k), k, n - k)?], -1)?;
        let gradient = matmul(&q, &inner)?;
        Ok(smallvec![Some(match m > n {
            true => arithmetic::add(&gradient, &divided(&arithmetic::sub(&gq, &matmul(&q, &inside)?)?)?)?,
            false => gradient,
        })])
    }
}

/// The product of the reflections I − τᵢ·vᵢ·vᵢᵀ, represented as I − V·T·Vᵀ (Puglisi 1992). With D = diag(τ) and the
/// strict upper triangle S of Vᵀ·V, T⁻¹ = D⁻¹ + S and T = (I + D·S)⁻¹·D, which is also defined for τ = 0.
struct Reflections {
    /// V, `[.., m, k]`.
    v: Tensor,
    /// τ as a column.
    tau: Tensor,
    /// D·S. The diagonal of the triangle I + D·S is 1 and is not read.
    triangle: Tensor,
}

impl Reflections {
    /// Creates reflections from the strict lower triangle of a matrix, one for each column.
    fn new(packed: &Tensor, tau: &Tensor) -> Result<Reflections> {
        let (m, _) = matrix_dims("householder_product", packed)?;
        let k = tau.shape()[tau.rank() - 1];
        let v = diagonal::unit_lower(&block(packed, (0, 0), m, k)?)?;
        let tau = as_column(tau)?;
        let triangle = arithmetic::mul(&diagonal::triu(&matmul(&mt(&v)?, &v)?, 1)?, &tau)?;
        Ok(Reflections { v, tau, triangle })
    }

    /// Computes Q·C.
    fn multiply(&self, c: &Tensor) -> Result<Tensor> {
        let inner = arithmetic::mul(&matmul(&mt(&self.v)?, c)?, &self.tau)?;
        arithmetic::sub(c, &matmul(&self.v, &triangular(&self.triangle, &inner, true, true)?)?)
    }

    /// Computes Qᵀ·C.
    fn multiply_transposed(&self, c: &Tensor) -> Result<Tensor> {
        let inner = triangular(&mt(&self.triangle)?, &matmul(&mt(&self.v)?, c)?, false, true)?;
        arithmetic::sub(c, &matmul(&self.v, &arithmetic::mul(&inner, &self.tau)?)?)
    }

    /// Returns the first columns of Q.
    fn basis(&self, columns: usize) -> Result<Tensor> {
        let m = self.v.shape()[self.v.rank() - 2];
        self.multiply(&eye(m, columns, self.v.dtype())?)
    }
}

/// Computes the first columns of the product of [`Reflections`], from V and τ.
struct HouseholderProduct {
    columns: usize,
}

impl Operation for HouseholderProduct {
    fn name(&self) -> &'static str {
        "householder_product"
    }
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        (0..2).for_each(|k| saves.input(k));
        let tau = untracked_tensor(inputs[1]);
        // A reflection with τ = 0 is the identity.
        let missing = self.columns - tau.shape()[tau.rank() - 1];
        let none = fill::zeros(tau.shape().with_axis(tau.rank() - 1, missing), tau.dtype())?;
        let tau = if missing == 0 { tau } else { concatenate(&[&tau, &none], -1)? };
        factor(Factorization::HouseholderBasis { columns: self.columns }, &[inputs[0], tau.array()])
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let definition = |x: &[Tensor]| Ok(vec![Reflections::new(&x[0], &x[1])?.basis(self.columns)?]);
        let inputs = [saved.input(0)?, saved.input(1)?];
        let gradients = via_definition(&[&inputs[0], &inputs[1]], &[&grads.get(0)?], definition)?;
        Ok(gradients.into_iter().map(Some).collect())
    }
}

/// Computes Q with orthonormal columns and upper triangular R with A = Q·R, for A `[.., m, n]`; the signs are LAPACK's.
///
/// The gradient (Walter & Lehmann 2010; Seeger et al. 2017) requires the first min(m, n) columns to be linearly
/// independent.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::NoGradient`] for the complete Q of a tracked matrix
/// with more rows than columns, since its last columns are an arbitrary completion of a basis.
#[tensor_method]
pub fn qr(a: &Tensor, mode: QrMode) -> Result<(Tensor, Tensor)> {
    let (m, n) = matrix_dims("qr", a)?;
    if mode == QrMode::Complete && m > n {
        if is_recorded(&[a]) {
            return Err(Error::NoGradient { op: "qr" });
        }
        let outputs = apply(WithoutGradient("geqrf", Factorization::Qr), &[a])?;
        let basis = WithoutGradient("householder_product", Factorization::HouseholderBasis { columns: m });
        let q = apply_one(basis, &[&outputs[0], &outputs[1]])?;
        return Ok((q, diagonal::triu(&outputs[0], 0)?));
    }
    let outputs = apply(Qr, &[a])?;
    let q = if mode == QrMode::R { fill::full_on_device_of(a, [0], 0, a.dtype())? } else { outputs[0].clone() };
    Ok((q, outputs[1].clone()))
}

/// Computes the QR factorization in LAPACK's packed form: one matrix with R and the vectors vᵢ, and the factors τ.
///
/// The vectors are below R; their elements on the diagonal are 1. Q is the product of all I − τᵢ·vᵢ·vᵢᵀ. The results
/// are arguments of [`householder_product`] and [`ormqr`].
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::NoGradient`] if A is tracked.
#[tensor_method]
pub fn geqrf(a: &Tensor) -> Result<(Tensor, Tensor)> {
    matrix_dims("geqrf", a)?;
    let outputs = apply(WithoutGradient("geqrf", Factorization::Qr), &[a])?;
    Ok((outputs[0].clone(), outputs[1].clone()))
}

/// Computes the first n columns of the product of the reflections I − τᵢ·vᵢ·vᵢᵀ. For the result of [`geqrf`] this is Q.
///
/// vᵢ is column i of V `[.., m, n]`, with 1 on the diagonal and 0 above it (not read); τ is `[.., k]`, k ≤ n ≤ m.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`].
#[tensor_method]
pub fn householder_product(v: &Tensor, tau: &Tensor) -> Result<Tensor> {
    let (v, tau) = &promote_operands("householder_product", v, tau)?;
    let (m, n) = check_reflections("householder_product", v, tau)?;
    if n > m {
        let help = "the matrices must have at least as many rows as columns";
        return Err(Error::shapes("householder_product", [v.shape(), tau.shape()], help));
    }
    apply_one(HouseholderProduct { columns: n }, &[v, tau])
}

/// Computes Q·C, or (`transposed`) Qᵀ·C; with `left` false C·Q or C·Qᵀ.
///
/// Q `[.., m, m]` is the product of the reflections of [`householder_product`].
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`].
#[tensor_method]
pub fn ormqr(v: &Tensor, tau: &Tensor, c: &Tensor, left: bool, transposed: bool) -> Result<Tensor> {
    let op = "ormqr";
    let (v, c) = &promote_operands(op, v, c)?;
    let (v, tau) = &promote_operands(op, v, tau)?;
    let c = &copy::to_dtype(c, v.dtype())?;
    let (m, _) = check_reflections(op, v, tau)?;
    let (rows, columns) = matrix_dims(op, c)?;
    if m != if left { rows } else { columns } {
        let help = format!("Q is {m} × {m}, so C must have {m} {}", if left { "rows" } else { "columns" });
        return Err(Error::shapes(op, [v.shape(), tau.shape(), c.shape()], help));
    }
    super::common_batch(op, v, c)?;
    let q = Reflections::new(v, tau)?;
    // C·Q = (Qᵀ·Cᵀ)ᵀ.
    let apply = |c: &Tensor, transposed: bool| if transposed { q.multiply_transposed(c) } else { q.multiply(c) };
    if left { apply(c, transposed) } else { mt(&apply(&mt(c)?, !transposed)?) }
}

/// Returns the rows and columns of V, or an error unless τ has at most min(m, n) factors.
fn check_reflections(op: &'static str, v: &Tensor, tau: &Tensor) -> Result<(usize, usize)> {
    let (m, n) = matrix_dims(op, v)?;
    let batch = super::batch(v);
    match tau.shape().dims() {
        [own @ .., k] if *own == batch[..] && *k <= n.min(m) => Ok((m, n)),
        _ => {
            let help = "τ must have the batch axes of V, and at most as many factors as V has rows or columns";
            Err(Error::shapes(op, [v.shape(), tau.shape()], help))
        }
    }
}
