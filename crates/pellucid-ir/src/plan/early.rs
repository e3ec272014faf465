//! What ends values and makes none runs as soon as it can, so that those need no memory for longer.

use super::order::conflict;
use super::{Operand, Plan, Role};

/// Own bytes that a launch may make and still run early: numbers, such as a clock's.
const LITTLE: usize = 64;

/// Moves every launch that makes next to no buffer of the plan's own (an optimizer's update, say) up to the last launch
/// that it must follow.
pub(super) fn hoist(mut plan: Plan) -> Plan {
    for j in 1..plan.launches.len() {
        let launch = &plan.launches[j];
        let made: usize = launch.outputs.iter().filter(|o| plan.role(o.slot) != Role::State).map(Operand::bytes).sum();
        if made > LITTLE {
            continue;
        }
        let place = (0..j).rev().find(|&k| conflict(&plan.launches[k], launch)).map_or(0, |k| k + 1);
        plan.launches[place..=j].rotate_right(1);
    }
    plan
}
