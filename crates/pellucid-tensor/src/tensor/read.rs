//! Reads of values by the host. A read runs deferred kernels. While a step is captured, it returns an error.

use super::Tensor;
use crate::array::host_vec;
use crate::execution_mode::is_capturing;
use crate::panic::{self, unwrap};
use pellucid_derive::panicking_form;
use pellucid_ir::backend::READY;
use pellucid_ir::{Element, Error, ReadElement, Result};

impl Tensor {
    /// Returns the single element, converted to `T`.
    ///
    /// # Panics
    /// Panics if [`Tensor::try_item`] returns an error.
    #[track_caller]
    pub fn item<T: ReadElement>(&self) -> T {
        panic::unwrap(self.try_item())
    }

    /// Returns the single element, converted to `T`. A conversion to a float type rounds to the nearest value. In a
    /// conversion to `bool`, nonzero elements become true.
    ///
    /// # Errors
    /// [`Error::NotAScalar`] if there is not exactly one element, [`Error::ReadInCapture`]; [`Error::InvalidArgument`]
    /// for an element that an integer type `T` cannot represent, such as 0.5, NaN, or 300 as `u8`.
    #[track_caller]
    pub fn try_item<T: ReadElement>(&self) -> Result<T> {
        if self.size() != 1 {
            return Err(Error::NotAScalar {
                op: "item",
                shape: self.shape().clone(),
                help: "reduce the tensor, or use to_vec()",
            });
        }
        let mut values = self.array().read::<T>("item")?;
        Ok(values.pop().expect("a tensor of size 1 must have one element"))
    }

    /// Returns the elements in row-major order, converted to `T`: the Rust type of a dtype, or `usize`, `isize`, `u16`,
    /// `u32` or `u64`.
    ///
    /// ```
    /// use pellucid::Tensor;
    /// let classes = Tensor::from([[0.1, 0.7], [0.8, 0.3]]).argmax(1);
    /// assert_eq!(classes.to_vec::<i64>(), [1, 0]);
    /// assert_eq!(classes.to_vec::<usize>(), [1, 0]);
    /// ```
    ///
    /// # Panics
    /// Panics if [`Tensor::try_to_vec`] returns an error.
    #[doc(alias("tolist", "numpy"))]
    #[track_caller]
    pub fn to_vec<T: ReadElement>(&self) -> Vec<T> {
        panic::unwrap(self.try_to_vec())
    }

    /// Returns the elements in row-major order, converted to `T`. A conversion to a float type rounds to the nearest
    /// value. In a conversion to `bool`, nonzero elements become true.
    ///
    /// # Errors
    /// [`Error::ReadInCapture`] while a step is captured; [`Error::InvalidArgument`] for an element that an integer
    /// type `T` cannot represent, such as 0.5, NaN, or 300 as `u8` ([`Tensor::to_dtype`] rounds towards zero instead).
    #[track_caller]
    pub fn try_to_vec<T: ReadElement>(&self) -> Result<Vec<T>> {
        self.array().read("to_vec")
    }

    /// Returns the first element in row-major order for which `is_wanted` is true, converted to `T`, or `None`.
    ///
    /// ```
    /// use pellucid::Tensor;
    /// let classes = Tensor::from([2i64, 0, 7]);
    /// assert_eq!(classes.try_find(|class: i64| class > 4)?, Some(7));
    /// assert_eq!(classes.try_find(|class: i64| class < 0)?, None);
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Tensor::try_to_vec`].
    #[track_caller]
    pub fn try_find<T: Element + bytemuck::Pod>(&self, is_wanted: impl Fn(T) -> bool) -> Result<Option<T>> {
        self.array().find("find", is_wanted)
    }

    /// Returns true if a read neither waits for a device nor runs kernels: the tensor is on the CPU, its kernels have
    /// run, and no step is being captured. Layers and losses check values only in this case.
    pub fn is_readable(&self) -> bool {
        self.device().is_cpu() && !is_capturing() && self.array().storage().pending() == READY
    }

    /// Returns the elements of a matrix as a vector of rows, converted to `T` as by [`Tensor::to_vec`].
    ///
    /// ```
    /// use pellucid::Tensor;
    /// let x = Tensor::from([[1, 2, 3], [4, 5, 6]]);
    /// assert_eq!(x.to_vec2::<i64>(), [[1, 2, 3], [4, 5, 6]]);
    /// ```
    ///
    /// # Panics
    /// Panics if [`Tensor::try_to_vec2`] returns an error.
    #[doc(alias = "tolist")]
    #[track_caller]
    pub fn to_vec2<T: ReadElement>(&self) -> Vec<Vec<T>> {
        panic::unwrap(self.try_to_vec2())
    }

    /// Returns the elements of a matrix as a vector of rows, and returns errors as values.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] unless the tensor has 2 axes; the errors of [`Tensor::try_to_vec`].
    #[track_caller]
    pub fn try_to_vec2<T: ReadElement>(&self) -> Result<Vec<Vec<T>>> {
        self.check_rank("to_vec2", 2)?;
        rows(&self.array().read("to_vec2")?, self.shape())
    }

    /// Returns the elements of a tensor with 3 axes as nested vectors, converted to `T` as by [`Tensor::to_vec`].
    ///
    /// # Panics
    /// Panics if [`Tensor::try_to_vec3`] returns an error.
    #[doc(alias = "tolist")]
    #[track_caller]
    pub fn to_vec3<T: ReadElement>(&self) -> Vec<Vec<Vec<T>>> {
        panic::unwrap(self.try_to_vec3())
    }

    /// Returns the elements of a tensor with 3 axes as nested vectors, and returns errors as values.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] unless the tensor has 3 axes; the errors of [`Tensor::try_to_vec`].
    #[track_caller]
    pub fn try_to_vec3<T: ReadElement>(&self) -> Result<Vec<Vec<Vec<T>>>> {
        self.check_rank("to_vec3", 3)?;
        let (values, shape) = (self.array().read("to_vec3")?, self.shape());
        let size = shape[1] * shape[2];
        let mut outer = host_vec(shape[0])?;
        for k in 0..shape[0] {
            outer.push(rows(&values[k * size..(k + 1) * size], &shape[1..])?);
        }
        Ok(outer)
    }

    fn check_rank(&self, op: &'static str, rank: usize) -> Result<()> {
        if self.rank() == rank {
            return Ok(());
        }
        let help = format!("the tensor must have {rank} axes; to_vec() returns the elements of any shape");
        Err(Error::shapes(op, [self.shape()], help))
    }

    /// Returns the bytes of the elements in row-major order and native byte order.
    ///
    /// # Errors
    /// [`Error::ReadInCapture`] while a step is captured.
    #[doc(alias = "tobytes")]
    #[panicking_form]
    pub fn try_to_bytes(&self) -> Result<Vec<u8>> {
        self.array().to_bytes("to_bytes")
    }
}

/// Splits the elements of a matrix of this shape into its rows.
fn rows<T: ReadElement>(values: &[T], shape: &[usize]) -> Result<Vec<Vec<T>>> {
    let mut rows = host_vec(shape[0])?;
    rows.extend((0..shape[0]).map(|k| values[k * shape[1]..(k + 1) * shape[1]].to_vec()));
    Ok(rows)
}
