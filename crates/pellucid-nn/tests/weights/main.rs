//! Layers with a changed weight: low-rank updates, masks, parametrizations and fused normalization; and parameters as
//! one vector.

mod fusion;
mod lora;
mod parametrized;
mod prune;
mod roles;
mod vector;

use pellucid_tensor::Tensor;

/// Asserts that the largest difference is at most `tolerance`.
#[track_caller]
fn assert_near(ours: &Tensor, expected: &Tensor, tolerance: f64) {
    assert_eq!(ours.shape(), expected.shape());
    let difference = (ours - expected).abs().max(..).item::<f64>();
    assert!(difference <= tolerance, "the largest difference is {difference}");
}

/// Returns the bits of all tensors.
fn bits<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Vec<Vec<u8>> {
    tensors.into_iter().map(Tensor::to_bytes).collect()
}
