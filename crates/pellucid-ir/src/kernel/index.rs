//! The elements that index tensors select.

use crate::shape::Shape;
use smallvec::SmallVec;

/// The elements that index tensors select.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Index {
    /// Index tensors for these axes (ascending), all of one shape I: the indexed array is
    /// `I ++ (shape without those axes)`.
    Axes(SmallVec<[usize; 4]>),
    /// One index tensor of the rank of the array (`take_along_axis`): its values replace the coordinate of this axis,
    /// the other coordinates stay the same. Its other axes may be shorter than those of the array.
    Along(usize),
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
    pub(super) fn tensors(&self) -> usize {
        match self {
            Index::Axes(axes) => axes.len(),
            Index::Along(_) => 1,
        }
    }
}
