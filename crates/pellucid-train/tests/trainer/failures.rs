//! Errors of steps name the step, the batch and the cause, and change no parameters.

use crate::runs::{bits, isolated_generator, model, points, trainer};
use pellucid::data::{DataLoader, LoaderOptions, from_fn};
use pellucid::nn::loss::CrossEntropyLoss;
use pellucid::prelude::*;
use pellucid::train::Trainer;

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
