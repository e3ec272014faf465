//! Runs that are stopped, evaluated, continued or started within an epoch.

use crate::runs::{SmallTrainer, TestMetric, bits, isolated_generator, model, points, saves_of, stop_after, trainer};
use crate::scratch::{Scratch, names};
use pellucid::data::{DataLoader, StandardScaler, from_fn};
use pellucid::nn::optim::schedule::ExponentialLr;
use pellucid::nn::{Checkpoint, Dropout};
use pellucid::prelude::*;
use pellucid::train::metrics::{Accuracy, Goal};
use pellucid::train::{EarlyStopping, FitControl, Logger, StopReason, TrainingEvent};
use pellucid::{Error, io};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

#[test]
fn a_stop_between_updates_ends_the_run_at_the_next_update_or_the_end_of_the_epoch() {
    let _generator = isolated_generator();
    for (accumulate, stopped_at, ends_at) in [(3, 7, 8), (3, 8, 8), (3, 4, 6), (100, 3, 8), (100, 12, 16)] {
        let scratch = Scratch::new(&format!("trainer-between-{accumulate}-{stopped_at}"));
        let run = || trainer().epochs(4).accumulate(accumulate);
        let (mut train, mut validation) = points();
        let mut expected = run();
        expected.fit(&mut train, Some(&mut validation)).unwrap();
        let (mut train, mut validation) = points();
        let mut first = run().checkpoints(&scratch.0).callback(stop_after(stopped_at));
        first.fit(&mut train, Some(&mut validation)).unwrap();
        assert_eq!((first.stop_reason(), first.step()), (Some(StopReason::Requested), ends_at));
        drop(first);
        let (mut train, mut validation) = points();
        let mut resumed = run().resume(&scratch.0);
        let history = resumed.fit(&mut train, Some(&mut validation)).unwrap();
        assert_eq!(bits(resumed.model()), bits(expected.model()), "stopped at {stopped_at} of {accumulate}");
        assert_eq!(history.column("step").unwrap(), [8.0, 16.0, 24.0, 32.0]);
    }
}

#[test]
fn a_run_of_more_steps_continues_within_the_epoch() {
    let _generator = isolated_generator();
    let (mut train, mut validation) = points();
    let mut expected = trainer().steps(21);
    let uninterrupted = expected.fit(&mut train, Some(&mut validation)).unwrap();
    assert_eq!(uninterrupted.column("step").unwrap(), [8.0, 16.0, 21.0]);

    let scratch = Scratch::new("trainer-more-steps");
    let (mut train, mut validation) = points();
    let mut run = trainer().steps(5).checkpoints(&scratch.0);
    let part = run.fit(&mut train, Some(&mut validation)).unwrap();
    assert_eq!(part.column("step").unwrap(), [5.0]);
    assert_eq!(names(&scratch.0), ["last.safetensors", "run.lock"]);
    let mut run = run.steps(21);
    let history = run.fit(&mut train, Some(&mut validation)).unwrap();
    assert_eq!(names(&scratch.0), ["best.safetensors", "last.safetensors", "run.lock"]);
    assert_eq!(history.column("step").unwrap(), [8.0, 16.0, 21.0]);
    assert_eq!(history.names(), uninterrupted.names());
    assert_eq!(bits(run.model()), bits(expected.model()));

    let scratch = Scratch::new("trainer-more-steps-resumed");
    let (mut train, mut validation) = points();
    trainer().steps(5).checkpoints(&scratch.0).fit(&mut train, Some(&mut validation)).unwrap();
    let (mut train, mut validation) = points();
    let mut resumed = trainer().steps(21).resume(&scratch.0);
    let history = resumed.fit(&mut train, Some(&mut validation)).unwrap();
    assert_eq!(history.column("train_loss").unwrap(), uninterrupted.column("train_loss").unwrap());
    assert_eq!(bits(resumed.model()), bits(expected.model()));
}

