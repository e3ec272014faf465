//! Losses that compare inputs: rankings and embeddings.

use super::{Reduction, Targets, declared, losses_of_many, methods_of_many, tracked_leaf, with_gradients};
use crate::module::Module;
use crate::visit::{Visit, Visitor};
use pellucid_derive::panicking_form;
use pellucid_tensor::ops::TripletMarginLossOptions;
use pellucid_tensor::{Result, Shape, Tensor, ops, unwrap};
use std::fmt;

losses_of_many! {
    /// The margin ranking loss max(0, −y·(a − b) + margin): y = 1 if a should be larger, −1 if b should.
    MarginRankingLoss, margin_ranking_loss {
        /// The required difference; default 0.
        margin: f64 = 0.0,
    } |loss, a, b, y| by [a, b] {
        Targets::Signs.check_if_readable("margin_ranking_loss", a.shape(), y)?;
        let y = &Targets::Signs.nan_unless_valid(y, Some(a.dtype()))?;
        ops::margin_ranking_loss(a, b, y, loss.margin, loss.reduction)
    };

    /// The cosine embedding loss 1 − cos(a, b) where y = 1, max(0, cos(a, b) − margin) where y = −1, for vectors
    /// `[N, D]` or `[D]` and labels `[N]` or `[]`.
    CosineEmbeddingLoss, cosine_embedding_loss {
        /// The cosine below which the loss of a dissimilar pair is 0; default 0.
        margin: f64 = 0.0,
    } |loss, a, b, y| by [a, b] {
        let labels: Shape = a.shape().split_last().map_or(a.shape().clone(), |(_, rows)| rows.into());
        Targets::Signs.check_if_readable("cosine_embedding_loss", &labels, y)?;
        let y = &Targets::Signs.nan_unless_valid(y, Some(a.dtype()))?;
        ops::cosine_embedding_loss(a, b, y, loss.margin, loss.reduction)
    };

    /// The triplet margin loss max(0, d(x, positive) − d(x, negative) + margin), d the p-norm distance along the last
    /// axis (Schroff et al. 2015).
    TripletMarginLoss, triplet_margin_loss {
        /// The required difference between the two distances; default 1.
        margin: f64 = 1.0,
        /// The order of the norm; default 2.
        p: f64 = 2.0,
        /// A constant added to every difference; default 1e-6.
        eps: f64 = 1e-6,
        /// Whether to use the distance between the positive and the negative sample if it is smaller (Balntas et al.
        /// 2016); default false.
        swap: bool = false,
    } |loss, x, positive, negative| by [x, positive, negative] {
        let TripletMarginLoss { margin, p, eps, swap, reduction } = *loss;
        ops::triplet_margin_loss(x, positive, negative, TripletMarginLossOptions { margin, p, eps, swap, reduction })
    };
}

/// [`TripletMarginLoss`] with an arbitrary distance function, which must be `Send` and `Sync`.
#[derive(Clone)]
pub struct TripletMarginWithDistanceLoss<D> {
    /// The function that returns the distance of two tensors, sample by sample.
    pub distance: D,
    /// The required difference between the two distances.
    pub margin: f64,
    /// Whether to use the distance between the negative and the positive sample if it is smaller (Balntas et al. 2016).
    pub swap: bool,
    /// The reduction over samples.
    pub reduction: Reduction,
}

impl<D: Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync> TripletMarginWithDistanceLoss<D> {
    /// Creates the loss with this distance, a margin of 1, and no swap.
    pub fn new(distance: D) -> TripletMarginWithDistanceLoss<D> {
        TripletMarginWithDistanceLoss { distance, margin: 1.0, swap: false, reduction: Reduction::Mean }
    }
}

impl<D: Send + Sync> Module for TripletMarginWithDistanceLoss<D> {}

impl<D: Send + Sync> Visit for TripletMarginWithDistanceLoss<D> {
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
