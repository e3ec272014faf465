//! Type-erased modules: the methods of [`Module`], compiled once for all modules.

use super::Module;
use crate::parameter::{Buffer, Parameter};
use crate::state::{self, IncompatibleKeys, StateDict, StateLoad, Stateful};
use crate::state_flag::{FlagLoad, NamedFlag};
use crate::tree::ModelTree;
use crate::visit::{ModuleInfo, ModulePart, ModuleRole, Visit, Visitor, is_inside};
use pellucid_tensor::{DType, Device, Error, Layout, Result, Tensor};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// A type-erased module.
///
/// The methods of [`Module`] forward to the methods of `dyn DynModule`, which are compiled once. A program compiles
/// one small function for each type of module instead of all methods.
pub(crate) trait DynModule {
    /// Visits the module; see [`Visit::visit`].
    fn visit_dyn(&self, visitor: &mut Visitor<'_>);
}

/// A module with a role, and the parameters and buffers that are its own fields.
pub(crate) struct RoleModule {
    /// The name of the module.
    pub(crate) name: String,
    /// The parameters, with their names in the module.
    pub(crate) parameters: Vec<(String, Parameter)>,
    /// The buffers, with their names in the module.
    pub(crate) buffers: Vec<(String, Buffer)>,
}

impl RoleModule {
    /// Returns the parameter of this name in the module.
    pub(crate) fn parameter(&self, name: &str) -> Option<&Parameter> {
        self.parameters.iter().find(|(other, _)| other == name).map(|(_, parameter)| parameter)
    }

