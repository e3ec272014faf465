//! Validations and evaluations change no later step, and the loss of the validation is monitored by default.

use crate::runs::{ScalarTask, SmallTrainer, TestMetric, bits, isolated_generator, points, trainer};
use crate::scratch::Scratch;
use pellucid::nn::TrainingMode;
use pellucid::prelude::*;
use pellucid::train::metrics::Accuracy;
use pellucid::train::{EarlyStopping, FindLrOptions, StopReason, Supervised, TrainingTask};
use std::path::PathBuf;
use std::process::Command;

/// Adds noise, also in evaluation, as a variational model does.
#[derive(Clone, Module)]
struct EvaluationNoise;

impl Layer for EvaluationNoise {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        ops::add(x, &ops::mul(&ops::randn(x.shape(), x.dtype())?, 0.1)?)
    }
}

pub(crate) fn noisy() -> Trainer<'static, Supervised<'static, Sequential, Sgd>> {
    manual_seed(2);
    let model = sequential![Linear::new(4, 8), EvaluationNoise, Linear::new(8, 2)];
    let sgd = Sgd::new(model.parameters(), SgdOptions { lr: 0.2, ..Default::default() });
    Trainer::new(model, CrossEntropyLoss::default(), sgd).quiet(true)
}

/// A run that ends within an epoch validates, and then draws the random numbers of an uninterrupted run. Evaluations
/// and predictions between two calls of `fit` do not change them either.
#[test]
fn a_validation_within_an_epoch_and_an_evaluation_draw_no_numbers_of_the_training() {
    let _generator = isolated_generator();
    let (mut train, mut validation) = points();
    let mut expected = noisy().steps(24);
    expected.fit(&mut train, Some(&mut validation)).unwrap();
    let (mut train, mut validation) = points();
    let mut run = noisy().steps(11);
    run.fit(&mut train, Some(&mut validation)).unwrap();
    run.evaluate(&mut validation).unwrap();
    let x = Tensor::ones([2, 4], DType::F32);
    let predicted = run.predict(&x).unwrap().to_vec::<f32>();
    run.predict_batches(&mut validation).unwrap();
    assert_eq!(run.predict_inputs(&mut Batches::new(&[&x], 2)).unwrap().to_vec::<f32>(), predicted);
    let mut run = run.steps(24);
    run.fit(&mut train, Some(&mut validation)).unwrap();
    assert_eq!(bits(run.model()), bits(expected.model()));
    let last = |run: &Trainer<'_, _>| run.history().last("validation_loss");
    assert_eq!(last(&run), last(&expected));
}

#[test]
fn a_failed_validation_is_repeated_with_the_same_random_numbers() {
    let _generator = isolated_generator();
    let run = |fails: bool| {
        let (mut train, mut validation) = points();
        let mut run = noisy().epochs(2).metric(TestMetric::new("fails_once").failing_at(usize::from(fails)));
        if fails {
            run.fit(&mut train, Some(&mut validation)).unwrap_err();
        }
        let history = run.fit(&mut train, Some(&mut validation)).unwrap();
        (bits(run.model()), history.column("validation_loss").unwrap())
    };
    assert_eq!(run(true), run(false));
}

/// A task whose training loss falls and whose validation loss grows.
fn overfitting() -> ScalarTask {
    ScalarTask { loss: "negative_elbo", steps: 0.0, train_loss: |n| -n, validation_loss: |n| n, has_outputs: true }
}

#[test]
fn the_first_loss_of_the_validation_is_monitored_by_default() {
    let _generator = isolated_generator();
    let (mut train, mut validation) = points();
    let mut run = Trainer::from_task(overfitting()).epochs(9).quiet(true).metric(Accuracy::new());
    run = run.early_stopping(EarlyStopping { patience: 2, ..Default::default() });
    run.fit(&mut train, Some(&mut validation)).unwrap();
    assert_eq!((run.epoch(), run.stop_reason()), (3, Some(StopReason::NotImproving)));
}

#[test]
fn a_training_metric_with_the_name_of_a_loss_ends_the_first_step() {
    let _generator = isolated_generator();
    let (mut train, _) = points();
    let mut run = Trainer::from_task(overfitting()).quiet(true).train_metric(TestMetric::new("negative_elbo"));
    let error = run.fit(&mut train, None).unwrap_err().to_string();
    assert!(error.starts_with("step 1 ") && error.contains("have the name `negative_elbo`"), "{error}");
}

