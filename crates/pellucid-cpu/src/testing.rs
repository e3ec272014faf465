//! Helpers for tests: CPU arrays in every kind of layout, and functions that run kernels on them.

pub(crate) use pellucid_runtime::testing::{Choices, Guarded, numbers};

use crate::Cpu;
use crate::operand::{Operand, Operands};
use pellucid_ir::backend::{Backend, Storage, View};
use pellucid_ir::kernel::{Kernel, Meta};
use pellucid_ir::{DType, Element, Layout, Result, Scalar, Shape};
use std::ptr::NonNull;
use std::sync::Arc;

/// The memory layout of a [`TestArray`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum TestLayout {
    /// Row-major, from the start of the storage.
    Plain,
    /// Row-major, at an offset of five elements.
    Behind,
    /// Column-major.
    Transposed,
    /// Row-major with every axis reversed: all strides are negative.
    Flipped,
    /// Every third element along the last axis of a row-major array.
    Gaps,
}

impl TestLayout {
    /// All layouts.
    pub(crate) const ALL: [TestLayout; 5] =
        [TestLayout::Plain, TestLayout::Behind, TestLayout::Transposed, TestLayout::Flipped, TestLayout::Gaps];

    fn layout(self, shape: &Shape) -> Layout {
        let plain = Layout::contiguous(shape.clone());
        let rank = shape.rank();
        match self {
            TestLayout::Plain => plain,
            TestLayout::Behind => Layout::strided(shape.clone(), plain.strides(), 5),
            TestLayout::Transposed => {
                let reversed: Vec<usize> = (0..rank).rev().collect();
                Layout::contiguous(reversed.iter().map(|&a| shape[a]).collect()).permute(&reversed)
            }
            TestLayout::Flipped => {
                (0..rank).filter(|&a| shape[a] > 0).fold(plain, |l, a| l.slice(a, shape[a] - 1, -1, shape[a]))
            }
            TestLayout::Gaps if rank == 0 => plain,
            TestLayout::Gaps => {
                let wide = Layout::contiguous(shape.with_axis(rank - 1, shape[rank - 1] * 3));
                wide.slice(rank - 1, 0, 3, shape[rank - 1])
            }
        }
    }
}

/// An array in CPU memory.
#[derive(Clone, Debug)]
pub(crate) struct TestArray {
    /// The storage of the elements.
    pub(crate) storage: Arc<Storage>,
    /// The layout of the elements in the storage.
    pub(crate) layout: Layout,
    /// The type of the elements.
    pub(crate) dtype: DType,
}

impl TestArray {
    /// Creates an array that has not been written and has no memory yet.
    pub(crate) fn new(shape: impl Into<Shape>, dtype: DType, layout: TestLayout) -> TestArray {
        let layout = layout.layout(&shape.into());
        let bytes = layout.extent().end.max(0) as usize * dtype.size();
        TestArray { storage: Cpu.storage(bytes).unwrap(), layout, dtype }
    }

    /// Creates an array of the given values, which are in row-major order.
    pub(crate) fn of<T: Element>(shape: impl Into<Shape>, layout: TestLayout, values: &[T]) -> TestArray {
        let array = TestArray::new(shape, T::DTYPE, layout);
        assert_eq!(values.len(), array.layout.shape().size());
        let mut bytes = vec![0xcd; array.storage.buffer().bytes()];
        for (position, value) in array.positions().into_iter().zip(values) {
            bytes[position * size_of::<T>()..][..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(value));
        }
        Cpu.upload(&bytes, &array.storage).unwrap();
        array
    }

    /// Creates an array of the given values, converted to `dtype` by rounding or wrapping.
    pub(crate) fn cast(shape: impl Into<Shape>, layout: TestLayout, dtype: DType, values: &[f64]) -> TestArray {
        fn convert<T: Element>(values: &[f64]) -> Vec<T> {
            values.iter().map(|&v| T::from_scalar(Scalar::Float(v))).collect()
        }
        use pellucid_ir::{bf16, f16};
        match dtype {
            DType::Bool => TestArray::of::<bool>(shape, layout, &convert(values)),
            DType::U8 => TestArray::of::<u8>(shape, layout, &convert(values)),
            DType::I8 => TestArray::of::<i8>(shape, layout, &convert(values)),
            DType::I16 => TestArray::of::<i16>(shape, layout, &convert(values)),
            DType::I32 => TestArray::of::<i32>(shape, layout, &convert(values)),
            DType::I64 => TestArray::of::<i64>(shape, layout, &convert(values)),
            DType::F16 => TestArray::of::<f16>(shape, layout, &convert(values)),
            DType::BF16 => TestArray::of::<bf16>(shape, layout, &convert(values)),
            DType::F32 => TestArray::of::<f32>(shape, layout, &convert(values)),
            DType::F64 => TestArray::of::<f64>(shape, layout, &convert(values)),
        }
    }

