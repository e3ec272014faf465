//! Buffers of an optimizer that move with its parameters from device to device.

use crate::parameter::Buffer;
use pellucid_tensor::{Device, Result, Tensor};

/// Creates a buffer for scalars that several parameters read. It is [free](Tensor::is_free), because the parameters may
/// be on several devices.
pub(super) fn free_buffer(values: Tensor) -> Buffer {
    let buffer = Buffer::new(values);
    buffer.free();
    buffer
}

/// Moves a free tensor to `device` in place; it stays free.
pub(super) fn move_free(tensor: &Tensor, device: Device) -> Result<()> {
    tensor.try_to_(device)?;
    tensor.free();
    Ok(())
}
