//! Metrics and logs of a run.

use crate::runs::{isolated_generator, points, trainer};
use crate::scratch::Scratch;
use pellucid::nn::optim::schedule::StepLr;
use pellucid::prelude::*;
use pellucid::train::metrics::{Accuracy, Goal};
use pellucid::train::{CsvLogger, FitControl, History, Logger, TrainingEvent};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn a_metric_has_its_value_over_the_whole_validation() {
    let _generator = isolated_generator();
    let (mut train, mut validation) = points();
    let mut run = trainer().epochs(3).metric(Accuracy::new()).monitor("validation_accuracy", Goal::Maximize);
    let history = run.fit(&mut train, Some(&mut validation)).unwrap();
    let (mut correct, mut samples) = (0.0, 0.0);
    for [x, y] in validation.epoch() {
        correct += run.predict(&x).unwrap().argmax(-1).eq(&y).to_dtype(DType::F64).sum(..).item::<f64>();
        samples += y.size() as f64;
    }
    assert_eq!(history.last("validation_accuracy"), Some(correct / samples));
    assert_eq!(run.evaluate(&mut validation).unwrap()["accuracy"], correct / samples);
}

/// The logged learning rate of a step is the rate of its update.
#[test]
fn a_log_has_the_rate_of_each_step() {
    let _generator = isolated_generator();
    let scratch = Scratch::new("trainer-log-rates");
    let path = scratch.0.join("steps.csv");
    let (mut train, _) = points();
    let mut run = trainer().steps(4).log_every(1).logger(CsvLogger::new(&path).unwrap());
    run = run.schedule(StepLr { step_size: 1, gamma: 0.5 }, ScheduleUnit::Step);
    run.fit(&mut train, None).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let header: Vec<&str> = text.lines().next().unwrap().split(',').collect();
    let column = header.iter().position(|name| *name == "lr").unwrap();
    let rates: Vec<f64> =
        text.lines().skip(1).take(4).map(|line| line.split(',').nth(column).unwrap().parse().unwrap()).collect();
    assert_eq!(rates, [0.02, 0.01, 0.005, 0.0025]);
}

/// A logger that counts its calls, and may fail.
struct CountingLogger {
    fails: bool,
    /// The numbers of records and of flushes.
    counts: Arc<[AtomicUsize; 2]>,
}

impl Logger for CountingLogger {
    fn scalars(&mut self, _: usize, _: &[(&str, f64)]) -> Result<()> {
        self.counts[0].fetch_add(1, Ordering::Relaxed);
        if self.fails { Err(Error::invalid("log", "the disk is full")) } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        self.counts[1].fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

#[test]
fn an_error_of_a_logger_does_not_keep_records_from_the_others() {
    let _generator = isolated_generator();
    let (mut train, _) = points();
    let [failing, other] = [(); 2].map(|()| Arc::<[AtomicUsize; 2]>::default());
    let mut run = trainer().log_every(1).logger(CountingLogger { fails: true, counts: failing.clone() });
    run = run.logger(CountingLogger { fails: false, counts: other.clone() });
    let error = run.fit(&mut train, None).unwrap_err().to_string();
    assert!(error.contains("the disk is full"), "{error}");
    for counts in [failing, other] {
        assert_eq!(counts.each_ref().map(|count| count.load(Ordering::Relaxed)), [1, 1]);
    }
}

#[test]
fn a_resumed_log_has_the_records_of_a_run_that_was_not_stopped() {
    let _generator = isolated_generator();
    let scratch = Scratch::new("trainer-log");
    let (complete, stopped) = (scratch.0.join("complete.csv"), scratch.0.join("stopped.csv"));
    let (mut train, mut validation) = points();
    let log = complete.clone();
    let mut run = trainer().epochs(3).log_every(2).logger_from(|step| CsvLogger::resume(log, step));
    let history = run.fit(&mut train, Some(&mut validation)).unwrap();

    // The first process ends after step 13, and its last file is of step 12.
    for ends in [true, false] {
        let (mut train, mut validation) = points();
        let log = stopped.clone();
        let mut run = trainer().epochs(3).log_every(2).checkpoints(&scratch.0).checkpoint_every(4);
        run = run.resume_if_exists(&scratch.0).logger_from(|step| CsvLogger::resume(log, step)).callback(
            move |event: &TrainingEvent<'_>, _: &mut FitControl| match event {
                TrainingEvent::StepEnded { step: 15, .. } if ends => Err(pellucid::Error::invalid("test", "ends")),
                _ => Ok(()),
            },
        );
        assert_eq!(run.fit(&mut train, Some(&mut validation)).is_err(), ends);
    }
    let text = |path| {
        let text = std::fs::read_to_string(path).unwrap();
        // The last column, the time of an epoch, varies.
        text.lines().map(|line| line.rsplit_once(',').unwrap().0.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(text(&stopped), text(&complete));
    assert_eq!(text(&complete).len(), 1 + 12 + 3);

    let path = scratch.0.join("history.csv");
    history.save_csv(&path).unwrap();
    assert_eq!(History::load_csv(&path).unwrap().column("train_loss"), history.column("train_loss"));
    assert!(history.to_string().contains("validation_loss"));
}
