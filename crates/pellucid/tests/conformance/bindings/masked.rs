//! Masked reductions.

use super::Binder;
use super::reduce::{along, correction};
use crate::call::{Call, KEY};
use ops::Axes;
use pellucid::{DType, Result, Tensor, ops};

pub(super) fn bind(table: &mut Binder) {
    reduction(table, "masked.sum", ops::masked_sum);
    reduction(table, "masked.prod", ops::masked_prod);
    reduction(table, "masked.amax", ops::masked_max);
    reduction(table, "masked.amin", ops::masked_min);
    // The test data stores the indices of the extrema in the dtype of the input.
    reduction(table, "masked.argmax", |x, m, a| ops::to_dtype(&ops::masked_argmax(x, m, a)?, x.dtype()));
    reduction(table, "masked.argmin", |x, m, a| ops::to_dtype(&ops::masked_argmin(x, m, a)?, x.dtype()));
    reduction(table, "masked.mean", ops::masked_mean);
    reduction(table, "masked.logsumexp", ops::masked_logsumexp);
    reduction(table, "masked.median", |x, m, a| Ok(ops::masked_median(x, m, a)?.0));
    moments(table, "masked.var", ops::masked_var);
    moments(table, "masked.std", ops::masked_std);
    table.one("masked.norm", |c| {
        let order = c.float(1, "ord").unwrap_or(2.0);
        c.dtyped(|x| ops::masked_norm(x, &c.mask("mask")?, order, c.kept_axes(2)))
    });
    table.one("masked.normalize", |c| {
        let (order, axis) = (c.float(1, "ord").unwrap_or(2.0), c.int(2, "dim").unwrap_or(0));
        let eps = c.float(KEY, "eps").unwrap_or(1e-12);
        c.along_mask(|x, mask| ops::masked_normalize(x, mask, order, axis, eps))
    });
    running(table, "masked.softmax", ops::masked_softmax);
    running(table, "masked.softmin", ops::masked_softmin);
    running(table, "masked.log_softmax", ops::masked_log_softmax);
    running(table, "masked.cumsum", ops::masked_cumsum);
    running(table, "masked.cumprod", ops::masked_cumprod);
    table.one("masked.logaddexp", |c| {
        let masked = |x: &Tensor, mask: &str| ops::where_(&c.mask(mask)?, x, f64::NEG_INFINITY);
        ops::logaddexp(&masked(c.x()?, "input_mask")?, &masked(c.y()?, "other_mask")?)
    });
}

type Reduction = fn(&Tensor, &Tensor, Axes) -> Result<Tensor>;

fn reduction(table: &mut Binder, name: &'static str, f: Reduction) {
    table.one(name, move |c| c.dtyped(|x| f(x, &c.mask("mask")?, c.kept_axes(1))));
}

fn moments(table: &mut Binder, name: &'static str, f: Reduction) {
    table.one(name, move |c| {
        let (axes, correction, mask) = (c.kept_axes(1), correction(c), c.mask("mask")?);
        c.dtyped(|x| {
            let x = if x.dtype().is_float() { x.clone() } else { ops::to_dtype(x, DType::F32)? };
            let population = ops::masked_var(&x, &mask, axes.clone())?;
            let count = ops::masked_sum(&ops::ones_like(&x)?, &mask, axes.clone())?;
            let free = ops::maximum(&ops::sub(&count, correction)?, 0.0)?;
            let variance = ops::mul(&population, &ops::div(&count, &free)?)?;
            // The corrections in the test data are arbitrary numbers, but the corrections of Pellucid are counts.
            match correction >= 0.0 && correction.fract() == 0.0 {
                true => f(&x, &mask, axes.clone().ddof(correction as usize)),
                false if name == "masked.std" => ops::sqrt(&variance),
                false => Ok(variance),
            }
        })
    });
}

/// Binds an operation whose result has as many elements as x, along an axis.
fn running(table: &mut Binder, name: &'static str, f: Reduction) {
    table.one(name, move |c| {
        let axis = c.int(1, "dim").unwrap_or(0);
        c.along_mask(|x, mask| f(x, mask, axis.into()))
    });
}

impl Call<'_> {
    /// Returns the mask, or a mask that is true everywhere if the keyword is absent.
    fn mask(&self, name: &str) -> Result<Tensor> {
        match self.optional(KEY, name) {
            Some(mask) => ops::to_dtype(mask, DType::Bool),
            None => ops::full((), true, DType::Bool),
        }
    }

    /// Returns the axes argument at position `at`, with `keepdim`.
    fn kept_axes(&self, at: usize) -> Axes {
        let axes = self.axes(at, "dim");
        if self.flag(KEY, "keepdim") { axes.keepdims() } else { axes }
    }

    /// Reduces the input in the requested dtype.
    fn dtyped(&self, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        match self.dtype(KEY, "dtype") {
            Some(dtype) => f(&ops::to_dtype(self.x()?, dtype)?),
            None => f(self.x()?),
        }
    }

    /// Applies `f` along an axis of the input and its mask; a 0-d tensor is treated as a vector of one element.
    fn along_mask(&self, f: impl FnOnce(&Tensor, &Tensor) -> Result<Tensor>) -> Result<Tensor> {
        let mask = self.mask("mask")?;
        self.dtyped(|x| along(x, |x| f(x, &mask)))
    }
}
