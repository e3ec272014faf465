//! Measures the highest order to which each operation can be differentiated, with time and memory, as a Markdown table.
//!
//! ```text
//! derivative_orders [--only softmax] [--torch FILE]
//! ```
//!
//! Elementwise operations are tested on 8 elements to order 12, within 2 s and 500 MB. All others, and formulas of more
//! than three variables, are tested on `[2, 3]` or the smallest sensible shape to order 8, within 5 s. All incoming
//! gradients are random. Values are compared with finite differences of the next lower order. The time covers the
//! function and all orders; the size is the length of the longest formula, in instructions. FILE contains the output of
//! `derivative_orders.py`. Every operation runs in a new process. The exit status is 1 if an operation exceeds its
//! limits or disagrees.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "this program prints its table to standard output")]

use pellucid::engine::{Passes, kernel::Kernel};
use pellucid::{CaptureOptions, Error, Tensor, capture_local_with};
use pellucid_bench::derivatives::catalogue::{CatalogueOperation, OperationFamily, operations};
use pellucid_bench::derivatives::check::{DerivativeFailure, DerivativeProblem, DerivativeReport, leaves_in};
use pellucid_bench::derivatives::memory;
use pellucid_bench::derivatives::random::SplitMix64;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// The limits at which a process is killed.
const KILL_AFTER: Duration = Duration::from_secs(120);
const KILL_BYTES: u64 = 8 << 30;

/// Returns the requirement for an operation: order, seconds and megabytes. A formula of six variables has 6,188
/// different derivatives of order 12, so it is tested to order 8.
fn limits(operation: &CatalogueOperation) -> (usize, f64, f64) {
    match operation.family {
        OperationFamily::Elementwise if operation.inputs.len() > 3 => (8, 5.0, 1024.0),
        OperationFamily::Elementwise => (12, 2.0, 500.0),
        _ => (8, 5.0, 1024.0),
    }
}

/// Returns the shape of the operands.
fn shape(family: OperationFamily) -> &'static [usize] {
    if family == OperationFamily::Elementwise { &[8] } else { &[2, 3] }
}

/// Returns the number of instructions of the longest formula among the kernels of the function and its gradients.
fn formula_size(problem: &DerivativeProblem<'_>, leaves: &[Tensor], order: usize) -> Option<usize> {
    let inputs: Vec<&Tensor> = leaves.iter().collect();
    let step = |inputs: &[Tensor]| {
        let gradients = problem.gradients(inputs, order, &mut DerivativeReport::default());
        // The capture reports an error as a panic of its closure.
        gradients.unwrap_or_else(|failure| panic!("{}", failure.error)).pop().expect("every order must have gradients")
    };
    let options = CaptureOptions { passes: Passes::none(), ..CaptureOptions::default() };
    let captured = catch_unwind(AssertUnwindSafe(|| capture_local_with(options, step, &inputs))).ok()?.ok()?;
    let sizes = captured.plan().launches.iter().map(|launch| match &launch.kernel {
        Kernel::Map(map) => map.program.steps.len(),
        Kernel::Reduce(reduce) => reduce.program.steps.len(),
        Kernel::Row(row) => row.program.steps.len(),
        _ => 0,
    });
    sizes.max()
}

/// Differentiates an operation to the highest order that succeeds, and returns its output line.
fn measure(operation: &CatalogueOperation) -> Value {
    let (limit, ..) = limits(operation);
    let mut random = SplitMix64::new(operation.name.bytes().map(u64::from).sum());
    let leaves = leaves_in(shape(operation.family), &operation.inputs, &mut random);
    let function = |x: &[Tensor]| operation.apply(x, 5);
    let (mut order, mut reason) = (limit, String::new());
    loop {
        memory::reset_peak();
        let before = memory::resident().0;
        let mut directions = random.clone();
        let run = || -> Result<(DerivativeReport, Option<usize>, f64), DerivativeFailure> {
            let problem = DerivativeProblem::new(&function, &leaves, order, &mut directions);
            let problem = problem.map_err(|error| DerivativeFailure { order: 0, error })?;
            let points: Vec<Tensor> = leaves.iter().map(|(shape, v)| Tensor::new(&v[..], &shape[..])).collect();
            // The first run compiles formulas, so it measures the time that a program observes.
            let mut timed = DerivativeReport::default();
            problem.gradients(&points, order, &mut timed)?;
            let peak = (memory::resident().1.saturating_sub(before) >> 10) as f64 / 1024.0;
            let checked = DerivativeReport { times: timed.times, ..problem.check()? };
            Ok((checked, formula_size(&problem, &points, order), peak))
        };
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok((checked, size, peak))) => {
                if let Some((k, detail)) = checked.wrong {
                    reason = format!("order {k}: {detail}");
                }
                let seconds: f64 = checked.times.iter().map(Duration::as_secs_f64).sum();
                return json!({
                    "operation": operation.name, "order": order, "checked": checked.highest, "seconds": seconds,
                    "megabytes": peak, "size": size, "reason": reason,
                });
            }
            Ok(Err(DerivativeFailure { error: Error::NoGradient { op }, .. })) => {
                return json!({ "operation": operation.name, "order": 0, "missing": op });
            }
            Ok(Err(failure)) => {
                reason = format!("order {}: {}", failure.order, failure.error);
                order = failure.order.min(order).saturating_sub(1);
            }
            Err(_) => {
                reason = format!("order {order} panics");
                order -= 1;
            }
        }
        if order == 0 {
            return json!({ "operation": operation.name, "order": 0, "reason": reason });
        }
    }
}

