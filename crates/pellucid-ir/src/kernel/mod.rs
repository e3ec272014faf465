//! The kernel families: the only things that a backend implements.
//!
//! A family is a shape rule and a meaning; operations choose a family and its arguments. Keep them
//! inline_vec: a new one needs a reason in its documentation.

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

/// Run-time parameters of a program. They are arguments: a new value never makes a new program.
pub type Params = InlineVec<Scalar, 2>;

/// A set of axes, bit k for axis k.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct AxisSet(pub u64);

impl AxisSet {
    /// The highest rank of which a set of axes can speak.
    pub const MAX_RANK: usize = 64;

    /// Axes 0..rank.
    pub fn all(rank: usize) -> AxisSet {
        AxisSet(if rank >= 64 { u64::MAX } else { (1 << rank) - 1 })
    }

    /// True if `axis` is in the set.
    #[inline]
    pub fn contains(self, axis: usize) -> bool {
        axis < 64 && self.0 >> axis & 1 == 1
    }

    /// Adds `axis`.
    pub fn insert(&mut self, axis: usize) {
        self.0 |= 1 << axis;
    }

    /// The axes, ascending.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..64).filter(move |&a| self.contains(a))
    }

    /// `shape` with every axis of the set shortened to 1.
    pub fn keepdims(self, shape: &Shape) -> Shape {
        shape.iter().enumerate().map(|(a, &d)| if self.contains(a) { 1 } else { d }).collect()
    }

    /// `shape` without the axes of the set.
    pub fn remove(self, shape: &Shape) -> Shape {
        shape.iter().enumerate().filter(|(a, _)| !self.contains(*a)).map(|(_, &d)| d).collect()
    }

    /// The product of the lengths of the axes of the set.
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

/// One kernel: a family with its arguments. Shapes, strides and dtypes travel beside it, as views.
#[derive(Clone, Debug, PartialEq)]
pub enum Kernel {
    /// A program over broadcast strided inputs. An output may be the very view of an input.
    Map(Map),
    /// A program, reduced over axes, and a program on the result.
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
    /// The elements of an axis in order, and where they came from.
    Sort(Sort),
    /// A decomposition of matrices, or what is solved with one.
    Factor(Factor),
    /// A recurrent layer over time, or its gradient.
    Recurrent(Recurrent),
    /// What queries find at keys, or its gradient.
    Attention(Attention),
    /// Random numbers from a counter.
    Random(Random),
    /// The same values in another layout or dtype.
    Copy,
}

/// `outputs = program(inputs; params)`, element by element.
///
/// Inputs broadcast to the shape of the outputs by NumPy's rule; all outputs have that shape.
/// The program is not a row program.
#[derive(Clone, Debug, PartialEq)]
pub struct Map {
    /// What is computed.
    pub program: Arc<Program>,
    /// Its run-time parameters.
    pub params: Params,
}

/// What a [`Reduce`] does with the values it meets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ReduceOp {
    /// Σ; of an empty set 0.
    Sum,
    /// Π; of an empty set 1.
    Prod,
    /// The largest, NaN if there is one.
    Max,
    /// The smallest, NaN if there is one.
    Min,
    /// The flat position (row-major over the reduced axes) of the first maximum; NaN wins.
    ArgMax,
    /// The flat position of the first minimum; NaN wins.
    ArgMin,
    /// True if any is; of an empty set false. Takes masks.
    Any,
    /// True if all are; of an empty set true. Takes masks.
    All,
}

/// `output = finish(op over axes of program(inputs; params); finish_params)`.
///
/// Inputs broadcast to a common shape; the output has that shape with the reduced axes of length 1.
/// The order of accumulation is a function of that shape and the axes alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Reduce {
    /// What is done with the values.
    pub op: ReduceOp,
    /// Over which axes of the broadcast shape.
    pub axes: AxisSet,
    /// The value of one element; one output, in whose *compute type* is accumulated
    /// (its storage dtype says nothing).
    pub program: Arc<Program>,
    /// Its run-time parameters.
    pub params: Params,
    /// A program of one input (of the accumulator's type; `i64` for positions) on each result.
    pub finish: Option<Arc<Program>>,
    /// Its run-time parameters.
    pub finish_params: Params,
    /// The dtype of the output.
    pub output: DType,
}

