//! The description of a kernel family.

use super::{Index, IndexedOperand, KernelOperand, Meta, Params};
use crate::error::{Error, Result};
use crate::formula::{Op, Program};
use crate::shape::{Overlap, Shape};
use smallvec::SmallVec;
use std::sync::Arc;

/// Shapes and dtypes of the outputs of a kernel, usually one.
pub type Metas = SmallVec<[Meta; 2]>;

/// A kernel family: the properties that the engine, the planner and printed plans need.
///
/// Each variant of [`Kernel`](super::Kernel) is a family.
pub trait Family {
    /// The name of the family in printed plans.
    const FAMILY: &'static str;

    /// Returns the name of the program or factorization, or the name of the family if there is none.
    #[inline]
    fn name(&self) -> &'static str {
        Self::FAMILY
    }

    /// Returns the properties that do not depend on shapes.
    fn info(&self) -> FamilyInfo;

    /// Returns shape and dtype of every output for these inputs. There must be at least [`FamilyInfo::inputs`] inputs.
    /// The result is empty if the caller chooses the shapes of the outputs.
    ///
    /// # Errors
    /// If shapes or dtypes of the inputs do not fit the family.
    fn infer(&self, _inputs: &[Meta]) -> Result<Metas> {
        Ok(Metas::new())
    }

    /// Checks shapes, dtypes and layouts of the operands. There must be at least [`FamilyInfo::inputs`] inputs and
    /// [`FamilyInfo::outputs`] outputs.
    ///
    /// # Errors
    /// If the kernel cannot run on them.
    fn check<O: KernelOperand>(&self, inputs: &[O], outputs: &[O]) -> Result<()>;

    /// Returns the number of arithmetic operations on values.
    ///
    /// A multiplication and an addition count as two, a function such as exp as one. Moving and converting values and
    /// generating random numbers count as 0. A [`Factorization`](super::Factorization) counts as 2/3·m·n·min(m, n) for
    /// each matrix `[m, n]` of its first input, a sort of n values as n·⌊log₂ n⌋.
    fn flops(&self, inputs: &[Meta], outputs: &[Meta]) -> u64;

    /// Returns the program that is applied to the inputs, with its parameters; `None` if there is none.
    fn program(&self) -> Option<(&Arc<Program>, &Params)> {
        None
    }

    /// Returns how the index tensors select elements, and the operand that they index; `None` for a kernel without
    /// index tensors.
    fn index(&self) -> Option<(&Index, IndexedOperand)> {
        None
    }
}

/// The properties of a kernel that do not depend on shapes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FamilyInfo {
    /// The minimum number of inputs.
    pub inputs: usize,
    /// The minimum number of outputs.
    pub outputs: usize,
    /// The number of leading outputs that the kernel also reads.
    pub state_outputs: usize,
    /// The order in which inputs are read, which decides whether an output may be stored over an input.
    pub reads: ReadOrder,
    /// Whether printed plans show the FLOPs of the kernel instead of its bytes.
    pub is_compute_bound: bool,
    /// Whether the kernel may reject values at run time, for example an index out of bounds.
    pub rejects_values: bool,
    /// Whether the outputs are undefined after a rejection, for example because an iteration did not converge. Other
    /// kernels reject values before they write.
    pub writes_before_rejection: bool,
}

impl FamilyInfo {
    /// Returns the properties of a kernel that reads its inputs in any order, only writes its outputs, is limited by
    /// memory bandwidth, and accepts all values.
    pub(super) fn new(inputs: usize, outputs: usize) -> FamilyInfo {
        FamilyInfo {
            inputs,
            outputs,
            state_outputs: 0,
            reads: ReadOrder::Anywhere,
            is_compute_bound: false,
            rejects_values: false,
            writes_before_rejection: false,
        }
    }
}

/// The order in which a kernel reads its inputs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadOrder {
    /// The kernel reads its inputs in any order, so no output may overlap an input.
    Anywhere,
    /// Each element of the inputs from index `from` on is read just before the same element of the output is written.
    /// An output may have the same storage and layout as one of these inputs.
    Elementwise {
        /// The index of the first input that is read element by element.
        from: usize,
    },
    /// Input 0 is read element by element as for [`ReadOrder::Elementwise`], the other inputs in any order. An output
    /// may have the same storage and layout as input 0.
    FirstElementwise,
}

impl ReadOrder {
    /// Returns true if input `index` is read element by element. An output may then have the same storage and layout as
    /// the input.
    pub fn is_elementwise(self, index: usize) -> bool {
        match self {
            ReadOrder::Anywhere => false,
            ReadOrder::Elementwise { from } => index >= from,
            ReadOrder::FirstElementwise => index == 0,
        }
    }

    /// Returns true if an output may overlap input `index` in the manner `overlap`. If not, the kernel could read
    /// elements that it has already overwritten.
    pub fn allows(self, index: usize, overlap: Overlap) -> bool {
        match overlap {
            Overlap::Disjoint => true,
            Overlap::Same => self.is_elementwise(index),
            Overlap::Partial => false,
        }
    }
}

/// Returns the shape to which all inputs broadcast, or an error if there is none.
pub(super) fn broadcast(op: &'static str, inputs: &[Meta]) -> Result<Shape> {
    let shapes = inputs.iter().map(|m| &m.shape);
    Shape::broadcast_all(shapes.clone()).ok_or_else(|| {
        let help =
            "shapes aligned at the last axis must have equal lengths or length 1; reshape or unsqueeze one operand";
        Error::shapes(op, shapes, help)
    })
}

/// Returns the number of arithmetic operations of a program for one element.
pub(super) fn flops_per_element(program: &Program) -> u64 {
    let counts = |op: &Op| match op {
        Op::MulAdd => 2,
        Op::Convert(_) | Op::Round(_) | Op::RowIndex => 0,
        Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Reduce(_) => 1,
    };
    program.steps.iter().map(|step| counts(&step.op)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::kernel::{Conv, ConvPart, Kernel, MatMul, Window};

    fn metas<const N: usize>(shapes: [&[usize]; N]) -> [Meta; N] {
        shapes.map(|dims| Meta { shape: Shape::from(dims), dtype: DType::F32 })
    }

    #[test]
    fn products_count_multiplications_and_additions() {
        let kernel = Kernel::MatMul(MatMul::default());
        assert_eq!(kernel.flops(&metas([&[5, 2, 3], &[3, 4]]), &metas([&[5, 2, 4]])), 2 * 5 * 2 * 3 * 4);
    }

    #[test]
    fn all_parts_of_a_convolution_do_the_same_work() {
        let window = Window { size: [1, 3, 3], stride: [1; 3], dilation: [1; 3], before: [0, 1, 1] };
        let [x, w, y] = metas([&[2, 4, 1, 8, 8], &[6, 2, 1, 3, 3], &[2, 6, 1, 8, 8]]);
        let flops = |part, inputs: [&Meta; 2], output: &Meta| {
            Kernel::Conv(Conv { window, groups: 2, part })
                .flops(&inputs.map(Clone::clone), std::slice::from_ref(output))
        };
        let expected = 2 * (2 * 6 * 8 * 8) * (2 * 9);
        assert_eq!(flops(ConvPart::Output, [&x, &w], &y), expected);
        assert_eq!(flops(ConvPart::Input, [&w, &y], &x), expected);
        assert_eq!(flops(ConvPart::Weight, [&x, &y], &w), expected);
    }
}
