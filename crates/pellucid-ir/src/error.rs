//! Every way in which an operation can be refused, as one typed enum.
//!
//! A message names the operation, every shape and dtype that matters, and the help. Before an error
//! leaves, nothing has changed.

mod state_dict;

use crate::dtype::DType;
use crate::shape::Shape;
use std::fmt;
use std::panic::Location;

/// Why an operation was refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Operand shapes do not fit one another.
    #[error("{op}: shapes {} do not fit: {help}", list(shapes))]
    ShapeMismatch {
        /// The operation.
        op: &'static str,
        /// The shapes of its operands.
        shapes: Vec<Shape>,
        /// What must hold, and how to get there.
        help: String,
    },
    /// The operation is not defined for these dtypes.
    #[error("{op}: dtypes {} are not supported: {help}", list(dtypes))]
    DTypeMismatch {
        /// The operation.
        op: &'static str,
        /// The dtypes of its operands.
        dtypes: Vec<DType>,
        /// What it takes, and how to get there.
        help: String,
    },
    /// An axis that the tensor does not have.
    #[error("{op}: axis {axis} is out of range for shape {shape} of rank {}", shape.rank())]
    AxisOutOfRange {
        /// The operation.
        op: &'static str,
        /// The axis that was asked for.
        axis: isize,
        /// The tensor's shape.
        shape: Shape,
    },
    /// An index beyond its axis.
    #[error("{op}: index {index} is out of bounds for axis {axis} of length {len}{}", index_help(op, *index))]
    IndexOutOfBounds {
        /// The operation.
        op: &'static str,
        /// The index, as it was given.
        index: i64,
        /// The axis that it indexes.
        axis: usize,
        /// The axis's length.
        len: usize,
    },
    /// An argument outside what the operation is defined for.
    #[error("{op}: {reason}")]
    InvalidArgument {
        /// The operation.
        op: &'static str,
        /// What is wrong and what would be right.
        reason: String,
    },
    /// A matrix without an inverse, or one that is not positive definite.
    #[error("{op}: matrix {batch} of the batch is {what}{help}")]
    Singular {
        /// The operation.
        op: &'static str,
        /// The first such matrix, counted in row-major order over the batch axes; 0 where there are none.
        batch: usize,
        /// What it is, and where this was found.
        what: String,
        /// How to go on.
        help: &'static str,
    },
    /// The operation is in a part of the library that was left out of this build.
    #[error("{op}: left out of this build; turn on the feature `{feature}`")]
    MissingFeature {
        /// The operation.
        op: &'static str,
        /// The Cargo feature that brings it.
        feature: &'static str,
    },
    /// A float result whose derivative exists but is not implemented met a tracked input.
    #[error("{op}: has no gradient, but an input requires one; detach() it, or compute under no_grad()")]
    NoGradient {
        /// The operation.
        op: &'static str,
    },
    /// `backward` on a tensor that no tracked tensor led to.
    #[error(
        "{op}: the tensor of shape {shape} does not require a gradient; set requires_grad on a leaf before the forward pass, outside no_grad()"
    )]
    NotTracked {
        /// The operation.
        op: &'static str,
        /// The tensor's shape.
        shape: Shape,
    },
    /// The saved values of a node were freed by an earlier backward pass.
    #[error(
        "backward: the graph of `{node}` was already freed by an earlier pass; pass retain_graph: true to the first one to run it again"
    )]
    GraphFreed {
        /// The name of the operation whose node it is.
        node: &'static str,
    },
    /// A value saved for backward was written to afterwards.
    #[error(
        "backward: a value saved by `{node}` (shape {shape}) was modified in place afterwards (version {saved}, now {now}); use a copy() of it (clone() shares the memory), or write before it is used"
    )]
    SavedValueModified {
        /// The name of the operation that saved it.
        node: &'static str,
        /// The shape of the value.
        shape: Shape,
        /// Its version when it was saved.
        saved: u64,
        /// Its version now.
        now: u64,
    },
    /// In anomaly mode, a kernel produced NaN from inputs without NaN.
    #[error("{op}: produced NaN in an output of shape {shape} although no input contains NaN{}", origin(*node, location.as_deref()))]
    Anomaly {
        /// The operation that produced it.
        op: &'static str,
        /// The shape of the output.
        shape: Shape,
        /// In a backward pass, the operation whose gradient it is part of.
        node: Option<&'static str>,
        /// The file and line of the forward call of that operation, if anomaly mode was on then.
        location: Option<String>,
    },
    /// An in-place write, outside `no_grad`, to a leaf that requires a gradient or to a view of one.
    #[error(
        "{op}: cannot write in place to a tensor of shape {shape}: it is a leaf that requires a gradient, or a view of one; do it under no_grad(), or use the operation that returns a new tensor"
    )]
    InPlaceOnTracked {
        /// The operation.
        op: &'static str,
        /// The tensor's shape.
        shape: Shape,
    },
    /// A tensor with more or fewer than one element was read as a number.
    #[error("{op}: needs a tensor of exactly one element, got shape {shape}; reduce it, or use to_vec()")]
    NotAScalar {
        /// The operation.
        op: &'static str,
        /// The tensor's shape.
        shape: Shape,
    },
    /// A value was read, or decided a shape, while a step was being recorded.
    #[error("{op} at {location}: values do not exist while a step is captured; {help}")]
    ReadInCapture {
        /// The operation that needs the value.
        op: &'static str,
        /// The line that asked for it.
        location: &'static Location<'static>,
        /// What a captured step does instead.
        help: &'static str,
    },
    /// A tensor made while a step was captured, used after it.
    #[error(
        "{op}: this tensor was made inside a captured step and has no value outside; return it from the step and read it from the launch's outputs"
    )]
    Poisoned {
        /// The operation that needs the value.
        op: &'static str,
    },
    /// A captured step would not leave its state as it found it.
    #[error("capture: the step does not leave {slot} as it found it ({change}); {help}")]
    NotAFixedPoint {
        /// The state that differs.
        slot: String,
        /// How it differs.
        change: String,
        /// How to help it.
        help: String,
    },
    /// State that a captured step works on was replaced by other state since it was recorded.
    #[error(
        "launch: {slot} is another tensor than when the step was captured; write into the tensor in place instead, or capture again"
    )]
    Rebound {
        /// The state that was replaced.
        slot: String,
    },
    /// A captured step was launched with inputs that it was not recorded for.
    #[error("launch: input {index} is {got}, but the step was captured for {expected}")]
    InputMismatch {
        /// The position of the input.
        index: usize,
        /// Shape and dtype that were given.
        got: String,
        /// Shape and dtype that were recorded.
        expected: String,
    },
    /// Recording the step again gives another list of kernels.
    #[error("verify: the step records differently now: {difference}; what changes between steps must be a tensor")]
    CaptureChanged {
        /// The first difference.
        difference: String,
    },
    /// Tensors that live on different devices met.
    #[error("{op}: tensors on different devices ({}); move one with to(device)", devices.join(", "))]
    DeviceMismatch {
        /// The operation.
        op: &'static str,
        /// The devices of its operands.
        devices: Vec<String>,
    },
    /// The device does not exist on this machine.
    #[error("device {device} is not available: {reason}")]
    DeviceUnavailable {
        /// The device that was asked for.
        device: String,
        /// Why it cannot be had.
        reason: String,
    },
    /// No memory for a buffer.
    #[error("{}", memory_message(op, shape.as_deref(), *requested, *in_use, *cap))]
    OutOfMemory {
        /// The operation; empty where no operation asked for the memory.
        op: &'static str,
        /// The shape of the tensor that needs the memory, if it is for one.
        shape: Option<Box<Shape>>,
        /// Bytes requested; `usize::MAX` where their number cannot be represented.
        requested: usize,
        /// Bytes in use by tensors.
        in_use: usize,
        /// The most that may be in use; `usize::MAX` where no cap is set.
        cap: usize,
    },
    /// A file that cannot be read or written, or holds something else than it should.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// What went wrong in a layer of a model.
    #[error("{layer}: {source}")]
    Layer {
        /// The layer's path in the model and its class: `layers.2 (Linear)`.
        layer: String,
        /// What went wrong there.
        source: Box<Error>,
    },
    /// A state dict that does not fit the module or optimizer that should load it.
    #[error("{}", state_dict::message(missing, unexpected, misshaped))]
    StateDict {
        /// Names that the module has and the state dict has not.
        missing: Vec<String>,
        /// Names that the state dict has and the module has not.
        unexpected: Vec<String>,
        /// Values that have another shape in the state dict.
        misshaped: Vec<Misshaped>,
    },
    /// A training step whose optimizer does not update parameters that require a gradient.
    #[error("{op}: the optimizer does not update {}; {help}", quoted(parameters))]
    UntrainedParameters {
        /// The operation.
        op: &'static str,
        /// The names of these parameters in the model.
        parameters: Vec<String>,
        /// What must hold, and how to get there.
        help: String,
    },
    /// A gradient that does not agree with central differences.
    #[error("{check}: output {output}, input {input}: {detail}")]
    GradCheck {
        /// `gradcheck` or `gradgradcheck`.
        check: &'static str,
        /// The output's position.
        output: usize,
        /// The input's position.
        input: usize,
        /// The element and both values.
        detail: String,
    },
}

