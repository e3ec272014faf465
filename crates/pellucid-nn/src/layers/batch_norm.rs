//! Batch normalization.

use super::spatial::{by_axes, channels, check_channels};
use super::switch::{switched_affine, values_like};
use crate::call;
use crate::init;
use crate::input_dtype::check_optional_dtype;
use crate::layer::Layer;
use crate::lazy::Lazy;
use crate::module::{Module, RoleModule, modules_in_role};
use crate::parameter::{Buffer, Parameter, TrainingMode};
use crate::temporary::with_temporary;
use crate::visit::ModuleRole;
use pellucid_derive::{Module, panicking_form};
use pellucid_tensor::ops::RunningStatistics;
use pellucid_tensor::{DType, Error, OptionRange, Result, Tensor, formula, no_grad, ops, unwrap};
use std::cell::Cell;

/// Batch normalization (Ioffe & Szegedy 2015) of x `[B, C, spatial..]` with N spatial axes; see [`BatchNorm1d`] (which
/// also accepts `[B, C]`), [`BatchNorm2d`] and [`BatchNorm3d`].
///
/// Every channel becomes (x − mean) / √(var + eps)·weight + bias. Training uses the mean and the biased variance of the
/// batch, and updates the running statistics: running ← (1 − m)·running + m·batch, with the unbiased variance.
/// Evaluation uses the running statistics. They are updated on the device, so a replayed step updates them too.
///
/// Defaults are PyTorch's: eps 1e-5, momentum m = 0.1; weight and running variance start at 1, bias and running mean
/// at 0.
///
/// ```
/// use pellucid::nn::{BatchNorm2d, Layer, Module};
/// use pellucid::{DType, Tensor};
/// let norm = BatchNorm2d::new(2);
/// let x = Tensor::from([[[[1.0f32, 3.0]], [[5.0, 9.0]]]]);
/// let y = norm.forward(&x).to_vec::<f32>();
/// assert!(y.iter().zip([-1.0, 1.0, -1.0, 1.0]).all(|(y, e)| (y - e).abs() < 1e-4));
/// let mean = norm.running_mean.as_ref().unwrap().to_vec::<f32>();
/// assert!(mean.iter().zip([0.2, 0.7]).all(|(m, e)| (m - e).abs() < 1e-6));
/// ```
#[derive(Clone, Debug, Module)]
#[module(display)]
#[module(class = BatchNorm::<N>::CLASS)]
#[module(role = BatchNorm)]
pub struct BatchNorm<const N: usize> {
    /// The scale of each channel, `[C]`.
    pub weight: Option<Parameter>,
    /// The bias of each channel, `[C]`.
    pub bias: Option<Parameter>,
    /// The running mean of each channel, `[C]`.
    pub running_mean: Option<Buffer>,
    /// The running variance of each channel, `[C]`.
    pub running_var: Option<Buffer>,
    /// The number of training batches so far, an `i64` scalar.
    pub num_batches_tracked: Option<Buffer>,
    /// The constant added to the variance.
    pub eps: f64,
    /// The weight of a new batch in the running statistics; `None` averages all batches.
    pub momentum: Option<f64>,
    #[module(skip)]
    channels: usize,
    training: TrainingMode,
}

/// [`BatchNorm`] of `[B, C]` or `[B, C, L]`.
pub type BatchNorm1d = BatchNorm<1>;
/// [`BatchNorm`] of `[B, C, H, W]`.
pub type BatchNorm2d = BatchNorm<2>;
/// [`BatchNorm`] of `[B, C, D, H, W]`.
pub type BatchNorm3d = BatchNorm<3>;

impl<const N: usize> BatchNorm<N> {
    /// The name of the layer.
    const CLASS: &'static str = by_axes::<_, N>(["BatchNorm1d", "BatchNorm2d", "BatchNorm3d"]);

