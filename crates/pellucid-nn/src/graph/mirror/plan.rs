//! The plan of a step: the buffers that it may need, layer by layer, computed from shapes alone.

use crate::call::{TracedCall, trace_calls};
use crate::graph::batch::{ModelOfInputs, check_batch_count, check_batch_dtype, check_batch_name};
use crate::graph::trainer_core::{check_target_shape, of_loss};
use crate::layers::ACTIVATIONS;
use crate::loss::TargetForm;
use crate::module::{DynModule, identity};
use crate::parameter::Parameter;
use crate::visit::is_inside;
use pellucid_tensor::{DType, Device, Error, Result, Shape, Tensor, enable_grad, ops};
use std::collections::HashMap;
use std::fmt;
use std::sync::OnceLock;

/// The default of [`CapturePlan::lt_bytes`](CapturePlan#structfield.lt_bytes): 8 MiB.
pub const DEFAULT_MAX_SCRATCH: usize = 8 << 20;

/// Tensors with their names, in order.
pub(super) type NamedTensors = Vec<(String, Tensor)>;

/// The location of a planned buffer.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum ArenaSlot {
    /// The location is unknown: the step was not recorded, or the recording does not contain the buffer.
    #[default]
    Planned,
    /// The buffer has its own memory outside the step's arena: it is pinned ([`Buf::pin`]) or a result of the step.
    Owned,
    /// The buffer is stored in the step's arena from its first to its last use, counted in kernels.
    At {
        /// The first byte.
        offset: usize,
        /// The kernel that writes it first.
        first: usize,
        /// The kernel that reads it last.
        last: usize,
    },
    /// The buffer consists of several pieces, each with its own location, like the intermediate results of a layer.
    Parts(Vec<ArenaSlot>),
    /// The buffer is not stored: its values exist only inside a fused kernel.
    Elided {
        /// The kernel.
        by: String,
    },
}

/// `@40, kernels 2 to 11` for a buffer in the arena from byte 40 on, as in the text of a plan.
impl fmt::Display for ArenaSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ArenaSlot::Planned => f.write_str("not recorded"),
            ArenaSlot::Owned => f.write_str("own memory"),
            ArenaSlot::At { offset, first, last } => write!(f, "@{offset}, kernels {first} to {last}"),
            ArenaSlot::Parts(parts) => {
                for (i, part) in parts.iter().enumerate() {
                    write!(f, "{}{part}", if i == 0 { "" } else { " + " })?;
                }
                Ok(())
            }
            ArenaSlot::Elided { by } => write!(f, "not stored, inside {by}"),
        }
    }
}

/// The role of a planned buffer in the step.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum BufferRole {
    /// The output of the layer of this number.
    Output(usize),
    /// The gradient of the layer's input.
    InputGradient(usize),
    /// The layer's intermediate results.
    Work(usize),
    /// The gradient of the parameter of this name.
    Gradient(String),
    /// The gradient of the logits.
    LogitsGradient,
}

/// A buffer that a step may need.
#[derive(Clone, Debug)]
pub struct Buf {
    shape: Shape,
    dtype: DType,
    device: Device,
    location: ArenaSlot,
    recorded: bool,
    /// The tensor that [`pin`](Self::pin) returned; `None` for intermediate results, which cannot be pinned.
    pinned: Option<OnceLock<Tensor>>,
}

impl Buf {
    fn new(shape: &Shape, dtype: DType, device: Device) -> Buf {
        Buf {
            shape: shape.clone(),
            dtype,
            device,
            location: ArenaSlot::Planned,
            recorded: false,
            pinned: Some(OnceLock::new()),
        }
    }

    fn scratch(bytes: usize, device: Device) -> Buf {
        Buf {
            shape: Shape::from(bytes),
            dtype: DType::U8,
            device,
            location: ArenaSlot::Planned,
            recorded: false,
            pinned: None,
        }
    }

