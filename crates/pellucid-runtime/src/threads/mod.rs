//! Threads: where they come from, and how work is cut for them.

mod primitives;
mod thread_pool;

use crate::{allocator, scratch};
use pellucid_ir::{Error, Result};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::num::NonZero;
use std::ops::Range;
use std::sync::{Mutex, OnceLock, PoisonError};
use thread_pool::ThreadPool;

thread_local! {
    /// The pool of [`with_threads`].
    static CHOSEN: Cell<Option<&'static ThreadPool>> = const { Cell::new(None) };
}

/// Runs `f` with `n` threads, the calling one among them, for every kernel it runs; 0 for as many as the machine has.
/// Threads are kept: some for each `n`.
///
/// Elsewhere there are as many as `PELLUCID_NUM_THREADS` says, or as the machine has. No kernel has more than 64 threads,
/// or eight times as many as the machine has where that is more, nor more than the system starts.
pub fn with_threads<R: Send>(n: usize, f: impl FnOnce() -> R + Send) -> R {
    struct Before(Option<&'static ThreadPool>);
    impl Drop for Before {
        fn drop(&mut self) {
            CHOSEN.set(self.0);
        }
    }
    let _before = Before(CHOSEN.replace(Some(pool_of(n))));
    f()
}

/// The pool of `n` threads.
fn pool_of(n: usize) -> &'static ThreadPool {
    static POOLS: Mutex<BTreeMap<usize, &'static ThreadPool>> = Mutex::new(BTreeMap::new());
    let machine = std::thread::available_parallelism().map_or(1, NonZero::get);
    // More would be a mistake in a setting, and their stacks would use up the memory.
    let n = if n == 0 { machine } else { n.min((8 * machine).max(64)) };
    let make = || ThreadPool::new(n, warm_up);
    POOLS.lock().unwrap_or_else(PoisonError::into_inner).entry(n).or_insert_with(make)
}

/// This thread's pool.
#[inline]
fn pool() -> &'static ThreadPool {
    static DEFAULT: OnceLock<&'static ThreadPool> = OnceLock::new();
    let wanted = || std::env::var("PELLUCID_NUM_THREADS").ok().and_then(|n| n.parse().ok());
    CHOSEN.get().unwrap_or_else(|| DEFAULT.get_or_init(|| pool_of(wanted().unwrap_or(0))))
}

/// How many threads a kernel has.
#[inline]
pub fn count() -> usize {
    pool().threads()
}

/// The number of worker_ids for so many tasks: below it are those that [`each`] and [`try_each`] name.
pub fn worker_ids(tasks: usize) -> usize {
    count().min(tasks).max(1)
}

/// Bytes of memory traffic that are worth a task of their own.
pub const GRAIN: usize = 64 << 10;

/// Calls `work(worker, i)` for all i below `count`, on any thread, `least` neighbours on the same. Calls of one worker come one
/// after the other, so that it may have memory of its own.
pub fn each(count: usize, least: usize, work: impl Fn(usize, usize) + Sync) {
    pool().run(count, least, &work);
}

/// [`each`] for work that may fail: then some error, and some of the work is not done.
pub fn try_each(count: usize, least: usize, work: impl Fn(usize, usize) -> Result<()> + Sync) -> Result<()> {
    let failed: OnceLock<Error> = OnceLock::new();
    each(count, least, |worker, i| {
        if failed.get().is_none()
            && let Err(error) = work(worker, i)
        {
            let _ = failed.set(error);
        }
    });
    failed.into_inner().map_or(Ok(()), Err)
}

/// Runs `work` over `0..total` in ranges of at least `grain`, on the calling thread alone where
/// that is one range. How it is cut must not matter to the result.
#[inline]
pub fn split(total: usize, grain: usize, work: impl Fn(Range<usize>) + Sync) {
    let tasks = total / grain.max(1);
    let threads = if tasks > 1 { count() } else { 1 };
    if threads == 1 {
        return work(0..total);
    }
    // A few tasks a thread even out what the machine does besides.
    let step = total.div_ceil(tasks.min(threads * 4));
    each(total.div_ceil(step), 1, |_, i| work(i * step..total.min((i + 1) * step)));
}

