//! Counts of the deferred work of a thread.

use std::cell::Cell;

/// The deferred work that a thread has run so far. The difference of two values is the work between the two calls that
/// returned them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeferredStats {
    /// The number of runs of lists, counted per device.
    pub runs: u64,
    /// The number of recorded kernels in these runs, including skipped kernels whose results cannot be read.
    pub kernels: u64,
    /// The number of launches that ran.
    pub launches: u64,
    /// The bytes that these launches read and wrote: the sizes of all operands. Elements of a broadcast operand count
    /// once.
    pub bytes: u64,
    /// The number of plans that were compiled because no cached plan had their structure and run-time parameters.
    pub compiled_plans: u64,
    /// The number of launches of the compiled plans.
    pub compiled_launches: u64,
    /// The number of kernels, deferred or not, that ran on the CPU because their device does not implement them.
    pub fallbacks: u64,
}

thread_local! {
    static STATS: Cell<DeferredStats> = const {
        Cell::new(DeferredStats {
            runs: 0,
            kernels: 0,
            launches: 0,
            bytes: 0,
            compiled_plans: 0,
            compiled_launches: 0,
            fallbacks: 0,
        })
    };
}

/// Returns the deferred work that this thread has run so far.
///
/// ```
/// use pellucid::{deferred_stats, lazy, Tensor};
/// let x = Tensor::from([1.0f32, 2.0]);
/// let before = deferred_stats();
/// lazy(|| ((&x * 2.0 + 1.0).exp(), drop(x.sin())));
/// let after = deferred_stats();
/// assert_eq!(after.kernels - before.kernels, 4);
/// assert_eq!(after.launches - before.launches, 1); // one fused kernel; the sine is not read
/// ```
pub fn deferred_stats() -> DeferredStats {
    STATS.get()
}

fn add(change: impl FnOnce(&mut DeferredStats)) {
    let mut stats = STATS.get();
    change(&mut stats);
    STATS.set(stats);
}

/// Counts a run of a list of `kernels` recorded kernels.
pub(super) fn count_run(kernels: usize) {
    add(|stats| {
        stats.runs += 1;
        stats.kernels += kernels as u64;
    });
}

/// Counts launches that ran, and the bytes of their operands.
pub(super) fn count_launches(launches: usize, bytes: usize) {
    add(|stats| {
        stats.launches += launches as u64;
        stats.bytes += bytes as u64;
    });
}

/// Counts a kernel that ran on the CPU instead of its device.
pub(super) fn count_fallback() {
    add(|stats| stats.fallbacks += 1);
}

/// Counts a compiled plan with `launches` launches.
pub(super) fn count_plan(launches: usize) {
    add(|stats| {
        stats.compiled_plans += 1;
        stats.compiled_launches += launches as u64;
    });
}
