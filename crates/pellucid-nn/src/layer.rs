//! The trait `Layer`: modules that map one tensor to one tensor.

use crate::call;
use crate::delegate::delegate;
use crate::module::{DynModule, Module, as_dyn, parameters_so_far};
use crate::summary::Summary;
use pellucid_tensor::{DType, Result, Shape, Tensor, unwrap};
use std::sync::Arc;

/// A module that maps one tensor to one tensor; a [`Sequential`] consists of layers.
///
/// Implement [`compute`](Layer::compute); call [`forward`](Layer::forward), which also runs the [hooks](crate::hook) of
/// the layer. A tuple of layers is a layer that applies them in order. A model of several inputs has plain methods
/// instead; [`hook::call`](crate::hook::call) makes them visible to hooks.
///
/// ```
/// use pellucid::nn::{Layer, Linear, Module};
/// use pellucid::{DType, Result, Tensor};
///
/// /// x + f(x) (He et al. 2016).
/// #[derive(Module)]
/// struct Residual<L>(L);
///
/// impl<L: Layer> Layer for Residual<L> {
///     fn compute(&self, x: &Tensor) -> Result<Tensor> {
///         Ok(x + self.0.try_forward(x)?)
///     }
/// }
///
/// let block = Residual((Linear::new(4, 8), Linear::new(8, 4)));
/// assert_eq!(block.forward(&Tensor::ones([3, 4], DType::F32)).shape().dims(), [3, 4]);
/// assert_eq!(block.output_shape(&[3, 4])?.dims(), [3, 4]);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// [`Sequential`]: crate::Sequential
pub trait Layer: Module {
    /// Computes the output for an input.
    ///
    /// # Errors
    /// The errors of the operations that reject `x`.
    fn compute(&self, x: &Tensor) -> Result<Tensor>;

    /// Returns the output for an input, and runs hooks.
    ///
    /// # Panics
    /// Panics with the error of [`try_forward`](Layer::try_forward) at the caller's line.
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let _call = pellucid_tensor::note_call_location();
        unwrap(self.try_forward(x))
    }

    /// Returns the output for an input, and runs hooks, as [`forward`](Layer::forward) does, or returns an error.
    ///
    /// # Errors
    /// The errors of [`compute`](Layer::compute). If a part of this layer fails, the call returns
    /// [`Error::Layer`](pellucid_tensor::Error::Layer) with the part's path in this layer: `2.encoder (Linear)`.
    fn try_forward(&self, x: &Tensor) -> Result<Tensor> {
        call::call_layer(self, x)
    }

    /// Returns the input dtype that [`build`](Layer::build), [`output_shape`](Layer::output_shape) and
    /// [`summary`](Layer::summary) assume: the dtype of the first parameter, otherwise `f32`.
    fn input_dtype(&self) -> DType {
        first_dtype(as_dyn(&self))
    }

    /// Returns the shape of the output for an input of this shape, without running a kernel. Only layers that learn
    /// their widths from their first input ([`Lazy`](crate::Lazy)) change.
    ///
    /// # Errors
    /// [`Error::Layer`](pellucid_tensor::Error::Layer) names the layer that rejects its input, or whose output shape
    /// depends on values.
    fn output_shape(&self, input: &[usize]) -> Result<Shape> {
        call::output_shape(&self, input)
    }

    /// Creates the parameters of lazy layers, whose widths depend on their first input, for inputs of this shape.
    /// Existing parameters stay.
    ///
    /// # Errors
    /// The errors of [`output_shape`](Layer::output_shape). Lazy layers before the one that rejects its input stay
    /// built: a model that was built for a wrong shape must be created again.
    fn build(&self, input: &[usize]) -> Result<()> {
        self.output_shape(input).map(drop)
    }

    /// Returns a table of all layers for an input of this shape: output shapes, parameters and work. It implements
    /// `Display`.
    ///
    /// ```
    /// use pellucid::nn::{Layer, Linear, Relu, sequential};
    /// let model = sequential![Linear::new(784, 256), Relu, Linear::new(256, 10)];
    /// let summary = model.summary(&[64, 784])?;
    /// assert_eq!(summary.parameters, 784 * 256 + 256 + 256 * 10 + 10);
    /// println!("{summary}");
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`output_shape`](Layer::output_shape).
    fn summary(&self, input: &[usize]) -> Result<Summary> {
        // Lazy layers have no parameters to list before they are built.
        self.build(input)?;
        call::summary(&self, input)
    }
}

// A pointer to a layer forwards to it, without an id of its own: the box may be the only address that identifies a
// zero-sized layer.
macro_rules! pointers {
    ($($pointer:ty),*) => {$(
        impl<L: Layer + ?Sized> Layer for $pointer {
            delegate! {
                [**self]
                fn compute(self: &Self, x: &Tensor) -> Result<Tensor>;
                fn input_dtype(self: &Self) -> DType;
            }

            fn try_forward(&self, x: &Tensor) -> Result<Tensor> {
                if size_of_val(&**self) > 0 { (**self).try_forward(x) } else { call::call_layer(self, x) }
            }
        }
    )*};
}
pointers!(Box<L>, Arc<L>, &L, &mut L);

/// Returns the dtype of the first parameter, or `f32`.
fn first_dtype(layer: &dyn DynModule) -> DType {
    layer.parameters().first().map_or(DType::F32, |(_, parameter)| parameter.dtype())
}

/// Returns the input dtype of layers in sequence: the dtype of the first layer with parameters, unless an earlier layer
/// overrides `input_dtype`. Layers without parameters accept any dtype.
pub(crate) fn dtype_for<'a>(layers: impl IntoIterator<Item = &'a dyn Layer>) -> DType {
    for layer in layers {
        let dtype = layer.input_dtype();
        if dtype != DType::F32 || !parameters_so_far(layer).is_empty() {
            return dtype;
        }
    }
    DType::F32
}

macro_rules! tuples {
    ($($name:ident $index:tt),*) => {
        impl<A: Layer, $($name: Layer),*> Layer for (A, $($name,)*) {
            fn compute(&self, x: &Tensor) -> Result<Tensor> {
                let x = self.0.try_forward(x)?;
                $(let x = self.$index.try_forward(&x)?;)*
                Ok(x)
            }
            fn input_dtype(&self) -> DType {
                dtype_for([&self.0 as &dyn Layer, $(&self.$index),*])
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
    /// Returns the layer's output, or x if there is no layer.
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Some(layer) => layer.try_forward(x),
            None => Ok(x.clone()),
        }
    }

    fn input_dtype(&self) -> DType {
        self.as_ref().map_or(DType::F32, |layer| layer.input_dtype())
    }
}
