//! `Layer`: a module that is a function from one tensor to one tensor.

use crate::call;
use crate::module::{Module, parameters_so_far};
use crate::summary::Summary;
use pellucid_tensor::{DType, Result, Shape, Tensor, unwrap};
use std::sync::Arc;

/// A module with a computation of one input and one output: what [`Sequential`] is made of.
///
/// One method is written, [`compute`](Layer::compute); one is called, [`forward`](Layer::forward), which also runs
/// the [hooks](crate::hook) of the layer. A tuple of layers is a layer that applies them in order. Models of several
/// inputs need no trait: they have methods, which [`hook::call`](crate::hook::call) makes visible to hooks.
///
/// ```
/// # extern crate pellucid_nn as pellucid;
/// use pellucid_nn::{Layer, Linear, Module};
/// use pellucid_tensor::{DType, Result, Tensor};
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
/// # Ok::<(), pellucid_tensor::Error>(())
/// ```
///
/// [`Sequential`]: crate::Sequential
pub trait Layer: Module {
    /// The output for an input: the layer's mathematics.
    ///
    /// # Errors
    /// Those of the operations to which `x` does not fit.
    fn compute(&self, x: &Tensor) -> Result<Tensor>;

    /// The output for an input.
    ///
    /// # Panics
    /// With the error of [`try_forward`](Layer::try_forward), at the caller's line.
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let _call = pellucid_tensor::called();
        unwrap(self.try_forward(x))
    }

    /// [`forward`](Layer::forward) as a result.
    ///
    /// # Errors
    /// Those of [`compute`](Layer::compute). The error of a part of this layer is
    /// [`Error::Layer`](pellucid_tensor::Error::Layer), with the part's path in this layer: `2.encoder (Linear)`.
    fn try_forward(&self, x: &Tensor) -> Result<Tensor> {
        call::call_layer(self, x)
    }

    /// The dtype of the inputs for which [`build`](Layer::build), [`output_shape`](Layer::output_shape) and
    /// [`summary`](Layer::summary) are asked: that of the first parameter, else `f32`.
    fn input_dtype(&self) -> DType {
        parameters_so_far(self).first().map_or(DType::F32, |(_, p)| p.dtype())
    }

    /// Whether this is an activation: the product before it then has a pre-activation that its gradient reads, which
    /// a [plan](crate::graph::CapturePlan) lists.
    fn is_activation(&self) -> bool {
        false
    }

    /// The shape of the output for an input of this shape. Nothing is computed or changed, but layers that learn
    /// their widths from their first input ([`Lazy`](crate::Lazy)) do so.
    ///
    /// # Errors
    /// [`Error::Layer`](pellucid_tensor::Error::Layer) names the layer that does not take its input, or whose output's shape depends on values.
    fn output_shape(&self, input: &[usize]) -> Result<Shape> {
        call::output_shape(self, input)
    }

    /// Makes the parameters of layers that learn their widths from their first input, for inputs of this shape.
    /// What is there already stays.
    ///
    /// # Errors
    /// Those of [`output_shape`](Layer::output_shape).
    fn build(&self, input: &[usize]) -> Result<()> {
        self.output_shape(input).map(drop)
    }

    /// Every layer with the shape of its output, its parameters and its work, for an input of this shape; it prints
    /// as a table.
    ///
    /// ```
    /// use pellucid_nn::{Layer, Linear, Relu, sequential};
    /// let model = sequential![Linear::new(784, 256), Relu, Linear::new(256, 10)];
    /// let summary = model.summary(&[64, 784])?;
    /// assert_eq!(summary.parameters, 784 * 256 + 256 + 256 * 10 + 10);
    /// println!("{summary}");
    /// # Ok::<(), pellucid_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`output_shape`](Layer::output_shape).
    fn summary(&self, input: &[usize]) -> Result<Summary> {
        call::summary(self, input)
    }
}

/// What only points to a layer is that layer; but the place where it is kept may be the only one that it has.
macro_rules! pointers {
    ($($pointer:ty),*) => {$(
        impl<L: Layer + ?Sized> Layer for $pointer {
            fn compute(&self, x: &Tensor) -> Result<Tensor> {
                (**self).compute(x)
            }
            fn try_forward(&self, x: &Tensor) -> Result<Tensor> {
                if size_of_val(&**self) > 0 { (**self).try_forward(x) } else { call::call_layer(self, x) }
            }
            fn input_dtype(&self) -> DType {
                (**self).input_dtype()
            }
            fn is_activation(&self) -> bool {
                (**self).is_activation()
            }
        }
    )*};
}
pointers!(Box<L>, Arc<L>, &L);

/// The dtype of the inputs of layers that follow one another: what the first with parameters takes, unless one before it says
/// otherwise; those without take what comes.
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
    /// The layer's output, or x itself where there is no layer.
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Some(layer) => layer.try_forward(x),
            None => Ok(x.clone()),
        }
    }
}
