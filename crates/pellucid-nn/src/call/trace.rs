//! Traces of a model: its calls, computed without kernels.

use super::{CallComputation, Observer};
use crate::hook;
use crate::layer::Layer;
use crate::module::DynModule;
use crate::parameter::first_device;
use crate::summary::{Summary, SummaryRow};
use crate::visit::{ModuleId, label};
use pellucid_tensor::{DType, Device, Error, Result, Shape, Tensor, no_grad, placeholder, trace, traced};
use std::cell::RefCell;
use std::collections::HashMap;

thread_local! {
    static MODEL_TRACE: RefCell<Option<ModelTrace>> = const { RefCell::new(None) };
}

/// The trace of a model on this thread.
struct ModelTrace {
    names: HashMap<ModuleId, (String, &'static str)>,
    /// Whether hooks of the traced calls run.
    runs_hooks: bool,
    depth: usize,
    calls: Vec<SummaryRow>,
    /// The label of the innermost layer that failed.
    failed: Option<String>,
}

impl ModelTrace {
    fn with<R>(f: impl FnOnce(&mut ModelTrace) -> R) -> R {
        MODEL_TRACE
            .with_borrow_mut(|trace| f(trace.as_mut().expect("a traced call must run while its trace is active")))
    }
}

/// Returns true if a model is traced on this thread.
pub(super) fn is_traced() -> bool {
    MODEL_TRACE.with_borrow(Option::is_some)
}

/// Records a call of a traced model.
pub(super) fn record_call(
    id: Option<ModuleId>,
    type_name: &'static str,
    inputs: &[&Tensor],
    compute: CallComputation<'_>,
) -> Result<Tensor> {
    let work = traced().unwrap_or_default();
    let (index, runs_hooks) = ModelTrace::with(|trace| {
        let known = id.and_then(|id| trace.names.get(&id)).cloned();
        let (name, class) = known.unwrap_or((String::new(), type_name));
        trace.calls.push(SummaryRow { name, class, depth: trace.depth, output: Shape::scalar(), bytes: 0, work });
        trace.depth += 1;
        (trace.calls.len() - 1, trace.runs_hooks)
    });
    // The guard also records a layer that panics as failed.
    let mut call = TracedCallGuard { index, output: None };
    let result = if runs_hooks { hook::call_hooked(id, inputs, compute) } else { compute(None) };
    call.output = result.as_ref().ok().map(|y| (y.shape().clone(), y.dtype()));
    drop(call);
    result
}

/// A guard that records the end of a traced call, even if it panics.
struct TracedCallGuard {
    /// The index of the call in the rows of the trace.
    index: usize,
    /// Shape and dtype of the output.
    output: Option<(Shape, DType)>,
}

impl Drop for TracedCallGuard {
    fn drop(&mut self) {
        let work = traced().unwrap_or_default();
        ModelTrace::with(|trace| {
            trace.depth -= 1;
            let row = &mut trace.calls[self.index];
            match self.output.take() {
                Some((shape, dtype)) => {
                    (row.bytes, row.work) = (shape.size() * dtype.size(), work - row.work);
                    row.output = shape;
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
) -> Result<(Tensor, Vec<SummaryRow>)> {
    trace_model(model, false, run)
}

/// Runs `run` as [`trace_calls`] does, but with the hooks of the calls, as a recording does, and returns its result.
///
/// # Errors
/// The errors of [`trace_calls`]; [`Error::ReadInCapture`] for a hook that reads a value.
pub(crate) fn trace_output(model: &dyn DynModule, run: &mut dyn FnMut() -> Result<Tensor>) -> Result<Tensor> {
    trace_model(model, true, run).map(|(output, _)| output)
}

fn trace_model(
    model: &dyn DynModule,
    runs_hooks: bool,
    run: &mut dyn FnMut() -> Result<Tensor>,
) -> Result<(Tensor, Vec<SummaryRow>)> {
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

/// A type-erased layer, as [`DynModule`] is a type-erased module.
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
fn trace_layer(layer: &dyn TracedLayer, input: &[usize]) -> Result<(Tensor, Vec<SummaryRow>)> {
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
    let (_, rows) = trace_layer(layer, input)?;
    let module: &dyn DynModule = layer;
    Ok(Summary::new(rows, module.parameters(), module.unnamed_buffers(), input))
}
