//! The CTC loss for sequences whose alignment is unknown.

use super::{Reduction, declared, losses_of_many, methods_of_many, tracked_leaf, with_gradients};
use pellucid_derive::panicking_form;
use pellucid_tensor::ops::CtcLossOptions;
use pellucid_tensor::{Result, Tensor, ops, unwrap};

losses_of_many! {
    /// Connectionist temporal classification (Graves et al. 2006): −ln of the total probability of a labelling over all
    /// alignments.
    ///
    /// Log-probabilities are `[T, N, C]`, or `[T, C]` for one sample. Labels are `[N, S]`, or one vector that
    /// concatenates the labels of all samples; lengths are `i64 [N]`. The mean reduction divides each sample's loss by
    /// its number of labels, and averages over the samples.
    #[doc(alias = "CTCLoss")]
    CtcLoss, ctc_loss {
        /// The blank class; default 0.
        blank: usize = 0,
        /// Whether a labelling without an alignment costs 0 without a gradient, instead of ∞; default false.
        zero_infinity: bool = false,
    } |loss, log_probs, labels, input_lengths, label_lengths| by [log_probs] {
        let CtcLoss { blank, zero_infinity, reduction } = *loss;
        let options = CtcLossOptions { blank, zero_infinity, reduction };
        ops::ctc_loss(log_probs, labels, input_lengths, label_lengths, options)
    };
}
