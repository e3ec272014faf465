//! The inputs of a model: one tensor, a tuple or an array of tensors, or tensors by name.

use crate::layer::Layer;
use crate::module::{DynModule, Module};
use crate::visit::{Visit, Visitor};
use pellucid_tensor::{DType, Device, Error, Result, Tensor, ops};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Arc, PoisonError, RwLock};

/// The inputs of a model.
pub trait Batch: Clone + Send + Sync {
    /// Returns a batch of the same structure in which `f(name, tensor)` replaces each tensor.
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

macro_rules! tuples {
    ($(($($tensor:ident $index:tt),+);)*) => {$(
        /// Inputs by position, named `0`, `1`, ...
        impl Batch for ($($tensor,)+) {
            fn map(&self, f: &mut dyn FnMut(&str, &Tensor) -> Result<Tensor>) -> Result<Self> {
                Ok(($(f(stringify!($index), &self.$index)?,)+))
            }

            fn each(&self, f: &mut dyn FnMut(&str, &Tensor)) {
                $(f(stringify!($index), &self.$index);)+
            }
        }

        impl MultiInput for ($($tensor,)+) {}
    )*};
}
tuples! {
    (Tensor 0, Tensor 1);
    (Tensor 0, Tensor 1, Tensor 2);
    (Tensor 0, Tensor 1, Tensor 2, Tensor 3);
}

/// Inputs by position, named `0`, `1`, ...
impl<const N: usize> Batch for [Tensor; N] {
    fn map(&self, f: &mut dyn FnMut(&str, &Tensor) -> Result<Tensor>) -> Result<Self> {
        let mapped = self.iter().enumerate().map(|(i, tensor)| f(&position_name(i), tensor));
        let mapped: Vec<Tensor> = mapped.collect::<Result<_>>()?;
        Ok(mapped.try_into().unwrap_or_else(|_| unreachable!("there is one result for each tensor")))
    }

    fn each(&self, f: &mut dyn FnMut(&str, &Tensor)) {
        self.iter().enumerate().for_each(|(i, tensor)| f(&position_name(i), tensor));
    }
}

impl<const N: usize> MultiInput for [Tensor; N] {}

/// Returns the name of an input of an array.
fn position_name(i: usize) -> Cow<'static, str> {
    // A step names its inputs in every launch; up to 8 inputs need no allocation.
    const FIRST: [&str; 8] = ["0", "1", "2", "3", "4", "5", "6", "7"];
    FIRST.get(i).map_or_else(|| Cow::Owned(i.to_string()), |name| Cow::Borrowed(*name))
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
/// of several inputs implements this trait for a tuple, an array or a map of tensors. Its `compute` should
/// call [`hook::call`](crate::hook::call), so that hooks of the model itself observe the call and errors name the
/// model.
///
/// ```
/// use pellucid::nn::graph::{InferenceModel, Model};
/// use pellucid::nn::{Layer, Linear, Module, hook};
/// use pellucid::{DType, Result, Tensor, ops};
///
/// #[derive(Module)]
/// struct Siamese {
///     encoder: Linear,
///     head: Linear,
/// }
///
/// impl Model<(Tensor, Tensor)> for Siamese {
///     fn compute(&self, (a, b): &(Tensor, Tensor)) -> Result<Tensor> {
///         hook::call(self, &[a, b], || {
///             let (a, b) = (self.encoder.try_forward(a)?, self.encoder.try_forward(b)?);
///             self.head.try_forward(&ops::abs(&ops::sub(&a, &b)?)?)
///         })
///     }
/// }
///
/// let model = Siamese { encoder: Linear::new(4, 8), head: Linear::new(8, 1) };
/// let inputs = (Tensor::zeros([2, 4], DType::F32), Tensor::zeros([2, 4], DType::F32));
/// assert_eq!(InferenceModel::new(&model, &[2]).run(&inputs)?.shape().dims(), [2, 1]);
/// # Ok::<(), pellucid::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a model of the inputs `{X}`",
    note = "implement `Layer` (method `compute`) for a model of one tensor, or `Model<(Tensor, Tensor)>` for several"
)]
pub trait Model<X = Tensor>: Module {
    /// Returns the logits for a batch.
    ///
    /// # Errors
    /// The errors of the layers that reject their input.
    fn compute(&self, x: &X) -> Result<Tensor>;
}

/// A batch of several tensors. Implement it for your own batch types: pointers to a model of such a batch (`&M`,
/// `&mut M`, `Box<M>`, `Arc<M>`) are then models too. (For single tensors this follows from [`Layer`].)
///
/// ```
/// use pellucid::nn::graph::{GraphTrainer, Model};
/// use pellucid::nn::{Layer, Linear, Module, loss::MseLoss, optim::{Sgd, SgdOptions}};
/// use pellucid::{DType, Result, Tensor};
///
/// #[derive(Module)]
/// struct Sum(Linear, Linear);
///
/// impl Model<(Tensor, Tensor)> for Sum {
///     fn compute(&self, (a, b): &(Tensor, Tensor)) -> Result<Tensor> {
///         Ok(self.0.try_forward(a)? + self.1.try_forward(b)?)
///     }
/// }
///
/// let model = Sum(Linear::new(2, 1), Linear::new(3, 1));
/// let optimizer = Sgd::new(model.parameters(), SgdOptions::default());
/// let mut trainer = GraphTrainer::new(&model, MseLoss::default(), &optimizer);
/// trainer.prepare(&(Tensor::zeros([4, 2], DType::F32), Tensor::zeros([4, 3], DType::F32)))?;
/// # Ok::<(), pellucid::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a batch of several tensors",
    note = "a model of one tensor implements `Layer` (method `compute`), not `Model<Tensor>`"
)]
pub trait MultiInput: Batch {}

