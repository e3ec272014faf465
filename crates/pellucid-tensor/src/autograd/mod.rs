//! Automatic differentiation: reverse mode over a graph that the forward pass leaves behind.
//!
//! Every operation is an [`Operation`]: a forward computation on arrays, and a backward one **in
//! differentiable tensor operations only**, so that gradients of gradients need nothing more. One
//! function, [`apply`], makes every result and records where it came from.
//!
//! Ownership, on one page: a tensor holds its node strongly; a node holds the nodes of its inputs
//! strongly, the gradient slots of leaves and its own outputs weakly, and saves arrays, never
//! tensors. So there are no cycles, with `create_graph` neither, and nothing recurses: not the
//! building, not the pass, not the dropping.
//!
//! A tensor and its views share a [`ViewBase`], through which each of them finds what recorded writes in place (`in_place.rs`)
//! have made of the history of all.

mod anomaly;
mod applied;
mod check;
mod checkpoint;
mod constant;
mod graph;
mod hook;
mod in_place;
mod jacobian;
mod mode;
mod operation;
mod pass;
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

pub(crate) use applied::SavedDerivative;
pub(crate) use graph::Slot;
pub(crate) use graph::{Edge, Recorded, same_node};
pub(crate) use in_place::{Rewrite, ViewBase, shifted};
pub(crate) use operation::{Derivative, SavedValue, is_recorded, record, record_outputs, untracked};
pub(crate) use pass::{AddressHasher, backward};
pub(crate) use transform::collect_gradients;
