//! Taps of resampling: weighted sums of elements along an axis.

use crate::array::host_vec;
use crate::ops::elementwise::{arithmetic, compare};
use crate::ops::primitive::{copy, create, gather, view};
use crate::ops::reduce::reductions;
use crate::tensor::Tensor;
use pellucid_ir::{Result, Shape};

/// The elements and weights that each output along an axis sums. All outputs have the same number of taps.
pub(super) struct ResampleTaps {
    each: usize,
    elements: Vec<i64>,
    weights: Vec<f64>,
}

impl ResampleTaps {
    /// Creates an empty list for `outputs` outputs, each with at most `each` taps.
    pub(super) fn new(each: usize, outputs: usize) -> Result<ResampleTaps> {
        let count = each.saturating_mul(outputs);
        Ok(ResampleTaps { each, elements: host_vec(count)?, weights: host_vec(count)? })
    }

    /// Adds an output with these taps.
    pub(super) fn push(&mut self, taps: impl IntoIterator<Item = (usize, f64)>) {
        let start = self.elements.len();
        for (element, weight) in taps {
            self.elements.push(element as i64);
            self.weights.push(weight);
        }
        // Missing taps have weight 0, and repeat the last index so that no other element is read.
        let last = self.elements[start..].last().copied().unwrap_or(0);
        self.elements.resize(start + self.each, last);
        self.weights.resize(start + self.each, 0.0);
    }
}

/// Computes y_o = Σ weights·x along an axis.
pub(super) fn apply_taps(x: &Tensor, axis: usize, taps: &ResampleTaps) -> Result<Tensor> {
    let (outputs, each) = (taps.elements.len() / taps.each, taps.each);
    let elements = create::from_host(&taps.elements[..], [outputs, each])?;
    if each == 1 && taps.weights.iter().all(|&w| w == 1.0) {
        return gather::index_select(x, axis as isize, &view::ravel(&elements)?);
    }
    let gathered = gather::index_select(x, axis as isize, &elements)?;
    let shape: Shape = [outputs, each].into_iter().chain(std::iter::repeat_n(1, x.rank() - axis - 1)).collect();
    let weights = copy::to_dtype(&create::from_host(&taps.weights[..], [outputs, each])?, x.dtype())?;
    let weights = view::reshape_to(&weights, &shape)?;
    // 0 replaces products with weight 0, so that NaN and ∞ affect only outputs that use them.
    let terms = match taps.weights.contains(&0.0) {
        false => arithmetic::mul(&gathered, &weights)?,
        true => arithmetic::where_(&compare::eq(&weights, 0.0)?, 0.0, &arithmetic::mul(&gathered, &weights)?)?,
    };
    reductions::sum(&terms, axis as isize + 1)
}