/// A program with row reductions; the rows run over `axes`.
///
/// Full inputs broadcast to the common shape; inputs and outputs that are *per row* have length 1
/// along `axes`. A row's elements are taken in row-major order over `axes`.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The axes that make up a row.
    pub axes: AxisSet,
    /// What is computed.
    pub program: Arc<Program>,
    /// Its run-time parameters.
    pub params: Params,
}

/// What a [`Scan`] accumulates.
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
    /// ln Σ exp, stable.
    LogSumExp,
}

/// `y[i] = op(x[0], .., x[i])` along one axis (from the other end if `reverse`), strictly in order. Sums and products
/// accumulate in a type with more bits than `f32` has; each element is rounded once.
///
/// One input; outputs of its shape: the values, in its dtype, and for `Max` and `Min` the `i64`
/// positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scan {
    /// What is accumulated.
    pub op: ScanOp,
    /// Along which axis.
    pub axis: usize,
    /// From the last element to the first.
    pub reverse: bool,
}

/// `C[.., i, j] = Σₖ A[.., i, k]·B[.., k, j]`, then the epilogue.
///
/// A is `[batch.., m, k]`, B `[batch.., k, n]`, batch axes broadcast, any strides. A, B and the
/// product have one dtype. The order of accumulation depends on m, n and k alone.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct MatMul {
    /// A program whose first input is the product and whose others are further inputs of the
    /// kernel, broadcast to the output's shape; it is applied to the finished accumulator.
    pub epilogue: Option<Arc<Program>>,
    /// Its run-time parameters.
    pub params: Params,
}

/// Which elements an index means.
#[derive(Clone, Debug, PartialEq)]
pub enum Index {
    /// Index tensors for these axes (ascending), all of one shape I: the indexed array is
    /// `I ++ (shape without those axes)`.
    Axes(SmallVec<[usize; 4]>),
    /// One index tensor of the rank of the array: its values replace the coordinate of this axis
    /// and the others are its own (`take_along_axis`); its other axes may be shorter.
    Along(usize),
}

/// `y = x[index]`: inputs are x and the `i64` index tensors.
///
/// Negative indices count from the end; one out of bounds is an error, found before any write.
#[derive(Clone, Debug, PartialEq)]
pub struct Gather {
    /// Which elements.
    pub index: Index,
}

/// How a [`Scatter`] combines a value with what is there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Combine {
    /// Replaces it; among repeated indices the last in row-major order stays.
    Set,
    /// Adds to it.
    Add,
    /// Multiplies it.
    Mul,
    /// Keeps the larger.
    Max,
    /// Keeps the smaller.
    Min,
}

/// `y[index] = combine(y[index], values)` in place: inputs are the values (of the shape that
/// [`Gather`] would give) and the `i64` index tensors; the output is y, which is also read.
///
/// Repeated indices accumulate in row-major order of the values. Bounds as in [`Gather`].
#[derive(Clone, Debug, PartialEq)]
pub struct Scatter {
    /// Which elements.
    pub index: Index,
    /// How values meet.
    pub combine: Combine,
}

/// The first `k` elements of an axis in ascending or descending order; stable. NaN is the largest: last in
/// ascending order, first in descending order.
///
/// One input; outputs: values in its dtype and `i64` positions, with `axis` of length `k`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sort {
    /// Along which axis.
    pub axis: usize,
    /// Largest first.
    pub descending: bool,
    /// How many to keep; the axis's length for all.
    pub k: usize,
}

/// What a [`Random`] kernel draws.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Distribution {
    /// Uniform on [0, 1): the upper 24 bits of a draw (f64: 53, f16: 11, bf16: 8), scaled; as many as the
    /// dtype holds, so that nothing rounds to 1.
    Uniform,
    /// Standard normal, by the Box–Muller transform (1958).
    Normal,
    /// Uniform over all bit patterns of an integer dtype, or over both truth values.
    Bits,
}

/// Random numbers from Philox 4×32-10 (Salmon et al. 2011): the same on every device and for every
/// number of threads.
///
/// No inputs. The first output is the generator's state, `i64 [2]` = (key, counter), read and
/// advanced by ⌈n/4⌉ draws (f64 and i64: ⌈n/2⌉), even if nobody uses the numbers; the second
/// receives the numbers, in row-major order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Random {
    /// What is drawn.
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
    /// The family's name.
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

    /// The name of its program or factorisation, or of the family where it has none.
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
