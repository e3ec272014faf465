//! Containers of modules: `Sequential`, `ModuleList` and `ModuleDict`.

use crate::layer::{Layer, dtype_for};
use crate::module::{Module, display_as_tree};
use crate::visit::{INVALID_NAME, Visit, Visitor, is_field_name};
use pellucid_derive::panicking_form;
use pellucid_tensor::{DType, Error, Result, Tensor, unwrap};
use std::any::Any;
use std::fmt;

/// A boxed layer of any type. It can be cloned, so a model of boxed layers can be [copied](Module::deep_copy).
pub type BoxedLayer = Box<dyn DynLayer>;

/// A layer of a type that is not known at compile time. Every layer that is `Clone` and `'static` implements it.
///
/// ```
/// use pellucid::nn::{BoxedLayer, Layer, Linear, Relu};
/// use pellucid::{DType, Tensor};
/// let layers: [BoxedLayer; 2] = [Box::new(Linear::new(4, 8)), Box::new(Relu)];
/// let x = Tensor::ones([1, 4], DType::F32);
/// let y = layers.iter().fold(x, |x, layer| layer.forward(&x));
/// assert_eq!(y.shape().dims(), [1, 8]);
/// assert_eq!(layers[0].downcast_ref::<Linear>().unwrap().weight.shape().dims(), [8, 4]);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a layer that can be boxed: it must implement `Layer` and `Clone`, and be `'static`",
    note = "a layer of `sequential!` owns its fields; derive `Clone` and `Module`, and implement `Layer` (method `compute`)"
)]
pub trait DynLayer: Layer {
    /// Returns a clone in a box.
    fn boxed_clone(&self) -> BoxedLayer;

    /// Returns the layer as [`Any`], for downcasts.
    fn as_any(&self) -> &dyn Any;
}

// For a type that lacks one of the bounds, the compiler reports the note of `DynLayer` instead of the bound alone.
#[diagnostic::do_not_recommend]
impl<L: Layer + Clone + 'static> DynLayer for L {
    fn boxed_clone(&self) -> BoxedLayer {
        Box::new(self.clone())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl dyn DynLayer {
    /// Returns the layer as a `L`, or `None` if it has another type.
    pub fn downcast_ref<L: Layer + 'static>(&self) -> Option<&L> {
        self.as_any().downcast_ref()
    }
}

impl Clone for BoxedLayer {
    fn clone(&self) -> BoxedLayer {
        (**self).boxed_clone()
    }
}

impl fmt::Debug for dyn DynLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tree().fmt(f)
    }
}

impl fmt::Display for dyn DynLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tree().fmt(f)
    }
}

/// Layers that are applied in order, each to the output of the previous one.
///
/// The parameters are named by the index of their layer, as in PyTorch: `0.weight`, `2.bias`. Create it with
/// [`sequential!`](crate::sequential!), or layer by layer:
///
/// ```
/// use pellucid::nn::{BoxedLayer, Layer, Linear, Module, Sequential, Tanh};
/// use pellucid::Tensor;
///
/// let mut model = Sequential::new();
/// for width in [4, 8, 16] {
///     model.push(Linear::new(width, 2 * width));
///     model.push(Tanh);
/// }
/// assert_eq!(model.forward(&Tensor::from([[1.0f32; 4]])).shape().dims(), [1, 32]);
/// assert_eq!(model.named_parameters()[2].0, "2.weight");
/// assert_eq!(model.len(), 6);
/// let classes: Vec<String> = model.iter().map(|layer| layer.named_modules()[0].1.class().to_string()).collect();
/// assert_eq!(classes[..2], ["Linear", "Tanh"]);
/// let boxed: BoxedLayer = Box::new(Linear::new(32, 2));
/// model.push(boxed);
/// assert_eq!(model[6].downcast_ref::<Linear>().unwrap().weight.shape().dims(), [2, 32]);
/// ```
#[derive(Clone, Default)]
pub struct Sequential {
    layers: Vec<BoxedLayer>,
}

impl Sequential {
    /// Creates a container without layers: the identity.
    pub fn new() -> Sequential {
        Sequential::default()
    }

    /// Adds a layer at the end. A [`BoxedLayer`] is not boxed again.
    pub fn push(&mut self, layer: impl DynLayer + 'static) {
        let mut layer = Some(layer);
        let boxed = match (&mut layer as &mut dyn Any).downcast_mut::<Option<BoxedLayer>>() {
            Some(boxed) => boxed.take(),
            None => layer.take().map(|layer| Box::new(layer) as BoxedLayer),
        };
        self.layers.extend(boxed);
    }

    /// Returns the layers, in order.
    pub fn layers(&self) -> &[BoxedLayer] {
        &self.layers
    }

    /// Iterates over the layers, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, BoxedLayer> {
        self.layers.iter()
    }

    /// Returns the layer at this index, or `None` if there is none.
    pub fn get(&self, index: usize) -> Option<&BoxedLayer> {
        self.layers.get(index)
    }

    /// Returns the number of layers.
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// Returns true if there is no layer.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }
}

impl std::ops::Index<usize> for Sequential {
    type Output = BoxedLayer;

    /// Returns the layer at this index.
    ///
    /// # Panics
    /// Panics if there is no layer at this index.
    #[track_caller]
    fn index(&self, index: usize) -> &BoxedLayer {
        let len = self.len();
        // This is not written with a closure, because a closure would hide the caller's line.
        match self.get(index) {
            Some(layer) => layer,
            None => {
                panic!(
                    "Sequential: there is no layer {index}; the container has {len}, counted from 0; get() returns an Option"
                )
            }
        }
    }
}

