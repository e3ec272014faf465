//! The trainer: steps, losses, and batches of several inputs.

use crate::models::*;
use pellucid_nn::graph::*;
use pellucid_nn::loss::{BceWithLogitsLoss, CrossEntropyLoss, Loss, MseLoss};
use pellucid_nn::optim::{
    Adam, AdamOptions, GradScaler, GradScalerOptions, Optimizer, ParameterList, Sgd, SgdOptions, clip_grad_norm,
    grad_norm,
};
use pellucid_nn::*;
use pellucid_tensor::{CacheStats, DType, Error, Result, Tensor, autocast, ops};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn step_and_evaluate_returns_the_loss_of_the_new_parameters() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    for kind in &KINDS {
        for eager in [false, true] {
            let model = built(kind);
            let optimizer = sgd(&model, 0.05, 0.9);
            let mut trainer = GraphTrainer::new(&model, CrossEntropyLoss::default(), optimizer)
                .with_options(StepOptions { eager, ..Default::default() });
            trainer.prepare(&Tensor::zeros(kind.2, DType::F32)).unwrap();
            for seed in 0..3 {
                let (x, y) = batch(kind.2, seed);
                let found = trainer.step_and_evaluate(&x, &y).unwrap();
                let before = trainer.loss().unwrap();
                model.eval();
                let expected = loss::cross_entropy(&model.forward(&x), &y).item::<f64>();
                model.train();
                assert_eq!(found, expected, "{}: the loss after the update is wrong", kind.0);
                assert_ne!(found, before);
                let state = bits(model.state_dict());
                assert_eq!(trainer.evaluate(&x, &y).unwrap(), found);
                assert_eq!(bits(model.state_dict()), state, "an evaluation must not change the state");
            }
        }
    }
}

/// After an evaluation, each layer has its previous mode.
#[test]
fn evaluating_restores_the_modes() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = sequential![Dropout::new(0.9), BatchNorm1d::new(6), Linear::new(6, CLASSES)];
    let mode = |model: &Sequential| -> Vec<bool> {
        let mut modes = Vec::new();
        let mut meet = |_: &str, part: ModulePart<'_>| {
            if let ModulePart::TrainingMode(mode) = part {
                modes.push(mode.get());
            }
        };
        model.visit(&mut Visitor::new(&mut meet));
        modes
    };
    model.layers()[0].eval();
    let before = mode(&model);
    assert!(before.contains(&true) && before.contains(&false));
    let optimizer = sgd(&model, 0.1, 0.0);
    let mut trainer = GraphTrainer::new(&model, CrossEntropyLoss::default(), optimizer);
    trainer.prepare(&Tensor::zeros([BATCH, 6], DType::F32)).unwrap();
    let (x, y) = batch(&[BATCH, 6], 1);
    trainer.step_and_evaluate(&x, &y).unwrap();
    assert_eq!(mode(&model), before);
}

