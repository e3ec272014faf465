//! The trait `Module` of types with parameters. `#[derive(Module)]` implements one method, from which all others are
//! derived.

mod dyn_module;

pub(crate) use dyn_module::{
    DynModule, RoleModule, as_dyn, identity, in_value, modules_in_role, not_built, parameters_so_far, view, walk,
};

use crate::cloning::CloneScope;
use crate::parameter::{Buffer, Parameter, PathChoice, TrainingMode};
use crate::state::{IncompatibleKeys, StateDict};
use crate::state_flag::StateFlag;
use crate::tree::ModelTree;
use crate::visit::{ModuleInfo, ModulePart, Visit, Visitor, short_type_name};
use pellucid_derive::panicking_form;
use pellucid_tensor::{DType, Device, IntoDevice, Result, unwrap};
use std::any::type_name;

/// A type with parameters and buffers, which are found by visiting its fields.
///
/// Derive it; a model's computation is then a plain method, or a [`Layer`](crate::Layer) if it
/// maps one tensor to another:
///
/// ```
/// use pellucid::nn::{Layer, Linear, Module};
/// use pellucid::Tensor;
///
/// #[derive(Module)]
/// struct Classifier {
///     layers: Vec<Linear>,
///     head: Linear,
/// }
///
/// impl Classifier {
///     fn forward(&self, x: &Tensor) -> Tensor {
///         let x = self.layers.iter().fold(x.clone(), |x, layer| layer.forward(&x).relu());
///         self.head.forward(&x)
///     }
/// }
///
/// let model = Classifier { layers: vec![Linear::new(4, 8)], head: Linear::new(8, 2) };
/// let names: Vec<String> = model.named_parameters().into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["layers.0.weight", "layers.0.bias", "head.weight", "head.bias"]);
/// assert_eq!(model.forward(&Tensor::from([[0.0f32; 4]; 3])).shape().dims(), [3, 2]);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a module",
    note = "derive `Module` for your own types; a `Vec`, `Option`, array, tuple, map or `Box` of modules is a module"
)]
pub trait Module: Visit {
    /// Returns every parameter with its name (`layers.0.weight`), in the order of the fields; a shared
    /// parameter once, under its first name.
    ///
    /// # Errors
    /// [`Error::Layer`] if a [`Lazy`](crate::Lazy) layer is not built: an optimizer would miss its parameters.
    ///
    /// [`Error::Layer`]: pellucid_tensor::Error::Layer
    #[panicking_form]
    fn try_named_parameters(&self) -> Result<Vec<(String, Parameter)>> {
        as_dyn(&self).built_parameters()
    }

    /// Returns every parameter, in the order of the fields; a shared parameter once.
    ///
    /// # Errors
    /// The errors of [`try_named_parameters`](Module::try_named_parameters).
    #[panicking_form]
    fn try_parameters(&self) -> Result<Vec<Parameter>> {
        as_dyn(&self).unnamed_parameters()
    }

    /// Returns every buffer with its name, in the order of the fields; a shared buffer once.
    ///
    /// # Errors
    /// [`Error::Layer`] if a [`Lazy`](crate::Lazy) layer is not built.
    ///
    /// [`Error::Layer`]: pellucid_tensor::Error::Layer
    #[panicking_form]
    fn try_named_buffers(&self) -> Result<Vec<(String, Buffer)>> {
        as_dyn(&self).check_built("buffers")?;
        Ok(as_dyn(&self).buffers())
    }

    /// Returns every buffer, in the order of the fields; a shared buffer once.
    ///
    /// # Errors
    /// The errors of [`try_named_buffers`](Module::try_named_buffers).
    #[panicking_form]
    fn try_buffers(&self) -> Result<Vec<Buffer>> {
        as_dyn(&self).check_built("buffers")?;
        Ok(as_dyn(&self).unnamed_buffers())
    }

    /// Returns this module, named `""`, and every module in it, in the order of the fields.
    ///
    /// ```
    /// use pellucid::nn::{Linear, Module, Relu, sequential};
    /// let model = sequential![Linear::new(2, 3), Relu];
    /// let modules: Vec<String> =
    ///     model.named_modules().iter().map(|(name, part)| format!("{name}: {}", part.class())).collect();
    /// assert_eq!(modules, [": Sequential", "0: Linear", "1: Relu"]);
    /// ```
    #[doc(alias = "modules")]
    fn named_modules(&self) -> Vec<(String, ModuleInfo)> {
        as_dyn(&self).modules()
    }