/// With gradient accumulation, a run with a maximum number of steps ends at an update, so that a run with more steps is
/// bit-identical to an uninterrupted run.
#[test]
fn a_run_of_steps_ends_at_an_update() {
    let _generator = isolated_generator();
    let run = || trainer().accumulate(3);
    let (mut train, mut validation) = points();
    let mut expected = run().epochs(3);
    expected.fit(&mut train, Some(&mut validation)).unwrap();
    for (steps, ends_at) in [(4, 6), (6, 6), (7, 8), (8, 8), (9, 11), (15, 16)] {
        let scratch = Scratch::new(&format!("trainer-accumulated-steps-{steps}"));
        let (mut train, mut validation) = points();
        let mut first = run().steps(steps).checkpoints(&scratch.0);
        first.fit(&mut train, Some(&mut validation)).unwrap();
        assert_eq!((first.stop_reason(), first.step()), (Some(StopReason::Completed), ends_at));
        let mut first = first.steps(24);
        first.fit(&mut train, Some(&mut validation)).unwrap();
        assert_eq!(bits(first.model()), bits(expected.model()), "continued after {steps}");
        let (mut train, mut validation) = points();
        let mut resumed = run().steps(24).resume(&scratch.0);
        resumed.fit(&mut train, Some(&mut validation)).unwrap();
        assert_eq!(resumed.step(), 24);
    }
}

#[test]
fn an_evaluation_in_the_middle_of_an_epoch_reads_all_samples_and_changes_no_run() {
    let _generator = isolated_generator();
    let (mut train, _) = points();
    let mut expected = trainer().epochs(3);
    expected.fit(&mut train, None).unwrap();
    let (mut train, _) = points();
    let mut run = trainer().epochs(3).callback(stop_after(3));
    run.fit(&mut train, None).unwrap();
    let position = train.position();
    let found = run.evaluate(&mut train).unwrap();
    assert_eq!(train.position(), position);
    let (mut fresh, _) = points();
    let all = run.evaluate(&mut fresh).unwrap();
    assert!((found["loss"] - all["loss"]).abs() < 1e-6, "{found} and {all}");
    run.fit(&mut train, None).unwrap();
    assert_eq!(bits(run.model()), bits(expected.model()));
}

#[test]
fn evaluations_use_the_weights_in_the_model() {
    let _generator = isolated_generator();
    let scratch = Scratch::new("trainer-weights");
    let (mut train, mut validation) = points();
    let mut run = trainer().epochs(2).ema(0.9).checkpoints(&scratch.0);
    let history = run.fit(&mut train, Some(&mut validation)).unwrap();
    let own = run.evaluate(&mut validation).unwrap()["loss"];
    let averaged = history.last("validation_loss").unwrap();
    assert_ne!(own, averaged);
    run.use_averages().unwrap();
    assert!((run.evaluate(&mut validation).unwrap()["loss"] - averaged).abs() < 1e-6);
    let best = history.column("validation_loss").unwrap().into_iter().fold(f64::INFINITY, f64::min);
    run.model().load_state_dict(&io::load(scratch.0.join("best.safetensors")).unwrap()).unwrap();
    assert!((run.evaluate(&mut validation).unwrap()["loss"] - best).abs() < 1e-6);
}

#[test]
fn a_model_in_evaluation_mode_is_trained_in_training_mode() {
    let _generator = isolated_generator();
    let (mut train, _) = points();
    let mut expected = trainer();
    expected.fit(&mut train, None).unwrap();
    let (mut train, _) = points();
    let mut run = trainer();
    run.model().eval();
    run.fit(&mut train, None).unwrap();
    assert_eq!(bits(run.model()), bits(expected.model()));

    // A module in evaluation mode remains in evaluation mode.
    let frozen = Dropout::new(0.9);
    let model = sequential![Linear::new(4, 4), frozen.clone(), Dropout::new(0.1), Linear::new(4, 2)];
    model[1].eval();
    let sgd = Sgd::new(model.parameters(), SgdOptions { lr: 0.1, ..Default::default() });
    let mut run = Trainer::new(&model, CrossEntropyLoss::default(), sgd).quiet(true);
    run.fit(&mut train, None).unwrap();
    let x = Tensor::ones([2, 4], DType::F32);
    assert_eq!(model[1].forward(&x).to_vec::<f32>(), x.to_vec::<f32>());
}

