//! Creation of tensors from numbers, slices, nested arrays and bytes.

use super::Tensor;
use crate::array::Array;
use crate::device::Device;
use crate::panic;
use pellucid_ir::{DType, Element, Error, Result, Shape};

/// A number, or nested arrays of numbers whose nesting is the shape.
pub trait Nested {
    /// The type of the numbers.
    type Item: Element;
    /// The number of levels.
    const RANK: usize;
    /// Appends the numbers in row-major order.
    fn flatten(&self, into: &mut Vec<Self::Item>);
    /// Appends the lengths of the levels.
    fn lengths(into: &mut Vec<usize>);
}

macro_rules! nested_numbers {
    ($($t:ty),*) => {$(
        impl Nested for $t {
            type Item = $t;
            const RANK: usize = 0;
            fn flatten(&self, into: &mut Vec<$t>) {
                into.push(*self);
            }
            fn lengths(_: &mut Vec<usize>) {}
        }

        impl From<Vec<$t>> for Tensor {
            /// Creates a 1-d leaf on the CPU, with the dtype of the numbers: `Tensor::from(vec![1.0f32, 2.0])`.
            #[track_caller]
            fn from(numbers: Vec<$t>) -> Tensor {
                numbers.as_slice().into()
            }
        }

        impl From<&[$t]> for Tensor {
            /// Creates a 1-d leaf on the CPU, with the dtype of the numbers.
            #[track_caller]
            fn from(numbers: &[$t]) -> Tensor {
                panic::unwrap(Array::from_slice(Device::cpu(), numbers, [numbers.len()].into())).into()
            }
        }
    )*};
}
nested_numbers!(bool, u8, i8, i16, i32, i64, pellucid_ir::f16, pellucid_ir::bf16, f32, f64);

impl<T: Nested, const N: usize> Nested for [T; N] {
    type Item = T::Item;
    const RANK: usize = T::RANK + 1;
    fn flatten(&self, into: &mut Vec<T::Item>) {
        self.iter().for_each(|t| t.flatten(into));
    }
    fn lengths(into: &mut Vec<usize>) {
        into.push(N);
        T::lengths(into);
    }
}

impl<T: Nested> From<T> for Tensor {
    /// Creates a leaf on the CPU, with the dtype of the numbers: `Tensor::from([[1.0f32, 2.0], [3.0, 4.0]])`.
    #[track_caller]
    fn from(nested: T) -> Tensor {
        let (mut data, mut lengths) = (Vec::new(), Vec::new());
        nested.flatten(&mut data);
        T::lengths(&mut lengths);
        panic::unwrap(Array::from_slice(Device::cpu(), &data, Shape::from(lengths))).into()
    }
}

/// A conversion of host data into a tensor of a given shape.
pub trait IntoTensor {
    /// Creates a tensor from the numbers, in row-major order.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the data does not fill the shape.
    fn into_tensor(self, shape: Shape) -> Result<Tensor>;
}

impl<T: Element> IntoTensor for &[T] {
    fn into_tensor(self, shape: Shape) -> Result<Tensor> {
        Array::from_slice(Device::cpu(), self, shape).map(Tensor::from)
    }
}

impl<T: Element> IntoTensor for Vec<T> {
    fn into_tensor(self, shape: Shape) -> Result<Tensor> {
        self.as_slice().into_tensor(shape)
    }
}

impl<T: Element> IntoTensor for &Vec<T> {
    fn into_tensor(self, shape: Shape) -> Result<Tensor> {
        self.as_slice().into_tensor(shape)
    }
}

impl Tensor {
    /// Creates a tensor from numbers in row-major order: `Tensor::new(vec![1.0f32; 6], [2, 3])`.
    ///
    /// # Panics
    /// If the numbers do not fill the shape.
    #[track_caller]
    pub fn new(data: impl IntoTensor, shape: impl Into<Shape>) -> Tensor {
        panic::unwrap(data.into_tensor(shape.into()))
    }

    /// Creates a tensor from bytes, in row-major order and native byte order.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the data does not fill the shape, or a `bool` is not 0 or 1.
    pub fn from_bytes(bytes: &[u8], dtype: DType, shape: impl Into<Shape>) -> Result<Tensor> {
        if dtype == DType::Bool
            && let Some(byte) = bytes.iter().find(|&&b| b > 1)
        {
            return Err(Error::invalid("from_bytes", format!("a bool must be 0 or 1, got {byte}")));
        }
        Array::from_bytes(Device::cpu(), dtype, bytes, shape.into()).map(Tensor::from)
    }
}
