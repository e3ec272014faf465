//! The kernel family [`Search`]: binary search in sorted rows.

use super::{Family, FamilyInfo, KernelOperand, Meta, Metas};
use crate::dtype::DType;
use crate::error::{Error, Result};
use smallvec::smallvec;

/// The number of elements of a sorted row that are less than a value, or with `right`, not greater than it. NaN is
/// the largest: the result for a NaN value is the length of the row.
///
/// The inputs are the sorted rows `[.., L]` and the values `[.., M]`, of one dtype. The leading axes are equal, or the
/// first input is one row `[L]` for values of any shape. The output has the shape of the values and dtype `i64`.
///
/// It is a family of its own because each step of a search reads an element that depends on the step before.
///
/// A row of n elements is searched in ⌊log₂ n⌋ + 1 steps. From the position `low` = 0 and `count` = n, each step
/// compares the value with element `low` + h − 1, h = ⌈`count`/2⌉, adds h to `low` if the element precedes the value,
/// and halves `count`, rounded down. So the result for a row that is not sorted is defined as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Search {
    /// Whether elements that equal the value are counted.
    pub right: bool,
}

impl Family for Search {
    const FAMILY: &'static str = "search";

    fn info(&self) -> FamilyInfo {
        FamilyInfo::new(2, 1)
    }

    fn infer(&self, inputs: &[Meta]) -> Result<Metas> {
        Ok(smallvec![Meta { shape: inputs[1].shape.clone(), dtype: DType::I64 }])
    }

    fn check<O: KernelOperand>(&self, inputs: &[O], outputs: &[O]) -> Result<()> {
        let (sorted, values, y) = (&inputs[0], &inputs[1], &outputs[0]);
        let fits = match sorted.shape().dims() {
            [] => false,
            [_] => true,
            [leading @ .., _] => values.shape().split_last().is_some_and(|(_, own)| own == leading),
        };
        if !fits || y.shape() != values.shape() {
            let rule = "the sorted rows must be one vector, or have the leading axes of the values; the output must have \
                        the shape of the values";
            return Err(Error::shapes(Self::FAMILY, [sorted.shape(), values.shape(), y.shape()], rule));
        }
        if sorted.dtype() != values.dtype() || y.dtype() != DType::I64 {
            let dtypes = [sorted.dtype(), values.dtype(), y.dtype()];
            let rule = "sorted rows and values must have the same dtype, and the output must be i64";
            return Err(Error::dtypes(Self::FAMILY, dtypes, rule));
        }
        Ok(())
    }

    /// Counts ⌊log₂ n⌋ + 1 comparisons for each value, where n is the length of a row.
    fn flops(&self, inputs: &[Meta], outputs: &[Meta]) -> u64 {
        let len = inputs.first().and_then(|sorted| sorted.shape.last().copied()).unwrap_or(0);
        let steps = u64::from(usize::BITS - len.leading_zeros());
        steps * outputs.first().map_or(0, Meta::elements)
    }
}
