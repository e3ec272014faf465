//! The initialization schemes: values for a shape and a dtype, named as in [`init`](super).

use super::{Fan, Nonlinearity, generator};
use pellucid_tensor::OptionRange;
use pellucid_tensor::ops::QrMode;
use pellucid_tensor::{DType, Error, Result, Shape, Tensor, formula, ops};
use std::f64::consts::SQRT_2;

pub(super) fn constant(shape: &Shape, dtype: DType, value: f64) -> Result<Tensor> {
    ops::full(shape, value, dtype)
}

pub(super) fn zeros(shape: &Shape, dtype: DType) -> Result<Tensor> {
    ops::zeros(shape, dtype)
}

pub(super) fn ones(shape: &Shape, dtype: DType) -> Result<Tensor> {
    ops::ones(shape, dtype)
}

pub(super) fn eye(shape: &Shape, dtype: DType) -> Result<Tensor> {
    let (rows, columns) = matrix("eye", shape)?;
    ops::eye(rows, columns, dtype)
}

pub(super) fn dirac(shape: &Shape, dtype: DType, groups: usize) -> Result<Tensor> {
    let op = "dirac";
    let [outputs, inputs, taps @ ..] = shape.dims() else {
        return Err(Error::shapes(op, [shape], "the weight must have shape [out, in / groups, taps..]"));
    };
    if !(1..=3).contains(&taps.len()) || groups == 0 || !outputs.is_multiple_of(groups) {
        let help = format!(
            "the weight must have shape [out, in / groups, taps..], and `out` must be a multiple of the {groups} groups"
        );
        return Err(Error::shapes(op, [shape], help));
    }
    // 1 if the input channel equals the output channel within its group and every tap is the middle one.
    let length = |len: usize| i64::try_from(len).map_err(|_| Error::size_overflow());
    let count = |len: usize| ops::arange(0, length(len)?, 1, DType::I64);
    let channel_in_group = ops::rem(&count(*outputs)?, (outputs / groups).max(1) as i64)?;
    let mut weight = ops::eq(&ops::unsqueeze(&channel_in_group, 1)?, &count(*inputs)?)?;
    for &len in taps {
        weight = ops::logical_and(&ops::unsqueeze(&weight, -1)?, &ops::eq(&count(len)?, (len / 2) as i64)?)?;
    }
    ops::to_dtype(&weight, dtype)
}

pub(super) fn uniform(shape: &Shape, dtype: DType, low: f64, high: f64) -> Result<Tensor> {
    let is_finite_interval = low <= high && (high - low).is_finite();
    if !shape.contains(&0) && !is_finite_interval {
        return Err(Error::invalid("uniform", format!("expected finite low <= high, got {low} and {high}")));
    }
    let u = ops::rand_with(shape, dtype, &generator())?;
    let params = [low.into(), (high - low).into()];
    ops::map(formula!(|u; low, width| low + u * width), &[&u], &params)
}

pub(super) fn normal(shape: &Shape, dtype: DType, mean: f64, std: f64) -> Result<Tensor> {
    if !(std.is_finite() && std >= 0.0) {
        let reason = format!("the standard deviation must be finite and at least 0, got {std}");
        return Err(Error::invalid("normal", reason));
    }
    let z = ops::randn_with(shape, dtype, &generator())?;
    ops::map(formula!(|z; mean, std| mean + z * std), &[&z], &[mean.into(), std.into()])
}

pub(super) fn trunc_normal(shape: &Shape, dtype: DType, mean: f64, std: f64, low: f64, high: f64) -> Result<Tensor> {
    if !(std > 0.0 && low < high) {
        let reason = format!("`std` must be above 0 and `low` below `high`, got std {std}, low {low} and high {high}");
        return Err(Error::invalid("trunc_normal", reason));
    }
    // Inverse transform sampling: uniform numbers between the CDF values of both ends, through the quantile function
    // (erf).
    let u = ops::rand_with(shape, DType::F64, &generator())?;
    let quantile = formula!(|u; mean, low, high, scale| {
        let (first, last) = (((low - mean) / scale).erf(), ((high - mean) / scale).erf());
        (mean + (first + u * (last - first)).erfinv() * scale).max(low).min(high)
    });
    let params = [mean, low, high, std * SQRT_2].map(Into::into);
    ops::to_dtype(&ops::map(quantile, &[&u], &params)?, dtype)
}

