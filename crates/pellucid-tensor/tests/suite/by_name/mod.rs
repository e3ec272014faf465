//! What systems of this kind are known to get wrong, one short test each, named after it.
//!
//! Every value here was computed by hand; nothing is compared with another operation.

mod arguments;
mod bounds;
mod conventions;
mod empty;
mod extremes;
mod gradients;
mod values;

use pellucid_tensor::Tensor;

/// The gradients with respect to leaves of Σ y·weights.
fn gradients<const N: usize>(y: &Tensor, weights: Tensor, leaves: [&Tensor; N]) -> [Vec<f64>; N] {
    leaves.iter().for_each(|x| x.zero_grad());
    assert_eq!(y.shape(), weights.shape(), "a weight for every element");
    (y * weights).sum(..).backward();
    leaves.map(|x| x.grad().expect("a gradient").to_vec())
}

/// A matrix that requires a gradient.
fn matrix<const N: usize, const M: usize>(values: [[f64; M]; N]) -> Tensor {
    Tensor::from(values).requires_grad_(true)
}
