//! Activation layers. Their mathematics is in `pellucid_tensor::ops`, under the same names.

use crate::init;
use crate::input_dtype::check_input_dtype;
use crate::layer::Layer;
use crate::parameter::{Parameter, TrainingMode};
use pellucid_derive::{Module, panicking_form};
use pellucid_tensor::{OptionRange, Result, Tensor, ops, unwrap};

/// Defines activations without options.
macro_rules! plain {
    ($($(#[$doc:meta])* $name:ident => $operation:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, Module)]
        #[module(display)]
        pub struct $name;

        impl Layer for $name {
            fn compute(&self, x: &Tensor) -> Result<Tensor> {
                ops::$operation(x)
            }
        }
    )*};
}

plain! {
    /// max(x, 0) (Nair & Hinton 2010).
    #[doc(alias = "ReLU")]
    Relu => relu;
    /// min(max(x, 0), 6) (Howard et al. 2017).
    #[doc(alias = "ReLU6")]
    Relu6 => relu6;
    /// λ·elu(x) with the constants of self-normalizing networks (Klambauer et al. 2017).
    #[doc(alias = "SELU")]
    Selu => selu;
    /// x·Φ(x), Φ the normal distribution function (Hendrycks & Gimpel 2016).
    #[doc(alias = "GELU")]
    Gelu => gelu;
    /// The tanh approximation of [`Gelu`]: ½x·(1 + tanh(√(2/π)·(x + 0.044715·x³))).
    GeluTanh => gelu_tanh;
    /// The hyperbolic tangent.
    Tanh => tanh;
    /// The logistic sigmoid 1 / (1 + e⁻ˣ).
    Sigmoid => sigmoid;
    /// The logarithm of the sigmoid, ln sigmoid(x).
    LogSigmoid => logsigmoid;
    /// x·sigmoid(x) (Elfwing, Uchibe & Doya 2018).
    #[doc(alias = "SiLU")]
    #[doc(alias = "Swish")]
    Silu => silu;
    /// x·tanh(softplus(x)) (Misra 2019).
    Mish => mish;
    /// ln(1 + eˣ), a smooth relu (Dugas et al. 2001).
    Softplus => softplus;
    /// The softsign x / (1 + |x|).
    Softsign => softsign;
    /// relu6(x + 3)/6, a piecewise linear sigmoid (Courbariaux et al. 2015).
    Hardsigmoid => hardsigmoid;
    /// x·hardsigmoid(x) (Howard et al. 2019).
    Hardswish => hardswish;
    /// The tanh shrinkage x − tanh x.
    Tanhshrink => tanhshrink;
}

/// Defines activations with options and their defaults.
macro_rules! with_numbers {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty = $default:expr),* } => $operation:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Module)]
        #[module(display)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl Default for $name {
            fn default() -> $name {
                $name { $($field: $default),* }
            }
        }

        impl Layer for $name {
            fn compute(&self, x: &Tensor) -> Result<Tensor> {
                ops::$operation(x, $(self.$field),*)
            }
        }
    )*};
}

