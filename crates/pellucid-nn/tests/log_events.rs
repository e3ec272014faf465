//! Log events, in a process of their own, since `tracing` caches for all threads whether an event is enabled.

#[path = "../../pellucid/tests/event_log/mod.rs"]
mod event_log;

use event_log::{assert_events, events};
use pellucid_nn::graph::mirror::infer_grad_scale;
use pellucid_nn::graph::{GraphTrainer, InferenceModel, StepOptions};
use pellucid_nn::loss::{CrossEntropyLoss, MseLoss, Reduction};
use pellucid_nn::optim::{Sgd, SgdOptions};
use pellucid_nn::{Linear, Module};
use pellucid_tensor::{DType, Tensor};

#[test]
fn recordings_and_rejected_steps_are_logged() {
    let model = Linear::new(3, 2);
    let x = Tensor::randn([5, 3], DType::F32);
    let mut served = InferenceModel::new(&model, &[4, 8]);
    let run = events(|| _ = served.run(&x).unwrap());
    let recorded = "message recorded a forward pass; rows 8;";
    assert_events(
        &run,
        &[&["DEBUG message captured a step; inputs 1; kernels 1;"], &["INFO ", recorded, "kernels 1;"]],
    );
    assert_events(&events(|| _ = served.run(&x).unwrap()), &[]);

    let sgd = Sgd::new(model.parameters(), SgdOptions::default());
    let options = StepOptions { max_recordings: 1, ..Default::default() };
    let mut trainer = GraphTrainer::new(&model, CrossEntropyLoss::default(), sgd).with_options(options);
    let y = Tensor::from([0i64, 1, 1, 0, 1]);
    let step = events(|| trainer.step(&x, &y).unwrap());
    assert_events(
        &step,
        &[&["DEBUG message captured a step"], &["INFO message recorded a step; shape [5, 3]; steps 1;"]],
    );
    let rejected = events(|| assert!(trainer.step(&x, &Tensor::from([0i64, 1, 1, 0, 2])).is_err()));
    assert_events(&rejected, &[&["INFO message rejected a step; error ", "index 2"]]);
    let other = events(|| trainer.step(&x.i(1..4), &y.i(1..4)).unwrap());
    assert_events(&other[1..], &[&["shape [3, 3]; steps 1;"], &["DEBUG ", "dropped 1; limit 1;"]]);
}

/// A result keeps no gradient: the first call says why it is missing.
#[test]
fn the_missing_gradient_of_a_result_is_explained_once() {
    let x = Tensor::from([2.0f32]).requires_grad_(true);
    let log = events(|| {
        let (kept, y) = (x.square(), x.exp());
        kept.retain_grad();
        assert!(kept.grad().is_none() && x.grad().is_none());
        (&kept * &y).backward();
        assert!(kept.grad().is_some() && y.grad().is_none() && y.grad().is_none());
    });
    assert_events(&log, &[&["WARN ", "grad() of a result of shape [1] is None", "retain_grad()"]]);
}

#[test]
fn the_grad_scale_is_logged() {
    let (model, x, y) = (Linear::new(2, 2), Tensor::randn([4, 2], DType::F32), Tensor::zeros([4, 2], DType::F32));
    let loss = MseLoss { reduction: Reduction::Sum };
    let log = events(|| _ = infer_grad_scale(&loss, &model, &x, &y).unwrap());
    assert_events(&log, &[&["INFO ", "kind Sum; scale 0.25; batch 4;"]]);
}
