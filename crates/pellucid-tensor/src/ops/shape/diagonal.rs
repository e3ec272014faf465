//! Diagonals and triangles of matrices, and identity matrices.

use crate::autograd::{apply_one, interface::*};
use crate::ops::call::check;
use crate::ops::elementwise::arithmetic;
use crate::ops::formula::{map, map_all};
use crate::ops::primitive::view::checked_axes;
use crate::ops::primitive::{copy, create, fill, view};
use crate::panic;
use crate::tensor::Tensor;
use pellucid_derive::{operation, tensor_method};
use pellucid_ir::{DType, Error, Integer, Layout, Result, Shape, formula};

/// A diagonal of the matrices in two axes, `offset` elements above the main diagonal.
#[derive(Clone, Copy)]
struct MatrixDiagonal {
    axes: (usize, usize),
    offset: isize,
}

impl MatrixDiagonal {
    /// Returns the layout of the diagonal: the other axes, then an axis along the diagonal.
    fn view(self, layout: &Layout) -> Layout {
        let MatrixDiagonal { axes: (row, column), offset } = self;
        let (shape, strides) = (layout.shape(), layout.strides());
        // The first element of the diagonal is `down` rows below the upper left corner, or `right` columns to the right
        // of it.
        let (down, right) = (offset.min(0).unsigned_abs(), offset.max(0) as usize);
        let len = shape[row].saturating_sub(down).min(shape[column].saturating_sub(right));
        let first_offset = if len == 0 { 0 } else { down as isize * strides[row] + right as isize * strides[column] };
        let other_axes = || (0..shape.rank()).filter(|&k| k != row && k != column);
        let dims = other_axes().map(|k| shape[k]).chain([len]).collect();
        let steps = other_axes().map(|k| strides[k]).chain([strides[row] + strides[column]]).collect();
        Layout::strided(dims, steps, (layout.offset() as isize + first_offset) as usize)
    }
}

/// The view of a diagonal.
struct Diagonal(MatrixDiagonal);

impl Operation for Diagonal {
    fn name(&self) -> &'static str {
        "diagonal"
    }
    fn forward(&self, inputs: &[&Array], _: &mut SaveForBackward) -> Result<Arrays> {
        Ok(smallvec![inputs[0].view(self.0.view(inputs[0].layout()))])
    }
    fn backward(&self, saved: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        let embed = EmbedDiagonal { diagonal: self.0, shape: saved.input_shape(0) };
        Ok(smallvec![Some(apply_one(embed, &[&grads.get(0)?])?)])
    }
    fn is_view(&self) -> bool {
        true
    }
}

/// The transpose of [`Diagonal`]: a tensor of `shape` that is zero except for x on the diagonal.
struct EmbedDiagonal {
    diagonal: MatrixDiagonal,
    shape: Shape,
}

impl Operation for EmbedDiagonal {
    fn name(&self) -> &'static str {
        "diag_embed"
    }
    fn forward(&self, inputs: &[&Array], _: &mut SaveForBackward) -> Result<Arrays> {
        let x = inputs[0];
        let filled = Array::filled(x.device(), x.dtype(), self.shape.clone(), 0.into())?;
        copy::write_array(x, &filled.view(self.diagonal.view(filled.layout())))?;
        Ok(smallvec![filled])
    }
    fn backward(&self, _: &SavedTensors, grads: &OutputGradients, _: NeedsInputGrad) -> Result<InputGradients> {
        Ok(smallvec![Some(apply_one(Diagonal(self.diagonal), &[&grads.get(0)?])?)])
    }
}

/// Returns a view of a diagonal of the matrices in `axis0` and `axis1`. A new last axis replaces both axes.
///
/// The diagonal is `offset` elements above the main one, or below it if `offset` is negative.
///
/// # Errors
/// [`Error::AxisOutOfRange`]; [`Error::InvalidArgument`] if the axes are equal.
#[tensor_method]
pub fn diagonal(x: &Tensor, offset: isize, axis0: isize, axis1: isize) -> Result<Tensor> {
    let axes = checked_axes("diagonal", x.shape(), axis0, axis1)?;
    apply_one(Diagonal(MatrixDiagonal { axes, offset }), &[x])
}

/// Returns matrices with the last axis of x on a diagonal, and zeros in all other elements. `axis0` and `axis1` are the
/// axes of the matrices.
///
/// The diagonal is `offset` elements above the main one, or below it if `offset` is negative.
///
/// # Errors
/// [`Error::AxisOutOfRange`] for axes of the result, or if x is 0-d; [`Error::InvalidArgument`] if the axes are equal.
#[tensor_method]
pub fn diag_embed(x: &Tensor, offset: isize, axis0: isize, axis1: isize) -> Result<Tensor> {
    let last = x.shape().axis("diag_embed", -1)?;
    let side = x.shape()[last].checked_add(offset.unsigned_abs()).ok_or_else(Error::size_overflow)?;
    let dims = &x.shape()[..last];
    let square: Shape = std::iter::repeat_n(side, x.rank() + 1).collect();
    check::representable([side, side].into())?;
    let axes = checked_axes("diag_embed", &square, axis0, axis1)?;
    let mut others = dims.iter().copied();
    let length = |k: usize| {
        if k == axes.0 || k == axes.1 {
            side
        } else {
            others.next().expect("x must have one axis for each axis of the result that is not an axis of the matrices")
        }
    };
    let shape = (0..x.rank() + 1).map(length).collect();
    apply_one(EmbedDiagonal { diagonal: MatrixDiagonal { axes, offset }, shape }, &[x])
}

