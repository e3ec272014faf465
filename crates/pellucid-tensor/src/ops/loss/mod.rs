//! Losses: what training makes small. A file each for regression, classes, comparisons and sequences.

mod classes;
mod compare;
mod cross_entropy;
mod ctc;
mod multiclass;
mod regression;

pub use classes::{
    binary_cross_entropy, binary_cross_entropy_with_logits, hinge_embedding_loss, multilabel_soft_margin_loss,
    soft_margin_loss,
};
pub use compare::{
    Triplet, cosine_embedding_loss, margin_ranking_loss, triplet_margin_loss, triplet_margin_with_distance_loss,
};
pub use cross_entropy::{CrossEntropy, cross_entropy};
pub use ctc::{Ctc, ctc_loss};
pub use multiclass::{MultiMargin, NllLoss, multi_margin_loss, multilabel_margin_loss, nll_loss};
pub use regression::{
    PoissonNll, gaussian_nll_loss, huber_loss, kl_div, l1_loss, mse_loss, poisson_nll_loss, smooth_l1_loss,
};

use crate::device::Device;
use crate::engine;
use crate::ops::{self, check};
use crate::tensor::Tensor;
use pellucid_ir::{DType, Error, Result, Shape};

/// What a loss does with the values of its samples.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Reduction {
    /// Their mean (over the samples that count).
    #[default]
    Mean,
    /// Their sum.
    Sum,
    /// One value a sample.
    None,
}

impl Reduction {
    /// What it makes of values that all count.
    fn of(self, values: &Tensor) -> Result<Tensor> {
        match self {
            Reduction::Mean => ops::mean(values, ..),
            Reduction::Sum => ops::sum(values, ..),
            Reduction::None => Ok(values.clone()),
        }
    }

    /// The same with a mean over a weight: Σ values / Σ weights.
    fn weighted(self, values: &Tensor, weights: &Tensor) -> Result<Tensor> {
        match self {
            Reduction::Mean => ops::div(&ops::sum(values, ..)?, &ops::sum(weights, ..)?),
            other => other.of(values),
        }
    }
}

/// Values and weights, which broadcast, multiplied.
fn times(values: Tensor, weight: Option<&Tensor>) -> Result<Tensor> {
    weight.map_or(Ok(values.clone()), |weight| ops::mul(&values, weight))
}

/// Refuses what is not a float.
fn floats(op: &'static str, tensors: &[&Tensor]) -> Result<()> {
    if tensors.iter().all(|t| t.dtype().is_float()) {
        return Ok(());
    }
    Err(Error::dtypes(op, tensors.iter().map(|t| t.dtype()), "takes floats; use to_dtype()"))
}

/// Class numbers as `i64`, after a look at their dtype.
fn class_numbers(op: &'static str, targets: &Tensor) -> Result<Tensor> {
    if !targets.dtype().is_int() {
        return Err(Error::dtypes(
            op,
            [targets.dtype()],
            "targets are class numbers, which are integers; convert them with to_dtype(DType::I64)",
        ));
    }
    ops::to_dtype(targets, DType::I64)
}

/// Class numbers after a look at their values.
struct Checked {
    /// All inside of `0..len`.
    classes: Tensor,
    /// Which of them were inside, where the values are not known yet.
    inside: Option<Tensor>,
}

/// Checks class numbers: at once where they can be read. Where work is deferred, those outside are replaced by a class,
/// and [`Checked::poison`] makes the loss and its gradient NaN.
fn in_range(op: &'static str, classes: &Tensor, axis: usize, len: usize) -> Result<Checked> {
    if !engine::is_eager() || classes.device() != Device::cpu() {
        let inside = ops::logical_and(&ops::ge(classes, 0)?, &ops::lt(classes, len as i64)?)?;
        let near = ops::clamp(classes, 0, len.max(1) as i64 - 1)?;
        return Ok(Checked { classes: near, inside: Some(inside) });
    }
    let outside = |class: &i64| !(0..len as i64).contains(class);
    match classes.array().to_vec::<i64>(op)?.into_iter().find(outside) {
        Some(index) => Err(Error::IndexOutOfBounds { op, index, axis, len }),
        None => Ok(Checked { classes: classes.clone(), inside: None }),
    }
}

impl Checked {
    /// x, or NaN with a gradient of NaN: of each sample whose class number was outside, or of all samples where the
    /// loss is reduced. A sample's class numbers have these axes; `shape` broadcasts one mask a sample to x.
    fn poison(&self, x: Tensor, reduction: Reduction, axes: &[isize], shape: &Shape) -> Result<Tensor> {
        let Some(inside) = &self.inside else { return Ok(x) };
        let inside = match reduction {
            Reduction::None if axes.is_empty() => ops::reshape_to(inside, shape)?,
            Reduction::None => ops::reshape_to(&ops::all(inside, ops::over(axes))?, shape)?,
            _ => ops::all(inside, ..)?,
        };
        check::nan_unless(&inside, &x)
    }

    /// [`poison`](Self::poison) of a loss, which has one value a sample or one in all.
    fn poison_loss(&self, loss: Tensor, reduction: Reduction, axes: &[isize]) -> Result<Tensor> {
        let shape = loss.shape().clone();
        self.poison(loss, reduction, axes, &shape)
    }
}
