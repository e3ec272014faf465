//! The gradients of the parameters of an optimizer between the launches of a step.

use super::launcher::{Launcher, PerRecording};
use crate::parameter::Parameter;
use pellucid_tensor::{Result, Tensor, lock, no_grad, ops};
use std::sync::{Arc, Mutex};

/// The gradient of one parameter.
#[derive(Default)]
struct GradientBuffer {
    /// The tensor that holds the gradient of the parameter between launches; `None` until the parameter is trained.
    tensor: Option<Tensor>,
    /// Whether the tensor holds a gradient: of the last launch, or accumulated since the last update. Otherwise it
    /// contains zeros.
    is_filled: bool,
}

impl GradientBuffer {
    /// Returns the tensor if it has the shape, dtype and device of the parameter.
    fn fitting(&self, parameter: &Parameter) -> Option<&Tensor> {
        let same = |t: &Tensor| (t.dtype(), t.device()) == (parameter.dtype(), parameter.device());
        self.tensor.as_ref().filter(|t| same(t) && t.shape() == parameter.shape())
    }

    /// Returns a buffer with the shape, dtype and device of the parameter, which was moved or converted, or is trained
    /// for the first time. It holds the gradient of this buffer, unless the gradient of the parameter was removed.
    fn for_parameter(&self, parameter: &Parameter, is_removed: bool) -> Result<GradientBuffer> {
        let (shape, dtype, device) = (parameter.shape(), parameter.dtype(), parameter.device());
        let filled = self.tensor.as_ref().filter(|t| self.is_filled && !is_removed && t.shape() == shape);
        let tensor = match filled {
            Some(gradient) => ops::to_dtype(gradient, dtype)?,
            None => ops::zeros(shape, dtype)?,
        };
        Ok(GradientBuffer { tensor: Some(tensor.try_to(device)?), is_filled: filled.is_some() })
    }

    fn zero(&self) -> Result<()> {
        self.tensor.as_ref().map_or(Ok(()), zero)
    }
}

/// The gradients of the parameters of an optimizer, in their order.
#[derive(Default)]
pub(super) struct GradientBuffers(Vec<GradientBuffer>);

impl GradientBuffers {
    /// Sets the buffers as the gradients of the parameters that require a gradient. A buffer whose gradient was removed
    /// since the last launch, for example by `zero_grad`, is set to zero if the step `accumulates`. A buffer of a
    /// parameter that was moved or converted is replaced by one with the same gradient.
    pub(super) fn bind(&mut self, parameters: &[Parameter], accumulates: bool) -> Result<ReplacedGradients> {
        self.0.resize_with(parameters.len(), GradientBuffer::default);
        let mut replaced = ReplacedGradients::default();
        for (parameter, buffer) in parameters.iter().zip(&mut self.0).filter(|(p, _)| p.requires_grad()) {
            let gradient = parameter.grad();
            let is_removed = gradient.is_none();
            match (buffer.fitting(parameter), gradient) {
                // Another step may have bound its own buffer.
                (Some(tensor), Some(gradient)) if tensor.storage_id() == gradient.storage_id() => continue,
                (Some(_), _) if !(accumulates && is_removed) => {}
                (Some(tensor), _) => {
                    zero(tensor)?;
                    buffer.is_filled = false;
                }
                (None, _) => *buffer = buffer.for_parameter(parameter, is_removed)?,
            }
            replaced.replace(parameter, buffer.tensor.clone());
        }
        Ok(replaced)
    }

    /// Marks the buffers of the parameters that a launch reaches as filled. Without accumulation, it zeroes the other
    /// filled buffers, which the launch has not written.
    pub(super) fn mark_filled(&mut self, reached: &[bool], accumulates: bool) -> Result<()> {
        for (buffer, &is_reached) in self.0.iter_mut().zip(reached) {
            if buffer.is_filled && !is_reached && !accumulates {
                buffer.zero()?;
                buffer.is_filled = false;
            }
            buffer.is_filled |= is_reached;
        }
        Ok(())
    }

    /// Multiplies the gradients in all filled buffers by a factor.
    pub(super) fn scale(&self, factor: f64) -> Result<()> {
        let _off = no_grad();
        let mut filled = self.0.iter().filter(|buffer| buffer.is_filled).filter_map(|buffer| buffer.tensor.as_ref());
        filled.try_for_each(|tensor| ops::copy_(tensor, &ops::mul(tensor, factor)?))
    }

    /// Returns true if the buffer of the parameter with this index holds a gradient.
    pub(super) fn is_filled(&self, index: usize) -> bool {
        self.0.get(index).is_some_and(|buffer| buffer.is_filled)
    }

    /// Marks all buffers as zero after an update, which has zeroed the buffers of all parameters but the frozen ones.
    pub(super) fn mark_zero(&mut self, parameters: &[Parameter]) -> Result<()> {
        for (buffer, parameter) in self.0.iter_mut().zip(parameters) {
            if std::mem::take(&mut buffer.is_filled) && !parameter.requires_grad() {
                buffer.zero()?;
            }
        }
        Ok(())
    }
}

/// Gradients that were replaced. They are restored when this value is dropped.
#[derive(Default)]
pub(super) struct ReplacedGradients(Vec<(Parameter, Option<Tensor>)>);

impl ReplacedGradients {
    pub(super) fn replace(&mut self, parameter: &Parameter, gradient: Option<Tensor>) {
        self.0.push((parameter.clone(), parameter.grad()));
        parameter.set_grad(gradient);
    }

    /// Keeps the new gradients.
    pub(super) fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for ReplacedGradients {
    fn drop(&mut self) {
        self.0.drain(..).for_each(|(parameter, gradient)| parameter.set_grad(gradient));
    }
}

/// Removes the gradients of all parameters that an update skips: frozen parameters, and parameters without a gradient
/// since the last update.
pub(super) fn hide_skipped(parameters: &[Parameter], has_gradient: impl Fn(usize) -> bool) -> ReplacedGradients {
    let mut hidden = ReplacedGradients::default();
    for (index, parameter) in parameters.iter().enumerate() {
        if !(parameter.requires_grad() && has_gradient(index)) && parameter.grad().is_some() {
            hidden.replace(parameter, None);
        }
    }
    hidden
}

/// Zeroes a gradient.
pub(super) fn zero(gradient: &Tensor) -> Result<()> {
    ops::copy_(gradient, &ops::zeros_like(gradient)?)
}

/// For each parameter of an optimizer, whether the loss of a pass depends on it.
pub(super) type Reached = Arc<[bool]>;

/// The parameters that each recording of a pass reaches.
#[derive(Default)]
pub(super) struct ReachedParameters {
    /// The parameters that the latest pass reaches. Recording the pass, or running it eagerly, sets them.
    pub(super) recorded: Arc<Mutex<Reached>>,
    known: PerRecording<Reached>,
}

impl ReachedParameters {
    /// Returns the parameters that the latest launched or prepared pass reaches.
    pub(super) fn of_latest(&mut self, pass: &Launcher<'_>) -> Result<Reached> {
        self.known.of_latest(pass, || Ok(lock(&self.recorded).clone())).cloned()
    }
}
