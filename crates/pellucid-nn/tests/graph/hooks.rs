//! Hooks that are added and removed between launches: each launch computes what the eager model computes with the hooks
//! that are registered at that time.

use crate::models::*;
use pellucid_nn::graph::mirror::{make_plan_for_sequential, record_step_graph, try_rebind_grads};
use pellucid_nn::graph::*;
use pellucid_nn::loss::CrossEntropyLoss;
use pellucid_nn::optim::Optimizer;
use pellucid_nn::*;
use pellucid_tensor::{DType, GradOptions, HookHandle, Tensor, capture, grad, no_grad, ops};
use std::sync::{Arc, Mutex};

fn nested() -> Sequential {
    sequential![Linear::new(6, 16), sequential![Linear::new(16, 16), Tanh], Linear::new(16, CLASSES)]
}

fn two_models() -> [Sequential; 2] {
    [(); 2].map(|()| built(&("nested", nested, &[BATCH, 6])))
}

/// A registered hook, which is removed when the value is dropped.
enum Registered<'m> {
    Layer { _guard: hook::HookGuard<'m> },
    Parameter(Option<HookHandle>),
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        if let Registered::Parameter(handle) = self {
            handle.take().expect("a hook must be removed once").remove();
        }
    }
}

type Register = for<'m> fn(&'m Sequential) -> Vec<Registered<'m>>;

fn forward<'m>(model: &'m Sequential, name: &str, factor: f64) -> Registered<'m> {
    Registered::Layer { _guard: hook::on_forward(model, name, move |_, y| Some(y * factor)).unwrap() }
}

/// Hooks that change the outputs of a model.
const FORWARD: [(&str, Register); 4] = [
    ("forward", |m| vec![forward(m, "0", 0.5)]),
    ("pre-forward", |m| vec![Registered::Layer { _guard: hook::on_forward_pre(m, "2", |x| Some(x * 0.25)).unwrap() }]),
    ("nested layer", |m| vec![forward(m, "1.0", 0.0)]),
    ("two hooks", |m| vec![forward(m, "0", 2.0), forward(m, "0", -1.5)]),
];

/// Hooks that change gradients only.
const BACKWARD: [(&str, Register); 2] = [
    ("backward", |m| vec![Registered::Layer { _guard: hook::on_backward(m, "1", |g| Some(g * 3.0)).unwrap() }]),
    ("parameter", |m| vec![Registered::Parameter(Some(m.parameters()[0].register_hook(|g| Some(g * -0.5))))]),
];

/// Calls `launch` without hooks, and with each of the hooks on both models. `launch` compares a launch of the first
/// model with the eager computation of the second, and returns how often the step was recorded again. Hooks of the
/// second model do not count, and a removed hook leads back to the first recording.
fn check_hooks(models: &[Sequential; 2], hooks: &[(&str, Register)], mut launch: impl FnMut(&str) -> u64) {
    let [own, other] = models;
    for seed in 0..4 {
        assert_eq!(launch(&format!("without hooks, launch {seed}")), 0);
    }
    for (added, (name, register)) in hooks.iter().enumerate() {
        {
            let _eager = register(other);
            let _hooks = register(own);
            for _ in 0..3 {
                assert_eq!(launch(&format!("with {name}")), added as u64 + 1, "{name}");
            }
        }
        for _ in 0..2 {
            assert_eq!(launch(&format!("after {name}")), added as u64 + 1, "{name} was removed");
        }
    }
    // One of two hooks is removed before the other.
    let recorded = hooks.len() as u64;
    let launch = &mut |counts: u64| assert_eq!(launch("two hooks, one of them removed"), recorded + counts);
    let first = [forward(own, "0", 0.5), forward(other, "0", 0.5)];
    launch(1);
    {
        let _second = [forward(own, "1", 3.0), forward(other, "1", 3.0)];
        launch(2);
    }
    launch(2);
    drop(first);
    launch(2);
    // A hook of another model changes nothing.
    let foreign = nested();
    let _foreign = forward(&foreign, "0", 0.0);
    launch(2);
}

/// Runs an eager training step.
fn eager_step(model: &Sequential, optimizer: &dyn Optimizer, (x, y): &(Tensor, Tensor)) {
    optimizer.zero_grad();
    loss::cross_entropy(&model.forward(x), y).backward();
    optimizer.step();
}

