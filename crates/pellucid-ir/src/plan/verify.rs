//! Verification of plans. Debug builds verify a plan as it was recorded and after every pass.
//!
//! | rule | statement |
//! | --- | --- |
//! | operands | An operand is within its slot, and the families accept the operands of their kernels. No launch writes memory that the plan only reads. |
//! | overlap | An output overlaps another operand only as the kernel allows. |
//! | order | Every byte that is read has been written before, unless it is defined at the start of a run. |
//! | results | A pass keeps a write to each slot that the plan writes and that is visible outside the plan. |
//! | arena | Two buffers share memory only if their lifetimes do not overlap, except that a launch may write one buffer in place over another whose lifetime ends at this launch. |

use super::arena::visit_uses;
use super::{Arena, Launch, Plan, Slot, SlotRole, SlotView};
use crate::dtype::DType;
use crate::kernel::{Kernel, RecurrentPart};
use crate::shape::Layout;
use std::collections::HashMap;
use std::ops::Range;

/// The largest number of elements of a strided operand whose elements are examined one by one. A larger operand counts
/// as all bytes of its extent.
const MAX_ELEMENTS: usize = 1 << 12;

impl Plan {
    /// Panics if the plan violates one of the rules of verification. `before` is the plan before `pass`.
    pub(super) fn assert_valid(&self, before: Option<&Plan>, pass: &str) {
        let results = || before.and_then(|before| self.lost_result(before));
        let arena = || self.arena.as_ref().and_then(|arena| self.arena_fault(arena, before?));
        if let Some(fault) = self.first_violation().or_else(results).or_else(arena) {
            panic!("the plan after `{pass}` is invalid: {fault}\n{self}");
        }
    }

    /// Describes the first operand that violates a rule; `None` if there is none.
    fn first_violation(&self) -> Option<String> {
        let lists = [("setup launch", &self.setup), ("launch", &self.launches)];
        let mut memory = WrittenMemory::at_start(self);
        for (list, launches) in lists {
            for (k, launch) in launches.iter().enumerate() {
                if let Some(fault) = self.launch_fault(launch).or_else(|| memory.run(launch)) {
                    return Some(format!("{list} {k}, {}, {fault}", launch.signature()));
                }
            }
        }
        self.outputs.iter().find_map(|o| memory.unwritten(o)).map(|fault| format!("the caller {fault}"))
    }

    fn launch_fault(&self, launch: &Launch) -> Option<String> {
        for operand in launch.operands() {
            let (slot, end) = (operand.slot, operand.layout.extent().end.unsigned_abs() * operand.dtype.size());
            let Some(&bytes) = self.slots.get(slot) else {
                return Some(format!("uses slot {slot}, which does not exist"));
            };
            if !operand.layout.extent().is_empty() && end > bytes {
                return Some(format!("uses byte {end} of slot {slot}, which has {bytes} bytes"));
            }
        }
        let read_only = |o: &&SlotView| matches!(self.role(o.slot), SlotRole::ExternalRead | SlotRole::Constant);
        if let Some(o) = launch.outputs.iter().find(read_only) {
            return Some(format!("writes slot {}, which the plan may only read", o.slot));
        }
        if let Err(error) = launch.kernel.check(&launch.inputs, &launch.outputs) {
            return Some(format!("has operands that its family rejects: {error}"));
        }
        (!launch.is_sound()).then(|| "writes an output that overlaps another operand".into())
    }

    /// Describes a slot that is visible outside the plan, and that launches of `before` write but no launch of this
    /// plan writes.
    fn lost_result(&self, before: &Plan) -> Option<String> {
        let writes = |plan: &Plan, slot| plan.setup.iter().chain(&plan.launches).any(|launch| launch.writes(slot));
        let is_lost = |&slot: &Slot| before.is_wanted(slot) && writes(before, slot) && !writes(self, slot);
        // The arena pass moves outputs to the slot of the arena; rule `order` checks them there.
        let is_checked = |slot: &Slot| self.arena.is_none() || before.role(*slot) != SlotRole::Scratch;
        (0..before.slots.len())
            .filter(is_checked)
            .find(is_lost)
            .map(|slot| format!("no launch writes slot {slot} any more"))
    }