/// Returns uniform values with mean 0 and this standard deviation.
fn uniform_with_std(shape: &Shape, dtype: DType, std: f64) -> Result<Tensor> {
    let bound = (3f64.sqrt() * std).abs();
    uniform(shape, dtype, -bound, bound)
}

/// Returns the standard deviation of Glorot & Bengio.
fn xavier(op: &'static str, shape: &Shape, gain: f64) -> Result<f64> {
    let (inputs, outputs) = Fan::both(op, shape)?;
    Ok(gain * (2.0 / inputs.saturating_add(outputs).max(1) as f64).sqrt())
}

/// Returns the standard deviation of He et al.
fn kaiming(op: &'static str, shape: &Shape, fan: Fan, nonlinearity: Nonlinearity) -> Result<f64> {
    Ok(nonlinearity.gain() / (fan.count(op, shape)?.max(1) as f64).sqrt())
}

pub(super) fn xavier_uniform(shape: &Shape, dtype: DType, gain: f64) -> Result<Tensor> {
    uniform_with_std(shape, dtype, xavier("xavier_uniform", shape, gain)?)
}

pub(super) fn xavier_normal(shape: &Shape, dtype: DType, gain: f64) -> Result<Tensor> {
    normal(shape, dtype, 0.0, xavier("xavier_normal", shape, gain)?)
}

pub(super) fn kaiming_uniform(shape: &Shape, dtype: DType, fan: Fan, nonlinearity: Nonlinearity) -> Result<Tensor> {
    uniform_with_std(shape, dtype, kaiming("kaiming_uniform", shape, fan, nonlinearity)?)
}

pub(super) fn kaiming_normal(shape: &Shape, dtype: DType, fan: Fan, nonlinearity: Nonlinearity) -> Result<Tensor> {
    normal(shape, dtype, 0.0, kaiming("kaiming_normal", shape, fan, nonlinearity)?)
}

pub(super) fn orthogonal(shape: &Shape, dtype: DType, gain: f64) -> Result<Tensor> {
    let op = "orthogonal";
    let [rows, rest @ ..] = shape.dims() else {
        return Err(Error::shapes(op, [shape], "the tensor must have at least two axes for orthogonal initialization"));
    };
    if rest.is_empty() {
        return Err(Error::shapes(op, [shape], "the tensor must have at least two axes for orthogonal initialization"));
    }
    let (rows, columns) = (*rows, rest.iter().product::<usize>());
    // Q of a normal matrix is uniformly distributed once its columns have the signs of R's diagonal (Mezzadri 2007).
    // QR is not available in half precision.
    let wide = dtype.promote(DType::F32);
    let tall = ops::randn_with([rows.max(columns), rows.min(columns)], wide, &generator())?;
    let (q, r) = ops::qr(&tall, QrMode::Reduced)?;
    let signs = ops::where_(&ops::lt(&ops::diagonal(&r, 0, 0, 1)?, 0.0)?, -gain, &ops::full((), gain, wide)?)?;
    let q = ops::mul(&q, &signs)?;
    let q = if rows < columns { ops::transpose(&q, 0, 1)? } else { q };
    ops::to_dtype(&ops::reshape(&q, shape)?, dtype)
}

pub(super) fn sparse(shape: &Shape, dtype: DType, sparsity: f64, std: f64) -> Result<Tensor> {
    let op = "sparse";
    let (rows, _) = matrix(op, shape)?;
    OptionRange::PROBABILITY.check(op, "sparsity", sparsity, 0.1)?;
    let zeros = (sparsity * rows as f64).ceil() as i64;
    // A random order of the positions in every column; the first ones are 0.
    let keys = ops::rand_with(shape, DType::F64, &generator())?;
    let order = ops::argsort(&ops::argsort(&keys, 0, false)?, 0, false)?;
    ops::where_(&ops::lt(&order, zeros)?, 0.0, &normal(shape, dtype, 0.0, std)?)
}

/// Returns the row and column counts.
fn matrix(op: &'static str, shape: &Shape) -> Result<(usize, usize)> {
    match shape.dims() {
        &[rows, columns] => Ok((rows, columns)),
        _ => Err(Error::shapes(op, [shape], "the tensor must be a matrix")),
    }
}