/// The first step of each shape records; all steps share parameters, gradient buffers and optimizer state, and equal
/// eager steps.
#[test]
fn the_first_step_of_each_shape_records() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    for eager in [false, true] {
        let (model, other) = (built(&KINDS[0]), built(&KINDS[0]));
        let empty = Sgd::try_new(ParameterList::default(), SgdOptions { lr: 0.1, momentum: 0.9, ..Default::default() })
            .unwrap();
        let hand = sgd(&other, 0.1, 0.9);
        let mut trainer = GraphTrainer::new(&model, CrossEntropyLoss::default(), &empty)
            .with_options(StepOptions { eager, ..Default::default() });
        assert!(trainer.captured().is_none());
        for rejected in [trainer.loss().err(), trainer.loss_tensor().err(), trainer.logits().err()] {
            assert!(rejected.unwrap().to_string().contains("call step() first"));
        }
        let mut buffers = Vec::new();
        for (seed, size) in [BATCH, 4, BATCH, 1, 4].into_iter().enumerate() {
            let (x, y) = batch(&[BATCH, 6], seed as u64);
            let (x, y) = (x.narrow(0, 0, size), y.narrow(0, 0, size));
            trainer.step(&x, &y).unwrap();
            hand.zero_grad();
            let logits = other.forward(&x);
            let value = loss::cross_entropy(&logits, &y);
            value.backward();
            hand.step();
            assert_eq!(bits(model.state_dict()), bits(other.state_dict()), "batch {seed} of size {size}");
            assert_eq!(trainer.loss().unwrap(), value.item::<f64>());
            assert_eq!(trainer.logits().unwrap().to_vec::<f32>(), logits.to_vec::<f32>());
            // An evaluation of other shapes records as well, and does not change the results of the last step.
            let full_batch = batch(&[BATCH, 6], seed as u64);
            trainer.evaluate(&full_batch.0, &full_batch.1).unwrap();
            assert_eq!(trainer.loss_tensor().unwrap().item::<f32>(), value.item::<f32>());
            buffers.push(model.parameters()[0].grad().unwrap());
        }
        assert!(buffers.iter().all(|buf| buf.array().shares_storage(buffers[0].array())));
        // Each recorded step or evaluation counts.
        let recorded = if eager { CacheStats::default() } else { CacheStats { hits: 6, misses: 4, len: 4 } };
        assert_eq!((trainer.cache_stats(), empty.parameters().len()), (recorded, 4));
    }
}

/// The statistics of a trainer count one recording for each mode.
#[test]
fn recordings_for_modes_are_counted() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = sequential![Linear::new(6, 8), Dropout::new(0.5), Linear::new(8, CLASSES)];
    let mut trainer = GraphTrainer::new(&model, CrossEntropyLoss::default(), sgd(&model, 0.1, 0.0));
    let (x, y) = batch(&[BATCH, 6], 1);
    trainer.step(&x, &y).unwrap();
    model.eval();
    trainer.step(&x, &y).unwrap();
    model.train();
    trainer.step(&x, &y).unwrap();
    assert_eq!(trainer.cache_stats(), CacheStats { hits: 1, misses: 2, len: 2 });
    trainer.evaluate(&x, &y).unwrap();
    trainer.evaluate(&x, &y).unwrap();
    assert_eq!(trainer.cache_stats(), CacheStats { hits: 2, misses: 3, len: 3 });
    assert_eq!(trainer.captured().unwrap().cache_stats().len, 2);
}

/// A batch that a model cannot train on can be evaluated, before and after it is trained, and records no training step.
#[test]
fn an_evaluation_needs_no_training_step() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    for eager in [false, true] {
        let model = built(&("norm", || sequential![Linear::new(6, 4), BatchNorm1d::new(4)], &[BATCH, 6]));
        let empty = Sgd::try_new(ParameterList::default(), SgdOptions { lr: 0.1, ..Default::default() }).unwrap();
        let mut trainer = GraphTrainer::new(&model, CrossEntropyLoss::default(), &empty)
            .with_options(StepOptions { eager, ..Default::default() });
        let (x, y) = batch(&[BATCH, 6], 1);
        let (one, label) = (x.narrow(0, 0, 1), y.narrow(0, 0, 1));
        let expected = |x: &Tensor, y: &Tensor| {
            model.eval();
            let value = loss::cross_entropy(&model.forward(x), y).item::<f64>();
            model.train();
            value
        };
        for _ in 0..2 {
            assert_eq!(trainer.evaluate(&one, &label).unwrap(), expected(&one, &label));
            assert_eq!(trainer.evaluate(&x, &y).unwrap(), expected(&x, &y));
        }
        assert!(trainer.captured().is_none() && empty.parameters().is_empty());
        let recorded = if eager { CacheStats::default() } else { CacheStats { hits: 2, misses: 2, len: 2 } };
        assert_eq!(trainer.cache_stats(), recorded);
        let rejected = trainer.step(&one, &label).unwrap_err().to_string();
        assert!(rejected.contains("1 (BatchNorm1d)") && rejected.contains("more than one value"), "{rejected}");
        assert!(empty.parameters().is_empty());
        // The evaluation of the shapes of a training step stays.
        trainer.step(&x, &y).unwrap();
        assert_eq!(trainer.cache_stats().len, if eager { 0 } else { 3 });
        assert_eq!(trainer.evaluate(&one, &label).unwrap(), expected(&one, &label));
        assert_eq!(trainer.evaluate(&x, &y).unwrap(), expected(&x, &y));
        assert_eq!(trainer.step_and_evaluate(&x, &y).unwrap(), expected(&x, &y));
    }
}

