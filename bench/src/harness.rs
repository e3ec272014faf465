//! Timing of workloads, and their output lines.

use crate::ceilings::Ceilings;
use crate::place;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// A workload to time.
#[derive(Clone)]
pub(crate) struct Workload {
    /// The name of the workload: `W3`.
    pub(crate) id: &'static str,
    /// The variant, or "" for eager operations.
    pub(crate) variant: &'static str,
    /// Prepares a run.
    pub(crate) build: fn() -> Run,
}

/// A prepared workload that can run repeatedly.
pub(crate) struct Run {
    /// Runs the workload `inner` times.
    body: Box<dyn FnMut()>,
    inner: usize,
    work: Work,
}

/// The minimum work of a run, from which the fraction of the peak is computed.
#[derive(Clone, Copy)]
pub(crate) enum Work {
    /// The work is unknown, for example for many small kernels.
    Overhead,
    /// Floating-point operations; a multiplication and an addition count as two.
    Flops(f64),
    /// Bytes that are read.
    Read(f64),
    /// Bytes that are read and written.
    Copy(f64),
}

impl Run {
    pub(crate) fn new(work: Work, body: impl FnMut() + 'static) -> Run {
        Run { body: Box::new(body), inner: 1, work }
    }

    /// The body runs the workload `inner` times.
    pub(crate) fn repeated(self, inner: usize) -> Run {
        Run { inner, ..self }
    }
}

impl Workload {
    pub(crate) fn new(id: &'static str, variant: &'static str, build: fn() -> Run) -> Workload {
        Workload { id, variant, build }
    }

    /// `W6` or `W6/formula`.
    pub(crate) fn key(&self) -> String {
        if self.variant.is_empty() { self.id.to_string() } else { format!("{}/{}", self.id, self.variant) }
    }
}

/// Builds, warms up and times a workload, and returns its output line.
pub(crate) fn run_workload(workload: &Workload, threads: usize, ceilings: Option<Ceilings>) -> String {
    let Run { mut body, inner, work } = (workload.build)();
    let first = timed(&mut body);
    warm(&mut body);
    let mut times = measure(&mut body, inner);
    times.sort_by(f64::total_cmp);
    let [p25, median, p75] = quartiles(&times);
    let mut line = json!({
        "peer": "pellucid", "workload": workload.id, "variant": workload.variant,
        "median_us": rounded(median, 3), "min_us": rounded(times[0], 3), "n": times.len(),
        "p25_us": rounded(p25, 3), "p75_us": rounded(p75, 3),
        "first_call_s": rounded(first.as_secs_f64(), 3), "threads": threads, "peak_rss_mb": peak_rss_mb(),
    });
    if let Some((name, share)) = ceilings.and_then(|c| c.share(work, p25 * 1e-6)) {
        line["ceiling"] = name.into();
        line["share"] = rounded(share, 3);
    }
    line.to_string()
}

/// Returns the output line of a failed workload.
pub(crate) fn unsupported(workload: &Workload, why: &str) -> String {
    json!({ "peer": "pellucid", "workload": workload.id, "variant": workload.variant, "unsupported": why }).to_string()
}

fn timed(body: &mut dyn FnMut()) -> Duration {
    let start = Instant::now();
    body();
    place::finish();
    start.elapsed()
}

/// Makes at least two calls, then continues until 0.3 s or 500 calls are reached.
fn warm(body: &mut dyn FnMut()) {
    let start = Instant::now();
    let mut calls = 0;
    while calls < 2 || (start.elapsed().as_secs_f64() < 0.3 && calls < 500) {
        body();
        place::finish();
        calls += 1;
    }
}

/// Returns the microseconds per run. Makes at least 5 calls, then continues until the budget or 3000 calls are reached.
fn measure(body: &mut dyn FnMut(), inner: usize) -> Vec<f64> {
    let budget = budget();
    let mut times = Vec::new();
    let start = Instant::now();
    while times.len() < 5 || (start.elapsed() < budget && times.len() < 3000) {
        times.push(timed(body).as_secs_f64() * 1e6 / inner as f64);
    }
    times
}

/// Returns `BUDGET_S`, or two seconds if it is not set.
fn budget() -> Duration {
    let seconds = std::env::var("BUDGET_S").ok().and_then(|s| s.parse().ok()).unwrap_or(2.0);
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_secs(2))
}

/// Returns the quartiles of sorted values, interpolated by the "exclusive" method of Python's `statistics.quantiles`.
pub(crate) fn quartiles(sorted: &[f64]) -> [f64; 3] {
    [1, 2, 3].map(|quarter| {
        let place = quarter as f64 * (sorted.len() + 1) as f64 / 4.0 - 1.0;
        let place = place.clamp(0.0, (sorted.len() - 1) as f64);
        let (low, rest) = (place.floor() as usize, place.fract());
        let high = (low + 1).min(sorted.len() - 1);
        sorted[low] + (sorted[high] - sorted[low]) * rest
    })
}

pub(crate) fn rounded(value: f64, digits: i32) -> Value {
    let scale = 10f64.powi(digits);
    json!((value * scale).round() / scale)
}

/// Returns the peak memory of the process as reported by Linux, or null on other systems.
fn peak_rss_mb() -> Value {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.trim().strip_suffix("kB")?.trim().parse::<f64>().ok());
    kib.map_or(Value::Null, |kib| rounded(kib / 1024.0, 1))
}
