//! Checks derivatives of random expressions: values against finite differences of the next lower order, time and
//! memory.
//!
//! ```text
//! fuzz_gradients [--seed 1] [--count 1000] [--start 0] [--depth 4] [--order 4] [--jobs 1]
//! fuzz_gradients --seed 1 --only 123 --depth 4 --order 4
//! ```
//!
//! Seed, index and depth determine an expression. Expressions run in child processes, which are killed if an expression
//! exceeds a minute or 4 GiB. The summary groups failures by message, each with minimized examples. An operation
//! without a derivative of some order is listed. It is not a failure if its error states this. The exit status is 1 if
//! there is any failure.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "this program prints its results to standard output")]

use pellucid::Error;
use pellucid_bench::derivatives::check::{DerivativeFailure, DerivativeProblem, DerivativeReport};
use pellucid_bench::derivatives::expression::{Case, Expression};
use pellucid_bench::derivatives::memory;
use pellucid_bench::derivatives::random::SplitMix64;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// The time and memory limits of one expression, for all orders together without differences.
const MAX_SECONDS: f64 = 10.0;
const MAX_BYTES: u64 = 1 << 30;

/// The limits at which a child process is killed.
const KILL_AFTER: Duration = Duration::from_secs(60);
const KILL_BYTES: u64 = 4 << 30;

/// The number of printed examples per failure.
const EXAMPLES: usize = 6;

/// The options of the command line.
#[derive(Clone)]
struct Options {
    seed: u64,
    count: u64,
    start: u64,
    depth: usize,
    order: usize,
    jobs: u64,
    is_child: bool,
    is_single: bool,
}

impl Options {
    fn parse(arguments: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut options =
            Options { seed: 1, count: 1000, start: 0, depth: 4, order: 4, jobs: 1, is_child: false, is_single: false };
        let mut arguments = arguments;
        while let Some(name) = arguments.next() {
            if name == "--child" {
                options.is_child = true;
                continue;
            }
            let value = arguments.next().ok_or_else(|| format!("{name} must have a value"))?;
            let number = value.parse::<u64>().map_err(|_| format!("{name} must be a number, got {value}"))?;
            match name.as_str() {
                "--seed" => options.seed = number,
                "--count" => options.count = number,
                "--start" => options.start = number,
                "--depth" => options.depth = number.max(1) as usize,
                "--order" => options.order = number.max(1) as usize,
                "--jobs" => options.jobs = number.max(1),
                "--only" => (options.start, options.count, options.is_single) = (number, 1, true),
                _ => return Err(format!("unknown argument {name}")),
            }
        }
        Ok(options)
    }
}

