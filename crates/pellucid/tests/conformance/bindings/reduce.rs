//! Reductions, running reductions and softmax.

use super::Binder;
use crate::call::{Call, KEY};
use pellucid::{Error, Result, Tensor, ops};

pub(super) fn bind(table: &mut Binder) {
    table.one("sum", |c| ops::sum(&cast_input(c)?, c.reduced(1, "dim")));
    table.one("mean", |c| match c.dtype(KEY, "dtype") {
        Some(dtype) if !dtype.is_float() => Err(Error::dtypes("mean", [dtype], "the dtype of a mean must be a float")),
        _ => ops::mean(&cast_input(c)?, c.reduced(1, "dim")),
    });
    table.one("nansum", |c| ops::nansum(&cast_input(c)?, c.reduced(1, "dim")));
    table.one("nanmean", |c| ops::nanmean(&cast_input(c)?, c.reduced(1, "dim")));
    table.one("prod", |c| {
        let y = ops::prod(&cast_input(c)?, c.reduced(1, "dim"))?;
        c.dtype(KEY, "dtype").map_or(Ok(y.clone()), |dtype| ops::to_dtype(&y, dtype))
    });
    table.one("amax", |c| ops::max(c.x()?, c.reduced(1, "dim")));
    table.one("amin", |c| ops::min(c.x()?, c.reduced(1, "dim")));
    table.two("aminmax", |c| ops::aminmax(c.x()?, kept(c, KEY)));
    table.one("argmax", |c| ops::argmax(c.x()?, c.reduced(1, "dim")));
    table.one("argmin", |c| ops::argmin(c.x()?, c.reduced(1, "dim")));
    table.two("max.reduction_with_dim", |c| Ok((ops::max(c.x()?, kept(c, 1))?, ops::argmax(c.x()?, kept(c, 1))?)));
    table.two("min.reduction_with_dim", |c| Ok((ops::min(c.x()?, kept(c, 1))?, ops::argmin(c.x()?, kept(c, 1))?)));
    table.unary("max.reduction_no_dim", |x| ops::max(x, ..));
    table.unary("min.reduction_no_dim", |x| ops::min(x, ..));
    table.one("all", |c| ops::all(c.x()?, c.reduced(1, "dim")));
    table.one("any", |c| ops::any(c.x()?, c.reduced(1, "dim")));
    table.one("count_nonzero", |c| ops::count_nonzero(c.x()?, c.axes(1, "dim")));
    table.one("logsumexp", |c| ops::logsumexp(c.x()?, c.reduced(1, "dim")));
    table.one("norm.fro", |c| ops::norm(c.x()?, 2.0, c.axes(2, "dim")));
    table.one("norm.inf", |c| ops::norm(c.x()?, c.float(1, "p").unwrap_or(2.0), c.axes(2, "dim")));
    table.one("dist", |c| ops::norm(&ops::sub(c.x()?, c.y()?)?, c.float(2, "p").unwrap_or(2.0), ..));
    moments(table);
    table.one("cumsum", |c| along(&cast_input(c)?, |x| ops::cumsum(x, c.int(1, "dim").unwrap_or(0))));
    table.one("cumprod", |c| along(&cast_input(c)?, |x| ops::cumprod(x, c.int(1, "dim").unwrap_or(0))));
    table.one("logcumsumexp", |c| along(c.x()?, |x| ops::logcumsumexp(x, c.int(1, "dim").unwrap_or(0))));
    table.two("cummax", |c| along_both(c.x()?, |x| ops::cummax(x, c.int(1, "dim").unwrap_or(0))));
    table.two("cummin", |c| along_both(c.x()?, |x| ops::cummin(x, c.int(1, "dim").unwrap_or(0))));
    table.one("softmax", |c| ops::softmax(c.x()?, c.axes(1, "dim")));
    table.one("softmax.with_dtype", |c| {
        ops::softmax(&ops::to_dtype(c.x()?, c.dtype(KEY, "dtype").unwrap_or(c.float))?, c.axes(1, "dim"))
    });
    table.one("log_softmax", |c| ops::log_softmax(c.x()?, c.axes(1, "dim")));
    table.unary("trace", ops::trace);
    table.one("diff", differences);
}

