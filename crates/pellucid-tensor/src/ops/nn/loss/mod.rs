//! Loss functions: regression, classification, pairs, and sequences (CTC).

mod classes;
mod cross_entropy;
mod ctc;
mod multiclass;
mod pairs;
mod regression;

pub use classes::{
    binary_cross_entropy, binary_cross_entropy_with_logits, hinge_embedding_loss, multilabel_soft_margin_loss,
    soft_margin_loss,
};
pub use cross_entropy::{CrossEntropyOptions, cross_entropy};
pub use ctc::{CtcLossOptions, ctc_loss};
pub use multiclass::{MultiMarginLossOptions, NllLossOptions, multi_margin_loss, multilabel_margin_loss, nll_loss};
pub use pairs::{
    TripletMarginLossOptions, cosine_embedding_loss, margin_ranking_loss, triplet_margin_loss,
    triplet_margin_with_distance_loss,
};
pub use regression::{
    PoissonNllLossOptions, gaussian_nll_loss, huber_loss, kl_div, l1_loss, mse_loss, poisson_nll_loss, smooth_l1_loss,
};

use crate::ops::call::axes::{self, Axes};
use crate::ops::call::check;
use crate::ops::elementwise::{arithmetic, compare};
use crate::ops::formula::{broadcast, map_in, map_sum};
use crate::ops::primitive::{copy, view};
use crate::ops::reduce::{reductions, value_range};
use crate::tensor::Tensor;
use pellucid_ir::formula::Formula;
use pellucid_ir::kernel::AxisSet;
use pellucid_ir::{DType, Error, Result, Scalar, Shape};

/// The reduction of the losses of the samples.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Reduction {
    /// The mean of the losses over the samples that are not ignored.
    #[default]
    Mean,
    /// The sum of the losses.
    Sum,
    /// No reduction: one value per sample.
    None,
}

impl Reduction {
    /// Reduces all values. No value is ignored.
    fn apply(self, values: &Tensor) -> Result<Tensor> {
        match self {
            Reduction::Mean => reductions::mean(values, ..),
            Reduction::Sum => reductions::sum(values, ..),
            Reduction::None => Ok(values.clone()),
        }
    }

    /// Applies a formula to inputs that broadcast, and reduces its values in the same kernel. No value is ignored.
    /// Numbers are computed in dtype `compute_dtype`, by default the promoted dtype of the inputs.
    fn apply_formula(
        self,
        formula: &Formula,
        inputs: &[&Tensor],
        params: &[Scalar],
        compute_dtype: Option<DType>,
    ) -> Result<Tensor> {
        if self == Reduction::None {
            return map_in(formula, inputs, params, compute_dtype);
        }
        let shape = broadcast(formula.name(), inputs)?;
        let axes = Axes::from(..).resolve(formula.name(), &shape)?.set;
        let sum = view::reshape_to(&map_sum(formula, inputs, params, axes, compute_dtype)?, &Shape::scalar())?;
        if self == Reduction::Mean { arithmetic::div(&sum, shape.size() as f64) } else { Ok(sum) }
    }

    /// Reduces values; the mean is Σ values / Σ weights.
    fn weighted(self, values: &Tensor, weights: &Tensor) -> Result<Tensor> {
        match self {
            Reduction::Mean => arithmetic::div(&reductions::sum(values, ..)?, &reductions::sum(weights, ..)?),
            other => other.apply(values),
        }
    }
}

/// Multiplies values by weights, which broadcast.
fn apply_weight(values: Tensor, weight: Option<&Tensor>) -> Result<Tensor> {
    weight.map_or(Ok(values.clone()), |weight| arithmetic::mul(&values, weight))
}

/// Converts class indices to `i64`, or returns an error if they are not integers.
fn class_indices(op: &'static str, targets: &Tensor) -> Result<Tensor> {
    to_i64(op, "targets must be class indices, which are integers; convert them with to_dtype(DType::I64)", targets)
}

