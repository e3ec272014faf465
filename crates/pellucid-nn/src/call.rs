//! Calls of layers: hooks run, and observers of the model are notified.
//!
//! Without hooks and observers a call costs two reads, of a counter and of the thread's mode, and one check of its
//! result. An error is returned with the path of the layer that failed.

use crate::hook;
use crate::layer::Layer;
use crate::module::{DynModule, Module, as_dyn};
use crate::parameter::first_device;
use crate::summary::{Summary, SummaryRow};
use crate::temporary::with_temporary;
use crate::visit::{ModuleId, ModulePart, label, short_type_name};
use pellucid_tensor::kernel::Meta;
use pellucid_tensor::{DType, Device, Error, Result, Shape, Tensor, is_capturing, no_grad, placeholder, trace, traced};
use std::any::type_name;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of hooks and traces in the process.
static OBSERVERS: AtomicUsize = AtomicUsize::new(0);

/// A guard that counts one hook or trace. While a guard exists, calls are observed.
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

/// Calls a module on its inputs, at least one.
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
        Some(_) => Err(Error::invalid("hook", "a hook cannot replace an input of a layer with several inputs")),
    };
    call_observed(CalledModule::of(&module), inputs, &mut compute)
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

/// Calls a layer on x.
#[inline]
pub(crate) fn call_layer<L: Layer + ?Sized>(layer: &L, x: &Tensor) -> Result<Tensor> {
    if !is_observed() {
        return layer.compute(x).map_err(|error| with_failed_path(layer, error));
    }
    let mut compute = |replaced: Option<&Tensor>| layer.compute(replaced.unwrap_or(x));
    call_observed(CalledModule::of(&layer), &[x], &mut compute)
}

/// Returns the result of operations that are steps of the layer `op`; an error of one of them names the layer.
pub(crate) fn name_layer<T>(op: &'static str, result: Result<T>) -> Result<T> {
    result.map_err(|mut error| {
        error.set_operation(op);
        error
    })
}

/// A module that is called, without its type.
struct CalledModule<'a> {
    id: Option<ModuleId>,
    type_name: &'static str,
    module: &'a dyn DynModule,
}

impl<'a> CalledModule<'a> {
    #[inline]
    fn of<M: Module + ?Sized>(module: &'a &'a M) -> CalledModule<'a> {
        CalledModule { id: ModuleId::of(*module), type_name: type_name::<M>(), module: as_dyn(module) }
    }

    /// Returns the name of the module's type. For a pointer, it is the name of the pointee's type.
    fn class(&self) -> &'static str {
        let own = short_type_name(self.type_name);
        if !["Box", "Arc"].contains(&own) {
            return own;
        }
        let mut pointee = None;
        self.module.walk(&mut |_, part| {
            if let ModulePart::Module(info) = part {
                pointee.get_or_insert(info.class());
            }
        });
        pointee.unwrap_or(own)
    }
}

/// Calls a module while calls are observed.
#[cold]
#[inline(never)]
fn call_observed(module: CalledModule<'_>, inputs: &[&Tensor], compute: CallComputation<'_>) -> Result<Tensor> {
    if MODEL_TRACE.with_borrow(|trace| trace.is_some()) {
        return ModelTrace::record_call(module.id, module.class(), inputs, compute);
    }
    call_and_notify(module.id, inputs, compute).map_err(|error| add_failed_path(module.id, module.module, error))
}

/// The computation of a call, which runs once. It gets the replacement of the single input, if there is one.
pub(crate) type CallComputation<'a> = &'a mut dyn FnMut(Option<&Tensor>) -> Result<Tensor>;

/// The innermost module whose call failed.
struct FailedCall {
    id: ModuleId,
    /// The original error.
    source: Error,
    /// The error as the enclosing modules have returned it so far, with the path within the outermost of them.
    returned: Error,
}

thread_local! {
    /// The last failure of this thread, while its error passes through the enclosing calls.
    static FAILURE: RefCell<Option<FailedCall>> = const { RefCell::new(None) };
}

/// Returns the error of a module's computation; if a part of the module failed, with the part's path in this module.
///
/// A module does not know whether it is the outermost one, so each replaces the path that the inner module has set.
/// The function is called only after a failure.
#[inline]
pub(crate) fn with_failed_path<M: Module + ?Sized>(module: &M, error: Error) -> Error {
    add_failed_path(ModuleId::of(module), as_dyn(&module), error)
}

