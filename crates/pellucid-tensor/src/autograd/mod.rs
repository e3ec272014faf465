//! Reverse-mode automatic differentiation over a graph that the forward pass records.
//!
//! Every operation is an [`Operation`]: a forward computation on arrays, and a backward computation **in differentiable
//! tensor operations only**, so that gradients can be differentiated again. One function, [`apply`], creates all
//! results and records their nodes.
//!
//! The graph is a part of the tensor module (`tensor/graph`): a tensor owns its node; a node owns the nodes of its
//! inputs, and has weak references to the gradient slots of leaves and to its own outputs. It saves arrays, never
//! tensors. So there are no reference cycles, even with `create_graph`. Building, traversing and dropping a graph do
//! not recurse.
//!
//! A recorded write in place (`in_place.rs`) replaces the history that a tensor and its views share
//! (`tensor/view_base.rs`).

mod address_map;
mod anomaly;
mod check;
mod checkpoint;
mod constant;
mod in_place;
pub(crate) mod interface;
mod jacobian;
mod node_gradients;
mod operation;
mod pass;
mod placement;
mod shared_storages;
mod targets;
mod transform;

pub use anomaly::{AnomalyMode, CallLocationGuard, detect_anomaly, note_call_location};
pub use check::{GradCheckOptions, gradcheck, gradgradcheck};
pub use checkpoint::checkpoint;
pub use jacobian::{hessian, jacobian};
pub use operation::{Arrays, Operation, apply, apply_one};
pub use pass::BackwardOptions;
pub use transform::{GradOptions, grad, grad_if_reached, grad_one, hvp, jvp, vjp};

/// The types in the signatures of [`Operation`]'s methods.
pub(crate) use crate::tensor::{InputGradients, NeedsInputGrad, OutputGradients, SaveForBackward, SavedTensors};
pub(crate) use in_place::InPlaceWrite;
pub(crate) use operation::{arrays_of, is_recorded, record, record_outputs, untracked, untracked_results};
pub(crate) use placement::{copy_to, on_device_of, on_one_device, placed_like};
pub(crate) use transform::collect_gradients;
