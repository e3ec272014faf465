//! Order dependencies between launches, and moving one launch next to another.

use super::{Launch, Plan, Slot, SlotAccess, SlotRole, SlotView};
use crate::dtype::DType;
use crate::kernel::{Index, IndexedOperand, Kernel};

impl Plan {
    fn writes_visible(&self, launch: &Launch) -> bool {
        launch.outputs.iter().any(|o| matches!(self.role(o.slot), SlotRole::State | SlotRole::ExternalWrite))
    }

    /// Marks the launches that may fail because of the values of their operands. An index cannot fail if an earlier
    /// launch has checked it against the same lengths, or if it is a position that a [`Pool`](crate::kernel::Pool) of
    /// the plan found.
    pub(super) fn mark_rejections(&mut self) {
        let mut checked: Vec<IndexCheck> = Vec::new();
        // The slots that store positions found by a `Pool`, with the number of elements that the positions can refer
        // to.
        let mut positions: Vec<(Slot, usize)> = Vec::new();
        for launch in &mut self.launches {
            launch.can_fail = launch.kernel.info().rejects_values;
            if let Some(check) = IndexCheck::from_launch(launch) {
                launch.can_fail = !checked.contains(&check) && !check.holds_for(&positions);
                checked.push(check);
            }
            checked.retain(|check| check.indices.iter().all(|index| !launch.writes(index.slot)));
            positions.retain(|(slot, _)| !launch.writes(*slot));
            if let (Kernel::Pool(_), [x], [_, found]) = (&launch.kernel, &launch.inputs[..], &launch.outputs[..])
                && found.bytes() == self.slots[found.slot]
                && matches!(self.roles.get(found.slot).copied().unwrap_or_default(), SlotRole::Scratch)
            {
                positions.push((found.slot, x.layout.shape().iter().rev().take(3).product()));
            }
        }
    }
}

/// A check of index tensors against the lengths of the axes that they index.
#[derive(PartialEq)]
struct IndexCheck {
    indices: Vec<SlotView>,
    lengths: Vec<usize>,
}

impl IndexCheck {
    fn from_launch(launch: &Launch) -> Option<IndexCheck> {
        let (index, operand) = launch.kernel.index()?;
        let array = match operand {
            IndexedOperand::Input => &launch.inputs[0],
            IndexedOperand::Output => &launch.outputs[0],
        };
        let shape = array.layout.shape();
        let lengths = match index {
            Index::Axes(axes) => axes.iter().map(|&axis| shape[axis]).collect(),
            Index::Along(axis) => vec![shape[*axis]],
        };
        Some(IndexCheck { indices: launch.inputs[1..].to_vec(), lengths })
    }

    /// Returns true if every index tensor stores positions that a `Pool` found in an array with at most as many
    /// elements as the indexed axis.
    fn holds_for(&self, positions: &[(Slot, usize)]) -> bool {
        let holds = |(index, &length): (&SlotView, &usize)| {
            index.dtype == DType::I64 && positions.iter().any(|&(slot, count)| slot == index.slot && count <= length)
        };
        self.indices.len() == self.lengths.len() && self.indices.iter().zip(&self.lengths).all(holds)
    }
}

/// The slots that several launches read and write, for finding conflicts between these launches and another launch.
pub(super) struct Footprint<'a> {
    plan: &'a Plan,
    slots: Vec<SlotAccess>,
    can_fail: bool,
    writes_visible: bool,
}

impl Footprint<'_> {
    pub(super) fn new(plan: &Plan) -> Footprint<'_> {
        Footprint { plan, slots: vec![SlotAccess::Unused; plan.slots.len()], can_fail: false, writes_visible: false }
    }

    pub(super) fn add(&mut self, launch: &Launch) {
        for o in &launch.inputs {
            self.slots[o.slot] = self.slots[o.slot].max(SlotAccess::Read);
        }
        launch.outputs.iter().for_each(|o| self.slots[o.slot] = SlotAccess::Write);
        self.can_fail |= launch.can_fail;
        self.writes_visible |= self.plan.writes_visible(launch);
    }

    /// Returns true if `launch` and one of the launches must keep their order: one writes a slot that the other reads
    /// or writes, or one may fail because of its values and the other writes memory that is visible outside the plan.
    /// A run that fails then leaves the same memory as in the recorded order.
    pub(super) fn has_conflict(&self, launch: &Launch) -> bool {
        launch.outputs.iter().any(|o| self.slots[o.slot] != SlotAccess::Unused)
            || launch.inputs.iter().any(|o| self.slots[o.slot] == SlotAccess::Write)
            || self.can_fail && self.plan.writes_visible(launch)
            || self.writes_visible && launch.can_fail
    }
}

/// A reordering that makes launches `i` and `j`, `i < j`, adjacent.
pub(super) struct Interleaving {
    /// The launches between `i` and `j` that must run after `i`.
    pub(super) after: Vec<usize>,
    /// The launches between `i` and `j` that must run before `j`.
    pub(super) before: Vec<usize>,
}

impl Interleaving {
    /// Returns the reordering; `None` if a launch between `i` and `j` must run after `i` and before `j`.
    pub(super) fn between(plan: &Plan, i: usize, j: usize) -> Option<Interleaving> {
        if j == i + 1 {
            return Some(Interleaving { after: Vec::new(), before: Vec::new() });
        }
        let launches = &plan.launches;
        let [mut with_first, mut with_last, mut between] = [(); 3].map(|()| Footprint::new(plan));
        let mut after = Vec::new();
        with_first.add(&launches[i]);
        for k in i + 1..j {
            if with_first.has_conflict(&launches[k]) {
                after.push(k);
                with_first.add(&launches[k]);
                between.add(&launches[k]);
            }
        }
        if between.has_conflict(&launches[j]) {
            return None;
        }
        let mut before = Vec::new();
        with_last.add(&launches[j]);
        for k in (i + 1..j).rev() {
            if with_last.has_conflict(&launches[k]) {
                before.push(k);
                with_last.add(&launches[k]);
            }
        }
        before.reverse();
        Some(Interleaving { after, before })
    }
}

/// Replaces launches `i` and `j` by `merged` and returns its position. `merged` takes the position of `j`, followed by
/// the launches `after`; with `at_first` it takes the position of `i`, preceded by the launches `before`.
pub(super) fn replace_pair(
    launches: &mut Vec<Launch>,
    i: usize,
    j: usize,
    merged: Launch,
    interleaving: &Interleaving,
    at_first: bool,
) -> usize {
    let moved = if at_first { &interleaving.before } else { &interleaving.after };
    let mut window: Vec<Option<Launch>> = launches.drain(i..=j).map(Some).collect();
    let mut take = |k: &usize| window[k - i].take().expect("a launch must not be moved twice");
    let moved: Vec<Launch> = moved.iter().map(&mut take).collect();
    let last = j - i;
    let others: Vec<Launch> =
        window.into_iter().enumerate().filter(|(k, _)| *k != 0 && *k != last).filter_map(|(_, l)| l).collect();
    let at = i + if at_first { moved.len() } else { others.len() };
    let ordered: Vec<Launch> = if at_first {
        moved.into_iter().chain([merged]).chain(others).collect()
    } else {
        others.into_iter().chain([merged]).chain(moved).collect()
    };
    launches.splice(i..i, ordered);
    at
}
