//! The inputs of a model: one tensor, a tuple of tensors, or tensors by name.

use crate::layer::Layer;
use crate::module::Module;
use pellucid_tensor::{Result, Tensor};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The inputs of a model, each of which has a fixed buffer in a recorded step.
pub trait Batch: Clone {
    /// Returns a batch of the same structure with `f(name, tensor)` for each tensor.
    ///
    /// # Errors
    /// The first error of `f`.
    fn map(&self, f: &mut dyn FnMut(&str, &Tensor) -> Result<Tensor>) -> Result<Self>;

    /// Calls `f` with the name of each tensor and the tensor, in order.
    fn each(&self, f: &mut dyn FnMut(&str, &Tensor));

    /// Returns the tensors with their names, in order.
    fn named(&self) -> Vec<(String, Tensor)> {
        let mut named = Vec::new();
        self.each(&mut |name, tensor| named.push((name.to_string(), tensor.clone())));
        named
    }
}

/// One input, named `x`.
impl Batch for Tensor {
    fn map(&self, f: &mut dyn FnMut(&str, &Tensor) -> Result<Tensor>) -> Result<Tensor> {
        f("x", self)
    }

    fn each(&self, f: &mut dyn FnMut(&str, &Tensor)) {
        f("x", self);
    }
}

/// Inputs by position, named `0`, `1`, ...
impl Batch for (Tensor, Tensor) {
    fn map(&self, f: &mut dyn FnMut(&str, &Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok((f("0", &self.0)?, f("1", &self.1)?))
    }

    fn each(&self, f: &mut dyn FnMut(&str, &Tensor)) {
        f("0", &self.0);
        f("1", &self.1);
    }
}

/// Inputs by position, named `0`, `1`, ...
impl Batch for (Tensor, Tensor, Tensor) {
    fn map(&self, f: &mut dyn FnMut(&str, &Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok((f("0", &self.0)?, f("1", &self.1)?, f("2", &self.2)?))
    }

    fn each(&self, f: &mut dyn FnMut(&str, &Tensor)) {
        f("0", &self.0);
        f("1", &self.1);
        f("2", &self.2);
    }
}

/// Inputs by name.
impl Batch for BTreeMap<String, Tensor> {
    fn map(&self, f: &mut dyn FnMut(&str, &Tensor) -> Result<Tensor>) -> Result<Self> {
        self.iter().map(|(name, tensor)| Ok((name.clone(), f(name, tensor)?))).collect()
    }

    fn each(&self, f: &mut dyn FnMut(&str, &Tensor)) {
        self.iter().for_each(|(name, tensor)| f(name, tensor));
    }
}

/// A module that computes logits from a batch, and can be recorded. Every [`Layer`] is a model of one tensor. A model
/// of several inputs implements this trait for a tuple or a map of tensors.
///
/// ```
/// # extern crate pellucid_nn as pellucid;
/// use pellucid_nn::graph::{LossKind, Model, make_plan};
/// use pellucid_nn::{Layer, Linear, Module};
/// use pellucid_tensor::{DType, Result, Tensor, ops};
///
/// #[derive(Module)]
/// struct Siamese {
///     encoder: Linear,
///     head: Linear,
/// }
///
/// impl Model<(Tensor, Tensor)> for Siamese {
///     fn run(&self, (a, b): &(Tensor, Tensor)) -> Result<Tensor> {
///         let (a, b) = (self.encoder.try_forward(a)?, self.encoder.try_forward(b)?);
///         self.head.try_forward(&ops::abs(&ops::sub(&a, &b)?)?)
///     }
/// }
///
/// let model = Siamese { encoder: Linear::new(4, 8), head: Linear::new(8, 1) };
/// let inputs = (Tensor::zeros([2, 4], DType::F32), Tensor::zeros([2, 4], DType::F32));
/// let plan = make_plan(&model, &inputs, LossKind::Bce, 8 << 20)?;
/// assert_eq!(plan.loss.d_y.shape().dims(), [2, 1]);
/// # Ok::<(), pellucid_tensor::Error>(())
/// ```
pub trait Model<X = Tensor>: Module {
    /// Returns the logits for a batch.
    ///
    /// # Errors
    /// Those of the layers that reject their input.
    fn run(&self, x: &X) -> Result<Tensor>;
}

/// A batch of several tensors. Implement it for your own batch types: a borrowed, boxed or shared model of such a batch
/// is then a model too. (For single tensors this follows from [`Layer`].)
///
/// ```
/// # extern crate pellucid_nn as pellucid;
/// use pellucid_nn::graph::{GraphTrainer, Model};
/// use pellucid_nn::{Layer, Linear, Module, loss::MseLoss, optim::{Sgd, SgdOptions}};
/// use pellucid_tensor::{DType, Result, Tensor};
///
/// #[derive(Module)]
/// struct Sum(Linear, Linear);
///
/// impl Model<(Tensor, Tensor)> for Sum {
///     fn run(&self, (a, b): &(Tensor, Tensor)) -> Result<Tensor> {
///         Ok(self.0.try_forward(a)? + self.1.try_forward(b)?)
///     }
/// }
///
/// let model = Sum(Linear::new(2, 1), Linear::new(3, 1));
/// let optimizer = Sgd::new(model.parameters(), SgdOptions::default())?;
/// let mut trainer = GraphTrainer::new(&model, MseLoss::default(), &optimizer, 8 << 20);
/// trainer.compile_for(&(Tensor::zeros([4, 2], DType::F32), Tensor::zeros([4, 3], DType::F32)))?;
/// # Ok::<(), pellucid_tensor::Error>(())
/// ```
pub trait MultiInput: Batch {}

impl MultiInput for (Tensor, Tensor) {}
impl MultiInput for (Tensor, Tensor, Tensor) {}
impl MultiInput for BTreeMap<String, Tensor> {}

macro_rules! pointers {
    ($($pointer:ty),*) => {$(
        impl<X: MultiInput, M: Model<X> + ?Sized> Model<X> for $pointer {
            fn run(&self, x: &X) -> Result<Tensor> {
                (**self).run(x)
            }
        }
    )*};
}
pointers!(&M, Box<M>, Arc<M>);

impl<L: Layer + ?Sized> Model<Tensor> for L {
    fn run(&self, x: &Tensor) -> Result<Tensor> {
        self.try_forward(x)
    }
}
