//! Measures compile time: a classifier that is trained with captured steps.

use pellucid::nn::graph::GraphTrainer;
use pellucid::nn::loss::CrossEntropyLoss;
use pellucid::prelude::*;

fn main() -> Result<()> {
    manual_seed(0);
    let model = sequential![Linear::new(64, 32), Relu, Linear::new(32, 10)];
    let optimizer = AdamW::new(model.parameters(), AdamWOptions::default());
    let mut trainer = GraphTrainer::new(model, CrossEntropyLoss::default(), optimizer);
    let (x, y) = (Tensor::randn([16, 64], DType::F32), Tensor::zeros([16], DType::I64));
    for _ in 0..10 {
        trainer.step(&x, &y)?;
    }
    Ok(())
}
