//! A first program: a network learns to recognise handwritten digits.
//!
//! ```text
//! cargo run --release --example mnist -- --epochs 5 --seed 0 --device cpu
//! ```
//!
//! It trains on 8,000 digits and is tested on 2,000 others.
#![allow(clippy::print_stdout, reason = "an example program prints to standard output")]

use pellucid::data::Mnist;
use pellucid::prelude::*;
use pellucid::{io, train::Progress};
use std::fs;
use std::time::Duration;

const BATCH: usize = 32;

fn main() -> Result<()> {
    let TrainingArguments { epochs, seed, device } = arguments();

    // The seed determines every random number of this program.
    manual_seed(seed);

    // The data: images [N, 28, 28] with values in [0, 1], labels [N] from 0 to 9.
    let mnist = Mnist::load(concat!(env!("CARGO_MANIFEST_DIR"), "/data/mnist10k"))?;
    let mut batches = Batches::new(&[&mnist.train.images, &mnist.train.labels], BATCH).shuffled(seed).drop_last();

    // The parameters are moved to the device; the batches, which are host values, follow them.
    let model = classifier().to(device)?;

    // The optimizer: AdamW, with a learning rate that decreases over the training.
    let optimizer = AdamW::new(model.parameters(), AdamWOptions { weight_decay: 0.01, ..Default::default() });
    let steps = epochs * batches.len();
    let schedule = CosineSchedule::new(3e-3, steps).warmup(steps / 20);
    let digits = batches.samples();
    println!("{} weights, {digits} digits to learn from, {steps} steps on {device}", model.parameter_count());

    let mut step = 0;
    for epoch in 1..=epochs {
        model.train();
        let progress = Progress::new(format!("epoch {epoch}"), batches.len());
        let mut total = 0.0;
        for [images, labels] in batches.epoch() {
            schedule.set(&optimizer, step);
            optimizer.zero_grad();
            let loss = cross_entropy(&model.forward(&images), &labels);
            loss.backward();
            optimizer.step();

            let loss: f64 = loss.item();
            total += loss;
            step += 1;
            progress.advance(format_args!("loss {loss:.4}"));
        }
        let took = progress.finish();
        let mean = total / batches.len() as f64;
        let speed = samples_per_second(batches.len() * BATCH, took);
        let accuracy = 100.0 * accuracy(&model, &mnist.test.images, &mnist.test.labels);
        println!("epoch {epoch}: loss {mean:.4}, test accuracy {accuracy:.2} %, {speed:.0} samples/s");
    }

    // The weights are saved and loaded again, bit for bit.
    let path = std::env::temp_dir().join(format!("pellucid-mnist-{}.safetensors", std::process::id()));
    io::save(&path, &model.state_dict())?;
    let state = io::load(&path);
    fs::remove_file(&path).expect("removing the file that was saved must succeed");
    let reader = classifier().to(device)?;
    reader.load_state_dict(&state?)?;
    reader.eval();
    model.eval();
    let (ours, theirs) = (model.forward(&mnist.test.images), reader.forward(&mnist.test.images));
    assert_eq!(ours.to_bytes(), theirs.to_bytes(), "the loaded model must compute the same scores as the saved one");
    println!("the model was saved and loaded again; its scores are equal in every bit");
    Ok(())
}

/// Returns the model: 784 pixels, 512 features, 10 scores. Dropout zeroes some of the features in training, so that the
/// model does not rely on single features.
fn classifier() -> Sequential {
    sequential![Flatten::new(), Linear::new(784, 512), Relu, Dropout::new(0.3), Linear::new(512, 10)]
}

/// Returns the fraction of images whose highest score belongs to the correct digit.
fn accuracy(model: &impl Layer, images: &Tensor, labels: &Tensor) -> f64 {
    let _guard = no_grad();
    model.eval();
    let guesses = model.forward(images).argmax(-1);
    guesses.eq(labels).to_dtype(DType::F64).mean(..).item()
}

fn samples_per_second(samples: usize, took: Duration) -> f64 {
    samples as f64 / took.as_secs_f64()
}

/// The arguments of the program.
struct TrainingArguments {
    epochs: usize,
    seed: u64,
    device: Device,
}

/// Parses `--epochs N`, `--seed S` and `--device NAME`.
fn arguments() -> TrainingArguments {
    let mut parsed = TrainingArguments { epochs: 5, seed: 0, device: Device::cpu() };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().unwrap_or_default();
        let result = match name.as_str() {
            "--epochs" => value.parse().map(|n| parsed.epochs = n).map_err(|error| error.to_string()),
            "--seed" => value.parse().map(|s| parsed.seed = s).map_err(|error| error.to_string()),
            "--device" => value.parse().map(|device| parsed.device = device).map_err(|error| error.to_string()),
            _ => Err("there is no such argument".to_string()),
        };
        if let Err(reason) = result {
            eprintln!("{name} {value}: {reason}\nusage: mnist [--epochs N] [--seed S] [--device NAME]");
            std::process::exit(2);
        }
    }
    parsed
}
