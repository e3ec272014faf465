//! Layers, by kind. They hold parameters and settings; the mathematics is in `pellucid_tensor::ops`.
//!
//! Rules of construction, for all layers of this crate:
//!
//! - `new` has the required arguments, and builder methods set the options:
//!   `Conv2d::new(3, 64, 7).stride(2).padding(3).bias(false)`, `Lstm::new(8, 16).layers(2).bidirectional(true)`.
//! - A switch is a method with PyTorch's name and a `bool`: `bias(false)`, `affine(true)`.
//! - A constructor draws the random values of the default layer: the weight, then the bias. An option draws only the
//!   parameters that it adds or whose shape it changes. A parameter that an option removes was drawn before, and has
//!   advanced the generator.
//! - A value that an option adds has the dtype and the device of the other values of the layer.
//! - A number with a range is checked by the method that sets it. Settings can be read: they are public fields, which
//!   the operation checks in each call, or `options` returns them. A number on which other parts of the layer depend
//!   has a method that returns it, such as `groups`.
//! - A call is `forward`, or `forward_` with a suffix: `forward_masked`, `forward_with_indices`.
//!
//! Defaults, parameter names and shapes are PyTorch's, so its files load unchanged.

mod activation;
mod batch_norm;
mod conv;
mod distance;
mod dropout;
mod embedding;
mod fractional;
mod fusion;
mod instance_norm;
mod linear;
mod lora;
mod norm;
mod orthogonal;
mod pad;
mod parametrized;
mod pool;
mod pruned;
mod repeated;
mod resize;
mod shape;
mod spatial;
mod spectral_norm;
mod switch;
mod unpool;
mod weight_norm;
mod weighted;

pub(crate) use batch_norm::{batch_norms, with_plain_averages};
pub use fusion::{fuse_conv_bn, fuse_linear_bn};
pub(crate) use pruned::PRUNED_NAMES;
pub(crate) use repeated::make_layers;
pub use spatial::PerAxis;
pub(crate) use switch::{switched, uniform_bias, values_like};

crate::exports::exports! {
    /// The names of all activations; `tests/reference` has a row for each.
    ACTIVATIONS:
    activation::{
        Celu, Elu, Gelu, GeluTanh, Glu, Hardshrink, Hardsigmoid, Hardswish, Hardtanh, LeakyRelu, LogSigmoid, LogSoftmax,
        Mish, Prelu, Relu, Relu6, Rrelu, Selu, Sigmoid, Silu, Softmax, Softmax2d, Softmin, Softplus, SoftplusBeta,
        Softshrink, Softsign, Tanh, Tanhshrink, Threshold,
    };
}

crate::exports::exports! {
    /// The names of all other layers of this module; `tests/reference` has a row for each.
    LAYERS:
    batch_norm::{BatchNorm1d, BatchNorm2d, BatchNorm3d} and {BatchNorm};
    conv::{Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d} and {Conv, ConvTranspose, Padding};
    distance::{CosineSimilarity, PairwiseDistance};
    dropout::{AlphaDropout, DropPath, Dropout, Dropout1d, Dropout2d, Dropout3d, FeatureAlphaDropout} and {ChannelDropout};
    embedding::{Embedding, EmbeddingBag};
    fractional::{FractionalMaxPool2d, FractionalMaxPool3d} and {FractionalMaxPool};
    instance_norm::{InstanceNorm1d, InstanceNorm2d, InstanceNorm3d} and {InstanceNorm};
    linear::{Bilinear, Linear};
    lora::{Lora} and {LoraTarget, lora_parameters, lora_state_dict, only_lora_trainable};
    norm::{GroupNorm, LayerNorm, LocalResponseNorm, RmsNorm};
    orthogonal::{} and {Orthogonal, OrthogonalMap};
    pad::{
        CircularPad1d, CircularPad2d, CircularPad3d, ConstantPad1d, ConstantPad2d, ConstantPad3d, ReflectionPad1d,
        ReflectionPad2d, ReflectionPad3d, ReplicationPad1d, ReplicationPad2d, ReplicationPad3d, ZeroPad1d, ZeroPad2d,
        ZeroPad3d,
    } and {CircularPad, ConstantPad, ReflectionPad, ReplicationPad, ZeroPad};
    parametrized::{Parametrized} and {Parametrization};
    pool::{
        AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d, AdaptiveMaxPool1d, AdaptiveMaxPool2d,
        AdaptiveMaxPool3d, AvgPool1d, AvgPool2d, AvgPool3d, LpPool1d, LpPool2d, LpPool3d, MaxPool1d, MaxPool2d,
        MaxPool3d,
    } and {AdaptiveAvgPool, AdaptiveMaxPool, AvgPool, LpPool, MaxPool, Windows};
    pruned::{Pruned};
    resize::{ChannelShuffle, PixelShuffle, PixelUnshuffle, Upsample};
    shape::{Flatten, Fold, Identity, Unflatten, Unfold};
    spectral_norm::{} and {SpectralNorm};
    unpool::{MaxUnpool1d, MaxUnpool2d, MaxUnpool3d} and {MaxUnpool};
    weight_norm::{} and {WeightNorm};
    weighted::{} and {Reparametrized, Weighted};
}
