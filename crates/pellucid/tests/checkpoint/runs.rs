//! The training runs of these tests.

use pellucid::data::Batches;
use pellucid::nn::graph::GraphTrainer;
use pellucid::nn::loss::CrossEntropyLoss;
use pellucid::nn::optim::schedule::{
    ExponentialLr, OneCycleLr, ReduceLrOnPlateau, ReduceLrOnPlateauOptions, Scheduler,
};
use pellucid::nn::optim::{Average, AveragedModel, GradScaler, GradScalerOptions};
use pellucid::nn::{Checkpoint, Stateful};
use pellucid::prelude::*;
use pellucid::{Generator, ops};
use std::collections::BTreeMap;

/// A training run with a checkpoint.
pub(crate) trait TrainingRun {
    /// Creates a run. Initial values are drawn from the thread's generator.
    fn new() -> Self;

    /// Returns all parts of the run.
    fn checkpoint(&self) -> Checkpoint<'_>;

    /// Sets the number of steps, which a restored run continues.
    fn set_steps(&mut self, steps: usize);

    /// Trains until `end` steps are done. After every step it calls `after`.
    fn train(&mut self, end: usize, after: &mut dyn FnMut(&Self));

    fn steps(&self) -> usize;
}

/// Returns the bytes of all values of a checkpoint by name.
pub(crate) fn bits(checkpoint: &Checkpoint<'_>) -> BTreeMap<String, Vec<u8>> {
    checkpoint.state().unwrap().into_iter().map(|(name, value)| (name, value.to_bytes())).collect()
}

/// Asserts that the values of two checkpoints are equal.
#[track_caller]
pub(crate) fn assert_equal(actual: &BTreeMap<String, Vec<u8>>, expected: &BTreeMap<String, Vec<u8>>, label: &str) {
    let differs = actual.iter().find(|(name, bytes)| expected.get(*name) != Some(bytes));
    assert!(differs.is_none(), "{label}: {} differs", differs.map_or("", |(name, _)| name));
    assert_eq!(actual.len(), expected.len(), "{label}: a value is missing");
}

/// Returns inputs `[n, ..]` and class indices `[n]`.
pub(crate) fn data(shape: &[usize]) -> (Tensor, Tensor) {
    let n: usize = shape.iter().product();
    let x: Vec<f32> = (0..n).map(|i| (i as f32 * 0.37).sin() + (i as f32 * 0.011).cos()).collect();
    let y: Vec<i64> = (0..shape[0]).map(|i| (i * i % 3) as i64).collect();
    (Tensor::new(x, shape), Tensor::new(y, [shape[0]]))
}

/// An MLP with dropout, AdamW, two schedules, averages, noise from a generator, and shuffled batches.
pub(crate) struct MlpRun {
    pub(crate) model: Sequential,
    pub(crate) optimizer: AdamW,
    pub(crate) schedule: Scheduler<OneCycleLr>,
    plateau: ReduceLrOnPlateau,
    averaged: AveragedModel,
    pub(crate) noise: Generator,
    pub(crate) batches: Batches,
    steps: usize,
}

impl TrainingRun for MlpRun {
    fn new() -> MlpRun {
        let model = sequential![Linear::new(6, 16), Relu, Dropout::new(0.3), Linear::new(16, 3)];
        let optimizer = AdamW::new(model.parameters(), AdamWOptions { lr: 0.02, ..Default::default() });
        let schedule = Scheduler::new(OneCycleLr::new(0.05, 20), &optimizer);
        let options = ReduceLrOnPlateauOptions { patience: 1, factor: 0.9, ..Default::default() };
        let plateau = ReduceLrOnPlateau::new(options, &optimizer);
        let averaged = AveragedModel::new(&model, Average::Exponential(0.9));
        let (x, y) = data(&[14, 6]);
        MlpRun {
            model,
            optimizer,
            schedule,
            plateau,
            averaged,
            noise: Generator::new(77),
            batches: Batches::new(&[&x, &y], 4).shuffled(3),
            steps: 0,
        }
    }

    fn checkpoint(&self) -> Checkpoint<'_> {
        Checkpoint::new()
            .model(&self.model)
            .optimizer(&self.optimizer)
            .schedule(&self.schedule)
            .part("plateau", &self.plateau)
            .part("averaged", &self.averaged)
            .generator("noise", &self.noise)
            .batches(&self.batches)
            .step(self.steps)
    }

    fn set_steps(&mut self, steps: usize) {
        self.steps = steps;
    }

    fn train(&mut self, end: usize, after: &mut dyn FnMut(&MlpRun)) {
        while self.steps < end {
            for [x, y] in self.batches.epoch() {
                let noise = ops::randn_with(x.shape(), DType::F32, &self.noise).unwrap();
                self.optimizer.zero_grad();
                let loss = cross_entropy(&self.model.forward(&(x + noise * 0.1)), &y);
                loss.backward();
                self.optimizer.step();
                self.schedule.step();
                self.averaged.update().unwrap();
                self.steps += 1;
                after(self);
                if self.steps == end {
                    return;
                }
            }
            // At the end of an epoch.
            let measured = self.model.parameters()[0].abs().max(..).item::<f64>();
            self.plateau.step(measured);
        }
    }

    fn steps(&self) -> usize {
        self.steps
    }
}

