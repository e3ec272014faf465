//! ResNet-18 for images of 32×32 pixels (He et al. 2016).

use pellucid::nn::{AdaptiveAvgPool2d, BatchNorm2d, Conv2d};
use pellucid::prelude::*;

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
        let shortcut = || (Conv2d::new(inputs, outputs, 1).stride(stride).bias(false), BatchNorm2d::new(outputs));
        Block {
            conv1: Conv2d::new(inputs, outputs, 3).stride(stride).padding(1).bias(false),
            norm1: BatchNorm2d::new(outputs),
            conv2: Conv2d::new(outputs, outputs, 3).padding(1).bias(false),
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

/// Returns a ResNet-18 for images `[N, 3, 32, 32]` and 10 classes. The first convolution has stride 1.
pub fn resnet18() -> Sequential {
    let stages = [(64, 1), (128, 2), (256, 2), (512, 2)];
    let mut model = sequential![Conv2d::new(3, 64, 3).padding(1).bias(false), BatchNorm2d::new(64), Relu];
    let mut inputs = 64;
    for (outputs, stride) in stages {
        model.push(Block::new(inputs, outputs, stride));
        model.push(Block::new(outputs, outputs, 1));
        inputs = outputs;
    }
    model.push(AdaptiveAvgPool2d::new(1));
    model.push(Flatten::new());
    model.push(Linear::new(inputs, 10));
    model
}
