//! A loss whose targets have a given shape and dtype.

use super::{BatchWeight, Loss};
use crate::visit::{Visit, Visitor};
use pellucid_tensor::{DType, Result, Shape, Tensor};

/// A loss whose targets have a given shape and dtype; see [`Loss::with_targets`].
///
/// ```
/// use pellucid::nn::loss::{Loss, from_fn};
/// use pellucid::{DType, Shape};
/// let margin = from_fn(|y, t| Ok((t - y).relu().mean(..)));
/// let loss = margin.with_targets([8, 1], DType::F32);
/// let targets = loss.expected_targets(&Shape::from([8, 1]), DType::F32)?;
/// assert_eq!(targets, Some(([8, 1].into(), DType::F32)));
/// # Ok::<(), pellucid::Error>(())
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

impl<L: Loss> Visit for WithTargets<L> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.loss.visit(visitor);
    }
}

impl<L: Loss> Loss for WithTargets<L> {
    fn try_forward(&self, logits: &Tensor, y: &Tensor) -> Result<Tensor> {
        self.loss.try_forward(logits, y)
    }

    fn expected_targets(&self, _logits: &Shape, _dtype: DType) -> Result<Option<(Shape, DType)>> {
        Ok(Some((self.shape.clone(), self.dtype)))
    }

    fn accepts_probabilities(&self) -> bool {
        self.loss.accepts_probabilities()
    }

    fn check_targets(&self, logits: &Shape, y: &Tensor) -> Result<()> {
        self.loss.check_targets(logits, y)
    }

    fn batch_weight(&self, y: &Tensor) -> Result<BatchWeight> {
        self.loss.batch_weight(y)
    }
}
