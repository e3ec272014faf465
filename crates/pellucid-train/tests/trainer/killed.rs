//! Processes that are killed or interrupted while they train.

use crate::runs::{SmallTrainer, bits, isolated_generator, model, points, trainer};
use crate::scratch::Scratch;
use pellucid::io;
use pellucid::prelude::*;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const FOLDER: &str = "PELLUCID_TEST_TRAINER_FOLDER";

/// The process that the tests below kill. As a test of its own, it does nothing.
#[test]
fn trains_until_it_is_killed() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    train(&folder, true);
}

/// Runs or resumes the training.
fn train(folder: &Path, is_slow: bool) -> SmallTrainer {
    use pellucid::train::{FitControl, TrainingEvent};
    let _generator = isolated_generator();
    let (mut train, mut validation) = points();
    let waits = move |_: &TrainingEvent<'_>, _: &mut FitControl| {
        if is_slow {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    };
    let mut trainer = trainer().epochs(12).ema(0.9).validate_every(3).callback(waits);
    trainer = trainer.checkpoints(folder).checkpoint_every(1).resume_if_exists(folder);
    trainer.fit(&mut train, Some(&mut validation)).unwrap();
    trainer
}

/// Runs or resumes the training, and returns the bits of the model, of the best weights and of the validations.
fn results(folder: &Path) -> [Vec<(String, u64)>; 3] {
    let trainer = train(folder, false);
    let _generator = isolated_generator();
    let model = model();
    model.load_state_dict(&io::load(folder.join("best.safetensors")).unwrap()).unwrap();
    let column = |name: &str| {
        let values = trainer.history().column(name).unwrap().into_iter();
        values.map(|value| (name.to_string(), value.to_bits())).collect::<Vec<_>>()
    };
    let validations = ["step", "train_loss", "validation_loss"].map(column).concat();
    [bits(trainer.model()), bits(&model), validations]
}

fn process(folder: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed::trains_until_it_is_killed", "--test-threads=1"])
        .env(FOLDER, folder)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Kills a run repeatedly at different times, and resumes it. `PELLUCID_TEST_KILLS` sets the number of kills.
#[test]
fn a_run_that_is_killed_many_times_has_the_bits_of_one_that_was_not() {
    let kills: u64 = std::env::var("PELLUCID_TEST_KILLS").map_or(6, |count| count.parse().unwrap());
    let scratch = Scratch::new("trainer-killed");
    let (folder, uninterrupted) = (scratch.0.join("killed"), scratch.0.join("uninterrupted"));
    for kill in 0..kills {
        let mut child = process(&folder);
        // The process needs some milliseconds to start. The delays cover all phases of a step and a save.
        std::thread::sleep(Duration::from_micros(20_000 + (kill * 7919) % 60_000));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert_eq!(results(&folder), results(&uninterrupted));
}

/// An interrupt ends a run after the current step, and its state is saved.
#[cfg(all(unix, feature = "signals"))]
#[test]
fn an_interrupt_saves_the_state() {
    for signal in ["-INT", "-TERM"] {
        let scratch = Scratch::new(&format!("trainer-interrupted{signal}"));
        let (folder, uninterrupted) = (scratch.0.join("interrupted"), scratch.0.join("uninterrupted"));
        let mut child = process(&folder);
        let (start, file) = (std::time::Instant::now(), folder.join("last.safetensors"));
        while !file.exists() && start.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
        assert!(child.wait().unwrap().success(), "the process must end by itself");
        assert_eq!(results(&folder), results(&uninterrupted));
    }
}
