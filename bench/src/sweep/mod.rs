//! The sweep: every operation of the registry at three sizes, forward and with its gradient, beside PyTorch.
//!
//! | module | contents |
//! | --- | --- |
//! | `rows` | the operations with their operands, and the expressions of PyTorch |
//! | `case` | a row at one size, layout, axis and dtype, and its time |
//! | `peer` | the process that times the expressions of PyTorch |
//! | `report` | ratios, sorted, and their summary |

mod case;
mod peer;
mod report;
mod rows;

use case::SweepCase;
use peer::PeerProcess;
use pellucid::{DType, Tensor};
use std::io::Result;

/// What a case of a row depends on.
#[derive(Clone, Copy, Debug)]
struct Size {
    /// 0, 1 or 2: about 64, 64 Ki and 1 Mi elements.
    step: usize,
    /// The axis of an operation along one.
    axis: isize,
}

/// The values of an operand.
#[derive(Clone, Copy, Debug, PartialEq)]
enum OperandValues {
    /// Standard normal.
    Normal,
    /// Uniform on [½, 3/2].
    Positive,
    /// Uniform on [1/20, 19/20].
    Unit,
    Uniform(f64, f64),
    /// Logarithms of probabilities over the last axis.
    LogProbabilities,
    /// 1 and −1.
    Signs,
    /// `i64` from the first to below the second number.
    Integers(i64, i64),
    /// Indices below a number for each size.
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

/// Arrays of three equal axes.
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

/// An operation with its operands. A function of shapes returns a shape for each operand, or one for all.
#[derive(Clone)]
struct SweepRow {
    op: &'static str,
    torch: &'static str,
    run: RunCase,
    values: Vec<OperandValues>,
    /// All operands have these values.
    is_uniform: bool,
    shapes: fn(usize) -> Vec<Vec<usize>>,
    axes: usize,
    /// The number of operands, from the first on, whose gradient is computed.
    leaves: usize,
    /// The largest size at which the gradient is computed.
    gradient_steps: usize,
    has_layouts: bool,
    dtypes: &'static [DType],
}

impl SweepRow {
    /// Creates a row from an expression of the operands `a`, `b`, .. in Python, in which `{d}` is the axis; "" if
    /// PyTorch has no such operation.
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

    /// Gives the values to as many operands as there are shapes.
    fn of_all(self, values: OperandValues) -> SweepRow {
        SweepRow { values: vec![values], is_uniform: true, ..self }
    }

    fn shapes(self, shapes: fn(usize) -> Vec<Vec<usize>>) -> SweepRow {
        SweepRow { shapes, ..self }
    }

    /// The operation runs along each of this number of axes.
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

    /// The operands are also transposed, and a second operand is also broadcast along each axis.
    fn layouts(self) -> SweepRow {
        SweepRow { has_layouts: true, ..self }
    }

    /// The operation also runs on these dtypes.
    fn dtypes(self, dtypes: &'static [DType]) -> SweepRow {
        SweepRow { dtypes, ..self }
    }
}

/// The settings of a sweep.
#[derive(Clone, Debug)]
pub struct SweepOptions {
    /// Names of operations, or parts of them; all operations if there is none.
    pub only: Vec<String>,
    /// The command of `sweep.py`, without which only Pellucid is timed.
    pub peer: Option<String>,
    /// The number of turns of both programs for each case.
    pub rounds: usize,
    /// The bytes per second of a copy, for the share of this ceiling.
    pub copy_bandwidth: f64,
    /// The largest size, 0 to 2.
    pub largest: usize,
}

/// Times all cases, prints a line of JSON for each, and then the report.
///
/// # Errors
/// Errors of the process of the peer.
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

    /// Operations that compute nothing themselves, or are timed as workloads.
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
