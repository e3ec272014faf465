//! Optimizers, schedules, clipping, loss scaling and averages.

mod arguments;
mod clip_scaler_average;
#[path = "../reference/device.rs"]
mod device;
mod groups;
mod half_precision;
#[path = "../reference/near.rs"]
mod near;
mod numbers;
mod papers;
mod rates;
mod replay;
mod schedules;
mod sgd_adamw;

use pellucid_nn::Parameter;
use pellucid_nn::optim::Optimizer;
use pellucid_tensor::{DType, Tensor, no_grad};

/// The parameters of the fixtures: w [3, 2] and b [4], or [1, 4].
fn parameters(matrices: bool, dtype: DType) -> Vec<Parameter> {
    let w = Tensor::linspace(-1.0, 1.5, 6, DType::F64).reshape([3, 2]);
    let b = Tensor::linspace(0.8, -0.7, 4, DType::F64);
    let b = if matrices { b.reshape([1, 4]) } else { b };
    [w, b].map(|t| Parameter::new(t.to_dtype(dtype))).into()
}

/// The gradient of the fixtures in step `t`: ½(p − target) + cos(2p + 0.3t).
fn gradient(p: &Tensor, t: f64) -> Tensor {
    let target = Tensor::arange(0.0f64, p.size() as f64, 1.0).mul(0.1).reshape(p.shape()).to_dtype(p.dtype());
    (p - target) * 0.5 + (p * 2.0 + 0.3 * t).cos()
}

/// Sets the gradients of all parameters in step `t`.
fn set_gradients(optimizer: &dyn Optimizer, t: f64) {
    let _guard = no_grad();
    for p in optimizer.parameters().iter() {
        p.set_grad(Some(gradient(&p.detach(), t)));
    }
}

/// Returns all values, concatenated.
fn flat(parameters: &[Parameter]) -> Vec<f64> {
    parameters.iter().flat_map(|p| p.to_vec::<f64>()).collect()
}

#[track_caller]
fn close(found: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}: the number of values differs");
    for (f, e) in found.iter().zip(expected) {
        assert!((f - e).abs() <= tolerance * e.abs().max(1.0), "{what}: got {found:?}, expected {expected:?}");
    }
}

/// Parses the values of a fixture's line.
fn numbers_of<'a>(fields: impl Iterator<Item = &'a str>) -> Vec<f64> {
    fields.map(|f| f.parse().expect("a number")).collect()
}
