//! Neural networks: modules and their parameters, layers, losses, optimizers, schedules.
//!
//! - [`Module`]: a type with parameters. `#[derive(Module)]` finds them.
//! - [`Layer`]: a module that maps one tensor to one tensor. Layers: [`Linear`], [`Conv2d`], [`BatchNorm2d`],
//!   [`LayerNorm`], [`Embedding`], [`Dropout`], pooling, padding, activations; [`Sequential`] and tuples of layers.
//! - Sequence models: [`MultiheadAttention`], [`Transformer`], [`Rnn`], [`Gru`] and [`Lstm`].
//! - [`loss`]: loss functions. [`init`]: initialisation of parameters.
//! - [`optim`]: optimizers and learning rate schedules. [`graph`]: whole training steps, recorded once.
//!
//! All layers are written in tensor operations and contain no kernels. Values that change from step to step (learning
//! rates, step counts, dropout masks) are tensors or drawn on the device, so a training step can be captured and
//! replayed.
//!
//! ```
//! use pellucid_nn::{loss, optim, sequential, Layer, Linear, Module, Relu};
//! use pellucid_nn::optim::Optimizer;
//! use pellucid_tensor::Tensor;
//!
//! let model = sequential![Linear::new(2, 8), Relu, Linear::new(8, 1)];
//! let optimizer = optim::Sgd::new(model.parameters(), optim::SgdOptions { lr: 0.1, ..Default::default() })?;
//! let (x, y) = (Tensor::from([[0.0f32, 1.0], [1.0, 0.0]]), Tensor::from([[1.0f32], [-1.0]]));
//! let before = loss::mse(&model.forward(&x), &y).item::<f32>();
//! for _ in 0..20 {
//!     optimizer.zero_grad();
//!     loss::mse(&model.forward(&x), &y).backward();
//!     optimizer.step();
//! }
//! assert!(loss::mse(&model.forward(&x), &y).item::<f32>() < before);
//! # Ok::<(), pellucid_tensor::Error>(())
//! ```
#![forbid(unsafe_code)]

// `#[derive(Module)]` refers to `::pellucid::nn::..`, which is this crate here.
extern crate self as pellucid;

mod attention;
mod call;
pub mod graph;
pub mod hook;
pub mod init;
mod layer;
mod layers;
mod lazy;
pub mod loss;
mod module;
pub mod optim;
mod parameter;
mod recurrent;
mod sequential;
mod state;
mod summary;
mod transformer;
mod unwind;
mod visit;

pub use attention::{
    InProj, KvCache, LearntPositions, Masks, MultiheadAttention, MultiheadAttentionOptions, Pairs, Rotary,
    SinusoidalPositions, causal_mask, sinusoidal_positions,
};
pub use layer::Layer;
pub use layers::*;
pub use lazy::Lazy;
pub use module::Module;
pub use parameter::{Buffer, Choice, Parameter, Training};
pub use pellucid_derive::Module;
pub use recurrent::{
    Gru, GruCell, Lstm, LstmCell, LstmState, RecurrentOptions, Rnn, RnnCell, pad_sequence, unpad_sequence,
};
pub use sequential::{ModuleDict, ModuleList, Sequential};
pub use state::{Keys, StateDict, join, rename};
pub use summary::{Row, Summary};
pub use transformer::{
    Transformer, TransformerDecoder, TransformerDecoderLayer, TransformerEncoder, TransformerEncoderLayer,
    TransformerOptions,
};
pub use visit::{Part, PartInfo, Visitor};

#[doc(hidden)]
pub mod nn {
    pub use crate::{Module, Visitor};
}
