//! [`BoundOperands`]: the operands of a kernel and their memory.

use crate::api::ComputeApi;
use crate::buffer::GpuBuffer;
use crate::gpu::Gpu;
use crate::operand::{DeviceOperands, UncheckedOperand};
use pellucid_ir::backend::{Buffer, CheckedKernel, Storage, View};
use pellucid_ir::kernel::Kernel;
use pellucid_ir::{Error, Result};
use std::sync::Arc;

/// Returns the buffer of a storage of `gpu`.
///
/// # Errors
/// [`Error::DeviceMismatch`] if the storage belongs to another device.
pub(crate) fn device_buffer<'a, A: ComputeApi>(
    op: &'static str,
    gpu: &Arc<Gpu<A>>,
    storage: &'a Storage,
) -> Result<&'a GpuBuffer<A>> {
    let buffer = storage.buffer().as_any().downcast_ref::<GpuBuffer<A>>().filter(|buffer| buffer.is_on(gpu));
    buffer.ok_or_else(|| {
        let devices = vec![gpu.api.failure().device().into(), "another device".into()];
        Error::DeviceMismatch { op, devices }
    })
}

/// The operands of a kernel and their buffers.
pub(crate) struct BoundOperands<'a, A: ComputeApi> {
    pub(crate) operands: DeviceOperands<'a>,
    /// The buffers of the inputs, then the buffers of the outputs.
    pub(crate) buffers: Vec<&'a GpuBuffer<A>>,
}

impl<'a, A: ComputeApi> BoundOperands<'a, A> {
    /// Checks views and finds their buffers.
    ///
    /// # Errors
    /// Returns an error if a view belongs to another device, and the errors of [`DeviceOperands::new`].
    pub(crate) fn new(gpu: &Arc<Gpu<A>>, launch: CheckedKernel<'a>) -> Result<BoundOperands<'a, A>> {
        let (kernel, inputs, outputs) = (launch.kernel(), launch.inputs(), launch.outputs());
        let op = kernel.name();
        let views = || inputs.iter().chain(outputs);
        let buffers: Vec<&GpuBuffer<A>> = views().map(|v| device_buffer(op, gpu, v.storage)).collect::<Result<_>>()?;
        let operand = |(view, &buffer): (&View<'a>, &&'a GpuBuffer<A>)| {
            let identity = std::ptr::from_ref(buffer);
            UncheckedOperand { identity, bytes: buffer.bytes(), layout: view.layout, dtype: view.dtype }
        };
        let operands: Vec<_> = views().zip(&buffers).map(operand).collect();
        Ok(BoundOperands { operands: DeviceOperands::new(kernel, &operands, inputs.len())?, buffers })
    }

    /// Returns the memory of every operand, in the order of the buffers. Allocates memory for outputs that have none.
    ///
    /// # Errors
    /// Returns an error if an operand that the kernel reads has never been written, or if an allocation fails.
    pub(crate) fn memory(&self, kernel: &Kernel) -> Result<Vec<A::Memory>> {
        let inputs = self.operands.inputs.len();
        let read = inputs + kernel.info().state_outputs;
        // All inputs are checked before an output gets memory.
        for (k, (array, buffer)) in self.operands.all().zip(&self.buffers).take(read).enumerate() {
            if !buffer.is_allocated() && array.shape().size() > 0 {
                let reason = format!("operand {k} of the kernel has no memory, because it has never been written");
                return Err(Error::invalid(kernel.name(), reason));
            }
        }
        self.buffers.iter().map(|buffer| buffer.ensure()).collect()
    }
}
