//! Chains of a linked program: which instructions run as one loop, and how that loop is called.
//!
//! An instruction on floats joins the chain of the one before it if it reads that one's result; otherwise it
//! begins another chain in the same loop, so that all their arrays are walked through together. The order of
//! instructions is not changed. An output at an end may pass the caches by, and a sum over long rows of what the
//! last one makes takes it from the registers.

use crate::program::loops::{ChainLoop, FusedInstr, FusedOperands, LANES, Opcode, ROWS};
use crate::program::lower::{Prepared, Slot};
use crate::program::schedule::{Extent, Granularity, KernelSchedule, RowReduction, Rows, ScheduledInstr};
use pellucid_ir::formula::Unary;
use std::mem::MaybeUninit;

/// The most links of a loop: one an instruction, and one for a product that is summed.
const MOST: usize = 64;

/// An instruction's part in a chain.
#[derive(Clone, Copy)]
pub(crate) struct FusedOp {
    /// The loop that runs the chain.
    run: ChainLoop,
    /// How many instructions the chain has from this one on.
    pub(crate) count: u8,
    /// True if any of them reads a value a row: several rows run one by one.
    by_row: bool,
    act: FusedInstr,
    /// The slot whose values a chain begins with, if it begins here.
    begin: Option<Slot>,
    /// The slots of the act's other operands, as many as it has, and how often their values are there.
    with: [Slot; 2],
    class: [Granularity; 2],
    /// True if someone beside the next member reads the result.
    pub(crate) kept: bool,
    /// True if its chain ends here, with an output that nobody reads.
    ends: bool,
    /// The reduction that takes what the chain makes.
    fold: Option<FusedReduction>,
}

impl FusedOp {
    /// True if the chain has more to give than its instructions by themselves.
    #[inline]
    pub(crate) fn serves(&self, tile: &Extent<'_>) -> bool {
        self.count > 1 || tile.stream || self.fold.is_some() && !tile.folds.is_empty()
    }
}

/// A reduction at a chain's end.
#[derive(Clone, Copy)]
struct FusedReduction {
    /// Its number.
    index: u16,
    /// The last act before it, if it sums products: the slot of the other factor.
    act: Option<(FusedInstr, Slot)>,
}

/// Finds the chains of a program for such rows and marks their members.
pub(crate) fn form(linked: &mut KernelSchedule, program: &Prepared, rows: Rows) {
    let reads = reads(linked, program);
    linked.streams = vec![false; linked.class.len()];
    for phase in 0..linked.phases.len() {
        let tiles = linked.phases[phase].tiles.clone();
        let mut start = tiles.start;
        while start < tiles.end {
            let mut members: Vec<FusedOp> = Vec::new();
            let (mut last, mut links) = (None, 0);
            for code in &linked.code[start..tiles.end] {
                let joins = member(linked, program, rows, code, last);
                let Some(member) = joins.or_else(|| member(linked, program, rows, code, None)) else { break };
                links += 1;
                let other = members.first().is_some_and(|first| !std::ptr::fn_addr_eq(first.run, member.run));
                if other || links >= MOST {
                    break;
                }
                if let (Some(before), Some(last), None) = (members.last_mut(), last, member.begin) {
                    let here = code.operands().iter().filter(|&&a| a == last).count();
                    before.kept = reads[last as usize] > here;
                    before.ends = false;
                }
                let stored = program.outputs.iter().any(|o| o.slot == code.into && o.direct.is_some());
                members.push(FusedOp { ends: stored && reads[code.into as usize] == 1, ..member });
                last = Some(code.into);
            }
            let count = members.len();
            let by_row = members.iter().any(|m| m.by_row);
            let fold = last.filter(|_| rows == Rows::Long).and_then(|last| taken(linked, phase, start, last));
            if let Some(fold) = &fold {
                linked.folds[fold.index as usize].chained = true;
            }
            let serves = count > 1 || fold.is_some() || members.iter().any(|m| m.ends);
            for (k, member) in members.into_iter().enumerate().filter(|_| serves) {
                let into = linked.code[start + k].into;
                linked.streams[into as usize] = member.ends;
                linked.code[start + k].member = Some(FusedOp { count: (count - k) as u8, by_row, fold, ..member });
            }
            start += count.max(1);
        }
    }
}

