//! Batch, instance, group and local response normalization of images `[N, C, ..]`.

use super::standardized;
use crate::grad_mode::no_grad;
use crate::ops::call::axes::check_reduction_rank;
use crate::ops::call::{axes, check};
use crate::ops::elementwise::arithmetic;
use crate::ops::index::in_place;
use crate::ops::nn::window::window_sums;
use crate::ops::primitive::copy;
use crate::ops::primitive::precision::in_single;
use crate::ops::primitive::view::reshape_to;
use crate::ops::reduce::reductions;
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::kernel::{AxisSet, Window};
use pellucid_ir::{DType, Error, Result, Shape};

/// The running means and unbiased variances of the channels, both `[C]`. Training updates them.
#[derive(Clone, Copy, Debug)]
pub struct RunningStatistics<'a> {
    /// The mean of each channel.
    pub mean: &'a Tensor,
    /// The variance of each channel.
    pub var: &'a Tensor,
}

/// Options of [`batch_norm`] and [`instance_norm`]. The default trains, with momentum 0.1 and eps 1e-5.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BatchNormOptions {
    /// Whether to normalize by the statistics of x, and to update the running statistics, if given. Otherwise the
    /// running statistics normalize x.
    pub training: bool,
    /// The weight of new statistics in the update: running ← (1 − momentum)·running + momentum·new.
    pub momentum: f64,
    /// ε, which is added to the variance for numerical stability.
    pub eps: f64,
}

impl Default for BatchNormOptions {
    fn default() -> BatchNormOptions {
        BatchNormOptions { training: true, momentum: 0.1, eps: 1e-5 }
    }
}

/// Returns an error unless eps and momentum are finite.
fn check_options(op: &'static str, options: BatchNormOptions) -> Result<()> {
    check::finite(op, "eps", options.eps)?;
    check::finite(op, "momentum", options.momentum)
}

/// Checks that x is `[N, C, ..]` of floats, and that each tensor of `others` has one value per channel.
fn check_channels(op: &'static str, x: &Tensor, min_rank: usize, others: &[Option<&Tensor>]) -> Result<()> {
    if x.rank() < min_rank {
        return Err(Error::shapes(
            op,
            [x.shape()],
            format!("the input must be [N, C, ..], with at least {min_rank} axes; unsqueeze() adds one"),
        ));
    }
    check::floats(op, &[x])?;
    check_reduction_rank(op, x.shape())?;
    match others.iter().flatten().find(|t| t.shape()[..] != [x.shape()[1]]) {
        Some(other) => {
            let help = format!(
                "the input has {} channels on axis 1, so weight, bias and statistics must have one value per channel, but \
                 one has shape {}; if the channels are on another axis, permute() the input",
                x.shape()[1],
                other.shape()
            );
            Err(Error::shapes(op, [x.shape(), other.shape()], help))
        }
        None => Ok(()),
    }
}

/// Reshapes one value per channel to broadcast with `[N, C, ..]`.
fn per_channel(values: Option<&Tensor>, rank: usize) -> Result<Option<Tensor>> {
    let shape = |t: &Tensor| -> Shape { (0..rank).map(|a| if a == 1 { t.size() } else { 1 }).collect() };
    values.map(|t| reshape_to(t, &shape(t))).transpose()
}

/// Computes (x − mean) / √(var + eps)·weight + bias with running statistics.
fn normalize_by_running(
    op: &'static str,
    x: &Tensor,
    running: Option<RunningStatistics<'_>>,
    affine: [Option<&Tensor>; 2],
    eps: f64,
) -> Result<Tensor> {
    let Some(running) = running else {
        return Err(Error::invalid(op, "evaluation mode needs running statistics; pass `running`"));
    };
    let (RunningStatistics { mean, var }, [weight, bias]) = (running, affine);
    in_single!(op, [x, mean, var; weight, bias] =>
        normalize_by_running(op, x, Some(RunningStatistics { mean, var }), [weight, bias], eps));
    let at = |t| per_channel(Some(t), x.rank()).map(|t| t.expect("running statistics must have one value per channel"));
    let scale = arithmetic::rsqrt(&arithmetic::add(&at(running.var)?, eps)?)?;
    let mut y = arithmetic::mul(&arithmetic::sub(x, &at(running.mean)?)?, &scale)?;
    if let Some(weight) = per_channel(affine[0], x.rank())? {
        y = arithmetic::mul(&y, &weight)?;
    }
    match per_channel(affine[1], x.rank())? {
        Some(bias) => arithmetic::add(&y, &bias),
        None => Ok(y),
    }
}

