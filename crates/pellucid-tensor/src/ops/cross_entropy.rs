//! Cross-entropy of logits against classes, by one row kernel.

use super::formula::rows;
use crate::device::Device;
use crate::engine;
use crate::ops;
use crate::tensor::Tensor;
use pellucid_derive::face;
use pellucid_ir::formula::{Formula, row_index, row_len};
use pellucid_ir::kernel::AxisSet;
use pellucid_ir::{DType, Error, Result, formula};
use std::sync::OnceLock;

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

/// Options of [`cross_entropy`].
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct CrossEntropy {
    /// The share of the target that is spread evenly over all classes, in [0, 1] (Szegedy et al. 2016).
    pub label_smoothing: f64,
    /// Samples of this class contribute nothing, and do not count in the mean.
    pub ignore_index: Option<i64>,
    /// What happens with the values of the samples.
    pub reduction: Reduction,
}

/// −Σ_c p_c·log softmax(logits)_c over axis 1 (the last axis if there is only one).
///
/// Logits are `[N, C]`, `[C]` or `[N, C, d..]`. Targets are either class numbers, of an integer dtype
/// and the logits' shape without the class axis, or probabilities of the logits' shape. With label
/// smoothing s, p = (1 − s)·target + s/C. The gradient is softmax(logits) − p, scaled by the reduction.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]; [`Error::InvalidArgument`] for a smoothing
/// outside [0, 1], or an `ignore_index` with probabilities; [`Error::IndexOutOfBounds`] for a class number
/// outside 0..C that is not ignored. Where work is deferred, numbers are not known yet: then the loss of
/// such a sample is NaN.
#[face]
pub fn cross_entropy(logits: &Tensor, targets: &Tensor, options: CrossEntropy) -> Result<Tensor> {
    let op = "cross_entropy";
    if !logits.dtype().is_float() {
        return Err(Error::dtypes(op, [logits.dtype(), targets.dtype()], "logits are floats; use to_dtype()"));
    }
    if logits.rank() == 0 {
        return Err(Error::shapes(op, [logits.shape(), targets.shape()], "logits are [N, C], [C] or [N, C, d..]"));
    }
    if !(0.0..=1.0).contains(&options.label_smoothing) {
        return Err(Error::invalid(op, format!("label_smoothing must be in [0, 1], got {}", options.label_smoothing)));
    }
    let axis = logits.rank().min(2) - 1;
    let class_axis: AxisSet = [axis].into_iter().collect();
    let smoothing = options.label_smoothing;
    if targets.dtype().is_float() {
        if options.ignore_index.is_some() {
            return Err(Error::invalid(op, "ignore_index needs class numbers as targets"));
        }
        if targets.shape() != logits.shape() {
            return Err(Error::shapes(op, [logits.shape(), targets.shape()], "probabilities have the logits' shape"));
        }
        let losses = rows(probabilities(), &[logits, targets], &[smoothing.into()], class_axis)?;
        let count = losses.size() as f64;
        return reduced(&ops::squeeze(&losses, axis as isize)?, options.reduction, |sum| ops::div(sum, count));
    }
    let expected = class_axis.remove(logits.shape());
    if *targets.shape() != expected {
        let mend = format!("class numbers have the logits' shape without axis {axis}, {expected}");
        return Err(Error::shapes(op, [logits.shape(), targets.shape()], mend));
    }
    if targets.dtype() == DType::Bool {
        return Err(Error::dtypes(
            op,
            [targets.dtype()],
            "targets are class numbers (integers) or probabilities (floats)",
        ));
    }
    let classes = ops::unsqueeze(&ops::to_dtype(targets, DType::I64)?, axis as isize)?;
    let Some(ignored) = options.ignore_index else {
        in_range(op, &classes, axis, logits.shape()[axis])?;
        let formula = if smoothing == 0.0 { hard() } else { smoothed() };
        let params = if smoothing == 0.0 { &[][..] } else { &[smoothing.into()][..] };
        let losses = rows(formula, &[logits, &classes], params, class_axis)?;
        let count = losses.size() as f64;
        return reduced(&ops::squeeze(&losses, axis as isize)?, options.reduction, |sum| ops::div(sum, count));
    };
    let counts = ops::ne(&classes, ignored)?;
    let formula = if smoothing == 0.0 { hard() } else { smoothed() };
    let params = if smoothing == 0.0 { &[][..] } else { &[smoothing.into()][..] };
    // An ignored class number may lie outside 0..C; class 0 stands in for it.
    let valid = ops::where_(&counts, &classes, 0)?;
    in_range(op, &valid, axis, logits.shape()[axis])?;
    let losses = rows(formula, &[logits, &valid], params, class_axis)?;
    let losses = ops::squeeze(&ops::where_(&counts, &losses, 0.0)?, axis as isize)?;
    reduced(&losses, options.reduction, |sum| ops::div(sum, &ops::to_dtype(&ops::sum(&counts, ..)?, logits.dtype())?))
}