    /// Returns the shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the dtype of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the device of the buffer.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        self.shape.size() * self.dtype.size()
    }

    /// Returns the location, known for the plan of a [recorded](super::GraphExec::plan) step.
    pub fn location(&self) -> &ArenaSlot {
        &self.location
    }

    /// Pins this buffer: returns a tensor, initially zero, into which every launch of a step recorded later writes the
    /// value. The buffer then has memory of its own: it shares none and is not fused away.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a layer's intermediate results, and in the plan of a recorded step;
    /// [`Error::OutOfMemory`].
    pub fn pin(&self) -> Result<Tensor> {
        let Some(pinned) = &self.pinned else {
            return Err(Error::invalid("pin", "the intermediate results of a layer cannot be pinned"));
        };
        if let Some(tensor) = pinned.get() {
            return Ok(tensor.clone());
        }
        if self.recorded {
            return Err(Error::invalid("pin", "the step has already been recorded; pin the buffer before recording"));
        }
        let tensor = ops::zeros(&self.shape, self.dtype)?.try_to(self.device)?;
        Ok(pinned.get_or_init(|| tensor).clone())
    }

    /// Returns the tensor if the buffer is pinned.
    pub fn pinned(&self) -> Option<&Tensor> {
        self.pinned.as_ref()?.get()
    }
}

/// The buffers of one layer.
#[derive(Clone, Debug)]
pub struct PerLayerBufs {
    /// The index of the call and the name of the layer's type: `L0:Linear`.
    pub name: String,
    /// The layer's name in the model (`0`, `encoder`). Empty for the model itself, and for a layer without fields,
    /// whose address does not identify it.
    pub path: String,
    /// The index of the call among all calls of layers; `None` for the model's own parameters.
    pub(super) call: Option<usize>,
    /// The output.
    pub y: Buf,
    /// The pre-activation, if an activation follows: the gradient of the activation reads it. Unfused, it is the output
    /// itself; a matrix product with a fused activation writes both.
    pub z: Option<Buf>,
    /// The gradient of the input; `None` if the input needs no gradient (data, integers).
    pub g_a: Option<Buf>,
    /// The gradients of the layer's trained parameters, by name in the model. A shared parameter is listed once, at the
    /// first layer that holds it.
    pub gradients: Vec<(String, Buf)>,
    /// The intermediate results of the forward pass.
    pub work: Option<Buf>,
}

impl PerLayerBufs {
    /// Returns the gradient of the layer's own parameter of this name, such as `weight`.
    pub fn gradient(&self, own: &str) -> Option<&Buf> {
        let is_own = |name: &str| match name.strip_prefix(self.path.as_str()) {
            Some(rest) => rest.strip_prefix('.').unwrap_or(rest) == own,
            None => false,
        };
        self.gradients.iter().find(|(name, _)| is_own(name)).map(|(_, buf)| buf)
    }

    /// Returns the gradient of the parameter `weight`.
    pub fn g_w(&self) -> Option<&Buf> {
        self.gradient("weight")
    }

    /// Returns the gradient of the parameter `bias`.
    pub fn g_b(&self) -> Option<&Buf> {
        self.gradient("bias")
    }
}

/// The kind of a loss, by its targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LossKind {
    /// Class indices, `i64`, in the logits' shape without the class axis: `[B]` for logits `[B, C]`, `[]` for `[C]`,
    /// `[B, d..]` for `[B, C, d..]`.
    SoftmaxCrossEntropy,
    /// Values of the logits' shape and dtype.
    Mse,
    /// Binary labels 0 and 1, of the logits' shape and dtype.
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
        self.d_y.shape()
    }
}

/// All buffers that a step may need, each with shape, dtype and bytes, before memory is shared and operations are
/// fused.
#[derive(Clone, Debug)]
pub struct CapturePlan {
    /// The shape of the input; for several inputs, the first one's.
    pub input_shape: Shape,
    /// Names, shapes and dtypes of all inputs.
    pub inputs: Vec<(String, Shape, DType)>,
    /// The buffers of the layers that the model calls, in the order of the calls. Parameters that belong to none of
    /// these layers follow at the end, in an entry for the model itself.
    pub per_layer: Vec<PerLayerBufs>,
    /// The buffers of the loss.
    pub loss: LossBufs,
    /// The maximum scratch of one matrix product in bytes, [`DEFAULT_MAX_SCRATCH`] unless it is set. It is for devices
    /// that use some; the CPU and `wgpu` use none.
    pub lt_bytes: usize,
}

