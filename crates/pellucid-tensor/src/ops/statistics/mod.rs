//! Moments, quantiles, and reductions of the elements that a mask selects or that are not NaN.

pub(super) mod masked_reduce;
pub(super) mod moments;
pub(super) mod nan_reduce;
pub(super) mod quantile;