    /// Returns the direct children: the modules of [`named_modules`](Module::named_modules) that are not inside another
    /// child.
    #[doc(alias = "children")]
    fn named_children(&self) -> Vec<(String, ModuleInfo)> {
        as_dyn(&self).children()
    }

    /// Returns the number of values in all parameters.
    ///
    /// # Errors
    /// The errors of [`try_named_parameters`](Module::try_named_parameters).
    #[panicking_form]
    fn try_parameter_count(&self) -> Result<usize> {
        as_dyn(&self).parameter_count()
    }

    /// Removes the gradient of every parameter.
    fn zero_grad(&self) {
        as_dyn(&self).zero_grad();
    }

    /// Freezes every parameter: no gradient is computed for it, and optimizers do not update it. To freeze a part of a
    /// model, call this method of the part.
    ///
    /// # Errors
    /// [`Error::Layer`] if a [`Lazy`](crate::Lazy) layer is not built: its parameters would be trained.
    ///
    /// [`Error::Layer`]: pellucid_tensor::Error::Layer
    #[doc(alias = "requires_grad_")]
    #[panicking_form]
    fn try_freeze(&self) -> Result<()> {
        as_dyn(&self).freeze()
    }

    /// Makes every parameter trainable again.
    ///
    /// # Errors
    /// [`Error::Layer`] if a [`Lazy`](crate::Lazy) layer is not built.
    ///
    /// [`Error::Layer`]: pellucid_tensor::Error::Layer
    #[panicking_form]
    fn try_unfreeze(&self) -> Result<()> {
        as_dyn(&self).check_built("unfreeze")?;
        as_dyn(&self).set_requires_grad(true);
        Ok(())
    }

    /// Sets every layer to training mode, in which dropout, for example, is active.
    fn train(&self) {
        as_dyn(&self).set_training(true);
    }

    /// Sets every layer to evaluation mode, in which dropout, for example, is inactive.
    fn eval(&self) {
        as_dyn(&self).set_training(false);
    }

    /// Returns true if the module has parts with a training mode, such as dropout, and all of them are in evaluation
    /// mode.
    ///
    /// ```
    /// use pellucid::nn::{Dropout, Linear, Module, sequential};
    /// let model = sequential![Linear::new(2, 3), Dropout::new(0.5)];
    /// assert!(!model.is_eval());
    /// model.eval();
    /// assert!(model.is_eval());
    /// ```
    fn is_eval(&self) -> bool {
        as_dyn(&self).is_eval()
    }