/// Returns the buffers of the layers that the model calls directly, and of the model if it has parameters of its own.
fn layer_buffers(
    type_name: &str,
    calls: &[TracedCall],
    parameters: Vec<(String, Parameter)>,
    logits: &Buf,
) -> Vec<PerLayerBufs> {
    // If the model is a layer, the first call is the model itself, and its layers are called one level deeper.
    let is_layer = calls.first().is_some_and(|first| first.is_model);
    let inner = |call: &(usize, &TracedCall)| calls.len() == 1 || call.1.row.depth == usize::from(is_layer);
    let calls: Vec<(usize, &TracedCall)> = calls.iter().enumerate().filter(inner).collect();
    let mut layers: Vec<PerLayerBufs> = Vec::with_capacity(calls.len());
    for (i, (number, call)) in calls.iter().enumerate() {
        let TracedCall { row, input, tracked, dtype, .. } = call;
        let device = logits.device;
        let output = Buf::new(&row.output, *dtype, device);
        let scratch = (row.work.allocated_bytes as usize).saturating_sub(row.bytes);
        // The gradient of an activation may read its input, the pre-activation.
        let is_activated = calls.get(i + 1).is_some_and(|(_, next)| ACTIVATIONS.contains(&next.row.class));
        layers.push(PerLayerBufs {
            name: format!("L{i}:{}", row.class),
            path: row.name.clone(),
            call: Some(*number),
            z: is_activated.then(|| output.clone()),
            g_a: tracked.then(|| Buf::new(&input.shape, input.dtype, device)),
            y: output,
            gradients: Vec::new(),
            work: (scratch > 0).then(|| Buf::scratch(scratch, device)),
        });
    }
    let mut own = Vec::new();
    for (name, parameter) in parameters {
        let holds = |layer: &&mut PerLayerBufs| {
            calls.len() == 1 && layer.path.is_empty() || !layer.path.is_empty() && is_inside(&name, &layer.path)
        };
        let buf = Buf::new(parameter.shape(), parameter.dtype(), parameter.device());
        match layers.iter_mut().find(holds) {
            Some(layer) => layer.gradients.push((name, buf)),
            None => own.push((name, buf)),
        }
    }
    if !own.is_empty() {
        layers.push(PerLayerBufs {
            name: format!("L{}:{type_name}", layers.len()),
            path: String::new(),
            call: None,
            y: logits.clone(),
            z: None,
            g_a: None,
            gradients: own,
            work: None,
        });
    }
    layers
}

impl CapturePlan {
    /// Returns the plan of a step with this model and these inputs, whose values are not used.
    ///
    /// The model is traced: no kernel runs, and only layers that learn their widths from their first input change.
    pub(super) fn new(
        model: &dyn ModelOfInputs,
        named: &NamedTensors,
        targets: &dyn Fn(&Tensor) -> Result<(Shape, DType)>,
        lt_bytes: usize,
    ) -> Result<CapturePlan> {
        let inputs: Vec<Tensor> = named.iter().map(|(_, x)| x.detach()).collect();
        let mut run = || {
            let _on = enable_grad();
            model.output(&inputs)
        };
        let module: &dyn DynModule = model;
        // The first run builds lazy layers, which have neither parameters nor names before it.
        trace_calls(module, &mut run)?;
        let (logits, calls) = trace_calls(module, &mut run)?;
        let target = targets(&logits)?;
        let trained = module.parameters().into_iter().filter(|(_, p)| p.requires_grad()).collect();
        let type_name = module.modules().first().map_or("model", |(_, info)| info.class());
        let inputs: Vec<_> = named.iter().map(|(name, x)| (name.clone(), x.shape().clone(), x.dtype())).collect();
        let d_y = Buf::new(logits.shape(), logits.dtype(), logits.device());
        Ok(CapturePlan {
            input_shape: inputs.first().map_or(Shape::scalar(), |(_, shape, _)| shape.clone()),
            inputs,
            per_layer: layer_buffers(type_name, &calls, trained, &d_y),
            loss: LossBufs { d_y, target },
            lt_bytes,
        })
    }

