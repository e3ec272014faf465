//! The distribution of a convolution to threads.

use pellucid_ir::Result;
use pellucid_runtime::threads;

/// The smallest number of multiply-adds of a task. Distributing smaller tasks would take longer than it saves.
pub(super) const MIN_TASK_WORK: usize = 1 << 19;

/// Calls `work(worker, i)` for every i below `count`, on several threads if the total work is large enough.
///
/// `cost` is the number of multiply-adds of one call. `worker` is below [`worker_count`], and calls with the same
/// `worker` never run concurrently.
///
/// # Errors
/// Returns an error of `work`; some calls are then skipped.
pub(super) fn for_each_task(count: usize, cost: usize, work: impl Fn(usize, usize) -> Result<()> + Sync) -> Result<()> {
    if worker_count(count, cost) == 1 {
        return (0..count).try_for_each(|i| work(0, i));
    }
    threads::try_parallel_for(count, (MIN_TASK_WORK / cost.max(1)).clamp(1, count), work)
}

/// Returns the number of workers that [`for_each_task`] uses for `count` calls of `cost` multiply-adds each.
pub(super) fn worker_count(count: usize, cost: usize) -> usize {
    if count < 2 || cost.saturating_mul(count) < 2 * MIN_TASK_WORK { 1 } else { threads::worker_ids(count) }
}
