//! Operands without their memory: checks, and the buffers that a dispatch binds.

use crate::shader::{BindingUse, BufferRef, ElementAccess, ElementRef, ShaderBuilder};
use pellucid_ir::kernel::{Kernel, KernelOperand};
use pellucid_ir::{DType, Error, Layout, Result, Shape};

/// The maximum number of elements of an operand, and of the elements that a kernel visits. Shaders compute counts and
/// offsets in 32 bits.
const MAX_ELEMENTS: usize = u32::MAX as usize / 2;

/// Returns the product of two counts, the number of elements that a kernel visits.
///
/// # Errors
/// If shaders cannot count the elements.
pub(crate) fn element_count(op: &'static str, counts: [usize; 2]) -> Result<usize> {
    let count = counts[0].checked_mul(counts[1]).filter(|&count| count <= MAX_ELEMENTS);
    count.ok_or_else(|| {
        let [rows, columns] = counts;
        let reason = format!(
            "the operation visits {rows} times {columns} elements, but shaders count fewer than 2^31; split it, or run \
             it on the CPU"
        );
        Error::invalid(op, reason)
    })
}

/// A checked operand of a kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceArray<'a> {
    pub(crate) buffer: BufferRef,
    /// The layout; offset and strides in elements.
    pub(crate) layout: &'a Layout,
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
    shader: &mut ShaderBuilder,
    arrays: impl IntoIterator<Item = &'a DeviceArray<'a>>,
) -> Vec<String> {
    arrays.into_iter().map(|array| shader.declare_len(array.layout.offset())).collect()
}

/// The checked operands of a kernel.
pub(crate) struct DeviceOperands<'a> {
    pub(crate) inputs: Vec<DeviceArray<'a>>,
    pub(crate) outputs: Vec<DeviceArray<'a>>,
}

/// An operand before its checks. Operands with equal identities share a buffer.
#[derive(Clone, Copy)]
pub(crate) struct UncheckedOperand<'a, I> {
    /// The identity of the buffer.
    pub(crate) identity: I,
    /// The size of the buffer in bytes.
    pub(crate) bytes: usize,
    pub(crate) layout: &'a Layout,
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

    /// Returns the size of the elements of all operands in a buffer, in bytes.
    pub(crate) fn touched_bytes(&self, buffer: BufferRef) -> usize {
        let bound = self.all().filter(|array| array.buffer == buffer);
        bound.map(|array| array.layout.touched() * array.dtype.size()).sum()
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
        let is_countable = layout.shape().checked_size().is_some_and(|size| size <= MAX_ELEMENTS);
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

/// The elements of the operands of a dispatch. Each buffer is bound once, even if several operands refer to it.
pub(crate) struct Bindings {
    /// The elements of the inputs, then of the outputs.
    elements: Vec<ElementAccess>,
    inputs: usize,
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
        let bind = |array: &DeviceArray<'_>| {
            let binding = shader.binding_of(array.buffer).unwrap_or_else(|| {
                let is_same = |other: &DeviceArray<'_>| other.buffer == array.buffer;
                let mut readers = (0..inputs.len()).filter(|&k| is_same(&inputs[k]));
                let written = outputs.iter().filter(|other| is_same(other)).map(|other| other.dtype.size()).min();
                let usage = match written {
                    None if readers.all(&is_vector) => BindingUse::ReadVectors,
                    None => BindingUse::Read,
                    // Other invocations may write other elements of a word.
                    Some(1 | 2) => BindingUse::Atomic,
                    Some(_) => BindingUse::Write,
                };
                shader.binding(array.buffer, usage)
            });
            ElementAccess::new(binding, array.dtype)
        };
        Bindings { elements: inputs.iter().chain(outputs).map(bind).collect(), inputs: inputs.len() }
    }

    /// Returns an element of each operand. `offsets` are the offsets in the inputs, then in the outputs.
    pub(crate) fn elements(&self, offsets: Vec<String>) -> Vec<ElementRef> {
        self.elements.iter().zip(offsets).map(|(&elements, offset)| ElementRef { elements, offset }).collect()
    }

    /// Returns the elements of input `k`.
    pub(crate) fn input(&self, k: usize) -> ElementAccess {
        self.elements[k]
    }

    /// Returns the elements of output `k`.
    pub(crate) fn output(&self, k: usize) -> ElementAccess {
        self.elements[self.inputs + k]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the error of a view of `f32` in a buffer of `bytes` bytes.
    fn extent_error(shape: [usize; 2], bytes: usize) -> String {
        let layout = Layout::contiguous(shape.into());
        let operand = UncheckedOperand { identity: 0, bytes, layout: &layout, dtype: DType::F32 };
        DeviceOperands::new(&Kernel::Copy, &[operand], 1).err().map_or_else(String::new, |error| error.to_string())
    }

    #[test]
    fn operands_that_shaders_cannot_address_are_errors_with_their_cause() {
        assert_eq!(extent_error([2, 3], 24), "");
        assert!(extent_error([2, 3], 20).contains("a view exceeds its buffer of 20 bytes"));
        assert!(extent_error([2, 3], 1 << 34).contains("has 2^32 elements of f32 or more"));
        assert!(extent_error([1 << 16, 1 << 15], 1 << 33).contains("has 2^31 elements or more"));
    }
}
