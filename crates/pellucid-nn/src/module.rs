//! The trait `Module` of types with parameters. The derive implements one method; all others follow from it.

use crate::cloning::CloneScope;
use crate::parameter::{Buffer, Parameter, PathChoice, TrainingMode};
use crate::state::{self, IncompatibleKeys, StateDict, StateLoad, Stateful};
use crate::tree::ModelTree;
use crate::visit::{ModulePart, PartInfo, Visitor, short_type_name};
use pellucid_derive::panicking_form;
use pellucid_tensor::{DType, Device, Error, IntoDevice, Layout, Result, Tensor, unwrap};
use std::any::type_name;
use std::collections::HashSet;
use std::sync::Arc;

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
    note = "a field of a module is a `Parameter`, a `Buffer`, a module, a `Vec`, `Option`, array, tuple, map or `Box` of these, or a plain number",
    note = "derive `Module` for your own types, and mark fields without parameters `#[module(skip)]`"
)]
pub trait Module: Send + Sync {
    /// Calls the visitor with every module, parameter, buffer and training mode, each with its name.
    fn visit(&self, visitor: &mut Visitor<'_>);

    /// Returns every parameter with its name (`layers.0.weight`), in the order of the fields; a shared
    /// parameter once, under its first name.
    ///
    /// # Errors
    /// [`Error::Layer`] if a [`Lazy`](crate::Lazy) layer is not built: an optimizer would miss its parameters.
    #[panicking_form]
    fn try_named_parameters(&self) -> Result<Vec<(String, Parameter)>> {
        parts(&self).built_parameters()
    }

    /// Returns every parameter, in the order of the fields; a shared parameter once.
    ///
    /// # Errors
    /// The errors of [`try_named_parameters`](Module::try_named_parameters).
    #[doc(alias = "parameters_to_vector")]
    #[panicking_form]
    fn try_parameters(&self) -> Result<Vec<Parameter>> {
        parts(&self).unnamed_parameters()
    }

    /// Returns every buffer with its name, in the order of the fields; a shared buffer once.
    fn named_buffers(&self) -> Vec<(String, Buffer)> {
        parts(&self).buffers()
    }

    /// Returns every buffer, in the order of the fields; a shared buffer once.
    fn buffers(&self) -> Vec<Buffer> {
        parts(&self).unnamed_buffers()
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
    fn named_modules(&self) -> Vec<(String, PartInfo)> {
        parts(&self).modules()
    }

    /// Returns the direct children: the modules of [`named_modules`](Module::named_modules) that no other child holds.
    #[doc(alias = "children")]
    fn named_children(&self) -> Vec<(String, PartInfo)> {
        parts(&self).children()
    }

    /// Returns the number of values in all parameters.
    ///
    /// # Errors
    /// The errors of [`try_named_parameters`](Module::try_named_parameters).
    #[panicking_form]
    fn try_parameter_count(&self) -> Result<usize> {
        parts(&self).parameter_count()
    }

    /// Removes the gradient of every parameter.
    fn zero_grad(&self) {
        parts(&self).zero_grad();
    }

    /// Freezes every parameter: no gradient is computed for it, and optimizers do not update it. To freeze a part of a
    /// model, call this method of the part.
    ///
    /// # Errors
    /// [`Error::Layer`] if a [`Lazy`](crate::Lazy) layer is not built: its parameters would be trained.
    #[doc(alias = "requires_grad_")]
    #[panicking_form]
    fn try_freeze(&self) -> Result<()> {
        parts(&self).freeze()
    }

    /// Makes every parameter trainable again.
    fn unfreeze(&self) {
        parts(&self).set_requires_grad(true);
    }

    /// Sets training mode in every layer; dropout, for example, is active.
    fn train(&self) {
        parts(&self).set_training(true);
    }

    /// Sets evaluation mode in every layer; dropout, for example, is inactive.
    fn eval(&self) {
        parts(&self).set_training(false);
    }

    /// Moves all parameters and buffers to `device`, as [`to_`](Module::to_) does, and returns the model. The device
    /// may be a name, such as `"gpu"`.
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
    fn to(self, device: impl IntoDevice) -> Result<Self>
    where
        Self: Sized,
    {
        self.to_(device.into_device()?)?;
        Ok(self)
    }

    /// Moves all parameters and buffers to `device` in place, with their gradients. They stay the same tensors, so
    /// optimizers stay attached; their state follows at the next step. Parts of a model may be on different devices.
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
    /// be moved: [`Tensor::to_`] lists the reasons. If a tensor cannot be moved to any device, nothing is moved.
    fn to_(&self, device: Device) -> Result<()> {
        parts(&self).to_(device)
    }

    /// Converts all parameters, and all buffers of a float dtype, to `dtype` in place, with their gradients. They stay
    /// the same tensors. An optimizer keeps its state in the dtype of its creation, so its next step is an error;
    /// create it after the conversion.
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
    /// not built, or the parameter or buffer that cannot be converted: [`Tensor::to_dtype_`] lists the reasons. If a
    /// tensor cannot be converted to any dtype, nothing is converted.
    fn to_dtype_(&self, dtype: DType) -> Result<()> {
        parts(&self).to_dtype_(dtype)
    }

    /// Converts all parameters, and all buffers of a float dtype, to `dtype`, as [`to_dtype_`](Module::to_dtype_) does,
    /// and returns the model.
    ///
    /// ```
    /// use pellucid::nn::{Linear, Module};
    /// use pellucid::DType;
    /// let model = Linear::new(2, 3).with_dtype(DType::BF16)?;
    /// assert_eq!(model.weight.dtype(), DType::BF16);
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`to_dtype_`](Module::to_dtype_).
    fn with_dtype(self, dtype: DType) -> Result<Self>
    where
        Self: Sized,
    {
        self.to_dtype_(dtype)?;
        Ok(self)
    }

    /// Returns an independent copy: parameters and buffers with the same values, which training of the original does
    /// not change, and training modes and path choices of its own.
    ///
    /// The copy is made by `clone()`, in which every parameter and buffer is copied. Values that are shared within the
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
    /// other layouts; [`Error::OutOfMemory`].
    fn deep_copy(&self) -> Result<Self>
    where
        Self: Clone,
    {
        let scope = CloneScope::copies()?;
        let copy = self.clone();
        scope.finish()?;
        parts(&self).check_separate("deep_copy", parts(&&copy))?;
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
        parts(&self).tree(short_type_name(type_name::<Self>()))
    }

    /// Returns an error if a step with this module cannot be captured.
    ///
    /// # Errors
    /// [`Error::Layer`] names the first part with `#[module(no_capture = "..")]`, and its reason.
    fn supports_capture(&self) -> Result<()> {
        parts(&self).supports_capture()
    }

    /// Returns copies of all parameters and buffers by name; later training does not change them. A shared value is
    /// included once, under its first name. A [non-persistent buffer](Buffer::non_persistent) is left out.
    ///
    /// # Errors
    /// [`Error::Layer`] for a [`Lazy`](crate::Lazy) layer that is not built, [`Error::OutOfMemory`], and
    /// [`Error::ReadInCapture`] inside a captured step, where values do not exist.
    #[panicking_form]
    fn try_state_dict(&self) -> Result<StateDict> {
        parts(&self).state_dict()
    }

    /// Loads all parameters and buffers from a state dict in place: optimizers and other holders of the parameters see
    /// the new values. Values are converted to the dtype of the module. A shared value may have any of its names, or
    /// several.
    ///
    /// # Errors
    /// [`Error::StateDict`] if a name is missing or unexpected, or a shape differs; [`Error::InvalidArgument`] if the
    /// names of a shared value have different values; [`Error::Layer`] names a [`Lazy`](crate::Lazy) layer that is not
    /// built. On error nothing is changed.
    fn load_state_dict(&self, state: &StateDict) -> Result<()> {
        parts(&self).load_state_dict(state)
    }

    /// Loads the values whose names both the module and the state dict have, as
    /// [`load_state_dict`](Module::load_state_dict) does. Returns the other names.
    ///
    /// # Errors
    /// [`Error::StateDict`] if a shape differs, [`Error::InvalidArgument`] if the names of a shared value have
    /// different values; [`Error::Layer`] names a [`Lazy`](crate::Lazy) layer that is not built. On error nothing is
    /// changed.
    #[doc(alias = "strict")]
    fn load_matching(&self, state: &StateDict) -> Result<IncompatibleKeys> {
        parts(&self).load_matching(state)
    }
}

/// A module without its type.
///
/// The methods of [`Module`] forward to the methods of `dyn ModuleParts`, which are compiled once. A program compiles
/// one small function for each type of module instead of all methods.
pub(crate) trait ModuleParts {
    /// Visits the module; see [`Module::visit`].
    fn visit_parts(&self, visitor: &mut Visitor<'_>);
}

impl<M: Module + ?Sized> ModuleParts for M {
    fn visit_parts(&self, visitor: &mut Visitor<'_>) {
        self.visit(visitor);
    }
}

/// Returns a module without its type. The second reference makes an unsized module a trait object too.
#[inline]
pub(crate) fn parts<'a, M: Module + ?Sized>(module: &'a &'a M) -> &'a (dyn ModuleParts + 'a) {
    module
}

impl dyn ModuleParts + '_ {
    /// Calls `on_part` with every part and its name.
    pub(crate) fn walk(&self, on_part: &mut dyn FnMut(&str, ModulePart<'_>)) {
        self.visit_parts(&mut Visitor::new(on_part));
    }

    /// Returns the named parameters that exist, whether or not all layers are built; a shared parameter once.
    pub(crate) fn parameters(&self) -> Vec<(String, Parameter)> {
        let (mut found, mut seen) = (Vec::new(), HashSet::new());
        self.walk(&mut |name, part| {
            if let ModulePart::Parameter(parameter) = part
                && seen.insert(parameter.id())
            {
                found.push((name.to_string(), parameter.clone()));
            }
        });
        found
    }

    /// Returns the named parameters, or an error if a layer is not built.
    fn built_parameters(&self) -> Result<Vec<(String, Parameter)>> {
        self.check_built("parameters")?;
        Ok(self.parameters())
    }

    fn unnamed_parameters(&self) -> Result<Vec<Parameter>> {
        Ok(self.built_parameters()?.into_iter().map(|(_, parameter)| parameter).collect())
    }

    fn parameter_count(&self) -> Result<usize> {
        Ok(self.built_parameters()?.iter().map(|(_, parameter)| parameter.size()).sum())
    }

    /// Returns the named buffers; a shared buffer once.
    pub(crate) fn buffers(&self) -> Vec<(String, Buffer)> {
        let (mut found, mut seen) = (Vec::new(), HashSet::new());
        self.walk(&mut |name, part| {
            if let ModulePart::Buffer(buffer) = part
                && seen.insert(identity(buffer))
            {
                found.push((name.to_string(), buffer.clone()));
            }
        });
        found
    }

    pub(crate) fn unnamed_buffers(&self) -> Vec<Buffer> {
        self.buffers().into_iter().map(|(_, buffer)| buffer).collect()
    }

    /// Returns this module and all modules in it, with their names.
    pub(crate) fn modules(&self) -> Vec<(String, PartInfo)> {
        let mut found = Vec::new();
        self.walk(&mut |name, part| {
            if let ModulePart::Module(info) = part {
                found.push((name.to_string(), info));
            }
        });
        found
    }

    /// Returns the modules in this one that no other of them contains.
    fn children(&self) -> Vec<(String, PartInfo)> {
        let mut found: Vec<(String, PartInfo)> = Vec::new();
        for (name, info) in self.modules().into_iter().filter(|(name, _)| !name.is_empty()) {
            let inside = |(outer, _): &(String, PartInfo)| name.strip_prefix(outer).is_some_and(|r| r.starts_with('.'));
            if !found.iter().any(inside) {
                found.push((name, info));
            }
        }
        found
    }

    /// Returns parameters, and the buffers that `includes` selects, in the order of the fields; a shared one under each
    /// of its names.
    pub(crate) fn values(&self, includes: fn(&Buffer) -> bool) -> Vec<(String, Tensor)> {
        let mut found = Vec::new();
        self.walk(&mut |name, part| match part {
            ModulePart::Parameter(parameter) => found.push((name.to_string(), parameter.tensor().clone())),
            ModulePart::Buffer(buffer) if includes(buffer) => found.push((name.to_string(), buffer.tensor().clone())),
            _ => {}
        });
        found
    }

    /// Returns the values of a state dict; a shared value under each of its names.
    fn persistent_values(&self) -> Vec<(String, Tensor)> {
        self.values(Buffer::is_persistent)
    }

    fn zero_grad(&self) {
        self.walk(&mut |_, part| {
            if let ModulePart::Parameter(parameter) = part {
                parameter.tensor().zero_grad();
            }
        });
    }

    fn freeze(&self) -> Result<()> {
        self.check_built("freeze")?;
        self.set_requires_grad(false);
        Ok(())
    }

    fn set_requires_grad(&self, required: bool) {
        self.walk(&mut |_, part| {
            if let ModulePart::Parameter(parameter) = part {
                parameter.set_requires_grad(required).expect("a parameter must be a leaf tensor with a float dtype");
            }
        });
    }

    fn set_training(&self, training: bool) {
        self.walk(&mut |_, part| {
            if let ModulePart::TrainingMode(mode) = part {
                mode.set(training);
            }
        });
    }

    fn to_(&self, device: Device) -> Result<()> {
        self.replace_elements("to", |tensor| tensor.device() != device, |tensor| tensor.try_to_(device))
    }

    fn to_dtype_(&self, dtype: DType) -> Result<()> {
        if !dtype.is_float() {
            let help = "parameters must have a float dtype: F64, F32, BF16 or F16";
            return Err(Error::dtype_argument("to_dtype", dtype, help));
        }
        let changes = |tensor: &Tensor| tensor.dtype().is_float() && tensor.dtype() != dtype;
        self.replace_elements("to_dtype", changes, |tensor| tensor.try_to_dtype_(dtype))
    }

    /// Calls `replace` with every parameter and buffer for which `changes` is true, after all were checked.
    fn replace_elements(
        &self,
        op: &'static str,
        changes: impl Fn(&Tensor) -> bool,
        replace: impl Fn(&Tensor) -> Result<()>,
    ) -> Result<()> {
        self.check_built(op)?;
        let mut state = self.values(|_| true);
        let mut seen = HashSet::new();
        state.retain(|(_, tensor)| changes(tensor) && seen.insert(tensor.id()));
        state.iter().try_for_each(|(name, tensor)| tensor.check_movable(op).map_err(|error| in_part(name, error)))?;
        state.iter().try_for_each(|(name, tensor)| replace(tensor).map_err(|error| in_part(name, error)))
    }

    /// Returns an error if a part of this module is also a part of its clone.
    pub(crate) fn check_separate(&self, op: &'static str, clone: &dyn ModuleParts) -> Result<()> {
        let mut own = HashSet::new();
        self.walk(&mut |_, part| own.extend(part.address()));
        let mut shared = None;
        clone.walk(&mut |name, part| {
            if part.address().is_some_and(|address| own.contains(&address)) {
                shared.get_or_insert_with(|| name.to_string());
            }
        });
        let Some(name) = shared else { return Ok(()) };
        let reason = "the clone of the model contains this part of the model itself, because the part is behind an `Arc` \
                      or a reference; store the part in the model (clones of a layer share its parameters)";
        Err(in_part(&name, Error::invalid(op, reason)))
    }

    fn tree(&self, type_name: &str) -> ModelTree {
        let mut tree = ModelTree::new(type_name);
        self.walk(&mut |name, part| match part {
            ModulePart::Module(info) => {
                let unbuilt = if info.unbuilt { " (not built)" } else { "" };
                tree.add_module(name, format!("{}{unbuilt}", info.class()));
            }
            ModulePart::Parameter(parameter) => {
                let frozen = if parameter.requires_grad() { "" } else { " frozen" };
                tree.add_tensor(name, describe(parameter) + frozen);
            }
            ModulePart::Buffer(buffer) => tree.add_tensor(name, describe(buffer)),
            ModulePart::Setting(value) => tree.add_setting(name, format!("{value:?}")),
            ModulePart::TrainingMode(_) | ModulePart::PathChoice(_) => {}
        });
        tree
    }

    pub(crate) fn supports_capture(&self) -> Result<()> {
        let refusal = |(name, info): (String, PartInfo)| {
            let source = Box::new(Error::invalid("capture", info.refuses_capture?));
            Some(Error::Layer { layer: info.label(&name), source })
        };
        self.modules().into_iter().find_map(refusal).map_or(Ok(()), Err)
    }

    fn state_dict(&self) -> Result<StateDict> {
        self.check_built("state_dict")?;
        state::snapshot(&first_names(self.persistent_values()))
    }

    fn load_state_dict(&self, state: &StateDict) -> Result<()> {
        self.prepare_load(state)?.commit()
    }

    fn load_matching(&self, state: &StateDict) -> Result<IncompatibleKeys> {
        self.check_built("load_matching")?;
        state::load_matching(&self.persistent_values(), state)
    }

    /// Returns an error if the module has a layer that is not built.
    pub(crate) fn check_built(&self, op: &'static str) -> Result<()> {
        let mut found = None;
        self.walk(&mut |name, part| {
            if let ModulePart::Module(info) = part
                && info.unbuilt
            {
                found.get_or_insert_with(|| info.label(name));
            }
        });
        let Some(layer) = found else { return Ok(()) };
        let help = "the parameters of the layer depend on the shape of its first input; call build() of the model \
                    first, or run the model once";
        Err(Error::Layer { layer, source: Box::new(Error::invalid(op, help)) })
    }
}

/// The state consists of the parameters and persistent buffers, a shared one under its first name.
impl Stateful for dyn ModuleParts + '_ {
    fn state(&self) -> Result<Vec<(String, Tensor)>> {
        self.check_built("state")?;
        Ok(first_names(self.persistent_values()))
    }

