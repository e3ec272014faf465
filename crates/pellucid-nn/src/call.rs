//! What happens when a layer is called: hooks run, and whoever watches a model is told.
//!
//! Nobody watches mostly, and then a call costs one look at a counter.

use crate::hook;
use crate::layer::Layer;
use crate::module::Module;
use crate::summary::{Row, Summary};
use crate::visit::{Place, class, label};
use pellucid_tensor::{Error, Result, Shape, Tensor, no_grad, ops, trace, traced};
use std::any::type_name;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Hooks and watches that exist in the process.
static OBSERVERS: AtomicUsize = AtomicUsize::new(0);

/// Calls are looked at while it lives.
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

/// Calls a module on its inputs.
#[inline]
pub(crate) fn call<M: Module + ?Sized>(
    module: &M,
    inputs: &[&Tensor],
    compute: impl FnOnce() -> Result<Tensor>,
) -> Result<Tensor> {
    if OBSERVERS.load(Ordering::Relaxed) == 0 {
        return compute();
    }
    let (place, class) = (Place::of(module), class(type_name::<M>()));
    if WATCH.with_borrow(|watch| watch.is_some()) {
        return Watch::around(place, class, compute);
    }
    hook::around(place, inputs, compute)
}

thread_local! {
    static WATCH: RefCell<Option<Watch>> = const { RefCell::new(None) };
}

/// A model that is watched by this thread while it is traced.
struct Watch {
    names: HashMap<Place, (String, &'static str)>,
    depth: usize,
    rows: Vec<Row>,
    /// The innermost layer that failed.
    failed: Option<String>,
}

impl Watch {
    /// A call, written down. Its hooks do not run: no values exist.
    fn around(place: Option<Place>, class: &'static str, compute: impl FnOnce() -> Result<Tensor>) -> Result<Tensor> {
        let before = traced().unwrap_or_default();
        let at = Watch::with(|watch| {
            let known = place.and_then(|p| watch.names.get(&p)).cloned();
            let (name, class) = known.unwrap_or((String::new(), class));
            let row = Row { name, class, depth: watch.depth, output: Shape::scalar(), bytes: 0, work: before };
            watch.rows.push(row);
            watch.depth += 1;
            watch.rows.len() - 1
        });
        // A layer that panics has failed as well as one that returns an error.
        let mut call = Call { at, output: None };
        let result = compute();
        call.output = result.as_ref().ok().map(|y| (y.shape().clone(), y.size() * y.dtype().size()));
        drop(call);
        result
    }

    fn with<R>(f: impl FnOnce(&mut Watch) -> R) -> R {
        WATCH.with_borrow_mut(|watch| f(watch.as_mut().expect("its calls are in its trace")))
    }
}

/// A call that is being watched; its end is written down, however it comes.
struct Call {
    at: usize,
    /// The shape and the bytes of what the layer has put out.
    output: Option<(Shape, usize)>,
}

impl Drop for Call {
    fn drop(&mut self) {
        let work = traced().unwrap_or_default();
        Watch::with(|watch| {
            watch.depth -= 1;
            let row = &mut watch.rows[self.at];
            match self.output.take() {
                Some((shape, bytes)) => (row.output, row.bytes, row.work) = (shape, bytes, work - row.work),
                None => _ = watch.failed.get_or_insert(label(&row.name, row.class)),
            }
        });
    }
}

/// A trace of the model's output for an input of this shape, with every call in it.
fn watched<L: Layer + ?Sized>(layer: &L, input: &[usize]) -> Result<(Shape, Vec<Row>)> {
    let named = layer.named_modules();
    let names = named.iter().filter_map(|(name, info)| Some((info.place()?, (name.clone(), info.class())))).collect();
    let _observer = Observer::new();
    let outer = WATCH.replace(Some(Watch { names, depth: 0, rows: Vec::new(), failed: None }));
    let result = trace(|| {
        let _off = no_grad();
        let x = ops::zeros(input, layer.input_dtype())?;
        Ok(layer.try_forward(&x)?.shape().clone())
    });
    let watch = WATCH.replace(outer).expect("put there above");
    match result {
        Ok((shape, _)) => Ok((shape, watch.rows)),
        Err(error) => Err(match watch.failed {
            Some(layer) => Error::Layer { layer, source: Box::new(error) },
            None => error,
        }),
    }
}

pub(crate) fn output_shape<L: Layer + ?Sized>(layer: &L, input: &[usize]) -> Result<Shape> {
    watched(layer, input).map(|(shape, _)| shape)
}

pub(crate) fn summary<L: Layer + ?Sized>(layer: &L, input: &[usize]) -> Result<Summary> {
    // Layers that learn their widths from their first input have no parameters before.
    layer.build(input)?;
    let (_, rows) = watched(layer, input)?;
    Ok(Summary::new(rows, layer.named_parameters(), layer.buffers(), input))
}
