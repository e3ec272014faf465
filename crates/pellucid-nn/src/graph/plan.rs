//! The plan of a step: the buffers that it may need, layer by layer, computed from shapes alone.

use super::batch::{Batch, BatchTensors, BoundModel, Model, ModelWithBatch, StepLoss, zeros_on};
use crate::call::{TracedCall, trace_calls};
use crate::loss::LossKind;
use crate::module::ModuleParts;
use crate::parameter::Parameter;
use pellucid_tensor::{DType, Device, Error, Result, Shape, Tensor, enable_grad, eval};
use std::collections::HashMap;
use std::fmt;
use std::sync::OnceLock;

/// The default of [`StepPlan::max_scratch`](StepPlan#structfield.max_scratch): 8 MiB.
pub const DEFAULT_MAX_SCRATCH: usize = 8 << 20;

/// The location of a planned buffer.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum ArenaSlot {
    /// The location is unknown: the step was not recorded, or the recording does not contain the buffer.
    #[default]
    Planned,
    /// The buffer has its own memory outside of the step's arena: it is pinned ([`PlannedBuffer::pin`]) or a result of
    /// the step.
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
pub struct PlannedBuffer {
    shape: Shape,
    dtype: DType,
    device: Device,
    location: ArenaSlot,
    recorded: bool,
    /// The tensor that [`pin`](Self::pin) returned; `None` for intermediate results, which cannot be pinned.
    pinned: Option<OnceLock<Tensor>>,
}

impl PlannedBuffer {
    fn new(shape: &Shape, dtype: DType, device: Device) -> PlannedBuffer {
        PlannedBuffer {
            shape: shape.clone(),
            dtype,
            device,
            location: ArenaSlot::Planned,
            recorded: false,
            pinned: Some(OnceLock::new()),
        }
    }

    fn scratch(bytes: usize, device: Device) -> PlannedBuffer {
        PlannedBuffer {
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

    /// Returns the location, known for the plan of a [recorded](super::RecordedStep::plan) step.
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
        let tensor = zeros_on(self.device, &self.shape, self.dtype)?;
        Ok(pinned.get_or_init(|| tensor).clone())
    }

    /// Returns the tensor if the buffer is pinned.
    pub fn pinned(&self) -> Option<&Tensor> {
        self.pinned.as_ref()?.get()
    }

    /// Uses the tensor as this buffer, unless the buffer is pinned already or is of another shape, dtype or device.
    fn adopt(&self, tensor: &Tensor) {
        let fits = self.shape == *tensor.shape() && (self.dtype, self.device) == (tensor.dtype(), tensor.device());
        if let Some(own) = self.pinned.as_ref().filter(|_| fits) {
            own.get_or_init(|| tensor.clone());
        }
    }
}

/// The buffers of one layer.
#[derive(Clone, Debug)]
pub struct LayerBuffers {
    /// The index of the call and the name of the layer's type: `L0:Linear`.
    pub name: String,
    /// The layer's name in the model (`0`, `encoder`). Empty for the model itself, and for a layer without fields,
    /// whose address does not identify it.
    pub path: String,
    /// The number of the call among all calls of layers; `None` for the model's own parameters.
    pub(super) call: Option<usize>,
    /// The output.
    pub output: PlannedBuffer,
    /// The pre-activation, if an activation follows: the gradient of the activation reads it. Unfused, it is the output
    /// itself; a matrix product with a fused activation writes both.
    pub pre_activation: Option<PlannedBuffer>,
    /// The gradient of the input; `None` if the input needs no gradient (data, integers).
    pub input_gradient: Option<PlannedBuffer>,
    /// The gradients of the layer's trained parameters, by name in the model. A shared parameter is listed once, at the
    /// first layer that holds it.
    pub gradients: Vec<(String, PlannedBuffer)>,
    /// The intermediate results of the forward pass.
    pub work: Option<PlannedBuffer>,
}

impl LayerBuffers {
    /// Returns the gradient of the layer's own parameter of this name, such as `weight`.
    pub fn gradient(&self, own: &str) -> Option<&PlannedBuffer> {
        let is_own = |name: &str| match name.strip_prefix(self.path.as_str()) {
            Some(rest) => rest.strip_prefix('.').unwrap_or(rest) == own,
            None => false,
        };
        self.gradients.iter().find(|(name, _)| is_own(name)).map(|(_, buf)| buf)
    }

