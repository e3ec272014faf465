//! A second device: the backend of an example, most of whose kernels run on the CPU, so the bits are the same.

use pellucid_tensor::Device;
use std::sync::Once;

#[path = "../../../pellucid/examples/toy_backend/backend.rs"]
mod backend;

/// Returns the device.
pub(crate) fn toy() -> Device {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| Device::register(backend::ToyDriver).expect("the name of the driver must be new"));
    "toy:0".parse().expect("a registered device must be found")
}
