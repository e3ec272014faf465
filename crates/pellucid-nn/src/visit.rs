//! The traversal of the parts of a module, with their names and with ids that identify them.

use crate::module::{DynModule, Module};
use crate::parameter::{Buffer, Parameter, PathChoice, TrainingMode};
use crate::state_flag::StateFlag;
use std::any::type_name;
use std::cell::Cell;
use std::fmt;
use std::fmt::{Debug, Display, Write};

/// A value that a module may have as a field: a [`Parameter`], a [`Buffer`], a mode, a plain value, a module, or a
/// collection, tuple or pointer of these. `#[derive(Module)]` implements it by visiting all fields.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a field of a module",
    note = "a field is a `Parameter`, a `Buffer`, a module, a `Vec`, `Option`, array, tuple, map or `Box` of these, or a plain number",
    note = "derive `Module` for your own types, and mark fields without parameters `#[module(skip)]`"
)]
pub trait Visit: Send + Sync {
    /// Calls the visitor with every part of this value (see [`ModulePart`]) and its name.
    fn visit(&self, visitor: &mut Visitor<'_>);
}

/// Returns true if the part of this name belongs to the module `module` of the same model.
pub(crate) fn is_inside(name: &str, module: &str) -> bool {
    name.strip_prefix(module).is_some_and(|rest| rest.starts_with('.'))
}

/// Returns true for the name of a field. A dot separates the names of nested modules.
pub(crate) fn is_field_name(name: &str) -> bool {
    !name.is_empty() && !name.contains('.')
}

/// The reason why a name of a field is rejected.
pub(crate) const INVALID_NAME: &str = "the name of a field must have at least one character and no dot";

/// The item that a visitor receives for each part of a module.
#[derive(Clone, Copy, Debug)]
pub enum ModulePart<'a> {
    /// A module; its parts follow.
    Module(ModuleInfo),
    /// A parameter.
    Parameter(&'a Parameter),
    /// A buffer.
    Buffer(&'a Buffer),
    /// The training mode of a layer.
    TrainingMode(&'a TrainingMode),
    /// The path that the host selects in a layer with several paths.
    PathChoice(&'a PathChoice),
    /// A flag that describes the values of parameters.
    StateFlag(&'a StateFlag),
    /// A plain value, such as a probability or a stride, which [`tree`](Module::tree) shows.
    Setting(&'a dyn Debug),
}

impl ModulePart<'_> {
    /// Returns the address of a parameter, buffer, mode, choice or flag. While the module is borrowed, no other part
    /// has this address.
    pub(crate) fn address(&self) -> Option<usize> {
        match *self {
            ModulePart::Parameter(part) => Some(std::ptr::from_ref(part).addr()),
            ModulePart::Buffer(part) => Some(std::ptr::from_ref(part).addr()),
            ModulePart::TrainingMode(part) => Some(std::ptr::from_ref(part).addr()),
            ModulePart::PathChoice(part) => Some(std::ptr::from_ref(part).addr()),
            ModulePart::StateFlag(part) => Some(std::ptr::from_ref(part).addr()),
            ModulePart::Module(_) | ModulePart::Setting(_) => None,
        }
    }
}

/// The role of a module, by which functions for entire models find the layers that they change, including user-defined
/// layers that declare a role.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ModuleRole {
    /// Batch normalization, which [`update_bn`](crate::optim::update_bn) updates. Its buffers are the running mean, the
    /// running variance and the count of batches, in this order. A layer without running statistics has no buffers.
    BatchNorm,
    /// A layer with a pruned weight, for the functions of [`prune`](crate::prune): the parameter `weight_orig` and the
    /// buffer `weight_mask`, whose product is the weight.
    Pruned,
    /// A layer with a low-rank update, for [`lora_parameters`](crate::lora_parameters) and related functions: the
    /// parameters `lora_A` and `lora_B`.
    Lora,
}

/// Information about a module in a visit.
#[derive(Clone, Copy, Debug)]
pub struct ModuleInfo {
    class: &'static str,
    role: Option<ModuleRole>,
    /// The id of the module, or of its enclosing box if the module has size 0.
    id: Option<ModuleId>,
    /// The reason why a step with this module cannot be captured, if there is one.
    pub(crate) rejects_capture: Option<&'static str>,
    /// Whether its parameters do not exist yet.
    pub(crate) unbuilt: bool,
}

impl ModuleInfo {
    /// Returns the name of the type, without path and type arguments: `Linear`.
    pub fn class(&self) -> &'static str {
        short_type_name(self.class)
    }

    /// Returns the role of the module, if it declares one.
    pub fn role(&self) -> Option<ModuleRole> {
        self.role
    }

    /// Returns the id of the module, if it has a unique one.
    pub(crate) fn id(&self) -> Option<ModuleId> {
        self.id
    }

    /// Returns the module's name and class.
    pub(crate) fn label(&self, name: &str) -> String {
        label(name, self.class())
    }
}

/// Returns `layers.2 (Linear)`, or `Linear` for a module without a name.
pub(crate) fn label(name: &str, type_name: &str) -> String {
    if name.is_empty() { type_name.to_string() } else { format!("{name} ({type_name})") }
}

/// Returns `Linear` for `pellucid_nn::linear::Linear`, `Lazy` for `pellucid_nn::lazy::Lazy<..>`, `tuple` for any tuple.
pub(crate) fn short_type_name(type_name: &'static str) -> &'static str {
    if type_name.starts_with('(') {
        return "tuple";
    }
    let plain = type_name.split('<').next().unwrap_or(type_name);
    plain.rsplit("::").next().unwrap_or(plain)
}

/// The address and the type of a value. While the value is borrowed, no other value has the same id. Zero-sized values
/// have no id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ModuleId {
    address: usize,
    type_name: &'static str,
}

impl ModuleId {
    pub(crate) fn new<M: ?Sized>(value: &M) -> Option<ModuleId> {
        let address = std::ptr::from_ref(value).cast::<()>().addr();
        (size_of_val(value) > 0).then_some(ModuleId { address, type_name: type_name::<M>() })
    }
}

thread_local! {
    /// The path buffer of the last visit, which the next visit reuses: a recorded step visits its model in every launch
    /// without an allocation.
    static PATH: Cell<String> = const { Cell::new(String::new()) };
}

/// A visitor of a module; it calls a function with every [`ModulePart`] and its name.
pub struct Visitor<'a> {
    path: String,
    /// The id of the current field.
    field: Option<ModuleId>,
    /// The role of the module that is reported next.
    role: Option<ModuleRole>,
    on_part: &'a mut dyn FnMut(&str, ModulePart<'_>),
}

impl fmt::Debug for Visitor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Visitor").field("path", &self.path).finish_non_exhaustive()
    }
}