/// The sum at the end of `phase` that can take the values of `last`, which a chain makes that begins at `start`.
fn taken(linked: &KernelSchedule, phase: usize, start: usize, last: Slot) -> Option<FusedReduction> {
    let folds = linked.phases[phase].folds.clone();
    let there = |slot: Slot| linked.code[start..].iter().all(|c| c.into != slot);
    folds.zip(&linked.folds[linked.phases[phase].folds.clone()]).find_map(|(index, fold)| {
        let act = match (fold.from, fold.times) {
            (from, None) if from == last => None,
            (from, Some(times)) if from == last && times == last => Some((FusedInstr::Square, last)),
            (from, Some(times)) if from == last && there(times) => Some((FusedInstr::MulTile, times)),
            (from, Some(times)) if times == last && there(from) => Some((FusedInstr::MulTile, from)),
            _ => return None,
        };
        fold.fold.loops.accumulate_products.is_some().then_some(FusedReduction { index: index as u16, act })
    })
}

/// How often each slot is read, by instructions, reductions and outputs.
fn reads(linked: &KernelSchedule, program: &Prepared) -> Vec<usize> {
    let mut reads = vec![0; linked.class.len()];
    let by_code = linked.code.iter().flat_map(|c| c.operands()).copied();
    let by_folds = linked.folds.iter().flat_map(RowReduction::operands);
    let by_outputs = program.outputs.iter().map(|o| o.slot);
    by_code.chain(by_folds).chain(by_outputs).for_each(|slot| reads[slot as usize] += 1);
    reads
}

/// What `code` is in a chain, as its first member or after the one whose result is `last`.
fn member(
    linked: &KernelSchedule,
    program: &Prepared,
    rows: Rows,
    code: &ScheduledInstr,
    last: Option<Slot>,
) -> Option<FusedOp> {
    let step = program.steps.get((code.into as usize).checked_sub(program.first_step())?)?;
    let (part, run) = step.part.filter(|_| !code.mixed || rows == Rows::Long)?;
    let args = code.operands();
    let full = |k: usize| linked.class[args[k] as usize] == Granularity::PerElement;
    let begin = (0..args.len()).find(|&k| last.map_or(full(k), |last| args[k] == last))?;
    let with = match (args.len(), begin) {
        (3, 0) => [1, 2],
        (3, 1) => [0, 2],
        (3, _) => [0, 1],
        (2, _) => [1 - begin; 2],
        _ => [begin; 2],
    };
    let again = |k: usize| k != begin && args[k] == args[begin];
    let act = match args.len() {
        3 if last.is_some() && with.into_iter().any(again) => return None,
        2 if again(1 - begin) => act_with_itself(part),
        _ => act(part, begin, with.map(full)),
    };
    let (begin, with) = (last.is_none().then_some(args[begin]), with.map(|k| args[k]));
    let class = with.map(|slot| linked.class[slot as usize]);
    Some(FusedOp {
        run,
        count: 0,
        by_row: code.mixed,
        act: act?,
        begin,
        with,
        class,
        kept: true,
        ends: false,
        fold: None,
    })
}

/// What is done to the values of the chain, which are both operands.
fn act_with_itself(part: Opcode) -> Option<FusedInstr> {
    match part {
        Opcode::Add => Some(FusedInstr::Double),
        Opcode::Mul => Some(FusedInstr::Square),
        _ => None,
    }
}

/// What is done to the values of the chain, operand `own`; `tiles` says of the other operands whether they are
/// tiles or single values.
fn act(part: Opcode, own: usize, tiles: [bool; 2]) -> Option<FusedInstr> {
    Some(match (part, own, tiles) {
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
        // The link puts a factor that is one value second.
        (Opcode::MulAdd, _, [false, _]) => return None,
    })
}

