//! The earlier framework's names of methods of a trainer.

use super::super::trainer::GraphTrainer;
use crate::layer::Layer;
use crate::optim::Optimizer;
use pellucid_tensor::{Result, Tensor, ops};

/// The names of an earlier framework.
impl<'f, M: Layer + 'f, O: Optimizer + 'f> GraphTrainer<'f, M, O> {
    /// Calls [`prepare`](GraphTrainer::prepare) for inputs of this shape, for example `[B, K]`, and of the model's
    /// [input dtype](Layer::input_dtype).
    ///
    /// # Errors
    /// The errors of [`prepare`](GraphTrainer::prepare).
    pub fn compile(&mut self, input_shape: &[usize]) -> Result<()> {
        let inputs = ops::zeros(input_shape, self.model().input_dtype())?;
        self.prepare(&inputs)
    }

    /// Calls [`step_and_evaluate`](GraphTrainer::step_and_evaluate).
    ///
    /// # Errors
    /// The errors of [`step`](GraphTrainer::step).
    pub fn one_step(&mut self, x: &Tensor, y: &Tensor) -> Result<f32> {
        self.step_and_evaluate(x, y)
    }
}
