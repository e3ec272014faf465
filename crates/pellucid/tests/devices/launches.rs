//! The numbers of launches of deferred work, beside those of burn 0.22.1 (wgpu, with fusion) for the same work.

use crate::toy;
use pellucid::nn::optim::{Adam, AdamOptions, Optimizer};
use pellucid::nn::{Conv2d, Flatten, LayerNorm, MaxPool2d};
use pellucid::prelude::*;
use pellucid::{deferred_stats, eval, ops};

/// Returns how much `count` grows in the third call of `step`, on a device that defers its kernels.
fn counted(count: &dyn Fn() -> u64, step: &dyn Fn() -> Vec<Tensor>) -> u64 {
    let run = || eval(&step()).unwrap();
    (0..2).for_each(|_| run());
    let before = count();
    run();
    count() - before
}

fn training_step(count: &dyn Fn() -> u64, model: &Sequential, optimizer: &dyn Optimizer, x: &Tensor) -> u64 {
    let y = Tensor::new((0..x.shape()[0] as i64).map(|i| i % 10).collect::<Vec<_>>(), [x.shape()[0]]);
    let y = y.to(x.device()).unwrap();
    model.to(x.device()).unwrap();
    counted(count, &|| {
        optimizer.zero_grad();
        let loss = ops::cross_entropy(&model.forward(x), &y, Default::default()).unwrap();
        loss.backward();
        optimizer.step();
        vec![loss.detach()]
    })
}

/// The launches, dispatches on a GPU, and launches of burn for the same work. The bounds are the measured numbers: a change
/// that needs more fails.
const WORK: [(&str, u64, u64, u64); 5] = [
    ("MLP", 15, 16, 37),
    ("CNN", 32, 57, 76),
    ("chain of ten with gradient", 2, 3, 3),
    ("softmax", 1, 1, 4),
    ("layer norm", 1, 1, 3),
];

/// Returns how much `count` grows in one run of each workload on a device.
fn count_work(device: Device, count: &dyn Fn() -> u64) -> [u64; 5] {
    let wave = |shape: &[usize]| {
        let values: Vec<f32> = (0..shape.iter().product()).map(|i| (i as f32 * 0.37).sin()).collect();
        Tensor::new(values, shape).to(device).unwrap()
    };
    let mlp = sequential![Linear::new(784, 256), Relu, Linear::new(256, 128), Relu, Linear::new(128, 10)];
    let sgd = Sgd::new(mlp.parameters(), SgdOptions { lr: 0.1, ..Default::default() }).unwrap();
    let cnn = sequential![
        Conv2d::new(1, 32, 3).padding(1),
        Relu,
        MaxPool2d::new(2),
        Conv2d::new(32, 64, 3).padding(1),
        Relu,
        MaxPool2d::new(2),
        Flatten::new(),
        Linear::new(3136, 128),
        Relu,
        Linear::new(128, 10),
    ];
    let adam = Adam::new(cnn.parameters(), AdamOptions::default()).unwrap();
    let x = wave(&[16, 32]);
    let norm = LayerNorm::new(32);
    norm.to(device).unwrap();
    let chain = || {
        let x = x.detach().requires_grad_(true);
        let (a, half) = (x.tanh(), &x * 0.5);
        let y = ((((&a * &x + &a).exp().neg().sigmoid() - &half).abs() + 1e-3).sqrt() * &x).mean(..);
        y.backward();
        vec![y.detach(), x.grad().unwrap()]
    };
    [
        training_step(count, &mlp, &sgd, &wave(&[64, 784])),
        training_step(count, &cnn, &adam, &wave(&[4, 1, 28, 28])),
        counted(count, &chain),
        counted(count, &|| vec![x.softmax(-1)]),
        counted(count, &|| vec![norm.forward(&x).detach()]),
    ]
}

#[test]
fn deferred_steps_need_few_launches() {
    let found = count_work(toy(1), &|| deferred_stats().launches);
    for ((name, launches, _, of_burn), found) in WORK.iter().zip(found) {
        assert!(launches <= of_burn, "{name}");
        assert!(found <= *launches, "{name} takes {found} launches instead of {launches}");
    }
}

/// A launch may be several dispatches.
#[cfg(feature = "wgpu")]
#[test]
fn deferred_steps_need_few_dispatches_on_a_gpu() {
    // A device of its own, because other tests dispatch too.
    let Ok(device) = "wgpu:3".parse::<Device>() else { return };
    let dispatches = || {
        let counters = device.counters();
        counters.iter().find(|(name, _)| *name == "dispatches").expect("the device must count dispatches").1
    };
    let found = count_work(device, &dispatches);
    for ((name, _, dispatches, _), found) in WORK.iter().zip(found) {
        assert!(found <= *dispatches, "{name} takes {found} dispatches instead of {dispatches}: {found:?}");
    }
}
