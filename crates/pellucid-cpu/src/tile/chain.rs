//! Chains of a linked program: which instructions run as one loop, and how that loop is called.
//!
//! An instruction of arithmetic joins the chain of the one before it if it reads that one's result. The
//! order of instructions is not changed. An output that is made by the last of a chain, or by one alone, may pass
//! the caches by, and a sum over long rows of what the last one makes takes it from the registers.

use super::link::{Class, Code, Extent, Folding, Linked, Rows};
use super::prepare::{Prepared, Slot};
use crate::simd::{Act, Arithmetic, ChainLoop, End, LANES, Link, ROWS};
use std::mem::MaybeUninit;

/// The most links of a chain: one to begin with, one an instruction, and one for a product that is summed.
const MOST: usize = 32;

/// An instruction's part in a chain.
#[derive(Clone, Copy)]
pub(super) struct Member {
    /// The loop that runs the chain.
    run: ChainLoop,
    /// How many instructions the chain has from this one on.
    pub(super) count: u8,
    /// True if any of them reads a value a row: several rows run one by one.
    by_row: bool,
    act: Act,
    /// The slot whose values the chain begins with, in its first instruction.
    begin: Slot,
    /// The slots of the act's other operands, as many as it has, and how often their values are there.
    with: [Slot; 2],
    class: [Class; 2],
    /// True if someone beside the next member reads the result.
    pub(super) kept: bool,
    /// True if it is the last member and its result is an output that nobody reads.
    ends: bool,
    /// The reduction that takes what the chain makes.
    fold: Option<Taken>,
}

impl Member {
    /// True if the chain has more to give than its instructions by themselves.
    #[inline]
    pub(super) fn serves(&self, tile: Extent<'_>) -> bool {
        self.count > 1 || tile.stream || self.fold.is_some() && !tile.folds.is_empty()
    }
}

/// A reduction at a chain's end.
#[derive(Clone, Copy)]
struct Taken {
    /// Its number.
    index: u16,
    /// The last act before it, if it sums products: the slot of the other factor.
    act: Option<(Act, Slot)>,
}

/// Finds the chains of a program for such rows and marks their members.
pub(super) fn form(linked: &mut Linked, program: &Prepared, rows: Rows) {
    let reads = reads(linked, program);
    linked.streams = vec![false; linked.class.len()];
    for phase in 0..linked.phases.len() {
        let tiles = linked.phases[phase].tiles.clone();
        let mut start = tiles.start;
        while start < tiles.end {
            let mut members: Vec<Member> = Vec::new();
            let mut last = None;
            for code in &linked.code[start..tiles.end.min(start + MOST - 2)] {
                let Some(member) = member(linked, program, rows, code, last) else { break };
                if members.first().is_some_and(|first| !std::ptr::fn_addr_eq(first.run, member.run)) {
                    break;
                }
                if let (Some(before), Some(last)) = (members.last_mut(), last) {
                    let here = code.operands().iter().filter(|&&a| a == last).count();
                    before.kept = reads[last as usize] > here;
                }
                members.push(member);
                last = Some(code.into);
            }
            if let (Some(member), Some(last)) = (members.last_mut(), last) {
                let stored = program.outputs.iter().any(|o| o.slot == last && o.direct.is_some());
                member.ends = stored && reads[last as usize] == 1;
                linked.streams[last as usize] = member.ends;
            }
            let count = members.len();
            let by_row = members.iter().any(|m| m.by_row);
            let fold = last.filter(|_| rows == Rows::Long).and_then(|last| taken(linked, phase, start, last));
            if let Some(fold) = &fold {
                linked.folds[fold.index as usize].chained = true;
            }
            let serves = count > 1 || fold.is_some() || members.iter().any(|m| m.ends);
            for (k, member) in members.into_iter().enumerate().filter(|_| serves) {
                linked.code[start + k].member = Some(Member { count: (count - k) as u8, by_row, fold, ..member });
            }
            start += count.max(1);
        }
    }
}

