//! Activations as layers. Their mathematics is in `pellucid_tensor::ops`, by the same names.

use crate::layer::Layer;
use pellucid_derive::Module;
use pellucid_tensor::{Result, Tensor, ops};

macro_rules! activations {
    ($($(#[$doc:meta])* $name:ident => $method:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, Module)]
        pub struct $name;

        impl Layer for $name {
            fn compute(&self, x: &Tensor) -> Result<Tensor> {
                ops::$method(x)
            }
        }
    )*};
}

activations! {
    /// max(x, 0) (Nair & Hinton 2010).
    Relu => relu;
    /// x·Φ(x), Φ the normal distribution function (Hendrycks & Gimpel 2016).
    Gelu => gelu;
    /// The hyperbolic tangent.
    Tanh => tanh;
    /// 1 / (1 + e⁻ˣ)
    Sigmoid => sigmoid;
    /// x·sigmoid(x) (Elfwing, Uchibe & Doya 2018).
    Silu => silu;
    /// ln(1 + eˣ), a smooth relu (Dugas et al. 2001).
    Softplus => softplus;
}

/// x where x > 0, else `slope`·x (Maas, Hannun & Ng 2013).
#[derive(Clone, Copy, Debug, Module)]
pub struct LeakyRelu {
    /// The slope for negative x.
    pub slope: f64,
}

impl Default for LeakyRelu {
    fn default() -> LeakyRelu {
        LeakyRelu { slope: 0.01 }
    }
}

impl Layer for LeakyRelu {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        ops::leaky_relu(x, self.slope)
    }
}

/// x where x > 0, else `alpha`·(eˣ − 1) (Clevert, Unterthiner & Hochreiter 2016).
#[derive(Clone, Copy, Debug, Module)]
pub struct Elu {
    /// What −∞ is taken to, negated.
    pub alpha: f64,
}

impl Default for Elu {
    fn default() -> Elu {
        Elu { alpha: 1.0 }
    }
}

impl Layer for Elu {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        ops::elu(x, self.alpha)
    }
}

/// exp(x) / Σ exp(x) along an axis.
#[derive(Clone, Copy, Debug, Module)]
pub struct Softmax {
    /// The axis; −1 is the last.
    pub axis: isize,
}

impl Layer for Softmax {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        ops::softmax(x, self.axis)
    }
}