    /// Returns the buffer of this name in the module.
    pub(crate) fn buffer(&self, name: &str) -> Option<&Buffer> {
        self.buffers.iter().find(|(other, _)| other == name).map(|(_, buffer)| buffer)
    }
}

impl<M: Visit + ?Sized> DynModule for M {
    fn visit_dyn(&self, visitor: &mut Visitor<'_>) {
        self.visit(visitor);
    }
}

/// Returns a type-erased module. The second reference makes an unsized module a trait object too.
#[inline]
pub(crate) fn as_dyn<'a, M: Visit + ?Sized>(module: &'a &'a M) -> &'a (dyn DynModule + 'a) {
    module
}

impl dyn DynModule + '_ {
    /// Calls `on_part` with every part and its name.
    pub(crate) fn walk(&self, on_part: &mut dyn FnMut(&str, ModulePart<'_>)) {
        self.visit_dyn(&mut Visitor::new(on_part));
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
    pub(crate) fn built_parameters(&self) -> Result<Vec<(String, Parameter)>> {
        self.check_built("parameters")?;
        Ok(self.parameters())
    }

    pub(super) fn unnamed_parameters(&self) -> Result<Vec<Parameter>> {
        Ok(self.built_parameters()?.into_iter().map(|(_, parameter)| parameter).collect())
    }

    pub(super) fn parameter_count(&self) -> Result<usize> {
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
    pub(crate) fn modules(&self) -> Vec<(String, ModuleInfo)> {
        let mut found = Vec::new();
        self.walk(&mut |name, part| {
            if let ModulePart::Module(info) = part {
                found.push((name.to_string(), info));
            }
        });
        found
    }

    /// Returns the modules with this role, each with the parameters and buffers that are its own fields.
    pub(crate) fn modules_in_role(&self, role: ModuleRole) -> Vec<RoleModule> {
        let mut found: Vec<RoleModule> = Vec::new();
        self.walk(&mut |name, part| {
            let (owner, field) = name.rsplit_once('.').unwrap_or(("", name));
            let mut owner = found.iter_mut().rev().find(|module| module.name == owner);
            match (part, &mut owner) {
                (ModulePart::Module(info), _) if info.role() == Some(role) => {
                    found.push(RoleModule { name: name.to_string(), parameters: Vec::new(), buffers: Vec::new() });
                }
                (ModulePart::Parameter(parameter), Some(module)) => {
                    module.parameters.push((field.to_string(), parameter.clone()));
                }
                (ModulePart::Buffer(buffer), Some(module)) => module.buffers.push((field.to_string(), buffer.clone())),
                _ => {}
            }
        });
        found
    }

    /// Returns the direct children: the modules that no other module in this one contains.
    pub(super) fn children(&self) -> Vec<(String, ModuleInfo)> {
        let mut found: Vec<(String, ModuleInfo)> = Vec::new();
        for (name, info) in self.modules().into_iter().filter(|(name, _)| !name.is_empty()) {
            if !found.iter().any(|(outer, _)| is_inside(&name, outer)) {
                found.push((name, info));
            }
        }
        found
    }

    /// Returns parameters, and the buffers that `includes` selects, in the order of the fields; a shared parameter or
    /// buffer under each of its names.
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
    ///
    /// # Errors
    /// [`Error::Layer`] for a layer that is not built; [`Error::InvalidArgument`] if two tensors have the same name.
    fn persistent_values(&self, op: &'static str) -> Result<Vec<(String, Tensor)>> {
        self.check_built(op)?;
        let values = self.values(Buffer::is_persistent);
        let mut by_name = HashMap::new();
        match values.iter().find(|(name, tensor)| *by_name.entry(name).or_insert(view(tensor)) != view(tensor)) {
            None => Ok(values),
            Some((name, _)) => {
                let reason =
                    format!("two tensors have the name `{name}`; give the fields of the modules different names");
                Err(Error::invalid(op, reason))
            }
        }
    }

    /// Returns the entries of a state dict for the flags that are set.
    fn flag_entries(&self) -> Vec<(String, Tensor)> {
        self.flags().iter().filter_map(NamedFlag::entry).collect()
    }

    /// Returns the flags; a shared flag once.
    fn flags(&self) -> Vec<NamedFlag> {
        let mut found = Vec::new();
        self.walk(&mut |name, part| {
            if let ModulePart::StateFlag(flag) = part {
                found.push((name.to_string(), flag.handle()));
            }
        });
        NamedFlag::grouped(found)
    }

    pub(super) fn zero_grad(&self) {
        self.walk(&mut |_, part| {
            if let ModulePart::Parameter(parameter) = part {
                parameter.tensor().zero_grad();
            }
        });
    }

    pub(super) fn freeze(&self) -> Result<()> {
        self.check_built("freeze")?;
        self.set_requires_grad(false);
        Ok(())
    }

    pub(super) fn set_requires_grad(&self, required: bool) {
        self.walk(&mut |_, part| {
            if let ModulePart::Parameter(parameter) = part {
                parameter.set_requires_grad(required).expect("a parameter must be a leaf tensor with a float dtype");
            }
        });
    }

    pub(super) fn set_training(&self, training: bool) {
        self.walk(&mut |_, part| {
            if let ModulePart::TrainingMode(mode) = part {
                mode.set(training);
            }
        });
    }

    pub(super) fn is_eval(&self) -> bool {
        let (mut evaluating, mut training) = (false, false);
        self.walk(&mut |_, part| {
            if let ModulePart::TrainingMode(mode) = part {
                let is_training = mode.get();
                (evaluating, training) = (evaluating | !is_training, training | is_training);
            }
        });
        evaluating && !training
    }

    pub(crate) fn to_(&self, device: Device) -> Result<()> {
        self.replace_elements("to", |tensor| tensor.device() != device, |tensor| tensor.try_to_(device))
    }

    pub(super) fn to_dtype_(&self, dtype: DType) -> Result<()> {
        if !dtype.is_float() {
            let help = "parameters must have a float dtype: F64, F32, BF16 or F16";
            return Err(Error::dtype_argument("to_dtype", dtype, help));
        }
        let changes = |tensor: &Tensor| tensor.dtype().is_float() && tensor.dtype() != dtype;
        self.replace_elements("to_dtype", changes, |tensor| tensor.try_to_dtype_(dtype))
    }

    /// Calls `replace` with every parameter and buffer for which `changes` is true, after all were checked.
    pub(super) fn replace_elements(
        &self,
        op: &'static str,
        changes: impl Fn(&Tensor) -> bool,
        replace: impl Fn(&Tensor) -> Result<()>,
    ) -> Result<()> {
        self.check_built(op)?;
        let mut state = self.values(|_| true);
        let mut seen = HashSet::new();
        state.retain(|(_, tensor)| changes(tensor) && seen.insert(tensor.id()));
        state.iter().try_for_each(|(name, tensor)| tensor.check_movable(op).map_err(|error| in_value(name, error)))?;
        state.iter().try_for_each(|(name, tensor)| replace(tensor).map_err(|error| in_value(name, error)))
    }

    /// Returns an error if a part of this module is also a part of its clone.
    pub(crate) fn check_separate(&self, op: &'static str, clone: &dyn DynModule) -> Result<()> {
        let mut addresses = HashSet::new();
        self.walk(&mut |_, part| addresses.extend(part.address()));
        let mut shared = None;
        clone.walk(&mut |name, part| {
            if part.address().is_some_and(|address| addresses.contains(&address)) {
                shared.get_or_insert_with(|| name.to_string());
            }
        });
        let Some(name) = shared else { return Ok(()) };
        let reason = "the clone of the model contains this part of the model itself, because the part is behind an `Arc` \
                      or a reference; store the part in the model (clones of a layer share its parameters)";
        Err(in_value(&name, Error::invalid(op, reason)))
    }

    pub(super) fn tree(&self, type_name: &str) -> ModelTree {
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
            ModulePart::TrainingMode(_) | ModulePart::PathChoice(_) | ModulePart::StateFlag(_) => {}
        });
        tree
    }

    pub(crate) fn supports_capture(&self) -> Result<()> {
        let rejection = |(name, info): (String, ModuleInfo)| {
            let source = Box::new(Error::invalid("capture", info.rejects_capture?));
            Some(Error::Layer { layer: info.label(&name), source })
        };
        self.modules().into_iter().find_map(rejection).map_or(Ok(()), Err)
    }

    pub(super) fn state_dict(&self) -> Result<StateDict> {
        let mut state = state::snapshot(&first_names(self.persistent_values("state_dict")?))?;
        state.extend(self.flag_entries());
        Ok(state)
    }

    pub(super) fn load_state_dict(&self, state: &StateDict) -> Result<()> {
        self.prepare_load(state)?.commit()
    }

    pub(super) fn load_matching(&self, state: &StateDict) -> Result<IncompatibleKeys> {
        let values = self.persistent_values("load_matching")?;
        let flags = self.flags();
        if flags.is_empty() {
            return state::load_matching(&values, state, |load| load);
        }
        let mut flags = FlagLoad::prepare("load_matching", &flags, state)?;
        let state = std::mem::take(&mut flags.state);
        state::load_matching(&values, &state, |load| load.then(|| flags.commit()))
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
        found.map_or(Ok(()), |layer| Err(not_built(op, layer)))
    }
}

/// Returns the error of an operation that a layer rejects before it is built.
pub(crate) fn not_built(op: &'static str, layer: String) -> Error {
    let help = "the layer is not built, because its parameters depend on the shape of its first input; call build() of \
                the model first, or run the model once";
    Error::Layer { layer, source: Box::new(Error::invalid(op, help)) }
}

/// The state consists of the parameters and persistent buffers, a shared one under its first name, and of the flags
/// that are set.
impl Stateful for dyn DynModule + '_ {
    fn state(&self) -> Result<Vec<(String, Tensor)>> {
        let mut state = first_names(self.persistent_values("state")?);
        state.extend(self.flag_entries());
        Ok(state)
    }

