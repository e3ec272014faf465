//! Operands without their memory: checks, and the buffers that a dispatch binds.

use crate::shader::{BindingUse, BufferRef, ElementAccess, ElementRef, ShaderBuilder};
use pellucid_ir::kernel::{Kernel, KernelOperand};
use pellucid_ir::{DType, Error, Layout, Result, Shape};

/// The maximum length of an axis, and the maximum number of elements of an operand. Shaders compute lengths, counts and
/// offsets in 32 bits.
const MAX_ELEMENTS: usize = u32::MAX as usize / 2;

/// Returns true if shaders can count the elements of an array and the positions along its axes.
pub(crate) fn is_countable(shape: &Shape) -> bool {
    shape.checked_size().is_some_and(|size| size <= MAX_ELEMENTS) && shape.iter().all(|&len| len <= MAX_ELEMENTS)
}

/// Returns true if shaders can count the elements of an operand and compute the offsets of its words.
pub(crate) fn is_addressable(layout: &Layout, dtype: DType) -> bool {
    let element_words = dtype.size().div_ceil(4);
    is_countable(layout.shape()) && layout.extent().end <= (u32::MAX as usize / element_words) as isize
}

/// A checked operand of a kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceArray<'a> {
    pub(crate) buffer: BufferRef,
    /// The layout, with offset and strides in elements.
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
    arrays.into_iter().map(|array| shader.declare_word(array.layout.offset())).collect()
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
    /// Returns an error if an operand exceeds its buffer.
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
        bound.map(|array| array.layout.accessed_elements() * array.dtype.size()).sum()
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
        if !is_addressable(layout, *dtype) {
            let reason = format!(
                "an operand of shape {} has 2^31 elements or more, or words at offsets of 2^32 or more, which shaders \
                 cannot address; split it, or run the operation on the CPU",
                layout.shape()
            );
            return Err(Error::invalid(op, reason));
        }
        let extent = layout.extent();
        if extent.is_empty() || extent.start >= 0 && extent.end <= (bytes / dtype.size()) as isize {
            return Ok(());
        }
        Err(Error::invalid(op, format!("a view exceeds its buffer of {bytes} bytes: {layout:?} of {dtype}")))
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
        assert_eq!(extent_error([2, 3], 1 << 34), "");
        assert!(extent_error([1 << 16, 1 << 15], 1 << 33).contains("has 2^31 elements or more"));
    }

    #[test]
    fn lengths_counts_and_word_offsets_have_32_bits() {
        let addressable = |layout: &Layout| [DType::U8, DType::F64].map(|dtype| is_addressable(layout, dtype));
        let from = |start| Layout::contiguous_from([2].into(), start);
        assert_eq!(addressable(&from((1 << 31) - 4)), [true, true]);
        assert_eq!(addressable(&from(1 << 31)), [true, false]);
        assert_eq!(addressable(&from(1 << 32)), [false, false]);
        assert_eq!(addressable(&Layout::contiguous([0usize, 1 << 40].into())), [false, false]);
        let repeated = Layout::contiguous([1].into()).broadcast_to(&[1usize << 31].into()).unwrap();
        assert_eq!(addressable(&repeated), [false, false]);
    }
}
