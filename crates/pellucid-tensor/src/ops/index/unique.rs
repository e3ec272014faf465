//! Unique elements and slices.

use crate::engine;
use crate::ops::elementwise::{arithmetic, compare};
use crate::ops::index::nonzero::nonzero;
use crate::ops::index::sort;
use crate::ops::primitive::concatenate::concatenate;
use crate::ops::primitive::{copy, create, fill, gather, view};
use crate::ops::reduce::{reductions, scan};
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{DType, Result};

/// The result of [`unique`].
#[derive(Clone, Debug)]
pub struct Unique {
    /// The unique elements (a vector), or the unique slices (along the axis). The gradient goes to the first
    /// occurrence.
    pub values: Tensor,
    /// For every element or slice of the input, its `i64` index in `values`.
    pub inverse: Tensor,
    /// The number of occurrences of each value, in `i64`.
    pub counts: Tensor,
}

/// Returns the unique elements of a tensor in ascending order, or the unique slices along an axis in lexicographic
/// order.
///
/// NaN elements count as different from each other and come last. The number of values depends on the elements, so a
/// captured step cannot contain this operation. In addition to x and the result, it stores a sorted copy of x and a few
/// `i64` arrays with one element for each element or slice of x.
///
/// # Errors
/// [`Error::AxisOutOfRange`](crate::Error::AxisOutOfRange), [`Error::ReadInCapture`](crate::Error::ReadInCapture).
#[tensor_method]
#[track_caller]
pub fn unique(x: &Tensor, axis: Option<isize>) -> Result<Unique> {
    check_values_readable("unique")?;
    let rows = as_rows("unique", x, axis)?;
    let width = rows.shape()[1];
    if width == 1 {
        let (sorted, order) = sort::sort(&view::ravel(&rows)?, 0, false)?;
        return groups(x, axis, &view::unsqueeze(&sorted, 1)?, Some(&order));
    }
    let mut order = create::indices(rows.shape()[0])?;
    // Stable sorts by each column, from the last to the first, produce the lexicographic order.
    for column in (0..width).rev() {
        let column = gather::index_select(&view::select(&rows, 1, column as isize)?, 0, &order)?;
        order = gather::index_select(&order, 0, &sort::argsort(&column, 0, false)?)?;
    }
    let sorted = gather::index_select(&rows, 0, &order)?;
    groups(x, axis, &sorted, Some(&order))
}

/// Removes consecutive duplicates among the elements (in row-major order) or slices, like [`unique`] without sorting.
///
/// # Errors
/// The errors of [`unique`].
#[tensor_method]
#[track_caller]
pub fn unique_consecutive(x: &Tensor, axis: Option<isize>) -> Result<Unique> {
    check_values_readable("unique_consecutive")?;
    let rows = as_rows("unique_consecutive", x, axis)?;
    groups(x, axis, &rows, None)
}

/// Returns an error in a captured step, since the length of the result depends on values.
#[track_caller]
fn check_values_readable(op: &'static str) -> Result<()> {
    engine::check_readable(
        op,
        "the number of unique elements depends on values; sort() keeps every element, and ne() of its neighbours marks \
         the first of each",
    )
}

/// Returns a matrix whose rows are the elements or slices to compare.
fn as_rows(op: &'static str, x: &Tensor, axis: Option<isize>) -> Result<Tensor> {
    let x = x.detach();
    let Some(axis) = axis else { return view::reshape(&x, [x.size(), 1]) };
    let count = x.shape()[x.shape().axis(op, axis)?];
    let width = x.shape().with_axis(x.shape().axis(op, axis)?, 1).size();
    // Columns are compared one by one, so even repeated elements of a broadcast view cost time. The copy also allocates
    // memory for them, so a view that is far too large fails immediately with an error.
    view::reshape(&copy::contiguous(&view::movedim(&x, [axis], [0])?)?, [count, width])
}

/// Groups adjacent equal rows. `order` contains the index of each row in x, or is `None` if the rows are in the order
/// of x.
#[track_caller]
fn groups(x: &Tensor, axis: Option<isize>, rows: &Tensor, order: Option<&Tensor>) -> Result<Unique> {
    let count = rows.shape()[0];
    let pairs = count.saturating_sub(1);
    let (low, high) = (view::narrow(rows, 0, 0, pairs)?, view::narrow(rows, 0, count - pairs, pairs)?);
    let differs = compare::ne(&high, &low)?;
    let differs = if rows.shape()[1] == 1 { view::ravel(&differs)? } else { reductions::any(&differs, 1)? };
    // The index of a row's group is the number of rows up to it that differ from the row before.
    let first = count - pairs;
    let changes = concatenate(&[&fill::zeros([first], DType::Bool)?, &differs], 0)?;
    let group_indices = scan::cumsum(&changes, 0)?;
    let later_starts = &nonzero(&changes)?[0];
    let first_rows = &concatenate(&[&fill::zeros([first], DType::I64)?, later_starts], 0)?;
    let ends = concatenate(&[later_starts, &create::from_host(&[count as i64][..first], [first])?], 0)?;
    let counts = arithmetic::sub(&ends, first_rows)?;
    let (firsts, inverse) = match order {
        None => (first_rows.clone(), group_indices),
        Some(order) => {
            (gather::index_select(order, 0, first_rows)?, gather::scatter_add_along(&group_indices, order, 0, [count])?)
        }
    };
    match axis {
        None => {
            Ok(Unique { values: gather::take(x, &firsts)?, inverse: view::reshape_to(&inverse, x.shape())?, counts })
        }
        Some(axis) => Ok(Unique { values: gather::index_select(x, axis, &firsts)?, inverse, counts }),
    }
}
