//! The forward pass of a step over fixed buffers of inputs, targets and results.

use super::observer::BufferObserver;
use super::plan::{BufferRole, CapturePlan, NamedTensors};
use crate::call::{LayerCall, trace_calls, with_call_listener};
use crate::graph::batch::{ModelOfInputs, StepLoss, placed};
use crate::module::DynModule;
use pellucid_tensor::{Error, Result, Tensor, no_grad, ops};
use std::rc::Rc;
use std::sync::Arc;

/// A model and a loss, without their types.
pub(super) type ModelAndLoss<'f> = (Arc<dyn ModelOfInputs + 'f>, Arc<dyn StepLoss + 'f>);

/// A model and a loss over fixed buffers, on the device of the plan.
pub(super) struct ForwardPass<'f> {
    pub(super) pair: ModelAndLoss<'f>,
    pub(super) inputs: Vec<Tensor>,
    pub(super) targets: Tensor,
    pub(super) logits: Tensor,
    pub(super) loss: Tensor,
    pub(super) observer: BufferObserver,
}

impl<'f> ForwardPass<'f> {
    /// Creates the pass, and copies free buffers to the device of the plan.
    pub(super) fn new(
        op: &'static str,
        pair: ModelAndLoss<'f>,
        plan: &CapturePlan,
        (named, targets): (&NamedTensors, &Tensor),
    ) -> Result<ForwardPass<'f>> {
        plan.check(op, named, targets)?;
        let (device, planned) = (plan.device(), &plan.loss.d_y);
        let inputs = named.iter().map(|(_, x)| placed(op, device, x)).collect::<Result<Vec<_>>>()?;
        let targets = placed(op, device, targets)?;
        let model: &dyn DynModule = &*pair.0;
        model.supports_capture()?;
        let (logits, _) = trace_calls(model, &mut || pair.0.output(&inputs))?;
        if (logits.shape(), logits.dtype()) != (planned.shape(), planned.dtype()) {
            let help =
                "shape or dtype of the model's logits differs from that in the plan; create a plan of this model";
            return Err(Error::shapes(op, [logits.shape(), planned.shape()], help));
        }
        let zeros = |like: &Tensor| ops::zeros(like.shape(), like.dtype())?.try_to(device);
        let logits = zeros(&logits)?;
        let (loss, _) = trace_calls(model, &mut || pair.1.value(&logits, &targets))?;
        let (loss, observer) = (zeros(&loss)?, BufferObserver::of(plan));
        Ok(ForwardPass { pair, inputs, targets, logits, loss, observer })
    }

    /// Returns the loss, and fills the result buffers.
    pub(super) fn run(&self) -> Result<Tensor> {
        let observer = self.observer.clone();
        observer.clear();
        let listener = Rc::new(move |call: LayerCall<'_>| observer.observe_call(&call));
        let logits = with_call_listener(listener, || self.pair.0.output(&self.inputs))?;
        self.observer.observe_gradient(BufferRole::LogitsGradient, &logits);
        if logits.shape() != self.logits.shape() {
            let help = "the shape of the logits differs from the shape in the plan, which is made without hooks";
            return Err(Error::shapes("record_step", [logits.shape(), self.logits.shape()], help));
        }
        let loss = self.pair.1.value(&logits, &self.targets)?;
        // The result buffers hold values only; they are not part of the autograd graph.
        let _off = no_grad();
        ops::copy_(&self.logits, &logits)?;
        ops::copy_(&self.loss, &loss)?;
        Ok(loss)
    }
}
