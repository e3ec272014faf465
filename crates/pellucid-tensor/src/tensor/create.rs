//! Creation of tensors from numbers, slices, nested arrays and bytes.

use super::Tensor;
use crate::array::Array;
use crate::device::Device;
use crate::panic::{self, unwrap};
use pellucid_derive::panicking_form;
use pellucid_ir::{DType, Element, Error, Result, Shape};

/// A number, or nested lists of numbers: arrays, slices and vectors at every level, such as `[[f32; 3]; 2]`,
/// `Vec<Vec<f32>>` or `&[[i64; 4]]`. The nesting determines the shape.
#[diagnostic::on_unimplemented(
    message = "a tensor cannot be created from `{Self}`",
    note = "a tensor is created from nested arrays, slices or vectors of `bool`, `u8`, `i8`, `i16`, `i32`, `i64`, `f16`, `bf16`, `f32` or `f64`",
    note = "convert other number types first: `usize` with `as i64`"
)]
pub trait Nested {
    /// The type of the elements.
    type Item: Element;

    /// Appends the length of the first list at every level. If a level has no lists because an outer list is empty, the
    /// length of an array is the length in its type, and the length of a slice or vector is 0.
    fn lengths(first: Option<&Self>, into: &mut Vec<usize>);

    /// Appends the elements in row-major order.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if lists at the same level differ in length. `lengths` contains the lengths of this
    /// level and of the inner levels. `level` is the index of this level.
    fn flatten(&self, lengths: &[usize], level: usize, into: &mut Vec<Self::Item>) -> Result<()>;

    /// Returns the elements if this is a list of numbers, otherwise `None`.
    fn numbers(&self) -> Option<&[Self::Item]> {
        None
    }

    /// Returns `list` as numbers if this type is a number, otherwise `None`.
    fn as_numbers(list: &[Self]) -> Option<&[Self::Item]>
    where
        Self: Sized,
    {
        let _ = list;
        None
    }
}

macro_rules! nested_numbers {
    ($($t:ty),*) => {$(
        impl Nested for $t {
            type Item = $t;

            fn lengths(_: Option<&$t>, _: &mut Vec<usize>) {}

            fn flatten(&self, _: &[usize], _: usize, into: &mut Vec<$t>) -> Result<()> {
                into.push(*self);
                Ok(())
            }

            fn as_numbers(list: &[$t]) -> Option<&[$t]> {
                Some(list)
            }
        }
    )*};
}
nested_numbers!(bool, u8, i8, i16, i32, i64, pellucid_ir::f16, pellucid_ir::bf16, f32, f64);

impl<T: Nested> Nested for [T] {
    type Item = T::Item;

    fn lengths(first: Option<&[T]>, into: &mut Vec<usize>) {
        into.push(first.map_or(0, <[T]>::len));
        T::lengths(first.and_then(<[T]>::first), into);
    }

    fn flatten(&self, lengths: &[usize], level: usize, into: &mut Vec<T::Item>) -> Result<()> {
        if self.len() != lengths[0] {
            let reason = format!(
                "lists at the same level must have equal lengths, but lists at level {level} have lengths {} and {}; \
                 pad them",
                lengths[0],
                self.len()
            );
            return Err(Error::invalid("tensor", reason));
        }
        match self.numbers() {
            Some(numbers) => into.extend_from_slice(numbers),
            None => self.iter().try_for_each(|inner| inner.flatten(&lengths[1..], level + 1, into))?,
        }
        Ok(())
    }

    fn numbers(&self) -> Option<&[T::Item]> {
        T::as_numbers(self)
    }
}

impl<T: Nested, const N: usize> Nested for [T; N] {
    type Item = T::Item;

    fn lengths(first: Option<&[T; N]>, into: &mut Vec<usize>) {
        into.push(N);
        T::lengths(first.and_then(|list| list.first()), into);
    }

    fn flatten(&self, lengths: &[usize], level: usize, into: &mut Vec<T::Item>) -> Result<()> {
        self[..].flatten(lengths, level, into)
    }

    fn numbers(&self) -> Option<&[T::Item]> {
        T::as_numbers(self)
    }
}

impl<T: Nested> Nested for Vec<T> {
    type Item = T::Item;

    fn lengths(first: Option<&Vec<T>>, into: &mut Vec<usize>) {
        <[T]>::lengths(first.map(|list| &list[..]), into);
    }

