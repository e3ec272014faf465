//! Training steps and forward passes that are recorded once and launched many times.
//!
//! One launch reads the batch (x, y) and computes
//!
//! ```text
//! logits = f(x; θ)    ℓ = L(logits, y)    g = ∂ℓ/∂θ    θ, s ← U(θ, g, s)
//! ```
//!
//! for a model f with parameters θ, a loss L, and an optimizer U with state s. The step consists of the operations that
//! the model, the loss and the optimizer run eagerly, recorded by [`capture`](pellucid_tensor::capture). Layers need no
//! code for recording. [`Captured`](pellucid_tensor::Captured) holds the recordings: one for each list of input shapes
//! and dtypes, and for each value of the host decisions that are fixed in a recording: training or evaluation mode,
//! hooks, and the path through layers like [`If`](crate::paths::If).
//!
//! | type | records |
//! | --- | --- |
//! | [`GraphTrainer`] | the step of a model, a loss and an optimizer, and evaluations |
//! | [`TrainingStep`] | a step of any computation: several inputs, losses and results, as in a GAN |
//! | [`InferenceModel`] | forward passes only: one for each of a few batch sizes, to which batches are filled up |
//!
//! Recording adds the parameters of the model to an optimizer without parameters. An optimizer that leaves out a
//! parameter that requires a gradient causes an [`UntrainedParameters`](pellucid_tensor::Error::UntrainedParameters)
//! error. [`StepOptions::allow_untrained_parameters`] permits this, for example for a GAN's discriminator, which has
//! its own optimizer.
//!
//! Values that change between launches are tensors: the batch, parameters, statistics, random counters, the learning
//! rate ([`Optimizer::set_lr`](crate::optim::Optimizer::set_lr) works unchanged).
//!
//! [`GraphTrainer::check_step`] tests that a step reduces the loss, and that its update opposes the gradient.
//! [`mirror`] records steps over fixed buffers, under the names of an earlier framework.

mod batch;
mod check;
mod coverage;
mod gradients;
mod inference;
mod launcher;
pub mod mirror;
mod options;
mod state;
mod step;
mod trainer;
mod trainer_core;
mod training_step;

pub use batch::{Batch, Model, MultiInput};
pub use check::StepCheck;
#[doc(hidden)]
pub use coverage::loss_part_name;
pub use inference::InferenceModel;
pub use options::{BeforeUpdate, StepOptions};
pub use trainer::GraphTrainer;
pub use training_step::TrainingStep;
