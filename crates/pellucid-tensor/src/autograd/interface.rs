//! The types in the signatures of [`Operation`]'s methods. The file of an operation imports all of them:
//! `use crate::autograd::interface::*`.

pub(crate) use super::operation::{Arrays, Operation};
pub(crate) use crate::array::Array;
pub(crate) use crate::tensor::{InputGradients, NeedsInputGrad, OutputGradients, SaveForBackward, SavedTensors};
pub(crate) use smallvec::smallvec;
