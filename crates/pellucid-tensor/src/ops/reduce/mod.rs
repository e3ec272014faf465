//! Reductions and scans over axes.

pub mod einops;
pub(super) mod equality;
pub(super) mod reductions;
pub(super) mod scan;
pub(super) mod softmax;
pub(super) mod value_range;
