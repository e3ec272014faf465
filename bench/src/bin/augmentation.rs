//! Augmentation of images of 32×32×3 pixels: crops with padding, flips, colour jitter, and normalization.
//!
//! `taskset -c 0 cargo run --release -p pellucid-bench --features image --bin augmentation` prints images per second,
//! the maximum of ten rounds. `bench/augmentation.py` is the same benchmark with torchvision.
#![allow(clippy::print_stdout, reason = "the program prints its results")]

use pellucid::data::transforms::{ColorJitter, ImageTransform, Normalize, RandomCrop, RandomHorizontalFlip};
use pellucid::data::{DataLoader, Dataset, Image, LoaderOptions, SplitMix64, from_vec};
use pellucid::{Result, Tensor};
use std::time::Instant;

const IMAGES: usize = 4096;
const ROUNDS: usize = 10;

/// Prints the images per second of the fastest round.
fn measure(name: &str, mut round: impl FnMut() -> Result<()>) -> Result<()> {
    let mut min_seconds = f64::INFINITY;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        round()?;
        min_seconds = min_seconds.min(start.elapsed().as_secs_f64());
    }
    println!("{name}: {:.0} images/s", IMAGES as f64 / min_seconds);
    Ok(())
}

fn random_image(rng: &mut SplitMix64) -> Image {
    Image::new((0..32 * 32 * 3).map(|_| rng.below(256) as u8).collect(), [32, 32, 3])
}

fn main() -> Result<()> {
    let mut rng = SplitMix64::new(0);
    let images: Vec<Image> = (0..IMAGES).map(|_| random_image(&mut rng)).collect();
    let crop = RandomCrop::new([32, 32]).padding(4);
    let flip = RandomHorizontalFlip::default();
    let jitter = ColorJitter::new(0.4, 0.4, 0.4, 0.1);
    let normalize = Normalize::new(&[0.4914, 0.4822, 0.4465], &[0.2470, 0.2435, 0.2616]);
    let augment =
        move |image: Image| -> Result<Tensor> { normalize.to_tensor(&jitter.apply(flip.apply(crop.apply(image)?)?)?) };
    let samples = from_vec(images).map(augment);
    // A loader without workers. Each sample has its own generator.
    let options = LoaderOptions { batch_size: 64, shuffle: true, ..Default::default() };
    let mut each = DataLoader::with_collate(samples, options, Ok);
    measure("crop, flip, colour jitter, tensor, normalize", || each.epoch().try_for_each(|batch| batch.map(drop)))
}
