//! Instance normalization.

use super::batch_norm::switched_statistics;
use super::spatial::{batched, by_axes, channels, check_channels};
use super::switch::switched_affine;
use crate::input_dtype::check_optional_dtype;
use crate::layer::Layer;
use crate::lazy::Lazy;
use crate::parameter::{Buffer, Parameter, TrainingMode};
use pellucid_derive::{Module, panicking_form};
use pellucid_tensor::ops::RunningStatistics;
use pellucid_tensor::{OptionRange, Result, Tensor, ops, unwrap};

/// Instance normalization (Ulyanov, Vedaldi & Lempitsky 2016) of x `[B, C, spatial..]` or `[C, spatial..]` with N
/// spatial axes: every channel of every image gets mean 0 and variance 1 over its spatial axes. See [`InstanceNorm1d`],
/// [`InstanceNorm2d`] and [`InstanceNorm3d`].
///
/// Defaults are PyTorch's: eps 1e-5, momentum 0.1, no weight, no bias, no running statistics.
#[derive(Clone, Debug, Module)]
#[module(display)]
#[module(class = InstanceNorm::<N>::CLASS)]
pub struct InstanceNorm<const N: usize> {
    /// The scale of each channel, `[C]`.
    pub weight: Option<Parameter>,
    /// The bias of each channel, `[C]`.
    pub bias: Option<Parameter>,
    /// The running mean of each channel, averaged over images, `[C]`.
    pub running_mean: Option<Buffer>,
    /// The running variance of each channel, averaged over images, `[C]`.
    pub running_var: Option<Buffer>,
    /// The count `num_batches_tracked`, which PyTorch's files contain. It stays 0, as in PyTorch.
    pub num_batches_tracked: Option<Buffer>,
    channels: usize,
    /// The constant added to the variance.
    pub eps: f64,
    /// The weight of a new batch in the running statistics.
    pub momentum: f64,
    training: TrainingMode,
}

/// [`InstanceNorm`] of `[B, C, L]` or `[C, L]`.
pub type InstanceNorm1d = InstanceNorm<1>;
/// [`InstanceNorm`] of `[B, C, H, W]` or `[C, H, W]`.
pub type InstanceNorm2d = InstanceNorm<2>;
/// [`InstanceNorm`] of `[B, C, D, H, W]` or `[C, D, H, W]`.
pub type InstanceNorm3d = InstanceNorm<3>;

impl<const N: usize> InstanceNorm<N> {
    /// The name of the layer.
    const CLASS: &'static str = by_axes::<_, N>(["InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d"]);

    /// Creates a layer for this number of channels, without parameters.
    pub fn new(channels: usize) -> InstanceNorm<N> {
        InstanceNorm {
            weight: None,
            bias: None,
            running_mean: None,
            running_var: None,
            num_batches_tracked: None,
            channels,
            eps: 1e-5,
            momentum: 0.1,
            training: TrainingMode::new(),
        }
    }

    /// Creates a layer for the number of channels of its first input; set options with [`Lazy::with`].
    pub fn lazy() -> Lazy<InstanceNorm<N>> {
        Lazy::new(|input| Ok(InstanceNorm::new(channels::<N>("instance_norm", input)?)))
    }

    /// Sets eps, which is added to the variance.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) if it is negative or not finite.
    #[panicking_form]
    pub fn try_eps(self, eps: f64) -> Result<InstanceNorm<N>> {
        OptionRange::NONNEGATIVE.check("instance_norm", "eps", eps, 1e-5)?;
        Ok(InstanceNorm { eps, ..self })
    }

    /// Sets the momentum, the weight of a new batch in the running statistics.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](pellucid_tensor::Error::InvalidArgument) if it is not in [0, 1].
    #[panicking_form]
    pub fn try_momentum(self, momentum: f64) -> Result<InstanceNorm<N>> {
        OptionRange::PROBABILITY.check("instance_norm", "momentum", momentum, 0.1)?;
        Ok(InstanceNorm { momentum, ..self })
    }

    /// Sets whether the layer has a trained weight, initially 1, and a bias, initially 0, for each channel.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
    #[panicking_form]
    pub fn try_affine(self, affine: bool) -> Result<InstanceNorm<N>> {
        let (current, other) = ([self.weight, self.bias], self.running_mean.as_deref());
        let [weight, bias] = switched_affine("instance_norm", affine, current, other, self.channels)?;
        Ok(InstanceNorm { weight, bias, ..self })
    }

    /// Sets whether the layer has running statistics, which evaluation uses.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](pellucid_tensor::Error::OutOfMemory).
    #[doc(alias = "track_running_stats")]
    #[panicking_form]
    pub fn try_running_statistics(self, running: bool) -> Result<InstanceNorm<N>> {
        let current = [self.running_mean, self.running_var, self.num_batches_tracked];
        let other = self.weight.as_deref();
        let [mean, var, count] = switched_statistics("instance_norm", running, current, other, self.channels)?;
        Ok(InstanceNorm { running_mean: mean, running_var: var, num_batches_tracked: count, ..self })
    }
}

impl<const N: usize> Layer for InstanceNorm<N> {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let op = "instance_norm";
        let given = channels::<N>(op, x.shape())?;
        check_channels(op, x, given, self.channels, |channels| format!("{}::new({channels})", Self::CLASS))?;
        check_optional_dtype(op, x, [self.weight.as_deref(), self.running_mean.as_deref()])?;
        let running = match (&self.running_mean, &self.running_var) {
            (Some(mean), Some(var)) => Some(RunningStatistics { mean, var }),
            _ => None,
        };
        let training = self.training.get() || running.is_none();
        let options = ops::BatchNormOptions { training, momentum: self.momentum, eps: self.eps };
        batched::<N>(op, x, |x| ops::instance_norm(x, running, self.weight.as_deref(), self.bias.as_deref(), options))
    }
}
