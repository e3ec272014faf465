//! The names of an earlier framework for recorded training steps over fixed buffers.
//!
//! Programs that were written for it find its functions, types and fields here. New programs use
//! [`GraphTrainer`](super::GraphTrainer), [`TrainingStep`](super::TrainingStep) and
//! [`InferenceModel`](super::InferenceModel), which read a batch where it is stored.
//!
//! | stage | function | effect |
//! | --- | --- | --- |
//! | build | [`Layer::build`] | creates the parameters that depend on the input shape |
//! | plan | [`make_plan`], [`make_plan_for_sequential`] | lists the buffers of a step, from shapes alone |
//! | bind | [`try_rebind_grads`], [`collect_params_from_plan`] | stores gradients in the plan's buffers |
//! | record | [`record_step_graph`], [`record_step_graph_with`], [`record_eval_graph`] | runs no kernel, changes no value, draws no random number |
//! | launch | [`GraphExec::launch`], [`TrainGraph::set_batch`] | runs the step on the contents of its buffers |
//!
//! [`Sequential::compile`] runs the first four stages. [`GraphTrainer::compile`](super::GraphTrainer::compile) is
//! [`GraphTrainer::prepare`](super::GraphTrainer::prepare) for inputs of a shape, and
//! [`GraphTrainer::one_step`](super::GraphTrainer::one_step) is
//! [`GraphTrainer::step_and_evaluate`](super::GraphTrainer::step_and_evaluate).

mod exec;
mod forward;
mod observer;
mod plan;
mod scale;
mod stream;
mod trainer;
mod update;

pub use exec::{GraphExec, TrainGraph};
pub use plan::{ArenaSlot, Buf, CapturePlan, DEFAULT_MAX_SCRATCH, LossBufs, PerLayerBufs, Rebound};
pub use scale::{GradKind, infer_grad_scale};
pub use stream::{Stream, Timer};
pub use update::ParameterUpdate;

pub use super::launcher::EagerStep as GraphExecLike;
pub use plan::LossKind;

use super::batch::{Batch, BoundModel, Model};
use super::coverage::{FrozenParameters, fill_optimizer, trained_parameters};
use super::options::StepOptions;
use crate::layer::Layer;
use crate::loss::Loss;
use crate::module::{DynModule, Module, as_dyn};
use crate::optim::Optimizer;
use crate::parameter::Parameter;
use crate::sequential::Sequential;
use exec::named_tensors;
use forward::ModelAndLoss;
use pellucid_tensor::{Error, Result, Tensor, ops};
use std::ops::Deref;
use std::sync::Arc;

/// Returns the plan of a step with this model for inputs of these shapes and dtypes. Their values are not used. The
/// default loss is the softmax cross-entropy; by default, a matrix product has 8 MiB of scratch.
///
/// The model is traced: no kernel runs, and only layers that learn their widths from their first input change.
///
/// # Errors
/// [`Error::Layer`] names a layer that rejects its input or whose output shape depends on values;
/// [`Error::ShapeMismatch`] if the loss does not accept the logits.
pub fn make_plan<X: Batch, M: Model<X> + ?Sized>(
    model: &M,
    inputs: &X,
    loss: impl Into<Option<LossKind>>,
    lt_bytes: impl Into<Option<usize>>,
) -> Result<CapturePlan> {
    let loss = loss.into().unwrap_or(LossKind::SoftmaxCrossEntropy);
    let lt_bytes = lt_bytes.into().unwrap_or(DEFAULT_MAX_SCRATCH);
    let targets = |logits: &Tensor| loss.target(logits.shape(), logits.dtype());
    CapturePlan::new(&bound(model, inputs)?, &named_tensors(inputs), &targets, lt_bytes)
}