    fn prepare_load(&self, state: &StateDict) -> Result<StateLoad<'_>> {
        let values = self.persistent_values("load_state_dict")?;
        let flags = self.flags();
        if flags.is_empty() {
            return StateLoad::new(&values, state);
        }
        let flags = FlagLoad::prepare("load_state_dict", &flags, state)?;
        let load = StateLoad::new(&values, &flags.state)?;
        Ok(load.then(|| flags.commit()))
    }
}

/// Calls `on_part` with every part of a module and its name.
pub(crate) fn walk(module: &(impl Module + ?Sized), mut on_part: impl FnMut(&str, ModulePart<'_>)) {
    as_dyn(&module).walk(&mut on_part);
}

/// Returns the modules with this role, each with its own parameters and buffers, or an error of `op` if a layer is not
/// built.
pub(crate) fn modules_in_role(
    op: &'static str,
    module: &(impl Module + ?Sized),
    role: ModuleRole,
) -> Result<Vec<RoleModule>> {
    as_dyn(&module).check_built(op)?;
    Ok(as_dyn(&module).modules_in_role(role))
}

/// Returns the named parameters that exist, whether or not all layers are built.
pub(crate) fn parameters_so_far(module: &(impl Module + ?Sized)) -> Vec<(String, Parameter)> {
    as_dyn(&module).parameters()
}

/// Returns the error of an operation on the parameter or buffer of this name.
pub(crate) fn in_value(name: &str, error: Error) -> Error {
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
