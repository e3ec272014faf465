//! The kernel family [`Factorization`] and its shape rule.

use super::operand::{check_outputs, metas};
use super::{Family, FamilyInfo, KernelOperand, Meta, Metas};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::shape::Shape;
use smallvec::smallvec;

/// A matrix factorization, a computation with triangular or other factors, or the matrix exponential. The last two axes
/// of an array are a matrix; the axes before them are batch axes.
///
/// It is a family of its own because its algorithms depend on values: they select pivots or iterate until convergence.
///
/// Matrices are `f32` or `f64`, and the arithmetic has the same precision. The results are bit-identical for all
/// layouts, numbers of threads and instruction sets. If an element that is read is NaN or infinite, all factors are
/// NaN. If the iteration of a finite matrix does not converge, the kernel fails with [`Error::NotConverged`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Factorization {
    /// A = L·Lᵀ for symmetric positive definite A. Only the lower triangle is read.
    ///
    /// Outputs: L; and `i32` of the shape of the batch, 0 or the order of the first leading minor that is not positive.
    /// If there is such a minor, L is NaN.
    Cholesky,
    /// P·A = L·U with row pivoting; A is `[m, n]`, k = min(m, n).
    ///
    /// Outputs, as in LAPACK: L below the diagonal (its diagonal is 1) and U on and above it, `[m, n]`; the pivots,
    /// `i32 [k]`: row i was exchanged with row pivotᵢ − 1, for i in ascending order; and `i32`, 0 or the position,
    /// counted from 1, of the first zero on the diagonal of U.
    Lu,
    /// The permutation of `rows` rows, `i64 [rows]`, from pivots `i32 [k]` of [`Factorization::Lu`]: row i of P·A is
    /// row orderᵢ of A. Pivots outside 1..=rows are rejected.
    RowOrder {
        /// The name of the operation that the error for an invalid pivot reports.
        op: &'static str,
        /// The number of rows of the factored matrix, at least k.
        rows: usize,
    },
    /// X with A·X = B, or Aᵀ·X = B if `transposed`, from the first two outputs of [`Factorization::Lu`] for square A,
    /// and B `[n, k]`; the batch axes of all inputs are equal. Invalid pivots are rejected. A zero on the diagonal of U
    /// makes all of X NaN.
    LuSolve {
        /// Whether Aᵀ is used instead of A.
        transposed: bool,
    },
    /// The cofactor matrix of square A, `[n, n]`, from the first two outputs of [`Factorization::Lu`]. It is the
    /// derivative of det A. Invalid pivots are rejected.
    Cofactors,
    /// P·A·Pᵀ = L·D·Lᵀ for symmetric A. Only the lower triangle is read; D has 1×1 and 2×2 blocks.
    ///
    /// Outputs, as in LAPACK's `sytrf`: D, with L below its blocks (the diagonal blocks of L are identities) and zeros
    /// above them, `[n, n]`; the pivots, `i32 [n]`; and `i32`, 0 or the position, counted from 1, of the first zero
    /// block. A 1×1 block has a pivot p > 0: row and column i were exchanged with p − 1. A 2×2 block has −p twice: its
    /// second row and column were exchanged with p − 1.
    Ldl,
    /// X with A·X = B, from the first two outputs of [`Factorization::Ldl`] and B `[n, k]`; the batch axes of all
    /// inputs are equal. Invalid pivots are rejected.
    LdlSolve,
    /// A = Q·R by Householder reflections; A is `[m, n]`, k = min(m, n).
    ///
    /// Outputs, as in LAPACK's `geqrf`: R on and above the diagonal and, below it, the vectors vᵢ (element i of vᵢ is 1
    /// and is not stored); and the factors τ `[k]`: Q is the product of all I − τᵢ·vᵢ·vᵢᵀ.
    Qr,
    /// The first columns of Q, `[m, columns]`, from the outputs of [`Factorization::Qr`].
    HouseholderBasis {
        /// The number of columns, from k to m.
        columns: usize,
    },
    /// A = U·diag(S)·Vᵀ, S descending.
    ///
    /// Outputs: S without vectors; U, S and Vᵀ with vectors.
    Svd(SvdVectors),
    /// A = V·diag(w)·Vᵀ for symmetric A. Only the lower triangle is read; w is ascending.
    ///
    /// Outputs: w; and V if `vectors`.
    Eigh {
        /// Whether V is computed.
        vectors: bool,
    },
    /// X with A·X = B for triangular A `[n, n]` and B `[n, k]`; the batch axes of all inputs are equal. The other
    /// triangle is not read. A zero on the diagonal makes all of X NaN.
    TriangularSolve {
        /// Whether A is upper triangular.
        upper: bool,
        /// Whether the diagonal is assumed to be 1. It is then not read.
        unit: bool,
    },
    /// X `[n, k]` with the smallest ‖A·X − B‖, and among these X the one with the smallest ‖X‖, for A `[m, n]`, B
    /// `[m, k]` and a bound `[1]`; the batch axes of all inputs are equal. Singular values of A up to the bound times
    /// the largest count as zero. A column of B that is not finite makes its column of X NaN.
    ///
    /// Outputs: X; the singular values of A, descending; and `i32` of the shape of the batch, the number of singular
    /// values that do not count as zero.
    LeastSquares,
    /// The exponential Σ Aᵏ/k!, by scaling, a Padé approximant and repeated squaring (Higham 2005).
    Exp,
}

