//! Containers of modules: `Sequential`, `ModuleList` and `ModuleDict`.

use crate::layer::{Layer, dtype_for};
use crate::module::Module;
use crate::visit::Visitor;
use pellucid_tensor::{DType, Result, Tensor};

/// Layers that are applied in order, each to the output of the previous one.
///
/// The parameters are named by the index of their layer, as in PyTorch: `0.weight`, `2.bias`. Create it with
/// [`sequential!`](crate::sequential!), or layer by layer:
///
/// ```
/// use pellucid_nn::{Layer, Linear, Module, Sequential, Tanh};
/// use pellucid_tensor::Tensor;
///
/// let mut model = Sequential::new();
/// for width in [4, 8, 16] {
///     model.push(Linear::new(width, 2 * width));
///     model.push(Tanh);
/// }
/// assert_eq!(model.forward(&Tensor::from([[1.0f32; 4]])).shape().dims(), [1, 32]);
/// assert_eq!(model.named_parameters()[2].0, "2.weight");
/// ```
#[derive(Default)]
pub struct Sequential {
    layers: Vec<Box<dyn Layer>>,
}

impl Sequential {
    /// Creates a container without layers: the identity.
    pub fn new() -> Sequential {
        Sequential::default()
    }

    /// Adds a layer at the end.
    pub fn push(&mut self, layer: impl Layer + 'static) {
        self.push_boxed(Box::new(layer));
    }

    fn push_boxed(&mut self, layer: Box<dyn Layer>) {
        self.layers.push(layer);
    }

    /// Returns the layers, in order.
    pub fn layers(&self) -> &[Box<dyn Layer>] {
        &self.layers
    }
}

impl Module for Sequential {
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
        dtype_for(self.layers.iter().map(|layer| &**layer))
    }
}

impl FromIterator<Box<dyn Layer>> for Sequential {
    fn from_iter<I: IntoIterator<Item = Box<dyn Layer>>>(layers: I) -> Sequential {
        Sequential { layers: layers.into_iter().collect() }
    }
}

/// Creates a [`Sequential`](crate::Sequential) of these layers.
///
/// ```
/// use pellucid_nn::{sequential, Dropout, Linear, Module, Relu};
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
pub type ModuleList<M = Box<dyn Layer>> = Vec<M>;

/// Modules by name, in the order of insertion.
///
/// ```
/// use pellucid_nn::{Layer, Linear, Module, ModuleDict};
/// let mut heads = ModuleDict::new();
/// heads.insert("digit", Linear::new(4, 10));
/// heads.insert("colour", Linear::new(4, 3));
/// assert_eq!(heads.named_parameters()[2].0, "colour.weight");
/// assert_eq!(heads["digit"].output_shape(&[1, 4])?.dims(), [1, 10]);
/// # Ok::<(), pellucid_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ModuleDict<M = Box<dyn Layer>> {
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
    pub fn insert(&mut self, name: impl Into<String>, module: M) -> Option<M> {
        let name = name.into();
        match self.entries.iter_mut().find(|(n, _)| *n == name) {
            Some((_, present)) => Some(std::mem::replace(present, module)),
            None => {
                self.entries.push((name, module));
                None
            }
        }
    }

    /// Removes and returns the module of this name.
    pub fn remove(&mut self, name: &str) -> Option<M> {
        let at = self.entries.iter().position(|(n, _)| n == name)?;
        Some(self.entries.remove(at).1)
    }

    /// Returns the module of this name.
    pub fn get(&self, name: &str) -> Option<&M> {
        self.iter().find(|(n, _)| *n == name).map(|(_, module)| module)
    }

    /// Iterates over names and modules, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &M)> {
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

impl<M> std::ops::Index<&str> for ModuleDict<M> {
    type Output = M;

    /// # Panics
    /// If there is no module of this name.
    #[track_caller]
    fn index(&self, name: &str) -> &M {
        self.get(name).unwrap_or_else(|| panic!("there is no module named {name:?}"))
    }
}

impl<M: Module> Module for ModuleDict<M> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        for (name, module) in self.iter() {
            visitor.field(name, module);
        }
    }
}