/// A first step that is rejected names the layer and changes nothing.
#[test]
fn a_rejected_batch_records_nothing() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = mlp();
    let optimizer = Sgd::try_new(ParameterList::default(), SgdOptions { lr: 0.1, ..Default::default() }).unwrap();
    let mut trainer = GraphTrainer::new(&model, CrossEntropyLoss::default(), &optimizer);
    let (x, y) = batch(&[BATCH, 6], 1);
    let before = bits(model.state_dict());
    let wrong = [
        (Tensor::zeros([BATCH, 5], DType::F32), y.clone(), "0 (Linear)", "[8, 5]"),
        (x.clone(), Tensor::zeros([BATCH, 2], DType::I64), "loss", "[8, 2]"),
        (x.clone(), Tensor::zeros([BATCH], DType::F32), "loss", "to_dtype"),
    ];
    for after_a_step in [false, true] {
        let held = usize::from(after_a_step);
        for (x, y, name, text) in &wrong {
            for rejected in [trainer.step(x, y).err(), trainer.evaluate(x, y).err(), trainer.check_step(x, y).err()] {
                let Some(Error::Layer { layer, source }) = rejected else { panic!("unexpected result: {rejected:?}") };
                assert!(layer == *name && source.to_string().contains(text), "{layer}: {source}");
            }
            let stats = trainer.cache_stats();
            assert_eq!((stats.misses, stats.len, optimizer.parameters().len()), (held as u64, held, 4 * held));
        }
        if !after_a_step {
            assert!(model.parameters().iter().all(|p| p.grad().is_none()));
            assert_eq!(bits(model.state_dict()), before);
            trainer.step(&x, &y).unwrap();
        }
    }
}

/// A batch of another dtype has a step of its own, as an eager model computes it.
#[test]
fn the_first_step_of_each_dtype_records() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = sequential![Embedding::new(10, 3), Flatten::new(), Linear::new(6, CLASSES)];
    let mut trainer = GraphTrainer::new(&model, CrossEntropyLoss::default(), sgd(&model, 0.1, 0.0));
    let tokens = Tensor::randint(0, 10, [BATCH, 2]);
    let y = batch(&[BATCH, 6], 1).1;
    for dtype in [DType::I64, DType::I32, DType::I64] {
        let x = tokens.to_dtype(dtype);
        let expected = loss::cross_entropy(&model.forward(&x), &y).item::<f64>();
        trainer.step(&x, &y).unwrap();
        assert_eq!(trainer.loss().unwrap(), expected);
    }
    assert_eq!(trainer.cache_stats().len, 2);
}

/// The first step states the targets of a function, which prepare() cannot know.
#[test]
fn a_function_is_a_loss() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = mlp();
    let distance = |logits: &Tensor, y: &Tensor| ops::mean(&ops::abs(&ops::sub(logits, y)?)?, ..);
    let mut trainer = GraphTrainer::new(&model, loss::from_fn(distance), sgd(&model, 0.1, 0.0));
    assert!(
        trainer.prepare(&Tensor::zeros([BATCH, 6], DType::F32)).err().unwrap().to_string().contains("with_targets")
    );
    let (x, y) = (batch(&[BATCH, 6], 1).0, Tensor::ones([BATCH, CLASSES], DType::F32));
    let expected = distance(&model.forward(&x), &y).unwrap().item::<f64>();
    trainer.step(&x, &y).unwrap();
    assert_eq!(trainer.loss().unwrap(), expected);
}

