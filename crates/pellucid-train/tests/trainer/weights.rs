//! Means of losses that weight or ignore targets.

use crate::runs::isolated_generator;
use pellucid::Generator;
use pellucid::prelude::*;
use pellucid::train::Supervised;

/// 12 samples of 3 classes with some ignored labels. The labels of the last two samples are all ignored.
fn samples() -> [Tensor; 2] {
    let x = ops::randn_with([12, 4], DType::F32, &Generator::new(1)).unwrap();
    [x, Tensor::from([0i64, 1, 2, -1, 1, -1, 0, 2, 1, 0, -1, -1])]
}

fn trainer(loss: CrossEntropyLoss) -> Trainer<'static, Supervised<'static, Linear, Sgd>> {
    manual_seed(2);
    let model = Linear::new(4, 3);
    let sgd = Sgd::new(model.parameters(), SgdOptions { lr: 0.0, ..Default::default() });
    Trainer::new(model, loss, sgd).quiet(true)
}

#[test]
fn a_trainer_returns_its_model() {
    let _generator = isolated_generator();
    let mut run = trainer(CrossEntropyLoss { ignore_index: Some(-1), ..Default::default() }).ema(0.9);
    let (mut train, mut validation) = (Batches::new(&samples(), 6), Batches::new(&samples(), 6));
    run.fit(&mut train, Some(&mut validation)).unwrap();
    let weight = run.model().weight.id();
    let model: Linear = run.into_model();
    assert_eq!(model.weight.id(), weight);
}

#[test]
fn losses_of_a_run_do_not_depend_on_the_split_into_batches() {
    let _generator = isolated_generator();
    let weight = Some(Tensor::from([1.0f32, 3.0, 0.5]));
    for (weight, reduction) in [(None, Reduction::Mean), (weight, Reduction::Mean), (None, Reduction::Sum)] {
        let loss = CrossEntropyLoss { ignore_index: Some(-1), weight, reduction, ..Default::default() };
        let [x, y] = samples();
        let mut run = trainer(loss.clone());
        let all = loss.forward(&run.predict(&x).unwrap(), &y).item::<f64>();
        let expected = if reduction == Reduction::Sum { all / 12.0 } else { all };
        for size in [1, 2, 5, 12] {
            let mut batches = Batches::new(&[&x, &y], size);
            let found = run.evaluate(&mut batches).unwrap()["loss"];
            assert!((found - expected).abs() < 1e-6, "batches of {size}: {found}, not {expected}");
        }
        // A run without the samples of ignored batches has the same means.
        let parts = [x.narrow(0, 0, 10), y.narrow(0, 0, 10)];
        for size in [4, 5, 10] {
            let mut run = trainer(loss.clone());
            let (mut train, mut validation) = (Batches::new(&parts, size), Batches::new(&[&x, &y], 2));
            let history = run.fit(&mut train, Some(&mut validation)).unwrap();
            let all = loss.forward(&run.predict(&parts[0]).unwrap(), &parts[1]).item::<f64>();
            let expected_train = if reduction == Reduction::Sum { all / 10.0 } else { all };
            assert!((history.last("train_loss").unwrap() - expected_train).abs() < 1e-6);
            assert!((history.last("validation_loss").unwrap() - expected).abs() < 1e-6);
        }
    }
}

/// If all targets of a batch are ignored, the run ends with an error that states this.
#[test]
fn a_batch_without_targets_that_count_is_named() {
    let _generator = isolated_generator();
    let loss = CrossEntropyLoss { ignore_index: Some(-1), ..Default::default() };
    for eager in [false, true] {
        let mut run = trainer(loss.clone());
        if eager {
            run = run.eager(true);
        }
        let mut batches = Batches::new(&samples(), 2);
        let error = run.fit(&mut batches, None).unwrap_err();
        assert!(matches!(error, Error::Step { step: 6, .. }), "{error}");
        assert!(error.to_string().contains("ignores all targets of the batch"), "{error}");
    }
}
