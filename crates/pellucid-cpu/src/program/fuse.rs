//! Fusion: which instructions of a schedule run as one loop, and how that loop is called.
//!
//! A float instruction joins the chain of its predecessor if it reads the predecessor's result, which then stays in
//! registers. Otherwise it begins another chain in the same loop, so that one pass over memory serves all operands. The
//! order of the instructions does not change. The last instruction of a chain can write an output with non-temporal
//! stores. A sum over long rows of the last result accumulates it from registers.

use crate::program::loops::{ChainLoop, FusedInstr, FusedOperands, LANES, Opcode, ROWS};
use crate::program::lower::{Prepared, ValueSlot};
use crate::program::schedule::{Extent, Granularity, KernelSchedule, RowLength, RowReduction, ScheduledInstr};
use pellucid_ir::formula::Unary;
use std::mem::MaybeUninit;

/// The maximal number of fused instructions in a loop; one of them may be the product of a summed product.
const MAX_FUSED: usize = 64;

/// A scheduled instruction as part of a fused loop.
#[derive(Clone, Copy)]
pub(crate) struct FusedOp {
    /// The loop that runs the chain.
    chain_loop: ChainLoop,
    /// The number of instructions in the loop, from this one to the last.
    pub(crate) count: u8,
    /// Some instruction of the loop reads a per-row value, so that a tile of several rows is computed row by row.
    by_row: bool,
    /// The operation on the values in registers.
    instr: FusedInstr,
    /// The slot of the values that a chain loads, if a chain begins here.
    begin: Option<ValueSlot>,
    /// The slots of the operands other than the values in registers, as many as `instr` has.
    operands: [ValueSlot; 2],
    /// The granularities of `operands`.
    granularity: [Granularity; 2],
    /// The result is written to memory, because an instruction other than the next one in the loop reads it.
    pub(crate) is_stored: bool,
    /// The chain ends here with a direct output that no instruction reads.
    can_stream: bool,
    /// The reduction that accumulates the last result of the loop.
    reduction: Option<FusedReduction>,
}

impl FusedOp {
    /// Returns true if the fused loop is faster than its instructions one by one.
    #[inline]
    pub(crate) fn is_profitable(&self, tile: &Extent<'_>) -> bool {
        self.count > 1 || tile.stream || self.reduction.is_some() && !tile.folds.is_empty()
    }
}

/// A sum that a fused loop computes.
#[derive(Clone, Copy)]
struct FusedReduction {
    /// The index of the reduction in the schedule.
    index: u16,
    /// If products are summed, the multiplication and the slot of the other factor.
    product: Option<(FusedInstr, ValueSlot)>,
}

/// Finds the fused loops of a schedule and marks their instructions.
pub(crate) fn fuse_chains(schedule: &mut KernelSchedule, program: &Prepared, rows: RowLength) {
    let reads = count_reads(schedule, program);
    schedule.streams = vec![false; schedule.granularity.len()];
    for phase in 0..schedule.phases.len() {
        let tiles = schedule.phases[phase].tiles.clone();
        let mut start = tiles.start;
        while start < tiles.end {
            let mut ops: Vec<FusedOp> = Vec::new();
            let (mut last, mut links) = (None, 0);
            for instr in &schedule.instrs[start..tiles.end] {
                let joins = fused_op(schedule, program, rows, instr, last);
                let Some(op) = joins.or_else(|| fused_op(schedule, program, rows, instr, None)) else { break };
                links += 1;
                let differs = ops.first().is_some_and(|first| !std::ptr::fn_addr_eq(first.chain_loop, op.chain_loop));
                if differs || links >= MAX_FUSED {
                    break;
                }
                if let (Some(before), Some(last), None) = (ops.last_mut(), last, op.begin) {
                    let here = instr.operands().iter().filter(|&&a| a == last).count();
                    before.is_stored = reads[last as usize] > here;
                    before.can_stream = false;
                }
                let direct = program.outputs.iter().any(|o| o.slot == instr.into && o.direct.is_some());
                ops.push(FusedOp { can_stream: direct && reads[instr.into as usize] == 1, ..op });
                last = Some(instr.into);
            }
            let count = ops.len();
            let by_row = ops.iter().any(|op| op.by_row);
            let reduction =
                last.filter(|_| rows == RowLength::Long).and_then(|last| fused_reduction(schedule, phase, start, last));
            if let Some(reduction) = &reduction {
                schedule.folds[reduction.index as usize].chained = true;
            }
            let profitable = count > 1 || reduction.is_some() || ops.iter().any(|op| op.can_stream);
            for (k, op) in ops.into_iter().enumerate().filter(|_| profitable) {
                let into = schedule.instrs[start + k].into;
                schedule.streams[into as usize] = op.can_stream;
                let count = (count - k) as u8;
                schedule.instrs[start + k].fused = Some(FusedOp { count, by_row, reduction, ..op });
            }
            start += count.max(1);
        }
    }
}

