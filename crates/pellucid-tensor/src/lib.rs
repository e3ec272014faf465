//! Tensors, the operations on them, automatic differentiation and capture.
//!
//! - [`Tensor`]: creation, reading, indexing, operators.
//! - [`ops`]: every operation, with its mathematics, its gradient and its errors.
//! - Autograd: [`Operation`], [`apply`], [`Tensor::backward`], [`grad`], [`gradcheck`].
//! - The engine: [`lazy`] and [`capture`] run the same code in deferred mode.
//!
//! `src/ops` is ordered by operation. An elementwise operation is one line in `ops/elementwise`; the other operations
//! have files of their own.
#![forbid(unsafe_code)]

mod array;
mod autocast;
mod autograd;
mod device;
mod engine;
pub mod ops;
mod panic;
mod random;
mod tensor;

pub use array::{Array, StorageId};
pub use autocast::{Autocast, Policy, autocast, autocast_dtype, autocast_off, policy};
pub use autograd::{
    AnomalyMode, Arrays, Backward, Check, Grad, GradMode, Gradients, HookHandle, InputGradients, Needed, Node,
    Operation, Saved, Saves, Source, apply, apply_one, checkpoint, detect_anomaly, enable_grad, grad, gradcheck,
    gradgradcheck, hessian, hvp, is_grad_enabled, jacobian, jvp, no_grad, set_grad_enabled, vjp,
};
#[doc(hidden)]
pub use autograd::{Call, called};
pub use device::Device;
pub use engine::{
    CacheStats, CaptureOptions, Captured, HostFlag, IntoOutputs, Outputs, Placement, Work, capture, capture_with,
    eager, is_capturing, lazy, storages_written_since, submit, trace, traced,
};
pub use panic::unwrap;
pub use pellucid_ir::backend::MemoryStats;
pub use pellucid_ir::formula::Formula;
pub use pellucid_ir::plan::{self, Passes, Plan};
pub use pellucid_ir::{DType, Element, Error, Layout, Misshaped, Result, Scalar, Shape, bf16, f16, formula, kernel};
pub use random::{Generator, GeneratorScope, manual_seed};
pub use tensor::{Ellipsis, IntoIndex, IntoTensor, Ix, Nested, NewAxis, Slice, Tensor, TensorId, slice};
