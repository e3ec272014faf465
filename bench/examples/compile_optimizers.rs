//! Measures compile time: a program that uses several optimizers.

use pellucid::nn::optim::{Adam, AdamOptions, Lion, LionOptions, RmsProp, RmsPropOptions};
use pellucid::prelude::*;

fn train(model: &impl Layer, optimizer: &dyn Optimizer, x: &Tensor) {
    optimizer.zero_grad();
    model.forward(x).square().mean(..).backward();
    optimizer.step();
}

fn main() -> Result<()> {
    manual_seed(0);
    let model = sequential![Linear::new(8, 8), Relu, Linear::new(8, 1)];
    let x = Tensor::randn([4, 8], DType::F32);
    train(&model, &Sgd::new(model.parameters(), SgdOptions { lr: 0.1, ..Default::default() }), &x);
    train(&model, &Adam::new(model.parameters(), AdamOptions::default()), &x);
    train(&model, &AdamW::new(model.parameters(), AdamWOptions::default()), &x);
    train(&model, &RmsProp::new(model.parameters(), RmsPropOptions::default()), &x);
    train(&model, &Lion::new(model.parameters(), LionOptions::default()), &x);
    Ok(())
}