/// A trainer keeps a limited number of recorded steps; a dropped one is recorded again and continues training.
#[test]
fn a_trainer_keeps_a_limited_number_of_recordings() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let (model, other) = (built(&KINDS[0]), built(&KINDS[0]));
    let limited = |max_recordings: usize| StepOptions { max_recordings, ..Default::default() };
    let mut trainer = GraphTrainer::new(&model, CrossEntropyLoss::default(), sgd(&model, 0.1, 0.9));
    trainer.set_options(limited(0));
    let (x, y) = batch(&[BATCH, 6], 0);
    for rejected in [trainer.prepare(&x).err(), trainer.step(&x, &y).err(), trainer.evaluate(&x, &y).err()] {
        assert!(rejected.unwrap().to_string().contains("`max_recordings` must be at least 1"));
    }
    let mut trainer = trainer.with_options(limited(2));
    for size in [8, 4, 2] {
        trainer.prepare(&Tensor::zeros([size, 6], DType::F32)).unwrap();
    }
    let counts = |stats: CacheStats| (stats.hits, stats.misses, stats.len);
    assert_eq!(counts(trainer.cache_stats()), (0, 0, 2));
    let hand = sgd(&other, 0.1, 0.9);
    // Each entry is a batch size, and whether the cache contains its step. The most recently used steps are kept.
    let steps = [(2, true), (4, true), (4, true), (8, false), (4, true), (2, false), (4, true), (8, false), (8, true)];
    for (seed, (size, found)) in steps.into_iter().enumerate() {
        let (x, y) = batch(&[BATCH, 6], seed as u64);
        let (x, y) = (x.narrow(0, 0, size), y.narrow(0, 0, size));
        let before = trainer.cache_stats();
        trainer.step(&x, &y).unwrap();
        assert_eq!(
            trainer.cache_stats().hits - before.hits,
            u64::from(found),
            "batch {seed}: the number of cache hits is wrong"
        );
        assert_eq!(
            trainer.cache_stats().misses - before.misses,
            u64::from(!found),
            "batch {seed}: the number of cache misses is wrong"
        );
        assert_eq!(trainer.cache_stats().len, 2);
        hand.zero_grad();
        loss::cross_entropy(&other.forward(&x), &y).backward();
        hand.step();
    }
    assert_eq!(bits(model.state_dict()), bits(other.state_dict()));
    // A shape that was not prepared is recorded, within the limit.
    trainer.step(&Tensor::zeros([3, 6], DType::F32), &Tensor::zeros([3], DType::I64)).unwrap();
    assert_eq!(trainer.cache_stats().len, 2);
}

#[test]
fn gradients_are_clipped_before_the_update() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = mlp();
    let optimizer = sgd(&model, 1.0, 0.0);
    let calls = AtomicUsize::new(0);
    let before_update: BeforeUpdate<'_> = Arc::new(|parameters| {
        calls.fetch_add(1, Ordering::Relaxed);
        clip_grad_norm(parameters, 1e-3).map(drop)
    });
    let options = StepOptions { before_update: Some(before_update), ..Default::default() };
    let mut trainer = GraphTrainer::new(&model, CrossEntropyLoss::default(), optimizer).with_options(options);
    trainer.prepare(&Tensor::zeros([BATCH, 6], DType::F32)).unwrap();
    let recorded = calls.load(Ordering::Relaxed);
    assert!(recorded > 0, "recording must call the host function");
    let before: Vec<Vec<f32>> = model.parameters().iter().map(|p| p.to_vec()).collect();
    let (x, y) = batch(&[BATCH, 6], 1);
    trainer.step(&x, &y).unwrap();
    let norm = grad_norm(&model.parameters(), 2.0).unwrap().item::<f32>();
    assert!((norm - 1e-3).abs() < 1e-6, "the norm after clipping is {norm}, expected 1e-3");
    let moved = model.parameters().into_iter().zip(before).map(|(p, before)| {
        p.to_vec::<f32>().iter().zip(before).map(|(now, before)| (now - before).powi(2)).sum::<f32>()
    });
    assert!((moved.sum::<f32>().sqrt() - 1e-3).abs() < 1e-5);
    assert_eq!(calls.load(Ordering::Relaxed), recorded, "a launch must not call the host function");
}

