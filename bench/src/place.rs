//! The device on which workloads run: the CPU, or the one of `--device`.

use pellucid::prelude::*;
use std::sync::OnceLock;

static DEVICE: OnceLock<Device> = OnceLock::new();

/// Sets the device of all workloads of this process.
///
/// # Errors
/// The text of the error if there is no such device.
pub(crate) fn set_device(name: &str) -> std::result::Result<(), String> {
    let device = name.parse::<Device>().map_err(|error| error.to_string())?;
    DEVICE.set(device).map_err(|_| "--device may occur only once".to_string())
}

/// Returns the device of the workloads if it is not the CPU.
pub(crate) fn accelerator() -> Option<Device> {
    DEVICE.get().copied().filter(|device| *device != Device::cpu())
}

/// Returns a tensor on the device of the workloads.
pub(crate) fn placed(tensor: Tensor) -> Tensor {
    match accelerator() {
        Some(device) => tensor.to(device),
        None => tensor,
    }
}

/// Moves a model to the device of the workloads and returns it.
pub(crate) fn on_device<M: Module>(model: M) -> M {
    if let Some(device) = accelerator() {
        model.to_(device).expect("the model must fit into the memory of the device");
    }
    model
}

/// Computes a result that the workload drops. A device that defers its kernels would omit them.
pub(crate) fn compute<'a, I>(results: I)
where
    I: IntoIterator<Item = &'a Tensor>,
    I::IntoIter: Clone,
{
    if accelerator().is_some() {
        pellucid::eval(results).expect("the kernels must run");
    }
}

/// Waits until the device has done all work.
pub(crate) fn finish() {
    if let Some(device) = accelerator() {
        device.synchronize().expect("the device must work");
    }
}
