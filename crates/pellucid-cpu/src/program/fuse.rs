//! Fusion: which instructions of a schedule run as one loop.
//!
//! A float instruction joins the chain of its predecessor if it reads the predecessor's result, which then stays in
//! registers. Otherwise it begins another chain in the same loop, so one pass over memory serves several chains. The
//! order of the instructions does not change. The last instruction of a chain can write an output with non-temporal
//! stores. If a sum over long rows reads the last result of a loop, the loop accumulates that sum from registers.

use crate::program::kernel_schedule::{
    FusedOp, FusedReduction, KernelSchedule, MAX_FUSED, Phase, RowLayout, RowReduction, ScheduledInstr,
};
use crate::program::loops::{FusedInstr, Opcode};
use crate::program::prepared::PreparedProgram;
use crate::program::slot::ValueSlot;
use pellucid_ir::formula::Unary;
use std::ops::Range;

/// Finds the fused loops of a schedule and marks their instructions.
///
/// The instructions on values per row of a phase are fused among themselves: one loop then computes the value of every
/// row.
pub(crate) fn fuse_chains(schedule: &mut KernelSchedule, program: &PreparedProgram) {
    let reads = count_reads(schedule, program);
    schedule.is_streamed = vec![false; schedule.granularity.len()];
    for phase in 0..schedule.phases.len() {
        for is_tile in [false, true] {
            let Phase { head, tiles, .. } = &schedule.phases[phase];
            let mut remaining = if is_tile { tiles.clone() } else { head.clone() };
            while !remaining.is_empty() {
                let ops = longest_chain(schedule, program, remaining.clone(), &reads, is_tile);
                mark_chain(schedule, phase, remaining.start, &ops, is_tile && schedule.rows == RowLayout::Long);
                remaining.start += ops.len().max(1);
            }
        }
    }
}

/// Returns the instructions of the longest fused loop that begins at the first instruction of `range`. `reads` is the
/// result of [`count_reads`], and `is_tile` states whether the instructions compute tiles or values per row.
fn longest_chain(
    schedule: &KernelSchedule,
    program: &PreparedProgram,
    range: Range<usize>,
    reads: &[usize],
    is_tile: bool,
) -> Vec<FusedOp> {
    let mut ops: Vec<FusedOp> = Vec::new();
    let mut last = None;
    for instr in schedule.instrs[range].iter().take(MAX_FUSED - 1) {
        let continued = fused_op(schedule, program, instr, last);
        let Some(op) = continued.or_else(|| fused_op(schedule, program, instr, None)) else { break };
        if ops.first().is_some_and(|first| !std::ptr::fn_addr_eq(first.chain_loop, op.chain_loop)) {
            break;
        }
        if let (Some(previous_op), Some(last), None) = (ops.last_mut(), last, op.chain_start) {
            let occurrences = instr.operands().iter().filter(|&&a| a == last).count();
            previous_op.is_stored = reads[last as usize] > occurrences;
            previous_op.can_stream = false;
        }
        let direct = is_tile && program.outputs.iter().any(|o| o.slot == instr.result && o.direct.is_some());
        ops.push(FusedOp { can_stream: direct && reads[instr.result as usize] == 1, ..op });
        last = Some(instr.result);
    }
    ops
}

/// Marks the instructions starting at `start` as a fused loop, if that is faster than one by one. `can_sum` states
/// whether the loop may accumulate a sum of its phase.
fn mark_chain(schedule: &mut KernelSchedule, phase: usize, start: usize, ops: &[FusedOp], can_sum: bool) {
    let last = ops.len().checked_sub(1).map(|k| schedule.instrs[start + k].result);
    let reduction = last.filter(|_| can_sum).and_then(|last| fused_reduction(schedule, phase, start, last));
    if let Some(reduction) = &reduction {
        schedule.folds[reduction.index as usize].chained = true;
    }
    if ops.len() > 1 || reduction.is_some() || ops.iter().any(|op| op.can_stream) {
        let by_row = ops.iter().any(|op| op.by_row);
        for (k, op) in ops.iter().enumerate() {
            let slot = schedule.instrs[start + k].result;
            schedule.is_streamed[slot as usize] = op.can_stream;
            let count = (ops.len() - k) as u8;
            schedule.instrs[start + k].fused = Some(FusedOp { count, by_row, reduction, ..*op });
        }
    }
}

/// Returns the sum at the end of `phase` that can accumulate the values of `last`, the last result of the loop that
/// begins at instruction `start`.
fn fused_reduction(schedule: &KernelSchedule, phase: usize, start: usize, last: ValueSlot) -> Option<FusedReduction> {
    let folds = schedule.phases[phase].folds.clone();
    let computed_before = |slot: ValueSlot| schedule.instrs[start..].iter().all(|i| i.result != slot);
    folds.zip(&schedule.folds[schedule.phases[phase].folds.clone()]).find_map(|(index, fold)| {
        let product = match (fold.operand, fold.factor) {
            (a, None) if a == last => None,
            (a, Some(b)) if a == last && b == last => Some((FusedInstr::Square, last)),
            (a, Some(b)) if a == last && computed_before(b) => Some((FusedInstr::MulTile, b)),
            (a, Some(b)) if b == last && computed_before(a) => Some((FusedInstr::MulTile, a)),
            _ => return None,
        };
        let is_sum = fold.fold.loops.accumulate_products.is_some();
        is_sum.then_some(FusedReduction { index: index as u16, product })
    })
}

