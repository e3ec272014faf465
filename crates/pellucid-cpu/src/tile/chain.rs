//! Chains of a linked program: which instructions run as one loop, and how that loop is called.
//!
//! An instruction of arithmetic joins the chain of the one before it if it reads that one's result. The
//! order of instructions is not changed.

use super::link::{Class, Code, Folding, Linked};
use super::prepare::{Prepared, Slot};
use crate::simd::{Act, Arithmetic, ChainLoop, Link};
use std::mem::MaybeUninit;

/// The most links of a chain: one to begin with, and one an instruction.
const MOST: usize = 32;

/// An instruction's part in a chain.
#[derive(Clone, Copy)]
pub(super) struct Member {
    /// The loop that runs the chain.
    pub(super) run: ChainLoop,
    /// How many instructions the chain has from this one on.
    pub(super) count: u8,
    act: Act,
    /// The slot whose values the chain begins with, in its first instruction.
    begin: Slot,
    /// The slot of the other operand, if the act has one.
    with: Slot,
    /// True if someone beside the next member reads the result.
    kept: bool,
}

/// Finds the chains of a program and marks their members.
pub(super) fn form(linked: &mut Linked, program: &Prepared) {
    let reads = reads(linked, program);
    for phase in 0..linked.phases.len() {
        let tiles = linked.phases[phase].tiles.clone();
        let mut start = tiles.start;
        while start < tiles.end {
            let mut members: Vec<Member> = Vec::new();
            let mut last = None;
            for code in &linked.code[start..tiles.end.min(start + MOST - 1)] {
                let Some(member) = member(linked, program, code, last) else { break };
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
            let count = members.len();
            for (k, member) in members.into_iter().enumerate().filter(|_| count > 1) {
                linked.code[start + k].member = Some(Member { count: (count - k) as u8, ..member });
            }
            start += count.max(1);
        }
    }
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
fn member(linked: &Linked, program: &Prepared, code: &Code, last: Option<Slot>) -> Option<Member> {
    let step = program.steps.get((code.into as usize).checked_sub(program.first_step())?)?;
    let (arithmetic, run) = step.arithmetic.filter(|_| !code.mixed)?;
    let full = |slot: Slot| linked.class[slot as usize] == Class::Tile;
    let args = code.operands();
    let begin = last.or_else(|| args.iter().copied().find(|&a| full(a)))?;
    let (act, with) = match *args {
        [a] if a == begin => (act(arithmetic, Other::None), a),
        [a, b] if a == begin && b == begin => (act(arithmetic, Other::Same), b),
        [a, b] if a == begin => (act(arithmetic, Other::Second(full(b))), b),
        [a, b] if b == begin => (act(arithmetic, Other::First(full(a))), a),
        _ => return None,
    };
    Some(Member { run, count: 0, act: act?, begin, with, kept: true })
}

/// The operand that the chain does not hand on; `true` if it is a tile.
enum Other {
    None,
    Same,
    First(bool),
    Second(bool),
}

fn act(arithmetic: Arithmetic, other: Other) -> Option<Act> {
    use Other::{First, Same, Second};
    Some(match (arithmetic, other) {
        (Arithmetic::Neg, Other::None) => Act::Neg,
        (Arithmetic::Add, Same) => Act::Double,
        (Arithmetic::Mul, Same) => Act::Square,
        (Arithmetic::Add, First(true) | Second(true)) => Act::AddTile,
        (Arithmetic::Add, First(false) | Second(false)) => Act::AddOne,
        (Arithmetic::Mul, First(true) | Second(true)) => Act::MulTile,
        (Arithmetic::Mul, First(false) | Second(false)) => Act::MulOne,
        (Arithmetic::Sub, Second(true)) => Act::SubTile,
        (Arithmetic::Sub, Second(false)) => Act::SubOne,
        (Arithmetic::Sub, First(true)) => Act::TileSub,
        (Arithmetic::Sub, First(false)) => Act::OneSub,
        (Arithmetic::Div, Second(true)) => Act::DivTile,
        (Arithmetic::Div, Second(false)) => Act::DivOne,
        (Arithmetic::Div, First(true)) => Act::TileDiv,
        (Arithmetic::Div, First(false)) => Act::OneDiv,
        _ => return None,
    })
}

/// Runs the chain of `members` on `n` values.
///
/// # Safety
/// `members` are a whole chain with `run` for its loop, and `at` is as [`execute`](super::link::execute) wants it.
#[inline]
pub(super) unsafe fn run(run: ChainLoop, members: &[Code], at: &[*mut u8], n: usize) {
    let mut links = [const { MaybeUninit::<Link>::uninit() }; MOST];
    let mut count = 1;
    // SAFETY: a chain has fewer members than there are links; slots are below `at.len()` by construction.
    unsafe {
        for code in members {
            let member = code.member.unwrap_unchecked();
            if count == 1 {
                let with = *at.get_unchecked(member.begin as usize);
                links[0].write(Link { act: Act::Begin, with, into: std::ptr::null_mut() });
            }
            let with = *at.get_unchecked(member.with as usize);
            let into = if member.kept { *at.get_unchecked(code.into as usize) } else { std::ptr::null_mut() };
            links.get_unchecked_mut(count).write(Link { act: member.act, with, into });
            count += 1;
        }
        run(std::slice::from_raw_parts(links.as_ptr().cast(), count), n);
    }
}
