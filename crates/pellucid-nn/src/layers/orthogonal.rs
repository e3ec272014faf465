//! Weights with orthonormal rows or columns.

use super::Parametrization;
use crate::init;
use crate::module::Module;
use crate::parameter::Buffer;
use crate::visit::{Visit, Visitor};
use pellucid_tensor::ops::QrMode;
use pellucid_tensor::{DType, Error, Result, Tensor, no_grad, ops};
use std::sync::OnceLock;

/// A map from the original parameter to an orthogonal matrix Q, for [`Orthogonal`]. A is the skew-symmetric matrix
/// L − Lᵀ of the lower triangle L of the original parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OrthogonalMap {
    /// Q = exp(A) (Lezcano-Casado & Martínez-Rubio 2019).
    MatrixExp,
    /// Q = (I + A/2)·(I − A/2)⁻¹, the Cayley map, which is cheaper (Helfrich et al. 2018).
    Cayley,
    /// The product of Householder reflections, whose vectors are the columns of the original below its diagonal, and of
    /// a diagonal matrix with the signs of its diagonal, which are not trained (Mhammedi et al. 2017). It is the
    /// cheapest map for matrices that are far from square.
    Householder,
}

/// The parametrization of weights with orthonormal columns, or rows if there are fewer rows: PyTorch's
/// `parametrizations.orthogonal`. A weight of more than two axes is a batch of matrices.
///
/// The weight is B·Q, where Q is an [`OrthogonalMap`] of the original, and the buffer `base`, B, is a constant
/// orthogonal matrix (Lezcano-Casado 2019). Initially Q is the identity, and B·Q is the factor Q of the layer's weight
/// in its QR factorization.
///
/// The default map is the matrix exponential for square matrices, otherwise the Householder reflections. All maps
/// require the feature `linalg`, which is on by default. See [`Parametrized`](crate::Parametrized) for an example.
#[derive(Clone, Debug, Default)]
pub struct Orthogonal {
    map: Option<OrthogonalMap>,
    without_base: bool,
    /// B, whose values [`Parametrization::right_inverse`] sets.
    base: OnceLock<Buffer>,
}

impl Orthogonal {
    /// Creates the parametrization with the default map.
    pub fn new() -> Orthogonal {
        Orthogonal::default()
    }

    /// Sets the map.
    #[doc(alias = "orthogonal_map")]
    pub fn map(self, map: OrthogonalMap) -> Orthogonal {
        Orthogonal { map: Some(map), ..self }
    }

    /// Sets whether the weight has the factor B; default true. Without B the weight is Q, and only the map by
    /// Householder reflections has a right inverse.
    pub fn use_trivialization(self, trivialize: bool) -> Orthogonal {
        Orthogonal { without_base: !trivialize, ..self }
    }

    /// Returns the map for matrices of this size.
    fn map_for(&self, rows: usize, columns: usize) -> OrthogonalMap {
        let default = if rows == columns { OrthogonalMap::MatrixExp } else { OrthogonalMap::Householder };
        self.map.unwrap_or(default)
    }
}

impl Module for Orthogonal {}

impl Visit for Orthogonal {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.module(self, None);
        if let Some(map) = &self.map {
            visitor.setting("map", map);
        }
        visitor.field("base", &self.base);
    }
}

const OP: &str = "orthogonal";

impl Parametrization for Orthogonal {
    fn forward(&self, original: &Tensor) -> Result<Tensor> {
        let TallMatrix { x, is_transposed } = TallMatrix::new(original)?;
        let (rows, columns) = (x.shape()[x.rank() - 2], x.shape()[x.rank() - 1]);
        let q = match self.map_for(rows, columns) {
            OrthogonalMap::MatrixExp => ops::narrow(&ops::matrix_exp(&skew_symmetric(&x)?)?, -1, 0, columns)?,
            OrthogonalMap::Cayley => ops::narrow(&cayley(&skew_symmetric(&x)?)?, -1, 0, columns)?,
            OrthogonalMap::Householder => householder(&x)?,
        };
        let q = match self.base.get() {
            Some(base) => ops::matmul(&ops::to_dtype(base, q.dtype())?, &q)?,
            None => q,
        };
        TallMatrix { x: q, is_transposed }.restored(original.dtype())
    }

