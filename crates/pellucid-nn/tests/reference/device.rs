//! Other devices: the backend of an example, most of whose kernels run on the CPU, so the bits are the same; and with
//! the features `cuda` and `wgpu` a GPU.

use pellucid_tensor::Device;
use std::sync::Once;

#[path = "../../../pellucid/examples/toy_backend/backend.rs"]
mod backend;

/// Returns a device whose results are bit-identical to those of the CPU. With an odd index, it defers its kernels.
pub(crate) fn toy(index: usize) -> Device {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| Device::register(backend::ToyDriver).expect("the name of the driver must be new"));
    format!("toy:{index}").parse().expect("a registered device must be found")
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
