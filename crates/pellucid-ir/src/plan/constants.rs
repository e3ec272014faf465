//! Constant folding: launches that depend on no input and no state run once, before the first run of the plan.

use super::{Plan, SlotRole};

/// Moves every launch that depends on constants alone to [`Plan::setup`].
///
/// A kernel is a function of its operands, so a random number generator, whose state the program changes, is no constant.
/// A fill (a launch without inputs) stays: writing it costs as little as reading it, and a fill that is fused with its
/// reader needs no memory.
pub(super) fn fold(mut plan: Plan) -> Plan {
    let launches = &plan.launches;
    let own = |slot| plan.role(slot) == SlotRole::Own;
    let mut constant: Vec<bool> =
        launches.iter().map(|l| !l.inputs.is_empty() && l.outputs.iter().all(|o| own(o.slot))).collect();
    // Every writer of an operand of a constant launch must be constant; inputs may also be written by fills.
    loop {
        let writers = |slot| (0..launches.len()).filter(move |&k| launches[k].writes(slot));
        let fill = |k: usize| launches[k].inputs.is_empty() && !launches[k].updates();
        let lasting = |slot| match plan.role(slot) {
            SlotRole::Constant => true,
            SlotRole::Own => writers(slot).next().is_some() && writers(slot).all(|k| constant[k] || fill(k)),
            SlotRole::Input | SlotRole::Given | SlotRole::Result | SlotRole::State => false,
        };
        // A launch that is not constant may touch the slot only after its last writer.
        let complete = |slot| {
            let last = writers(slot).next_back();
            (0..launches.len()).all(|k| constant[k] || !launches[k].touches(slot) || Some(k) > last)
        };
        let stays = |k: &usize| {
            let launch = &launches[*k];
            !(launch.inputs.iter().all(|o| lasting(o.slot))
                && launch.outputs.iter().all(|o| writers(o.slot).all(|w| constant[w]) && complete(o.slot)))
        };
        let out: Vec<usize> = (0..launches.len()).filter(|&k| constant[k]).filter(stays).collect();
        if out.is_empty() {
            break;
        }
        out.into_iter().for_each(|k| constant[k] = false);
    }
    if !constant.contains(&true) {
        return plan;
    }
    // A fill that a constant launch reads also runs in the setup; its other readers keep the original.
    let launches = std::mem::take(&mut plan.launches);
    let read = |slot| launches.iter().zip(&constant).any(|(l, c)| *c && l.inputs.iter().any(|o| o.slot == slot));
    let fills: Vec<bool> =
        launches.iter().map(|l| l.inputs.is_empty() && l.outputs.iter().any(|o| read(o.slot))).collect();
    for ((launch, constant), fill) in launches.into_iter().zip(constant).zip(fills) {
        if constant || fill {
            plan.setup.push(launch.clone());
        }
        if !constant {
            plan.launches.push(launch);
        }
    }
    super::dead::remove(plan)
}