    fn prepare_load(&self, state: &StateDict) -> Result<StateLoad<'_>> {
        self.check_built("load_state_dict")?;
        StateLoad::new(&self.persistent_values(), state)
    }
}

/// Calls `on_part` with every part of a module and its name.
pub(crate) fn walk(module: &(impl Module + ?Sized), mut on_part: impl FnMut(&str, ModulePart<'_>)) {
    parts(&module).walk(&mut on_part);
}

/// Returns the named parameters that exist, whether or not all layers are built.
pub(crate) fn parameters_so_far(module: &(impl Module + ?Sized)) -> Vec<(String, Parameter)> {
    parts(&module).parameters()
}

/// Returns the error of an operation on the parameter or buffer of this name.
pub(crate) fn in_part(name: &str, error: Error) -> Error {
    Error::Layer { layer: format!("`{name}`"), source: Box::new(error) }
}

/// Returns shape, dtype unless it is `f32`, and device unless it is the CPU.
fn describe(tensor: &Tensor) -> String {
    let mut text = tensor.shape().to_string();
    if tensor.dtype() != DType::F32 {
        text += &format!(" {}", tensor.dtype());
    }
    if tensor.device() != Device::cpu() {
        text += &format!(" {}", tensor.device());
    }
    text
}

/// Keeps only the first name of a shared tensor.
fn first_names(mut named: Vec<(String, Tensor)>) -> Vec<(String, Tensor)> {
    let mut seen = HashSet::new();
    named.retain(|(_, tensor)| seen.insert(view(tensor)));
    named
}

/// Returns all parameters and buffers by name; a shared tensor once.
pub(crate) fn state_of(module: &(impl Module + ?Sized)) -> Vec<(String, Tensor)> {
    first_names(parts(&module).values(|_| true))
}

/// Returns a key that is equal for handles of the same tensor: the storage, and the offset of the first element in it.
pub(crate) fn identity(tensor: &Tensor) -> (usize, usize) {
    let array = tensor.array();
    (Arc::as_ptr(array.storage()).cast::<()>().addr(), array.layout().offset())
}

/// Returns [`identity`] and the layout. In a state dict, a view of a tensor with another layout is a separate value
/// with its own shape.
pub(crate) fn view(tensor: &Tensor) -> ((usize, usize), Layout) {
    (identity(tensor), tensor.array().layout().clone())
}

impl Module for Parameter {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.part(ModulePart::Parameter(self));
    }
}

impl Module for Buffer {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.part(ModulePart::Buffer(self));
    }
}

impl Module for TrainingMode {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.part(ModulePart::TrainingMode(self));
    }
}

impl Module for PathChoice {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.part(ModulePart::PathChoice(self));
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
