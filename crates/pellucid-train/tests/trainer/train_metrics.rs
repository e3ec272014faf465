//! Metrics of the batches of training.

use crate::runs::{ScalarTask, TestMetric, bits, isolated_generator, points, trainer};
use crate::scratch::Scratch;
use pellucid::nn::loss::CrossEntropyLoss;
use pellucid::prelude::*;
use pellucid::train::metrics::{Accuracy, AveragePrecision, F1Score, Goal, Metric, RocAuc};
use pellucid::train::{CsvLogger, Trainer, TrainingTask};
use std::panic::{AssertUnwindSafe, catch_unwind};

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

#[test]
fn metrics_that_cannot_be_saved_named_or_computed_are_errors() {
    let _generator = isolated_generator();
    let scratch = Scratch::new("trainer-train-metrics-rejected");
    let (mut train, _) = points();
    let history = trainer().train_metric(TestMetric::new("batches")).epochs(2).fit(&mut train, None).unwrap();
    assert_eq!(history.column("train_batches").unwrap(), [8.0, 8.0]);
    let mut run = trainer().train_metric(TestMetric::new("batches")).checkpoints(&scratch.0);
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

/// Returns a run of a task without outputs, whose loss is constant.
fn constant(loss: fn(f64) -> f64) -> Trainer<'static, ScalarTask> {
    let task = ScalarTask { loss: "loss", steps: 0.0, train_loss: loss, validation_loss: loss, has_outputs: false };
    Trainer::from_task(task).quiet(true)
}

#[test]
fn a_task_without_outputs_has_no_training_metrics() {
    let _generator = isolated_generator();
    let (mut train, _) = points();
    let mut run = constant(|_| 1.0).train_metric(Accuracy::new());
    let error = run.fit(&mut train, None).unwrap_err().to_string();
    assert!(error.contains("the task does not define train_predictions()"), "{error}");
}

/// The loss of a custom task is checked after the step.
#[test]
fn the_error_of_a_custom_task_names_its_step() {
    let _generator = isolated_generator();
    let (mut train, _) = points();
    let error = constant(|_| f64::NAN).fit(&mut train, None).unwrap_err().to_string();
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

/// A batch that one metric rejects is in the values of no metric, whatever their order.
#[test]
fn a_batch_that_a_metric_rejects_changes_no_metric() {
    let _generator = isolated_generator();
    let run = |is_first: bool, panics: bool| {
        manual_seed(5);
        let model = sequential![Linear::new(4, 2), Relu, Linear::new(2, 1)];
        let sgd = Sgd::new(model.parameters(), SgdOptions { lr: 0.5, ..Default::default() });
        let loss = pellucid::nn::loss::from_fn(|output, _| ops::mean(&ops::square(output)?, ..));
        let (mut updates, rejecting) = (0, TestMetric::new("rejecting"));
        let rejecting = rejecting.on_update(move || {
            updates += 1;
            assert!(!panics || updates != 3, "the metric is broken");
            if updates == 3 { Err(Error::invalid("rejecting", "the batch does not fit")) } else { Ok(()) }
        });
        let mut run = Trainer::new(model, loss, sgd).quiet(true);
        let mut rejecting = Some(rejecting);
        if is_first {
            run = run.train_metric(rejecting.take().unwrap());
        }
        run = run.train_metric(Accuracy::new()).train_metric(RocAuc::new()).train_metric(AveragePrecision::new());
        if let Some(rejecting) = rejecting {
            run = run.train_metric(rejecting);
        }
        let (mut train, _) = points();
        let failed = catch_unwind(AssertUnwindSafe(|| run.fit(&mut train, None).is_err()));
        assert_eq!((failed.ok(), run.step()), ((!panics).then_some(true), 3));
        let history = run.fit(&mut train, None).unwrap();
        assert_eq!(history.last("train_rejecting"), Some(7.0));
        ["accuracy", "roc_auc", "average_precision"].map(|name| history.last(&format!("train_{name}")).unwrap())
    };
    let all_but_one = {
        manual_seed(5);
        let model = sequential![Linear::new(4, 2), Relu, Linear::new(2, 1)];
        let sgd = Sgd::new(model.parameters(), SgdOptions { lr: 0.5, ..Default::default() });
        let mut metrics: [Box<dyn Metric>; 3] =
            [Box::new(Accuracy::new()), Box::new(RocAuc::new()), Box::new(AveragePrecision::new())];
        for (batch, [x, y]) in points().0.epoch().enumerate() {
            sgd.zero_grad();
            let output = model.forward(&x);
            if batch != 2 {
                metrics.iter_mut().for_each(|metric| metric.update(&output, &y).unwrap());
            }
            output.square().mean(..).backward();
            sgd.step();
        }
        metrics.map(|metric| metric.compute().unwrap())
    };
    for (is_first, panics) in [(false, false), (true, false), (false, true)] {
        assert_eq!(run(is_first, panics), all_but_one, "first: {is_first}, panics: {panics}");
    }
}

#[test]
fn metrics_return_to_savepoints() {
    let (output, y) = (Tensor::from([0.5f32, -1.0, 2.0, 0.25]), Tensor::from([1i64, 0, 0, 1]));
    let more = (Tensor::from([-0.5f32, 1.0]), Tensor::from([1i64, 1]));
    let metrics: [Box<dyn Metric>; 4] = [
        Box::new(Accuracy::new().named("other")),
        Box::new(RocAuc::new()),
        Box::new(AveragePrecision::new()),
        Box::new(F1Score::new(pellucid::train::metrics::ClassAverage::Macro)),
    ];
    for mut metric in metrics {
        let empty = metric.savepoint().unwrap();
        metric.update(&output, &y).unwrap();
        let (savepoint, state) = (metric.savepoint().unwrap(), metric.state());
        metric.update(&more.0, &more.1).unwrap();
        assert_ne!(metric.state(), state);
        metric.roll_back(&savepoint).unwrap();
        assert_eq!(metric.state(), state);
        assert!(metric.roll_back(&[1.5, -1.0, 3.0, 2.0, 0.0]).is_err());
        assert_eq!(metric.state(), state);
        metric.roll_back(&empty).unwrap();
        assert!(metric.compute().unwrap().is_nan(), "{}", metric.name());
    }
    let mut area = RocAuc::new();
    assert!(area.roll_back(&[1.0, 1.0]).is_err(), "the metric has no samples");
}
