//! Weight normalization.

use super::weighted::{Weighted, visit_others};
use crate::layer::Layer;
use crate::module::{Module, display_as_tree};
use crate::parameter::Parameter;
use crate::visit::{Visit, Visitor};
use pellucid_derive::panicking_form;
use pellucid_tensor::ops::over;
use pellucid_tensor::{Result, Tensor, formula, ops, unwrap};

/// Weight normalization (Salimans & Kingma 2016): the weight of the layer is w = g·v/‖v‖, with separately trained
/// lengths g and directions v. There is one length for every slice along the first axis.
///
/// Initially w is the layer's own weight. Parameter names follow PyTorch's `parametrizations.weight_norm`: g is
/// `parametrizations.weight.original0`, `[n, 1, ..]`, and v is `parametrizations.weight.original1`.
///
/// ```
/// use pellucid::nn::{Layer, Linear, Module, WeightNorm};
/// use pellucid::Tensor;
/// let (plain, x) = (Linear::new(3, 2), Tensor::from([[1.0f32, 2.0, 3.0]]));
/// let expected = plain.forward(&x).to_vec::<f32>();
/// let layer = WeightNorm::new(plain);
/// assert!(layer.forward(&x).to_vec::<f32>().iter().zip(expected).all(|(y, e)| (y - e).abs() < 1e-5));
/// assert_eq!(layer.parameter_count(), 2 + 6 + 2);
/// ```
#[doc(alias = "weight_norm")]
#[derive(Clone, Debug)]
pub struct WeightNorm<L> {
    /// The lengths g.
    pub length: Parameter,
    layer: L,
}

impl<L: Weighted> WeightNorm<L> {
    /// Wraps this layer, whose weight becomes v.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_new(layer: L) -> Result<WeightNorm<L>> {
        let v = layer.weight().detach();
        let length = ops::norm(&v, 2.0, over(&axes_but_first(&v)[..]).keepdims())?;
        Ok(WeightNorm { length: Parameter::try_new(length)?, layer })
    }

    /// Returns the directions v.
    pub fn direction(&self) -> &Parameter {
        self.layer.weight()
    }

    /// Returns the weight w.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_weight(&self) -> Result<Tensor> {
        let v = self.direction();
        let scaled = formula!(|v, g: per_row| v * (g / (v * v).row_sum().sqrt()));
        ops::map_rows(scaled, &[v, &self.length], &[], &axes_but_first(v)[..])
    }
}

/// Returns all axes but the first.
fn axes_but_first(weight: &Tensor) -> Vec<isize> {
    (1..weight.rank() as isize).collect()
}

impl<L: Weighted> Module for WeightNorm<L> {}

impl<L: Weighted> Visit for WeightNorm<L> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.module(self, None);
        visitor.field("parametrizations.weight.original0", &self.length);
        visit_others(&self.layer, "parametrizations.weight.original1", visitor);
    }
}

impl<L: Weighted> Layer for WeightNorm<L> {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        self.layer.compute_with(&self.try_weight()?, x)
    }
}

display_as_tree! {
    [L: Weighted] WeightNorm<L>;
}
