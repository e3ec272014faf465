//! The values that a module owns: trained parameters, buffers, the training mode, and choices of a path.

use crate::cloning::{clone_flag, clone_tensor};
use crate::temporary::with_temporary;
use pellucid_derive::panicking_form;
use pellucid_tensor::ops::TensorOrScalar;
use pellucid_tensor::{Device, HostFlag, Result, Tensor, unwrap};
use std::cell::Cell;
use std::fmt;
use std::ops::Deref;

/// A tensor that training changes: a leaf that requires a gradient.
///
/// It dereferences to its [`Tensor`], and `&parameter` is an operand of `+ - * / %`. Clones are handles of the same
/// parameter, so two layers may share it (tied weights); a module then counts it once, under its first name. In
/// [`deep_copy`](crate::Module::deep_copy) and [`functional_call`](crate::functional_call), clones are other tensors.
/// [`requires_grad_(false)`](Parameter::requires_grad_) freezes it; `set_requires_grad(false)` also does, and returns
/// a `Result`.
///
/// ```
/// use pellucid::nn::Parameter;
/// use pellucid::Tensor;
/// let scale = Parameter::new(Tensor::from([2.0f32, 3.0]));
/// let x = Tensor::from([1.0f32, -1.0]);
/// assert_eq!((&x * &scale).to_vec::<f32>(), [2.0, -3.0]);
/// assert_eq!((1.0 + &scale).to_vec::<f32>(), [3.0, 4.0]);
/// ```
///
/// [`Tensor::to`] and [`Tensor::to_dtype`] return tensors with the history of the parameter. [`Tensor::to_`] moves it
/// in place, as [`Module::to_`](crate::Module::to_) of its model does.
///
/// ```
/// use pellucid::nn::Parameter;
/// use pellucid::{DType, Device, Tensor};
/// let scale = Parameter::new(Tensor::from([2.0f32]));
/// let half: Tensor = scale.to_dtype(DType::F16);
/// scale.to_(Device::best());
/// assert!(half.requires_grad() && scale.device() == Device::best());
/// ```
#[derive(Debug)]
pub struct Parameter(Tensor);

impl Parameter {
    /// Creates a parameter with these values, detached from their computation.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`](pellucid_tensor::Error::DTypeMismatch) if the dtype is not a float.
    #[panicking_form]
    pub fn try_new(values: Tensor) -> Result<Parameter> {
        let values = values.detach().pinned();
        values.set_requires_grad(true)?;
        Ok(Parameter(values))
    }

    /// Returns the tensor.
    pub fn tensor(&self) -> &Tensor {
        &self.0
    }

    /// Sets whether training changes the parameter: `false` freezes it. Returns the parameter.
    /// [`Tensor::set_requires_grad`] does the same and returns a `Result`.
    ///
    /// ```
    /// use pellucid::nn::{Layer, Linear};
    /// use pellucid::{DType, Tensor};
    /// let layer = Linear::new(2, 3);
    /// layer.weight.requires_grad_(false);
    /// layer.forward(&Tensor::ones([1, 2], DType::F32)).sum(..).backward();
    /// assert!(layer.weight.grad().is_none());
    /// ```
    ///
    /// # Panics
    /// Panics if [`Tensor::set_requires_grad`] returns an error.
    #[track_caller]
    pub fn requires_grad_(&self, required: bool) -> &Parameter {
        unwrap(self.0.set_requires_grad(required));
        self
    }
}

impl Clone for Parameter {
    fn clone(&self) -> Parameter {
        Parameter(clone_tensor(&self.0))
    }
}

impl fmt::Display for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Deref for Parameter {
    type Target = Tensor;
    fn deref(&self) -> &Tensor {
        &self.0
    }
}

impl<'a> From<&'a Parameter> for TensorOrScalar<'a> {
    fn from(parameter: &'a Parameter) -> TensorOrScalar<'a> {
        TensorOrScalar::Borrowed(&parameter.0)
    }
}

