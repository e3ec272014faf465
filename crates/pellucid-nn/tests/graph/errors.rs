//! Errors of recording; on error nothing has changed.

use crate::models::*;
use pellucid_nn::graph::{BeforeUpdate, StepOptions};
use pellucid_nn::loss::{CrossEntropyLoss, MseLoss};
use pellucid_nn::optim::Optimizer;
use pellucid_nn::*;
use pellucid_tensor::{DType, Error, Result, Tensor, ops};
use std::sync::Arc;

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
fn a_value_that_is_read_is_rejected_with_layer_and_line() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = sequential![Linear::new(6, 6), Reading, Linear::new(6, CLASSES)];
    let optimizer = sgd(&model, 0.1, 0.9);
    let before = (bits(model.state_dict()), bits(optimizer.state_dict()));
    let x = Tensor::zeros([BATCH, 6], DType::F32);
    let mut rejecting = trainer(&model, CrossEntropyLoss::default(), &optimizer, false);
    let (layer, source) = named(error(rejecting.prepare(&x)));
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
    let y = batch(&[BATCH, 6], 1).1;
    let rejected = error(trainer(&model, reading, &optimizer, false).step(&x, &y));
    let Error::ReadInCapture { location, .. } = rejected else {
        panic!("expected Error::ReadInCapture, got: {rejected}")
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
fn layers_that_cannot_be_traced_or_captured_are_named() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = sequential![Linear::new(6, 6), Picking];
    let x = Tensor::zeros([BATCH, 6], DType::F32);
    let rejected = named(error(trainer(&model, MseLoss::default(), sgd(&model, 0.1, 0.9), false).prepare(&x)));
    let Error::ReadInCapture { op, help, .. } = rejected.1 else {
        panic!("expected Error::ReadInCapture, got: {}", rejected.1)
    };
    assert!(rejected.0 == "1 (Picking)" && op == "masked_select" && help.contains("where_"), "{}: {help}", rejected.0);

    let model = sequential![Linear::new(6, CLASSES), Asking];
    let mut rejecting = trainer(&model, CrossEntropyLoss::default(), sgd(&model, 0.1, 0.9), false);
    let (layer, source) = named(error(rejecting.prepare(&x)));
    assert!(layer == "1 (Asking)" && source.to_string().contains("it asks a server"), "{layer}: {source}");
    assert!(model.parameters().iter().all(|p| p.grad().is_none()));
}

#[test]
fn losses_that_do_not_fit_a_step_are_rejected() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = mlp();
    let optimizer = sgd(&model, 0.1, 0.9);
    let (x, y) = batch(&[BATCH, 6], 1);
    let each = CrossEntropyLoss { reduction: loss::Reduction::None, ..Default::default() };
    let rejected = error(trainer(&model, each, &optimizer, false).step(&x, &y));
    assert!(matches!(&rejected, Error::ShapeMismatch { .. }) && rejected.to_string().contains("reduce"), "{rejected}");
    // The targets of a function are unknown.
    let function = loss::from_fn(|logits, y| Ok((logits - y).abs().mean(..)));
    let rejected = error(trainer(&model, &function, &optimizer, false).prepare(&x));
    assert!(rejected.to_string().contains("with_targets"), "{rejected}");
    let told = loss::Loss::with_targets(function, [BATCH, CLASSES], DType::F32);
    let mut trainer = trainer(&model, told, &optimizer, false);
    trainer.prepare(&x).unwrap();
    trainer.step(&x, &Tensor::ones([BATCH, CLASSES], DType::F32)).unwrap();
    assert!(trainer.loss().unwrap() > 0.0);
}

/// A failed recording keeps gradients.
#[test]
fn a_failed_recording_restores_gradients() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = mlp();
    let optimizer = sgd(&model, 0.1, 0.9);
    let before_update: BeforeUpdate<'_> = Arc::new(|_| Err(Error::invalid("update", "the gradients are rejected")));
    let options = StepOptions { before_update: Some(before_update), ..Default::default() };
    let mut rejecting = trainer(&model, CrossEntropyLoss::default(), &optimizer, false).with_options(options);
    let rejected = error(rejecting.prepare(&Tensor::zeros([BATCH, 6], DType::F32)));
    assert!(rejected.to_string().contains("the gradients are rejected"), "{rejected}");
    assert!(optimizer.parameters().iter().all(|p| p.grad().is_none()));
}
