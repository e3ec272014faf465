//! W5 and W9: training steps of a small GPT, and of an LSTM that classifies sequences.

use crate::harness::{Run, Work, Workload};
use pellucid::nn::{Embedding, LearntPositions, Lstm, Masks, RecurrentOptions, TransformerEncoder, TransformerOptions};
use pellucid::prelude::*;

pub(crate) fn workloads() -> Vec<Workload> {
    vec![
        Workload::new("W5", "", || eager(gpt())),
        Workload::new("W5", "captured", || captured(gpt())),
        Workload::new("W9", "", || eager(classifier())),
        Workload::new("W9", "captured", || captured(classifier())),
    ]
}

/// A model's training step.
struct Training {
    loss: Box<dyn Fn(&Tensor, &Tensor) -> Tensor>,
    optimizer: AdamW,
    x: Tensor,
    target: Tensor,
    work: Work,
}

impl Training {
    /// Zero the gradients, forward, loss, backward, update.
    fn step(&self, x: &Tensor, target: &Tensor) -> Tensor {
        self.optimizer.zero_grad();
        let loss = (self.loss)(x, target);
        loss.backward();
        self.optimizer.step();
        loss
    }
}

fn eager(training: Training) -> Run {
    Run::new(training.work, move || {
        training.step(&training.x, &training.target);
    })
}

fn captured(training: Training) -> Run {
    let (x, target, work) = (training.x.clone(), training.target.clone(), training.work);
    let mut replay =
        capture(move |inputs| training.step(&inputs[0], &inputs[1]), &[&x, &target]).expect("the step can be captured");
    Run::new(work, move || {
        replay.launch(&[&x, &target]).expect("the step can be launched");
    })
}

fn adamw(model: &impl Module, lr: f64, weight_decay: f64) -> AdamW {
    AdamW::new(model.parameters(), AdamWOptions { lr, weight_decay, ..Default::default() }).expect("valid options")
}

const BATCH: usize = 8;
const LENGTH: usize = 128;
const WIDTH: usize = 256;
const WORDS: usize = 1024;
const LAYERS: usize = 4;

/// Norms come first, gelu is the one by tanh, the head is not tied to the words.
#[derive(Module)]
struct Gpt {
    words: Embedding,
    positions: LearntPositions,
    body: TransformerEncoder,
    head: Linear,
}

impl Gpt {
    fn loss(&self, words: &Tensor, target: &Tensor) -> Tensor {
        let x = self.positions.forward(&self.words.forward(words));
        let logits = self.head.forward(&self.body.forward_masked(&x, Masks::causal()));
        cross_entropy(&logits.flatten(0, 1), target)
    }
}

fn gpt() -> Training {
    let options =
        TransformerOptions { dropout: 0.0, activation: ops::gelu_tanh, norm_first: true, ..Default::default() };
    let body = TransformerEncoder::new(LAYERS, WIDTH, 4, 4 * WIDTH, options).expect("valid options").with_norm();
    let model = Gpt {
        words: Embedding::new(WORDS, WIDTH),
        positions: LearntPositions::new(LENGTH, WIDTH),
        body,
        head: Linear::without_bias(WIDTH, WORDS),
    };
    let optimizer = adamw(&model, 3e-4, 0.01);
    let tokens = BATCH * LENGTH;
    // The products with weights and the two of attention, forward and twice that backward.
    let weights = LAYERS * 12 * WIDTH * WIDTH + WIDTH * WORDS;
    let attention = LAYERS * 2 * LENGTH * WIDTH;
    Training {
        optimizer,
        x: Tensor::randint(0, WORDS as i64, [BATCH, LENGTH]),
        target: Tensor::randint(0, WORDS as i64, [tokens]),
        work: Work::Flops((3 * 2 * tokens * (weights + attention)) as f64),
        loss: Box::new(move |x, target| model.loss(x, target)),
    }
}

fn classifier() -> Training {
    let (batch, steps, input, hidden) = (32, 64, 128, 256);
    let options = RecurrentOptions { batch_first: true, ..Default::default() };
    let model = (Lstm::with(input, hidden, options).expect("valid options"), Linear::new(hidden, 10));
    Training {
        optimizer: adamw(&model, 1e-3, 0.0),
        x: Tensor::randn([batch, steps, input], DType::F32),
        target: Tensor::randint(0, 10, [batch]),
        work: Work::Flops((3 * 2 * batch * steps * 4 * hidden * (input + hidden)) as f64),
        loss: Box::new(move |x, target| {
            let (y, _) = model.0.run(x, None);
            cross_entropy(&model.1.forward(&y.select(1, -1)), target)
        }),
    }
}
