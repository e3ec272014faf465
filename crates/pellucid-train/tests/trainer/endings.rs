//! How runs end, and the events that callbacks receive.

use crate::runs::{isolated_generator, points, trainer};
use pellucid::Error;
use pellucid::train::metrics::Goal;
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

#[test]
fn an_unknown_monitored_value_lists_the_values() {
    let _generator = isolated_generator();
    let (mut train, _) = points();
    let error = trainer().monitor("accuracy", Goal::Maximize).fit(&mut train, None).unwrap_err();
    let names = "`step`, `train_loss`, `lr`, `seconds`";
    assert_eq!(error.to_string(), format!("monitor: there is no value `accuracy`; the values are {names}"));
}
