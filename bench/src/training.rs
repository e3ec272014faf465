//! Training steps as workloads: zero the gradients, forward, loss, backward, update.

use crate::harness::{Run, Work};
use crate::place::placed;
use pellucid::IntoOutputs;
use pellucid::prelude::*;
use pellucid::{autocast, capture_local};

/// A loss function of outputs and targets.
type LossFn = Box<dyn Fn(&Tensor, &Tensor) -> Tensor>;

/// The model, loss, optimizer and data of a training step.
pub(crate) struct Training {
    loss: LossFn,
    optimizer: Box<dyn Optimizer>,
    x: Tensor,
    target: Tensor,
    work: Work,
    /// The dtype of the forward pass under `autocast`, if any.
    half: Option<DType>,
}

impl Training {
    pub(crate) fn new(
        work: Work,
        (x, target): (Tensor, Tensor),
        optimizer: Box<dyn Optimizer>,
        loss: impl Fn(&Tensor, &Tensor) -> Tensor + 'static,
    ) -> Training {
        Training { loss: Box::new(loss), optimizer, x: placed(x), target: placed(target), work, half: None }
    }

    /// Returns the step with a forward pass under `autocast` in bf16.
    pub(crate) fn in_bf16(self) -> Training {
        Training { half: Some(DType::BF16), ..self }
    }

    fn step(&self, x: &Tensor, target: &Tensor) -> Tensor {
        self.optimizer.zero_grad();
        let loss = {
            let _guard = self.half.map(autocast);
            (self.loss)(x, target)
        };
        loss.backward();
        self.optimizer.step();
        loss
    }

    /// Returns the eager step.
    pub(crate) fn eager(self) -> Run {
        Run::new(self.work, move || {
            self.step(&self.x, &self.target);
        })
    }

    /// Returns the captured step.
    pub(crate) fn captured(self) -> Run {
        let (x, target, work) = (self.x.clone(), self.target.clone(), self.work);
        let mut replay = capture_local(move |inputs| self.step(&inputs[0], &inputs[1]), &[&x, &target])
            .expect("the step must be captured");
        Run::new(work, move || {
            replay.launch(&[&x, &target]).expect("the step must be launched");
        })
    }
}

/// Captures a step without inputs.
pub(crate) fn captured<O: IntoOutputs>(work: Work, mut step: impl FnMut() -> O + 'static) -> Run {
    let mut replay = capture_local(move |_| step(), &[]).expect("the step must be captured");
    Run::new(work, move || {
        replay.launch(&[]).expect("the step must be launched");
    })
}
