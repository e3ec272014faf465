//! Runs, evaluations and predictions that fail or panic change no state that a later call needs.

use crate::runs::{TestMetric, bits, isolated_generator, points, trainer};
use crate::scratch::{Scratch, names};
use pellucid::data::{BatchPosition, DataLoader, EpochSeed, Sampler, from_fn};
use pellucid::nn::optim::Optimizer;
use pellucid::nn::optim::schedule::{ExponentialLr, OneCycleLr, SequentialLr};
use pellucid::prelude::*;
use pellucid::train::{FindLrOptions, FitControl, Supervised, TrainingEvent, TrainingTask};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A switch that makes a part of a run panic.
#[derive(Clone, Default)]
struct Broken(Arc<AtomicBool>);

impl Broken {
    fn set(&self, is_broken: bool) {
        self.0.store(is_broken, Ordering::Relaxed);
    }

    fn check(&self) {
        assert!(!self.0.load(Ordering::Relaxed), "it is broken");
    }

    /// Returns a metric with this switch.
    fn metric(&self) -> TestMetric {
        let broken = self.clone();
        TestMetric::new("broken").on_update(move || {
            broken.check();
            Ok(())
        })
    }
}

/// A linear layer that counts its calls.
#[derive(Module)]
struct Counting {
    linear: Linear,
    #[module(skip)]
    calls: Arc<AtomicUsize>,
    #[module(skip)]
    broken: Broken,
}

impl Layer for Counting {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.broken.check();
        self.linear.try_forward(x)
    }
}

/// Returns a run of a model with a switch, and the number of calls of the model.
fn counting() -> (Trainer<'static, Supervised<'static, Counting, Sgd>>, Broken, Arc<AtomicUsize>) {
    manual_seed(2);
    let (broken, calls) = (Broken::default(), Arc::<AtomicUsize>::default());
    let model = Counting { linear: Linear::new(4, 2), calls: calls.clone(), broken: broken.clone() };
    let sgd = Sgd::new(model.parameters(), SgdOptions { lr: 0.1 / 3.0, ..Default::default() });
    (Trainer::new(model, CrossEntropyLoss::default(), sgd).quiet(true), broken, calls)
}

/// Returns true if `f` panics.
fn panics<R>(f: impl FnOnce() -> R) -> bool {
    catch_unwind(AssertUnwindSafe(f)).is_err()
}

/// Each call of `fit` reports a schedule that cannot start.
#[test]
fn a_schedule_that_cannot_start_is_not_lost() {
    let _generator = isolated_generator();
    let (mut train, _) = points();
    let decay = || ExponentialLr { gamma: 0.5 };
    let (without_momentum, _, _) = counting();
    let (unordered, _, _) = counting();
    let unordered =
        unordered.schedule(SequentialLr::new(decay()).then(5, decay()).then(5, decay()), ScheduleUnit::Epoch);
    for mut run in [without_momentum.schedule(OneCycleLr::new(0.1, 10), ScheduleUnit::Step), unordered] {
        let first = run.fit(&mut train, None).unwrap_err().to_string();
        assert_eq!(run.fit(&mut train, None).unwrap_err().to_string(), first);
        assert_eq!(run.step(), 0);
    }
}