/// Gives this thread what a task may need besides its room: a few small blocks, and as much scratch as any thread has
/// needed so far.
pub fn warm_up() {
    allocator::prefill();
    scratch::reserve();
}

/// Lets every helper have as much scratch as any thread has needed so far: which tasks a thread will do is chance, and a
/// step that has run once shall never allocate.
#[inline]
pub fn reserve_scratch() {
    pool().reserve_scratch(scratch::most(), scratch::reserve);
}

/// A pointer into an operand that several threads write to, each to elements of its own.
#[derive(Clone, Copy)]
pub struct SharedPtr<T>(pub *mut T);

// SAFETY: a pointer is a number; whoever writes through it says why nobody else writes there.
unsafe impl<T> Send for SharedPtr<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for SharedPtr<T> {}

impl<T> SharedPtr<T> {
    /// The pointer; a method, so that closures capture the `SharedPtr` and not its field.
    #[inline(always)]
    pub fn get(&self) -> *mut T {
        self.0
    }

    /// The pointer, `by` elements on.
    #[inline(always)]
    pub fn at(&self, by: isize) -> *mut T {
        self.0.wrapping_offset(by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::catch_unwind;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn every_index_is_worked_on_once_with_any_number_of_threads() {
        for threads in [1, 3] {
            for (total, grain) in [(0, 5), (4, 5), (1000, 7), (129, 0)] {
                let (sum, count) = (AtomicUsize::new(0), AtomicUsize::new(0));
                with_threads(threads, || {
                    split(total, grain, |r| {
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
    fn a_seat_is_one_threads_at_a_time() {
        let busy: [AtomicUsize; 4] = Default::default();
        let done = AtomicUsize::new(0);
        with_threads(4, || {
            for tasks in [2, 3, 50, 1000] {
                let seats_of_caller = worker_ids(tasks);
                each(tasks, 1, |worker, _| {
                    assert!(worker < seats_of_caller, "worker {worker} of {seats_of_caller}");
                    assert_eq!(count(), 4, "a helper has the pool that it works for");
                    assert_eq!(busy[worker].fetch_add(1, Ordering::SeqCst), 0, "worker {worker} is taken");
                    done.fetch_add(1, Ordering::SeqCst);
                    busy[worker].fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        assert_eq!(done.into_inner(), 1055);
    }

    #[test]
    fn work_within_work_and_from_several_threads_is_done() {
        let sum = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    with_threads(2, || {
                        for _ in 0..100 {
                            each(7, 2, |_, i| each(5, 1, |_, j| add(&sum, i * j)));
                        }
                    })
                });
            }
        });
        assert_eq!(sum.into_inner(), 4 * 100 * 21 * 10);
    }

    #[test]
    fn a_helper_that_cannot_begin_is_none() {
        assert_eq!(ThreadPool::new(3, || std::panic::resume_unwind(Box::new("no memory"))).threads(), 1);
    }

    #[test]
    fn a_call_on_every_helper_that_panics_blocks_no_thread() {
        let pool = ThreadPool::new(3, || ());
        pool.reserve_scratch(usize::MAX, || std::panic::resume_unwind(Box::new("a call")));
        // It was not done, and the helpers go on.
        static CALLS: AtomicUsize = AtomicUsize::new(0);
        pool.reserve_scratch(usize::MAX, || add(&CALLS, 1));
        assert_eq!(CALLS.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_panic_of_any_task_reaches_the_caller_and_the_team_goes_on() {
        for bad in 0..20 {
            let run = || with_threads(2, || each(20, 1, |_, i| assert!(i != bad, "task {i}")));
            assert!(catch_unwind(run).is_err());
        }
        let sum = AtomicUsize::new(0);
        with_threads(2, || each(20, 1, |_, i| add(&sum, i)));
        assert_eq!(sum.into_inner(), 190);
        let failing = |_: usize, i: usize| if i == 7 { Err(Error::invalid("some", "seven")) } else { Ok(()) };
        assert!(with_threads(2, || try_each(20, 1, failing)).is_err());
        assert!(with_threads(2, || try_each(5, 1, failing)).is_ok());
    }
}
