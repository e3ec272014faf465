//! Losses of comparisons: which of two is larger, or nearer.

use super::{Reduction, declared, losses_of_many, methods_of_many, tracked, with_gradients};
use crate::module::Module;
use crate::visit::Visitor;
use pellucid_tensor::ops::Triplet;
use pellucid_tensor::{Result, Tensor, ops, unwrap};
use std::fmt;

losses_of_many! {
    /// max(0, −y·(a − b) + margin): y = 1 where a should be larger, −1 where b.
    MarginRankingLoss, margin_ranking {
        /// By how much it should be larger; 0.
        margin: f64 = 0.0,
    } |loss, a, b, y| by [a, b] ops::margin_ranking_loss(a, b, y, loss.margin, loss.reduction);

    /// 1 − cos(a, b) where y = 1, max(0, cos(a, b) − margin) where y = −1, of vectors `[N, D]` or `[D]` and truths `[N]` or `[]`.
    CosineEmbeddingLoss, cosine_embedding {
        /// Below it, what is different costs nothing; 0.
        margin: f64 = 0.0,
    } |loss, a, b, y| by [a, b] ops::cosine_embedding_loss(a, b, y, loss.margin, loss.reduction);

    /// max(0, d(x, positive) − d(x, negative) + margin), d the distance of vectors, the last axis, in the p-norm (Schroff et al.
    /// 2015).
    TripletMarginLoss, triplet_margin {
        /// By how much the negative should be farther away; 1.
        margin: f64 = 1.0,
        /// The order of the norm; 2.
        p: f64 = 2.0,
        /// What is added to every difference; 1e-6.
        eps: f64 = 1e-6,
        /// Takes the negative's distance from the positive, if that is smaller (Balntas et al. 2016); it does not.
        swap: bool = false,
    } |loss, x, positive, negative| by [x, positive, negative] {
        let TripletMarginLoss { margin, p, eps, swap, reduction } = *loss;
        ops::triplet_margin_loss(x, positive, negative, Triplet { margin, p, eps, swap, reduction })
    };
}

/// [`TripletMarginLoss`] with any distance, which may go to other threads.
#[derive(Clone)]
pub struct TripletMarginWithDistanceLoss<D> {
    /// The distance of two tensors, sample by sample.
    pub distance: D,
    /// By how much the negative should be farther away.
    pub margin: f64,
    /// Takes the negative's distance from the positive, if that is smaller (Balntas et al. 2016).
    pub swap: bool,
    /// What happens with the values of the samples.
    pub reduction: Reduction,
}

impl<D: Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync> TripletMarginWithDistanceLoss<D> {
    /// With this distance, a margin of 1, without a swap.
    pub fn new(distance: D) -> TripletMarginWithDistanceLoss<D> {
        TripletMarginWithDistanceLoss { distance, margin: 1.0, swap: false, reduction: Reduction::Mean }
    }
}

impl<D: Send + Sync> Module for TripletMarginWithDistanceLoss<D> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.module(self, None);
    }
}

impl<D> fmt::Debug for TripletMarginWithDistanceLoss<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("TripletMarginWithDistanceLoss");
        text.field("margin", &self.margin).field("swap", &self.swap).field("reduction", &self.reduction);
        text.finish_non_exhaustive()
    }
}

methods_of_many! {
    [<D: Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync> TripletMarginWithDistanceLoss<D>]
    |loss, x, positive, negative| by [x, positive, negative] {
        let TripletMarginWithDistanceLoss { distance, margin, swap, reduction } = loss;
        ops::triplet_margin_with_distance_loss(x, positive, negative, distance, *margin, *swap, *reduction)
    }
}
