//! Hooks: functions that see, and may replace, what a part of a model takes and puts out, and its gradient.
//!
//! A hook lives as long as its guard. The guard borrows the model, so that the layer stays where it is.

use crate::call::Observer;
use crate::module::Module;
use crate::visit::ModuleId;
use pellucid_tensor::{Error, Result, Tensor, is_grad_enabled, ops};
use std::marker::PhantomData;
use std::sync::{Arc, RwLock};

type ForwardPre = dyn Fn(&Tensor) -> Option<Tensor> + Send + Sync;
type Forward = dyn Fn(&[&Tensor], &Tensor) -> Option<Tensor> + Send + Sync;
type Backward = dyn Fn(&Tensor) -> Option<Tensor> + Send + Sync;

#[derive(Clone)]
enum Hook {
    ForwardPre(Arc<ForwardPre>),
    Forward(Arc<Forward>),
    Backward(Arc<Backward>),
}

struct Registered {
    id: usize,
    place: ModuleId,
    hook: Hook,
}

/// All hooks, in the order in which they were registered.
static HOOKS: RwLock<Vec<Registered>> = RwLock::new(Vec::new());

/// A registered hook: it goes when this does.
#[must_use = "the hook is removed when its guard is dropped"]
pub struct HookGuard<'m> {
    id: usize,
    _observer: Observer,
    _model: PhantomData<&'m ()>,
}

impl Drop for HookGuard<'_> {
    fn drop(&mut self) {
        HOOKS.write().unwrap_or_else(|e| e.into_inner()).retain(|r| r.id != self.id);
    }
}

/// Calls `hook(x)` whenever the layer of this name is to take x; what it returns replaces x.
///
/// Of a module of several inputs x is the first, and cannot be replaced.
///
/// ```
/// use pellucid_nn::{Layer, Relu, Tanh, hook, sequential};
/// use pellucid_tensor::Tensor;
/// let model = sequential![Tanh, Relu];
/// let guard = hook::on_forward_pre(&model, "", |x| Some(x * 0.0))?;
/// assert_eq!(model.forward(&Tensor::from([1.0f32])).to_vec::<f32>(), [0.0]);
/// drop(guard);
/// assert!(model.forward(&Tensor::from([1.0f32])).item::<f32>() > 0.7);
/// # Ok::<(), pellucid_tensor::Error>(())
/// ```
///
/// # Errors
/// Those of [`on_forward`]. A call whose x is replaced though there are several inputs is [`Error::InvalidArgument`].
pub fn on_forward_pre<'m, M: Module + ?Sized>(
    model: &'m M,
    name: &str,
    hook: impl Fn(&Tensor) -> Option<Tensor> + Send + Sync + 'static,
) -> Result<HookGuard<'m>> {
    register(model, name, Hook::ForwardPre(Arc::new(hook)))
}

/// Calls `hook(x, y)` whenever the layer of this name has taken x to y; what it returns replaces y.
///
/// The layer is called through [`Layer::forward`](crate::Layer::forward); of a module of several inputs, such as an attention, a
/// decoder or a loss, x is the first (see [`on_call`]); of one that returns a state as well, y is what it puts out. Names are those of [`Module::named_modules`]; `""` is the model
/// itself.
///
/// ```
/// use pellucid_nn::{Layer, Linear, Relu, hook, sequential};
/// use pellucid_tensor::{DType, Tensor};
/// use std::sync::Mutex;
///
/// let model = sequential![Linear::new(2, 3), Relu, Linear::new(3, 1)];
/// let seen = std::sync::Arc::new(Mutex::new(Vec::new()));
/// let kept = seen.clone();
/// let guard = hook::on_forward(&model, "1", move |_, y| {
///     kept.lock().unwrap().push(y.shape().dims().to_vec());
///     None
/// })?;
/// model.forward(&Tensor::ones([5, 2], DType::F32));
/// drop(guard);
/// model.forward(&Tensor::ones([7, 2], DType::F32));
/// assert_eq!(*seen.lock().unwrap(), [[5, 3]]);
/// # Ok::<(), pellucid_tensor::Error>(())
/// ```
///
/// # Errors
/// [`Error::InvalidArgument`] if the model has no such layer, or one that holds nothing and is not boxed, so that
/// it cannot be told from others: hook the layer around it.
pub fn on_forward<'m, M: Module + ?Sized>(
    model: &'m M,
    name: &str,
    hook: impl Fn(&Tensor, &Tensor) -> Option<Tensor> + Send + Sync + 'static,
) -> Result<HookGuard<'m>> {
    on_call(model, name, move |inputs, y| hook(inputs[0], y))
}

