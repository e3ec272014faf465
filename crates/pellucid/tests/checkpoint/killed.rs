//! Processes that are killed while they write a checkpoint.

use crate::scratch::{Scratch, names};
use pellucid::nn::Checkpoint;
use pellucid::nn::optim::Optimizer;
use pellucid::prelude::*;
use pellucid::{Generator, io};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SAVE_LOOP: &str = "PELLUCID_TEST_CHECKPOINT_LOOP";
const SIZE: &str = "PELLUCID_TEST_CHECKPOINT_SIZE";

/// A parameter and an optimizer whose values all equal the step number.
struct Counting {
    parameter: Parameter,
    optimizer: AdamW,
}

impl Counting {
    /// Creates a run whose checkpoint has about 3·`size` elements of `f32`.
    fn new(size: usize) -> Counting {
        let parameter = Parameter::new(Tensor::zeros([size], DType::F32));
        let optimizer = AdamW::new(vec![parameter.clone()], AdamWOptions::default());
        Counting { parameter, optimizer }
    }

    fn checkpoint(&self, step: usize) -> Checkpoint<'_> {
        Checkpoint::new().model(&self.parameter).optimizer(&self.optimizer).step(step)
    }

    /// Returns the values of the checkpoint, except the momentum, for which a step is out of range.
    fn values(&self) -> impl Iterator<Item = Tensor> {
        let state = self.optimizer.state().into_iter().filter(|(name, _)| !name.ends_with("one_minus_beta1"));
        state.map(|(_, state)| state).chain([self.parameter.detach()])
    }

    fn set(&self, step: usize) {
        let _guard = no_grad();
        let value = Tensor::from(step as f32);
        self.values().for_each(|values| values.copy_(&value));
    }

    /// Loads the file, and checks that all values belong to one step.
    fn check(&self, path: &Path) -> usize {
        let step = io::load_checkpoint(path, self.checkpoint(0)).unwrap();
        for values in self.values().filter(|values| values.dtype() == DType::F32) {
            let range = (values.min(..).item::<f64>(), values.max(..).item::<f64>());
            assert_eq!(range, (step as f64, step as f64), "the file mixes steps");
        }
        step
    }
}

/// The process that the tests below kill. As a test of its own, it does nothing.
#[test]
fn saves_until_it_is_killed() {
    let Some(path) = std::env::var_os(SAVE_LOOP).map(PathBuf::from) else { return };
    let run = Counting::new(std::env::var(SIZE).unwrap().parse().unwrap());
    let first = run.check(&path) + 1;
    // The parent ends this process much earlier.
    for step in first..first + 1_000_000 {
        run.set(step);
        io::save_checkpoint(&path, run.checkpoint(step)).unwrap();
    }
}

fn saving_process(path: &Path, size: usize) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed::saves_until_it_is_killed", "--test-threads=1"])
        .env(SAVE_LOOP, path)
        .env(SIZE, size.to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Results of [`kill_saves`].
struct Kills {
    /// The size of the file in bytes.
    bytes: u64,
    /// The time of one save and of one load.
    save: Duration,
    load: Duration,
    /// The number of kills after which the file was complete, which must be all.
    complete: u32,
    /// The number of kills that left a temporary file.
    interrupted: u32,
    /// The number of distinct steps in the files.
    steps: usize,
    /// The number of temporary files that remain after the next save, which must be 0.
    left: usize,
}

/// Kills a process `kills` times while it saves. Each kill is at a random time within two saves.
fn kill_saves(name: &str, kills: u32, size: usize) -> Kills {
    // A load restores the generator of the thread, so the times of the kills are drawn from a separate generator.
    let delays = Generator::new(u64::from(kills));
    let _random = Generator::new(0).scope();
    let scratch = Scratch::new(name);
    let path = scratch.0.join("run.safetensors");
    let run = Counting::new(size);
    run.set(0);
    io::save_checkpoint(&path, run.checkpoint(0)).unwrap();
    let start = Instant::now();
    io::save_checkpoint(&path, run.checkpoint(0)).unwrap();
    let save = start.elapsed();
    let start = Instant::now();
    run.check(&path);
    let load = start.elapsed();
    let (mut complete, mut interrupted, mut left, mut steps) = (0, 0, 0, vec![0]);
    for _ in 0..kills {
        let written = std::fs::metadata(&path).unwrap().modified().unwrap();
        let mut child = saving_process(&path, size);
        while std::fs::metadata(&path).unwrap().modified().unwrap() == written {
            assert_eq!(child.try_wait().unwrap(), None, "the process must save until it is killed");
            std::thread::sleep(Duration::from_micros(100));
        }
        let delay = ops::rand_with((), DType::F64, &delays).unwrap().item::<f64>();
        std::thread::sleep(save.mul_f64(2.0 * delay));
        // SIGKILL on Unix.
        child.kill().unwrap();
        child.wait().unwrap();
        interrupted += u32::from(names(&scratch.0).len() > 1);
        steps.push(run.check(&path));
        complete += 1;
        // The next process of the loop saves again. The last one was killed, so this process saves.
        if complete == kills || complete % 8 == 0 {
            io::save_checkpoint(&path, run.checkpoint(steps[steps.len() - 1])).unwrap();
            left += names(&scratch.0).len() - 1;
        }
    }
    assert!(steps.is_sorted(), "a later file must not be older: {steps:?}");
    steps.dedup();
    let bytes = std::fs::metadata(&path).unwrap().len();
    Kills { bytes, save, load, complete, interrupted, steps: steps.len() - 1, left }
}

#[test]
fn a_killed_save_leaves_a_complete_checkpoint() {
    let Kills { complete, interrupted, steps, left, .. } = kill_saves("killed-checkpoint", 6, 60_000);
    assert_eq!((complete, left), (6, 0), "{interrupted} kills left a temporary file, which the next save must remove");
    assert!(steps >= 6, "every process must save a later step, found {steps}");
}

/// Kills 200 processes that save 50 MB, which takes minutes: `cargo test --release -p pellucid --test checkpoint --
/// --ignored --nocapture killed`
#[test]
#[ignore = "takes minutes; run it with --ignored --nocapture"]
fn saves_of_50_mb_200_killed() {
    let Kills { bytes, save, load, complete, interrupted, steps, left } =
        kill_saves("killed-200", 200, 50_000_000 / 12);
    #[allow(clippy::print_stdout, reason = "the figures of a measurement")]
    {
        println!("{bytes} bytes; a save takes {save:.1?}, a load with a check {load:.1?}");
        println!("{complete} kills, {interrupted} during a save, {steps} different steps; {left} temporary files left");
    }
    assert_eq!((complete, left), (200, 0));
}
