//! Training steps that are recorded once and launched many times.
//!
//! One launch, on the batch (x, y) that lies in fixed buffers, computes
//!
//! ```text
//! logits = f(x; θ)    ℓ = L(logits, y)    g = ∂ℓ/∂θ    θ, s ← U(θ, g, s)
//! ```
//!
//! for a model f with parameters θ, a loss L, and an optimizer U with state s. All of it is what the model's, the loss's
//! and the optimizer's own code computes eagerly, recorded by [`capture`](pellucid_tensor::capture); there is no other way
//! to write a layer for this, and nothing here knows one. Steps to it, each of which can be had by itself:
//!
//! | step | function | what it does |
//! | --- | --- | --- |
//! | build | [`Layer::build`](crate::Layer::build) | makes what learns its widths from the input |
//! | ask | [`Module::supports_capture`](crate::Module::supports_capture) | names the layer that cannot be captured |
//! | plan | [`make_plan_for_sequential`], [`make_plan`] | lists the buffers of a step, from shapes alone |
//! | rebind | [`try_rebind_grads`] | lets gradients live in the plan's buffers |
//! | record | [`record_step_graph`], [`record_eval_graph`] | runs no kernel, changes no parameter, draws no number |
//!
//! [`GraphTrainer`] and [`Sequential::compile`](crate::Sequential::compile) go all of them:
//!
//! ```
//! use pellucid_nn::graph::GraphTrainer;
//! use pellucid_nn::{Linear, Relu, loss::CrossEntropyLoss, optim::{Sgd, SgdOptions}, sequential, Module};
//! use pellucid_tensor::{DType, Tensor};
//!
//! let model = sequential![Linear::new(4, 16), Relu, Linear::new(16, 3)];
//! let optimizer = Sgd::new(model.parameters(), SgdOptions { lr: 0.1, ..Default::default() })?;
//! let mut trainer = GraphTrainer::new(model, CrossEntropyLoss::default(), optimizer, 8 << 20);
//! trainer.compile(&[8, 4])?;
//! let (x, y) = (Tensor::randn([8, 4], DType::F32), Tensor::randint(0, 3, [8]));
//! let first = trainer.one_step(&x, &y)?;
//! for _ in 0..10 {
//!     trainer.step(&x, &y)?; // nothing is read, nothing is waited for
//! }
//! assert!(trainer.one_step(&x, &y)? < first);
//! # Ok::<(), pellucid_tensor::Error>(())
//! ```
//!
//! An optimizer that was made without parameters is filled with those of the model by `compile`. One that leaves parameters
//! out that require a gradient, as an optimizer of another model does, is [`Error::UntrainedParameters`], unless
//! [`GraphTrainer::allow_untrained_parameters`] was called: for the discriminator of a GAN, say, which another one updates.
//!
//! [`Error::UntrainedParameters`]: pellucid_tensor::Error::UntrainedParameters
//!
//! What changes between launches is in tensors: the batch, parameters, statistics, random counters, the learning rate
//! ([`Optimizer::set_lr`](crate::optim::Optimizer::set_lr) works as ever). What the host decides is part of a recording:
//! training or evaluation, the shapes, and the way through layers like [`If`]; a trainer has a recording for each.

mod batch;
mod coverage;
mod paths;
mod plan;
mod rebind;
mod record;
mod state;
mod stream;
mod trail;
mod trainer;

pub use crate::loss::LossKind;
pub use batch::{Batch, Model, MultiInput};
pub use paths::{EarlyExit, If, Path, Repeat, path_of};
pub use plan::{ArenaSlot, Buf, CapturePlan, LossBufs, PerLayerBufs, make_plan, make_plan_for_sequential};
pub use rebind::{Rebound, collect_params_from_plan, try_rebind_grads};
pub use record::{
    BeforeUpdate, GraphExec, GraphExecLike, StepOptions, record_eval_graph, record_step_graph, record_step_graph_with,
};
pub use stream::{Stream, Timer};
pub use trainer::{CompileOptions, CompileSettings, GraphTrainer, TrainGraph};
