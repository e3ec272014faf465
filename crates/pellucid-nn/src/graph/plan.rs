//! The plan of a step: the buffers that it may need, layer by layer, computed from shapes alone.

use super::batch::{Batch, Model};
use crate::call::{TracedCall, trace_calls};
use crate::layer::Layer;
use crate::loss::LossKind;
use crate::module::parameters_so_far;
use crate::parameter::Parameter;
use pellucid_tensor::{DType, Error, Result, Shape, Tensor, enable_grad, ops};
use std::fmt;
use std::sync::OnceLock;

/// The location of a planned buffer.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum ArenaSlot {
    /// The location is unknown: the step was not recorded, or the recording does not contain the buffer.
    #[default]
    Planned,
    /// The buffer has its own memory outside of the step's arena: it is pinned ([`Buf::pin`]) or a result of the step.
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
    place: ArenaSlot,
    recorded: bool,
    /// The tensor, once pinned; `None` for intermediate results, which cannot be pinned.
    pinned: Option<OnceLock<Tensor>>,
}

impl Buf {
    fn new(shape: &Shape, dtype: DType) -> Buf {
        Buf { shape: shape.clone(), dtype, place: ArenaSlot::Planned, recorded: false, pinned: Some(OnceLock::new()) }
    }

    fn scratch(bytes: usize) -> Buf {
        Buf { shape: Shape::from(bytes), dtype: DType::U8, place: ArenaSlot::Planned, recorded: false, pinned: None }
    }

    /// Returns the shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the dtype of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        self.shape.size() * self.dtype.size()
    }

    /// Returns the location, known for the plan of a [recorded](super::GraphExec::plan) step.
    pub fn place(&self) -> &ArenaSlot {
        &self.place
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
            return Err(Error::invalid("pin", "the step is recorded already; pin the plan's buffer before recording"));
        }
        let tensor = ops::zeros(&self.shape, self.dtype)?;
        Ok(pinned.get_or_init(|| tensor).clone())
    }

    /// Returns the tensor if the buffer is pinned.
    pub fn pinned(&self) -> Option<&Tensor> {
        self.pinned.as_ref()?.get()
    }

    /// Shares the pinned tensor of another plan's buffer, unless this buffer is pinned already.
    fn adopt(&self, other: &Buf) {
        if let (Some(own), Some(tensor)) = (&self.pinned, other.pinned()) {
            own.get_or_init(|| tensor.clone());
        }
    }
}

/// The buffers of one layer.
#[derive(Clone, Debug)]
pub struct PerLayerBufs {
    /// The position of the call and the class: `L0:Linear`.
    pub name: String,
    /// The layer's name in the model (`0`, `encoder`). Empty for the model itself, and for a layer without fields,
    /// whose address does not identify it.
    pub path: String,
    /// The number of the call among all calls of layers; `None` for the model's own parameters.
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
    pub grads: Vec<(String, Buf)>,
    /// The intermediate results of the forward pass.
    pub work: Option<Buf>,
}

impl PerLayerBufs {
    /// Returns the gradient of the parameter `weight`.
    pub fn g_w(&self) -> Option<&Buf> {
        self.grad("weight")
    }

    /// Returns the gradient of the parameter `bias`.
    pub fn g_b(&self) -> Option<&Buf> {
        self.grad("bias")
    }

    fn grad(&self, own: &str) -> Option<&Buf> {
        let is_own = |name: &str| match name.strip_prefix(self.path.as_str()) {
            Some(rest) => rest.strip_prefix('.').unwrap_or(rest) == own,
            None => false,
        };
        self.grads.iter().find(|(name, _)| is_own(name)).map(|(_, buf)| buf)
    }

    fn all(&self) -> impl Iterator<Item = &Buf> {
        let own = [Some(&self.y), self.g_a.as_ref(), self.work.as_ref()].into_iter().flatten();
        own.chain(self.grads.iter().map(|(_, buf)| buf))
    }
}

