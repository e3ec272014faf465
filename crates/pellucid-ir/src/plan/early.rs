//! Early scheduling: a launch that writes at most 64 bytes to slots other than state runs as early as possible, so that
//! its inputs are freed early.

use super::order::Footprint;
use super::{Plan, SlotRole, SlotView};

/// The maximum number of bytes that a hoisted launch writes to slots other than state: enough for a few values, such as
/// a step counter.
const MAX_HOISTED_BYTES: usize = 64;

/// Moves every launch that writes at most [`MAX_HOISTED_BYTES`] bytes to slots other than [`SlotRole::State`] directly
/// after the last launch that it must follow. Such a launch is, for example, an optimizer update.
pub(super) fn hoist(mut plan: Plan) -> Plan {
    for j in 1..plan.launches.len() {
        let launch = &plan.launches[j];
        let written: usize =
            launch.outputs.iter().filter(|o| plan.role(o.slot) != SlotRole::State).map(SlotView::bytes).sum();
        if written > MAX_HOISTED_BYTES {
            continue;
        }
        let mut footprint = Footprint::new(&plan);
        footprint.add(launch);
        let earliest = (0..j).rev().find(|&k| footprint.has_conflict(&plan.launches[k])).map_or(0, |k| k + 1);
        plan.launches[earliest..=j].rotate_right(1);
    }
    plan
}