/// Returns why a run ends whose monitored metric has these values, and the epochs whose weights were saved as the best.
fn given(values: &[f64], options: EarlyStopping) -> (StopReason, Vec<usize>) {
    let scratch = Scratch::new(&format!("trainer-given-{}-{}", values.len(), options.min_delta));
    let (record, saved) = saves_of("best.safetensors");
    let (mut train, mut validation) = points();
    let mut run = trainer()
        .epochs(values.len())
        .metric(TestMetric::new("given").with_values(values))
        .monitor("validation_given", Goal::Maximize)
        .early_stopping(options)
        .checkpoints(&scratch.0)
        .callback(record);
    run.fit(&mut train, Some(&mut validation)).unwrap();
    // An epoch has 8 steps.
    let epochs = saved.lock().unwrap().iter().map(|step| step / 8).collect();
    (run.stop_reason().unwrap(), epochs)
}

#[test]
fn the_best_weights_do_not_depend_on_min_delta() {
    let _generator = isolated_generator();
    let options = EarlyStopping { patience: 3, min_delta: 0.1 };
    let (reason, saved) = given(&[0.50, 0.55, 0.58, 0.52, 0.9], options);
    assert_eq!((reason, saved), (StopReason::NotImproving, vec![1, 2, 3]));
    // Weights are saved although all values are NaN.
    let (reason, saved) = given(&[f64::NAN; 5], EarlyStopping { patience: 2, min_delta: 0.0 });
    assert_eq!((reason, saved), (StopReason::NotImproving, vec![1]));
    let (_, saved) = given(&[f64::NAN, 0.3, 0.2, 0.4], EarlyStopping { patience: 9, min_delta: 0.0 });
    assert_eq!(saved, [1, 2, 4]);
}

#[test]
fn contradicting_settings_are_errors() {
    let _generator = isolated_generator();
    let error = |run: SmallTrainer| {
        let (mut train, _) = points();
        let mut run = run;
        run.fit(&mut train, None).unwrap_err().to_string()
    };
    let schedule = || ExponentialLr { gamma: 0.5 };
    let found = error(trainer().schedule(schedule(), ScheduleUnit::Epoch).schedule(schedule(), ScheduleUnit::Step));
    assert!(found.contains("two schedules"), "{found}");
    let found = error(trainer().metric(Accuracy::new()).metric(Accuracy::new()));
    assert!(found.contains("two metrics have the name `accuracy`"), "{found}");
}

#[test]
fn the_steps_before_an_error_of_a_validation_are_not_lost() {
    let _generator = isolated_generator();
    let scratch = Scratch::new("trainer-validation-error");
    let (mut train, mut validation) = points();
    let mut expected = trainer().epochs(3);
    expected.fit(&mut train, Some(&mut validation)).unwrap();

    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let samples = from_fn(20, move |index| match counted.fetch_add(1, Ordering::Relaxed) {
        25 => Err(Error::InvalidArgument { op: "disk", reason: "the sample is gone".into() }),
        _ => Ok((Tensor::zeros([4], DType::F32), (index % 2) as i64)),
    });
    let options = LoaderOptions { batch_size: 7, ..Default::default() };
    let mut failing = DataLoader::new(samples, options);
    let (mut train, _) = points();
    let mut run = trainer().epochs(3).checkpoints(&scratch.0);
    let error = run.fit(&mut train, Some(&mut failing)).unwrap_err();
    assert!(matches!(error, Error::Evaluation { batch: 1, samples: 0, .. }), "{error}");
    let text = error.to_string();
    assert!(text.starts_with("evaluation (batch 1): sample 5: disk:"), "{text}");
    assert_eq!(run.step(), 16);
    // The same run continues with the validation, and so does a new run that resumes.
    run.fit(&mut train, Some(&mut failing)).unwrap();
    assert_eq!(bits(run.model()), bits(expected.model()));
    assert_eq!(run.history().column("step").unwrap(), [8.0, 16.0, 24.0]);
}

