//! The pool protocol under the model checker loom.
//!
//! Loom explores every interleaving of two or three threads, up to a limit of preemptions, and every value that the
//! memory orders allow a load to return. It reports a lost wake-up as a deadlock.

use super::super::primitives::impl_atomic_counter;
use super::*;
use loom::cell::UnsafeCell;
use loom::sync::{Condvar, Mutex, MutexGuard};
use std::sync::{Arc, PoisonError};

/// The synchronization primitives of the model checker.
struct LoomPrimitives;

impl_atomic_counter!(loom::sync::atomic::AtomicUsize);

impl AtomicFlag for loom::sync::atomic::AtomicBool {
    fn new(value: bool) -> Self {
        loom::sync::atomic::AtomicBool::new(value)
    }
    fn store(&self, value: bool, order: Ordering) {
        loom::sync::atomic::AtomicBool::store(self, value, order);
    }
    /// Swaps the value by a compare-exchange, which stores nothing if the value does not change.
    ///
    /// The checker would not order a store of the same value relative to a store of another thread. The modification
    /// order of the C++ standard does: a swap directly follows the store whose value it reads.
    fn swap(&self, value: bool, order: Ordering) -> bool {
        match self.compare_exchange(!value, value, order, Ordering::Relaxed) {
            Ok(before) | Err(before) => before,
        }
    }
}

impl Primitives for LoomPrimitives {
    const SPINS: usize = 1;
    type Counter = loom::sync::atomic::AtomicUsize;
    type Flag = loom::sync::atomic::AtomicBool;
    type Mutex<T> = Mutex<T>;
    type Guard<'a, T: 'a> = MutexGuard<'a, T>;
    type Condvar = Condvar;

    fn mutex<T>(value: T) -> Mutex<T> {
        Mutex::new(value)
    }
    fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn condvar() -> Condvar {
        Condvar::new()
    }
    fn wait<'a, T: 'a>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }
    fn notify_one(condvar: &Condvar) {
        condvar.notify_one();
    }
    fn spin_loop() {
        loom::hint::spin_loop();
    }
    fn yield_now() {
        loom::thread::yield_now();
    }
}

/// Memory to which tasks write. The checker fails if two accesses to one element are not ordered.
struct TrackedMemory<const N: usize>([UnsafeCell<usize>; N]);

// SAFETY: the model checker stops before an access that is not ordered with an earlier one, so no data race
// happens.
unsafe impl<const N: usize> Sync for TrackedMemory<N> {}

impl<const N: usize> TrackedMemory<N> {
    fn new() -> Self {
        TrackedMemory(std::array::from_fn(|_| UnsafeCell::new(0)))
    }

    /// Adds 1 to an element.
    fn increment(&self, index: usize) {
        // SAFETY: the pointer is valid within `with_mut`, and the model checker stops before an unordered access.
        self.0[index].with_mut(|p| unsafe { *p += 1 });
    }

    /// Returns all elements.
    fn values(&self) -> [usize; N] {
        // SAFETY: the pointer is valid within `with`, and the model checker stops before an unordered access.
        std::array::from_fn(|index| self.0[index].with(|p| unsafe { *p }))
    }
}

/// Explores a model with a pool of `threads` threads. At the end of the model, all helpers are woken and must return.
fn explore(threads: usize, preemptions: usize, model: fn(&Arc<ThreadPool<LoomPrimitives>>)) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        let pool = Arc::new(ThreadPool::<LoomPrimitives>::idle(threads));
        let ending = Arc::new(<LoomPrimitives as Primitives>::Flag::new(false));
        let helper = |_| {
            let (pool, ending) = (pool.clone(), ending.clone());
            loom::thread::spawn(move || pool.serve_jobs(|| !ending.load(Ordering::Relaxed)))
        };
        let helpers: Vec<_> = (1..threads).map(helper).collect();
        model(&pool);
        assert!(
            !pool.busy.swap(true, Ordering::Acquire),
            "the pool must not be busy after all threads of the concurrency model have ended"
        );
        ending.store(true, Ordering::Relaxed);
        // Publishes a job without work, which wakes the helpers.
        let state = pool.lock();
        pool.jobs.fetch_add(1, Ordering::Release);
        let sleepers = state.sleeping;
        drop(state);
        (0..sleepers).for_each(|_| pool.job_published.notify_one());
        helpers.into_iter().for_each(|h| h.join().unwrap());
    });
}

/// Runs a job in which every task writes to its element and to the element of its worker.
fn run_and_check<const N: usize>(pool: &ThreadPool<LoomPrimitives>, chunk: usize) {
    let (tasks, workers) = (TrackedMemory::<N>::new(), TrackedMemory::<3>::new());
    pool.run(N, chunk, &|worker, i| {
        workers.increment(worker);
        tasks.increment(i);
    });
    assert_eq!(tasks.values(), [1; N], "every task must run once before the call returns");
    assert_eq!(workers.values().iter().sum::<usize>(), N);
}

#[test]
fn every_task_runs_once_before_the_call_returns() {
    explore(2, 3, |pool| run_and_check::<3>(pool, 1));
}

#[test]
fn the_helpers_serve_successive_jobs() {
    explore(2, 2, |pool| {
        run_and_check::<2>(pool, 1);
        run_and_check::<3>(pool, 2);
    });
}

#[test]
fn two_helpers_share_a_job() {
    explore(3, 1, |pool| run_and_check::<3>(pool, 1));
}

#[test]
fn a_nested_job_runs_on_the_thread_of_its_task() {
    explore(2, 2, |pool| {
        let tasks = TrackedMemory::<4>::new();
        pool.run(2, 1, &|_, i| pool.run(2, 1, &|_, j| tasks.increment(2 * i + j)));
        assert_eq!(tasks.values(), [1; 4]);
    });
}

#[test]
fn the_jobs_of_two_callers_complete() {
    explore(2, 2, |pool| {
        let other = loom::thread::spawn({
            let pool = pool.clone();
            move || run_and_check::<2>(&pool, 1)
        });
        run_and_check::<2>(pool, 1);
        other.join().unwrap();
    });
}

#[test]
fn a_panic_of_a_task_reaches_the_caller_and_the_pool_stays_usable() {
    explore(2, 2, |pool| {
        let tasks = TrackedMemory::<2>::new();
        let work = |_: usize, i: usize| {
            tasks.increment(i);
            if i == 1 {
                resume_unwind(Box::new("task 1"));
            }
        };
        let result = catch_unwind(AssertUnwindSafe(|| pool.run(2, 1, &work)));
        assert_eq!(result.expect_err("task 1 must panic").downcast_ref(), Some(&"task 1"));
        assert_eq!(tasks.values(), [1; 2]);
        run_and_check::<2>(pool, 1);
    });
}

#[test]
fn a_call_reaches_every_helper() {
    loom::lazy_static! {
        static ref CALLS: loom::sync::atomic::AtomicUsize = loom::sync::atomic::AtomicUsize::new(0);
    }
    explore(2, 3, |pool| {
        assert!(pool.call_on_helpers(|| {
            CALLS.fetch_add(1, Ordering::Relaxed);
        }));
        assert_eq!(CALLS.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_panic_of_a_call_on_every_helper_blocks_no_thread() {
    explore(2, 3, |pool| {
        assert!(!pool.call_on_helpers(|| resume_unwind(Box::new("the call panics"))));
        run_and_check::<2>(pool, 1);
    });
}
