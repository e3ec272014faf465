//! Neural networks: modules and their parameters, layers, losses, optimizers, schedules.
//!
//! - [`Module`], what has parameters, and `#[derive(Module)]`, which finds them.
//! - [`Layer`], a module that is a function of one tensor: [`Linear`], [`Dropout`], activations,
//!   [`Sequential`], tuples.
//! - [`MultiheadAttention`], [`TransformerEncoder`] and its like; [`Rnn`], [`Gru`], [`Lstm`].
//! - [`loss`]: what training makes small.
//! - [`optim`]: how it is made small, and with which learning rate.
//!
//! Everything here is written in tensor operations; nothing sees an array or a kernel. What changes
//! from step to step (learning rates, step counts, dropout masks) is a tensor or drawn on the
//! device, so a training step can be captured and replayed.
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

// `#[derive(Module)]` names what it needs as `::pellucid::nn::..`: here that is this crate.
extern crate self as pellucid;

mod activation;
mod attention;
mod call;
mod dropout;
mod flatten;
pub mod hook;
pub mod init;
mod layer;
mod layer_norm;
mod lazy;
mod linear;
pub mod loss;
mod module;
pub mod optim;
mod parameter;
mod recurrent;
mod sequential;
mod state;
mod summary;
mod transformer;
mod visit;

pub use activation::{Elu, Gelu, LeakyRelu, Relu, Sigmoid, Silu, Softmax, Softplus, Tanh};
pub use attention::{
    InProj, KvCache, LearntPositions, Masks, MultiheadAttention, MultiheadAttentionOptions, Pairs, Rotary,
    SinusoidalPositions, causal_mask, sinusoidal_positions,
};
pub use dropout::Dropout;
pub use flatten::Flatten;
pub use layer::Layer;
pub use layer_norm::LayerNorm;
pub use lazy::Lazy;
pub use linear::Linear;
pub use module::Module;
pub use parameter::{Buffer, Parameter, Training};
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
