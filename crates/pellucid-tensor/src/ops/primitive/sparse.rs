//! Products of constant sparse matrices and the lines along an axis.
//!
//! The gradient of a product is the product with the transposed matrix, so derivatives of every order exist.

use crate::array::{host_values, host_vec};
use crate::autograd::{apply_one, interface::*};
use crate::engine;
use crate::ops::primitive::precision::{round_to_operands, widened_dtype};
use crate::ops::primitive::{copy, create, gather, view};
use crate::tensor::Tensor;
use pellucid_ir::kernel::{self, Kernel};
use pellucid_ir::{DType, Result};
use std::sync::Arc;

/// A sparse matrix in the compressed sparse row (CSR) format.
pub(in crate::ops) struct SparseMatrix {
    /// The number of columns.
    width: usize,
    /// The index of the first term of each row, and the number of terms.
    starts: Vec<i64>,
    columns: Vec<i64>,
    weights: Vec<f64>,
}

impl SparseMatrix {
    /// Creates a matrix without rows, with memory for `rows` rows and `terms` terms.
    pub(in crate::ops) fn new(width: usize, rows: usize, terms: usize) -> Result<SparseMatrix> {
        let mut starts = host_vec(rows.saturating_add(1))?;
        starts.push(0);
        Ok(SparseMatrix { width, starts, columns: host_vec(terms)?, weights: host_vec(terms)? })
    }

    /// Creates the matrix whose product with a vector selects these elements of the vector.
    fn selection(width: usize, elements: &[i64]) -> Result<SparseMatrix> {
        Ok(SparseMatrix {
            width,
            starts: host_values(elements.len().saturating_add(1), 0..=elements.len() as i64)?,
            columns: host_values(elements.len(), elements.iter().copied())?,
            weights: host_values(elements.len(), std::iter::repeat_n(1.0, elements.len()))?,
        })
    }

    /// Adds a row with these columns and weights. Terms with weight 0 are dropped, so that a NaN or ∞ in x affects only
    /// outputs with a nonzero weight for it.
    pub(in crate::ops) fn push_row(&mut self, terms: impl IntoIterator<Item = (usize, f64)>) {
        for (column, weight) in terms.into_iter().filter(|term| term.1 != 0.0) {
            self.columns.push(column as i64);
            self.weights.push(weight);
        }
        self.starts.push(self.columns.len() as i64);
    }

    fn rows(&self) -> usize {
        self.starts.len() - 1
    }

    /// Returns the transposed matrix, with the terms of each row in ascending order of their columns.
    fn transpose(&self) -> Result<SparseMatrix> {
        let mut starts = host_values(self.width + 1, std::iter::repeat_n(0, self.width + 1))?;
        self.columns.iter().for_each(|&column| starts[column as usize + 1] += 1);
        for row in 0..self.width {
            starts[row + 1] += starts[row];
        }
        let mut next = host_values(self.width, starts.iter().copied())?;
        let (mut columns, mut weights) = (self.columns.clone(), self.weights.clone());
        for row in 0..self.rows() {
            for term in self.starts[row] as usize..self.starts[row + 1] as usize {
                let place = &mut next[self.columns[term] as usize];
                (columns[*place as usize], weights[*place as usize]) = (row as i64, self.weights[term]);
                *place += 1;
            }
        }
        Ok(SparseMatrix { width: self.rows(), starts, columns, weights })
    }

    /// Returns true if every row has one term, with weight 1.
    fn is_selection(&self) -> bool {
        self.starts.windows(2).all(|row| row[1] - row[0] == 1) && self.weights.iter().all(|&weight| weight == 1.0)
    }
}

/// The product of a matrix and the lines along an axis. The inputs are x and the starts, columns and weights.
struct SparseProductOp {
    op: &'static str,
    axis: usize,
    matrix: Arc<SparseMatrix>,
}

