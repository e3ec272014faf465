//! Runs that are stopped and resumed are bit-identical to uninterrupted runs.

use crate::runs::{SmallTrainer, bits, isolated_generator, model, points, stop_after, trainer};
use crate::scratch::{Scratch, names};
use pellucid::data::{IterableDataset, StreamLoader, from_records};
use pellucid::nn::optim::Optimizer;
use pellucid::nn::optim::schedule::{CosineAnnealingLr, ExponentialLr, ReduceLrOnPlateauOptions, ThresholdMode};
use pellucid::prelude::*;
use pellucid::train::metrics::{Accuracy, Goal, LogLoss, RocAuc};
use pellucid::train::{EarlyStopping, FitControl, History, StopReason, TrainingEvent};
use pellucid::{Error, io};
use std::sync::Arc;

/// A run with every part that a checkpoint can contain.
fn trainer_with_all_parts() -> SmallTrainer {
    let schedule = CosineAnnealingLr { t_max: 40, eta_min: 0.0 };
    let run = trainer().epochs(4).ema(0.9).accumulate(2).schedule(schedule, ScheduleUnit::Step);
    run.train_metric(Accuracy::new()).train_metric(RocAuc::new()).train_metric(LogLoss::new())
}

/// The values of a history, without times.
fn values(run: &SmallTrainer) -> Vec<Vec<u64>> {
    let metrics = ["train_accuracy", "train_roc_auc", "train_log_loss"];
    ["step", "train_loss", "validation_loss", "lr"]
        .into_iter()
        .chain(metrics)
        .map(|name| run.history().column(name).unwrap().into_iter().map(f64::to_bits).collect())
        .collect()
}

#[test]
fn a_run_resumed_between_epochs_or_within_one_has_equal_bits() {
    let _generator = isolated_generator();
    let (mut train, mut validation) = points();
    let mut expected = trainer_with_all_parts();
    expected.fit(&mut train, Some(&mut validation)).unwrap();
    for stopped_at in [2, 6, 8, 14, 16, 30] {
        let scratch = Scratch::new(&format!("trainer-resumed-{stopped_at}"));
        let (mut train, mut validation) = points();
        let mut first = trainer_with_all_parts().checkpoints(&scratch.0).checkpoint_every(2);
        first = first.callback(stop_after(stopped_at));
        first.fit(&mut train, Some(&mut validation)).unwrap();
        assert_eq!((first.stop_reason(), first.step()), (Some(StopReason::Requested), stopped_at));
        drop(first);

        manual_seed(999);
        let (mut train, mut validation) = points();
        let mut resumed = trainer_with_all_parts().resume(&scratch.0);
        resumed.fit(&mut train, Some(&mut validation)).unwrap();
        assert_eq!(bits(resumed.model()), bits(expected.model()), "stopped after step {stopped_at}");
        assert_eq!(values(&resumed), values(&expected), "stopped after step {stopped_at}");
    }
}

#[test]
fn a_run_on_a_stream_is_resumed_within_an_epoch() {
    let _generator = isolated_generator();
    let stream = || {
        let samples = from_records(|_epoch| Ok((0..46i64).map(Ok))).shuffle_buffer(10).map(|n| {
            let x = Tensor::rand([4], DType::F32) + (n % 2) as f64;
            Ok((x, n % 2))
        });
        StreamLoader::new(samples, LoaderOptions { batch_size: 8, workers: 1, ..Default::default() })
    };
    let run = || trainer().epochs(3).schedule(ExponentialLr { gamma: 0.9 }, ScheduleUnit::Epoch);
    let mut expected = run();
    expected.fit(&mut stream(), None).unwrap();
    // The last of the 6 batches of an epoch has 6 samples.
    assert_eq!(expected.step(), 18);
    for stopped_at in [2, 6, 11] {
        let scratch = Scratch::new(&format!("trainer-stream-{stopped_at}"));
        let mut first = run().checkpoints(&scratch.0).callback(stop_after(stopped_at));
        first.fit(&mut stream(), None).unwrap();
        drop(first);
        let mut resumed = run().resume(&scratch.0);
        resumed.fit(&mut stream(), None).unwrap();
        assert_eq!(bits(resumed.model()), bits(expected.model()), "stopped after step {stopped_at}");
    }
}

