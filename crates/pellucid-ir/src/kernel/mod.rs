//! The kernel families: the computations that a backend implements.
//!
//! A family consists of a shape rule and a definition; operations choose a family and its arguments. The number of
//! families stays small: the documentation of each specialized family contains the reason why it is separate.

mod attention;
mod axes;
mod conv;
mod copy;
mod factorization;
mod family;
mod gather_scatter;
mod index;
mod map;
mod matmul;
mod max_pool;
mod operand;
mod random;
mod recurrent;
mod reduce;
mod row;
mod scan;
mod search;
mod sort;
mod sparse;
mod window;

pub use attention::{Attention, AttentionPart, AttentionSizes};
pub use axes::AxisSet;
pub use conv::{Conv, ConvPart};
pub use copy::CopyValues;
pub use factorization::{Factorization, SvdVectors};
pub use family::{Family, FamilyInfo, Metas, ReadOrder};
pub use gather_scatter::{Gather, Scatter, ScatterOp};
pub use index::{Index, IndexedOperand};
pub use map::Map;
pub use matmul::MatMul;
pub use max_pool::{Pool, PoolPart, PoolWindows};
pub use operand::{KernelOperand, common_shape, metas};
pub use random::{Distribution, Random};
pub use recurrent::{
    GateBlock, Recurrent, RecurrentGradientOperands, RecurrentPart, RecurrentSizes, RecurrentStateOperands, RnnMode,
};
pub use reduce::{Reduce, ReduceOp};
pub use row::Row;
pub use scan::{Scan, ScanOp};
pub use search::Search;
pub use sort::Sort;
pub use sparse::SparseProduct;
pub use window::{Window, adaptive_window};

use crate::dtype::{DType, Scalar};
use crate::error::{Error, Result};
use crate::formula::Program;
use crate::inline_vec::InlineVec;
use crate::shape::Shape;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// Run-time parameters of a program. They are arguments of a kernel, so a new value needs no new program.
pub type Params = InlineVec<Scalar, 2>;

/// One kernel: a family with its arguments. Shapes, strides and dtypes are passed separately, as views.
#[derive(Clone, Debug, PartialEq, Hash)]
pub enum Kernel {
    /// A program over broadcast strided inputs. An output may have the same storage and layout as an input.
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
    /// The largest element of each window, or the gradient of this operation.
    Pool(Pool),
    /// Elements selected by integer indices.
    Gather(Gather),
    /// Elements written or accumulated at integer indices.
    Scatter(Scatter),
    /// The sorted elements of an axis, and their original indices.
    Sort(Sort),
    /// The positions of values in sorted rows.
    Search(Search),
    /// A product of a sparse matrix and the lines of an array along an axis.
    SparseProduct(SparseProduct),
    /// A matrix factorization, a computation with factors, or the matrix exponential.
    Factorization(Factorization),
    /// A recurrent layer over time, or its gradient.
    Recurrent(Recurrent),
    /// Scaled dot-product attention, or its gradient.
    Attention(Attention),
    /// Random numbers from a counter-based generator.
    Random(Random),
    /// A copy of the values into another layout or dtype.
    Copy,
}

/// Shape and dtype of an array.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Meta {
    /// The length of every axis.
    pub shape: Shape,
    /// The type of every element.
    pub dtype: DType,
}

impl Meta {
    /// Returns the number of elements.
    pub fn elements(&self) -> u64 {
        self.shape.size() as u64
    }
}

/// Evaluates an expression with a name bound to the family of a [`Kernel`](crate::kernel::Kernel). This is the only
/// match over all families; backends use it too.
#[macro_export]
macro_rules! with_family {
    ($kernel:expr, $family:ident => $e:expr) => {
        match $kernel {
            $crate::kernel::Kernel::Map($family) => $e,
            $crate::kernel::Kernel::Reduce($family) => $e,
            $crate::kernel::Kernel::Row($family) => $e,
            $crate::kernel::Kernel::Scan($family) => $e,
            $crate::kernel::Kernel::MatMul($family) => $e,
            $crate::kernel::Kernel::Conv($family) => $e,
            $crate::kernel::Kernel::Pool($family) => $e,
            $crate::kernel::Kernel::Gather($family) => $e,
            $crate::kernel::Kernel::Scatter($family) => $e,
            $crate::kernel::Kernel::Sort($family) => $e,
            $crate::kernel::Kernel::Search($family) => $e,
            $crate::kernel::Kernel::SparseProduct($family) => $e,
            $crate::kernel::Kernel::Factorization($family) => $e,
            $crate::kernel::Kernel::Recurrent($family) => $e,
            $crate::kernel::Kernel::Attention($family) => $e,
            $crate::kernel::Kernel::Random($family) => $e,
            $crate::kernel::Kernel::Copy => {
                let $family = &$crate::kernel::CopyValues;
                $e
            }
        }
    };
}