/// The buffers of the loss.
#[derive(Clone, Debug)]
pub struct LossBufs {
    /// The gradient of the logits; it has their shape.
    pub d_y: Buf,
    /// The shape of the loss: a scalar.
    pub out_shape: Shape,
    /// Shape and dtype of the targets.
    pub target: (Shape, DType),
}

/// All buffers that a step may need, each with shape, dtype and bytes, before memory is shared and operations are
/// fused.
#[derive(Clone, Debug)]
pub struct CapturePlan {
    /// The shape of the input; for several inputs, the first one's.
    pub input_shape: Shape,
    /// Names, shapes and dtypes of all inputs.
    pub inputs: Vec<(String, Shape, DType)>,
    /// The buffers of the layers that the model calls, in the order of the calls. Parameters of no such layer follow at
    /// the end, in an entry for the model itself.
    pub per_layer: Vec<PerLayerBufs>,
    /// The buffers of the loss.
    pub loss: LossBufs,
    /// The maximum scratch of one matrix product in bytes, on devices that use some; the CPU uses none.
    pub lt_bytes: usize,
}

/// Returns the plan of a step with this layer, usually a [`Sequential`](crate::Sequential), for inputs of this shape.
/// It is [`make_plan`] for zeros of the layer's [input dtype](Layer::input_dtype).
///
/// ```
/// use pellucid_nn::graph::{LossKind, make_plan_for_sequential};
/// use pellucid_nn::{Linear, Relu, sequential};
/// let model = sequential![Linear::new(784, 256), Relu, Linear::new(256, 10)];
/// let plan = make_plan_for_sequential(&model, &[64, 784], LossKind::SoftmaxCrossEntropy, 8 << 20)?;
/// let first = &plan.per_layer[0];
/// assert_eq!(first.name, "L0:Linear");
/// assert_eq!(first.g_w().unwrap().shape().dims(), [256, 784]);
/// assert_eq!((first.z.is_some(), first.g_a.is_some()), (true, false)); // a relu follows; x needs no gradient
/// assert_eq!(plan.loss.d_y.shape().dims(), [64, 10]);
/// println!("{plan}");
/// # Ok::<(), pellucid_tensor::Error>(())
/// ```
///
/// # Errors
/// Those of [`make_plan`].
pub fn make_plan_for_sequential<L: Layer + ?Sized>(
    model: &L,
    input_shape: &[usize],
    loss: LossKind,
    lt_bytes: usize,
) -> Result<CapturePlan> {
    make_plan(model, &ops::zeros(input_shape, model.input_dtype())?, loss, lt_bytes)
}

/// Returns the plan of a step with this model for inputs of these shapes and dtypes. Their values are not used.
///
/// The model is traced: no kernel runs, and only layers that learn their widths from their first input change.
///
/// # Errors
/// [`Error::Layer`] names a layer that rejects its input or whose output shape depends on values;
/// [`Error::ShapeMismatch`] if the loss does not accept the logits.
pub fn make_plan<X: Batch, M: Model<X> + ?Sized>(
    model: &M,
    inputs: &X,
    loss: LossKind,
    lt_bytes: usize,
) -> Result<CapturePlan> {
    let data = inputs.map(&mut |_, tensor| Ok(tensor.detach()))?;
    let run = || {
        let _on = enable_grad();
        let logits = model.run(&data)?;
        Ok((logits.shape().clone(), logits.dtype()))
    };
    // The first run builds lazy layers, which have no parameters and no names before.
    trace_calls(model, run)?;
    let ((logits, dtype), calls) = trace_calls(model, run)?;
    let named: Vec<(String, Parameter)> =
        parameters_so_far(model).into_iter().filter(|(_, p)| p.requires_grad()).collect();
    let class = model.named_modules().first().map_or("model", |(_, info)| info.class());
    let inputs = inputs.named().into_iter().map(|(name, x)| (name, x.shape().clone(), x.dtype())).collect::<Vec<_>>();
    Ok(CapturePlan {
        input_shape: inputs.first().map_or(Shape::scalar(), |(_, shape, _)| shape.clone()),
        inputs,
        per_layer: per_layer(class, &calls, named, &Buf::new(&logits, dtype)),
        loss: LossBufs {
            d_y: Buf::new(&logits, dtype),
            out_shape: Shape::scalar(),
            target: loss.target(&logits, dtype)?,
        },
        lt_bytes,
    })
}