    /// Describes two buffers of the arena that share memory while both are live. `before` is the plan in which each
    /// buffer still has its own slot.
    fn arena_fault(&self, arena: &Arena, before: &Plan) -> Option<String> {
        if before.arena.is_some() {
            return None;
        }
        let mut lifetimes: HashMap<Slot, (usize, usize)> = HashMap::new();
        let mut record_use = |slot, launch: usize| {
            let lifetime = lifetimes.entry(slot).or_insert((launch, launch));
            *lifetime = (lifetime.0.min(launch), lifetime.1.max(launch));
        };
        let inputs = (0..before.slots.len()).filter(|&slot| before.role(slot) == SlotRole::Input);
        inputs.for_each(|slot| record_use(slot, 0));
        visit_uses(before, record_use);
        let mut buffers: Vec<_> = arena.allocations.iter().filter(|a| a.bytes > 0).collect();
        buffers.sort_by_key(|a| a.offset);
        for (k, a) in buffers.iter().enumerate() {
            for b in buffers[k + 1..].iter().take_while(|b| b.offset < a.offset + a.bytes) {
                let (Some(&x), Some(&y)) = (lifetimes.get(&a.slot), lifetimes.get(&b.slot)) else { continue };
                let (early, late) = if x.0 < y.0 { (x, y) } else { (y, x) };
                // A launch may write the later buffer in place over the earlier one that it reads; rule `overlap`
                // covers that.
                if early.1 > late.0 || early.1 == late.0 && early.0 == late.0 {
                    let (a, b, launch) = (a.slot, b.slot, late.0);
                    return Some(format!("buffers {a} and {b} share memory, and both are live at launch {launch}"));
                }
            }
        }
        None
    }
}

/// The bytes of every slot that have been written so far.
struct WrittenMemory {
    /// `None` for a slot that is defined at the start of a run.
    slots: Vec<Option<ByteRanges>>,
}

impl WrittenMemory {
    fn at_start(plan: &Plan) -> WrittenMemory {
        let written_ranges =
            |slot| matches!(plan.role(slot), SlotRole::Scratch | SlotRole::ExternalWrite).then(ByteRanges::default);
        let mut slots: Vec<_> = (0..plan.slots.len()).map(written_ranges).collect();
        if let Some(arena) = &plan.arena
            && let Some(Some(written)) = slots.get_mut(arena.slot)
        {
            let inputs = arena.allocations.iter().filter(|a| plan.role(a.slot) == SlotRole::Input);
            inputs.for_each(|a| written.insert(a.offset..a.offset + a.bytes));
        }
        WrittenMemory { slots }
    }

    /// Describes the first operand of a launch that is read before it is written. If there is none, adds the outputs of
    /// the launch to the written memory.
    fn run(&mut self, launch: &Launch) -> Option<String> {
        if launch.kernel == Kernel::Copy {
            return self.copy(&launch.inputs[0], &launch.outputs[0]);
        }
        let states = &launch.outputs[..launch.kernel.info().state_outputs];
        let read = (0..launch.inputs.len()).map(|k| read_part(launch, k));
        if let Some(fault) = read.chain(states.iter().cloned()).find_map(|o| self.unwritten(&o)) {
            return Some(fault);
        }
        launch.outputs.iter().for_each(|o| self.add(o));
        None
    }

    fn add(&mut self, output: &SlotView) {
        if let Some(written) = &mut self.slots[output.slot] {
            byte_ranges(output).for_each(|range| written.insert(range));
        }
    }

    /// Adds the elements of `to` whose source elements are written. A copy may also read unwritten elements if some
    /// elements of its source are written; no later kernel may use their copies.
    fn copy(&mut self, from: &SlotView, to: &SlotView) -> Option<String> {
        let Some(fault) = self.unwritten(from) else {
            self.add(to);
            return None;
        };
        let written = self.slots[from.slot].as_ref()?;
        if !written.intersects(&extent(&from.layout, from.dtype)) {
            return Some(fault);
        }
        if from.layout.shape().size() > MAX_ELEMENTS {
            self.add(to);
            return None;
        }
        let bytes = |view: &SlotView, position: usize| position * view.dtype.size()..(position + 1) * view.dtype.size();
        let pairs = from.layout.positions().zip(to.layout.positions());
        let defined: Vec<_> =
            pairs.filter(|&(x, _)| written.contains(&bytes(from, x))).map(|(_, y)| bytes(to, y)).collect();
        if let Some(written) = &mut self.slots[to.slot] {
            defined.into_iter().for_each(|range| written.insert(range));
        }
        None
    }

