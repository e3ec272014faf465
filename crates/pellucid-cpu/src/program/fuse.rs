//! Fusion: which instructions of a schedule run as one loop.
//!
//! A float instruction joins the chain of its predecessor if it reads the predecessor's result, which then stays in
//! registers. Otherwise it begins another chain in the same loop, so one pass over memory serves several chains. The
//! order of the instructions does not change, except that comparisons move to the instruction that reads their mask:
//! the mask then stays in registers too. A shortcut (`shortcut.rs`) also evaluates a comparison earlier, and its loop
//! skips the instructions of the operand that no lane of a block selects. The last instruction of a chain can write an
//! output with non-temporal stores. If a sum over long rows reads the last result of a loop, the loop accumulates that
//! sum from registers.

use crate::program::kernel_schedule::{
    FusedOp, FusedReduction, KernelSchedule, MAX_FUSED, Phase, RowLayout, RowReduction, ScheduledInstr, Shortcut,
};
use crate::program::loops::{ChainLoop, Comparison, FusedInstr, MaskUpdate, Opcode};
use crate::program::prepared::PreparedProgram;
use crate::program::slot::{Granularity, ValueSlot};
use pellucid_ir::formula::Unary;
use std::ops::Range;

/// Finds the fused loops of a schedule and marks their instructions.
///
/// The instructions on values per row of a phase are fused among themselves: one loop then computes the value of every
/// row. `in_registers` is the result of [`move_comparisons`].
pub(crate) fn fuse_chains(schedule: &mut KernelSchedule, program: &PreparedProgram, in_registers: &[bool]) {
    let reads = count_reads(schedule, program);
    schedule.is_streamed = vec![false; schedule.granularity.len()];
    for phase in 0..schedule.phases.len() {
        let fusion = Fusion { schedule, program, reads: &reads, in_registers };
        let Phase { head, tiles, .. } = &fusion.schedule.phases[phase];
        let mut loops: Vec<(usize, Vec<FusedOp>, bool)> = Vec::new();
        for (range, is_tile) in [(head, false), (tiles, true)] {
            let mut remaining = range.clone();
            while !remaining.is_empty() {
                let ops = fusion.longest_chain(remaining.clone(), is_tile);
                let count = ops.len().max(1);
                loops.push((remaining.start, ops, is_tile));
                remaining.start += count;
            }
        }
        for (start, ops, is_tile) in loops {
            mark_chain(schedule, phase, start, &ops, is_tile && schedule.rows == RowLayout::Long);
        }
    }
}

/// Moves comparisons, and the conjunctions and disjunctions of two of them, to the only instruction that reads their
/// mask, if this is a selection or a conversion to numbers. Returns for every slot whether its mask stays in registers.
pub(crate) fn move_comparisons(schedule: &mut KernelSchedule, program: &PreparedProgram) -> Vec<bool> {
    let reads = count_reads(schedule, program);
    let mut in_registers = vec![false; schedule.granularity.len()];
    for phase in 0..schedule.phases.len() {
        move_comparisons_of_phase(schedule, program, phase, &reads, &mut in_registers);
    }
    in_registers
}