/// The sum at the end of `phase` that can take the values of `last`, which a chain makes that begins at `start`.
fn taken(linked: &Linked, phase: usize, start: usize, last: Slot) -> Option<Taken> {
    let folds = linked.phases[phase].folds.clone();
    let there = |slot: Slot| linked.code[start..].iter().all(|c| c.into != slot);
    folds.zip(&linked.folds[linked.phases[phase].folds.clone()]).find_map(|(index, fold)| {
        let act = match (fold.from, fold.times) {
            (from, None) if from == last => None,
            (from, Some(times)) if from == last && times == last => Some((Act::Square, last)),
            (from, Some(times)) if from == last && there(times) => Some((Act::MulTile, times)),
            (from, Some(times)) if times == last && there(from) => Some((Act::MulTile, from)),
            _ => return None,
        };
        fold.fold.loops.accumulate_products.is_some().then_some(Taken { index: index as u16, act })
    })
}

/// How often each slot is read, by instructions, reductions and outputs.
fn reads(linked: &Linked, program: &Prepared) -> Vec<usize> {
    let mut reads = vec![0; linked.class.len()];
    let by_code = linked.code.iter().flat_map(|c| c.operands()).copied();
    let by_folds = linked.folds.iter().flat_map(Folding::operands);
    let by_outputs = program.outputs.iter().map(|o| o.slot);
    by_code.chain(by_folds).chain(by_outputs).for_each(|slot| reads[slot as usize] += 1);
    reads
}

