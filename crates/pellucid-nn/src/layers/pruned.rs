//! Layers with a mask on their weight.

use super::weighted::{Reparametrized, Weighted, check_new_weight, visit_others};
use crate::layer::Layer;
use crate::module::{Module, display_as_tree};
use crate::parameter::{Buffer, Parameter};
use crate::visit::{ModuleRole, Visit, Visitor};
use pellucid_derive::panicking_form;
use pellucid_tensor::{DType, Result, Tensor, no_grad, ops, unwrap};

/// A layer whose weight is multiplied by a mask of zeros and ones, which the functions of [`prune`](crate::prune) set
/// (Han et al. 2015).
///
/// Initially all elements of the mask are 1. The weight is w = original·mask, so the gradient of a pruned element is 0,
/// and no momentum or weight decay of an optimizer changes w there. The mask is a buffer: a captured step sees its
/// changes without a new recording. Names follow PyTorch's `nn.utils.prune`: the parameter `weight_orig` and the buffer
/// `weight_mask`.
///
/// ```
/// use pellucid::nn::{Linear, Pruned, Reparametrized, prune};
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
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) for an [`Embedding`](crate::Embedding) with
    /// `max_norm`; [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
    #[panicking_form]
    pub fn try_new(layer: L) -> Result<Pruned<L>> {
        layer.check_replaceable("pruned")?;
        Ok(Pruned { weight_mask: Buffer::new(ops::ones_like(&layer.weight().detach())?), layer })
    }
}

/// The weight is original·mask. Removing the mask makes the pruning permanent.
impl<L: Weighted> Reparametrized for Pruned<L> {
    type Layer = L;

    fn original(&self) -> &Parameter {
        self.layer.weight()
    }

    fn try_weight(&self) -> Result<Tensor> {
        ops::mul(self.original().tensor(), self.weight_mask.tensor())
    }

    /// Changes the original. Pruned elements of the weight stay 0.
    fn try_set_weight(&self, weight: &Tensor) -> Result<()> {
        let _off = no_grad();
        check_new_weight("pruned", self.original(), weight)?;
        ops::copy_(self.original(), &weight.detach())
    }

    fn try_remove(self) -> Result<L> {
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
        visitor.role(ModuleRole::Pruned);
        visitor.module(self, None);
        visit_others(&self.layer, PRUNED_NAMES[0], visitor);
        visitor.field(PRUNED_NAMES[1], &self.weight_mask);
    }
}

impl<L: Weighted> Layer for Pruned<L> {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        self.layer.compute_with(&self.try_weight()?, x)
    }

    fn input_dtype(&self) -> DType {
        self.layer.input_dtype()
    }
}

display_as_tree! {
    [L: Weighted] Pruned<L>;
}
