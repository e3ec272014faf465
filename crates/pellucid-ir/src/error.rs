//! The error type of all operations.
//!
//! A message names the operation, the relevant shapes and dtypes, and how to correct the call. Unless its documentation
//! says otherwise, an operation that returns an error has changed nothing.

mod file;
mod help;
mod state_dict;

use crate::lock;
use help::{axis_help, domain_help, dtypes_are, index_help, list, memory_message, origin, quoted};

use crate::dtype::DType;
use crate::shape::Shape;
use std::fmt;
use std::panic::Location;
use std::sync::{Mutex, MutexGuard};

/// The reason why an operation failed.
///
/// `Debug` prints the message, as `Display` does: `unwrap()` and a `main` that returns [`Result`] print errors with
/// `Debug`.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The shapes of the operands are incompatible.
    #[error("{op}: incompatible shapes {}: {help}", list(shapes))]
    ShapeMismatch {
        /// The operation.
        op: &'static str,
        /// The shapes of its operands.
        shapes: Vec<Shape>,
        /// The requirement, and a call that satisfies it.
        help: String,
    },
    /// The operation is not defined for these dtypes.
    #[error("{op}: {} not supported: {help}", dtypes_are(dtypes))]
    DTypeMismatch {
        /// The operation.
        op: &'static str,
        /// The dtypes of its operands.
        dtypes: Vec<DType>,
        /// The supported dtypes, and how to convert.
        help: String,
    },
    /// The tensor does not have the requested axis.
    #[error("{op}: axis {axis} is out of range for shape {shape} of rank {}; {}", shape.rank(), axis_help(op, shape.rank()))]
    AxisOutOfRange {
        /// The operation.
        op: &'static str,
        /// The requested axis.
        axis: isize,
        /// The tensor's shape.
        shape: Shape,
    },
    /// An index is outside the length of its axis.
    #[error("{op}: index {index} is out of bounds for axis {axis} of length {len}{}", index_help(op, *index, *len))]
    IndexOutOfBounds {
        /// The operation.
        op: &'static str,
        /// The index that the caller passed.
        index: i64,
        /// The axis to which the index applies.
        axis: usize,
        /// The axis's length.
        len: usize,
    },
    /// An argument has a value for which the operation is not defined.
    #[error("{op}: {reason}")]
    InvalidArgument {
        /// The operation.
        op: &'static str,
        /// A description of the invalid argument and of the valid values.
        reason: String,
    },
    /// A matrix is singular or not positive definite.
    #[error("{op}: matrix {batch} of the batch is {what}{help}")]
    Singular {
        /// The operation.
        op: &'static str,
        /// The index of the first such matrix, in row-major order over the batch axes; 0 if there are no batch axes.
        batch: usize,
        /// Why the matrix was rejected, with the pivot, minor or block: "singular (pivot 3 of its LU factorization is
        /// 0)".
        what: String,
        /// A remedy.
        help: &'static str,
    },
    /// The iteration that computes eigenvalues or singular values has not converged within its limit of steps.
    #[error(
        "{op}: the iteration for matrix {batch} of the batch has not converged; scale its rows and columns to similar magnitudes, or use to_dtype() to compute in f64"
    )]
    NotConverged {
        /// The operation.
        op: &'static str,
        /// The index of the first matrix without convergence, in row-major order over the batch axes; 0 if there are no
        /// batch axes.
        batch: usize,
    },
    /// The operation needs a Cargo feature that is not enabled.
    #[error("{op}: not compiled into this build; enable the Cargo feature `{feature}`")]
    MissingFeature {
        /// The operation.
        op: &'static str,
        /// The Cargo feature that contains the operation.
        feature: &'static str,
    },
    /// The derivative of the operation is not implemented, but an input requires a gradient.
    #[error(
        "{op}: the operation has no gradient, but an input requires one; detach() the input, or compute under no_grad()"
    )]
    NoGradient {
        /// The operation.
        op: &'static str,
    },
    /// A gradient of, or with respect to, a tensor was requested, but the tensor depends on no tensor that requires a
    /// gradient.
    #[error("{op}: {what} of shape {shape} does not require a gradient; {help}")]
    NotTracked {
        /// The operation.
        op: &'static str,
        /// The role of the tensor in the call, for example `output 1`.
        what: Box<str>,
        /// The tensor's shape.
        shape: Shape,
        /// What to do instead.
        help: &'static str,
    },
    /// A gradient was requested with respect to a tensor that no output depends on.
    #[error(
        "{op}: input {input} of shape {shape} was not used to compute the outputs, so they have no gradient with respect to it; compute the outputs from this tensor (not from a copy of it), or set allow_unused to get zeros"
    )]
    UnusedInput {
        /// The operation.
        op: &'static str,
        /// The index of the input.
        input: usize,
        /// The input's shape.
        shape: Shape,
    },
    /// The saved values of a node were freed by an earlier backward pass.
    #[error(
        "backward: the graph of `{node}` was already freed by an earlier pass; pass retain_graph: true to the earlier pass to run the graph again"
    )]
    GraphFreed {
        /// The name of the operation that created the node.
        node: &'static str,
    },
    /// A value that was saved for the backward pass was overwritten afterwards.
    #[error(
        "backward: a value saved by `{node}` (shape {shape}) was modified in place afterwards (version {saved}, now {now}); modify the tensor before `{node}` reads it, or use a copy() of it (clone() shares the memory)"
    )]
    SavedValueModified {
        /// The name of the operation that saved the value.
        node: &'static str,
        /// The shape of the value.
        shape: Shape,
        /// The version of the storage when the value was saved.
        saved: u64,
        /// The current version of the storage.
        now: u64,
    },
    /// In anomaly mode, a kernel produced NaN from inputs without NaN.
    #[error("{op}: produced NaN in an output of shape {shape} although no input contains NaN{}; {}", origin(*node, location.as_deref()), domain_help(op, *node))]
    Anomaly {
        /// The operation whose kernel produced NaN.
        op: &'static str,
        /// The shape of the output.
        shape: Shape,
        /// In a backward pass, the operation whose gradient contains the NaN.
        node: Option<&'static str>,
        /// The file and line of the forward call of `node`, if anomaly mode was on in the forward pass.
        location: Option<String>,
    },
    /// An in-place write, outside `no_grad`, to a leaf that requires a gradient or to a view of one.
    #[error(
        "{op}: cannot write in place to a tensor of shape {shape}: it is a leaf that requires a gradient, or a view of one; write under no_grad(), or use the operation that returns a new tensor"
    )]
    InPlaceOnTracked {
        /// The operation.
        op: &'static str,
        /// The tensor's shape.
        shape: Shape,
    },
    /// A tensor that does not have exactly one element was read as a number.
    #[error("{op}: the tensor must have exactly one element, got shape {shape}; {help}")]
    NotAScalar {
        /// The operation.
        op: &'static str,
        /// The tensor's shape.
        shape: Shape,
        /// What to do instead.
        help: &'static str,
    },
    /// A value was read, or a shape depended on a value, while a step was captured.
    #[error("{op} at {location}: values do not exist while a step is captured; {help}")]
    ReadInCapture {
        /// The operation that needs the value.
        op: &'static str,
        /// The source line of the operation.
        location: &'static Location<'static>,
        /// The alternative that a captured step can use.
        help: &'static str,
    },
    /// A tensor that was created inside a captured step was used outside it.
    #[error(
        "{op}: this tensor was created inside a captured step and has no value outside the step; return it from the step and read it from the launch's outputs, or copy_() it into a tensor that was created before the step"
    )]
    Poisoned {
        /// The operation that needs the value.
        op: &'static str,
    },
    /// The kernel that computes the tensor failed, or did not run because an earlier kernel failed. The call that found
    /// the failure has returned its error.
    #[error(
        "{op}: the tensor has no values: its kernel failed or was skipped, and an earlier call has returned the error; \
         compute it again"
    )]
    NotComputed {
        /// The operation that needs the value.
        op: &'static str,
    },
    /// A captured step changes a property of its state, such as the shape or the identity of a tensor. A second launch
    /// is therefore impossible.
    #[error("capture: the step changes the state of {slot} ({change}); {help}")]
    NotAFixedPoint {
        /// The name of the state that the step changes.
        slot: String,
        /// The difference between the state before and after the step.
        change: String,
        /// How to correct the step.
        help: String,
    },
    /// A state tensor of a captured step was replaced by another tensor since the capture.
    #[error(
        "launch: {slot} was replaced by another tensor since the step was captured; write into the tensor in place instead, or capture again"
    )]
    Rebound {
        /// The name of the state that was replaced.
        slot: String,
    },
    /// A captured step was launched with a different number of inputs than it was captured with, or with an input on a
    /// different device.
    #[error(
        "launch: input {index} is {got}; the step was captured for {expected}; pass inputs like those passed to capture()"
    )]
    InputMismatch {
        /// The index of the input.
        index: usize,
        /// The property of the input that does not match.
        got: String,
        /// The same property in the capture.
        expected: String,
    },
    /// A second capture of the step recorded a different list of kernels.
    #[error(
        "verify: a second capture of the step differs: {difference}; pass values that change between steps as tensors, and register or remove hooks before the capture"
    )]
    CaptureChanged {
        /// The first difference.
        difference: String,
    },
    /// The operands are on different devices.
    #[error("{op}: tensors on different devices ({}); move one with to(device)", devices.join(", "))]
    DeviceMismatch {
        /// The operation.
        op: &'static str,
        /// The devices of its operands.
        devices: Vec<String>,
    },
    /// The device does not exist on this machine.
    #[error("device {device:?} is not available: {reason}")]
    DeviceUnavailable {
        /// The requested device.
        device: String,
        /// The reason why it is not available.
        reason: String,
    },
    /// A buffer could not be allocated.
    #[error("{}", memory_message(op, shape.as_deref(), *requested, *in_use, *cap))]
    OutOfMemory {
        /// The operation; empty if the memory is not for an operation.
        op: &'static str,
        /// The shape of the tensor, if the memory is for a tensor.
        shape: Option<Box<Shape>>,
        /// The number of bytes requested; `usize::MAX` if it cannot be represented, 0 if the device does not tell it.
        requested: usize,
        /// The number of bytes that tensors use.
        in_use: usize,
        /// The limit of the bytes in use or, if the request exceeds the largest buffer of the device, the size of that
        /// buffer; `usize::MAX` means no limit.
        cap: usize,
    },
    /// A file cannot be read or written, or has invalid contents.
    #[error("{op}: {path}: {reason}")]
    File {
        /// The operation.
        op: &'static str,
        /// The file.
        path: String,
        /// A description of the error.
        reason: String,
    },
    /// A sample of a data set could not be computed.
    #[error("sample {index}{}: {source}", help::in_parentheses(location.as_deref()))]
    Sample {
        /// The index of the sample in the data set of the loader.
        index: usize,
        /// The location that the data set reports for the sample: a path, or its index in an underlying data set.
        location: Option<String>,
        /// The error of the sample.
        source: Box<Error>,
    },
    /// A training step failed. Parameters and optimizer are as before the step, unless the error of the step says
    /// otherwise.
    #[error("step {step} (batch {batch} of epoch {epoch}{}): {source}", help::samples(*samples))]
    Step {
        /// The number of the step, counted from 1.
        step: usize,
        /// The number of the epoch, counted from 1.
        epoch: usize,
        /// The number of the batch in the epoch, counted from 1.
        batch: usize,
        /// The number of samples of the batch; 0 if the batch could not be read.
        samples: usize,
        /// The error of the step.
        source: Box<Error>,
    },
    /// A batch of an evaluation failed.
    #[error("evaluation (batch {batch}{}): {source}", help::samples(*samples))]
    Evaluation {
        /// The number of the batch in the evaluation, counted from 1.
        batch: usize,
        /// The number of samples of the batch; 0 if the batch could not be read.
        samples: usize,
        /// The error of the batch.
        source: Box<Error>,
    },
    /// An error in a layer of a model.
    #[error("{layer}: {source}")]
    Layer {
        /// The layer's path in the model and the name of the layer's type: `layers.2 (Linear)`.
        layer: String,
        /// The error of the layer.
        source: Box<Error>,
    },
    /// A state dict does not fit the module or optimizer that loads or uses it.
    #[error("{}", state_dict::message(op, missing, unexpected, wrong_shapes))]
    StateDict {
        /// The operation.
        op: &'static str,
        /// Names in the module that are missing in the state dict.
        missing: Vec<String>,
        /// Names in the state dict that are missing in the module.
        unexpected: Vec<String>,
        /// Values whose shapes in the state dict and in the module differ.
        wrong_shapes: Vec<WrongShape>,
    },
    /// A part of a training checkpoint cannot be saved or does not fit the checkpoint that is loaded.
    #[error("checkpoint{}: part `{part}`: {source}", help::after_space(path.as_deref()))]
    Checkpoint {
        /// The file, if the state was read from a file.
        path: Option<String>,
        /// The name of the part, such as `model`.
        part: String,
        /// The error of the part.
        source: Box<Error>,
    },
    /// The optimizer of a training step does not update all parameters that require a gradient.
    #[error("{op}: the optimizer does not update {}; {help}", quoted(parameters))]
    UntrainedParameters {
        /// The operation.
        op: &'static str,
        /// The names of the parameters that the optimizer does not update.
        parameters: Vec<String>,
        /// The requirement, and a call that satisfies it.
        help: String,
    },
    /// A gradient does not agree with central differences.
    #[error("{check}: output {output}, input {input}: {detail}")]
    GradCheck {
        /// `gradcheck` or `gradgradcheck`.
        check: &'static str,
        /// The index of the output.
        output: usize,
        /// The index of the input.
        input: usize,
        /// The element whose gradient differs, its gradient, and the central difference.
        detail: String,
    },
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Returns true if a text contains a call, such as `to_dtype()`.
fn names_a_call(text: &str) -> bool {
    text.match_indices('(').any(|(at, _)| text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_'))
}

/// Returns the interned copies of the operation names that [`Error::keep_operation`] has fixed.
/// [`Error::set_operation`] does not replace these copies.
fn kept_operations() -> MutexGuard<'static, Vec<&'static str>> {
    static KEPT: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
    lock(&KEPT)
}

impl Error {
    /// Creates an [`Error::OutOfMemory`] for an array whose number of bytes cannot be represented.
    #[cold]
    pub fn size_overflow() -> Error {
        Error::out_of_memory(usize::MAX)
    }

    /// Creates an [`Error::OutOfMemory`] for `requested` bytes, without an operation or shape. 0 stands for an unknown
    /// number: a device has no memory left to run a command.
    #[cold]
    pub fn out_of_memory(requested: usize) -> Error {
        Error::OutOfMemory { op: "", shape: None, requested, in_use: 0, cap: usize::MAX }
    }

    /// Creates an [`Error::InputMismatch`] for the launch of a step that was captured with `expected` inputs but
    /// receives `given` inputs.
    #[cold]
    pub fn wrong_number_of_inputs(given: usize, expected: usize) -> Error {
        let got = if given < expected { "missing" } else { "one too many" };
        let plural = if expected == 1 { "" } else { "s" };
        let expected_inputs = format!("{expected} input{plural}");
        Error::InputMismatch { index: given.min(expected), got: got.into(), expected: expected_inputs }
    }

    /// Returns the underlying error, without the context in which it occurred: the layer of a model, the part of a
    /// checkpoint, the sample of a data set, the training step or the batch of an evaluation.
    ///
    /// ```
    /// # extern crate pellucid_ir as pellucid;
    /// use pellucid::Error;
    /// let inner = Error::invalid("dropout", "p must be in [0, 1], got 2");
    /// let error = Error::Layer { layer: "0 (Dropout)".into(), source: Box::new(inner.clone()) };
    /// assert!(matches!(error.root(), Error::InvalidArgument { op: "dropout", .. }));
    /// assert_eq!(inner.root(), &inner);
    /// ```
    pub fn root(&self) -> &Error {
        match self {
            Error::Layer { source, .. }
            | Error::Checkpoint { source, .. }
            | Error::Sample { source, .. }
            | Error::Step { source, .. }
            | Error::Evaluation { source, .. } => source.root(),
            other => other,
        }
    }

    /// Returns the operation that the error names, if there is one.
    pub fn operation(&self) -> Option<&'static str> {
        self.clone().operation_mut().map(|op| *op).filter(|op| !op.is_empty())
    }

    /// Sets the operation that the error names to `op`. A composite operation uses it to report the errors of its parts
    /// as its own. Errors without an operation, and errors whose operation is [fixed](Self::keep_operation), are
    /// unchanged.
    #[cold]
    pub fn set_operation(&mut self, op: &'static str) {
        if let Some(named) = self.operation_mut()
            && !kept_operations().iter().any(|kept| std::ptr::eq(*kept, *named))
        {
            *named = op;
        }
    }

    /// Fixes the operation that the error names: [`set_operation`](Self::set_operation) no longer changes it. A
    /// deferred kernel may fail in the call of another operation, which must not replace the name.
    #[cold]
    pub fn keep_operation(&mut self) {
        if let Some(named) = self.operation_mut()
            && !named.is_empty()
        {
            let mut kept = kept_operations();
            let known = kept.iter().copied().find(|kept| kept == named);
            *named = known.unwrap_or_else(|| {
                kept.push(Box::leak(Box::from(*named)));
                kept[kept.len() - 1]
            });
        }
    }

    /// Sets the location of an [`Error::ReadInCapture`]. Operations set it to their caller, because the read itself is
    /// in library code.
    #[cold]
    pub fn set_location(&mut self, caller: &'static Location<'static>) {
        if let Error::ReadInCapture { location, .. } = self {
            *location = caller;
        }
    }

    /// Adds the shape of the tensor to an [`Error::OutOfMemory`] that has none. A length above `isize::MAX` would be
    /// printed as a negative number, so such a shape is left out.
    #[cold]
    pub fn with_shape(mut self, of: &Shape) -> Error {
        if let Error::OutOfMemory { shape: shape @ None, .. } = &mut self
            && !of.has_negative_length()
        {
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
            | Error::NotConverged { op, .. }
            | Error::MissingFeature { op, .. }
            | Error::NoGradient { op }
            | Error::InPlaceOnTracked { op, .. }
            | Error::NotAScalar { op, .. }
            | Error::ReadInCapture { op, .. }
            | Error::Poisoned { op }
            | Error::NotComputed { op }
            | Error::DeviceMismatch { op, .. }
            | Error::StateDict { op, .. }
            | Error::File { op, .. }
            | Error::OutOfMemory { op, .. } => Some(op),
            // The error of an anomaly must keep the name of its kernel. The other errors have no operation that a
            // caller may replace.
            _ => None,
        }
    }

    /// Creates an [`Error::InvalidArgument`].
    pub fn invalid(op: &'static str, reason: impl Into<String>) -> Error {
        Error::InvalidArgument { op, reason: reason.into() }
    }

    /// Creates an [`Error::ShapeMismatch`].
    pub fn shapes<'a>(op: &'static str, shapes: impl IntoIterator<Item = &'a Shape>, help: impl Into<String>) -> Error {
        Error::ShapeMismatch { op, shapes: shapes.into_iter().cloned().collect(), help: help.into() }
    }

    /// Creates an [`Error::DTypeMismatch`] for tensors. If `help` names no call, the remedy `to_dtype()` is appended.
    pub fn dtypes(op: &'static str, dtypes: impl IntoIterator<Item = DType>, help: impl Into<String>) -> Error {
        let mut help = help.into();
        if !names_a_call(&help) {
            help.push_str("; use to_dtype()");
        }
        Error::DTypeMismatch { op, dtypes: dtypes.into_iter().collect(), help }
    }

    /// Creates an [`Error::DTypeMismatch`] for a dtype that is an argument. No tensor is involved, so the help does not
    /// suggest `to_dtype()`.
    pub fn dtype_argument(op: &'static str, dtype: DType, help: impl Into<String>) -> Error {
        Error::DTypeMismatch { op, dtypes: vec![dtype], help: help.into() }
    }
}

/// A value of a state dict whose shape differs from the shape in the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongShape {
    /// The name of the value.
    pub name: String,
    /// The shape in the state dict.
    pub found: Shape,
    /// The shape in the module.
    pub expected: Shape,
}

impl fmt::Display for WrongShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} instead of {}", self.name, self.found, self.expected)
    }
}

/// The result type of fallible operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;
