//! Validations within epochs: their rows, files and early stopping, also in runs that are stopped and resumed.

use crate::evaluations::noisy;
use crate::runs::{SmallTrainer, TestMetric, bits, isolated_generator, points, saves_of, stop_after, trainer};
use crate::scratch::Scratch;
use pellucid::data::{DataLoader, IterableDataset, StreamLoader, from_fn, from_records};
use pellucid::io;
use pellucid::prelude::*;
use pellucid::train::metrics::{Accuracy, Goal};
use pellucid::train::{EarlyStopping, History, StopReason, TrainingEvent};

/// The rows of a history, without times.
fn rows(history: &History) -> Vec<(String, Vec<u64>)> {
    let column = |name: String| {
        let values = history.column(&name).unwrap().into_iter().map(f64::to_bits).collect();
        (name, values)
    };
    let names = history.names().into_iter().filter(|name| name != "seconds");
    let epochs = history.epochs().into_iter().map(|epoch| epoch as u64).collect();
    names.map(column).chain([("epoch".to_string(), epochs)]).collect()
}

/// A run whose monitored metric has these values.
fn run_with(values: &[f64]) -> SmallTrainer {
    let run = trainer().epochs(3).validate_every(3).metric(TestMetric::new("given").with_values(values));
    run.monitor("validation_given", Goal::Maximize)
}

#[test]
fn each_validation_has_a_row_and_may_be_the_best() {
    let _generator = isolated_generator();
    let scratch = Scratch::new("trainer-validations");
    let (best, best_steps) = saves_of("best.safetensors");
    let (last, last_steps) = saves_of("last.safetensors");
    let (mut train, mut validation) = points();
    let values = [0.1, 0.5, 0.3, 0.2, 0.6, 0.4, 0.7];
    let mut run = run_with(&values).epochs(2).checkpoints(&scratch.0).callback(best).callback(last);
    let history = run.fit(&mut train, Some(&mut validation)).unwrap();
    let steps = [3, 6, 8, 9, 12, 15, 16];
    assert_eq!(history.column("step").unwrap(), steps.map(f64::from));
    assert_eq!(history.epochs(), [1, 1, 1, 2, 2, 2, 2]);
    assert_eq!(history.column("validation_given").unwrap(), values);
    assert_eq!(*best_steps.lock().unwrap(), [3, 6, 12, 16]);
    assert_eq!(*last_steps.lock().unwrap(), steps.map(|step| step as usize));
    // The training loss of a row is the mean over the steps of the epoch so far.
    let (mut train, mut validation) = points();
    let expected = trainer().steps(6).fit(&mut train, Some(&mut validation)).unwrap();
    for name in ["train_loss", "validation_loss"] {
        assert_eq!(history.column(name).unwrap()[1], expected.last(name).unwrap(), "{name}");
    }
    let path = scratch.0.join("history.csv");
    history.save_csv(&path).unwrap();
    assert_eq!(rows(&History::load_csv(&path).unwrap()), rows(&history));
}

#[test]
fn validations_within_an_epoch_change_no_step() {
    let _generator = isolated_generator();
    for every in [None, Some(1), Some(3), Some(100)] {
        let (mut train, mut validation) = points();
        let mut run = noisy().epochs(2);
        if let Some(every) = every {
            run = run.validate_every(every);
        }
        let found = run.fit(&mut train, Some(&mut validation)).unwrap();
        let (mut train, mut validation) = points();
        let mut expected = noisy().epochs(2);
        let history = expected.fit(&mut train, Some(&mut validation)).unwrap();
        assert_eq!(bits(run.model()), bits(expected.model()), "{every:?}");
        assert_eq!(found.last("validation_loss"), history.last("validation_loss"), "{every:?}");
    }
}

/// With gradient accumulation, a validation follows the next update.
#[test]
fn validations_are_between_updates() {
    let _generator = isolated_generator();
    let run = || trainer().epochs(2).accumulate(2);
    let (mut train, mut validation) = points();
    let mut expected = run();
    expected.fit(&mut train, Some(&mut validation)).unwrap();
    let (mut train, mut validation) = points();
    let mut validated = run().validate_every(3);
    let history = validated.fit(&mut train, Some(&mut validation)).unwrap();
    assert_eq!(history.column("step").unwrap(), [4.0, 6.0, 8.0, 10.0, 12.0, 16.0]);
    assert_eq!(bits(validated.model()), bits(expected.model()));
}

/// A run with the parts that a validation changes.
fn run_with_all_parts() -> SmallTrainer {
    let run = trainer().epochs(3).validate_every(3).ema(0.9).metric(Accuracy::new()).train_metric(Accuracy::new());
    run.early_stopping(EarlyStopping { patience: 50, min_delta: 0.0 })
}