/// A loader that shuffles and draws random numbers repeats the epoch of the incomplete validation.
#[test]
fn a_validation_that_failed_is_repeated_with_the_same_random_numbers() {
    let _generator = isolated_generator();
    let noisy = |fails_at: Option<usize>| {
        let calls = AtomicUsize::new(0);
        let samples = from_fn(20, move |index| {
            if Some(calls.fetch_add(1, Ordering::Relaxed)) == fails_at {
                return Err(Error::InvalidArgument { op: "disk", reason: "the sample is gone".into() });
            }
            Ok((Tensor::randn([4], DType::F32), (index % 2) as i64))
        });
        DataLoader::new(samples, LoaderOptions { batch_size: 7, shuffle: true, seed: Some(3), ..Default::default() })
    };
    let column = |history: pellucid::train::History| {
        history.column("validation_loss").unwrap().into_iter().map(f64::to_bits).collect::<Vec<_>>()
    };
    let (mut train, _) = points();
    let expected = column(trainer().epochs(3).fit(&mut train, Some(&mut noisy(None))).unwrap());

    for (call, resumes) in [(25, false), (25, true), (39, true), (3, true)] {
        let scratch = Scratch::new(&format!("trainer-repeated-validation-{call}-{resumes}"));
        let ((mut train, _), mut validation) = (points(), noisy(Some(call)));
        let mut run = trainer().epochs(3).checkpoints(&scratch.0);
        run.fit(&mut train, Some(&mut validation)).unwrap_err();
        if resumes {
            drop(run);
            ((train, _), validation) = (points(), noisy(None));
            run = trainer().epochs(3).resume(&scratch.0);
        }
        assert_eq!(column(run.fit(&mut train, Some(&mut validation)).unwrap()), expected, "{call} {resumes}");
    }
}

#[test]
fn a_failed_resumption_is_not_forgotten() {
    let _generator = isolated_generator();
    let scratch = Scratch::new("trainer-failed-resumption");
    let (mut train, _) = points();
    let mut run = trainer().resume(&scratch.0).checkpoints(&scratch.0);
    for _ in 0..2 {
        assert!(matches!(run.fit(&mut train, None), Err(Error::File { .. })));
        assert_eq!(run.step(), 0);
    }
    let (mut train, mut validation) = points();
    trainer().checkpoints(&scratch.0).fit(&mut train, None).unwrap();
    let mut run = trainer().resume(&scratch.0);
    let error = run.evaluate(&mut validation).unwrap_err().to_string();
    assert!(error.contains("call fit() first"), "{error}");
}

