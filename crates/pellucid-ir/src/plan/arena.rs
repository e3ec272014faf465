//! Buffer lifetimes, and the assignment of every buffer to an offset in one arena.
//!
//! A buffer is live from the first launch that touches it to the last. Buffers whose lifetimes do not overlap may
//! share memory. An elementwise kernel writes its output in place over an input whose lifetime ends at that launch.

use super::{Launch, Operand, Plan, Role, Slot};
use crate::shape::Layout;
use std::collections::HashMap;

/// The alignment of buffers in bytes: a cache line, and a vector of the widest registers.
const ALIGNMENT: usize = 64;

/// One allocation for all buffers that a plan owns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Arena {
    /// The slot of the arena itself.
    pub slot: Slot,
    /// The size of the arena in bytes.
    pub bytes: usize,
    /// The bytes that the same buffers would need without sharing memory.
    pub unshared_bytes: usize,
    /// The offset and lifetime of every buffer, in the order of first use.
    pub places: Vec<Place>,
}

/// The offset of a buffer in the arena, and its lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The slot of the buffer before the arena was assigned.
    pub slot: Slot,
    /// The offset from the start of the arena, in bytes.
    pub offset: usize,
    /// The size of the buffer in bytes.
    pub bytes: usize,
    /// The first launch that touches the buffer; 0 for inputs and for results of the setup.
    pub first: usize,
    /// The last launch that touches the buffer; the number of launches for outputs and for results of the setup.
    pub last: usize,
}

impl Arena {
    /// Returns the offset and lifetime of the buffer that had `slot`.
    pub fn place(&self, slot: Slot) -> Option<&Place> {
        self.places.iter().find(|p| p.slot == slot)
    }
}

/// Assigns every own buffer and every input an offset, and redirects all operands to the arena.
pub(super) fn assign_offsets(mut plan: Plan) -> Plan {
    let mut lives = lifetimes(&plan);
    let unshared_bytes = lives.iter().map(|l| l.bytes.next_multiple_of(ALIGNMENT)).sum();
    let blocks = merge_in_place(&plan.launches, &lives);
    let bytes = pack_blocks(&mut lives, &blocks);
    let slot = plan.slots.len();
    plan.slots.push(bytes);
    let offsets: HashMap<Slot, usize> = lives.iter().map(|l| (l.slot, l.offset)).collect();
    let launches = plan.setup.iter_mut().chain(&mut plan.launches);
    for operand in launches.flat_map(Launch::operands_mut).chain(&mut plan.outputs) {
        if let Some(offset) = offsets.get(&operand.slot) {
            shift_layout(operand, offset / operand.dtype.size());
            operand.slot = slot;
        }
    }
    plan.arena = Some(Arena { slot, bytes, unshared_bytes, places: lives });
    plan
}

fn shift_layout(operand: &mut Operand, elements: usize) {
    let layout = &operand.layout;
    let (shape, offset) = (layout.shape().clone(), layout.offset() + elements);
    operand.layout = match layout.is_contiguous() {
        true => Layout::contiguous_from(shape, offset),
        false => Layout::strided(shape, layout.strides(), offset),
    };
}

/// Returns the lifetime of each buffer, in the order of first use. All offsets are 0.
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

/// Merges a buffer with the input that it overwrites in place. Returns the block number of each buffer; merged buffers
/// have the same number.
fn merge_in_place(launches: &[Launch], lives: &[Place]) -> Vec<usize> {
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
                // No other output of this launch overwrites the input, and all views of it equal the output's view.
                let free = launch
                    .outputs
                    .iter()
                    .all(|o| o.slot != x.slot && at.get(&o.slot).is_none_or(|&o| block[o] != block[from]));
                let all = launch
                    .inputs
                    .iter()
                    .enumerate()
                    .all(|(i, o)| alone(o) && (o.slot != x.slot || launch.kernel.info().reads.is_elementwise(i)));
                (ends && whole(x) && free && all && launch.kernel.info().reads.is_elementwise(index)).then_some(from)
            });
            if let Some(from) = ended {
                block[made] = block[from];
            }
        }
    }
    block
}

/// Assigns each block the lowest free offset among the blocks with overlapping lifetimes, largest block first. Returns
/// the size of the arena.
fn pack_blocks(lives: &mut [Place], block: &[usize]) -> usize {
    struct MergedBlock {
        number: usize,
        bytes: usize,
        first: usize,
        last: usize,
    }
    let mut blocks: Vec<MergedBlock> = Vec::new();
    for (life, &number) in lives.iter().zip(block) {
        match blocks.iter_mut().find(|b| b.number == number) {
            Some(b) => {
                b.bytes = b.bytes.max(life.bytes);
                b.first = b.first.min(life.first);
                b.last = b.last.max(life.last);
            }
            None => blocks.push(MergedBlock { number, bytes: life.bytes, first: life.first, last: life.last }),
        }
    }
    blocks.sort_by_key(|b| (std::cmp::Reverse(b.bytes), b.first));
    let mut total = 0;
    let mut placed: Vec<(MergedBlock, usize)> = Vec::with_capacity(blocks.len());
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
