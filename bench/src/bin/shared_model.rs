//! The step rate of a trainer whose model other threads read: alone, and with 1 to 8 readers, eager and captured. Then
//! the rate of a reader, with a trainer that pauses between its steps. `cargo run --release -p pellucid-bench --bin
//! shared_model`.

#![allow(clippy::print_stdout, reason = "this program prints its results to standard output")]

use pellucid::nn::graph::{GraphTrainer, InferenceModel};
use pellucid::nn::loss::CrossEntropyLoss;
use pellucid::no_grad;
use pellucid::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The duration of each run.
const TIME: Duration = Duration::from_secs(2);

/// The number of readers of each run, and the pause of the trainer after each step in microseconds.
const RUNS: [(usize, u64); 8] = [(0, 0), (1, 0), (2, 0), (4, 0), (8, 0), (1, 200), (1, 500), (1, 10_000)];

/// Prints the number of steps of the trainer and the number of passes of the readers in each run.
fn measure(name: &str, step: &mut dyn FnMut(), reader: &(dyn Fn() -> Box<dyn FnMut()> + Sync)) {
    let mut alone = None;
    for (readers, pause) in RUNS {
        let has_ended = AtomicBool::new(false);
        let passes: Vec<AtomicU64> = (0..readers).map(|_| AtomicU64::new(0)).collect();
        let mut steps = 0u64;
        thread::scope(|scope| {
            for passes in &passes {
                let has_ended = &has_ended;
                scope.spawn(move || {
                    let mut pass = reader();
                    while !has_ended.load(Ordering::Relaxed) {
                        pass();
                        passes.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let start = Instant::now();
            while start.elapsed() < TIME {
                step();
                steps += 1;
                if pause > 0 {
                    thread::sleep(Duration::from_micros(pause));
                }
            }
            has_ended.store(true, Ordering::Relaxed);
        });
        let share = steps as f64 / *alone.get_or_insert(steps as f64);
        let passes: Vec<u64> = passes.iter().map(|passes| passes.load(Ordering::Relaxed)).collect();
        println!(
            "{name}, {readers} readers, pauses of {pause} us: {steps} steps ({:.0} %), passes {passes:?}",
            100.0 * share
        );
    }
}

fn main() -> Result<()> {
    let model = Arc::new(sequential![Linear::new(64, 64), Relu, Linear::new(64, 10)]);
    let optimizer = Sgd::new(model.parameters(), SgdOptions { lr: 1e-3, ..Default::default() });
    let (x, y) = (Tensor::randn([16, 64], DType::F32), Tensor::randint(0, 10, [16]));
    let mut step = || {
        optimizer.zero_grad();
        cross_entropy(&model.forward(&x), &y).backward();
        optimizer.step();
    };
    measure("eager", &mut step, &|| {
        let (model, x) = (model.clone(), x.clone());
        Box::new(move || {
            let _off = no_grad();
            model.forward(&x);
        })
    });
    let mut trainer = GraphTrainer::new(model.clone(), CrossEntropyLoss::default(), optimizer);
    let inference = InferenceModel::new(model.clone(), &[16]);
    let mut step = || trainer.step(&x, &y).expect("a step must run");
    measure("captured", &mut step, &|| {
        let (mut fork, x) = (inference.fork(), x.clone());
        Box::new(move || drop(fork.run(&x).expect("a batch must run")))
    });
    Ok(())
}
