//! The kernel families, which are all that a backend implements.
//!
//! A family has a shape rule and a definition; operations choose a family and its arguments. The number of families
//! stays small: the documentation of each specialised family contains the reason why it is separate.

mod attention;
mod factor;
mod infer;
mod recurrent;
mod window;
mod work;

pub use attention::{Attention, AttentionPart, AttentionSizes};
pub use factor::{Factor, Vectors};
pub use infer::Metas;
pub use recurrent::{Cell, Recurrent, RecurrentPart, RecurrentSizes};
pub use window::{Conv, ConvPart, Pool, Window};

use crate::dtype::{DType, Scalar};
use crate::formula::Program;
use crate::inline_vec::InlineVec;
use crate::shape::Shape;
use smallvec::SmallVec;
use std::sync::Arc;

/// Run-time parameters of a program. They are arguments, so a new value needs no new program.
pub type Params = InlineVec<Scalar, 2>;

/// A set of axes, bit k for axis k.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct AxisSet(pub u64);

impl AxisSet {
    /// The highest rank that a set of axes supports.
    pub const MAX_RANK: usize = 64;

    /// Returns the set of the axes 0..rank.
    pub fn all(rank: usize) -> AxisSet {
        AxisSet(if rank >= 64 { u64::MAX } else { (1 << rank) - 1 })
    }

    /// Returns true if `axis` is in the set.
    #[inline]
    pub fn contains(self, axis: usize) -> bool {
        axis < 64 && self.0 >> axis & 1 == 1
    }

    /// Adds `axis`.
    pub fn insert(&mut self, axis: usize) {
        self.0 |= 1 << axis;
    }

    /// Iterates over the axes, ascending.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..64).filter(move |&a| self.contains(a))
    }

    /// Returns `shape` with length 1 for every axis of the set.
    pub fn keepdims(self, shape: &Shape) -> Shape {
        shape.iter().enumerate().map(|(a, &d)| if self.contains(a) { 1 } else { d }).collect()
    }

    /// Returns `shape` without the axes of the set.
    pub fn remove(self, shape: &Shape) -> Shape {
        shape.iter().enumerate().filter(|(a, _)| !self.contains(*a)).map(|(_, &d)| d).collect()
    }

    /// Returns the product of the lengths of the axes of the set.
    pub fn count(self, shape: &Shape) -> usize {
        shape.iter().enumerate().filter(|(a, _)| self.contains(*a)).map(|(_, &d)| d).product()
    }
}

impl FromIterator<usize> for AxisSet {
    fn from_iter<I: IntoIterator<Item = usize>>(iter: I) -> AxisSet {
        let mut set = AxisSet::default();
        iter.into_iter().for_each(|a| set.insert(a));
        set
    }
}

/// One kernel: a family with its arguments. Shapes, strides and dtypes are passed separately, as views.
#[derive(Clone, Debug, PartialEq)]
pub enum Kernel {
    /// A program over broadcast strided inputs. An output may be the same view as an input.
    Map(Map),
    /// A reduction over axes, with a program on its inputs and one on its result.
    Reduce(Reduce),
    /// A program with row reductions among its steps.
    Row(Row),
    /// A running reduction along one axis.
    Scan(Scan),
    /// A batched matrix product.
    MatMul(MatMul),
    /// A convolution, or one of its derivatives.
    Conv(Conv),
    /// The largest element of each window.
    Pool(Pool),
    /// Elements picked by integer indices.
    Gather(Gather),
    /// Elements written or accumulated at integer indices.
    Scatter(Scatter),
    /// The sorted elements of an axis, and their original positions.
    Sort(Sort),
    /// A matrix factorisation, or the solution of equations with one.
    Factor(Factor),
    /// A recurrent layer over time, or its gradient.
    Recurrent(Recurrent),
    /// Scaled dot-product attention, or its gradient.
    Attention(Attention),
    /// Random numbers from a counter-based generator.
    Random(Random),
    /// A copy of the values into another layout or dtype.
    Copy,
}

/// `outputs = program(inputs; params)`, element by element.
///
/// Inputs broadcast to the shape of the outputs by NumPy's rule; all outputs have that shape.
/// The program is not a row program.
#[derive(Clone, Debug, PartialEq)]
pub struct Map {
    /// The program.
    pub program: Arc<Program>,
    /// The run-time parameters of the program.
    pub params: Params,
}

/// The reduction operator of a [`Reduce`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ReduceOp {
    /// The sum; 0 for an empty set.
    Sum,
    /// The product; 1 for an empty set.
    Prod,
    /// The largest element; NaN if an element is NaN.
    Max,
    /// The smallest element; NaN if an element is NaN.
    Min,
    /// The flat position (row-major over the reduced axes) of the first maximum, or of the first NaN.
    ArgMax,
    /// The flat position of the first minimum, or of the first NaN.
    ArgMin,
    /// True if any value is true; false for an empty set. The values are masks.
    Any,
    /// True if all values are true; true for an empty set. The values are masks.
    All,
}

/// `output = finish(op over axes of program(inputs; params); finish_params)`.
///
/// Inputs broadcast to a common shape; the output has that shape with the reduced axes of length 1.
/// The order of accumulation is a function of that shape and the axes alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Reduce {
    /// The reduction operator.
    pub op: ReduceOp,
    /// The reduced axes of the broadcast shape.
    pub axes: AxisSet,
    /// The program for one element. It has one output; the accumulator has its *compute type*, and its storage dtype is
    /// ignored.
    pub program: Arc<Program>,
    /// The run-time parameters of the program.
    pub params: Params,
    /// A program with one input, applied to each result. The input has the accumulator's type, or `i64` for positions.
    pub finish: Option<Arc<Program>>,
    /// The run-time parameters of `finish`.
    pub finish_params: Params,
    /// The dtype of the output.
    pub output: DType,
}

