//! Alternating runs of Pellucid and another program, so that a slow phase of the machine affects both.

use crate::Arguments;
use crate::ceilings::Ceilings;
use crate::harness::{Workload, quartiles, rounded};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::{Command, Stdio};

/// The lower quartiles of one program in every round, by variant or peer.
type Quartiles = BTreeMap<String, Vec<f64>>;

/// Runs every workload `rounds` times with both programs and prints the ratios.
pub(crate) fn compare_programs(workloads: &[Workload], arguments: &Arguments, ceilings: Option<Ceilings>) {
    let command = arguments.vs.as_deref().expect("the other program must be an argument");
    for same in workloads.chunk_by(|a, b| a.id == b.id) {
        let id = same[0].id;
        let (mut ours, mut theirs) = (Quartiles::new(), Quartiles::new());
        let mut rejected: Option<String> = None;
        for _ in 0..arguments.rounds {
            for workload in same {
                let line = crate::in_fresh_process(workload, arguments, ceilings);
                take(&line, "variant", &mut ours, &mut rejected);
            }
            match run_other(command, id, arguments.threads) {
                Ok(lines) => lines.lines().for_each(|line| take(line, "peer", &mut theirs, &mut rejected)),
                Err(error) => rejected = Some(error.to_string()),
            }
        }
        for (variant, own) in &ours {
            for (peer, other) in &theirs {
                println!("{}", compared(id, variant, peer, own, other));
            }
        }
        if ours.is_empty() || theirs.is_empty() {
            let why = rejected.unwrap_or_else(|| "no result".into());
            println!("{}", json!({ "workload": id, "unsupported": why }));
        }
    }
}

/// Returns a line with the median over the rounds of the ratio of times, Pellucid / other program.
fn compared(id: &str, variant: &str, peer: &str, own: &[f64], other: &[f64]) -> Value {
    let mut ratios: Vec<f64> = own.iter().zip(other).map(|(a, b)| a / b).collect();
    ratios.sort_by(f64::total_cmp);
    let median = |values: &[f64]| {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        quartiles(&sorted)[1]
    };
    json!({
        "workload": id, "variant": variant, "peer": peer, "rounds": ratios.len(),
        "ratio": rounded(quartiles(&ratios)[1], 3),
        "least": rounded(ratios[0], 3), "most": rounded(ratios[ratios.len() - 1], 3),
        "ours_p25_us": rounded(median(own), 3), "theirs_p25_us": rounded(median(other), 3),
    })
}

/// Adds the lower quartile of a line to the entry of its `key`. If the line has none, stores the reason in `rejected`.
fn take(line: &str, key: &str, into: &mut Quartiles, rejected: &mut Option<String>) {
    let Ok(line) = serde_json::from_str::<Value>(line) else { return };
    let name = line[key].as_str().unwrap_or_default().to_string();
    match line["p25_us"].as_f64() {
        Some(quartile) => into.entry(name).or_default().push(quartile),
        None => *rejected = line["unsupported"].as_str().map(|why| format!("{name}: {why}")),
    }
}

/// Runs the other program for a workload, and returns its output lines.
fn run_other(command: &str, id: &str, threads: usize) -> std::io::Result<String> {
    let placed = if command.contains("{}") { command.replace("{}", id) } else { format!("{command} {id}") };
    let mut words = placed.split_whitespace();
    let program = words.next().ok_or(std::io::ErrorKind::InvalidInput)?;
    let output =
        Command::new(program).args(words).env("THREADS", threads.to_string()).stderr(Stdio::inherit()).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
