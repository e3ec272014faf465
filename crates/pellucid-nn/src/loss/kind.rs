//! The kinds of losses, by the targets that they accept.

use super::{BatchWeight, Loss, loss_pointer};
use crate::parameter::Parameter;
use pellucid_tensor::{DType, Error, Result, Shape, Tensor};

/// The kind of a loss, by its targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LossKind {
    /// Class indices, `i64`, in the logits' shape without the class axis: `[B]` for logits `[B, C]`, `[]` for `[C]`,
    /// `[B, d..]` for `[B, C, d..]`.
    SoftmaxCrossEntropy,
    /// Values of the logits' shape and dtype.
    Mse,
    /// Binary labels 0 and 1, of the logits' shape and dtype.
    Bce,
    /// The targets of a user's loss.
    Custom {
        /// The shape of the targets.
        target: Shape,
        /// The dtype of the targets.
        dtype: DType,
    },
}

impl LossKind {
    /// Returns shape and dtype of the targets for logits of this shape and dtype.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for logits without a class axis if the loss needs one.
    pub fn target(&self, logits: &Shape, dtype: DType) -> Result<(Shape, DType)> {
        match self {
            LossKind::SoftmaxCrossEntropy => match logits.dims() {
                [] => Err(Error::shapes("cross_entropy", [logits], "the logits must have a class axis: [B, C]")),
                [_] => Ok((Shape::scalar(), DType::I64)),
                [batch, _, rest @ ..] => {
                    Ok((std::iter::once(batch).chain(rest).copied().collect::<Shape>(), DType::I64))
                }
            },
            LossKind::Mse | LossKind::Bce => Ok((logits.clone(), dtype)),
            LossKind::Custom { target, dtype } => Ok((target.clone(), *dtype)),
        }
    }
}

/// A loss with given shape and dtype of its targets; see [`Loss::with_targets`].
///
/// ```
/// use pellucid::nn::loss::{Loss, LossKind};
/// use pellucid::{DType, Result, Tensor};
/// let margin = |y: &Tensor, t: &Tensor| -> Result<Tensor> { Ok((t - y).relu().mean(..)) };
/// let loss = margin.with_targets([8, 1], DType::F32);
/// assert_eq!(loss.kind(), Some(LossKind::Custom { target: [8, 1].into(), dtype: DType::F32 }));
/// ```
#[derive(Clone, Debug)]
pub struct WithTargets<L> {
    loss: L,
    shape: Shape,
    dtype: DType,
}

impl<L: Loss> WithTargets<L> {
    pub(super) fn new(loss: L, shape: Shape, dtype: DType) -> WithTargets<L> {
        WithTargets { loss, shape, dtype }
    }
}

impl<L: Loss> Loss for WithTargets<L> {
    fn try_forward(&self, logits: &Tensor, y: &Tensor) -> Result<Tensor> {
        self.loss.try_forward(logits, y)
    }

    fn kind(&self) -> Option<LossKind> {
        Some(LossKind::Custom { target: self.shape.clone(), dtype: self.dtype })
    }

    fn check_targets(&self, logits: &Shape, y: &Tensor) -> Result<()> {
        self.loss.check_targets(logits, y)
    }

    fn batch_weight(&self, y: &Tensor) -> Result<BatchWeight> {
        self.loss.batch_weight(y)
    }

    fn trainable(&self) -> Vec<(String, Parameter)> {
        self.loss.trainable()
    }
}

loss_pointer! { [L: Loss] &WithTargets<L> }
