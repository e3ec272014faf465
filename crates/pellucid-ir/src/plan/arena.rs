//! Computes the lifetimes of buffers, and assigns every buffer an offset in one arena.
//!
//! A buffer is live from the first to the last launch that reads or writes it; inputs are live from the start, and
//! outputs until the end. Buffers whose lifetimes do not overlap may share memory. An elementwise kernel may write its
//! output in place over an input whose lifetime ends at this launch.

use super::{Launch, Plan, Slot, SlotRole, SlotView};
use crate::shape::Layout;
use std::collections::HashMap;

/// The alignment of buffers in bytes: the size of a cache line and of the widest vector register.
const ALIGNMENT: usize = 64;

/// One allocation for all buffers that a plan owns, and for its inputs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Arena {
    /// The slot of the arena itself.
    pub slot: Slot,
    /// The size in bytes.
    pub bytes: usize,
    /// The size in bytes if no two buffers shared memory.
    pub unshared_bytes: usize,
    /// The offset and lifetime of every buffer, in the order of first use.
    pub allocations: Vec<BufferAllocation>,
}

/// The offset of a buffer in the arena, and its lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferAllocation {
    /// The slot of the buffer before the arena was assigned.
    pub slot: Slot,
    /// The offset from the start of the arena, in bytes.
    pub offset: usize,
    /// The size of the buffer in bytes.
    pub bytes: usize,
    /// The first launch that reads or writes the buffer; 0 for inputs and for results of the setup.
    pub first: usize,
    /// The last launch that reads or writes the buffer; the number of launches for outputs and for results of the
    /// setup.
    pub last: usize,
}

impl Arena {
    /// Returns the offset and lifetime of the buffer that was in `slot` before the arena was assigned.
    pub fn allocation(&self, slot: Slot) -> Option<&BufferAllocation> {
        self.allocations.iter().find(|a| a.slot == slot)
    }
}

/// Assigns every buffer that the plan owns and every input an offset, and redirects the operands in these buffers to
/// the arena.
pub(super) fn assign_offsets(mut plan: Plan) -> Plan {
    let mut allocations = lifetimes(&plan);
    let unshared_bytes = allocations.iter().map(|a| a.bytes.next_multiple_of(ALIGNMENT)).sum();
    let blocks = merge_in_place(&plan.launches, &allocations);
    let bytes = pack_blocks(&mut allocations, &blocks);
    let slot = plan.slots.len();
    plan.slots.push(bytes);
    let offsets: HashMap<Slot, usize> = allocations.iter().map(|a| (a.slot, a.offset)).collect();
    let launches = plan.setup.iter_mut().chain(&mut plan.launches);
    for operand in launches.flat_map(Launch::operands_mut).chain(&mut plan.outputs) {
        if let Some(offset) = offsets.get(&operand.slot) {
            shift_layout(operand, offset / operand.dtype.size());
            operand.slot = slot;
        }
    }
    plan.arena = Some(Arena { slot, bytes, unshared_bytes, allocations });
    plan
}

fn shift_layout(operand: &mut SlotView, elements: usize) {
    let layout = &operand.layout;
    let (shape, offset) = (layout.shape().clone(), layout.offset() + elements);
    operand.layout = match layout.is_contiguous() {
        true => Layout::contiguous_from(shape, offset),
        false => Layout::strided(shape, layout.strides(), offset),
    };
}

/// Returns the lifetime of each buffer, in the order of first use. All offsets are 0.
pub(super) fn lifetimes(plan: &Plan) -> Vec<BufferAllocation> {
    let mut allocations: Vec<BufferAllocation> = Vec::new();
    let mut index_of: HashMap<Slot, usize> = HashMap::new();
    let record_use = |slot: Slot, launch: usize| {
        if !matches!(plan.role(slot), SlotRole::Scratch | SlotRole::Input) {
            return;
        }
        let index = *index_of.entry(slot).or_insert_with(|| {
            let first = if plan.role(slot) == SlotRole::Input { 0 } else { launch };
            allocations.push(BufferAllocation { slot, offset: 0, bytes: plan.slots[slot], first, last: launch });
            allocations.len() - 1
        });
        allocations[index].last = allocations[index].last.max(launch);
    };
    visit_uses(plan, record_use);
    allocations
}

