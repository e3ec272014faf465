//! Measures compile time: a classifier that is trained with eager steps.

use pellucid::nn::loss::{CrossEntropyLoss, Loss};
use pellucid::prelude::*;

fn main() -> Result<()> {
    manual_seed(0);
    let model = sequential![Linear::new(64, 32), Relu, Linear::new(32, 10)];
    let optimizer = AdamW::new(model.parameters(), AdamWOptions { lr: 1e-3, ..Default::default() });
    let loss = CrossEntropyLoss::default();
    let (x, y) = (Tensor::randn([16, 64], DType::F32), Tensor::zeros([16], DType::I64));
    for _ in 0..10 {
        optimizer.zero_grad();
        let value = loss.forward(&model.forward(&x), &y);
        value.backward();
        optimizer.step();
        assert!(value.item::<f32>().is_finite());
    }
    Ok(())
}
