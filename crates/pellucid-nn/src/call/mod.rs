//! Calls of layers, which run the hooks of the layers and record traces of the model.
//!
//! Without hooks and traces, a call costs two reads (a counter and the thread's mode) and one check of its result.
//! An error is returned with the path of the layer that failed (`failure`). `trace` records the calls of a model
//! without running kernels.

mod failure;
mod trace;

pub(crate) use failure::with_failed_path;
pub(crate) use trace::{module_device, output_shape, summary, trace_calls, trace_output};

use crate::hook;
use crate::layer::Layer;
use crate::module::{DynModule, Module, as_dyn};
use crate::visit::{ModuleId, ModulePart, short_type_name};
use failure::add_failed_path;
use pellucid_tensor::{Error, Result, Tensor, is_capturing};
use std::any::type_name;
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use trace::{is_traced, record_call};

/// The number of hooks and traces in the process.
static OBSERVERS: AtomicUsize = AtomicUsize::new(0);

/// A guard that counts one hook or trace while it exists. Calls are observed while the count is not 0.
pub(crate) struct Observer;

impl Observer {
    pub(crate) fn new() -> Observer {
        OBSERVERS.fetch_add(1, Ordering::Relaxed);
        Observer
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        OBSERVERS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns true if calls of this thread are observed. A captured step observes them too, because its recording depends
/// on the hooks of the modules that it calls.
#[inline]
pub(crate) fn is_observed() -> bool {
    OBSERVERS.load(Ordering::Relaxed) > 0 || is_capturing()
}

/// Calls a module on its inputs.
#[inline]
pub(crate) fn call<M: Module + ?Sized>(
    module: &M,
    inputs: &[&Tensor],
    compute: impl FnOnce() -> Result<Tensor>,
) -> Result<Tensor> {
    if !is_observed() {
        return compute().map_err(|error| with_failed_path(module, error));
    }
    let mut compute = Some(compute);
    let mut compute = |replaced: Option<&Tensor>| match replaced {
        None => compute.take().expect("a call must compute its output only once")(),
        Some(_) => Err(Error::invalid(
            "hook",
            "a hook cannot replace an input of a module with several inputs; return None from the hook",
        )),
    };
    call_observed(CalledModule::new(&module), inputs, &mut compute)
}

/// Calls a module that returns a second result, such as a state, in addition to its output.
pub(crate) fn call_with_extra<M: Module + ?Sized, R>(
    module: &M,
    inputs: &[&Tensor],
    compute: impl FnOnce() -> Result<(Tensor, R)>,
) -> Result<(Tensor, R)> {
    let mut extra = None;
    let y = call(module, inputs, || {
        let (y, rest) = compute()?;
        extra = Some(rest);
        Ok(y)
    })?;
    Ok((y, extra.expect("compute() must set the second result before it returns an output")))
}

/// Calls a module on its only input x, which a hook may replace.
#[inline]
pub(crate) fn call_unary<M: Module + ?Sized>(
    module: &M,
    x: &Tensor,
    compute: impl Fn(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    if !is_observed() {
        return compute(x).map_err(|error| with_failed_path(module, error));
    }
    let mut compute = |replaced: Option<&Tensor>| compute(replaced.unwrap_or(x));
    call_observed(CalledModule::new(&module), &[x], &mut compute)
}

/// Calls a module that has one input and returns a second result, as [`call_with_extra`] does.
pub(crate) fn call_unary_with_extra<M: Module + ?Sized, R>(
    module: &M,
    x: &Tensor,
    compute: impl Fn(&Tensor) -> Result<(Tensor, R)>,
) -> Result<(Tensor, R)> {
    let extra = Cell::new(None);
    let y = call_unary(module, x, |x| {
        let (y, rest) = compute(x)?;
        extra.set(Some(rest));
        Ok(y)
    })?;
    Ok((y, extra.take().expect("compute() must set the second result before it returns an output")))
}

/// Calls a layer on x.
#[inline]
pub(crate) fn call_layer<L: Layer + ?Sized>(layer: &L, x: &Tensor) -> Result<Tensor> {
    call_unary(layer, x, |x| layer.compute(x))
}

/// Makes the error of an operation name the layer `op`, which calls the operation to compute its output or to
/// initialize its parameters.
pub(crate) fn name_layer<T>(op: &'static str, result: Result<T>) -> Result<T> {
    result.map_err(|mut error| {
        error.set_operation(op);
        error
    })
}

/// A type-erased module that is called.
struct CalledModule<'a> {
    id: Option<ModuleId>,
    type_name: &'static str,
    module: &'a dyn DynModule,
}

impl<'a> CalledModule<'a> {
    #[inline]
    fn new<M: Module + ?Sized>(module: &'a &'a M) -> CalledModule<'a> {
        CalledModule { id: ModuleId::new(*module), type_name: type_name::<M>(), module: as_dyn(module) }
    }

    /// Returns the name of the module's type. For a pointer, it is the name of the pointee's type.
    fn pointee_type_name(&self) -> &'static str {
        let own_type = short_type_name(self.type_name);
        if !["Box", "Arc"].contains(&own_type) {
            return own_type;
        }
        let mut pointee = None;
        self.module.walk(&mut |_, part| {
            if let ModulePart::Module(info) = part {
                pointee.get_or_insert(info.class());
            }
        });
        pointee.unwrap_or(own_type)
    }
}

/// Calls a module with its hooks, or records the call if a model is traced.
#[cold]
#[inline(never)]
fn call_observed(module: CalledModule<'_>, inputs: &[&Tensor], compute: CallComputation<'_>) -> Result<Tensor> {
    if is_traced() {
        return record_call(module.id, module.pointee_type_name(), inputs, compute);
    }
    hook::call_hooked(module.id, inputs, compute).map_err(|error| add_failed_path(module.id, module.module, error))
}

/// The computation of a call, which runs once. It receives the replacement of the only input, if a hook returned one.
pub(crate) type CallComputation<'a> = &'a mut dyn FnMut(Option<&Tensor>) -> Result<Tensor>;
