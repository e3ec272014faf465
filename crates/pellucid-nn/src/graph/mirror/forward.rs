//! The forward pass of a step over fixed buffers: of inputs, targets and results, and pinned buffers of a plan.

use super::super::batch::{ModelOfInputs, StepLoss, placed};
use super::NamedTensors;
use super::locations::BufferTracker;
use super::plan::{Buf, BufferRole, CapturePlan, PerLayerBufs};
use crate::call::{LayerCall, trace_calls, with_call_listener};
use crate::module::ModuleParts;
use pellucid_tensor::{Error, Result, Tensor, no_grad, ops, unwrap};
use std::rc::Rc;
use std::sync::Arc;

/// A model and a loss over fixed buffers.
pub(super) struct ForwardPass<'f> {
    model: Arc<dyn ModelOfInputs + 'f>,
    loss: Arc<dyn StepLoss + 'f>,
    inputs: Vec<Tensor>,
    targets: Tensor,
    /// The result buffers.
    pub(super) logits: Tensor,
    pub(super) value: Tensor,
    layers: Arc<[PlannedCall]>,
    logits_gradient: Option<Tensor>,
    pub(super) tracker: BufferTracker,
}

/// The call of a layer of the plan, with its pinned buffers.
struct PlannedCall {
    number: Option<usize>,
    outputs: Vec<Tensor>,
    input_gradient: Option<Tensor>,
}

impl<'f> ForwardPass<'f> {
    /// Creates the pass, and copies free buffers to the device of the plan. The inputs are in the order of the plan.
    pub(super) fn new(
        op: &'static str,
        (model, loss): (Arc<dyn ModelOfInputs + 'f>, Arc<dyn StepLoss + 'f>),
        plan: &CapturePlan,
        named: &NamedTensors,
        targets: &Tensor,
    ) -> Result<ForwardPass<'f>> {
        plan.check(op, named, targets)?;
        let device = plan.device();
        let inputs = named.iter().map(|(_, x)| placed(op, device, x)).collect::<Result<Vec<_>>>()?;
        let targets = placed(op, device, targets)?;
        let parts: &dyn ModuleParts = &*model;
        parts.supports_capture()?;
        let planned = &plan.loss.logits_gradient;
        let (traced, _) = trace_calls(parts, &mut || model.output(&inputs))?;
        if (traced.shape(), traced.dtype()) != (planned.shape(), planned.dtype()) {
            let help =
                "shape or dtype of the model's logits differs from that in the plan; create a plan of this model";
            return Err(Error::shapes(op, [traced.shape(), planned.shape()], help));
        }
        let zeros = |like: &Tensor| ops::zeros(like.shape(), like.dtype())?.try_to(device);
        let logits = zeros(&traced)?;
        let (value, _) = trace_calls(parts, &mut || loss.value(&logits, &targets))?;
        let pinned = |buf: &Option<Buf>| buf.as_ref().and_then(Buf::pinned).cloned();
        let call = |layer: &PerLayerBufs| PlannedCall {
            number: layer.call,
            outputs: layer.output.pinned().cloned().into_iter().chain(pinned(&layer.pre_activation)).collect(),
            input_gradient: pinned(&layer.input_gradient),
        };
        Ok(ForwardPass {
            layers: plan.layers.iter().map(call).collect(),
            logits_gradient: planned.pinned().cloned(),
            tracker: BufferTracker::default(),
            value: zeros(&value)?,
            model,
            loss,
            inputs,
            targets,
            logits,
        })
    }

    pub(super) fn inputs(&self) -> &[Tensor] {
        &self.inputs
    }

    pub(super) fn targets(&self) -> &Tensor {
        &self.targets
    }

    /// Returns the loss, and fills the result buffers.
    pub(super) fn run(&self) -> Result<Tensor> {
        let (tracker, layers) = (self.tracker.clone(), self.layers.clone());
        tracker.clear();
        let on_call = move |call: LayerCall<'_>| {
            let Some(layer) = layers.iter().position(|own| own.number == Some(call.call)) else { return };
            layers[layer].outputs.iter().for_each(|buf| write(buf, call.y));
            layers[layer].input_gradient.iter().for_each(|buf| write_gradient(buf, call.x));
            tracker.track_call(layer, &call);
        };
        let logits = with_call_listener(Rc::new(on_call), || self.model.output(&self.inputs))?;
        self.tracker.track_gradient(&logits, BufferRole::LogitsGradient);
        self.logits_gradient.iter().for_each(|buf| write_gradient(buf, &logits));
        let loss = self.loss.value(&logits, &self.targets)?;
        // The result buffers hold values only; they are not part of the autograd graph.
        let _off = no_grad();
        ops::copy_(&self.logits, &logits)?;
        ops::copy_(&self.value, &loss)?;
        Ok(loss)
    }
}

fn write(buf: &Tensor, value: &Tensor) {
    let _off = no_grad();
    unwrap(ops::copy_(buf, value));
}

/// Registers a hook that writes the gradient of x into a buffer.
fn write_gradient(buf: &Tensor, x: &Tensor) {
    if x.requires_grad() {
        let buf = buf.clone();
        x.register_hook(move |gradient| {
            write(&buf, gradient);
            None
        });
    }
}
