//! The check of a step: the loss falls, and the update opposes the gradient.

use crate::models::*;
use pellucid_nn::graph::*;
use pellucid_nn::loss::CrossEntropyLoss;
use pellucid_nn::optim::{AdamW, AdamWOptions, GradScaler, Optimizer, Sgd, SgdOptions};
use pellucid_nn::*;
use pellucid_tensor::{DType, Error, Tensor, autocast, manual_seed};
use std::sync::Arc;

/// A check finds what two launches by hand find, and restores all state: parameters, statistics, gradients, moments,
/// loss scale and random numbers.
#[test]
fn a_check_measures_a_step_and_restores_the_state() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    for kind in &KINDS {
        for eager in [false, true] {
            let model = built(kind);
            let adamw = AdamW::try_new(model.parameters(), AdamWOptions { lr: 1e-3, ..Default::default() }).unwrap();
            let scaler = Arc::new(GradScaler::try_new(Default::default()).unwrap());
            let options = StepOptions { eager, scaler: Some(scaler.clone()), ..Default::default() };
            let mut trainer = GraphTrainer::new(&model, CrossEntropyLoss::default(), &adamw).with_options(options);
            let _half = autocast(DType::BF16);
            let (x, y) = batch(kind.2, 1);
            trainer.step(&x, &y).unwrap();
            let gradients = || model.parameters().iter().map(|p| p.grad().unwrap()).collect::<Vec<_>>();
            let values = || gradients().iter().map(|g| g.to_vec::<f32>()).collect::<Vec<_>>();
            let results = [trainer.logits().unwrap().clone(), trainer.loss_tensor().unwrap().clone()];
            let snapshot = || {
                let states = [model.state_dict(), adamw.state_dict(), scaler.state_dict()].map(bits);
                (states, values(), results.each_ref().map(|tensor| tensor.to_vec::<f32>()))
            };
            let before = snapshot();
            let bound = gradients();
            manual_seed(7);
            let check = trainer.check_step(&x, &y).unwrap();
            let drawn = Tensor::rand([4], DType::F32).to_vec::<f32>();
            assert!(snapshot() == before, "{}: a check must restore the state", kind.0);
            assert!(gradients().iter().zip(&bound).all(|(now, then)| now.array().shares_storage(then.array())));
            manual_seed(7);
            assert_eq!(Tensor::rand([4], DType::F32).to_vec::<f32>(), drawn, "a check must restore the generator");
            check.ensure().unwrap();
            assert!(check.loss_falls() && check.is_descent_step());
            // The same by hand.
            let parameters: Vec<Vec<f64>> = model.parameters().iter().map(|p| p.to_vec()).collect();
            manual_seed(7);
            trainer.step(&x, &y).unwrap();
            let first = trainer.loss().unwrap();
            let changes = model.parameters().into_iter().zip(parameters).map(|(p, before)| {
                let (now, g) = (p.to_vec::<f64>(), p.grad().unwrap().to_vec::<f64>());
                now.iter().zip(before).zip(g).map(|((now, before), g)| (now - before) * g).sum::<f64>()
            });
            let slope = changes.sum::<f64>();
            manual_seed(7);
            trainer.step(&x, &y).unwrap();
            let second = trainer.loss().unwrap();
            assert_eq!(check, StepCheck { loss_before: first, loss_after: second, slope }, "{}", kind.0);
        }
    }
}

#[test]
fn a_step_in_the_wrong_direction_is_found() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = mlp();
    let (x, y) = batch(&[BATCH, 6], 1);
    let check = |lr: f64, maximize: bool| {
        let sgd = Sgd::new(model.parameters(), SgdOptions { lr, maximize, ..Default::default() });
        let before = bits(model.state_dict());
        let check = GraphTrainer::new(&model, CrossEntropyLoss::default(), sgd).check_step(&x, &y).unwrap();
        assert_eq!(bits(model.state_dict()), before);
        (check.loss_falls(), check.is_descent_step(), check.ensure().err().map(|error| error.to_string()))
    };
    assert_eq!(check(0.1, false), (true, true, None));
    for (rate, maximize, found, help) in [
        (0.1, true, (false, false), "sign of the update"),
        (0.0, false, (false, false), "the update changes nothing"),
        (1e4, false, (false, true), "lower the learning rate"),
    ] {
        let (falls, descends, error) = check(rate, maximize);
        assert_eq!((falls, descends), found, "rate {rate}");
        assert!(error.as_ref().unwrap().contains(help), "rate {rate}: {error:?}");
    }
}

/// The slope sums over the updated parameters.
#[test]
fn untrained_parameters_are_not_part_of_a_check() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = mlp();
    let some = Sgd::try_new(model.parameters()[2..].to_vec(), SgdOptions { lr: 0.1, ..Default::default() }).unwrap();
    let options = StepOptions { allow_untrained_parameters: true, ..Default::default() };
    let mut trainer = GraphTrainer::new(&model, CrossEntropyLoss::default(), &some).with_options(options);
    let (x, y) = batch(&[BATCH, 6], 1);
    let before = bits(model.state_dict());
    let check = trainer.check_step(&x, &y).unwrap();
    check.ensure().unwrap();
    assert_eq!(bits(model.state_dict()), before);
    // A step of gradient descent has the slope -lr * |g|^2.
    loss::cross_entropy(&model.forward(&x), &y).backward();
    let squares = some.parameters().iter().map(|p| p.grad().unwrap().square().sum(..).item::<f64>()).sum::<f64>();
    assert!((check.slope + 0.1 * squares).abs() < 1e-4 * squares, "slope {} of {squares}", check.slope);
}

#[test]
fn a_step_that_cannot_be_checked_is_rejected() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = mlp();
    let (x, y) = batch(&[BATCH, 6], 1);
    let (before, options) = (bits(model.state_dict()), StepOptions { accumulate: 2, ..Default::default() });
    let trainer = GraphTrainer::new(&model, CrossEntropyLoss::default(), sgd(&model, 0.1, 0.0));
    let rejected = trainer.with_options(options).check_step(&x, &y);
    let Err(Error::InvalidArgument { .. }) = &rejected else { panic!("unexpected result: {rejected:?}") };
    assert!(rejected.unwrap_err().to_string().contains("accumulate = 1"));
    assert_eq!(bits(model.state_dict()), before);
}
