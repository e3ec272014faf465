//! Measures compile time: a transformer encoder in a custom module.

use pellucid::nn::{Embedding, TransformerEncoder};
use pellucid::prelude::*;

#[derive(Debug, Module)]
struct Tagger {
    embedding: Embedding,
    encoder: TransformerEncoder,
    head: Linear,
}

impl Tagger {
    fn forward(&self, tokens: &Tensor) -> Tensor {
        self.head.forward(&self.encoder.forward(&self.embedding.forward(tokens)))
    }
}

fn main() -> Result<()> {
    manual_seed(0);
    let model = Tagger {
        embedding: Embedding::new(100, 16),
        encoder: TransformerEncoder::new(16, 2, 2).hidden(32),
        head: Linear::new(16, 5),
    };
    let optimizer = AdamW::new(model.parameters(), AdamWOptions::default());
    model.forward(&Tensor::zeros([2, 7], DType::I64)).square().mean(..).backward();
    optimizer.step();
    Ok(())
}
