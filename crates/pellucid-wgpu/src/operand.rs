//! Checks of views, and the buffers that a dispatch binds.

use crate::buffer::WgpuBuffer;
use crate::device::Gpu;
use crate::shader::{BindingUse, ShaderBuilder};
use pellucid_ir::backend::{Buffer, Storage, View};
use pellucid_ir::kernel::Kernel;
use pellucid_ir::{DType, Error, Layout, Result, Shape};
use std::sync::Arc;

/// A checked operand of a kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceArray<'a> {
    /// The buffer of the graphics API.
    pub(crate) buffer: &'a wgpu::Buffer,
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

/// Returns the buffer of a storage of `gpu`.
///
/// # Errors
/// [`Error::DeviceMismatch`] if the storage belongs to another device.
pub(crate) fn device_buffer<'a>(op: &'static str, gpu: &Arc<Gpu>, storage: &'a Storage) -> Result<&'a WgpuBuffer> {
    let buffer = storage.buffer().as_any().downcast_ref::<WgpuBuffer>().filter(|buffer| buffer.is_on(gpu));
    buffer.ok_or_else(|| Error::DeviceMismatch { op, devices: vec![gpu.name().into(), "another device".into()] })
}

/// Checks the operands of a kernel and allocates the memory of outputs that have none.
///
/// # Errors
/// If operands are missing, a view exceeds its buffer or belongs to another device, an input has never been written, an
/// output is broadcast, or an allocation fails.
pub(crate) fn check_operands<'a>(
    gpu: &Arc<Gpu>,
    kernel: &Kernel,
    inputs: &[View<'a>],
    outputs: &[View<'a>],
) -> Result<DeviceOperands<'a>> {
    let (op, info) = (kernel.name(), kernel.info());
    if inputs.len() < info.inputs || outputs.len() < info.outputs {
        let reason = format!(
            "the kernel needs at least {} inputs and {} outputs, got {} and {}",
            info.inputs,
            info.outputs,
            inputs.len(),
            outputs.len()
        );
        return Err(Error::invalid(op, reason));
    }
    let input = |view: &View<'a>| {
        let buffer = checked_buffer(op, gpu, view)?;
        let memory = match buffer.memory() {
            Some(memory) => memory,
            None if view.layout.shape().size() == 0 => buffer.ensure()?,
            None => return Err(Error::invalid(op, "an input has no memory, because it has never been written")),
        };
        Ok(DeviceArray { buffer: memory.raw(), layout: view.layout, dtype: view.dtype })
    };
    let inputs = inputs.iter().map(input).collect::<Result<_>>()?;
    let output = |(k, view): (usize, &View<'a>)| {
        let buffer = checked_buffer(op, gpu, view)?;
        if k < info.state_outputs && buffer.memory().is_none() {
            return Err(Error::invalid(op, "the state has no memory, because it has never been written"));
        }
        if view.layout.is_broadcast() {
            let reason = format!("cannot write to a broadcast view of shape {}; copy it first", view.layout.shape());
            return Err(Error::invalid(op, reason));
        }
        Ok(DeviceArray { buffer: buffer.ensure()?.raw(), layout: view.layout, dtype: view.dtype })
    };
    let outputs = outputs.iter().enumerate().map(output).collect::<Result<_>>()?;
    Ok(DeviceOperands { inputs, outputs })
}

/// Returns the buffer of a view, or an error if the view exceeds it or belongs to another device.
fn checked_buffer<'a>(op: &'static str, gpu: &Arc<Gpu>, view: &View<'a>) -> Result<&'a WgpuBuffer> {
    let buffer = device_buffer(op, gpu, view.storage)?;
    let capacity = (buffer.bytes() / view.dtype.size()) as isize;
    // Shaders compute element counts and positions in 32 bits.
    let is_countable = view.layout.shape().checked_size().is_some_and(|size| size <= u32::MAX as usize / 2);
    let extent = if is_countable { view.layout.extent() } else { 0..isize::MAX };
    if extent.is_empty() || extent.start >= 0 && extent.end <= capacity && capacity <= u32::MAX as isize {
        return Ok(buffer);
    }
    let (layout, bytes) = (view.layout, buffer.bytes());
    Err(Error::invalid(op, format!("a view exceeds its buffer of {bytes} bytes: {layout:?} of {}", view.dtype)))
}

/// The buffers of a dispatch: each buffer is bound once, also if several operands refer to it.
#[derive(Default)]
pub(crate) struct Bindings<'a> {
    /// The buffers in the order of their bindings.
    pub(crate) buffers: Vec<&'a wgpu::Buffer>,
    inputs: Vec<usize>,
    outputs: Vec<usize>,
}

impl<'a> Bindings<'a> {
    /// Adds the buffers of the operands to a shader.
    pub(crate) fn new(
        shader: &mut ShaderBuilder,
        inputs: &[DeviceArray<'a>],
        outputs: &[DeviceArray<'a>],
    ) -> Bindings<'a> {
        Bindings::with_vectors(shader, inputs, outputs, |_| false)
    }

    /// Adds the buffers of the operands to a shader. A buffer is read four words at once if `is_vector` is true for
    /// every input in it.
    pub(crate) fn with_vectors(
        shader: &mut ShaderBuilder,
        inputs: &[DeviceArray<'a>],
        outputs: &[DeviceArray<'a>],
        is_vector: impl Fn(usize) -> bool,
    ) -> Bindings<'a> {
        let mut bindings = Bindings::default();
        for array in inputs.iter().chain(outputs) {
            let binding = match bindings.buffers.iter().position(|&buffer| buffer == array.buffer) {
                Some(at) => at + 1,
                None => {
                    let written: Vec<DType> =
                        outputs.iter().filter(|o| o.buffer == array.buffer).map(|o| o.dtype).collect();
                    let mut readers = (0..inputs.len()).filter(|&k| inputs[k].buffer == array.buffer);
                    let usage = match &written[..] {
                        [] if readers.all(&is_vector) => BindingUse::ReadVectors,
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
