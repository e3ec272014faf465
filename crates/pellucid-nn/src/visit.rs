//! The walk over a module: which parts it has, under which names, and how a part is found again.

use crate::module::Module;
use crate::parameter::{Buffer, Choice, Parameter, Training};
use std::any::type_name;
use std::cell::Cell;
use std::fmt::{Display, Write};

/// What a visitor meets.
#[derive(Clone, Copy, Debug)]
pub enum Part<'a> {
    /// A module; its parts follow.
    Module(PartInfo),
    /// A parameter.
    Parameter(&'a Parameter),
    /// A buffer.
    Buffer(&'a Buffer),
    /// The training mode of a layer.
    Training(&'a Training),
    /// The way that the host chooses in a layer with several.
    Choice(&'a Choice),
}

/// What is known of a module in a walk.
#[derive(Clone, Copy, Debug)]
pub struct PartInfo {
    class: &'static str,
    /// The module itself, where it has a size; what holds it, where that has one.
    place: Option<ModuleId>,
    /// Why a step with this module cannot be captured.
    pub(crate) refuses_capture: Option<&'static str>,
    /// Whether its parameters are still to be made.
    pub(crate) unbuilt: bool,
}

impl PartInfo {
    /// The name of its type, without path and type arguments: `Linear`.
    pub fn class(&self) -> &'static str {
        class(self.class)
    }

    /// Where it is, if it can be told from others.
    pub(crate) fn place(&self) -> Option<ModuleId> {
        self.place
    }

    /// Its name and class.
    pub(crate) fn label(&self, name: &str) -> String {
        label(name, self.class())
    }
}

/// `layers.2 (Linear)`, or `Linear` for one without a name.
pub(crate) fn label(name: &str, class: &str) -> String {
    if name.is_empty() { class.to_string() } else { format!("{name} ({class})") }
}

/// `Linear` of `pellucid_nn::linear::Linear`, `Lazy` of `pellucid_nn::lazy::Lazy<..>`, `tuple` of any tuple.
pub(crate) fn class(type_name: &'static str) -> &'static str {
    if type_name.starts_with('(') {
        return "tuple";
    }
    let plain = type_name.split('<').next().unwrap_or(type_name);
    plain.rsplit("::").next().unwrap_or(plain)
}

/// Where a value lies, and of which type it is: as long as it is borrowed, no other value has both. A value
/// without a size lies nowhere.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ModuleId {
    address: usize,
    class: &'static str,
}

impl ModuleId {
    pub(crate) fn of<M: ?Sized>(value: &M) -> Option<ModuleId> {
        let address = std::ptr::from_ref(value).cast::<()>().addr();
        (size_of_val(value) > 0).then_some(ModuleId { address, class: type_name::<M>() })
    }
}

thread_local! {
    /// The memory of the last walk's path: a recorded step walks its model in every launch, and allocates nothing.
    static PATH: Cell<String> = const { Cell::new(String::new()) };
}

/// Walks a module and shows every [`Part`] with its name to a function.
pub struct Visitor<'a> {
    path: String,
    /// Where the present field lies.
    field: Option<ModuleId>,
    meet: &'a mut dyn FnMut(&str, Part<'_>),
}

impl<'a> Visitor<'a> {
    /// A visitor that shows what it meets to `meet`.
    pub fn new(meet: &'a mut dyn FnMut(&str, Part<'_>)) -> Visitor<'a> {
        Visitor { path: PATH.take(), field: None, meet }
    }

    /// Says that the present field is this module, whose parts follow. With a reason, a step with it cannot be captured.
    pub fn module<M: Module + ?Sized>(&mut self, module: &M, refuses_capture: Option<&'static str>) {
        self.module_as(module, type_name::<M>(), refuses_capture);
    }

    /// [`module`](Visitor::module) under the name of a class that is not its type's.
    pub fn module_as<M: Module + ?Sized>(
        &mut self,
        module: &M,
        class: &'static str,
        refuses_capture: Option<&'static str>,
    ) {
        let place = ModuleId::of(module).or(self.field);
        self.part(Part::Module(PartInfo { class, place, refuses_capture, unbuilt: false }));
    }

    /// [`module`](Visitor::module) for one whose parameters are made when it first sees an input: as long as there are none,
    /// [`parameters`](Module::parameters) are refused.
    pub fn unbuilt<M: Module + ?Sized>(&mut self, module: &M) {
        let place = ModuleId::of(module).or(self.field);
        self.part(Part::Module(PartInfo { class: type_name::<M>(), place, refuses_capture: None, unbuilt: true }));
    }

    /// Walks a part of the module that is being visited, under this name.
    pub fn field(&mut self, name: impl Display, part: &(impl Module + ?Sized)) {
        let (length, outer) = (self.path.len(), self.field);
        let dot = if length == 0 { "" } else { "." };
        write!(self.path, "{dot}{name}").expect("a string takes everything");
        self.field = ModuleId::of(part);
        part.visit(self);
        self.path.truncate(length);
        self.field = outer;
    }

    /// Shows a part under the name of the present field.
    pub fn part(&mut self, part: Part<'_>) {
        (self.meet)(&self.path, part);
    }
}

impl Drop for Visitor<'_> {
    fn drop(&mut self) {
        self.path.clear();
        PATH.set(std::mem::take(&mut self.path));
    }
}
