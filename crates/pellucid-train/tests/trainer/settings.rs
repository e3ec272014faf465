//! Settings that cannot work are errors before the first step, and the directory of a run is locked.

use crate::runs::{TestMetric, isolated_generator, points, trainer};
use crate::scratch::Scratch;
use pellucid::Error;
use pellucid::nn::loss::CrossEntropyLoss;
use pellucid::train::metrics::{Accuracy, Goal, MeanLoss};
use pellucid::train::{EarlyStopping, History};
use std::fs::File;

#[test]
fn the_mean_of_another_loss_is_a_metric() {
    let _generator = isolated_generator();
    let (mut train, mut validation) = points();
    let mut run = trainer().metric(MeanLoss::new(CrossEntropyLoss::default()));
    let history = run.fit(&mut train, Some(&mut validation)).unwrap();
    let (loss, mean) = (history.last("validation_loss").unwrap(), history.last("validation_mean_loss").unwrap());
    assert!((loss - mean).abs() < 1e-6);
}

#[test]
fn a_metric_with_the_name_of_a_loss_is_rejected() {
    let _generator = isolated_generator();
    let (_, mut validation) = points();
    let (mut train, _) = points();
    let mut evaluated = trainer().metric(TestMetric::new("loss"));
    let mut trained = trainer().train_metric(TestMetric::new("loss"));
    let rejected = [evaluated.evaluate(&mut validation).map(drop), evaluated.fit(&mut train, None).map(drop)];
    for rejected in rejected.into_iter().chain([trained.fit(&mut train, None).map(drop)]) {
        let text = rejected.unwrap_err().to_string();
        assert!(text.contains("a metric and a loss have the name `loss`"), "{text}");
    }
    assert_eq!((evaluated.step(), trained.step()), (0, 0));
    let scores = trainer().metric(TestMetric::new("other")).evaluate(&mut validation).unwrap();
    assert_eq!(scores.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["loss", "other"]);
    let mut twice = trainer().metric(TestMetric::new("other")).metric(TestMetric::new("other"));
    let text = twice.evaluate(&mut validation).unwrap_err().to_string();
    assert!(text.contains("two metrics have the name `other`"), "{text}");
}

#[test]
fn invalid_names_of_parts_and_options_are_found_before_the_first_step() {
    let _generator = isolated_generator();
    let scratch = Scratch::new("trainer-settings");
    let of_task = ["model", "loss", "optimizer", "step", "a.b", ""];
    // These names are reserved, even if the run does not have the part.
    let of_run = ["history", "run", "batches", "validation_batches", "train_metrics", "schedule_0", "schedule_12"];
    for name in of_task.into_iter().chain(of_run) {
        let (mut train, _) = points();
        let mut run = trainer().checkpoints(&scratch.0).part(name, History::default());
        let rejected = run.fit(&mut train, None).unwrap_err();
        assert!(matches!(&rejected, Error::Checkpoint { part, .. } if part == name), "{rejected}");
        assert_eq!(run.step(), 0);
    }
    for (patience, min_delta) in [(0, 0.0), (3, -1.0), (3, f64::NAN)] {
        let rejected = trainer().try_early_stopping(EarlyStopping { patience, min_delta });
        assert!(matches!(rejected, Err(Error::InvalidArgument { op: "early_stopping", .. })));
    }
}

/// The error names the values that an epoch of this run has.
#[test]
fn the_name_of_the_monitored_value_is_checked_before_the_first_step() {
    let _generator = isolated_generator();
    let (mut train, mut validation) = points();
    let run = |name| trainer().metric(Accuracy::new()).train_metric(Accuracy::new()).monitor(name, Goal::Maximize);
    let mut rejected = run("validation_acuracy");
    let text = rejected.fit(&mut train, Some(&mut validation)).unwrap_err().to_string();
    assert!(text.contains("there is no value `validation_acuracy`; the values are `step`, `train_loss`"), "{text}");
    let mut unvalidated = run("validation_accuracy");
    let text = unvalidated.fit(&mut train, None).unwrap_err().to_string();
    assert!(text.ends_with("`step`, `train_loss`, `train_accuracy`, `lr`, `seconds`"), "{text}");
    assert_eq!((rejected.step(), unvalidated.step()), (0, 0));
    for name in ["validation_accuracy", "validation_loss", "train_accuracy", "lr"] {
        let history = run(name).fit(&mut train, Some(&mut validation)).unwrap();
        assert!(history.names().contains(&name.to_string()), "{name}");
    }
}

/// A run that has opened the file of the lock before another run ends still excludes a third one.
#[test]
fn the_file_of_a_lock_is_not_replaced() {
    let _generator = isolated_generator();
    let scratch = Scratch::new("trainer-lock");
    let (mut train, _) = points();
    trainer().checkpoints(&scratch.0).fit(&mut train, None).unwrap();
    let second = File::options().write(true).open(scratch.0.join("run.lock")).unwrap();
    let (mut train, _) = points();
    trainer().checkpoints(&scratch.0).fit(&mut train, None).unwrap();
    second.try_lock().unwrap();
    let (mut train, _) = points();
    let rejected = trainer().checkpoints(&scratch.0).fit(&mut train, None).unwrap_err();
    assert!(rejected.to_string().contains("another run"), "{rejected}");
}
