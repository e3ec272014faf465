//! Benchmarks of Pellucid: runs workloads and prints one JSON line per workload.
//!
//! ```text
//! pellucid-bench [--threads N] [--only W3,W6] [--device NAME]
//! pellucid-bench --vs "python bench/torch_operations.py {}" [--rounds 5] [--only attention]
//! pellucid-bench --sweep [--vs "python bench/sweep.py"] [--rounds 5] [--largest 1] [--only softmax,cumsum]
//! ```
//!
//! A line contains `peer` ("pellucid"), `workload`, `variant` ("" for separate eager operations, "formula" for one
//! `formula!`, "captured" for a replayed step, "steps" for a Hessian-vector product by two calls of `grad` instead of
//! `hvp`), `median_us`, `min_us`, `p25_us`, `p75_us`, `n`, `first_call_s`, `threads`, `peak_rss_mb`, and `share`: the
//! fraction of the machine's peak that the lower quartile reaches. `ceiling` names the peak: "fma" (arithmetic), "copy"
//! or "read" (bandwidth), measured at the start of the run. Every workload runs in a new process. The environment
//! variable `BUDGET_S` (default 2) is the time per workload in seconds.
//!
//! With `--vs`, Pellucid and another program run alternately, workload by workload. The name of the workload replaces
//! `{}` in the command (or is the last argument), and the program prints lines of the same form. The output is the
//! median over the rounds of the ratio of lower quartiles, Pellucid / other program.
//!
//! With `--device`, the workloads `W..` run on another device, and a call is timed until the device has done its work.
//! There is no `share` then.
//!
//! With `--sweep`, every operation runs at three sizes (`--largest` is the largest, 0, 1 or 2), in several layouts,
//! axes and dtypes, forward and with its gradient, alternating with a PyTorch process. Each case prints a line with
//! microseconds and the ratio; a Markdown summary follows.
#![deny(unsafe_code)]
#![allow(clippy::print_stdout, reason = "this program prints its results to standard output")]

mod ceilings;
mod elementwise;
mod harness;
mod matmul;
mod models;
mod operations;
mod place;
mod rows;
mod sequence;
mod small;
mod train;
mod training;
mod versus;
mod vision;

use ceilings::Ceilings;
use harness::Workload;
use pellucid_bench::sweep::{self, SweepOptions};
use std::process::{Command, ExitCode, Stdio};

/// The parsed command line.
#[derive(Default)]
struct Arguments {
    threads: usize,
    only: Vec<String>,
    /// The name of the device of the workloads.
    device: Option<String>,
    child: Option<String>,
    vs: Option<String>,
    rounds: usize,
    /// Whether single operations are swept.
    sweep: bool,
    largest: usize,
}

impl Arguments {
    fn parse() -> Result<Arguments, String> {
        let mut parsed = Arguments { threads: 1, rounds: 5, largest: 2, ..Arguments::default() };
        let mut given = std::env::args().skip(1);
        while let Some(name) = given.next() {
            if name == "--sweep" {
                parsed.sweep = true;
                continue;
            }
            let value = given.next().ok_or_else(|| format!("{name} must have a value"))?;
            let number =
                || value.parse::<usize>().ok().filter(|&n| n > 0).ok_or(format!("{name} must be a count, got {value}"));
            match name.as_str() {
                "--threads" => parsed.threads = number()?,
                "--rounds" => parsed.rounds = number()?,
                "--largest" => {
                    let largest = value.parse().ok().filter(|&step| step <= 2);
                    parsed.largest = largest.ok_or(format!("{name} must have 0, 1 or 2, got {value}"))?;
                }
                "--only" => parsed.only.extend(value.split(',').map(String::from)),
                "--child" => parsed.child = Some(value),
                "--vs" => parsed.vs = Some(value),
                "--device" => {
                    place::set_device(&value)?;
                    parsed.device = Some(value);
                }
                _ => return Err(format!("unknown argument {name}")),
            }
        }
        match parsed.sweep && place::accelerator().is_some() {
            true => Err("the sweep runs on the CPU".into()),
            false => Ok(parsed),
        }
    }

