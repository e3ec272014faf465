//! Losses of class scores and of binary predictions.

use super::{Loss, Reduction, TargetForm, Targets, declared, losses};
use pellucid_tensor::ops::{CrossEntropyOptions, MultiMarginLossOptions};
use pellucid_tensor::{Result, Tensor, ops};

losses! {
    /// The cross-entropy −Σ_c p_c·ln softmax(logits)_c of logits `[N, C]`, `[C]` or `[N, C, d..]` against class indices
    /// (integers, without the class axis) or probabilities p (of the logits' shape).
    ///
    /// Unlike in PyTorch, no class is ignored by default.
    CrossEntropyLoss, cross_entropy of Classes {
        /// The weight of each class, `[C]`. For class indices, the mean divides by the sum of the samples' weights.
        weight: Option<Tensor> = None,
        /// The fraction of the target that is spread evenly over all classes (Szegedy et al. 2016); default 0.
        label_smoothing: f64 = 0.0,
        /// A class whose samples are excluded from the sum and from the mean; PyTorch's default is −100.
        ignore_index: Option<i64> = None,
    } |loss, logits, y| where Targets::Classes { ignored: loss.ignore_index, weight: loss.weight.as_ref() } => {
        let CrossEntropyLoss { weight, label_smoothing, ignore_index, reduction } = loss;
        let options = CrossEntropyOptions {
            weight: weight.as_ref(),
            label_smoothing: *label_smoothing,
            ignore_index: *ignore_index,
            reduction: *reduction,
        };
        ops::cross_entropy(logits, y, options)
    };

    /// The negative log-likelihood −x_y of log-probabilities x `[N, C]`, `[C]` or `[N, C, d..]` and class indices y.
    #[doc(alias = "NLLLoss")]
    NllLoss, nll_loss of ClassIndices {
        /// The weight of each class, `[C]`. The mean divides by the sum of the weights of the samples.
        weight: Option<Tensor> = None,
        /// A class whose samples are excluded from the sum and from the mean; PyTorch's default is −100.
        ignore_index: Option<i64> = None,
    } |loss, x, y| where Targets::Classes { ignored: loss.ignore_index, weight: loss.weight.as_ref() } => {
        let (weight, ignore_index, reduction) = (loss.weight.as_ref(), loss.ignore_index, loss.reduction);
        ops::nll_loss(x, y, ops::NllLossOptions { weight, ignore_index, reduction })
    };

    /// The binary cross-entropy −(y·ln x + (1 − y)·ln(1 − x)) of probabilities x; logarithms are clamped to at least
    /// −100.
    #[doc(alias = "BCELoss")]
    BceLoss, binary_cross_entropy of Values {
        /// A factor of each element; it broadcasts.
        weight: Option<Tensor> = None,
    } |loss, x, y| where Targets::Shares => ops::binary_cross_entropy(x, y, loss.weight.as_ref(), loss.reduction);

    /// [`BceLoss`] of the probabilities sigmoid(x), numerically stable for every x. Targets y are in [0, 1].
    #[doc(alias = "BCEWithLogitsLoss")]
    BceWithLogitsLoss, binary_cross_entropy_with_logits of Values {
        /// A factor of each element; it broadcasts.
        weight: Option<Tensor> = None,
        /// The weight of positive targets; it broadcasts.
        pos_weight: Option<Tensor> = None,
    } |loss, x, y| where Targets::Shares => {
        let (weight, positive) = (loss.weight.as_ref(), loss.pos_weight.as_ref());
        let y = &Targets::Shares.nan_unless_valid(y, None)?;
        ops::binary_cross_entropy_with_logits(x, y, weight, positive, loss.reduction)
    };

    /// The hinge embedding loss: a distance x where y = 1, and max(0, margin − x) where y = −1.
    HingeEmbeddingLoss, hinge_embedding_loss of Labels {
        /// The distance above which the loss of a dissimilar pair is 0; default 1.
        margin: f64 = 1.0,
    } |loss, x, y| where Targets::Signs => {
        let y = &Targets::Signs.nan_unless_valid(y, Some(x.dtype()))?;
        ops::hinge_embedding_loss(x, y, loss.margin, loss.reduction)
    };

    /// The soft margin loss ln(1 + e^(−y·x)) of a score x and a label y of 1 or −1.
    SoftMarginLoss, soft_margin_loss of Values {} |loss, x, y| where Targets::Signs => {
        let y = &Targets::Signs.nan_unless_valid(y, None)?;
        ops::soft_margin_loss(x, y, loss.reduction)
    };

    /// The multi-class margin loss Σ_{i ≠ y} w_y·max(0, margin − x_y + xᵢ)ᵖ / C of scores `[N, C]` or `[C]` and class
    /// indices y (Crammer & Singer 2001).
    MultiMarginLoss, multi_margin_loss of ClassIndices {
        /// The exponent p of each violation of the margin; default 1.
        p: f64 = 1.0,
        /// The required difference between the score of the class and each other score; default 1.
        margin: f64 = 1.0,
        /// The weight of each class, `[C]`.
        weight: Option<Tensor> = None,
    } |loss, x, y| where Targets::RowClasses => {
        let MultiMarginLoss { p, margin, weight, reduction } = loss;
        let options = MultiMarginLossOptions { p: *p, margin: *margin, weight: weight.as_ref(), reduction: *reduction };
        ops::multi_margin_loss(x, y, options)
    };

    /// The multi-label margin loss Σ_j Σ_i max(0, 1 − (x_j − xᵢ)) / C over the classes j of a sample and the other
    /// classes i. y has the shape of x and lists class indices up to the first −1.
    MultiLabelMarginLoss, multilabel_margin_loss of ClassLists {} |loss, x, y| where Targets::Any => ops::multilabel_margin_loss(x, y, loss.reduction);

    /// The mean of [`BceWithLogitsLoss`] over the classes, the last axis.
    MultiLabelSoftMarginLoss, multilabel_soft_margin_loss of Values {
        /// The weight of each class, `[C]`.
        weight: Option<Tensor> = None,
    } |loss, x, y| where Targets::Shares => {
        let y = &Targets::Shares.nan_unless_valid(y, None)?;
        ops::multilabel_soft_margin_loss(x, y, loss.weight.as_ref(), loss.reduction)
    };
}
