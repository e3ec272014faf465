//! Constant folding: launches that depend on no input and no state run once, before the first run of the plan.

use super::{Launch, Plan, Slot, SlotRole};

/// Moves every launch that depends only on constants to [`Plan::setup`].
///
/// The outputs of a kernel depend only on its operands. A random kernel also updates the state of its generator, so its
/// numbers are not constant. A fill (a launch without inputs) is not moved: writing it costs as little as reading it,
/// and a fill that is fused with its consumer needs no memory.
pub(super) fn fold(mut plan: Plan) -> Plan {
    let launches = &plan.launches;
    let is_scratch = |slot| plan.role(slot) == SlotRole::Scratch;
    let mut constant: Vec<bool> =
        launches.iter().map(|l| !l.inputs.is_empty() && l.outputs.iter().all(|o| is_scratch(o.slot))).collect();
    // The launches that write each slot, and the launches that read or write it.
    let [mut writers, mut touching] = [(); 2].map(|()| vec![Vec::new(); plan.slots.len()]);
    for (k, launch) in launches.iter().enumerate() {
        launch.outputs.iter().for_each(|o| writers[o.slot].push(k));
        launch.operands().for_each(|o| touching[o.slot].push(k));
    }
    let is_fill = |k: usize| launches[k].inputs.is_empty() && !launches[k].updates();
    // Every launch that writes an operand of a constant launch must be constant; an input may also be written by a
    // fill.
    let stays = |constant: &[bool], launch: &Launch| {
        let lasts = |slot: Slot| match plan.role(slot) {
            SlotRole::Constant => true,
            SlotRole::Scratch => !writers[slot].is_empty() && writers[slot].iter().all(|&k| constant[k] || is_fill(k)),
            SlotRole::Input | SlotRole::ExternalRead | SlotRole::ExternalWrite | SlotRole::State => false,
        };
        // A launch that is not constant may read the slot only after the last launch that writes it.
        let is_complete = |slot: Slot| touching[slot].iter().all(|k| constant[*k] || Some(k) > writers[slot].last());
        launch.inputs.iter().all(|o| lasts(o.slot))
            && launch.outputs.iter().all(|o| writers[o.slot].iter().all(|&w| constant[w]) && is_complete(o.slot))
    };
    // Usually one pass is enough, because a launch depends on earlier launches only.
    let mut is_changed = true;
    while std::mem::take(&mut is_changed) {
        for (k, launch) in launches.iter().enumerate() {
            if constant[k] && !stays(&constant, launch) {
                (constant[k], is_changed) = (false, true);
            }
        }
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
