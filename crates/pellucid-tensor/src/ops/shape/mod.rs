//! Rearranging, joining and padding tensors, and diagonals.

pub(super) mod diagonal;
pub(super) mod join;
pub(super) mod pad;
pub(super) mod rearrange;
