//! Operands without their memory: checks, and the buffers that a dispatch binds.

use crate::shader::parameters::Parameters;
use crate::shader::{BindingUse, ShaderBuilder};
use pellucid_ir::kernel::{Kernel, KernelOperand};
use pellucid_ir::{DType, Error, Layout, Result, Shape};

/// A buffer of a described dispatch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum BufferRef {
    /// The buffer of an operand: the inputs are numbered first, then the outputs. Operands that share a buffer have
    /// the number of the first of them.
    Operand(usize),
    /// A scratch buffer of the kernel, by its number.
    Scratch(usize),
}

/// A checked operand of a kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceArray<'a> {
    /// The buffer.
    pub(crate) buffer: BufferRef,
    /// The layout; offset and strides in elements.
    pub(crate) layout: &'a Layout,
    /// The type of the elements.
    pub(crate) dtype: DType,
}

impl KernelOperand for DeviceArray<'_> {
    fn layout(&self) -> &Layout {
        self.layout
    }
    fn dtype(&self) -> DType {
        self.dtype
    }
}

impl<'a> DeviceArray<'a> {
    /// Returns the length of every axis.
    pub(crate) fn shape(&self) -> &'a Shape {
        self.layout.shape()
    }

    /// Returns the strides of the array broadcast to `shape`, in elements.
    pub(crate) fn broadcast_strides(&self, shape: &Shape) -> Vec<isize> {
        (0..shape.rank()).map(|axis| self.layout.broadcast_stride(axis, shape.rank())).collect()
    }
}

/// Adds the offset of the first element of every array to the parameters, and returns the expressions.
pub(crate) fn declare_starts<'a>(
    parameters: &mut Parameters,
    arrays: impl IntoIterator<Item = &'a DeviceArray<'a>>,
) -> Vec<String> {
    arrays.into_iter().map(|array| parameters.declare_len(array.layout.offset())).collect()
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
    /// Checks that the operands of a kernel are in their buffers. The first `inputs` operands are inputs.
    ///
    /// # Errors
    /// If an operand exceeds its buffer.
    pub(crate) fn new<I: PartialEq>(
        kernel: &Kernel,
        operands: &[UncheckedOperand<'a, I>],
        inputs: usize,
    ) -> Result<DeviceOperands<'a>> {
        let op = kernel.name();
        let array = |(k, operand): (usize, &UncheckedOperand<'a, I>)| {
            operand.check_extent(op)?;
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
        // Shaders compute element counts and offsets in 32 bits.
        let is_countable = layout.shape().checked_size().is_some_and(|size| size <= u32::MAX as usize / 2);
        let extent = if is_countable { layout.extent() } else { 0..isize::MAX };
        if extent.is_empty() || extent.start >= 0 && extent.end <= capacity && capacity <= u32::MAX as isize {
            return Ok(());
        }
        let reason = match is_countable {
            true if capacity > u32::MAX as isize => {
                format!("a buffer of {bytes} bytes has 2^32 elements of {dtype} or more, which shaders cannot address")
            }
            true => format!("a view exceeds its buffer of {bytes} bytes: {layout:?} of {dtype}"),
            false => format!(
                "an operand of shape {} has 2^31 elements or more, which shaders cannot address; split it, or run the \
                 operation on the CPU",
                layout.shape()
            ),
        };
        Err(Error::invalid(op, reason))
    }
}

/// The buffers of a dispatch: each buffer is bound once, even if several operands refer to it.
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
        Bindings::with_vectors(shader, inputs, outputs, |_| false)
    }

    /// Adds the buffers of the operands to a shader. A buffer is read four words at a time if `is_vector` is true for
    /// every input in it.
    pub(crate) fn with_vectors(
        shader: &mut ShaderBuilder,
        inputs: &[DeviceArray<'_>],
        outputs: &[DeviceArray<'_>],
        is_vector: impl Fn(usize) -> bool,
    ) -> Bindings {
        let mut bindings = Bindings::default();
        for array in inputs.iter().chain(outputs) {
            let binding = match bindings.buffers.iter().position(|&buffer| buffer == array.buffer) {
                Some(index) => index + 1,
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

    /// Returns the binding of a buffer that is bound.
    pub(crate) fn binding_of(&self, buffer: BufferRef) -> usize {
        self.buffers.iter().position(|&bound| bound == buffer).map_or(0, |index| index + 1)
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