    /// Creates a layer for this number of channels.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_new(channels: usize) -> Result<BatchNorm<N>> {
        let [mean, var, count] = running_statistics("batch_norm", channels)?;
        let [weight, bias] = init::try_affine("batch_norm", channels)?;
        Ok(BatchNorm {
            weight: Some(weight),
            bias: Some(bias),
            running_mean: Some(mean),
            running_var: Some(var),
            num_batches_tracked: Some(count),
            eps: 1e-5,
            momentum: Some(0.1),
            channels,
            training: TrainingMode::new(),
        })
    }

    /// Creates a layer for the number of channels of its first input.
    pub fn lazy() -> Lazy<BatchNorm<N>> {
        Lazy::new(|input| match (N, input.rank()) {
            (1, 2) => BatchNorm::try_new(input[1]),
            _ => BatchNorm::try_new(channels::<N>("batch_norm", input)?),
        })
    }

    /// Sets eps, which is added to the variance.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it is negative or not finite.
    #[panicking_form]
    pub fn try_eps(self, eps: f64) -> Result<BatchNorm<N>> {
        OptionRange::NONNEGATIVE.check("batch_norm", "eps", eps, 1e-5)?;
        Ok(BatchNorm { eps, ..self })
    }

    /// Sets the momentum, the weight of a new batch in the running statistics. With `None` they are plain averages over
    /// all batches.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it is not in [0, 1].
    #[panicking_form]
    pub fn try_momentum(self, momentum: impl Into<Option<f64>>) -> Result<BatchNorm<N>> {
        let momentum = momentum.into();
        momentum.map_or(Ok(()), |m| OptionRange::PROBABILITY.check("batch_norm", "momentum", m, 0.1))?;
        Ok(BatchNorm { momentum, ..self })
    }

    /// Sets whether the layer has a weight and a bias.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[panicking_form]
    pub fn try_affine(self, affine: bool) -> Result<BatchNorm<N>> {
        let (current, other) = ([self.weight, self.bias], self.running_mean.as_deref());
        let [weight, bias] = switched_affine("batch_norm", affine, current, other, self.channels)?;
        Ok(BatchNorm { weight, bias, ..self })
    }

    /// Sets whether the layer has running statistics. Without them, evaluation also uses the statistics of the batch.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[doc(alias = "track_running_stats")]
    #[panicking_form]
    pub fn try_running_statistics(self, running: bool) -> Result<BatchNorm<N>> {
        let current = [self.running_mean, self.running_var, self.num_batches_tracked];
        let other = self.weight.as_deref();
        let [mean, var, count] = switched_statistics("batch_norm", running, current, other, self.channels)?;
        Ok(BatchNorm { running_mean: mean, running_var: var, num_batches_tracked: count, ..self })
    }

    /// Returns s and t of the map y = s·x + t of each channel in evaluation mode, `[C]`, at least in `f32`:
    /// s = weight / √(var + eps) and t = bias − s·mean.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] without running statistics, which the map requires.
    pub(super) fn evaluation_map(&self, op: &'static str) -> Result<[Tensor; 2]> {
        let (Some(mean), Some(var)) = (&self.running_mean, &self.running_var) else {
            return Err(Error::invalid(
                op,
                "the normalization has no running statistics; train it with running_statistics(true)",
            ));
        };
        let wide = |values: &Tensor| ops::to_dtype(values, values.dtype().promote(DType::F32));
        let scale = ops::map(formula!(|var; eps| (var + eps).sqrt().recip()), &[&wide(var)?], &[self.eps.into()])?;
        let scale = match &self.weight {
            Some(weight) => ops::mul(&scale, &wide(weight)?)?,
            None => scale,
        };
        let shift = ops::neg(&ops::mul(&scale, &wide(mean)?)?)?;
        let shift = match &self.bias {
            Some(bias) => ops::add(&shift, &wide(bias)?)?,
            None => shift,
        };
        Ok([scale, shift])
    }

    fn normalized(&self, x: &Tensor, running: Option<[&Tensor; 2]>, training: bool, momentum: f64) -> Result<Tensor> {
        let running = running.map(|[mean, var]| RunningStatistics { mean, var });
        let options = ops::BatchNormOptions { training, momentum, eps: self.eps };
        ops::batch_norm(x, running, self.weight.as_deref(), self.bias.as_deref(), options)
    }
}

/// Returns the running statistics of a layer: none unless `running`, otherwise the current ones, or new ones if there
/// are none. New ones have the dtype and device of `other`, another value of the layer.
pub(super) fn switched_statistics(
    layer: &'static str,
    running: bool,
    current: [Option<Buffer>; 3],
    other: Option<&Tensor>,
    channels: usize,
) -> Result<[Option<Buffer>; 3]> {
    match (running, &current[0]) {
        (false, _) => Ok([None, None, None]),
        (true, Some(_)) => Ok(current),
        (true, None) => values_like(layer, other, || running_statistics(layer, channels)).map(|all| all.map(Some)),
    }
}

