//! Shortcuts: a fused loop skips the instructions of an operand that no lane of a block selects.
//!
//! Many formulas select the common case where their condition is true, and otherwise a rare case, such as arguments
//! whose square would overflow. The instructions that only the rare case needs move behind all others, and an
//! additional comparison before them tests whether a block needs them at all. The results are the same: a skipped value
//! is never selected.

use crate::program::fuse::{count_reads, opcode_of};
use crate::program::kernel_schedule::{KernelSchedule, ScheduledInstr, Shortcut};
use crate::program::loops::Opcode;
use crate::program::prepared::PreparedProgram;
use crate::program::slot::Granularity;
use std::ops::Range;

/// The minimum [`cost`] of skipped instructions. A test of a block costs about as much as three additions.
const MIN_COST: usize = 4;

/// Adds the shortcuts of all selections whose mask stays in registers. `in_registers` is the result of
/// [`move_comparisons`](crate::program::fuse::move_comparisons).
pub(crate) fn add_shortcuts(schedule: &mut KernelSchedule, program: &PreparedProgram, in_registers: &[bool]) {
    for phase in 0..schedule.phases.len() {
        let mut selection = schedule.phases[phase].tiles.start;
        while selection < schedule.phases[phase].tiles.end {
            let tests = match skippable(schedule, program, phase, selection, in_registers) {
                Some(skipped) => add_shortcut(schedule, program, phase, selection, &skipped),
                None => 0,
            };
            selection += tests + 1;
        }
    }
}

/// The instructions of which a shortcut skips some.
struct Skippable {
    /// The instructions from the first skippable one to the comparisons of the selection.
    range: Range<usize>,
    /// For each instruction of the range, whether it can be skipped.
    is_skipped: Vec<bool>,
}

/// Returns the instructions that only the second operand of the selection at index `selection` needs, if skipping them
/// is worth a test.
fn skippable(
    schedule: &KernelSchedule,
    program: &PreparedProgram,
    phase: usize,
    selection: usize,
    in_registers: &[bool],
) -> Option<Skippable> {
    let (instrs, start) = (&schedule.instrs, schedule.phases[phase].tiles.start);
    let selects = |instr: &ScheduledInstr| {
        matches!(opcode_of(program, instr), Some((Opcode::Select, _))) && in_registers[instr.args[0] as usize]
    };
    let [_, common, rare] = Some(&instrs[selection]).filter(|instr| selects(instr))?.args;
    if schedule.granularity[common as usize] != Granularity::PerElement {
        return None;
    }
    // The comparisons are directly before the selection.
    let comparisons = instrs[start..selection].iter().rev().take_while(|instr| in_registers[instr.result as usize]);
    let end = selection - comparisons.count();
    let is_output = |instr: &ScheduledInstr| program.outputs.iter().any(|o| o.slot == instr.result);
    let (reads, mut skipped_reads) = (count_reads(schedule, program), vec![0; schedule.granularity.len()]);
    skipped_reads[rare as usize] = 1;
    let mut is_skipped = vec![false; end - start];
    for (k, instr) in instrs[start..end].iter().enumerate().rev() {
        let result = instr.result as usize;
        is_skipped[k] = skipped_reads[result] > 0 && skipped_reads[result] == reads[result];
        if is_skipped[k] {
            instr.operands().iter().for_each(|&slot| skipped_reads[slot as usize] += 1);
        }
    }
    let first = is_skipped.iter().position(|&is_skipped| is_skipped)?;
    is_skipped.drain(..first);
    let range = start + first..end;
    let members = || instrs[range.clone()].iter().zip(&is_skipped);
    let opcode = |instr| opcode_of(program, instr).map(|(opcode, _)| opcode);
    let saved: usize = members().filter(|(_, is_skipped)| **is_skipped).map(|(instr, _)| cost(opcode(instr))).sum();
    // An instruction cannot move behind one that writes an output, which may overwrite its operands.
    let can_move = members().all(|(instr, is_skipped)| *is_skipped || !is_output(instr));
    (can_move && saved >= MIN_COST).then_some(Skippable { range, is_skipped })
}

/// Returns the approximate time of an instruction, in additions. Instructions without an opcode are never fused.
pub(crate) fn cost(opcode: Option<Opcode>) -> usize {
    match opcode {
        Some(Opcode::Div | Opcode::Sqrt) => 4,
        Some(Opcode::Function(..)) => 8,
        Some(_) => 1,
        None => 4,
    }
}

/// Moves the skipped instructions behind the others of their range, and inserts the comparisons of the selection before
/// them. Returns the number of inserted instructions.
fn add_shortcut(
    schedule: &mut KernelSchedule,
    program: &PreparedProgram,
    phase: usize,
    selection: usize,
    skippable: &Skippable,
) -> usize {
    let Skippable { range, is_skipped } = skippable;
    let common = schedule.instrs[selection].args[1];
    let members = || schedule.instrs[range.clone()].iter().copied().zip(is_skipped);
    let of_kind =
        |wanted: bool| members().filter(move |(_, is_skipped)| **is_skipped == wanted).map(|(instr, _)| instr);
    let (others, skipped): (Vec<ScheduledInstr>, Vec<ScheduledInstr>) =
        (of_kind(false).collect(), of_kind(true).collect());
    let comparisons = &schedule.instrs[range.end..selection];
    let is_comparison = |instr: &ScheduledInstr| opcode_of(program, instr).is_some_and(|(op, _)| op.is_comparison());
    // The conjunction or disjunction of two comparisons comes after them. The last comparison also combines the masks.
    let last = comparisons.iter().rposition(is_comparison).unwrap_or(0);
    let distance = 2 * comparisons.len() + skipped.len() - last;
    let skip = u8::try_from(distance).ok();
    let tests = comparisons.iter().enumerate().map(|(k, instr)| {
        let shortcut = Shortcut { common, skip: skip.filter(|_| k == last) };
        ScheduledInstr { shortcut: Some(shortcut), ..*instr }
    });
    let tests: Vec<ScheduledInstr> = tests.collect();
    let count = tests.len();
    drop(schedule.instrs.splice(range.clone(), others.into_iter().chain(tests).chain(skipped)));
    schedule.phases[phase].tiles.end += count;
    for later in &mut schedule.phases[phase + 1..] {
        for bounds in [&mut later.head, &mut later.tiles] {
            (bounds.start, bounds.end) = (bounds.start + count, bounds.end + count);
        }
    }
    count
}
