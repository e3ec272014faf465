//! Normalisation of images `[N, C, ..]`: of channels over a batch, of each image's channels, of groups of channels.

use super::standardized;
use crate::autograd::no_grad;
use crate::ops::precision::in_single;
use crate::ops::window::window_sums;
use crate::ops::{self, check, reshape_to};
use crate::tensor::Tensor;
use pellucid_derive::tensor_method;
use pellucid_ir::kernel::{AxisSet, Window};
use pellucid_ir::{DType, Error, Result, Shape};

/// The mean and the (unbiased) variance of each channel as they were seen in training, both `[C]`.
#[derive(Clone, Copy, Debug)]
pub struct RunningStatistics<'a> {
    /// The means.
    pub mean: &'a Tensor,
    /// The variances.
    pub var: &'a Tensor,
}

/// How [`batch_norm`] and [`instance_norm`] normalise. The default trains, with momentum 0.1 and eps 1e-5.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BatchNorm {
    /// Whether x's own statistics are used (and running ones, if there are any, come nearer to them), or the running
    /// ones.
    pub training: bool,
    /// The weight of new statistics: running ← (1 − momentum)·running + momentum·new.
    pub momentum: f64,
    /// What is added to the variance.
    pub eps: f64,
}

impl Default for BatchNorm {
    fn default() -> BatchNorm {
        BatchNorm { training: true, momentum: 0.1, eps: 1e-5 }
    }
}

/// x is `[N, C, ..]` of floats, and each of `others` has one number a channel.
fn check(op: &'static str, x: &Tensor, least: usize, others: &[Option<&Tensor>]) -> Result<()> {
    if x.rank() < least {
        return Err(Error::shapes(op, [x.shape()], format!("takes [N, C, ..], of at least {least} axes")));
    }
    if !x.dtype().is_float() {
        return Err(Error::dtypes(op, [x.dtype()], "takes floats; use to_dtype()"));
    }
    check::reducible(op, x.shape())?;
    match others.iter().flatten().find(|t| t.shape()[..] != [x.shape()[1]]) {
        Some(other) => {
            Err(Error::shapes(op, [x.shape(), other.shape()], "weight, bias and statistics have one number a channel"))
        }
        None => Ok(()),
    }
}

/// One number a channel, beside `[N, C, ..]`.
fn beside(values: Option<&Tensor>, rank: usize) -> Result<Option<Tensor>> {
    let shape = |t: &Tensor| -> Shape { (0..rank).map(|a| if a == 1 { t.size() } else { 1 }).collect() };
    values.map(|t| reshape_to(t, &shape(t))).transpose()
}

/// (x − mean) / √(var + eps)·weight + bias by running statistics.
fn fixed(
    op: &'static str,
    x: &Tensor,
    running: Option<RunningStatistics<'_>>,
    affine: [Option<&Tensor>; 2],
    eps: f64,
) -> Result<Tensor> {
    let Some(running) = running else {
        return Err(Error::invalid(op, "without training there must be running statistics"));
    };
    let (RunningStatistics { mean, var }, [weight, bias]) = (running, affine);
    in_single!(op, [x, mean, var; weight, bias] =>
        fixed(op, x, Some(RunningStatistics { mean, var }), [weight, bias], eps));
    let at = |t| beside(Some(t), x.rank()).map(|t| t.expect("one a channel"));
    let scale = ops::rsqrt(&ops::add(&at(running.var)?, eps)?)?;
    let mut y = ops::mul(&ops::sub(x, &at(running.mean)?)?, &scale)?;
    if let Some(weight) = beside(affine[0], x.rank())? {
        y = ops::mul(&y, &weight)?;
    }
    match beside(affine[1], x.rank())? {
        Some(bias) => ops::add(&y, &bias),
        None => Ok(y),
    }
}

/// Brings running statistics nearer to those over `axes`, averaged over what is left beside the channels. Nothing has
/// none, and leaves them alone.
fn observe(op: &'static str, x: &Tensor, running: RunningStatistics<'_>, axes: &[isize], momentum: f64) -> Result<()> {
    if x.size() == 0 {
        return Ok(());
    }
    let _off = no_grad();
    // Both can be written, or neither is.
    ops::writable(op, running.mean)?;
    ops::writable(op, running.var)?;
    let single = |t: Tensor| ops::to_dtype(&t, t.dtype().promote(DType::F32));
    let x = single(x.detach())?;
    let over = || ops::over(axes);
    let rest = |t: &Tensor| if t.rank() > 1 { ops::mean(t, 0) } else { Ok(t.clone()) };
    for (slot, new) in [(running.mean, ops::mean(&x, over())?), (running.var, ops::var(&x, over().ddof(1))?)] {
        let kept = ops::mul(single(slot.detach())?, 1.0 - momentum)?;
        ops::copy_(slot, &ops::add(&kept, &ops::mul(&rest(&new)?, momentum)?)?)?;
    }
    Ok(())
}

/// x by its own statistics over `axes`, to which running ones come nearer.
fn trained(
    op: &'static str,
    x: &Tensor,
    running: Option<RunningStatistics<'_>>,
    affine: [Option<&Tensor>; 2],
    options: BatchNorm,
    axes: &[isize],
) -> Result<Tensor> {
    let rows: AxisSet = axes.iter().map(|&a| a as usize).collect();
    let [weight, bias] = [beside(affine[0], x.rank())?, beside(affine[1], x.rank())?];
    let y = standardized(x, weight.as_ref(), bias.as_ref(), options.eps, rows)?;
    if let Some(running) = running {
        observe(op, x, running, axes, options.momentum)?;
    }
    Ok(y)
}

