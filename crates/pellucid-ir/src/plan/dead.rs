//! Dead code elimination: removes launches whose results are unused, and unused outputs of programs.

use super::{Elision, Launch, Plan, Slot};
use crate::formula::{Program, Splice, SpliceOperand};
use crate::kernel::{Kernel, Map, Params, Row};
use std::sync::Arc;

/// Removes unused launches and unused outputs. A random kernel whose numbers are unused still runs if the state of its
/// generator is visible outside the plan.
pub(super) fn remove(mut plan: Plan) -> Plan {
    let mut needed: Vec<bool> = (0..plan.slots.len()).map(|slot| plan.is_wanted(slot)).collect();
    let mut removed_slots: Vec<Slot> = Vec::new();
    let mut kept: Vec<Launch> = Vec::with_capacity(plan.launches.len());
    for mut launch in std::mem::take(&mut plan.launches).into_iter().rev() {
        if !launch.outputs.iter().any(|o| needed[o.slot]) {
            removed_slots.extend(launch.outputs.iter().map(|o| o.slot));
            continue;
        }
        let wanted: Vec<bool> = launch.outputs.iter().map(|o| needed[o.slot]).collect();
        if wanted.contains(&false)
            && let Some(kernel) = without_unwanted_outputs(&launch.kernel, &wanted)
        {
            launch.kernel = kernel;
            let mut wanted = wanted.iter();
            launch.outputs.retain(|o| {
                let keep = *wanted.next().expect("the list of flags must have one flag for each output");
                if !keep {
                    removed_slots.push(o.slot);
                }
                keep
            });
        }
        // The outputs count as needed before the launch as well, since the launch may write only a part of their slots.
        launch.operands().for_each(|o| needed[o.slot] = true);
        kept.push(launch);
    }
    kept.reverse();
    plan.launches = kept;
    plan.elide(removed_slots, &Elision::Dead);
    plan
}

/// Returns the kernel without the unwanted outputs; `None` if it is neither a map nor a row kernel, or would lose an
/// input.
fn without_unwanted_outputs(kernel: &Kernel, wanted: &[bool]) -> Option<Kernel> {
    let program = |program: &Program, params: &Params| {
        let mut splice = Splice::new(program.is_row());
        let inputs: Vec<SpliceOperand> = (0..program.inputs.len()).map(SpliceOperand::Array).collect();
        let values = splice.append(program, params, &inputs).ok()?;
        let outputs: Vec<_> = values.into_iter().zip(wanted).filter(|(_, w)| **w).map(|(m, _)| m).collect();
        let spliced = splice.finish(program.name, &outputs).ok()?;
        // The inputs of the launch stay unchanged, so the program must still read all of them in order.
        (spliced.arrays.iter().copied().eq(0..program.inputs.len()))
            .then(|| (Arc::new(spliced.program), spliced.params))
    };
    Some(match kernel {
        Kernel::Map(k) => {
            let (program, params) = program(&k.program, &k.params)?;
            Kernel::Map(Map { program, params })
        }
        Kernel::Row(k) => {
            let (program, params) = program(&k.program, &k.params)?;
            Kernel::Row(Row { axes: k.axes, program, params })
        }
        _ => return None,
    })
}