// The generic methods only pass ids and trait objects on, because every program compiles them for each of its types.
impl<'a> Visitor<'a> {
    /// Creates a visitor that calls `on_part` with each part.
    pub fn new(on_part: &'a mut dyn FnMut(&str, ModulePart<'_>)) -> Visitor<'a> {
        Visitor { path: PATH.take(), field: None, role: None, on_part }
    }

    /// Declares the role of the module that is reported next.
    pub fn role(&mut self, role: ModuleRole) {
        self.role = Some(role);
    }

    /// Reports the current field as this module, and then its parts. If `rejects_capture` contains a reason, a step
    /// with this module cannot be captured.
    pub fn module<M: Module + ?Sized>(&mut self, module: &M, rejects_capture: Option<&'static str>) {
        self.report_module(ModuleId::new(module), type_name::<M>(), rejects_capture, false);
    }

    /// Reports a module as [`module`](Visitor::module) does, with a class name that differs from its type.
    pub fn module_as<M: Module + ?Sized>(
        &mut self,
        module: &M,
        class: &'static str,
        rejects_capture: Option<&'static str>,
    ) {
        self.report_module(ModuleId::new(module), class, rejects_capture, false);
    }

    /// Reports, as [`module`](Visitor::module) does, a module whose parameters are created at its first input. Until
    /// then, [`parameters`](Module::parameters) panics.
    pub fn unbuilt<M: Module + ?Sized>(&mut self, module: &M) {
        self.report_module(ModuleId::new(module), type_name::<M>(), None, true);
    }

    /// Visits a field of the current module, under this name.
    ///
    /// # Panics
    /// Panics if the name is empty or contains a dot, which separates the names of nested modules.
    #[track_caller]
    pub fn field(&mut self, name: impl Display, part: &(impl Visit + ?Sized)) {
        self.visit_field(&name, ModuleId::new(part), &part);
    }

    /// Reports a plain value of the current module under this name; [`tree`](Module::tree) shows it.
    ///
    /// # Panics
    /// Panics for the names that [`field`](Visitor::field) rejects.
    #[track_caller]
    pub fn setting(&mut self, name: impl Display, value: &dyn Debug) {
        self.visit_field(&name, None, &ForwardedPart(ModulePart::Setting(value)));
    }

    /// Reports a part of another module as a part of the current one, under this name, which may be a path.
    pub(crate) fn part_as(&mut self, name: &str, part: ModulePart<'_>) {
        self.visit_path(name, None, &ForwardedPart(part));
    }

    /// Visits a part of the current module under a path, such as `parametrizations.weight`.
    pub(crate) fn field_at(&mut self, path: &str, part: &(impl Visit + ?Sized)) {
        self.visit_path(path, ModuleId::new(part), &part);
    }

    /// Reports a part under the name of the current field.
    pub fn part(&mut self, part: ModulePart<'_>) {
        (self.on_part)(&self.path, part);
    }

    fn report_module(
        &mut self,
        id: Option<ModuleId>,
        class: &'static str,
        rejects_capture: Option<&'static str>,
        unbuilt: bool,
    ) {
        let (id, role) = (id.or(self.field), self.role.take());
        self.part(ModulePart::Module(ModuleInfo { class, role, id, rejects_capture, unbuilt }));
    }

    #[track_caller]
    fn visit_field(&mut self, name: &dyn Display, id: Option<ModuleId>, field: &dyn DynModule) {
        let length = self.path.len();
        let start = self.append_to_path(name);
        assert!(is_field_name(&self.path[start..]), "{INVALID_NAME}, got \"{name}\"");
        self.visit_at_path(length, id, field);
    }

    fn visit_path(&mut self, path: &str, id: Option<ModuleId>, field: &dyn DynModule) {
        let length = self.path.len();
        self.append_to_path(&path);
        self.visit_at_path(length, id, field);
    }

    /// Appends a name to the path, and returns the position in the path where the name starts.
    fn append_to_path(&mut self, name: &dyn Display) -> usize {
        if !self.path.is_empty() {
            self.path.push('.');
        }
        let start = self.path.len();
        write!(self.path, "{name}").expect("writing to a String cannot fail");
        start
    }

    /// Visits a field under the current path, which is then shortened to `length`, the path of the enclosing module.
    fn visit_at_path(&mut self, length: usize, id: Option<ModuleId>, field: &dyn DynModule) {
        let outer = self.field;
        self.field = id;
        field.visit_dyn(self);
        self.path.truncate(length);
        self.field = outer;
    }
}

/// A part that is reported unchanged.
struct ForwardedPart<'a>(ModulePart<'a>);

impl DynModule for ForwardedPart<'_> {
    fn visit_dyn(&self, visitor: &mut Visitor<'_>) {
        visitor.part(self.0);
    }
}

impl Drop for Visitor<'_> {
    fn drop(&mut self) {
        self.path.clear();
        PATH.set(std::mem::take(&mut self.path));
    }
}