/// Mixed precision with a scale on the device: launches equal eager steps, skipped ones included.
#[test]
fn mixed_precision_with_a_scaled_loss() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    for (eager, accumulate) in [false, true].into_iter().flat_map(|eager| [(eager, 1), (eager, 2)]) {
        let (model, other) = (built(&KINDS[0]), built(&KINDS[0]));
        let adam = |model: &Sequential| Adam::try_new(model.parameters(), AdamOptions::default()).unwrap();
        let options = GradScalerOptions { init_scale: 256.0, growth_interval: 2, ..Default::default() };
        let (scaler, by_hand) =
            (Arc::new(GradScaler::try_new(options).unwrap()), GradScaler::try_new(options).unwrap());
        let (hand, is_captured) = (adam(&other), !eager);
        let options = StepOptions {
            eager,
            accumulate,
            scaler: Some(scaler.clone()),
            before_update: Some(Arc::new(|parameters| clip_grad_norm(parameters, 1.0).map(drop))),
            ..Default::default()
        };
        let mut trainer = GraphTrainer::new(&model, CrossEntropyLoss::default(), adam(&model)).with_options(options);
        let _half = autocast(DType::BF16);
        trainer.prepare(&Tensor::zeros([BATCH, 6], DType::F32)).unwrap();
        let mut scales = Vec::new();
        for seed in 0..12 {
            let (x, y) = batch(&[BATCH, 6], seed as u64);
            let x = if seed % 5 == 3 { x * f64::INFINITY } else { x };
            trainer.step(&x, &y).unwrap();
            let value = loss::cross_entropy(&other.forward(&x), &y);
            (by_hand.scale(&value) * (1.0 / accumulate as f64)).backward();
            if (seed + 1) % accumulate == 0 {
                let unscaled = by_hand.unscale(&hand);
                clip_grad_norm(&hand.parameters(), 1.0).unwrap();
                unscaled.step();
                by_hand.update();
                hand.zero_grad();
            }
            scales.push(by_hand.scale_tensor().item::<f32>());
            assert_eq!(scaler.scale_tensor().item::<f32>(), scales[scales.len() - 1]);
            assert!(
                bits(model.state_dict()) == bits(other.state_dict()),
                "the states differ: {seed} {accumulate} {is_captured}"
            );
        }
        assert!(
            scales.windows(2).any(|w| w[1] < w[0]) && scales.windows(2).any(|w| w[1] > w[0]),
            "the scale must both grow and shrink: {scales:?}"
        );
        assert_eq!(trainer.captured().is_some(), is_captured);
    }
}

/// A model that compares the encodings of two inputs, given as a tuple or by name.
#[derive(Module)]
struct Siamese {
    encoder: Linear,
    head: Linear,
}

impl Siamese {
    fn new() -> Siamese {
        Siamese { encoder: Linear::new(6, 8), head: Linear::new(8, 1) }
    }

    fn compare(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let (a, b) = (self.encoder.try_forward(a)?, self.encoder.try_forward(b)?);
        self.head.try_forward(&ops::abs(&ops::sub(&a, &b)?)?)
    }
}

impl Model<(Tensor, Tensor)> for Siamese {
    fn compute(&self, (a, b): &(Tensor, Tensor)) -> Result<Tensor> {
        self.compare(a, b)
    }
}

impl Model<BTreeMap<String, Tensor>> for Siamese {
    fn compute(&self, x: &BTreeMap<String, Tensor>) -> Result<Tensor> {
        self.compare(&x["left"], &x["right"])
    }
}

