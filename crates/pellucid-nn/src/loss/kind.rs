//! What targets a loss takes.

use super::{Loss, borrowed};
use crate::parameter::Parameter;
use pellucid_tensor::{DType, Error, Result, Shape, Tensor};

/// The kind of a loss, by what it compares logits with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LossKind {
    /// Class numbers, `i64` and of the logits' shape without the class axis: `[B]` for logits `[B, C]`, `[]` for `[C]`,
    /// `[B, d..]` for `[B, C, d..]`.
    SoftmaxCrossEntropy,
    /// Numbers, of the logits' shape and dtype.
    Mse,
    /// Truth values as numbers, of the logits' shape and dtype.
    Bce,
    /// Whatever a loss of one's own takes.
    Custom {
        /// The shape of the targets.
        target: Shape,
        /// Their dtype.
        dtype: DType,
    },
}

impl LossKind {
    /// Shape and dtype of the targets for logits of this shape and dtype.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for logits without a class axis where there are classes.
    pub fn target(&self, logits: &Shape, dtype: DType) -> Result<(Shape, DType)> {
        match self {
            LossKind::SoftmaxCrossEntropy => match logits.dims() {
                [] => Err(Error::shapes("cross_entropy", [logits], "logits have a class axis: [B, C]")),
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

/// A loss that says which targets it takes; see [`Loss::with_targets`].
///
/// ```
/// use pellucid_nn::loss::{Loss, LossKind};
/// use pellucid_tensor::{DType, Result, Tensor};
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

    fn trainable(&self) -> Vec<(String, Parameter)> {
        self.loss.trainable()
    }
}

borrowed! { WithTargets<L> }
