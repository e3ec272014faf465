//! Elements, or slices, without repetition.

use crate::engine;
use crate::ops;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::{DType, Result};

/// What [`unique`] finds.
#[derive(Clone, Debug)]
pub struct Unique {
    /// The different elements (a vector), or slices (along the axis). The gradient goes to the first occurrence.
    pub values: Tensor,
    /// For every element, or slice, the `i64` index of its value.
    pub inverse: Tensor,
    /// How often each value occurs, in `i64`.
    pub counts: Tensor,
}

/// The different elements of a tensor in ascending order, or the different slices along an axis in the order of their first
/// differing elements. No NaN is equal to another; NaN comes last. Their number depends on values, so a captured step refuses it.
///
/// # Errors
/// [`Error::AxisOutOfRange`](crate::Error::AxisOutOfRange), [`Error::ReadInCapture`](crate::Error::ReadInCapture).
#[tensor_method]
#[track_caller]
pub fn unique(x: &Tensor, axis: Option<isize>) -> Result<Unique> {
    known("unique")?;
    let rows = rows("unique", x, axis)?;
    let mut order = ops::indices(rows.shape()[0])?;
    // Sorted by the last column first: a stable sort by another keeps that order among equals.
    for column in (0..rows.shape()[1]).rev() {
        let column = ops::index_select(&ops::select(&rows, 1, column as isize)?, 0, &order)?;
        order = ops::index_select(&order, 0, &ops::argsort(&column, 0, false)?)?;
    }
    groups(x, axis, &rows, &order)
}

/// Every run of equal elements (in row-major order) or slices as one: what [`unique`] gives without sorting first.
///
/// # Errors
/// Those of [`unique`].
#[tensor_method]
#[track_caller]
pub fn unique_consecutive(x: &Tensor, axis: Option<isize>) -> Result<Unique> {
    known("unique_consecutive")?;
    let rows = rows("unique_consecutive", x, axis)?;
    let order = ops::indices(rows.shape()[0])?;
    groups(x, axis, &rows, &order)
}

/// Refuses a result whose length nobody knows.
#[track_caller]
fn known(op: &'static str) -> Result<()> {
    engine::check_readable(
        op,
        "how many differ is a value too; sort() keeps every element, and ne() of its neighbours marks the first of each",
    )
}

/// What is compared as rows of a matrix: single elements, or slices.
fn rows(op: &'static str, x: &Tensor, axis: Option<isize>) -> Result<Tensor> {
    let x = x.detach();
    let Some(axis) = axis else { return ops::reshape(&x, [x.size(), 1]) };
    let count = x.shape()[x.shape().axis(op, axis)?];
    let width = x.shape().with_axis(x.shape().axis(op, axis)?, 1).size();
    // Columns are compared one by one: repeated elements must be as costly in memory as they are in time.
    ops::reshape(&ops::contiguous(&ops::movedim(&x, &[axis], &[0])?)?, [count, width])
}

/// Neighbours in this order that are equal make a group.
#[track_caller]
fn groups(x: &Tensor, axis: Option<isize>, rows: &Tensor, order: &Tensor) -> Result<Unique> {
    let (count, rest) = (order.size(), order.size().saturating_sub(1));
    let sorted = ops::index_select(rows, 0, order)?;
    let (low, high) = (ops::narrow(&sorted, 0, 0, rest)?, ops::narrow(&sorted, 0, count - rest, rest)?);
    let differs = ops::any(&ops::ne(&high, &low)?, 1)?;
    let starts = ops::concatenate(&[&ops::ones([count - rest], DType::Bool)?, &differs], 0)?;
    let numbers = ops::sub(&ops::cumsum(&starts, 0)?, 1)?;
    let firsts = ops::index_select(order, 0, &ops::nonzero(&starts)?[0])?;
    let inverse = ops::scatter_add_along(&numbers, order, 0, [count])?;
    let counts = ops::scatter_add_along(&ops::ones([count], DType::I64)?, &numbers, 0, [firsts.size()])?;
    match axis {
        None => Ok(Unique { values: ops::take(x, &firsts)?, inverse: ops::reshape_to(&inverse, x.shape())?, counts }),
        Some(axis) => Ok(Unique { values: ops::index_select(x, axis, &firsts)?, inverse, counts }),
    }
}