impl Kernel {
    /// Calls `f` with every run-time parameter of the kernel's programs, in a fixed order.
    pub fn each_param(&mut self, f: &mut dyn FnMut(&mut Scalar)) {
        let (first, second) = match self {
            Kernel::Map(map) => (&mut map.params, None),
            Kernel::Row(row) => (&mut row.params, None),
            Kernel::MatMul(matmul) => (&mut matmul.params, None),
            Kernel::Reduce(reduce) => (&mut reduce.params, Some(&mut reduce.finish_params)),
            _ => return,
        };
        first.iter_mut().chain(second.into_iter().flat_map(|params| params.iter_mut())).for_each(f);
    }

    /// Returns the run-time parameters of the kernel's programs, in the order of [`each_param`](Kernel::each_param).
    pub fn params(&self) -> [&[Scalar]; 2] {
        match self {
            Kernel::Map(map) => [&map.params, &[]],
            Kernel::Row(row) => [&row.params, &[]],
            Kernel::MatMul(matmul) => [&matmul.params, &[]],
            Kernel::Reduce(reduce) => [&reduce.params, &reduce.finish_params],
            _ => [&[], &[]],
        }
    }

    /// Returns the kernel's programs, each with its run-time parameters.
    #[inline]
    fn programs(&self) -> [Option<(&Program, &[Scalar])>; 2] {
        match self {
            Kernel::Map(map) => [Some((&map.program, &map.params)), None],
            Kernel::Row(row) => [Some((&row.program, &row.params)), None],
            Kernel::MatMul(matmul) => [matmul.epilogue.as_deref().map(|epilogue| (epilogue, &matmul.params[..])), None],
            Kernel::Reduce(reduce) => {
                let finish = reduce.finish.as_deref().map(|finish| (finish, &reduce.finish_params[..]));
                [Some((&reduce.program, &reduce.params)), finish]
            }
            _ => [None, None],
        }
    }

    /// Returns true if two kernels are equal except for the values of their run-time parameters.
    pub fn structure_eq(&self, other: &Kernel) -> bool {
        match (self, other) {
            (Kernel::Map(a), Kernel::Map(b)) => a.structure() == b.structure(),
            (Kernel::Row(a), Kernel::Row(b)) => a.structure() == b.structure(),
            (Kernel::MatMul(a), Kernel::MatMul(b)) => a.structure() == b.structure(),
            (Kernel::Reduce(a), Kernel::Reduce(b)) => a.structure() == b.structure(),
            _ => self == other,
        }
    }

    /// Hashes everything that [`structure_eq`](Kernel::structure_eq) compares.
    pub fn hash_structure(&self, state: &mut impl Hasher) {
        std::mem::discriminant(self).hash(state);
        match self {
            Kernel::Map(map) => map.structure().hash(state),
            Kernel::Row(row) => row.structure().hash(state),
            Kernel::MatMul(matmul) => matmul.structure().hash(state),
            Kernel::Reduce(reduce) => reduce.structure().hash(state),
            other => other.hash(state),
        }
    }

