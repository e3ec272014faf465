//! The initialization schemes: values for a shape and a dtype, named as in [`init`](super).

use super::{Fan, Nonlinearity, generator};
use pellucid_tensor::OptionRange;
use pellucid_tensor::formula::Expr;
use pellucid_tensor::ops::QrMode;
use pellucid_tensor::{DType, Error, Result, Shape, Tensor, formula, ops};
use std::f64::consts::{FRAC_1_SQRT_2, SQRT_2};

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
        return Err(Error::invalid(
            "uniform",
            format!("`low` must be at most `high`, and their difference finite, got low {low} and high {high}"),
        ));
    }
    let u = ops::rand_with(shape, dtype, &generator())?;
    let params = [low.into(), (high - low).into()];
    ops::map(formula!(|u; low, width| low + u * width), &[&u], &params)
}

pub(super) fn normal(shape: &Shape, dtype: DType, mean: f64, std: f64) -> Result<Tensor> {
    let op = "normal";
    OptionRange::FINITE.check(op, "mean", mean, 0.0)?;
    OptionRange::NONNEGATIVE.check(op, "std", std, 1.0)?;
    let z = ops::randn_with(shape, dtype, &generator())?;
    ops::map(formula!(|z; mean, std| mean + z * std), &[&z], &[mean.into(), std.into()])
}

/// Draws values from a truncated normal distribution by inverse transform sampling. The bounds may be infinite.
pub(super) fn trunc_normal(shape: &Shape, dtype: DType, mean: f64, std: f64, low: f64, high: f64) -> Result<Tensor> {
    let op = "trunc_normal";
    OptionRange::FINITE.check(op, "mean", mean, 0.0)?;
    OptionRange::POSITIVE.check(op, "std", std, 1.0)?;
    if low.is_nan() || high.is_nan() || low >= high {
        return Err(Error::invalid(op, format!("`low` must be below `high`, got low {low} and high {high}")));
    }
    let u = ops::rand_with(shape, DType::F64, &generator())?;
    let values = if low >= mean {
        half_normal_quantile(&u, mean, std, [low, high])
    } else if high <= mean {
        let reflected = half_normal_quantile(&u, -mean, std, [-high, -low])?;
        ops::neg(&reflected)
    } else {
        // The quantile function of the normal distribution, applied to uniform numbers between the probabilities of
        // both bounds.
        let quantile = formula!(|u; mean, low, high, scale, largest| {
            let (first, last) = (((low - mean) / scale).erf(), ((high - mean) / scale).erf());
            let x = (first + u * (last - first)).max(-largest).min(largest).erfinv();
            (mean + x * scale).max(low).min(high)
        });
        // erf⁻¹ is infinite at 1, but finite at the largest number below 1.
        let params = [mean, low, high, std * SQRT_2, 1.0f64.next_down()].map(Into::into);
        ops::map(quantile, &[&u], &params)
    };
    ops::to_dtype(&values?, dtype)
}

/// The bound in standard deviations above which the tail of the normal distribution is approximated by the tail of a
/// Rayleigh distribution. Their densities then differ by a factor of about 1 + 1/30². The tail's probability underflows
/// at 38 standard deviations.
const RAYLEIGH_BOUND: f64 = 30.0;

/// Returns the quantiles at levels u of a normal distribution that is truncated to an interval above the mean. In the
/// tail, differences of distribution functions near 1 cancel, so this function uses ratios of S(z) = erfc(z/√2)/2.
fn half_normal_quantile(u: &Tensor, mean: f64, std: f64, [low, high]: [f64; 2]) -> Result<Tensor> {
    let (a, b) = ((low - mean) / std, (high - mean) / std);
    // (1 − u·(1 − S(b)/S(a)))·S(a) is uniform between S(b) and S(a).
    let normal = formula!(|u; mean, std, low, high, a, b| {
        let scaled = |z: Expr| (z * FRAC_1_SQRT_2).erfcx();
        let ratio = (0.5 * (a - b) * (a + b)).exp() * scaled(b) / scaled(a);
        let z = -((1.0 - u * (1.0 - ratio)) * (0.5 * (-0.5 * a * a).exp() * scaled(a))).ndtri();
        (mean + std * z).max(low).min(high)
    });
    let rayleigh = formula!(|u; mean, std, low, high, a, b| {
        let ratio = (0.5 * (a - b) * (a + b)).exp();
        let z = a * (1.0 - 2.0 * (-u * (1.0 - ratio)).ln_1p() / a / a).sqrt();
        (mean + std * z).max(low).min(high)
    });
    let quantile = if a < RAYLEIGH_BOUND { normal } else { rayleigh };
    ops::map(quantile, &[u], &[mean, std, low, high, a, b].map(Into::into))
}

/// Returns uniform values with mean 0 and this standard deviation.
fn uniform_with_std(shape: &Shape, dtype: DType, std: f64) -> Result<Tensor> {
    let bound = 3f64.sqrt() * std;
    uniform(shape, dtype, -bound, bound)
}

/// Returns the standard deviation of Xavier initialization (Glorot & Bengio 2010).
fn xavier(op: &'static str, shape: &Shape, gain: f64) -> Result<f64> {
    OptionRange::NONNEGATIVE.check(op, "gain", gain, 1.0)?;
    let (inputs, outputs) = Fan::both(op, shape)?;
    Ok(gain * (2.0 / inputs.saturating_add(outputs).max(1) as f64).sqrt())
}

/// Returns the standard deviation of Kaiming initialization (He et al. 2015).
fn kaiming(op: &'static str, shape: &Shape, fan: Fan, nonlinearity: Nonlinearity) -> Result<f64> {
    let gain = nonlinearity.gain();
    OptionRange::NONNEGATIVE.check(op, "gain", gain, 1.0)?;
    Ok(gain / (fan.count(op, shape)?.max(1) as f64).sqrt())
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
    OptionRange::FINITE.check(op, "gain", gain, 1.0)?;
    let [rows, rest @ ..] = shape.dims() else {
        return Err(Error::shapes(op, [shape], "the tensor must have at least two axes for orthogonal initialization"));
    };
    if rest.is_empty() {
        return Err(Error::shapes(op, [shape], "the tensor must have at least two axes for orthogonal initialization"));
    }
    let (rows, columns) = (*rows, rest.iter().fold(1usize, |product, &len| product.saturating_mul(len)));
    // Q of a normal matrix is uniformly distributed once its columns have the signs of R's diagonal (Mezzadri 2007).
    // QR is not available in half precision.
    let wide = dtype.promote(DType::F32);
    let gaussian = ops::randn_with([rows.max(columns), rows.min(columns)], wide, &generator())?;
    let (q, r) = ops::qr(&gaussian, QrMode::Reduced)?;
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
    // The positions of every column get random ranks, and those with the lowest ranks become 0.
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
