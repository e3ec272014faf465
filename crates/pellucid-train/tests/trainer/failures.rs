//! Errors of steps name the step, the batch and the cause, and change no parameters.

use crate::runs::{bits, isolated_generator, model, points, trainer};
use pellucid::Generator;
use pellucid::data::{DataLoader, LoaderOptions, from_fn};
use pellucid::nn::loss::{CrossEntropyLoss, from_fn as loss_from_fn};
use pellucid::nn::optim::{Lbfgs, LbfgsOptions};
use pellucid::prelude::*;
use pellucid::train::metrics::Accuracy;
use pellucid::train::{Trainer, TrainingEvent};

/// Returns the error message of a run in which the features of sample 5 have this value.
fn error_for_feature(value: f32) -> String {
    let x = Tensor::ones([12, 4], DType::F32);
    x.narrow(0, 5, 1).copy_(&Tensor::from(value));
    let y = Tensor::zeros([12], DType::I64);
    let model = model();
    let before = model.state_dict();
    let adamw = AdamW::new(model.parameters(), AdamWOptions::default());
    let mut run = Trainer::new(model, CrossEntropyLoss::default(), adamw).quiet(true);
    let error = run.fit(&mut Batches::new(&[&x, &y], 4).shuffled(1), None).unwrap_err();
    assert!(run.stop_reason().is_none());
    for (name, parameter) in run.model().named_parameters() {
        assert!(parameter.isfinite().all(..).item::<bool>(), "{name}");
        let _ = &before[&name];
    }
    error.to_string()
}

#[test]
fn a_loss_that_is_not_finite_names_samples_and_the_first_tensor() {
    let _generator = isolated_generator();
    let text = error_for_feature(f32::NAN);
    assert!(text.contains("the loss is not finite: the first non-finite tensor is the input `x`"), "{text}");
    assert!(text.starts_with("step ") && text.contains("of epoch 1, 4 samples): fit: "), "{text}");
    let samples = text.split("the samples are [").nth(1).unwrap().split(']').next().unwrap();
    assert!(samples.split(", ").any(|index| index == "5"), "{text}");
    let text = error_for_feature(3e38);
    assert!(text.contains("is the output of `0` (Linear)") || text.contains("`1` (BatchNorm1d)"), "{text}");
}

#[test]
fn a_learning_rate_that_is_too_large_ends_the_run_with_finite_weights() {
    let _generator = isolated_generator();
    let (mut train, _) = points();
    let model = sequential![Linear::new(4, 16), Linear::new(16, 2)];
    let sgd = Sgd::new(model.parameters(), SgdOptions { lr: 1e30, ..Default::default() });
    let mut run = Trainer::new(model, CrossEntropyLoss::default(), sgd).epochs(9).quiet(true);
    let error = run.fit(&mut train, None).unwrap_err();
    assert!(error.to_string().contains("lower the learning rate"), "{error}");
    let finite = |p: &Parameter| p.isfinite().all(..).item::<bool>();
    assert!(run.model().parameters().iter().all(finite));
}

#[test]
fn an_error_of_a_sample_names_it() {
    let _generator = isolated_generator();
    let data = from_fn(10, |index| match index {
        7 => Err(Error::invalid("decode", "the image is truncated")),
        _ => Ok((Tensor::ones([4], DType::F32), 1i64)),
    });
    let mut loader = DataLoader::new(data, LoaderOptions { batch_size: 5, workers: 1, ..Default::default() });
    let mut run = trainer();
    let error = run.fit(&mut loader, None).unwrap_err();
    let expected = "step 2 (batch 2 of epoch 1): sample 7: decode: the image is truncated";
    assert_eq!(error.to_string(), expected);
    assert_eq!(run.step(), 1);
}