thread_local! {
    /// Message and location of the last panic.
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// The result of checking an expression.
enum Outcome {
    Fine(DerivativeReport),
    /// The operation has no derivative of this order, as its error states.
    Missing(String),
    Failed {
        /// Failures of one kind have equal keys.
        key: String,
        detail: String,
    },
}

/// Replaces digits by `#`, so that messages that differ only in numbers become equal.
fn without_numbers(message: &str) -> String {
    let mut short = String::new();
    for c in message.chars().take(160) {
        if !c.is_ascii_digit() {
            short.push(c);
        } else if !short.ends_with('#') {
            short.push('#');
        }
    }
    short
}

/// Checks one expression at its leaves.
fn check_derivatives(
    expression: &Expression,
    leaves: &[(Vec<usize>, Vec<f64>)],
    options: &Options,
    number: u64,
) -> Outcome {
    let run = || -> Result<DerivativeReport, DerivativeFailure> {
        let function = |x: &[pellucid::Tensor]| expression.evaluate(x);
        let mut random = SplitMix64::new(options.seed ^ number);
        let problem = DerivativeProblem::new(&function, leaves, options.order, &mut random);
        let problem = problem.map_err(|error| DerivativeFailure { order: 0, error })?;
        problem.summed(number % 2 == 1).check()
    };
    match catch_unwind(AssertUnwindSafe(run)) {
        Err(payload) => {
            let place = LAST_PANIC.take();
            let typed = payload.downcast_ref::<Error>().map(|e| e.to_string()).unwrap_or_default();
            Outcome::Failed { key: format!("panic {}", without_numbers(&format!("{place} {typed}"))), detail: place }
        }
        Ok(Err(DerivativeFailure { error: Error::NoGradient { op }, .. })) => Outcome::Missing(op.to_string()),
        Ok(Err(DerivativeFailure { order, error })) => {
            let key = format!("error {}", without_numbers(&error.to_string()));
            Outcome::Failed { key, detail: format!("order {order}: {error}") }
        }
        Ok(Ok(DerivativeReport { wrong: Some((order, reason)), .. })) => {
            Outcome::Failed { key: format!("wrong value of order {order}"), detail: reason }
        }
        Ok(Ok(checked)) => match checked.untracked {
            Some(order) => Outcome::Failed {
                key: "a constant gradient cannot be differentiated again".into(),
                detail: format!("order {order}"),
            },
            None => Outcome::Fine(checked),
        },
    }
}

/// Minimizes an expression that fails: applies single changes as long as it fails with the same key.
fn shrink(case: &Case, key: &str, options: &Options, number: u64) -> Expression {
    let mut smallest = case.expression.clone();
    let start = Instant::now();
    'again: loop {
        let mut candidates = smallest.smaller();
        candidates.sort_by_key(Expression::size);
        for candidate in candidates.into_iter().filter(|e| e.size() < smallest.size()) {
            if start.elapsed() > Duration::from_secs(20) {
                return smallest;
            }
            if matches!(check_derivatives(&candidate, &case.leaves, options, number), Outcome::Failed { key: k, .. } if k == key)
            {
                smallest = candidate;
                continue 'again;
            }
        }
        return smallest;
    }
}

/// Checks the expression with this index, and returns its output line.
fn line(options: &Options, number: u64, counts: &mut BTreeMap<String, usize>) -> Value {
    memory::reset_peak();
    let before = memory::resident().0;
    let start = Instant::now();
    let grown = catch_unwind(AssertUnwindSafe(|| Case::new(options.seed, number, options.depth)));
    let Ok(case) = grown else {
        let key = format!("panic {}", without_numbers(&LAST_PANIC.take()));
        return json!({ "number": number, "key": key, "text": "while the expression was generated" });
    };
    let outcome = check_derivatives(&case.expression, &case.leaves, options, number);
    let total = start.elapsed().as_secs_f64();
    let peak = memory::resident().1.saturating_sub(before);
    let rejected: Vec<String> = case.rejected.iter().map(|(op, error)| format!("{op}: {error}")).collect();
    let mut line = json!({
        "number": number, "total": total, "peak": peak, "rejected": rejected, "size": case.expression.size(),
    });
    match outcome {
        Outcome::Fine(checked) => {
            let seconds: f64 = checked.times.iter().map(Duration::as_secs_f64).sum();
            (line["seconds"], line["agreed"], line["skipped"]) =
                (seconds.into(), checked.agreed.into(), checked.skipped.into());
            if seconds > MAX_SECONDS || peak > MAX_BYTES {
                line["key"] = "too slow or too large".into();
                line["detail"] = format!("{seconds:.1} s, {} MB", peak >> 20).into();
            }
        }
        Outcome::Missing(op) => line["missing"] = op.into(),
        Outcome::Failed { key, detail } => {
            let times = counts.entry(key.clone()).or_default();
            *times += 1;
            if *times <= EXAMPLES {
                let small = shrink(&case, &key, options, number);
                line["text"] = format!("{}  -- minimized: {small}", case.expression).into();
            }
            (line["key"], line["detail"]) = (key.into(), detail.into());
        }
    }
    line
}