/// Returns buffers for a mean of 0, a variance of 1, and a count of 0.
fn running_statistics(layer: &'static str, channels: usize) -> Result<[Buffer; 3]> {
    let dtype = init::default_dtype();
    let [mean, var] = [ops::zeros(channels, dtype), ops::ones(channels, dtype)].map(|t| call::name_layer(layer, t));
    Ok([mean?, var?, ops::zeros((), DType::I64)?].map(Buffer::new))
}

impl<const N: usize> Layer for BatchNorm<N> {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        if x.rank() != N + 2 && !(N == 1 && x.rank() == 2) {
            let remedy = match x.rank() {
                rank if rank + 1 == N + 2 || N == 1 && rank == 1 => "; add the batch axis by unsqueeze(0)",
                rank if rank < N + 2 => "; add axes by unsqueeze(-1), or use the layer for inputs of this rank",
                _ => "; use the layer for inputs of this rank, or merge axes with flatten()",
            };
            let axes = if N == 1 { "1 spatial axis, or [B, C]".to_string() } else { format!("{N} spatial axes") };
            let help = format!("the input must have shape [B, C, ..] with {axes}{remedy}");
            return Err(Error::shapes("batch_norm", [x.shape()], help));
        }
        let per_channel = [self.weight.as_deref(), self.running_mean.as_deref()];
        check_optional_dtype("batch_norm", x, per_channel)?;
        let make = |channels| format!("{}::new({channels})", Self::CLASS);
        check_channels("batch_norm", x, x.shape()[1], self.channels, make)?;
        let (Some(mean), Some(var), Some(count)) = (&self.running_mean, &self.running_var, &self.num_batches_tracked)
        else {
            return self.normalized(x, None, true, 0.0);
        };
        let running = [mean.tensor(), var.tensor()];
        if !self.training.get() {
            return self.normalized(x, Some(running), false, 0.0);
        }
        let n = ops::add(count, 1)?;
        let y = match self.momentum.filter(|_| !PLAIN_AVERAGES.get()) {
            Some(momentum) => self.normalized(x, Some(running), true, momentum)?,
            None => self.averaged(x, running, &n)?,
        };
        ops::copy_(count, &n)?;
        Ok(y)
    }
}

impl<const N: usize> BatchNorm<N> {
    /// Normalizes in training, with running statistics that are averages over n batches. The momentum is 1/n, which
    /// changes from step to step and is therefore a tensor.
    fn averaged(&self, x: &Tensor, running: [&Tensor; 2], n: &Tensor) -> Result<Tensor> {
        let batch = [ops::zeros_like(running[0])?, ops::zeros_like(running[1])?];
        let y = self.normalized(x, Some([&batch[0], &batch[1]]), true, 1.0)?;
        if x.size() > 0 {
            let _off = no_grad();
            // Half precision, which x has under autocast, cannot represent all counts n and all weights 1 − 1/n.
            let wide = running[0].dtype().promote(DType::F32);
            let n = ops::to_dtype(n, wide)?;
            for (running, batch) in running.into_iter().zip(&batch) {
                let change = ops::sub(&ops::to_dtype(batch, wide)?, &ops::to_dtype(running, wide)?)?;
                ops::copy_(running, &ops::add(running, &ops::div(&change, &n)?)?)?;
            }
        }
        Ok(y)
    }
}

thread_local! {
    /// Whether layers on this thread ignore their momentum and use plain averages.
    static PLAIN_AVERAGES: Cell<bool> = const { Cell::new(false) };
}

/// Calls `f`, in which the layers that this thread calls behave as if their [`momentum`](BatchNorm::momentum) were
/// `None`.
pub(crate) fn with_plain_averages<R>(f: impl FnOnce() -> R) -> R {
    with_temporary(true, |value| PLAIN_AVERAGES.replace(value), f)
}

/// Returns mean, variance and count of every batch normalization of a module that has running statistics, or an error
/// of `op` if a layer is not built.
pub(crate) fn batch_norms(op: &'static str, module: &(impl Module + ?Sized)) -> Result<Vec<[Buffer; 3]>> {
    let buffers = |norm: RoleModule| norm.buffers.into_iter().map(|(_, buffer)| buffer).collect::<Vec<_>>();
    let norms = modules_in_role(op, module, ModuleRole::BatchNorm)?;
    Ok(norms.into_iter().filter_map(|norm| buffers(norm).try_into().ok()).collect())
}
