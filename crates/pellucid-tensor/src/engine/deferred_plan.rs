//! Removes the kernels of a deferred list whose results cannot be read, and runs the others as an optimized plan.

use super::fallback::run_launches;
use super::plan_cache::CachedPlan;
use super::recording::RecordedKernel;
use super::slot_writes::SlotWrites;
use super::stats;
use super::storage_numbers::StorageNumbers;
use crate::array::Array;
use crate::device::Device;
use pellucid_ir::backend::{BorrowedSlots, FAILED, READY, Storage};
use pellucid_ir::plan::{Launch, Plan, SlotRole, SlotView, slot_access};
use pellucid_ir::{Error, Result};
use smallvec::SmallVec;
use std::sync::Arc;

/// Runs kernels of one device, which were recorded in the list with the id `list`. `is_written_later` returns true for
/// a storage that a kernel that stays in the list will write.
///
/// # Errors
/// The error of the first kernel that fails. Results that are not complete then have no values.
pub(super) fn run_kernels(
    list: u64,
    device: Device,
    kernels: Vec<RecordedKernel>,
    is_written_later: impl Fn(&Arc<Storage>) -> bool,
) -> Result<()> {
    stats::count_run(kernels.len());
    let NumberedKernels { storages, handles, results, mut launches } = NumberedKernels::new(&kernels);
    remove_unneeded(&mut launches, &handles);
    let mut roles = vec![SlotRole::ExternalRead; storages.len()];
    for out in launches.iter().flat_map(|launch| &launch.outputs) {
        roles[out.slot] = SlotRole::State;
    }
    for (slot, storage) in storages.iter().enumerate() {
        if !storage.buffer().is_allocated() && storage.pending() == list {
            roles[slot] = if handles[slot] > 0 { SlotRole::ExternalWrite } else { SlotRole::Scratch };
        }
    }
    let slots = storages.iter().map(|storage| storage.buffer().bytes()).collect();
    let plan = Plan { slots, roles, launches, is_launch_bound: device.is_deferred(), ..Plan::default() };
    let roles = plan.roles.clone();
    let outcome = run_plan(device, plan, &storages).or_else(|failed| {
        // If no launch of the plan has run, the kernels run one by one as in eager mode, so that the kernels before the
        // failing one are executed.
        if failed.complete.is_some() || matches!(failed.error, Error::DeviceUnavailable { .. }) {
            return Err(failed);
        }
        let mut launches = NumberedKernels::new(&kernels).launches;
        remove_unneeded(&mut launches, &handles);
        run_one_by_one(device, &launches, &storages)
    });
    drop(kernels);
    for ((slot, storage), role) in storages.iter().enumerate().zip(roles) {
        // After a failure, no later kernel of the list runs.
        if storage.pending() == list && (outcome.is_err() || !is_written_later(storage)) {
            let is_valid = match &outcome {
                _ if role == SlotRole::Scratch => false,
                Err(failed) if results[slot] => failed.is_complete(slot),
                _ => true,
            };
            storage.set_pending(if is_valid { READY } else { FAILED });
        }
    }
    outcome.map_err(|mut failed| {
        failed.error.keep_operation();
        failed.error
    })
}

/// The error of a failed run, and the slots that were complete before it.
struct RunFailure {
    error: Error,
    /// For each slot, whether its values are complete; `None` if no launch has run.
    complete: Option<Vec<bool>>,
}

impl RunFailure {
    /// Returns the failure of a run that has executed no launch.
    fn before_all(error: Error) -> Box<RunFailure> {
        Box::new(RunFailure { error, complete: None })
    }

    /// Returns true if the values of a slot were complete before the failure.
    fn is_complete(&self, slot: usize) -> bool {
        self.complete.as_ref().is_some_and(|complete| complete[slot])
    }
}

/// Runs launches in the recorded order.
fn run_one_by_one(device: Device, launches: &[Launch], storages: &[Arc<Storage>]) -> Result<(), Box<RunFailure>> {
    let access = slot_access(storages.len(), launches);
    let slots = BorrowedSlots::acquire(storages, &access).map_err(RunFailure::before_all)?;
    stats::count_launches(launches.len(), launches.iter().map(Launch::bytes).sum());
    run_launches(device, launches, &slots).map_err(|failed| {
        let (launch, error) = (failed.launch(), failed.error);
        let sizes: Vec<usize> = storages.iter().map(|storage| storage.buffer().bytes()).collect();
        let writes = SlotWrites::from_launches(&sizes, launches);
        let complete = (0..storages.len()).map(|slot| writes.is_complete(slot, launch)).collect();
        let error = launch.map_or(error.clone(), |index| launches[index].named(error));
        Box::new(RunFailure { error, complete: Some(complete) })
    })
}