/// Returns how often instructions, reductions and outputs read each slot.
fn count_reads(schedule: &KernelSchedule, program: &PreparedProgram) -> Vec<usize> {
    let mut reads = vec![0; schedule.granularity.len()];
    let by_instrs = schedule.instrs.iter().flat_map(|i| i.operands()).copied();
    let by_folds = schedule.folds.iter().flat_map(RowReduction::operands);
    let by_outputs = program.outputs.iter().map(|o| o.slot);
    by_instrs.chain(by_folds).chain(by_outputs).for_each(|slot| reads[slot as usize] += 1);
    reads
}

/// Returns `instr` as part of a fused loop, or `None` if it cannot be fused.
///
/// With `last`, the instruction continues the chain whose values are in slot `last`. Without `last`, it begins a chain.
fn fused_op(
    schedule: &KernelSchedule,
    program: &PreparedProgram,
    instr: &ScheduledInstr,
    last: Option<ValueSlot>,
) -> Option<FusedOp> {
    let step = program.steps.get((instr.result as usize).checked_sub(program.first_step())?)?;
    let (opcode, chain_loop) = step.fusable.filter(|_| !instr.mixed || schedule.rows != RowLayout::Short)?;
    let args = instr.operands();
    let is_tile = |k: usize| schedule.is_vector(args[k], instr.granularity);
    // The operand whose values are in registers, and the other operands. A chain begins with values of the granularity
    // of the result.
    let begins = |k: usize| schedule.granularity[args[k] as usize] == instr.granularity;
    let in_registers = (0..args.len()).find(|&k| last.map_or(begins(k), |last| args[k] == last))?;
    let others = match (args.len(), in_registers) {
        (3, 0) => [1, 2],
        (3, 1) => [0, 2],
        (3, _) => [0, 1],
        (2, _) => [1 - in_registers; 2],
        _ => [in_registers; 2],
    };
    let repeats = |k: usize| k != in_registers && args[k] == args[in_registers];
    let fused_instr = match args.len() {
        3 if last.is_some() && others.into_iter().any(repeats) => return None,
        2 if repeats(1 - in_registers) => fused_instr_with_itself(opcode),
        _ => fused_instr(opcode, in_registers, others.map(is_tile)),
    };
    let (chain_start, operands) = (last.is_none().then_some(args[in_registers]), others.map(|k| args[k]));
    let granularity = operands.map(|slot| schedule.granularity[slot as usize]);
    Some(FusedOp {
        chain_loop,
        count: 0,
        by_row: instr.mixed,
        instr: fused_instr?,
        chain_start,
        operands,
        granularity,
        is_stored: true,
        can_stream: false,
        reduction: None,
    })
}

/// Returns the operation of an instruction whose two operands are both the values in registers.
fn fused_instr_with_itself(opcode: Opcode) -> Option<FusedInstr> {
    match opcode {
        Opcode::Add => Some(FusedInstr::Double),
        Opcode::Mul => Some(FusedInstr::Square),
        _ => None,
    }
}

/// Returns the operation of an instruction whose operand `in_registers` is the values in registers. `tiles` says which
/// of the other operands are tiles; the rest are single values.
pub(crate) fn fused_instr(opcode: Opcode, in_registers: usize, tiles: [bool; 2]) -> Option<FusedInstr> {
    Some(match (opcode, in_registers, tiles) {
        (Opcode::Neg, ..) => FusedInstr::Neg,
        (Opcode::Sqrt, ..) => FusedInstr::Sqrt,
        (Opcode::Function(op, f), ..) => match op {
            Unary::Exp => FusedInstr::Exp(f),
            Unary::Sigmoid => FusedInstr::Sigmoid(f),
            Unary::Tanh => FusedInstr::Tanh(f),
            Unary::Sin => FusedInstr::Sin(f),
            Unary::Cos => FusedInstr::Cos(f),
            _ => FusedInstr::Apply(f),
        },
        (Opcode::Round(f), ..) => FusedInstr::Apply(f),
        (Opcode::Add, _, [true, _]) => FusedInstr::AddTile,
        (Opcode::Add, _, [false, _]) => FusedInstr::AddOne,
        (Opcode::Mul, _, [true, _]) => FusedInstr::MulTile,
        (Opcode::Mul, _, [false, _]) => FusedInstr::MulOne,
        (Opcode::Sub, 0, [true, _]) => FusedInstr::SubTile,
        (Opcode::Sub, 0, [false, _]) => FusedInstr::SubOne,
        (Opcode::Sub, _, [true, _]) => FusedInstr::TileSub,
        (Opcode::Sub, _, [false, _]) => FusedInstr::OneSub,
        (Opcode::Div, 0, [true, _]) => FusedInstr::DivTile,
        (Opcode::Div, 0, [false, _]) => FusedInstr::DivOne,
        (Opcode::Div, _, [true, _]) => FusedInstr::TileDiv,
        (Opcode::Div, _, [false, _]) => FusedInstr::OneDiv,
        (Opcode::MulAdd, 0 | 1, [true, true]) => FusedInstr::MulTileAddTile,
        (Opcode::MulAdd, 0 | 1, [true, false]) => FusedInstr::MulTileAddOne,
        (Opcode::MulAdd, 0 | 1, [false, true]) => FusedInstr::MulOneAddTile,
        (Opcode::MulAdd, 0 | 1, [false, false]) => FusedInstr::MulOneAddOne,
        (Opcode::MulAdd, _, [true, true]) => FusedInstr::AddTileTile,
        (Opcode::MulAdd, _, [true, false]) => FusedInstr::AddTileOne,
        // The schedule has swapped the factors so that a single value is the second factor; both are single values
        // here.
        (Opcode::MulAdd, _, [false, _]) => return None,
    })
}
