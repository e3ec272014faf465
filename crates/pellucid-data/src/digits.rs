//! [`Digits`]: labelled images of handwritten digits.

use pellucid_tensor::Tensor;

/// Labelled digits.
#[derive(Clone, Debug)]
pub struct Digits {
    /// Gray values in [0, 1], 0 the background: `f32` `[N, H, W]`.
    pub images: Tensor,
    /// The digits from 0 to 9: `i64` `[N]`.
    pub labels: Tensor,
}