/// The singular vectors that an SVD computes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SvdVectors {
    /// No singular vectors.
    Without,
    /// One pair of singular vectors for each singular value: U is `[m, k]`, Vᵀ `[k, n]`.
    Thin,
    /// Singular vectors that form complete orthonormal bases: U is `[m, m]`, Vᵀ `[n, n]`.
    Full,
}

impl Factorization {
    /// Returns the name of the operation.
    pub fn name(self) -> &'static str {
        match self {
            Factorization::Cholesky => "cholesky",
            Factorization::Lu => "lu",
            Factorization::RowOrder { .. } => "row_order",
            Factorization::LuSolve { .. } => "lu_solve",
            Factorization::Cofactors => "det_backward",
            Factorization::Ldl => "ldl_factor",
            Factorization::LdlSolve => "ldl_solve",
            Factorization::Qr => "qr",
            Factorization::HouseholderBasis { .. } => "householder_product",
            Factorization::Svd(_) => "svd",
            Factorization::Eigh { .. } => "eigh",
            Factorization::TriangularSolve { .. } => "solve_triangular",
            Factorization::LeastSquares => "lstsq",
            Factorization::Exp => "matrix_exp",
        }
    }

    /// Returns the number of inputs.
    pub fn inputs(self) -> usize {
        match self {
            Factorization::LdlSolve | Factorization::LuSolve { .. } | Factorization::LeastSquares => 3,
            Factorization::TriangularSolve { .. }
            | Factorization::Cofactors
            | Factorization::HouseholderBasis { .. } => 2,
            _ => 1,
        }
    }

    /// Returns the number of outputs.
    pub fn outputs(self) -> usize {
        match self {
            Factorization::Lu
            | Factorization::Ldl
            | Factorization::Svd(SvdVectors::Thin | SvdVectors::Full)
            | Factorization::LeastSquares => 3,
            Factorization::Cholesky | Factorization::Qr | Factorization::Eigh { vectors: true } => 2,
            _ => 1,
        }
    }

    /// Returns shape and dtype of every output.
    fn factors(self, inputs: &[Meta]) -> Result<Metas> {
        let (op, a) = (self.name(), &inputs[0]);
        if let Factorization::RowOrder { op, rows } = self {
            return row_order(op, a, rows);
        }
        if self == Factorization::Cofactors {
            return cofactors(op, inputs);
        }
        if matches!(self, Factorization::LdlSolve | Factorization::LuSolve { .. }) {
            return solve_with_pivots(op, inputs);
        }
        if let Some(other) = inputs.iter().find(|m| !matches!(m.dtype, DType::F32 | DType::F64) || m.dtype != a.dtype) {
            return Err(Error::dtypes(
                op,
                [a.dtype, other.dtype],
                "matrices must all be f32 or all f64; use to_dtype()",
            ));
        }
        let [batch @ .., m, n] = a.shape.dims() else {
            return Err(Error::shapes(op, [&a.shape], "matrices must have at least two axes; unsqueeze() adds one"));
        };
        let (m, n, k) = (*m, *n, *m.min(n));
        let shaped = |last: &[usize]| batch.iter().chain(last).copied().collect::<Shape>();
        let meta = |last: &[usize]| Meta { shape: shaped(last), dtype: a.dtype };
        let counts = |last: &[usize]| Meta { shape: shaped(last), dtype: DType::I32 };
        let accepts_all_shapes = matches!(
            self,
            Factorization::Lu
                | Factorization::Qr
                | Factorization::HouseholderBasis { .. }
                | Factorization::Svd(_)
                | Factorization::LeastSquares
        );
        if !accepts_all_shapes && m != n {
            return Err(Error::shapes(op, [&a.shape], "the matrices must be square"));
        }
        Ok(match self {
            Factorization::Cholesky => smallvec![a.clone(), counts(&[])],
            Factorization::Lu | Factorization::Ldl => smallvec![a.clone(), counts(&[k]), counts(&[])],
            Factorization::Qr => smallvec![a.clone(), meta(&[k])],
            Factorization::HouseholderBasis { columns } => match inputs[1].shape.dims() {
                [own @ .., taus] if own == batch && *taus == k && (k..=m).contains(&columns) => {
                    smallvec![meta(&[m, columns])]
                }
                _ => {
                    let help = "τ must have min(m, n) factors, and Q must have min(m, n) to m columns";
                    return Err(Error::shapes(op, [&a.shape, &inputs[1].shape], help));
                }
            },
            Factorization::Svd(SvdVectors::Without) => smallvec![meta(&[k])],
            Factorization::Svd(SvdVectors::Thin) => smallvec![meta(&[m, k]), meta(&[k]), meta(&[k, n])],
            Factorization::Svd(SvdVectors::Full) => smallvec![meta(&[m, m]), meta(&[k]), meta(&[n, n])],
            Factorization::Eigh { vectors: false } => smallvec![meta(&[n])],
            Factorization::Eigh { vectors: true } => smallvec![meta(&[n]), a.clone()],
            Factorization::TriangularSolve { .. } => match inputs[1].shape.dims() {
                [own @ .., rows, _] if own == batch && *rows == n => smallvec![inputs[1].clone()],
                _ => {
                    let help = "B must have as many rows as A, and the same batch axes";
                    return Err(Error::shapes(op, [&a.shape, &inputs[1].shape], help));
                }
            },
            Factorization::LeastSquares => match [&inputs[1], &inputs[2]].map(|input| input.shape.dims()) {
                [[own @ .., rows, right], [bounds @ .., 1]] if [own, bounds] == [batch; 2] && *rows == m => {
                    smallvec![meta(&[n, *right]), meta(&[k]), counts(&[])]
                }
                _ => {
                    let help = "B must have as many rows as A, bounds must be [.., 1], and batch axes must be equal";
                    return Err(Error::shapes(op, inputs.iter().map(|m| &m.shape), help));
                }
            },
            Factorization::Exp => smallvec![a.clone()],
            Factorization::RowOrder { .. }
            | Factorization::Cofactors
            | Factorization::LuSolve { .. }
            | Factorization::LdlSolve => unreachable!("kernels that read pivots must have returned above"),
        })
    }
}