/// Returns the plan of a step with this layer, usually a [`Sequential`], for inputs of this shape and of the layer's
/// [input dtype](Layer::input_dtype). `None` means the defaults of [`make_plan`].
///
/// ```
/// use pellucid::nn::graph::mirror::{LossKind, make_plan_for_sequential};
/// use pellucid::nn::{Linear, Relu, sequential};
/// let model = sequential![Linear::new(784, 256), Relu, Linear::new(256, 10)];
/// let plan = make_plan_for_sequential(&model, &[64, 784], LossKind::SoftmaxCrossEntropy, 8 << 20)?;
/// let by_default = make_plan_for_sequential(&model, &[64, 784], None, None)?;
/// assert_eq!((&by_default.loss.target, by_default.lt_bytes), (&plan.loss.target, plan.lt_bytes));
/// let first = &plan.per_layer[0];
/// assert_eq!(first.name, "L0:Linear");
/// assert_eq!(first.g_w().unwrap().shape().dims(), [256, 784]);
/// assert_eq!((first.z.is_some(), first.g_a.is_some()), (true, false)); // a relu follows; x needs no gradient
/// assert_eq!(plan.loss.d_y.shape().dims(), [64, 10]);
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
/// weight decay: true for rank 0 and 1 (biases, normalization weights). Match them with [`Optimizer::parameters`] by
/// tensor.
///
/// # Errors
/// The errors of [`Buf::pin`].
pub fn collect_params_from_plan(
    model: &(impl Module + ?Sized),
    plan: &CapturePlan,
) -> Result<Vec<(Parameter, Tensor, bool)>> {
    let pinned = plan.pinned_gradients(as_dyn(&model))?.into_iter();
    Ok(pinned.map(|(_, parameter, gradient)| (parameter.clone(), gradient, parameter.rank() <= 1)).collect())
}

/// Stores the gradient of every parameter that the optimizer updates in the plan's buffer.
///
/// A recorded step writes the gradient into this buffer, and the optimizer reads it from there. Between launches
/// [`Tensor::grad`] returns it. Parameters that cannot be bound are reported and stay unchanged.
///
/// # Errors
/// The errors of [`Buf::pin`]; then no parameter is bound.
pub fn try_rebind_grads(
    model: &(impl Module + ?Sized),
    optimizer: &(impl Optimizer + ?Sized),
    plan: &CapturePlan,
) -> Result<Rebound> {
    plan.bind(as_dyn(&model), &optimizer.parameters())
}

/// Records a training step: forward, loss, backward and update, on the contents of `x_buf` and `y_buf` at each launch.
///
/// Recording runs no kernel: parameters, optimizer state, statistics and random generators stay unchanged until the
/// first launch. Each launch starts without gradients. The update is an optimizer, or a closure such as `||
/// optimizer.step()`, see [`ParameterUpdate`]. A [`TrainGraph`] of the result copies batches into the buffers.
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
/// [`Error::Layer`] for buffers that do not match the plan, for a layer that rejects its input, or for one that
/// cannot be captured; [`Error::ReadInCapture`] names the line that reads a value; [`Error::UntrainedParameters`] names
/// parameters that require a gradient but do not belong to the optimizer; errors of
/// [`capture`](pellucid_tensor::capture()).
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
    let options = StepOptions { eager: is_eager(stream.as_ref()), ..Default::default() };
    record_step_graph_with(model, loss, optimizer_step, plan, x_buf, y_buf, options)
}

/// Records a training step as [`record_step_graph`] does, with options. Model and loss are passed as pointers.
///
/// # Errors
/// The errors of [`record_step_graph`]; [`Error::InvalidArgument`] if `accumulate` is 0, if it is above 1 and not all
/// gradients are stored in the plan's buffers, see [`try_rebind_grads`], or for a scaler with a closure.
pub fn record_step_graph_with<'f, X: Batch + 'f, Kind: ?Sized>(
    model: impl Deref<Target: Model<X>> + Send + Sync + 'f,
    loss: impl Deref<Target: Loss> + Send + Sync + 'f,
    optimizer_step: impl ParameterUpdate<'f, Kind>,
    plan: &CapturePlan,
    x_buf: &X,
    y_buf: &Tensor,
    options: StepOptions<'f>,
) -> Result<GraphExec<'f>> {
    let pair = model_and_loss(model, loss, x_buf)?;
    let trained = trained_parameters(&*pair.0, &*pair.1).into_iter().map(|(_, parameter)| parameter).collect();
    let update = optimizer_step.into_optimizer(trained);
    GraphExec::training(pair, update, plan, (&named_tensors(x_buf), y_buf), options)
}