/// Returns the matrix with a vector x on its diagonal, or the diagonal of a matrix x.
///
/// # Errors
/// [`Error::ShapeMismatch`] for any other rank.
#[doc(alias = "diagflat")]
#[tensor_method]
pub fn diag(x: &Tensor, offset: isize) -> Result<Tensor> {
    match x.rank() {
        1 => diag_embed(x, offset, 0, 1),
        2 => diagonal(x, offset, 0, 1),
        _ => Err(Error::shapes(
            "diag",
            [x.shape()],
            "the input must be a vector or a matrix; diagonal() accepts any rank",
        )),
    }
}

/// Returns a `rows × columns` matrix with ones at and below the diagonal that is `offset` above the main diagonal, and
/// zeros above it.
///
/// ```
/// use pellucid::{DType, ops};
/// assert_eq!(ops::tri(2, 3, 0, DType::I64)?.to_vec2::<i64>(), [[1, 0, 0], [1, 1, 0]]);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// [`Error::OutOfMemory`].
#[operation]
pub fn tri(rows: usize, columns: usize, offset: isize, dtype: DType) -> Result<Tensor> {
    tril(&fill::ones([rows, columns], dtype)?, offset)
}

/// Returns the lower triangles of the matrices in the last two axes. Elements more than `offset` above the main
/// diagonal are zero.
///
/// # Errors
/// [`Error::ShapeMismatch`] below rank 2.
#[tensor_method]
pub fn tril(x: &Tensor, offset: impl Integer) -> Result<Tensor> {
    arithmetic::where_(&triangle("tril", x, offset.to_isize())?, x, zero(x))
}

/// Returns the upper triangles of the matrices in the last two axes. Elements less than `offset` above the main
/// diagonal are zero.
///
/// # Errors
/// [`Error::ShapeMismatch`] below rank 2.
#[tensor_method]
pub fn triu(x: &Tensor, offset: impl Integer) -> Result<Tensor> {
    arithmetic::where_(&triangle("triu", x, offset.to_isize().saturating_sub(1))?, zero(x), x)
}

fn zero(x: &Tensor) -> pellucid_ir::Scalar {
    if x.dtype() == DType::Bool { false.into() } else { 0.into() }
}

/// Returns the mask column − row ≤ offset.
fn triangle(op: &'static str, x: &Tensor, offset: isize) -> Result<Tensor> {
    let [.., rows, columns] = *x.shape().dims() else {
        return Err(Error::shapes(
            op,
            [x.shape()],
            "the input must be a matrix or a batch of matrices, with at least two axes; unsqueeze() adds an axis",
        ));
    };
    // An offset beyond the corners has no further effect, and the sum could wrap.
    let offset = (offset as i64).clamp(-(rows as i64), columns as i64);
    let triangle = formula! { static triangle(column, row; offset) = column.le(row + offset); };
    let [row, column] = row_and_column(rows, columns)?;
    map(triangle, &[&column, &row], &[offset.into()])
}

/// Returns the row indices of matrices as a column, and the column indices.
fn row_and_column(rows: usize, columns: usize) -> Result<[Tensor; 2]> {
    Ok([view::unsqueeze(&create::indices(rows)?, 1)?, create::indices(columns)?])
}

/// Returns the strict lower triangles of matrices `[.., m, n]`, with ones on the diagonals.
pub(in crate::ops) fn unit_lower(x: &Tensor) -> Result<Tensor> {
    let masks = formula! { static unit_lower(column, row) = (column.lt(row), column.eq(row)); };
    let selected = formula! {
        static unit_lower(x, is_below: mask, is_diagonal: mask) = is_below.select(x, is_diagonal.select(1.0, 0.0));
    };
    let [row, column] = row_and_column(x.shape()[x.rank() - 2], x.shape()[x.rank() - 1])?;
    let masks = map_all(masks, &[&column, &row], &[])?;
    map(selected, &[x, &masks[0], &masks[1]], &[])
}

/// Returns an `n × m` matrix with ones on the diagonal and zeros elsewhere.
///
/// # Errors
/// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
#[doc(alias = "identity")]
#[operation]
pub fn eye(n: usize, m: usize, dtype: DType) -> Result<Tensor> {
    let eye = fill::zeros([n, m], dtype)?;
    let diagonal = MatrixDiagonal { axes: (0, 1), offset: 0 }.view(eye.array().layout());
    copy::write_array(fill::ones(diagonal.shape().clone(), dtype)?.array(), &eye.array().view(diagonal))?;
    Ok(eye)
}

impl Tensor {
    /// Creates the `n × n` identity matrix.
    ///
    /// # Panics
    /// Panics if [`eye`] returns an error.
    #[doc(alias = "identity")]
    #[track_caller]
    pub fn eye(n: usize, dtype: DType) -> Tensor {
        panic::unwrap(eye(n, n, dtype))
    }
}
