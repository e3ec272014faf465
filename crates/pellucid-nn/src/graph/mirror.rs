//! The names of an earlier framework for recorded training steps.
//!
//! Programs that were written for it find its functions, types and fields here. Everything is a thin wrapper around
//! [`graph`](super), whose names new programs use:
//!
//! | here | in [`graph`](super) |
//! | --- | --- |
//! | [`make_plan`], [`make_plan_for_sequential`] | [`StepPlan::new`] |
//! | [`CapturePlan`], [`PerLayerBufs`], [`LossBufs`], [`Buf`] | [`StepPlan`], [`LayerBuffers`](super::plan::LayerBuffers), [`LossBuffers`](super::plan::LossBuffers), [`PlannedBuffer`](super::plan::PlannedBuffer) |
//! | `lt_bytes`; `y`, `z`, `g_a`, `g_w`, `g_b`; `d_y`, `out_shape` | their fields ([`PlanNames`], [`LayerNames`], [`LossNames`]) |
//! | [`try_rebind_grads`], [`Rebound`] | [`StepPlan::bind_gradients`], [`BoundGradients`](super::BoundGradients) |
//! | [`collect_params_from_plan`] | [`StepPlan::gradient`], [`PlannedBuffer::pin`](super::plan::PlannedBuffer::pin) |
//! | [`record_step_graph`], [`record_step_graph_with`] | [`RecordedStep::training`] |
//! | [`record_eval_graph`] | [`RecordedStep::evaluation`] |
//! | [`GraphExec`], [`GraphExecLike`] | [`RecordedStep`]; [`EagerStep`](super::EagerStep), which a closure can create |
//! | [`TrainGraph`], of an exec by `TrainGraph::from(exec)`; `x_buf`, `y_buf`, `exec` | [`TrainingStep`] and its fields ([`TrainGraphNames`]) |
//! | a loss that falls, and Σ Δθ·g < 0 | [`GraphTrainer::check_step`](super::GraphTrainer::check_step) |
//! | [`Sequential::compile`], [`CompileOptions`] | [`GraphTrainer`](super::GraphTrainer) |

use super::batch::{Batch, Model, ModelWithBatch};
use super::plan::DEFAULT_MAX_SCRATCH;
use super::plan::StepPlan;
use super::record::{RecordedStep, StepOptions};
use super::stream::Stream;
use super::training_step::{TrainingSetup, TrainingStep};
use super::update::ParameterUpdate;
use crate::layer::Layer;
use crate::loss::Loss;
use crate::module::{Module, parts};
use crate::optim::Optimizer;
use crate::parameter::Parameter;
use crate::sequential::Sequential;
use pellucid_tensor::{Result, Shape, Tensor, ops};
use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;

pub use super::gradients::BoundGradients as Rebound;
pub use super::plan::{
    LayerBuffers as PerLayerBufs, LossBuffers as LossBufs, PlannedBuffer as Buf, StepPlan as CapturePlan,
};
pub use super::record::RecordedStep as GraphExec;
pub use super::runner::EagerStep as GraphExecLike;
pub use super::training_step::TrainingStep as TrainGraph;
pub use crate::loss::LossKind;

/// The fields of a plan under their earlier names.
pub trait PlanNames {
    /// Returns [`max_scratch`](StepPlan#structfield.max_scratch).
    fn lt_bytes(&self) -> usize;

    /// Returns [`layers`](StepPlan#structfield.layers).
    fn per_layer(&self) -> &[PerLayerBufs];
}

impl PlanNames for CapturePlan {
    fn lt_bytes(&self) -> usize {
        self.max_scratch
    }

    fn per_layer(&self) -> &[PerLayerBufs] {
        &self.layers
    }
}

/// The buffers of a layer under their earlier names.
pub trait LayerNames {
    /// Returns the output.
    fn y(&self) -> &Buf;

    /// Returns the pre-activation.
    fn z(&self) -> Option<&Buf>;

    /// Returns the gradient of the input.
    fn g_a(&self) -> Option<&Buf>;

    /// Returns the gradient of the parameter `weight`.
    fn g_w(&self) -> Option<&Buf>;

