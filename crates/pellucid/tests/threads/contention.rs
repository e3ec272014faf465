//! Trains a model on one thread while other threads read it: no thread starves.

use crate::{exclusive, sgd};
use pellucid::nn::graph::{GraphTrainer, InferenceModel};
use pellucid::nn::loss::CrossEntropyLoss;
use pellucid::nn::{Linear, Relu, Sequential, sequential};
use pellucid::no_grad;
use pellucid::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

const READERS: usize = 8;

/// The number of training steps.
const STEPS: usize = 1000;

/// The maximum average number of passes per step, over all readers. A reader stops after this number of passes, so that
/// the test ends even if the trainer starves. On an idle machine, the number is 2; the bound allows for time slices in
/// which another process occupies the trainer's core. `borrow/waiting/tests.rs` tests the rule itself.
const PASSES: usize = 64;

/// Runs `STEPS` steps concurrently with readers, and checks the average number of passes per step. The check reads no
/// clock.
fn train_with_readers(mut step: impl FnMut(), reader: impl Fn() -> Box<dyn FnMut()> + Sync) {
    let (has_ended, begin) = (AtomicBool::new(false), Barrier::new(READERS + 1));
    let passes: [AtomicUsize; READERS] = Default::default();
    thread::scope(|scope| {
        for passes in &passes {
            let (reader, begin, has_ended) = (&reader, &begin, &has_ended);
            scope.spawn(move || {
                let mut pass = reader();
                begin.wait();
                while !has_ended.load(Ordering::Relaxed) && passes.load(Ordering::Relaxed) < PASSES * STEPS {
                    pass();
                    passes.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        begin.wait();
        (0..STEPS).for_each(|_| step());
        // The readers make progress during training, not only afterwards.
        let counts = passes.each_ref().map(|passes| passes.load(Ordering::Relaxed));
        has_ended.store(true, Ordering::Relaxed);
        let all: usize = counts.iter().sum();
        assert!(all <= PASSES * STEPS, "the trainer starves: {counts:?} passes in {STEPS} steps");
        assert!(counts.iter().all(|count| *count >= STEPS / 50), "a reader starves: {counts:?} passes");
    });
}

fn model() -> Sequential {
    sequential![Linear::new(64, 64), Relu, Linear::new(64, 10)]
}

#[test]
fn an_eager_trainer_and_eight_readers_progress() {
    let _guard = exclusive();
    let model = Arc::new(model());
    let (optimizer, (x, y)) = (sgd(&model), (Tensor::randn([16, 64], DType::F32), Tensor::zeros([16], DType::I64)));
    let step = || {
        optimizer.zero_grad();
        cross_entropy(&model.forward(&x), &y).backward();
        optimizer.step();
    };
    let reader = || {
        let (model, x) = (model.clone(), x.clone());
        Box::new(move || {
            let _off = no_grad();
            model.forward(&x);
        }) as Box<dyn FnMut()>
    };
    train_with_readers(step, reader);
}

#[test]
fn a_captured_trainer_and_eight_readers_progress() {
    let _guard = exclusive();
    let model = Arc::new(model());
    let (optimizer, (x, y)) = (sgd(&model), (Tensor::randn([16, 64], DType::F32), Tensor::zeros([16], DType::I64)));
    let mut trainer = GraphTrainer::new(model.clone(), CrossEntropyLoss::default(), optimizer);
    let inference = InferenceModel::new(model, &[16]);
    let reader = || {
        let (mut fork, x) = (inference.fork(), x.clone());
        Box::new(move || drop(fork.run(&x).unwrap())) as Box<dyn FnMut()>
    };
    train_with_readers(|| trainer.step(&x, &y).unwrap(), reader);
}
