//! Linear maps: of one vector, and of two.

use crate::call;
use crate::init;
use crate::layer::Layer;
use crate::lazy::Lazy;
use crate::parameter::Parameter;
use pellucid_derive::Module;
use pellucid_tensor::{Error, Result, Tensor, ops, unwrap};

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
        let weight = init::uniform([outputs, inputs], -bound(inputs), bound(inputs));
        Linear { weight, bias: Some(init::uniform([outputs], -bound(inputs), bound(inputs))) }
    }

    /// The same layer without bias.
    pub fn without_bias(self) -> Linear {
        Linear { bias: None, ..self }
    }

    /// A layer to `outputs` values, with bias, that takes as many as the last axis of its first input is long.
    pub fn lazy(outputs: usize) -> Lazy<Linear> {
        Lazy::new(move |input| match input.last() {
            Some(&inputs) => Ok(Linear::new(inputs, outputs)),
            None => Err(Error::shapes("linear", [input], "the input has a last axis; unsqueeze it")),
        })
    }
}

/// 1/√n of the number of values that are weighed; where there are none, nothing is drawn.
pub(super) fn bound(inputs: usize) -> f64 {
    if inputs == 0 { 0.0 } else { (inputs as f64).sqrt().recip() }
}

impl Linear {
    /// The output with this weight.
    pub(super) fn output(&self, weight: &Tensor, x: &Tensor) -> Result<Tensor> {
        ops::linear(x, weight, self.bias.as_deref())
    }
}

impl Layer for Linear {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        self.output(&self.weight, x)
    }
}

/// yₖ = aᵀ·Wₖ·b + cₖ, for a `[.., in₁]`, b `[.., in₂]` and y `[.., out]`.
///
/// W and c start uniform on ±1/√in₁.
#[derive(Clone, Debug, Module)]
pub struct Bilinear {
    /// W, `[out, in₁, in₂]`.
    pub weight: Parameter,
    /// c, `[out]`.
    pub bias: Option<Parameter>,
}

impl Bilinear {
    /// A layer from two vectors of these lengths to `outputs` values, with bias.
    ///
    /// # Panics
    /// With [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
    #[track_caller]
    pub fn new(first: usize, second: usize, outputs: usize) -> Bilinear {
        let weight = init::uniform([outputs, first, second], -bound(first), bound(first));
        Bilinear { weight, bias: Some(init::uniform([outputs], -bound(first), bound(first))) }
    }

    /// The same layer without bias.
    pub fn without_bias(self) -> Bilinear {
        Bilinear { bias: None, ..self }
    }

    /// The output for two inputs, whose leading axes broadcast.
    ///
    /// # Panics
    /// With the error of [`try_forward`](Bilinear::try_forward), at the caller's line.
    #[track_caller]
    pub fn forward(&self, a: &Tensor, b: &Tensor) -> Tensor {
        let _call = pellucid_tensor::called();
        unwrap(self.try_forward(a, b))
    }

    /// [`forward`](Bilinear::forward) as a result.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`].
    pub fn try_forward(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        call::call(self, &[a, b], || {
            let y = ops::einsum("...i,kij,...j->...k", &[a, &self.weight, b])?;
            self.bias.as_ref().map_or(Ok(y.clone()), |bias| ops::add(&y, bias))
        })
    }
}