    /// Returns the gradient of the parameter `bias`.
    fn g_b(&self) -> Option<&Buf>;
}

impl LayerNames for PerLayerBufs {
    fn y(&self) -> &Buf {
        &self.output
    }

    fn z(&self) -> Option<&Buf> {
        self.pre_activation.as_ref()
    }

    fn g_a(&self) -> Option<&Buf> {
        self.input_gradient.as_ref()
    }

    fn g_w(&self) -> Option<&Buf> {
        self.gradient("weight")
    }

    fn g_b(&self) -> Option<&Buf> {
        self.gradient("bias")
    }
}

/// The buffers of a loss under their earlier names.
pub trait LossNames {
    /// Returns the gradient of the logits.
    fn d_y(&self) -> &Buf;

    /// Returns the shape of the logits, the output of the model.
    fn out_shape(&self) -> &Shape;
}

impl LossNames for LossBufs {
    fn d_y(&self) -> &Buf {
        &self.logits_gradient
    }

    fn out_shape(&self) -> &Shape {
        self.logits_gradient.shape()
    }
}

/// The fields of a training step under their earlier names.
pub trait TrainGraphNames<'f> {
    /// Returns the first input buffer.
    fn x_buf(&self) -> &Tensor;

    /// Returns the target buffer.
    fn y_buf(&self) -> &Tensor;

    /// Returns the recorded step.
    fn exec(&mut self) -> &mut GraphExec<'f>;
}

impl<'f> TrainGraphNames<'f> for TrainGraph<'f> {
    fn x_buf(&self) -> &Tensor {
        &self.inputs[0]
    }

    fn y_buf(&self) -> &Tensor {
        &self.targets
    }

    fn exec(&mut self) -> &mut GraphExec<'f> {
        &mut self.recorded
    }
}

/// Returns the plan of a step with this model for inputs of these shapes and dtypes; see [`StepPlan::new`]. The default
/// loss is the softmax cross-entropy; by default, a matrix product has 8 MiB of scratch.
///
/// # Errors
/// The errors of [`StepPlan::new`].
pub fn make_plan<X: Batch, M: Model<X> + ?Sized>(
    model: &M,
    inputs: &X,
    loss: impl Into<Option<LossKind>>,
    lt_bytes: impl Into<Option<usize>>,
) -> Result<CapturePlan> {
    let loss = loss.into().unwrap_or(LossKind::SoftmaxCrossEntropy);
    let max_scratch = lt_bytes.into().unwrap_or(DEFAULT_MAX_SCRATCH);
    Ok(StepPlan { max_scratch, ..StepPlan::new(model, inputs, loss)? })
}

/// Returns the plan of a step with this layer, usually a [`Sequential`], for inputs of this shape and of the layer's
/// [input dtype](Layer::input_dtype). `None` means the defaults of [`make_plan`].
///
/// ```
/// use pellucid::nn::graph::mirror::{LayerNames, LossKind, LossNames, PlanNames, make_plan_for_sequential};
/// use pellucid::nn::{Linear, Relu, sequential};
/// let model = sequential![Linear::new(784, 256), Relu, Linear::new(256, 10)];
/// let plan = make_plan_for_sequential(&model, &[64, 784], LossKind::SoftmaxCrossEntropy, 8 << 20)?;
/// let by_default = make_plan_for_sequential(&model, &[64, 784], None, None)?;
/// assert_eq!((&by_default.loss.target, by_default.lt_bytes()), (&plan.loss.target, plan.lt_bytes()));
/// let first = &plan.per_layer()[0];
/// assert_eq!(first.name, "L0:Linear");
/// assert_eq!(first.g_w().unwrap().shape().dims(), [256, 784]);
/// assert_eq!((first.z().is_some(), first.g_a().is_some()), (true, false)); // a relu follows; x needs no gradient
/// assert_eq!(plan.loss.d_y().shape().dims(), [64, 10]);
/// assert_eq!(plan.loss.out_shape().dims(), [64, 10]);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// The errors of [`make_plan`].
pub fn make_plan_for_sequential<L: Layer + ?Sized>(
    model: &L,
    input_shape: &[usize],
    loss: impl Into<Option<LossKind>>,
    lt_bytes: impl Into<Option<usize>>,
) -> Result<CapturePlan> {
    make_plan(model, &ops::zeros(input_shape, model.input_dtype())?, loss, lt_bytes)
}

