//! `Layer`: a module that is a function from one tensor to one tensor.

use crate::module::Module;
use pellucid_derive::Module;
use pellucid_tensor::Tensor;
use std::sync::Arc;

/// A module with a forward computation of one input and one output: what [`Sequential`] is made of.
///
/// A tuple of layers is a layer that applies them in order. Models of several inputs need no trait:
/// they have methods.
///
/// [`Sequential`]: crate::Sequential
pub trait Layer: Module {
    /// The output for an input.
    ///
    /// # Panics
    /// With the typed error of an operation to which `x` does not fit, at the caller's line.
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor;
}

macro_rules! pointers {
    ($($pointer:ty),*) => {$(
        impl<L: Layer + ?Sized> Layer for $pointer {
            #[track_caller]
            fn forward(&self, x: &Tensor) -> Tensor {
                (**self).forward(x)
            }
        }
    )*};
}
pointers!(Box<L>, Arc<L>, &L);

macro_rules! tuples {
    ($($name:ident $index:tt),*) => {
        impl<A: Layer, $($name: Layer),*> Layer for (A, $($name,)*) {
            #[track_caller]
            fn forward(&self, x: &Tensor) -> Tensor {
                let x = self.0.forward(x);
                $(let x = self.$index.forward(&x);)*
                x
            }
        }
    };
}
tuples!();
tuples!(B 1);
tuples!(B 1, C 2);
tuples!(B 1, C 2, D 3);
tuples!(B 1, C 2, D 3, E 4);
tuples!(B 1, C 2, D 3, E 4, F 5);
tuples!(B 1, C 2, D 3, E 4, F 5, G 6);
tuples!(B 1, C 2, D 3, E 4, F 5, G 6, H 7);

impl<L: Layer> Layer for Option<L> {
    /// The layer's output, or x itself where there is no layer.
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        match self {
            Some(layer) => layer.forward(x),
            None => x.clone(),
        }
    }
}

/// Every sample as a vector: `[N, d..]` becomes `[N, Πd]`.
#[derive(Clone, Copy, Debug, Default, Module)]
pub struct Flatten;

impl Layer for Flatten {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        x.flatten(1, -1)
    }
}
