//! Training steps and forward passes that are recorded once and launched many times.
//!
//! One launch reads the batch (x, y) from fixed buffers and computes
//!
//! ```text
//! logits = f(x; θ)    ℓ = L(logits, y)    g = ∂ℓ/∂θ    θ, s ← U(θ, g, s)
//! ```
//!
//! for a model f with parameters θ, a loss L, and an optimizer U with state s. The step consists of the operations that
//! the model, the loss and the optimizer run eagerly, recorded by [`capture`](pellucid_tensor::capture). Layers need no
//! code for it. Each stage can be called by itself:
//!
//! | stage | function | effect |
//! | --- | --- | --- |
//! | build | [`Layer::build`](crate::Layer::build) | creates the parameters that depend on the input shape |
//! | check | [`Module::supports_capture`](crate::Module::supports_capture) | names a layer that cannot be captured |
//! | plan | [`StepPlan::new`] | lists the buffers of a step, from shapes alone |
//! | bind | [`StepPlan::bind_gradients`] | stores gradients in the plan's buffers |
//! | record | [`RecordedStep::training`], [`RecordedStep::evaluation`] | runs no kernel, changes no value, draws no random number |
//!
//! [`GraphTrainer`] runs all stages at the first step:
//!
//! ```
//! use pellucid::nn::graph::GraphTrainer;
//! use pellucid::nn::{Linear, Relu, loss::CrossEntropyLoss, optim::{Sgd, SgdOptions}, sequential, Module};
//! use pellucid::{DType, Tensor};
//!
//! let model = sequential![Linear::new(4, 16), Relu, Linear::new(16, 3)];
//! let optimizer = Sgd::new(model.parameters(), SgdOptions { lr: 0.1, ..Default::default() });
//! let mut trainer = GraphTrainer::new(model, CrossEntropyLoss::default(), optimizer);
//! let (x, y) = (Tensor::randn([8, 4], DType::F32), Tensor::randint(0, 3, [8]));
//! let first = trainer.one_step(&x, &y)?;
//! for _ in 0..10 {
//!     trainer.step(&x, &y)?; // reads nothing back and does not synchronize
//! }
//! assert!(trainer.loss()? < first);
//! # Ok::<(), pellucid::Error>(())
//! ```
//!
//! Recording adds the parameters of the model to an optimizer without parameters. An optimizer that leaves out a
//! parameter that requires a gradient causes [`Error::UntrainedParameters`].
//! [`GraphTrainer::allow_untrained_parameters`] permits this, for example for a GAN's discriminator, which has its own
//! optimizer.
//!
//! [`Error::UntrainedParameters`]: pellucid_tensor::Error::UntrainedParameters
//!
//! Values that change between launches are tensors: the batch, parameters, statistics, random counters, the learning
//! rate ([`Optimizer::set_lr`](crate::optim::Optimizer::set_lr) works unchanged). Host decisions are fixed in a
//! recording: training or evaluation mode, shapes, and the path through layers like [`If`](paths::If). A trainer keeps
//! one recording for each.
//!
//! [`InferenceModel`] records forward passes only: one for each of a few batch sizes, to which batches are filled up.
//! [`GraphTrainer::check_step`] tests that a step reduces the loss, and that its update opposes the gradient.
//!
//! [`mirror`] has the names of an earlier framework for the same steps.

mod batch;
mod buffer_tracker;
mod check;
mod coverage;
mod filled_shape;
mod forward;
mod gradients;
mod inference;
pub mod mirror;
pub mod paths;
pub mod plan;
mod record;
mod runner;
mod state;
mod step_cache;
mod stream;
mod trainer;
mod training_step;
mod update;

pub use batch::{Batch, Model, MultiInput};
pub use check::StepCheck;
pub use gradients::BoundGradients;
pub use inference::InferenceModel;
pub use plan::StepPlan;
pub use record::{RecordedStep, StepOptions};
pub use runner::EagerStep;
pub use stream::{Stream, Timer};
pub use trainer::GraphTrainer;
pub use training_step::TrainingStep;
pub use update::ParameterUpdate;
