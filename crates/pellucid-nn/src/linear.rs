//! The linear layer.

use crate::init;
use crate::layer::Layer;
use crate::lazy::Lazy;
use crate::parameter::Parameter;
use pellucid_derive::Module;
use pellucid_tensor::{Error, Result, Tensor, ops};

/// y = x·Wᵀ + b, for x `[.., in]` and y `[.., out]`.
///
/// W and b start uniform on ±1/√in, PyTorch's default: He initialisation (He et al. 2015) for a
/// leaky relu of slope √5.
#[derive(Clone, Debug, Module)]
pub struct Linear {
    /// W, `[out, in]`.
    pub weight: Parameter,
    /// b, `[out]`.
    pub bias: Option<Parameter>,
}

impl Linear {
    /// A layer from `inputs` to `outputs` values, of the [default dtype](init::in_dtype), with bias.
    ///
    /// # Panics
    /// With [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
    #[track_caller]
    pub fn new(inputs: usize, outputs: usize) -> Linear {
        let weight = init::uniform([outputs, inputs], bound(inputs));
        Linear { weight, bias: Some(init::uniform([outputs], bound(inputs))) }
    }

    /// A layer from `inputs` to `outputs` values, of the [default dtype](init::in_dtype), without bias.
    ///
    /// # Panics
    /// With [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
    #[track_caller]
    pub fn without_bias(inputs: usize, outputs: usize) -> Linear {
        Linear { weight: init::uniform([outputs, inputs], bound(inputs)), bias: None }
    }

    /// A layer to `outputs` values, with bias, that takes as many as the last axis of its first input is long.
    pub fn lazy(outputs: usize) -> Lazy<Linear> {
        Lazy::new(move |input| match input.last() {
            Some(&inputs) => Ok(Linear::new(inputs, outputs)),
            None => Err(Error::shapes("linear", [input], "the input has a last axis; unsqueeze it")),
        })
    }
}

/// 1/√in; a layer without inputs has nothing to weigh.
fn bound(inputs: usize) -> f64 {
    if inputs == 0 { 0.0 } else { (inputs as f64).sqrt().recip() }
}

impl Layer for Linear {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        ops::linear(x, &self.weight, self.bias.as_deref())
    }
}