impl<'a> IntoIterator for &'a Sequential {
    type Item = &'a BoxedLayer;
    type IntoIter = std::slice::Iter<'a, BoxedLayer>;

    fn into_iter(self) -> std::slice::Iter<'a, BoxedLayer> {
        self.iter()
    }
}

impl fmt::Debug for Sequential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tree().fmt(f)
    }
}

display_as_tree! {
    [] Sequential;
    [M: Module] ModuleDict<M>;
}

impl Module for Sequential {}

impl Visit for Sequential {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.module(self, None);
        self.layers.visit(visitor);
    }
}

impl Layer for Sequential {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let Some((first, rest)) = self.layers.split_first() else { return Ok(x.clone()) };
        let mut x = first.try_forward(x)?;
        for layer in rest {
            x = layer.try_forward(&x)?;
        }
        Ok(x)
    }

    fn input_dtype(&self) -> DType {
        dtype_for(self.layers.iter().map(|layer| layer as &dyn Layer))
    }
}

impl FromIterator<BoxedLayer> for Sequential {
    fn from_iter<I: IntoIterator<Item = BoxedLayer>>(layers: I) -> Sequential {
        Sequential { layers: layers.into_iter().collect() }
    }
}

/// Creates a [`Sequential`](crate::Sequential) of these layers.
///
/// ```
/// use pellucid::nn::{sequential, Dropout, Linear, Module, Relu};
/// let model = sequential![Linear::new(784, 256), Relu, Dropout::new(0.1), Linear::new(256, 10)];
/// assert_eq!(model.parameter_count(), 784 * 256 + 256 + 256 * 10 + 10);
/// ```
#[macro_export]
macro_rules! sequential {
    ($($layer:expr),* $(,)?) => {{
        #[allow(unused_mut)]
        let mut layers = $crate::Sequential::new();
        $(layers.push($layer);)*
        layers
    }};
}

/// Modules by index, named `0`, `1`, ...: a plain vector.
pub type ModuleList<M = BoxedLayer> = Vec<M>;

/// Modules by name, in the order of insertion.
///
/// ```
/// use pellucid::nn::{Layer, Linear, Module, ModuleDict};
/// let mut heads = ModuleDict::new();
/// heads.insert("digit", Linear::new(4, 10));
/// heads.insert("color", Linear::new(4, 3));
/// assert_eq!(heads.named_parameters()[2].0, "color.weight");
/// assert_eq!(heads["digit"].output_shape(&[1, 4])?.dims(), [1, 10]);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ModuleDict<M = BoxedLayer> {
    entries: Vec<(String, M)>,
}

impl<M> Default for ModuleDict<M> {
    fn default() -> ModuleDict<M> {
        ModuleDict { entries: Vec::new() }
    }
}

impl<M> ModuleDict<M> {
    /// Creates a container without modules.
    pub fn new() -> ModuleDict<M> {
        ModuleDict::default()
    }

    /// Inserts a module and returns the previous one of this name.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the name is empty or contains a dot, which separates the names of nested modules.
    #[panicking_form]
    pub fn try_insert(&mut self, name: impl Into<String>, module: M) -> Result<Option<M>> {
        let name = name.into();
        if !is_field_name(&name) {
            return Err(Error::invalid("module_dict", format!("{INVALID_NAME}, got \"{name}\"")));
        }
        match self.entries.iter_mut().find(|(n, _)| *n == name) {
            Some((_, existing)) => Ok(Some(std::mem::replace(existing, module))),
            None => {
                self.entries.push((name, module));
                Ok(None)
            }
        }
    }

    /// Removes and returns the module of this name.
    pub fn remove(&mut self, name: &str) -> Option<M> {
        let index = self.entries.iter().position(|(n, _)| n == name)?;
        Some(self.entries.remove(index).1)
    }

    /// Returns the module of this name.
    pub fn get(&self, name: &str) -> Option<&M> {
        self.iter().find(|(n, _)| *n == name).map(|(_, module)| module)
    }

    /// Iterates over names and modules, in order.
    pub fn iter(&self) -> NamedModules<'_, M> {
        self.entries.iter().map(|(name, module)| (name.as_str(), module))
    }

    /// Returns the number of modules.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if there is no module.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// The iterator over the names and modules of a [`ModuleDict`].
type NamedModules<'a, M> = std::iter::Map<std::slice::Iter<'a, (String, M)>, fn(&'a (String, M)) -> (&'a str, &'a M)>;

impl<'a, M> IntoIterator for &'a ModuleDict<M> {
    type Item = (&'a str, &'a M);
    type IntoIter = NamedModules<'a, M>;

    fn into_iter(self) -> NamedModules<'a, M> {
        self.iter()
    }
}

impl<M> std::ops::Index<&str> for ModuleDict<M> {
    type Output = M;

    /// Returns the module of this name.
    ///
    /// # Panics
    /// Panics if there is no module of this name.
    #[track_caller]
    fn index(&self, name: &str) -> &M {
        // This is not written with a closure, because a closure would hide the caller's line.
        match self.get(name) {
            Some(module) => module,
            None => {
                let names: Vec<&str> = self.iter().map(|(name, _)| name).collect();
                panic!("ModuleDict: there is no module named {name:?}; the names are {names:?}")
            }
        }
    }
}

impl<M: Module> Module for ModuleDict<M> {}

impl<M: Module> Visit for ModuleDict<M> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        for (name, module) in self.iter() {
            visitor.field(name, module);
        }
    }
}
