//! Launches equal eager steps bit for bit for every kind of model, and reduce the loss.

use crate::models::*;
use pellucid_cpu::with_threads;
use pellucid_nn::graph::*;
use pellucid_nn::loss::{self, CrossEntropyLoss, Loss};
use pellucid_nn::optim::{AdamW, AdamWOptions, Optimizer};
use pellucid_nn::*;
use pellucid_tensor::plan::{Launch, SlotRole};
use pellucid_tensor::{DType, Error, Result, Tensor, autocast, manual_seed, ops, traced};

#[test]
fn recording_changes_nothing() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    for kind in &KINDS {
        let model = built(kind);
        let optimizer = sgd(&model, 0.1, 0.9);
        let state = || (bits(model.state_dict()), bits(optimizer.state_dict()));
        let before = state();
        manual_seed(9);
        let expected = Tensor::rand([4], DType::F32).to_vec::<f32>();
        manual_seed(9);
        let mut trainer = trainer(&model, CrossEntropyLoss::default(), &optimizer, false);
        trainer.prepare(&Tensor::zeros(kind.2, DType::F32)).unwrap();
        assert_eq!(Tensor::rand([4], DType::F32).to_vec::<f32>(), expected, "{}: the random numbers differ", kind.0);
        assert!(trainer.captured().is_some() && model.parameters().iter().all(|p| p.grad().is_some()));
        assert_eq!(state(), before, "{}: the state must not change", kind.0);
        let (x, y) = batch(kind.2, 1);
        trainer.step(&x, &y).unwrap();
        assert_ne!(state(), before, "{}: the launch must change the state", kind.0);
    }
}

/// The loss decreases, and the update opposes the gradient: Σ Δθ·g < 0.
#[test]
fn a_step_reduces_the_loss() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    for kind in &KINDS {
        for eager in [false, true] {
            let model = built(kind);
            let optimizer = sgd(&model, 0.05, 0.0);
            let mut trainer = trainer(&model, CrossEntropyLoss::default(), &optimizer, eager);
            let (x, y) = batch(kind.2, 1);
            let before: Vec<Vec<f64>> = model.parameters().iter().map(|p| p.to_vec()).collect();
            // Equal seeds make both launches drop the same elements.
            manual_seed(2);
            trainer.step(&x, &y).unwrap();
            let first = trainer.loss().unwrap();
            let along: f64 = model
                .parameters()
                .iter()
                .zip(before)
                .map(|(p, before)| {
                    let (now, g) = (p.to_vec::<f64>(), p.grad().unwrap().to_vec::<f64>());
                    now.iter().zip(before).zip(g).map(|((now, before), g)| (now - before) * g).sum::<f64>()
                })
                .sum();
            manual_seed(2);
            trainer.step(&x, &y).unwrap();
            let second = trainer.loss().unwrap();
            assert!(second < first, "{}: the loss must fall, but goes from {first} to {second}", kind.0);
            assert!(along < 0.0, "{}: the slope of the loss along the update must be negative, but is {along}", kind.0);
        }
    }
}

/// N captured steps, N eager steps, and N hand-written steps end with bit-identical values.
#[test]
fn launches_equal_eager_steps() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    const STEPS: u64 = 5;
    for kind in &KINDS {
        let run = |eager: Option<bool>| {
            let (model, loss) = (built(kind), CrossEntropyLoss { label_smoothing: 0.1, ..Default::default() });
            let optimizer = AdamW::try_new(model.parameters(), AdamWOptions::default()).unwrap();
            let batches: Vec<_> = (0..STEPS).map(|i| batch(kind.2, 10 + i)).collect();
            let mut trainer = eager.map(|eager| trainer(&model, &loss, &optimizer, eager));
            manual_seed(4);
            let mut losses = Vec::new();
            for (i, (x, y)) in batches.iter().enumerate() {
                optimizer.set_lr(1e-2 / (i + 1) as f64);
                losses.push(match &mut trainer {
                    Some(trainer) => {
                        trainer.step(x, y).unwrap();
                        trainer.loss().unwrap()
                    }
                    None => {
                        optimizer.zero_grad();
                        let value = loss.forward(&model.forward(x), y);
                        value.backward();
                        optimizer.step();
                        value.item::<f64>()
                    }
                });
            }
            (losses, bits(model.state_dict()), bits(optimizer.state_dict()))
        };
        let by_hand = run(None);
        assert!(by_hand.0.iter().all(|loss| loss.is_finite()));
        for eager in [false, true] {
            assert!(run(Some(eager)) == by_hand, "{}: the launches differ from hand-written steps", kind.0);
        }
    }
}

