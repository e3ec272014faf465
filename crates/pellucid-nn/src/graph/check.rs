//! A check of one training step: the loss falls, and the update is a descent step.

use crate::module::identity;
use crate::parameter::Parameter;
use pellucid_tensor::{Error, Generator, Result, Tensor, no_grad, ops};
use std::collections::HashSet;

/// The effect of one training step on the loss of its own batch; see
/// [`GraphTrainer::check_step`](super::GraphTrainer::check_step).
///
/// A step with a small learning rate reduces the loss of its batch, and the change Δθ of the parameters opposes their
/// gradient g: Σ Δθ·g < 0. Momentum from earlier steps, weight decay and a large learning rate may break either rule,
/// so check a new optimizer with a small learning rate and without weight decay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepCheck {
    /// The loss before the update.
    pub loss_before: f64,
    /// The loss of the same batch after the update, in the same mode and with the same random numbers.
    pub loss_after: f64,
    /// The slope of the loss along the update: Σ Δθ·g over all elements of the updated parameters.
    pub slope: f64,
}

impl StepCheck {
    /// Whether the loss is smaller after the update.
    pub fn loss_falls(&self) -> bool {
        self.loss_after < self.loss_before
    }

    /// Whether the update is a descent step: Σ Δθ·g < 0.
    pub fn is_descent_step(&self) -> bool {
        self.slope < 0.0
    }

    /// Returns an error unless the loss falls and the update is a descent step.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with both losses, the slope and a remedy.
    pub fn ensure(&self) -> Result<()> {
        let help = match (self.loss_falls(), self.is_descent_step()) {
            (true, true) => return Ok(()),
            _ if !self.loss_before.is_finite() => {
                "the loss is not finite before the update: check the batch and the parameters; detect_anomaly() finds \
                 the operation"
            }
            _ if !self.loss_after.is_finite() => "the loss is not finite after the update: lower the learning rate",
            (false, true) => "the loss does not fall although the update opposes the gradient: lower the learning rate",
            (_, false) if self.slope == 0.0 => {
                "the update changes nothing: the learning rate is 0, the gradients are 0, or the update was skipped"
            }
            (_, false) => {
                "the update does not oppose the gradient: check the sign of the update, the momentum of earlier steps \
                 and the weight decay"
            }
        };
        let StepCheck { loss_before, loss_after, slope } = self;
        let reason = format!("loss {loss_before} before the update and {loss_after} after it, slope {slope}; {help}");
        Err(Error::invalid("check_step", reason))
    }
}

/// Launches a step twice with the same random numbers, and then restores `state`, the gradients and the default random
/// generator. `state` lists all other tensors that a launch writes. `launch` returns the loss before the update.
/// `parameters` are all parameters that the step may update.
pub(super) fn check_step(
    state: Vec<Tensor>,
    parameters: &[Parameter],
    launch: &mut dyn FnMut() -> Result<f64>,
) -> Result<StepCheck> {
    let _off = no_grad();
    let random = TensorSnapshot::new(Generator::default().states().into_iter().map(|(_, state)| state).collect())?;
    let state = TensorSnapshot::new(state)?;
    let gradients: Vec<Option<Tensor>> = parameters.iter().map(|p| p.grad()).collect();
    let gradient_values = TensorSnapshot::new(gradients.iter().flatten().cloned().collect())?;
    let result = launch_twice(&random, parameters, launch);
    parameters.iter().zip(gradients).for_each(|(p, gradient)| p.set_grad(gradient));
    random.restore()?;
    state.restore()?;
    gradient_values.restore()?;
    result
}

fn launch_twice(
    random: &TensorSnapshot,
    parameters: &[Parameter],
    launch: &mut dyn FnMut() -> Result<f64>,
) -> Result<StepCheck> {
    let values = |tensor: &Tensor| tensor.try_to_vec::<f64>();
    let before = parameters.iter().map(|p| values(p.tensor())).collect::<Result<Vec<_>>>()?;
    let loss_before = launch()?;
    let mut slope = 0.0;
    for (parameter, before) in parameters.iter().zip(before) {
        let after = values(parameter.tensor())?;
        // A parameter without gradient is not updated.
        if let Some(gradient) = parameter.grad() {
            let changes = after.iter().zip(before).map(|(after, before)| after - before);
            slope += changes.zip(values(&gradient)?).map(|(change, gradient)| change * gradient).sum::<f64>();
        }
    }
    random.restore()?;
    let loss_after = launch()?;
    Ok(StepCheck { loss_before, loss_after, slope })
}

/// Tensors, each with a copy of its values.
struct TensorSnapshot(Vec<(Tensor, Tensor)>);

impl TensorSnapshot {
    fn new(mut tensors: Vec<Tensor>) -> Result<TensorSnapshot> {
        let mut seen = HashSet::new();
        tensors.retain(|tensor| seen.insert((identity(tensor), tensor.shape().clone())));
        let saved = tensors.into_iter().map(|tensor| Ok((ops::copy(&tensor)?, tensor)));
        saved.map(|pair| pair.map(|(copy, tensor)| (tensor, copy))).collect::<Result<_>>().map(TensorSnapshot)
    }

    fn restore(&self) -> Result<()> {
        self.0.iter().try_for_each(|(tensor, copy)| ops::copy_(tensor, copy))
    }
}
