//! The protocol under a model checker (loom): every interleaving of two or three threads, up to a number of preemptions, with all
//! values that the memory orders allow a load to return. A wake-up that is lost is a deadlock, which the checker reports.

use super::super::primitives::atomic_number;
use super::*;
use loom::cell::UnsafeCell;
use loom::sync::{Condvar, Mutex, MutexGuard};
use std::sync::{Arc, PoisonError};

/// The synchronisation of the model checker.
struct Loom;

atomic_number!(loom::sync::atomic::AtomicUsize);

impl AtomicFlag for loom::sync::atomic::AtomicBool {
    fn new(value: bool) -> Self {
        loom::sync::atomic::AtomicBool::new(value)
    }
    fn store(&self, value: bool, order: Ordering) {
        loom::sync::atomic::AtomicBool::store(self, value, order);
    }
    /// A swap that changes nothing stores nothing here. The checker has no order for a store that it would make and one of
    /// another thread, although the standard's modification order has one: a swap directly follows the store that it reads.
    fn swap(&self, value: bool, order: Ordering) -> bool {
        match self.compare_exchange(!value, value, order, Ordering::Relaxed) {
            Ok(before) | Err(before) => before,
        }
    }
}

impl Primitives for Loom {
    const LOOKS: usize = 1;
    type Number = loom::sync::atomic::AtomicUsize;
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

/// Memory that tasks write. The checker fails if two accesses to one element are not ordered.
struct Memory<const N: usize>([UnsafeCell<usize>; N]);

// SAFETY: the model checker fails on two accesses that are not ordered before the second one happens.
unsafe impl<const N: usize> Sync for Memory<N> {}

impl<const N: usize> Memory<N> {
    fn new() -> Self {
        Memory(std::array::from_fn(|_| UnsafeCell::new(0)))
    }

    fn add(&self, at: usize) {
        // SAFETY: the model checker fails on an access that is not ordered with this one.
        self.0[at].with_mut(|p| unsafe { *p += 1 });
    }

    fn all(&self) -> [usize; N] {
        // SAFETY: as in `add`.
        std::array::from_fn(|at| self.0[at].with(|p| unsafe { *p }))
    }
}

/// Explores a model with a pool of `threads` threads. At its end every helper is woken and must return.
fn explore(threads: usize, preemptions: usize, model: fn(&Arc<ThreadPool<Loom>>)) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        let pool = Arc::new(ThreadPool::<Loom>::idle(threads));
        let ends = Arc::new(<Loom as Primitives>::Flag::new(false));
        let helper = |_| {
            let (pool, ends) = (pool.clone(), ends.clone());
            loom::thread::spawn(move || pool.help(|| !ends.load(Ordering::Relaxed)))
        };
        let helpers: Vec<_> = (1..threads).map(helper).collect();
        model(&pool);
        assert!(!pool.taken.swap(true, Ordering::Acquire), "the pool was not given back");
        ends.store(true, Ordering::Relaxed);
        // A job without work.
        let state = pool.lock();
        pool.jobs.fetch_add(1, Ordering::Release);
        let sleepers = state.asleep;
        drop(state);
        (0..sleepers).for_each(|_| pool.wake.notify_one());
        helpers.into_iter().for_each(|h| h.join().unwrap());
    });
}

/// Runs a job whose every task writes memory of its own and memory of its worker.
fn run_job<const N: usize>(pool: &ThreadPool<Loom>, least: usize) {
    let (tasks, workers) = (Memory::<N>::new(), Memory::<3>::new());
    pool.run(N, least, &|worker, i| {
        workers.add(worker);
        tasks.add(i);
    });
    assert_eq!(tasks.all(), [1; N], "tasks are done once, before the call returns");
    assert_eq!(workers.all().iter().sum::<usize>(), N);
}

#[test]
fn every_task_runs_once_before_the_caller_goes_on() {
    explore(2, 3, |pool| run_job::<3>(pool, 1));
}

#[test]
fn one_job_follows_another() {
    explore(2, 2, |pool| {
        run_job::<2>(pool, 1);
        run_job::<3>(pool, 2);
    });
}

#[test]
fn two_helpers_share_a_job() {
    explore(3, 1, |pool| run_job::<3>(pool, 1));
}

#[test]
fn work_within_a_task_is_done_by_its_own_thread() {
    explore(2, 2, |pool| {
        let tasks = Memory::<4>::new();
        pool.run(2, 1, &|_, i| pool.run(2, 1, &|_, j| tasks.add(2 * i + j)));
        assert_eq!(tasks.all(), [1; 4]);
    });
}

#[test]
fn of_two_callers_each_gets_its_work_done() {
    explore(2, 2, |pool| {
        let other = loom::thread::spawn({
            let pool = pool.clone();
            move || run_job::<2>(&pool, 1)
        });
        run_job::<2>(pool, 1);
        other.join().unwrap();
    });
}

#[test]
fn a_panic_of_a_task_reaches_the_caller_and_the_team_goes_on() {
    explore(2, 2, |pool| {
        let tasks = Memory::<2>::new();
        let work = |_: usize, i: usize| {
            tasks.add(i);
            if i == 1 {
                resume_unwind(Box::new("task 1"));
            }
        };
        let result = catch_unwind(AssertUnwindSafe(|| pool.run(2, 1, &work)));
        assert_eq!(result.expect_err("a panic").downcast_ref(), Some(&"task 1"));
        assert_eq!(tasks.all(), [1; 2]);
        run_job::<2>(pool, 1);
    });
}

#[test]
fn a_call_reaches_every_helper() {
    loom::lazy_static! {
        static ref CALLS: loom::sync::atomic::AtomicUsize = loom::sync::atomic::AtomicUsize::new(0);
    }
    explore(2, 3, |pool| {
        assert!(pool.everywhere(|| {
            CALLS.fetch_add(1, Ordering::Relaxed);
        }));
        assert_eq!(CALLS.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_call_that_panics_blocks_no_thread() {
    explore(2, 3, |pool| {
        assert!(!pool.everywhere(|| resume_unwind(Box::new("a call"))));
        run_job::<2>(pool, 1);
    });
}
