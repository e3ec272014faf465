//! Equality of entire tensors.

use crate::ops::elementwise::compare;
use crate::ops::primitive::fill;
use crate::ops::reduce::reductions;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{DType, Result};

/// Returns true, as a 0-d bool tensor, if all elements are close (see [`isclose`](crate::ops::isclose)).
///
/// # Errors
/// The errors of [`isclose`](crate::ops::isclose).
#[tensor_method]
pub fn allclose(a: &Tensor, b: &Tensor, rtol: f64, atol: f64, equal_nan: bool) -> Result<Tensor> {
    reductions::all(&compare::isclose(a, b, rtol, atol, equal_nan)?, ..)
}

/// Returns true, as a 0-d bool tensor, if shapes and elements are equal (NumPy's `array_equal`).
///
/// # Errors
/// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
#[doc(alias = "array_equal")]
#[tensor_method]
pub fn equal(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if a.shape() != b.shape() {
        return fill::full_on_device_of(a, (), false, DType::Bool);
    }
    reductions::all(&compare::eq(a, b)?, ..)
}