/// Calls `hook(inputs, y)` whenever the module of this name has made y of its inputs; what it returns replaces y.
///
/// ```
/// use pellucid_nn::{Masks, TransformerDecoderLayer, TransformerOptions, hook};
/// use pellucid_tensor::{DType, Tensor};
/// use std::sync::{Arc, Mutex};
///
/// let layer = TransformerDecoderLayer::new(8, 2, 16, TransformerOptions::default())?;
/// let lengths = Arc::new(Mutex::new(Vec::new()));
/// let kept = lengths.clone();
/// let _guard = hook::on_call(&layer, "multihead_attn", move |inputs, _| {
///     kept.lock().unwrap().extend(inputs.iter().map(|x| x.shape()[1]));
///     None
/// })?;
/// let (target, memory) = (Tensor::randn([1, 3, 8], DType::F32), Tensor::randn([1, 5, 8], DType::F32));
/// layer.forward(&target, &memory, Masks::causal(), Masks::default());
/// assert_eq!(*lengths.lock().unwrap(), [3, 5, 5]);
/// # Ok::<(), pellucid_tensor::Error>(())
/// ```
///
/// # Errors
/// Those of [`on_forward`].
pub fn on_call<'m, M: Module + ?Sized>(
    model: &'m M,
    name: &str,
    hook: impl Fn(&[&Tensor], &Tensor) -> Option<Tensor> + Send + Sync + 'static,
) -> Result<HookGuard<'m>> {
    register(model, name, Hook::Forward(Arc::new(hook)))
}

/// Computes what a module makes of its inputs, so that its hooks see it and may replace it. A
/// [`Layer`](crate::Layer) is called so by itself; a method of several inputs says it:
///
/// ```
/// # extern crate pellucid_nn as pellucid;
/// use pellucid_nn::{Linear, Layer, Module, hook};
/// use pellucid_tensor::{DType, Result, Tensor};
///
/// #[derive(Module)]
/// struct Sum(Linear, Linear);
///
/// impl Sum {
///     fn forward(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
///         hook::call(self, &[a, b], || Ok(self.0.try_forward(a)? + self.1.try_forward(b)?))
///     }
/// }
///
/// let model = Sum(Linear::new(2, 3), Linear::new(4, 3));
/// let guard = hook::on_call(&model, "", |inputs, y| Some(y * inputs.len() as f64 * 0.0))?;
/// let y = model.forward(&Tensor::ones([1, 2], DType::F32), &Tensor::ones([1, 4], DType::F32))?;
/// assert_eq!(y.to_vec::<f32>(), [0.0; 3]);
/// # drop(guard);
/// # Ok::<(), pellucid_tensor::Error>(())
/// ```
///
/// # Errors
/// Those of the computation.
pub fn call<M: Module + ?Sized>(
    module: &M,
    inputs: &[&Tensor],
    compute: impl FnOnce() -> Result<Tensor>,
) -> Result<Tensor> {
    crate::call::call(module, inputs, compute)
}

/// Calls `hook(g)` in every backward pass with the gradient g of what the layer of this name put out; what it returns
/// replaces g. In a captured step it is called when the step is recorded.
///
/// # Errors
/// Those of [`on_forward`].
pub fn on_backward<'m, M: Module + ?Sized>(
    model: &'m M,
    name: &str,
    hook: impl Fn(&Tensor) -> Option<Tensor> + Send + Sync + 'static,
) -> Result<HookGuard<'m>> {
    register(model, name, Hook::Backward(Arc::new(hook)))
}

fn register<'m, M: Module + ?Sized>(model: &'m M, name: &str, hook: Hook) -> Result<HookGuard<'m>> {
    let modules = model.named_modules();
    let Some((_, info)) = modules.iter().find(|(n, _)| n == name) else {
        let names: Vec<&str> = modules.iter().map(|(n, _)| n.as_str()).collect();
        return Err(Error::invalid("hook", format!("the model has no layer named {name:?}, but {names:?}")));
    };
    let Some(place) = info.place() else {
        let help = "holds nothing, so that it cannot be told from others; hook the layer around it, or box it";
        return Err(Error::invalid("hook", format!("{} {help}", info.label(name))));
    };
    let mut hooks = HOOKS.write().unwrap_or_else(|e| e.into_inner());
    let id = hooks.last().map_or(0, |r| r.id + 1);
    hooks.push(Registered { id, place, hook });
    Ok(HookGuard { id, _observer: Observer::new(), _model: PhantomData })
}

/// The hooks of a place. A hook may register and remove others: they are called without the lock.
fn hooks_of(place: Option<ModuleId>) -> Vec<Hook> {
    let all = HOOKS.read().unwrap_or_else(|e| e.into_inner());
    all.iter().filter(|r| Some(r.place) == place).map(|r| r.hook.clone()).collect()
}

/// A module's computation, which is given what replaces its one input, and the hooks of its place.
pub(crate) fn around(
    place: Option<ModuleId>,
    inputs: &[&Tensor],
    compute: impl FnOnce(Option<&Tensor>) -> Result<Tensor>,
) -> Result<Tensor> {
    let mut replaced = None;
    for hook in hooks_of(place) {
        if let Hook::ForwardPre(hook) = hook {
            replaced = hook(replaced.as_ref().unwrap_or(inputs[0])).or(replaced);
        }
    }
    let mut y = compute(replaced.as_ref())?;
    let taken = [replaced.as_ref().unwrap_or(inputs[0])];
    let inputs = if replaced.is_some() { &taken } else { inputs };
    for hook in hooks_of(place) {
        match hook {
            Hook::Forward(hook) => y = hook(inputs, &y).unwrap_or(y),
            Hook::Backward(hook) if is_grad_enabled() && y.requires_grad() => {
                // What is put out may be an input, or a parameter: others use that too, and it outlives the call.
                let axes: Vec<isize> = (0..y.rank() as isize).collect();
                y = ops::permute(&y, &axes)?;
                y.register_hook(move |g| hook(g));
            }
            Hook::Backward(_) | Hook::ForwardPre(_) => {}
        }
    }
    Ok(y)
}