impl SparseProductOp {
    /// Computes the product for x of dtype `f32` or `f64`.
    fn apply(self, x: &Tensor) -> Result<Tensor> {
        let matrix = &*self.matrix;
        let starts = create::from_host(&matrix.starts[..], [matrix.starts.len()])?;
        let terms = matrix.columns.len();
        let columns = create::from_host(&matrix.columns[..], [terms])?;
        let weights = match x.dtype() {
            DType::F64 => create::from_host(&matrix.weights[..], [terms])?,
            _ => {
                let weights = host_values(terms, matrix.weights.iter().map(|&weight| weight as f32))?;
                create::from_host(&weights[..], [terms])?
            }
        };
        apply_one(self, &[x, &starts, &columns, &weights])
    }
}

impl Operation for SparseProductOp {
    fn name(&self) -> &'static str {
        "sparse_product"
    }
    fn forward(&self, inputs: &[&Array], _: &mut SaveForBackward) -> Result<Arrays> {
        let x = inputs[0];
        let out = Array::new(x.device(), x.dtype(), x.shape().with_axis(self.axis, self.matrix.rows()))?;
        let kernel = kernel::SparseProduct { op: self.op, axis: self.axis };
        engine::submit(&Kernel::SparseProduct(kernel), inputs, &[&out])?;
        Ok(smallvec![out])
    }
    fn backward(&self, _: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let transposed = SparseProductOp { op: self.op, axis: self.axis, matrix: Arc::new(self.matrix.transpose()?) };
        Ok(smallvec![Some(transposed.apply(&grads.get(0)?)?), None, None, None])
    }
}

/// Computes `y[.., i, ..] = Σ weight · x[.., column, ..]` over the terms of each row i of the matrix, along an axis.
///
/// x must be of a float dtype unless each row selects one element.
pub(in crate::ops) fn multiply_axis(op: &'static str, x: &Tensor, axis: usize, matrix: SparseMatrix) -> Result<Tensor> {
    if !x.dtype().is_float() {
        debug_assert!(matrix.is_selection(), "sums of elements must have a float dtype");
        let index = create::from_host(&matrix.columns[..], [matrix.columns.len()])?;
        return gather::index_select(x, axis as isize, &index);
    }
    // Half precision is summed in `f32` and rounded once.
    let compute_dtype = widened_dtype(&[x]).unwrap_or(x.dtype());
    let product = SparseProductOp { op, axis, matrix: Arc::new(matrix) };
    round_to_operands(op, &[x], product.apply(&copy::to_dtype(x, compute_dtype)?)?)
}

/// Selects elements of an axis by constant indices. The result has the axes of `index` in place of the axis.
pub(in crate::ops) fn select_axis(
    op: &'static str,
    x: &Tensor,
    axis: usize,
    (index, shape): (&[i64], &[usize]),
) -> Result<Tensor> {
    let selected = multiply_axis(op, x, axis, SparseMatrix::selection(x.shape()[axis], index)?)?;
    let (before, after) = (&x.shape()[..axis], &x.shape()[axis + 1..]);
    view::reshape_to(&selected, &before.iter().chain(shape).chain(after).copied().collect())
}

/// Adds the slices of x along an axis to zeros, at constant indices in an axis of `len`: the transpose of
/// [`select_axis`] by a vector of indices. Slices without an index are not added.
pub(in crate::ops) fn add_to_axis(
    op: &'static str,
    x: &Tensor,
    axis: usize,
    index: &[Option<usize>],
    len: usize,
) -> Result<Tensor> {
    if x.dtype().is_float() {
        let mut terms = SparseMatrix::new(len, index.len(), index.len())?;
        index.iter().for_each(|element| terms.push_row(element.map(|element| (element, 1.0))));
        return multiply_axis(op, x, axis, terms.transpose()?);
    }
    // An additional last element collects the slices without an index. It is dropped afterwards.
    let elements = host_values(index.len(), index.iter().map(|element| element.unwrap_or(len) as i64))?;
    let sums = gather::scatter_add_axis(x, axis, &create::from_host(&elements[..], [elements.len()])?, len + 1)?;
    view::narrow(&sums, axis as isize, 0, len)
}
