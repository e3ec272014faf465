//! A deep-learning framework: eager tensors, gradients of any order, and captured training steps.
//!
//! One formula language defines all elementwise and row kernels. A training step is captured once, planned, and
//! replayed without allocation.
//!
//! ```
//! use pellucid::prelude::*;
//!
//! // A tensor records how it was computed.
//! let x = Tensor::from([0.5f32, -1.0, 2.0]).requires_grad_(true);
//! let y = (&x * &x).sum(..);
//! y.backward();
//! assert_eq!(x.grad().unwrap().to_vec::<f32>(), [1.0, -2.0, 4.0]);
//!
//! // A model is trained.
//! manual_seed(0);
//! let model = sequential![Linear::new(2, 16), Tanh, Linear::new(16, 1)];
//! let optimizer = AdamW::new(model.parameters(), AdamWOptions { lr: 0.05, ..Default::default() });
//! let inputs = Tensor::from([[0.0f32, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]);
//! let targets = Tensor::from([[0.0f32], [1.0], [1.0], [0.0]]);
//! for _ in 0..200 {
//!     optimizer.zero_grad();
//!     mse_loss(&model.forward(&inputs), &targets).backward();
//!     optimizer.step();
//! }
//! assert!(mse_loss(&model.forward(&inputs), &targets).item::<f32>() < 0.05);
//! # Ok::<(), Error>(())
//! ```
//!
//! | module | contents |
//! | --- | --- |
//! | the root, [`ops`] | tensors, operations and gradients |
//! | [`autograd`] | custom operations with gradients |
//! | [`nn`] | modules, layers, losses, optimizers |
//! | [`data`] | data sets, samplers and loaders |
//! | `distributions` | probability distributions: samples with gradients, densities, divergences (feature `distributions`) |
//! | [`io`] | weights and checkpoints in files |
//! | `train` | the training loop: trainer, metrics, logs (feature `train`) |
//! | [`prelude`] | the items that most programs use |
//! | [`engine`] | arrays, kernels, plans and backends, for extensions of Pellucid |
//!
//! | feature | default | contents |
//! | --- | --- | --- |
//! | `linalg` | yes | matrix factorizations |
//! | `progress` | yes | `train::Progress` |
//! | `data` | yes | `data::Mnist` |
//! | `csv` | no | `data::Table::read_csv` |
//! | `json` | no | `data::read_json_lines`, `data::Table::read_json_lines` |
//! | `image` | no | `data::Image`, `data::ImageFolder`, `data::transforms` |
//! | `bundled` | no | `data::iris`, `data::wine`, `data::digits` |
//! | `train` | yes | the module `train` |
//! | `signals` | yes | Ctrl-C ends a training run after the current step |
//! | `distributions` | no | the module `distributions` |
//! | `tensorboard` | no | `train::TensorBoard` |
//! | `serve` | no | the server of the example `serve` |
//! | `cuda` | no | GPUs of NVIDIA, by CUDA |
//! | `wgpu` | no | GPUs, by Vulkan, Metal or Direct3D 12 |
#![forbid(unsafe_code)]

pub use pellucid_data as data;
#[cfg(feature = "distributions")]
pub use pellucid_distributions as distributions;
pub use pellucid_io as io;
pub use pellucid_nn as nn;
pub use pellucid_tensor::{
    AnomalyMode, Autocast, AutocastPolicy, BackwardOptions, CacheStats, CaptureOptions, Captured, DType, DeferredStats,
    Device, Element, Ellipsis, Error, Formula, Generator, GeneratorScope, GradCheckOptions, GradMode, GradOptions,
    HookHandle, IndexItem, Integer, IntoDevice, IntoIndex, IntoOutputs, IntoTensor, IntoValues, LocalCaptured,
    MemoryStats, Nested, NewAxis, OperationInfo, Outputs, PrintOptions, ReadElement, Result, Scalar, Shape, Slice,
    SliceBound, Tensor, TensorId, TensorOptions, WrongShape, autocast, autocast_dtype, autocast_off, autocast_policy,
    bf16, capture, capture_local, capture_local_with, capture_with, checkpoint, deferred_stats, detect_anomaly, eager,
    enable_grad, eval, f16, flush, formula, get_printoptions, grad, grad_one, gradcheck, gradgradcheck, hessian, hvp,
    is_capturing, is_grad_enabled, jacobian, jvp, lazy, manual_seed, no_grad, operations, ops, set_grad_enabled,
    set_printoptions, slice, vjp,
};
#[cfg(feature = "train")]
pub use pellucid_train as train;