/// Returns the model's trained parameters that have a gradient buffer in the plan, in order.
///
/// Each entry holds the parameter, its buffer, which this call pins, and whether the parameter is usually exempt from
/// weight decay: true for rank 0 and 1 (biases, normalisation weights). Match them with [`Optimizer::parameters`] by
/// tensor.
///
/// # Errors
/// The errors of [`Buf::pin`].
pub fn collect_params_from_plan(
    model: &(impl Module + ?Sized),
    plan: &CapturePlan,
) -> Result<Vec<(Parameter, Tensor, bool)>> {
    let pinned = plan.pinned_gradients(parts(&model))?.into_iter();
    Ok(pinned.map(|(_, parameter, gradient)| (parameter.clone(), gradient, parameter.rank() <= 1)).collect())
}

/// Stores the gradient of every parameter that the optimizer updates in the plan's buffer; see
/// [`StepPlan::bind_gradients`].
///
/// # Errors
/// The errors of [`StepPlan::bind_gradients`].
pub fn try_rebind_grads(
    model: &(impl Module + ?Sized),
    optimizer: &(impl Optimizer + ?Sized),
    plan: &CapturePlan,
) -> Result<Rebound> {
    plan.bind_gradients(model, optimizer)
}

/// Records a training step on the contents of `x_buf` and `y_buf`; see [`RecordedStep::training`]. The update is an
/// optimizer, or a closure such as `|| optimizer.step()`. A [`TrainGraph`] of the result copies batches into the
/// buffers.
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
/// let (x, y) = (Tensor::ones([4, 3], DType::F32), Tensor::ones([4, 1], DType::F32));
/// let exec = record_step_graph(&model, &loss, || optimizer.step(), &plan, &x, &y, None)?;
/// let mut graph = TrainGraph::from(exec);
/// graph.launch()?;
/// let first = graph.loss.item::<f32>();
/// graph.set_batch(&x, &y)?;
/// graph.launch()?;
/// assert!(graph.loss.item::<f32>() < first);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// The errors of [`RecordedStep::training`].
pub fn record_step_graph<'f, X, M, L, Kind>(
    model: &'f M,
    loss: &'f L,
    optimizer_step: impl ParameterUpdate<'f, Kind>,
    plan: &CapturePlan,
    x_buf: &X,
    y_buf: &Tensor,
    stream: Option<Stream>,
) -> Result<GraphExec<'f>>
where
    X: Batch + 'f,
    M: Model<X> + ?Sized,
    L: Loss + ?Sized,
    Kind: ?Sized,
{
    let options = StepOptions { stream, ..Default::default() };
    RecordedStep::training(model, loss, optimizer_step, plan, x_buf, y_buf, options)
}

/// Records a training step as [`record_step_graph`] does, with options; see [`RecordedStep::training`].
///
/// # Errors
/// The errors of [`RecordedStep::training`].
pub fn record_step_graph_with<'f, X: Batch + 'f, Kind: ?Sized>(
    model: impl Deref<Target: Model<X>> + Send + Sync + 'f,
    loss: impl Deref<Target: Loss> + Send + Sync + 'f,
    optimizer_step: impl ParameterUpdate<'f, Kind>,
    plan: &CapturePlan,
    x_buf: &X,
    y_buf: &Tensor,
    options: StepOptions<'f>,
) -> Result<GraphExec<'f>> {
    RecordedStep::training(model, loss, optimizer_step, plan, x_buf, y_buf, options)
}

/// Records an evaluation on the contents of `x_buf` and `y_buf`; see [`RecordedStep::evaluation`].
///
/// # Errors
/// The errors of [`RecordedStep::evaluation`].
pub fn record_eval_graph<'f, X: Batch + 'f>(
    model: impl Deref<Target: Model<X>> + Send + Sync + 'f,
    loss: impl Deref<Target: Loss> + Send + Sync + 'f,
    plan: &CapturePlan,
    x_buf: &X,
    y_buf: &Tensor,
    stream: Option<Stream>,
) -> Result<GraphExec<'f>> {
    RecordedStep::evaluation(model, loss, plan, x_buf, y_buf, stream)
}

