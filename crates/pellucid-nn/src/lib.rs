//! Neural networks: modules and their parameters, layers, losses, optimizers, schedules.
//!
//! - [`Module`]: a type with parameters. `#[derive(Module)]` finds them.
//! - [`Layer`]: a module that maps one tensor to one tensor. Layers: [`Linear`], [`Conv2d`], [`BatchNorm2d`],
//!   [`LayerNorm`], [`Embedding`], [`Dropout`], pooling, padding, activations; [`Sequential`] and tuples of layers.
//! - Layers with a changed weight: [`Lora`], [`Pruned`], [`fuse_conv_bn`], and [`Parametrized`] with [`WeightNorm`],
//!   [`SpectralNorm`] or [`Orthogonal`].
//! - Layers with several paths: [`paths::If`], [`paths::Repeat`], [`paths::EarlyExit`].
//! - Sequence models: [`MultiheadAttention`], [`Transformer`], [`Rnn`], [`Gru`] and [`Lstm`].
//! - [`loss`]: loss functions. [`init`]: initialization of parameters.
//! - [`optim`]: optimizers and learning rate schedules. [`graph`]: entire training steps, recorded once.
//!
//! All layers are written in tensor operations and contain no kernels. Values that change from step to step (learning
//! rates, step counts, dropout masks) are tensors or drawn on the device, so a training step can be captured and
//! replayed.
//!
//! | module | contents |
//! | --- | --- |
//! | `attention` | [`MultiheadAttention`], masks, position encodings, and a key-value cache |
//! | `call` | calls of layers, which run the hooks of the layers and record traces of the model |
//! | `checkpoint` | [`Checkpoint`]: all parts of a training run, saved and restored together |
//! | `cloning` | clones of models with other tensors |
//! | `delegate` | `delegate!`: methods that delegate to another value |
//! | [`graph`] | training steps and forward passes that are recorded once and launched many times |
//! | `functional` | [`functional_call`]: a call with other tensors as parameters and buffers |
//! | [`hook`] | functions that observe or replace inputs, outputs and gradients of layers |
//! | [`init`] | initialization of parameters |
//! | `input_dtype` | the check that inputs have the dtype of a layer's parameters |
//! | `exports` | `exports!`: re-exports of public types, with lists of their names for tests |
//! | `layer` | the trait [`Layer`] |
//! | `layers` | the layers by kind: linear, convolutions, norms, pooling, activations, .. |
//! | `lazy` | [`Lazy`] layers, whose widths are determined by their first input |
//! | [`loss`] | loss functions |
//! | `module` | the trait [`Module`] |
//! | [`optim`] | optimizers, learning rate schedules, clipping, loss scaling, weight averaging |
//! | `state_flag` | [`StateFlag`]: a host flag that describes the values of parameters |
//! | `parameter` | [`Parameter`], [`Buffer`], [`TrainingMode`] and [`PathChoice`] |
//! | [`paths`] | layers with several paths, such as [`If`](paths::If), of which the program selects one before each step |
//! | [`prune`] | masks of weights, by magnitude or at random |
//! | `recurrent` | [`Rnn`], [`Gru`], [`Lstm`] and their cells |
//! | `temporary` | thread-local values that are replaced for the duration of a call |
//! | `sequential` | [`Sequential`], [`ModuleList`], [`ModuleDict`] and [`BoxedLayer`] |
//! | `standard_types` | [`Module`] for collections, pointers, tuples and plain values |
//! | `state` | [`StateDict`]: all values of a module or an optimizer, by name; [`Stateful`] parts of a training run |
//! | `summary` | [`Summary`]: a table of the layers, their outputs and their costs |
//! | `transformer` | [`Transformer`], its encoder and its decoder |
//! | `tree` | [`ModelTree`]: the text of a model |
//! | `unwind` | unwind safety of models |
//! | `vector` | [`parameters_to_vector`] and [`vector_to_parameters`]: all parameters as one vector |
//! | `visit` | [`Visit`], [`Visitor`]: the traversal of the parts of a module |
//!
//! ```
//! use pellucid::nn::{loss, optim, sequential, Layer, Linear, Module, Relu};
//! use pellucid::nn::optim::Optimizer;
//! use pellucid::Tensor;
//!
//! let model = sequential![Linear::new(2, 8), Relu, Linear::new(8, 1)];
//! let optimizer = optim::Sgd::new(model.parameters(), optim::SgdOptions { lr: 0.1, ..Default::default() });
//! let (x, y) = (Tensor::from([[0.0f32, 1.0], [1.0, 0.0]]), Tensor::from([[1.0f32], [-1.0]]));
//! let before = loss::mse_loss(&model.forward(&x), &y).item::<f32>();
//! for _ in 0..20 {
//!     optimizer.zero_grad();
//!     loss::mse_loss(&model.forward(&x), &y).backward();
//!     optimizer.step();
//! }
//! assert!(loss::mse_loss(&model.forward(&x), &y).item::<f32>() < before);
//! # Ok::<(), pellucid::Error>(())
//! ```
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

