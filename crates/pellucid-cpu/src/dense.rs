//! Row-major arrays with a single dtype, for kernels that support neither strides nor mixed dtypes.

use crate::operand::Operand;
use crate::program;
use pellucid_ir::{DType, Layout, Result};
use pellucid_runtime::CpuBuffer;
use pellucid_runtime::threads::SharedPtr;

/// An operand as a row-major array of a dtype: the memory of the operand if it is row-major and has this dtype,
/// otherwise a copy.
pub(crate) struct DenseArray<'a> {
    operand: Operand<'a>,
    dtype: DType,
    copy: Option<(CpuBuffer, Layout)>,
}

impl<'a> DenseArray<'a> {
    /// Creates the array of an operand. The values of a copy are unspecified.
    fn new(operand: &Operand<'a>, dtype: DType) -> Result<DenseArray<'a>> {
        let is_dense = operand.dtype == dtype && operand.layout.is_contiguous();
        let copy = || -> Result<(CpuBuffer, Layout)> {
            let buffer = CpuBuffer::scratch(operand.shape().size().saturating_mul(dtype.size()))?;
            buffer.ensure()?;
            Ok((buffer, Layout::contiguous(operand.shape().clone())))
        };
        Ok(DenseArray { operand: *operand, dtype, copy: if is_dense { None } else { Some(copy()?) } })
    }

    /// Creates the array of an input.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated.
    pub(crate) fn of_input(operand: &Operand<'a>, dtype: DType) -> Result<DenseArray<'a>> {
        let array = DenseArray::new(operand, dtype)?;
        array.copy.as_ref().map_or(Ok(()), |_| program::copy(operand, &array.operand()))?;
        Ok(array)
    }

    /// Creates the array of an output, whose values are unspecified. The caller must write all values and then call
    /// [`store`](DenseArray::store).
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated.
    pub(crate) fn of_output(operand: &Operand<'a>, dtype: DType) -> Result<DenseArray<'a>> {
        DenseArray::new(operand, dtype)
    }

    /// Writes the elements of a copy to the operand, converted to the dtype of the operand. Does nothing if the array
    /// is the operand itself.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated.
    pub(crate) fn store(&self) -> Result<()> {
        self.copy.as_ref().map_or(Ok(()), |_| program::copy(&self.operand(), &self.operand))
    }

    /// Returns the array as an operand.
    pub(crate) fn operand(&self) -> Operand<'_> {
        match &self.copy {
            Some((buffer, layout)) => {
                let base = buffer.start().expect("the memory of a copy must be allocated").as_ptr();
                Operand { base, layout, dtype: self.dtype }
            }
            None => self.operand,
        }
    }

    /// Returns a pointer to the first element. `T` must have the size of the dtype.
    pub(crate) fn first<T>(&self) -> SharedPtr<T> {
        self.operand().first()
    }
}
