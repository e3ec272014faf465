//! One program over many sets of operands: the door of updates in place.

use super::{MODE, Mode, ready, submit};
use crate::array::Array;
use pellucid_ir::Result;
use pellucid_ir::backend::{Dense, DenseMap};
use pellucid_ir::formula::Program;
use pellucid_ir::kernel::{Kernel, Map, Params};
use std::sync::Arc;

/// Runs or records a map for every set of operands, its inputs, of which the first `targets` are overwritten.
///
/// Sets that run now, whose operands are dense, and of which none touches what another one writes, go to the backend as
/// one; the others one by one.
pub(crate) fn map_many(program: &Arc<Program>, params: &Params, targets: usize, operands: &[&Array]) -> Result<()> {
    if MODE.get() == Mode::Eager && together(program, params, targets, operands)? {
        return Ok(());
    }
    let kernel = Kernel::Map(Map { program: program.clone(), params: params.clone() });
    operands.chunks_exact(program.inputs.len()).try_for_each(|set| submit(&kernel, set, &set[..targets]))
}

/// Runs all sets at once; false, and nothing is done, where that cannot be.
fn together(program: &Arc<Program>, params: &Params, targets: usize, operands: &[&Array]) -> Result<bool> {
    let Some(first) = operands.first() else { return Ok(true) };
    let count = program.inputs.len();
    let mut dense: Vec<Dense<'_>> = Vec::with_capacity(operands.len());
    for set in operands.chunks_exact(count) {
        let size = set[0].shape().size();
        for array in set {
            ready(program.name, array.storage())?;
            match array.as_dense(size).filter(|_| array.device() == first.device()) {
                Some(one) => dense.push(one),
                None => return Ok(false),
            }
        }
    }
    let Some(held) = Words::take(&dense, count, targets) else { return Ok(false) };
    let mut maps = Vec::with_capacity(dense.len() / count);
    for (inputs, set) in dense.chunks_exact(count).zip(operands.chunks_exact(count)) {
        maps.push(DenseMap { size: set[0].shape().size(), inputs, outputs: &inputs[..targets] });
    }
    first.device().backend().maps_dense(program, params, &maps)?;
    drop(held);
    for set in operands.chunks_exact(count) {
        set[..targets].iter().for_each(|target| target.storage().bump());
    }
    Ok(true)
}

/// The borrow words of all sets, held: of targets as the one writer, of other operands as a reader.
struct Words<'v> {
    operands: &'v [Dense<'v>],
    count: usize,
    targets: usize,
    taken: usize,
}

impl<'v> Words<'v> {
    /// Takes all words or none, which is also what happens where a target is in two places: nobody is waited for.
    fn take(operands: &'v [Dense<'v>], count: usize, targets: usize) -> Option<Words<'v>> {
        let mut held = Words { operands, count, targets, taken: 0 };
        for (k, operand) in operands.iter().enumerate() {
            let storage = operand.storage;
            let has_it = if held.is_target(k) { storage.try_write() } else { storage.try_read() };
            if !has_it {
                return None;
            }
            held.taken += 1;
        }
        Some(held)
    }

    fn is_target(&self, operand: usize) -> bool {
        operand % self.count < self.targets
    }
}

impl Drop for Words<'_> {
    fn drop(&mut self) {
        for (k, operand) in self.operands[..self.taken].iter().enumerate() {
            if self.is_target(k) { operand.storage.end_write() } else { operand.storage.end_read() }
        }
    }
}
