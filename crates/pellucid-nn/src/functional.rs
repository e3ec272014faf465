//! Calls of a model with other tensors as its parameters and buffers.

use crate::cloning::CloneScope;
use crate::hook::{HookGuard, copy_hooks};
use crate::module::{DynModule, Module, as_dyn, in_value};
use crate::state::{StateDict, StateMismatch, names_and_shapes};
use pellucid_tensor::{Error, Result, Tensor, TensorId};
use std::collections::HashMap;

/// Calls `run` with a clone of the model whose parameters and buffers are the given tensors, and returns the result of
/// `run`: PyTorch's `torch.func.functional_call`. The computation is differentiable in the tensors, which may be
/// results of other operations.
///
/// The model itself does not change, other threads may use it at the same time, and calls may be nested. The clone
/// shares the training modes, path choices and hooks of the model. The names are as in [`Module::named_parameters`] and
/// [`Module::named_buffers`]; a shared parameter may be given by any of its names. All parameters must be given; for a
/// buffer that is not given, the clone uses the model's own. Layers write buffers in place: batch normalization in
/// training updates the given running statistics, or else the model's own.
///
/// A step of gradient descent whose result is differentiable, as in MAML (Finn, Abbeel & Levine 2017):
///
/// ```
/// use pellucid::nn::{Layer, Linear, Module, StateDict, Tanh, functional_call, loss, sequential};
/// use pellucid::{DType, GradOptions, Tensor, grad};
/// let model = sequential![Linear::new(2, 8), Tanh, Linear::new(8, 1)];
/// let (x, y) = (Tensor::randn([4, 2], DType::F32), Tensor::randn([4, 1], DType::F32));
///
/// let weights = model.named_parameters().into_iter().map(|(name, parameter)| (name, parameter.tensor().clone()));
/// let weights: StateDict = weights.collect();
/// let inner = functional_call(&model, &weights, |model| loss::mse_loss(&model.forward(&x), &y))?;
/// let options = GradOptions { create_graph: true, ..Default::default() };
/// let gradients = grad(&[&inner], &weights.values().collect::<Vec<_>>(), options)?;
/// let steps = weights.iter().zip(&gradients);
/// let adapted: StateDict = steps.map(|((name, tensor), g)| (name.clone(), tensor - g * 0.1)).collect();
///
/// let outer = functional_call(&model, &adapted, |model| loss::mse_loss(&model.forward(&x), &y))?;
/// outer.backward();
/// assert!(model.parameters().iter().all(|parameter| parameter.grad().is_some()));
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// [`Error::StateDict`] if the name of a parameter is missing, a name is unexpected, or a shape differs;
/// [`Error::InvalidArgument`] if two names of a shared parameter or buffer have different tensors. [`Error::Layer`]
/// names a tensor of another dtype, or on another device unless it is [free](Tensor::is_free); a [`Lazy`](crate::Lazy)
/// layer that is not built; and a part behind an `Arc` or a reference, whose clone is the same part.
pub fn functional_call<M: Module + Clone, R>(model: &M, tensors: &StateDict, run: impl FnOnce(&M) -> R) -> Result<R> {
    let given = given_tensors(as_dyn(&model), tensors)?;
    let scope = CloneScope::given(given.clone());
    let clone = model.clone();
    drop(scope);
    let clone = &clone;
    let _hooks = connect(as_dyn(&model), as_dyn(&clone), &given)?;
    Ok(run(clone))
}

/// Returns the given tensor of each parameter and buffer of the model.
fn given_tensors(model: &dyn DynModule, tensors: &StateDict) -> Result<HashMap<TensorId, Tensor>> {
    model.check_built(OP)?;
    let values = model.values(|_| true);
    let mut given: HashMap<TensorId, Tensor> = HashMap::new();
    for (name, value) in &values {
        let Some(tensor) = tensors.get(name) else { continue };
        if given.insert(value.id(), tensor.clone()).is_some_and(|before| before.id() != tensor.id()) {
            let reason = format!(
                "`{name}` and another name of the same parameter or buffer have different tensors; pass one tensor for \
                 both, or only one of the names"
            );
            return Err(Error::invalid(OP, reason));
        }
    }
    let parameters = model.parameters();
    let absent = parameters.iter().filter(|(_, parameter)| !given.contains_key(&parameter.id()));
    let missing = absent.map(|(name, _)| name.clone()).collect();
    let mismatch = StateMismatch::new(names_and_shapes(&values), missing, tensors);
    if !mismatch.is_empty() {
        return Err(mismatch.into_error(OP));
    }
    for (name, value) in &values {
        if let Some(tensor) = given.get(&value.id()) {
            check_tensor(tensor, value).map_err(|error| in_value(name, error))?;
        }
    }
    Ok(given)
}

/// The name of the operation in errors.
const OP: &str = "functional_call";

fn check_tensor(tensor: &Tensor, replaced: &Tensor) -> Result<()> {
    if tensor.dtype() != replaced.dtype() {
        let help = format!("the tensor must have the dtype of the model; use to_dtype(DType::{:?})", replaced.dtype());
        return Err(Error::dtypes(OP, [tensor.dtype(), replaced.dtype()], help));
    }
    if tensor.device() != replaced.device() && !tensor.is_free() {
        let devices = [tensor, replaced].map(|tensor| tensor.device().name().to_string()).into();
        return Err(Error::DeviceMismatch { op: OP, devices });
    }
    Ok(())
}

/// Checks that the clone holds the given tensors, and registers the hooks of the model for it.
fn connect<'c>(
    model: &dyn DynModule,
    clone: &'c dyn DynModule,
    given: &HashMap<TensorId, Tensor>,
) -> Result<Vec<HookGuard<'c>>> {
    let (values, cloned_values) = (model.values(|_| true), clone.values(|_| true));
    let is_not_cloned = |((_, value), (_, cloned)): &(&(String, Tensor), &(String, Tensor))| {
        cloned.id() != given.get(&value.id()).unwrap_or(value).id()
    };
    let not_cloned = values.iter().zip(&cloned_values).find(is_not_cloned);
    if not_cloned.is_none() && values.len() == cloned_values.len() {
        return Ok(copy_hooks(model, clone));
    }
    model.check_separate(OP, clone)?;
    let reason = "clone() of the model must clone all of its parameters and buffers";
    let error = Error::invalid(OP, reason);
    Err(not_cloned.map_or(error.clone(), |((name, _), _)| in_value(name, error)))
}
