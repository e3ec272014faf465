//! How much goes into a weight's outputs, and what comes after them: from these, the size of its values.

use pellucid_tensor::{Error, Result, Shape};

/// Which side of a weight keeps its variance.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fan {
    /// The inputs of an output: variances stay in the forward pass.
    #[default]
    In,
    /// The outputs of an input: variances stay in the backward pass.
    Out,
}

impl Fan {
    /// (fan in, fan out) of a weight `[out, in, taps..]`.
    pub(super) fn both(op: &'static str, shape: &Shape) -> Result<(usize, usize)> {
        let [outputs, inputs, taps @ ..] = shape.dims() else {
            return Err(Error::shapes(op, [shape], "a weight is [out, in, taps..]"));
        };
        let all = |first: usize| taps.iter().fold(first, |all, &len| all.saturating_mul(len));
        Ok((all(*inputs), all(*outputs)))
    }

    /// This one.
    pub(super) fn of(self, op: &'static str, shape: &Shape) -> Result<usize> {
        let (inputs, outputs) = Fan::both(op, shape)?;
        Ok(if self == Fan::In { inputs } else { outputs })
    }
}

/// What the outputs of a weight go through.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Nonlinearity {
    /// Nothing.
    Linear,
    /// The logistic function.
    Sigmoid,
    /// The hyperbolic tangent.
    Tanh,
    /// Half of the values are lost.
    Relu,
    /// Relu with this slope for negative values.
    LeakyRelu(f64),
    /// The activation of self-normalising networks.
    Selu,
}

impl Nonlinearity {
    /// By what it divides the size of its inputs, about: PyTorch's recommendations.
    ///
    /// ```
    /// use pellucid_nn::init::Nonlinearity;
    /// assert_eq!(Nonlinearity::Relu.gain(), 2f64.sqrt());
    /// assert_eq!(Nonlinearity::LeakyRelu(1.0).gain(), 1.0);
    /// ```
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
