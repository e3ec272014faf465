//! The plan of a step: its buffers, layer by layer, computed from shapes alone.

use crate::call::{module_device, trace_calls};
use crate::graph::batch::check_batch_dtype;
use crate::graph::trainer_core::{check_target_shape, of_loss};
use crate::layer::Layer;
use crate::layers::ACTIVATIONS;
use crate::loss::TargetForm;
use crate::module::{DynModule, Module, as_dyn, identity};
use crate::optim::Optimizer;
use crate::parameter::Parameter;
use crate::sequential::Sequential;
use crate::visit::is_inside;
use pellucid_tensor::{DType, Device, Error, Result, Shape, Tensor, enable_grad, ops, placeholder};

/// The default of [`CapturePlan::lt_bytes`]: 8 MiB.
pub const DEFAULT_MAX_SCRATCH: usize = 8 << 20;

/// A buffer that a step may need. A recording stores it in its arena, shares its memory with others, or keeps its
/// values inside a fused kernel; [`Captured::plan`](pellucid_tensor::Captured::plan) shows which of these applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buf {
    /// The shape.
    pub shape: Shape,
    /// The dtype of the elements.
    pub dtype: DType,
}

impl Buf {
    fn like(tensor: &Tensor) -> Buf {
        Buf { shape: tensor.shape().clone(), dtype: tensor.dtype() }
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        self.shape.size() * self.dtype.size()
    }
}

/// The buffers of one layer.
#[derive(Clone, Debug)]
pub struct PerLayerBufs {
    /// The index of the layer and the name of its type: `L0:Linear`.
    pub name: String,
    /// The output.
    pub y: Buf,
    /// The pre-activation, if an activation follows: the gradient of the activation reads it. Unfused, it is the output
    /// itself; a matrix product with a fused activation writes both.
    pub z: Option<Buf>,
    /// The gradient of the input; `None` if the input needs no gradient (data, integers).
    pub g_a: Option<Buf>,
    /// The gradients of the layer's trained parameters, by name in the model, initially zero. A shared parameter is
    /// listed once, at the first layer that holds it.
    pub gradients: Vec<(String, Tensor)>,
    /// The bytes of the intermediate results of the forward pass.
    pub work: usize,
}

impl PerLayerBufs {
    /// Returns the gradient of the layer's own parameter of this name, such as `weight`.
    pub fn gradient(&self, name: &str) -> Option<&Tensor> {
        let is_named = |path: &str| path.split_once('.').is_some_and(|(_, in_layer)| in_layer == name);
        self.gradients.iter().find(|(path, _)| is_named(path)).map(|(_, gradient)| gradient)
    }

    /// Returns the gradient of the parameter `weight`.
    pub fn g_w(&self) -> Option<&Tensor> {
        self.gradient("weight")
    }

    /// Returns the gradient of the parameter `bias`.
    pub fn g_b(&self) -> Option<&Tensor> {
        self.gradient("bias")
    }
}

/// The kind of a loss, which determines the form of its targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LossKind {
    /// Class indices, `i64`, in the logits' shape without the class axis: `[B]` for logits `[B, C]`, `[]` for `[C]`,
    /// `[B, d..]` for `[B, C, d..]`.
    SoftmaxCrossEntropy,
    /// Values of the logits' shape and dtype.
    Mse,
    /// Binary targets from 0 to 1, of the logits' shape and dtype.
    Bce,
    /// The targets of a user's loss.
    Custom {
        /// The shape of the targets.
        target: Shape,
        /// The dtype of the targets.
        dtype: DType,
    },
}

impl LossKind {
    /// Returns shape and dtype of the targets for logits of this shape and dtype.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for logits without a class axis if the loss needs one.
    pub fn target(&self, logits: &Shape, dtype: DType) -> Result<(Shape, DType)> {
        let form = match self {
            LossKind::SoftmaxCrossEntropy => TargetForm::ClassIndices,
            LossKind::Mse | LossKind::Bce => TargetForm::Values,
            LossKind::Custom { target, dtype } => return Ok((target.clone(), *dtype)),
        };
        Ok(form.expected(logits, dtype)?.unwrap_or_else(|| (logits.clone(), dtype)))
    }
}

/// The buffers of the loss.
#[derive(Clone, Debug)]
pub struct LossBufs {
    /// The gradient of the logits; it has their shape.
    pub d_y: Buf,
    /// Shape and dtype of the targets.
    pub target: (Shape, DType),
}

impl LossBufs {
    /// Returns the shape of the logits, the output of the model.
    pub fn out_shape(&self) -> &Shape {
        &self.d_y.shape
    }
}

