//! The inputs of a model: one tensor, a tuple of tensors, or tensors by name.

use crate::call::first_device;
use crate::layer::Layer;
use crate::loss::{Loss, LossKind};
use crate::module::{Module, ModuleParts};
use crate::parameter::Parameter;
use crate::visit::Visitor;
use pellucid_tensor::{DType, Device, Error, Result, Shape, Tensor, ops};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

/// The inputs of a model, each of which has a fixed buffer in a recorded step.
pub trait Batch: Clone + Send + Sync {
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
/// use pellucid::nn::graph::{Model, StepPlan};
/// use pellucid::nn::{Layer, Linear, Module, loss::LossKind};
/// use pellucid::{DType, Result, Tensor, ops};
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
/// let plan = StepPlan::new(&model, &inputs, LossKind::Bce)?;
/// assert_eq!(plan.loss.logits_gradient.shape().dims(), [2, 1]);
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
    fn run(&self, x: &X) -> Result<Tensor>;
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
///     fn run(&self, (a, b): &(Tensor, Tensor)) -> Result<Tensor> {
///         Ok(self.0.try_forward(a)? + self.1.try_forward(b)?)
///     }
/// }
///
/// let model = Sum(Linear::new(2, 1), Linear::new(3, 1));
/// let optimizer = Sgd::new(model.parameters(), SgdOptions::default());
/// let mut trainer = GraphTrainer::new(&model, MseLoss::default(), &optimizer);
/// trainer.compile_for(&(Tensor::zeros([4, 2], DType::F32), Tensor::zeros([4, 3], DType::F32)))?;
/// # Ok::<(), pellucid::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a batch of several tensors",
    note = "a model of one tensor implements `Layer` (method `compute`), not `Model<Tensor>`"
)]
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
pointers!(&M, &mut M, Box<M>, Arc<M>);

impl<L: Layer + ?Sized> Model<Tensor> for L {
    fn run(&self, x: &Tensor) -> Result<Tensor> {
        self.try_forward(x)
    }
}

// Steps are recorded by functions without type parameters, which are compiled once, in this crate. A program that names
// a model, a loss and a batch compiles only the few methods of the traits below for them.

/// The tensors of a batch, without its type.
pub(super) trait BatchTensors {
    /// Calls `f` with the name of each tensor and the tensor, in order.
    fn each_tensor(&self, f: &mut dyn FnMut(&str, &Tensor));
}

impl<X: Batch> BatchTensors for X {
    fn each_tensor(&self, f: &mut dyn FnMut(&str, &Tensor)) {
        self.each(f);
    }
}

impl dyn BatchTensors + '_ {
    /// Returns the tensors with their names, in order.
    pub(super) fn named(&self) -> Vec<(String, Tensor)> {
        let mut named = Vec::new();
        self.each_tensor(&mut |name, tensor| named.push((name.to_string(), tensor.clone())));
        named
    }
}

/// A model with a batch, without their types.
pub(super) trait BoundModel: ModuleParts + Send + Sync {
    /// Returns the logits for the contents of the batch.
    fn logits(&self) -> Result<Tensor>;

    /// Returns the batch.
    fn batch(&self) -> &dyn BatchTensors;
}

/// A pointer to a model, with a batch.
pub(super) struct ModelWithBatch<P, X> {
    model: P,
    x: X,
}

impl<X: Batch, P: Deref<Target: Model<X>> + Send + Sync> ModelWithBatch<P, X> {
    /// Binds a model to the tensors of a batch. Free tensors are copied to the model's device.
    pub(super) fn new(model: P, x: &X) -> Result<Self> {
        let mut bound = ModelWithBatch { model, x: x.map(&mut detached)? };
        let device = first_device(&bound);
        bound.x = bound.x.map(&mut |_, tensor| placed_on(device, tensor))?;
        Ok(bound)
    }

    /// Binds a model to new buffers of the shapes and dtypes of a batch.
    pub(super) fn with_buffers<'f>(model: P, like: &X) -> Result<Arc<dyn BoundModel + 'f>>
    where
        P: 'f,
        X: 'f,
    {
        let mut bound = ModelWithBatch { model, x: like.map(&mut detached)? };
        let device = first_device(&bound);
        bound.x = like.map(&mut |_, tensor| zeros_on(device, tensor.shape(), tensor.dtype()))?;
        Ok(Arc::new(bound))
    }
}

/// Returns an error if a tensor is pinned to a device other than `device`.
pub(super) fn check_device(op: &'static str, device: Device, tensor: &Tensor) -> Result<()> {
    if tensor.is_free() || tensor.device() == device {
        return Ok(());
    }
    let devices = [device, tensor.device()].map(|device| device.to_string()).into();
    Err(Error::DeviceMismatch { op, devices })
}

/// Returns an error if a tensor of a batch cannot be copied into its buffer because of its device.
pub(super) fn check_devices(op: &'static str, x: &dyn BatchTensors, buffers: &dyn BatchTensors) -> Result<()> {
    let mut devices = Vec::new();
    buffers.each_tensor(&mut |_, buffer| devices.push(buffer.device()));
    let (mut devices, mut checked) = (devices.into_iter(), Ok(()));
    x.each_tensor(&mut |_, x| {
        if let (Some(device), Ok(())) = (devices.next(), &checked) {
            checked = check_device(op, device, x);
        }
    });
    checked
}

fn detached(_: &str, tensor: &Tensor) -> Result<Tensor> {
    Ok(tensor.detach())
}

/// Returns the tensor, or its copy on `device` if it is free and on another device. A captured step could not copy it.
pub(super) fn placed_on(device: Device, tensor: &Tensor) -> Result<Tensor> {
    if tensor.is_free() && tensor.device() != device { tensor.try_to(device) } else { Ok(tensor.clone()) }
}

/// Returns a buffer of zeros on a device.
pub(super) fn zeros_on(device: Device, shape: &Shape, dtype: DType) -> Result<Tensor> {
    ops::zeros(shape, dtype)?.try_to(device)
}

impl<X: Batch, P: Deref<Target: Model<X>> + Send + Sync> ModuleParts for ModelWithBatch<P, X> {
    fn visit_parts(&self, visitor: &mut Visitor<'_>) {
        self.model.visit(visitor);
    }
}

impl<X: Batch, P: Deref<Target: Model<X>> + Send + Sync> BoundModel for ModelWithBatch<P, X> {
    fn logits(&self) -> Result<Tensor> {
        self.model.run(&self.x)
    }

    fn batch(&self) -> &dyn BatchTensors {
        &self.x
    }
}

/// A pointer to a loss, without its type.
pub(super) trait StepLoss: Send + Sync {
    fn value(&self, logits: &Tensor, y: &Tensor) -> Result<Tensor>;
    fn target_kind(&self) -> Option<LossKind>;
    fn check_targets(&self, logits: &Shape, y: &Tensor) -> Result<()>;
    fn parameters(&self) -> Vec<(String, Parameter)>;
}

impl<P: Deref<Target: Loss> + Send + Sync> StepLoss for P {
    fn value(&self, logits: &Tensor, y: &Tensor) -> Result<Tensor> {
        (**self).try_forward(logits, y)
    }

    fn target_kind(&self) -> Option<LossKind> {
        (**self).kind()
    }

    fn check_targets(&self, logits: &Shape, y: &Tensor) -> Result<()> {
        (**self).check_targets(logits, y)
    }

    fn parameters(&self) -> Vec<(String, Parameter)> {
        (**self).trainable()
    }
}
