//! New tensors by rule.

use super::Binder;
use crate::call::{Call, KEY};
use pellucid::{DType, Error, Result, Tensor, ops};

pub(super) fn bind(table: &mut Binder) {
    table.one("full", |c| {
        let shape: Vec<usize> = c.ints(0, "size").unwrap_or_default().iter().map(|&d| d as usize).collect();
        ops::full(shape, c.float(1, "value").unwrap_or(0.0), dtype(c))
    });
    table.one("arange", |c| {
        let number = |at, name| c.float(at, name).ok_or_else(|| Error::invalid("arange", "takes numbers"));
        let (start, end, step) = (number(0, "start")?, number(1, "end")?, number(2, "step")?);
        if step == 0.0 || (end - start) * step < 0.0 {
            return Err(Error::invalid("arange", "the step leads to the end"));
        }
        ops::to_dtype(&Tensor::arange(start, end, step), dtype(c))
    });
    table.one("linspace", |c| {
        let number = |at, name| match c.get(at, name) {
            Some(crate::index::Argument::Tensor(_)) | None => Err(Error::invalid("linspace", "takes numbers")),
            _ => c.float(at, name).ok_or_else(|| Error::invalid("linspace", "takes numbers")),
        };
        Ok(Tensor::linspace(number(0, "start")?, number(1, "end")?, c.count(2, "steps")?, dtype(c)))
    });
    table.one("tril_indices", |c| indices(c, |rows, columns| ops::le(columns, rows)));
    table.one("triu_indices", |c| indices(c, |rows, columns| ops::ge(columns, rows)));
}

fn dtype(c: &Call) -> DType {
    c.dtype(KEY, "dtype").unwrap_or(c.float)
}

/// The positions of a triangle, rows and columns.
fn indices(c: &Call, inside: fn(&Tensor, &Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let (rows, columns, offset) = (c.count(0, "row")?, c.count(1, "col")?, c.int(2, "offset").unwrap_or(0) as i64);
    let row = ops::unsqueeze(&Tensor::arange(offset, rows as i64 + offset, 1), 1)?;
    let positions = ops::nonzero(&inside(&row, &Tensor::arange(0, columns as i64, 1))?)?;
    ops::stack(&positions.iter().collect::<Vec<_>>(), 0)
}
