//! W4 and W11: training steps of a small convolutional network, and of a ResNet-18 for small images.

use crate::harness::{Work, Workload};
use crate::training::Training;
use pellucid::nn::optim::{Adam, AdamOptions, Sgd, SgdOptions};
use pellucid::nn::{AdaptiveAvgPool2d, BatchNorm2d, Conv2d, MaxPool2d};
use pellucid::prelude::*;

pub(crate) fn workloads() -> Vec<Workload> {
    vec![
        Workload::new("W4", "", || digits().eager()),
        Workload::new("W4", "captured", || digits().captured()),
        Workload::new("W11", "", || resnet().eager()),
        Workload::new("W11", "captured", || resnet().captured()),
    ]
}

/// A network of two convolutions with pools and two linear layers.
fn digits() -> Training {
    let batch = 64;
    let model = sequential![
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
    ];
    let options = AdamOptions { lr: 1e-3, ..Default::default() };
    let optimizer = Adam::new(model.parameters(), options);
    // Forward, weight gradients, and input gradients except for the first layer.
    let (first, others) = (28 * 28 * 32 * 9, 14 * 14 * 64 * 32 * 9 + 64 * 7 * 7 * 128 + 128 * 10);
    let work = Work::Flops((2 * batch * (2 * first + 3 * others)) as f64);
    let x = Tensor::randn([batch, 1, 28, 28], DType::F32);
    let target = Tensor::randint(0, 10, [batch]);
    Training::new(work, (x, target), Box::new(optimizer), move |x, target| cross_entropy(&model.forward(x), target))
}

/// A residual block: two convolutions and a shortcut (He et al. 2016).
#[derive(Clone, Module)]
struct Block {
    conv1: Conv2d,
    norm1: BatchNorm2d,
    conv2: Conv2d,
    norm2: BatchNorm2d,
    shortcut: Option<(Conv2d, BatchNorm2d)>,
}

impl Block {
    fn new(inputs: usize, outputs: usize, stride: usize) -> Block {
        let same = stride == 1 && inputs == outputs;
        let shortcut = || (Conv2d::new(inputs, outputs, 1).stride(stride).without_bias(), BatchNorm2d::new(outputs));
        Block {
            conv1: Conv2d::new(inputs, outputs, 3).stride(stride).padding(1).without_bias(),
            norm1: BatchNorm2d::new(outputs),
            conv2: Conv2d::new(outputs, outputs, 3).padding(1).without_bias(),
            norm2: BatchNorm2d::new(outputs),
            shortcut: (!same).then(shortcut),
        }
    }
}

impl Layer for Block {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.norm1.try_forward(&self.conv1.try_forward(x)?)?.relu();
        let y = self.norm2.try_forward(&self.conv2.try_forward(&y)?)?;
        Ok((y + self.shortcut.try_forward(x)?).relu())
    }
}

fn resnet() -> Training {
    let (batch, side) = (16, 32);
    let stages = [(64, 1), (128, 2), (256, 2), (512, 2)];
    let mut model = sequential![Conv2d::new(3, 64, 3).padding(1).without_bias(), BatchNorm2d::new(64), Relu];
    let mut inputs = 64;
    for (outputs, stride) in stages {
        model.push(Block::new(inputs, outputs, stride));
        model.push(Block::new(outputs, outputs, 1));
        inputs = outputs;
    }
    model.push(AdaptiveAvgPool2d::new(1));
    model.push(Flatten::new());
    model.push(Linear::new(inputs, 10));
    let options = SgdOptions { lr: 0.1, momentum: 0.9, ..Default::default() };
    let optimizer = Sgd::new(model.parameters(), options);
    // The forward pass, and as much for each kind of gradient; the first layer needs no input gradient.
    let shape = [batch, 3, side, side];
    let forward = model.summary(&shape).expect("the images have the expected shape").work.flops;
    let first = 2 * batch * side * side * 64 * 3 * 9;
    let work = Work::Flops((3 * forward - first as u64) as f64);
    let (x, target) = (Tensor::randn(shape, DType::F32), Tensor::randint(0, 10, [batch]));
    Training::new(work, (x, target), Box::new(optimizer), move |x, target| cross_entropy(&model.forward(x), target))
}
