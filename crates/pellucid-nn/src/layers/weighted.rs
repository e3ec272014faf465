//! Layers whose weight can be replaced in a call.

use super::{Conv, ConvTranspose, Linear};
use crate::layer::Layer;
use crate::module::Module;
use crate::parameter::Parameter;
use crate::visit::{ModulePart, Visitor};
use pellucid_tensor::{Result, Tensor};

/// A layer whose weight can be replaced in a call, so that [`Parametrized`](crate::Parametrized) and similar layers can
/// wrap it.
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
}

macro_rules! weighted {
    ([$($generic:tt)*] $layer:ty: $outputs:literal) => {
        impl $($generic)* Weighted for $layer {
            const OUTPUTS: usize = $outputs;

            fn weight(&self) -> &Parameter {
                &self.weight
            }

            fn compute_with(&self, weight: &Tensor, x: &Tensor) -> Result<Tensor> {
                self.output(weight, x)
            }
        }
    };
}
weighted!([] Linear: 0);
weighted!([<const N: usize>] Conv<N>: 0);
weighted!([<const N: usize>] ConvTranspose<N>: 1);

/// Visits the parts of a layer, its weight under another name.
pub(super) fn visit_others(layer: &impl Module, weight: &str, visitor: &mut Visitor<'_>) {
    layer.visit(&mut Visitor::new(&mut |name, part| match part {
        ModulePart::Module(_) => {}
        ModulePart::Parameter(own) => visitor.field(if name == "weight" { weight } else { name }, own),
        ModulePart::Buffer(own) => visitor.field(name, own),
        ModulePart::TrainingMode(own) => visitor.field(name, own),
        ModulePart::PathChoice(own) => visitor.field(name, own),
        ModulePart::StateFlag(own) => visitor.field(name, own),
        ModulePart::Setting(own) => visitor.setting(name, own),
    }));
}
