//! A trainer is bit-identical to a hand-written loop.

use crate::runs::{bits, isolated_generator, model, points, trainer};
use pellucid::nn::graph::{GraphTrainer, StepOptions};
use pellucid::nn::loss::{CrossEntropyLoss, Loss, from_fn};
use pellucid::nn::optim::Optimizer;
use pellucid::nn::optim::schedule::{ExponentialLr, OneCycleLr, Scheduler};
use pellucid::nn::optim::{Average, AveragedModel, clip_grad_norm};
use pellucid::nn::with_evaluation_mode;
use pellucid::prelude::*;
use pellucid::train::{FindLrOptions, TrainingTask};

#[test]
fn a_run_has_the_bits_of_a_captured_loop() {
    let _generator = isolated_generator();
    let (mut train, mut validation) = points();
    let mut run = trainer().epochs(3);
    let history = run.fit(&mut train, Some(&mut validation)).unwrap();

    let (mut train, mut validation) = points();
    let reference = model();
    let adamw = AdamW::new(reference.parameters(), AdamWOptions { lr: 0.02, ..Default::default() });
    let mut captured = GraphTrainer::new(&reference, CrossEntropyLoss::default(), adamw);
    for epoch in 0..3 {
        let mut sum = 0.0;
        for [x, y] in train.epoch() {
            captured.step(&x, &y).unwrap();
            sum += captured.loss().unwrap() * y.size() as f64;
        }
        assert_eq!(history.column("train_loss").unwrap()[epoch], sum / 60.0);
        let (mut loss, mut samples) = (0.0, 0.0);
        for [x, y] in validation.epoch() {
            loss += captured.evaluate(&x, &y).unwrap() * y.size() as f64;
            samples += y.size() as f64;
        }
        assert_eq!(history.column("validation_loss").unwrap()[epoch], loss / samples);
    }
    assert_eq!(bits(run.model()), bits(&reference));
    assert_eq!((run.step(), run.epoch()), (24, 3));
}

