//! Gated activations, and leaky activations whose slope is a tensor or random.

use crate::ops::elementwise::arithmetic;
use crate::ops::formula::map;
use crate::ops::primitive::concatenate::split;
use crate::ops::primitive::view;
use crate::ops::random::uniform_on;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{Error, Result, formula};

/// Computes x where x > 0, else slope·x; the slope broadcasts.
fn leaky(x: &Tensor, slope: &Tensor) -> Result<Tensor> {
    map(formula! { static prelu(x, w) = x.gt(0.0).select(x, x * w); }, &[x, slope], &[])
}

/// Computes x where x > 0, else w·x with learnt slopes w: one slope, or one per channel (axis 1) (He et al. 2015).
///
/// # Errors
/// [`Error::ShapeMismatch`].
#[tensor_method]
pub fn prelu(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let channels = if x.rank() < 2 { 1 } else { x.shape()[1] };
    if weight.rank() > 1 || !(weight.size() == 1 || weight.size() == channels) {
        return Err(Error::shapes(
            "prelu",
            [x.shape(), weight.shape()],
            "the weight must have one element, or one for each channel (axis 1)",
        ));
    }
    let broadcast_dims: Vec<usize> = (0..x.rank()).map(|k| if k == 1 { weight.size() } else { 1 }).collect();
    leaky(x, &view::reshape(weight, &broadcast_dims[..])?)
}

/// Computes x where x > 0, else a·x with random slopes a, uniform on [lower, upper) for each element (Xu et al. 2015).
///
/// In evaluation, use [`leaky_relu`](crate::ops::leaky_relu) with the mean slope.
///
/// # Errors
/// [`Error::InvalidArgument`] if `lower` exceeds `upper` or a bound is not finite; [`Error::DTypeMismatch`] for
/// integers.
#[tensor_method]
pub fn rrelu(x: &Tensor, lower: f64, upper: f64) -> Result<Tensor> {
    if !lower.is_finite() || !upper.is_finite() || lower > upper {
        let reason = format!("slopes must be finite and lower must not exceed upper, got {lower} to {upper}");
        return Err(Error::invalid("rrelu", reason));
    }
    let u = uniform_on(x.device(), x.shape().clone(), x.dtype())?;
    leaky(x, &arithmetic::add(&arithmetic::mul(&u, upper - lower)?, lower)?)
}

/// Computes the gated linear unit a·sigmoid(b), where a and b are the first and second half of an axis (Dauphin et al.
/// 2017).
///
/// # Errors
/// [`Error::AxisOutOfRange`]; [`Error::ShapeMismatch`] for an axis of odd length.
#[tensor_method]
pub fn glu(x: &Tensor, axis: isize) -> Result<Tensor> {
    let len = x.shape()[x.shape().axis("glu", axis)?];
    if !len.is_multiple_of(2) {
        return Err(Error::shapes("glu", [x.shape()], format!("axis {axis} must have an even length")));
    }
    let halves = split(x, [len / 2, len / 2], axis)?;
    map(formula! { static glu(a, b) = a * b.sigmoid(); }, &[&halves[0], &halves[1]], &[])
}
