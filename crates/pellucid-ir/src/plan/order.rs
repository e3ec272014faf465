//! Order dependencies between launches, and moving one launch next to another.

use super::{Launch, Plan, SlotRole, SlotView};
use crate::kernel::{Index, IndexedOperand};

impl Plan {
    /// Returns true if `a` and `b` must keep their order: one launch writes a slot that the other launch reads or
    /// writes, or one launch may fail because of its values and the other writes memory that is visible outside of the
    /// plan. A run that fails then leaves the same memory as in the recorded order.
    pub(super) fn have_conflict(&self, a: &Launch, b: &Launch) -> bool {
        let is_dependent =
            || a.outputs.iter().any(|o| b.touches(o.slot)) || b.outputs.iter().any(|o| a.touches(o.slot));
        a.refuses && self.writes_visible(b) || b.refuses && self.writes_visible(a) || is_dependent()
    }

    fn writes_visible(&self, launch: &Launch) -> bool {
        launch.outputs.iter().any(|o| matches!(self.role(o.slot), SlotRole::State | SlotRole::Result))
    }

    /// Marks the launches that may fail because of their values. An index that an earlier launch has checked against
    /// the same lengths cannot fail again.
    pub(super) fn mark_refusals(&mut self) {
        let mut checked: Vec<IndexCheck> = Vec::new();
        for launch in &mut self.launches {
            launch.refuses = launch.kernel.info().refuses_values;
            if let Some(check) = IndexCheck::of(launch) {
                launch.refuses = !checked.contains(&check);
                checked.push(check);
            }
            checked.retain(|check| check.indices.iter().all(|index| !launch.writes(index.slot)));
        }
    }
}

/// Index tensors with the lengths of the axes that they index.
#[derive(PartialEq)]
struct IndexCheck {
    indices: Vec<SlotView>,
    lengths: Vec<usize>,
}

impl IndexCheck {
    fn of(launch: &Launch) -> Option<IndexCheck> {
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
}

/// A reordering that makes launches `i` and `j`, `i < j`, adjacent.
pub(super) struct Interleaving {
    /// The launches between them that must run after `i`.
    pub(super) after: Vec<usize>,
    /// The launches between them that must run before `j`.
    pub(super) before: Vec<usize>,
}

impl Interleaving {
    /// Returns the reordering; `None` if a launch between them must run after `i` and before `j`.
    pub(super) fn between(plan: &Plan, i: usize, j: usize) -> Option<Interleaving> {
        let launches = &plan.launches;
        let have_conflict = |a: &Launch, b: &Launch| plan.have_conflict(a, b);
        let mut after = Vec::new();
        for k in i + 1..j {
            if have_conflict(&launches[i], &launches[k])
                || after.iter().any(|&a: &usize| have_conflict(&launches[a], &launches[k]))
            {
                after.push(k);
            }
        }
        if after.iter().any(|&k| have_conflict(&launches[k], &launches[j])) {
            return None;
        }
        let mut before = Vec::new();
        for k in (i + 1..j).rev() {
            if have_conflict(&launches[k], &launches[j])
                || before.iter().any(|&b: &usize| have_conflict(&launches[k], &launches[b]))
            {
                before.push(k);
            }
        }
        before.reverse();
        Some(Interleaving { after, before })
    }
}

/// Replaces launches `i` and `j` by `merged` and returns its position. `merged` takes the position of `j`, followed by
/// the launches `after`; with `up` it takes the position of `i`, preceded by the launches `before`.
pub(super) fn replace_pair(
    launches: &mut Vec<Launch>,
    i: usize,
    j: usize,
    merged: Launch,
    interleaving: &Interleaving,
    up: bool,
) -> usize {
    let (moved, lead) = if up { (&interleaving.before, true) } else { (&interleaving.after, false) };
    let mut window: Vec<Option<Launch>> = launches.drain(i..=j).map(Some).collect();
    let mut take = |k: &usize| window[k - i].take().expect("a launch must not be moved twice");
    let moved: Vec<Launch> = moved.iter().map(&mut take).collect();
    let last = j - i;
    let rest: Vec<Launch> =
        window.into_iter().enumerate().filter(|(k, _)| *k != 0 && *k != last).filter_map(|(_, l)| l).collect();
    let at = i + if lead { moved.len() } else { rest.len() };
    let ordered: Vec<Launch> = if lead {
        moved.into_iter().chain([merged]).chain(rest).collect()
    } else {
        rest.into_iter().chain([merged]).chain(moved).collect()
    };
    launches.splice(i..i, ordered);
    at
}
