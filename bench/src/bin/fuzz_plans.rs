//! Compares random programs in all execution modes: eager, lazy and captured, with the fusion rules of the CPU and of
//! launch-bound devices. Results, state and inputs must be bitwise equal.
//!
//! ```text
//! fuzz_plans [--start 0] [--count 1000] [--jobs 1]
//! fuzz_plans --only 123
//! ```
//!
//! The index of a program is its seed. A debug build also verifies every plan after every pass. The summary groups
//! failures by message; the exit status is 1 if there is any failure. The test suite of `pellucid-tensor` runs the
//! first programs.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "this program prints its results to standard output")]
#![allow(unreachable_pub, reason = "the test suite of `pellucid-tensor` shares the module")]

#[path = "../../../crates/pellucid-tensor/tests/suite/engine/plan_fuzz/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the test suite of `pellucid-tensor` uses more of the module")]
mod plan_fuzz;

use plan_fuzz::{PlanCoverage, compare_modes, operation_names};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// The number of printed examples per failure.
const EXAMPLES: usize = 3;

thread_local! {
    /// Message and location of the last panic.
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// The options of the command line.
struct PlanFuzzOptions {
    start: u64,
    count: u64,
    jobs: u64,
}

impl PlanFuzzOptions {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<PlanFuzzOptions, String> {
        let mut options = PlanFuzzOptions { start: 0, count: 1000, jobs: 1 };
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{name} must have a value"))?;
            let number = value.parse::<u64>().map_err(|_| format!("{name} must be a number, got {value}"))?;
            match name.as_str() {
                "--start" => options.start = number,
                "--count" => options.count = number,
                "--jobs" => options.jobs = number.max(1),
                "--only" => (options.start, options.count) = (number, 1),
                _ => return Err(format!("unknown argument {name}")),
            }
        }
        Ok(options)
    }
}

/// The accumulated results of all programs.
#[derive(Default)]
struct FuzzedPlans {
    programs: u64,
    operations: Vec<usize>,
    /// The number of programs with gradients of each order, and with axes of each length.
    gradients: [u64; 2],
    axes: [u64; 2],
    /// The number of failures and some examples, by message.
    failures: BTreeMap<String, (u64, Vec<String>)>,
}

impl FuzzedPlans {
    fn add(&mut self, coverage: &PlanCoverage) {
        self.operations.resize(coverage.operations.len(), 0);
        self.operations.iter_mut().zip(&coverage.operations).for_each(|(total, count)| *total += count);
        for k in 0..2 {
            self.gradients[k] += u64::from(coverage.gradients[k] > 0);
            self.axes[k] += u64::from(coverage.has_axes[k]);
        }
    }

    fn fail(&mut self, key: String, example: String) {
        let (count, examples) = self.failures.entry(key).or_default();
        *count += 1;
        if examples.len() < EXAMPLES {
            examples.push(example);
        }
    }

    fn print(&self) {
        for (key, (count, examples)) in &self.failures {
            println!("FAILED {count} times: {key}");
            examples.iter().for_each(|example| println!("{example}\n"));
        }
        let counts = operation_names().zip(&self.operations).map(|(name, count)| format!("{name} {count}"));
        println!("operations: {}", counts.collect::<Vec<_>>().join(", "));
        let failures: u64 = self.failures.values().map(|(count, _)| count).sum();
        println!(
            "{} programs, {failures} failed; {} with gradients, {} with second gradients, {} with an axis of length 0, \
             {} of length 1",
            self.programs, self.gradients[0], self.gradients[1], self.axes[0], self.axes[1]
        );
    }
}

/// Replaces digits by `#`, so that messages that differ only in numbers become equal.
fn without_numbers(message: &str) -> String {
    let mut short = String::new();
    for c in message.lines().next().unwrap_or_default().chars().take(160) {
        if !c.is_ascii_digit() {
            short.push(c);
        } else if !short.ends_with('#') {
            short.push('#');
        }
    }
    short
}

/// Runs one program and adds its results.
fn run_seed(seed: u64, all: &Mutex<FuzzedPlans>) {
    let outcome = catch_unwind(AssertUnwindSafe(|| compare_modes(seed)));
    let mut all = all.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    all.programs += 1;
    match outcome {
        Ok(Ok(coverage)) => all.add(&coverage),
        Ok(Err(difference)) => {
            let key = without_numbers(&format!("{}: {}", difference.mode, difference.reason));
            all.fail(key, format!("--only {seed}: {difference}"));
        }
        Err(_) => {
            let message = LAST_PANIC.take();
            all.fail(format!("panic: {}", without_numbers(&message)), format!("--only {seed}: {message}"));
        }
    }
}

fn main() -> ExitCode {
    let options = match PlanFuzzOptions::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(reason) => {
            eprintln!("{reason}");
            return ExitCode::from(2);
        }
    };
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(|l| format!("{}:{}", l.file(), l.line())).unwrap_or_default();
        let payload = info.payload();
        let text = payload.downcast_ref::<String>().cloned();
        let text = text.or_else(|| payload.downcast_ref::<&str>().map(|s| s.to_string()));
        let text = text.or_else(|| payload.downcast_ref::<pellucid::Error>().map(|e| e.to_string()));
        LAST_PANIC.set(format!("{} at {place}", text.unwrap_or_default()));
    }));
    let (all, next, start) = (Mutex::new(FuzzedPlans::default()), AtomicU64::new(options.start), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= options.start + options.count {
                        break;
                    }
                    run_seed(seed, &all);
                }
            });
        }
    });
    let all = all.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    all.print();
    println!("{:.1} s", start.elapsed().as_secs_f64());
    if all.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
