//! Lifetimes as intervals, and a place for every buffer in one arena.
//!
//! A buffer lives from the first launch that touches it to the last. Two buffers may have the same place if they
//! do not live at the same time; and an elementwise kernel makes its output in the place of an input that ends there.

use super::{Launch, Operand, Plan, Role, Slot};
use crate::shape::Layout;
use std::collections::HashMap;

/// Buffers begin at multiples of so many bytes: a cache line, and a vector of the widest registers.
const ALIGNMENT: usize = 64;

/// One piece of memory for all buffers that a plan owns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Arena {
    /// The slot that it takes.
    pub slot: Slot,
    /// Its size.
    pub bytes: usize,
    /// What the same buffers would need side by side.
    pub apart: usize,
    /// Where every buffer lies, in the order of their first use.
    pub places: Vec<Place>,
}

/// Where a buffer lies, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The slot that it had.
    pub slot: Slot,
    /// From the arena's start, in bytes.
    pub offset: usize,
    /// Its size.
    pub bytes: usize,
    /// The first launch that touches it; inputs, and what the setup makes, are there from the start.
    pub first: usize,
    /// The last launch that touches it; outputs are there at the end.
    pub last: usize,
}

impl Arena {
    /// The place of the buffer that had `slot`.
    pub fn place(&self, slot: Slot) -> Option<&Place> {
        self.places.iter().find(|p| p.slot == slot)
    }
}

/// Gives every own buffer and every input its place, and lets all operands refer to the arena.
pub(super) fn lay_out(mut plan: Plan) -> Plan {
    let mut lives = lifetimes(&plan);
    let apart = lives.iter().map(|l| l.bytes.next_multiple_of(ALIGNMENT)).sum();
    let blocks = share(&plan.launches, &lives);
    let bytes = place(&mut lives, &blocks);
    let slot = plan.slots.len();
    plan.slots.push(bytes);
    let offsets: HashMap<Slot, usize> = lives.iter().map(|l| (l.slot, l.offset)).collect();
    let launches = plan.setup.iter_mut().chain(&mut plan.launches);
    for operand in launches.flat_map(Launch::operands_mut).chain(&mut plan.outputs) {
        if let Some(offset) = offsets.get(&operand.slot) {
            move_by(operand, offset / operand.dtype.size());
            operand.slot = slot;
        }
    }
    plan.arena = Some(Arena { slot, bytes, apart, places: lives });
    plan
}

fn move_by(operand: &mut Operand, elements: usize) {
    let layout = &operand.layout;
    let (shape, offset) = (layout.shape().clone(), layout.offset() + elements);
    operand.layout = match layout.is_contiguous() {
        true => Layout::contiguous_from(shape, offset),
        false => Layout::strided(shape, layout.strides(), offset),
    };
}

/// When each buffer lives, in the order of the first use.
pub(super) fn lifetimes(plan: &Plan) -> Vec<Place> {
    let mut lives: Vec<Place> = Vec::new();
    let mut at: HashMap<Slot, usize> = HashMap::new();
    let mut touch = |slot: Slot, launch: usize| {
        if !matches!(plan.role(slot), Role::Own | Role::Input) {
            return;
        }
        let place = *at.entry(slot).or_insert_with(|| {
            let first = if plan.role(slot) == Role::Input { 0 } else { launch };
            lives.push(Place { slot, offset: 0, bytes: plan.slots[slot], first, last: launch });
            lives.len() - 1
        });
        lives[place].last = lives[place].last.max(launch);
    };
    let end = plan.launches.len();
    for operand in plan.setup.iter().flat_map(Launch::operands) {
        touch(operand.slot, 0);
        touch(operand.slot, end);
    }
    for (k, launch) in plan.launches.iter().enumerate() {
        launch.operands().for_each(|o| touch(o.slot, k));
    }
    plan.outputs.iter().for_each(|o| touch(o.slot, end));
    lives
}

/// Buffers that take the same place because one is made of the other: the block of each, by its number.
fn share(launches: &[Launch], lives: &[Place]) -> Vec<usize> {
    let mut block: Vec<usize> = (0..lives.len()).collect();
    let at: HashMap<Slot, usize> = lives.iter().enumerate().map(|(k, l)| (l.slot, k)).collect();
    for (k, launch) in launches.iter().enumerate() {
        for out in &launch.outputs {
            let Some(&made) = at.get(&out.slot) else { continue };
            if lives[made].first != k || lives[made].bytes != out.bytes() || block[made] != made {
                continue;
            }
            let whole = |x: &Operand| x.layout == out.layout && x.dtype == out.dtype && x.layout.is_contiguous();
            let ended = launch.inputs.iter().enumerate().find_map(|(index, x)| {
                let &from = at.get(&x.slot)?;
                let life = &lives[from];
                let alone = |o: &Operand| o.slot != x.slot || whole(o);
                let ends = life.last == k && life.bytes == x.bytes() && life.first < k;
                // Nobody else of this launch was given the place, and every view of it is the output's.
                let free = launch
                    .outputs
                    .iter()
                    .all(|o| o.slot != x.slot && at.get(&o.slot).is_none_or(|&o| block[o] != block[from]));
                let all = launch
                    .inputs
                    .iter()
                    .enumerate()
                    .all(|(i, o)| alone(o) && (o.slot != x.slot || launch.is_elementwise(i)));
                (ends && whole(x) && free && all && launch.is_elementwise(index)).then_some(from)
            });
            if let Some(from) = ended {
                block[made] = block[from];
            }
        }
    }
    block
}

/// Places the blocks, the largest first, each as low as the others that live meanwhile let it. Gives the arena's size.
fn place(lives: &mut [Place], block: &[usize]) -> usize {
    struct Block {
        number: usize,
        bytes: usize,
        first: usize,
        last: usize,
    }
    let mut blocks: Vec<Block> = Vec::new();
    for (life, &number) in lives.iter().zip(block) {
        match blocks.iter_mut().find(|b| b.number == number) {
            Some(b) => {
                b.bytes = b.bytes.max(life.bytes);
                b.first = b.first.min(life.first);
                b.last = b.last.max(life.last);
            }
            None => blocks.push(Block { number, bytes: life.bytes, first: life.first, last: life.last }),
        }
    }
    blocks.sort_by_key(|b| (std::cmp::Reverse(b.bytes), b.first));
    let mut total = 0;
    let mut placed: Vec<(Block, usize)> = Vec::with_capacity(blocks.len());
    for b in blocks {
        let size = b.bytes.next_multiple_of(ALIGNMENT);
        let mut beside: Vec<(usize, usize)> = placed
            .iter()
            .filter(|(other, _)| other.first <= b.last && b.first <= other.last)
            .map(|(other, at)| (*at, at + other.bytes.next_multiple_of(ALIGNMENT)))
            .collect();
        beside.sort_unstable();
        let mut at = 0;
        for (start, end) in beside {
            if start >= at + size {
                break;
            }
            at = at.max(end);
        }
        total = total.max(at + size);
        lives.iter_mut().zip(block).filter(|(_, n)| **n == b.number).for_each(|(life, _)| life.offset = at);
        placed.push((b, at));
    }
    total
}
