//! The thread pools, and parallel loops that run on them.

mod primitives;
mod thread_pool;

use crate::{allocator, scratch};
use pellucid_ir::{Error, Result, lock};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::num::NonZero;
use std::ops::Range;
use std::sync::{Mutex, OnceLock};
use thread_pool::ThreadPool;

thread_local! {
    /// The pool that [`with_threads`] selected for this thread.
    static SELECTED: Cell<Option<&'static ThreadPool>> = const { Cell::new(None) };
}

/// Runs `f`, and runs every kernel that `f` launches on a pool of `n` threads. The calling thread is one of them.
///
/// `n` = 0 selects the number of threads of the machine. Pools are cached, one for each `n`, and never dropped.
///
/// Outside this function, kernels run on a pool of `PELLUCID_NUM_THREADS` threads, by default one for each thread of
/// the machine. A pool has at most max(64, 8 · threads of the machine) threads, and no more than the system can start.
pub fn with_threads<R: Send>(n: usize, f: impl FnOnce() -> R + Send) -> R {
    struct RestorePool(Option<&'static ThreadPool>);
    impl Drop for RestorePool {
        fn drop(&mut self) {
            SELECTED.set(self.0);
        }
    }
    let _restore = RestorePool(SELECTED.replace(Some(pool_with(n))));
    f()
}

/// Returns the pool of `n` threads, which is created at the first call.
fn pool_with(n: usize) -> &'static ThreadPool {
    static POOLS: Mutex<BTreeMap<usize, &'static ThreadPool>> = Mutex::new(BTreeMap::new());
    let machine = std::thread::available_parallelism().map_or(1, NonZero::get);
    // A larger `n` is probably a mistake: the stacks of the threads would exhaust the memory.
    let n = if n == 0 { machine } else { n.min((8 * machine).max(64)) };
    let create = || ThreadPool::new(n, warm_up);
    lock(&POOLS).entry(n).or_insert_with(create)
}

/// Returns the pool of this thread.
#[inline]
fn pool() -> &'static ThreadPool {
    static DEFAULT: OnceLock<&'static ThreadPool> = OnceLock::new();
    let setting = || std::env::var("PELLUCID_NUM_THREADS").ok().and_then(|n| n.parse().ok());
    SELECTED.get().unwrap_or_else(|| DEFAULT.get_or_init(|| pool_with(setting().unwrap_or(0))))
}

/// Returns the number of threads of the pool that runs the kernels of this thread.
#[inline]
pub fn count() -> usize {
    pool().threads()
}

/// Returns the number of worker ids for a loop of `tasks` tasks. All worker ids that [`parallel_for`] and
/// [`try_parallel_for`] pass to a task are below this number.
pub fn worker_ids(tasks: usize) -> usize {
    count().min(tasks).max(1)
}

/// The number of bytes of memory traffic that justifies a separate task.
pub const GRAIN: usize = 64 << 10;

/// Calls `work(worker, i)` once for every `i < count`, on the threads of the pool, or on the calling thread alone if
/// the pool is busy.
///
/// Threads claim chunks of `chunk` consecutive indices. Calls with the same worker id run one after the other, so
/// `work` may index scratch memory by worker id. The worker ids are below [`worker_ids`]`(count)`. The function returns
/// after all calls have returned.
///
/// # Panics
/// Panics if a call of `work` panics, with the payload of that panic.
pub fn parallel_for(count: usize, chunk: usize, work: impl Fn(usize, usize) + Sync) {
    pool().run(count, chunk, &work);
}

/// Calls `work(worker, i)` as [`parallel_for`] does, for work that may fail.
///
/// # Errors
/// Returns the error of one of the calls that failed. After an error, further calls are skipped.
///
/// # Panics
/// Panics if a call of `work` panics, with the payload of that panic.
pub fn try_parallel_for(count: usize, chunk: usize, work: impl Fn(usize, usize) -> Result<()> + Sync) -> Result<()> {
    let failed: OnceLock<Error> = OnceLock::new();
    parallel_for(count, chunk, |worker, i| {
        if failed.get().is_none()
            && let Err(error) = work(worker, i)
        {
            let _ = failed.set(error);
        }
    });
    failed.into_inner().map_or(Ok(()), Err)
}

/// Runs `work` over `0..total`, split into ranges of at least `grain` indices. Only the last range may be shorter.
///
/// A single range runs on the calling thread. The results of `work` must not depend on how the indices are split.
#[inline]
pub fn parallel_ranges(total: usize, grain: usize, work: impl Fn(Range<usize>) + Sync) {
    let tasks = total / grain.max(1);
    let threads = if tasks > 1 { count() } else { 1 };
    if threads == 1 {
        return work(0..total);
    }
    // Up to four ranges per thread balance the load if other processes delay a thread.
    let step = total.div_ceil(tasks.min(threads * 4));
    parallel_for(total.div_ceil(step), 1, |_, i| work(i * step..total.min((i + 1) * step)));
}

/// Prepares the calling thread for tasks, so that they need no system allocation.
///
/// Caches a few small blocks for the thread, and reserves as much scratch memory as any thread has needed.
pub fn warm_up() {
    allocator::prefill();
    scratch::reserve();
}

