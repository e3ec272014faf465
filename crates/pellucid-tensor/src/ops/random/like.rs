//! Random tensors with the shape, dtype and device of another tensor.

use super::{draw, uniform_integers};
use crate::ops::primitive::copy;
use crate::ops::random::generator::Generator;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::kernel::Distribution;
use pellucid_ir::{DType, Error, Result, Scalar};

/// Draws uniform values on [0, 1) with x's shape, dtype and device, from the thread's generator.
///
/// # Errors
/// [`Error::DTypeMismatch`] if the dtype is not a float.
#[tensor_method]
pub fn rand_like(x: &Tensor) -> Result<Tensor> {
    drawn_like("rand_like", x, x.dtype(), Distribution::Uniform)
}

/// Draws standard normal values with x's shape, dtype and device, from the thread's generator.
///
/// # Errors
/// [`Error::DTypeMismatch`] if the dtype is not a float.
#[tensor_method]
pub fn randn_like(x: &Tensor) -> Result<Tensor> {
    drawn_like("randn_like", x, x.dtype(), Distribution::Normal)
}

/// Draws uniform integers on `low..high` with x's shape, dtype and device, from the thread's generator. The dtype may
/// be a float.
///
/// # Errors
/// [`Error::InvalidArgument`] for a range that is empty, has more than 2⁵³ values, or exceeds the range of x's dtype.
#[tensor_method]
pub fn randint_like(x: &Tensor, low: i64, high: i64) -> Result<Tensor> {
    let (op, dtype) = ("randint_like", x.dtype());
    let unrepresentable = [low, high.saturating_sub(1)].into_iter().find(|&end| !dtype.represents(Scalar::Int(end)));
    if let Some(end) = unrepresentable.filter(|_| low < high) {
        let reason = format!("{end} cannot be stored in the tensor's dtype {dtype}; use a tensor of a wider dtype");
        return Err(Error::invalid(op, reason));
    }
    let numbers = uniform_integers(op, low, high, |dtype| drawn_like(op, x, dtype, Distribution::Uniform))?;
    copy::to_dtype(&numbers, dtype)
}

/// Draws random values on x's device. The result is free if x is free.
fn drawn_like(op: &'static str, x: &Tensor, dtype: DType, distribution: Distribution) -> Result<Tensor> {
    let array = draw(op, x.shape().clone(), dtype, distribution, (&Generator::default(), x.device()))?;
    array.set_pinned(!x.is_free());
    Ok(Tensor::from(array))
}