#[test]
fn a_trainer_follows_changes_of_hooks() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let models = two_models();
    let [own, other] = &models;
    let hand = sgd(other, 0.1, 0.9);
    let mut trainer = GraphTrainer::new(own, CrossEntropyLoss::default(), sgd(own, 0.1, 0.9));
    let mut seed = 0;
    check_hooks(&models, &[&FORWARD[..], &BACKWARD[..]].concat(), |what| {
        seed += 1;
        let batch = batch(&[BATCH, 6], seed);
        trainer.step(&batch.0, &batch.1).unwrap();
        eager_step(other, &hand, &batch);
        assert_eq!(bits(own.state_dict()), bits(other.state_dict()), "{what}");
        // The first step is the first miss of a trainer.
        trainer.cache_stats().misses - 1
    });
}

#[test]
fn a_recorded_step_follows_changes_of_hooks() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let models = two_models();
    let [own, other] = &models;
    let (loss, optimizer, hand) = (CrossEntropyLoss::default(), sgd(own, 0.1, 0.9), sgd(other, 0.1, 0.9));
    let (x, y) = batch(&[BATCH, 6], 0);
    let plan = make_plan_for_sequential(own, &[BATCH, 6], None, None).unwrap();
    try_rebind_grads(own, &optimizer, &plan).unwrap();
    let mut step = record_step_graph(own, &loss, || optimizer.step(), &plan, &x, &y).unwrap();
    check_hooks(&models, &[&FORWARD[..], &BACKWARD[..]].concat(), |what| {
        step.launch().unwrap();
        eager_step(other, &hand, &(x.clone(), y.clone()));
        assert_eq!(bits(own.state_dict()), bits(other.state_dict()), "{what}");
        step.captured().unwrap().cache_stats().misses
    });
}

#[test]
fn an_evaluation_follows_changes_of_hooks() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let models = two_models();
    let [own, other] = &models;
    let mut trainer = GraphTrainer::new(own, CrossEntropyLoss::default(), sgd(own, 0.1, 0.9));
    let (x, y) = batch(&[BATCH, 6], 0);
    check_hooks(&models, &FORWARD, |what| {
        let expected = loss::cross_entropy(&other.forward(&x), &y).item::<f64>();
        assert_eq!(trainer.evaluate(&x, &y).unwrap(), expected, "{what}");
        trainer.cache_stats().misses - 1
    });
}

#[test]
fn inference_follows_changes_of_hooks() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let models = two_models();
    let [own, other] = &models;
    let mut inference = InferenceModel::new(own, &[BATCH]);
    let x = batch(&[BATCH, 6], 0).0;
    check_hooks(&models, &FORWARD, |what| {
        let _off = no_grad();
        let expected = other.forward(&x).to_vec::<f32>();
        assert_eq!(inference.run(&x).unwrap().to_vec::<f32>(), expected, "{what}");
        assert_eq!(inference.launch(&x).unwrap().to_vec::<f32>(0), expected, "{what}");
        inference.cache_stats().misses - 1
    });
}

#[test]
fn a_captured_call_follows_changes_of_hooks() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let models = two_models();
    let [own, other] = &models;
    let x = batch(&[BATCH, 6], 0).0;
    let mut step = capture(|inputs| own.forward(&inputs[0]), &[&x]).unwrap();
    check_hooks(&models, &FORWARD, |what| {
        assert_eq!(step.launch(&[&x]).unwrap().to_vec::<f32>(0), other.forward(&x).to_vec::<f32>(), "{what}");
        step.cache_stats().misses
    });
}

/// A functional call in a captured step runs the hooks of the model whose clone it calls.
#[test]
fn a_captured_functional_call_follows_changes_of_hooks() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let models = two_models();
    let [own, other] = &models;
    let x = batch(&[BATCH, 6], 0).0;
    let call = |x: &Tensor| functional_call(own, &own.state_dict(), |model| model.forward(x)).unwrap();
    let mut step = capture(|inputs| call(&inputs[0]), &[&x]).unwrap();
    check_hooks(&models, &FORWARD, |what| {
        assert_eq!(step.launch(&[&x]).unwrap().to_vec::<f32>(0), other.forward(&x).to_vec::<f32>(), "{what}");
        step.cache_stats().misses
    });
}

