//! Known defects of comparable libraries, one short test each, named after the defect.
//!
//! Every expected value was computed by hand, not by another operation.

mod arguments;
mod conventions;
mod deferred_names;
mod empty;
mod extreme_values;
mod gradients;
mod invalid_values;
mod out_of_bounds;
mod range;
mod scales;
mod zero_elements;

use pellucid_tensor::Tensor;

/// Returns the gradients of Σ y·weights with respect to the leaves.
fn gradients<const N: usize>(y: &Tensor, weights: Tensor, leaves: [&Tensor; N]) -> [Vec<f64>; N] {
    leaves.iter().for_each(|x| x.zero_grad());
    assert_eq!(y.shape(), weights.shape(), "there must be one weight for each element");
    (y * weights).sum(..).backward();
    leaves.map(|x| x.grad().expect("the tensor must have a gradient").to_vec())
}

/// Returns a matrix that requires a gradient.
fn matrix<const N: usize, const M: usize>(invalid_values: [[f64; M]; N]) -> Tensor {
    Tensor::from(invalid_values).requires_grad_(true)
}