impl MultiInput for BTreeMap<String, Tensor> {}

macro_rules! pointers {
    ($($pointer:ty),*) => {$(
        impl<X: MultiInput, M: Model<X> + ?Sized> Model<X> for $pointer {
            fn compute(&self, x: &X) -> Result<Tensor> {
                (**self).compute(x)
            }
        }
    )*};
}
pointers!(&M, &mut M, Box<M>, Arc<M>);

impl<L: Layer + ?Sized> Model<Tensor> for L {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        self.try_forward(x)
    }
}

// Steps are recorded by functions without type parameters, which are compiled once, in this crate. Only the few methods
// of the traits below are compiled again for each model and batch type of a program.

/// The tensors of a type-erased batch.
pub(super) trait BatchTensors {
    /// Calls `f` with the name of each tensor and the tensor, in order.
    fn each_tensor(&self, f: &mut dyn FnMut(&str, &Tensor));

    /// Calls `f` with the index and the name of each tensor and the tensor, in order, until an error.
    ///
    /// # Errors
    /// The first error of `f`; an error if the inputs of the batch are not `names`, unless `names` is empty.
    fn try_each_tensor(
        &self,
        op: &'static str,
        names: &[String],
        f: &mut dyn FnMut(usize, &str, &Tensor) -> Result<()>,
    ) -> Result<()> {
        let (mut count, mut result) = (0, Ok(()));
        self.each_tensor(&mut |name, tensor| {
            if result.is_ok() {
                result = match names.get(count) {
                    Some(expected) if expected != name => {
                        Err(Error::invalid(op, format!("the input must be `{expected}`, got `{name}`")))
                    }
                    _ => f(count, name, tensor),
                };
            }
            count += 1;
        });
        result?;
        match names.len() {
            expected if expected == 0 || expected == count => Ok(()),
            expected => Err(Error::invalid(op, format!("the batch must have {expected} inputs, got {count}"))),
        }
    }
}

impl<X: Batch> BatchTensors for X {
    fn each_tensor(&self, f: &mut dyn FnMut(&str, &Tensor)) {
        self.each(f);
    }
}

/// A model that computes its output from a list of inputs. The type of its batch is erased.
pub(super) trait ModelOfInputs: DynModule + Send + Sync {
    /// Returns the output for these inputs, in the order of the batch.
    fn output(&self, inputs: &[Tensor]) -> Result<Tensor>;
}

/// A pointer to a model, with the structure of its batch.
pub(super) struct BoundModel<P, X> {
    pub(super) model: P,
    /// A batch of empty tensors with the structure of the model's batches; `None` before the first batch.
    structure: RwLock<Option<X>>,
}

impl<X: Batch, P: Deref<Target: Model<X>>> BoundModel<P, X> {
    pub(super) fn new(model: P) -> BoundModel<P, X> {
        BoundModel { model, structure: RwLock::new(None) }
    }

    /// Stores the structure of the batch `like`, as empty tensors.
    pub(super) fn set_structure(&self, like: &X) -> Result<()> {
        let structure = like.map(&mut |_, tensor| ops::zeros([0], tensor.dtype()))?;
        *self.structure.write().unwrap_or_else(PoisonError::into_inner) = Some(structure);
        Ok(())
    }
}

impl<X: Batch, P: Deref<Target: Model<X>> + Send + Sync> DynModule for BoundModel<P, X> {
    fn visit_dyn(&self, visitor: &mut Visitor<'_>) {
        Visit::visit(&*self.model, visitor);
    }
}

impl<X: Batch, P: Deref<Target: Model<X>> + Send + Sync> ModelOfInputs for BoundModel<P, X> {
    fn output(&self, inputs: &[Tensor]) -> Result<Tensor> {
        let structure = self.structure.read().unwrap_or_else(PoisonError::into_inner).clone();
        let mut inputs = inputs.iter();
        let missing = || Error::invalid("batch", "the batch must have the same inputs as the first batch");
        self.model.compute(&structure.ok_or_else(missing)?.map(&mut |_, _| inputs.next().cloned().ok_or_else(missing))?)
    }
}

/// Returns an error unless an input has the dtype that a step expects.
pub(super) fn check_batch_dtype(op: &'static str, expected: DType, name: &str, x: &Tensor) -> Result<()> {
    match x.dtype() == expected {
        true => Ok(()),
        false => {
            let help = format!("the step expects `{name}` of dtype {expected}; use to_dtype()");
            Err(Error::dtypes(op, [x.dtype(), expected], help))
        }
    }
}

/// Returns the tensor as the input of a step on `device`: without autograd history, and copied if it is free and on
/// another device.
///
/// # Errors
/// [`Error::DeviceMismatch`] for a tensor that is pinned to another device.
pub(super) fn as_step_input(op: &'static str, device: Device, tensor: &Tensor) -> Result<Tensor> {
    let tensor = if tensor.requires_grad() { tensor.detach() } else { tensor.clone() };
    match (tensor.device() == device, tensor.is_free()) {
        (true, _) => Ok(tensor),
        (false, true) => tensor.try_to(device),
        (false, false) => {
            let devices = [device, tensor.device()].map(|device| device.to_string()).into();
            Err(Error::DeviceMismatch { op, devices })
        }
    }
}
