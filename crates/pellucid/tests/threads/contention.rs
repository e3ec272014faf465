//! A model that one thread trains while others read it: none of them starves.

use crate::{alone, batch, sgd};
use pellucid::nn::graph::{GraphTrainer, InferenceModel};
use pellucid::nn::loss::CrossEntropyLoss;
use pellucid::nn::{Linear, Relu, Sequential, sequential};
use pellucid::no_grad;
use pellucid::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

const READERS: usize = 8;

/// The number of steps that the trainer takes.
const STEPS: usize = 500;

/// The number of passes after which a reader gives up, so that the test ends although the trainer starves.
const PASSES: usize = 20 * STEPS;

/// Runs `STEPS` steps beside readers and bounds the passes of the readers in that time. No clock is read.
///
/// On two cores, a trainer keeps a tenth of its rate if each reader has one to two passes per step on average, and two
/// fifths if each has a fifth of a pass. The bound, one pass, separates both; it is for all readers together, since the
/// operating system may prefer some.
fn train_beside_readers(mut step: impl FnMut(), reader: impl Fn() -> Box<dyn FnMut()> + Sync) {
    let (has_ended, begin) = (AtomicBool::new(false), Barrier::new(READERS + 1));
    let passes: [AtomicUsize; READERS] = Default::default();
    thread::scope(|scope| {
        for passes in &passes {
            let (reader, begin, has_ended) = (&reader, &begin, &has_ended);
            scope.spawn(move || {
                let mut pass = reader();
                begin.wait();
                while !has_ended.load(Ordering::Relaxed) && passes.load(Ordering::Relaxed) < PASSES {
                    pass();
                    passes.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        begin.wait();
        (0..STEPS).for_each(|_| step());
        // The readers get on while the trainer works, and not only after it.
        let counts = passes.each_ref().map(|passes| passes.load(Ordering::Relaxed));
        has_ended.store(true, Ordering::Relaxed);
        let all: usize = counts.iter().sum();
        eprintln!("TMP {all} {counts:?}");
        assert!(all <= READERS * STEPS, "the trainer starves: {counts:?} passes in {STEPS} steps");
        assert!(counts.iter().all(|count| *count >= STEPS / 50), "a reader starves: {counts:?} passes");
    });
}

fn model() -> Sequential {
    sequential![Linear::new(8, 16), Relu, Linear::new(16, 3)]
}

#[test]
fn an_eager_trainer_and_eight_readers_progress() {
    let _alone = alone();
    let model = Arc::new(model());
    let (optimizer, (x, y)) = (sgd(&model), batch(4));
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
    train_beside_readers(step, reader);
}

#[test]
fn a_captured_trainer_and_eight_readers_progress() {
    let _alone = alone();
    let model = Arc::new(model());
    let (optimizer, (x, y)) = (sgd(&model), batch(4));
    let mut trainer = GraphTrainer::new(model.clone(), CrossEntropyLoss::default(), optimizer);
    let inference = InferenceModel::new(model, &[4]).unwrap();
    let reader = || {
        let (mut fork, x) = (inference.fork(), x.clone());
        Box::new(move || drop(fork.run(&x).unwrap())) as Box<dyn FnMut()>
    };
    train_beside_readers(|| trainer.step(&x, &y).unwrap(), reader);
}