/// Moves the comparisons of one phase.
fn move_comparisons_of_phase(
    schedule: &mut KernelSchedule,
    program: &PreparedProgram,
    phase: usize,
    reads: &[usize],
    in_registers: &mut [bool],
) {
    let tiles = schedule.phases[phase].tiles.clone();
    let is_output = |slot: ValueSlot| program.outputs.iter().any(|o| o.slot == slot);
    let opcode = |instr: &ScheduledInstr| opcode_of(program, instr).filter(|_| !instr.mixed);
    for reader in tiles.clone() {
        let instrs = &schedule.instrs;
        let chain_loop = match (opcode(&instrs[reader]), instrs[reader].args) {
            // At most one of the two values of a selection can be in registers.
            (Some((Opcode::Select, _)), [_, a, b, ..]) if a == b => continue,
            (Some((Opcode::Select | Opcode::ToNumber, chain_loop)), _) => chain_loop,
            _ => continue,
        };
        // The index and the opcode of the instruction that computes a mask, if the mask has only one reader.
        let producer = |slot: ValueSlot| {
            let index = tiles.start + instrs[tiles.start..reader].iter().position(|i| i.result == slot)?;
            let (opcode, own) = opcode(&instrs[index])?;
            let is_only_reader = reads[slot as usize] == 1 && std::ptr::fn_addr_eq(own, chain_loop);
            // A comparison cannot move past an instruction that writes an output, which may overwrite the operands of
            // the comparison.
            let can_move = instrs[index..reader].iter().all(|i| !is_output(i.result));
            (is_only_reader && can_move && opcode.gives_mask()).then_some((index, opcode))
        };
        let is_comparison = |index: usize, opcode| match opcode {
            Opcode::Compare(_) => instrs[index].args[0] != instrs[index].args[1],
            opcode => opcode.is_comparison(),
        };
        let group = match producer(instrs[reader].args[0]) {
            Some((index, opcode)) if is_comparison(index, opcode) => vec![index],
            Some((index, Opcode::And | Opcode::Or)) => {
                let [a, b] = [0, 1]
                    .map(|k| producer(instrs[index].args[k]).filter(|&(index, opcode)| is_comparison(index, opcode)));
                let (Some((a, _)), Some((b, _))) = (a, b) else { continue };
                vec![a.min(b), a.max(b), index]
            }
            _ => continue,
        };
        let moved: Vec<ScheduledInstr> = group.iter().map(|&index| schedule.instrs[index]).collect();
        moved.iter().for_each(|instr| in_registers[instr.result as usize] = true);
        for (k, &index) in group.iter().enumerate() {
            // `k` instructions before this one have moved to the end of the range.
            schedule.instrs[index - k..reader].rotate_left(1);
        }
    }
}

/// Returns the opcode of an instruction and the loop that runs it in a chain, or `None` if it cannot be part of a
/// chain.
pub(super) fn opcode_of(program: &PreparedProgram, instr: &ScheduledInstr) -> Option<(Opcode, ChainLoop)> {
    program.steps.get((instr.result as usize).checked_sub(program.first_step())?)?.fusable
}

/// The search for the fused loops of a phase.
struct Fusion<'a> {
    schedule: &'a KernelSchedule,
    program: &'a PreparedProgram,
    /// The result of [`count_reads`].
    reads: &'a [usize],
    /// The result of [`move_comparisons`].
    in_registers: &'a [bool],
}

/// The values in the registers of a chain.
#[derive(Clone, Copy, Default)]
struct ChainRegisters {
    /// The slot of the values.
    values: Option<ValueSlot>,
    /// The index of the instruction of the chain that computes the values, unless they were loaded.
    producer: Option<usize>,
    /// How often instructions read the values from registers.
    reads: usize,
}

