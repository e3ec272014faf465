//! Errors of planning, recording and batches; on error nothing has changed.

use crate::models::*;
use pellucid_nn::graph::mirror::*;
use pellucid_nn::loss::CrossEntropyLoss;
use pellucid_nn::optim::Optimizer;
use pellucid_nn::*;
use pellucid_tensor::{DType, Error, Result, Tensor, ops};

/// Returns the layer that an error names, and the inner error.
fn named(error: Error) -> (String, Error) {
    match error {
        Error::Layer { layer, source } => (layer, *source),
        other => panic!("the error must name a layer, but is: {other}"),
    }
}

fn error<T>(result: Result<T>) -> Error {
    result.err().expect("the call must return an error")
}

#[test]
fn a_wrong_width_is_refused_with_layer_and_both_shapes() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let (model, loss) = (mlp(), CrossEntropyLoss::default());
    let optimizer = sgd(&model, 0.1, 0.9);
    // Planning reports the layer.
    let plan = |shape: &[usize]| make_plan_for_sequential(&model, shape, LossKind::SoftmaxCrossEntropy, 0);
    let (layer, source) = named(error(plan(&[BATCH, 5])));
    assert!(layer == "0 (Linear)" && matches!(source, Error::ShapeMismatch { .. }), "{layer}: {source}");
    // Recording reports the layer.
    let plan = plan(&[BATCH, 6]).unwrap();
    let (x, y) = (Tensor::zeros([BATCH, 5], DType::F32), Tensor::zeros([BATCH], DType::I64));
    let (layer, source) = named(error(record_step_graph(&model, &loss, &optimizer, &plan, &x, &y, None)));
    let Error::ShapeMismatch { shapes, .. } = &source else { panic!("unexpected error: {source}") };
    assert_eq!(
        (layer.as_str(), shapes[0].dims(), shapes[1].dims()),
        ("L0:Linear", [8, 5].as_slice(), [8, 6].as_slice())
    );
    // A plan of another model is also rejected.
    let other = sequential![Linear::new(5, CLASSES)];
    let plan = make_plan_for_sequential(&other, &[BATCH, 5], LossKind::SoftmaxCrossEntropy, 0).unwrap();
    let (layer, source) = named(error(record_step_graph(&model, &loss, &optimizer, &plan, &x, &y, None)));
    assert!(layer == "0 (Linear)" && source.to_string().contains("[16, 6]"), "{layer}: {source}");
    // Setting a batch reports the input or the loss.
    let mut step = model.compile(&[BATCH, 6], CompileOptions::new(&loss, &optimizer)).unwrap();
    let (good, _) = batch(&[BATCH, 6], 1);
    step.set_batch(&good, &y).unwrap();
    let (layer, source) = named(error(step.set_batch(&x, &y)));
    assert!(layer == "L0:Linear" && source.to_string().contains("[8, 6]"), "{layer}: {source}");
    let half = good.to_dtype(DType::F16);
    assert!(matches!(named(error(step.set_batch(&half, &y))).1, Error::DTypeMismatch { .. }));
    let (layer, source) = named(error(step.set_batch(&x, &Tensor::zeros([BATCH, 1], DType::I64))));
    assert!(layer == "L0:Linear", "{layer}: {source}");
    let (layer, source) = named(error(step.set_batch(&good.neg(), &Tensor::zeros([BATCH, 1], DType::I64))));
    assert!(layer == "loss" && matches!(source, Error::ShapeMismatch { .. }), "{layer}: {source}");
    let floats = named(error(step.set_batch(&good.neg(), &Tensor::zeros([BATCH], DType::F32)))).1;
    assert!(matches!(floats, Error::DTypeMismatch { .. }), "{floats}");
    assert_eq!(step.x_buf().to_vec::<f32>(), good.to_vec::<f32>(), "an invalid batch must not be copied in part");
    // Class indices of narrower integers are accepted.
    step.set_batch(&good, &Tensor::ones([BATCH], DType::I32)).unwrap();
    step.launch().unwrap();
    assert_eq!(step.y_buf.to_vec::<i64>(), [1; BATCH]);
}

/// A layer whose output depends on a value.
#[derive(Clone, Module)]
struct Reading;

const READING: u32 = line!() + 4;

impl Layer for Reading {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let mean = x.mean(..).item::<f32>();
        ops::mul(x, f64::from(mean))
    }
}