/// Returns the losses of some steps, and the error for a batch of a wrong shape.
fn several<X: Batch>(make: impl Fn(Tensor, Tensor) -> X) -> (Vec<f64>, String)
where
    Siamese: Model<X>,
{
    pellucid_tensor::manual_seed(3);
    let model = Siamese::new();
    let optimizer = Adam::try_new(model.parameters(), AdamOptions { lr: 0.01, ..Default::default() }).unwrap();
    let mut trainer = GraphTrainer::new(model, BceWithLogitsLoss::default(), optimizer);
    let zeros = |width: usize| Tensor::zeros([BATCH, width], DType::F32);
    trainer.prepare(&make(zeros(6), zeros(6))).unwrap();
    let (a, b) = (batch(&[BATCH, 6], 1).0, batch(&[BATCH, 6], 2).0);
    let y = Tensor::from([[0.0f32], [1.0], [1.0], [0.0], [1.0], [0.0], [0.0], [1.0]]);
    let rejected = trainer.step(&make(a.clone(), zeros(5)), &y).unwrap_err().to_string();
    let losses = (0..4).map(|_| trainer.step_and_evaluate(&make(a.clone(), b.clone()), &y).unwrap()).collect();
    (losses, rejected)
}

#[test]
fn models_of_several_inputs() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let (by_position, rejected) = several(|a, b| (a, b));
    assert!(rejected.contains("encoder (Linear)") && rejected.contains("[8, 5]"), "{rejected}");
    let (by_name, rejected) = several(|a, b| BTreeMap::from([("left".to_string(), a), ("right".to_string(), b)]));
    assert!(rejected.contains("encoder (Linear)") && rejected.contains("[8, 5]"), "{rejected}");
    assert_eq!(by_position, by_name);
    assert!(by_position.windows(2).all(|pair| pair[1] < pair[0]), "the losses must fall: {by_position:?}");
}

/// The launches of all recordings count towards an update, whatever the shape of their batch, even after a recording
/// was dropped.
#[test]
fn gradients_accumulate_over_batches_of_different_sizes() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let ones = |rows: usize| (Tensor::ones([rows, 1], DType::F32), Tensor::zeros([rows, 1], DType::F32));
    for (eager, limit) in [false, true].into_iter().flat_map(|eager| [(eager, 8), (eager, 1)]) {
        let model = Linear::new(1, 1).bias(false);
        init::ones_(&model.weight);
        let optimizer = Sgd::try_new(model.parameters(), SgdOptions { lr: 0.1, ..Default::default() }).unwrap();
        let options = StepOptions { eager, accumulate: 3, max_recordings: limit, ..Default::default() };
        let mut trainer = GraphTrainer::new(&model, MseLoss::default(), &optimizer).with_options(options);
        let mut weights = Vec::new();
        for rows in [4, 4, 2, 4, 2, 4, 5, 4, 2] {
            let (x, y) = ones(rows);
            trainer.step(&x, &y).unwrap();
            // The gradient is 2w for every size of the batch.
            let (other, targets) = ones(rows + 7);
            trainer.evaluate(&other, &targets).unwrap();
            weights.push(model.weight.item::<f32>());
        }
        let expected = [1.0, 1.0, 0.8, 0.8, 0.8, 0.64, 0.64, 0.64, 0.512];
        let is_near = weights.iter().zip(expected).all(|(w, e): (&f32, f32)| (w - e).abs() < 1e-6);
        assert!(is_near, "with {limit} recordings: {weights:?}, expected {expected:?}");
    }
}

