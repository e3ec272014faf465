//! The rules of devices, on a backend of another crate: the one of `examples/toy_backend`, which counts as a GPU.

#[path = "../../examples/toy_backend/backend.rs"]
mod backend;
mod captured;
#[cfg(feature = "wgpu")]
mod gpu;
mod indexing;
mod launches;
mod memory;
mod modules;
mod rules;
mod training;

use pellucid::prelude::*;
use std::sync::Once;

/// Returns the toy device of an index.
fn toy(index: usize) -> Device {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| Device::register(backend::ToyDriver).unwrap());
    format!("toy:{index}").parse().unwrap()
}

/// Returns a tensor that is pinned to a device.
fn pinned(values: &[f32], device: Device) -> Tensor {
    Tensor::from(values).to(device).unwrap()
}
