//! The overhead of `Trainer` over a hand-written captured loop: an MLP of 784, 512 and 10 features, AdamW, batches of
//! 64 on one thread.
//!
//! `cargo run --release -p pellucid-bench --bin trainer` alternates both for 21 epochs, and prints the lower quartile
//! of the microseconds per step of each, and the ratio.
#![allow(clippy::print_stdout, reason = "the program prints its results")]

use pellucid::nn::graph::GraphTrainer;
use pellucid::nn::loss::CrossEntropyLoss;
use pellucid::prelude::*;
use std::time::Instant;

const SAMPLES: usize = 64 * 64;
const BATCH: usize = 64;
const ROUNDS: usize = 21;

fn model() -> Sequential {
    manual_seed(0);
    sequential![Linear::new(784, 512), Relu, Linear::new(512, 10)]
}

fn adamw(model: &Sequential) -> AdamW {
    AdamW::new(model.parameters(), AdamWOptions::default())
}

/// Returns the microseconds per step of an epoch.
fn step_time(epoch: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    epoch()?;
    Ok(start.elapsed().as_secs_f64() * 1e6 / (SAMPLES / BATCH) as f64)
}

fn lower_quartile(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 4]
}

fn main() -> Result<()> {
    let (x, y) = (Tensor::rand([SAMPLES, 784], DType::F32), Tensor::randint(0, 10, [SAMPLES]));
    let (own, other) = (model(), model());
    let mut batches = Batches::new(&[&x, &y], BATCH).shuffled(0);
    let mut captured = GraphTrainer::new(&own, CrossEntropyLoss::default(), adamw(&own));
    let mut same = batches.clone();
    let mut trainer = Trainer::new(&other, CrossEntropyLoss::default(), adamw(&other)).epochs(0).quiet(true);
    let (mut by_hand, mut by_trainer) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let hand = step_time(|| {
            let mut sum = 0.0;
            for [x, y] in batches.epoch() {
                captured.step(&x, &y)?;
                sum += captured.loss()?;
            }
            assert!(sum.is_finite());
            Ok(())
        })?;
        trainer = trainer.epochs(round + 1);
        let trained = step_time(|| trainer.fit(&mut same, None).map(drop))?;
        // The first round records the step.
        if round > 0 {
            by_hand.push(hand);
            by_trainer.push(trained);
        }
    }
    let (hand, trained) = (lower_quartile(by_hand), lower_quartile(by_trainer));
    println!("by hand {hand:.1} us, Trainer {trained:.1} us, ratio {:.3}", trained / hand);
    Ok(())
}