/// The arguments of [`Sequential::compile`] other than the model.
pub struct CompileOptions<'f, L: ?Sized, O: ?Sized> {
    /// The loss to minimise.
    pub loss: &'f L,
    /// The optimizer.
    pub optimizer: &'f O,
    /// The maximum scratch of one matrix product in bytes.
    pub lt_bytes: usize,
    /// The stream of the launches. `None` means the device's default stream.
    pub stream: Option<Stream>,
    /// Whether a parameter may require a gradient although the optimizer does not update it, as in a GAN. By default
    /// such a parameter is an error.
    pub allow_untrained_parameters: bool,
}

impl<'f, L: ?Sized, O: ?Sized> CompileOptions<'f, L, O> {
    /// Returns options with 8 MiB of scratch, on the default stream, without untrained parameters. Others are set as
    /// fields: `CompileOptions { stream, ..CompileOptions::new(&loss, &optimizer) }`.
    pub fn new(loss: &'f L, optimizer: &'f O) -> Self {
        CompileOptions {
            loss,
            optimizer,
            lt_bytes: DEFAULT_MAX_SCRATCH,
            stream: None,
            allow_untrained_parameters: false,
        }
    }
}

impl Sequential {
    /// Records a training step for inputs of this shape; see [`graph`](super). Lazy layers are built, and an optimizer
    /// without parameters gets the parameters of the model.
    ///
    /// ```
    /// use pellucid::nn::graph::mirror::CompileOptions;
    /// use pellucid::nn::{Linear, Module, Tanh, loss::MseLoss, optim::{AdamW, AdamWOptions, Optimizer}, sequential};
    /// use pellucid::{DType, Tensor};
    ///
    /// let model = sequential![Linear::lazy(8), Tanh, Linear::lazy(1)];
    /// let optimizer = AdamW::new(vec![], AdamWOptions::default());
    /// let loss = MseLoss::default();
    /// let mut step = model.compile(&[16, 3], CompileOptions::new(&loss, &optimizer))?;
    /// for epoch in 0..3 {
    ///     optimizer.set_lr(0.01 / (epoch + 1) as f64);
    ///     let x = Tensor::randn([16, 3], DType::F32);
    ///     step.set_batch(&x, &x.sum(1).reshape([16, 1]))?;
    ///     step.launch()?;
    /// }
    /// assert!(step.loss.item::<f32>().is_finite());
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Layer`] names a layer that rejects its input, whose output shape depends on values, or that cannot be
    /// captured; [`Error::UntrainedParameters`] names parameters that require a gradient and do not belong to the
    /// optimizer, unless [`CompileOptions::allow_untrained_parameters`] is set; the errors of [`record_step_graph`]. On
    /// error, parameters, gradients and optimizer are unchanged.
    ///
    /// [`Error::Layer`]: pellucid_tensor::Error::Layer
    /// [`Error::UntrainedParameters`]: pellucid_tensor::Error::UntrainedParameters
    pub fn compile<'f, L: Loss + ?Sized + 'f, O: Optimizer + ?Sized + 'f>(
        &'f self,
        input_shape: &[usize],
        options: CompileOptions<'f, L, O>,
    ) -> Result<TrainGraph<'f>> {
        let CompileOptions { loss, optimizer, lt_bytes, stream, allow_untrained_parameters } = options;
        let inputs = ops::zeros(input_shape, self.input_dtype())?;
        let setup = TrainingSetup {
            model: ModelWithBatch::with_buffers(self, &inputs)?,
            loss: Arc::new(loss),
            optimizer: Arc::new(optimizer),
            max_scratch: lt_bytes,
            options: StepOptions { stream, allow_untrained_parameters, ..Default::default() },
            passes: Arc::default(),
        };
        TrainingStep::compile(setup, &HashMap::new(), None)
    }
}
