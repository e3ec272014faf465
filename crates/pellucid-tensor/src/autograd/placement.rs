//! The device on which an operation runs, and copies of tensors between devices.
//!
//! A tensor is free until a device is chosen for it. An operation runs on the device of its pinned inputs, and free
//! inputs are copied there. An operation never moves a pinned input.

use super::anomaly::note_forward_location;
use crate::array::Array;
use crate::device::Device;
use crate::engine::{is_recorded, record_device_copy};
use crate::grad_mode::is_grad_enabled;
use crate::tensor::{
    Derivative, GraphNode, InputGradients, NeedsInputGrad, OutputGradients, SavedTensors, Tensor, metas_of,
};
use pellucid_ir::{Error, Result};
use smallvec::{SmallVec, smallvec};

/// The derivative of a copy to another device: a copy of the gradient in the opposite direction.
struct ToDevice {
    from: Device,
}

impl Derivative for ToDevice {
    fn name(&self) -> &'static str {
        "to"
    }

    fn backward(&self, _: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let gradient = grads.get(0)?;
        Ok(smallvec![Some(copy_to(&gradient, self.from)?)])
    }
}

/// Returns `copy`, a copy of x's elements on another device, as a tensor, and records that it was computed from x.
fn copied(x: &Tensor, copy: Array) -> Tensor {
    if !(is_grad_enabled() && x.requires_grad()) {
        return Tensor::from(copy);
    }
    let derivative = ToDevice { from: x.device() };
    let copy = Tensor::only_output(copy, |array, output| {
        GraphNode::new(smallvec![x.edge()], metas_of(std::slice::from_ref(array)), output, [], derivative)
    });
    note_forward_location(|| copy.creator().map(|node| node.0));
    copy
}

/// Copies a tensor to another device, with its history, and pins it there.
#[track_caller]
pub(crate) fn copy_to(x: &Tensor, device: Device) -> Result<Tensor> {
    let copy = x.array().copy_to_device(device)?;
    copy.set_pinned(true);
    Ok(copied(x, copy))
}

/// Copies a free tensor to the device of an operation. The elements are copied once for each device and each version of
/// the tensor.
fn free_copy(x: &Tensor, device: Device) -> Result<Tensor> {
    let copy = x.device_copy(device, || x.array().copy_to_device(device))?;
    if !is_recorded(&copy) && !is_recorded(x.array()) {
        record_device_copy(x.array(), &copy);
    }
    Ok(copied(x, copy))
}

/// Returns the inputs of an operation on the device on which it runs, or `None` if no input must be copied.
///
/// The operation runs on the device of all pinned inputs. If all inputs are free, it runs on the GPU if an input is
/// stored on it, otherwise on the CPU.
///
/// # Errors
/// [`Error::DeviceMismatch`] if pinned inputs are on several devices.
#[inline]
pub(crate) fn on_one_device(op: &'static str, inputs: &[&Tensor]) -> Result<Option<SmallVec<[Tensor; 4]>>> {
    match inputs {
        [first, rest @ ..] if rest.iter().any(|t| t.device() != first.device()) => {
            copy_to_common_device(op, inputs).map(Some)
        }
        _ => Ok(None),
    }
}

#[cold]
fn copy_to_common_device(op: &'static str, inputs: &[&Tensor]) -> Result<SmallVec<[Tensor; 4]>> {
    let mut pinned = inputs.iter().filter(|t| !t.is_free()).map(|t| t.device());
    let device = match pinned.next() {
        Some(device) if pinned.all(|other| other == device) => device,
        Some(_) => return Err(mismatch(op, inputs)),
        None => inputs.iter().map(|t| t.device()).find(Device::is_gpu).unwrap_or_else(Device::cpu),
    };
    inputs.iter().map(|&t| if t.device() == device { Ok(t.clone()) } else { free_copy(t, device) }).collect()
}

fn mismatch(op: &'static str, inputs: &[&Tensor]) -> Error {
    let name = |t: &&Tensor| format!("{}{}", t.device(), if t.is_free() { " (free)" } else { "" });
    Error::DeviceMismatch { op, devices: inputs.iter().map(name).collect() }
}

/// Returns the source of a write in place on the device of its target, which does not move.
///
/// # Errors
/// [`Error::DeviceMismatch`] if the source is pinned to another device.
pub(crate) fn on_device_of(op: &'static str, target: &Tensor, source: &Tensor) -> Result<Tensor> {
    on_device(op, target.device(), source)
}

/// Returns x on the device of `like`. If `like` is pinned, the result is pinned too.
///
/// # Errors
/// [`Error::DeviceMismatch`] if x is pinned to another device.
pub(crate) fn placed_like(op: &'static str, like: &Tensor, x: &Tensor) -> Result<Tensor> {
    let x = on_device(op, like.device(), x)?;
    if like.is_free() || !x.is_free() { Ok(x) } else { x.try_to(like.device()) }
}

/// Returns x on `device`. A free tensor is copied there.
///
/// # Errors
/// [`Error::DeviceMismatch`] if the tensor is pinned to another device.
pub(crate) fn on_device(op: &'static str, device: Device, x: &Tensor) -> Result<Tensor> {
    if x.device() == device {
        return Ok(x.clone());
    }
    if !x.is_free() {
        return Err(Error::DeviceMismatch { op, devices: [device, x.device()].map(|d| d.name().to_string()).into() });
    }
    free_copy(x, device)
}
