//! The types of an [`Operation`]'s methods: `use crate::autograd::interface::*` in the file of an operation.

pub(crate) use super::operation::{Arrays, Operation};
pub(crate) use crate::array::Array;
pub(crate) use crate::tensor::{InputGradients, NeedsInputGrad, OutputGradients, SaveForBackward, SavedTensors};
pub(crate) use smallvec::smallvec;