/// All buffers that a step may need, before memory is shared and operations are fused.
#[derive(Clone, Debug)]
pub struct CapturePlan {
    /// The input.
    pub input: Buf,
    /// The buffers of the layers, in order.
    pub per_layer: Vec<PerLayerBufs>,
    /// The buffers of the loss.
    pub loss: LossBufs,
    /// The maximum scratch memory of one matrix product in bytes; default [`DEFAULT_MAX_SCRATCH`]. The CPU and `wgpu`
    /// need no scratch memory and ignore it.
    pub lt_bytes: usize,
    pub(super) device: Device,
}

impl CapturePlan {
    /// Returns the gradient buffers of all trained parameters, by name.
    pub fn gradients(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        let all = self.per_layer.iter().flat_map(|layer| &layer.gradients);
        all.map(|(name, gradient)| (name.as_str(), gradient))
    }

    /// Returns the gradient buffer of the parameter of this name.
    pub fn gradient(&self, parameter: &str) -> Option<&Tensor> {
        self.gradients().find(|(name, _)| *name == parameter).map(|(_, gradient)| gradient)
    }

    /// Returns the total size in bytes of all buffers except the input and the targets, without sharing.
    pub fn bytes(&self) -> usize {
        // Unfused, the pre-activation is the output.
        let layer = |layer: &PerLayerBufs| layer.y.bytes() + layer.g_a.as_ref().map_or(0, Buf::bytes) + layer.work;
        let gradients = self.gradients().map(|(_, gradient)| gradient.size() * gradient.dtype().size());
        self.per_layer.iter().map(layer).chain(gradients).sum::<usize>() + self.loss.d_y.bytes()
    }

    /// Returns an error if the input or the targets do not match the plan; it names the layer that would read them.
    pub(super) fn check(&self, op: &'static str, x: &Tensor, y: &Tensor) -> Result<()> {
        let shape = &self.input.shape;
        let checked = if x.shape() == shape {
            check_batch_dtype(op, self.input.dtype, "x", x)
        } else {
            let help = format!("the step expects an input of shape {shape}; create a plan for the new shape");
            Err(Error::shapes(op, [x.shape(), shape], help))
        };
        checked.map_err(|source| {
            let layer = self.per_layer.first().map_or_else(|| "model".to_string(), |first| first.name.clone());
            Error::Layer { layer, source: Box::new(source) }
        })?;
        check_target_shape(op, y, &self.loss.target, self.loss.out_shape()).map_err(of_loss)
    }
}

/// Returns the plan of a step with this model for inputs of this shape and of the model's [input
/// dtype](Layer::input_dtype). `None` means the softmax cross-entropy for `loss`, and 8 MiB for `lt_bytes`, the scratch
/// memory of a matrix product.
///
/// The model is traced: no kernel runs, and only layers that learn their widths from their first input change.
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
/// assert_eq!(plan.loss.out_shape().dims(), [64, 10]);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// [`Error::Layer`] names a layer that rejects its input or whose output shape depends on values;
/// [`Error::ShapeMismatch`] if the loss does not accept the logits; [`Error::OutOfMemory`].
pub fn make_plan_for_sequential(
    model: &Sequential,
    input_shape: &[usize],
    loss: impl Into<Option<LossKind>>,
    lt_bytes: impl Into<Option<usize>>,
) -> Result<CapturePlan> {
    // Lazy layers have no parameters until they are built.
    model.build(input_shape)?;
    let module: &dyn DynModule = as_dyn(&model);
    let (device, mut values) = (module_device(module), Vec::new());
    let (logits, calls) = trace_calls(module, &mut || {
        let _on = enable_grad();
        let mut x = placeholder(device, input_shape, model.input_dtype())?;
        for layer in model.layers() {
            let y = layer.try_forward(&x)?;
            values.push((x, y.clone()));
            x = y;
        }
        Ok(x)
    })?;
    let mut parameters = module.parameters();
    parameters.retain(|(_, parameter)| parameter.requires_grad());
    let calls: Vec<_> = calls.iter().filter(|call| call.depth == 0).collect();
    let mut per_layer = Vec::with_capacity(calls.len());
    for (i, ((x, y), call)) in values.iter().zip(&calls).enumerate() {
        let in_layer = parameters.iter().filter(|(name, _)| is_inside(name, &i.to_string()));
        let zeros = |p: &Parameter| ops::zeros(p.shape(), p.dtype())?.try_to(p.device());
        let is_activated = calls.get(i + 1).is_some_and(|next| ACTIVATIONS.contains(&next.class));
        per_layer.push(PerLayerBufs {
            name: format!("L{i}:{}", call.class),
            y: Buf::like(y),
            z: is_activated.then(|| Buf::like(y)),
            g_a: x.requires_grad().then(|| Buf::like(x)),
            gradients: in_layer.map(|(name, p)| Ok((name.clone(), zeros(p)?))).collect::<Result<_>>()?,
            work: (call.work.allocated_bytes as usize).saturating_sub(call.bytes),
        });
    }
    let target = loss.into().unwrap_or(LossKind::SoftmaxCrossEntropy).target(logits.shape(), logits.dtype())?;
    Ok(CapturePlan {
        input: Buf { shape: Shape::from(input_shape), dtype: model.input_dtype() },
        per_layer,
        loss: LossBufs { d_y: Buf::like(&logits), target },
        lt_bytes: lt_bytes.into().unwrap_or(DEFAULT_MAX_SCRATCH),
        device,
    })
}

