//! Runs that move to another thread save the random numbers that their steps draw.

use crate::runs::{SmallTrainer, bits, isolated_generator, points, trainer};
use crate::scratch::Scratch;
use pellucid::prelude::*;
use pellucid::train::FindLrOptions;
use std::fs;
use std::thread;

/// Runs `f` on a new thread, which has its own random stream.
fn on_new_thread<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    thread::scope(|scope| scope.spawn(f).join().unwrap())
}

fn fit(run: &mut SmallTrainer, [train, validation]: &mut [Batches; 2]) {
    on_new_thread(|| run.fit(train, Some(validation)).map(drop)).unwrap();
}

fn new_run() -> (SmallTrainer, [Batches; 2]) {
    let _generator = isolated_generator();
    (trainer(), points().into())
}

#[test]
fn a_run_that_has_moved_is_resumed_with_equal_bits() {
    let [scratch, copy] = ["trainer-moved", "trainer-moved-copy"].map(Scratch::new);
    let (run, mut batches) = new_run();
    let mut run = run.checkpoints(&scratch.0);
    fit(&mut run, &mut batches);
    // The second epoch is trained and saved by another thread than the first one.
    let mut run = run.epochs(2);
    fit(&mut run, &mut batches);
    fs::copy(scratch.0.join("last.safetensors"), copy.0.join("last.safetensors")).unwrap();
    let (resumed, mut resumed_batches) = new_run();
    let mut resumed = resumed.epochs(3).resume(&copy.0);
    fit(&mut resumed, &mut resumed_batches);
    // The search restores the random numbers of the steps, not those of its own thread.
    on_new_thread(|| run.find_lr(&mut batches[0], FindLrOptions { steps: 20, ..Default::default() }).map(drop))
        .unwrap();
    let mut run = run.epochs(3);
    fit(&mut run, &mut batches);
    assert_eq!(bits(resumed.model()), bits(run.model()));
}