/// A CNN with batch normalization, SGD with momentum, and loss scaling under autocast.
pub(crate) struct CnnRun {
    model: Sequential,
    pub(crate) optimizer: Sgd,
    pub(crate) scaler: GradScaler,
    schedule: Scheduler<ExponentialLr>,
    batches: Batches,
    steps: usize,
}

impl TrainingRun for CnnRun {
    fn new() -> CnnRun {
        let model = sequential![
            Conv2d::new(1, 4, 3).padding(1),
            BatchNorm2d::new(4),
            Relu,
            Flatten::new(),
            Linear::new(4 * 25, 3)
        ];
        let options = SgdOptions { lr: 0.05, momentum: 0.9, ..Default::default() };
        let optimizer = Sgd::new(model.parameters(), options);
        // The first scales overflow in f16, so the first steps are skipped.
        let options = GradScalerOptions { init_scale: 2f64.powi(20), growth_interval: 3, ..Default::default() };
        let schedule = Scheduler::new(ExponentialLr { gamma: 0.95 }, &optimizer);
        let (x, y) = data(&[10, 1, 5, 5]);
        CnnRun {
            model,
            optimizer,
            scaler: GradScaler::new(options),
            schedule,
            batches: Batches::new(&[&x, &y], 4).shuffled(8),
            steps: 0,
        }
    }

    fn checkpoint(&self) -> Checkpoint<'_> {
        let CnnRun { model, optimizer, scaler, schedule, batches, steps } = self;
        let checkpoint = Checkpoint::new().model(model).optimizer(optimizer).scaler(scaler);
        checkpoint.schedule(schedule).batches(batches).step(*steps)
    }

    fn set_steps(&mut self, steps: usize) {
        self.steps = steps;
    }

    fn train(&mut self, end: usize, after: &mut dyn FnMut(&CnnRun)) {
        while self.steps < end {
            for [x, y] in self.batches.epoch() {
                self.optimizer.zero_grad();
                let loss = {
                    let _half = autocast(DType::F16);
                    cross_entropy(&self.model.forward(&x), &y)
                };
                self.scaler.scale(&loss).backward();
                self.scaler.step(&self.optimizer);
                self.scaler.update();
                self.steps += 1;
                after(self);
                if self.steps == end {
                    return;
                }
            }
            self.schedule.step();
        }
    }

    fn steps(&self) -> usize {
        self.steps
    }
}

/// A captured training step with dropout.
pub(crate) struct CapturedRun {
    trainer: GraphTrainer<'static, Sequential, AdamW>,
    schedule: Scheduler<OneCycleLr>,
    batches: Batches,
    steps: usize,
}

impl TrainingRun for CapturedRun {
    fn new() -> CapturedRun {
        let model = sequential![Linear::new(6, 16), BatchNorm1d::new(16), Tanh, Dropout::new(0.3), Linear::new(16, 3)];
        let optimizer = AdamW::new(model.parameters(), AdamWOptions::default());
        let schedule = Scheduler::new(OneCycleLr::new(0.05, 20), &optimizer);
        let mut trainer = GraphTrainer::new(model, CrossEntropyLoss::default(), optimizer);
        trainer.compile(&[4, 6]).unwrap();
        let (x, y) = data(&[14, 6]);
        let batches = Batches::new(&[&x, &y], 4).shuffled(3).drop_last(true);
        CapturedRun { trainer, schedule, batches, steps: 0 }
    }

    fn checkpoint(&self) -> Checkpoint<'_> {
        let CapturedRun { trainer, schedule, batches, steps } = self;
        let schedule: &dyn Stateful = schedule;
        let checkpoint = Checkpoint::new().model(trainer.model()).optimizer(trainer.optimizer());
        checkpoint.schedule(schedule).batches(batches).step(*steps)
    }

    fn set_steps(&mut self, steps: usize) {
        self.steps = steps;
    }

    fn train(&mut self, end: usize, after: &mut dyn FnMut(&CapturedRun)) {
        while self.steps < end {
            for [x, y] in self.batches.epoch() {
                self.trainer.step(&x, &y).unwrap();
                self.schedule.step();
                self.steps += 1;
                after(self);
                if self.steps == end {
                    return;
                }
            }
        }
    }

    fn steps(&self) -> usize {
        self.steps
    }
}
