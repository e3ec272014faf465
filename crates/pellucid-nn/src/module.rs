//! The trait `Module` of types with parameters. The derive implements one method; all others follow from it.

use crate::parameter::{Buffer, Parameter, PathChoice, TrainingMode};
use crate::state::{self, IncompatibleKeys, StateDict, StateLoad, Stateful};
use crate::visit::{ModulePart, PartInfo, Visitor};
use pellucid_tensor::{DType, Device, Error, Layout, Result, Shape, Tensor, unwrap};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Display;
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};

/// A type with parameters and buffers, which are found by visiting its fields.
///
/// Derive it; a model's computation is then a plain method, or a [`Layer`](crate::Layer) if it
/// maps one tensor to another:
///
/// ```
/// # extern crate pellucid_nn as pellucid;
/// use pellucid_nn::{Layer, Linear, Module};
/// use pellucid_tensor::Tensor;
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
    /// # Panics
    /// If a [`Lazy`](crate::Lazy) layer is not built: an optimizer would miss its parameters.
    #[track_caller]
    fn named_parameters(&self) -> Vec<(String, Parameter)> {
        parts(&self).built_parameters()
    }

    /// Returns every parameter, in the order of the fields; a shared parameter once.
    ///
    /// # Panics
    /// Those of [`named_parameters`](Module::named_parameters).
    #[track_caller]
    fn parameters(&self) -> Vec<Parameter> {
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
    /// use pellucid_nn::{Linear, Module, Relu, sequential};
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
    /// # Panics
    /// Those of [`named_parameters`](Module::named_parameters).
    #[track_caller]
    fn parameter_count(&self) -> usize {
        parts(&self).parameter_count()
    }

    /// Removes the gradient of every parameter.
    fn zero_grad(&self) {
        parts(&self).zero_grad();
    }

    /// Freezes every parameter: no gradient is computed for it, and optimizers do not update it. To freeze a part of a
    /// model, call this method of the part.
    ///
    /// # Panics
    /// If a [`Lazy`](crate::Lazy) layer is not built: its parameters would be trained.
    #[doc(alias = "requires_grad_")]
    #[track_caller]
    fn freeze(&self) {
        parts(&self).freeze();
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

    /// Moves all parameters and buffers to `device` in place, with their gradients. They stay the same tensors, so
    /// optimizers stay attached; their state follows at the next step. Parts of a model may be on different devices.
    ///
    /// ```
    /// use pellucid_nn::{Linear, Module};
    /// use pellucid_tensor::Device;
    /// let model = Linear::new(2, 3);
    /// model.to(Device::best())?;
    /// assert!(model.parameters().iter().all(|p| p.device() == Device::best()));
    /// # Ok::<(), pellucid_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Layer`] names a [`Lazy`](crate::Lazy) layer that is not built, or the parameter or buffer that cannot be
    /// moved: [`Tensor::to_`] lists the reasons. If a tensor cannot be moved to any device, nothing is moved.
    fn to(&self, device: Device) -> Result<()> {
        parts(&self).to(device)
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
    /// # Panics
    /// With [`Error::OutOfMemory`], or inside a captured step, where values do not exist.
    #[track_caller]
    fn state_dict(&self) -> StateDict {
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
    /// different values. On error nothing is changed.
    #[doc(alias = "strict")]
    fn load_matching(&self, state: &StateDict) -> Result<IncompatibleKeys> {
        parts(&self).load_matching(state)
    }
}

/// A module without its type.
///
/// The methods of [`Module`] forward to those of `dyn ModuleParts`, which are compiled once. A program compiles one
/// small function for each type of module instead of all methods.
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

    /// Returns the named parameters. Panics if a layer is not built.
    #[track_caller]
    fn built_parameters(&self) -> Vec<(String, Parameter)> {
        unwrap(self.check_built("parameters"));
        self.parameters()
    }

    #[track_caller]
    fn unnamed_parameters(&self) -> Vec<Parameter> {
        self.built_parameters().into_iter().map(|(_, parameter)| parameter).collect()
    }

    #[track_caller]
    fn parameter_count(&self) -> usize {
        self.built_parameters().iter().map(|(_, parameter)| parameter.size()).sum()
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
    fn values(&self, includes: fn(&Buffer) -> bool) -> Vec<(String, Tensor)> {
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

    #[track_caller]
    fn freeze(&self) {
        unwrap(self.check_built("freeze"));
        self.set_requires_grad(false);
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

    fn to(&self, device: Device) -> Result<()> {
        self.check_built("to")?;
        let named =
            |(name, error): (&String, Error)| Error::Layer { layer: format!("`{name}`"), source: Box::new(error) };
        let mut state = first_names(self.values(|_| true));
        state.retain(|(_, tensor)| tensor.device() != device);
        state.iter().try_for_each(|(name, tensor)| tensor.check_movable().map_err(|error| named((name, error))))?;
        state.iter().try_for_each(|(name, tensor)| tensor.to_(device).map_err(|error| named((name, error))))
    }

    pub(crate) fn supports_capture(&self) -> Result<()> {
        let refusal = |(name, info): (String, PartInfo)| {
            let source = Box::new(Error::invalid("capture", info.refuses_capture?));
            Some(Error::Layer { layer: info.label(&name), source })
        };
        self.modules().into_iter().find_map(refusal).map_or(Ok(()), Err)
    }

    #[track_caller]
    fn state_dict(&self) -> StateDict {
        state::snapshot(&first_names(self.persistent_values()))
    }

    fn load_state_dict(&self, state: &StateDict) -> Result<()> {
        self.prepare_load(state)?.commit()
    }

    fn load_matching(&self, state: &StateDict) -> Result<IncompatibleKeys> {
        state::load_matching(&self.persistent_values(), state)
    }

    /// Returns an error if the module has a layer that is not built.
    fn check_built(&self, op: &'static str) -> Result<()> {
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
        StateLoad::new(&self.persistent_values(), state).map_err(|error| match &error {
            Error::StateDict { unexpected, .. } if !unexpected.is_empty() => {
                self.check_built("load_state_dict").err().unwrap_or(error)
            }
            _ => error,
        })
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

impl<M: Module> Module for [M] {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        for (index, part) in self.iter().enumerate() {
            visitor.field(index, part);
        }
    }
}

impl<M: Module> Module for Vec<M> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.as_slice().visit(visitor);
    }
}

impl<M: Module, const N: usize> Module for [M; N] {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.as_slice().visit(visitor);
    }
}

impl<M: Module> Module for Option<M> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        if let Some(part) = self {
            part.visit(visitor);
        }
    }
}

impl<M: Module> Module for OnceLock<M> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        if let Some(part) = self.get() {
            part.visit(visitor);
        }
    }
}

