//! Linear and bilinear layers.

use super::switch::uniform_bias;
use crate::call;
use crate::init::{self, uniform_bound};
use crate::input_dtype::check_input_dtype;
use crate::layer::Layer;
use crate::lazy::Lazy;
use crate::parameter::Parameter;
use pellucid_derive::{Module, panicking_form};
use pellucid_tensor::{Error, Result, Shape, Tensor, ops, unwrap};

/// A linear layer y = x·Wᵀ + b, for x `[.., in]` and y `[.., out]`.
///
/// W and b are initialized uniformly on ±1/√in, PyTorch's default. For W this is He initialization (He et al. 2015) for
/// a leaky ReLU of slope √5.
#[derive(Clone, Debug, Module)]
#[module(display)]
pub struct Linear {
    /// W, `[out, in]`.
    pub weight: Parameter,
    /// b, `[out]`.
    pub bias: Option<Parameter>,
}

impl Linear {
    /// Creates a layer from `inputs` to `outputs` features, of the [default dtype](init::in_dtype), with bias.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_new(inputs: usize, outputs: usize) -> Result<Linear> {
        let uniform = |shape: &[usize]| {
            call::name_layer("linear", init::try_uniform(shape, -uniform_bound(inputs), uniform_bound(inputs)))
        };
        Ok(Linear { weight: uniform(&[outputs, inputs])?, bias: Some(uniform(&[outputs])?) })
    }

    /// Sets whether the layer has a bias. An added bias is initialized as in [`new`](Linear::new).
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_bias(self, bias: bool) -> Result<Linear> {
        let (outputs, inputs) = (self.weight.shape()[0], self.weight.shape()[1]);
        let bias = uniform_bias("linear", bias, self.bias, &self.weight, outputs, inputs)?;
        Ok(Linear { bias, ..self })
    }

    /// Creates a lazy layer with `outputs` output features and a bias. The last axis of the first input determines the
    /// number of input features.
    #[doc(alias = "LazyLinear")]
    pub fn lazy(outputs: usize) -> Lazy<Linear> {
        Lazy::new(move |input| match input.last() {
            Some(&inputs) => Linear::try_new(inputs, outputs),
            None => {
                Err(Error::shapes("linear", [input], "the input must have at least one axis; unsqueeze() adds one"))
            }
        })
    }
}

/// Returns the error for an input whose last axis does not match the weight, `[outputs, inputs]`.
#[cold]
fn wrong_width(input: &Shape, weight: &Shape) -> Error {
    let (outputs, inputs) = (weight[0], weight[1]);
    let given = input[input.rank() - 1];
    let wrong = format!("the last axis of the input has length {given}, but the layer expects {inputs}");
    let product = |axes: &[usize]| {
        let factors = axes.iter().map(usize::to_string).collect::<Vec<_>>().join("·");
        (axes.iter().fold(1usize, |size, &len| size.saturating_mul(len)), factors)
    };
    let (size, factors) = product(&input[1..]);
    let help = if input.rank() > 2 && size == inputs {
        format!("{wrong}; {factors} = {inputs}: put Flatten::new() before this layer")
    } else if input.rank() == 3 && product(input).0 == inputs {
        let factors = product(input).1;
        format!(
            "{wrong}; {factors} = {inputs}: for one sample, add the batch axis by unsqueeze(0), and put Flatten::new() \
             before this layer"
        )
    } else if input.rank() > 3 {
        format!(
            "{wrong}; after convolutions or pooling put Flatten::new() before this layer, and create it with \
             Linear::new({size}, {outputs}), as {factors} = {size}"
        )
    } else {
        format!(
            "{wrong}; create the layer with Linear::new({given}, {outputs}), or give the input a last axis of length \
             {inputs}"
        )
    };
    Error::shapes("linear", [input, weight], help)
}

impl Linear {
    /// Returns the output with this weight.
    pub(super) fn output(&self, weight: &Tensor, x: &Tensor) -> Result<Tensor> {
        check_input_dtype("linear", x, weight)?;
        match (x.shape().last(), weight.shape().dims()) {
            (Some(&given), &[_, inputs]) if given != inputs => {
                return Err(wrong_width(x.shape(), weight.shape()));
            }
            _ => {}
        }
        ops::linear(x, weight, self.bias.as_deref())
    }
}

impl Layer for Linear {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        self.output(&self.weight, x)
    }
}

/// A bilinear layer yₖ = aᵀ·Wₖ·b + cₖ, for a `[.., in₁]`, b `[.., in₂]` and y `[.., out]`.
///
/// W and c are initialized uniformly on ±1/√in₁.
#[derive(Clone, Debug, Module)]
#[module(display)]
pub struct Bilinear {
    /// W, `[out, in₁, in₂]`.
    pub weight: Parameter,
    /// c, `[out]`.
    pub bias: Option<Parameter>,
}

impl Bilinear {
    /// Creates a layer from two vectors of these lengths to `outputs` features, with bias.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_new(first: usize, second: usize, outputs: usize) -> Result<Bilinear> {
        let uniform = |shape: &[usize]| {
            call::name_layer("bilinear", init::try_uniform(shape, -uniform_bound(first), uniform_bound(first)))
        };
        Ok(Bilinear { weight: uniform(&[outputs, first, second])?, bias: Some(uniform(&[outputs])?) })
    }

    /// Sets whether the layer has a bias. An added bias is initialized as in [`new`](Bilinear::new).
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_bias(self, bias: bool) -> Result<Bilinear> {
        let (outputs, first) = (self.weight.shape()[0], self.weight.shape()[1]);
        let bias = uniform_bias("bilinear", bias, self.bias, &self.weight, outputs, first)?;
        Ok(Bilinear { bias, ..self })
    }

    /// Returns the output for two inputs, whose leading axes broadcast.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`].
    #[panicking_form]
    pub fn try_forward(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        call::call(self, &[a, b], || {
            check_input_dtype("bilinear", a, &self.weight)?;
            check_input_dtype("bilinear", b, &self.weight)?;
            ops::bilinear(a, b, &self.weight, self.bias.as_deref())
        })
    }
}
