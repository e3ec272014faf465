//! Weight normalization.

use super::Parametrization;
use crate::module::Module;
use crate::parameter::Parameter;
use crate::visit::{Visit, Visitor};
use pellucid_tensor::ops::over;
use pellucid_tensor::{Error, Result, Tensor, formula, no_grad, ops};
use std::sync::OnceLock;

/// The parametrization w = g·v/‖v‖ of a weight, with separately trained lengths g and directions v: weight
/// normalization (Salimans & Kingma 2016). There is one length for every slice along the first axis.
///
/// The original is v, initially the layer's weight. Parameter names follow PyTorch's `parametrizations.weight_norm`: g
/// is `parametrizations.weight.original0`, `[n, 1, ..]`, and v is `parametrizations.weight.original1`.
///
/// ```
/// use pellucid::nn::{Layer, Linear, Module, Parametrized, WeightNorm};
/// use pellucid::Tensor;
/// let (plain, x) = (Linear::new(3, 2), Tensor::from([[1.0f32, 2.0, 3.0]]));
/// let expected = plain.forward(&x).to_vec::<f32>();
/// let layer = Parametrized::new(plain, WeightNorm::new());
/// assert!(layer.forward(&x).to_vec::<f32>().iter().zip(expected).all(|(y, e)| (y - e).abs() < 1e-5));
/// assert_eq!(layer.parameter_count(), 2 + 6 + 2);
/// ```
#[doc(alias = "weight_norm")]
#[derive(Clone, Debug, Default)]
pub struct WeightNorm {
    /// g, whose values [`Parametrization::right_inverse`] sets.
    length: OnceLock<Parameter>,
}

impl WeightNorm {
    /// Creates the parametrization.
    pub fn new() -> WeightNorm {
        WeightNorm::default()
    }

    /// Returns the lengths g, once a layer is wrapped.
    pub fn length(&self) -> Option<&Parameter> {
        self.length.get()
    }
}

impl Module for WeightNorm {}

impl Visit for WeightNorm {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.module(self, None);
        visitor.field("original0", &self.length);
    }
}

impl Parametrization for WeightNorm {
    const ORIGINAL: &'static str = "parametrizations.weight.original1";
    const NAME: &'static str = "parametrizations.weight";

    fn forward(&self, v: &Tensor) -> Result<Tensor> {
        let length = self.length.get().ok_or_else(|| {
            Error::invalid("weight_norm", "the lengths are not set; wrap a layer by Parametrized::new()")
        })?;
        let scaled = formula!(|v, g: per_row| v * (g / (v * v).row_sum().sqrt()));
        ops::map_rows(scaled, &[v, length], &[], &axes_but_first(v)[..])
    }

    fn right_inverse(&self, weight: &Tensor) -> Result<Tensor> {
        let length = ops::norm(weight, 2.0, over(&axes_but_first(weight)[..]).keepdims())?;
        let _off = no_grad();
        match self.length.get() {
            Some(known) => ops::copy_(known, &length)?,
            None => _ = self.length.set(Parameter::try_new(length)?),
        }
        Ok(weight.clone())
    }

    fn is_initialized(&self) -> bool {
        self.length.get().is_some()
    }
}

/// Returns all axes but the first.
fn axes_but_first(weight: &Tensor) -> Vec<isize> {
    (1..weight.rank() as isize).collect()
}
