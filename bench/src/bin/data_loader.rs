//! The time per sample of a data loader: tensors in memory, batches of 64 samples of 16 numbers.
//!
//! `cargo run --release -p pellucid-bench --bin data_loader` prints nanoseconds per sample, the minimum of ten epochs.
#![allow(clippy::print_stdout, reason = "the program prints its results")]

use pellucid::data::{Batches, DataLoader, LoaderOptions, TensorDataset, from_fn};
use pellucid::{DType, Result, Tensor};
use std::time::Instant;

const SAMPLES: usize = 1 << 16;
const BATCH: usize = 64;

/// Prints the time per sample of the fastest epoch.
fn measure(name: &str, mut epoch: impl FnMut() -> Result<()>) -> Result<()> {
    let mut min_nanoseconds = f64::INFINITY;
    for _ in 0..10 {
        let start = Instant::now();
        epoch()?;
        min_nanoseconds = min_nanoseconds.min(start.elapsed().as_nanos() as f64);
    }
    println!("{name}: {:.0} ns a sample", min_nanoseconds / SAMPLES as f64);
    Ok(())
}

fn main() -> Result<()> {
    let (x, y) = (Tensor::rand([SAMPLES, 16], DType::F32), Tensor::randint(0, 10, [SAMPLES]));
    let mut batches = Batches::new(&[&x, &y], BATCH).shuffled(0);
    measure("Batches", || {
        batches.epoch().for_each(drop);
        Ok(())
    })?;
    for workers in [0, 1] {
        let options = LoaderOptions { batch_size: BATCH, shuffle: true, workers, ..Default::default() };
        let mut loader = DataLoader::new(TensorDataset::new(&[&x, &y]), options);
        measure(&format!("TensorDataset, {workers} workers"), || loader.epoch().try_for_each(|batch| batch.map(drop)))?;
        let (x, y) = (x.clone(), y.clone());
        let each = from_fn(SAMPLES, move |index| Ok((x.select(0, index as isize), y.select(0, index as isize))));
        let mut loader = DataLoader::new(each, options);
        measure(&format!("a tensor for each sample, {workers} workers"), || {
            loader.epoch().try_for_each(|batch| batch.map(drop))
        })?;
    }
    Ok(())
}
