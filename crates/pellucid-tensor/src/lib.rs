//! Tensors, the operations on them, automatic differentiation and capture.
//!
//! - [`Tensor`]: creation, reading, indexing, operators.
//! - [`ops`]: every operation, with its mathematics, its gradient and its errors.
//! - Autograd: [`Operation`], [`apply`], [`Tensor::backward`], [`grad`], [`gradcheck`].
//! - The engine: [`lazy`] and [`capture`] run the same code in deferred mode.
//!
//! `src/ops` is ordered by operation. An elementwise operation is one line in `ops/elementwise`, and an operation over
//! axes one entry of a table (`ops/over_axes.rs`); the other operations have files of their own.
//!
//! A layer imports only from earlier ones: [`Device`] and [`Array`]; the engine; tensors, autograd and operations,
//! which need each other; capture.
//!
//! | module | contents |
//! | --- | --- |
//! | `device` | [`Device`]: a handle of the hardware that stores arrays and runs kernels |
//! | `execution_mode` | whether this thread runs kernels at once, collects them in a list, or captures them |
//! | `array` | [`Array`]: elements on a device and their layout, without gradients or history |
//! | `engine` | [`submit`]: runs a kernel at once, or appends it to a list |
//! | `tensor` | [`Tensor`]: an array with its history; indexing, operators, printing |
//! | `autograd` | the recorded graph, the backward pass, checkpoints, function transforms |
//! | `autocast` | [`autocast()`]: the mixed precision of this thread |
//! | [`ops`] | every operation with its gradient and its errors; [`Generator`] |
//! | `capture` | [`capture`](capture()): the kernels of a function, recorded as a plan and replayed |
//! | `panic` | panics for failed calls, at the caller's line |
#![forbid(unsafe_code)]

mod array;
mod autocast;
mod autograd;
mod capture;
mod device;
mod engine;
mod execution_mode;
pub mod ops;
mod panic;
mod tensor;

pub use array::{Array, StorageId};
pub use autocast::{Autocast, autocast, autocast_dtype, autocast_off};
pub use autograd::{
    AnomalyMode, Arrays, Backward, Check, Grad, GradMode, Gradients, HookHandle, InputGradients, Needed, Node,
    Operation, Saved, Saves, Source, apply, apply_one, checkpoint, detect_anomaly, enable_grad, grad, gradcheck,
    gradgradcheck, hessian, hvp, is_grad_enabled, jacobian, jvp, no_grad, set_grad_enabled, vjp,
};
#[doc(hidden)]
pub use autograd::{Call, called};
pub use capture::{
    CacheStats, CaptureOptions, Captured, IntoOutputs, Outputs, Placement, Work, capture, capture_with,
    storages_written_since, trace, traced,
};
pub use device::Device;
pub use engine::{HostFlag, eager, is_capturing, lazy, submit};
pub use ops::random::{Generator, GeneratorScope, manual_seed};
pub use ops::registry::{OperationInfo, Policy, operations, policy};
pub use panic::unwrap;
pub use pellucid_ir::backend::MemoryStats;
pub use pellucid_ir::formula::Formula;
pub use pellucid_ir::plan::{self, Passes, Plan};
pub use pellucid_ir::{DType, Element, Error, Layout, Misshaped, Result, Scalar, Shape, bf16, f16, formula, kernel};
pub use tensor::{Ellipsis, IntoIndex, IntoTensor, Ix, Nested, NewAxis, Slice, Tensor, TensorId, slice};
