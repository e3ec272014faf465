//! Models, steps and trainers on several threads.

mod contention;
mod moves;
mod recording;
mod send;
mod serving;

use pellucid::nn::optim::{Sgd, SgdOptions};
use pellucid::nn::{Dropout, Linear, Relu, Sequential, sequential};
use pellucid::prelude::*;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, so that tests of this process run one at a time: some set the global seed, others read memory
/// statistics.
fn exclusive() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a model with dropout.
fn network(width: usize) -> Sequential {
    sequential![Linear::new(8, width), Relu, Dropout::new(0.5), Linear::new(width, 3)]
}

fn sgd(model: &Sequential) -> Sgd {
    Sgd::new(model.parameters(), SgdOptions { lr: 0.01, momentum: 0.9, ..Default::default() })
}

fn batch(rows: usize) -> (Tensor, Tensor) {
    let generator = pellucid::Generator::new(rows as u64);
    (pellucid::ops::randn_with([rows, 8], DType::F32, &generator).unwrap(), Tensor::zeros([rows], DType::I64))
}
