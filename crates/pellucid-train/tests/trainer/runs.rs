//! A small run, metrics and tasks that the tests share.

use pellucid::nn::loss::CrossEntropyLoss;
use pellucid::nn::{Checkpoint, StateDict};
use pellucid::prelude::*;
use pellucid::train::metrics::{Goal, Metric};
use pellucid::train::{
    BatchScores, Callback, FitControl, NamedScalars, Supervised, Trainer, TrainingEvent, TrainingTask,
};
use pellucid::{Generator, GeneratorScope};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};

pub(crate) type SmallTrainer = Trainer<'static, Supervised<'static, Sequential, AdamW>>;

/// Returns a scope with a separate random stream, which [`manual_seed`] in other tests does not restart.
pub(crate) fn isolated_generator() -> GeneratorScope {
    Generator::new(0).scope()
}

/// 60 points of two classes for training and 20 for validation.
pub(crate) fn points() -> (Batches, Batches) {
    let generator = Generator::new(7);
    let x = ops::randn_with([80, 4], DType::F32, &generator).unwrap();
    let y = x.sum(1).gt(0.0).to_dtype(DType::I64);
    let part = |start: usize, len: usize| [x.narrow(0, start, len), y.narrow(0, start, len)];
    (Batches::new(&part(0, 60), 8).shuffled(3), Batches::new(&part(60, 20), 7))
}

/// A model with dropout and running statistics. A test calls this within the scope of [`isolated_generator`]: other
/// tests draw from the streams of their threads, which [`manual_seed`] restarts outside of scopes.
pub(crate) fn model() -> Sequential {
    manual_seed(5);
    sequential![Linear::new(4, 16), BatchNorm1d::new(16), Relu, Dropout::new(0.3), Linear::new(16, 2)]
}

pub(crate) fn trainer() -> SmallTrainer {
    let model = model();
    let adamw = AdamW::new(model.parameters(), AdamWOptions { lr: 0.02, ..Default::default() });
    Trainer::new(model, CrossEntropyLoss::default(), adamw).quiet(true)
}

/// Returns hashes of the bytes of all parameters and buffers of a model.
pub(crate) fn bits(model: &impl Module) -> Vec<(String, u64)> {
    let hash = |tensor: Tensor| {
        let mut hasher = DefaultHasher::new();
        tensor.to_bytes().hash(&mut hasher);
        hasher.finish()
    };
    model.state_dict().into_iter().map(|(name, tensor)| (name, hash(tensor))).collect()
}

/// Returns a callback that ends the run after a step.
pub(crate) fn stop_after(
    stopped_at: usize,
) -> impl FnMut(&TrainingEvent<'_>, &mut FitControl) -> Result<()> + Send + 'static {
    move |event, control| {
        if matches!(event, TrainingEvent::StepEnded { step, .. } if *step == stopped_at) {
            control.stop();
        }
        Ok(())
    }
}

/// Returns a callback that records the step of each save of a file, and the list of the steps.
pub(crate) fn saves_of(file: &'static str) -> (impl Callback + 'static, Arc<Mutex<Vec<usize>>>) {
    let steps: Arc<Mutex<Vec<usize>>> = Arc::default();
    let (saved, mut now) = (steps.clone(), 0);
    let record = move |event: &TrainingEvent<'_>, _: &mut FitControl| {
        match event {
            TrainingEvent::StepEnded { step, .. } => now = *step,
            TrainingEvent::Saved { path } if path.ends_with(file) => saved.lock().unwrap().push(now),
            _ => {}
        }
        Ok(())
    };
    (record, steps)
}

/// A metric without a state: the number of updates since the last reset, unless it has predefined values.
pub(crate) struct TestMetric {
    name: &'static str,
    updates: usize,
    resets: usize,
    /// The value after each reset, from the first one.
    values: Vec<f64>,
    on_update: Box<dyn FnMut() -> Result<()> + Send>,
}

impl TestMetric {
    pub(crate) fn new(name: &'static str) -> TestMetric {
        TestMetric { name, updates: 0, resets: 0, values: Vec::new(), on_update: Box::new(|| Ok(())) }
    }

    /// Sets the values of the evaluations, each of which begins with a reset.
    pub(crate) fn with_values(self, values: &[f64]) -> TestMetric {
        TestMetric { values: values.to_vec(), ..self }
    }

    pub(crate) fn on_update(self, on_update: impl FnMut() -> Result<()> + Send + 'static) -> TestMetric {
        TestMetric { on_update: Box::new(on_update), ..self }
    }

    /// Makes one update fail, counted from 1.
    pub(crate) fn failing_at(self, update: usize) -> TestMetric {
        let mut updates = 0;
        self.on_update(move || {
            updates += 1;
            if updates == update { Err(Error::invalid("test_metric", "rejected")) } else { Ok(()) }
        })
    }
}

impl Metric for TestMetric {
    fn name(&self) -> String {
        self.name.into()
    }

    fn goal(&self) -> Goal {
        Goal::Maximize
    }

    fn reset(&mut self) {
        (self.updates, self.resets) = (0, self.resets + 1);
    }

    fn update(&mut self, _: &Tensor, _: &Tensor) -> Result<()> {
        (self.on_update)()?;
        self.updates += 1;
        Ok(())
    }

    fn compute(&self) -> Result<f64> {
        Ok(self.values.get(self.resets.wrapping_sub(1)).copied().unwrap_or(self.updates as f64))
    }
}

/// A task without a model, whose losses are functions of the number of steps.
pub(crate) struct ScalarTask {
    pub(crate) loss: &'static str,
    pub(crate) steps: f64,
    pub(crate) train_loss: fn(f64) -> f64,
    pub(crate) validation_loss: fn(f64) -> f64,
    /// Whether the steps return the inputs as outputs.
    pub(crate) has_outputs: bool,
}

impl TrainingTask for ScalarTask {
    type Batch = [Tensor; 2];

    fn train_step(&mut self, _: &[Tensor; 2]) -> Result<NamedScalars> {
        self.steps += 1.0;
        Ok(vec![(self.loss, Tensor::from((self.train_loss)(self.steps)))])
    }

    fn train_predictions(&self, [x, y]: &[Tensor; 2]) -> Result<Option<(Tensor, Tensor)>> {
        Ok(self.has_outputs.then(|| (x.clone(), y.clone())))
    }

    fn evaluate_step(&mut self, [x, y]: &[Tensor; 2]) -> Result<BatchScores> {
        let losses = vec![(self.loss, Tensor::from((self.validation_loss)(self.steps)))];
        Ok(BatchScores { losses, predictions: Some((x.clone(), y.clone())) })
    }

    fn checkpoint(&self) -> Checkpoint<'_> {
        Checkpoint::new()
    }

    fn weights(&self) -> Result<StateDict> {
        Ok(StateDict::new())
    }

    fn optimizers(&self) -> Vec<(&'static str, &dyn Optimizer)> {
        Vec::new()
    }
}
