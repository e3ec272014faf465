//! The numbers of launches of deferred work, beside those of burn 0.22.1 (wgpu, with fusion) for the same work.

use crate::toy;
use pellucid::nn::optim::{Adam, AdamOptions, Optimizer};
use pellucid::nn::{Conv2d, Flatten, LayerNorm, MaxPool2d};
use pellucid::prelude::*;
use pellucid::{deferred_stats, eval, ops};

/// Returns the number of launches of the third call of `step`, on a device that defers its kernels.
fn launches(step: &dyn Fn() -> Vec<Tensor>) -> u64 {
    let run = || eval(&step()).unwrap();
    (0..2).for_each(|_| run());
    let before = deferred_stats().launches;
    run();
    deferred_stats().launches - before
}

fn training_step(model: &Sequential, optimizer: &dyn Optimizer, x: &Tensor) -> u64 {
    let y = Tensor::new((0..x.shape()[0] as i64).map(|i| i % 10).collect::<Vec<_>>(), [x.shape()[0]]);
    let y = y.to(x.device()).unwrap();
    model.to(x.device()).unwrap();
    launches(&|| {
        optimizer.zero_grad();
        let loss = ops::cross_entropy(&model.forward(x), &y, Default::default()).unwrap();
        loss.backward();
        optimizer.step();
        vec![loss.detach()]
    })
}

/// The bounds are the measured numbers: a change that needs more launches fails.
#[test]
fn deferred_steps_need_few_launches() {
    let wave = |shape: &[usize]| {
        let values: Vec<f32> = (0..shape.iter().product()).map(|i| (i as f32 * 0.37).sin()).collect();
        Tensor::new(values, shape).to(toy(1)).unwrap()
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
    norm.to(toy(1)).unwrap();
    let chain = || {
        let x = x.detach().requires_grad_(true);
        let (a, half) = (x.tanh(), &x * 0.5);
        let y = ((((&a * &x + &a).exp().neg().sigmoid() - &half).abs() + 1e-3).sqrt() * &x).mean(..);
        y.backward();
        vec![y.detach(), x.grad().unwrap()]
    };
    // The name, the launches here, and the launches of burn.
    let expected = [
        ("MLP", 15, 37),
        ("CNN", 32, 76),
        ("chain of ten with gradient", 2, 3),
        ("softmax", 1, 4),
        ("layer norm", 1, 3),
    ];
    let found = [
        training_step(&mlp, &sgd, &wave(&[64, 784])),
        training_step(&cnn, &adam, &wave(&[4, 1, 28, 28])),
        launches(&chain),
        launches(&|| vec![x.softmax(-1)]),
        launches(&|| vec![norm.forward(&x).detach()]),
    ];
    for ((name, ours, of_burn), found) in expected.iter().zip(found) {
        assert!(ours <= of_burn, "{name}");
        assert!(found <= *ours, "{name} takes {found} launches instead of {ours}");
    }
}
