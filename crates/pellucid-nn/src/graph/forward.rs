//! The forward pass of a step: a model and a loss over input and output buffers.

use super::batch::{BoundModel, StepLoss, placed_on, zeros_on};
use super::buffer_tracker::BufferTracker;
use super::plan::{BufferRole, LayerBuffers, PlannedBuffer, StepPlan};
use super::stream::Stream;
use crate::call::{LayerCall, trace_calls, with_call_listener};
use crate::module::ModuleParts;
use pellucid_tensor::{Error, Result, Tensor, no_grad, ops, unwrap};
use std::rc::Rc;
use std::sync::Arc;

/// A model with its inputs, and a loss with its targets, without their types.
#[derive(Clone)]
pub(super) struct StepComputation<'f> {
    pub(super) model: Arc<dyn BoundModel + 'f>,
    pub(super) loss: Arc<dyn StepLoss + 'f>,
    pub(super) targets: Tensor,
}

/// The forward pass of a step: model and loss, with their input and output buffers.
pub(super) struct ForwardPass<'f> {
    pub(super) computation: StepComputation<'f>,
    /// The pinned buffers of each layer of the plan, and the number of the layer's call.
    pins: Arc<[Option<PinnedBuffers>]>,
    layers: Arc<[Option<usize>]>,
    logits_gradient: Option<Tensor>,
    outputs: StepOutputs,
    /// Records which storages hold the plan's buffers.
    tracker: Option<BufferTracker>,
}

/// The result buffers of a step.
#[derive(Clone)]
pub(super) struct StepOutputs {
    pub(super) logits: Tensor,
    pub(super) loss: Tensor,
}

/// The pinned buffers of a layer: of its output, and of its input gradient.
struct PinnedBuffers {
    output: Vec<Tensor>,
    input_gradient: Option<Tensor>,
}

impl<'f> ForwardPass<'f> {
    pub(super) fn new(op: &'static str, computation: StepComputation<'f>, plan: &StepPlan) -> Result<Self> {
        let StepComputation { model, loss, targets } = computation;
        plan.check(op, model.batch(), &targets)?;
        let device = plan.device();
        let targets = placed_on(device, &targets.detach())?;
        let parts: &dyn ModuleParts = &*model;
        parts.supports_capture()?;
        let planned = &plan.loss.logits_gradient;
        let (traced, _) = trace_calls(parts, &mut || model.logits())?;
        if (traced.shape(), traced.dtype()) != (planned.shape(), planned.dtype()) {
            let help =
                "shape or dtype of the model's logits differs from that in the plan; create a plan of this model";
            return Err(Error::shapes(op, [traced.shape(), planned.shape()], help));
        }
        let logits = zeros_on(device, planned.shape(), planned.dtype())?;
        let (value, _) = trace_calls(parts, &mut || loss.value(&logits, &targets))?;
        if value.rank() > 0 {
            let help = "the loss of a training step must be a scalar; reduce the loss to its mean or sum";
            return Err(Error::shapes(op, [value.shape()], help));
        }
        let outputs = StepOutputs { logits, loss: zeros_on(device, value.shape(), value.dtype())? };
        let computation = StepComputation { targets, model, loss };
        let layers = plan.layers.iter().map(|layer| layer.call).collect();
        let pins = plan.layers.iter().map(|_| None).collect();
        Ok(ForwardPass { computation, pins, layers, logits_gradient: None, outputs, tracker: None })
    }

    /// Returns this pass with a tracker of buffers, if it will be recorded.
    pub(super) fn with_tracker(mut self, stream: &Stream) -> (Self, BufferTracker) {
        let tracker = BufferTracker::default();
        self.tracker = (!stream.is_eager()).then(|| tracker.clone());
        (self, tracker)
    }

    /// Returns this pass with copies into the pinned buffers of the plan.
    pub(super) fn with_pins(mut self, plan: &StepPlan) -> Self {
        let pin = |layer: &LayerBuffers| {
            let outputs = [Some(&layer.output), layer.pre_activation.as_ref()];
            let output: Vec<_> = outputs.into_iter().flatten().filter_map(PlannedBuffer::pinned).cloned().collect();
            let input_gradient = layer.input_gradient.as_ref().and_then(PlannedBuffer::pinned).cloned();
            (input_gradient.is_some() || !output.is_empty()).then_some(PinnedBuffers { output, input_gradient })
        };
        self.pins = plan.layers.iter().map(pin).collect();
        self.logits_gradient = plan.loss.logits_gradient.pinned().cloned();
        self
    }

    pub(super) fn outputs(&self) -> StepOutputs {
        self.outputs.clone()
    }

    /// Returns the input buffers, by name.
    pub(super) fn inputs(&self) -> Vec<(String, Tensor)> {
        let mut inputs = self.computation.model.batch().named();
        inputs.push(("y".into(), self.computation.targets.clone()));
        inputs
    }

    /// Tracks the parameter gradients after a backward pass.
    pub(super) fn track_gradients(&self) {
        if let Some(tracker) = &self.tracker {
            let parts: &dyn ModuleParts = &*self.computation.model;
            for (name, parameter) in parts.parameters() {
                parameter.grad().iter().for_each(|grad| tracker.track(BufferRole::Gradient(name.clone()), grad));
            }
        }
    }

    /// Returns the loss, tracked for a backward pass, and fills the output buffers.
    pub(super) fn run(&self) -> Result<Tensor> {
        let StepComputation { model, loss, targets } = &self.computation;
        let (tracker, layers, pins) = (self.tracker.clone(), self.layers.clone(), self.pins.clone());
        tracker.iter().for_each(BufferTracker::clear);
        let on_call = move |call: LayerCall<'_>| {
            let Some(layer) = layers.iter().position(|own| *own == Some(call.call)) else { return };
            pins[layer].iter().for_each(|pin| pin.write(call.x, call.y));
            tracker.iter().for_each(|tracker| tracker.track_call(layer, &call));
        };
        let logits = with_call_listener(Rc::new(on_call), || model.logits())?;
        if let Some(tracker) = &self.tracker {
            tracker.track_gradient(&logits, BufferRole::LogitsGradient);
        }
        if let Some(buf) = &self.logits_gradient {
            copy_gradient_on_backward(&logits, buf);
        }
        let loss = loss.value(&logits, targets)?;
        // The output buffers hold values only; they are not part of the autograd graph.
        let _off = no_grad();
        ops::copy_(&self.outputs.logits, &logits)?;
        ops::copy_(&self.outputs.loss, &loss)?;
        Ok(loss)
    }
}

impl PinnedBuffers {
    /// Copies the output of a call, and registers the copy of its input gradient.
    fn write(&self, x: &Tensor, y: &Tensor) {
        self.output.iter().for_each(|to| {
            let _off = no_grad();
            unwrap(ops::copy_(to, y));
        });
        if let Some(buf) = &self.input_gradient {
            copy_gradient_on_backward(x, buf);
        }
    }
}

/// Registers a hook that copies the gradient of x into a buffer.
fn copy_gradient_on_backward(x: &Tensor, buf: &Tensor) {
    if x.requires_grad() {
        let buf = buf.clone();
        x.register_hook(move |gradient| {
            let _off = no_grad();
            unwrap(ops::copy_(&buf, gradient));
            None
        });
    }
}
