//! Similarities and distances of vectors.

use crate::call;
use pellucid_derive::{Module, panicking_form};
use pellucid_tensor::{Result, Tensor, ops, unwrap};

/// The cosine similarity a·b / (max(‖a‖, eps)·max(‖b‖, eps)) along an axis.
#[derive(Clone, Copy, Debug, Module)]
#[module(display)]
pub struct CosineSimilarity {
    /// The axis of the vectors; default 1.
    pub axis: isize,
    /// The lower bound of the norms; default 1e-8.
    pub eps: f64,
}

impl Default for CosineSimilarity {
    fn default() -> CosineSimilarity {
        CosineSimilarity { axis: 1, eps: 1e-8 }
    }
}

impl CosineSimilarity {
    /// Returns the cosines; a and b broadcast.
    ///
    /// # Errors
    /// The errors of [`ops::cosine_similarity`].
    #[panicking_form]
    pub fn try_forward(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        call::call(self, &[a, b], || ops::cosine_similarity(a, b, self.axis, self.eps))
    }
}

/// The pairwise distance, the p-norm of a − b + eps along the last axis.
#[derive(Clone, Copy, Debug, Module)]
#[module(display)]
pub struct PairwiseDistance {
    /// The order of the norm; default 2.
    pub p: f64,
    /// A constant added to every difference; default 1e-6.
    pub eps: f64,
    /// Whether to keep the last axis with length 1; default false.
    pub keepdims: bool,
}

impl Default for PairwiseDistance {
    fn default() -> PairwiseDistance {
        PairwiseDistance { p: 2.0, eps: 1e-6, keepdims: false }
    }
}

impl PairwiseDistance {
    /// Returns the distances; a and b broadcast.
    ///
    /// # Errors
    /// The errors of [`ops::pairwise_distance`].
    #[panicking_form]
    pub fn try_forward(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        call::call(self, &[a, b], || ops::pairwise_distance(a, b, self.p, self.eps, self.keepdims))
    }
}