/// Updates running statistics by the statistics of x over `axes`. If the batch axis is not among them, the statistics
/// are averaged over the batch. An empty x has no statistics and changes nothing.
fn update_running(
    op: &'static str,
    x: &Tensor,
    running: RunningStatistics<'_>,
    axes: &[isize],
    momentum: f64,
) -> Result<()> {
    if x.size() == 0 {
        return Ok(());
    }
    let _off = no_grad();
    // All checks precede the first write: both statistics are written, or neither.
    in_place::check_writable(op, running.mean)?;
    in_place::check_writable(op, running.var)?;
    let single = |t: Tensor| copy::to_dtype(&t, t.dtype().promote(DType::F32));
    let x = single(x.detach())?;
    let over = || axes::over(axes);
    let batch_mean = |t: &Tensor| if t.rank() > 1 { reductions::mean(t, 0) } else { Ok(t.clone()) };
    for (slot, new) in
        [(running.mean, reductions::mean(&x, over())?), (running.var, reductions::var(&x, over().ddof(1))?)]
    {
        let decayed = arithmetic::mul(single(slot.detach())?, 1.0 - momentum)?;
        in_place::copy_(slot, &arithmetic::add(&decayed, &arithmetic::mul(&batch_mean(&new)?, momentum)?)?)?;
    }
    Ok(())
}

/// Normalizes x by its statistics over `axes`, and updates the running statistics.
fn normalize_by_input(
    op: &'static str,
    x: &Tensor,
    running: Option<RunningStatistics<'_>>,
    affine: [Option<&Tensor>; 2],
    options: BatchNormOptions,
    axes: &[isize],
) -> Result<Tensor> {
    let rows: AxisSet = axes.iter().map(|&a| a as usize).collect();
    let [weight, bias] = [per_channel(affine[0], x.rank())?, per_channel(affine[1], x.rank())?];
    let y = standardized(x, weight.as_ref(), bias.as_ref(), options.eps, rows)?;
    if let Some(running) = running {
        update_running(op, x, running, axes, options.momentum)?;
    }
    Ok(y)
}

/// Applies batch normalization (Ioffe & Szegedy 2015): (x − mean) / √(var + eps)·weight + bias for each channel.
///
/// x is `[N, C, ..]`, and weight and bias are `[C]`. In training, mean and (biased) variance are computed for each
/// channel over all other axes, and running statistics are updated in place. Otherwise the running statistics are used.
/// An x of shape `[0]` is an empty batch without channels. In training, x may have the range that
/// [`layer_norm`](crate::ops::layer_norm()) documents.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::InvalidArgument`] in training with a single value per
/// channel, which has no variance; without training if there are no running statistics; and for an eps or momentum that
/// is not finite.
#[tensor_method(autocast = Single)]
pub fn batch_norm(
    x: &Tensor,
    running: Option<RunningStatistics<'_>>,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    options: BatchNormOptions,
) -> Result<Tensor> {
    let op = "batch_norm";
    check_options(op, options)?;
    let BatchNormOptions { training, eps, .. } = options;
    if x.shape()[..] == [0] {
        let y = batch_norm(&reshape_to(x, &[0, 0].into())?, running, weight, bias, options)?;
        return reshape_to(&y, x.shape());
    }
    check_channels(op, x, 2, &[running.map(|r| r.mean), running.map(|r| r.var), weight, bias])?;
    if !training {
        return normalize_by_running(op, x, running, [weight, bias], eps);
    }
    let axes: Vec<isize> = (0..x.rank() as isize).filter(|&a| a != 1).collect();
    if x.size() == x.shape()[1] && x.size() > 0 {
        let reason = format!(
            "training requires more than one value per channel, got an input of shape {}; use a larger batch (drop_last(true) of \
             Batches, or `drop_last: true` of a DataLoader, drops an incomplete last batch), or evaluate with eval()",
            x.shape()
        );
        return Err(Error::invalid(op, reason));
    }
    normalize_by_input(op, x, running, [weight, bias], options, &axes)
}

