//! Early scheduling: a launch that allocates next to nothing runs as soon as possible, so that its inputs are freed.

use super::{Plan, SlotRole, SlotView};

/// Bytes of the plan's own buffers that a hoisted launch may write: single values, such as a step counter.
const LITTLE: usize = 64;

/// Moves every launch that writes almost none of the plan's own buffers (an optimizer update, for example) directly
/// behind the last launch that it must follow.
pub(super) fn hoist(mut plan: Plan) -> Plan {
    for j in 1..plan.launches.len() {
        let launch = &plan.launches[j];
        let written: usize =
            launch.outputs.iter().filter(|o| plan.role(o.slot) != SlotRole::State).map(SlotView::bytes).sum();
        if written > LITTLE {
            continue;
        }
        let earliest = (0..j).rev().find(|&k| plan.have_conflict(&plan.launches[k], launch)).map_or(0, |k| k + 1);
        plan.launches[earliest..=j].rotate_right(1);
    }
    plan
}