#[test]
fn targets_that_do_not_fit_change_nothing() {
    let _generator = isolated_generator();
    let mut run = trainer();
    let before = bits(run.model());
    let (x, y) = (Tensor::ones([6, 4], DType::F32), Tensor::full([6], 2i64, DType::I64));
    let error = run.fit(&mut Batches::new(&[&x, &y], 3), None).unwrap_err();
    assert!(error.to_string().starts_with("step 1 (batch 1 of epoch 1, 3 samples): "), "{error}");
    let y = Tensor::zeros([6, 2, 2], DType::F32);
    assert!(run.fit(&mut Batches::new(&[&x, &y], 3), None).is_err());
    assert_eq!((bits(run.model()), run.step()), (before, 0));
}

/// An optimizer that lacks a layer is an error in captured and eager runs, unless it is permitted.
#[test]
fn untrained_parameters_are_rejected_or_allowed() {
    let _generator = isolated_generator();
    let (mut train, _) = points();
    for is_eager in [false, true] {
        let new_run = || {
            let model = model();
            let adamw = AdamW::new(model.parameters()[2..].to_vec(), AdamWOptions { lr: 0.02, ..Default::default() });
            Trainer::new(model, CrossEntropyLoss::default(), adamw).epochs(1).quiet(true).eager(is_eager)
        };
        let mut run = new_run();
        let before = bits(run.model());
        let error = run.fit(&mut train, None).unwrap_err();
        assert!(error.to_string().contains("0.weight") && error.to_string().contains("0.bias"), "{error}");
        assert_eq!(bits(run.model()), before);
        let mut run = new_run().allow_untrained_parameters(true);
        run.fit(&mut train, None).unwrap();
        let after = bits(run.model());
        let is_trained = |name: &str| before.iter().find(|(n, _)| n == name) != after.iter().find(|(n, _)| n == name);
        assert!(!is_trained("0.weight") && !is_trained("0.bias") && is_trained("4.weight"));
    }
}