/// Records an evaluation: logits and loss for the contents of `x_buf` and `y_buf`, without a backward pass. All layers
/// are in evaluation mode, as after [`Module::eval`]; afterwards the model's mode is restored.
///
/// # Errors
/// The errors of [`record_step_graph`].
pub fn record_eval_graph<'f, X: Batch + 'f>(
    model: impl Deref<Target: Model<X>> + Send + Sync + 'f,
    loss: impl Deref<Target: Loss> + Send + Sync + 'f,
    plan: &CapturePlan,
    x_buf: &X,
    y_buf: &Tensor,
    stream: Option<Stream>,
) -> Result<GraphExec<'f>> {
    let pair = model_and_loss(model, loss, x_buf)?;
    GraphExec::evaluation(pair, plan, (&named_tensors(x_buf), y_buf), is_eager(stream.as_ref()))
}

/// Returns true if the steps of a stream run eagerly.
fn is_eager(stream: Option<&Stream>) -> bool {
    stream.is_some_and(Stream::is_eager)
}

/// Returns a model with the structure of its batch.
fn bound<X: Batch, P: Deref<Target: Model<X>>>(model: P, like: &X) -> Result<BoundModel<P, X>> {
    let bound = BoundModel::new(model);
    bound.set_structure(like)?;
    Ok(bound)
}

/// Returns a model and a loss without their types.
fn model_and_loss<'f, X: Batch + 'f>(
    model: impl Deref<Target: Model<X>> + Send + Sync + 'f,
    loss: impl Deref<Target: Loss> + Send + Sync + 'f,
    like: &X,
) -> Result<ModelAndLoss<'f>> {
    Ok((Arc::new(bound(model, like)?), Arc::new(loss)))
}

/// The arguments of [`Sequential::compile`] other than the model.
pub struct CompileOptions<'f, L: ?Sized, O: ?Sized> {
    /// The loss to minimize.
    pub loss: &'f L,
    /// The optimizer.
    pub optimizer: &'f O,
    /// The maximum scratch of one matrix product in bytes.
    pub lt_bytes: usize,
    /// The stream of the launches. `None` means the device's default stream.
    pub stream: Option<Stream>,
    /// Whether a parameter may require a gradient although the optimizer does not update it, as in a GAN. By default
    /// such a parameter is rejected.
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
    /// use pellucid::nn::optim::{AdamW, AdamWOptions, Optimizer, ParameterList};
    /// use pellucid::nn::{Linear, Module, Tanh, loss::MseLoss, sequential};
    /// use pellucid::{DType, Tensor};
    ///
    /// let model = sequential![Linear::lazy(8), Tanh, Linear::lazy(1)];
    /// let optimizer = AdamW::new(ParameterList::default(), AdamWOptions::default());
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
        let op = "compile";
        let inputs = ops::zeros(input_shape, self.input_dtype())?;
        let pair = model_and_loss(self, loss, &inputs)?;
        let targets = |logits: &Tensor| {
            let reason = "the targets of this loss are unknown; use loss.with_targets(shape, dtype)";
            pair.1.expected_targets(logits)?.ok_or_else(|| Error::invalid(op, reason))
        };
        let model: &dyn DynModule = &*pair.0;
        model.supports_capture()?;
        let plan = CapturePlan::new(&*pair.0, &named_tensors(&inputs), &targets, lt_bytes)?;
        let parameters = model.parameters();
        let before: Vec<Option<Tensor>> = parameters.iter().map(|(_, p)| p.grad()).collect();
        let optimizer: Arc<dyn Optimizer + 'f> = Arc::new(optimizer);
        let is_filled = fill_optimizer(model, &*pair.1, &*optimizer)?;
        let record = || {
            let updated = optimizer.parameters();
            FrozenParameters::of(op, model, &*pair.1, &updated, allow_untrained_parameters)?;
            plan.bind(model, &updated)?;
            let (shape, dtype) = &plan.loss.target;
            let buffers = (named_tensors(&inputs), ops::zeros(shape, *dtype)?);
            let options =
                StepOptions { eager: is_eager(stream.as_ref()), allow_untrained_parameters, ..Default::default() };
            GraphExec::training(pair.clone(), (optimizer.clone(), false), &plan, (&buffers.0, &buffers.1), options)
        };
        let recorded = record().inspect_err(|_| {
            parameters.iter().zip(before).for_each(|((_, parameter), gradient)| parameter.set_grad(gradient));
            if is_filled {
                optimizer.unfill();
            }
        });
        recorded.map(TrainGraph::from)
    }
}
