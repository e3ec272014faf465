//! W5 and W9: training steps of a small GPT, and of an LSTM that classifies sequences.

use crate::harness::{Work, Workload};
use crate::place::on_device;
use crate::training::Training;
use pellucid::nn::{AttentionMasks, Embedding, LearnedPositions, Lstm, TransformerEncoder};
use pellucid::prelude::*;

pub(crate) fn workloads() -> Vec<Workload> {
    vec![
        Workload::new("W5", "", || gpt().eager()),
        Workload::new("W5", "captured", || gpt().captured()),
        Workload::new("W5", "bf16", || gpt().in_bf16().eager()),
        Workload::new("W5", "captured-bf16", || gpt().in_bf16().captured()),
        Workload::new("W9", "", || classifier().eager()),
        Workload::new("W9", "captured", || classifier().captured()),
        Workload::new("W9", "bf16", || classifier().in_bf16().eager()),
        Workload::new("W9", "captured-bf16", || classifier().in_bf16().captured()),
    ]
}

fn adamw(model: &impl Module, lr: f64, weight_decay: f64) -> AdamW {
    AdamW::new(model.parameters(), AdamWOptions { lr, weight_decay, ..Default::default() })
}

const BATCH: usize = 8;
const LENGTH: usize = 128;
const WIDTH: usize = 256;
const WORDS: usize = 1024;
const LAYERS: usize = 4;

/// A pre-norm GPT with tanh gelu and an output layer that does not share the embedding weights.
#[derive(Module)]
struct Gpt {
    words: Embedding,
    positions: LearnedPositions,
    body: TransformerEncoder,
    head: Linear,
}

impl Gpt {
    fn loss(&self, words: &Tensor, target: &Tensor) -> Tensor {
        let x = self.positions.forward(&self.words.forward(words));
        let logits = self.head.forward(&self.body.forward_masked(&x, AttentionMasks::causal()));
        cross_entropy(&logits.flatten(0, 1), target)
    }
}

fn gpt() -> Training {
    let body = TransformerEncoder::new(WIDTH, 4, LAYERS).hidden(4 * WIDTH).dropout(0.0).norm_first(true);
    let body = body.activation(ops::gelu_tanh).norm(true);
    let model = on_device(Gpt {
        words: Embedding::new(WORDS, WIDTH),
        positions: LearnedPositions::new(LENGTH, WIDTH),
        body,
        head: Linear::new(WIDTH, WORDS).bias(false),
    });
    let optimizer = adamw(&model, 3e-4, 0.01);
    let tokens = BATCH * LENGTH;
    // The work consists of the products with weights and the two products of attention, once forward and twice
    // backward.
    let weights = LAYERS * 12 * WIDTH * WIDTH + WIDTH * WORDS;
    let attention = LAYERS * 2 * LENGTH * WIDTH;
    let data = (Tensor::randint(0, WORDS as i64, [BATCH, LENGTH]), Tensor::randint(0, WORDS as i64, [tokens]));
    let work = Work::Flops((3 * 2 * tokens * (weights + attention)) as f64);
    Training::new(work, data, Box::new(optimizer), move |x, target| model.loss(x, target))
}

fn classifier() -> Training {
    let (batch, steps, input, hidden) = (32, 64, 128, 256);
    let model = on_device((Lstm::new(input, hidden).batch_first(true), Linear::new(hidden, 10)));
    let optimizer = Box::new(adamw(&model, 1e-3, 0.0));
    let data = (Tensor::randn([batch, steps, input], DType::F32), Tensor::randint(0, 10, [batch]));
    let work = Work::Flops((3 * 2 * batch * steps * 4 * hidden * (input + hidden)) as f64);
    Training::new(work, data, optimizer, move |x, target| {
        let (y, _) = model.0.forward_sequence(x, None);
        cross_entropy(&model.1.forward(&y.select(1, -1)), target)
    })
}
