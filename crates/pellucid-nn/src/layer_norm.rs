//! Layer normalisation.

use crate::init;
use crate::layer::Layer;
use crate::parameter::Parameter;
use pellucid_derive::Module;
use pellucid_tensor::{Result, Tensor, ops};

/// (x − mean) / √(var + eps)·weight + bias over the last axis (Ba, Kiros & Hinton 2016).
#[derive(Clone, Debug, Module)]
pub struct LayerNorm {
    /// `[width]`, 1 at first.
    pub weight: Parameter,
    /// `[width]`, 0 at first.
    pub bias: Option<Parameter>,
    eps: f64,
}

impl LayerNorm {
    /// A norm of elements of this width, with eps = 10⁻⁵.
    ///
    /// # Panics
    /// With [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
    #[track_caller]
    pub fn new(width: usize) -> LayerNorm {
        LayerNorm { weight: init::ones([width]), bias: Some(init::zeros([width])), eps: 1e-5 }
    }

    /// With another number that is added to the variance.
    #[must_use]
    pub fn eps(mut self, eps: f64) -> LayerNorm {
        self.eps = eps;
        self
    }
}

impl Layer for LayerNorm {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        ops::layer_norm(x, self.weight.shape(), Some(&self.weight), self.bias.as_deref(), self.eps)
    }
}