    /// Returns the device of the step, which is the device of the logits.
    pub(super) fn device(&self) -> Device {
        self.loss.d_y.device
    }

    /// Returns the buffers of all parameter gradients, by name.
    pub fn gradients(&self) -> impl Iterator<Item = (&str, &Buf)> {
        self.per_layer.iter().flat_map(|layer| layer.gradients.iter().map(|(name, buf)| (name.as_str(), buf)))
    }

    /// Returns the buffer of a parameter's gradient.
    pub fn gradient(&self, parameter: &str) -> Option<&Buf> {
        self.gradients().find(|(name, _)| *name == parameter).map(|(_, buf)| buf)
    }

    /// Returns the total size of all buffers in bytes, without sharing.
    pub fn bytes(&self) -> usize {
        let pre_activations = self.per_layer.iter().filter_map(|layer| layer.z.as_ref());
        let sum = |buffers: &mut dyn Iterator<Item = &Buf>| buffers.map(Buf::bytes).sum::<usize>();
        // Unfused, the pre-activation is the output.
        sum(&mut self.roles().into_iter().map(|(_, buf)| buf)) - sum(&mut pre_activations.into_iter())
    }

    /// Returns all buffers with their roles.
    pub(super) fn roles(&self) -> Vec<(BufferRole, &Buf)> {
        let mut buffers = vec![(BufferRole::LogitsGradient, &self.loss.d_y)];
        for (i, layer) in self.per_layer.iter().enumerate() {
            let outputs = [Some(&layer.y), layer.z.as_ref()];
            buffers.extend(outputs.into_iter().flatten().map(|buf| (BufferRole::Output(i), buf)));
            buffers.extend(layer.g_a.as_ref().map(|buf| (BufferRole::InputGradient(i), buf)));
            buffers.extend(layer.work.as_ref().map(|buf| (BufferRole::Work(i), buf)));
            buffers.extend(layer.gradients.iter().map(|(name, buf)| (BufferRole::Gradient(name.clone()), buf)));
        }
        buffers
    }

    /// Stores the location of each buffer of a recorded step.
    pub(super) fn set_locations(&mut self, location: impl Fn(&BufferRole, &Buf) -> ArenaSlot) {
        let found: Vec<ArenaSlot> = self.roles().iter().map(|(role, buf)| location(role, buf)).collect();
        let mut found = found.into_iter();
        // The same order as in roles().
        let mut set = |buf: &mut Buf| (buf.location, buf.recorded) = (found.next().unwrap_or_default(), true);
        set(&mut self.loss.d_y);
        for layer in &mut self.per_layer {
            set(&mut layer.y);
            let others = [&mut layer.z, &mut layer.g_a, &mut layer.work];
            others.into_iter().flatten().for_each(&mut set);
            layer.gradients.iter_mut().for_each(|(_, buf)| set(buf));
        }
    }

    /// Returns an error if inputs or targets do not match the plan; it names the layer that would read them.
    pub(super) fn check(&self, op: &'static str, x: &NamedTensors, y: &Tensor) -> Result<()> {
        let mut inputs = self.inputs.iter().zip(x);
        let checked = check_batch_count(op, self.inputs.len(), x.len())
            .and_then(|()| inputs.try_for_each(|(own, (name, x))| check_input(op, own, name, x)));
        checked.map_err(|source| {
            let layer = self.per_layer.first().map_or_else(|| "model".to_string(), |first| first.name.clone());
            Error::Layer { layer, source: Box::new(source) }
        })?;
        check_target_shape(op, y, &self.loss.target, self.loss.d_y.shape()).map_err(of_loss)
    }