/// Returns the input in the requested dtype.
fn cast_input(c: &Call) -> Result<Tensor> {
    c.dtype(KEY, "dtype").map_or_else(|| c.x().cloned(), |dtype| ops::to_dtype(c.x()?, dtype))
}

/// Returns the axes argument (default: all axes), with `keepdim` as the following argument.
fn kept(c: &Call, at: usize) -> ops::Axes {
    let axes = c.axes(at, "dim");
    if c.flag(at.saturating_add(1), "keepdim") { axes.keepdims() } else { axes }
}

/// Applies `f` along an axis; a 0-d tensor is treated as a tensor of one element.
pub(super) fn along(x: &Tensor, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    if x.rank() > 0 { f(x) } else { ops::squeeze(&f(&ops::unsqueeze(x, 0)?)?, 0) }
}

/// Applies `f` like [`along`], for two outputs.
pub(super) fn along_both(x: &Tensor, f: impl FnOnce(&Tensor) -> Result<(Tensor, Tensor)>) -> Result<(Tensor, Tensor)> {
    if x.rank() > 0 {
        return f(x);
    }
    let (a, b) = f(&ops::unsqueeze(x, 0)?)?;
    Ok((ops::squeeze(&a, 0)?, ops::squeeze(&b, 0)?))
}

fn moments(table: &mut Binder) {
    let mean = |c: &Call| ops::mean(c.x()?, kept_by_name(c));
    table.one("var", variance);
    table.one("var.unbiased", variance);
    table.one("std", |c| ops::sqrt(&variance(c)?));
    table.one("std.unbiased", |c| ops::sqrt(&variance(c)?));
    for name in ["var_mean", "var_mean.unbiased"] {
        table.two(name, move |c| match full_axes(c) {
            Some(axes) => ops::var_mean(c.x()?, axes),
            None => Ok((variance(c)?, mean(c)?)),
        });
    }
    for name in ["std_mean", "std_mean.unbiased"] {
        table.two(name, move |c| match full_axes(c) {
            Some(axes) => ops::std_mean(c.x()?, axes),
            None => Ok((ops::sqrt(&variance(c)?)?, mean(c)?)),
        });
    }
}

fn kept_by_name(c: &Call) -> ops::Axes {
    let at = if matches!(c.get(1, "dim"), Some(crate::index::Argument::Bool(_))) { KEY } else { 1 };
    let axes = c.axes(at, "dim");
    if c.flag(if at == 1 { 3 } else { KEY }, "keepdim") { axes.keepdims() } else { axes }
}

pub(super) fn correction(c: &Call) -> f64 {
    let biased = [(1, "unbiased"), (2, "unbiased")]
        .into_iter()
        .any(|(at, name)| matches!(c.get(at, name), Some(crate::index::Argument::Bool(false))));
    c.float(KEY, "correction").unwrap_or(if biased { 0.0 } else { 1.0 })
}

/// Returns the axes if the correction is an integer. The corrections in the test data are arbitrary numbers; the
/// corrections of Pellucid are counts.
fn full_axes(c: &Call) -> Option<ops::Axes> {
    let correction = correction(c);
    (correction >= 0.0 && correction.fract() == 0.0).then(|| kept_by_name(c).ddof(correction as usize))
}

fn variance(c: &Call) -> Result<Tensor> {
    let (x, correction) = (c.x()?, correction(c));
    if let Some(axes) = full_axes(c) {
        return ops::var(x, axes);
    }
    let population = ops::var(x, kept_by_name(c))?;
    let count = x.size() as f64 / ops::sum(x, c.axes(KEY, "dim"))?.size() as f64;
    ops::mul(&population, count / (count - correction))
}

/// Computes the n-th difference along an axis of the prepended tensor, the input and the appended tensor.
fn differences(c: &Call) -> Result<Tensor> {
    let (order, axis) = (c.count(1, "n").or(if c.len() > 1 { Err(()) } else { Ok(1) }), c.int(2, "dim").unwrap_or(-1));
    let order = order.map_err(|()| Error::invalid("diff", "the order must be at least 0"))?;
    if order == 0 {
        return Ok(c.x()?.clone());
    }
    let parts = [c.optional(3, "prepend"), Some(c.x()?), c.optional(4, "append")];
    let y = ops::concatenate(&parts.into_iter().flatten().collect::<Vec<_>>(), axis)?;
    ops::diff(&y, order, axis)
}