/// Hooks that are removed for ever do not keep their recordings.
#[test]
fn recordings_with_removed_hooks_are_dropped() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let (model, x) = (nested(), Tensor::ones([BATCH, 6], DType::F32));
    let mut step = capture(|inputs| model.forward(&inputs[0]), &[&x]).unwrap();
    for launch in 0..12 {
        let guard = forward(&model, "1", f64::from(launch));
        step.launch(&[&x]).unwrap();
        drop(guard);
        step.launch(&[&x]).unwrap();
        assert_eq!(step.cache_stats().len, 2);
    }
    assert_eq!(step.cache_stats().misses, 12);
}

/// A backward pass in a captured step depends on the hooks of tensors from outside the step: of leaves, and of results
/// that were computed before it.
#[test]
fn hooks_of_tensors_are_followed() {
    let weight = Tensor::from([1.0f32, -2.0, 3.0]).requires_grad_(true);
    let scaled = &weight * 2.0;
    let options = || GradOptions { retain_graph: true, ..Default::default() };
    let work = || grad(&[&(&scaled * &scaled).sum(..)], &[&weight], options()).unwrap().remove(0);
    let mut step = capture(|_| work(), &[]).unwrap();
    let mut compare = |misses: u64| {
        let expected = work().to_vec::<f32>();
        assert_eq!((step.launch(&[]).unwrap().to_vec::<f32>(0), step.cache_stats().misses), (expected, misses));
    };
    for _ in 0..3 {
        compare(0);
    }
    for (hooked, misses) in [(&weight, 1), (&scaled, 2)] {
        let handle = hooked.register_hook(|g| Some(g * 0.5));
        compare(misses);
        compare(misses);
        handle.remove();
        compare(misses);
    }
}

/// Targets are checked against the logits of the hooked model, at the first step and later.
#[test]
fn targets_are_checked_against_the_hooked_logits() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let x = batch(&[BATCH, 6], 1).0;
    let y = |class: usize| Tensor::full([BATCH], class as f64, DType::I64);
    for eager in [false, true] {
        let (model, loss) = (two_models()[0].clone(), CrossEntropyLoss::default());
        let (optimizer, before) = (sgd(&model, 0.1, 0.0), bits(model.state_dict()));
        let options = StepOptions { eager, ..Default::default() };
        // Two classes fewer.
        let guard = hook::on_forward(&model, "", |_, y| Some(y.narrow(1, 0, CLASSES - 2))).unwrap();
        let mut trainer = GraphTrainer::new(&model, &loss, &optimizer).with_options(options.clone());
        for _ in 0..2 {
            let rejected = trainer.step(&x, &y(CLASSES - 1));
            assert!(rejected.is_err());
            assert_eq!(bits(model.state_dict()), before);
            trainer.prepare(&x).unwrap();
        }
        drop(guard);
        // Two classes more, and an input that only the hook accepts.
        let more = |y: &Tensor| ops::concatenate(&[y, &y.narrow(1, 0, 2)], 1).unwrap();
        let _more = hook::on_forward(&model, "", move |_, y| Some(more(y))).unwrap();
        let _flat = hook::on_forward_pre(&model, "", |x| Some(x.reshape([-1, 6]))).unwrap();
        let mut trainer = GraphTrainer::new(&model, &loss, &optimizer).with_options(options);
        let (x, y) = (x.reshape([BATCH, 2, 3]), y(CLASSES + 1));
        trainer.step(&x, &y).unwrap();
        assert_ne!(bits(model.state_dict()), before);
        assert!(trainer.loss().unwrap().is_finite() && trainer.evaluate(&x, &y).unwrap().is_finite());
    }
}

/// A hook may read values in an eager step.
#[test]
fn a_hook_of_an_eager_step_may_read_values() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let model = two_models()[0].clone();
    let options = StepOptions { eager: true, ..Default::default() };
    let optimizer = sgd(&model, 0.1, 0.0);
    let mut trainer = GraphTrainer::new(&model, CrossEntropyLoss::default(), &optimizer).with_options(options);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = seen.clone();
    let _guard = hook::on_forward(&model, "0", move |_, y| {
        kept.lock().unwrap().push(y.mean(..).item::<f32>());
        None
    });
    let (x, y) = batch(&[BATCH, 6], 1);
    (0..2).for_each(|_| trainer.step(&x, &y).unwrap());
    assert_eq!(seen.lock().unwrap().len(), 2);
}
