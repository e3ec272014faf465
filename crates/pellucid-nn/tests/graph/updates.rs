//! Closures as the update of a step, and steps that are created from a recording.

use crate::models::*;
use pellucid_nn::graph::mirror::*;
use pellucid_nn::graph::*;
use pellucid_nn::loss::CrossEntropyLoss;
use pellucid_nn::optim::{Adam, AdamOptions, GradScaler, Optimizer};
use pellucid_nn::*;
use pellucid_tensor::{DType, Error, Result, Tensor};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A recording of a closure that steps an optimizer equals the recording of the optimizer; a train graph of either
/// copies batches into the buffers of the recording.
#[test]
fn a_closure_is_the_update_of_a_step() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    for stream in streams() {
        let run = |kind: usize| {
            let (model, loss) = (built(&KINDS[0]), CrossEntropyLoss::default());
            let adam = Adam::try_new(model.parameters(), AdamOptions { lr: 0.01, ..Default::default() }).unwrap();
            let plan = make_plan_for_sequential(&model, &[BATCH, 6], LossKind::SoftmaxCrossEntropy, 0).unwrap();
            try_rebind_grads(&model, &adam, &plan).unwrap();
            let (x_buf, y_buf) = (Tensor::zeros([BATCH, 6], DType::F32), Tensor::zeros([BATCH], DType::I64));
            let stream = stream.clone();
            let mut calls = 0;
            let step = || -> Result<()> { adam.try_step() };
            let exec = match kind {
                0 => record_step_graph(&model, &loss, &adam, &plan, &x_buf, &y_buf, stream),
                1 => record_step_graph(&model, &loss, || adam.step(), &plan, &x_buf, &y_buf, stream),
                _ => {
                    let counted = || {
                        calls += 1;
                        step()
                    };
                    record_step_graph(&model, &loss, counted, &plan, &x_buf, &y_buf, stream)
                }
            };
            let mut graph = TrainGraph::from(exec.unwrap());
            assert_eq!(graph.gradients.bound, ["0.weight", "0.bias", "2.weight", "2.bias"]);
            assert!(graph.gradients.not_updated.is_empty() && graph.gradients.not_planned.is_empty());
            let mut losses = Vec::new();
            for seed in 0..4 {
                let (x, y) = batch(&[BATCH, 6], seed);
                graph.set_batch(&x, &y).unwrap();
                graph.launch().unwrap();
                losses.push(graph.loss.item::<f32>());
                assert_eq!((x_buf.to_vec::<f32>(), y_buf.to_vec::<i64>()), (x.to_vec(), y.to_vec()));
            }
            let refused = graph.set_batch(&Tensor::zeros([BATCH, 5], DType::F32), &y_buf);
            assert!(matches!(refused, Err(Error::Layer { .. })));
            drop(graph);
            (losses, bits(model.state_dict()), bits(adam.state_dict()))
        };
        let by_optimizer = run(0);
        assert!(run(1) == by_optimizer && run(2) == by_optimizer);
    }
}

#[test]
fn the_error_of_a_closure_is_returned() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let (model, loss) = (mlp(), CrossEntropyLoss::default());
    let plan = make_plan_for_sequential(&model, &[BATCH, 6], LossKind::SoftmaxCrossEntropy, 0).unwrap();
    let (x, y) = batch(&[BATCH, 6], 1);
    let failing = || Err::<(), _>(Error::invalid("update", "no update today"));
    let refused = record_step_graph(&model, &loss, failing, &plan, &x, &y, None).map(drop);
    assert!(refused.unwrap_err().to_string().contains("no update today"));
    let scaler = Some(Arc::new(GradScaler::try_new(Default::default()).unwrap()));
    let options = StepOptions { scaler, ..Default::default() };
    let refused = record_step_graph_with(&model, &loss, || (), &plan, &x, &y, options).map(drop);
    assert!(refused.unwrap_err().to_string().contains("pass the optimizer"));
}

/// A launch replays the operations of a closure, and does not run it.
#[test]
fn a_closure_runs_while_the_step_is_recorded() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let (model, loss) = (mlp(), CrossEntropyLoss::default());
    let plan = make_plan_for_sequential(&model, &[BATCH, 6], LossKind::SoftmaxCrossEntropy, 0).unwrap();
    let (x, y) = batch(&[BATCH, 6], 1);
    let (calls, parameters) = (AtomicUsize::new(0), model.parameters());
    let update = || {
        calls.fetch_add(1, Ordering::Relaxed);
        parameters.iter().for_each(|p| p.copy_(&(p.tensor() - p.grad().unwrap() * 0.1)));
    };
    let mut exec = record_step_graph(&model, &loss, update, &plan, &x, &y, None).unwrap();
    // In debug builds, the second and the third launch record again, to verify the step.
    (0..3).for_each(|_| exec.launch().unwrap());
    let recorded = calls.load(Ordering::Relaxed);
    (0..3).for_each(|_| exec.launch().unwrap());
    assert_eq!(calls.load(Ordering::Relaxed), recorded);
}
