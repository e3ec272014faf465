//! Layers that learn their widths from their first input.

use crate::call;
use crate::init;
use crate::layer::Layer;
use crate::module::Module;
use crate::parameter::Training;
use crate::visit::{Part, Visitor};
use pellucid_tensor::{DType, Result, Shape, Tensor, eager};
use std::sync::OnceLock;

type Make<L> = Box<dyn Fn(&Shape) -> Result<L> + Send + Sync>;

/// A layer that is made when it first sees the shape of an input, by [`forward`](Layer::forward) or
/// [`build`](Layer::build); from then on it is that layer. Before, its parameters are not there to be given to an optimizer, or
/// to be frozen: [`parameters`](Module::parameters) and [`freeze`](Module::freeze) refuse a model that is not built. Their dtype
/// is the [default](init::default_dtype) of when this is made. [`train`](Module::train) and [`eval`](Module::eval) before it is
/// built set the mode that the layer then has.
///
/// ```
/// use pellucid_nn::{Flatten, Layer, Linear, Module, Relu, sequential};
/// let model = sequential![Flatten::new(), Linear::lazy(32), Relu, Linear::lazy(10)];
/// assert!(model.state_dict().is_empty());
/// model.build(&[64, 1, 28, 28])?;
/// let names: Vec<String> = model.named_parameters().into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["1.weight", "1.bias", "3.weight", "3.bias"]);
/// assert_eq!(model.parameter_count(), 784 * 32 + 32 + 32 * 10 + 10);
/// # Ok::<(), pellucid_tensor::Error>(())
/// ```
pub struct Lazy<L> {
    make: Make<L>,
    dtype: DType,
    layer: OnceLock<L>,
    /// The mode that the layer gets when it is made, if that was set before.
    training: Training,
}

impl<L> Lazy<L> {
    /// A layer that `make` makes for the shape of its first input.
    pub fn new(make: impl Fn(&Shape) -> Result<L> + Send + Sync + 'static) -> Lazy<L> {
        let (dtype, layer) = (init::default_dtype(), OnceLock::new());
        Lazy { make: Box::new(make), dtype, layer, training: Training::new() }
    }

    /// The same layer with options: `with` gets the layer when it is made, and returns it as it shall be.
    ///
    /// ```
    /// use pellucid_nn::{Conv2d, Layer};
    /// let conv = Conv2d::lazy(16, 3).with(|conv| conv.stride(2).padding(1).without_bias());
    /// assert_eq!(conv.output_shape(&[1, 8, 32, 32])?.dims(), [1, 16, 16, 16]);
    /// # Ok::<(), pellucid_tensor::Error>(())
    /// ```
    pub fn with(self, with: impl Fn(L) -> L + Send + Sync + 'static) -> Lazy<L>
    where
        L: 'static,
    {
        let make = self.make;
        Lazy { dtype: self.dtype, training: self.training, ..Lazy::new(move |input| make(input).map(&with)) }
    }

    /// The layer, if it is there.
    pub fn get(&self) -> Option<&L> {
        self.layer.get()
    }

    /// The layer, made for inputs of this shape if it is not there.
    fn made_for(&self, input: &Shape) -> Result<&L>
    where
        L: Module,
    {
        if let Some(layer) = self.layer.get() {
            return Ok(layer);
        }
        // Its first values exist even if what it is made in is only traced.
        let layer = eager(|| init::in_dtype(self.dtype, || (self.make)(input))).map_err(|e| call::failed(self, e))?;
        if !self.training.get() {
            layer.eval();
        }
        // Another thread may have been first: its layer is the one.
        Ok(self.layer.get_or_init(|| layer))
    }
}

impl<L: Module> Module for Lazy<L> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        match self.layer.get() {
            Some(layer) => layer.visit(visitor),
            None => {
                visitor.unbuilt(self);
                visitor.part(Part::Training(&self.training));
            }
        }
    }
}

impl<L: Layer> Layer for Lazy<L> {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        self.made_for(x.shape())?.compute(x)
    }

    fn try_forward(&self, x: &Tensor) -> Result<Tensor> {
        self.made_for(x.shape())?.try_forward(x)
    }

    fn input_dtype(&self) -> DType {
        self.layer.get().map_or(self.dtype, L::input_dtype)
    }
}