impl Fusion<'_> {
    /// Returns the instructions of the longest fused loop that begins at the first instruction of `range`. `is_tile`
    /// states whether the instructions compute tiles or values per row.
    fn longest_chain(&self, range: Range<usize>, is_tile: bool) -> Vec<FusedOp> {
        let mut ops: Vec<FusedOp> = Vec::new();
        let (mut registers, mut follows_mask) = (ChainRegisters::default(), false);
        let instrs = &self.schedule.instrs[range];
        for (k, instr) in instrs.iter().enumerate().take(MAX_FUSED - 1) {
            let gives_mask = self.in_registers[instr.result as usize];
            // A selection must be in the same loop as its masks.
            let masks = || instrs[k..].iter().take_while(|instr| self.in_registers[instr.result as usize]).count();
            if gives_mask && !follows_mask && ops.len() + masks() + 1 >= MAX_FUSED {
                break;
            }
            // The second comparison of two also combines the masks.
            let next = instrs.get(k + 1).filter(|_| follows_mask && gives_mask);
            let update = match next.and_then(|next| opcode_of(self.program, next)) {
                Some((Opcode::And, _)) => MaskUpdate::And,
                Some((Opcode::Or, _)) => MaskUpdate::Or,
                _ => MaskUpdate::Replace,
            };
            follows_mask = gives_mask;
            let op = match instr.shortcut {
                Some(shortcut) => self.shortcut_op(instr, shortcut, registers.values, update),
                None => {
                    let continued = self.fused_op(instr, registers.values, update);
                    continued.or_else(|| self.fused_op(instr, None, update))
                }
            };
            let Some(mut op) = op else { break };
            if ops.first().is_some_and(|first| !std::ptr::fn_addr_eq(first.chain_loop, op.chain_loop)) {
                break;
            }
            if let (Some(values), None) = (registers.values, op.chain_start) {
                registers.reads += instr.operands().iter().filter(|&&a| a == values).count();
                if let Some(producer) = registers.producer.filter(|_| registers.reads > 0) {
                    ops[producer].is_stored = self.reads[values as usize] > registers.reads;
                    ops[producer].can_stream = false;
                }
            }
            if gives_mask {
                if op.chain_start.is_some() {
                    registers = ChainRegisters { values: op.chain_start, ..ChainRegisters::default() };
                }
                ops.push(FusedOp { is_stored: false, ..op });
                continue;
            }
            if let Some(last) = ops.last_mut().filter(|last| last.operands == op.operands)
                && let Some(limit) = limit_instr(last.instr, op.instr)
            {
                (last.instr, op.instr) = (limit, FusedInstr::NoOp);
            }
            let outputs = &self.program.outputs;
            let direct = is_tile && outputs.iter().any(|o| o.slot == instr.result && o.direct.is_some());
            let can_stream = direct && self.reads[instr.result as usize] == 1;
            registers = ChainRegisters { values: Some(instr.result), producer: Some(ops.len()), reads: 0 };
            ops.push(FusedOp { can_stream, ..op });
        }
        let count = ops.len();
        for (k, op) in ops.iter_mut().enumerate() {
            // A loop that ends before the selection computes both operands.
            op.skip = op.skip.filter(|&distance| k + (distance as usize) < count);
        }
        self.defer_stores(&mut ops, instrs);
        ops
    }

    /// Moves the stores of the first operands of selections with a shortcut to the comparisons: blocks that skip do not
    /// read the operand from memory, so they need not store it. `ops` are the first instructions of `instrs`.
    fn defer_stores(&self, ops: &mut [FusedOp], instrs: &[ScheduledInstr]) {
        for comparison in 0..ops.len() {
            let FusedOp { skip: Some(distance), chain_start: None, .. } = ops[comparison] else { continue };
            let Some(Shortcut { common, .. }) = instrs[comparison].shortcut else { continue };
            let Some(producer) = instrs[..comparison].iter().rposition(|instr| instr.result == common) else {
                continue;
            };
            // All reads are in registers before the comparison, or in the skipped instructions and the selection.
            let selection = comparison + distance as usize;
            let reads = instrs[producer + 1..=selection].iter().flat_map(ScheduledInstr::operands);
            let is_in_registers = |op: &FusedOp| {
                let tests_registers = matches!(op.instr, FusedInstr::IsNan(_) | FusedInstr::IsFinite(_));
                op.chain_start.is_none() && (tests_registers || !op.operands.contains(&common))
            };
            let stays_in_registers = ops[producer + 1..=comparison].iter().all(is_in_registers);
            let op = &ops[producer];
            if op.is_stored
                && !op.is_deferred
                && stays_in_registers
                && reads.filter(|&&slot| slot == common).count() == self.reads[common as usize]
            {
                (ops[producer].is_deferred, ops[comparison].stores_common) = (true, Some(common));
            }
        }
    }

    /// Returns a comparison of a shortcut as part of a fused loop. The values in registers, which are in slot `last`,
    /// are the first operand of the selection; otherwise the loop loads them.
    fn shortcut_op(
        &self,
        instr: &ScheduledInstr,
        shortcut: Shortcut,
        last: Option<ValueSlot>,
        update: MaskUpdate,
    ) -> Option<FusedOp> {
        let op = self.fused_op(instr, Some(shortcut.common), update)?;
        let chain_start = (last != Some(shortcut.common)).then_some(shortcut.common);
        Some(FusedOp { chain_start, skip: shortcut.skip, ..op })
    }

    /// Returns `instr` as part of a fused loop, or `None` if it cannot be fused.
    ///
    /// With `last`, the instruction continues the chain whose values are in slot `last`. Without `last`, it begins a
    /// chain. `update` is the effect of a comparison on the mask in registers.
    fn fused_op(&self, instr: &ScheduledInstr, last: Option<ValueSlot>, update: MaskUpdate) -> Option<FusedOp> {
        let (opcode, chain_loop) =
            opcode_of(self.program, instr).filter(|_| !instr.mixed || self.schedule.rows != RowLayout::Short)?;
        let args = instr.operands();
        let is_tile = |k: usize| self.schedule.is_vector(args[k], instr.granularity);
        // A chain begins with values of the granularity of the result.
        let begins = |k: usize| self.schedule.granularity[args[k] as usize] == instr.granularity;
        let (fused_instr, chain_start, operands) = match opcode {
            Opcode::Select if self.schedule.granularity[args[0] as usize] == Granularity::Uniform => {
                // The operand whose values are in registers, and the other operand.
                let in_registers = (1..3).find(|&k| last.map_or(begins(k), |last| args[k] == last))?;
                let other = 3 - in_registers;
                let instr = match (in_registers, is_tile(other)) {
                    (1, true) => FusedInstr::IfElseTile,
                    (1, false) => FusedInstr::IfElseOne,
                    (_, true) => FusedInstr::IfTile,
                    (_, false) => FusedInstr::IfOne,
                };
                let chain_start = last.is_none().then_some(args[in_registers]);
                (Some(instr).filter(|_| args[1] != args[2])?, chain_start, [args[other], args[0]])
            }
            opcode if opcode.gives_mask() || matches!(opcode, Opcode::Select | Opcode::ToNumber) => {
                let mask = if opcode.gives_mask() { instr.result } else { args[0] };
                let tiles: [bool; 3] = std::array::from_fn(|k| k < args.len() && is_tile(k));
                let can_begin = last.is_some() || (0..args.len()).any(begins);
                let loads_first = if last.is_some() { tiles[0] } else { begins(0) };
                masked_instr((opcode, update), args, tiles, loads_first, last)
                    .filter(|_| can_begin)
                    .filter(|_| self.in_registers[mask as usize])?
            }
            _ => {
                // The operand whose values are in registers, and the other operands.
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
                (fused_instr?, last.is_none().then_some(args[in_registers]), others.map(|k| args[k]))
            }
        };
        let granularity = operands.map(|slot| self.schedule.granularity[slot as usize]);
        Some(FusedOp {
            chain_loop,
            count: 0,
            by_row: instr.mixed,
            instr: fused_instr,
            chain_start,
            operands,
            granularity,
            is_stored: true,
            is_deferred: false,
            stores_common: None,
            can_stream: false,
            reduction: None,
            skip: None,
        })
    }
}

