//! Moments, quantiles, and reductions of the elements that are not masked or not NaN.

pub(super) mod masked_reduce;
pub(super) mod moments;
pub(super) mod nan_reduce;
pub(super) mod quantile;