with_numbers! {
    /// x where x > 0, else `slope`·x (Maas, Hannun & Ng 2013).
    #[doc(alias = "LeakyReLU")]
    LeakyRelu {
        /// The slope for negative x.
        slope: f64 = 0.01
    } => leaky_relu;
    /// x where x > 0, else `alpha`·(eˣ − 1) (Clevert, Unterthiner & Hochreiter 2016).
    #[doc(alias = "ELU")]
    Elu {
        /// The negated limit for x → −∞.
        alpha: f64 = 1.0
    } => elu;
    /// x where x > 0, else `alpha`·(e^(x/alpha) − 1) (Barron 2017).
    #[doc(alias = "CELU")]
    Celu {
        /// The negated limit for x → −∞.
        alpha: f64 = 1.0
    } => celu;
    /// ln(1 + e^(`beta`·x))/`beta`, and x where `beta`·x exceeds the threshold.
    SoftplusBeta {
        /// The sharpness β of the corner.
        beta: f64 = 1.0,
        /// The value of β·x above which the function is linear.
        threshold: f64 = 20.0
    } => softplus_beta;
    /// x clamped to [low, high].
    Hardtanh {
        /// The smallest value.
        low: f64 = -1.0,
        /// The largest value.
        high: f64 = 1.0
    } => hardtanh;
    /// x where |x| > `lambda`, else 0.
    Hardshrink {
        /// The largest |x| that becomes 0.
        lambda: f64 = 0.5
    } => hardshrink;
    /// The soft shrinkage: x moved towards 0 by `lambda`, 0 where |x| ≤ `lambda`.
    Softshrink {
        /// The largest |x| that becomes 0.
        lambda: f64 = 0.5
    } => softshrink;
    /// x where x > `threshold`, else `value`.
    Threshold {
        /// The value that x must exceed.
        threshold: f64 = 0.0,
        /// The result for other x.
        value: f64 = 0.0
    } => threshold;
    /// The gated linear unit a·sigmoid(b), a and b the first and second half of an axis (Dauphin et al. 2017).
    #[doc(alias = "GLU")]
    Glu {
        /// The axis; −1 is the last.
        axis: isize = -1
    } => glu;
    /// The softmax exp(x) / Σ exp(x) along an axis.
    Softmax {
        /// The axis; −1 is the last.
        axis: isize = -1
    } => softmax;
    /// The logarithm of the softmax, x − ln Σ exp(x), along an axis.
    LogSoftmax {
        /// The axis; −1 is the last.
        axis: isize = -1
    } => log_softmax;
    /// The softmin exp(−x) / Σ exp(−x) along an axis.
    Softmin {
        /// The axis; −1 is the last.
        axis: isize = -1
    } => softmin;
}

/// The softmax exp(x) / Σ exp(x) over the channels of an image `[C, H, W]`, or of a batch `[B, C, H, W]`.
#[derive(Clone, Copy, Debug, Default, Module)]
#[module(display)]
pub struct Softmax2d;

impl Layer for Softmax2d {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        ops::softmax(x, -3)
    }
}

/// The parametric ReLU: x where x > 0, else w·x with a trained slope w (He et al. 2015). There is one slope, or one per
/// channel (axis 1). Slopes start at 0.25.
#[doc(alias = "PReLU")]
#[derive(Clone, Debug, Module)]
#[module(display)]
pub struct Prelu {
    /// The slopes, `[1]` or `[C]`.
    pub weight: Parameter,
}

impl Prelu {
    /// Creates a layer with one slope for all elements.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
    #[panicking_form]
    pub fn try_new() -> Result<Prelu> {
        Prelu::try_channels(1)
    }

    /// Creates a layer with one slope per channel.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
    #[panicking_form]
    pub fn try_channels(channels: usize) -> Result<Prelu> {
        Ok(Prelu { weight: init::try_constant(channels, 0.25)? })
    }
}

impl Default for Prelu {
    #[track_caller]
    fn default() -> Prelu {
        Prelu::new()
    }
}

impl Layer for Prelu {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        check_input_dtype("prelu", x, &self.weight)?;
        ops::prelu(x, &self.weight)
    }
}

/// The randomized leaky ReLU: x where x > 0, else a·x (Xu et al. 2015). In training a is drawn for every element from
/// [lower, upper); in evaluation a is (lower + upper)/2.
#[doc(alias = "RReLU")]
#[derive(Clone, Debug, Module)]
#[module(display)]
pub struct Rrelu {
    /// The smallest slope.
    pub lower: f64,
    /// The upper bound of slopes.
    pub upper: f64,
    training: TrainingMode,
}

impl Rrelu {
    /// Creates a layer with slopes in [lower, upper).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) unless both are finite and lower ≤ upper.
    #[panicking_form]
    pub fn try_new(lower: f64, upper: f64) -> Result<Rrelu> {
        OptionRange::FINITE.check_interval("rrelu", "the slopes", [lower, upper], [0.125, 0.333])?;
        Ok(Rrelu { lower, upper, training: TrainingMode::new() })
    }
}

impl Default for Rrelu {
    /// Creates a layer with slopes in [1/8, 1/3).
    #[track_caller]
    fn default() -> Rrelu {
        Rrelu::new(1.0 / 8.0, 1.0 / 3.0)
    }
}

impl Layer for Rrelu {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        match self.training.get() {
            true => ops::rrelu(x, self.lower, self.upper),
            false => ops::leaky_relu(x, (self.lower + self.upper) / 2.0),
        }
    }
}