/// Launches equal eager steps in other precisions too, and with any number of threads.
#[test]
fn launches_equal_eager_steps_in_every_precision() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let precisions =
        [(DType::F64, None), (DType::F16, None), (DType::BF16, None), (DType::F32, Some(DType::BF16))].into_iter();
    for (kind, (dtype, half)) in KINDS.iter().flat_map(|kind| precisions.clone().map(move |p| (kind, p))) {
        let run = |eager: Option<bool>| {
            let model = init::in_dtype(dtype, || built(kind));
            let (loss, optimizer) = (CrossEntropyLoss::default(), adamw(&model));
            let _half = half.map(autocast);
            let mut trainer = eager.map(|eager| trainer(&model, &loss, &optimizer, eager));
            manual_seed(4);
            let losses: Vec<Vec<u8>> = (0..4)
                .map(|i| {
                    let (x, y) = batch(kind.2, 20 + i);
                    let x = x.to_dtype(dtype);
                    let Some(trainer) = &mut trainer else { return by_hand(&model, &optimizer, &x, &y).to_bytes() };
                    trainer.step(&x, &y).unwrap();
                    trainer.loss_tensor().unwrap().to_bytes()
                })
                .collect();
            (losses, bits(model.state_dict()), bits(optimizer.state_dict()))
        };
        let expected = with_threads(1, || run(None));
        for (threads, eager) in [(1, false), (2, false), (3, false), (2, true)] {
            let found = with_threads(threads, || run(Some(eager)));
            assert!(
                found == expected,
                "{} in {dtype} {half:?} with {threads} threads, eager {eager}: the results differ from an eager loop",
                kind.0
            );
        }
    }
}

fn adamw(model: &Sequential) -> AdamW {
    AdamW::try_new(model.parameters(), AdamWOptions::default()).unwrap()
}

/// Runs a hand-written step and returns its loss before the update.
fn by_hand(model: &Sequential, optimizer: &dyn Optimizer, x: &Tensor, y: &Tensor) -> Tensor {
    optimizer.zero_grad();
    let value = loss::cross_entropy(&model.forward(x), y);
    value.backward();
    optimizer.step();
    value.detach()
}

#[test]
fn buffers_keep_their_memory() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = mlp();
    let optimizer = sgd(&model, 0.1, 0.9);
    let mut trainer = trainer(&model, CrossEntropyLoss::default(), &optimizer, false);
    let mut before = Vec::new();
    for seed in 0..4 {
        let (x, y) = batch(&[BATCH, 6], seed);
        trainer.step(&x, &y).unwrap();
        let results = [trainer.loss_tensor().unwrap().clone(), trainer.logits().unwrap().clone()];
        let gradients = model.parameters().into_iter().map(|p| p.grad().unwrap());
        let now: Vec<_> = results.into_iter().chain(gradients).map(|t| t.array().clone()).collect();
        if seed == 0 {
            before = now.clone();
        }
        assert!(now.iter().zip(&before).all(|(now, then)| now.shares_storage(then)));
    }
}

/// An embedding and word scores that share one table.
#[derive(Clone, Module)]
struct Tied {
    words: Embedding,
    table: Parameter,
}

impl Layer for Tied {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        ops::matmul(&ops::mean(&self.words.try_forward(x)?, 1)?, &ops::transpose(&self.table, 0, 1)?)
    }

    fn input_dtype(&self) -> DType {
        DType::I64
    }
}

/// Every gradient is computed in its buffer, even by several kernels; the only copy is of one value that is the
/// gradient of two parameters.
#[test]
fn gradients_are_computed_in_their_buffers() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let words = Embedding::new(10, 6);
    let table = words.parameters().remove(0);
    let both = Gru::new(6, 8).batch_first(true).bidirectional(true);
    let mut models: Vec<(&str, Sequential, Vec<usize>)> = vec![
        ("embedding", sequential![Embedding::new(10, 6), Mean, Linear::new(6, CLASSES)], vec![BATCH, 5]),
        ("tied", sequential![Tied { words, table }], vec![BATCH, 5]),
        ("gru", sequential![both, Last, Linear::new(16, CLASSES)], vec![BATCH, 5, 6]),
    ];
    models.extend(KINDS.iter().map(|kind| (kind.0, built(kind), kind.2.to_vec())));
    for (name, model, shape) in &models {
        let optimizer = sgd(model, 0.1, 0.0);
        let mut trainer = trainer(model, CrossEntropyLoss::default(), &optimizer, false);
        trainer.prepare(&Tensor::zeros(shape, model.input_dtype())).unwrap();
        let plan = trainer.captured().unwrap().plan();
        // Parameters, statistics and the optimizer's state are updated in place, not copied.
        let writes_state = |launch: &&Launch| launch.outputs.iter().any(|o| plan.role(o.slot) == SlotRole::State);
        let copies = plan.launches.iter().filter(writes_state).filter(|launch| launch.parts().contains(&"copy"));
        // Both biases of a recurrent layer's gates have the same gradient.
        let expected = usize::from(*name == "lstm");
        assert_eq!(copies.count(), expected, "{name}: the number of copies in the plan is wrong:\n{plan}");
    }
}

