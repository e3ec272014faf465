//! Maps of one program over many sets of operands, for in-place updates of parameters.

use super::{ExecutionMode, MODE, ensure_ready, ensure_unread, submit};
use crate::array::Array;
use pellucid_ir::Result;
use pellucid_ir::backend::DenseView;
use pellucid_ir::borrow::BatchBorrowGuard;
use pellucid_ir::formula::Program;
use pellucid_ir::kernel::{Kernel, Map, Params};
use std::sync::Arc;

/// Runs or records a map for every set of operands, and overwrites the first `targets` inputs of each set.
///
/// In eager mode the CPU runs all sets as one batch, if all operands are dense and no set writes memory of another
/// set. Otherwise the sets are submitted one by one.
pub(crate) fn submit_map_batch(
    program: &Arc<Program>,
    params: &Params,
    targets: usize,
    operands: &[&Array],
) -> Result<()> {
    let on_cpu = operands.iter().all(|array| array.device().is_cpu());
    if on_cpu && MODE.get() == ExecutionMode::Eager && try_map_batch(program, params, targets, operands)? {
        return Ok(());
    }
    let kernel = Kernel::Map(Map { program: program.clone(), params: params.clone() });
    operands.chunks_exact(program.inputs.len()).try_for_each(|set| submit(&kernel, set, &set[..targets]))
}

/// Runs all sets as one batch. Returns false, without writing an operand, if an operand has no elements or is not
/// dense, or if a set writes memory of another set.
fn try_map_batch(program: &Arc<Program>, params: &Params, targets: usize, operands: &[&Array]) -> Result<bool> {
    let Some(first) = operands.first() else { return Ok(true) };
    let count = program.inputs.len();
    let mut dense: Vec<DenseView<'_>> = Vec::with_capacity(operands.len());
    for set in operands.chunks_exact(count) {
        let size = set[0].shape().size();
        if size == 0 {
            return Ok(false);
        }
        set[..targets].iter().for_each(|array| ensure_unread(array.storage()));
        for array in set {
            ensure_ready(program.name, array.storage())?;
            match array.as_dense(size) {
                Some(one) => dense.push(one),
                None => return Ok(false),
            }
        }
    }
    let Some(guard) = BatchBorrowGuard::acquire(&dense, count, targets) else { return Ok(false) };
    let sizes: Vec<usize> = operands.chunks_exact(count).map(|set| set[0].shape().size()).collect();
    first.device().backend().maps_dense(program, params, &sizes, &guard)?;
    guard.count_writes();
    Ok(true)
}
