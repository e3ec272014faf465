//! Losses between scores and classes, or the truth of statements.

use super::{Loss, Reduction, declared, losses, same_shape};
use pellucid_tensor::ops::{CrossEntropy, MultiMargin};
use pellucid_tensor::{Result, Tensor, ops};

losses! {
    /// The cross-entropy −Σ_c p_c·ln softmax(logits)_c of logits `[N, C]`, `[C]` or `[N, C, d..]` against class numbers (of
    /// integers, without the class axis) or probabilities p (of the logits' shape).
    ///
    /// Unlike PyTorch's, it ignores no class number, unless it is told which.
    CrossEntropyLoss, cross_entropy as SoftmaxCrossEntropy {
        /// How much each class counts, `[C]`. The mean over class numbers is one over their weights.
        weight: Option<Tensor> = None,
        /// The share of the target that is spread evenly over all classes (Szegedy et al. 2016); 0.
        label_smoothing: f64 = 0.0,
        /// Samples of this class contribute nothing, and do not count in the mean; PyTorch has −100.
        ignore_index: Option<i64> = None,
    } |loss, logits, y| {
        let CrossEntropyLoss { weight, label_smoothing, ignore_index, reduction } = loss;
        let options = CrossEntropy {
            weight: weight.as_ref(),
            label_smoothing: *label_smoothing,
            ignore_index: *ignore_index,
            reduction: *reduction,
        };
        ops::cross_entropy(logits, y, options)
    };

    /// −x_y of logarithms of probabilities x `[N, C]`, `[C]` or `[N, C, d..]` and class numbers y.
    NllLoss, nll {
        /// How much each class counts, `[C]`. The mean is one over the weights of the samples.
        weight: Option<Tensor> = None,
        /// Samples of this class contribute nothing, and do not count in the mean; PyTorch has −100.
        ignore_index: Option<i64> = None,
    } |loss, x, y| {
        let (weight, ignore_index, reduction) = (loss.weight.as_ref(), loss.ignore_index, loss.reduction);
        ops::nll_loss(x, y, ops::NllLoss { weight, ignore_index, reduction })
    };

    /// −(y·ln x + (1 − y)·ln(1 − x)) of probabilities x; the logarithms are no less than −100.
    BceLoss, binary_cross_entropy as Bce {
        /// By what each value is multiplied; it broadcasts.
        weight: Option<Tensor> = None,
    } |loss, x, y| {
        same_shape("binary_cross_entropy", x, y)?;
        ops::binary_cross_entropy(x, y, loss.weight.as_ref(), loss.reduction)
    };

    /// [`BceLoss`] of the probabilities sigmoid(x), for any size of x.
    BceWithLogitsLoss, binary_cross_entropy_with_logits as Bce {
        /// By what each value is multiplied; it broadcasts.
        weight: Option<Tensor> = None,
        /// How much what is true counts; it broadcasts.
        pos_weight: Option<Tensor> = None,
    } |loss, x, y| {
        same_shape("binary_cross_entropy_with_logits", x, y)?;
        let (weight, positive) = (loss.weight.as_ref(), loss.pos_weight.as_ref());
        ops::binary_cross_entropy_with_logits(x, y, weight, positive, loss.reduction)
    };

    /// A distance x where y = 1, and max(0, margin − x) where y = −1.
    HingeEmbeddingLoss, hinge_embedding {
        /// Beyond it, what is different costs nothing; 1.
        margin: f64 = 1.0,
    } |loss, x, y| {
        same_shape("hinge_embedding", x, y)?;
        ops::hinge_embedding_loss(x, y, loss.margin, loss.reduction)
    };

    /// ln(1 + e^(−y·x)) of a score x and a truth y of 1 or −1.
    SoftMarginLoss, soft_margin {} |loss, x, y| {
        same_shape("soft_margin", x, y)?;
        ops::soft_margin_loss(x, y, loss.reduction)
    };

    /// Σ_{i ≠ y} w_y·max(0, margin − x_y + xᵢ)ᵖ / C of scores `[N, C]` or `[C]` and class numbers y (Crammer & Singer 2001).
    MultiMarginLoss, multi_margin {
        /// The power of what is missing to the margin; 1.
        p: f64 = 1.0,
        /// By how much the class's score should exceed the others; 1.
        margin: f64 = 1.0,
        /// How much each class counts, `[C]`.
        weight: Option<Tensor> = None,
    } |loss, x, y| {
        let MultiMarginLoss { p, margin, weight, reduction } = loss;
        let options = MultiMargin { p: *p, margin: *margin, weight: weight.as_ref(), reduction: *reduction };
        ops::multi_margin_loss(x, y, options)
    };

    /// Σ_j Σ_i max(0, 1 − (x_j − xᵢ)) / C over the classes j that a sample has and the classes i that it has not; y is of x's
    /// shape, class numbers up to the first −1.
    MultiLabelMarginLoss, multilabel_margin {} |loss, x, y| ops::multilabel_margin_loss(x, y, loss.reduction);

    /// The mean over the classes, the last axis, of [`BceWithLogitsLoss`].
    MultiLabelSoftMarginLoss, multilabel_soft_margin {
        /// How much each class counts, `[C]`.
        weight: Option<Tensor> = None,
    } |loss, x, y| {
        same_shape("multilabel_soft_margin", x, y)?;
        ops::multilabel_soft_margin_loss(x, y, loss.weight.as_ref(), loss.reduction)
    };
}
