//! W4 and W11: training steps of a small convolutional network, and of a ResNet-18 for small images.

use crate::harness::{Work, Workload};
use crate::place::on_device;
use crate::training::Training;
use pellucid::nn::optim::{Adam, AdamOptions, Sgd, SgdOptions};
use pellucid::nn::{Conv2d, MaxPool2d};
use pellucid::prelude::*;
use pellucid_bench::resnet::resnet18;

pub(crate) fn workloads() -> Vec<Workload> {
    vec![
        Workload::new("W4", "", || digits().eager()),
        Workload::new("W4", "captured", || digits().captured()),
        Workload::new("W4", "bf16", || digits().in_bf16().eager()),
        Workload::new("W4", "captured-bf16", || digits().in_bf16().captured()),
        Workload::new("W11", "", || resnet().eager()),
        Workload::new("W11", "captured", || resnet().captured()),
        Workload::new("W11", "bf16", || resnet().in_bf16().eager()),
        Workload::new("W11", "captured-bf16", || resnet().in_bf16().captured()),
    ]
}

/// Returns the training of a network with two convolutions, pooling and two linear layers.
fn digits() -> Training {
    let batch = 64;
    let model = on_device(sequential![
        Conv2d::new(1, 32, 3).padding(1),
        Relu,
        MaxPool2d::new(2),
        Conv2d::new(32, 64, 3).padding(1),
        Relu,
        MaxPool2d::new(2),
        Flatten::new(),
        Linear::new(64 * 7 * 7, 128),
        Relu,
        Linear::new(128, 10),
    ]);
    let options = AdamOptions { lr: 1e-3, ..Default::default() };
    let optimizer = Adam::new(model.parameters(), options);
    // The work of the forward pass, of weight gradients, and of input gradients except for the first layer.
    let (first, others) = (28 * 28 * 32 * 9, 14 * 14 * 64 * 32 * 9 + 64 * 7 * 7 * 128 + 128 * 10);
    let work = Work::Flops((2 * batch * (2 * first + 3 * others)) as f64);
    let x = Tensor::randn([batch, 1, 28, 28], DType::F32);
    let target = Tensor::randint(0, 10, [batch]);
    Training::new(work, (x, target), Box::new(optimizer), move |x, target| cross_entropy(&model.forward(x), target))
}

fn resnet() -> Training {
    let (batch, side) = (16, 32);
    let model = on_device(resnet18());
    let options = SgdOptions { lr: 0.1, momentum: 0.9, ..Default::default() };
    let optimizer = Sgd::new(model.parameters(), options);
    // Each kind of gradient costs as much as the forward pass; the first layer needs no input gradient.
    let shape = [batch, 3, side, side];
    let forward = model.summary(&shape).expect("the images must have the expected shape").work.flops;
    let first = 2 * batch * side * side * 64 * 3 * 9;
    let work = Work::Flops((3 * forward - first as u64) as f64);
    let (x, target) = (Tensor::randn(shape, DType::F32), Tensor::randint(0, 10, [batch]));
    Training::new(work, (x, target), Box::new(optimizer), move |x, target| cross_entropy(&model.forward(x), target))
}
