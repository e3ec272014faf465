//! `Sequential`: layers of any kinds, one after the other.

use crate::layer::Layer;
use crate::module::{Module, Visitor};
use pellucid_tensor::Tensor;

/// Layers that are applied in order, each to the output of the one before.
///
/// The parameters are named by position, as in PyTorch: `0.weight`, `2.bias`. Made by
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
    /// No layer yet: the identity.
    pub fn new() -> Sequential {
        Sequential::default()
    }

    /// Adds a layer at the end.
    pub fn push(&mut self, layer: impl Layer + 'static) {
        self.layers.push(Box::new(layer));
    }

    /// The layers, in order.
    pub fn layers(&self) -> &[Box<dyn Layer>] {
        &self.layers
    }
}

impl Module for Sequential {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.layers.visit(visitor);
    }
}

impl Layer for Sequential {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let Some((first, rest)) = self.layers.split_first() else { return x.clone() };
        let mut x = first.forward(x);
        for layer in rest {
            x = layer.forward(&x);
        }
        x
    }
}

impl FromIterator<Box<dyn Layer>> for Sequential {
    fn from_iter<I: IntoIterator<Item = Box<dyn Layer>>>(layers: I) -> Sequential {
        Sequential { layers: layers.into_iter().collect() }
    }
}

/// A [`Sequential`](crate::Sequential) of these layers.
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