/// A trainer whose model was converted returns an error with a remedy and leaves the model unchanged.
#[test]
fn a_converted_model_needs_another_trainer() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let y = Tensor::zeros([2], DType::I64);
    let model = Linear::new(4, 3);
    let optimizer = Sgd::try_new(ParameterList::default(), SgdOptions::default()).unwrap();
    let mut trainer = GraphTrainer::new(&model, CrossEntropyLoss::default(), optimizer);
    trainer.step(&Tensor::randn([2, 4], DType::F32), &y).unwrap();
    model.to_dtype_(DType::F64).unwrap();
    let before = bits(model.state_dict());
    let text = trainer.step(&Tensor::randn([2, 4], DType::F64), &y).unwrap_err().to_string();
    assert!(text.contains("converted") && text.contains("f32 and f64"), "{text}");
    assert!(bits(model.state_dict()) == before, "a failed step must not change the model");
    model.to_dtype_(DType::F32).unwrap();
    trainer.step(&Tensor::randn([2, 4], DType::F32), &y).unwrap();
}

/// Values of targets that would make the loss NaN, and with it all parameters.
#[test]
fn a_wrong_class_or_an_empty_batch_changes_nothing() {
    let (model, (x, y)) = (mlp(), batch(&[BATCH, 6], 1));
    let optimizer = sgd(&model, 0.1, 0.9);
    let ignoring = CrossEntropyLoss { ignore_index: Some(-100), ..Default::default() };
    let mut trainer = GraphTrainer::new(&model, ignoring, &optimizer);
    let wrong = |at: usize, class: i64| {
        let mut classes = y.to_vec::<i64>();
        classes[at] = class;
        Tensor::new(classes, [BATCH])
    };
    let flat = || model.parameters().iter().flat_map(|p| p.to_vec::<f32>()).collect::<Vec<f32>>();
    let before = flat();
    let rejected = trainer.step(&x, &wrong(0, CLASSES as i64)).unwrap_err().to_string();
    assert!(rejected.contains("loss: cross_entropy: index") && rejected.contains("classes are 0.."), "{rejected}");
    assert_eq!(flat(), before, "a rejected first batch must change nothing");
    trainer.step(&x, &wrong(0, -100)).unwrap();
    let before = flat();
    for class in [-1, CLASSES as i64, i64::MIN] {
        assert!(trainer.step(&x, &wrong(BATCH - 1, class)).is_err(), "class {class}");
        assert!(trainer.evaluate(&x, &wrong(BATCH - 1, class)).is_err(), "class {class}");
    }
    let none = Tensor::zeros([0, 6], DType::F32);
    let rejected = trainer.step(&none, &Tensor::zeros([0], DType::I64)).unwrap_err().to_string();
    assert!(rejected.contains("no samples"), "{rejected}");
    assert_eq!(flat(), before, "a rejected batch must change nothing");
    trainer.step(&x, &y).unwrap();
    assert_ne!(flat(), before);
}

/// A model of features and of an index, which the launch of a step checks.
#[derive(Clone, Debug, Module)]
struct Looked {
    norm: BatchNorm1d,
    head: Linear,
    table: Embedding,
}

impl Model<(Tensor, Tensor)> for Looked {
    fn compute(&self, (x, index): &(Tensor, Tensor)) -> Result<Tensor> {
        let y = self.head.try_forward(&self.norm.try_forward(x)?)?;
        ops::add(&y, &self.table.try_forward(index)?)
    }
}

#[test]
fn an_index_that_a_launch_rejects_trains_nothing() {
    let model = Looked { norm: BatchNorm1d::new(6), head: Linear::new(6, CLASSES), table: Embedding::new(5, CLASSES) };
    let adam = Adam::new(model.parameters(), AdamOptions::default());
    let mut trainer = GraphTrainer::new(&model, CrossEntropyLoss::default(), &adam);
    let (x, y) = batch(&[BATCH, 6], 1);
    let index = |last: i64| {
        let mut index = vec![0; BATCH - 1];
        index.push(last);
        (x.clone(), Tensor::new(index, [BATCH]))
    };
    let flat = || model.parameters().iter().flat_map(|p| p.to_vec::<f32>()).collect::<Vec<f32>>();
    let mean = || model.norm.running_mean.as_ref().unwrap().to_vec::<f32>();
    trainer.step(&index(4), &y).unwrap();
    let (before, optimizer) = (flat(), bits(adam.state_dict()));
    let statistics = mean();
    for _ in 0..2 {
        let error = trainer.step(&index(5), &y).unwrap_err().to_string();
        assert!(error.contains("index 5 is out of bounds"), "{error}");
        assert_eq!(flat(), before, "parameters must not change");
        assert_eq!(bits(adam.state_dict()), optimizer, "the optimizer must not change");
    }
    assert_ne!(mean(), statistics, "layers before the index have run, as the documentation states");
    trainer.step(&index(3), &y).unwrap();
    assert_ne!(flat(), before);
}

