//! The rules of devices, on the backend of `examples/toy_backend`, which counts as a GPU.

#[path = "../../examples/toy_backend/backend.rs"]
mod backend;
mod captured;
mod checkpoints;
mod failures;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod gpu;
mod gradients;
mod indexing;
mod launches;
mod locations;
mod memory;
mod modules;
mod printing;
mod rules;
mod training;
mod writes;

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
    Tensor::from(values).to(device)
}

/// Returns the devices of this index of `wgpu` and `cuda`. A device that the machine does not have is omitted, unless
/// the variable of its driver requires it.
fn real_gpus(index: usize) -> impl Iterator<Item = Device> {
    let real = [("wgpu", "PELLUCID_REQUIRE_GPU"), ("cuda", "PELLUCID_REQUIRE_CUDA")].map(|(driver, variable)| {
        let device = format!("{driver}:{index}").parse::<Device>();
        if let Err(error) = &device {
            let is_built = cfg!(feature = "wgpu") && driver == "wgpu" || cfg!(feature = "cuda") && driver == "cuda";
            let is_required = std::env::var(variable).is_ok_and(|value| value == "1");
            assert!(!is_required || !is_built, "{variable} is 1, but {error}");
        }
        device
    });
    real.into_iter().flatten()
}

/// Returns two toy devices, one of which defers its kernels, and the [`real_gpus`] of this index.
fn gpus(index: usize) -> Vec<Device> {
    [toy(2 * index), toy(2 * index + 1)].into_iter().chain(real_gpus(index)).collect()
}