#[test]
fn a_run_may_be_continued_by_more_epochs() {
    let _generator = isolated_generator();
    let (mut train, mut validation) = points();
    let mut expected = trainer_with_all_parts();
    expected.fit(&mut train, Some(&mut validation)).unwrap();
    let (mut train, mut validation) = points();
    let mut run = trainer_with_all_parts().epochs(2);
    run.fit(&mut train, Some(&mut validation)).unwrap();
    let mut run = run.epochs(4);
    run.fit(&mut train, Some(&mut validation)).unwrap();
    assert_eq!(bits(run.model()), bits(expected.model()));
    assert_eq!(values(&run), values(&expected));
}

#[test]
fn the_files_are_the_best_weights_and_the_last_state() {
    let _generator = isolated_generator();
    let scratch = Scratch::new("trainer-files");
    let folder = scratch.0.join("runs/first");
    let (mut train, mut validation) = points();
    let mut run = trainer().epochs(3).checkpoints(&folder).resume_if_exists(&folder);
    let history = run.fit(&mut train, Some(&mut validation)).unwrap();
    assert_eq!(names(&folder), ["best.safetensors", "last.safetensors", "run.lock"]);
    let losses = history.column("validation_loss").unwrap();
    let best = losses.iter().copied().fold(f64::INFINITY, f64::min);
    run.model().load_state_dict(&io::load(folder.join("best.safetensors")).unwrap()).unwrap();
    assert!((run.evaluate(&mut validation).unwrap()["loss"] - best).abs() < 1e-12);

    // A resumed run that was complete does nothing.
    let (mut train, mut validation) = points();
    let mut again = trainer().epochs(3).checkpoints(&folder).resume_if_exists(&folder);
    let history = again.fit(&mut train, Some(&mut validation)).unwrap();
    assert_eq!((again.step(), history.column("validation_loss").unwrap()), (24, losses));
}

#[test]
fn early_stopping_counts_across_a_resumption() {
    let _generator = isolated_generator();
    let stopping = EarlyStopping { patience: 2, min_delta: 10.0 };
    let scratch = Scratch::new("trainer-patience");
    let (mut train, mut validation) = points();
    let mut run = trainer().epochs(2).early_stopping(stopping).checkpoints(&scratch.0);
    run.fit(&mut train, Some(&mut validation)).unwrap();
    assert_eq!(run.stop_reason(), Some(StopReason::Completed));
    let (mut train, mut validation) = points();
    let mut run = trainer().epochs(9).early_stopping(stopping).resume(&scratch.0);
    run.fit(&mut train, Some(&mut validation)).unwrap();
    // The first epoch is the best; epochs 2 and 3 improve by less than 10.
    assert_eq!((run.stop_reason(), run.epoch()), (Some(StopReason::NotImproving), 3));
}

#[test]
fn a_state_that_is_missing_or_does_not_fit_is_an_error() {
    let _generator = isolated_generator();
    let scratch = Scratch::new("trainer-rejected");
    let (mut train, mut validation) = points();
    let missing = trainer().resume(scratch.0.join("none.safetensors")).fit(&mut train, None);
    assert!(matches!(missing, Err(Error::File { .. })), "{missing:?}");
    trainer().epochs(1).checkpoints(&scratch.0).fit(&mut train, Some(&mut validation)).unwrap();
    let before = trainer();
    let expected = bits(before.model());
    let (mut train, _) = points();
    let mut other = before.ema(0.9).resume(&scratch.0);
    let error = other.fit(&mut train, None).unwrap_err();
    let file = scratch.0.join("last.safetensors").display().to_string();
    assert!(matches!(&error, Error::Checkpoint { path: Some(path), .. } if *path == file), "{error}");
    assert!(error.to_string().starts_with(&format!("checkpoint {file}: part `")), "{error}");
    assert_eq!((bits(other.model()), other.step()), (expected, 0));
}