// `#[derive(Module)]` refers to `::pellucid::nn::..`, which is the module `nn` of this file here.
extern crate self as pellucid;

mod attention;
mod call;
mod checkpoint;
mod cloning;
mod delegate;
mod exports;
mod functional;
pub mod graph;
pub mod hook;
pub mod init;
mod input_dtype;
mod layer;
mod layers;
mod lazy;
pub mod loss;
mod module;
pub mod optim;
mod parameter;
pub mod paths;
pub mod prune;
mod recurrent;
mod sequential;
mod standard_types;
mod state;
mod state_flag;
mod summary;
mod temporary;
mod transformer;
mod tree;
mod unwind;
mod vector;
mod visit;

pub use checkpoint::Checkpoint;
pub use functional::functional_call;
pub use layer::Layer;
pub use layers::*;
pub use lazy::Lazy;
pub use module::Module;
pub use parameter::{Buffer, Parameter, PathChoice, TrainingMode, with_evaluation_mode};
pub use pellucid_derive::Module;
pub use pellucid_tensor::ops::RnnNonlinearity;
pub use sequential::{BoxedLayer, DynLayer, ModuleDict, ModuleList, Sequential};
pub use state::{IncompatibleKeys, StateDict, StateLoad, Stateful, concatenate_entries, rename_keys};
pub use state_flag::StateFlag;
pub use summary::{Summary, SummaryRow};
pub use tree::ModelTree;
pub use vector::{parameters_to_vector, vector_to_parameters};
pub use visit::{ModuleInfo, ModulePart, ModuleRole, Visit, Visitor};

exports::exports! {
    /// The names of all layers for sequences; `pellucid/tests/sequence_models` has a test for each.
    SEQUENCE_LAYERS:
    attention::{LearnedPositions, MultiheadAttention, SinusoidalPositions} and {
        AttentionMasks, InProj, KvCache, MultiheadAttentionOptions, Rotary, RotaryPairing, causal_mask,
        sinusoidal_positions, try_causal_mask,
    };
    recurrent::{Gru, GruCell, Lstm, LstmCell, Rnn, RnnCell} and {
        Elman, GatedRecurrentUnit, LongShortTermMemory, LstmState, PackedSequence, RecurrentCell, RecurrentKind,
        RecurrentNetwork, RecurrentOptions, pack_padded_sequence, pack_sequence, pad_packed_sequence, pad_sequence,
        unpack_sequence, unpad_sequence,
    };
    transformer::{
        Transformer, TransformerDecoder, TransformerDecoderLayer, TransformerEncoder, TransformerEncoderLayer,
    } and {TransformerOptions};
}

mod nn {
    pub(crate) use crate::{Module, ModuleRole, Visit, Visitor};
}