#[test]
fn two_runs_do_not_share_a_directory() {
    let _generator = isolated_generator();
    let scratch = Scratch::new("trainer-directory");
    let directory = scratch.0.clone();
    let tried = Arc::new(AtomicUsize::new(0));
    let count = tried.clone();
    let second = move |event: &TrainingEvent<'_>, _: &mut FitControl| {
        if matches!(event, TrainingEvent::StepEnded { step: 2, .. }) {
            let (mut train, _) = points();
            let error = trainer().checkpoints(&directory).fit(&mut train, None).unwrap_err();
            assert!(matches!(error, Error::File { .. }) && error.to_string().contains("another run"), "{error}");
            count.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    let (mut train, _) = points();
    trainer().checkpoints(&scratch.0).callback(second).fit(&mut train, None).unwrap();
    assert_eq!(tried.load(Ordering::Relaxed), 1);
    assert_eq!(names(&scratch.0), ["best.safetensors", "last.safetensors", "run.lock"]);
    // A path that cannot be a directory is an error before the first step.
    let file = scratch.0.join("last.safetensors");
    let (mut train, _) = points();
    let mut run = trainer().checkpoints(&file);
    assert!(run.fit(&mut train, None).unwrap_err().to_string().contains("requires a directory"));
    assert_eq!(run.step(), 0);
}

#[test]
fn the_state_of_a_run_has_parts_of_the_program() {
    let _generator = isolated_generator();
    let scratch = Scratch::new("trainer-parts");
    let scaler = StandardScaler::new();
    scaler.fit(&Tensor::from([[1.0f32, 2.0], [3.0, 6.0]])).unwrap();
    let (mut train, _) = points();
    let model = model();
    let sgd = Sgd::new(model.parameters(), SgdOptions { lr: 0.1, ..Default::default() });
    let mut run = Trainer::new(&model, CrossEntropyLoss::default(), sgd).quiet(true).part("scaler", &scaler);
    run = run.checkpoints(&scratch.0);
    run.fit(&mut train, None).unwrap();
    let restored = StandardScaler::new();
    let file = scratch.0.join("last.safetensors");
    io::load_checkpoint_parts(&file, Checkpoint::new().part("scaler", &restored)).unwrap();
    let x = Tensor::from([[5.0f32, 4.0]]);
    assert_eq!(restored.transform(&x).unwrap().to_vec::<f32>(), scaler.transform(&x).unwrap().to_vec::<f32>());
    let (mut train, _) = points();
    let sgd = Sgd::new(model.parameters(), SgdOptions { lr: 0.1, ..Default::default() });
    let mut run = Trainer::new(&model, CrossEntropyLoss::default(), sgd).quiet(true).resume(&scratch.0);
    let error = run.fit(&mut train, None).unwrap_err().to_string();
    assert!(error.contains("scaler") && error.contains("load_parts()"), "{error}");
}

/// A file that is due between two updates is written after the next one.
#[test]
fn files_that_are_due_between_updates_are_written() {
    let _generator = isolated_generator();
    let scratch = Scratch::new("trainer-due-files");
    let (record, saved) = saves_of("last.safetensors");
    let (mut train, _) = points();
    let mut run = trainer().epochs(2).accumulate(3).checkpoints(&scratch.0).checkpoint_every(2).callback(record);
    run.fit(&mut train, None).unwrap();
    // An epoch has 8 batches: updates after 3, 6 and 8.
    assert_eq!(*saved.lock().unwrap(), [3, 6, 8, 11, 14, 16]);
}

/// After an error or a panic within an epoch, the next call continues with the rest of the epoch.
#[test]
fn a_failure_within_an_epoch_loses_no_batch() {
    let _generator = isolated_generator();
    let (mut train, mut validation) = points();
    let mut expected = trainer().epochs(2);
    let uninterrupted = expected.fit(&mut train, Some(&mut validation)).unwrap();
    for (fails_at, is_panic) in [(3, false), (3, true), (8, true)] {
        let has_failed = AtomicBool::new(false);
        let (mut train, mut validation) = points();
        let mut run = trainer().epochs(2).callback(move |event: &TrainingEvent<'_>, _: &mut FitControl| match event {
            TrainingEvent::StepEnded { step, .. } if *step == fails_at && !has_failed.swap(true, Ordering::Relaxed) => {
                assert!(!is_panic, "the callback is broken");
                Err(Error::InvalidArgument { op: "disk", reason: "full".into() })
            }
            _ => Ok(()),
        });
        let failed = catch_unwind(AssertUnwindSafe(|| run.fit(&mut train, Some(&mut validation)).is_err()));
        assert_eq!(failed.ok(), (!is_panic).then_some(true));
        let history = run.fit(&mut train, Some(&mut validation)).unwrap();
        assert_eq!(history.column("step").unwrap(), [8.0, 16.0]);
        assert_eq!(history.column("train_loss"), uninterrupted.column("train_loss"));
        assert_eq!(bits(run.model()), bits(expected.model()));
    }
}