/// Checks class numbers, where they are there to be read.
fn in_range(op: &'static str, classes: &Tensor, axis: usize, len: usize) -> Result<()> {
    if engine::mode() != engine::Mode::Eager || classes.device() != Device::cpu() {
        return Ok(());
    }
    let outside = |class: &i64| !(0..len as i64).contains(class);
    match classes.array().to_vec::<i64>(op)?.into_iter().find(outside) {
        Some(index) => Err(Error::IndexOutOfBounds { op, index, axis, len }),
        None => Ok(()),
    }
}

fn reduced(losses: &Tensor, reduction: Reduction, mean: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    match reduction {
        Reduction::None => Ok(losses.clone()),
        Reduction::Sum => ops::sum(losses, ..),
        Reduction::Mean => mean(&ops::sum(losses, ..)?),
    }
}

/// ln Σ exp x − x_t: of class numbers without smoothing.
fn hard() -> &'static Formula {
    static HARD: OnceLock<Formula> = OnceLock::new();
    HARD.get_or_init(|| {
        formula! {
            cross_entropy(x, t: per_row index) = {
                let m = x.row_max();
                let hit = row_index().eq(t);
                let found = hit.to_number().row_sum().gt(0.0);
                let picked = hit.select(x, 0.0).row_sum();
                let loss = ((x - m).exp().row_sum().ln() - picked) + m;
                found.select(loss, f64::NAN)
            };
            d x = {
                let e = (x - x.row_max()).exp();
                g * (e * e.row_sum().recip() - row_index().eq(t).to_number())
            };
        }
        .eternal()
    })
}

/// The same with the target spread: (1 − s)·(lse − x_t) + s·(lse − mean x).
fn smoothed() -> &'static Formula {
    static SMOOTHED: OnceLock<Formula> = OnceLock::new();
    SMOOTHED.get_or_init(|| {
        formula! {
            cross_entropy(x, t: per_row index; s) = {
                let m = x.row_max();
                let hit = row_index().eq(t);
                let found = hit.to_number().row_sum().gt(0.0);
                let picked = hit.select(x, 0.0).row_sum();
                let lse = (x - m).exp().row_sum().ln() + m;
                let loss = (1.0 - s) * (lse - picked) + s * (lse - x.row_mean());
                found.select(loss, f64::NAN)
            };
            d x = {
                let e = (x - x.row_max()).exp();
                let p = (1.0 - s) * row_index().eq(t).to_number() + s / row_len();
                g * (e * e.row_sum().recip() - p)
            };
        }
        .eternal()
    })
}

/// Against probabilities q: Σ_c p_c·(lse − x_c), p = (1 − s)·q + s/C.
fn probabilities() -> &'static Formula {
    static PROBABILITIES: OnceLock<Formula> = OnceLock::new();
    PROBABILITIES.get_or_init(|| {
        formula! {
            cross_entropy(x, q; s) = {
                let m = x.row_max();
                let lse = (x - m).exp().row_sum().ln() + m;
                let p = (1.0 - s) * q + s / row_len();
                (p * (lse - x)).row_sum()
            };
        }
        .eternal()
    })
}
