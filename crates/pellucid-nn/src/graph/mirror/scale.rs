//! A test of whether the loss of a batch is the sum or the mean of the losses of its samples.

use crate::layer::Layer;
use crate::loss::Loss;
use crate::parameter::with_evaluation_mode;
use pellucid_tensor::{DType, Error, Result, Tensor, no_grad, ops};

/// The relation of a batch's gradient to the gradients of its samples.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GradKind {
    /// The sum of the samples' gradients, which grows with the batch.
    Sum,
    /// The mean of the samples' gradients.
    Mean,
}

/// Returns the factor that converts a loss's gradients to means over the batch, and their kind: (1/B, Sum) or
/// (1, Mean), where B is the length of x's first axis.
///
/// The model computes the logits of x once, in evaluation mode. The gradient of the loss of this batch is compared with
/// the gradient of the loss of the batch concatenated with itself: the contribution of a sample doubles for a sum, and
/// does not change for a mean. The result is logged as an `INFO` event of `tracing`.
///
/// Gradients, parameters and statistics are unchanged afterwards. Only layers that learn their widths from their first
/// input change, and layers that write their state in evaluation mode too, such as an embedding with `max_norm`.
///
/// ```
/// use pellucid::nn::Linear;
/// use pellucid::nn::graph::mirror::{GradKind, infer_grad_scale};
/// use pellucid::nn::loss::{CrossEntropyLoss, Reduction};
/// use pellucid::{DType, Tensor};
///
/// let (model, x, y) = (Linear::new(4, 3), Tensor::randn([8, 4], DType::F32), Tensor::randint(0, 3, [8]));
/// let mean = CrossEntropyLoss::default();
/// assert_eq!(infer_grad_scale(&mean, &model, &x, &y)?, (1.0, GradKind::Mean));
/// let sum = CrossEntropyLoss { reduction: Reduction::Sum, ..mean };
/// assert_eq!(infer_grad_scale(&sum, &model, &x, &y)?, (0.125, GradKind::Sum));
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// The errors of the model and the loss; [`Error::InvalidArgument`] for x without an axis, for a batch whose gradient
/// is zero or NaN, and for a loss that is neither a sum nor a mean; [`Error::ReadInCapture`] while a step is captured.
#[track_caller]
pub fn infer_grad_scale(
    loss: &(impl Loss + ?Sized),
    model: &(impl Layer + ?Sized),
    x: &Tensor,
    y: &Tensor,
) -> Result<(f64, GradKind)> {
    let op = "infer_grad_scale";
    let Some(&batch) = x.shape().first() else {
        return Err(Error::shapes(op, [x.shape()], "x must have at least one axis; the first axis is the batch axis"));
    };
    let logits = with_evaluation_mode(|| {
        let _off = no_grad();
        model.try_forward(x)
    })?;
    let gradient = |copies: usize| -> Result<Tensor> {
        let times = |t: &Tensor| ops::concatenate(&vec![t; copies], 0);
        let (_, gradient) = loss.try_forward_with_grad(&times(&logits)?, &times(y)?)?;
        // Adds the gradients of both copies of a sample.
        let per_copy = ops::unflatten(&ops::to_dtype(&gradient, DType::F64)?, 0, [copies as isize, -1])?;
        ops::sum(&per_copy, 0)
    };
    let (once, twice) = (gradient(1)?, gradient(2)?);
    let product = |a: &Tensor| ops::sum(&ops::mul(a, &once)?, ..);
    // A read in a closure would hide the caller's line.
    let growth = product(&twice)?.try_item::<f64>()? / product(&once)?.try_item::<f64>()?;
    let (scale, kind) = match growth {
        g if (g - 1.0).abs() < 0.1 => (1.0, GradKind::Mean),
        g if (g - 2.0).abs() < 0.1 => (1.0 / batch as f64, GradKind::Sum),
        g if g.is_nan() => {
            return Err(Error::invalid(
                op,
                "the gradient is zero or NaN, so its scale is undetermined; use another batch",
            ));
        }
        g => {
            let reason =
                format!("doubling the batch multiplies its gradient by {g}: the loss is neither a sum nor a mean");
            return Err(Error::invalid(op, reason));
        }
    };
    tracing::info!(?kind, scale, batch, growth, "found the gradient's scale over the batch");
    Ok((scale, kind))
}
