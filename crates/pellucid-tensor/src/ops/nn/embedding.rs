//! Embeddings: rows of a table, selected by index.

use crate::grad_mode::no_grad;
use crate::ops::call::check;
use crate::ops::elementwise::{arithmetic, compare};
use crate::ops::formula::map;
use crate::ops::index::in_place::put_axes;
use crate::ops::nn::distance;
use crate::ops::primitive::gather::select_rows;
use crate::ops::primitive::{copy, fill, gather, view};
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{DType, Error, Result, Shape, formula};
use smallvec::smallvec;

/// Options of [`embedding`].
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct EmbeddingOptions {
    /// The index of a row whose gradient is zero; negative indices count from the end.
    pub padding_index: Option<isize>,
    /// The maximum norm of a row, and the order p of the norm. Selected rows with a larger norm are scaled down in the
    /// table.
    pub max_norm: Option<(f64, f64)>,
    /// Whether the gradient of a row is divided by the number of times that the index selects the row.
    pub scale_by_frequency: bool,
}

/// Returns the rows of a table `[R, D]` at indices of any shape: `[index.., D]`. Indices are in `0..R`. In contrast to
/// [`index_select`](crate::ops::index_select), negative indices are an error.
///
/// The gradients of a row that is selected several times are summed in a fixed order.
///
/// # Errors
/// [`Error::ShapeMismatch`] unless the table is a matrix; [`Error::DTypeMismatch`] for indices that are not integers;
/// [`Error::IndexOutOfBounds`]; [`Error::InvalidArgument`] for a padding index outside the table, or a maximum norm or
/// order p that is not positive; [`Error::InPlaceOnTracked`] for `max_norm` with a table that is the result of a
/// tracked operation.
#[tensor_method]
pub fn embedding(table: &Tensor, index: &Tensor, options: EmbeddingOptions) -> Result<Tensor> {
    let op = "embedding";
    if table.rank() != 2 {
        return Err(Error::shapes(op, [table.shape()], "the table must be [R, D]"));
    }
    check::index_dtype(op, index)?;
    check_norm(op, table, options.max_norm)?;
    let rows = table.shape()[0];
    let padding = options.padding_index.map(|padding| padding_row(op, padding, rows)).transpose()?;
    let index = copy::to_dtype(index, DType::I64)?;
    if let Some((max_norm, p)) = options.max_norm {
        renorm_rows(op, table, &view::ravel(&index)?, max_norm, p)?;
    }
    let selected = check::named(op, select_rows(op, table, &index))?;
    if padding.is_none() && !options.scale_by_frequency {
        return Ok(selected);
    }
    // The factor by which the gradient of each selected row is multiplied.
    let mut scale = fill::ones(index.shape(), table.dtype())?;
    if options.scale_by_frequency {
        let flat = view::ravel(&index)?;
        let times = gather::scatter_add_along(&fill::ones(flat.shape(), table.dtype())?, &flat, 0, [rows])?;
        scale = arithmetic::div(1.0, &gather::index_select(&times, 0, &index)?)?;
    }
    if let Some(padding) = padding {
        scale = arithmetic::where_(&compare::eq(&index, padding)?, 0.0, &scale)?;
    }
    let gradient = formula! {
        static embedding(x, scale) = x;
        d x = scale.eq(0.0).select(0.0, g * scale);
    };
    map(gradient, &[&selected, &view::unsqueeze(&scale, -1)?], &[])
}

/// Returns the row of a padding index. A negative index counts from the end.
pub(in crate::ops) fn padding_row(op: &'static str, padding: isize, rows: usize) -> Result<i64> {
    let row = if padding < 0 { padding.saturating_add(rows as isize) } else { padding };
    let inside = (0..rows as isize).contains(&row);
    if inside {
        Ok(row as i64)
    } else {
        Err(Error::invalid(op, format!("the padding index {padding} is outside the table, which has {rows} rows")))
    }
}

/// Returns an error unless the rows of the table can be scaled to `max_norm`, the maximum norm and its order, in place.
pub(in crate::ops) fn check_norm(op: &'static str, table: &Tensor, max_norm: Option<(f64, f64)>) -> Result<()> {
    let Some((max_norm, p)) = max_norm else { return Ok(()) };
    check::floats(op, &[table])?;
    if !(p > 0.0 && max_norm > 0.0) {
        return Err(Error::invalid(op, format!("`p` and `max_norm` must be positive, got {p} and {max_norm}")));
    }
    match table.creator() {
        Some(_) => Err(Error::InPlaceOnTracked { op, shape: Shape::from(&table.shape()[..]) }),
        None => Ok(()),
    }
}

/// Scales the selected rows of the table down to the p-norm `max_norm`, in place, after [`check_norm`].
pub(in crate::ops) fn renorm_rows(
    op: &'static str,
    table: &Tensor,
    index: &Tensor,
    max_norm: f64,
    p: f64,
) -> Result<()> {
    let _off = no_grad();
    let rows = select_rows(op, &table.detach(), index)?;
    let renormalized = distance::renorm(&rows, p, 0, max_norm)?;
    put_axes(op, table, table.array(), smallvec![0], std::slice::from_ref(index), &renormalized)
}