/// Returns the model's parameters that have a gradient buffer in the plan, in order: the parameter, its buffer, and
/// whether the parameter is usually exempt from weight decay: true for rank 0 and 1 (biases, normalization weights).
///
/// # Errors
/// [`Error::ShapeMismatch`] for a plan of another model.
pub fn collect_params_from_plan(
    model: &(impl Module + ?Sized),
    plan: &CapturePlan,
) -> Result<Vec<(Parameter, Tensor, bool)>> {
    let planned = named_gradients(model, plan)?.into_iter();
    Ok(planned.map(|(_, parameter, gradient)| (parameter.clone(), gradient, parameter.rank() <= 1)).collect())
}

/// Returns the model's parameters that have a gradient buffer in the plan: the name, the parameter and its buffer.
fn named_gradients(model: &(impl Module + ?Sized), plan: &CapturePlan) -> Result<Vec<(String, Parameter, Tensor)>> {
    let mut planned = Vec::new();
    for (name, parameter) in model.try_named_parameters()? {
        let Some(gradient) = plan.gradient(&name) else { continue };
        if gradient.shape() != parameter.shape() {
            let help = format!("`{name}` has a different shape in the plan; create a plan of this model");
            return Err(Error::shapes("collect_params_from_plan", [parameter.shape(), gradient.shape()], help));
        }
        planned.push((name, parameter, gradient.clone()));
    }
    Ok(planned)
}

/// The parameters whose gradients [`try_rebind_grads`] bound to the buffers of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rebound {
    /// The names of the parameters whose gradient is a buffer of the plan.
    pub bound: Vec<String>,
    /// Names of the model's parameters with a planned gradient that the optimizer does not update; they are not bound.
    pub not_updated: Vec<String>,
    /// The indices of the optimizer's parameters without a buffer in the plan: frozen, or not part of this model.
    pub not_planned: Vec<usize>,
}

/// Makes the plan's buffers the gradients of all parameters that the optimizer updates.
///
/// A recorded step writes the gradient into this buffer, and the optimizer reads it from there. Between launches
/// [`Tensor::grad`] returns it. Parameters that cannot be bound are reported and stay unchanged.
///
/// # Errors
/// The errors of [`collect_params_from_plan`]; then no parameter is bound.
pub fn try_rebind_grads(
    model: &(impl Module + ?Sized),
    optimizer: &(impl Optimizer + ?Sized),
    plan: &CapturePlan,
) -> Result<Rebound> {
    let (updated, mut rebound) = (optimizer.parameters(), Rebound::default());
    let planned = named_gradients(model, plan)?;
    let is_planned = |p: &Parameter| planned.iter().any(|(_, q, _)| q.id() == p.id());
    rebound.not_planned = (0..updated.len()).filter(|&at| !is_planned(&updated[at])).collect();
    for (name, parameter, gradient) in planned {
        if updated.iter().any(|p| p.id() == parameter.id()) {
            parameter.set_grad(Some(gradient));
            rebound.bound.push(name);
        } else {
            rebound.not_updated.push(name);
        }
    }
    Ok(rebound)
}

/// Returns each parameter whose gradient is a buffer of the plan, with this buffer.
pub(super) fn bound_gradients(model: &(impl Module + ?Sized), plan: &CapturePlan) -> Result<Vec<(Parameter, Tensor)>> {
    let planned = named_gradients(model, plan)?.into_iter().map(|(_, parameter, buffer)| (parameter, buffer));
    let is_bound = |p: &Parameter, buf: &Tensor| p.grad().is_some_and(|gradient| identity(&gradient) == identity(buf));
    Ok(planned.filter(|(parameter, buffer)| is_bound(parameter, buffer)).collect())
}