    /// Returns the offset of every element in the storage, in row-major order of the indices.
    fn positions(&self) -> Vec<usize> {
        let mut positions = vec![self.layout.offset() as isize];
        for (&dim, &stride) in self.layout.shape().iter().zip(&*self.layout.strides()) {
            positions = positions.iter().flat_map(|&p| (0..dim as isize).map(move |i| p + i * stride)).collect();
        }
        positions.into_iter().map(|p| p as usize).collect()
    }

    /// Returns the elements in row-major order.
    pub(crate) fn values<T: Element>(&self) -> Vec<T> {
        assert_eq!(T::DTYPE, self.dtype);
        let mut bytes = vec![0; self.storage.buffer().bytes()];
        Cpu.download(&self.storage, 0, &mut bytes).unwrap();
        let size = size_of::<T>();
        self.positions().into_iter().flat_map(|p| T::from_bytes(&bytes[p * size..][..size])).collect()
    }

    /// Returns the elements in row-major order, converted to `f64`.
    pub(crate) fn reals(&self) -> Vec<f64> {
        use pellucid_ir::{bf16, f16};
        fn widen<T: Element>(values: Vec<T>) -> Vec<f64> {
            values.into_iter().map(|v| v.to_scalar().to_f64()).collect()
        }
        match self.dtype {
            DType::Bool => widen(self.values::<bool>()),
            DType::U8 => widen(self.values::<u8>()),
            DType::I8 => widen(self.values::<i8>()),
            DType::I16 => widen(self.values::<i16>()),
            DType::I32 => widen(self.values::<i32>()),
            DType::I64 => widen(self.values::<i64>()),
            DType::F16 => widen(self.values::<f16>()),
            DType::BF16 => widen(self.values::<bf16>()),
            DType::F32 => widen(self.values::<f32>()),
            DType::F64 => widen(self.values::<f64>()),
        }
    }

    /// Returns the array as an operand of [`Backend::run`].
    pub(crate) fn view(&self) -> View<'_> {
        View { storage: &self.storage, layout: &self.layout, dtype: self.dtype }
    }
}

/// Creates unwritten row-major arrays with the shapes and dtypes of a kernel's outputs.
pub(crate) fn allocate_outputs(kernel: &Kernel, inputs: &[&TestArray]) -> Result<Vec<TestArray>> {
    let metas: Vec<Meta> = inputs.iter().map(|a| Meta { shape: a.layout.shape().clone(), dtype: a.dtype }).collect();
    Ok(kernel.infer(&metas)?.into_iter().map(|m| TestArray::new(m.shape, m.dtype, TestLayout::Plain)).collect())
}

/// Converts arrays to operands of a kernel family.
///
/// `address` returns the start of an array's storage: [`operand::input`](crate::operand::input) for inputs, or
/// [`operand::output`](crate::operand::output) for outputs.
pub(crate) fn operands<'a>(
    arrays: impl IntoIterator<Item = &'a TestArray>,
    address: fn(&'static str, &View<'_>) -> Result<NonNull<u8>>,
) -> Result<Operands<'a>> {
    let operand = |a: &'a TestArray| {
        let base = address("test", &a.view())?.as_ptr();
        Ok(Operand { base, layout: &a.layout, dtype: a.dtype })
    };
    arrays.into_iter().map(operand).collect()
}

/// Runs a kernel on the CPU.
pub(crate) fn run_kernel(kernel: Kernel, inputs: &[&TestArray], outputs: &[&TestArray]) -> Result<()> {
    let inputs: Vec<View<'_>> = inputs.iter().map(|a| a.view()).collect();
    let outputs: Vec<View<'_>> = outputs.iter().map(|a| a.view()).collect();
    Cpu.run(&kernel, &inputs, &outputs)
}
