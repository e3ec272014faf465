//! How runs end, and the events that callbacks receive.

use crate::runs::{SmallTrainer, TestMetric, isolated_generator, points, trainer};
use crate::scratch::Scratch;
use pellucid::Error;
use pellucid::train::{FitControl, StopReason, TrainingEvent};
use std::sync::{Arc, Mutex};

#[test]
fn a_run_ends_after_its_steps_or_epochs() {
    let _generator = isolated_generator();
    let (mut train, _) = points();
    let mut run = trainer();
    run.fit(&mut train, None).unwrap();
    assert_eq!((run.epoch(), run.step(), run.stop_reason()), (1, 8, Some(StopReason::Completed)));
    let (mut train, _) = points();
    let mut run = trainer().steps(11);
    let history = run.fit(&mut train, None).unwrap();
    // The second epoch is not completed.
    assert_eq!((run.epoch(), run.step()), (1, 11));
    assert_eq!(history.column("step").unwrap(), [8.0, 11.0]);
}

#[test]
fn callbacks_see_the_events_in_order() {
    let _generator = isolated_generator();
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let kept = seen.clone();
    let callback = move |event: &TrainingEvent<'_>, _: &mut FitControl| {
        kept.lock().unwrap().push(match event {
            TrainingEvent::StepEnded { step, scalars } => {
                assert!(scalars[0].0 == "loss" && scalars[0].1.is_finite());
                format!("step {step}")
            }
            TrainingEvent::EpochEnded { epoch, scores } => {
                assert!(scores["validation_loss"].is_finite());
                format!("end {epoch}")
            }
            TrainingEvent::FitBegan { step } => format!("fit {step}"),
            TrainingEvent::EpochBegan { epoch } => format!("epoch {epoch}"),
            TrainingEvent::FitEnded { reason } => format!("{reason:?}"),
            other => format!("{other:?}"),
        });
        Ok(())
    };
    let (mut train, mut validation) = points();
    trainer().steps(9).callback(callback).fit(&mut train, Some(&mut validation)).unwrap();
    let expected = [
        "fit 0",
        "epoch 1",
        "step 1",
        "step 2",
        "step 3",
        "step 4",
        "step 5",
        "step 6",
        "step 7",
        "step 8",
        "end 1",
        "epoch 2",
        "step 9",
        "end 2",
        "Completed",
    ];
    assert_eq!(*seen.lock().unwrap(), expected);
}

#[test]
fn an_error_of_a_callback_ends_the_run() {
    let _generator = isolated_generator();
    let (mut train, _) = points();
    let fails = |_: &TrainingEvent<'_>, _: &mut FitControl| Err(Error::invalid("callback", "rejected"));
    let error = trainer().callback(fails).fit(&mut train, None).unwrap_err();
    assert_eq!(error.to_string(), "callback: rejected");
}

/// A stop that is requested in any event ends the run.
#[test]
fn a_callback_ends_the_run_in_every_event() {
    type EventTest = fn(&TrainingEvent<'_>) -> bool;
    let _generator = isolated_generator();
    let scratch = Scratch::new("trainer-stopped");
    let cases: [(EventTest, usize); 5] = [
        (|event| matches!(event, TrainingEvent::FitBegan { .. }), 0),
        (|event| matches!(event, TrainingEvent::EpochBegan { epoch: 3 }), 17),
        (|event| matches!(event, TrainingEvent::StepEnded { step: 5, .. }), 5),
        (|event| matches!(event, TrainingEvent::Saved { .. }), 3),
        (|event| matches!(event, TrainingEvent::EpochEnded { epoch: 2, .. }), 16),
    ];
    for (case, (ends, expected)) in cases.into_iter().enumerate() {
        let (mut train, _) = points();
        let stops = move |event: &TrainingEvent<'_>, control: &mut FitControl| {
            if ends(event) {
                control.stop();
            }
            Ok(())
        };
        let folder = scratch.0.join(case.to_string());
        let mut run = trainer().epochs(4).checkpoints(folder).checkpoint_every(3).callback(stops);
        run.fit(&mut train, None).unwrap();
        assert_eq!((run.step(), run.stop_reason()), (expected, Some(StopReason::Requested)), "case {case}");
    }
}

/// A run that ended within an epoch has the row of this epoch. A resumed history replaces it.
#[test]
fn a_resumed_history_keeps_its_rows() {
    let _generator = isolated_generator();
    let scratch = Scratch::new("trainer-resumed-history");
    let (mut train, _) = points();
    trainer().epochs(2).checkpoints(&scratch.0).fit(&mut train, None).unwrap();
    let (mut train, _) = points();
    let mut run = trainer().steps(11);
    run.fit(&mut train, None).unwrap();
    let mut run = run.resume(&scratch.0).steps(30);
    let history = run.fit(&mut train, None).unwrap();
    assert_eq!(history.column("step").unwrap(), [8.0, 16.0, 24.0, 30.0]);
}

/// The validation after the last step is part of the run: if it fails, the next run repeats it. A completed run has the
/// same rows when it is called or resumed again.
#[test]
fn a_run_is_complete_after_the_validation_of_its_last_step() {
    let _generator = isolated_generator();
    for steps in [5, 8, 11, 16] {
        let [complete, failed] =
            ["complete", "failed"].map(|name| Scratch::new(&format!("trainer-last-{name}-{steps}")));
        let run = |metric: TestMetric| trainer().metric(metric).steps(steps);
        let rows = |run: SmallTrainer| {
            let (mut train, mut validation) = points();
            let mut run = run;
            let history = run.fit(&mut train, Some(&mut validation)).unwrap();
            ["step", "train_loss", "validation_loss"].map(|name| history.column(name).unwrap())
        };
        let expected = rows(run(TestMetric::new("given")).checkpoints(&complete.0));
        assert_eq!(*expected[0].last().unwrap(), steps as f64);
        // An epoch has 8 steps, and a validation 3 updates.
        let metric = TestMetric::new("given").failing_at(3 * ((steps - 1) / 8) + 1);
        let (mut train, mut validation) = points();
        run(metric).checkpoints(&failed.0).fit(&mut train, Some(&mut validation)).unwrap_err();
        for attempt in 0..2 {
            let resumed = run(TestMetric::new("given")).checkpoints(&failed.0).resume(&failed.0);
            assert_eq!(rows(resumed), expected, "{steps} steps, attempt {attempt}");
            let best = [&complete, &failed].map(|folder| std::fs::read(folder.0.join("best.safetensors")).ok());
            assert!(best[0] == best[1] && best[0].is_some() == (steps >= 8), "{steps} steps, attempt {attempt}");
        }
        let again = run(TestMetric::new("given")).checkpoints(&complete.0).resume(&complete.0);
        assert_eq!(rows(again), expected, "{steps} steps");
        // A run with more steps removes the row of an incomplete epoch.
        let [longer, resumed] = [trainer().steps(24), trainer().steps(24).resume(&failed.0)]
            .map(|run| rows(run.metric(TestMetric::new("given"))));
        assert_eq!(resumed, longer, "{steps} steps");
    }
}
