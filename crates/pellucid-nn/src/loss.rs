//! Losses: functions whose value training makes small.

use pellucid_tensor::{Error, Result, Tensor, ops, unwrap};

pub use pellucid_tensor::ops::{CrossEntropy, Reduction};

/// The mean cross-entropy of logits `[N, C]` (or `[N, C, d..]`) against class numbers `[N]`
/// (`[N, d..]`) or probabilities of the logits' shape, a 0-d tensor:
/// −1/N Σₙ log softmax(logitsₙ) at class n.
///
/// Label smoothing, ignored classes and other reductions: [`Tensor::cross_entropy`].
///
/// # Panics
/// With the errors of [`ops::cross_entropy`].
#[track_caller]
pub fn cross_entropy(logits: &Tensor, targets: &Tensor) -> Tensor {
    unwrap(ops::cross_entropy(logits, targets, CrossEntropy::default()))
}

/// The mean squared error, mean (x − y)², a 0-d tensor.
///
/// # Panics
/// If the shapes differ: broadcasting one of them would be a mistake more often than not.
#[track_caller]
pub fn mse(x: &Tensor, y: &Tensor) -> Tensor {
    unwrap(same_shape("mse", x, y).and_then(|()| ops::mse_loss(x, y, Reduction::Mean)))
}

fn same_shape(op: &'static str, x: &Tensor, y: &Tensor) -> Result<()> {
    if x.shape() == y.shape() {
        return Ok(());
    }
    Err(Error::shapes(op, [x.shape(), y.shape()], "both must have one shape; reshape or expand one of them"))
}