    /// Describes the bytes of an operand that have not been written.
    fn unwritten(&self, operand: &SlotView) -> Option<String> {
        let slot = operand.slot;
        let written = self.slots.get(slot)?.as_ref()?;
        // Most operands are contained in a single range.
        let is_covered = written.contains(&extent(&operand.layout, operand.dtype));
        let gap = if is_covered { None } else { byte_ranges(operand).find(|range| !written.contains(range)) };
        gap.map(|gap| format!("reads bytes {} to {} of slot {slot} before they are written", gap.start, gap.end))
    }
}

/// Returns the part of input `k` that the kernel reads: all of it, except for the last columns of the gates of a GRU,
/// which a [`Recurrent`](crate::kernel::Recurrent) kernel only writes.
fn read_part(launch: &Launch, k: usize) -> SlotView {
    let input = launch.inputs[k].clone();
    match &launch.kernel {
        Kernel::Recurrent(recurrent) if recurrent.part == RecurrentPart::States && k == 0 => {
            let columns = launch.inputs[1].layout.shape()[0];
            SlotView { layout: input.layout.slice(2, 0, 1, columns), ..input }
        }
        _ => input,
    }
}

/// Returns the bytes from the first to the last element of a layout.
fn extent(layout: &Layout, dtype: DType) -> Range<usize> {
    let (extent, size) = (layout.extent(), dtype.size());
    extent.start.unsigned_abs() * size..extent.end.unsigned_abs() * size
}

/// Returns the bytes of the elements of an operand. If it has many elements, the bytes between them are included.
fn byte_ranges(operand: &SlotView) -> impl Iterator<Item = Range<usize>> + '_ {
    let (layout, size) = (&operand.layout, operand.dtype.size());
    let is_whole = layout.is_contiguous() || layout.shape().size() > MAX_ELEMENTS;
    let all_bytes = is_whole.then(|| extent(layout, operand.dtype));
    let elements = (!is_whole).then(|| layout.positions().map(move |position| position * size..(position + 1) * size));
    all_bytes.into_iter().chain(elements.into_iter().flatten())
}

/// A set of bytes: disjoint ranges that do not touch each other, in ascending order.
#[derive(Default)]
struct ByteRanges(Vec<Range<usize>>);

impl ByteRanges {
    fn insert(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        let first = self.0.partition_point(|r| r.end < range.start);
        let last = self.0.partition_point(|r| r.start <= range.end);
        let joined = self.0[first..last].iter().fold(range, |a, b| a.start.min(b.start)..a.end.max(b.end));
        self.0.splice(first..last, [joined]);
    }

    fn intersects(&self, range: &Range<usize>) -> bool {
        let index = self.0.partition_point(|r| r.end <= range.start);
        self.0.get(index).is_some_and(|r| r.start < range.end)
    }

