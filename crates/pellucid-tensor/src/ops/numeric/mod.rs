//! Numerical analysis: polynomials, interpolation, convolution, integration and differentiation.

pub(super) mod convolve;
pub(super) mod gradient;
pub(super) mod integrate;
pub(super) mod polyfit;
pub(super) mod polynomial;
pub(super) mod signal;