/// A parameter that was frozen when the optimizer was created has the name of the model in the error, not its index in
/// the optimizer.
#[test]
fn a_parameter_without_state_is_named() {
    let _generator = isolated_generator();
    for (is_eager, is_untrained_allowed) in [(false, false), (true, false), (true, true)] {
        let model = model();
        model[0].freeze();
        let adamw = AdamW::new(model.parameters(), AdamWOptions { lr: 0.02, ..Default::default() });
        let thaws_later = is_eager && !is_untrained_allowed;
        if !thaws_later {
            model[0].unfreeze();
        }
        let mut run = Trainer::new(&model, CrossEntropyLoss::default(), adamw).epochs(1).quiet(true).eager(is_eager);
        run = run.allow_untrained_parameters(is_untrained_allowed).on_event(|event, _| {
            if matches!(event, TrainingEvent::StepEnded { step: 2, .. }) {
                model[0].unfreeze();
            }
            Ok(())
        });
        let first_layer = || bits(&model).into_iter().filter(|(name, _)| name.starts_with("0.")).collect::<Vec<_>>();
        let (before, (mut train, _)) = (first_layer(), points());
        let error = run.fit(&mut train, None).unwrap_err();
        assert!(matches!(error.root(), Error::UntrainedParameters { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("`0.weight`, `0.bias`") && text.contains("ensure_initialized()"), "{text}");
        assert_eq!((run.step(), first_layer()), (if thaws_later { 2 } else { 0 }, before));
    }
}

#[test]
fn options_outside_of_their_range_are_errors() {
    let _generator = isolated_generator();
    assert!(trainer().try_accumulate(0).is_err());
    assert!(trainer().try_log_every(0).is_err());
    assert!(trainer().try_checkpoint_every(0).is_err());
    assert!(trainer().try_mixed_precision(DType::F64).is_err());
    assert!(trainer().try_ema(1.5).is_err());
    assert!(trainer().try_clip_grad_norm(-1.0).is_err());
    assert!(trainer().try_clip_grad_value(f64::NAN).is_err());
}

/// Returns 12 samples of class 0, of which sample 0 has a NaN feature.
fn samples_with_nan() -> Batches {
    let x = Tensor::ones([12, 4], DType::F32);
    x.narrow(0, 0, 1).copy_(&Tensor::from(f32::NAN));
    Batches::new(&[&x, &Tensor::zeros([12], DType::I64)], 4)
}

/// A step whose loss is not finite, and the search for the origin, change neither statistics nor random numbers.
#[test]
fn a_failed_step_restores_buffers_and_random_numbers() {
    let _generator = isolated_generator();
    for is_eager in [false, true] {
        let mut run = trainer().eager(is_eager);
        let random = || Generator::default().state().to_vec::<i64>();
        let (before, numbers) = (bits(run.model()), random());
        for _ in 0..2 {
            let error = run.fit(&mut samples_with_nan(), None).unwrap_err().to_string();
            assert!(error.contains("the input `x`"), "{error}");
            assert_eq!((bits(run.model()), random()), (before.clone(), numbers.clone()), "eager: {is_eager}");
        }
        let (mut train, mut validation) = points();
        run.fit(&mut train, None).unwrap();
        assert!(run.evaluate(&mut validation).unwrap()["loss"].is_finite());
    }
}

/// The scaler skips the update of a batch whose loss is not finite, and the batch does not change the statistics.
#[test]
fn a_skipped_batch_changes_no_statistics() {
    let _generator = isolated_generator();
    let mut run = trainer().mixed_precision(DType::F16);
    run.fit(&mut samples_with_nan(), None).unwrap();
    for buffer in run.model().buffers() {
        assert!(buffer.isfinite().all(..).item::<bool>(), "{buffer:?}");
    }
    assert_ne!(run.model().buffers()[0].to_vec::<f32>(), [0.0; 16], "the other batches change the statistics");
}

/// The scaler skips the update of the first batch, which counts neither in the means and metrics of the epoch nor in
/// the averages of the weights.
#[test]
fn a_skipped_batch_does_not_count() {
    let _generator = isolated_generator();
    let mut run = trainer().mixed_precision(DType::F16).train_metric(Accuracy::new());
    let history = run.fit(&mut samples_with_nan(), None).unwrap();
    for name in ["train_loss", "train_accuracy"] {
        assert!(history.last(name).unwrap().is_finite(), "{name}");
    }
    for is_eager in [false, true] {
        let mut run = trainer().mixed_precision(DType::F16).ema(0.9).steps(1).eager(is_eager);
        run.fit(&mut samples_with_nan(), None).unwrap();
        assert_eq!(run.task().averages().unwrap().count_tensor().item::<f64>(), 0.0, "eager: {is_eager}");
        let mut run = run.steps(3);
        run.fit(&mut samples_with_nan(), None).unwrap();
        assert!(run.task().averages().unwrap().count_tensor().item::<f64>() > 0.0, "eager: {is_eager}");
    }
}

/// The derivative of √(x²) at 0 is not finite, so that every update is skipped.
#[test]
fn a_run_whose_gradients_are_never_finite_ends() {
    let _generator = isolated_generator();
    let (mut train, _) = points();
    let model = Linear::new(4, 2);
    let loss =
        loss_from_fn(|output: &Tensor, _: &Tensor| ops::mean(&ops::sqrt(&ops::square(&ops::mul(output, 0.0)?)?)?, ..));
    let sgd = Sgd::new(model.parameters(), SgdOptions::default());
    let mut run = Trainer::new(model, loss, sgd).mixed_precision(DType::F16).epochs(40).quiet(true);
    let error = run.fit(&mut train, None).unwrap_err().to_string();
    assert!(error.contains("the last 101 updates were skipped, because gradients are not finite"), "{error}");
    assert_eq!(run.step(), 101);
}

/// The step of L-BFGS evaluates the loss several times, so it is a task of the program.
#[test]
fn lbfgs_needs_a_task() {
    let _generator = isolated_generator();
    let (mut train, _) = points();
    let model = Linear::new(4, 2);
    let lbfgs = Lbfgs::new(model.parameters(), LbfgsOptions::default());
    let mut run = Trainer::new(&model, CrossEntropyLoss::default(), lbfgs).quiet(true);
    let before = bits(&model);
    let error = run.fit(&mut train, None).unwrap_err().to_string();
    assert!(error.contains("train_step() of a TrainingTask"), "{error}");
    assert_eq!((bits(&model), run.step()), (before, 0));
}
