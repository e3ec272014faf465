//! Operations compared with reference data: outputs, gradients of three orders, forward mode and errors, in `f64` and
//! `f32`. Strided inputs, lazy and captured execution must be bit-identical.
//!
//! `data/README.md` describes the data. A binding maps an operation name of the data (or of other data of this kind) to
//! an operation of Pellucid; a name without a binding is missing. `expected.txt` lists the operations that pass every
//! case. The test fails if a listed operation fails, or an unlisted operation passes.
//!
//! The table: `cargo test -p pellucid --test conformance -- --nocapture`.

mod bindings;
mod call;
mod check;
mod data;
mod differences;
mod index;
mod steps;
mod table;
mod wrong;

use bindings::Table;
use data::Case;
use differences::is_deliberate;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use table::Line;

/// Returns the test data without the third-order gradients that differ deliberately.
fn cases() -> &'static [Case] {
    static CASES: OnceLock<Vec<Case>> = OnceLock::new();
    CASES.get_or_init(|| {
        let mut cases = data::load();
        for operation in cases.iter_mut().map(|case| &mut case.operation) {
            for sample in &mut operation.samples {
                if ["g3".to_string(), format!("{}.g3", sample.key)]
                    .iter()
                    .any(|key| is_deliberate(&operation.name, key))
                {
                    sample.levels[2] = index::Level::Absent;
                }
            }
        }
        cases
    })
}

#[test]
fn operations_agree_with_the_data() {
    let (cases, bindings) = (cases(), bindings::all());
    let (next, lines) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, |n| n.get()) {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let line = line(case, &bindings);
                    lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
                }
            });
        }
    });
    let mut lines = lines.into_inner().unwrap_or_else(PoisonError::into_inner);
    lines.sort_by(|a, b| a.name.cmp(&b.name));
    table::print(&lines);
    let wrong = table::differences(&lines, include_str!("expected.txt"));
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Runs the same samples in single precision on the first GPU, deferred. Some operations run partly on the CPU;
/// `docs/wgpu.md` lists them.
#[cfg(any(feature = "cuda", feature = "wgpu"))]
#[test]
#[ignore = "compiles several thousand shaders"]
fn operations_agree_with_the_data_on_a_gpu() {
    let device = pellucid::Device::gpu().unwrap();
    let (bindings, mut lines) = (bindings::all(), Vec::new());
    for case in cases() {
        let operation = &case.operation;
        let Some(binding) = bindings.get(operation.name.as_str()) else { continue };
        let mut line = Line { name: operation.name.clone(), bound: true, cases: 0, failures: Vec::new() };
        for sample in operation.samples.iter().filter(|sample| !is_deliberate(&operation.name, &sample.key)) {
            line.cases += 1;
            let verdict = check::sample_on(device, binding, case, sample);
            line.failures.extend(verdict.err().map(|why| format!("{}: {why}", sample.key)));
        }
        eprintln!("{}: {} of {} cases failed {:?}", line.name, line.failures.len(), line.cases, line.failures);
        lines.push(line);
    }
    let wrong: Vec<&Line> = lines.iter().filter(|line| !line.failures.is_empty()).collect();
    eprintln!("{} of {} operations pass", lines.len() - wrong.len(), lines.len());
    assert!(wrong.is_empty(), "{} operations fail", wrong.len());
}

/// Checks every case of an operation.
fn line(case: &Case, bindings: &Table) -> Line {
    let operation = &case.operation;
    let mut line = Line { name: operation.name.clone(), bound: false, cases: 0, failures: Vec::new() };
    let Some(binding) = bindings.get(operation.name.as_str()) else { return line };
    line.bound = true;
    let mut count = |label: String, result: Result<(), String>| {
        line.cases += 1;
        line.failures.extend(result.err().map(|why| format!("{label}: {why}")));
    };
    for sample in operation.samples.iter().filter(|sample| !is_deliberate(&operation.name, &sample.key)) {
        for (run, verdict) in check::sample(binding, case, sample) {
            count(format!("{} {run}", sample.key), verdict);
        }
    }
    for rejection in &operation.rejections {
        // Pellucid's operations have no `out` argument, so errors about `out` are not tested.
        let has_place = rejection.arguments.keywords.contains_key("out");
        if !has_place && !is_deliberate(&operation.name, &rejection.key) {
            count(rejection.key.clone(), check::rejected(binding, case, rejection));
        }
    }
    line
}