/// Returns the help text for class indices whose shape differs from the shape of the scores without the class axis.
/// `general` is the text for shapes that fit no typical mistake.
fn class_shape_help(scores: &Shape, targets: &Tensor, axis: usize, general: String) -> String {
    let (rank, shape, dims_without_class_axis) =
        (scores.rank(), targets.shape(), AxisSet::from_iter([axis]).remove(scores));
    if rank > axis && scores[axis] == 1 && shape == scores {
        return "scores with one output have only the class 0; for labels 0 and 1, use BceWithLogitsLoss with float \
                targets"
            .to_string();
    }
    if shape == scores {
        let axis = if axis + 1 == rank { -1 } else { axis as isize };
        return format!(
            "targets of dtype {} with the logits' shape look like one-hot rows: use argmax({axis}), or \
             to_dtype(DType::F32) for probabilities",
            targets.dtype()
        );
    }
    if shape.rank() == rank && shape[axis] == 1 && AxisSet::from_iter([axis]).remove(shape) == dims_without_class_axis {
        return format!("class indices have no class axis: squeeze({axis}) removes the class axis of the targets");
    }
    if rank > 2 && shape[..] == scores[..rank - 1] {
        let order: Vec<String> = [0, rank - 1].into_iter().chain(1..rank - 1).map(|k| k.to_string()).collect();
        return format!(
            "classes are on axis 1: permute(({})) the logits, or flatten(0, {}) both tensors",
            order.join(", "),
            rank as isize - 2
        );
    }
    general
}

/// Converts integers to `i64`. Otherwise, returns an error with the text `help`.
fn to_i64(op: &'static str, help: &'static str, numbers: &Tensor) -> Result<Tensor> {
    if !numbers.dtype().is_int() {
        return Err(Error::dtypes(op, [numbers.dtype()], help));
    }
    copy::to_dtype(numbers, DType::I64)
}

/// Class indices with checked values.
struct CheckedClasses {
    /// The class indices, all in `0..len`.
    classes: Tensor,
    /// If the values could not be read: the mask of valid indices.
    is_inside: Option<Tensor>,
}

/// Checks class indices immediately if their values can be read. Otherwise (in lazy and captured steps, and on a GPU),
/// a valid class replaces invalid indices, and [`CheckedClasses::nan_where_invalid`] makes the loss and its gradient
/// NaN.
fn in_range(op: &'static str, classes: &Tensor, axis: usize, len: usize) -> Result<CheckedClasses> {
    if !check::is_readable(classes) {
        let is_inside = compare::logical_and(&compare::ge(classes, 0)?, &compare::lt(classes, len as i64)?)?;
        let clamped_classes = arithmetic::clamp(classes, 0, len.max(1) as i64 - 1)?;
        return Ok(CheckedClasses { classes: clamped_classes, is_inside: Some(is_inside) });
    }
    match classes.array().find(op, |class: i64| !(0..len as i64).contains(&class))? {
        Some(index) => Err(Error::IndexOutOfBounds { op, index, axis, len }),
        None => Ok(CheckedClasses { classes: classes.clone(), is_inside: None }),
    }
}

impl CheckedClasses {
    /// Returns x, or NaN with a gradient of NaN for samples with an invalid class index. If the loss is reduced, one
    /// invalid index affects all samples. `axes` are the axes of a sample's class indices. `shape` is the shape in
    /// which a mask with one value per sample broadcasts to x.
    fn nan_where_invalid(&self, x: Tensor, reduction: Reduction, axes: &[isize], shape: &Shape) -> Result<Tensor> {
        let Some(is_inside) = &self.is_inside else { return Ok(x) };
        let is_inside = match reduction {
            Reduction::None if axes.is_empty() => view::reshape_to(is_inside, shape)?,
            Reduction::None => view::reshape_to(&reductions::all(is_inside, axes::over(axes))?, shape)?,
            _ => reductions::all(is_inside, ..)?,
        };
        value_range::nan_unless(&is_inside, &x)
    }

    /// Applies [`nan_where_invalid`](Self::nan_where_invalid) to a loss with one value per sample, or one in total.
    fn nan_loss_where_invalid(&self, loss: Tensor, reduction: Reduction, axes: &[isize]) -> Result<Tensor> {
        let shape = loss.shape().clone();
        self.nan_where_invalid(loss, reduction, axes, &shape)
    }
}
