//! The sweep: every operation of the registry at three sizes, forward and with its gradient, compared with PyTorch.
//!
//! | module | contents |
//! | --- | --- |
//! | `rows` | the operations with their operands, and the PyTorch expressions |
//! | `case` | a row at one size, layout, axis and dtype, and its timing |
//! | `peer` | the process that times the expressions of PyTorch |
//! | `report` | output lines and the summary of ratios |

mod case;
mod peer;
mod report;
mod rows;

use case::SweepCase;
use peer::PeerProcess;
use pellucid::{DType, Tensor};
use std::io::Result;

/// The size parameters of a case.
#[derive(Clone, Copy, Debug)]
struct Size {
    /// 0, 1 or 2: about 64, 64 Ki and 1 Mi elements.
    step: usize,
    /// The axis, for an operation along an axis.
    axis: isize,
}

/// The values of an operand.
#[derive(Clone, Copy, Debug, PartialEq)]
enum OperandValues {
    /// Standard normal values.
    Normal,
    /// Uniformly distributed values in [½, 3/2].
    Positive,
    /// Uniformly distributed values in [1/20, 19/20].
    Unit,
    Uniform(f64, f64),
    /// Logarithms of probabilities over the last axis.
    LogProbabilities,
    /// Random signs, 1 and −1.
    Signs,
    /// `i64` values from the first number to below the second.
    Integers(i64, i64),
    /// Indices below the given bound for each size.
    Below([i64; 3]),
    /// A permutation of the positions of the axis.
    Permutation,
    /// Booleans.
    Mask,
    /// Normal values in ascending order.
    Sorted,
    /// Symmetric positive definite matrices.
    Spd,
    /// Lower triangular matrices with a diagonal of at least 1.
    Lower,
}

impl OperandValues {
    /// Returns whether the values are floats, which have a gradient.
    fn is_float(self) -> bool {
        !matches!(
            self,
            OperandValues::Integers(..) | OperandValues::Below(_) | OperandValues::Permutation | OperandValues::Mask
        )
    }
}

/// Matrices of about 64, 64 Ki and 1 Mi elements.
fn squares(step: usize) -> Vec<Vec<usize>> {
    vec![vec![[8, 256, 1024][step]; 2]]
}

/// Arrays with three axes of equal length.
fn cubes(step: usize) -> Vec<Vec<usize>> {
    vec![vec![[4, 40, 100][step]; 3]]
}

fn vectors(step: usize) -> Vec<Vec<usize>> {
    vec![vec![[64, 1 << 16, 1 << 20][step]]]
}

/// A function of the operands.
type RunCase = fn(&[Tensor], Size) -> Tensor;

/// The name of an operation, its expression in PyTorch, the values of its operands, and its function.
type NamedCase = (&'static str, &'static str, OperandValues, RunCase);

/// An operation with its operands. The function `shapes` returns one shape per operand, or one shape for all operands.
#[derive(Clone)]
struct SweepRow {
    op: &'static str,
    torch: &'static str,
    run: RunCase,
    values: Vec<OperandValues>,
    /// Whether all operands have the same kind of values.
    is_uniform: bool,
    shapes: fn(usize) -> Vec<Vec<usize>>,
    axes: usize,
    /// The number of leading operands whose gradient is computed.
    leaves: usize,
    /// The largest size at which the gradient is computed.
    gradient_steps: usize,
    has_layouts: bool,
    dtypes: &'static [DType],
}

impl SweepRow {
    /// Creates a row from a Python expression of the operands `a`, `b`, .., in which `{d}` is the axis. The expression
    /// is "" if PyTorch has no such operation.
    fn new(op: &'static str, torch: &'static str, run: RunCase) -> SweepRow {
        SweepRow {
            op,
            torch,
            run,
            values: Vec::new(),
            is_uniform: false,
            shapes: squares,
            axes: 0,
            leaves: usize::MAX,
            gradient_steps: 3,
            has_layouts: false,
            dtypes: &[],
        }
    }

