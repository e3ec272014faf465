//! Creation of tensors.

use super::Binder;
use crate::call::{Call, KEY};
use crate::index::Argument;
use ops::WindowFunction;
use pellucid::{DType, Error, Result, Tensor, ops};

pub(super) fn bind(table: &mut Binder) {
    table.one("full", |c| {
        let shape: Vec<usize> = c.ints(0, "size").unwrap_or_default().iter().map(|&d| d as usize).collect();
        ops::full(shape, c.scalar(1, "value").unwrap_or_default(), dtype(c))
    });
    table.one("arange", |c| {
        let number = |at, name| {
            c.float(at, name).ok_or_else(|| Error::invalid("arange", "the bounds and the step must be numbers"))
        };
        let alone = c.len() == 1 && c.get(KEY, "end").is_none();
        let (start, end) = if alone { (0.0, number(0, "end")?) } else { (number(0, "start")?, number(1, "end")?) };
        let step = c.float(2, "step").unwrap_or(1.0);
        if step == 0.0 || (end - start) * step < 0.0 {
            return Err(Error::invalid("arange", "the step must be nonzero and have the sign of end − start"));
        }
        let is_integer = (0..3).all(|at| !matches!(c.get(at, ["input", "end", "step"][at]), Some(Argument::Float(_))));
        let dtype = c.dtype(KEY, "dtype").unwrap_or(if is_integer { DType::I64 } else { c.float });
        if dtype.is_int() {
            // PyTorch computes the length from the original numbers, but the elements from the truncated numbers.
            let count = ((end - start) / step).ceil() as i64;
            let steps = ops::mul(Tensor::arange(0, count, 1), step.trunc() as i64)?;
            return ops::to_dtype(&ops::add(&steps, start.trunc() as i64)?, dtype);
        }
        ops::to_dtype(&ops::arange(start, end, step, DType::F64)?, dtype)
    });
    table.one("linspace", |c| {
        let number = |at, name| match c.get(at, name) {
            Some(Argument::Tensor(_)) | None => {
                Err(Error::invalid("linspace", "the bounds and the step must be numbers"))
            }
            _ => c.float(at, name).ok_or_else(|| Error::invalid("linspace", "the bounds and the step must be numbers")),
        };
        spaced(c, number(0, "start")?, number(1, "end")?)
    });
    table.one("linspace.tensor_overload", |c| {
        let number = |at, name| {
            c.float(at, name).ok_or_else(|| Error::invalid("linspace", "the bounds and the step must be numbers"))
        };
        spaced(c, number(0, "start")?, number(1, "end")?)
    });
    windows(table);
    table.one("tril_indices", |c| indices(c, |rows, columns| ops::le(columns, rows)));
    table.one("triu_indices", |c| indices(c, |rows, columns| ops::ge(columns, rows)));
}

/// Returns equally spaced numbers, which are truncated for an integer dtype.
fn spaced(c: &Call, start: f64, end: f64) -> Result<Tensor> {
    let dtype = dtype(c);
    let float = if dtype.is_float() { dtype } else { DType::F64 };
    let ends = if dtype.is_float() { [start, end] } else { [start.trunc(), end.trunc()] };
    ops::to_dtype(&Tensor::linspace(ends[0], ends[1], c.count(2, "steps")?, float), dtype)
}

fn windows(table: &mut Binder) {
    let number = |c: &Call, name| c.float(KEY, name).unwrap_or(1.0);
    let plain: [(&str, WindowFunction<'static>); 6] = [
        ("signal.windows.bartlett", WindowFunction::Bartlett),
        ("signal.windows.blackman", WindowFunction::Blackman),
        ("signal.windows.cosine", WindowFunction::Cosine),
        ("signal.windows.hamming", WindowFunction::Hamming),
        ("signal.windows.hann", WindowFunction::Hann),
        ("signal.windows.nuttall", WindowFunction::Nuttall),
    ];
    for (name, window) in plain {
        table.one(name, move |c| weights(c, window));
    }
    table.one("signal.windows.exponential", move |c| {
        weights(c, WindowFunction::Exponential { center: c.float(KEY, "center"), tau: number(c, "tau") })
    });
    table.one("signal.windows.gaussian", move |c| weights(c, WindowFunction::Gaussian { std: number(c, "std") }));
    table.one("signal.windows.kaiser", |c| {
        weights(c, WindowFunction::Kaiser { beta: c.float(KEY, "beta").unwrap_or(12.0) })
    });
    table.one("signal.windows.general_hamming", |c| {
        weights(c, WindowFunction::GeneralHamming { alpha: c.float(KEY, "alpha").unwrap_or(0.54) })
    });
    table.one("signal.windows.general_cosine", |c| {
        weights(c, WindowFunction::GeneralCosine(&c.floats(KEY, "a").unwrap_or_default()))
    });
}

fn weights(c: &Call, window: WindowFunction<'_>) -> Result<Tensor> {
    let asymmetric = matches!(c.get(KEY, "sym"), Some(Argument::Bool(false)));
    ops::signal_window(window, c.count(0, "M")?, !asymmetric, dtype(c))
}

fn dtype(c: &Call) -> DType {
    c.dtype(KEY, "dtype").unwrap_or(c.float)
}

/// Returns the row and column indices of the elements of a triangle.
fn indices(c: &Call, inside: fn(&Tensor, &Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let (rows, columns, offset) = (c.count(0, "row")?, c.count(1, "col")?, c.int(2, "offset").unwrap_or(0) as i64);
    let row = ops::unsqueeze(&Tensor::arange(offset, rows as i64 + offset, 1), 1)?;
    let positions = ops::nonzero(&inside(&row, &Tensor::arange(0, columns as i64, 1))?)?;
    ops::stack(&positions, 0)
}