/// Prints a line for every expression.
fn child(options: &Options) {
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(|l| format!("{}:{}", l.file(), l.line())).unwrap_or_default();
        let payload = info.payload();
        let text = payload.downcast_ref::<String>().cloned();
        let text = text.or_else(|| payload.downcast_ref::<&str>().map(|s| s.to_string())).unwrap_or_default();
        LAST_PANIC.set(format!("{place}: {text}"));
    }));
    let mut counts = BTreeMap::new();
    for number in options.start..options.start + options.count {
        println!("begin {number}");
        std::io::stdout().flush().expect("standard output must be written");
        println!("end {}", line(options, number, &mut counts));
    }
    println!("done");
}

/// The results of a range of expressions.
#[derive(Default)]
struct FuzzSummary {
    expressions: u64,
    agreed: u64,
    skipped: u64,
    /// The number of failures and some examples, by the key of the failure.
    failures: BTreeMap<String, (u64, Vec<String>)>,
    missing: BTreeMap<String, u64>,
    rejected: BTreeMap<String, u64>,
    /// The maximum seconds and bytes, with the indices of their expressions.
    slowest: (f64, u64),
    slowest_with_differences: (f64, u64),
    largest: (u64, u64),
}

impl FuzzSummary {
    fn fail(&mut self, key: String, example: String) {
        let (count, examples) = self.failures.entry(key).or_default();
        *count += 1;
        if examples.len() < EXAMPLES {
            examples.push(example);
        }
    }

    fn add(&mut self, line: &Value) {
        let number = line["number"].as_u64().unwrap_or(0);
        self.expressions += 1;
        self.agreed += line["agreed"].as_u64().unwrap_or(0);
        self.skipped += line["skipped"].as_u64().unwrap_or(0);
        let larger = |a: (f64, u64), b: f64| if b > a.0 { (b, number) } else { a };
        self.slowest = larger(self.slowest, line["seconds"].as_f64().unwrap_or(0.0));
        self.slowest_with_differences = larger(self.slowest_with_differences, line["total"].as_f64().unwrap_or(0.0));
        self.largest = self.largest.max((line["peak"].as_u64().unwrap_or(0), number));
        for rejected in line["rejected"].as_array().into_iter().flatten() {
            *self.rejected.entry(rejected.as_str().unwrap_or_default().to_string()).or_default() += 1;
        }
        if let Some(op) = line["missing"].as_str() {
            *self.missing.entry(op.to_string()).or_default() += 1;
        }
        if let Some(key) = line["key"].as_str() {
            let text = |name: &str| line[name].as_str().unwrap_or_default().to_string();
            self.fail(key.to_string(), format!("--only {number}: {}\n      {}", text("detail"), text("text")));
        }
    }

    fn merge(&mut self, other: FuzzSummary) {
        self.expressions += other.expressions;
        self.agreed += other.agreed;
        self.skipped += other.skipped;
        for (key, (count, examples)) in other.failures {
            let entry = self.failures.entry(key).or_default();
            entry.0 += count;
            entry.1.extend(examples);
            entry.1.truncate(EXAMPLES);
        }
        for (key, count) in other.missing {
            *self.missing.entry(key).or_default() += count;
        }
        for (key, count) in other.rejected {
            *self.rejected.entry(key).or_default() += count;
        }
        let larger = |a: (f64, u64), b: (f64, u64)| if b.0 > a.0 { b } else { a };
        self.slowest = larger(self.slowest, other.slowest);
        self.slowest_with_differences = larger(self.slowest_with_differences, other.slowest_with_differences);
        self.largest = self.largest.max(other.largest);
    }

    fn print(&self, options: &Options) {
        for (key, (count, examples)) in &self.failures {
            println!("FAILED {count} times: {key}");
            examples.iter().for_each(|e| println!("    {e}"));
        }
        for (op, count) in &self.missing {
            println!("no derivative of some order, {count} times: {op}");
        }
        for (error, count) in &self.rejected {
            println!("rejected while expressions were generated, {count} times: {error}");
        }
        let failures: u64 = self.failures.values().map(|(count, _)| count).sum();
        println!(
            "seed {}, depth {}, order {}: {} expressions, {failures} failed, {} derivatives agree, {} not compared; \
             slowest {:.3} s (number {}), with differences {:.1} s (number {}), largest {} MB (number {})",
            options.seed,
            options.depth,
            options.order,
            self.expressions,
            self.agreed,
            self.skipped,
            self.slowest.0,
            self.slowest.1,
            self.slowest_with_differences.0,
            self.slowest_with_differences.1,
            self.largest.0 >> 20,
            self.largest.1,
        );
    }
}

