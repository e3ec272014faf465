//! Checks of operands, and the buffers that a dispatch binds.

use crate::buffer::WgpuBuffer;
use crate::describe::BufferRef;
use crate::device::Gpu;
use crate::shader::{BindingUse, ShaderBuilder};
use crate::status::CheckHistory;
use pellucid_ir::backend::{Buffer, Storage, View};
use pellucid_ir::kernel::Kernel;
use pellucid_ir::{DType, Error, Layout, Result, Shape};
use std::sync::Arc;

/// A checked operand of a kernel.
#[derive(Clone, Copy)]
pub(crate) struct DeviceArray<'a> {
    /// The buffer.
    pub(crate) buffer: BufferRef,
    /// The layout; offset and strides in elements.
    pub(crate) layout: &'a Layout,
    /// The type of the elements.
    pub(crate) dtype: DType,
}

impl<'a> DeviceArray<'a> {
    /// Returns the length of every axis.
    pub(crate) fn shape(&self) -> &'a Shape {
        self.layout.shape()
    }

    /// Returns the strides of the array broadcast to `shape`, in elements.
    pub(crate) fn broadcast_strides(&self, shape: &Shape) -> Vec<isize> {
        let lead = shape.rank() - self.shape().rank();
        let own = self.layout.strides();
        let stride = |axis: usize| match axis.checked_sub(lead) {
            Some(k) if self.shape()[k] != 1 => own[k],
            _ => 0,
        };
        (0..shape.rank()).map(stride).collect()
    }
}

/// The checked operands of a kernel.
pub(crate) struct DeviceOperands<'a> {
    /// The inputs.
    pub(crate) inputs: Vec<DeviceArray<'a>>,
    /// The outputs.
    pub(crate) outputs: Vec<DeviceArray<'a>>,
}

/// An operand before its checks. Operands with equal identities share a buffer.
#[derive(Clone, Copy)]
pub(crate) struct UncheckedOperand<'a, I> {
    /// The identity of the buffer.
    pub(crate) identity: I,
    /// The size of the buffer in bytes.
    pub(crate) bytes: usize,
    /// The layout of the elements.
    pub(crate) layout: &'a Layout,
    /// The type of the elements.
    pub(crate) dtype: DType,
}

impl<'a> DeviceOperands<'a> {
    /// Checks the operands of a kernel, of which the first `inputs` are inputs.
    ///
    /// # Errors
    /// If operands are missing, an operand exceeds its buffer, or an output is broadcast.
    pub(crate) fn new<I: PartialEq>(
        kernel: &Kernel,
        operands: &[UncheckedOperand<'a, I>],
        inputs: usize,
    ) -> Result<DeviceOperands<'a>> {
        let (op, info) = (kernel.name(), kernel.info());
        let outputs = operands.len() - inputs;
        if inputs < info.inputs || outputs < info.outputs {
            let (needs, other) = (info.inputs, info.outputs);
            let reason =
                format!("the kernel needs at least {needs} inputs and {other} outputs, got {inputs} and {outputs}");
            return Err(Error::invalid(op, reason));
        }
        let array = |(k, operand): (usize, &UncheckedOperand<'a, I>)| {
            operand.check_extent(op)?;
            if k >= inputs && operand.layout.is_broadcast() {
                let shape = operand.layout.shape();
                let reason = format!("cannot write to a broadcast view of shape {shape}; copy it first");
                return Err(Error::invalid(op, reason));
            }
            let first = operands[..k].iter().position(|other| other.identity == operand.identity);
            let buffer = BufferRef::Operand(first.unwrap_or(k));
            Ok(DeviceArray { buffer, layout: operand.layout, dtype: operand.dtype })
        };
        let mut checked = operands.iter().enumerate().map(array);
        let inputs = checked.by_ref().take(inputs).collect::<Result<_>>()?;
        Ok(DeviceOperands { inputs, outputs: checked.collect::<Result<_>>()? })
    }

