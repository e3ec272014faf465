//! Reverse-mode automatic differentiation over a graph that the forward pass records.
//!
//! Every operation is an [`Operation`]: a forward computation on arrays, and a backward computation **in differentiable
//! tensor operations only**, so that gradients can be differentiated again. One function, [`apply`], creates all
//! results and records their nodes.
//!
//! Ownership: a tensor owns its node; a node owns the nodes of its inputs, and has weak references to the gradient
//! slots of leaves and to its own outputs. It saves arrays, never tensors. So there are no reference cycles, also with
//! `create_graph`. Building, traversing and dropping a graph do not recurse.
//!
//! A tensor and its views share a [`ViewBase`], which holds their history after recorded writes in place
//! (`in_place.rs`).

mod anomaly;
mod check;
mod checkpoint;
mod collect;
mod constant;
mod graph;
mod hook;
mod in_place;
mod jacobian;
mod mode;
mod operation;
mod pass;
mod saved_derivative;
mod step_state;
mod transform;

pub use anomaly::{AnomalyMode, Call, called, detect_anomaly};
pub use check::{Check, gradcheck, gradgradcheck};
pub use checkpoint::checkpoint;
pub use graph::{Node, Source};
pub use hook::HookHandle;
pub use jacobian::{hessian, jacobian};
pub use mode::{GradMode, enable_grad, is_grad_enabled, no_grad, set_grad_enabled};
pub use operation::{Arrays, Gradients, InputGradients, Needed, Operation, Saved, Saves, apply, apply_one};
pub use pass::Backward;
pub use transform::{Grad, grad, hvp, jvp, vjp};

pub(crate) use graph::GradientSlot;
pub(crate) use graph::{Edge, GraphNode, is_same_node};
pub(crate) use in_place::{InPlaceWrite, ViewBase, shifted};
pub(crate) use operation::{
    Derivative, NodeParts, SavedValue, arrays_of, is_recorded, record, record_outputs, untracked,
};
pub(crate) use pass::backward;
pub(crate) use step_state::{StepState, TouchedSlot, collect_step_state, note_history_change};
pub(crate) use transform::collect_gradients;
