//! Constants: what depends on no input and no state is computed once, before the first run.

use super::{Plan, Role};
use crate::kernel::Kernel;

/// Moves every launch that depends on constants alone to [`Plan::setup`].
///
/// What reads nothing at all (a fill) stays: it is as quick to make as to read, and takes no memory where it is
/// fused with what reads it.
pub(super) fn fold(mut plan: Plan) -> Plan {
    let launches = &plan.launches;
    let own = |slot| plan.role(slot) == Role::Own;
    let mut constant: Vec<bool> = launches
        .iter()
        .map(|l| {
            !matches!(l.kernel, Kernel::Random(_)) && !l.inputs.is_empty() && l.outputs.iter().all(|o| own(o.slot))
        })
        .collect();
    // Every writer of what a constant launch reads or writes is constant, or a fill of what it reads.
    loop {
        let writers = |slot| (0..launches.len()).filter(move |&k| launches[k].writes(slot));
        let fill = |k: usize| launches[k].inputs.is_empty() && !launches[k].updates();
        let lasting = |slot| match plan.role(slot) {
            Role::Constant => true,
            Role::Own => writers(slot).next().is_some() && writers(slot).all(|k| constant[k] || fill(k)),
            Role::Input | Role::Given | Role::State => false,
        };
        // Whoever else reads what several constant launches write sees it when all have written.
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
    // A fill that a constant launch reads is made for it too; whoever else reads it still has its own.
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