/// A logger that fails once.
struct FailingLogger {
    step: usize,
    has_failed: bool,
}

impl Logger for FailingLogger {
    fn scalars(&mut self, step: usize, _: &[(&str, f64)]) -> pellucid::Result<()> {
        if step == self.step && !self.has_failed {
            self.has_failed = true;
            return Err(Error::InvalidArgument { op: "disk", reason: "full".into() });
        }
        Ok(())
    }

    fn flush(&mut self) -> pellucid::Result<()> {
        Ok(())
    }
}

/// The schedules advance with the steps and epochs, although a logger fails.
#[test]
fn an_error_of_a_logger_does_not_delay_schedules() {
    let _generator = isolated_generator();
    let by_steps =
        |run: SmallTrainer| run.epochs(3).schedule(ExponentialLr { gamma: 0.9 }, ScheduleUnit::Step).log_every(1);
    let by_epochs =
        |run: SmallTrainer| run.epochs(3).schedule(ExponentialLr { gamma: 0.5 }, ScheduleUnit::Epoch).log_every(100);
    for (step, is_by_steps) in [(3, true), (8, true), (8, false)] {
        let scheduled = |run: SmallTrainer| if is_by_steps { by_steps(run) } else { by_epochs(run) };
        let (mut train, mut validation) = points();
        let mut expected = scheduled(trainer());
        let uninterrupted = expected.fit(&mut train, Some(&mut validation)).unwrap();
        let (mut train, mut validation) = points();
        let mut run = scheduled(trainer()).logger(FailingLogger { step, has_failed: false });
        run.fit(&mut train, Some(&mut validation)).unwrap_err();
        let history = run.fit(&mut train, Some(&mut validation)).unwrap();
        assert_eq!(history.column("lr"), uninterrupted.column("lr"), "{step} {is_by_steps}");
        assert_eq!(bits(run.model()), bits(expected.model()));
    }
}

/// Evaluations and predictions between two calls of `fit` read a whole epoch, and the loader returns to its position.
#[test]
fn evaluations_and_predictions_do_not_change_the_batches_of_a_run() {
    let _generator = isolated_generator();
    let (mut train, _) = points();
    let samples = train.samples();
    let mut expected = trainer().epochs(2);
    expected.fit(&mut train, None).unwrap();
    for steps in [3, 8] {
        let (mut train, _) = points();
        let mut run = trainer().steps(steps);
        run.fit(&mut train, None).unwrap();
        let position = train.position();
        for _ in 0..2 {
            assert_eq!(run.predict_batches(&mut train).unwrap().shape()[0], samples);
            run.evaluate(&mut train).unwrap();
            assert_eq!(train.position(), position);
        }
        let mut run = run.steps(16);
        run.fit(&mut train, None).unwrap();
        assert_eq!(bits(run.model()), bits(expected.model()));
    }
}

/// The validation after a limited number of steps does not determine the best epoch, even if its value is the best.
#[test]
fn a_validation_within_an_epoch_does_not_determine_the_best_epoch() {
    let _generator = isolated_generator();
    let scratch = Scratch::new("trainer-best-of-steps");
    let (record, saved) = saves_of("best.safetensors");
    let (mut train, mut validation) = points();
    // The validations are after 5 steps, after the epochs of 8 steps, and after 21 steps.
    let mut run = trainer()
        .steps(5)
        .metric(TestMetric::new("given").with_values(&[0.9, 0.5, 0.6, 0.7]))
        .monitor("validation_given", Goal::Maximize)
        .checkpoints(&scratch.0)
        .callback(record);
    run.fit(&mut train, Some(&mut validation)).unwrap();
    let history = run.steps(21).fit(&mut train, Some(&mut validation)).unwrap();
    assert_eq!(history.column("validation_given").unwrap(), [0.5, 0.6, 0.7]);
    assert_eq!(*saved.lock().unwrap(), [8, 16]);
}