/// Batch normalisation (Ioffe & Szegedy 2015): every channel of x `[N, C, ..]` to mean 0 and (biased) variance 1 over
/// all other axes, then ·weight + bias, both `[C]`. In training, running statistics are written in place; otherwise
/// they take the place of x's own. An empty vector is a batch of nothing, without channels.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::InvalidArgument`] in training on one value a channel,
/// whose variance says nothing, and without training if there are no running statistics.
#[tensor_method]
pub fn batch_norm(
    x: &Tensor,
    running: Option<RunningStatistics<'_>>,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    options: BatchNorm,
) -> Result<Tensor> {
    let op = "batch_norm";
    let BatchNorm { training, eps, .. } = options;
    if x.shape()[..] == [0] {
        let y = batch_norm(&reshape_to(x, &[0, 0].into())?, running, weight, bias, options)?;
        return reshape_to(&y, x.shape());
    }
    check(op, x, 2, &[running.map(|r| r.mean), running.map(|r| r.var), weight, bias])?;
    if !training {
        return fixed(op, x, running, [weight, bias], eps);
    }
    let axes: Vec<isize> = (0..x.rank() as isize).filter(|&a| a != 1).collect();
    if x.size() == x.shape()[1] && x.size() > 0 {
        return Err(Error::invalid(op, format!("trains on more than one value a channel, got {}", x.shape())));
    }
    trained(op, x, running, [weight, bias], options, &axes)
}

/// Instance normalisation (Ulyanov, Vedaldi & Lempitsky 2016): every channel of every image of x `[N, C, ..]` to mean 0
/// and variance 1 over its own spatial axes, then ·weight + bias. Running statistics are those of the images, averaged.
///
/// # Errors
/// As [`batch_norm`]; in training there is more than one spatial element.
#[tensor_method]
pub fn instance_norm(
    x: &Tensor,
    running: Option<RunningStatistics<'_>>,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    options: BatchNorm,
) -> Result<Tensor> {
    let op = "instance_norm";
    let BatchNorm { training, eps, .. } = options;
    check(op, x, 3, &[running.map(|r| r.mean), running.map(|r| r.var), weight, bias])?;
    if !training {
        return fixed(op, x, running, [weight, bias], eps);
    }
    if x.shape()[2..].iter().product::<usize>() == 1 {
        return Err(Error::invalid(op, format!("trains on more than one spatial element, got {}", x.shape())));
    }
    let axes: Vec<isize> = (2..x.rank() as isize).collect();
    trained(op, x, running, [weight, bias], options, &axes)
}

/// Group normalisation (Wu & He 2018): channels of x `[N, C, ..]` in groups, each group of each image to mean 0 and
/// variance 1, then every channel ·weight + bias, both `[C]`.
///
/// # Errors
/// [`Error::ShapeMismatch`] if the groups do not divide the channels; [`Error::DTypeMismatch`].
#[tensor_method]
pub fn group_norm(
    x: &Tensor,
    groups: usize,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<Tensor> {
    let op = "group_norm";
    check(op, x, 2, &[weight, bias])?;
    let (n, channels) = (x.shape()[0], x.shape()[1]);
    if groups == 0 || channels == 0 || !channels.is_multiple_of(groups) {
        return Err(Error::shapes(op, [x.shape()], format!("{channels} channels cannot be cut into {groups} groups")));
    }
    let each = channels / groups;
    let inside = x.shape()[2..].iter().product::<usize>();
    if inside == 0 {
        return Err(Error::shapes(op, [x.shape()], "a channel has at least one element"));
    }
    let apart = |t: Option<&Tensor>| t.map(|t| reshape_to(t, &[1, groups, each, 1].into())).transpose();
    let (weight, bias) = (apart(weight)?, apart(bias)?);
    let grouped = reshape_to(x, &[n, groups, each, inside].into())?;
    let y = standardized(&grouped, weight.as_ref(), bias.as_ref(), eps, [2, 3].into_iter().collect())?;
    reshape_to(&y, x.shape())
}

/// Local response normalisation (Krizhevsky, Sutskever & Hinton 2012) of x `[N, C, ..]`:
/// x / (k + alpha·m)^beta, m the mean of x² over `size` neighbouring channels, zeros beyond the ends.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::InvalidArgument`] for a size of 0.
#[tensor_method]
pub fn local_response_norm(x: &Tensor, size: usize, alpha: f64, beta: f64, k: f64) -> Result<Tensor> {
    let op = "local_response_norm";
    check(op, x, 3, &[])?;
    if size == 0 {
        return Err(Error::invalid(op, "the size is at least 1"));
    }
    if x.size() == 0 {
        return Ok(x.clone());
    }
    in_single!(op, [x] => local_response_norm(x, size, alpha, beta, k));
    let (n, channels) = (x.shape()[0], x.shape()[1]);
    let columns = reshape_to(&ops::mul(x, x)?, &[n, channels, x.shape()[2..].iter().product(), 1].into())?;
    let window = Window { size: [size, 1, 1], stride: [1; 3], dilation: [1; 3], before: [size / 2, 0, 0] };
    let sums = window_sums(&columns, window, [channels, columns.shape()[2], 1])?;
    let scale = ops::add(&ops::mul(&sums, alpha / size as f64)?, k)?;
    ops::div(x, &reshape_to(&ops::pow(&scale, beta)?, x.shape())?)
}