/// Training in mixed precision and evaluating outside it are two recordings, which are both kept.
#[test]
fn an_evaluation_may_have_another_precision_than_the_step() {
    let (x, y) = batch(&[BATCH, 6], 1);
    for training in [Some(DType::BF16), None] {
        let [model, twin] = [mlp(), mlp()];
        twin.load_state_dict(&model.state_dict()).unwrap();
        let (optimizer, eager) = (sgd(&model, 0.1, 0.9), sgd(&twin, 0.1, 0.9));
        let mut trainer = GraphTrainer::new(&model, CrossEntropyLoss::default(), &optimizer);
        let evaluation = if training.is_some() { None } else { Some(DType::BF16) };
        let mode = |dtype: Option<DType>| dtype.map(autocast);
        for _ in 0..3 {
            {
                let _mode = mode(training);
                trainer.step(&x, &y).unwrap();
                eager.zero_grad();
                CrossEntropyLoss::default().forward(&twin.forward(&x), &y).backward();
                eager.step();
            }
            let _mode = mode(evaluation);
            let expected = CrossEntropyLoss::default().forward(&twin.forward(&x), &y).item::<f64>();
            assert_eq!(trainer.evaluate(&x, &y).unwrap(), expected, "{training:?}");
        }
        let CacheStats { hits, misses, .. } = trainer.cache_stats();
        assert_eq!((hits, misses), (4, 2), "{training:?}");
        let before = bits(model.state_dict());
        let _mode = mode(evaluation);
        trainer.step_and_evaluate(&x, &y).unwrap();
        assert_ne!(bits(model.state_dict()), before);
    }
}

#[test]
fn a_model_without_parameters_is_rejected() {
    let (x, _) = batch(&[BATCH, 6], 1);
    let optimizer = Adam::try_new(ParameterList::default(), AdamOptions::default()).unwrap();
    let mut trainer = GraphTrainer::new(Relu, MseLoss::default(), &optimizer);
    let rejected = trainer.step(&x, &x).unwrap_err().to_string();
    assert!(rejected.contains("no parameters that require a gradient"), "{rejected}");
}

/// Fine-tuning: a part of the model is frozen at first.
#[test]
fn training_continues_after_unfreezing() {
    let (eager, x, y) = (mlp(), batch(&[BATCH, 6], 1).0, batch(&[BATCH, 6], 1).1);
    let model = eager.deep_copy().unwrap();
    let train = |model: &Sequential, step: &mut dyn FnMut()| {
        model[0].freeze();
        (0..2).for_each(|_| step());
        model[0].unfreeze();
        (0..2).for_each(|_| step());
        model[0].freeze();
        step();
        model[0].unfreeze();
        step();
    };
    let optimizer = sgd(&eager, 0.1, 0.0);
    train(&eager, &mut || {
        optimizer.zero_grad();
        CrossEntropyLoss::default().forward(&eager.forward(&x), &y).backward();
        optimizer.step();
    });
    let optimizer = sgd(&model, 0.1, 0.0);
    let mut trainer = GraphTrainer::new(&model, CrossEntropyLoss::default(), &optimizer);
    train(&model, &mut || trainer.step(&x, &y).unwrap());
    for ((name, a), b) in eager.named_parameters().into_iter().zip(model.parameters()) {
        let close = a.to_vec::<f32>().iter().zip(b.to_vec::<f32>()).all(|(a, b)| (a - b).abs() <= 1e-6);
        assert!(close, "{name} differs from eager training");
    }
}