fn list<T: ToString>(items: &[T]) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join(" and ")
}

/// Names in backquotes, separated by commas.
fn quoted(names: &[String]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// The way out for class numbers that stand for "no class", such as PyTorch's −100.
fn index_help(op: &str, index: i64) -> &'static str {
    match op {
        "cross_entropy" | "nll_loss" if index < 0 => {
            "; ignore_index leaves the samples of one class number out (PyTorch's default is -100, here there is none)"
        }
        _ => "",
    }
}

/// Where in a backward pass a NaN was produced, and by which line of the forward pass.
fn origin(node: Option<&str>, location: Option<&str>) -> String {
    match (node, location) {
        (None, _) => String::new(),
        (Some(node), Some(at)) => format!(", in the backward pass of `{node}`, which was called at {at}"),
        (Some(node), None) => {
            format!(", in the backward pass of `{node}`; turn anomaly mode on before the forward pass to see its line")
        }
    }
}

/// The text of [`Error::OutOfMemory`].
fn memory_message(op: &str, shape: Option<&Shape>, requested: usize, in_use: usize, cap: usize) -> String {
    let op = if op.is_empty() { String::new() } else { format!("{op}: ") };
    let shape = shape.map_or("a buffer".to_string(), |shape| format!("a tensor of shape {shape}"));
    let needs = match requested {
        usize::MAX => "more bytes than can be addressed".to_string(),
        bytes => readable_bytes(bytes),
    };
    let limit = match cap {
        usize::MAX => String::new(),
        cap => format!(" of at most {}", readable_bytes(cap)),
    };
    format!("{op}out of memory: {shape} needs {needs}; {}{limit} in use", readable_bytes(in_use))
}

