//! Invalid sizes, axes and counts: every operation returns a value or a typed error that names the operation.
//!
//! The calls run in a child process with limited memory, which must finish: an aborting allocation, a panic in a
//! function that returns a `Result`, and an endless loop are failures. `calls` passes invalid numbers, `views` passes
//! tensors of invalid shapes.
#![allow(clippy::print_stdout, reason = "the child reports to its parent")]

mod calls;
mod views;

use pellucid_tensor::{Error, Result};
use std::io::{BufRead, BufReader, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// One call of an operation.
struct Case {
    op: &'static str,
    label: String,
    call: Box<dyn Fn() -> Result<()>>,
    /// The call may return an error that names another operation.
    any_name: bool,
    /// The call is the closure of a table row, which may panic for an input that it was not written for.
    is_row: bool,
}

/// True if the last panic was at a line of these tests.
static IN_TESTS: AtomicBool = AtomicBool::new(false);

/// The longest duration of one call; the limit is generous because the machine may be busy.
const CALL: Duration = Duration::from_secs(10);

/// Runs all cases, and panics if any failed. Each case is printed before it runs, so the last printed case ended the
/// process.
fn run_cases(cases: impl IntoIterator<Item = Case>) {
    std::panic::set_hook(Box::new(|panic| {
        let in_tests = panic.location().is_some_and(|place| place.file().contains("tests/suite"));
        IN_TESTS.store(in_tests, Ordering::Relaxed);
    }));
    let (mut count, mut failures) = (0, 0);
    for Case { op, label, call, any_name, is_row } in cases {
        println!("{op}: {label}");
        std::io::stdout().flush().expect("a write to standard output must succeed");
        count += 1;
        let start = Instant::now();
        let failure = match catch_unwind(AssertUnwindSafe(call)) {
            Ok(Ok(())) => None,
            Ok(Err(error)) => wrong_name(op, &error).filter(|_| !any_name),
            Err(_) if is_row && IN_TESTS.load(Ordering::Relaxed) => None,
            Err(payload) => {
                let text = payload.downcast_ref::<Error>().map(|e| e.to_string());
                let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
                let text = text.or_else(|| payload.downcast_ref::<&str>().map(|s| s.to_string()));
                Some(format!("panicked: {}", text.unwrap_or_default()))
            }
        };
        let slow = (start.elapsed() > CALL).then(|| format!("took {:?}", start.elapsed()));
        for what in failure.into_iter().chain(slow) {
            println!("FAILED {op}: {label}: {what}");
            failures += 1;
        }
    }
    println!("{count} calls, {failures} failed");
    assert_eq!(failures, 0);
}

/// Returns a description of the error if the operation that it names is not `op`.
fn wrong_name(op: &str, error: &Error) -> Option<String> {
    let named = error.operation();
    (named != Some(op)).then(|| format!("the error must name `{op}`, but names {named:?}: {error}"))
}

/// Runs a test of this executable in a child process with `KIB` of address space. Panics unless it succeeds in time.
fn in_a_child(test: &str) {
    const KIB: usize = 3 << 20;
    const LIMIT: Duration = Duration::from_secs(240);
    let executable = std::env::current_exe().expect("the operating system must report the path of the test executable");
    let mut child = Command::new("sh")
        .args(["-c", &format!("ulimit -v {KIB}; exec \"$0\" \"$@\" 2>&1")])
        .arg(executable)
        .args([test, "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env("PELLUCID_NUM_THREADS", "2")
        .stdout(Stdio::piped())
        .spawn()
        .expect("the start of the child process failed");
    let output = BufReader::new(child.stdout.take().expect("the standard output of the child must be piped"));
    let lines = Arc::new(Mutex::new(Vec::new()));
    let reader = std::thread::spawn({
        let lines = lines.clone();
        move || {
            output
                .lines()
                .map_while(|line| line.ok())
                .for_each(|line| lines.lock().expect("no thread must panic while it holds the lock").push(line))
        }
    });
    let start = Instant::now();
    let status = loop {
        match child.try_wait().expect("the query of the child's status failed") {
            Some(status) => break Some(status),
            None if start.elapsed() > LIMIT => break None,
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    if status.is_none() {
        child.kill().expect("the attempt to kill the child failed");
    }
    reader.join().expect("the thread that reads the child's output must not panic");
    let lines = lines.lock().expect("no thread must panic while it holds the lock");
    let failed: Vec<&String> = lines.iter().filter(|line| line.starts_with("FAILED")).collect();
    let last = &lines[lines.len().saturating_sub(6)..];
    assert!(
        status.is_some_and(|s| s.success()),
        "the child process failed with {status:?}\nfailures: {failed:#?}\nthe last lines: {last:#?}"
    );
    assert!(
        lines.iter().any(|line| line.ends_with("calls, 0 failed")),
        "the child did not complete all calls: {last:#?}"
    );
}

/// Operations with such parameters that are not called: they have a user formula, which errors name.
const OF_A_FORMULA: [&str; 3] = ["map_rows", "map_rows_all", "update_many"];

#[test]
fn every_operation_with_a_size_parameter_is_called() {
    let called: Vec<&str> = calls::all().iter().map(|case| case.op).collect();
    let missing: Vec<&str> = pellucid_tensor::operations()
        .filter(|op| op.takes_sizes)
        .map(|op| op.name)
        .filter(|name| !called.contains(name) && !OF_A_FORMULA.contains(name))
        .collect();
    assert!(missing.is_empty(), "every operation must be called with invalid numbers; not called: {missing:?}");
}

#[test]
#[cfg(target_os = "linux")]
fn invalid_numbers_are_errors() {
    in_a_child("invalid_arguments::child_of_numbers");
}

#[test]
#[ignore = "runs in a child process with little memory"]
fn child_of_numbers() {
    run_cases(calls::all());
}

#[test]
#[cfg(target_os = "linux")]
fn invalid_shapes_are_errors() {
    in_a_child("invalid_arguments::child_of_shapes");
}

#[test]
#[ignore = "runs in a child process with little memory"]
fn child_of_shapes() {
    run_cases(views::all());
}

/// An invalid number of threads is clamped, not started.
#[test]
#[cfg(target_os = "linux")]
fn an_invalid_number_of_threads_is_limited() {
    let executable = std::env::current_exe().expect("the operating system must report the path of the test executable");
    let output = Command::new("sh")
        .args(["-c", "ulimit -v 3000000; exec \"$0\" \"$@\" 2>&1"])
        .arg(executable)
        .args(["invalid_arguments::child_of_threads", "--exact", "--ignored", "--nocapture"])
        .env("PELLUCID_NUM_THREADS", "100000")
        .output()
        .expect("the start of the child process failed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
#[ignore = "runs in a child process with an absurd number of threads"]
fn child_of_threads() {
    let x = pellucid_tensor::Tensor::ones([1000, 1000], pellucid_tensor::DType::F32);
    assert_eq!((&x + &x).sum(..).item::<f32>(), 2e6);
}
