//! A run that is stopped in one process and continues in another.

use crate::runs::{MlpRun, TrainingRun, assert_equal, bits};
use crate::scratch::Scratch;
use pellucid::{io, manual_seed};
use std::path::{Path, PathBuf};
use std::process::Command;

const DIRECTORY: &str = "PELLUCID_TEST_CHECKPOINT_DIRECTORY";
const END: usize = 9;

/// The process of the test below. It loads the checkpoint `state`, if it exists, trains four more steps, and saves. As
/// a test of its own, it does nothing.
#[test]
fn trains_four_steps() {
    let Some(directory) = std::env::var_os(DIRECTORY).map(PathBuf::from) else { return };
    let path = directory.join("state");
    manual_seed(7);
    let mut run = MlpRun::new();
    if path.exists() {
        let steps = io::load_checkpoint(&path, run.checkpoint()).unwrap();
        run.set_steps(steps);
    }
    run.train((run.steps() + 4).min(END), &mut |run| io::save_checkpoint(&path, run.checkpoint()).unwrap());
}

/// Runs `trains_four_steps` in a separate process, with the random numbers of its thread.
fn train(directory: &Path) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "processes::trains_four_steps", "--test-threads=1"]).env(DIRECTORY, directory);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn a_run_continues_in_other_processes() {
    let scratch = Scratch::new("processes");
    (0..3).for_each(|_| train(&scratch.0));
    let _random = pellucid::Generator::new(7).scope();
    let mut uninterrupted = MlpRun::new();
    let mut expected = bits(&uninterrupted.checkpoint());
    uninterrupted.train(END, &mut |run| expected = bits(&run.checkpoint()));
    let mut resumed = MlpRun::new();
    let steps = io::load_checkpoint(scratch.0.join("state"), resumed.checkpoint()).unwrap();
    assert_eq!(steps, END);
    resumed.set_steps(steps);
    assert_equal(&bits(&resumed.checkpoint()), &expected, "the last step");
}
