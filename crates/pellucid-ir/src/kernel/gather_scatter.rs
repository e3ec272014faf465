//! The kernel families that select elements by index tensors: [`Gather`] and [`Scatter`].

use super::{Family, FamilyInfo, Index, IndexedOperand, KernelOperand, Meta, Metas};
use crate::dtype::DType;
use crate::error::Result;
use smallvec::smallvec;

/// `y = x[index]`: inputs are x and the `i64` index tensors.
///
/// An index out of bounds is rejected before any write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gather {
    /// The name of the operation that the error for an invalid index reports.
    pub op: &'static str,
    /// Whether negative indices count from the end. Otherwise they are out of bounds.
    pub from_end: bool,
    /// How the index tensors select elements.
    pub index: Index,
}

/// The operator with which a [`Scatter`] combines a value and the existing element.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ScatterOp {
    /// Replaces the element; for repeated indices the last value in row-major order is kept.
    Set,
    /// Adds the value to the element.
    Add,
    /// Multiplies the element by the value.
    Mul,
    /// Stores the maximum of the element and the value.
    Max,
    /// Stores the minimum of the element and the value.
    Min,
}

impl ScatterOp {
    /// Returns the equivalent operator for elements of type `dtype`: the sum of booleans is their maximum ("or"), and
    /// their product is their minimum ("and").
    pub fn for_dtype(self, dtype: DType) -> ScatterOp {
        match (self, dtype) {
            (ScatterOp::Add, DType::Bool) => ScatterOp::Max,
            (ScatterOp::Mul, DType::Bool) => ScatterOp::Min,
            _ => self,
        }
    }
}

/// `y[index] = reduction(y[index], values)` in place: the inputs are the values, which have the shape of the result of
/// the [`Gather`] with the same indices, and the `i64` index tensors. The output is y, which is also read.
///
/// Repeated indices accumulate in row-major order of the values. An index out of bounds is rejected before any write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scatter {
    /// The name of the operation that the error for an invalid index reports.
    pub op: &'static str,
    /// Whether negative indices count from the end. Otherwise they are out of bounds.
    pub from_end: bool,
    /// How the index tensors select elements.
    pub index: Index,
    /// How a value is combined with the element of y.
    pub reduction: ScatterOp,
}

impl Family for Gather {
    const FAMILY: &'static str = "gather";

    fn info(&self) -> FamilyInfo {
        FamilyInfo { rejects_values: true, ..FamilyInfo::new(1 + self.index.tensors(), 1) }
    }

    fn infer(&self, inputs: &[Meta]) -> Result<Metas> {
        let shape = self.index.shape(&inputs[0].shape, &inputs[1].shape);
        Ok(smallvec![Meta { shape, dtype: inputs[0].dtype }])
    }

    fn check<O: KernelOperand>(&self, inputs: &[O], outputs: &[O]) -> Result<()> {
        self.index.check(Gather::FAMILY, &inputs[0], &outputs[0], &inputs[1..])
    }

    fn flops(&self, _: &[Meta], _: &[Meta]) -> u64 {
        0
    }

    fn index(&self) -> Option<(&Index, IndexedOperand)> {
        Some((&self.index, IndexedOperand::Input))
    }
}

impl Family for Scatter {
    const FAMILY: &'static str = "scatter";

    fn info(&self) -> FamilyInfo {
        FamilyInfo { state_outputs: 1, rejects_values: true, ..FamilyInfo::new(1 + self.index.tensors(), 1) }
    }

    fn check<O: KernelOperand>(&self, inputs: &[O], outputs: &[O]) -> Result<()> {
        self.index.check(Scatter::FAMILY, &outputs[0], &inputs[0], &inputs[1..])
    }

    fn flops(&self, inputs: &[Meta], _: &[Meta]) -> u64 {
        inputs.first().map_or(0, Meta::elements)
    }

    fn index(&self) -> Option<(&Index, IndexedOperand)> {
        Some((&self.index, IndexedOperand::Output))
    }
}