/// Runs [`measure`] in a new process.
fn measure_in_process(number: usize) -> Value {
    let failed = |reason: &str| json!({ "operation": operations()[number].name, "order": 0, "reason": reason });
    let program = std::env::current_exe().expect("the operating system must report the path of this program");
    let process = Command::new(program)
        .args(["--child", &number.to_string()])
        .env("PELLUCID_NUM_THREADS", "1")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut process = match process {
        Ok(process) => process,
        Err(error) => return failed(&error.to_string()),
    };
    let start = Instant::now();
    loop {
        std::thread::sleep(Duration::from_millis(5));
        if process.try_wait().ok().flatten().is_some() {
            break;
        }
        if start.elapsed() > KILL_AFTER || memory::resident_of(&process.id().to_string()).0 > KILL_BYTES {
            let _ = process.kill();
            let _ = process.wait();
            return failed("killed: too slow or too large");
        }
    }
    let output = process.wait_with_output().map(|o| o.stdout).unwrap_or_default();
    serde_json::from_slice(&output).unwrap_or_else(|_| failed("the process ended"))
}

/// Reads the orders and seconds per operation that `derivative_orders.py` printed.
fn torch_times(path: &str) -> Result<HashMap<String, (u64, f64)>, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let entry = |line: Value| {
        Some((line["operation"].as_str()?.to_string(), (line["order"].as_u64()?, line["seconds"].as_f64()?)))
    };
    Ok(lines.filter_map(entry).collect())
}

/// Returns a row of the table, and true if the operation is within its limits.
fn row(operation: &CatalogueOperation, line: &Value, torch: &HashMap<String, (u64, f64)>) -> (String, bool) {
    let name = operation.name;
    if let Some(op) = line["missing"].as_str() {
        return (format!("| {name} | no derivative: `{op}` | | | | | |"), true);
    }
    let (limit, most_seconds, most_megabytes) = limits(operation);
    let (order, checked) = (line["order"].as_u64().unwrap_or(0), line["checked"].as_u64().unwrap_or(0));
    let (seconds, megabytes) = (line["seconds"].as_f64().unwrap_or(0.0), line["megabytes"].as_f64().unwrap_or(0.0));
    let reason = line["reason"].as_str().unwrap_or_default();
    let size = line["size"].as_u64().map_or("-".to_string(), |n| n.to_string());
    let torch = torch.get(name).map_or(String::new(), |(order, seconds)| format!("{seconds:.3} to order {order}"));
    let fits = order >= limit as u64 && seconds <= most_seconds && megabytes <= most_megabytes && reason.is_empty();
    let row = format!("| {name} | {order} | {checked} | {seconds:.3} | {megabytes:.0} | {size} | {torch} | {reason} |");
    (row, fits)
}

fn main() -> ExitCode {
    let (mut only, mut torch) = (String::new(), HashMap::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().unwrap_or_default();
        match name.as_str() {
            "--only" => only = value,
            "--torch" => match torch_times(&value) {
                Ok(times) => torch = times,
                Err(reason) => {
                    eprintln!("{reason}");
                    return ExitCode::from(2);
                }
            },
            "--child" => {
                let number: usize = value.parse().expect("the argument of --child must be the number of an operation");
                println!("{}", measure(&operations()[number]));
                return ExitCode::SUCCESS;
            }
            _ => {
                eprintln!("unknown argument {name}");
                return ExitCode::from(2);
            }
        }
    }
    println!("| operation | order | compared to order | seconds | MB | instructions | PyTorch, seconds | |");
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    let mut failed = Vec::new();
    for (number, operation) in operations().iter().enumerate().filter(|(_, o)| o.name.contains(&only)) {
        let (row, fits) = row(operation, &measure_in_process(number), &torch);
        println!("{row}");
        if !fits {
            failed.push(operation.name);
        }
    }
    println!("\n{} operations are outside their limits: {}", failed.len(), failed.join(", "));
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