#[test]
fn a_value_that_is_read_is_refused_with_layer_and_line() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = sequential![Linear::new(6, 6), Reading, Linear::new(6, CLASSES)];
    let loss = CrossEntropyLoss::default();
    let optimizer = sgd(&model, 0.1, 0.9);
    let before = (bits(model.state_dict()), bits(optimizer.state_dict()));
    let compile = CompileOptions::new(&loss, &optimizer);
    let (layer, source) = named(error(model.compile(&[BATCH, 6], compile)));
    let Error::ReadInCapture { op, location, .. } = source else { panic!("unexpected error: {source}") };
    assert_eq!((layer.as_str(), op, location.file(), location.line()), ("1 (Reading)", "item", file!(), READING));
    assert_eq!((bits(model.state_dict()), bits(optimizer.state_dict())), before);
    // If the loss reads a value, no layer is named.
    let model = mlp();
    let optimizer = sgd(&model, 0.1, 0.9);
    let line = line!() + 2;
    let reading = loss::from_fn(|logits, _| {
        let mean = logits.mean(..).item::<f32>();
        Ok(logits.mean(..) * f64::from(mean))
    });
    let plan = make_plan_for_sequential(&model, &[BATCH, 6], LossKind::SoftmaxCrossEntropy, 0).unwrap();
    let (x, y) = batch(&[BATCH, 6], 1);
    let refused = error(record_step_graph(&model, &reading, &optimizer, &plan, &x, &y, None));
    let Error::ReadInCapture { location, .. } = refused else {
        panic!("expected Error::ReadInCapture, got: {refused}")
    };
    assert_eq!((location.file(), location.line()), (file!(), line));
}

/// A layer whose output has as many rows as it has positive elements.
#[derive(Clone, Module)]
struct Picking;

impl Layer for Picking {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        ops::masked_select(x, &ops::gt(x, 0)?)
    }
}

/// A layer that is marked as not capturable.
#[derive(Clone, Module)]
#[module(no_capture = "it asks a server")]
struct Asking;

impl Layer for Asking {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.clone())
    }
}

#[test]
fn layers_that_cannot_be_planned_or_captured_are_named() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = sequential![Linear::new(6, 6), Picking];
    let refused = named(error(make_plan_for_sequential(&model, &[BATCH, 6], LossKind::Mse, 0)));
    let Error::ReadInCapture { op, help, .. } = refused.1 else {
        panic!("expected Error::ReadInCapture, got: {}", refused.1)
    };
    assert!(refused.0 == "1 (Picking)" && op == "masked_select" && help.contains("where_"), "{}: {help}", refused.0);

    let model = sequential![Linear::new(6, CLASSES), Asking];
    let loss = CrossEntropyLoss::default();
    let optimizer = sgd(&model, 0.1, 0.9);
    let compile = CompileOptions::new(&loss, &optimizer);
    let (layer, source) = named(error(model.compile(&[BATCH, 6], compile)));
    assert!(layer == "1 (Asking)" && source.to_string().contains("it asks a server"), "{layer}: {source}");
    assert!(model.parameters().iter().all(|p| p.grad().is_none()));
}

#[test]
fn losses_that_do_not_fit_a_step_are_refused() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = mlp();
    let optimizer = sgd(&model, 0.1, 0.9);
    let (x, y) = batch(&[BATCH, 6], 1);
    let plan = make_plan_for_sequential(&model, &[BATCH, 6], LossKind::SoftmaxCrossEntropy, 0).unwrap();
    let each = CrossEntropyLoss { reduction: loss::Reduction::None, ..Default::default() };
    let refused = error(record_step_graph(&model, &each, &optimizer, &plan, &x, &y, None));
    assert!(matches!(&refused, Error::ShapeMismatch { .. }) && refused.to_string().contains("reduce"), "{refused}");
    // The targets of a function are unknown.
    let function = loss::from_fn(|logits, y| Ok((logits - y).abs().mean(..)));
    let compile = CompileOptions::new(&function, &optimizer);
    let refused = error(model.compile(&[BATCH, 6], compile));
    assert!(refused.to_string().contains("with_targets"), "{refused}");
    let told = loss::Loss::with_targets(function, [BATCH, CLASSES], DType::F32);
    let compile = CompileOptions::new(&told, &optimizer);
    let mut step = model.compile(&[BATCH, 6], compile).unwrap();
    step.set_batch(&x, &Tensor::ones([BATCH, CLASSES], DType::F32)).unwrap();
    step.launch().unwrap();
    assert!(step.loss.item::<f32>() > 0.0);
}

/// A failed recording keeps gradients.
#[test]
fn a_failed_recording_restores_gradients() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = mlp();
    let first = model.parameters().remove(0);
    first.set_requires_grad(false).unwrap();
    let optimizer = sgd(&model, 0.1, 0.9);
    first.set_requires_grad(true).unwrap();
    let loss = CrossEntropyLoss::default();
    let compile = CompileOptions::new(&loss, &optimizer);
    let refused = error(model.compile(&[BATCH, 6], compile));
    assert!(refused.to_string().contains("ensure_initialized"), "{refused}");
    assert!(optimizer.parameters().iter().all(|p| p.grad().is_none()));
}