#[test]
fn a_run_that_a_callback_has_stopped_continues_within_its_epoch() {
    let _generator = isolated_generator();
    let (mut train, mut validation) = points();
    let mut expected = trainer_with_all_parts();
    expected.fit(&mut train, Some(&mut validation)).unwrap();
    let (mut train, mut validation) = points();
    let mut run = trainer_with_all_parts().callback(|event: &TrainingEvent<'_>, control: &mut FitControl| {
        if matches!(event, TrainingEvent::StepEnded { step: 2 | 12, .. }) {
            control.stop();
        }
        Ok(())
    });
    for steps in [2, 12, 32] {
        run.fit(&mut train, Some(&mut validation)).unwrap();
        assert_eq!(run.step(), steps);
    }
    assert_eq!(bits(run.model()), bits(expected.model()));
    assert_eq!(values(&run), values(&expected));
}

/// Changes by callbacks are part of the saved state: the run resumes after the event in which it stopped.
#[test]
fn changes_of_callbacks_are_resumed() {
    let _generator = isolated_generator();
    let run = |stopped_at: Option<(usize, usize)>| {
        let model = model();
        let adamw = Arc::new(AdamW::new(model.parameters(), AdamWOptions { lr: 0.02, ..Default::default() }));
        let changed = adamw.clone();
        let callback = move |event: &TrainingEvent<'_>, control: &mut FitControl| {
            let halves = match event {
                TrainingEvent::EpochBegan { .. } | TrainingEvent::EpochEnded { .. } => true,
                TrainingEvent::StepEnded { step, .. } => step % 5 == 0,
                _ => false,
            };
            if halves {
                changed.set_lr(changed.lr() * 0.875);
            }
            let now = match event {
                TrainingEvent::StepEnded { step, .. } => (*step, 0),
                TrainingEvent::EpochEnded { epoch, .. } => (0, *epoch),
                _ => return Ok(()),
            };
            if Some(now) == stopped_at {
                control.stop();
            }
            Ok(())
        };
        Trainer::new(model, CrossEntropyLoss::default(), adamw).quiet(true).epochs(4).callback(callback)
    };
    let (mut train, mut validation) = points();
    let mut expected = run(None);
    expected.fit(&mut train, Some(&mut validation)).unwrap();
    for stopped_at in [(0, 1), (0, 3), (3, 0), (5, 0), (16, 0), (20, 0)] {
        let scratch = Scratch::new(&format!("trainer-callback-{}-{}", stopped_at.0, stopped_at.1));
        let (mut train, mut validation) = points();
        run(Some(stopped_at)).checkpoints(&scratch.0).fit(&mut train, Some(&mut validation)).unwrap();
        let (mut train, mut validation) = points();
        let mut resumed = run(None).resume(&scratch.0);
        resumed.fit(&mut train, Some(&mut validation)).unwrap();
        assert_eq!(bits(resumed.model()), bits(expected.model()), "stopped at {stopped_at:?}");
        let rates = |run: &History| run.column("lr").unwrap();
        assert_eq!(rates(resumed.history()), rates(expected.history()), "stopped at {stopped_at:?}");
    }
}