    /// Iterates over the inputs, then the outputs.
    pub(crate) fn all(&self) -> impl Iterator<Item = &DeviceArray<'a>> {
        self.inputs.iter().chain(&self.outputs)
    }
}

impl<I> UncheckedOperand<'_, I> {
    /// Returns an error if the operand exceeds its buffer.
    fn check_extent(&self, op: &'static str) -> Result<()> {
        let UncheckedOperand { layout, bytes, dtype, .. } = self;
        let capacity = (bytes / dtype.size()) as isize;
        // Shaders compute element counts and positions in 32 bits.
        let is_countable = layout.shape().checked_size().is_some_and(|size| size <= u32::MAX as usize / 2);
        let extent = if is_countable { layout.extent() } else { 0..isize::MAX };
        if extent.is_empty() || extent.start >= 0 && extent.end <= capacity && capacity <= u32::MAX as isize {
            return Ok(());
        }
        Err(Error::invalid(op, format!("a view exceeds its buffer of {bytes} bytes: {layout:?} of {dtype}")))
    }
}

/// Returns the buffer of a storage of `gpu`.
///
/// # Errors
/// [`Error::DeviceMismatch`] if the storage belongs to another device.
pub(crate) fn device_buffer<'a>(op: &'static str, gpu: &Arc<Gpu>, storage: &'a Storage) -> Result<&'a WgpuBuffer> {
    let buffer = storage.buffer().as_any().downcast_ref::<WgpuBuffer>().filter(|buffer| buffer.is_on(gpu));
    buffer.ok_or_else(|| Error::DeviceMismatch { op, devices: vec![gpu.name().into(), "another device".into()] })
}

/// The operands of a kernel and their buffers.
pub(crate) struct BoundOperands<'a> {
    /// The checked operands.
    pub(crate) operands: DeviceOperands<'a>,
    /// The buffers of the inputs, then those of the outputs.
    buffers: Vec<&'a WgpuBuffer>,
}

impl<'a> BoundOperands<'a> {
    /// Checks views and finds their buffers.
    ///
    /// # Errors
    /// If a view belongs to another device, or see [`DeviceOperands::new`].
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        kernel: &Kernel,
        inputs: &[View<'a>],
        outputs: &[View<'a>],
    ) -> Result<BoundOperands<'a>> {
        let op = kernel.name();
        let views = || inputs.iter().chain(outputs);
        let buffers: Vec<&WgpuBuffer> = views().map(|v| device_buffer(op, gpu, v.storage)).collect::<Result<_>>()?;
        let operand = |(view, &buffer): (&View<'a>, &&'a WgpuBuffer)| {
            let identity = std::ptr::from_ref(buffer);
            UncheckedOperand { identity, bytes: buffer.bytes(), layout: view.layout, dtype: view.dtype }
        };
        let operands: Vec<_> = views().zip(&buffers).map(operand).collect();
        Ok(BoundOperands { operands: DeviceOperands::new(kernel, &operands, inputs.len())?, buffers })
    }