/// Calls `record_use` with the slot and the index of the launch, for every use of a slot. The operands of the setup
/// count as used by the first launch and after the last launch, outputs as used after the last launch.
pub(super) fn visit_uses(plan: &Plan, mut record_use: impl FnMut(Slot, usize)) {
    let end = plan.launches.len();
    for operand in plan.setup.iter().flat_map(Launch::operands) {
        record_use(operand.slot, 0);
        record_use(operand.slot, end);
    }
    for (k, launch) in plan.launches.iter().enumerate() {
        launch.operands().for_each(|o| record_use(o.slot, k));
    }
    plan.outputs.iter().for_each(|o| record_use(o.slot, end));
}

/// Merges each buffer that a launch can write in place over an input with the buffer of this input. Returns the block
/// number of each buffer; merged buffers have the same number.
fn merge_in_place(launches: &[Launch], allocations: &[BufferAllocation]) -> Vec<usize> {
    let mut block: Vec<usize> = (0..allocations.len()).collect();
    let index_of: HashMap<Slot, usize> = allocations.iter().enumerate().map(|(k, a)| (a.slot, k)).collect();
    for (k, launch) in launches.iter().enumerate() {
        for out in &launch.outputs {
            let Some(&output) = index_of.get(&out.slot) else { continue };
            if allocations[output].first != k || allocations[output].bytes != out.bytes() || block[output] != output {
                continue;
            }
            let equals_output =
                |x: &SlotView| x.layout == out.layout && x.dtype == out.dtype && x.layout.is_contiguous();
            let ended = launch.inputs.iter().enumerate().find_map(|(index, x)| {
                let &from = index_of.get(&x.slot)?;
                let allocation = &allocations[from];
                let alone = |o: &SlotView| o.slot != x.slot || equals_output(o);
                let ends = allocation.last == k && allocation.bytes == x.bytes() && allocation.first < k;
                // No other output of this launch overwrites the input, and all views of the input in this launch equal
                // the output's view.
                let free = launch
                    .outputs
                    .iter()
                    .all(|o| o.slot != x.slot && index_of.get(&o.slot).is_none_or(|&o| block[o] != block[from]));
                let all = launch
                    .inputs
                    .iter()
                    .enumerate()
                    .all(|(i, o)| alone(o) && (o.slot != x.slot || launch.kernel.info().reads.is_elementwise(i)));
                (ends && equals_output(x) && free && all && launch.kernel.info().reads.is_elementwise(index))
                    .then_some(from)
            });
            if let Some(from) = ended {
                block[output] = block[from];
            }
        }
    }
    block
}

/// Assigns each block the lowest offset that is free during its lifetime, largest block first. Returns the size of the
/// arena.
fn pack_blocks(allocations: &mut [BufferAllocation], block: &[usize]) -> usize {
    struct MergedBlock {
        number: usize,
        bytes: usize,
        first: usize,
        last: usize,
    }
    let mut blocks: Vec<MergedBlock> = Vec::new();
    for (allocation, &number) in allocations.iter().zip(block) {
        match blocks.iter_mut().find(|b| b.number == number) {
            Some(b) => {
                b.bytes = b.bytes.max(allocation.bytes);
                b.first = b.first.min(allocation.first);
                b.last = b.last.max(allocation.last);
            }
            None => blocks.push(MergedBlock {
                number,
                bytes: allocation.bytes,
                first: allocation.first,
                last: allocation.last,
            }),
        }
    }
    blocks.sort_by_key(|b| (std::cmp::Reverse(b.bytes), b.first));
    let mut total = 0;
    let mut placed: Vec<(MergedBlock, usize)> = Vec::with_capacity(blocks.len());
    for b in blocks {
        let size = b.bytes.next_multiple_of(ALIGNMENT);
        let mut live_ranges: Vec<(usize, usize)> = placed
            .iter()
            .filter(|(other, _)| other.first <= b.last && b.first <= other.last)
            .map(|(other, at)| (*at, at + other.bytes.next_multiple_of(ALIGNMENT)))
            .collect();
        live_ranges.sort_unstable();
        let mut at = 0;
        for (start, end) in live_ranges {
            if start >= at + size {
                break;
            }
            at = at.max(end);
        }
        total = total.max(at + size);
        allocations
            .iter_mut()
            .zip(block)
            .filter(|(_, n)| **n == b.number)
            .for_each(|(allocation, _)| allocation.offset = at);
        placed.push((b, at));
    }
    total
}