/// A plateau schedule continues in a resumed run, with the direction of the monitored value.
#[test]
fn a_plateau_reduces_the_rate_and_is_resumed() {
    let _generator = isolated_generator();
    let options = ReduceLrOnPlateauOptions {
        factor: 0.5,
        patience: 1,
        threshold: ThresholdMode::Absolute(0.5),
        ..Default::default()
    };
    // After the first epoch, no value improves by 0.5.
    let run = || trainer().epochs(8).reduce_lr_on_plateau(options.clone());
    let (mut train, mut validation) = points();
    let mut expected = run();
    let history = expected.fit(&mut train, Some(&mut validation)).unwrap();
    let rates = history.column("lr").unwrap();
    assert_eq!(rates, [0.02, 0.02, 0.02, 0.01, 0.01, 0.005, 0.005, 0.0025]);
    for epochs in [2, 3, 4] {
        let scratch = Scratch::new(&format!("trainer-plateau-{epochs}"));
        let (mut train, mut validation) = points();
        run().epochs(epochs).checkpoints(&scratch.0).fit(&mut train, Some(&mut validation)).unwrap();
        let (mut train, mut validation) = points();
        let mut resumed = run().resume(&scratch.0);
        let history = resumed.fit(&mut train, Some(&mut validation)).unwrap();
        assert_eq!(history.column("lr").unwrap(), rates);
        assert_eq!(bits(resumed.model()), bits(expected.model()));
    }
    // A growing accuracy is an improvement.
    let options = ReduceLrOnPlateauOptions { threshold: ThresholdMode::Absolute(0.0), ..options.clone() };
    let (mut train, mut validation) = points();
    let mut maximizing = trainer().epochs(3).metric(Accuracy::new()).monitor("validation_accuracy", Goal::Maximize);
    maximizing = maximizing.reduce_lr_on_plateau(ReduceLrOnPlateauOptions { patience: 0, ..options });
    let history = maximizing.fit(&mut train, Some(&mut validation)).unwrap();
    let (accuracy, rates) = (history.column("validation_accuracy").unwrap(), history.column("lr").unwrap());
    let mut best = f64::NEG_INFINITY;
    let mut expected_rate = 0.02;
    for (accuracy, rate) in accuracy.into_iter().zip(rates) {
        assert_eq!(rate, expected_rate);
        if accuracy > best { best = accuracy } else { expected_rate *= 0.5 }
    }
    let wrong = trainer().try_reduce_lr_on_plateau(ReduceLrOnPlateauOptions { factor: 2.0, ..Default::default() });
    assert!(wrong.map(drop).unwrap_err().to_string().contains("factor"));
    let twice =
        trainer().schedule(ExponentialLr { gamma: 0.5 }, ScheduleUnit::Epoch).reduce_lr_on_plateau(Default::default());
    let (mut train, _) = points();
    let mut twice = twice;
    assert!(twice.fit(&mut train, None).unwrap_err().to_string().contains("two schedules"));
}

/// A run that would continue another training is rejected before anything is loaded, although its state has the same
/// names and shapes.
#[test]
fn a_run_of_other_settings_is_rejected() {
    let _generator = isolated_generator();
    let scratch = Scratch::new("trainer-other-settings");
    let decay = || ExponentialLr { gamma: 0.9 };
    let run = |optimizer: Box<dyn Optimizer>, model: Sequential| {
        Trainer::new(model, CrossEntropyLoss::default(), optimizer).quiet(true)
    };
    let adamw = |model: &Sequential| AdamW::new(model.parameters(), AdamWOptions { lr: 0.02, ..Default::default() });
    let saved = || {
        let model = model();
        run(Box::new(adamw(&model)), model)
    };
    let (mut train, _) = points();
    saved().accumulate(2).schedule(decay(), ScheduleUnit::Epoch).checkpoints(&scratch.0).fit(&mut train, None).unwrap();
    let adam = {
        let model = model();
        run(Box::new(Adam::new(model.parameters(), AdamOptions { lr: 0.02, ..Default::default() })), model)
    };
    let cases = [
        (adam.accumulate(2).schedule(decay(), ScheduleUnit::Epoch), points().0, ["`adamw`", "`adam`"]),
        (saved().accumulate(4).schedule(decay(), ScheduleUnit::Epoch), points().0, ["accumulate `2`", "`4`"]),
        (
            saved().accumulate(2).schedule(decay(), ScheduleUnit::Step),
            points().0,
            ["ExponentialLr by epochs", "ExponentialLr by steps"],
        ),
        (
            saved().accumulate(2).schedule(CosineAnnealingLr::new(4), ScheduleUnit::Epoch),
            points().0,
            ["ExponentialLr", "CosineAnnealingLr"],
        ),
        (
            saved().accumulate(2).schedule(decay(), ScheduleUnit::Epoch),
            points().0.drop_last(true),
            ["`drop_last` = 0", "`drop_last` = 1"],
        ),
    ];
    for (other, mut train, named) in cases {
        let mut other = other.epochs(3).resume(&scratch.0);
        let before = bits(other.model());
        let error = other.fit(&mut train, None).unwrap_err();
        assert!(matches!(error, Error::Checkpoint { .. }), "{error}");
        let text = error.to_string();
        assert!(named.iter().all(|name| text.contains(name)), "{named:?}: {text}");
        assert_eq!((bits(other.model()), other.step()), (before, 0));
    }
    // The run itself continues, also with more epochs.
    let mut same = saved().accumulate(2).schedule(decay(), ScheduleUnit::Epoch).epochs(2).resume(&scratch.0);
    same.fit(&mut points().0, None).unwrap();
    assert_eq!(same.step(), 16);
}
