//! The results of all operations as a table.
#![allow(clippy::print_stdout)]

use std::collections::BTreeSet;
use std::fmt::Write;

/// The results of one operation.
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) bound: bool,
    pub(crate) cases: usize,
    /// Every case that failed, with the reason.
    pub(crate) failures: Vec<String>,
}

impl Line {
    /// Returns true if every case passed.
    pub(crate) fn passes(&self) -> bool {
        self.bound && self.failures.is_empty()
    }
}

/// Prints the lines of the table and a summary.
pub(crate) fn print(lines: &[Line]) {
    let mut out = String::new();
    let _ = writeln!(out, "{:<52}{:>6}{:>8}  why not", "operation", "cases", "passed");
    for line in lines.iter().filter(|line| line.bound) {
        let why = line.failures.join("; ");
        let passed = line.cases - line.failures.len();
        let _ = writeln!(out, "{:<52}{:>6}{:>8}  {why}", line.name, line.cases, passed);
    }
    let missing: Vec<&str> = lines.iter().filter(|line| !line.bound).map(|line| line.name.as_str()).collect();
    let bound = lines.len() - missing.len();
    let passing = lines.iter().filter(|line| line.passes()).count();
    let _ = writeln!(out, "\nmissing: {}", missing.join(", "));
    let _ = writeln!(out, "\n{} operations: {bound} bound, {passing} passing, {} missing", lines.len(), missing.len());
    println!("{out}");
}

/// Returns the operations in `expected` that do not pass, and the passing operations that are not in `expected`.
pub(crate) fn differences(lines: &[Line], expected: &str) -> Vec<String> {
    let expected: BTreeSet<&str> = expected.lines().filter(|line| !line.is_empty()).collect();
    let passing: BTreeSet<&str> = lines.iter().filter(|line| line.passes()).map(|line| line.name.as_str()).collect();
    let why = |name: &str| match lines.iter().find(|line| line.name == name) {
        None => "the test data does not contain the operation".to_string(),
        Some(line) if !line.bound => "the operation has no binding".to_string(),
        Some(line) => line.failures.join("; "),
    };
    let lost = expected.difference(&passing).map(|name| format!("{name} must pass, but: {}", why(name)));
    let won = passing.difference(&expected).map(|name| format!("{name} passes: add it to expected.txt"));
    lost.chain(won).collect()
}
