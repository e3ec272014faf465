//! The losses of training under `autocast(DType::BF16)` beside those in `f32`, for an MLP, a convolutional network, a
//! transformer and an LSTM.
//!
//! `cargo run --release -p pellucid-bench --bin loss_curves` trains each model for 500 steps from several seeds, in
//! both modes. A seed determines the initial parameters and the batches. The program prints the mean loss of every 100
//! steps over the seeds, and the difference as a multiple of the standard deviation of `f32` over the seeds.

#![allow(clippy::print_stdout, reason = "the program prints its results")]

use pellucid::autocast;
use pellucid::nn::{AttentionMasks, Conv2d, Embedding, LearnedPositions, Lstm, MaxPool2d, TransformerEncoder};
use pellucid::prelude::*;

const SEEDS: u64 = 8;
const STEPS: usize = 500;
const WINDOW: usize = 100;
const BATCH: usize = 64;
const CLASSES: usize = 10;
const WORDS: usize = 32;
const LENGTH: usize = 32;

/// Returns the input and the target of a new batch.
type NextBatchFn = Box<dyn Fn() -> (Tensor, Tensor)>;

/// Returns the loss of a batch.
type BatchLossFn = Box<dyn Fn(&Tensor, &Tensor) -> Tensor>;

/// A model with its optimizer and the source of its batches.
struct Task {
    optimizer: Adam,
    batch: NextBatchFn,
    loss: BatchLossFn,
}

impl Task {
    fn new<M: Module + 'static>(
        model: M,
        batch: impl Fn() -> (Tensor, Tensor) + 'static,
        loss: impl Fn(&M, &Tensor, &Tensor) -> Tensor + 'static,
    ) -> Task {
        let optimizer = Adam::new(model.parameters(), AdamOptions { lr: 1e-3, ..Default::default() });
        Task { optimizer, batch: Box::new(batch), loss: Box::new(move |x, y| loss(&model, x, y)) }
    }

    fn classifier(model: Sequential, batch: impl Fn() -> (Tensor, Tensor) + 'static) -> Task {
        Task::new(model, batch, |model, x, y| cross_entropy(&model.forward(x), y))
    }
}

/// Classifies vectors by the largest of ten linear functions.
fn mlp() -> Task {
    let teacher = Tensor::randn([64, CLASSES], DType::F32);
    let batch = move || {
        let x = Tensor::randn([BATCH, 64], DType::F32);
        let y = x.matmul(&teacher).argmax(1);
        (x, y)
    };
    let layers = sequential![Linear::new(64, 256), Relu, Linear::new(256, 256), Relu, Linear::new(256, CLASSES)];
    Task::classifier(layers, batch)
}

/// Recognises one of ten images behind noise.
fn cnn() -> Task {
    let images = Tensor::randn([CLASSES, 1, 16, 16], DType::F32);
    let batch = move || {
        let y = Tensor::randint(0, CLASSES as i64, [BATCH]);
        (images.index_select(0, &y) * 0.3 + Tensor::randn([BATCH, 1, 16, 16], DType::F32), y)
    };
    let layers = sequential![
        Conv2d::new(1, 16, 3).padding(1),
        Relu,
        MaxPool2d::new(2),
        Conv2d::new(16, 32, 3).padding(1),
        Relu,
        MaxPool2d::new(2),
        Flatten::new(),
        Linear::new(32 * 4 * 4, CLASSES),
    ];
    Task::classifier(layers, batch)
}

/// Predicts the next word of a chain in which a word has a usual successor, which it has in three of four cases.
fn transformer() -> Task {
    let successor = Tensor::randint(0, WORDS as i64, [WORDS]);
    let batch = move || {
        let mut words = vec![Tensor::randint(0, WORDS as i64, [BATCH])];
        for i in 0..LENGTH {
            let is_usual = Tensor::rand([BATCH], DType::F32).lt(0.75);
            words.push(
                successor.index_select(0, &words[i]).where_(&is_usual, Tensor::randint(0, WORDS as i64, [BATCH])),
            );
        }
        let words = ops::stack(&words, 1).expect("the words must have equal shapes");
        (words.narrow(1, 0, LENGTH), words.narrow(1, 1, LENGTH).flatten(0, 1))
    };
    let body = TransformerEncoder::new(64, 4, 2).hidden(256).dropout(0.0).norm_first(true).norm(true);
    let layers = (Embedding::new(WORDS, 64), LearnedPositions::new(LENGTH, 64), body, Linear::new(64, WORDS));
    Task::new(layers, batch, |(words, positions, body, head), x, y| {
        let x = positions.forward(&words.forward(x));
        cross_entropy(&head.forward(&body.forward_masked(&x, AttentionMasks::causal())).flatten(0, 1), y)
    })
}

/// Classifies sequences by the largest of ten linear functions of the sum of their first elements.
fn lstm() -> Task {
    let teacher = Tensor::randn([16, CLASSES], DType::F32);
    let batch = move || {
        let x = Tensor::randn([BATCH, 24, 16], DType::F32);
        let y = x.narrow(1, 0, 8).sum(1).matmul(&teacher).argmax(1);
        (x, y)
    };
    let layers = (Lstm::new(16, 64).batch_first(true), Linear::new(64, CLASSES));
    Task::new(layers, batch, |(lstm, head), x, y| {
        let (outputs, _) = lstm.forward_sequence(x, None);
        cross_entropy(&head.forward(&outputs.select(1, -1)), y)
    })
}

/// Returns the mean loss of every [`WINDOW`] steps.
fn curve(task: fn() -> Task, seed: u64, half: Option<DType>) -> Vec<f64> {
    manual_seed(seed);
    let Task { optimizer, batch, loss } = task();
    let mut losses = Vec::with_capacity(STEPS);
    for _ in 0..STEPS {
        let (x, y) = batch();
        optimizer.zero_grad();
        let loss = {
            let _guard = half.map(autocast);
            loss(&x, &y)
        };
        loss.backward();
        optimizer.step();
        losses.push(loss.item::<f64>());
    }
    losses.chunks(WINDOW).map(mean).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn main() {
    println!("model, steps: mean in f32, its deviation over {SEEDS} seeds, mean in bf16, difference / deviation");
    for (name, task) in [("MLP", mlp as fn() -> Task), ("CNN", cnn), ("transformer", transformer), ("LSTM", lstm)] {
        let curves = |half| (0..SEEDS).map(|seed| curve(task, seed, half)).collect::<Vec<_>>();
        let [single, half] = [None, Some(DType::BF16)].map(curves);
        for window in 0..STEPS / WINDOW {
            let [single, half] = [&single, &half].map(|runs| runs.iter().map(|run| run[window]).collect::<Vec<_>>());
            let [m, h] = [&single, &half].map(|losses| mean(losses));
            let squares: f64 = single.iter().map(|loss| (loss - m).powi(2)).sum();
            let deviation = (squares / (SEEDS - 1) as f64).sqrt();
            let (first, last) = (window * WINDOW + 1, (window + 1) * WINDOW);
            println!("{name}, {first} - {last}: {m:.4} {deviation:.4} {h:.4} {:+.2}", (h - m) / deviation);
        }
    }
}