/// Returns an instruction that computes or reads a mask in registers, the slot that the chain loads first, and the
/// operands in memory. `last` is the slot of the values in registers, and `tiles` says which operands are tiles. A
/// comparison of two operands in memory loads the first as a tile if `loads_first`, otherwise the second.
///
/// A comparison does not change the values in registers. Of these instructions, only a comparison begins a chain
/// (`last` is `None`): it loads the initial values of the chain.
fn masked_instr(
    (opcode, update): (Opcode, MaskUpdate),
    args: &[ValueSlot],
    tiles: [bool; 3],
    loads_first: bool,
    last: Option<ValueSlot>,
) -> Option<(FusedInstr, Option<ValueSlot>, [ValueSlot; 2])> {
    let at = |k: usize| last == Some(args[k]);
    let instr = match opcode {
        Opcode::And | Opcode::Or => (FusedInstr::NoOp, [args[0]; 2]),
        Opcode::ToNumber => (FusedInstr::ToNumber, [args[0]; 2]),
        Opcode::IsNan | Opcode::IsFinite => {
            let (in_registers, in_memory) = match opcode {
                Opcode::IsNan => (FusedInstr::IsNan(update), FusedInstr::CompareTiles(Comparison::Ne, update)),
                _ => (FusedInstr::IsFinite(update), FusedInstr::TileIsFinite(update)),
            };
            match last {
                None => return Some((in_registers, Some(args[0]), [args[0]; 2])),
                Some(_) => (if at(0) { in_registers } else { in_memory }, [args[0]; 2]),
            }
        }
        Opcode::Compare(comparison) => {
            // The first operand is the values in registers, or else a tile.
            let is_swapped = !at(0) && (at(1) || !loads_first);
            let (first, second) = if is_swapped { (1, 0) } else { (0, 1) };
            let comparison = if is_swapped { comparison.reversed() } else { comparison };
            let operands = [args[first], args[second]];
            match (last.is_none() || at(first), tiles[second]) {
                (true, is_tile) => {
                    let instr = if is_tile { FusedInstr::CompareTile } else { FusedInstr::CompareOne };
                    return Some((instr(comparison, update), last.is_none().then_some(operands[0]), [operands[1]; 2]));
                }
                (false, true) => (FusedInstr::CompareTiles(comparison, update), operands),
                (false, false) => (FusedInstr::CompareTileOne(comparison, update), operands),
            }
        }
        Opcode::Select if at(1) => match tiles[2] {
            true => (FusedInstr::SelectElseTile, [args[2]; 2]),
            false => (FusedInstr::SelectElseOne, [args[2]; 2]),
        },
        Opcode::Select if at(2) => match tiles[1] {
            true => (FusedInstr::SelectTile, [args[1]; 2]),
            false => (FusedInstr::SelectOne, [args[1]; 2]),
        },
        Opcode::Select => {
            let instr = match (tiles[1], tiles[2]) {
                (true, true) => FusedInstr::SelectTileTile,
                (true, false) => FusedInstr::SelectTileOne,
                (false, true) => FusedInstr::SelectOneTile,
                (false, false) => FusedInstr::SelectOneOne,
            };
            (instr, [args[1], args[2]])
        }
        _ => return None,
    };
    // A chain cannot begin with the other instructions.
    last.map(|_| (instr.0, None, instr.1))
}