/// Implements [`with_failed_path`] for the module `own`, without its type.
#[cold]
#[inline(never)]
fn add_failed_path(own: Option<ModuleId>, module: &dyn DynModule, error: Error) -> Error {
    // An error that the module caught or created itself is unrelated to an earlier failure of a part.
    let Some(mut failure) = FAILURE.take().filter(|failure| failure.returned == error) else {
        FAILURE.set(own.map(|id| FailedCall { id, source: error.clone(), returned: error.clone() }));
        return error;
    };
    let mut found = None;
    module.walk(&mut |name, part| {
        if let ModulePart::Module(info) = part
            && info.id() == Some(failure.id)
            && !name.is_empty()
        {
            found.get_or_insert_with(|| info.label(name));
        }
    });
    match found {
        Some(layer) => failure.returned = Error::Layer { layer, source: Box::new(failure.source.clone()) },
        // No named part failed, so this module did.
        None if failure.returned == failure.source => failure.id = own.unwrap_or(failure.id),
        None => {}
    }
    let error = failure.returned.clone();
    FAILURE.set(Some(failure));
    error
}

thread_local! {
    static MODEL_TRACE: RefCell<Option<ModelTrace>> = const { RefCell::new(None) };
    static CALL_LISTENER: RefCell<Option<CallListener>> = const { RefCell::new(None) };
}

/// An observer of all calls of layers on this thread.
struct CallListener {
    /// The number of calls so far.
    calls: usize,
    on_call: Rc<dyn Fn(LayerCall<'_>)>,
}

/// A finished call of a layer.
pub(crate) struct LayerCall<'a> {
    /// The index of the call, in the order in which calls begin, as in [`trace_calls`].
    pub(crate) call: usize,
    pub(crate) x: &'a Tensor,
    pub(crate) y: &'a Tensor,
    /// The number of kernels that were recorded before the call.
    pub(crate) before: u64,
}

/// Runs a call with its hooks, and notifies the listener of this thread when it is finished.
fn call_and_notify(id: Option<ModuleId>, inputs: &[&Tensor], compute: CallComputation<'_>) -> Result<Tensor> {
    let next = |listener: &mut CallListener| {
        listener.calls += 1;
        (listener.calls - 1, listener.on_call.clone())
    };
    let Some((call, on_call)) = CALL_LISTENER.with_borrow_mut(|listener| listener.as_mut().map(next)) else {
        return hook::call_hooked(id, inputs, compute);
    };
    let before = traced().unwrap_or_default().kernels;
    let y = hook::call_hooked(id, inputs, compute)?;
    on_call(LayerCall { call, x: inputs[0], y: &y, before });
    Ok(y)
}