/// A program with row reductions; the rows run over `axes`.
///
/// Inputs broadcast to the common shape; inputs and outputs that are *per row* have length 1 along `axes`. The
/// elements of a row are in row-major order over `axes`.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The axes that make up a row.
    pub axes: AxisSet,
    /// The program.
    pub program: Arc<Program>,
    /// The run-time parameters of the program.
    pub params: Params,
}

/// The operator of a [`Scan`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ScanOp {
    /// Running sum.
    Sum,
    /// Running product.
    Prod,
    /// Running maximum; a second output holds its positions (the last among equals, as PyTorch).
    Max,
    /// Running minimum; a second output holds its positions (the last among equals, as PyTorch).
    Min,
    /// Running ln Σ exp, numerically stable.
    LogSumExp,
}

/// `y[i] = op(x[0], .., x[i])` along one axis, strictly in order; with `reverse` from the last element to the first.
/// Sums and products accumulate with more bits than `f32` has; each element is rounded once.
///
/// One input; outputs of its shape: the values, in its dtype, and for `Max` and `Min` the `i64`
/// positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scan {
    /// The operator.
    pub op: ScanOp,
    /// The axis of the scan.
    pub axis: usize,
    /// The scan runs from the last element to the first.
    pub reverse: bool,
}

/// `C[.., i, j] = Σₖ A[.., i, k]·B[.., k, j]`, then the epilogue.
///
/// A is `[batch.., m, k]`, B `[batch.., k, n]`, batch axes broadcast, any strides. A, B and the
/// product have one dtype. The order of accumulation depends on m, n and k alone.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct MatMul {
    /// A program that is applied to the finished accumulator. Its first input is the product; the others are further
    /// inputs of the kernel, broadcast to the shape of the output.
    pub epilogue: Option<Arc<Program>>,
    /// The run-time parameters of the epilogue.
    pub params: Params,
}

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
pub enum Combine {
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

/// `y[index] = combine(y[index], values)` in place: inputs are the values (of the shape that [`Gather`] returns) and
/// the
/// `i64` index tensors; the output is y, which is also read.
///
/// Repeated indices accumulate in row-major order of the values. Bounds as in [`Gather`].
#[derive(Clone, Debug, PartialEq)]
pub struct Scatter {
    /// The selected elements.
    pub index: Index,
    /// The operator.
    pub combine: Combine,
}

/// The first `k` elements of an axis in ascending or descending order; stable. NaN is the largest: last in
/// ascending order, first in descending order.
///
/// One input; outputs: values in its dtype and `i64` positions, with `axis` of length `k`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sort {
    /// The axis that is sorted.
    pub axis: usize,
    /// The largest element comes first.
    pub descending: bool,
    /// The number of elements to keep; the length of the axis for all.
    pub k: usize,
}

/// The distribution of a [`Random`] kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Distribution {
    /// Uniform on [0, 1): the upper 24 bits of a draw (f64: 53, f16: 11, bf16: 8), scaled. The dtype represents these
    /// exactly, so no number rounds to 1.
    Uniform,
    /// Standard normal, by the Box–Muller transform (1958).
    Normal,
    /// Uniform over all values of an integer dtype, or over both booleans.
    Bits,
}

/// Random numbers from Philox 4×32-10 (Salmon et al. 2011): the same on every device and for every
/// number of threads.
///
/// No inputs. The first output is the generator's state, `i64 [2]` = (key, counter), read and
/// advanced by ⌈n/4⌉ draws (f64 and i64: ⌈n/2⌉), even if the numbers are unused. The second
/// receives the numbers, in row-major order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Random {
    /// The distribution.
    pub distribution: Distribution,
}

/// Shape and dtype of an array.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Meta {
    /// The length of every axis.
    pub shape: Shape,
    /// The type of every element.
    pub dtype: DType,
}

impl Kernel {
    /// Returns the name of the family.
    #[inline]
    pub fn family(&self) -> &'static str {
        match self {
            Kernel::Map(_) => "map",
            Kernel::Reduce(_) => "reduce",
            Kernel::Row(_) => "row",
            Kernel::Scan(_) => "scan",
            Kernel::MatMul(_) => "matmul",
            Kernel::Conv(_) => "conv",
            Kernel::Pool(_) => "pool",
            Kernel::Gather(_) => "gather",
            Kernel::Scatter(_) => "scatter",
            Kernel::Sort(_) => "sort",
            Kernel::Factor(_) => "factor",
            Kernel::Recurrent(_) => "recurrent",
            Kernel::Attention(_) => "attention",
            Kernel::Random(_) => "random",
            Kernel::Copy => "copy",
        }
    }

    /// Returns the name of the program or factorisation, or that of the family if there is none.
    #[inline]
    pub fn name(&self) -> &'static str {
        match self {
            Kernel::Map(k) => k.program.name,
            Kernel::Reduce(k) => k.program.name,
            Kernel::Row(k) => k.program.name,
            Kernel::Factor(k) => k.name(),
            other => other.family(),
        }
    }
}
