//! Hooks: functions that observe, and may replace, the input, the output and the gradient of a part of a model.
//!
//! A hook is removed when its guard is dropped. The guard borrows the model, so the layer cannot move.
//!
//! A captured step calls hooks when it is recorded, and its launches replay their operations. After a hook of a layer
//! that the step calls was added or removed, the next launch records the step again; the recording without the hook is
//! kept, and is used once the hook is removed.

use crate::call::{CallComputation, Observer, is_observed};
use crate::module::{DynModule, Module, as_dyn, not_built};
use crate::visit::ModuleId;
use pellucid_tensor::{Error, HookList, Result, Tensor, is_capturing, is_grad_enabled, ops};
use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

type ForwardPreHook = dyn Fn(&Tensor) -> Option<Tensor> + Send + Sync;
type ForwardHook = dyn Fn(&[&Tensor], &Tensor) -> Option<Tensor> + Send + Sync;
type BackwardHook = dyn Fn(&Tensor) -> Option<Tensor> + Send + Sync;

#[derive(Clone)]
enum LayerHook {
    ForwardPre(Arc<ForwardPreHook>),
    Forward(Arc<ForwardHook>),
    Backward(Arc<BackwardHook>),
}

/// The hooks of each module that has hooks, or on whose hooks a recording depends.
static HOOKS: LazyLock<RwLock<HashMap<ModuleId, HookList<LayerHook>>>> = LazyLock::new(RwLock::default);

/// Calls `f` with the hooks of a module.
fn with_hooks_of<R>(module: ModuleId, f: impl FnOnce(&mut HookList<LayerHook>) -> R) -> R {
    let mut all = HOOKS.write().unwrap_or_else(PoisonError::into_inner);
    if all.len() == all.capacity() && !all.contains_key(&module) {
        all.retain(|_, hooks| !hooks.is_unused());
    }
    f(all.entry(module).or_default())
}

/// A guard of a registered hook; dropping it removes the hook.
#[must_use = "the hook is removed when its guard is dropped"]
pub struct HookGuard<'m> {
    module: ModuleId,
    id: u64,
    _observer: Observer,
    _model: PhantomData<&'m ()>,
}

impl Drop for HookGuard<'_> {
    fn drop(&mut self) {
        with_hooks_of(self.module, |hooks| hooks.remove(self.id));
    }
}

/// Registers a hook that is called as `hook(x)` before the layer of this name runs; a returned tensor replaces x.
///
/// For a module of several inputs, x is the first input, which cannot be replaced.
///
/// ```
/// use pellucid::nn::{Layer, Relu, Tanh, hook, sequential};
/// use pellucid::Tensor;
/// let model = sequential![Tanh, Relu];
/// let guard = hook::on_forward_pre(&model, "", |x| Some(x * 0.0))?;
/// assert_eq!(model.forward(&Tensor::from([1.0f32])).to_vec::<f32>(), [0.0]);
/// drop(guard);
/// assert!(model.forward(&Tensor::from([1.0f32])).item::<f32>() > 0.7);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// The errors of [`on_forward`]. Replacing x of a module with several inputs makes its call fail with
/// [`Error::InvalidArgument`].
#[doc(alias = "register_forward_pre_hook")]
pub fn on_forward_pre<'m, M: Module + ?Sized>(
    model: &'m M,
    name: &str,
    hook: impl Fn(&Tensor) -> Option<Tensor> + Send + Sync + 'static,
) -> Result<HookGuard<'m>> {
    register(as_dyn(&model), name, LayerHook::ForwardPre(Arc::new(hook)))
}