#[test]
fn a_run_that_is_stopped_and_resumed_has_equal_validations() {
    let _generator = isolated_generator();
    for accumulate in [1, 2] {
        let name = |kind: &str| format!("trainer-validations-{kind}-{accumulate}");
        let scratch = Scratch::new(&name("uninterrupted"));
        let (best, expected_saves) = saves_of("best.safetensors");
        let (mut train, mut validation) = points();
        let mut expected = run_with_all_parts().accumulate(accumulate).checkpoints(&scratch.0).callback(best);
        expected.fit(&mut train, Some(&mut validation)).unwrap();
        let best_bytes = |scratch: &Scratch| {
            let best = io::load(scratch.0.join("best.safetensors")).unwrap();
            best.into_values().map(|tensor| tensor.to_bytes()).collect::<Vec<_>>()
        };
        let expected_best = best_bytes(&scratch);
        for stopped_at in [2, 3, 4, 6, 8, 9, 10, 15, 16] {
            let scratch = Scratch::new(&name(&format!("stopped-{stopped_at}")));
            let (best, saves) = saves_of("best.safetensors");
            let (mut train, mut validation) = points();
            let mut first = run_with_all_parts().accumulate(accumulate).checkpoints(&scratch.0).callback(best);
            first = first.callback(stop_after(stopped_at));
            first.fit(&mut train, Some(&mut validation)).unwrap();
            assert_eq!(first.stop_reason(), Some(StopReason::Requested));
            drop(first);
            manual_seed(999);
            let (best, later_saves) = saves_of("best.safetensors");
            let (mut train, mut validation) = points();
            let mut resumed = run_with_all_parts().accumulate(accumulate).resume(&scratch.0).checkpoints(&scratch.0);
            resumed = resumed.callback(best);
            resumed.fit(&mut train, Some(&mut validation)).unwrap();
            let case = format!("stopped at {stopped_at}, {accumulate} steps per update");
            assert_eq!(bits(resumed.model()), bits(expected.model()), "{case}");
            assert_eq!(rows(resumed.history()), rows(expected.history()), "{case}");
            assert_eq!(best_bytes(&scratch), expected_best, "{case}");
            let count = saves.lock().unwrap().len() + later_saves.lock().unwrap().len();
            assert_eq!(count, expected_saves.lock().unwrap().len(), "{case}");
        }
    }
}

#[test]
fn early_stopping_counts_validations_across_a_resumption() {
    let _generator = isolated_generator();
    let stopping = EarlyStopping { patience: 3, min_delta: 0.0 };
    let values = [0.1, 0.5, 0.3, 0.2, 0.4, 0.9, 0.9, 0.9, 0.9];
    let (mut train, mut validation) = points();
    let mut expected = run_with(&values).early_stopping(stopping);
    let history = expected.fit(&mut train, Some(&mut validation)).unwrap();
    // The best validation, of step 6, is followed by three others.
    assert_eq!((expected.stop_reason(), expected.step()), (Some(StopReason::NotImproving), 12));
    assert_eq!(history.column("step").unwrap(), [3.0, 6.0, 8.0, 9.0, 12.0]);
    let again = expected.fit(&mut train, Some(&mut validation)).unwrap();
    assert_eq!((expected.step(), again.len()), (12, 5));

    let scratch = Scratch::new("trainer-validations-patience");
    let (mut train, mut validation) = points();
    let mut first = run_with(&values).early_stopping(stopping).checkpoints(&scratch.0).callback(stop_after(10));
    first.fit(&mut train, Some(&mut validation)).unwrap();
    let (mut train, mut validation) = points();
    let mut resumed = run_with(&values[4..]).early_stopping(stopping).resume(&scratch.0);
    resumed.fit(&mut train, Some(&mut validation)).unwrap();
    assert_eq!((resumed.stop_reason(), resumed.step()), (Some(StopReason::NotImproving), 12));
    assert_eq!(rows(resumed.history()), rows(&history));
}

/// A validation that fails is repeated with the same batches, by the next call of `fit` or by a resumed run.
#[test]
fn a_validation_that_fails_within_an_epoch_is_repeated() {
    let _generator = isolated_generator();
    let shuffled = || {
        let samples = from_fn(20, |index| Ok((Tensor::randn([4], DType::F32), (index % 2) as i64)));
        DataLoader::new(samples, LoaderOptions { batch_size: 7, shuffle: true, seed: Some(3), ..Default::default() })
    };
    let run = |fails_at| {
        let (run, metric) = (trainer().epochs(2).validate_every(3), TestMetric::new("rejecting"));
        run.metric(metric.failing_at(fails_at))
    };
    let (mut train, _) = points();
    let mut expected = run(0);
    expected.fit(&mut train, Some(&mut shuffled())).unwrap();
    // A validation has three batches.
    for (fails_at, step, resumes) in [(2, 3, false), (5, 6, true), (11, 9, true)] {
        let scratch = Scratch::new(&format!("trainer-failed-validations-{fails_at}"));
        let ((mut train, _), mut validation) = (points(), shuffled());
        let mut failing = run(fails_at).checkpoints(&scratch.0);
        let error = failing.fit(&mut train, Some(&mut validation)).unwrap_err();
        assert!(matches!(error, Error::Evaluation { batch: 2, .. }), "{error}");
        assert_eq!(failing.step(), step);
        if resumes {
            drop(failing);
            ((train, _), validation) = (points(), shuffled());
            failing = run(0).resume(&scratch.0);
        }
        failing.fit(&mut train, Some(&mut validation)).unwrap();
        assert_eq!(bits(failing.model()), bits(expected.model()), "{fails_at}");
        assert_eq!(rows(failing.history()), rows(expected.history()), "{fails_at}");
    }
}

