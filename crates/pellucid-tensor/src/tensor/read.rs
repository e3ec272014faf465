//! Reads of values by the host. A read runs deferred kernels; while a step is captured it is an error.

use super::Tensor;
use crate::panic;
use pellucid_ir::{Element, Error, Result};

impl Tensor {
    /// Returns the single element, converted to `T`.
    ///
    /// # Panics
    /// With the errors of [`Tensor::try_item`].
    #[track_caller]
    pub fn item<T: Element>(&self) -> T {
        panic::unwrap(self.try_item())
    }

    /// Returns the single element, converted to `T`: a float is rounded to the nearest, and `bool` is "not zero".
    ///
    /// # Errors
    /// [`Error::NotAScalar`] if there is not exactly one element, [`Error::ReadInCapture`]; [`Error::InvalidArgument`]
    /// for an element that an integer type `T` cannot represent, such as 0.5, NaN, or 300 as `u8`.
    #[track_caller]
    pub fn try_item<T: Element>(&self) -> Result<T> {
        if self.size() != 1 {
            return Err(Error::NotAScalar {
                op: "item",
                shape: self.shape().clone(),
                help: "reduce the tensor, or use to_vec()",
            });
        }
        let mut values = self.array().to_vec::<T>("item")?;
        Ok(values.pop().expect("a tensor of size 1 must have one element"))
    }

    /// Returns the elements in row-major order, converted to `T`.
    ///
    /// # Panics
    /// With the errors of [`Tensor::try_to_vec`].
    #[track_caller]
    pub fn to_vec<T: Element>(&self) -> Vec<T> {
        panic::unwrap(self.try_to_vec())
    }

    /// Returns the elements in row-major order, converted to `T`: floats are rounded to the nearest, and `bool` is
    /// "not zero".
    ///
    /// # Errors
    /// [`Error::ReadInCapture`] while a step is captured; [`Error::InvalidArgument`] for an element that an integer
    /// type `T` cannot represent, such as 0.5, NaN, or 300 as `u8` ([`Tensor::to_dtype`] rounds towards zero instead).
    #[track_caller]
    pub fn try_to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.array().to_vec("to_vec")
    }

    /// Returns the bytes of the elements in row-major order and native byte order.
    ///
    /// # Errors
    /// [`Error::ReadInCapture`] while a step is captured.
    #[track_caller]
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.array().to_bytes("to_bytes")
    }
}