/// Modules by name; [`ModuleDict`](crate::ModuleDict) keeps the order of insertion instead.
impl<K: Display + Send + Sync, M: Module> Module for BTreeMap<K, M> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        for (name, part) in self {
            visitor.field(name, part);
        }
    }
}

/// Modules by name, in sorted order, since the order of a `HashMap` differs from run to run.
impl<K: Display + Ord + Send + Sync, M: Module, S: Send + Sync> Module for HashMap<K, M, S> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        let mut parts: Vec<(&K, &M)> = self.iter().collect();
        parts.sort_unstable_by_key(|(name, _)| *name);
        for (name, part) in parts {
            visitor.field(name, part);
        }
    }
}

// A pointer to a module adds no part to the names of parameters.
macro_rules! pointers {
    ($($pointer:ty),*) => {$(
        impl<M: Module + ?Sized> Module for $pointer {
            fn visit(&self, visitor: &mut Visitor<'_>) {
                (**self).visit(visitor);
            }
        }
    )*};
}
pointers!(Box<M>, Arc<M>, &M, &mut M);

// Plain values have no parameters.
macro_rules! plain {
    ($($t:ty),*) => {$(
        impl Module for $t {
            fn visit(&self, _: &mut Visitor<'_>) {}
        }
    )*};
}
plain!((), bool, char, u8, u16, u32, u64, usize, i8, i16, i32, i64, isize, f32, f64);
plain!(String, &'static str, DType, Device, Shape);

impl<T: ?Sized + Send + Sync> Module for PhantomData<T> {
    fn visit(&self, _: &mut Visitor<'_>) {}
}

macro_rules! tuples {
    ($($name:ident $index:tt),*) => {
        impl<$($name: Module),*> Module for ($($name,)*) {
            fn visit(&self, visitor: &mut Visitor<'_>) {
                $(visitor.field($index, &self.$index);)*
            }
        }
    };
}
tuples!(A 0);
tuples!(A 0, B 1);
tuples!(A 0, B 1, C 2);
tuples!(A 0, B 1, C 2, D 3);
tuples!(A 0, B 1, C 2, D 3, E 4);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);
