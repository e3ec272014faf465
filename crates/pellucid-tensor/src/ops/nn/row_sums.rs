//! Weighted sums of the rows of a table, selected by index tensors.

use crate::autograd::{apply_one, interface::*};
use crate::engine;
use crate::ops::elementwise::arithmetic;
use crate::ops::formula::map_sum;
use crate::ops::primitive::{gather, view};
use crate::tensor::Tensor;
use pellucid_ir::kernel::{self, Kernel};
use pellucid_ir::{Result, Shape, formula};

/// The terms of weighted sums of rows, grouped by sum.
pub(in crate::ops) struct RowTerms<'a> {
    /// `i64 [sums + 1]`: the index of the first term of each sum, and the number of terms.
    pub(in crate::ops) starts: &'a Tensor,
    /// `i64 [terms]`: the row of each term.
    pub(in crate::ops) rows: &'a Tensor,
    /// `[terms]`, in the dtype of the table: the weight of each term.
    pub(in crate::ops) weights: &'a Tensor,
    /// The assignment of terms to sums, for the gradients.
    pub(in crate::ops) sums: SumIndices<'a>,
}

/// The sum to which each term belongs.
pub(in crate::ops) enum SumIndices<'a> {
    /// Every sum has this number of terms.
    EqualCounts(usize),
    /// `i64 [terms]`: the index of the sum of each term.
    OfTerms(&'a Tensor),
}

/// Computes `y[i] = Σ weights[k] · table[rows[k]]` over the terms k of each sum, for a table `[R, D]` of dtype `f32` or
/// `f64`. The error for an invalid index names `op`.
pub(in crate::ops) fn row_sums(op: &'static str, table: &Tensor, terms: &RowTerms<'_>) -> Result<Tensor> {
    let &RowTerms { starts, rows, weights, ref sums } = terms;
    match *sums {
        SumIndices::EqualCounts(count) => {
            debug_assert_eq!(count * (starts.size() - 1), rows.size(), "every sum must have {count} terms");
            apply_one(RowSums { op, terms_per_sum: Some(count) }, &[table, starts, rows, weights])
        }
        SumIndices::OfTerms(indices) => {
            apply_one(RowSums { op, terms_per_sum: None }, &[table, starts, rows, weights, indices])
        }
    }
}

/// The operation of [`row_sums`]. The inputs are the table, the starts, the rows and weights of the terms, and the
/// indices of their sums unless all sums have the same number of terms. Only the gradients read the indices.
struct RowSums {
    op: &'static str,
    terms_per_sum: Option<usize>,
}

impl Operation for RowSums {
    fn name(&self) -> &'static str {
        "row_sums"
    }
    fn forward(&self, inputs: &[&Array], saves: &mut SaveForBackward) -> Result<Arrays> {
        (2..inputs.len()).for_each(|i| saves.input(i));
        // Only the gradient of the weights reads the table.
        if saves.needs(3) {
            saves.input(0);
        }
        let (table, starts) = (inputs[0], inputs[1]);
        let shape: Shape = [starts.shape()[0] - 1, table.shape()[1]].into();
        let out = Array::new(table.device(), table.dtype(), shape)?;
        let kernel = kernel::SparseProduct { op: self.op, axis: 0 };
        engine::submit(&Kernel::SparseProduct(kernel), &inputs[..4], &[&out])?;
        Ok(smallvec![out])
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, needs: NeedsInputGrad) -> Result<InputGradients> {
        let [rows, weights] = [saved.input(2)?, saved.input(3)?];
        let g = grads.get(0)?;
        let (width, count) = (g.shape()[1], rows.size());
        // The gradient of the sum to which each term belongs: [sums, 1, D], a view for sums of n terms each, or [terms,
        // 1, D].
        let (sum_grads, [groups, group_size]) = match self.terms_per_sum {
            Some(n) => (view::unsqueeze(&g, 1)?, [g.shape()[0], n]),
            None => (view::unsqueeze(&gather::index_select(&g, 0, &saved.input(4)?)?, 1)?, [count, 1]),
        };
        let mut gradients = InputGradients::from_elem(None, saved.inputs());
        if needs.contains(0) {
            let weights = view::reshape_to(&weights, &[groups, group_size, 1].into())?;
            let weighted = view::reshape_to(&arithmetic::mul(&sum_grads, &weights)?, &[count, width].into())?;
            gradients[0] = Some(gather::scatter_add_axis(&weighted, 0, &rows, saved.input_shape(0)[0])?);
        }
        if needs.contains(3) {
            let found = gather::index_select(&saved.input(0)?, 0, &rows)?;
            let found = view::reshape_to(&found, &[groups, group_size, width].into())?;
            let product = formula! { static row_product(a, b) = a * b; };
            let dots = map_sum(product, &[&sum_grads, &found], &[], std::iter::once(2).collect(), None)?;
            gradients[3] = Some(view::reshape_to(&dots, &[count].into())?);
        }
        Ok(gradients)
    }
}
