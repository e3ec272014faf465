//! Normalization.

use super::Binder;
use crate::call::Call;
use pellucid::ops::{self, Axes, BatchNormOptions, RunningStatistics, over};
use pellucid::{DType, Result, Tensor};

pub(super) fn bind(table: &mut Binder) {
    table.one("nn.functional.layer_norm", |c| {
        let shape = shape(c.ints(1, "normalized_shape"));
        let eps = c.float(4, "eps").unwrap_or(1e-5);
        ops::layer_norm(c.x()?, shape, c.optional(2, "weight"), c.optional(3, "bias"), eps)
    });
    table.one("nn.functional.rms_norm", |c| {
        let least = if c.float == DType::F32 { f64::from(f32::EPSILON) } else { f64::EPSILON };
        let eps = c.float(3, "eps").unwrap_or(least);
        ops::rms_norm(c.x()?, shape(c.ints(1, "normalized_shape")), c.optional(2, "weight"), eps)
    });
    table.one("nn.functional.group_norm", |c| {
        let eps = c.float(4, "eps").unwrap_or(1e-5);
        ops::group_norm(c.x()?, c.count(1, "num_groups")?, c.optional(2, "weight"), c.optional(3, "bias"), eps)
    });
    for name in ["nn.functional.batch_norm", "nn.functional.batch_norm.without_cudnn"] {
        table.one(name, |c| {
            let options = options(c, c.flag(5, "training"));
            ops::batch_norm(c.x()?, running(c), c.optional(3, "weight"), c.optional(4, "bias"), options)
        });
    }
    table.one("nn.functional.instance_norm", |c| {
        let own = c.get(5, "use_input_stats").is_none() || c.flag(5, "use_input_stats");
        ops::instance_norm(c.x()?, running(c), c.optional(3, "weight"), c.optional(4, "bias"), options(c, own))
    });
    natives(table);
    table.one("nn.functional.local_response_norm", |c| {
        let number = |at, name, other| c.float(at, name).unwrap_or(other);
        let (alpha, beta, k) = (number(2, "alpha", 1e-4), number(3, "beta", 0.75), number(4, "k", 1.0));
        ops::local_response_norm(c.x()?, c.count(1, "size")?, alpha, beta, k)
    });
}

/// Binds normalizations that also return the mean and 1/√(variance + ε).
fn natives(table: &mut Binder) {
    table.many("native_layer_norm", |c| {
        let (x, shape, eps) = (c.x()?, shape(c.ints(1, "normalized_shape")), c.float(4, "eps").unwrap_or(1e-5));
        let axes: Vec<isize> = (1..=shape.len() as isize).map(|k| -k).collect();
        let (mean, scale) = moments(x, over(axes).keepdims(), eps)?;
        Ok(vec![ops::layer_norm(x, shape, c.optional(2, "weight"), c.optional(3, "bias"), eps)?, mean, scale])
    });
    table.many("native_group_norm", |c| {
        let (x, images, groups) = (c.x()?, c.count(3, "N")?, c.count(6, "group")?);
        let eps = c.float(7, "eps").unwrap_or(1e-5);
        let rows = ops::reshape(x, [images, groups, x.size() / (images * groups).max(1)])?;
        let (mean, scale) = moments(&rows, over(-1), eps)?;
        Ok(vec![ops::group_norm(x, groups, c.optional(1, "weight"), c.optional(2, "bias"), eps)?, mean, scale])
    });
    table.many("native_batch_norm", |c| {
        let (x, training, eps) = (c.x()?, c.flag(5, "training"), c.float(7, "eps").unwrap_or(1e-5));
        let pair = c.optional(3, "running_mean").zip(c.optional(4, "running_var"));
        let running = pair.map(|(mean, var)| RunningStatistics { mean, var });
        let y = ops::batch_norm(x, running, c.optional(1, "weight"), c.optional(2, "bias"), options(c, training))?;
        let axes: Vec<isize> = (0..x.rank() as isize).filter(|&axis| axis != 1).collect();
        let none = || ops::zeros([0], x.dtype());
        let (mean, scale) = if training { moments(x, over(axes), eps)? } else { (none()?, none()?) };
        Ok(vec![y, mean, scale])
    });
}

/// Returns the mean and 1/√(variance + ε).
fn moments(x: &Tensor, axes: Axes, eps: f64) -> Result<(Tensor, Tensor)> {
    let (variance, mean) = ops::var_mean(x, axes)?;
    Ok((mean, ops::rsqrt(&ops::add(&variance, eps)?)?))
}

fn shape(lengths: Option<Vec<isize>>) -> Vec<usize> {
    lengths.unwrap_or_default().iter().map(|&d| d as usize).collect()
}

/// Returns the running statistics of a call.
fn running<'a>(c: &'a Call<'_>) -> Option<RunningStatistics<'a>> {
    let pair = c.optional(1, "running_mean").zip(c.optional(2, "running_var"));
    pair.map(|(mean, var)| RunningStatistics { mean, var })
}

fn options(c: &Call, training: bool) -> BatchNormOptions {
    let (momentum, eps) = (c.float(6, "momentum").unwrap_or(0.1), c.float(7, "eps").unwrap_or(1e-5));
    BatchNormOptions { training, momentum, eps }
}