/// Runs a range of expressions in child processes; a new process starts after each expression that ends its process.
fn supervise(options: &Options) -> FuzzSummary {
    let (mut summary, mut next, end) = (FuzzSummary::default(), options.start, options.start + options.count);
    while next < end {
        let program = std::env::current_exe().expect("the operating system must report the path of this program");
        let numbers = [
            ("--seed", options.seed),
            ("--start", next),
            ("--count", end - next),
            ("--depth", options.depth as u64),
            ("--order", options.order as u64),
        ];
        let arguments = numbers.iter().flat_map(|(name, value)| [name.to_string(), value.to_string()]);
        let mut process = Command::new(program)
            .args(arguments)
            .arg("--child")
            .env("PELLUCID_NUM_THREADS", "1")
            .stdout(Stdio::piped())
            .spawn()
            .expect("the child process must be started");
        let (sender, lines) = channel();
        let output = BufReader::new(process.stdout.take().expect("the child's output must be piped"));
        let reader = std::thread::spawn(move || {
            output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line).map_err(drop)).ok();
        });
        let id = process.id().to_string();
        let mut since = Instant::now();
        let ended = loop {
            match lines.recv_timeout(Duration::from_millis(100)) {
                Ok(line) if line == "done" => break None,
                Ok(line) => {
                    since = Instant::now();
                    if let Some(result) = line.strip_prefix("end ") {
                        summary.add(&serde_json::from_str(result).expect("the child must print every result as JSON"));
                        next += 1;
                    }
                }
                Err(RecvTimeoutError::Timeout) if since.elapsed() > KILL_AFTER => break Some("more than a minute"),
                Err(RecvTimeoutError::Timeout) if memory::resident_of(&id).0 > KILL_BYTES => break Some("memory"),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break Some("the process ended"),
            }
        };
        let _ = process.kill();
        let status = process.wait().map(|s| s.to_string()).unwrap_or_default();
        reader.join().expect("the thread that reads the child's output did not panic");
        let Some(reason) = ended else { break };
        summary.expressions += 1;
        summary.fail(format!("killed: {reason}"), format!("--only {next}: {status}"));
        next += 1;
    }
    summary
}

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(reason) => {
            eprintln!("{reason}");
            return ExitCode::from(2);
        }
    };
    if options.is_child {
        child(&options);
        return ExitCode::SUCCESS;
    }
    if options.is_single {
        println!("{}", Case::new(options.seed, options.start, options.depth).expression);
    }
    let each = options.count.div_ceil(options.jobs);
    let ranges: Vec<Options> = (0..options.jobs)
        .map(|k| {
            let start = options.start + k * each;
            let end = (start + each).min(options.start + options.count);
            Options { start, count: end.saturating_sub(start), ..options.clone() }
        })
        .collect();
    let mut summary = FuzzSummary::default();
    std::thread::scope(|scope| {
        let children: Vec<_> = ranges.iter().map(|range| scope.spawn(|| supervise(range))).collect();
        children.into_iter().for_each(|c| summary.merge(c.join().expect("the supervising thread did not panic")));
    });
    summary.print(&options);
    if summary.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derivatives_of_a_hundred_expressions_agree_with_differences() {
        let arguments = ["--seed", "7", "--count", "100", "--depth", "3", "--order", "3"].map(String::from);
        let options = Options::parse(arguments.into_iter()).expect("the options must be valid");
        let mut summary = FuzzSummary::default();
        let mut counts = BTreeMap::new();
        (0..options.count).for_each(|number| summary.add(&line(&options, number, &mut counts)));
        assert!(summary.failures.is_empty(), "{:#?}", summary.failures);
        assert!(summary.agreed > 200, "only {} derivatives were compared", summary.agreed);
    }
}