/// Returns the sum at the end of `phase` that can accumulate the values of `last`, the last result of the loop that
/// begins at instruction `start`.
fn fused_reduction(schedule: &KernelSchedule, phase: usize, start: usize, last: ValueSlot) -> Option<FusedReduction> {
    let folds = schedule.phases[phase].folds.clone();
    let computed_before = |slot: ValueSlot| schedule.instrs[start..].iter().all(|i| i.into != slot);
    folds.zip(&schedule.folds[schedule.phases[phase].folds.clone()]).find_map(|(index, fold)| {
        let product = match (fold.from, fold.times) {
            (from, None) if from == last => None,
            (from, Some(times)) if from == last && times == last => Some((FusedInstr::Square, last)),
            (from, Some(times)) if from == last && computed_before(times) => Some((FusedInstr::MulTile, times)),
            (from, Some(times)) if times == last && computed_before(from) => Some((FusedInstr::MulTile, from)),
            _ => return None,
        };
        let is_sum = fold.fold.loops.accumulate_products.is_some();
        is_sum.then_some(FusedReduction { index: index as u16, product })
    })
}

/// Returns how often instructions, reductions and outputs read each slot.
fn count_reads(schedule: &KernelSchedule, program: &Prepared) -> Vec<usize> {
    let mut reads = vec![0; schedule.granularity.len()];
    let by_instrs = schedule.instrs.iter().flat_map(|i| i.operands()).copied();
    let by_folds = schedule.folds.iter().flat_map(RowReduction::operands);
    let by_outputs = program.outputs.iter().map(|o| o.slot);
    by_instrs.chain(by_folds).chain(by_outputs).for_each(|slot| reads[slot as usize] += 1);
    reads
}

/// Returns `instr` as part of a fused loop, or `None` if it cannot be fused.
///
/// With `last`, the instruction continues the chain whose values are in slot `last`; without, it begins a chain.
fn fused_op(
    schedule: &KernelSchedule,
    program: &Prepared,
    rows: RowLength,
    instr: &ScheduledInstr,
    last: Option<ValueSlot>,
) -> Option<FusedOp> {
    let step = program.steps.get((instr.into as usize).checked_sub(program.first_step())?)?;
    let (opcode, chain_loop) = step.fusable.filter(|_| !instr.mixed || rows == RowLength::Long)?;
    let args = instr.operands();
    let is_tile = |k: usize| schedule.granularity[args[k] as usize] == Granularity::PerElement;
    // The operand whose values are in registers, and the other operands.
    let own = (0..args.len()).find(|&k| last.map_or(is_tile(k), |last| args[k] == last))?;
    let others = match (args.len(), own) {
        (3, 0) => [1, 2],
        (3, 1) => [0, 2],
        (3, _) => [0, 1],
        (2, _) => [1 - own; 2],
        _ => [own; 2],
    };
    let repeats = |k: usize| k != own && args[k] == args[own];
    let fused_instr = match args.len() {
        3 if last.is_some() && others.into_iter().any(repeats) => return None,
        2 if repeats(1 - own) => fused_instr_with_itself(opcode),
        _ => fused_instr(opcode, own, others.map(is_tile)),
    };
    let (begin, operands) = (last.is_none().then_some(args[own]), others.map(|k| args[k]));
    let granularity = operands.map(|slot| schedule.granularity[slot as usize]);
    Some(FusedOp {
        chain_loop,
        count: 0,
        by_row: instr.mixed,
        instr: fused_instr?,
        begin,
        operands,
        granularity,
        is_stored: true,
        can_stream: false,
        reduction: None,
    })
}

/// Returns the operation on values in registers that are both operands of the instruction.
fn fused_instr_with_itself(opcode: Opcode) -> Option<FusedInstr> {
    match opcode {
        Opcode::Add => Some(FusedInstr::Double),
        Opcode::Mul => Some(FusedInstr::Square),
        _ => None,
    }
}

/// Returns the operation on values in registers that are operand `own` of the instruction. `tiles` says which of the
/// other operands are tiles; the rest are single values.
fn fused_instr(opcode: Opcode, own: usize, tiles: [bool; 2]) -> Option<FusedInstr> {
    Some(match (opcode, own, tiles) {
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
        // The schedule swaps the factors so that a single value is the second one.
        (Opcode::MulAdd, _, [false, _]) => return None,
    })
}