/// A number of bytes in the unit that suits it.
fn readable_bytes(bytes: usize) -> String {
    let (unit, name) = match bytes {
        0..1024 => return format!("{bytes} bytes"),
        1024..0x10_0000 => (1024.0, "KiB"),
        0x10_0000..0x4000_0000 => (1048576.0, "MiB"),
        _ => (1073741824.0, "GiB"),
    };
    format!("{:.1} {name}", bytes as f64 / unit)
}

impl Error {
    /// An array whose number of bytes cannot be represented.
    #[cold]
    pub fn absurd_size() -> Error {
        Error::out_of_memory(usize::MAX)
    }

    /// An [`Error::OutOfMemory`] for this many bytes, of which the operation and the shape are not yet known.
    #[cold]
    pub fn out_of_memory(requested: usize) -> Error {
        Error::OutOfMemory { op: "", shape: None, requested, in_use: 0, cap: usize::MAX }
    }

    /// The operation that the error names, if it names one.
    pub fn operation(&self) -> Option<&'static str> {
        self.clone().operation_mut().map(|op| *op).filter(|op| !op.is_empty())
    }

    /// Names `op` as the operation that was refused: an operation that is composed of others reports their errors as
    /// its own. Errors that name no operation stay as they are.
    #[cold]
    pub fn set_operation(&mut self, op: &'static str) {
        if let Some(named) = self.operation_mut() {
            *named = op;
        }
    }

    /// This error, with the shape of the tensor for which there was no memory.
    #[cold]
    pub fn with_shape(mut self, of: &Shape) -> Error {
        if let Error::OutOfMemory { shape: shape @ None, .. } = &mut self {
            *shape = Some(Box::new(of.clone()));
        }
        self
    }

    fn operation_mut(&mut self) -> Option<&mut &'static str> {
        match self {
            Error::ShapeMismatch { op, .. }
            | Error::DTypeMismatch { op, .. }
            | Error::AxisOutOfRange { op, .. }
            | Error::IndexOutOfBounds { op, .. }
            | Error::InvalidArgument { op, .. }
            | Error::Singular { op, .. }
            | Error::MissingFeature { op, .. }
            | Error::NoGradient { op }
            | Error::InPlaceOnTracked { op, .. }
            | Error::NotAScalar { op, .. }
            | Error::ReadInCapture { op, .. }
            | Error::Poisoned { op }
            | Error::DeviceMismatch { op, .. }
            | Error::OutOfMemory { op, .. } => Some(op),
            // In anomaly mode the kernel is what is looked for; the others are not errors of an operation.
            _ => None,
        }
    }

    /// An [`Error::InvalidArgument`].
    pub fn invalid(op: &'static str, reason: impl Into<String>) -> Error {
        Error::InvalidArgument { op, reason: reason.into() }
    }

    /// An [`Error::ShapeMismatch`].
    pub fn shapes<'a>(op: &'static str, shapes: impl IntoIterator<Item = &'a Shape>, help: impl Into<String>) -> Error {
        Error::ShapeMismatch { op, shapes: shapes.into_iter().cloned().collect(), help: help.into() }
    }

    /// An [`Error::DTypeMismatch`].
    pub fn dtypes(op: &'static str, dtypes: impl IntoIterator<Item = DType>, help: impl Into<String>) -> Error {
        Error::DTypeMismatch { op, dtypes: dtypes.into_iter().collect(), help: help.into() }
    }
}

/// A value of a state dict that has another shape than the module's of that name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misshaped {
    /// The name of both.
    pub name: String,
    /// The shape in the file.
    pub found: Shape,
    /// The shape in the module.
    pub expected: Shape,
}

impl fmt::Display for Misshaped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} instead of {}", self.name, self.found, self.expected)
    }
}

/// The result of everything that can be refused.
pub type Result<T, E = Error> = std::result::Result<T, E>;