/// Before `fit` has loaded the state, the model has its initial weights.
#[test]
fn a_resumed_run_that_is_not_loaded_is_not_used() {
    let _generator = isolated_generator();
    let scratch = Scratch::new("trainer-not-loaded");
    let (mut train, mut validation) = points();
    trainer().ema(0.5).checkpoints(&scratch.0).fit(&mut train, None).unwrap();
    let (mut train, _) = points();
    let mut run = trainer().ema(0.5).resume(&scratch.0).epochs(2);
    let x = Tensor::ones([2, 4], DType::F32);
    let uses = |run: &mut SmallTrainer, validation: &mut Batches| {
        [
            run.predict(&x).map(drop),
            run.predict_batches(validation).map(drop),
            run.find_lr(validation, FindLrOptions { steps: 4, ..Default::default() }).map(drop),
            run.use_averages(),
            run.evaluate(validation).map(drop),
        ]
    };
    for rejected in uses(&mut run, &mut validation) {
        let text = rejected.unwrap_err().to_string();
        assert!(text.contains("is loaded by fit(), which was not called"), "{text}");
    }
    run.fit(&mut train, None).unwrap();
    uses(&mut run, &mut validation).into_iter().for_each(|accepted| accepted.unwrap());
}

/// A layer that reads a value in evaluation, by a method that panics or that returns an error.
#[derive(Clone, Module)]
struct ReadsInEvaluation {
    training: TrainingMode,
    panics: bool,
}

impl Layer for ReadsInEvaluation {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        if !self.training.get() {
            let largest = ops::max(x, ..)?;
            let _ = if self.panics { largest.item::<f64>() } else { largest.try_item::<f64>()? };
        }
        Ok(x.clone())
    }
}

#[test]
fn an_evaluation_that_cannot_be_captured_runs_eagerly() {
    let _generator = isolated_generator();
    let history = |panics: bool, is_eager: bool| {
        manual_seed(2);
        let reads = ReadsInEvaluation { training: TrainingMode::new(), panics };
        let model = sequential![Linear::new(4, 8), EvaluationNoise, reads, Linear::new(8, 2)];
        let sgd = Sgd::new(model.parameters(), SgdOptions { lr: 0.2, ..Default::default() });
        let mut run = Trainer::new(model, CrossEntropyLoss::default(), sgd).epochs(2).quiet(true).eager(is_eager);
        let (mut train, mut validation) = points();
        let history = run.fit(&mut train, Some(&mut validation)).unwrap();
        assert_eq!(run.task().eager_reason(), None);
        assert!(run.evaluate(&mut validation).unwrap()["loss"].is_finite());
        ["train_loss", "validation_loss"].map(|name| history.column(name).unwrap())
    };
    let expected = history(false, true);
    for panics in [false, true] {
        assert_eq!(history(panics, false), expected, "panics: {panics}");
    }
}

const FOLDER: &str = "PELLUCID_TEST_EAGER_FOLDER";

/// A layer that reads a value, so that its steps run eagerly.
#[derive(Clone, Module)]
struct EagerOnly;

impl Layer for EagerOnly {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        ops::max(x, ..)?.try_item::<f64>()?;
        Ok(x.clone())
    }
}

/// The process whose standard error the test below reads. As a test of its own, it does nothing.
#[test]
fn resumes_with_eager_steps() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let _generator = isolated_generator();
    let (mut train, _) = points();
    let model = sequential![EagerOnly, Linear::new(4, 2)];
    let sgd = Sgd::new(model.parameters(), SgdOptions { lr: 0.1, ..Default::default() });
    let run = Trainer::new(model, CrossEntropyLoss::default(), sgd).checkpoints(&folder).resume_if_exists(&folder);
    let epochs = if folder.exists() { 2 } else { 1 };
    run.epochs(epochs).fit(&mut train, None).unwrap();
}

#[test]
fn a_resumed_run_reports_why_its_steps_run_eagerly() {
    let scratch = Scratch::new("trainer-eager-report");
    for _ in 0..2 {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "evaluations::resumes_with_eager_steps", "--test-threads=1", "--nocapture"])
            .env(FOLDER, scratch.0.join("run"))
            .output()
            .unwrap();
        let text = String::from_utf8(child.stderr).unwrap();
        assert!(child.status.success() && text.contains("the steps run eagerly"), "{text}");
    }
}
