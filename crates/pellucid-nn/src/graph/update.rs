//! The update of a training step: an optimizer, or a closure.

use super::batch::StepLoss;
use super::coverage::trained_parameters;
use crate::module::ModuleParts;
use crate::optim::{GradScaler, Optimizer};
use crate::parameter::Parameter;
use pellucid_tensor::{Result, Tensor, no_grad};
use std::sync::{Arc, Mutex, PoisonError};

/// A function that changes the gradients of these parameters before the update, such as clipping.
pub(super) type BeforeUpdate<'f> = Arc<dyn Fn(&[Parameter]) -> Result<()> + Send + Sync + 'f>;

/// The update of a recorded training step: an [`Optimizer`], or a closure that changes the parameters in place, such as
/// `|| optimizer.step()`.
///
/// A closure reads the gradients of all parameters of model and loss. It runs while the step is recorded; a launch
/// replays its operations. It returns `()` or a [`Result`]. The compiler infers `Kind`, which tells optimizers and
/// closures apart.
///
/// ```
/// use pellucid::nn::graph::{RecordedStep, StepOptions, StepPlan};
/// use pellucid::nn::loss::{LossKind, MseLoss};
/// use pellucid::nn::{Linear, Module};
/// use pellucid::{DType, Tensor};
///
/// let (model, loss) = (Linear::new(3, 1), MseLoss::default());
/// let (x, y) = (Tensor::ones([4, 3], DType::F32), Tensor::ones([4, 1], DType::F32));
/// let plan = StepPlan::new(&model, &x, LossKind::Mse)?;
/// let parameters = model.parameters();
/// let descend = || parameters.iter().for_each(|p| p.copy_(&(p.tensor() - p.grad().unwrap() * 0.1)));
/// let mut step = RecordedStep::training(&model, &loss, descend, &plan, &x, &y, StepOptions::default())?;
/// step.launch()?;
/// let first = step.loss.item::<f32>();
/// step.launch()?;
/// assert!(step.loss.item::<f32>() < first);
/// # Ok::<(), pellucid::Error>(())
/// ```
pub trait ParameterUpdate<'f, Kind: ?Sized> {
    /// Returns the update without its type.
    #[doc(hidden)]
    fn into_step_optimizer(self) -> StepOptimizer<'f>;
}

impl<'f, O: Optimizer + 'f> ParameterUpdate<'f, dyn Optimizer> for O {
    fn into_step_optimizer(self) -> StepOptimizer<'f> {
        StepOptimizer::Optimizer(Arc::new(self))
    }
}

impl<'f, F: FnMut() -> R + Send + 'f, R: UpdateResult> ParameterUpdate<'f, fn() -> R> for F {
    fn into_step_optimizer(mut self) -> StepOptimizer<'f> {
        let run = Arc::new(Mutex::new(move || self().into_result()));
        StepOptimizer::Closure { run, parameters: Vec::new() }
    }
}

/// The result of a closure that updates parameters: `()` or `Result<()>`.
pub trait UpdateResult {
    /// Returns the result.
    ///
    /// # Errors
    /// The error of the closure.
    fn into_result(self) -> Result<()>;
}

impl UpdateResult for () {
    fn into_result(self) -> Result<()> {
        Ok(())
    }
}

impl UpdateResult for Result<()> {
    fn into_result(self) -> Result<()> {
        self
    }
}

/// The optimizer, or the closure, that updates the parameters of a step.
#[derive(Clone)]
pub enum StepOptimizer<'f> {
    /// An optimizer.
    Optimizer(Arc<dyn Optimizer + 'f>),
    /// A closure.
    Closure {
        /// The closure.
        run: Arc<Mutex<dyn FnMut() -> Result<()> + Send + 'f>>,
        /// The parameters of model and loss that require a gradient.
        parameters: Vec<Parameter>,
    },
}

impl StepOptimizer<'_> {
    /// Returns this update for a model and a loss, whose parameters a closure updates.
    pub(super) fn of_model(mut self, model: &dyn ModuleParts, loss: &dyn StepLoss) -> Self {
        if let StepOptimizer::Closure { parameters, .. } = &mut self {
            *parameters = trained_parameters(model, loss).into_iter().map(|(_, parameter)| parameter).collect();
        }
        self
    }

    /// Returns the parameters that are updated.
    pub(super) fn parameters(&self) -> &[Parameter] {
        match self {
            StepOptimizer::Optimizer(optimizer) => optimizer.parameters(),
            StepOptimizer::Closure { parameters, .. } => parameters,
        }
    }

    /// Returns the state of the optimizer by name; the state of a closure is unknown.
    pub(super) fn state(&self) -> Vec<(String, Tensor)> {
        match self {
            StepOptimizer::Optimizer(optimizer) => optimizer.state(),
            StepOptimizer::Closure { .. } => Vec::new(),
        }
    }

    fn step(&self) -> Result<()> {
        match self {
            StepOptimizer::Optimizer(optimizer) => optimizer.try_step(),
            StepOptimizer::Closure { run, .. } => (run.lock().unwrap_or_else(PoisonError::into_inner))(),
        }
    }
}

/// The optimizer of a step, with the functions that run before it.
pub(super) struct StepUpdate<'f> {
    pub(super) optimizer: StepOptimizer<'f>,
    /// The scaler, which needs an optimizer.
    pub(super) scaler: Option<(Arc<GradScaler>, Arc<dyn Optimizer + 'f>)>,
    pub(super) before_update: Option<BeforeUpdate<'f>>,
}

impl StepUpdate<'_> {
    /// Returns the loss, multiplied by the scale if there is a scaler.
    pub(super) fn scaled(&self, loss: Tensor) -> Result<Tensor> {
        match &self.scaler {
            Some((scaler, _)) => scaler.try_scale(&loss),
            None => Ok(loss),
        }
    }

    pub(super) fn run(&self) -> Result<()> {
        let _off = no_grad();
        let unscale = |(scaler, optimizer): &(Arc<GradScaler>, Arc<_>)| scaler.unscale(&**optimizer);
        let unscaled = self.scaler.as_ref().map(unscale).transpose()?;
        if let Some(before_update) = &self.before_update {
            before_update(self.optimizer.parameters())?;
        }
        match unscaled.zip(self.scaler.as_ref()) {
            Some((unscaled, (scaler, optimizer))) => unscaled.step(&**optimizer).and_then(|()| scaler.update()),
            None => self.optimizer.step(),
        }
    }

    /// Returns all tensors that an update changes, except parameters and gradients.
    pub(super) fn state(&self) -> Vec<Tensor> {
        let own = self.optimizer.state().into_iter();
        own.chain(self.scaler.iter().flat_map(|(scaler, _)| scaler.values())).map(|(_, tensor)| tensor).collect()
    }
}
