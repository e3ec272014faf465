//! Training of ResNet-18 on batches of a loader, compared with precomputed batches: colour images of 32×32 pixels with
//! crops, flips and colour jitter, batches of 64, one thread that trains and one worker.
//!
//! `PELLUCID_NUM_THREADS=1 cargo run --release -p pellucid-bench --features image --bin resnet_loader` alternates both,
//! and prints the seconds of their fastest epochs and the ratio.
#![allow(clippy::print_stdout, reason = "the program prints its results")]

use pellucid::data::transforms::{ColorJitter, ImageTransform, Normalize, RandomCrop, RandomHorizontalFlip};
use pellucid::data::{DataLoader, Dataset, Image, LoaderOptions, from_fn, with_rng};
use pellucid::nn::graph::GraphTrainer;
use pellucid::nn::loss::CrossEntropyLoss;
use pellucid::nn::optim::{Sgd, SgdOptions};
use pellucid::prelude::*;
use pellucid_bench::resnet::resnet18;
use std::time::Instant;

const BATCHES: usize = 5;
const BATCH: usize = 64;
const ROUNDS: usize = 4;

fn main() -> Result<()> {
    let images: Vec<Image> = (0..BATCHES * BATCH).map(|_| random_image()).collect::<Result<_>>()?;
    let crop = RandomCrop::new([32, 32]).padding(4);
    let flip = RandomHorizontalFlip::default();
    let jitter = ColorJitter::new(0.4, 0.4, 0.4, 0.1);
    let normalize = Normalize::new(&[0.4914, 0.4822, 0.4465], &[0.2470, 0.2435, 0.2616]);
    let samples = from_fn(images.len(), move |index| Ok((images[index].clone(), (index % 10) as i64)));
    let samples = samples.map(move |(image, class)| {
        let image = jitter.apply(flip.apply(crop.apply(image)?)?)?;
        Ok((normalize.to_tensor(&image)?, class))
    });
    let options = LoaderOptions { batch_size: BATCH, shuffle: true, workers: 1, ..Default::default() };
    let mut loader = DataLoader::new(samples, options);
    let ready: Vec<(Tensor, Tensor)> = loader.epoch().collect::<Result<_>>()?;

    let model = resnet18();
    let sgd = Sgd::new(model.parameters(), SgdOptions { lr: 0.01, momentum: 0.9, ..Default::default() });
    let mut trainer = GraphTrainer::new(&model, CrossEntropyLoss::default(), sgd);
    let mut epoch = |batches: &mut dyn Iterator<Item = Result<(Tensor, Tensor)>>| -> Result<f64> {
        let start = Instant::now();
        for batch in batches {
            let (x, y) = batch?;
            trainer.step(&x, &y)?;
        }
        Ok(start.elapsed().as_secs_f64())
    };
    // The first epoch records the step.
    epoch(&mut ready.iter().cloned().map(Ok))?;
    let (mut ready_seconds, mut loader_seconds) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..ROUNDS {
        ready_seconds = ready_seconds.min(epoch(&mut ready.iter().cloned().map(Ok))?);
        loader_seconds = loader_seconds.min(epoch(&mut loader.epoch())?);
    }
    println!("ready {ready_seconds:.3} s, loader {loader_seconds:.3} s, ratio {:.3}", loader_seconds / ready_seconds);
    Ok(())
}

fn random_image() -> Result<Image> {
    let pixels = with_rng(|rng| (0..32 * 32 * 3).map(|_| rng.below(256) as u8).collect())?;
    Ok(Image::new(pixels, [32, 32, 3]))
}
