//! Layers whose widths are determined by their first input.

use crate::call;
use crate::init;
use crate::layer::Layer;
use crate::module::{Module, display_as_tree};
use crate::parameter::TrainingMode;
use crate::visit::{ModulePart, Visit, Visitor};
use pellucid_tensor::{DType, Result, Shape, Tensor, eager};
use std::fmt;
use std::sync::{Arc, OnceLock};

type LayerFactory<L> = Arc<dyn Fn(&Shape) -> Result<L> + Send + Sync>;

/// A layer that is created when it first sees the shape of an input, in [`forward`](Layer::forward) or
/// [`build`](Layer::build).
///
/// Before that it has no parameters: [`parameters`](Module::parameters), [`state_dict`](Module::state_dict) and
/// [`freeze`](Module::freeze) panic. Parameters get the [default dtype](init::default_dtype) at the time of `new`.
/// [`train`](Module::train) and [`eval`](Module::eval) before the build set the mode that the layer has after the
/// build.
///
/// ```
/// use pellucid::nn::{Flatten, Layer, Linear, Module, Relu, sequential};
/// let model = sequential![Flatten::new(), Linear::lazy(32), Relu, Linear::lazy(10)];
/// model.build(&[64, 1, 28, 28])?;
/// let names: Vec<String> = model.named_parameters().into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["1.weight", "1.bias", "3.weight", "3.bias"]);
/// assert_eq!(model.parameter_count(), 784 * 32 + 32 + 32 * 10 + 10);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// Clones share parameters only if they are created after the build: an earlier clone is built separately, with
/// parameters of its own. Call [`build`](Layer::build) before tying layers by clones. A built layer stays built,
/// even if a later layer rejects the same call.
#[derive(Clone)]
pub struct Lazy<L> {
    make: LayerFactory<L>,
    dtype: DType,
    layer: OnceLock<L>,
    /// The mode that the layer gets when it is created.
    training: TrainingMode,
}

impl<L> Lazy<L> {
    /// Creates a lazy layer; `make` creates the layer for the shape of its first input.
    pub fn new(make: impl Fn(&Shape) -> Result<L> + Send + Sync + 'static) -> Lazy<L> {
        let (dtype, layer) = (init::default_dtype(), OnceLock::new());
        Lazy { make: Arc::new(make), dtype, layer, training: TrainingMode::new() }
    }

    /// Adds options: `with` is applied to the layer when it is created.
    ///
    /// ```
    /// use pellucid::nn::{Conv2d, Layer};
    /// let conv = Conv2d::lazy(16, 3).with(|conv| conv.stride(2).padding(1).bias(false));
    /// assert_eq!(conv.output_shape(&[1, 8, 32, 32])?.dims(), [1, 16, 16, 16]);
    /// # Ok::<(), pellucid::Error>(())
    /// ```
    pub fn with(self, with: impl Fn(L) -> L + Send + Sync + 'static) -> Lazy<L>
    where
        L: 'static,
    {
        let make = self.make;
        Lazy { dtype: self.dtype, training: self.training, ..Lazy::new(move |input| make(input).map(&with)) }
    }

    /// Returns the layer, if it is built.
    pub fn get(&self) -> Option<&L> {
        self.layer.get()
    }

    /// Returns the layer. If it is not built, it is created for the shape of the input, on the input's device.
    fn layer_for(&self, input: &Tensor) -> Result<&L>
    where
        L: Module,
    {
        if let Some(layer) = self.layer.get() {
            return Ok(layer);
        }
        // Initial values are computed even while the first call is only traced.
        let layer = eager(|| {
            let layer = init::in_dtype(self.dtype, || (self.make)(input.shape()))?;
            layer.to_(input.device())?;
            Ok(layer)
        })
        .map_err(|e| call::with_failed_path(self, e))?;
        if !self.training.own() {
            layer.eval();
        }
        // If another thread was first, its layer is used.
        Ok(self.layer.get_or_init(|| layer))
    }
}

impl<L: Module> fmt::Debug for Lazy<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tree().fmt(f)
    }
}

display_as_tree! {
    [L: Module] Lazy<L>;
}

impl<L: Module> Module for Lazy<L> {}

impl<L: Module> Visit for Lazy<L> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        match self.layer.get() {
            Some(layer) => layer.visit(visitor),
            None => {
                visitor.unbuilt(self);
                visitor.part(ModulePart::TrainingMode(&self.training));
            }
        }
    }
}

impl<L: Layer> Layer for Lazy<L> {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        self.layer_for(x)?.compute(x)
    }

    fn try_forward(&self, x: &Tensor) -> Result<Tensor> {
        self.layer_for(x)?.try_forward(x)
    }

    fn input_dtype(&self) -> DType {
        self.layer.get().map_or(self.dtype, L::input_dtype)
    }
}