/// Returns the buffers of the layers that the model calls directly, and of the model if it has parameters of its own.
fn per_layer(
    class: &str,
    calls: &[TracedCall],
    parameters: Vec<(String, Parameter)>,
    logits: &Buf,
) -> Vec<PerLayerBufs> {
    // If the model is a layer, it is the first call, and its layers are one level deeper.
    let is_layer = calls.first().is_some_and(|first| first.is_model);
    let inner = |call: &(usize, &TracedCall)| calls.len() == 1 || call.1.row.depth == usize::from(is_layer);
    let calls: Vec<(usize, &TracedCall)> = calls.iter().enumerate().filter(inner).collect();
    let mut layers: Vec<PerLayerBufs> = Vec::with_capacity(calls.len());
    for (i, (number, call)) in calls.iter().enumerate() {
        let TracedCall { row, input, tracked, dtype, .. } = call;
        let y = Buf::new(&row.output, *dtype);
        let scratch = (row.work.made as usize).saturating_sub(row.bytes);
        layers.push(PerLayerBufs {
            name: format!("L{i}:{}", row.class),
            path: row.name.clone(),
            call: Some(*number),
            z: calls.get(i + 1).is_some_and(|(_, next)| next.is_activation).then(|| y.clone()),
            g_a: tracked.then(|| Buf::new(&input.shape, input.dtype)),
            y,
            grads: Vec::new(),
            work: (scratch > 0).then(|| Buf::scratch(scratch)),
        });
    }
    let mut own = Vec::new();
    for (name, parameter) in parameters {
        let holds = |layer: &&mut PerLayerBufs| {
            calls.len() == 1 && layer.path.is_empty()
                || !layer.path.is_empty() && name.strip_prefix(&layer.path).is_some_and(|rest| rest.starts_with('.'))
        };
        let buf = Buf::new(parameter.shape(), parameter.dtype());
        match layers.iter_mut().find(holds) {
            Some(layer) => layer.grads.push((name, buf)),
            None => own.push((name, buf)),
        }
    }
    if !own.is_empty() {
        let name = format!("L{}:{class}", layers.len());
        let y = logits.clone();
        let (path, call) = (String::new(), None);
        layers.push(PerLayerBufs { name, path, call, y, z: None, g_a: None, grads: own, work: None });
    }
    layers
}

impl CapturePlan {
    /// Returns the buffers of all parameter gradients, by name.
    pub fn grads(&self) -> impl Iterator<Item = (&str, &Buf)> {
        self.per_layer.iter().flat_map(|layer| layer.grads.iter().map(|(name, buf)| (name.as_str(), buf)))
    }

    /// Returns the buffer of a parameter's gradient.
    pub fn grad(&self, parameter: &str) -> Option<&Buf> {
        self.grads().find(|(name, _)| *name == parameter).map(|(_, buf)| buf)
    }

    /// Returns the total size of all buffers in bytes, without sharing.
    pub fn bytes(&self) -> usize {
        self.per_layer.iter().flat_map(PerLayerBufs::all).map(Buf::bytes).sum::<usize>() + self.loss.d_y.bytes()
    }

    /// Uses the gradient buffers that are pinned in another plan of the same parameters, so that two paths through a
    /// model share their gradients.
    pub fn adopt_grads(&self, other: &CapturePlan) {
        for (name, buf) in self.grads() {
            if let Some(theirs) = other.grad(name) {
                buf.adopt(theirs);
            }
        }
    }

