//! The backward pass from a tensor.

use super::Tensor;
use crate::autograd::{Backward, backward};
use crate::panic;
use pellucid_ir::Result;

impl Tensor {
    /// Computes the gradient of every leaf that this tensor depends on, and adds it to the leaf's gradient. The pass
    /// starts with ones of this tensor's shape, or with the gradient of [`Tensor::set_grad`], and frees the graph.
    ///
    /// # Panics
    /// With the errors of [`Tensor::try_backward`].
    #[track_caller]
    pub fn backward(&self) {
        panic::unwrap(self.try_backward(Backward::default()));
    }

    /// Runs [`Tensor::backward`] with options.
    ///
    /// # Panics
    /// With the errors of [`Tensor::try_backward`].
    #[track_caller]
    pub fn backward_with(&self, options: Backward) {
        panic::unwrap(self.try_backward(options));
    }

    /// Runs [`Tensor::backward_with`] and returns errors as values.
    ///
    /// # Errors
    /// [`Error::NotTracked`](crate::Error::NotTracked); [`Error::GraphFreed`](crate::Error::GraphFreed) if an earlier
    /// pass has freed the graph; [`Error::SavedValueModified`](crate::Error::SavedValueModified);
    /// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch) for an initial gradient of another shape. After an error,
    /// the gradients of leaves are unchanged.
    pub fn try_backward(&self, options: Backward) -> Result<()> {
        backward(self, options)
    }
}