#[test]
fn eager_and_captured_runs_have_equal_bits() {
    let _generator = isolated_generator();
    let run = |is_eager: bool| {
        let (mut train, mut validation) = points();
        let settings = trainer().epochs(3).accumulate(3).clip_grad_norm(0.5).ema(0.9);
        let mut run = settings.eager(is_eager);
        let history = run.fit(&mut train, Some(&mut validation)).unwrap();
        let averages: Vec<Vec<u8>> = run.task().averages().unwrap().averages().map(|(_, a)| a.to_bytes()).collect();
        (bits(run.model()), averages, history.column("validation_loss"))
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn accumulation_ends_with_the_epoch() {
    let _generator = isolated_generator();
    let (mut train, _) = points();
    let mut run = trainer().epochs(2).accumulate(3).ema(0.9);
    run.fit(&mut train, None).unwrap();

    let (mut train, _) = points();
    let reference = model();
    let adamw = AdamW::new(reference.parameters(), AdamWOptions { lr: 0.02, ..Default::default() });
    let averages = AveragedModel::new(&reference, Average::Exponential(0.9));
    let options = StepOptions { accumulate: 3, ..Default::default() };
    let mut captured = GraphTrainer::new(&reference, CrossEntropyLoss::default(), adamw).with_options(options);
    for _ in 0..2 {
        let mut steps = 0;
        for [x, y] in train.epoch() {
            captured.step(&x, &y).unwrap();
            steps += 1;
            if steps % 3 == 0 {
                averages.update().unwrap();
            }
        }
        // 8 batches: two updates with three steps, and one update with two.
        assert!(captured.update_early().unwrap());
        averages.update().unwrap();
    }
    assert_eq!(averages.count_tensor().item::<f64>(), 6.0);
    assert_eq!(bits(run.model()), bits(&reference));
}

#[test]
fn schedules_by_step_and_by_epoch_have_their_values() {
    let _generator = isolated_generator();
    let (mut train, _) = points();
    let mut run = trainer().epochs(3).schedule(ExponentialLr { gamma: 0.5 }, ScheduleUnit::Epoch);
    let history = run.fit(&mut train, None).unwrap();
    let rates = history.column("lr").unwrap();
    assert!(rates.iter().zip([0.02, 0.01, 0.005]).all(|(rate, expected)| (rate - expected).abs() < 1e-9), "{rates:?}");

    let (mut train, _) = points();
    let mut run = trainer().epochs(2).schedule(OneCycleLr::new(0.1, 16), ScheduleUnit::Step);
    run.fit(&mut train, None).unwrap();
    let reference = model();
    let adamw = AdamW::new(reference.parameters(), AdamWOptions { lr: 0.02, ..Default::default() });
    let mut schedule = Scheduler::new(OneCycleLr::new(0.1, 16), &adamw);
    let (mut train, _) = points();
    for [x, y] in (0..2).flat_map(|_| train.epoch().collect::<Vec<_>>()) {
        adamw.zero_grad();
        cross_entropy(&reference.forward(&x), &y).backward();
        adamw.step();
        schedule.step();
    }
    assert_eq!(bits(run.model()), bits(&reference));
}

#[test]
fn mixed_precision_is_the_autocast_of_a_loop() {
    let _generator = isolated_generator();
    let (mut train, _) = points();
    let mut run = trainer().epochs(2).mixed_precision(DType::BF16).before_update(|p| clip_grad_norm(p, 0.1).map(drop));
    run.fit(&mut train, None).unwrap();
    let (mut train, _) = points();
    let reference = model();
    let adamw = AdamW::new(reference.parameters(), AdamWOptions { lr: 0.02, ..Default::default() });
    for [x, y] in (0..2).flat_map(|_| train.epoch().collect::<Vec<_>>()) {
        adamw.zero_grad();
        let loss = {
            let _half = autocast(DType::BF16);
            cross_entropy(&reference.forward(&x), &y)
        };
        loss.backward();
        clip_grad_norm(&reference.parameters(), 0.1).unwrap();
        adamw.step();
    }
    assert_eq!(bits(run.model()), bits(&reference));
}

#[test]
fn half_precision_with_a_scaler_trains() {
    let _generator = isolated_generator();
    let (mut train, mut validation) = points();
    let mut run = trainer().epochs(12).mixed_precision(DType::F16);
    let history = run.fit(&mut train, Some(&mut validation)).unwrap();
    let losses = history.column("validation_loss").unwrap();
    assert!(losses[11] < 0.6 * losses[0], "{losses:?}");
}

/// An update that fails before the step leaves the scaler ready for the next one.
#[test]
fn a_failed_eager_update_with_a_scaler_can_be_repeated() {
    let _generator = isolated_generator();
    let (mut train, _) = points();
    let has_failed = std::sync::atomic::AtomicBool::new(false);
    let mut run = trainer().epochs(1).mixed_precision(DType::F16).eager(true).before_update(move |_| match has_failed
        .swap(true, std::sync::atomic::Ordering::Relaxed)
    {
        false => Err(pellucid::Error::InvalidArgument { op: "clip", reason: "not now".into() }),
        true => Ok(()),
    });
    run.fit(&mut train, None).unwrap_err();
    run.fit(&mut train, None).unwrap();
}

/// A model that reads values, with a method that returns errors or a method that panics. It cannot be captured.
#[derive(Module)]
struct Reading(Linear, #[module(skip)] bool);

impl Layer for Reading {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let largest = ops::max(x, ..)?;
        let largest: f64 = if self.1 { largest.item() } else { largest.try_item()? };
        self.0.try_forward(&ops::div(x, largest.abs().max(1.0))?)
    }
}

#[test]
fn a_model_that_reads_values_runs_eagerly() {
    for panics in [false, true] {
        let _generator = isolated_generator();
        let (mut train, mut validation) = points();
        let new_model = || {
            manual_seed(1);
            let model = Reading(Linear::new(4, 2), panics);
            let sgd = Sgd::new(model.parameters(), SgdOptions { lr: 0.1, ..Default::default() });
            (model, sgd)
        };
        let (model, sgd) = new_model();
        let mut run = Trainer::new(&model, CrossEntropyLoss::default(), sgd).epochs(2).quiet(true);
        run.fit(&mut train, Some(&mut validation)).unwrap();
        let reason = run.task().eager_reason().unwrap();
        assert!(reason.contains("item"), "{reason}");

        let (mut train, _) = points();
        let (reference, sgd) = new_model();
        for [x, y] in (0..2).flat_map(|_| train.epoch().collect::<Vec<_>>()) {
            sgd.zero_grad();
            cross_entropy(&reference.forward(&x), &y).backward();
            sgd.step();
        }
        assert_eq!(bits(&model), bits(&reference));
    }
}

#[test]
fn evaluation_and_prediction_are_in_evaluation_mode() {
    let _generator = isolated_generator();
    let (mut train, mut validation) = points();
    let mut run = trainer().epochs(1);
    run.fit(&mut train, None).unwrap();
    let scores = run.evaluate(&mut validation).unwrap();
    let (mut sum, mut samples) = (0.0, 0.0);
    for [x, y] in validation.epoch() {
        let output = with_evaluation_mode(|| run.model().forward(&x));
        assert_eq!(run.predict(&x).unwrap().to_bytes(), output.to_bytes());
        sum += CrossEntropyLoss::default().forward(&output, &y).item::<f64>() * y.size() as f64;
        samples += y.size() as f64;
    }
    assert!((scores["loss"] - sum / samples).abs() < 1e-6);
    assert!(run.model().named_modules().len() > 1);
}

#[test]
fn the_search_for_a_rate_changes_nothing() {
    let _generator = isolated_generator();
    let (mut train, mut validation) = points();
    let mut expected = trainer().epochs(2).ema(0.9).accumulate(3);
    expected.fit(&mut train, Some(&mut validation)).unwrap();

    let (mut train, mut validation) = points();
    let mut run = trainer().epochs(2).ema(0.9).accumulate(3);
    let curve = run.find_lr(&mut train, FindLrOptions { steps: 31, ..Default::default() }).unwrap();
    assert!(curve.rates.len() > 20 && curve.rates.is_sorted(), "{curve}");
    assert_eq!(run.optimizer().lr(), 0.02);
    run.fit(&mut train, Some(&mut validation)).unwrap();
    assert_eq!(bits(run.model()), bits(expected.model()));
}

/// Negative log-likelihoods of densities may be negative.
#[test]
fn the_search_for_a_rate_continues_with_negative_losses() {
    let _generator = isolated_generator();
    let (mut train, _) = points();
    let model = Linear::new(4, 2);
    let sgd = Sgd::new(model.parameters(), SgdOptions::default());
    let loss = from_fn(|output: &Tensor, _: &Tensor| ops::add(&ops::mean(&ops::square(output)?, ..)?, -10.0));
    let mut run = Trainer::new(model, loss, sgd).quiet(true);
    let curve = run.find_lr(&mut train, FindLrOptions { first: 1e-3, ..Default::default() }).unwrap();
    assert!(curve.steepest().is_some() && curve.losses.iter().all(|loss| *loss < 0.0), "{curve}");
    assert!((30..100).contains(&curve.rates.len()), "the search must end when the loss diverges: {curve}");
}

/// The search trains in the mode of `fit`, with dropout and batch statistics.
#[test]
fn the_search_for_a_rate_does_not_depend_on_the_mode_of_the_model() {
    let _generator = isolated_generator();
    let search = |evaluates: bool| {
        let (mut train, _) = points();
        let mut run = trainer();
        if evaluates {
            run.model().eval();
        }
        manual_seed(6);
        run.find_lr(&mut train, FindLrOptions::default()).unwrap().losses
    };
    assert_eq!(search(true), search(false));
}
