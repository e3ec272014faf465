//! The host CPU time per dispatch of training steps on a GPU, deferred and captured: `cargo run --release -p
//! pellucid-bench --features wgpu --bin host_time -- wgpu:0`.
//!
//! A step reads no value. Only the CPU time of the calling thread counts, as reported by Linux: waits for the device
//! and the threads of a software adapter do not count. The models are small, because a software adapter that computes
//! large products evicts the program and its data from the CPU caches.

#![allow(clippy::print_stdout, reason = "this program prints its results to standard output")]

use pellucid::nn::optim::{Adam, AdamOptions, Optimizer};
use pellucid::nn::{Conv2d, Flatten, MaxPool2d};
use pellucid::prelude::*;
use pellucid::{capture, flush, ops};

/// The number of measured steps of a round.
const STEPS: u32 = 50;

/// Returns the CPU time of the calling thread in nanoseconds.
fn thread_time() -> u64 {
    let statistics = std::fs::read_to_string("/proc/thread-self/schedstat").expect("the measurement must run on Linux");
    statistics.split(' ').next().and_then(|time| time.parse().ok()).expect("the first number must be the time")
}

fn dispatches(device: Device) -> u64 {
    device.counters().iter().find(|(name, _)| *name == "dispatches").map_or(0, |(_, count)| *count)
}

/// Prints the minimum time of a step over all rounds, and its dispatches.
fn measure(name: &str, device: Device, mut step: impl FnMut()) {
    (0..5).for_each(|_| step());
    let mut round = || {
        device.synchronize().expect("the device must work");
        let before = (thread_time(), dispatches(device));
        (0..STEPS).for_each(|_| step());
        let (time, count) = (thread_time() - before.0, dispatches(device) - before.1);
        (time as f64 / 1e3 / f64::from(STEPS), count as f64 / f64::from(STEPS))
    };
    let rounds: Vec<(f64, f64)> = (0..40).map(|_| round()).collect();
    let (time, count) = rounds.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)).expect("there must be rounds");
    println!("{name}: {time:.0} µs a step, {count} dispatches, {:.2} µs for each", time / count);
}

fn measure_training(name: &str, model: &Sequential, optimizer: &dyn Optimizer, x: &Tensor) {
    let device = x.device();
    let y = Tensor::new((0..x.shape()[0] as i64).map(|i| i % 10).collect::<Vec<_>>(), [x.shape()[0]]);
    let y = y.to(device);
    model.to_(device).expect("the model must fit");
    let step = |x: &Tensor, y: &Tensor| {
        optimizer.zero_grad();
        let loss = ops::cross_entropy(&model.forward(x), y, Default::default()).expect("the classes must fit");
        loss.backward();
        optimizer.step();
        loss.detach()
    };
    measure(&format!("{name}, deferred"), device, || drop(step(x, &y)));
    flush().expect("the kernels must run");
    let mut captured =
        capture(|inputs: &[Tensor]| step(&inputs[0], &inputs[1]), &[x, &y]).expect("a step must be captured");
    measure(&format!("{name}, captured"), device, || {
        captured.launch(&[x, &y]).expect("the step must run");
    });
}

fn main() {
    let device: Device =
        std::env::args().nth(1).unwrap_or("wgpu:0".into()).parse().expect("the argument must be the name of a device");
    println!("{device}: {}", device.adapter());
    let wave = |shape: &[usize]| {
        let values: Vec<f32> = (0..shape.iter().product()).map(|i| (i as f32 * 0.37).sin()).collect();
        Tensor::new(values, shape).to(device)
    };
    let mlp = sequential![Linear::new(16, 16), Relu, Linear::new(16, 16), Relu, Linear::new(16, 10)];
    let sgd = Sgd::new(mlp.parameters(), SgdOptions { lr: 0.1, ..Default::default() });
    measure_training("MLP of three layers, SGD", &mlp, &sgd, &wave(&[4, 16]));
    let cnn = sequential![
        Conv2d::new(1, 4, 3).padding(1),
        Relu,
        MaxPool2d::new(2),
        Conv2d::new(4, 4, 3).padding(1),
        Relu,
        MaxPool2d::new(2),
        Flatten::new(),
        Linear::new(196, 16),
        Relu,
        Linear::new(16, 10),
    ];
    let adam = Adam::new(cnn.parameters(), AdamOptions::default());
    measure_training("CNN of two convolutions and two linear layers, Adam", &cnn, &adam, &wave(&[4, 1, 28, 28]));
}
