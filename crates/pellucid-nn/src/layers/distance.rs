//! How near two vectors are.

use crate::call;
use pellucid_derive::Module;
use pellucid_tensor::{Result, Tensor, ops, unwrap};

/// a·b / (max(‖a‖, eps)·max(‖b‖, eps)) along an axis, the cosine of the angle between vectors.
#[derive(Clone, Copy, Debug, Module)]
pub struct CosineSimilarity {
    /// The axis of the vectors; 1.
    pub axis: isize,
    /// The least length by which is divided; 1e-8.
    pub eps: f64,
}

impl Default for CosineSimilarity {
    fn default() -> CosineSimilarity {
        CosineSimilarity { axis: 1, eps: 1e-8 }
    }
}

impl CosineSimilarity {
    /// The cosines; a and b broadcast.
    ///
    /// # Panics
    /// With the error of [`try_forward`](CosineSimilarity::try_forward), at the caller's line.
    #[track_caller]
    pub fn forward(&self, a: &Tensor, b: &Tensor) -> Tensor {
        let _call = pellucid_tensor::called();
        unwrap(self.try_forward(a, b))
    }

    /// [`forward`](CosineSimilarity::forward) as a result.
    ///
    /// # Errors
    /// Those of [`ops::cosine_similarity`].
    pub fn try_forward(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        call::call(self, &[a, b], || ops::cosine_similarity(a, b, self.axis, self.eps))
    }
}

/// The p-norm of a − b + eps along the last axis.
#[derive(Clone, Copy, Debug, Module)]
pub struct PairwiseDistance {
    /// The order of the norm; 2.
    pub p: f64,
    /// What is added to every difference; 1e-6.
    pub eps: f64,
    /// Whether the last axis stays, with length 1; it does not.
    pub keepdims: bool,
}

impl Default for PairwiseDistance {
    fn default() -> PairwiseDistance {
        PairwiseDistance { p: 2.0, eps: 1e-6, keepdims: false }
    }
}

impl PairwiseDistance {
    /// The distances; a and b broadcast.
    ///
    /// # Panics
    /// With the error of [`try_forward`](PairwiseDistance::try_forward), at the caller's line.
    #[track_caller]
    pub fn forward(&self, a: &Tensor, b: &Tensor) -> Tensor {
        let _call = pellucid_tensor::called();
        unwrap(self.try_forward(a, b))
    }

    /// [`forward`](PairwiseDistance::forward) as a result.
    ///
    /// # Errors
    /// Those of [`ops::pairwise_distance`].
    pub fn try_forward(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        call::call(self, &[a, b], || ops::pairwise_distance(a, b, self.p, self.eps, self.keepdims))
    }
}
