//! Random numbers of the shapes and dtypes of samples.

use pellucid_tensor::{DType, Result, Shape, Tensor, ops};

/// Draws standard normal values of this shape, on the device and in the dtype of a parameter.
pub(crate) fn standard_normal(parameter: &Tensor, shape: &Shape) -> Result<Tensor> {
    ops::randn_like(&ops::broadcast_to(&parameter.detach(), shape.clone())?)
}

/// Draws uniform values on (0, 1) of this shape, on the device and in the dtype of a parameter. Quantile functions and
/// logarithms are finite there.
pub(crate) fn open_uniform(parameter: &Tensor, shape: &Shape) -> Result<Tensor> {
    let epsilon = parameter.dtype().epsilon().unwrap_or(f64::EPSILON);
    let u = ops::rand_like(&ops::broadcast_to(&parameter.detach(), shape.clone())?)?;
    ops::clamp(&u, 0.25 * epsilon, 1.0 - 0.5 * epsilon)
}

/// Draws uniform values on (0, 1) like [`open_uniform`], in `f64`.
pub(crate) fn open_uniform_f64(parameter: &Tensor, shape: &Shape) -> Result<Tensor> {
    open_uniform(&ops::to_dtype(&parameter.detach(), DType::F64)?, shape)
}

/// Defines the methods of [`Distribution`](crate::Distribution) that only name a property of a family.
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