    /// Returns true if the workload is selected: `W3` selects all variants of `W3`, `W7` also `W7-softmax`. Only the
    /// workloads `W..` run on other devices.
    fn wants(&self, workload: &Workload) -> bool {
        if place::accelerator().is_some() && !workload.id.starts_with('W') {
            return false;
        }
        let asks = |only: &String| {
            workload.key() == *only
                || workload.id == only
                || workload.id.strip_prefix(only.as_str()).is_some_and(|r| r.starts_with('-'))
        };
        self.only.is_empty() || self.only.iter().any(asks)
    }
}

fn workloads() -> Vec<Workload> {
    let groups = [
        small::workloads(),
        train::workloads(),
        sequence::workloads(),
        vision::workloads(),
        elementwise::workloads(),
        rows::workloads(),
        matmul::workloads(),
        operations::workloads(),
        models::workloads(),
    ];
    groups.concat()
}

fn main() -> ExitCode {
    let arguments = match Arguments::parse() {
        Ok(arguments) => arguments,
        Err(reason) => {
            eprintln!(
                "{reason}\nusage: pellucid-bench [--sweep [--largest 1]] [--threads N] [--only W3,W6] [--vs COMMAND] \
                 [--rounds N] [--device NAME]"
            );
            return ExitCode::from(2);
        }
    };
    if let Some(key) = &arguments.child {
        let workload = workloads()
            .into_iter()
            .find(|w| w.key() == *key)
            .expect("the argument of a child must be the key of a workload");
        println!("{}", harness::run_workload(&workload, arguments.threads, Ceilings::from_env()));
        return ExitCode::SUCCESS;
    }
    if arguments.sweep {
        return sweep(arguments);
    }
    let chosen: Vec<Workload> = workloads().into_iter().filter(|w| arguments.wants(w)).collect();
    let ceilings = place::accelerator().is_none().then(|| Ceilings::measure(arguments.threads));
    if let Some(ceilings) = ceilings {
        println!("{}", ceilings.to_json_line(arguments.threads));
    }
    match &arguments.vs {
        Some(_) => versus::compare_programs(&chosen, &arguments, ceilings),
        None => chosen.iter().for_each(|w| println!("{}", in_fresh_process(w, &arguments, ceilings))),
    }
    ExitCode::SUCCESS
}

/// Times every operation, compared with the program of `--vs`, in a process with the given number of threads.
fn sweep(arguments: Arguments) -> ExitCode {
    let Arguments { threads, only, vs: peer, rounds, largest, .. } = arguments;
    const VARIABLE: &str = "PELLUCID_NUM_THREADS";
    if std::env::var(VARIABLE).ok() != Some(threads.to_string()) {
        let program = std::env::current_exe().expect("the operating system must report the path of this program");
        let mut process = Command::new(program);
        process.args(std::env::args().skip(1)).env(VARIABLE, threads.to_string()).env("THREADS", threads.to_string());
        return match process.status() {
            Ok(status) if status.success() => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        };
    }
    let ceilings = Ceilings::measure(threads);
    println!("{}", ceilings.to_json_line(threads));
    let options = SweepOptions { only, peer, rounds, copy_bandwidth: ceilings.copy_bandwidth(), largest };
    match sweep::run_sweep(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the sweep has ended: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a workload in a new process and returns its line.
fn in_fresh_process(workload: &Workload, arguments: &Arguments, ceilings: Option<Ceilings>) -> String {
    let threads = arguments.threads.to_string();
    let program = std::env::current_exe().expect("the operating system must report the path of this program");
    let output = Command::new(program)
        .args(["--child", &workload.key(), "--threads", &threads])
        .args(arguments.device.iter().flat_map(|name| ["--device", name]))
        .env("PELLUCID_NUM_THREADS", &threads)
        .envs(ceilings.map(|ceilings| (ceilings::VARIABLE, ceilings.to_env())))
        .stderr(Stdio::inherit())
        .output();
    let failed = |why: String| harness::unsupported(workload, &why);
    match output {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim().to_string(),
        Ok(output) => failed(format!("the process ended with {}", output.status)),
        Err(error) => failed(error.to_string()),
    }
}