/// Registers a hook that is called as `hook(x, y)` after the layer of this name computed y; a returned tensor replaces
/// y.
///
/// Calls through [`Layer::forward`](crate::Layer::forward) run hooks. For a module of several inputs, such as an
/// attention layer, a decoder or a loss, x is the first input (see [`on_call`]). A module without inputs has no x, so
/// that only hooks of [`on_call`] see its calls. For a module that also returns a state, y is its output. Names are as
/// in [`Module::named_modules`]; `""` is the model itself.
///
/// ```
/// use pellucid::nn::{Layer, Linear, Relu, hook, sequential};
/// use pellucid::{DType, Tensor};
/// use std::sync::Mutex;
///
/// let model = sequential![Linear::new(2, 3), Relu, Linear::new(3, 1)];
/// let seen = std::sync::Arc::new(Mutex::new(Vec::new()));
/// let recorded = seen.clone();
/// let guard = hook::on_forward(&model, "1", move |_, y| {
///     recorded.lock().unwrap().push(y.shape().dims().to_vec());
///     None
/// })?;
/// model.forward(&Tensor::ones([5, 2], DType::F32));
/// drop(guard);
/// model.forward(&Tensor::ones([7, 2], DType::F32));
/// assert_eq!(*seen.lock().unwrap(), [[5, 3]]);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// [`Error::InvalidArgument`] if the model has no such layer, or if the layer is zero-sized and not boxed: its
/// address does not identify it; hook the enclosing layer then. [`Error::Layer`] for a [`Lazy`](crate::Lazy) layer that
/// is not built.
#[doc(alias = "register_forward_hook")]
pub fn on_forward<'m, M: Module + ?Sized>(
    model: &'m M,
    name: &str,
    hook: impl Fn(&Tensor, &Tensor) -> Option<Tensor> + Send + Sync + 'static,
) -> Result<HookGuard<'m>> {
    on_call(model, name, move |inputs, y| hook(inputs.first()?, y))
}

/// Registers a hook that is called as `hook(inputs, y)` after the module of this name computed y; a returned tensor
/// replaces y.
///
/// ```
/// use pellucid::nn::{AttentionMasks, TransformerDecoderLayer, hook};
/// use pellucid::{DType, Tensor};
/// use std::sync::{Arc, Mutex};
///
/// let layer = TransformerDecoderLayer::new(8, 2).hidden(16);
/// let lengths = Arc::new(Mutex::new(Vec::new()));
/// let recorded = lengths.clone();
/// let _guard = hook::on_call(&layer, "multihead_attn", move |inputs, _| {
///     recorded.lock().unwrap().extend(inputs.iter().map(|x| x.shape()[1]));
///     None
/// })?;
/// let (target, memory) = (Tensor::randn([1, 3, 8], DType::F32), Tensor::randn([1, 5, 8], DType::F32));
/// layer.forward(&target, &memory, AttentionMasks::causal(), AttentionMasks::default());
/// assert_eq!(*lengths.lock().unwrap(), [3, 5, 5]);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// The errors of [`on_forward`].
pub fn on_call<'m, M: Module + ?Sized>(
    model: &'m M,
    name: &str,
    hook: impl Fn(&[&Tensor], &Tensor) -> Option<Tensor> + Send + Sync + 'static,
) -> Result<HookGuard<'m>> {
    register(as_dyn(&model), name, LayerHook::Forward(Arc::new(hook)))
}

/// Runs a module's computation so that its hooks can observe and replace the output. A [`Layer`](crate::Layer) does so
/// itself; a method with several inputs, or without inputs, calls this function:
///
/// ```
/// use pellucid::nn::{Linear, Layer, Module, hook};
/// use pellucid::{DType, Result, Tensor};
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
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// The errors of the computation.
pub fn call<M: Module + ?Sized>(
    module: &M,
    inputs: &[&Tensor],
    compute: impl FnOnce() -> Result<Tensor>,
) -> Result<Tensor> {
    crate::call::call(module, inputs, compute)
}

/// Registers a hook that is called as `hook(g)` in every backward pass with the gradient g of the output of the layer
/// of this name; a returned tensor replaces g. In a captured step it is called when the step is recorded.
///
/// # Errors
/// The errors of [`on_forward`].
#[doc(alias = "register_full_backward_hook")]
pub fn on_backward<'m, M: Module + ?Sized>(
    model: &'m M,
    name: &str,
    hook: impl Fn(&Tensor) -> Option<Tensor> + Send + Sync + 'static,
) -> Result<HookGuard<'m>> {
    register(as_dyn(&model), name, LayerHook::Backward(Arc::new(hook)))
}