    fn right_inverse(&self, weight: &Tensor) -> Result<Tensor> {
        let TallMatrix { x, is_transposed } = TallMatrix::new(weight)?;
        let (rows, columns) = (x.shape()[x.rank() - 2], x.shape()[x.rank() - 1]);
        if !self.without_base {
            self.set_base(&ops::to_dtype(&completed(&x)?, weight.dtype())?)?;
            // The original is −I. Every map returns the identity for it: its skew-symmetric matrix is 0, and the sign
            // −1 of every column cancels the column's Householder reflection.
            let minus_identity = ops::neg(&ops::eye(rows, columns, x.dtype())?)?;
            let original = ops::broadcast_to(&minus_identity, x.shape())?;
            return TallMatrix { x: original, is_transposed }.restored(weight.dtype());
        }
        let map = self.map_for(rows, columns);
        if map != OrthogonalMap::Householder {
            let reason = format!(
                "a given weight cannot be set with the map {map:?} and without a base; leave out \
                 use_trivialization(false), or use map(OrthogonalMap::Householder)"
            );
            return Err(Error::invalid(OP, reason));
        }
        let (packed, tau) = ops::geqrf(&x)?;
        // LAPACK stores τ = 0 if a column needs no reflection. The map always reflects, so the sign −1 cancels it.
        let signs = ops::mul(&signs(&diagonal(&packed)?)?, &ops::where_(&ops::eq(&tau, 0.0)?, -1.0, &signs(&tau)?)?)?;
        let diagonals = ops::mul(&ops::eye(rows, columns, x.dtype())?, &ops::unsqueeze(&signs, -2)?)?;
        TallMatrix { x: ops::add(&ops::tril(&packed, -1)?, &diagonals)?, is_transposed }.restored(weight.dtype())
    }

    fn is_initialized(&self) -> bool {
        self.base.get().is_some()
    }
}

impl Orthogonal {
    fn set_base(&self, base: &Tensor) -> Result<()> {
        let _off = no_grad();
        match self.base.get() {
            Some(known) => ops::copy_(known, base),
            None => {
                self.base.get_or_init(|| Buffer::new(base.clone()));
                Ok(())
            }
        }
    }
}

/// A matrix with at least as many rows as columns, in `f32` or `f64`, because half precision has no factorizations.
struct TallMatrix {
    x: Tensor,
    /// Whether it is the transpose of the given matrix.
    is_transposed: bool,
}

impl TallMatrix {
    fn new(matrix: &Tensor) -> Result<TallMatrix> {
        let [.., rows, columns] = *matrix.shape().dims() else {
            return Err(Error::shapes(OP, [matrix.shape()], "the weight must have at least two axes"));
        };
        let x = ops::to_dtype(matrix, matrix.dtype().promote(DType::F32))?;
        let is_transposed = rows < columns;
        Ok(TallMatrix { x: if is_transposed { ops::transpose(&x, -2, -1)? } else { x }, is_transposed })
    }

    /// Returns the matrix in the orientation of the given matrix, and in this dtype.
    fn restored(self, dtype: DType) -> Result<Tensor> {
        let x = if self.is_transposed { ops::transpose(&self.x, -2, -1)? } else { self.x };
        ops::to_dtype(&x, dtype)
    }
}

/// Returns L − Lᵀ for the lower triangle L, which is padded with zeros to a square matrix.
fn skew_symmetric(x: &Tensor) -> Result<Tensor> {
    let missing = x.shape()[x.rank() - 2] - x.shape()[x.rank() - 1];
    let mut widths = vec![(0, 0); x.rank()];
    widths[x.rank() - 1].1 = missing as isize;
    let lower = ops::pad(&ops::tril(x, 0)?, widths, ops::PaddingMode::Constant(0.0.into()))?;
    ops::sub(&lower, &ops::transpose(&lower, -2, -1)?)
}

/// Returns (I − A/2)⁻¹·(I + A/2). The factors commute, and I − A/2 is invertible for every skew-symmetric A.
fn cayley(a: &Tensor) -> Result<Tensor> {
    let side = a.shape()[a.rank() - 1];
    let (identity, half) = (ops::eye(side, side, a.dtype())?, ops::mul(a, 0.5)?);
    let (q, _) = ops::solve_ex(&ops::sub(&identity, &half)?, &ops::add(&identity, &half)?, true)?;
    Ok(q)
}

/// Returns the first columns of the product of the reflections I − τᵢ·vᵢ·vᵢᵀ, with the signs of the diagonal.
fn householder(x: &Tensor) -> Result<Tensor> {
    let below = ops::tril(x, -1)?;
    let tau = ops::div(2.0, &ops::add(&ops::sum(&ops::square(&below)?, -2)?, 1.0)?)?;
    let q = ops::householder_product(&below, &tau)?;
    ops::mul(&q, &ops::unsqueeze(&signs(&diagonal(&x.detach())?)?, -2)?)
}

/// Returns the square orthogonal matrix whose first columns are the orthonormalized columns of `x`.
fn completed(x: &Tensor) -> Result<Tensor> {
    let mut shape = x.shape().to_vec();
    let axis = shape.len() - 1;
    shape[axis] = shape[axis - 1] - shape[axis];
    let others = init::in_dtype(x.dtype(), || init::try_normal(shape, 0.0, 1.0))?.detach();
    let (q, r) = ops::qr(&ops::concatenate(&[x, &others.try_to(x.device())?], -1)?, QrMode::Reduced)?;
    // The signs make the diagonal of R positive, which makes Q unique.
    ops::mul(&q, &ops::unsqueeze(&signs(&diagonal(&r)?)?, -2)?)
}

fn diagonal(x: &Tensor) -> Result<Tensor> {
    ops::diagonal(x, 0, -2, -1)
}

/// Returns −1 for negative elements, else 1.
fn signs(x: &Tensor) -> Result<Tensor> {
    ops::where_(&ops::lt(x, 0.0)?, -1.0, &ops::ones_like(x)?)
}