    /// Stores the gradient of every updated parameter in the plan's buffer.
    pub(super) fn bind(&self, model: &dyn DynModule, updated: &[Parameter]) -> Result<Rebound> {
        for (_, parameter, gradient) in self.pinned_gradients(model)? {
            if updated.iter().any(|p| p.id() == parameter.id()) {
                parameter.set_grad(Some(gradient));
            }
        }
        Ok(self.bound(model, updated))
    }

    /// Returns which gradients of the updated parameters are stored in the buffers of the plan now.
    pub(super) fn bound(&self, model: &dyn DynModule, updated: &[Parameter]) -> Rebound {
        let mut updated: HashMap<_, usize> = updated.iter().enumerate().map(|(i, p)| (p.id(), i)).collect();
        let mut current = Rebound::default();
        for (name, parameter) in model.parameters() {
            let Some(buf) = self.gradient(&name) else { continue };
            if updated.remove(&parameter.id()).is_none() {
                current.not_updated.push(name);
            } else if let (Some(buf), Some(gradient)) = (buf.pinned(), parameter.grad())
                && identity(buf) == identity(&gradient)
            {
                current.bound.push(name);
            }
        }
        current.not_planned = updated.into_values().collect();
        current.not_planned.sort_unstable();
        current
    }

    /// Returns the model's trained parameters that have a gradient buffer in the plan, in order, each with its name and
    /// the buffer, which this call pins.
    pub(super) fn pinned_gradients(&self, model: &dyn DynModule) -> Result<Vec<(String, Parameter, Tensor)>> {
        let named = model.parameters().into_iter();
        let planned = named.filter_map(|(name, parameter)| Some((self.gradient(&name)?, name, parameter)));
        planned.map(|(buf, name, parameter)| Ok((name, parameter, buf.pin()?))).collect()
    }
}

/// The parameters whose gradients [`try_rebind_grads`](super::try_rebind_grads) bound to the buffers of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rebound {
    /// Names of the parameters whose gradient is stored in the plan's buffer.
    pub bound: Vec<String>,
    /// Names of the model's parameters with a planned gradient that the optimizer does not update; they are not bound.
    pub not_updated: Vec<String>,
    /// Indices of the optimizer's parameters without a buffer in the plan: frozen, or not part of this model.
    pub not_planned: Vec<usize>,
}

/// Returns an error unless a tensor is the input that the plan expects.
fn check_input(op: &'static str, own: &(String, Shape, DType), name: &str, x: &Tensor) -> Result<()> {
    let (expected, shape, dtype) = own;
    check_batch_name(op, expected, name)?;
    if x.shape() != shape {
        let help = format!("the step expects `{name}` of shape {shape}, got {}; compile it for this shape", x.shape());
        return Err(Error::shapes(op, [x.shape(), shape], help));
    }
    check_batch_dtype(op, *dtype, name, x)
}

impl fmt::Display for CapturePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |f: &mut fmt::Formatter<'_>, name: &str, buf: &Buf| {
            writeln!(
                f,
                "  {name:24} {:>8} {:20} {:>12} bytes  {}",
                buf.dtype.to_string(),
                buf.shape.to_string(),
                buf.bytes(),
                buf.location
            )
        };
        for layer in &self.per_layer {
            writeln!(f, "{} {}", layer.name, layer.path)?;
            let named = [
                ("output", Some(&layer.y)),
                ("pre-activation", layer.z.as_ref()),
                ("input gradient", layer.g_a.as_ref()),
                ("work", layer.work.as_ref()),
            ];
            for (name, buf) in named.into_iter().filter_map(|(name, buf)| Some((name, buf?))) {
                line(f, name, buf)?;
            }
            layer.gradients.iter().try_for_each(|(name, buf)| line(f, &format!("gradient {name}"), buf))?;
        }
        writeln!(f, "loss")?;
        line(f, "logits gradient", &self.loss.d_y)?;
        write!(f, "{} bytes unfused", self.bytes())
    }
}
