//! Whether a loss adds its samples up or takes their mean, found by a trial.

use super::Loss;
use crate::layer::Layer;
use crate::module::state_of;
use pellucid_tensor::{DType, Error, Generator, Result, Tensor, no_grad, ops};

/// What the gradient of a batch is of the gradients of its samples.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GradKind {
    /// Their sum: it grows with the batch.
    Sum,
    /// Their mean.
    Mean,
}

/// By what a loss's gradients are to be multiplied so that they are means over the batch, and of which kind they are: (1/B, Sum) or
/// (1, Mean), B the length of x's first axis.
///
/// The model puts out its logits for x once, in the mode it is in. The loss's gradient of that batch is then compared
/// with its gradient of the same batch twice, one after the other: what a sample contributes to the gradients of all
/// parameters doubles with a sum and stays with a mean. No magnitude is guessed at. The finding is logged, an `INFO` event of
/// `tracing`.
///
/// Nothing changes: gradients, parameters, statistics and the thread's generator are afterwards what they were. Layers
/// that learn their widths from their first input do so.
///
/// ```
/// use pellucid_nn::Linear;
/// use pellucid_nn::loss::{CrossEntropyLoss, GradKind, Reduction, infer_grad_scale};
/// use pellucid_tensor::{DType, Tensor};
///
/// let (model, x, y) = (Linear::new(4, 3), Tensor::randn([8, 4], DType::F32), Tensor::randint(0, 3, [8]));
/// let mean = CrossEntropyLoss::default();
/// assert_eq!(infer_grad_scale(&mean, &model, &x, &y)?, (1.0, GradKind::Mean));
/// let sum = CrossEntropyLoss { reduction: Reduction::Sum, ..mean };
/// assert_eq!(infer_grad_scale(&sum, &model, &x, &y)?, (0.125, GradKind::Sum));
/// # Ok::<(), pellucid_tensor::Error>(())
/// ```
///
/// # Errors
/// Those of the model and the loss; [`Error::InvalidArgument`] for x without an axis, for a batch whose gradient is zero or no number,
/// from which nothing can be told, and for a loss that is neither a sum nor a mean;
/// [`Error::ReadInCapture`] while a step is captured.
pub fn infer_grad_scale(
    loss: &(impl Loss + ?Sized),
    model: &(impl Layer + ?Sized),
    x: &Tensor,
    y: &Tensor,
) -> Result<(f64, GradKind)> {
    let op = "infer_grad_scale";
    let Some(&batch) = x.shape().first() else {
        return Err(Error::shapes(op, [x.shape()], "the first axis of x is that of the samples"));
    };
    let logits = {
        let _kept = Kept::of(model)?;
        let _off = no_grad();
        model.try_forward(x)?
    };
    let gradient = |copies: usize| -> Result<Tensor> {
        let times = |t: &Tensor| ops::concatenate(&vec![t; copies], 0);
        let (_, gradient) = loss.try_forward_with_grad(&times(&logits)?, &times(y)?)?;
        // The copies of a sample, added up.
        let apart = ops::unflatten(&ops::to_dtype(&gradient, DType::F64)?, 0, [copies as isize, -1])?;
        ops::sum(&apart, 0)
    };
    let (once, twice) = (gradient(1)?, gradient(2)?);
    let product = |a: &Tensor| ops::sum(&ops::mul(a, &once)?, ..)?.try_item::<f64>();
    let growth = product(&twice)? / product(&once)?;
    let (scale, kind) = match growth {
        g if (g - 1.0).abs() < 0.1 => (1.0, GradKind::Mean),
        g if (g - 2.0).abs() < 0.1 => (1.0 / batch as f64, GradKind::Sum),
        g if g.is_nan() => return Err(Error::invalid(op, "nothing can be told from a gradient that is zero or NaN")),
        g => {
            let reason =
                format!("the gradient of a batch twice is {g} times that of the batch: neither a sum nor a mean");
            return Err(Error::invalid(op, reason));
        }
    };
    tracing::info!(?kind, scale, batch, growth, "the gradient's scale over the batch");
    Ok((scale, kind))
}

/// The state of a model and of the thread's generator, which come back when it is dropped.
struct Kept(Vec<(Tensor, Vec<u8>)>);

impl Kept {
    fn of(model: &(impl Layer + ?Sized)) -> Result<Kept> {
        let state = state_of(model).into_iter().map(|(_, tensor)| tensor);
        let all = state.chain([Generator::default().state().clone()]);
        Ok(Kept(all.map(|t| Ok((t.clone(), t.to_bytes()?))).collect::<Result<_>>()?))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _off = no_grad();
        for (tensor, bytes) in &self.0 {
            // What has not changed is not written: graphs that have saved it stay good.
            if tensor.to_bytes().is_ok_and(|now| now == *bytes) {
                continue;
            }
            let before = Tensor::from_bytes(bytes, tensor.dtype(), tensor.shape()).expect("they were its bytes");
            ops::copy_(tensor, &before).expect("it is a parameter, a buffer or a generator's state");
        }
    }
}