/// Runs a fused loop on a tile.
///
/// # Safety
/// - *Chain*: `chain` is one fused loop: all its instructions, in order.
/// - *Slots*, *Aliasing*, *Streaming*, *Reductions*: the clauses of [`execute`](crate::program::schedule::execute).
#[inline]
pub(crate) unsafe fn run_chain(chain: &[ScheduledInstr], addresses: &[*mut u8], tile: &Extent<'_>) {
    let mut links = [const { MaybeUninit::<FusedOperands>::uninit() }; MAX_FUSED];
    // SAFETY: a loop has at least one instruction, all are fused (*Chain*), and there are fewer than `MAX_FUSED`, which
    // leaves one link for the product of a reduction. Every slot has an address (*Slots*). The first `count` links are
    // written before the slice over them is read. The operands of the links satisfy the contract of `ChainLoop` by
    // *Slots*, *Aliasing* and *Streaming*; streamed results of one loop are made aligned alike below.
    unsafe {
        let address = |slot: ValueSlot| *addresses.get_unchecked(slot as usize);
        let first = chain.get_unchecked(0).fused.unwrap_unchecked();
        // The first result with non-temporal stores. Other results use them only if they have the same alignment.
        let mut first_streamed: *mut u8 = std::ptr::null_mut();
        let mut count = 0;
        let mut push = |link: FusedOperands| {
            links.get_unchecked_mut(count).write(link);
            count += 1;
        };
        for instr in chain {
            let op = instr.fused.unwrap_unchecked();
            let into = if op.is_stored { address(instr.into) } else { std::ptr::null_mut() };
            let mut far = tile.stream && op.can_stream;
            if far && first_streamed.is_null() {
                first_streamed = into;
            }
            far &= (into.addr() ^ first_streamed.addr()).is_multiple_of(64);
            let begin = op.begin.map_or(std::ptr::null(), |slot| address(slot).cast_const());
            push(FusedOperands {
                begin,
                act: op.instr,
                with: op.operands.map(|slot| address(slot).cast_const()),
                into,
                far,
            });
        }
        let reduction = first.reduction.filter(|_| !tile.folds.is_empty());
        if let Some((act, factor)) = reduction.and_then(|r| r.product) {
            let with = [address(factor).cast_const(); 2];
            push(FusedOperands { begin: std::ptr::null(), act, with, into: std::ptr::null_mut(), far: false });
        }
        let links = std::slice::from_raw_parts_mut(links.as_mut_ptr().cast::<FusedOperands>(), count);
        if reduction.is_none() && (!first.by_row || tile.rows == 1) {
            return (first.chain_loop)(links, std::ptr::null_mut(), tile.rows * tile.len);
        }
        run_chain_by_rows(chain, links, reduction, addresses, tile);
    }
}

/// Runs a fused loop row by row; `links` are the operands of the first row.
///
/// # Safety
/// The contract of [`run_chain`]. `links` are the operands of `chain` for the first row, and `tile.folds` has the
/// reduction if there is one.
#[inline(never)]
unsafe fn run_chain_by_rows(
    chain: &[ScheduledInstr],
    links: &mut [FusedOperands],
    reduction: Option<FusedReduction>,
    addresses: &[*mut u8],
    tile: &Extent<'_>,
) {
    // SAFETY: all instructions are fused (*Chain*). The links of row `row` are those of the first, advanced by `row`
    // rows, and stay within the values of *Slots*. `tile.folds` has the reduction with this index, and its result slot
    // is valid for `tile.rows` values (*Reductions*). The values after the first `done` of a row are those of *Slots*;
    // a row is no longer than a chunk (*Reductions*), and `lanes` holds sixteen values.
    unsafe {
        let chain_loop = chain.get_unchecked(0).fused.unwrap_unchecked().chain_loop;
        let size = chain[0].size();
        for row in 0..tile.rows {
            if row > 0 {
                advance_links(links, chain, size, tile.len);
            }
            let Some(reduction) = reduction else {
                chain_loop(links, std::ptr::null_mut(), tile.len);
                continue;
            };
            let fold = tile.folds.get_unchecked(reduction.index as usize);
            let (mut lanes, done) = ([0u64; LANES], tile.len / ROWS * ROWS);
            let sum = lanes.as_mut_ptr().cast();
            chain_loop(links, sum, tile.len);
            let rest = fold.values(addresses).skip((row * tile.len + done) * size);
            fold.fold.finish_chunk(addresses[fold.into as usize].add(row * size), sum, rest, done, tile.len - done);
        }
    }
}

/// Advances the operands of a fused loop from one row of `len` values of `size` bytes to the next.
fn advance_links(links: &mut [FusedOperands], chain: &[ScheduledInstr], size: usize, len: usize) {
    let stride = |granularity| match granularity {
        Granularity::Uniform => 0,
        Granularity::PerRow => size,
        Granularity::PerElement => size * len,
    };
    // The link of a summed product follows those of the instructions and reads a tile.
    let product = [Granularity::PerElement; 2];
    let granularities = chain.iter().filter_map(|instr| instr.fused).map(|op| op.granularity).chain([product]);
    for (link, granularity) in links.iter_mut().zip(granularities) {
        if !link.begin.is_null() {
            link.begin = link.begin.wrapping_add(stride(Granularity::PerElement));
        }
        for (p, granularity) in link.with.iter_mut().zip(granularity) {
            *p = p.wrapping_add(stride(granularity));
        }
        if !link.into.is_null() {
            link.into = link.into.wrapping_add(stride(Granularity::PerElement));
        }
    }
}