/// A tensor that belongs to a module's state but is not trained: running statistics, a position
/// table, an optimizer's momentum. It requires no gradient and is written in place.
///
/// It dereferences to its [`Tensor`], and `&buffer` is an operand of `+ - * / %`. Clones are handles of the same
/// buffer, except in [`deep_copy`](crate::Module::deep_copy) and [`functional_call`](crate::functional_call).
#[doc(alias = "register_buffer")]
#[derive(Debug)]
pub struct Buffer {
    tensor: Tensor,
    persistent: bool,
}

impl Buffer {
    /// Creates a buffer with these values, of any dtype.
    pub fn new(values: Tensor) -> Buffer {
        Buffer { tensor: values.detach().pinned(), persistent: true }
    }

    /// Creates a buffer that can be recomputed, such as a mask: state dicts omit it.
    ///
    /// ```
    /// use pellucid::nn::{Buffer, Linear, Module, causal_mask};
    ///
    /// #[derive(Module)]
    /// struct Head {
    ///     output: Linear,
    ///     mask: Buffer,
    /// }
    ///
    /// let head = Head { output: Linear::new(2, 3), mask: Buffer::non_persistent(causal_mask(4)) };
    /// assert_eq!(head.named_buffers()[0].0, "mask");
    /// assert_eq!(head.state_dict().keys().collect::<Vec<_>>(), ["output.bias", "output.weight"]);
    /// ```
    pub fn non_persistent(values: Tensor) -> Buffer {
        Buffer { persistent: false, ..Buffer::new(values) }
    }

    /// Whether state dicts include the buffer.
    pub fn is_persistent(&self) -> bool {
        self.persistent
    }

    /// Returns the tensor.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Buffer {
        Buffer { tensor: clone_tensor(&self.tensor), persistent: self.persistent }
    }
}

impl fmt::Display for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tensor.fmt(f)
    }
}

impl Deref for Buffer {
    type Target = Tensor;
    fn deref(&self) -> &Tensor {
        &self.tensor
    }
}

impl<'a> From<&'a Buffer> for TensorOrScalar<'a> {
    fn from(buffer: &'a Buffer) -> TensorOrScalar<'a> {
        TensorOrScalar::Borrowed(&buffer.tensor)
    }
}

macro_rules! forward_operators {
    ($($trait:ident $method:ident;)*) => {$(
        forward_operators!(@with_tensors $trait $method Parameter);
        forward_operators!(@with_tensors $trait $method Buffer);
        forward_operators!(@form $trait $method: &Parameter, &Buffer, |a, b| (a.tensor(), b.tensor()));
        forward_operators!(@form $trait $method: &Buffer, &Parameter, |a, b| (a.tensor(), b.tensor()));
    )*};
    (@with_tensors $trait:ident $method:ident $owner:ident) => {
        forward_operators!(@form $trait $method: &$owner, &$owner, |a, b| (a.tensor(), b.tensor()));
        forward_operators!(@form $trait $method: &$owner, &Tensor, |a, b| (a.tensor(), b));
        forward_operators!(@form $trait $method: &$owner, Tensor, |a, b| (a.tensor(), b));
        forward_operators!(@form $trait $method: &Tensor, &$owner, |a, b| (a, b.tensor()));
        forward_operators!(@form $trait $method: Tensor, &$owner, |a, b| (a, b.tensor()));
        forward_operators!(@with_numbers $trait $method $owner, f64 i64 bool);
    };
    (@with_numbers $trait:ident $method:ident $owner:ident, $($number:ty)*) => {$(
        forward_operators!(@form $trait $method: &$owner, $number, |a, b| (a.tensor(), b));
        forward_operators!(@form $trait $method: $number, &$owner, |a, b| (a, b.tensor()));
    )*};
    (@form $trait:ident $method:ident: $left:ty, $right:ty, |$a:ident, $b:ident| $operands:expr) => {
        impl std::ops::$trait<$right> for $left {
            type Output = Tensor;
            #[inline]
            #[track_caller]
            fn $method(self, $b: $right) -> Tensor {
                let $a = self;
                let (left, right) = $operands;
                std::ops::$trait::$method(left, right)
            }
        }
    };
}

