//! Layers, by kind. They hold parameters and settings; the mathematics is in `pellucid_tensor::ops`.
//!
//! A constructor has the required arguments; builder methods set the options:
//! `Conv2d::new(3, 64, 7).stride(2).padding(3).without_bias()`. Defaults, parameter names and shapes are PyTorch's, so
//! its files load unchanged.

mod activation;
mod batch_norm;
mod conv;
mod distance;
mod dropout;
mod embedding;
mod fractional;
mod instance_norm;
mod linear;
mod norm;
mod pad;
mod parametrized;
mod pool;
mod resize;
mod shape;
mod spatial;
mod unpool;

pub use activation::*;
pub use batch_norm::{BatchNorm, BatchNorm1d, BatchNorm2d, BatchNorm3d};
pub(crate) use batch_norm::{batch_norms, plain_averages};
pub use conv::{
    Conv, Conv1d, Conv2d, Conv3d, ConvTranspose, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d, Padding,
};
pub use distance::{CosineSimilarity, PairwiseDistance};
pub use dropout::{
    AlphaDropout, ChannelDropout, DropPath, Dropout, Dropout1d, Dropout2d, Dropout3d, FeatureAlphaDropout,
};
pub use embedding::{Embedding, EmbeddingBag};
pub use fractional::{FractionalMaxPool, FractionalMaxPool2d, FractionalMaxPool3d};
pub use instance_norm::{InstanceNorm, InstanceNorm1d, InstanceNorm2d, InstanceNorm3d};
pub use linear::{Bilinear, Linear};
pub use norm::{GroupNorm, LayerNorm, LocalResponseNorm, RmsNorm};
pub use pad::*;
pub use parametrized::{SpectralNorm, WeightNorm, Weighted};
pub use pool::*;
pub use resize::{ChannelShuffle, PixelShuffle, PixelUnshuffle, Upsample};
pub use shape::{Flatten, Fold, Identity, Unflatten, Unfold};
pub use spatial::PerAxis;
pub use unpool::{MaxUnpool, MaxUnpool1d, MaxUnpool2d, MaxUnpool3d};