/// Returns the shape and dtype of the cofactor matrices.
fn cofactors(op: &'static str, inputs: &[Meta]) -> Result<Metas> {
    let [a, pivots] = inputs else { unreachable!("{op} must have two inputs") };
    check_pivot_inputs(op, inputs)?;
    if !has_row_pivots(a, pivots) {
        return Err(Error::shapes(op, [&a.shape, &pivots.shape], "factors must be [.., n, n] and pivots [.., n]"));
    }
    Ok(smallvec![a.clone()])
}

/// Returns the shape and dtype of the solution of a system of equations from factors and pivots.
fn solve_with_pivots(op: &'static str, inputs: &[Meta]) -> Result<Metas> {
    let [a, pivots, b] = inputs else { unreachable!("{op} must have three inputs") };
    check_pivot_inputs(op, inputs)?;
    match (a.shape.dims(), b.shape.dims()) {
        ([batch @ .., n, _], [own @ .., rows, _]) if has_row_pivots(a, pivots) && rows == n && own == batch => {
            Ok(smallvec![b.clone()])
        }
        _ => {
            let help = "factors must be [.., n, n], pivots [.., n] and B [.., n, k]";
            Err(Error::shapes(op, inputs.iter().map(|m| &m.shape), help))
        }
    }
}

/// Returns an error unless the pivots, the second input, are `i32`, and the matrices `f32` or `f64`.
fn check_pivot_inputs(op: &'static str, inputs: &[Meta]) -> Result<()> {
    let (a, pivots) = (inputs[0].dtype, inputs[1].dtype);
    if matches!(a, DType::F32 | DType::F64) && pivots == DType::I32 && inputs[2..].iter().all(|b| b.dtype == a) {
        return Ok(());
    }
    let help = "matrices must have the same dtype, f32 or f64, and pivots must be i32";
    Err(Error::dtypes(op, inputs.iter().map(|m| m.dtype), help))
}