/// Returns the single instruction that replaces a comparison and the selection after it, if there is such an
/// instruction for their operands.
fn limit_instr(comparison: FusedInstr, selection: FusedInstr) -> Option<FusedInstr> {
    match (comparison, selection) {
        (FusedInstr::CompareOne(Comparison::Lt, MaskUpdate::Replace), FusedInstr::SelectOne) => {
            Some(FusedInstr::RaiseToOne)
        }
        (FusedInstr::CompareOne(Comparison::Gt, MaskUpdate::Replace), FusedInstr::SelectOne) => {
            Some(FusedInstr::LowerToOne)
        }
        _ => None,
    }
}

/// Marks the instructions starting at `start` as a fused loop, if this is faster than their separate loops. `can_sum`
/// states whether the loop may accumulate a sum of its phase.
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

/// Returns the sum at the end of `phase` that can accumulate the values of `last`, or their products with other values,
/// if there is one. `last` is the last result of the loop that begins at instruction `start`.
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
pub(super) fn count_reads(schedule: &KernelSchedule, program: &PreparedProgram) -> Vec<usize> {
    let mut reads = vec![0; schedule.granularity.len()];
    let by_instrs = schedule.instrs.iter().flat_map(|i| i.operands()).copied();
    let by_folds = schedule.folds.iter().flat_map(RowReduction::operands);
    let by_outputs = program.outputs.iter().map(|o| o.slot);
    by_instrs.chain(by_folds).chain(by_outputs).for_each(|slot| reads[slot as usize] += 1);
    reads
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
            Unary::Ndtr => FusedInstr::Ndtr(f),
            Unary::Tanh => FusedInstr::Tanh(f),
            Unary::Sin => FusedInstr::Sin(f),
            Unary::Cos => FusedInstr::Cos(f),
            Unary::Abs => FusedInstr::Abs(f),
            Unary::Floor => FusedInstr::Floor(f),
            Unary::Trunc => FusedInstr::Trunc(f),
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
        (Opcode::Max, 0, [true, _]) => FusedInstr::MaxTile,
        (Opcode::Max, 0, [false, _]) => FusedInstr::MaxOne,
        (Opcode::Max, _, [true, _]) => FusedInstr::TileMax,
        (Opcode::Max, _, [false, _]) => FusedInstr::OneMax,
        (Opcode::Min, 0, [true, _]) => FusedInstr::MinTile,
        (Opcode::Min, 0, [false, _]) => FusedInstr::MinOne,
        (Opcode::Min, _, [true, _]) => FusedInstr::TileMin,
        (Opcode::Min, _, [false, _]) => FusedInstr::OneMin,
        (Opcode::MulAdd, 0 | 1, [true, true]) => FusedInstr::MulTileAddTile,
        (Opcode::MulAdd, 0 | 1, [true, false]) => FusedInstr::MulTileAddOne,
        (Opcode::MulAdd, 0 | 1, [false, true]) => FusedInstr::MulOneAddTile,
        (Opcode::MulAdd, 0 | 1, [false, false]) => FusedInstr::MulOneAddOne,
        (Opcode::MulAdd, _, [true, true]) => FusedInstr::AddTileTile,
        (Opcode::MulAdd, _, [true, false]) => FusedInstr::AddTileOne,
        // The schedule has swapped the factors so that a single value is the second factor; both are single values
        // here.
        (Opcode::MulAdd, _, [false, _]) => return None,
        // These instructions read or compute a mask.
        (Opcode::Compare(_) | Opcode::IsNan | Opcode::IsFinite | Opcode::And | Opcode::Or, ..) => return None,
        (Opcode::Select | Opcode::ToNumber, ..) => return None,
    })
}
