//! The kernel families that index: [`Gather`] and [`Scatter`].

use super::{Family, FamilyInfo, Meta, Metas, ReadOrder};
use crate::error::Result;
use crate::shape::Shape;
use smallvec::{SmallVec, smallvec};

/// The elements that index tensors select.
#[derive(Clone, Debug, PartialEq)]
pub enum Index {
    /// Index tensors for these axes (ascending), all of one shape I: the indexed array is
    /// `I ++ (shape without those axes)`.
    Axes(SmallVec<[usize; 4]>),
    /// One index tensor of the rank of the array (`take_along_axis`): its values replace the coordinate of this axis,
    /// the other coordinates stay the same. Its other axes may be shorter than those of the array.
    Along(usize),
}

/// `y = x[index]`: inputs are x and the `i64` index tensors.
///
/// Negative indices count from the end. An index out of bounds is an error, which is detected before any write.
#[derive(Clone, Debug, PartialEq)]
pub struct Gather {
    /// The selected elements.
    pub index: Index,
}

/// The operator with which a [`Scatter`] combines a value and the existing element.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ScatterReduction {
    /// Replaces the element; for repeated indices the last value in row-major order stays.
    Set,
    /// Adds the value.
    Add,
    /// Multiplies by the value.
    Mul,
    /// Stores the maximum.
    Max,
    /// Stores the minimum.
    Min,
}

/// `y[index] = reduction(y[index], values)` in place: inputs are the values (of the shape that [`Gather`] returns) and
/// the `i64` index tensors; the output is y, which is also read.
///
/// Repeated indices accumulate in row-major order of the values. Bounds as in [`Gather`].
#[derive(Clone, Debug, PartialEq)]
pub struct Scatter {
    /// The selected elements.
    pub index: Index,
    /// The operator.
    pub reduction: ScatterReduction,
}

/// The operand that a kernel indexes. Its index tensors are the inputs from 1 on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IndexedOperand {
    /// The first input: the kernel reads the selected elements only.
    Input,
    /// The first output: the kernel changes the selected elements only.
    Output,
}

impl Index {
    /// Returns the shape of `x[index]` for x of shape `array` and index tensors of shape `index`.
    pub fn shape(&self, array: &Shape, index: &Shape) -> Shape {
        match self {
            Index::Axes(axes) => {
                let rest = (0..array.rank()).filter(|a| !axes.contains(a)).map(|a| array[a]);
                index.iter().copied().chain(rest).collect()
            }
            Index::Along(_) => index.clone(),
        }
    }

    /// Returns the number of index tensors.
    fn tensors(&self) -> usize {
        match self {
            Index::Axes(axes) => axes.len(),
            Index::Along(_) => 1,
        }
    }
}

impl Family for Gather {
    const FAMILY: &'static str = "gather";

    fn info(&self) -> FamilyInfo {
        let inputs = 1 + self.index.tensors();
        FamilyInfo {
            inputs,
            outputs: 1,
            state_outputs: 0,
            reads: ReadOrder::Anywhere,
            is_compute_bound: false,
            refuses_values: true,
        }
    }

    fn infer(&self, inputs: &[Meta]) -> Result<Metas> {
        let shape = self.index.shape(&inputs[0].shape, &inputs[1].shape);
        Ok(smallvec![Meta { shape, dtype: inputs[0].dtype }])
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
        let inputs = 1 + self.index.tensors();
        FamilyInfo {
            inputs,
            outputs: 1,
            state_outputs: 1,
            reads: ReadOrder::Anywhere,
            is_compute_bound: false,
            refuses_values: true,
        }
    }

    /// The caller chooses the shape of the output.
    fn infer(&self, _: &[Meta]) -> Result<Metas> {
        Ok(Metas::new())
    }

    fn flops(&self, inputs: &[Meta], _: &[Meta]) -> u64 {
        inputs.first().map_or(0, Meta::elements)
    }

    fn index(&self) -> Option<(&Index, IndexedOperand)> {
        Some((&self.index, IndexedOperand::Output))
    }
}