/// Returns true if the matrices are square, and the pivots have one element for each row.
fn has_row_pivots(a: &Meta, pivots: &Meta) -> bool {
    match (a.shape.dims(), pivots.shape.dims()) {
        ([batch @ .., m, n], [own @ .., k]) => m == n && k == n && own == batch,
        _ => false,
    }
}

fn row_order(op: &'static str, pivots: &Meta, rows: usize) -> Result<Metas> {
    if pivots.dtype != DType::I32 {
        return Err(Error::dtypes(op, [pivots.dtype], "the pivots must be i32; use to_dtype()"));
    }
    match pivots.shape.dims() {
        [batch @ .., k] if *k <= rows => {
            Ok(smallvec![Meta { shape: batch.iter().copied().chain([rows]).collect(), dtype: DType::I64 }])
        }
        _ => Err(Error::shapes(
            op,
            [&pivots.shape],
            format!("the number of pivots, the length of the last axis, must be at most the number of rows, {rows}"),
        )),
    }
}

impl Family for Factorization {
    const FAMILY: &'static str = "factorization";

    fn name(&self) -> &'static str {
        Factorization::name(*self)
    }

    fn info(&self) -> FamilyInfo {
        // These iterate, and may fail to converge after they have written.
        let writes_before_rejection =
            matches!(self, Factorization::Svd(_) | Factorization::Eigh { .. } | Factorization::LeastSquares);
        let reads_pivots = matches!(
            self,
            Factorization::RowOrder { .. }
                | Factorization::Cofactors
                | Factorization::LuSolve { .. }
                | Factorization::LdlSolve
        );
        let rejects_values = writes_before_rejection || reads_pivots;
        FamilyInfo { rejects_values, writes_before_rejection, ..FamilyInfo::new(self.inputs(), self.outputs()) }
    }

    fn infer(&self, inputs: &[Meta]) -> Result<Metas> {
        self.factors(inputs)
    }

    fn check<O: KernelOperand>(&self, inputs: &[O], outputs: &[O]) -> Result<()> {
        let rule = "the outputs must have the shapes and dtypes of the factors";
        check_outputs(
            Factorization::name(*self),
            outputs,
            &self.factors(&metas(&inputs[..self.inputs()]))?,
            |_| true,
            rule,
        )
    }

    /// Counts 2/3·m·n·min(m, n) for each matrix `[m, n]` of the first input.
    fn flops(&self, inputs: &[Meta], _: &[Meta]) -> u64 {
        match inputs.first().map(|a| &*a.shape) {
            Some([.., m, n]) => 2 * inputs[0].elements() * (*m.min(n) as u64) / 3,
            _ => 0,
        }
    }
}