    /// Returns the memory of every operand, in the order of the buffers. Allocates that of outputs that have none.
    ///
    /// # Errors
    /// If an operand that the kernel reads has never been written, or an allocation fails.
    pub(crate) fn memory(&self, kernel: &Kernel) -> Result<Vec<&'a wgpu::Buffer>> {
        let inputs = self.operands.inputs.len();
        let read = inputs + kernel.info().state_outputs;
        // All inputs are checked before an output gets memory.
        for (array, buffer) in self.operands.all().zip(&self.buffers).take(read) {
            if buffer.memory().is_none() && array.shape().size() > 0 {
                let reason = "an operand that the kernel reads has no memory, because it has never been written";
                return Err(Error::invalid(kernel.name(), reason));
            }
        }
        self.buffers.iter().map(|buffer| Ok(buffer.ensure()?.raw())).collect()
    }

    /// Returns the buffers that the kernel reads.
    fn read(&self, kernel: &Kernel) -> &[&'a WgpuBuffer] {
        &self.buffers[..self.operands.inputs.len() + kernel.info().state_outputs]
    }

    /// Returns an error if an operand that the kernel reads is known to have no values.
    pub(crate) fn check_computed(&self, kernel: &Kernel, history: &CheckHistory) -> Result<()> {
        match self.read(kernel).iter().any(|buffer| history.is_skipped(buffer.epoch())) {
            true => Err(Error::NotComputed { op: kernel.name() }),
            false => Ok(()),
        }
    }

    /// Stores the epoch of the kernel in the buffers of its outputs, except for those that the kernel reads. A buffer
    /// without values remains so if the kernel writes only a part of it.
    pub(crate) fn mark_written(&self, kernel: &Kernel, history: &CheckHistory, epoch: u64) {
        let outputs = self.operands.outputs.iter().zip(&self.buffers[self.operands.inputs.len()..]);
        for (array, &buffer) in outputs {
            let is_read = self.read(kernel).iter().any(|&other| std::ptr::eq(other, buffer));
            let is_kept = history.is_skipped(buffer.epoch()) && !covers(array.layout, array.dtype, buffer.bytes());
            if !is_read && !is_kept {
                buffer.set_epoch(epoch);
            }
        }
    }

    /// Returns the epoch of every buffer that has memory.
    pub(crate) fn epochs(&self) -> Vec<Option<u64>> {
        self.buffers.iter().map(|buffer| buffer.memory().map(|_| buffer.epoch())).collect()
    }

    /// Restores the epochs of buffers that had memory.
    pub(crate) fn restore_epochs(&self, epochs: &[Option<u64>]) {
        for (buffer, epoch) in self.buffers.iter().zip(epochs) {
            if let Some(epoch) = epoch {
                buffer.set_epoch(*epoch);
            }
        }
    }
}

/// Returns whether an operand contains all elements of its buffer.
pub(crate) fn covers(layout: &Layout, dtype: DType, bytes: usize) -> bool {
    layout.is_contiguous() && layout.offset() == 0 && layout.shape().size() * dtype.size() == bytes
}

/// The buffers of a dispatch: each buffer is bound once, also if several operands refer to it.
#[derive(Default)]
pub(crate) struct Bindings {
    /// The buffers in the order of their bindings.
    pub(crate) buffers: Vec<BufferRef>,
    inputs: Vec<usize>,
    outputs: Vec<usize>,
}

impl Bindings {
    /// Adds the buffers of the operands to a shader.
    pub(crate) fn new(shader: &mut ShaderBuilder, inputs: &[DeviceArray<'_>], outputs: &[DeviceArray<'_>]) -> Bindings {
        let mut bindings = Bindings::default();
        for array in inputs.iter().chain(outputs) {
            let binding = match bindings.buffers.iter().position(|&buffer| buffer == array.buffer) {
                Some(at) => at + 1,
                None => {
                    let written: Vec<DType> =
                        outputs.iter().filter(|o| o.buffer == array.buffer).map(|o| o.dtype).collect();
                    let usage = match &written[..] {
                        [] => BindingUse::Read,
                        dtypes if dtypes.iter().any(|d| d.size() < 4) => BindingUse::Atomic,
                        _ => BindingUse::Write,
                    };
                    bindings.buffers.push(array.buffer);
                    shader.binding(usage)
                }
            };
            let is_input = bindings.inputs.len() < inputs.len();
            if is_input { bindings.inputs.push(binding) } else { bindings.outputs.push(binding) }
        }
        bindings
    }

    /// Returns the binding of input `k`.
    pub(crate) fn input(&self, k: usize) -> usize {
        self.inputs[k]
    }

    /// Returns the binding of output `k`.
    pub(crate) fn output(&self, k: usize) -> usize {
        self.outputs[k]
    }
}