    fn of<const K: usize>(self, values: [OperandValues; K]) -> SweepRow {
        SweepRow { values: values.into(), ..self }
    }

    /// Sets the same kind of values for all operands.
    fn of_all(self, values: OperandValues) -> SweepRow {
        SweepRow { values: vec![values], is_uniform: true, ..self }
    }

    fn shapes(self, shapes: fn(usize) -> Vec<Vec<usize>>) -> SweepRow {
        SweepRow { shapes, ..self }
    }

    /// Runs the operation along each of the first `axes` axes.
    fn axes(self, axes: usize) -> SweepRow {
        SweepRow { axes, ..self }
    }

    fn forward_only(self) -> SweepRow {
        SweepRow { gradient_steps: 0, ..self }
    }

    /// Computes the gradient of the first `leaves` operands only.
    fn leaves(self, leaves: usize) -> SweepRow {
        SweepRow { leaves, ..self }
    }

    /// Computes the gradient at the sizes below `steps` only.
    fn gradient_up_to(self, steps: usize) -> SweepRow {
        SweepRow { gradient_steps: steps, ..self }
    }

    /// Also runs with transposed operands, and with a second operand that is broadcast along each axis.
    fn layouts(self) -> SweepRow {
        SweepRow { has_layouts: true, ..self }
    }

    /// Also runs with these dtypes.
    fn dtypes(self, dtypes: &'static [DType]) -> SweepRow {
        SweepRow { dtypes, ..self }
    }
}

/// The settings of a sweep.
#[derive(Clone, Debug)]
pub struct SweepOptions {
    /// Substrings of operation names. An empty list selects all operations.
    pub only: Vec<String>,
    /// The command of `sweep.py`. Without it, only Pellucid is timed.
    pub peer: Option<String>,
    /// The number of turns of both programs for each case.
    pub rounds: usize,
    /// The copy bandwidth in bytes per second, to which cases are compared.
    pub copy_bandwidth: f64,
    /// The largest size, 0 to 2.
    pub largest: usize,
}

/// Times all cases, prints a JSON line for each, and then the summary.
///
/// # Errors
/// The errors of the peer process.
pub fn run_sweep(options: &SweepOptions) -> Result<()> {
    let mut peer = options.peer.as_deref().map(PeerProcess::start).transpose()?;
    let is_wanted = |row: &SweepRow| options.only.is_empty() || options.only.iter().any(|name| row.op == name);
    let mut lines = Vec::new();
    for row in rows::rows().into_iter().filter(is_wanted) {
        for case in SweepCase::all(&row, options.largest) {
            let line = case.time(options, peer.as_mut())?;
            report::print_line(&line);
            lines.push(line);
        }
    }
    report::print_summary(&lines);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Operations without a row: they compute nothing themselves, or are timed as workloads.
    const WITHOUT_ROW: [&str; 0] = [];

    #[test]
    fn every_operation_has_a_row() {
        let timed: BTreeSet<&str> = rows::rows().iter().map(|row| row.op).collect();
        let names: BTreeSet<&str> = pellucid::operations().map(|op| op.name).collect();
        let missing: Vec<&&str> = names.difference(&timed).filter(|name| !WITHOUT_ROW.contains(name)).collect();
        assert!(missing.is_empty(), "operations without a row in bench/src/sweep/rows: {missing:?}");
        let unknown: Vec<&&str> = timed.difference(&names).collect();
        assert!(unknown.is_empty(), "rows of operations that do not exist: {unknown:?}");
    }

    #[test]
    fn the_smallest_case_of_every_row_runs() {
        let mut failed = Vec::new();
        for row in rows::rows() {
            for case in SweepCase::all(&row, 0) {
                if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| case.run_once())) {
                    let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                    failed.push(format!("{} {}: {text}", row.op, row.torch));
                }
            }
        }
        assert!(failed.is_empty(), "{}", failed.join("\n"));
    }
}