/// An epoch has updates after 3, 6 and 8 batches. The last one fails or panics.
#[test]
fn an_update_that_fails_at_the_end_of_an_epoch_is_not_skipped_by_the_loader() {
    let _generator = isolated_generator();
    let (mut train, mut validation) = points();
    let mut expected = trainer().epochs(2).accumulate(3).eager(true).before_update(|_| Ok(()));
    let uninterrupted = expected.fit(&mut train, Some(&mut validation)).unwrap();
    let after = [false, true].map(|is_panic| {
        let scratch = Scratch::new(&format!("trainer-failed-last-update-{is_panic}"));
        let (mut train, mut validation) = points();
        let updates = AtomicUsize::new(0);
        let mut run =
            trainer().epochs(2).accumulate(3).eager(true).checkpoints(&scratch.0).before_update(move |_| match updates
                .fetch_add(1, Ordering::Relaxed)
            {
                2 if is_panic => panic!("the update is broken"),
                2 => Err(Error::InvalidArgument { op: "clip", reason: "not now".into() }),
                _ => Ok(()),
            });
        let failed = catch_unwind(AssertUnwindSafe(|| run.fit(&mut train, Some(&mut validation)).is_err()));
        assert_eq!(failed.ok(), (!is_panic).then_some(true));
        assert_eq!((train.position(), run.step()), (BatchPosition { epoch: 0, batch: 8 }, 8));
        // A file would not contain the gradients of the update.
        assert_eq!(names(&scratch.0), ["run.lock"]);
        let history = run.fit(&mut train, Some(&mut validation)).unwrap();
        assert_eq!(history.column("step").unwrap(), [8.0, 16.0]);
        assert_eq!(history.column("train_loss").unwrap()[0], uninterrupted.column("train_loss").unwrap()[0]);
        bits(run.model())
    });
    // After an error as after a panic, the step discards the gradients.
    assert_eq!(after[0], after[1]);
}

#[test]
fn a_panic_of_an_evaluation_does_not_change_the_batches_of_a_run() {
    let _generator = isolated_generator();
    let (mut train, _) = points();
    let mut expected = trainer().epochs(2);
    expected.fit(&mut train, None).unwrap();
    for steps in [3, 8] {
        let (mut train, _) = points();
        let broken = Broken::default();
        let mut run = trainer().steps(steps).metric(broken.metric());
        run.fit(&mut train, None).unwrap();
        let position = train.position();
        broken.set(true);
        assert!(panics(|| run.evaluate(&mut train)));
        assert_eq!(train.position(), position);
        let mut run = run.steps(16);
        run.fit(&mut train, None).unwrap();
        assert_eq!(bits(run.model()), bits(expected.model()));
    }
}

#[test]
fn a_panic_of_a_prediction_does_not_change_the_batches_of_a_run() {
    let _generator = isolated_generator();
    let (mut train, _) = points();
    let (run, broken, _) = counting();
    let mut run = run.steps(3);
    run.fit(&mut train, None).unwrap();
    let position = train.position();
    broken.set(true);
    assert!(panics(|| run.predict_batches(&mut train)));
    assert_eq!(train.position(), position);
}

/// A validation after a limited number of steps, which may panic, does not advance the loader: the validation at the
/// end of the epoch reads the same batches.
#[test]
fn a_validation_within_an_epoch_does_not_advance_the_loader() {
    let _generator = isolated_generator();
    let validation = || {
        let samples = from_fn(20, |index| Ok((Tensor::randn([4], DType::F32), (index % 2) as i64)));
        DataLoader::new(samples, LoaderOptions { batch_size: 7, shuffle: true, seed: Some(3), ..Default::default() })
    };
    let (mut train, _) = points();
    let expected = trainer().steps(21).fit(&mut train, Some(&mut validation())).unwrap();
    for is_broken in [false, true] {
        let ((mut train, _), mut validation, broken) = (points(), validation(), Broken::default());
        let mut run = trainer().steps(5).metric(broken.metric());
        broken.set(is_broken);
        assert_eq!(panics(|| run.fit(&mut train, Some(&mut validation)).unwrap()), is_broken);
        assert_eq!(validation.position(), BatchPosition { epoch: 0, batch: 0 });
        broken.set(false);
        let history = run.steps(21).fit(&mut train, Some(&mut validation)).unwrap();
        assert_eq!(history.column("validation_loss"), expected.column("validation_loss"));
    }
}

#[test]
fn a_panic_of_a_metric_leaves_the_weights_of_the_model() {
    let _generator = isolated_generator();
    let (mut train, mut validation) = points();
    let mut expected = trainer().epochs(2).ema(0.9);
    expected.fit(&mut train, Some(&mut validation)).unwrap();
    let ((mut train, mut validation), broken) = (points(), Broken::default());
    let breaks = broken.clone();
    let mut run = trainer().epochs(2).ema(0.9).metric(broken.metric()).callback(
        move |event: &TrainingEvent<'_>, _: &mut FitControl| {
            breaks.set(matches!(event, TrainingEvent::StepEnded { step: 16, .. }));
            Ok(())
        },
    );
    assert!(panics(|| run.fit(&mut train, Some(&mut validation))));
    assert_eq!(bits(run.model()), bits(expected.model()));
}

