//! Layers whose weight can be replaced in a call.

use super::{Conv, ConvTranspose, Embedding, Linear};
use crate::layer::Layer;
use crate::module::Module;
use crate::parameter::Parameter;
use crate::visit::{ModulePart, Visitor};
use pellucid_derive::panicking_form;
use pellucid_tensor::{Error, Result, Tensor, unwrap};

/// A layer whose weight can be replaced in a call, so that [`Reparametrized`] layers can wrap it.
pub trait Weighted: Layer {
    /// The axis of the weight that counts outputs.
    const OUTPUTS: usize;

    /// Returns the weight, which the layer visits under the name `weight`.
    fn weight(&self) -> &Parameter;

    /// Returns the layer's output with another weight.
    ///
    /// # Errors
    /// The errors of [`Layer::compute`].
    fn compute_with(&self, weight: &Tensor, x: &Tensor) -> Result<Tensor>;

    /// Returns an error if an option of the layer has no effect in [`compute_with`](Weighted::compute_with). A
    /// [`Reparametrized`] layer cannot wrap the layer then.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] names the option.
    fn check_replaceable(&self, op: &'static str) -> Result<()> {
        let _ = op;
        Ok(())
    }
}

macro_rules! weighted {
    ([$($generic:tt)*] $layer:ty: $outputs:literal $($method:item)?) => {
        impl $($generic)* Weighted for $layer {
            const OUTPUTS: usize = $outputs;

            fn weight(&self) -> &Parameter {
                &self.weight
            }

            fn compute_with(&self, weight: &Tensor, x: &Tensor) -> Result<Tensor> {
                self.output(weight, x)
            }
            $($method)?
        }
    };
}
weighted!([] Linear: 0);
weighted!([<const N: usize>] Conv<N>: 0);
weighted!([<const N: usize>] ConvTranspose<N>: 1);
weighted!([] Embedding: 0
    fn check_replaceable(&self, op: &'static str) -> Result<()> {
        match self.options().max_norm {
            Some(_) => Err(Error::invalid(
                op,
                "the embedding has `max_norm`, which rescales its own table in place; create it without max_norm()",
            )),
            None => Ok(()),
        }
    }
);

/// A layer that computes its weight from a trained parameter and other values: [`Parametrized`](crate::Parametrized),
/// [`Pruned`](crate::Pruned) and [`Lora`](crate::Lora).
///
/// ```
/// use pellucid::nn::{Linear, Parametrized, Reparametrized, WeightNorm};
/// let layer = Parametrized::new(Linear::new(3, 2), WeightNorm::new());
/// assert_eq!(layer.weight().shape(), layer.original().shape());
/// let plain: Linear = layer.remove();
/// ```
pub trait Reparametrized: Layer {
    /// The layer whose weight is computed.
    type Layer: Weighted;

    /// Returns the parameter from which the weight is computed. It is the layer's own parameter, so an optimizer of
    /// this parameter still trains it.
    fn original(&self) -> &Parameter;

    /// Returns the weight.
    ///
    /// # Errors
    /// The errors of the operations; [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
    #[panicking_form]
    fn try_weight(&self) -> Result<Tensor>;

    /// Changes the original so that the layer has this weight, or a nearby weight if no original has this one.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`](pellucid_tensor::Error::ShapeMismatch) for another shape; the errors of the operations.
    #[panicking_form]
    fn try_set_weight(&self, weight: &Tensor) -> Result<()>;

    /// Returns the layer, whose parameter becomes the current weight.
    ///
    /// # Errors
    /// The errors of [`try_weight`](Reparametrized::try_weight).
    #[doc(alias = "remove_parametrizations")]
    #[panicking_form]
    fn try_remove(self) -> Result<Self::Layer>
    where
        Self: Sized;
}

/// Returns an error unless a new weight has the shape of the layer's weight.
pub(super) fn check_new_weight(op: &'static str, current: &Parameter, weight: &Tensor) -> Result<()> {
    if weight.shape() == current.shape() {
        return Ok(());
    }
    let help = "the weight must have the shape of the layer's weight";
    Err(Error::shapes(op, [current.shape(), weight.shape()], help))
}

/// Visits the parts of a layer, with the name of its weight replaced by `weight`.
pub(super) fn visit_others(layer: &impl Module, weight: &str, visitor: &mut Visitor<'_>) {
    layer.visit(&mut Visitor::new(&mut |name, part| match part {
        ModulePart::Module(_) => {}
        part => visitor.part_as(if name == "weight" { weight } else { name }, part),
    }));
}