    fn flatten(&self, lengths: &[usize], level: usize, into: &mut Vec<T::Item>) -> Result<()> {
        self[..].flatten(lengths, level, into)
    }

    fn numbers(&self) -> Option<&[T::Item]> {
        T::as_numbers(self)
    }
}

impl<T: Nested + ?Sized> Nested for &T {
    type Item = T::Item;

    fn lengths(first: Option<&&T>, into: &mut Vec<usize>) {
        T::lengths(first.copied(), into);
    }

    fn flatten(&self, lengths: &[usize], level: usize, into: &mut Vec<T::Item>) -> Result<()> {
        (**self).flatten(lengths, level, into)
    }

    fn numbers(&self) -> Option<&[T::Item]> {
        (**self).numbers()
    }
}

impl<T: Nested> From<T> for Tensor {
    /// Creates a leaf on the CPU, with the dtype of the elements, from a number or from nested arrays, slices or
    /// vectors: `Tensor::from([[1.0f32, 2.0], [3.0, 4.0]])`, `Tensor::from(vec![vec![1, 2], vec![3, 4]])`.
    ///
    /// # Panics
    /// Panics if [`Tensor::try_from_nested`] returns an error.
    #[track_caller]
    fn from(nested: T) -> Tensor {
        panic::unwrap(Tensor::try_from_nested(nested))
    }
}

/// A conversion of host data to a tensor with a given shape.
#[diagnostic::on_unimplemented(
    message = "a tensor cannot be created from `{Self}`",
    note = "a tensor is created from an array, a slice or a vector of `bool`, `u8`, `i8`, `i16`, `i32`, `i64`, `f16`, `bf16`, `f32` or `f64`",
    note = "convert other number types first: `usize` with `as i64`"
)]
pub trait IntoTensor {
    /// Creates a tensor from the elements, in row-major order.
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

impl<T: Element, const N: usize> IntoTensor for [T; N] {
    fn into_tensor(self, shape: Shape) -> Result<Tensor> {
        self.as_slice().into_tensor(shape)
    }
}

impl<T: Element, const N: usize> IntoTensor for &[T; N] {
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
    /// Creates a tensor from elements in row-major order: `Tensor::new(vec![1.0f32; 6], [2, 3])`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the elements do not fill the shape; [`Error::OutOfMemory`].
    #[doc(alias("tensor", "array", "from_numpy"))]
    #[panicking_form]
    pub fn try_new(data: impl IntoTensor, shape: impl Into<Shape>) -> Result<Tensor> {
        data.into_tensor(shape.into())
    }

    /// Creates a leaf on the CPU from nested lists as `Tensor::from` does, and returns errors as values.
    ///
    /// ```
    /// use pellucid::Tensor;
    /// let rows = vec![vec![1.0f32, 2.0, 3.0], vec![4.0, 5.0, 6.0]];
    /// assert_eq!(Tensor::try_from_nested(&rows)?.shape().dims(), [2, 3]);
    /// assert!(Tensor::try_from_nested([&rows[0][..], &rows[1][..2]]).is_err());
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if lists at the same level differ in length; [`Error::OutOfMemory`].
    pub fn try_from_nested(nested: impl Nested) -> Result<Tensor> {
        let mut lengths = Vec::new();
        Nested::lengths(Some(&nested), &mut lengths);
        let create = |numbers: &[_]| Array::from_slice(Device::cpu(), numbers, Shape::from(&lengths)).map(Tensor::from);
        if let Some(numbers) = nested.numbers() {
            return create(numbers);
        }
        let mut elements = Vec::new();
        nested.flatten(&lengths, 0, &mut elements)?;
        create(&elements)
    }

    /// Creates a tensor from bytes, in row-major order and native byte order.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the data does not fill the shape, or a `bool` is not 0 or 1.
    #[doc(alias = "frombuffer")]
    #[panicking_form]
    pub fn try_from_bytes(bytes: &[u8], dtype: DType, shape: impl Into<Shape>) -> Result<Tensor> {
        if dtype == DType::Bool
            && let Some(byte) = bytes.iter().find(|&&b| b > 1)
        {
            return Err(Error::invalid("from_bytes", format!("a bool must be 0 or 1, got {byte}")));
        }
        Array::from_bytes(Device::cpu(), dtype, bytes, shape.into()).map(Tensor::from)
    }
}
