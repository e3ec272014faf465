//! The results of a captured step.

use crate::array::Array;
use crate::engine::{VersionUpdate, run_kernel};
use crate::panic::unwrap;
use crate::tensor::Tensor;
use pellucid_derive::panicking_form;
use pellucid_ir::kernel::Kernel;
use pellucid_ir::{Error, ReadElement, Result, Shape};

/// The return type of a captured step: no tensor, one tensor, several, or a [`Result`] of them.
pub trait IntoOutputs {
    /// Returns the tensors in order.
    ///
    /// # Errors
    /// The error of the step, if it returned one.
    fn into_outputs(self) -> Result<Vec<Tensor>>;
}

impl<O: IntoOutputs> IntoOutputs for Result<O> {
    fn into_outputs(self) -> Result<Vec<Tensor>> {
        self?.into_outputs()
    }
}

impl IntoOutputs for () {
    fn into_outputs(self) -> Result<Vec<Tensor>> {
        Ok(Vec::new())
    }
}

impl IntoOutputs for Tensor {
    fn into_outputs(self) -> Result<Vec<Tensor>> {
        Ok(vec![self])
    }
}

impl IntoOutputs for (Tensor, Tensor) {
    fn into_outputs(self) -> Result<Vec<Tensor>> {
        Ok(vec![self.0, self.1])
    }
}

impl IntoOutputs for (Tensor, Tensor, Tensor) {
    fn into_outputs(self) -> Result<Vec<Tensor>> {
        Ok(vec![self.0, self.1, self.2])
    }
}

impl<const N: usize> IntoOutputs for [Tensor; N] {
    fn into_outputs(self) -> Result<Vec<Tensor>> {
        Ok(self.into())
    }
}

impl IntoOutputs for Vec<Tensor> {
    fn into_outputs(self) -> Result<Vec<Tensor>> {
        Ok(self)
    }
}

/// The results of a launch. They borrow the step, and its next launch overwrites them.
#[derive(Debug)]
pub struct Outputs<'a> {
    pub(super) tensors: &'a [Tensor],
}

impl<'a> Outputs<'a> {
    /// Returns the number of outputs.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Returns true for a step that returns no tensors.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Returns the shape of output `index`.
    ///
    /// # Panics
    /// Panics if there is no such output.
    #[track_caller]
    pub fn shape(&self, index: usize) -> &Shape {
        unwrap(self.output(index)).shape()
    }

    /// Returns the outputs as the step stores them, without a copy. A handle may outlive this borrow: the next launch
    /// for inputs with these shapes overwrites its elements, as a write in place does.
    ///
    /// ```
    /// use pellucid::{Tensor, capture};
    /// let x = Tensor::from([1.0f32, 2.0]);
    /// let mut step = capture(|inputs| inputs[0].square(), &[&x])?;
    /// let y = step.launch(&[&x])?.tensors()[0].clone();
    /// assert_eq!(y.to_vec::<f32>(), [1.0, 4.0]);
    /// step.launch(&[&Tensor::from([3.0f32, 4.0])])?;
    /// assert_eq!(y.to_vec::<f32>(), [9.0, 16.0]);
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    pub fn tensors(&self) -> &'a [Tensor] {
        self.tensors
    }

    /// Copies output `index` to a tensor that later launches do not change.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if there is no such output;
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    #[panicking_form]
    pub fn try_to_tensor(&self, index: usize) -> Result<Tensor> {
        self.copy_of(index).map(Tensor::from)
    }

    /// Returns the elements of output `index` in row-major order, converted to `T`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if there is no such output, or for an element that an
    /// integer type `T` cannot represent; [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    #[panicking_form]
    pub fn try_to_vec<T: ReadElement>(&self, index: usize) -> Result<Vec<T>> {
        self.copy_of(index)?.read("to_vec")
    }

    /// Returns the single element of output `index`, converted to `T`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if there is no such output, or for an element that an
    /// integer type `T` cannot represent; [`Error::NotAScalar`](crate::Error::NotAScalar) if it does not have exactly
    /// one element; [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    #[panicking_form]
    pub fn try_item<T: ReadElement>(&self, index: usize) -> Result<T> {
        Tensor::from(self.copy_of(index)?).try_item()
    }

    fn output(&self, index: usize) -> Result<&'a Tensor> {
        self.tensors.get(index).ok_or_else(|| {
            let reason = format!("the step has no output {index}; the number of outputs is {}", self.tensors.len());
            Error::invalid("launch", reason)
        })
    }

    fn copy_of(&self, index: usize) -> Result<Array> {
        let array = self.output(index)?.array();
        let copy = Array::new(array.device(), array.dtype(), array.shape().clone())?;
        run_kernel(&Kernel::Copy, &[array], &[&copy], VersionUpdate::Skip)?;
        Ok(copy)
    }
}