    /// Moves all parameters and buffers to `device`, as [`to_`](Module::to_) does, and returns the model. The device
    /// may be a name, such as `"gpu"`. Methods that move or convert all parameters return a `Result`, unlike those of
    /// [`Tensor`](pellucid_tensor::Tensor), since their failure depends on the machine.
    ///
    /// ```
    /// use pellucid::nn::{Linear, Module};
    /// use pellucid::Device;
    /// let model = Linear::new(2, 3).to(Device::best())?;
    /// assert!(model.parameters().iter().all(|p| p.device() == Device::best()));
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`to_`](Module::to_); [`Error::DeviceUnavailable`] for a name without a device.
    ///
    /// [`Error::DeviceUnavailable`]: pellucid_tensor::Error::DeviceUnavailable
    fn to(self, device: impl IntoDevice) -> Result<Self>
    where
        Self: Sized,
    {
        self.to_(device.into_device()?)?;
        Ok(self)
    }

    /// Moves all parameters and buffers to `device` in place, with their gradients. They stay the same tensors, so
    /// optimizers stay attached, and move their state at the next step. Parts of a model may be on different devices.
    /// The argument is a [`Device`], not a name, so that the method exists for `dyn Layer`, such as `model[1]`.
    ///
    /// ```
    /// use pellucid::nn::{Linear, Module};
    /// use pellucid::Device;
    /// let model = Linear::new(2, 3);
    /// model.to_(Device::best())?;
    /// assert!(model.parameters().iter().all(|p| p.device() == Device::best()));
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Layer`] names a [`Lazy`](crate::Lazy) layer that is not built, or the parameter or buffer that cannot
    /// be moved: [`Tensor::to_`] lists the reasons. Nothing is moved if a tensor cannot be moved in place at all, for
    /// example because it is a view. If the device fails or has no memory, some tensors may have been moved.
    ///
    /// [`Error::Layer`]: pellucid_tensor::Error::Layer
    /// [`Tensor::to_`]: pellucid_tensor::Tensor::to_
    fn to_(&self, device: Device) -> Result<()> {
        as_dyn(&self).to_(device)
    }

    /// Converts all parameters, and all buffers of a float dtype, to `dtype` in place, with their gradients. They stay
    /// the same tensors. An optimizer keeps its state in the dtype of its creation, so its next step fails; create the
    /// optimizer after the conversion.
    ///
    /// ```
    /// use pellucid::nn::{Layer, Linear, Module};
    /// use pellucid::{DType, Tensor};
    /// let model = Linear::new(2, 3);
    /// model.to_dtype_(DType::F64)?;
    /// assert_eq!(model.forward(&Tensor::from([[1.0, 2.0]])).dtype(), DType::F64);
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] if `dtype` is not a float. [`Error::Layer`] names a [`Lazy`](crate::Lazy) layer that is
    /// not built, or the parameter or buffer that cannot be converted: [`Tensor::to_dtype_`] lists the reasons.
    /// Nothing is converted if a tensor cannot be converted in place at all, for example because it is a view. If there
    /// is not enough memory, some tensors may have been converted.
    ///
    /// [`Error::DTypeMismatch`]: pellucid_tensor::Error::DTypeMismatch
    /// [`Error::Layer`]: pellucid_tensor::Error::Layer
    /// [`Tensor::to_dtype_`]: pellucid_tensor::Tensor::to_dtype_
    fn to_dtype_(&self, dtype: DType) -> Result<()> {
        as_dyn(&self).to_dtype_(dtype)
    }

    /// Converts all parameters, and all buffers of a float dtype, to `dtype`, as [`to_dtype_`](Module::to_dtype_) does,
    /// and returns the model.
    ///
    /// ```
    /// use pellucid::nn::{Linear, Module};
    /// use pellucid::DType;
    /// let model = Linear::new(2, 3).to_dtype(DType::BF16)?;
    /// assert_eq!(model.weight.dtype(), DType::BF16);
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`to_dtype_`](Module::to_dtype_).
    fn to_dtype(self, dtype: DType) -> Result<Self>
    where
        Self: Sized,
    {
        self.to_dtype_(dtype)?;
        Ok(self)
    }

    /// Returns an independent copy: parameters and buffers with the same values, which training of the original does
    /// not change, and training modes and path choices of its own.
    ///
    /// `clone()` creates the copy, and copies every parameter and buffer. Values that are shared within the
    /// model are shared within the copy. Frozen parameters stay frozen. Gradients and hooks are not copied. A plain
    /// [`Tensor`] in a field that the module skips is shared.
    ///
    /// ```
    /// use pellucid::nn::{Linear, Module, Relu, sequential};
    /// use pellucid::{no_grad, ops};
    /// let student = sequential![Linear::new(2, 8), Relu, Linear::new(8, 1)];
    /// let teacher = student.deep_copy()?;
    /// teacher.freeze();
    /// // After every step of the student: teacher ← 0.99·teacher + 0.01·student.
    /// let _off = no_grad();
    /// for (old, new) in teacher.parameters().iter().zip(student.parameters()) {
    ///     ops::copy_(old, &(old.tensor() * 0.99 + new.tensor() * 0.01))?;
    /// }
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Layer`] names a part behind an `Arc` or a reference, whose clone is the same part.
    /// [`Error::InvalidArgument`] inside a captured step, or if two parameters or buffers are views of one storage with
    /// different layouts; [`Error::OutOfMemory`].
    ///
    /// [`Tensor`]: pellucid_tensor::Tensor
    /// [`Error::Layer`]: pellucid_tensor::Error::Layer
    /// [`Error::InvalidArgument`]: pellucid_tensor::Error::InvalidArgument
    /// [`Error::OutOfMemory`]: pellucid_tensor::Error::OutOfMemory
    fn deep_copy(&self) -> Result<Self>
    where
        Self: Clone,
    {
        let scope = CloneScope::copies()?;
        let copy = self.clone();
        scope.finish()?;
        as_dyn(&self).check_separate("deep_copy", as_dyn(&&copy))?;
        Ok(copy)
    }

    /// Returns the modules as a tree, with their parameters, buffers and settings. It implements `Display`.
    ///
    /// ```
    /// use pellucid::nn::{Dropout, Linear, Module, sequential};
    /// let model = sequential![Linear::new(784, 10), Dropout::new(0.1)];
    /// let text = "\
    /// Sequential(
    ///   (0): Linear(weight: [10, 784], bias: [10])
    ///   (1): Dropout(p: 0.1)
    /// )";
    /// assert_eq!(model.tree().to_string(), text);
    /// ```
    fn tree(&self) -> ModelTree {
        as_dyn(&self).tree(short_type_name(type_name::<Self>()))
    }

    /// Returns an error if a step with this module cannot be captured.
    ///
    /// # Errors
    /// [`Error::Layer`] names the first part with `#[module(no_capture = "..")]`, and its reason.
    ///
    /// [`Error::Layer`]: pellucid_tensor::Error::Layer
    fn supports_capture(&self) -> Result<()> {
        as_dyn(&self).supports_capture()
    }

    /// Returns copies of all parameters and buffers by name; later training does not change them. A shared value is
    /// included once, under its first name. A [non-persistent buffer](Buffer::non_persistent) is left out.
    ///
    /// # Errors
    /// [`Error::Layer`] for a [`Lazy`](crate::Lazy) layer that is not built, [`Error::OutOfMemory`], and
    /// [`Error::ReadInCapture`] inside a captured step, where values do not exist.
    ///
    /// [`Error::Layer`]: pellucid_tensor::Error::Layer
    /// [`Error::OutOfMemory`]: pellucid_tensor::Error::OutOfMemory
    /// [`Error::ReadInCapture`]: pellucid_tensor::Error::ReadInCapture
    #[panicking_form]
    fn try_state_dict(&self) -> Result<StateDict> {
        as_dyn(&self).state_dict()
    }

    /// Loads all parameters and buffers from a state dict in place: optimizers and other holders of the parameters see
    /// the new values. Values are converted to the dtype of the module. The state dict may contain a shared value under
    /// any of its names, or several.
    ///
    /// # Errors
    /// [`Error::StateDict`] if a name is missing or unexpected, or a shape differs; [`Error::InvalidArgument`] if the
    /// state dict has different values for one shared parameter or buffer; [`Error::Layer`] names a
    /// [`Lazy`](crate::Lazy) layer that is not built. On error nothing is changed.
    ///
    /// [`Error::StateDict`]: pellucid_tensor::Error::StateDict
    /// [`Error::InvalidArgument`]: pellucid_tensor::Error::InvalidArgument
    /// [`Error::Layer`]: pellucid_tensor::Error::Layer
    fn load_state_dict(&self, state: &StateDict) -> Result<()> {
        as_dyn(&self).load_state_dict(state)
    }

    /// Loads the values whose names both the module and the state dict have, as
    /// [`load_state_dict`](Module::load_state_dict) does. Returns the names that only one of them has.
    ///
    /// # Errors
    /// [`Error::StateDict`] if a shape differs, [`Error::InvalidArgument`] if the state dict has different values for
    /// one shared parameter or buffer; [`Error::Layer`] names a [`Lazy`](crate::Lazy) layer that is not built. On error
    /// nothing is changed.
    ///
    /// [`Error::StateDict`]: pellucid_tensor::Error::StateDict
    /// [`Error::InvalidArgument`]: pellucid_tensor::Error::InvalidArgument
    /// [`Error::Layer`]: pellucid_tensor::Error::Layer
    #[doc(alias = "strict")]
    fn load_matching(&self, state: &StateDict) -> Result<IncompatibleKeys> {
        as_dyn(&self).load_matching(state)
    }
}

impl Visit for Parameter {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.part(ModulePart::Parameter(self));
    }
}

impl Visit for Buffer {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.part(ModulePart::Buffer(self));
    }
}

impl Visit for TrainingMode {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.part(ModulePart::TrainingMode(self));
    }
}

impl Visit for PathChoice {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.part(ModulePart::PathChoice(self));
    }
}

impl Visit for StateFlag {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.part(ModulePart::StateFlag(self));
    }
}

/// Implements `Display` by [`Module::tree`].
macro_rules! display_as_tree {
    ($([$($generic:tt)*] $module:ty;)*) => {$(
        impl<$($generic)*> std::fmt::Display for $module {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(&$crate::Module::tree(self), f)
            }
        }
    )*};
}
pub(crate) use display_as_tree;
