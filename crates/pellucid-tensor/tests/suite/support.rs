//! Helpers of several modules: comparison of values, panics as values, leaves.

use pellucid_tensor::Tensor;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Asserts that the elements of a tensor equal `expected` with a relative (near 0 absolute) error of at most 1e-9.
#[track_caller]
pub fn assert_close(tensor: &Tensor, expected: &[f64]) {
    assert_within(tensor, expected, 1e-9);
}

/// Asserts as [`assert_close`] does, with this tolerance.
#[track_caller]
pub fn assert_within(tensor: &Tensor, expected: &[f64], tolerance: f64) {
    let got = tensor.to_vec::<f64>();
    let close = |a: f64, b: f64| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= tolerance * b.abs().max(1.0);
    let fits = got.len() == expected.len() && got.iter().zip(expected).all(|(&a, &b)| close(a, b));
    assert!(fits, "got {got:?}, expected {expected:?}");
}

/// Returns the payload of the panic of `f`.
#[track_caller]
pub fn payload_of<R>(f: impl FnOnce() -> R) -> Box<dyn Any + Send> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(_) => panic!("the function must panic"),
        Err(payload) => payload,
    }
}

/// Returns the message of the panic of `f`.
#[track_caller]
pub fn panic_of<R>(f: impl FnOnce() -> R) -> String {
    *payload_of(f).downcast::<String>().expect("the payload of the panic must be a string")
}

/// Returns a leaf that requires a gradient.
pub fn leaf<const N: usize>(values: [f64; N]) -> Tensor {
    Tensor::from(values).requires_grad_(true)
}

/// Returns a 0-d leaf that requires a gradient.
pub fn number(value: f64) -> Tensor {
    Tensor::from(value).requires_grad_(true)
}

/// Returns the only element of the gradient of a tensor.
#[track_caller]
pub fn slope(tensor: &Tensor) -> f64 {
    tensor.grad().expect("the tensor must have a gradient").item()
}

/// Returns the bytes of the tensors, for exact comparisons.
#[track_caller]
pub fn bits(tensors: &[Tensor]) -> Vec<Vec<u8>> {
    tensors.iter().map(|t| t.to_bytes()).collect()
}