    /// Returns the name of the family.
    #[inline]
    pub fn family(&self) -> &'static str {
        fn family_name<F: Family>(_: &F) -> &'static str {
            F::FAMILY
        }
        with_family!(self, family => family_name(family))
    }

    /// Returns the name of the program or factorization, or the name of the family if there is none.
    #[inline]
    pub fn name(&self) -> &'static str {
        with_family!(self, family => family.name())
    }

    /// Returns the properties that do not depend on shapes.
    #[inline]
    pub fn info(&self) -> FamilyInfo {
        with_family!(self, family => family.info())
    }

    /// Returns shape and dtype of every output for these inputs: see [`Family::infer`].
    ///
    /// # Errors
    /// If there are too few inputs, or their shapes or dtypes do not fit the family.
    pub fn infer(&self, inputs: &[Meta]) -> Result<Metas> {
        self.check_count(self.info().inputs, inputs.len(), "inputs")?;
        with_family!(self, family => family.infer(inputs))
    }

    /// Checks shapes, dtypes and layouts of the operands: see [`Family::check`].
    ///
    /// # Errors
    /// If there are too few operands or run-time parameters, or the kernel cannot run on the operands.
    #[inline]
    pub fn check<O: KernelOperand>(&self, inputs: &[O], outputs: &[O]) -> Result<()> {
        let info = self.info();
        self.check_count(info.inputs, inputs.len(), "inputs")?;
        self.check_count(info.outputs, outputs.len(), "outputs")?;
        self.check_programs()?;
        with_family!(self, family => family.check(inputs, outputs))
    }

    /// Returns an error if a program has fewer run-time parameters than it reads, or if a program other than that of a
    /// [`Row`] needs rows.
    #[inline]
    fn check_programs(&self) -> Result<()> {
        for (program, params) in self.programs().into_iter().flatten() {
            if program.params() > params.len() {
                return Err(self.too_few(program.params(), params.len(), "run-time parameters"));
            }
            if program.is_row() && !matches!(self, Kernel::Row(_)) {
                return Err(Error::invalid(self.name(), "the program computes rows; submit it as a row kernel"));
            }
        }
        Ok(())
    }

    /// Returns an error if the kernel has fewer than `needed` operands of a kind.
    #[inline]
    fn check_count(&self, needed: usize, count: usize, operands: &str) -> Result<()> {
        match count >= needed {
            true => Ok(()),
            false => Err(self.too_few(needed, count, operands)),
        }
    }

    #[cold]
    fn too_few(&self, needed: usize, count: usize, operands: &str) -> Error {
        Error::invalid(self.name(), format!("the kernel must have at least {needed} {operands}, got {count}"))
    }

    /// Returns the number of arithmetic operations on values: see [`Family::flops`].
    pub fn flops(&self, inputs: &[Meta], outputs: &[Meta]) -> u64 {
        with_family!(self, family => family.flops(inputs, outputs))
    }

    /// Returns the program that is applied to the inputs, with its parameters.
    pub fn program(&self) -> Option<(&Arc<Program>, &Params)> {
        with_family!(self, family => family.program())
    }

    /// Returns how index tensors select elements, and the operand that they index: see [`Family::index`].
    pub fn index(&self) -> Option<(&Index, IndexedOperand)> {
        with_family!(self, family => family.index())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formula::{InstructionOperand, Load, Store};
    use crate::shape::Layout;
    use std::hash::DefaultHasher;

    struct TestOperand<'a> {
        layout: &'a Layout,
        dtype: DType,
    }

    impl KernelOperand for TestOperand<'_> {
        fn layout(&self) -> &Layout {
            self.layout
        }
        fn dtype(&self) -> DType {
            self.dtype
        }
    }

    /// Returns a program that copies elements of type `dtype`.
    fn program(dtype: DType) -> Arc<Program> {
        let compute = dtype.compute();
        let inputs = vec![Load { storage: dtype, compute, per_row: false }];
        let store = Store { value: InstructionOperand::Input(0), compute, storage: dtype, per_row: false };
        Arc::new(Program::new("test", inputs, vec![], vec![], Default::default(), vec![store]))
    }

    fn params(values: &[f64]) -> Params {
        values.iter().map(|&value| Scalar::Float(value)).collect()
    }

    /// Asserts that the structures of two kernels, and their hashes, are equal or different.
    #[track_caller]
    fn check(a: &Kernel, b: &Kernel, is_equal: bool) {
        let digest = |kernel: &Kernel| {
            let mut state = DefaultHasher::new();
            kernel.hash_structure(&mut state);
            state.finish()
        };
        assert_eq!(a.structure_eq(b), is_equal, "{a:?} and {b:?}");
        assert_eq!(digest(a) == digest(b), is_equal, "{a:?} and {b:?}");
    }

    #[test]
    fn operands_of_which_a_rule_cannot_infer_outputs_are_errors() {
        let meta = |dims: &[usize]| Meta { shape: dims.into(), dtype: DType::F32 };
        let matmul = Kernel::MatMul(MatMul::default());
        let sort = Kernel::Sort(Sort { axis: 2, descending: false, k: 1 });
        let sparse = Kernel::SparseProduct(SparseProduct { op: "test", axis: 2 });
        for kernel in [&matmul, &sort, &sparse, &Kernel::Copy] {
            assert!(matches!(kernel.infer(&[]), Err(Error::InvalidArgument { .. })), "{kernel:?}");
        }
        for (a, b) in [(meta(&[3]), meta(&[3, 2])), (meta(&[2, 3]), meta(&[3])), (meta(&[]), meta(&[]))] {
            assert!(matches!(matmul.infer(&[a, b]), Err(Error::ShapeMismatch { .. })));
        }
        let matrices = [[4, 4]; 4].map(|dims| meta(&dims));
        assert!(matches!(sort.infer(&matrices[..1]), Err(Error::AxisOutOfRange { .. })));
        assert!(matches!(sparse.infer(&matrices), Err(Error::AxisOutOfRange { .. })));
    }

    #[test]
    fn a_dtype_that_a_pool_cannot_store_is_a_dtype_error() {
        let window = Window { size: [1, 2, 2], stride: [1, 2, 2], dilation: [1; 3], before: [0; 3] };
        let kernel = Kernel::Pool(Pool { windows: window.into(), part: PoolPart::Maximum });
        let (x, y) = (Layout::contiguous([1, 4, 4].into()), Layout::contiguous([1, 2, 2].into()));
        let operand = |layout, dtype| TestOperand { layout, dtype };
        let check = |values, positions| {
            kernel.check(&[operand(&x, DType::F32)], &[operand(&y, values), operand(&y, positions)])
        };
        assert_eq!(check(DType::F32, DType::I64), Ok(()));
        for (values, positions) in [(DType::F64, DType::I64), (DType::F32, DType::I32)] {
            assert!(matches!(check(values, positions), Err(Error::DTypeMismatch { .. })));
        }
    }

    #[test]
    fn the_structure_of_a_kernel_is_everything_except_the_values_of_its_parameters() {
        let (x, other, axes) = (program(DType::F32), program(DType::F16), AxisSet::all(1));
        let map = Map { program: x.clone(), params: params(&[1.0]) };
        let row = Row { axes, program: x.clone(), params: params(&[1.0]) };
        let matmul = MatMul { epilogue: Some(x.clone()), params: params(&[1.0]) };
        let reduce = Reduce {
            op: ReduceOp::Sum,
            axes,
            program: x.clone(),
            params: params(&[1.0]),
            finish: Some(x.clone()),
            finish_params: params(&[2.0]),
            output: DType::F32,
        };
        let two = params(&[1.0, 2.0]);
        let (map, row) = (Kernel::Map(map), Kernel::Row(row));
        let (matmul, reduce) = (Kernel::MatMul(matmul), Kernel::Reduce(reduce));
        // Changes each listed field of a kernel in turn; the changed kernel must have a different structure.
        macro_rules! check_fields {
            ($kernel:ident: $family:ident { $($field:ident: $value:expr),+ }) => {
                let mut same = $kernel.clone();
                same.each_param(&mut |param| *param = Scalar::Float(7.0));
                check(&$kernel, &same, true);
                assert!($kernel != same && $kernel.params().concat().len() == same.params().concat().len());
                $(
                    let mut changed = $kernel.clone();
                    let Kernel::$family(family) = &mut changed else { unreachable!() };
                    family.$field = $value;
                    check(&$kernel, &changed, false);
                )+
            };
        }
        check_fields!(map: Map { program: other.clone(), params: two.clone() });
        check_fields!(row: Row { axes: AxisSet::all(2), program: other.clone(), params: two.clone() });
        check_fields!(matmul: MatMul { epilogue: None, params: two.clone() });
        check_fields!(reduce: Reduce {
            op: ReduceOp::Prod,
            axes: AxisSet::all(2),
            program: other.clone(),
            params: two.clone(),
            finish: Some(other.clone()),
            finish_params: two.clone(),
            output: DType::F64
        });
        check(&map, &row, false);
        check(&Kernel::Copy, &Kernel::Copy, true);
    }
}
