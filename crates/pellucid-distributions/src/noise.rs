//! Base random numbers of samples.

use pellucid_tensor::{DType, Result, Shape, Tensor, ops};

/// Draws standard normal values on the device and in the dtype of a parameter.
pub(crate) fn standard_normal(parameter: &Tensor, shape: &Shape) -> Result<Tensor> {
    ops::randn_like(&ops::broadcast_to(&parameter.detach(), shape.clone())?)
}

/// Draws uniform values in the open interval (0, 1), where quantile functions and logarithms are finite, on the device
/// and in the dtype of a parameter.
pub(crate) fn open_uniform(parameter: &Tensor, shape: &Shape) -> Result<Tensor> {
    let epsilon = parameter.dtype().epsilon().unwrap_or(f64::EPSILON);
    let u = ops::rand_like(&ops::broadcast_to(&parameter.detach(), shape.clone())?)?;
    ops::clamp(&u, 0.25 * epsilon, 1.0 - 0.5 * epsilon)
}

/// Draws samples as a function of [`open_uniform`] values. For half precision, the function gets `f32` values, because
/// [0, 1) has only 256 uniform values of `bf16`. Its result is rounded once to a finite number of the dtype.
pub(crate) fn draw_by(
    parameter: &Tensor,
    shape: &Shape,
    sample: impl FnOnce(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let dtype = parameter.dtype();
    if !matches!(dtype, DType::F16 | DType::BF16) {
        return sample(&open_uniform(parameter, shape)?);
    }
    let x = sample(&open_uniform(&ops::to_dtype(&parameter.detach(), DType::F32)?, shape)?)?;
    let largest = dtype.range().1.to_f64();
    ops::to_dtype(&ops::clamp(&x, -largest, largest)?, dtype)
}

/// Draws uniform values in (0, 1) as [`open_uniform`] does, but in `f64`.
pub(crate) fn open_uniform_f64(parameter: &Tensor, shape: &Shape) -> Result<Tensor> {
    open_uniform(&ops::to_dtype(&parameter.detach(), DType::F64)?, shape)
}

/// Defines the constant properties of a family: methods of [`Distribution`](crate::Distribution).
macro_rules! properties {
    ($op:literal, batch: $parameter:ident, rsample: $has_rsample:literal) => {
        fn name(&self) -> &'static str {
            $op
        }
        fn batch_shape(&self) -> pellucid_tensor::Shape {
            self.$parameter.shape().clone()
        }
        fn has_rsample(&self) -> bool {
            $has_rsample
        }
    };
}

pub(crate) use properties;