/// Runs the chain of `members` on a tile.
///
/// # Safety
/// `members` are a whole chain, and `at` is as [`execute`](crate::program::schedule::execute) wants it.
#[inline]
pub(crate) unsafe fn run(members: &[ScheduledInstr], at: &[*mut u8], tile: &Extent<'_>) {
    let mut links = [const { MaybeUninit::<FusedOperands>::uninit() }; MOST];
    // SAFETY: all are members, one fewer than there are links; slots are below `at.len()` by construction.
    unsafe {
        let ptr = |slot: Slot| *at.get_unchecked(slot as usize);
        let first = members.get_unchecked(0).member.unwrap_unchecked();
        // Where the first results go past the caches; others do only if they are aligned alike.
        let mut near: *mut u8 = std::ptr::null_mut();
        let mut count = 0;
        let mut push = |link: FusedOperands| {
            links.get_unchecked_mut(count).write(link);
            count += 1;
        };
        for code in members {
            let member = code.member.unwrap_unchecked();
            let into = if member.kept { ptr(code.into) } else { std::ptr::null_mut() };
            let mut far = tile.stream && member.ends;
            if far && near.is_null() {
                near = into;
            }
            far &= (into.addr() ^ near.addr()).is_multiple_of(64);
            let begin = member.begin.map_or(std::ptr::null(), |slot| ptr(slot).cast_const());
            push(FusedOperands {
                begin,
                act: member.act,
                with: member.with.map(|slot| ptr(slot).cast_const()),
                into,
                far,
            });
        }
        let fold = first.fold.filter(|_| !tile.folds.is_empty());
        if let Some((act, with)) = fold.and_then(|f| f.act) {
            let with = [ptr(with).cast_const(); 2];
            push(FusedOperands { begin: std::ptr::null(), act, with, into: std::ptr::null_mut(), far: false });
        }
        let links = std::slice::from_raw_parts_mut(links.as_mut_ptr().cast::<FusedOperands>(), count);
        if fold.is_none() && (!first.by_row || tile.rows == 1) {
            return (first.run)(links, std::ptr::null_mut(), tile.rows * tile.len);
        }
        run_rows(members, links, fold, at, tile);
    }
}

/// Runs a chain row by row; `links` are those of the first.
///
/// # Safety
/// As [`run`].
#[inline(never)]
unsafe fn run_rows(
    members: &[ScheduledInstr],
    links: &mut [FusedOperands],
    fold: Option<FusedReduction>,
    at: &[*mut u8],
    tile: &Extent<'_>,
) {
    // SAFETY: the caller's promise; a reduction that is taken has a number among those of the program.
    unsafe {
        let run = members.get_unchecked(0).member.unwrap_unchecked().run;
        let size = members[0].size();
        for row in 0..tile.rows {
            if row > 0 {
                advance(links, members, size, tile.len);
            }
            let Some(fold) = fold else {
                run(links, std::ptr::null_mut(), tile.len);
                continue;
            };
            let fold = tile.folds.get_unchecked(fold.index as usize);
            let (mut lanes, done) = ([0u64; LANES], tile.len / ROWS * ROWS);
            let sum = lanes.as_mut_ptr().cast();
            run(links, sum, tile.len);
            let rest = fold.values(at).skip((row * tile.len + done) * size);
            fold.fold.end(at[fold.into as usize].add(row * size), sum, rest, done, tile.len - done);
        }
    }
}

/// Takes the links of a chain from one row of `len` values of `size` bytes to the next.
fn advance(links: &mut [FusedOperands], members: &[ScheduledInstr], size: usize, len: usize) {
    let step = |class| match class {
        Granularity::Uniform => 0,
        Granularity::PerRow => size,
        Granularity::PerElement => size * len,
    };
    // The link of a product that is summed, beyond the members, reads a tile.
    let classes = members.iter().filter_map(|code| code.member).map(|m| m.class).chain([[Granularity::PerElement; 2]]);
    for (link, class) in links.iter_mut().zip(classes) {
        if !link.begin.is_null() {
            link.begin = link.begin.wrapping_add(step(Granularity::PerElement));
        }
        for (p, class) in link.with.iter_mut().zip(class) {
            *p = p.wrapping_add(step(class));
        }
        if !link.into.is_null() {
            link.into = link.into.wrapping_add(step(Granularity::PerElement));
        }
    }
}
