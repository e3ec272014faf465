//! Metrics of the batches of training.

use crate::runs::{bits, isolated_generator, points, trainer};
use crate::scratch::Scratch;
use pellucid::nn::loss::CrossEntropyLoss;
use pellucid::nn::{Checkpoint, StateDict};
use pellucid::prelude::*;
use pellucid::train::metrics::{Accuracy, F1Score, Goal, Metric, RocAuc};
use pellucid::train::{CsvLogger, NamedScalars, Trainer, TrainingTask};

/// Compares the values with a loop that computes the metrics from the outputs before each update.
#[test]
fn metrics_use_the_outputs_before_each_update() {
    let _generator = isolated_generator();
    let new_model = || {
        manual_seed(5);
        let model = sequential![Linear::new(4, 2)];
        let sgd = Sgd::new(model.parameters(), SgdOptions { lr: 0.5, ..Default::default() });
        (model, sgd)
    };
    let (model, sgd) = new_model();
    let (mut batches, _) = points();
    let mut expected = Vec::new();
    for _ in 0..3 {
        let (mut accuracy, mut area) = (Accuracy::new(), RocAuc::new());
        for [x, y] in batches.epoch() {
            sgd.zero_grad();
            let output = model.forward(&x);
            accuracy.update(&output, &y).unwrap();
            area.update(&output, &y).unwrap();
            cross_entropy(&output, &y).backward();
            sgd.step();
        }
        expected.push((accuracy.compute().unwrap(), area.compute().unwrap()));
    }
    for is_eager in [false, true] {
        let (model, sgd) = new_model();
        let (mut batches, mut validation) = points();
        let mut run = Trainer::new(model, CrossEntropyLoss::default(), sgd).epochs(3).quiet(true).eager(is_eager);
        run = run.train_metric(Accuracy::new()).train_metric(RocAuc::new()).metric(Accuracy::new());
        let history = run.monitor("train_roc_auc", Goal::Maximize).fit(&mut batches, Some(&mut validation)).unwrap();
        let column = |name: &str| history.column(name).unwrap();
        let found: Vec<_> = column("train_accuracy").into_iter().zip(column("train_roc_auc")).collect();
        assert_eq!(found, expected, "eager: {is_eager}");
        assert_ne!(column("validation_accuracy"), column("train_accuracy"));
    }
}

#[test]
fn values_are_in_the_table_and_the_logs_and_change_no_step() {
    let _generator = isolated_generator();
    let scratch = Scratch::new("trainer-train-metrics");
    let path = scratch.0.join("log.csv");
    let (mut train, _) = points();
    let mut expected = trainer().epochs(2);
    expected.fit(&mut train, None).unwrap();
    let (mut train, _) = points();
    let mut run = trainer().epochs(2).train_metric(Accuracy::new()).logger(CsvLogger::new(&path).unwrap());
    let history = run.fit(&mut train, None).unwrap();
    assert_eq!(run.task().eager_reason(), None);
    assert_eq!(bits(run.model()), bits(expected.model()));
    let log = std::fs::read_to_string(&path).unwrap();
    for text in [&history.to_string(), log.lines().next().unwrap()] {
        assert!(text.contains("train_accuracy"), "{text}");
    }
    assert!(history.last("train_accuracy").unwrap() > 0.5);
}

/// A metric without a state.
struct Counter(f64);

impl Metric for Counter {
    fn name(&self) -> String {
        "batches".into()
    }
    fn goal(&self) -> Goal {
        Goal::Maximize
    }
    fn update(&mut self, _output: &Tensor, _target: &Tensor) -> Result<()> {
        self.0 += 1.0;
        Ok(())
    }
    fn compute(&self) -> Result<f64> {
        Ok(self.0)
    }
    fn reset(&mut self) {
        self.0 = 0.0;
    }
}

#[test]
fn metrics_that_cannot_be_saved_named_or_computed_are_errors() {
    let _generator = isolated_generator();
    let scratch = Scratch::new("trainer-train-metrics-rejected");
    let (mut train, _) = points();
    let history = trainer().train_metric(Counter(0.0)).epochs(2).fit(&mut train, None).unwrap();
    assert_eq!(history.column("train_batches").unwrap(), [8.0, 8.0]);
    let mut run = trainer().train_metric(Counter(0.0)).checkpoints(&scratch.0);
    let error = run.fit(&mut train, None).unwrap_err().to_string();
    assert!(error.contains("`batches` has no state; define state()"), "{error}");
    assert_eq!(run.step(), 0);
    let mut run = trainer().train_metric(Accuracy::new()).train_metric(Accuracy::new());
    let error = run.fit(&mut train, None).unwrap_err().to_string();
    assert!(error.contains("two metrics have the name `accuracy`"), "{error}");
    let mut run = trainer().train_metric(pellucid::train::metrics::R2Score::new());
    let error = run.fit(&mut train, None).unwrap_err().to_string();
    assert!(error.starts_with("step 1 (batch 1 of epoch 1, 8 samples): r2: "), "{error}");
}

/// A task without outputs, whose loss is constant.
struct Constant(f64);

impl TrainingTask for Constant {
    type Batch = [Tensor; 2];
    fn train_step(&mut self, _batch: &[Tensor; 2]) -> Result<NamedScalars> {
        Ok(vec![("loss", Tensor::from(self.0))])
    }
    fn checkpoint(&self) -> Checkpoint<'_> {
        Checkpoint::new()
    }
    fn weights(&self) -> Result<StateDict> {
        Ok(StateDict::new())
    }
    fn optimizers(&self) -> Vec<(&'static str, &dyn Optimizer)> {
        Vec::new()
    }
}

#[test]
fn a_task_without_outputs_has_no_training_metrics() {
    let _generator = isolated_generator();
    let (mut train, _) = points();
    let mut run = Trainer::from_task(Constant(1.0)).quiet(true).train_metric(Accuracy::new());
    let error = run.fit(&mut train, None).unwrap_err().to_string();
    assert!(error.contains("the task does not define train_predictions()"), "{error}");
}

/// The loss of a custom task is checked after the step.
#[test]
fn the_error_of_a_custom_task_names_its_step() {
    let _generator = isolated_generator();
    let (mut train, _) = points();
    let error = Trainer::from_task(Constant(f64::NAN)).quiet(true).fit(&mut train, None).unwrap_err().to_string();
    assert!(error.starts_with("step 1 (batch 1 of epoch 1"), "{error}");
}

/// A file whose training metrics differ from those of the run changes nothing.
#[test]
fn a_state_of_other_training_metrics_is_an_error() {
    let _generator = isolated_generator();
    let scratch = Scratch::new("trainer-train-metrics-other");
    let (mut train, _) = points();
    trainer().train_metric(Accuracy::new()).checkpoints(&scratch.0).fit(&mut train, None).unwrap();
    let macro_f1 = F1Score::new(pellucid::train::metrics::ClassAverage::Macro);
    let (mut train, _) = points();
    let mut run = trainer().train_metric(macro_f1).resume(&scratch.0);
    let before = bits(run.model());
    let error = run.fit(&mut train, None).unwrap_err();
    assert!(matches!(error, Error::Checkpoint { .. }), "{error}");
    assert!(error.to_string().contains("f1_macro"), "{error}");
    assert_eq!((bits(run.model()), run.step()), (before, 0));
}
