//! What several modules need: closeness, panics as values.

use pellucid_tensor::Tensor;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Asserts that a tensor's elements are these, within a relative (near 0 absolute) deviation of 1e-9.
#[track_caller]
pub fn assert_close(tensor: &Tensor, expected: &[f64]) {
    assert_within(tensor, expected, 1e-9);
}

/// [`assert_close`], for another deviation.
#[track_caller]
pub fn assert_within(tensor: &Tensor, expected: &[f64], tolerance: f64) {
    let got = tensor.to_vec::<f64>();
    let close = |a: f64, b: f64| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= tolerance * b.abs().max(1.0);
    let fits = got.len() == expected.len() && got.iter().zip(expected).all(|(&a, &b)| close(a, b));
    assert!(fits, "got {got:?}, expected {expected:?}");
}

/// What `f` panics with.
#[track_caller]
pub fn payload_of<R>(f: impl FnOnce() -> R) -> Box<dyn Any + Send> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(_) => panic!("it did not panic"),
        Err(payload) => payload,
    }
}

/// The message with which `f` panics.
#[track_caller]
pub fn panic_of<R>(f: impl FnOnce() -> R) -> String {
    *payload_of(f).downcast::<String>().expect("a panic with a message")
}

/// A leaf that requires a gradient.
pub fn leaf<const N: usize>(values: [f64; N]) -> Tensor {
    Tensor::from(values).requires_grad_(true)
}

/// A 0-d leaf that requires a gradient.
pub fn number(value: f64) -> Tensor {
    Tensor::from(value).requires_grad_(true)
}

/// The one element of a tensor's gradient.
#[track_caller]
pub fn slope(tensor: &Tensor) -> f64 {
    tensor.grad().expect("a gradient").item()
}

/// The bytes of tensors, for comparisons that forgive nothing.
#[track_caller]
pub fn bits(tensors: &[Tensor]) -> Vec<Vec<u8>> {
    tensors.iter().map(|t| t.to_bytes().expect("values")).collect()
}