/// Runs `run` and calls `on_call` for every finished call of a layer in it, inner calls first. Operations run or are
/// recorded.
pub(crate) fn with_call_listener<R>(on_call: Rc<dyn Fn(LayerCall<'_>)>, run: impl FnOnce() -> R) -> R {
    let _observer = Observer::new();
    with_temporary(Some(CallListener { calls: 0, on_call }), |listener| CALL_LISTENER.replace(listener), run)
}

/// The trace of a model on this thread.
struct ModelTrace {
    names: HashMap<ModuleId, (String, &'static str)>,
    /// Whether hooks of the traced calls run.
    runs_hooks: bool,
    depth: usize,
    calls: Vec<TracedCall>,
    /// The label of the innermost layer that failed.
    failed: Option<String>,
}

/// A traced call of a layer.
pub(crate) struct TracedCall {
    pub(crate) row: SummaryRow,
    /// Whether the model itself is called, not a part of it.
    pub(crate) is_model: bool,
    pub(crate) input: Meta,
    /// Whether the input requires a gradient.
    pub(crate) tracked: bool,
    /// The dtype of the output.
    pub(crate) dtype: DType,
}

impl ModelTrace {
    /// Records a call.
    fn record_call(
        id: Option<ModuleId>,
        type_name: &'static str,
        inputs: &[&Tensor],
        compute: CallComputation<'_>,
    ) -> Result<Tensor> {
        let (x, before) = (inputs[0], traced().unwrap_or_default());
        let (at, runs_hooks) = ModelTrace::with(|trace| {
            let known = id.and_then(|id| trace.names.get(&id)).cloned();
            let is_model = known.as_ref().is_some_and(|(name, _)| name.is_empty());
            let (name, type_name) = known.unwrap_or((String::new(), type_name));
            let row = SummaryRow {
                name,
                class: type_name,
                depth: trace.depth,
                output: Shape::scalar(),
                bytes: 0,
                work: before,
            };
            let input = Meta { shape: x.shape().clone(), dtype: x.dtype() };
            let (tracked, dtype) = (x.requires_grad(), x.dtype());
            trace.calls.push(TracedCall { row, is_model, input, tracked, dtype });
            trace.depth += 1;
            (trace.calls.len() - 1, trace.runs_hooks)
        });
        // The guard also records a layer that panics as failed.
        let mut call = TracedCallGuard { at, output: None };
        let result = if runs_hooks { hook::call_hooked(id, inputs, compute) } else { compute(None) };
        call.output = result.as_ref().ok().map(|y| Meta { shape: y.shape().clone(), dtype: y.dtype() });
        drop(call);
        result
    }

    fn with<R>(f: impl FnOnce(&mut ModelTrace) -> R) -> R {
        MODEL_TRACE
            .with_borrow_mut(|trace| f(trace.as_mut().expect("a traced call must run while its trace is active")))
    }
}

/// A guard that records the end of a traced call, even if it panics.
struct TracedCallGuard {
    at: usize,
    /// Shape and dtype of the output.
    output: Option<Meta>,
}

impl Drop for TracedCallGuard {
    fn drop(&mut self) {
        let work = traced().unwrap_or_default();
        ModelTrace::with(|trace| {
            trace.depth -= 1;
            let TracedCall { row, dtype, .. } = &mut trace.calls[self.at];
            match self.output.take() {
                Some(y) => {
                    (row.bytes, *dtype) = (y.shape.size() * y.dtype.size(), y.dtype);
                    (row.output, row.work) = (y.shape, work - row.work);
                }
                None => _ = trace.failed.get_or_insert(label(&row.name, row.class)),
            }
        });
    }
}

/// Runs `run` without kernels and without hooks, and returns its result with all traced calls of layers.
///
/// # Errors
/// The errors of [`trace`]; [`Error::Layer`] names the innermost layer that failed.
pub(crate) fn trace_calls(
    model: &dyn DynModule,
    run: &mut dyn FnMut() -> Result<Tensor>,
) -> Result<(Tensor, Vec<TracedCall>)> {
    trace_model(model, false, run)
}

/// Runs `run` as [`trace_calls`] does, but with the hooks of the calls, as a recording does.
///
/// # Errors
/// The errors of [`trace_calls`]; [`Error::ReadInCapture`] for a hook that reads a value.
pub(crate) fn trace_hooked_calls(
    model: &dyn DynModule,
    run: &mut dyn FnMut() -> Result<Tensor>,
) -> Result<(Tensor, Vec<TracedCall>)> {
    trace_model(model, true, run)
}

fn trace_model(
    model: &dyn DynModule,
    runs_hooks: bool,
    run: &mut dyn FnMut() -> Result<Tensor>,
) -> Result<(Tensor, Vec<TracedCall>)> {
    let named = model.modules();
    let names = named.iter().filter_map(|(name, info)| Some((info.id()?, (name.clone(), info.class())))).collect();
    let _observer = Observer::new();
    let outer = MODEL_TRACE.replace(Some(ModelTrace { names, runs_hooks, depth: 0, calls: Vec::new(), failed: None }));
    let result = trace(run);
    let finished = MODEL_TRACE.replace(outer).expect("the trace that was stored above must still be active");
    match result {
        Ok((value, _)) => Ok((value, finished.calls)),
        Err(error) => Err(match finished.failed {
            Some(layer) => Error::Layer { layer, source: Box::new(error) },
            None => error,
        }),
    }
}

/// A layer without its type, as [`DynModule`] is a module without its type.
pub(crate) trait TracedLayer: DynModule {
    fn run(&self, x: &Tensor) -> Result<Tensor>;
    fn dtype(&self) -> DType;
}

impl<L: Layer + ?Sized> TracedLayer for &L {
    fn run(&self, x: &Tensor) -> Result<Tensor> {
        (**self).try_forward(x)
    }

    fn dtype(&self) -> DType {
        (**self).input_dtype()
    }
}

/// Returns the device of the first parameter of a module, or the CPU if there is none.
pub(crate) fn module_device(module: &dyn DynModule) -> Device {
    first_device(module.parameters().iter().map(|(_, parameter)| parameter))
}

/// Returns the output for an input of this shape, without values, and all calls.
fn trace_layer(layer: &dyn TracedLayer, input: &[usize]) -> Result<(Tensor, Vec<TracedCall>)> {
    let device = module_device(layer);
    trace_calls(layer, &mut || {
        let _off = no_grad();
        layer.run(&placeholder(device, input, layer.dtype())?)
    })
}

pub(crate) fn output_shape(layer: &dyn TracedLayer, input: &[usize]) -> Result<Shape> {
    trace_layer(layer, input).map(|(y, _)| y.shape().clone())
}

/// Returns the summary of a layer whose parameters exist.
pub(crate) fn summary(layer: &dyn TracedLayer, input: &[usize]) -> Result<Summary> {
    let (_, calls) = trace_layer(layer, input)?;
    let rows = calls.into_iter().map(|call| call.row).collect();
    let module: &dyn DynModule = layer;
    Ok(Summary::new(rows, module.parameters(), module.unnamed_buffers(), input))
}
