//! The update of a step: an optimizer, or a closure.

use crate::optim::{Optimizer, ParamGroup};
use crate::parameter::Parameter;
use pellucid_tensor::{IntoOutputs, Result, Tensor, lock};
use std::sync::{Arc, Mutex};

/// The update of a recorded training step: an [`Optimizer`], or a closure that changes the parameters in place, such as
/// `|| optimizer.step()`.
///
/// A closure reads the gradients of all parameters of model and loss. It runs while the step is recorded; a launch
/// replays its operations. It returns `()` or a [`Result`]. The compiler infers `Kind`, which tells optimizers and
/// closures apart.
pub trait ParameterUpdate<'f, Kind: ?Sized> {
    /// Returns the update as an optimizer of these parameters, and whether it is a closure.
    #[doc(hidden)]
    fn into_optimizer(self, parameters: Vec<Parameter>) -> (Arc<dyn Optimizer + 'f>, bool);
}

impl<'f, O: Optimizer + 'f> ParameterUpdate<'f, dyn Optimizer> for O {
    fn into_optimizer(self, _: Vec<Parameter>) -> (Arc<dyn Optimizer + 'f>, bool) {
        (Arc::new(self), false)
    }
}

impl<'f, F: FnMut() -> R + Send + 'f, R: IntoOutputs> ParameterUpdate<'f, fn() -> R> for F {
    fn into_optimizer(mut self, parameters: Vec<Parameter>) -> (Arc<dyn Optimizer + 'f>, bool) {
        let run = Mutex::new(Box::new(move || self().into_outputs().map(drop)) as UpdateFn<'f>);
        (Arc::new(ClosureOptimizer { parameters: parameters.into(), run }), true)
    }
}

type UpdateFn<'f> = Box<dyn FnMut() -> Result<()> + Send + 'f>;

/// A closure that updates parameters. It has no groups and no state.
struct ClosureOptimizer<'f> {
    parameters: Arc<[Parameter]>,
    run: Mutex<UpdateFn<'f>>,
}

impl Optimizer for ClosureOptimizer<'_> {
    fn parameters(&self) -> Arc<[Parameter]> {
        self.parameters.clone()
    }

    fn groups(&self) -> &[ParamGroup] {
        &[]
    }

    fn state(&self) -> Vec<(String, Tensor)> {
        Vec::new()
    }

    fn try_step_scaled(&self, _: Option<&Tensor>, _: Option<&Tensor>) -> Result<()> {
        lock(&self.run)()
    }
}
