//! Tensors, the operations on them, automatic differentiation and capture.
//!
//! - [`Tensor`]: creation, reading, indexing, operators.
//! - [`ops`]: every operation, with its mathematics, its gradient and its errors.
//! - Autograd: [`Operation`], [`apply`], [`Tensor::backward`], [`grad`], [`gradcheck`].
//! - The engine: [`lazy`] and [`capture`] run the same code in deferred mode.
//!
//! The documentation of [`ops`] lists the dependency order of the directories of `src/ops`. An elementwise operation is
//! one line in `ops/elementwise`. An operation over axes is one entry of a table (`ops/formula/over_axes.rs`). Every
//! other operation has a file.
//!
//! A layer imports only from earlier ones:
//!
//! 1. [`Device`] and [`Array`];
//! 2. the engine;
//! 3. [`Tensor`] with its history: graph nodes, gradient slots, view bases;
//! 4. the recording of operations (`autograd/operation.rs`), and the operations that the backward pass calls: formulas
//!    (`ops/formula`), arithmetic (`ops/elementwise`), copies and fills (`ops/primitive`);
//! 5. the backward pass and [`grad`](grad()) (`autograd/pass.rs`, `autograd/transform.rs`);
//! 6. the other operations, some of which use the backward pass to differentiate their definition;
//! 7. the other function transforms, printing, and capture.
//!
//! | module | contents |
//! | --- | --- |
//! | `idle` | the memory of tensors that have moved to another device |
//! | `device` | [`Device`]: a handle to the hardware that stores arrays and runs kernels |
//! | `execution_mode` | whether this thread runs kernels immediately, collects them in a list, or captures them |
//! | `array` | [`Array`]: elements on a device and their layout, without gradients or history |
//! | `engine` | [`submit`]: runs a kernel immediately, or appends it to a list |
//! | `tensor` | [`Tensor`]: an array with its history: graph nodes, gradient slots, hooks, view bases |
//! | `grad_mode` | whether operations on this thread are recorded |
//! | `autograd` | recording of operations, the backward pass, checkpoints, function transforms |
//! | `autocast` | [`autocast()`]: the mixed precision of this thread |
//! | [`ops`] | every operation with its gradient and its errors; indexing, operators; [`Generator`] |
//! | `display` | printing of tensors |
//! | `capture` | [`capture`](capture()): the kernels of a function, recorded as a plan and replayed |
//! | `option_range` | checks of numeric options, whose errors name an example value |
//! | `panic` | panics for failed calls, at the caller's line |
//! | `warning` | warnings for the users of a program |
//! | `scope_stack` | thread-local settings with scopes |
#![forbid(unsafe_code)]

mod array;
mod autocast;
mod autograd;
mod capture;
mod device;
mod display;
mod engine;
mod execution_mode;
mod grad_mode;
mod idle;
pub mod ops;
mod option_range;
mod panic;
mod scope_stack;
mod tensor;
mod warning;

pub use array::{Array, StorageId};
pub use autocast::{Autocast, autocast, autocast_dtype, autocast_off};
pub use autograd::{
    AnomalyMode, Arrays, BackwardOptions, GradCheckOptions, GradOptions, Operation, apply, apply_one, checkpoint,
    detect_anomaly, grad, grad_one, gradcheck, gradgradcheck, hessian, hvp, jacobian, jvp, vjp,
};
#[doc(hidden)]
pub use autograd::{CallLocationGuard, grad_if_reached, note_call_location};
pub use capture::{
    CacheStats, CaptureOptions, Captured, IntoOutputs, KernelWork, LocalCaptured, Outputs, capture, capture_local,
    capture_local_with, capture_with,
};
#[doc(hidden)]
pub use capture::{placeholder, trace, traced};
pub use device::{Device, IntoDevice};
pub use display::{PrintOptions, get_printoptions, set_printoptions};
pub use engine::{DeferredStats, HostFlag, deferred_stats, eager, flush, is_capturing, lazy, submit};
#[doc(hidden)]
pub use engine::{HookList, recording_id};
pub use grad_mode::{GradMode, enable_grad, is_grad_enabled, no_grad, set_grad_enabled};
pub use ops::call::registry::AutocastPolicy;
pub use ops::call::registry::OperationInfo;
pub use ops::call::registry::autocast_policy;
pub use ops::call::registry::operations;
pub use ops::index::index_item::Ellipsis;
pub use ops::index::index_item::IndexItem;
pub use ops::index::index_item::IntoIndex;
pub use ops::index::index_item::IntoValues;
pub use ops::index::index_item::NewAxis;
pub use ops::index::index_item::Slice;
pub use ops::index::index_item::SliceBound;
pub use ops::index::index_item::slice;
pub use ops::primitive::tensor_options::TensorOptions;
pub use ops::random::Generator;
pub use ops::random::GeneratorScope;
#[doc(hidden)]
pub use ops::random::ThreadStream;
pub use ops::random::ThreadStreamGuard;
pub use ops::random::manual_seed;
#[doc(hidden)]
pub use option_range::OptionRange;
#[doc(hidden)]
pub use panic::unwrap;
pub use pellucid_ir::backend::{self, MemoryStats};
pub use pellucid_ir::formula::Formula;
#[doc(hidden)]
pub use pellucid_ir::lock;
pub use pellucid_ir::plan::{self, Passes, Plan};
pub use pellucid_ir::{
    DType, Element, Error, Integer, Layout, ReadElement, Result, Scalar, Shape, WrongShape, bf16, f16, formula, kernel,
};
pub use tensor::{
    HookHandle, InputGradients, IntoTensor, NeedsInputGrad, Nested, Node, NodeInput, OutputGradients, SaveForBackward,
    SavedTensors, Tensor, TensorId, eval,
};
