//! Layers with a mask on their weight.

use super::weighted::{Weighted, visit_others};
use crate::layer::Layer;
use crate::module::{Module, display_as_tree};
use crate::parameter::{Buffer, Parameter};
use crate::visit::{Visit, Visitor};
use pellucid_derive::panicking_form;
use pellucid_tensor::{Result, Tensor, no_grad, ops, unwrap};

/// A layer whose weight is multiplied by a mask of zeros and ones, which the functions of [`prune`](crate::prune) set
/// (Han et al. 2015).
///
/// Initially all elements of the mask are 1. The weight is w = original·mask, so the gradient of a pruned element is 0,
/// and no momentum or weight decay of an optimizer changes w there. The mask is a buffer: a captured step sees its
/// changes without a new recording. Names follow PyTorch's `nn.utils.prune`: the parameter `weight_orig` and the buffer
/// `weight_mask`.
///
/// ```
/// use pellucid::nn::{Linear, Pruned, prune};
/// let layer = Pruned::new(Linear::new(8, 4));
/// prune::l1_unstructured(&layer, 0.75)?;
/// let zeros = layer.weight().to_vec::<f32>().iter().filter(|w| **w == 0.0).count();
/// assert_eq!(zeros, 24);
/// let plain: Linear = layer.remove();
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Pruned<L> {
    /// The mask, in the shape and dtype of the weight.
    pub weight_mask: Buffer,
    layer: L,
}

impl<L: Weighted> Pruned<L> {
    /// Wraps this layer, with a mask of ones.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
    #[panicking_form]
    pub fn try_new(layer: L) -> Result<Pruned<L>> {
        Ok(Pruned { weight_mask: Buffer::new(ops::ones_like(&layer.weight().detach())?), layer })
    }

    /// Returns the weight before the product with the mask.
    pub fn original(&self) -> &Parameter {
        self.layer.weight()
    }

    /// Returns the weight original·mask.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
    #[panicking_form]
    pub fn try_weight(&self) -> Result<Tensor> {
        ops::mul(self.original().tensor(), self.weight_mask.tensor())
    }

    /// Makes the pruning permanent: returns the layer, whose weight is original·mask. It is the same parameter, so
    /// optimizers stay attached.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
    #[panicking_form]
    pub fn try_remove(self) -> Result<L> {
        let _off = no_grad();
        ops::copy_(self.original(), &self.try_weight()?)?;
        Ok(self.layer)
    }
}

/// The names of a pruned weight and of its mask.
pub(crate) const PRUNED_NAMES: [&str; 2] = ["weight_orig", "weight_mask"];

impl<L: Weighted> Module for Pruned<L> {}

impl<L: Weighted> Visit for Pruned<L> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.module(self, None);
        visit_others(&self.layer, PRUNED_NAMES[0], visitor);
        visitor.field(PRUNED_NAMES[1], &self.weight_mask);
    }
}

impl<L: Weighted> Layer for Pruned<L> {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        self.layer.compute_with(&self.try_weight()?, x)
    }
}

display_as_tree! {
    [L: Weighted] Pruned<L>;
}
