//! Arrays for tests, in every kind of layout.

pub(crate) use pellucid_runtime::testing::{Choices, Guarded, numbers};

use crate::Cpu;
use crate::operand::{Operand, Operands};
use pellucid_ir::backend::{Backend, Storage, View};
use pellucid_ir::kernel::{Kernel, Meta};
use pellucid_ir::{DType, Element, Layout, Result, Scalar, Shape};
use std::ptr::NonNull;
use std::sync::Arc;

/// How an array lies in its storage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum TestLayout {
    /// Row-major.
    Plain,
    /// Row-major, behind some other elements.
    Behind,
    /// Column-major.
    Turned,
    /// Every axis backwards.
    Flipped,
    /// Every third element of the last axis.
    Gaps,
}

impl TestLayout {
    pub(crate) const ALL: [TestLayout; 5] =
        [TestLayout::Plain, TestLayout::Behind, TestLayout::Turned, TestLayout::Flipped, TestLayout::Gaps];

    fn layout(self, shape: &Shape) -> Layout {
        let plain = Layout::contiguous(shape.clone());
        let rank = shape.rank();
        match self {
            TestLayout::Plain => plain,
            TestLayout::Behind => Layout::strided(shape.clone(), plain.strides(), 5),
            TestLayout::Turned => {
                let back: Vec<usize> = (0..rank).rev().collect();
                Layout::contiguous(back.iter().map(|&a| shape[a]).collect()).permute(&back)
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

/// An array of the CPU.
#[derive(Clone, Debug)]
pub(crate) struct Array {
    pub(crate) storage: Arc<Storage>,
    pub(crate) layout: Layout,
    pub(crate) dtype: DType,
}

impl Array {
    /// An array that nobody has written.
    pub(crate) fn new(shape: impl Into<Shape>, dtype: DType, lie: TestLayout) -> Array {
        let layout = lie.layout(&shape.into());
        let bytes = layout.extent().end.max(0) as usize * dtype.size();
        Array { storage: Cpu.storage(bytes).unwrap(), layout, dtype }
    }

    /// An array of these values, in row-major order.
    pub(crate) fn of<T: Element>(shape: impl Into<Shape>, lie: TestLayout, values: &[T]) -> Array {
        let array = Array::new(shape, T::DTYPE, lie);
        assert_eq!(values.len(), array.layout.shape().size());
        let mut bytes = vec![0xcd; array.storage.buffer().bytes()];
        for (at, value) in array.positions().into_iter().zip(values) {
            bytes[at * size_of::<T>()..][..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(value));
        }
        Cpu.upload(&bytes, &array.storage).unwrap();
        array
    }

    /// An array of these values, rounded or wrapped to `dtype`.
    pub(crate) fn cast(shape: impl Into<Shape>, lie: TestLayout, dtype: DType, values: &[f64]) -> Array {
        fn convert<T: Element>(values: &[f64]) -> Vec<T> {
            values.iter().map(|&v| T::from_scalar(Scalar::Float(v))).collect()
        }
        use pellucid_ir::{bf16, f16};
        match dtype {
            DType::Bool => Array::of::<bool>(shape, lie, &convert(values)),
            DType::U8 => Array::of::<u8>(shape, lie, &convert(values)),
            DType::I8 => Array::of::<i8>(shape, lie, &convert(values)),
            DType::I16 => Array::of::<i16>(shape, lie, &convert(values)),
            DType::I32 => Array::of::<i32>(shape, lie, &convert(values)),
            DType::I64 => Array::of::<i64>(shape, lie, &convert(values)),
            DType::F16 => Array::of::<f16>(shape, lie, &convert(values)),
            DType::BF16 => Array::of::<bf16>(shape, lie, &convert(values)),
            DType::F32 => Array::of::<f32>(shape, lie, &convert(values)),
            DType::F64 => Array::of::<f64>(shape, lie, &convert(values)),
        }
    }

    fn positions(&self) -> Vec<usize> {
        let mut out = vec![self.layout.offset() as isize];
        for (&dim, &stride) in self.layout.shape().iter().zip(&*self.layout.strides()) {
            out = out.iter().flat_map(|&p| (0..dim as isize).map(move |i| p + i * stride)).collect();
        }
        out.into_iter().map(|p| p as usize).collect()
    }

    /// The values in row-major order.
    pub(crate) fn values<T: Element>(&self) -> Vec<T> {
        assert_eq!(T::DTYPE, self.dtype);
        let mut bytes = vec![0; self.storage.buffer().bytes()];
        Cpu.download(&self.storage, 0, &mut bytes).unwrap();
        let size = size_of::<T>();
        self.positions().into_iter().flat_map(|p| T::from_bytes(&bytes[p * size..][..size])).collect()
    }

    /// The values in row-major order, as reals.
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

    pub(crate) fn view(&self) -> View<'_> {
        View { storage: &self.storage, layout: &self.layout, dtype: self.dtype }
    }
}

/// New arrays for what a kernel makes of these inputs.
pub(crate) fn made(kernel: &Kernel, inputs: &[&Array]) -> Result<Vec<Array>> {
    let metas: Vec<Meta> = inputs.iter().map(|a| Meta { shape: a.layout.shape().clone(), dtype: a.dtype }).collect();
    Ok(kernel.infer(&metas)?.into_iter().map(|m| Array::new(m.shape, m.dtype, TestLayout::Plain)).collect())
}

/// Arrays as a family sees them: `address` is that of what is read, or of what is written.
pub(crate) fn operands<'a>(
    arrays: impl IntoIterator<Item = &'a Array>,
    address: fn(&'static str, &View<'_>) -> Result<NonNull<u8>>,
) -> Result<Operands<'a>> {
    let operand = |a: &'a Array| {
        let base = address("test", &a.view())?.as_ptr();
        Ok(Operand { base, layout: &a.layout, dtype: a.dtype })
    };
    arrays.into_iter().map(operand).collect()
}

/// Runs a kernel on the CPU.
pub(crate) fn run(kernel: Kernel, inputs: &[&Array], outputs: &[&Array]) -> Result<()> {
    let inputs: Vec<View<'_>> = inputs.iter().map(|a| a.view()).collect();
    let outputs: Vec<View<'_>> = outputs.iter().map(|a| a.view()).collect();
    Cpu.run(&kernel, &inputs, &outputs)
}
