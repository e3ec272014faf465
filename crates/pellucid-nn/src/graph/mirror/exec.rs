//! Recorded steps over fixed buffers.

use super::plan::{CapturePlan, bound_gradients};
use crate::graph::launcher::{Launcher, StepFn};
use crate::layer::Layer;
use crate::loss::Loss;
use crate::parameter::Parameter;
use pellucid_tensor::{
    CaptureOptions, Captured, Error, GradOptions, IntoOutputs, Result, Tensor, enable_grad, grad, no_grad, ops,
};
use std::fmt;

/// The name in errors of the operation that records a step.
const RECORD: &str = "record_step_graph";

/// A step that [`launch`](GraphExecLike::launch) executes: a recording, or a closure that runs eagerly, as on a device
/// without capture.
///
/// ```
/// use pellucid::nn::graph::mirror::GraphExecLike;
/// let mut launches = 0;
/// let mut step = GraphExecLike::new(|| {
///     launches += 1;
///     Ok(())
/// });
/// step.launch()?;
/// step.launch()?;
/// assert!(step.captured().is_none());
/// drop(step);
/// assert_eq!(launches, 2);
/// # Ok::<(), pellucid::Error>(())
/// ```
pub struct GraphExecLike<'f> {
    launcher: Launcher<'f>,
    /// The parameters that the step trains, with their gradient buffers.
    gradients: Vec<(Parameter, Tensor)>,
}

impl fmt::Debug for GraphExecLike<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GraphExecLike").finish_non_exhaustive()
    }
}

impl<'f> GraphExecLike<'f> {
    /// Creates a step that calls `step` at each launch.
    pub fn new(mut step: impl FnMut() -> Result<()> + Send + 'f) -> Self {
        let step: StepFn<'f> = Box::new(move |_| step().into_outputs());
        GraphExecLike { launcher: Launcher::new(true, CaptureOptions::default(), step), gradients: Vec::new() }
    }

    /// Executes the step on the contents of its buffers. Gradients that were removed or replaced since the last launch,
    /// for example by `zero_grad`, are set to the plan's buffers again.
    ///
    /// # Errors
    /// The errors of [`Captured::launch`], or of eager operations.
    pub fn launch(&mut self) -> Result<()> {
        let _on = enable_grad();
        self.bind();
        self.launcher.launch(&[]).map(drop)
    }

    fn bind(&self) {
        for (parameter, buffer) in &self.gradients {
            if parameter.grad().is_none_or(|gradient| gradient.storage_id() != buffer.storage_id()) {
                parameter.set_grad(Some(buffer.clone()));
            }
        }
    }

    /// Returns the recording; `None` for a step that runs eagerly.
    pub fn captured(&self) -> Option<&Captured<'f>> {
        self.launcher.captured()
    }

    /// Returns the reason why the step runs eagerly; `None` for a recording.
    pub fn eager_reason(&self) -> Option<&str> {
        self.launcher.eager_reason()
    }
}

