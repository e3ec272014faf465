//! Other devices: the backend of an example, most of whose kernels run on the CPU, so the bits are the same; and with
//! the features `cuda` and `wgpu` a GPU, whose results are compared within a tolerance.

use pellucid_tensor::{DType, Device, Tensor};
use std::sync::Once;

#[path = "../../../pellucid/examples/toy_backend/backend.rs"]
mod backend;

/// Returns the device whose results are bit-identical to those of the CPU.
pub(crate) fn toy() -> Device {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| Device::register(backend::ToyDriver).expect("the name of the driver must be new"));
    "toy:0".parse().expect("a registered device must be found")
}

/// Returns the first GPU of the backends of this build, if there is one.
pub(crate) fn gpu() -> Option<Device> {
    let found = "gpu".parse::<Device>();
    let is_required = |variable: &str| std::env::var(variable).is_ok();
    let is_required = cfg!(feature = "wgpu") && is_required("PELLUCID_REQUIRE_GPU")
        || cfg!(feature = "cuda") && is_required("PELLUCID_REQUIRE_CUDA");
    assert!(!is_required || found.is_ok(), "a GPU is required: {found:?}");
    found.ok()
}

/// Asserts that a GPU has computed the results of the CPU: integers exactly, floats within 1e-5 of the largest element
/// of a tensor, or of 1 if that is larger.
#[track_caller]
pub(crate) fn assert_near(found: &[Tensor], expected: &[Tensor], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (k, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!((found.shape(), found.dtype()), (expected.shape(), expected.dtype()), "{what}: tensor {k}");
        let [a, b] = [found, expected].map(|t| t.to_dtype(DType::F64).to_vec::<f64>());
        let largest = b.iter().fold(1.0f64, |m, v| m.max(v.abs()));
        let tolerance = if found.dtype().is_float() { 1e-5 * largest } else { 0.0 };
        let is_near = |(a, b): (&f64, &f64)| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= tolerance;
        assert!(a.iter().zip(&b).all(is_near), "{what}: tensor {k} is {found:?}, expected {expected:?}");
    }
}