/// Gradients of several launches do not accumulate.
#[test]
fn each_launch_starts_without_gradients() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    for eager in [false, true] {
        let model = mlp();
        let optimizer = sgd(&model, 0.0, 0.0);
        let mut trainer = trainer(&model, CrossEntropyLoss::default(), &optimizer, eager);
        let (x, y) = batch(&[BATCH, 6], 1);
        let mut gradient = || {
            trainer.step(&x, &y).unwrap();
            model.parameters()[0].grad().unwrap().to_vec::<f32>()
        };
        let first = gradient();
        assert!(first.iter().any(|g| *g != 0.0));
        assert_eq!(gradient(), first);
    }
}

/// Two launches with accumulation over half a batch each equal one launch over the entire batch, with one update.
#[test]
fn gradients_accumulate_over_launches() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    for eager in [false, true] {
        let (model, other_model) = (built(&KINDS[0]), built(&KINDS[0]));
        let loss = CrossEntropyLoss::default();
        let (optimizer, other) = (sgd(&model, 0.1, 0.9), sgd(&other_model, 0.1, 0.9));
        let options = StepOptions { eager, accumulate: 2, ..Default::default() };
        let mut trainer = GraphTrainer::new(&model, &loss, &optimizer).with_options(options);
        for seed in 0..3 {
            let (x, y) = batch(&[BATCH, 6], seed);
            let before = bits(model.state_dict());
            for half in 0..2 {
                assert_eq!(bits(model.state_dict()), before);
                let half = |t: &Tensor| t.narrow(0, half * BATCH / 2, BATCH / 2);
                trainer.step(&half(&x), &half(&y)).unwrap();
            }
            other.zero_grad();
            loss.forward(&other_model.forward(&x), &y).backward();
            other.step();
            for (p, q) in model.parameters().iter().zip(other_model.parameters()) {
                let (p, q) = (p.to_vec::<f32>(), q.to_vec::<f32>());
                assert!(p.iter().zip(q).all(|(p, q)| (p - q).abs() < 1e-6));
            }
        }
    }
}

/// A loss that returns an error at recording, as a device without capture does.
pub(crate) fn uncapturable_loss(logits: &Tensor, y: &Tensor) -> Result<Tensor> {
    if traced().is_some() {
        return Err(Error::DeviceUnavailable { device: "gpu".into(), reason: "no graphs".into() });
    }
    CrossEntropyLoss::default().try_forward(logits, y)
}

#[test]
fn a_step_runs_eagerly_on_a_device_that_cannot_capture() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let (model, other) = (built(&KINDS[0]), built(&KINDS[0]));
    let (optimizer, hand) = (sgd(&model, 0.1, 0.9), sgd(&other, 0.1, 0.9));
    let mut trainer = trainer(&model, loss::from_fn(uncapturable_loss), &optimizer, false);
    for seed in 0..3 {
        let (x, y) = batch(&[BATCH, 6], seed);
        trainer.step(&x, &y).unwrap();
        by_hand(&other, &hand, &x, &y);
    }
    assert!(trainer.captured().is_none());
    assert_eq!(bits(model.state_dict()), bits(other.state_dict()));
}

/// A model whose layer and whose loss read values, and whose layer states that it cannot be captured.
#[derive(Clone, Module)]
#[module(no_capture = "it reads values")]
struct Reading(Linear);

impl Layer for Reading {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let largest = ops::max(x, ..)?.try_item::<f64>()?;
        self.0.try_forward(&ops::div(x, largest.abs().max(1.0))?)
    }
}

