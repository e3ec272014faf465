//! The kernel family [`Sort`]: the first elements of an axis in sorted order.

use super::operand::resize_axis;
use super::{Family, FamilyInfo, KernelOperand, Meta, Metas};
use crate::dtype::DType;
use crate::error::{Error, Result};
use smallvec::smallvec;

/// The first `k` elements along an axis in ascending or descending order. The sort is stable. NaN is the largest: last
/// in ascending order, first in descending order.
///
/// There is one input. The outputs are the values, in the dtype of the input, and their `i64` indices in the input;
/// both have length `k` along `axis`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sort {
    /// The axis that is sorted.
    pub axis: usize,
    /// Whether the largest element comes first.
    pub descending: bool,
    /// The number of elements to keep, at most the length of the axis.
    pub k: usize,
}

impl Family for Sort {
    const FAMILY: &'static str = "sort";

    fn info(&self) -> FamilyInfo {
        FamilyInfo::new(1, 2)
    }

    fn infer(&self, inputs: &[Meta]) -> Result<Metas> {
        let shape = resize_axis("sort", &inputs[0].shape, self.axis, self.k)?;
        Ok(smallvec![Meta { shape: shape.clone(), dtype: inputs[0].dtype }, Meta { shape, dtype: DType::I64 }])
    }

    fn check<O: KernelOperand>(&self, inputs: &[O], outputs: &[O]) -> Result<()> {
        let (x, y, positions) = (&inputs[0], &outputs[0], &outputs[1]);
        let (shape, axis, k) = (x.shape(), self.axis, self.k);
        let fits = axis < shape.rank()
            && k <= shape[axis]
            && *y.shape() == shape.with_axis(axis, k)
            && positions.shape() == y.shape();
        if !fits {
            let rule = format!(
                "values and positions must have length k = {k} along axis {axis}, and k must be at most the input's length"
            );
            return Err(Error::shapes("sort", [shape, y.shape(), positions.shape()], rule));
        }
        if y.dtype() != x.dtype() || positions.dtype() != DType::I64 {
            let dtypes = [x.dtype(), y.dtype(), positions.dtype()];
            return Err(Error::dtypes("sort", dtypes, "values must have the input's dtype, and positions must be i64"));
        }
        Ok(())
    }

    /// Counts n·⌊log₂ n⌋ comparisons, where n is the number of elements of the input.
    fn flops(&self, inputs: &[Meta], _: &[Meta]) -> u64 {
        let elements = inputs.first().map_or(0, Meta::elements);
        elements * u64::from(elements.max(1).ilog2())
    }
}
