//! The fan of a weight and the gain of the nonlinearity after it, from which initialization derives its scale.

use pellucid_tensor::{Error, Result, Shape};

/// The fan from which initialization derives the scale of a weight, to preserve the variance of activations or of
/// gradients.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fan {
    /// The number of inputs of each output, which preserves the variance of activations in the forward pass.
    #[default]
    In,
    /// The number of outputs of each input, which preserves the variance of gradients in the backward pass.
    Out,
}

impl Fan {
    /// Returns (fan in, fan out) of a weight `[out, in, taps..]`.
    pub(super) fn both(op: &'static str, shape: &Shape) -> Result<(usize, usize)> {
        let [outputs, inputs, taps @ ..] = shape.dims() else {
            return Err(Error::shapes(
                op,
                [shape],
                "the weight must have shape [out, in, taps..]; use uniform() or normal() of `init` for other shapes",
            ));
        };
        let times_taps = |first: usize| taps.iter().fold(first, |product, &len| product.saturating_mul(len));
        Ok((times_taps(*inputs), times_taps(*outputs)))
    }

    /// Returns this fan of a weight of the given shape.
    pub(super) fn count(self, op: &'static str, shape: &Shape) -> Result<usize> {
        let (inputs, outputs) = Fan::both(op, shape)?;
        Ok(if self == Fan::In { inputs } else { outputs })
    }
}

/// The nonlinearity that follows a weight.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Nonlinearity {
    /// The identity.
    Linear,
    /// The logistic function.
    Sigmoid,
    /// The hyperbolic tangent.
    Tanh,
    /// max(x, 0).
    Relu,
    /// Relu with this slope for negative values.
    LeakyRelu(f64),
    /// The activation of self-normalizing networks.
    Selu,
}

impl Nonlinearity {
    /// Returns the factor that compensates the nonlinearity's change of the standard deviation: PyTorch's
    /// recommendations.
    ///
    /// ```
    /// use pellucid::nn::init::Nonlinearity;
    /// assert_eq!(Nonlinearity::Relu.gain(), 2f64.sqrt());
    /// assert_eq!(Nonlinearity::LeakyRelu(1.0).gain(), 1.0);
    /// ```
    #[doc(alias = "calculate_gain")]
    pub fn gain(self) -> f64 {
        match self {
            Nonlinearity::Linear | Nonlinearity::Sigmoid => 1.0,
            Nonlinearity::Tanh => 5.0 / 3.0,
            Nonlinearity::Relu => 2f64.sqrt(),
            Nonlinearity::LeakyRelu(slope) => (2.0 / (1.0 + slope * slope)).sqrt(),
            Nonlinearity::Selu => 0.75,
        }
    }
}