/// What `code` is in a chain, as its first member or after the one whose result is `last`.
fn member(linked: &Linked, program: &Prepared, rows: Rows, code: &Code, last: Option<Slot>) -> Option<Member> {
    let step = program.steps.get((code.into as usize).checked_sub(program.first_step())?)?;
    let (arithmetic, run) = step.arithmetic.filter(|_| !code.mixed || rows == Rows::Long)?;
    let args = code.operands();
    let full = |k: usize| linked.class[args[k] as usize] == Class::Tile;
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
        2 if again(1 - begin) => act_with_itself(arithmetic),
        _ => act(arithmetic, begin, with.map(full)),
    };
    let (begin, with) = (args[begin], with.map(|k| args[k]));
    let class = with.map(|slot| linked.class[slot as usize]);
    Some(Member {
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
fn act_with_itself(arithmetic: Arithmetic) -> Option<Act> {
    match arithmetic {
        Arithmetic::Add => Some(Act::Double),
        Arithmetic::Mul => Some(Act::Square),
        _ => None,
    }
}

/// What is done to the values of the chain, operand `own`; `tiles` says of the other operands whether they are
/// tiles or single values.
fn act(arithmetic: Arithmetic, own: usize, tiles: [bool; 2]) -> Option<Act> {
    Some(match (arithmetic, own, tiles) {
        (Arithmetic::Neg, ..) => Act::Neg,
        (Arithmetic::Add, _, [true, _]) => Act::AddTile,
        (Arithmetic::Add, _, [false, _]) => Act::AddOne,
        (Arithmetic::Mul, _, [true, _]) => Act::MulTile,
        (Arithmetic::Mul, _, [false, _]) => Act::MulOne,
        (Arithmetic::Sub, 0, [true, _]) => Act::SubTile,
        (Arithmetic::Sub, 0, [false, _]) => Act::SubOne,
        (Arithmetic::Sub, _, [true, _]) => Act::TileSub,
        (Arithmetic::Sub, _, [false, _]) => Act::OneSub,
        (Arithmetic::Div, 0, [true, _]) => Act::DivTile,
        (Arithmetic::Div, 0, [false, _]) => Act::DivOne,
        (Arithmetic::Div, _, [true, _]) => Act::TileDiv,
        (Arithmetic::Div, _, [false, _]) => Act::OneDiv,
        (Arithmetic::MulAdd, 0 | 1, [true, true]) => Act::MulTileAddTile,
        (Arithmetic::MulAdd, 0 | 1, [true, false]) => Act::MulTileAddOne,
        (Arithmetic::MulAdd, 0 | 1, [false, true]) => Act::MulOneAddTile,
        (Arithmetic::MulAdd, 0 | 1, [false, false]) => Act::MulOneAddOne,
        (Arithmetic::MulAdd, _, [true, true]) => Act::AddTileTile,
        (Arithmetic::MulAdd, _, [true, false]) => Act::AddTileOne,
        // The link puts a factor that is one value second.
        (Arithmetic::MulAdd, _, [false, _]) => return None,
    })
}

/// Runs the chain of `members` on a tile.
///
/// # Safety
/// `members` are a whole chain, and `at` is as [`execute`](super::link::execute) wants it.
#[inline]
pub(super) unsafe fn run(members: &[Code], at: &[*mut u8], tile: Extent<'_>) {
    let mut links = [const { MaybeUninit::<Link>::uninit() }; MOST];
    // SAFETY: all are members, two fewer than there are links; slots are below `at.len()` by construction.
    unsafe {
        let ptr = |slot: Slot| *at.get_unchecked(slot as usize);
        let member = |code: &Code| code.member.unwrap_unchecked();
        let first = member(members.get_unchecked(0));
        let with = [ptr(first.begin).cast_const(); 2];
        links[0].write(Link { act: Act::Begin, with, into: std::ptr::null_mut() });
        let mut count = 1;
        for code in members {
            let member = member(code);
            let with = member.with.map(|slot| ptr(slot).cast_const());
            let into = if member.kept { ptr(code.into) } else { std::ptr::null_mut() };
            links.get_unchecked_mut(count).write(Link { act: member.act, with, into });
            count += 1;
        }
        let last = links.get_unchecked_mut(count - 1).assume_init_mut();
        let mut end = End { far: std::ptr::null_mut(), sum: std::ptr::null_mut() };
        if tile.stream && member(members.get_unchecked(count - 2)).ends {
            end.far = std::mem::replace(&mut last.into, std::ptr::null_mut());
        }
        let fold = first.fold.filter(|_| !tile.folds.is_empty());
        if let Some((act, with)) = fold.and_then(|f| f.act) {
            let with = [ptr(with).cast_const(); 2];
            links.get_unchecked_mut(count).write(Link { act, with, into: std::ptr::null_mut() });
            count += 1;
        }
        let links = std::slice::from_raw_parts_mut(links.as_mut_ptr().cast::<Link>(), count);
        if fold.is_none() && (!first.by_row || tile.rows == 1) {
            return (first.run)(links, end, tile.rows * tile.len);
        }
        run_rows(members, links, end, fold, at, tile);
    }
}

/// Runs a chain row by row; `links` are those of the first.
///
/// # Safety
/// As [`run`].
#[inline(never)]
unsafe fn run_rows(
    members: &[Code],
    links: &mut [Link],
    mut end: End,
    fold: Option<Taken>,
    at: &[*mut u8],
    tile: Extent<'_>,
) {
    // SAFETY: the caller's promise; a reduction that is taken has a number among those of the program.
    unsafe {
        let run = members.get_unchecked(0).member.unwrap_unchecked().run;
        let size = members[0].size();
        for row in 0..tile.rows {
            if row > 0 {
                advance(links, &mut end, members, size, tile.len);
            }
            let Some(fold) = fold else {
                run(links, end, tile.len);
                continue;
            };
            let fold = tile.folds.get_unchecked(fold.index as usize);
            let (mut lanes, done) = ([0u64; LANES], tile.len / ROWS * ROWS);
            end.sum = lanes.as_mut_ptr().cast();
            run(links, end, tile.len);
            let rest = fold.values(at).skip((row * tile.len + done) * size);
            fold.fold.end(at[fold.into as usize].add(row * size), end.sum, rest, done, tile.len - done);
        }
    }
}

/// Takes the links of a chain from one row of `len` values of `size` bytes to the next.
fn advance(links: &mut [Link], end: &mut End, members: &[Code], size: usize, len: usize) {
    let step = |class| match class {
        Class::Once => 0,
        Class::Row => size,
        Class::Tile => size * len,
    };
    let next = |p: *mut u8| if p.is_null() { p } else { p.wrapping_add(step(Class::Tile)) };
    let tiles = [Class::Tile; 2];
    let acts = members.iter().map(|code| code.member.map_or(tiles, |m| m.class));
    // The first link and the one of a product that is summed, beyond the members, read tiles.
    for (link, class) in links.iter_mut().zip([tiles].into_iter().chain(acts).chain([tiles])) {
        for (p, class) in link.with.iter_mut().zip(class) {
            *p = p.wrapping_add(step(class));
        }
        link.into = next(link.into);
    }
    end.far = next(end.far);
}