/// Custom operations with gradients, and the autograd graph.
pub mod autograd {
    pub use pellucid_tensor::{
        Arrays, InputGradients, NeedsInputGrad, Node, NodeInput, Operation, OutputGradients, SaveForBackward,
        SavedTensors, apply, apply_one,
    };
}

/// The engine on which tensors are built: arrays, kernels, plans of captured functions, and backends.
pub mod engine {
    pub use pellucid_tensor::{
        Array, HostFlag, KernelWork, Layout, Passes, Plan, StorageId, ThreadStreamGuard, backend, kernel, plan, submit,
        trace,
    };
}

/// The items that most programs use: `use pellucid::prelude::*;`.
pub mod prelude {
    pub use crate::data::{Batches, DataLoader, Dataset, LoaderOptions};
    pub use crate::io;
    pub use crate::nn;
    pub use crate::nn::loss::{BceWithLogitsLoss, CrossEntropyLoss, Loss, MseLoss, Reduction, cross_entropy, mse_loss};
    pub use crate::nn::optim::schedule::{CosineWithWarmupLr, Scheduler, StepLr};
    pub use crate::nn::optim::{Adam, AdamOptions, AdamW, AdamWOptions, Optimizer, Sgd, SgdOptions};
    pub use crate::nn::{
        AdaptiveAvgPool2d, AvgPool2d, BatchNorm1d, BatchNorm2d, Buffer, Conv1d, Conv2d, ConvTranspose2d, Dropout,
        Embedding, Flatten, Gelu, GroupNorm, Identity, Layer, LayerNorm, Linear, MaxPool2d, Module, Parameter, Relu,
        RmsNorm, Sequential, Sigmoid, Silu, StateDict, Tanh, sequential,
    };
    #[cfg(feature = "train")]
    pub use crate::train::metrics::{Accuracy, Goal, Metric};
    #[cfg(feature = "train")]
    pub use crate::train::{EarlyStopping, ScheduleUnit, Trainer, TrainingEvent};
    pub use crate::{
        BackwardOptions, DType, Device, Ellipsis, Error, GradOptions, NewAxis, Result, Tensor, autocast, capture,
        enable_grad, formula, grad, grad_one, lazy, manual_seed, no_grad, ops, slice,
    };
}

/// Compiles and runs the programs of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// Compiles and runs the program of the page on the first steps as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/first-steps.md")]
struct FirstSteps;

/// Compiles and runs the program of the page on deployment as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/deployment.md")]
struct Deployment;

/// Compiles and runs the programs of the page for PyTorch users as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/pytorch.md")]
struct PyTorch;

/// Compiles and runs the program of the page on devices as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/devices.md")]
struct Devices;

/// Compiles and runs the program of the page on checkpoints as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/checkpoints.md")]
struct Checkpoints;

/// Compiles and runs the program of the page on data as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/data.md")]
struct Data;

/// Compiles and runs the program of the page on modules and training as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/training.md")]
struct ModulesAndTraining;

/// Compiles and runs the program of the page on automatic differentiation as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/autograd.md")]
struct Autograd;

/// Compiles and runs the programs of the page on the training loop as tests.
#[cfg(all(doctest, feature = "train"))]
#[doc = include_str!("../../../docs/train.md")]
struct Train;

/// Compiles and runs the program of the page on errors as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/errors.md")]
struct Errors;
