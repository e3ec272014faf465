//! The kernel family [`SparseProduct`]: products of sparse matrices and the lines of an array along an axis.

use super::operand::resize_axis;
use super::{Family, FamilyInfo, KernelOperand, Meta, Metas};
use crate::dtype::DType;
use crate::error::{Error, Result};
use smallvec::smallvec;

/// `y = A·x` along one axis, for a sparse matrix A `[rows, columns]` in compressed sparse row (CSR) format:
/// `y[.., i, ..] = Σ_k weights[k] · x[.., columns[k], ..]` for k in `starts[i]..starts[i + 1]`.
///
/// The inputs are x, of dtype `f32` or `f64`, `starts` (`i64`, `[rows + 1]`), `columns` (`i64`) and `weights` (in the
/// dtype of x, of the shape of `columns`). The length of the axis is the number of columns. The output has the shape of
/// x, with the number of rows as the length of the axis.
///
/// It is a family of its own because a gather followed by a product would write every term to memory and read it again.
/// Resampling, padding, adaptive means and sums over windows are such products with few terms for each element.
///
/// Products and sums are rounded separately. The terms of an element are added in order, in groups of n =
/// [`GROUP`](SparseProduct::GROUP) terms, of n², n³, n⁴ and n⁵ terms: each group is summed from its first term or
/// group, then added to the total of the earlier groups of its size. An element without terms is 0.
///
/// Before any write, the columns and then the starts are checked. Columns out of bounds, and starts that decrease, are
/// negative or exceed the number of terms, are rejected with [`Error::IndexOutOfBounds`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SparseProduct {
    /// The name of the operation in errors.
    pub op: &'static str,
    /// The axis of x and y.
    pub axis: usize,
}

impl SparseProduct {
    /// The number of terms in a smallest group, and the number of groups in the next larger group. With nested groups,
    /// rounding errors grow more slowly than the number of terms.
    pub const GROUP: usize = 8;
    /// The number of terms of a largest group. The sums of the largest groups are added in order.
    pub const LARGEST_GROUP: usize = SparseProduct::GROUP.pow(5);
}

impl Family for SparseProduct {
    const FAMILY: &'static str = "sparse_product";

    fn info(&self) -> FamilyInfo {
        FamilyInfo { rejects_values: true, ..FamilyInfo::new(4, 1) }
    }

    fn infer(&self, inputs: &[Meta]) -> Result<Metas> {
        let rows = inputs[1].shape.size().saturating_sub(1);
        let shape = resize_axis(Self::FAMILY, &inputs[0].shape, self.axis, rows)?;
        Ok(smallvec![Meta { shape, dtype: inputs[0].dtype }])
    }

    fn check<O: KernelOperand>(&self, inputs: &[O], outputs: &[O]) -> Result<()> {
        let ([x, starts, columns, weights], y) = ([&inputs[0], &inputs[1], &inputs[2], &inputs[3]], &outputs[0]);
        let fits = self.axis < x.shape().rank()
            && starts.shape().rank() == 1
            && starts.shape()[0] > 0
            && columns.shape().rank() == 1
            && weights.shape() == columns.shape()
            && *y.shape() == x.shape().with_axis(self.axis, starts.shape()[0] - 1);
        if !fits {
            let rule = "starts must have one element more than there are rows, and weights the shape of columns; the output \
                        must have the shape of the input, with the number of rows as the length of the axis";
            let shapes = [x.shape(), starts.shape(), columns.shape(), weights.shape(), y.shape()];
            return Err(Error::shapes(Self::FAMILY, shapes, rule));
        }
        let is_valid = matches!(x.dtype(), DType::F32 | DType::F64)
            && [weights.dtype(), y.dtype()] == [x.dtype(); 2]
            && [starts.dtype(), columns.dtype()] == [DType::I64; 2];
        if !is_valid {
            let dtypes = [x, starts, columns, weights, y].map(|operand| operand.dtype());
            let rule = "starts and columns must be i64; the others must all be f32 or all be f64";
            return Err(Error::dtypes(Self::FAMILY, dtypes, rule));
        }
        Ok(())
    }

    fn flops(&self, inputs: &[Meta], _: &[Meta]) -> u64 {
        let [x, terms] = [&inputs[0], &inputs[2]];
        match x.shape[self.axis] {
            0 => 0,
            len => 2 * terms.elements() * (x.elements() / len as u64),
        }
    }
}