/// Records a training step on the contents of `x_buf` and `y_buf` at each launch: forward, loss, backward, and
/// `optimizer_step`, such as `|| optimizer.step()`. On a device without capture, the step runs eagerly.
///
/// Recording runs no kernel: parameters, optimizer state, statistics and random generators stay unchanged until the
/// first launch. `optimizer_step` runs while the step is recorded; a launch replays its operations. Gradients are
/// computed for the parameters that [`try_rebind_grads`](super::try_rebind_grads) has bound to the plan. Each launch
/// overwrites them; a parameter on which the loss does not depend has the gradient 0.
///
/// ```
/// use pellucid::nn::graph::mirror::{LossKind, TrainGraph};
/// use pellucid::nn::graph::mirror::{make_plan_for_sequential, record_step_graph, try_rebind_grads};
/// use pellucid::nn::{Linear, Module, loss::MseLoss, optim::{Optimizer, Sgd, SgdOptions}, sequential};
/// use pellucid::{DType, Tensor};
///
/// let (model, loss) = (sequential![Linear::new(3, 1)], MseLoss::default());
/// let optimizer = Sgd::new(model.parameters(), SgdOptions { lr: 0.1, ..Default::default() });
/// let plan = make_plan_for_sequential(&model, &[4, 3], LossKind::Mse, 8 << 20)?;
/// assert_eq!(try_rebind_grads(&model, &optimizer, &plan)?.bound, ["0.weight", "0.bias"]);
///
/// let (x_buf, y_buf) = (Tensor::zeros([4, 3], DType::F32), Tensor::zeros([4, 1], DType::F32));
/// let exec = record_step_graph(&model, &loss, || optimizer.step(), &plan, &x_buf, &y_buf)?;
/// let mut graph = TrainGraph::new(exec, plan, x_buf, y_buf);
/// graph.set_batch(&Tensor::ones([4, 3], DType::F32), &Tensor::ones([4, 1], DType::F32))?;
/// graph.launch()?;
/// let first = graph.loss()?.item::<f32>();
/// graph.launch()?;
/// assert!(graph.loss()?.item::<f32>() < first);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// [`Error::Layer`] for buffers that do not match the plan, for a layer that rejects its input, or for one that cannot
/// be captured; [`Error::DeviceMismatch`] for buffers that are not on the device of the plan; [`Error::ReadInCapture`]
/// names the line that reads a value; [`Error::InvalidArgument`] if no gradient is bound to the plan; errors of
/// [`capture`](pellucid_tensor::capture()).
pub fn record_step_graph<'f, R: IntoOutputs>(
    model: &'f (impl Layer + ?Sized),
    loss: &'f (impl Loss + ?Sized),
    mut optimizer_step: impl FnMut() -> R + Send + 'f,
    plan: &CapturePlan,
    x_buf: &Tensor,
    y_buf: &Tensor,
) -> Result<GraphExecLike<'f>> {
    plan.check(RECORD, x_buf, y_buf)?;
    if let Some(other) = [x_buf, y_buf].into_iter().find(|buffer| buffer.device() != plan.device) {
        let devices = [plan.device, other.device()].map(|device| device.to_string()).into();
        return Err(Error::DeviceMismatch { op: RECORD, devices });
    }
    model.supports_capture()?;
    let gradients = bound_gradients(model, plan)?;
    if gradients.is_empty() {
        let reason = "no gradient of the model is bound to the plan; call try_rebind_grads() before recording";
        return Err(Error::invalid(RECORD, reason));
    }
    let (trained, x, y) = (gradients.clone(), x_buf.clone(), y_buf.clone());
    let step: StepFn<'f> = Box::new(move |_| {
        let logits = model.try_forward(&x)?;
        let loss = loss.try_forward(&logits, &y)?;
        let parameters: Vec<&Tensor> = trained.iter().map(|(parameter, _)| parameter.tensor()).collect();
        let computed = grad(&[&loss], &parameters, GradOptions { allow_unused: true, ..Default::default() })?;
        let _off = no_grad();
        trained.iter().zip(computed).try_for_each(|((_, buffer), gradient)| ops::copy_(buffer, &gradient))?;
        optimizer_step().into_outputs()?;
        Ok(vec![loss.detach(), logits.detach()])
    });
    let mut exec = GraphExecLike { launcher: Launcher::new(false, CaptureOptions::default(), step), gradients };
    let _on = enable_grad();
    exec.launcher.prepare(&[])?;
    Ok(exec)
}

/// A step, and the fixed buffers from which it reads its batch.
#[derive(Debug)]
pub struct TrainGraph<'f> {
    /// The input buffer, `[B, K]` for example.
    pub x_buf: Tensor,
    /// The target buffer: class indices `[B]`, or values of the logits' shape.
    pub y_buf: Tensor,
    /// The step.
    pub exec: GraphExecLike<'f>,
    plan: CapturePlan,
}

impl<'f> TrainGraph<'f> {
    /// Creates a train graph of a recording with its plan and its buffers.
    pub fn new(exec: GraphExecLike<'f>, plan: CapturePlan, x_buf: Tensor, y_buf: Tensor) -> Self {
        TrainGraph { x_buf, y_buf, exec, plan }
    }

    /// Copies a batch into the fixed buffers, without synchronizing.
    ///
    /// # Errors
    /// [`Error::Layer`] names the layer that would read a batch of another shape or dtype; then nothing is copied.
    pub fn set_batch(&self, x: &Tensor, y: &Tensor) -> Result<()> {
        self.plan.check("set_batch", x, y)?;
        // Only the values of the batch are copied, not its autograd graph.
        let _off = no_grad();
        ops::copy_(&self.x_buf, x)?;
        ops::copy_(&self.y_buf, y)
    }

    /// Executes the step on the batch in the buffers.
    ///
    /// # Errors
    /// The errors of [`GraphExecLike::launch`].
    pub fn launch(&mut self) -> Result<()> {
        self.exec.launch()
    }

    /// Returns the loss of the last launch before the update: a 0-d tensor on the device, which the next launch
    /// overwrites.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] before the first launch.
    pub fn loss(&self) -> Result<&Tensor> {
        self.result("loss", 0)
    }

    /// Returns the logits of the last launch, `[B, C]`: a tensor on the device, which the next launch overwrites.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] before the first launch.
    pub fn logits(&self) -> Result<&Tensor> {
        self.result("logits", 1)
    }

    fn result(&self, op: &'static str, index: usize) -> Result<&Tensor> {
        let missing = || Error::invalid(op, "the step was not launched; call launch() first");
        self.exec.launcher.outputs().get(index).ok_or_else(missing)
    }

    /// Returns the plan of the step.
    pub fn plan(&self) -> &CapturePlan {
        &self.plan
    }
}
