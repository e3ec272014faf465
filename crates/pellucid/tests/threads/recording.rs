//! Trainers that record steps of a model while other threads use it.

use crate::exclusive;
use pellucid::nn::graph::GraphTrainer;
use pellucid::nn::loss::CrossEntropyLoss;
use pellucid::nn::optim::{AdamW, AdamWOptions, Sgd, SgdOptions, clip_grad_norm};
use pellucid::nn::{Linear, Relu, Sequential, sequential};
use pellucid::prelude::*;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

type Trainer = GraphTrainer<'static, Sequential, Sgd>;

fn model() -> Sequential {
    sequential![Linear::new(16, 32), Relu, Linear::new(32, 4)]
}

fn trainer(model: &Sequential) -> Trainer {
    let sgd = Sgd::new(model.parameters(), SgdOptions { lr: 0.01, ..Default::default() });
    GraphTrainer::new(model.clone(), CrossEntropyLoss::default(), sgd)
}

fn batch(rows: usize) -> (Tensor, Tensor) {
    (Tensor::randn([rows, 16], DType::F32), Tensor::zeros([rows], DType::I64))
}

fn is_finite(model: &Sequential) -> bool {
    model.parameters().iter().all(|p| p.isfinite().all(..).item::<bool>())
}

/// Both trainers record their first steps at the same time, and then launch them.
#[test]
fn two_trainers_record_over_one_model() {
    let _guard = exclusive();
    let (x, y) = batch(32);
    for _ in 0..40 {
        let (model, begin) = (model(), Barrier::new(2));
        let before = model.parameters()[0].to_vec::<f32>();
        let train = || -> Result<()> {
            let mut trainer = trainer(&model);
            begin.wait();
            (0..6).try_for_each(|_| trainer.step(&x, &y))
        };
        thread::scope(|scope| {
            let threads = [scope.spawn(train), scope.spawn(train)];
            threads.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
        });
        assert!(is_finite(&model));
        assert_ne!(model.parameters()[0].to_vec::<f32>(), before, "the steps must train the model");
    }
}

/// A trainer records steps for new shapes while another thread uses the gradients of its model.
#[test]
fn a_trainer_records_beside_uses_of_the_gradients() {
    type Use = fn(&Sequential) -> Result<()>;
    let uses: [(&str, Use); 5] = [
        ("zero_grad", |model| {
            model.zero_grad();
            Ok(())
        }),
        ("grad", |model| {
            let read = |p: &Parameter| p.grad().map_or(Ok(vec![]), |gradient| gradient.try_to_vec::<f32>());
            model.parameters().iter().try_for_each(|p| read(p).map(drop))
        }),
        ("clip_grad_norm", |model| clip_grad_norm(&model.parameters(), 1e9)?.try_item::<f32>().map(drop)),
        ("set_grad", |model| {
            model.parameters().iter().try_for_each(|p| p.try_set_grad(Some(ops::zeros_like(p.tensor())?)))
        }),
        ("step", |model| {
            let options = AdamWOptions { lr: 0.0, weight_decay: 0.0, ..Default::default() };
            AdamW::new(model.parameters(), options).try_step()
        }),
    ];
    let _guard = exclusive();
    for (name, use_gradients) in uses {
        let (model, has_ended) = (model(), AtomicBool::new(false));
        let mut trainer = trainer(&model);
        // Norms and optimizers reject a model without any gradient.
        let (x, y) = batch(41);
        trainer.step(&x, &y).unwrap();
        thread::scope(|scope| {
            let other = scope.spawn(|| {
                while !has_ended.load(Ordering::Relaxed) {
                    use_gradients(&model).unwrap_or_else(|error| panic!("{name}: {error}"));
                }
            });
            let steps = (1..=40).cycle().take(80).try_for_each(|rows| {
                let (x, y) = batch(rows);
                trainer.step(&x, &y)
            });
            has_ended.store(true, Ordering::Relaxed);
            other.join().unwrap();
            steps.unwrap_or_else(|error| panic!("a step together with {name}: {error}"));
        });
        assert!(is_finite(&model), "{name}");
    }
}

/// A trainer records while another one trains the same weights.
#[test]
fn a_trainer_records_beside_a_writer() {
    let _guard = exclusive();
    let (model, has_ended) = (model(), AtomicBool::new(false));
    let (x, y) = batch(32);
    let mut first = trainer(&model);
    first.step(&x, &y).unwrap();
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            while !has_ended.load(Ordering::Relaxed) {
                first.step(&x, &y).unwrap();
            }
        });
        let steps = (0..40).try_for_each(|_| {
            let mut second = trainer(&model);
            (0..4).try_for_each(|_| second.step(&x, &y))
        });
        has_ended.store(true, Ordering::Relaxed);
        writer.join().unwrap();
        steps.unwrap();
    });
    assert!(is_finite(&model));
}