/// Reserves on every helper thread as much scratch memory as any thread has needed.
///
/// A step that has run once must not allocate again, although each run may assign its tasks to other threads.
#[inline]
pub fn reserve_scratch() {
    pool().reserve_scratch(scratch::peak_bytes(), scratch::reserve);
}

/// A pointer into an operand to which several threads write, each to its own elements.
#[derive(Clone, Copy)]
pub struct SharedPtr<T>(
    /// The pointer.
    pub *mut T,
);

// SAFETY: sending a pointer accesses no memory. Every access through it is an unsafe operation, whose SAFETY comment
// must show that no other thread accesses the same elements.
unsafe impl<T> Send for SharedPtr<T> {}
// SAFETY: sharing a pointer accesses no memory. Every access through it is an unsafe operation, whose SAFETY comment
// must show that no other thread accesses the same elements.
unsafe impl<T> Sync for SharedPtr<T> {}

impl<T> SharedPtr<T> {
    /// Returns the pointer. Closures that call this method capture the `SharedPtr` instead of its field.
    #[inline(always)]
    pub fn get(&self) -> *mut T {
        self.0
    }

    /// Returns the pointer advanced by `by` elements, with wrapping arithmetic.
    #[inline(always)]
    pub fn offset(&self, by: isize) -> *mut T {
        self.0.wrapping_offset(by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::catch_unwind;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn every_index_is_visited_once_for_any_thread_count() {
        for threads in [1, 3] {
            for (total, grain) in [(0, 5), (4, 5), (1000, 7), (129, 0)] {
                let (sum, count) = (AtomicUsize::new(0), AtomicUsize::new(0));
                with_threads(threads, || {
                    parallel_ranges(total, grain, |r| {
                        count.fetch_add(r.len(), Ordering::Relaxed);
                        sum.fetch_add(r.sum(), Ordering::Relaxed);
                    })
                });
                assert_eq!((sum.into_inner(), count.into_inner()), ((0..total).sum(), total));
            }
        }
        assert_eq!(with_threads(3, count), 3);
        assert!(with_threads(0, count) >= 1);
    }

    fn add(sum: &AtomicUsize, n: usize) {
        sum.fetch_add(n, Ordering::Relaxed);
    }

    #[test]
    fn a_worker_id_is_used_by_one_thread_at_a_time() {
        let busy: [AtomicUsize; 4] = Default::default();
        let done = AtomicUsize::new(0);
        with_threads(4, || {
            for tasks in [2, 3, 50, 1000] {
                let worker_count = worker_ids(tasks);
                parallel_for(tasks, 1, |worker, _| {
                    assert!(worker < worker_count, "worker id {worker} must be less than {worker_count}");
                    assert_eq!(count(), 4, "a task on a helper must use the pool of this helper");
                    assert_eq!(
                        busy[worker].fetch_add(1, Ordering::SeqCst),
                        0,
                        "two threads must not use worker id {worker} at the same time"
                    );
                    done.fetch_add(1, Ordering::SeqCst);
                    busy[worker].fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        assert_eq!(done.into_inner(), 1055);
    }

    #[test]
    fn nested_and_concurrent_loops_complete() {
        let sum = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    with_threads(2, || {
                        for _ in 0..100 {
                            parallel_for(7, 2, |_, i| parallel_for(5, 1, |_, j| add(&sum, i * j)));
                        }
                    })
                });
            }
        });
        assert_eq!(sum.into_inner(), 4 * 100 * 21 * 10);
    }

    #[test]
    fn a_helper_whose_start_fails_is_not_counted() {
        assert_eq!(ThreadPool::new(3, || std::panic::resume_unwind(Box::new("no memory"))).threads(), 1);
    }

    #[test]
    fn a_panic_of_a_call_on_every_helper_blocks_no_thread() {
        let pool = ThreadPool::new(3, || ());
        pool.reserve_scratch(usize::MAX, || std::panic::resume_unwind(Box::new("the call panics")));
        // The pool does not record the failed call, and the helpers continue to serve jobs.
        static CALLS: AtomicUsize = AtomicUsize::new(0);
        pool.reserve_scratch(usize::MAX, || add(&CALLS, 1));
        assert_eq!(CALLS.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_panic_of_any_task_reaches_the_caller_and_the_pool_stays_usable() {
        for panicking in 0..20 {
            let run_loop = || with_threads(2, || parallel_for(20, 1, |_, i| assert!(i != panicking, "task {i}")));
            assert!(catch_unwind(run_loop).is_err());
        }
        let sum = AtomicUsize::new(0);
        with_threads(2, || parallel_for(20, 1, |_, i| add(&sum, i)));
        assert_eq!(sum.into_inner(), 190);
        let failing = |_: usize, i: usize| if i == 7 { Err(Error::invalid("some", "seven")) } else { Ok(()) };
        assert!(with_threads(2, || try_parallel_for(20, 1, failing)).is_err());
        assert!(with_threads(2, || try_parallel_for(5, 1, failing)).is_ok());
    }
}