    fn contains(&self, range: &Range<usize>) -> bool {
        let index = self.0.partition_point(|r| r.end < range.end);
        range.is_empty() || self.0.get(index).is_some_and(|r| r.start <= range.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formula;
    use crate::kernel::{Map, MatMul, Params};
    use crate::plan::{BufferAllocation, Passes};

    fn part(slot: Slot, offset: usize, length: usize) -> SlotView {
        SlotView { slot, layout: Layout::contiguous_from([length].into(), offset), dtype: DType::F32 }
    }

    fn add(inputs: [SlotView; 2], output: SlotView) -> Launch {
        let program = formula!(|x, y| x + y).uniform_program(DType::F32).unwrap().clone();
        Launch::new(Kernel::Map(Map { program, params: Params::new() }), inputs.into(), vec![output])
    }

    /// Returns a plan over an input, slot 0, and three scratch slots of four elements each.
    fn plan(launches: Vec<Launch>, output: SlotView) -> Plan {
        let roles = vec![SlotRole::ExternalRead, SlotRole::Scratch, SlotRole::Scratch, SlotRole::Scratch];
        Plan { slots: vec![16; 4], roles, launches, outputs: vec![output], ..Plan::default() }
    }

    #[track_caller]
    fn assert_fault(plan: &Plan, text: &str) {
        let fault = plan.first_violation().expect("the plan must be invalid");
        assert!(fault.contains(text), "{fault}");
    }

    #[test]
    fn reads_must_follow_the_writes_of_all_their_bytes() {
        let x = part(0, 0, 4);
        let good = plan(vec![add([x.clone(), x.clone()], part(1, 0, 4))], part(1, 0, 4));
        assert_eq!(good.first_violation(), None);
        assert_fault(&plan(vec![add([x.clone(), part(2, 0, 4)], part(1, 0, 4))], part(1, 0, 4)), "launch 0");
        assert_fault(&plan(vec![add([x.clone(), part(2, 0, 4)], part(1, 0, 4))], part(1, 0, 4)), "slot 2");
        assert_fault(&plan(good.launches.clone(), part(2, 0, 4)), "the caller reads bytes 0 to 16 of slot 2");
        // Each write covers one half of the slot, so that both are needed.
        let half = |offset| add([part(0, offset, 2), part(0, 0, 2)], part(1, offset, 2));
        assert_eq!(plan(vec![half(0), half(2)], part(1, 0, 4)).first_violation(), None);
        assert_fault(&plan(vec![half(0)], part(1, 0, 4)), "the caller reads bytes 0 to 16");
        // A strided read needs only its own elements.
        let columns =
            |start| SlotView { layout: Layout::contiguous([4].into()).slice(0, start, 2, 2), ..part(1, 0, 4) };
        let write = add([part(0, 0, 2), part(0, 0, 2)], columns(1));
        assert_eq!(plan(vec![write.clone()], columns(1)).first_violation(), None);
        assert_fault(&plan(vec![write], columns(0)), "the caller reads bytes 0 to 4 of slot 1");
        // Values of the setup are defined in every run.
        let mut constant = plan(vec![], part(1, 0, 4));
        constant.setup = good.launches;
        assert_eq!(constant.first_violation(), None);
    }

    #[test]
    fn operands_must_suit_their_slots_and_kernels() {
        let x = part(0, 0, 4);
        let one = |launch| plan(vec![launch], x.clone());
        assert_fault(&one(add([x.clone(), part(9, 0, 4)], part(1, 0, 4))), "slot 9, which does not exist");
        assert_fault(&one(add([x.clone(), part(0, 1, 4)], part(1, 0, 4))), "byte 20 of slot 0, which has 16");
        assert_fault(&one(add([x.clone(), x.clone()], x.clone())), "slot 0, which the plan may only read");
        let integers = SlotView { dtype: DType::I32, ..x.clone() };
        assert_fault(&one(add([x.clone(), integers], part(1, 0, 4))), "dtypes f32 and i32 and f32");
        let mut launch = add([x.clone(), x.clone()], part(1, 0, 4));
        launch.inputs.pop();
        assert_fault(&one(launch), "must have at least 2 inputs, got 1");
        let square = |slot| SlotView { layout: Layout::contiguous([2, 2].into()), ..part(slot, 0, 4) };
        let product = |from: [Slot; 2], to| {
            let inputs = from.map(square).into();
            Launch::new(Kernel::MatMul(MatMul::default()), inputs, vec![square(to)])
        };
        assert_fault(&plan(vec![product([0, 0], 1), product([0, 1], 1)], part(1, 0, 4)), "overlaps another operand");
    }

    #[test]
    fn a_pass_must_keep_visible_writes() {
        let x = part(0, 0, 4);
        let mut before = plan(vec![add([x.clone(), x.clone()], part(1, 0, 4))], x.clone());
        before.roles[1] = SlotRole::State;
        let after = Plan { launches: vec![], ..before.clone() };
        assert_eq!(before.lost_result(&before), None);
        assert!(after.lost_result(&before).is_some_and(|fault| fault.contains("slot 1")));
    }

    #[test]
    fn live_buffers_must_not_share_the_arena() {
        let x = part(0, 0, 4);
        let chain = vec![
            add([x.clone(), x.clone()], part(1, 0, 4)),
            add([x.clone(), part(1, 0, 4)], part(2, 0, 4)),
            add([x.clone(), part(2, 0, 4)], part(3, 0, 4)),
        ];
        let before = plan(chain, part(3, 0, 4));
        let after = before.clone().after(Passes::none().with("arena").unwrap());
        let arena = after.arena.clone().unwrap();
        assert_eq!(after.arena_fault(&arena, &before), None);
        let mut longer = before.clone();
        longer.outputs.push(part(1, 0, 4));
        assert!(after.arena_fault(&arena, &longer).is_some_and(|fault| fault.contains("share memory")));
        let disjoint = |(k, a): (usize, &BufferAllocation)| BufferAllocation { offset: 64 * k, ..*a };
        let allocations = arena.allocations.iter().enumerate().map(disjoint).collect();
        assert_eq!(after.arena_fault(&Arena { allocations, ..arena }, &longer), None);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "the plan after `recording` is invalid: launch 0")]
    fn an_invalid_plan_panics_in_debug_builds() {
        let _ = plan(vec![add([part(0, 0, 4), part(2, 0, 4)], part(1, 0, 4))], part(1, 0, 4)).after(Passes::all());
    }
}