// The compiler does not dereference the operands of operators.
forward_operators! {
    Add add;
    Sub sub;
    Mul mul;
    Div div;
    Rem rem;
}

macro_rules! forward_to_tensor {
    ($($owner:ident)*) => {$(
        impl std::ops::Neg for &$owner {
            type Output = Tensor;
            #[inline]
            #[track_caller]
            fn neg(self) -> Tensor {
                -self.tensor()
            }
        }

        impl AsRef<Tensor> for $owner {
            #[inline]
            fn as_ref(&self) -> &Tensor {
                self.tensor()
            }
        }
    )*};
}

forward_to_tensor!(Parameter Buffer);

/// The mode of a module: training, the initial mode, or evaluation. A layer whose behaviour depends on the mode holds a
/// `TrainingMode`; [`Module::train`](crate::Module::train) and [`Module::eval`](crate::Module::eval) set it.
///
/// A captured step has one recording for each mode in which it runs. A clone has a separate mode, except in
/// [`functional_call`](crate::functional_call).
#[derive(Debug)]
pub struct TrainingMode(HostFlag);

impl Clone for TrainingMode {
    fn clone(&self) -> TrainingMode {
        TrainingMode(clone_flag(&self.0))
    }
}

impl TrainingMode {
    /// Creates a mode that is set to training.
    pub fn new() -> TrainingMode {
        TrainingMode(HostFlag::new(1))
    }

    /// Returns true in training, false in evaluation.
    pub fn get(&self) -> bool {
        !EVALUATES.get() && self.own()
    }

    /// Returns the mode that was set, even inside [`with_evaluation_mode`].
    pub(crate) fn own(&self) -> bool {
        self.0.get() == 1
    }

    /// Sets the mode.
    pub fn set(&self, training: bool) {
        self.replace(training);
    }

    /// Sets the mode and returns the previous one.
    pub fn replace(&self, training: bool) -> bool {
        self.0.replace(usize::from(training)) == 1
    }
}

thread_local! {
    /// Whether all modules are in evaluation mode on this thread, regardless of their own mode.
    static EVALUATES: Cell<bool> = const { Cell::new(false) };
}

/// Calls `f` with all modules in evaluation mode on this thread. Their own modes stay, because another thread may be
/// training the same model.
///
/// ```
/// use pellucid::nn::{Dropout, Layer, with_evaluation_mode};
/// use pellucid::{DType, Tensor};
/// let dropout = Dropout::new(0.5);
/// let y = with_evaluation_mode(|| dropout.forward(&Tensor::ones([4], DType::F32)));
/// assert_eq!(y.to_vec::<f32>(), [1.0; 4]);
/// ```
pub fn with_evaluation_mode<R>(f: impl FnOnce() -> R) -> R {
    with_temporary(true, |value| EVALUATES.replace(value), f)
}

/// Returns the device of the first parameter, or the CPU if there is none.
pub(crate) fn first_device<'a>(parameters: impl IntoIterator<Item = &'a Parameter>) -> Device {
    parameters.into_iter().next().map_or(Device::cpu(), |parameter| parameter.device())
}

impl Default for TrainingMode {
    fn default() -> TrainingMode {
        TrainingMode::new()
    }
}

/// The path that a module with several paths takes: a host value that is set between calls, never computed from
/// tensors.
///
/// A captured step has one recording for each path that it runs.
/// [`paths::path_of`](crate::paths::path_of) returns all choices of a model. A clone has a choice of its
/// own, except in [`functional_call`](crate::functional_call).
#[derive(Debug)]
pub struct PathChoice(HostFlag);

impl Clone for PathChoice {
    fn clone(&self) -> PathChoice {
        PathChoice(clone_flag(&self.0))
    }
}

impl PathChoice {
    /// Creates a choice that is set to this path.
    pub fn new(path: usize) -> PathChoice {
        PathChoice(HostFlag::new(path))
    }

    /// Returns the path.
    pub fn get(&self) -> usize {
        self.0.get()
    }

    /// Selects another path.
    pub fn set(&self, path: usize) {
        self.0.set(path);
    }
}
