//! The loss of sequences whose alignment is not known.

use super::{Reduction, declared, losses_of_many, methods_of_many, tracked, with_gradients};
use pellucid_tensor::ops::Ctc;
use pellucid_tensor::{Result, Tensor, ops, unwrap};

losses_of_many! {
    /// Connectionist temporal classification (Graves et al. 2006): −ln of the probability of a labelling, over all its
    /// alignments.
    ///
    /// Logarithms of probabilities are `[T, N, C]` (or `[T, C]`, one sample), labels `[N, S]` or all of them one after the other,
    /// lengths `i64 [N]`. The mean is over the samples, each divided by its number of labels.
    CtcLoss, ctc {
        /// The class that stands for nothing; 0.
        blank: usize = 0,
        /// Labellings without an alignment cost 0, and have no gradient, instead of ∞; they do not.
        zero_infinity: bool = false,
    } |loss, log_probs, labels, input_lengths, label_lengths| by [log_probs] {
        let CtcLoss { blank, zero_infinity, reduction } = *loss;
        let options = Ctc { blank, zero_infinity, reduction };
        ops::ctc_loss(log_probs, labels, input_lengths, label_lengths, options)
    };
}
