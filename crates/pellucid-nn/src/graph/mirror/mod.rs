//! Recorded training steps over fixed buffers, under the names of an earlier framework.
//!
//! Programs that were written for it find its functions and types here. New programs use
//! [`GraphTrainer`], [`TrainingStep`](super::TrainingStep) and [`InferenceModel`](super::InferenceModel), which read a
//! batch where it is stored, and keep the gradient buffers themselves.
//!
//! | stage | function | effect |
//! | --- | --- | --- |
//! | plan | [`make_plan_for_sequential`] | lists the buffers of a step, from shapes alone, and allocates the gradients |
//! | bind | [`try_rebind_grads`], [`collect_params_from_plan`] | makes the plan's buffers the gradients of the parameters |
//! | record | [`record_step_graph`] | runs no kernel, changes no value, draws no random number |
//! | launch | [`TrainGraph::set_batch`], [`TrainGraph::launch`] | runs the step on the contents of its buffers |
//!
//! [`CudaGraphTrainer`] is a [`GraphTrainer`] with the method names of that framework. It runs on every device.

mod exec;
mod plan;
mod scale;

pub use exec::{GraphExecLike, TrainGraph, record_step_graph};
pub use plan::{
    Buf, CapturePlan, DEFAULT_MAX_SCRATCH, LossBufs, LossKind, PerLayerBufs, Rebound, collect_params_from_plan,
    make_plan_for_sequential, try_rebind_grads,
};
pub use scale::{GradKind, infer_grad_scale};

use super::trainer::GraphTrainer;
use crate::layer::Layer;
use crate::loss::Loss;
use crate::optim::Optimizer;
use pellucid_tensor::{Result, Tensor, ops};

/// A trainer with the method names of the earlier framework.
///
/// ```
/// use pellucid::nn::graph::mirror::CudaGraphTrainer;
/// use pellucid::nn::{Linear, Module, Relu, loss::MseLoss, optim::{Sgd, SgdOptions}, sequential};
/// use pellucid::{DType, Tensor};
/// let model = sequential![Linear::new(3, 8), Relu, Linear::new(8, 1)];
/// let sgd = Sgd::new(model.parameters(), SgdOptions { lr: 0.05, ..Default::default() });
/// let mut trainer = CudaGraphTrainer::new(&model, MseLoss::default(), sgd);
/// trainer.compile(&[16, 3])?;
/// let (x, y) = (Tensor::ones([16, 3], DType::F32), Tensor::ones([16, 1], DType::F32));
/// let first = trainer.one_step(&x, &y)?;
/// assert!(trainer.one_step(&x, &y)? < first);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Debug)]
pub struct CudaGraphTrainer<'f, M, O> {
    /// The trainer, which has further methods.
    pub trainer: GraphTrainer<'f, M, O>,
}

impl<'f, M: Layer + 'f, O: Optimizer + 'f> CudaGraphTrainer<'f, M, O> {
    /// Creates a trainer without recordings.
    pub fn new(model: M, loss: impl Loss + 'f, optimizer: O) -> Self {
        CudaGraphTrainer { trainer: GraphTrainer::new(model, loss, optimizer) }
    }

    /// Records a step for inputs of this shape, for example `[B, K]`, and of the model's
    /// [input dtype](Layer::input_dtype): [`GraphTrainer::prepare`].
    ///
    /// # Errors
    /// The errors of [`GraphTrainer::prepare`].
    pub fn compile(&mut self, input_shape: &[usize]) -> Result<()> {
        let inputs = ops::zeros(input_shape, self.trainer.model().input_dtype())?;
        self.trainer.prepare(&inputs)
    }

    /// Runs a step, and returns the loss of the batch after the update: [`GraphTrainer::step_and_evaluate`].
    ///
    /// # Errors
    /// The errors of [`GraphTrainer::step`].
    pub fn one_step(&mut self, x: &Tensor, y: &Tensor) -> Result<f32> {
        Ok(self.trainer.step_and_evaluate(x, y)? as f32)
    }
}