/// A first batch that fails both captured and eagerly does not select eager steps.
#[test]
fn a_failed_first_batch_leaves_the_steps_captured() {
    let _generator = isolated_generator();
    let (mut train, _) = points();
    let (run, broken, calls) = counting();
    let mut run = run.epochs(3);
    broken.set(true);
    assert!(panics(|| run.fit(&mut train, None)));
    broken.set(false);
    let before = calls.load(Ordering::Relaxed);
    run.fit(&mut train, None).unwrap();
    assert!(run.task().eager_reason().is_none());
    // Eager steps call the model in each step. Captured steps call it once for each size of a batch.
    let calls = calls.load(Ordering::Relaxed) - before;
    assert!(run.step() >= 22 && calls < 10, "{calls} calls in {} steps", run.step());
}

/// The rate is no value of `f32`.
#[test]
fn the_search_for_a_rate_restores_the_exact_rate() {
    let _generator = isolated_generator();
    let (mut train, _) = points();
    let (run, broken, _) = counting();
    let mut run = run.eager(true);
    run.find_lr(&mut train, FindLrOptions::default()).unwrap();
    assert_eq!(run.optimizer().lr(), 0.1 / 3.0);

    let before = (bits(run.model()), train.position());
    broken.set(true);
    assert!(panics(|| run.find_lr(&mut train, FindLrOptions::default())));
    assert_eq!((bits(run.model()), train.position()), before);
    assert_eq!(run.optimizer().lr(), 0.1 / 3.0);
}

/// A sampler that fails in the second epoch.
struct FailingSampler;

impl Sampler for FailingSampler {
    fn len(&self) -> usize {
        24
    }

    fn indices(&self, seed: EpochSeed) -> Result<Vec<usize>> {
        match seed.epoch {
            1 => Err(Error::InvalidArgument { op: "sampler", reason: "there is no second epoch".into() }),
            _ => Ok((0..24).collect()),
        }
    }
}

/// An evaluation in the middle of an epoch reads the next epoch of the loader.
#[test]
fn an_evaluation_that_cannot_begin_does_not_change_the_position() {
    let _generator = isolated_generator();
    let samples = from_fn(24, |index| Ok((Tensor::full([4], index as f32, DType::F32), (index % 2) as i64)));
    let loader = DataLoader::new(samples, LoaderOptions { batch_size: 8, ..Default::default() });
    let mut train = loader.sampler(FailingSampler);
    let mut run = trainer().steps(1);
    run.fit(&mut train, None).unwrap();
    let position = train.position();
    assert_eq!(position.batch, 1);
    assert!(run.evaluate(&mut train).unwrap_err().to_string().contains("there is no second epoch"));
    assert!(run.predict_batches(&mut train).is_err());
    assert_eq!(train.position(), position);
}

/// The first update fails. An epoch has 8 batches, so the last batch is the first one of the next accumulation, and the
/// epoch ends with its update.
#[test]
fn an_accumulation_after_a_failed_update_is_complete() {
    let _generator = isolated_generator();
    let (mut train, _) = points();
    let updates = Arc::<AtomicUsize>::default();
    let counted = updates.clone();
    let mut run = trainer().epochs(2).accumulate(7).eager(true).ema(0.9).before_update(move |_| {
        match counted.fetch_add(1, Ordering::Relaxed) {
            0 => Err(Error::InvalidArgument { op: "clip", reason: "not now".into() }),
            _ => Ok(()),
        }
    });
    run.fit(&mut train, None).unwrap_err();
    assert!(run.task().is_between_updates(), "the gradients of the failed update are discarded");
    assert_eq!((train.position().batch, run.step()), (7, 6));
    run.fit(&mut train, None).unwrap();
    // The failed update, the end of the first epoch, and 7 and 8 batches in the second epoch.
    assert_eq!(updates.load(Ordering::Relaxed), 4);
    assert_eq!(run.task().averages().unwrap().count_tensor().item::<f64>(), 3.0);
}