/// Applies instance normalization (Ulyanov, Vedaldi & Lempitsky 2016), to each channel of each image separately.
///
/// It computes (x − mean) / √(var + eps)·weight + bias for x `[N, C, ..]`, with statistics over the spatial axes.
/// Running statistics are averaged over the images. In training, x may have the range that
/// [`layer_norm`](crate::ops::layer_norm()) documents.
///
/// # Errors
/// The errors of [`batch_norm`]; [`Error::InvalidArgument`] in training with a single spatial element.
#[tensor_method(autocast = Single)]
pub fn instance_norm(
    x: &Tensor,
    running: Option<RunningStatistics<'_>>,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    options: BatchNormOptions,
) -> Result<Tensor> {
    let op = "instance_norm";
    check_options(op, options)?;
    let BatchNormOptions { training, eps, .. } = options;
    check_channels(op, x, 3, &[running.map(|r| r.mean), running.map(|r| r.var), weight, bias])?;
    if !training {
        return normalize_by_running(op, x, running, [weight, bias], eps);
    }
    if x.shape()[2..].iter().product::<usize>() == 1 {
        let reason = format!(
            "training requires more than one spatial element, got an input of shape {}; use larger images, or evaluate with eval()",
            x.shape()
        );
        return Err(Error::invalid(op, reason));
    }
    let axes: Vec<isize> = (2..x.rank() as isize).collect();
    normalize_by_input(op, x, running, [weight, bias], options, &axes)
}

/// Applies group normalization (Wu & He 2018), to each group of channels of each image separately.
///
/// It computes (x − mean) / √(var + eps)·weight + bias for x `[N, C, ..]`, with statistics over a group of channels and
/// the spatial axes; weight and bias are `[C]`. [`layer_norm`](crate::ops::layer_norm()) documents the range of x.
///
/// # Errors
/// [`Error::ShapeMismatch`] if the groups do not divide the channels; [`Error::DTypeMismatch`];
/// [`Error::InvalidArgument`] for an eps that is not finite.
#[tensor_method]
pub fn group_norm(
    x: &Tensor,
    groups: usize,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<Tensor> {
    let op = "group_norm";
    check_channels(op, x, 2, &[weight, bias])?;
    check::finite(op, "eps", eps)?;
    let (n, channels) = (x.shape()[0], x.shape()[1]);
    if groups == 0 || channels == 0 || !channels.is_multiple_of(groups) {
        let help = format!("{channels} channels are not divisible into {groups} groups");
        return Err(Error::shapes(op, [x.shape()], help));
    }
    let each = channels / groups;
    let inside = x.shape()[2..].iter().product::<usize>();
    if inside == 0 {
        return Err(Error::shapes(op, [x.shape()], "the input must have at least one spatial element"));
    }
    let per_group = |t: Option<&Tensor>| t.map(|t| reshape_to(t, &[1, groups, each, 1].into())).transpose();
    let (weight, bias) = (per_group(weight)?, per_group(bias)?);
    let grouped = reshape_to(x, &[n, groups, each, inside].into())?;
    let y = standardized(&grouped, weight.as_ref(), bias.as_ref(), eps, [2, 3].into_iter().collect())?;
    reshape_to(&y, x.shape())
}

/// Applies local response normalization (Krizhevsky, Sutskever & Hinton 2012): x / (k + alpha·m)^beta for x
/// `[N, C, ..]`.
///
/// m is the mean of x² over `size` neighbouring channels, with zeros beyond the ends. The squares must be
/// representable: for magnitudes above 1.8e19 in `f32` and half precision, and above 1.3e154 in `f64`, the result is 0.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::InvalidArgument`] for a size of 0, and for an option
/// that is not finite.
#[tensor_method(autocast = Single)]
pub fn local_response_norm(x: &Tensor, size: usize, alpha: f64, beta: f64, k: f64) -> Result<Tensor> {
    let op = "local_response_norm";
    check_channels(op, x, 3, &[])?;
    if size == 0 {
        return Err(Error::invalid(op, "the size must be at least 1"));
    }
    [("alpha", alpha), ("beta", beta), ("k", k)].into_iter().try_for_each(|(name, x)| check::finite(op, name, x))?;
    if x.size() == 0 {
        return Ok(x.clone());
    }
    in_single!(op, [x] => local_response_norm(x, size, alpha, beta, k));
    let (n, channels) = (x.shape()[0], x.shape()[1]);
    let columns = reshape_to(&arithmetic::mul(x, x)?, &[n, channels, x.shape()[2..].iter().product(), 1].into())?;
    // Channels beyond the ends are zeros, so the window needs at most C − 1 neighbours on each side.
    let (before, after) = ((size / 2).min(channels - 1), ((size - 1) / 2).min(channels - 1));
    let length = before + after + 1;
    let window = Window { size: [length, 1, 1], stride: [1; 3], dilation: [1; 3], before: [before, 0, 0] };
    let sums = window_sums(op, &columns, window, [channels, columns.shape()[2], 1])?;
    let scale = arithmetic::add(&arithmetic::mul(&sums, alpha / size as f64)?, k)?;
    arithmetic::div(x, &reshape_to(&arithmetic::pow(&scale, beta)?, x.shape())?)
}