    fn all(&self) -> impl Iterator<Item = &PlannedBuffer> {
        let own = [Some(&self.output), self.input_gradient.as_ref(), self.work.as_ref()].into_iter().flatten();
        own.chain(self.gradients.iter().map(|(_, buf)| buf))
    }
}

/// The buffers of the loss.
#[derive(Clone, Debug)]
pub struct LossBuffers {
    /// The gradient of the logits; it has their shape.
    pub logits_gradient: PlannedBuffer,
    /// Shape and dtype of the targets.
    pub target: (Shape, DType),
}

/// All buffers that a step may need, each with shape, dtype and bytes, before memory is shared and operations are
/// fused.
#[derive(Clone, Debug)]
pub struct StepPlan {
    /// The shape of the input; for several inputs, the first one's.
    pub input_shape: Shape,
    /// Names, shapes and dtypes of all inputs.
    pub inputs: Vec<(String, Shape, DType)>,
    /// The buffers of the layers that the model calls, in the order of the calls. Parameters that belong to none of
    /// these layers follow at the end, in an entry for the model itself.
    pub layers: Vec<LayerBuffers>,
    /// The buffers of the loss.
    pub loss: LossBuffers,
    /// The maximum scratch of one matrix product in bytes, [`DEFAULT_MAX_SCRATCH`] unless it is set. It is for devices
    /// that use some; the CPU and `wgpu` use none.
    pub max_scratch: usize,
}

/// Returns the buffers of the layers that the model calls directly, and of the model if it has parameters of its own.
fn layer_buffers(
    type_name: &str,
    calls: &[TracedCall],
    parameters: Vec<(String, Parameter)>,
    logits: &PlannedBuffer,
) -> Vec<LayerBuffers> {
    // If the model is a layer, the first call is the model itself, and its layers are called one level deeper.
    let is_layer = calls.first().is_some_and(|first| first.is_model);
    let inner = |call: &(usize, &TracedCall)| calls.len() == 1 || call.1.row.depth == usize::from(is_layer);
    let calls: Vec<(usize, &TracedCall)> = calls.iter().enumerate().filter(inner).collect();
    let mut layers: Vec<LayerBuffers> = Vec::with_capacity(calls.len());
    for (i, (number, call)) in calls.iter().enumerate() {
        let TracedCall { row, input, tracked, dtype, .. } = call;
        let device = logits.device;
        let output = PlannedBuffer::new(&row.output, *dtype, device);
        let scratch = (row.work.allocated_bytes as usize).saturating_sub(row.bytes);
        layers.push(LayerBuffers {
            name: format!("L{i}:{}", row.class),
            path: row.name.clone(),
            call: Some(*number),
            pre_activation: calls.get(i + 1).is_some_and(|(_, next)| next.is_activation).then(|| output.clone()),
            input_gradient: tracked.then(|| PlannedBuffer::new(&input.shape, input.dtype, device)),
            output,
            gradients: Vec::new(),
            work: (scratch > 0).then(|| PlannedBuffer::scratch(scratch, device)),
        });
    }
    let mut own = Vec::new();
    for (name, parameter) in parameters {
        let holds = |layer: &&mut LayerBuffers| {
            calls.len() == 1 && layer.path.is_empty()
                || !layer.path.is_empty() && name.strip_prefix(&layer.path).is_some_and(|rest| rest.starts_with('.'))
        };
        let buf = PlannedBuffer::new(parameter.shape(), parameter.dtype(), parameter.device());
        match layers.iter_mut().find(holds) {
            Some(layer) => layer.gradients.push((name, buf)),
            None => own.push((name, buf)),
        }
    }
    if !own.is_empty() {
        layers.push(LayerBuffers {
            name: format!("L{}:{type_name}", layers.len()),
            path: String::new(),
            call: None,
            output: logits.clone(),
            pre_activation: None,
            input_gradient: None,
            gradients: own,
            work: None,
        });
    }
    layers
}

impl StepPlan {
    /// Returns the plan of a step with this model for inputs of these shapes and dtypes. Their values are not used.
    ///
    /// The model is traced: no kernel runs, and only layers that learn their widths from their first input change.
    ///
    /// ```
    /// use pellucid::nn::graph::StepPlan;
    /// use pellucid::nn::{Linear, Relu, loss::LossKind, sequential};
    /// use pellucid::{DType, Tensor};
    /// let model = sequential![Linear::new(784, 256), Relu, Linear::new(256, 10)];
    /// let x = Tensor::zeros([64, 784], DType::F32);
    /// let plan = StepPlan::new(&model, &x, LossKind::SoftmaxCrossEntropy)?;
    /// let first = &plan.layers[0];
    /// assert_eq!(first.name, "L0:Linear");
    /// assert_eq!(first.gradient("weight").unwrap().shape().dims(), [256, 784]);
    /// assert!(first.pre_activation.is_some()); // a relu follows
    /// assert!(first.input_gradient.is_none()); // x is data
    /// assert_eq!(plan.loss.logits_gradient.shape().dims(), [64, 10]);
    /// println!("{plan}");
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Layer`] names a layer that rejects its input or whose output shape depends on values;
    /// [`Error::ShapeMismatch`] if the loss does not accept the logits.
    pub fn new<X: Batch, M: Model<X> + ?Sized>(model: &M, inputs: &X, loss: LossKind) -> Result<StepPlan> {
        StepPlan::of(&ModelWithBatch::new(model, inputs)?, &loss)
    }

    /// Returns the plan of a step with this model and batch.
    pub(super) fn of(model: &dyn BoundModel, loss: &LossKind) -> Result<StepPlan> {
        let mut run = || {
            let _on = enable_grad();
            model.logits()
        };
        // The first run builds lazy layers, which have neither parameters nor names before it.
        trace_calls(model, &mut run)?;
        let (logits, calls) = trace_calls(model, &mut run)?;
        let (logits, dtype, device) = (logits.shape(), logits.dtype(), logits.device());
        let parts: &dyn ModuleParts = model;
        let named: Vec<(String, Parameter)> =
            parts.parameters().into_iter().filter(|(_, p)| p.requires_grad()).collect();
        let type_name = parts.modules().first().map_or("model", |(_, info)| info.class());
        let inputs = model.batch().named().into_iter().map(|(name, x)| (name, x.shape().clone(), x.dtype()));
        let inputs: Vec<_> = inputs.collect();
        let logits_gradient = PlannedBuffer::new(logits, dtype, device);
        Ok(StepPlan {
            input_shape: inputs.first().map_or(Shape::scalar(), |(_, shape, _)| shape.clone()),
            inputs,
            layers: layer_buffers(type_name, &calls, named, &logits_gradient),
            loss: LossBuffers { logits_gradient, target: loss.target(logits, dtype)? },
            max_scratch: DEFAULT_MAX_SCRATCH,
        })
    }

    /// Returns the device of the step, which is the device of the logits.
    pub(super) fn device(&self) -> Device {
        self.loss.logits_gradient.device
    }

    /// Returns the buffers of all parameter gradients, by name.
    pub fn gradients(&self) -> impl Iterator<Item = (&str, &PlannedBuffer)> {
        self.layers.iter().flat_map(|layer| layer.gradients.iter().map(|(name, buf)| (name.as_str(), buf)))
    }

    /// Returns the buffer of a parameter's gradient.
    pub fn gradient(&self, parameter: &str) -> Option<&PlannedBuffer> {
        self.gradients().find(|(name, _)| *name == parameter).map(|(_, buf)| buf)
    }

    /// Returns the total size of all buffers in bytes, without sharing.
    pub fn bytes(&self) -> usize {
        self.layers.iter().flat_map(LayerBuffers::all).map(PlannedBuffer::bytes).sum::<usize>()
            + self.loss.logits_gradient.bytes()
    }

    /// Uses the gradient buffers of other plans of the same parameters, by name. Two paths through a model then share
    /// their gradients.
    pub(super) fn adopt_gradients(&self, shared: &HashMap<String, Tensor>) {
        for (name, buf) in self.gradients() {
            if let Some(tensor) = shared.get(name) {
                buf.adopt(tensor);
            }
        }
    }

    /// Stores the location of each buffer of a recorded step.
    pub(super) fn set_locations(&mut self, location: impl Fn(BufferRole, &PlannedBuffer) -> ArenaSlot) {
        let set =
            |role: BufferRole, buf: &mut PlannedBuffer| (buf.location, buf.recorded) = (location(role, buf), true);
        for (i, layer) in self.layers.iter_mut().enumerate() {
            set(BufferRole::Output(i), &mut layer.output);
            // Unfused, the pre-activation is the output.
            layer.pre_activation.iter_mut().for_each(|buf| set(BufferRole::Output(i), buf));
            layer.input_gradient.iter_mut().for_each(|buf| set(BufferRole::InputGradient(i), buf));
            layer.work.iter_mut().for_each(|work| set(BufferRole::Work(i), work));
            layer.gradients.iter_mut().for_each(|(name, buf)| set(BufferRole::Gradient(name.clone()), buf));
        }
        set(BufferRole::LogitsGradient, &mut self.loss.logits_gradient);
    }

    /// Returns an error if inputs or targets do not match the plan; it names the layer that would read them.
    pub(super) fn check(&self, op: &'static str, x: &dyn BatchTensors, y: &Tensor) -> Result<()> {
        let (mut given, mut refused) = (0, None);
        x.each_tensor(&mut |name, x| {
            if refused.is_none() {
                refused = self.inputs.get(given).and_then(|own| input_mismatch(op, own, name, x));
            }
            given += 1;
        });
        if given != self.inputs.len() {
            refused = Some(Error::invalid(op, format!("the step has {} inputs, got {given}", self.inputs.len())));
        }
        if let Some(source) = refused {
            let layer = self.layers.first().map_or_else(|| "model".to_string(), |first| first.name.clone());
            return Err(Error::Layer { layer, source: Box::new(source) });
        }
        let (shape, dtype) = &self.loss.target;
        let source = if dtype.is_int() && y.dtype().is_float() && y.shape() == self.loss.logits_gradient.shape() {
            let help = format!(
                "the step expects class numbers of shape {shape}; for probabilities, make the loss by \
                 with_targets({}, DType::{:?})",
                y.shape(),
                y.dtype()
            );
            Error::shapes(op, [y.shape(), shape], help)
        } else if y.shape() != shape {
            Error::shapes(
                op,
                [y.shape(), shape],
                format!("the step expects targets of shape {shape}, got {}; reshape() or index the targets", y.shape()),
            )
        } else if y.dtype().is_int() != dtype.is_int() || y.dtype().is_float() != dtype.is_float() {
            Error::dtypes(op, [y.dtype(), *dtype], format!("the step expects targets of dtype {dtype}; use to_dtype()"))
        } else {
            return Ok(());
        };
        Err(Error::Layer { layer: "loss".into(), source: Box::new(source) })
    }

    /// Returns an error for targets that have the shape and dtype of the plan, but a value that the loss refuses.
    pub(super) fn check_targets(&self, loss: &dyn StepLoss, y: &Tensor) -> Result<()> {
        // The launch needs the values in any case.
        if y.device().is_cpu() && !y.is_readable() {
            eval([y])?;
        }
        let checked = loss.check_targets(self.loss.logits_gradient.shape(), y);
        checked.map_err(|source| Error::Layer { layer: "loss".into(), source: Box::new(source) })
    }
}

/// Returns the error if a tensor is not the input that the plan expects.
fn input_mismatch(op: &'static str, own: &(String, Shape, DType), name: &str, x: &Tensor) -> Option<Error> {
    let (expected, shape, dtype) = own;
    if name != expected {
        return Some(Error::invalid(op, format!("expected the input `{expected}`, got `{name}`")));
    }
    if x.shape() != shape {
        let help = format!("the step expects `{name}` of shape {shape}, got {}; compile it for this shape", x.shape());
        return Some(Error::shapes(op, [x.shape(), shape], help));
    }
    (x.dtype() != *dtype).then(|| {
        let help = format!("the step expects `{name}` of dtype {dtype}; use to_dtype()");
        Error::dtypes(op, [x.dtype(), *dtype], help)
    })
}

impl fmt::Display for StepPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |f: &mut fmt::Formatter<'_>, name: &str, buf: &PlannedBuffer| {
            writeln!(
                f,
                "  {name:24} {:>8} {:20} {:>12} bytes  {}",
                buf.dtype.to_string(),
                buf.shape.to_string(),
                buf.bytes(),
                buf.location
            )
        };
        for layer in &self.layers {
            writeln!(f, "{} {}", layer.name, layer.path)?;
            let named = [
                ("output", Some(&layer.output)),
                ("pre-activation", layer.pre_activation.as_ref()),
                ("input gradient", layer.input_gradient.as_ref()),
                ("work", layer.work.as_ref()),
            ];
            for (name, buf) in named.into_iter().filter_map(|(name, buf)| Some((name, buf?))) {
                line(f, name, buf)?;
            }
            layer.gradients.iter().try_for_each(|(name, buf)| line(f, &format!("gradient {name}"), buf))?;
        }
        writeln!(f, "loss")?;
        line(f, "logits gradient", &self.loss.logits_gradient)?;
        write!(f, "{} bytes unfused", self.bytes())
    }
}