/// Registers a hook of the part of this name. The guard borrows the model for the lifetime that the caller specifies.
fn register<'m>(model: &dyn DynModule, name: &str, hook: LayerHook) -> Result<HookGuard<'m>> {
    let modules = model.modules();
    let Some((_, info)) = modules.iter().find(|(n, _)| n == name) else {
        let names: Vec<&str> = modules.iter().map(|(n, _)| n.as_str()).collect();
        return Err(Error::invalid("hook", format!("the model has no layer named {name:?}; its layers are {names:?}")));
    };
    if info.unbuilt {
        // The layer that is built later has another id.
        return Err(not_built("hook", info.label(name)));
    }
    let Some(module) = info.id() else {
        let help = "the layer is zero-sized, so its address does not identify it; hook the enclosing layer, or box it";
        return Err(Error::invalid("hook", format!("{}: {help}", info.label(name))));
    };
    let id = with_hooks_of(module, |hooks| {
        // A captured step that registers a hook depends on the other hooks of the module.
        hooks.registered();
        hooks.add(hook)
    });
    Ok(HookGuard { module, id, _observer: Observer::new(), _model: PhantomData })
}

/// Registers the hooks of a model's modules for the modules of its clone, until the guards are dropped.
pub(crate) fn copy_hooks<'m>(model: &dyn DynModule, clone: &'m dyn DynModule) -> Vec<HookGuard<'m>> {
    if !is_observed() {
        return Vec::new();
    }
    let mut guards = Vec::new();
    for ((name, module), (_, copy)) in model.modules().iter().zip(clone.modules()) {
        for hook in hooks_of(module.id()) {
            // A module of size 0 has no id of its own, but its enclosing box may have one.
            guards.extend(copy.id().and_then(|_| register(clone, name, hook).ok()));
        }
    }
    guards
}

/// Returns the hooks of a module; a step that is being captured becomes dependent on them. They are called without the
/// lock, because a hook may register and remove other hooks.
fn hooks_of(module: Option<ModuleId>) -> Vec<LayerHook> {
    let Some(module) = module else { return Vec::new() };
    if is_capturing() {
        return with_hooks_of(module, |hooks| hooks.registered());
    }
    let all = HOOKS.read().unwrap_or_else(PoisonError::into_inner);
    all.get(&module).map(HookList::registered).unwrap_or_default()
}

/// Runs a module's computation with its hooks. `compute` receives the replacement of the only input, if there is one.
pub(crate) fn call_hooked(
    module: Option<ModuleId>,
    inputs: &[&Tensor],
    compute: CallComputation<'_>,
) -> Result<Tensor> {
    let mut replaced = None;
    for hook in hooks_of(module) {
        if let LayerHook::ForwardPre(hook) = hook
            && let Some(&first) = inputs.first()
        {
            replaced = hook(replaced.as_ref().unwrap_or(first)).or(replaced);
        }
    }
    let mut y = compute(replaced.as_ref())?;
    let replaced = replaced.as_ref().map(|x| [x]);
    let inputs = replaced.as_ref().map_or(inputs, |x| x);
    for hook in hooks_of(module) {
        match hook {
            LayerHook::Forward(hook) => y = hook(inputs, &y).unwrap_or(y),
            LayerHook::Backward(hook) if is_grad_enabled() && y.requires_grad() => {
                // The output may be an input or a parameter, which has other uses and outlives the call: hook a view of
                // it.
                let axes: Vec<isize> = (0..y.rank() as isize).collect();
                y = ops::permute(&y, &axes)?;
                y.register_hook(move |g| hook(g));
            }
            LayerHook::Backward(_) | LayerHook::ForwardPre(_) => {}
        }
    }
    Ok(y)
}

impl fmt::Debug for HookGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HookGuard").field("module", &self.module).finish_non_exhaustive()
    }
}