/// Optimizes, compiles and runs a plan. The memory of a slot is allocated at its first write.
fn run_plan(device: Device, plan: Plan, storages: &[Arc<Storage>]) -> Result<(), Box<RunFailure>> {
    if let [launch] = &plan.launches[..] {
        let access = slot_access(storages.len(), [launch]);
        let slots = BorrowedSlots::acquire(storages, &access).map_err(RunFailure::before_all)?;
        stats::count_launches(1, launch.bytes());
        return run_launches(device, std::slice::from_ref(launch), &slots)
            .map_err(|failed| RunFailure::before_all(launch.named(failed.error)));
    }
    if plan.launches.is_empty() {
        return Ok(());
    }
    let (plan, compiled) = CachedPlan::find_or_compile(device, plan).map_err(RunFailure::before_all)?;
    let arena = plan.arena_bytes().map(|bytes| device.backend().storage(bytes)).transpose();
    let arena = arena.map_err(|error| RunFailure::before_all(plan.plan().named(false, Some(0), error)))?;
    let storages: Vec<Arc<Storage>> = storages.iter().cloned().chain(arena).collect();
    let slots = BorrowedSlots::acquire(&storages, compiled.access()).map_err(RunFailure::before_all)?;
    stats::count_launches(plan.plan().launches.len(), plan.bytes());
    compiled.launch(&slots).map_err(|failed| {
        let (launch, error) = (failed.launch(), failed.error);
        let complete = || (0..storages.len()).map(|slot| plan.writes().is_complete(slot, launch)).collect();
        let error = plan.plan().named(false, launch, error);
        Box::new(RunFailure { error, complete: (launch != Some(0)).then(complete) })
    })
}

/// Recorded kernels as launches over slots.
struct NumberedKernels {
    /// The storage of every slot.
    storages: Vec<Arc<Storage>>,
    /// The number of handles to each storage outside the kernels.
    handles: Vec<usize>,
    /// For every storage, whether it was created by the operation call whose kernels write it.
    results: Vec<bool>,
    launches: Vec<Launch>,
}

impl NumberedKernels {
    fn new(kernels: &[RecordedKernel]) -> NumberedKernels {
        let (mut table, mut handles) = (StorageNumbers::default(), Vec::new());
        let mut operands = |arrays: &[Array]| {
            let operand = |array: &Array| {
                let count = Arc::strong_count(array.storage());
                let (slot, is_new) = table.slot(array.storage());
                if is_new {
                    handles.push(count);
                }
                handles[slot] -= 1;
                SlotView { slot, layout: array.layout().clone(), dtype: array.dtype() }
            };
            arrays.iter().map(operand).collect::<Vec<_>>()
        };
        let mut launches = Vec::with_capacity(kernels.len());
        for RecordedKernel { kernel, inputs, outputs, operation, .. } in kernels {
            let (inputs, outputs) = (operands(inputs), operands(outputs));
            launches.push(Launch::new(kernel.clone(), inputs, outputs).of_operation(*operation));
        }
        // For every slot, the number of launches of the operation call that created the storage.
        let mut writers = vec![0; handles.len()];
        let results_of = |kernel: &RecordedKernel, launch: &Launch| -> SmallVec<[usize; 4]> {
            let results = launch.outputs.iter().zip(&kernel.results).filter(|(_, is_result)| **is_result);
            results.map(|(out, _)| out.slot).collect()
        };
        for (kernel, launch) in kernels.iter().zip(&launches) {
            results_of(kernel, launch).into_iter().for_each(|slot| writers[slot] += 1);
        }
        for (kernel, launch) in kernels.iter().zip(&mut launches) {
            launch.shares_result = results_of(kernel, launch).into_iter().any(|slot| writers[slot] > 1);
        }
        let results = writers.into_iter().map(|count| count > 0).collect();
        NumberedKernels { storages: table.into_storages(), handles, results, launches }
    }
}

/// Returns true if kernels write a storage that also has handles outside the kernels.
pub(super) fn has_needed_results(kernels: &[RecordedKernel]) -> bool {
    let NumberedKernels { handles, launches, .. } = NumberedKernels::new(kernels);
    launches.iter().flat_map(|launch| &launch.outputs).any(|out| handles[out.slot] > 0)
}

/// Removes the launches that write no needed slot. A slot is needed if its storage has handles outside the kernels, or
/// if a needed launch uses it. A launch needs all its operands, including its outputs, since it may write only a part
/// of an output.
fn remove_unneeded(launches: &mut Vec<Launch>, handles: &[usize]) {
    let mut needed: Vec<bool> = handles.iter().map(|&handles| handles > 0).collect();
    let mut keep: Vec<bool> = vec![false; launches.len()];
    for (launch, keep) in launches.iter().zip(&mut keep).rev() {
        *keep = launch.outputs.iter().any(|out| needed[out.slot]);
        if *keep {
            launch.inputs.iter().chain(&launch.outputs).for_each(|operand| needed[operand.slot] = true);
        }
    }
    let mut keep = keep.into_iter();
    launches.retain(|_| keep.next().expect("`keep` must have one flag for each launch"));
}