/// An eager step is never traced: its model, its loss and its hooks may read values.
#[test]
fn an_eager_step_may_read_values() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let reading_loss = |logits: &Tensor, y: &Tensor| -> Result<Tensor> {
        let size = ops::mean(logits, ..)?.try_item::<f64>()?;
        ops::mul(loss::cross_entropy(logits, y), 1.0 + size.abs())
    };
    for accumulate in [1, 2] {
        let model = Reading(Linear::new(6, CLASSES));
        let other = model.deep_copy().unwrap();
        let empty =
            optim::Sgd::new(optim::ParameterList::default(), optim::SgdOptions { lr: 0.1, ..Default::default() });
        let hand = optim::Sgd::new(other.parameters(), optim::SgdOptions { lr: 0.1, ..Default::default() });
        let options = StepOptions { eager: true, accumulate, ..Default::default() };
        let mut trainer = GraphTrainer::new(&model, loss::from_fn(reading_loss), &empty).with_options(options);
        trainer.prepare(&Tensor::zeros([BATCH, 6], DType::F32)).unwrap();
        for seed in 0..4 {
            let (x, y) = batch(&[BATCH, 6], seed);
            trainer.step(&x, &y).unwrap();
            let value = reading_loss(&other.forward(&x), &y).unwrap();
            (&value * (1.0 / accumulate as f64)).backward();
            assert_eq!(trainer.loss().unwrap(), value.item::<f64>());
            if (seed as usize + 1).is_multiple_of(accumulate) {
                hand.step();
                hand.zero_grad();
            }
            let expected = with_evaluation_mode(|| reading_loss(&other.forward(&x), &y)).unwrap().item::<f64>();
            assert_eq!(trainer.evaluate(&x, &y).unwrap(), expected);
        }
        assert_eq!(bits(model.state_dict()), bits(other.state_dict()));
        // A captured step rejects the model.
        let mut captured = GraphTrainer::new(&model, loss::from_fn(reading_loss), &empty);
        let (x, y) = batch(&[BATCH, 6], 0);
        assert!(captured.step(&x, &y).unwrap_err().to_string().contains("it reads values"));
    }
}

/// A trace builds the lazy layers of an eager step up to the layer that reads a value.
#[test]
fn lazy_layers_of_an_eager_step_are_built() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let (x, y) = batch(&[BATCH, 6], 0);
    let eager_trainer = |model: Sequential| {
        let empty =
            optim::Sgd::new(optim::ParameterList::default(), optim::SgdOptions { lr: 0.1, ..Default::default() });
        trainer(model, CrossEntropyLoss::default(), empty, true)
    };
    let mut built = eager_trainer(sequential![Linear::lazy(5), Reading(Linear::new(5, CLASSES))]);
    built.step(&x, &y).unwrap();
    assert_eq!(built.optimizer().parameters().len(), 4);
    assert!(built.captured().is_none() && built.loss().unwrap().is_finite());
    let mut unbuilt = eager_trainer(sequential![Reading(Linear::new(6, 5)), Linear::lazy(CLASSES)]);
    let error = unbuilt.step(&x, &y).unwrap_err();
    assert!(matches!(error.root(), Error::ReadInCapture { .. }), "{error}");
    assert!(unbuilt.optimizer().parameters().is_empty());
}

/// Steps of two models with the same shapes share no buffer.
#[test]
fn two_models_side_by_side() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let (a, b) = (mlp(), mlp());
    b.load_state_dict(&a.state_dict()).unwrap();
    let loss = CrossEntropyLoss::default();
    let (for_a, for_b) = (sgd(&a, 0.1, 0.9), sgd(&b, 0.1, 0.9));
    let (mut step_a, mut step_b) = (trainer(&a, &loss, &for_a, false), trainer(&b, &loss, &for_b, false));
    let ((x, y), (u, v)) = (batch(&[BATCH, 6], 1), batch(&[BATCH, 6], 2));
    let untouched = bits(b.state_dict());
    step_a.step(&x, &y).unwrap();
    assert_eq!(bits(b.state_dict()), untouched);
    let (after, first) = (bits(a.state_dict()), step_a.loss().unwrap());
    step_b.step(&u, &v).unwrap();
    assert_eq!((bits(a.state_dict()), step_a.loss().unwrap()), (after.clone(), first));
    // Both models compute the same step on the same batch.
    b.load_state_dict(&a.state_dict()).unwrap();
    assert_eq!(bits(b.state_dict()), after);
    let gradients = |model: &Sequential| model.parameters().iter().map(|p| p.grad().unwrap()).collect::<Vec<_>>();
    assert!(gradients(&a).iter().zip(gradients(&b)).all(|(p, q)| !p.array().shares_storage(q.array())));
    let evaluated = |model: &Sequential| loss::cross_entropy(&model.forward(&x), &y).item::<f32>();
    assert_eq!(evaluated(&a), evaluated(&b));
}