/// The validation of the last step of a run is not repeated if it is due in any case.
#[test]
fn a_run_of_steps_continues_after_a_validation() {
    let _generator = isolated_generator();
    let (mut train, mut validation) = points();
    let mut expected = trainer().validate_every(3).steps(22);
    expected.fit(&mut train, Some(&mut validation)).unwrap();
    assert_eq!(expected.history().column("step").unwrap(), [3.0, 6.0, 8.0, 9.0, 12.0, 15.0, 16.0, 18.0, 21.0, 22.0]);
    for steps in [5, 6, 8] {
        let (mut train, mut validation) = points();
        let mut run = trainer().validate_every(3).steps(steps);
        let history = run.fit(&mut train, Some(&mut validation)).unwrap();
        assert_eq!(history.last("step"), Some(steps as f64));
        let mut run = run.steps(22);
        run.fit(&mut train, Some(&mut validation)).unwrap();
        assert_eq!(rows(run.history()), rows(expected.history()), "{steps}");
        assert_eq!(bits(run.model()), bits(expected.model()), "{steps}");
    }
}

#[test]
fn a_callback_ends_the_run_after_a_validation() {
    let _generator = isolated_generator();
    let (mut train, mut validation) = points();
    let mut run = trainer().epochs(2).validate_every(3).on_event(|event, control| {
        if let TrainingEvent::Validated { epoch: 2, scores } = event {
            assert_eq!(scores["step"] % 3.0, 0.0);
            control.stop();
        }
        Ok(())
    });
    run.fit(&mut train, Some(&mut validation)).unwrap();
    assert_eq!((run.stop_reason(), run.step(), run.history().len()), (Some(StopReason::Requested), 9, 4));
    run.fit(&mut train, Some(&mut validation)).unwrap();
    assert_eq!(run.stop_reason(), Some(StopReason::Requested));
    assert_eq!((run.step(), run.history().epochs()), (12, vec![1, 1, 1, 2, 2]));
}

/// The length of a stream is unknown, so a validation may precede that of the epoch at the same step.
#[test]
fn a_run_on_a_stream_is_validated_within_an_epoch() {
    let _generator = isolated_generator();
    let stream = || {
        let samples = from_records(|_epoch| Ok((0..46i64).map(Ok)))
            .map(|n| Ok((Tensor::rand([4], DType::F32) + (n % 2) as f64, n % 2)));
        StreamLoader::new(samples, LoaderOptions { batch_size: 8, workers: 1, ..Default::default() })
    };
    let run = || trainer().epochs(2).validate_every(3);
    let mut expected = run();
    expected.fit(&mut stream(), Some(&mut points().1)).unwrap();
    assert_eq!(expected.history().column("step").unwrap(), [3.0, 6.0, 6.0, 9.0, 12.0, 12.0]);
    for stopped_at in [3, 6, 7] {
        let scratch = Scratch::new(&format!("trainer-stream-validations-{stopped_at}"));
        let mut first = run().checkpoints(&scratch.0).callback(stop_after(stopped_at));
        first.fit(&mut stream(), Some(&mut points().1)).unwrap();
        drop(first);
        let mut resumed = run().resume(&scratch.0);
        resumed.fit(&mut stream(), Some(&mut points().1)).unwrap();
        assert_eq!(bits(resumed.model()), bits(expected.model()), "stopped at {stopped_at}");
        assert_eq!(rows(resumed.history()), rows(expected.history()), "stopped at {stopped_at}");
    }
}

#[test]
fn validations_without_batches_or_interval_are_errors() {
    let _generator = isolated_generator();
    assert!(trainer().try_validate_every(0).map(drop).unwrap_err().to_string().contains("steps"));
    let (mut train, _) = points();
    let mut run = trainer().validate_every(3);
    let error = run.fit(&mut train, None).unwrap_err().to_string();
    assert!(error.contains("there are no validation batches") && run.step() == 0, "{error}");
}