    /// Stores the location of each buffer of a recorded step.
    pub(super) fn set_locations(&mut self, place: impl Fn(BufferRole, &Buf) -> ArenaSlot) {
        let set = |role: BufferRole, buf: &mut Buf| (buf.place, buf.recorded) = (place(role, buf), true);
        for (i, layer) in self.per_layer.iter_mut().enumerate() {
            set(BufferRole::Output(i), &mut layer.y);
            // Unfused, the pre-activation is the output.
            layer.z.iter_mut().for_each(|z| set(BufferRole::Output(i), z));
            layer.g_a.iter_mut().for_each(|g_a| set(BufferRole::InputGradient(i), g_a));
            layer.work.iter_mut().for_each(|work| set(BufferRole::Work(i), work));
            layer.grads.iter_mut().for_each(|(name, grad)| set(BufferRole::Gradient(name.clone()), grad));
        }
        set(BufferRole::LogitsGradient, &mut self.loss.d_y);
    }

    /// Returns an error if inputs or targets do not match the plan; it names the layer that would read them.
    pub(super) fn check(&self, op: &'static str, x: &impl Batch, y: &Tensor) -> Result<()> {
        let (mut given, mut refused) = (0, None);
        x.each(&mut |name, x| {
            if refused.is_none() {
                refused = self.inputs.get(given).and_then(|own| input_mismatch(op, own, name, x));
            }
            given += 1;
        });
        if given != self.inputs.len() {
            refused = Some(Error::invalid(op, format!("the step has {} inputs, got {given}", self.inputs.len())));
        }
        if let Some(source) = refused {
            let layer = self.per_layer.first().map_or_else(|| "model".to_string(), |first| first.name.clone());
            return Err(Error::Layer { layer, source: Box::new(source) });
        }
        let (shape, dtype) = &self.loss.target;
        let source = if y.shape() != shape {
            Error::shapes(
                op,
                [y.shape(), shape],
                format!("the step expects targets of shape {shape}, got {}", y.shape()),
            )
        } else if y.dtype().is_int() != dtype.is_int() || y.dtype().is_float() != dtype.is_float() {
            Error::dtypes(op, [y.dtype(), *dtype], format!("the step expects targets of dtype {dtype}; use to_dtype()"))
        } else {
            return Ok(());
        };
        Err(Error::Layer { layer: "loss".into(), source: Box::new(source) })
    }
}

/// Returns the error if a tensor is not the input that the plan expects.
fn input_mismatch(op: &'static str, own: &(String, Shape, DType), name: &str, x: &Tensor) -> Option<Error> {
    let (expected, shape, dtype) = own;
    if name != expected {
        return Some(Error::invalid(op, format!("expected the input `{expected}`, got `{name}`")));
    }
    if x.shape() != shape {
        let help = format!("the step expects `{name}` of shape {shape}, got {}; compile it for that shape", x.shape());
        return Some(Error::shapes(op, [x.shape(), shape], help));
    }
    (x.dtype() != *dtype).then(|| {
        let help = format!("the step expects `{name}` of dtype {dtype}; use to_dtype()");
        Error::dtypes(op, [x.dtype(), *dtype], help)
    })
}

impl fmt::Display for CapturePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |f: &mut fmt::Formatter<'_>, name: &str, buf: &Buf| {
            writeln!(
                f,
                "  {name:24} {:>8} {:20} {:>12} bytes  {:?}",
                buf.dtype.to_string(),
                buf.shape.to_string(),
                buf.bytes(),
                buf.place
            )
        };
        for layer in &self.per_layer {
            writeln!(f, "{} {}", layer.name, layer.path)?;
            let PerLayerBufs { y, z, g_a, work, grads, .. } = layer;
            let own = [("y", Some(y)), ("z", z.as_ref()), ("g_a", g_a.as_ref()), ("work", work.as_ref())];
            own.into_iter()
                .filter_map(|(name, buf)| Some((name, buf?)))
                .try_for_each(|(name, buf)| line(f, name, buf))?;
            grads.iter().try_for_each(|(name, buf)| line(f, &format!("g {name}"), buf))?;
        }
        writeln!(f, "loss")?;
        line(f, "d_y", &self.loss.d_y)?;
        write!(f, "{} bytes unfused", self.bytes())
    }
}
