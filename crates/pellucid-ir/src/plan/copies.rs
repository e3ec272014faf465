//! Copy elimination: the producer writes directly to the destination, or the consumer reads the source directly.

use super::{Elision, Launch, Plan, SlotRole, SlotView};
use crate::kernel::Kernel;
use crate::shape::{Layout, Overlap};

/// Removes copies whose source can be written directly to the destination, and copies whose result only matrix products
/// read, since a matrix product can read a transposed factor directly.
pub(super) fn remove(mut plan: Plan) -> Plan {
    let mut k = 0;
    while k < plan.launches.len() {
        let launch = &plan.launches[k];
        let moves = launch.kernel == Kernel::Copy && launch.inputs[0].dtype == launch.outputs[0].dtype;
        if moves && (write_to_destination(&mut plan, k) || read_from_source(&mut plan, k)) {
            continue;
        }
        k += 1;
    }
    plan
}

/// Returns true if the operand covers its entire buffer in row-major order.
fn is_whole(plan: &Plan, operand: &SlotView) -> bool {
    operand.layout.is_contiguous() && operand.layout.offset() == 0 && operand.bytes() == plan.slots[operand.slot]
}

/// Redirects all writers and readers of the source of copy `k` to the destination of the copy, and removes the copy.
/// Returns false, with the plan unchanged, if that is not possible.
fn write_to_destination(plan: &mut Plan, k: usize) -> bool {
    let (from, to) = (plan.launches[k].inputs[0].clone(), plan.launches[k].outputs[0].clone());
    let fits = plan.role(from.slot) == SlotRole::Scratch
        && !plan.is_wanted(from.slot)
        && is_whole(plan, &from)
        && to.layout.is_contiguous()
        // A broadcast changes the number of elements.
        && from.bytes() == to.bytes()
        && from.overlap(&to) == Overlap::Disjoint;
    let users: Vec<usize> = plan.users(from.slot).collect();
    // Several launches may write the source: a fill and a scatter onto it, or one launch for each part.
    let producer = users.first().copied().unwrap_or(k);
    let launches = &plan.launches;
    let is_written_first =
        launches[producer].writes(from.slot) && users.iter().all(|&u| u < k || !launches[u].writes(from.slot));
    let typed =
        users.iter().flat_map(|&u| launches[u].operands()).all(|o| o.slot != from.slot || o.dtype == from.dtype);
    if !fits || !is_written_first || !typed || producer >= k {
        return false;
    }
    let last = users.iter().copied().max().unwrap_or(k);
    let is_touched = |range: std::ops::Range<usize>, writes_only: bool| {
        launches[range].iter().any(|l| {
            let reads = l.inputs.iter().filter(|_| !writes_only);
            l.outputs.iter().chain(reads).any(|o| o.overlap(&to) != Overlap::Disjoint)
        })
    };
    // A run in which a launch rejects a value must leave the state unchanged.
    let first = if launches[producer].kernel.info().writes_before_rejection { producer } else { producer + 1 };
    if plan.role(to.slot) == SlotRole::State && launches[first..k].iter().any(|l| l.can_fail) {
        return false;
    }
    if is_touched(producer + 1..k, false) || (last > k && is_touched(k + 1..last + 1, true)) {
        return false;
    }
    // The writers compute the result of the copy together, unless one launch writes all of it.
    let writers = users.iter().filter(|&&u| launches[u].writes(from.slot)).count();
    let shares_result = writers > 1 || launches[k].shares_result;
    let moved = |launch: &Launch| {
        let mut launch = launch.clone();
        launch.shares_result |= shares_result && launch.writes(from.slot);
        for o in launch.operands_mut().filter(|o| o.slot == from.slot) {
            let (shape, offset) = (o.layout.shape().clone(), o.layout.offset() + to.layout.offset());
            o.layout = match o.layout.is_contiguous() {
                true => Layout::contiguous_from(shape, offset),
                false => Layout::strided(shape, o.layout.strides(), offset),
            };
            o.slot = to.slot;
        }
        launch
    };
    remove_copy(plan, k, users, moved, &from, &to)
}

/// Redirects the matrix products that read the destination of copy `k` to the source of the copy, and removes the copy.
/// Returns false, with the plan unchanged, if that is not possible.
fn read_from_source(plan: &mut Plan, k: usize) -> bool {
    let (from, to) = (plan.launches[k].inputs[0].clone(), plan.launches[k].outputs[0].clone());
    if plan.role(to.slot) != SlotRole::Scratch || plan.is_wanted(to.slot) || !is_whole(plan, &to) {
        return false;
    }
    let users: Vec<usize> = plan.users(to.slot).filter(|&u| u != k).collect();
    let source_layout = |o: &SlotView| {
        let rank = o.layout.shape().rank();
        let layout = from.layout.reshape(o.layout.shape()).filter(|_| is_whole(plan, o) && o.dtype == from.dtype)?;
        // A matrix product packs factors efficiently only if one of their last two axes has stride 1.
        let strides = layout.strides();
        (rank >= 2 && strides[rank - 2..].contains(&1)).then_some(layout)
    };
    let factor = |u: &usize| {
        let launch = &plan.launches[*u];
        let is_replaceable = |(i, o): (usize, &SlotView)| o.slot != to.slot || i < 2 && source_layout(o).is_some();
        matches!(launch.kernel, Kernel::MatMul(_))
            && !launch.writes(to.slot)
            && launch.inputs.iter().enumerate().all(is_replaceable)
    };
    let (Some(&first), Some(&last)) = (users.first(), users.last()) else { return false };
    if first < k || !users.iter().all(factor) {
        return false;
    }
    if plan.launches[k + 1..last].iter().any(|l| l.writes(from.slot)) {
        return false;
    }
    let layouts: Vec<(usize, usize, Layout)> = users
        .iter()
        .flat_map(|&u| plan.launches[u].inputs.iter().enumerate().map(move |(i, o)| (u, i, o)))
        .filter(|(.., o)| o.slot == to.slot)
        .filter_map(|(u, i, o)| Some((u, i, source_layout(o)?)))
        .collect();
    let before: Vec<Launch> = users.iter().map(|&u| plan.launches[u].clone()).collect();
    for (u, i, layout) in layouts {
        plan.launches[u].inputs[i] = SlotView { slot: from.slot, layout, dtype: from.dtype };
    }
    if users.iter().any(|&u| !plan.launches[u].is_sound()) {
        users.iter().zip(before).for_each(|(&u, launch)| plan.launches[u] = launch);
        return false;
    }
    plan.launches.remove(k);
    plan.elide([to.slot], &Elision::Same(from.slot));
    true
}

/// Rewrites the launches `users` with `moved` and removes copy `k`. Returns false, with the plan unchanged, if a
/// rewritten launch has overlapping operands.
fn remove_copy(
    plan: &mut Plan,
    k: usize,
    users: Vec<usize>,
    moved: impl Fn(&Launch) -> Launch,
    from: &SlotView,
    to: &SlotView,
) -> bool {
    let changed: Vec<(usize, Launch)> =
        users.into_iter().filter(|&u| u != k).map(|u| (u, moved(&plan.launches[u]))).collect();
    if changed.iter().any(|(_, launch)| !launch.is_sound()) {
        return false;
    }
    changed.into_iter().for_each(|(u, launch)| plan.launches[u] = launch);
    plan.launches.remove(k);
    plan.elide([from.slot], &Elision::Same(to.slot));
    true
}
