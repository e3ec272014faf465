//! A thread pool: the thread that launches a kernel, and helper threads that wait for jobs and share their work.
//!
//! A job is a closure over the indices `0..count`. Every thread claims chunks of consecutive indices by an atomic
//! addition to one counter, so publishing a job allocates nothing. A general pool cannot guarantee this for jobs from
//! threads outside the pool (rayon's queue allocates a block for every 63 jobs). The caller works too. When no index is
//! left, it waits only for the helpers that have joined the job. So a job can end without any helper, and the caller
//! never waits until a helper wakes up.
//!
//! The helpers serve one job at a time. A job that another thread or a task starts in the meantime runs only on the
//! thread that starts it.
//!
//! The protocol is generic over its atomics, locks and condition variables. The tests run it with the primitives of a
//! model checker, which explores every interleaving of a few threads.

use super::primitives::{AtomicCounter, AtomicFlag, Primitives, StdPrimitives};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;

/// The function of a job: `work(worker, index)`.
type TaskFn<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// A pool of threads that share the work of jobs.
pub(super) struct ThreadPool<P: Primitives = StdPrimitives> {
    threads: usize,
    /// True while a job occupies the helpers.
    busy: P::Flag,
    /// The number of published jobs. It changes only while `state` is locked.
    jobs: P::Counter,
    /// The number of helpers that have joined the job and not yet left it. It changes only while `state` is locked.
    active_helpers: P::Counter,
    /// The number of bytes of scratch memory that every helper has reserved.
    reserved_scratch: P::Counter,
    state: P::Mutex<PoolState<P>>,
    /// Helpers wait here for a job.
    job_published: P::Condvar,
    /// The caller waits here for the helpers.
    helpers_left: P::Condvar,
}

/// The part of a pool's state that a lock protects.
struct PoolState<P: Primitives> {
    job: Option<PoolJob<P>>,
    /// The number of helpers that have joined the job since its start.
    joined: usize,
    /// The number of helpers that sleep.
    sleeping: usize,
    /// True while the caller sleeps.
    caller_waits: bool,
    /// The first panic of a helper's task.
    panic: Option<Box<dyn Any + Send>>,
}

/// A job. Its pointers refer to the stack of the caller and are valid until the caller has observed that all helpers
/// have left.
struct PoolJob<P: Primitives> {
    work: *const (dyn Fn(usize, usize) + Sync),
    /// The next index that no thread has claimed.
    next: *const P::Counter,
    /// The number of indices.
    count: usize,
    /// The number of consecutive indices that a thread claims at a time.
    chunk: usize,
    /// The maximum number of helpers that may join.
    max_helpers: usize,
}

impl<P: Primitives> Clone for PoolJob<P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Primitives> Copy for PoolJob<P> {}

// SAFETY: the closure and the counter are `Sync`, so any thread may use them. The caller of the pool keeps both
// alive until it has seen all helpers leave.
unsafe impl<P: Primitives> Send for PoolJob<P> {}

impl<P: Primitives> PoolJob<P> {
    /// Claims chunks of indices and calls the closure for them until no index is left.
    ///
    /// # Safety
    /// *Alive*: the caller of the pool is still in [`ThreadPool::run_job`], whose arguments borrow the closure and the
    /// counter.
    unsafe fn work_until_done(&self, worker: usize) {
        // SAFETY: the caller guarantees *alive*: the closure and the counter to which the pointers refer are still
        // borrowed by `ThreadPool::run_job`.
        let (work, next) = unsafe { (&*self.work, &*self.next) };
        loop {
            let first = next.fetch_add(self.chunk, Ordering::Relaxed);
            if first >= self.count {
                return;
            }
            (first..self.count.min(first + self.chunk)).for_each(|i| work(worker, i));
        }
    }
}

impl ThreadPool {
    /// Starts a pool of `threads` threads, including the calling thread. Each helper calls `initialize` first.
    ///
    /// If the system fails to start a thread, the pool consists of the threads that were started before. A pool is
    /// never dropped.
    pub(super) fn new(threads: usize, initialize: fn()) -> &'static ThreadPool {
        let (ready, ready_helpers) = mpsc::channel();
        for index in 1..threads {
            let ready = ready.clone();
            let helper_main = move || {
                initialize();
                let (start, pool) = mpsc::channel::<&'static ThreadPool>();
                let _ = ready.send(start);
                drop(ready);
                if let Ok(pool) = pool.recv() {
                    // A loop within a task uses the thread count of this pool, not the count of the default pool.
                    super::SELECTED.set(Some(pool));
                    pool.serve_jobs(|| true);
                }
            };
            if thread::Builder::new().name(format!("pellucid {index}")).spawn(helper_main).is_err() {
                break;
            }
        }
        drop(ready);
        // A helper whose initialization panics drops its sender without sending, so it is not part of the pool.
        let helpers: Vec<_> = ready_helpers.iter().collect();
        let pool: &'static ThreadPool = Box::leak(Box::new(ThreadPool::idle(helpers.len() + 1)));
        for start in helpers {
            let _ = start.send(pool);
        }
        pool
    }
}

impl<P: Primitives> ThreadPool<P> {
    /// Creates a pool of `threads` threads without a job. `threads` − 1 other threads must call
    /// [`ThreadPool::serve_jobs`].
    fn idle(threads: usize) -> ThreadPool<P> {
        ThreadPool {
            threads,
            busy: P::Flag::new(false),
            jobs: P::Counter::new(0),
            active_helpers: P::Counter::new(0),
            reserved_scratch: P::Counter::new(0),
            state: P::mutex(PoolState { job: None, joined: 0, sleeping: 0, caller_waits: false, panic: None }),
            job_published: P::condvar(),
            helpers_left: P::condvar(),
        }
    }

    /// Returns the number of threads.
    pub(super) fn threads(&self) -> usize {
        self.threads
    }

    /// Calls `work(worker, i)` once for every `i < count`. Threads claim `chunk` indices at a time.
    ///
    /// Worker ids are below the number of threads and below the number of chunks. Calls with one worker id run one
    /// after the other.
    ///
    /// # Panics
    /// Panics if a call of `work` panics, with the payload of that panic, after all helpers have left the job.
    pub(super) fn run(&self, count: usize, chunk: usize, work: TaskFn<'_>) {
        let chunk = chunk.max(1);
        let max_helpers = count.div_ceil(chunk).min(self.threads).saturating_sub(1);
        if max_helpers == 0 || self.busy.swap(true, Ordering::Acquire) {
            return (0..count).for_each(|i| work(0, i));
        }
        let next = P::Counter::new(0);
        let result = self.run_job(&next, count, chunk, max_helpers, work, |job| {
            // SAFETY: *alive* of `work_until_done` holds, because `run_job` calls this closure.
            unsafe { job.work_until_done(0) }
        });
        if let Err(panic) = result {
            resume_unwind(panic);
        }
    }

    /// Calls `reserve` once on every helper, unless every helper has already reserved `bytes` bytes of scratch memory.
    ///
    /// Does nothing while the helpers serve a job. A later call then tries again.
    pub(super) fn reserve_scratch(&self, bytes: usize, reserve: fn()) {
        if bytes > self.reserved_scratch.load(Ordering::Relaxed) && self.call_on_helpers(reserve) {
            self.reserved_scratch.store(bytes, Ordering::Relaxed);
        }
    }

    /// Calls `f` once on every helper. Returns false if the helpers serve another job, or if a call panics.
    fn call_on_helpers(&self, f: fn()) -> bool {
        if self.threads == 1 {
            return true;
        }
        if self.busy.swap(true, Ordering::Acquire) {
            return false;
        }
        let (helpers, next, arrived) = (self.threads - 1, P::Counter::new(0), P::Counter::new(0));
        let wait_for_all = || {
            while arrived.load(Ordering::Acquire) < helpers {
                P::yield_now();
            }
        };
        // Each helper claims one index and waits for the other helpers, so that every helper claims exactly one index.
        let call_and_wait = |_: usize, _: usize| {
            // A helper whose call panics must also arrive, because the other helpers wait for it.
            let result = catch_unwind(f);
            arrived.fetch_add(1, Ordering::AcqRel);
            wait_for_all();
            if let Err(panic) = result {
                resume_unwind(panic);
            }
        };
        self.run_job(&next, helpers, 1, helpers, &call_and_wait, |_| wait_for_all()).is_ok()
    }

    /// Publishes a job to the helpers, runs `caller_work` on the calling thread, and waits for the helpers that joined.
    ///
    /// Returns the panic of `caller_work` or of a helper as an error.
    fn run_job(
        &self,
        next: &P::Counter,
        count: usize,
        chunk: usize,
        max_helpers: usize,
        work: TaskFn<'_>,
        caller_work: impl FnOnce(&PoolJob<P>),
    ) -> thread::Result<()> {
        // SAFETY: only the lifetime changes. No helper uses the closure after this function has returned, because the
        // function waits until `active_helpers` is 0.
        let work: TaskFn<'static> = unsafe { std::mem::transmute::<TaskFn<'_>, TaskFn<'static>>(work) };
        let job = PoolJob { work, next, count, chunk, max_helpers };
        let mut state = self.lock();
        (state.job, state.joined) = (Some(job), 0);
        self.jobs.fetch_add(1, Ordering::Release);
        let sleepers = state.sleeping.min(max_helpers);
        drop(state);
        (0..sleepers).for_each(|_| P::notify_one(&self.job_published));
        let caller_result = catch_unwind(AssertUnwindSafe(|| caller_work(&job)));
        self.lock().job = None;
        // No helper can join after this point, but helpers that joined may still be working.
        for _ in 0..P::SPINS {
            if self.active_helpers.load(Ordering::Acquire) == 0 {
                break;
            }
            P::spin_loop();
        }
        let mut state = self.lock();
        while self.active_helpers.load(Ordering::Relaxed) > 0 {
            state.caller_waits = true;
            state = P::wait(&self.helpers_left, state);
        }
        state.caller_waits = false;
        let panic = state.panic.take();
        drop(state);
        self.busy.store(false, Ordering::Release);
        caller_result.and(panic.map_or(Ok(()), Err))
    }

    /// Joins jobs one after the other. Returns when there is no job to join and `keep_running` returns false. This is
    /// the main loop of a helper thread.
    fn serve_jobs(&self, keep_running: impl Fn() -> bool) {
        let mut seen_jobs = 0;
        while let Some((job, worker)) = self.join_next_job(&mut seen_jobs, &keep_running) {
            // SAFETY: *alive* of `work_until_done` holds: `join_next_job` counted this helper in `active_helpers`, and
            // `run_job` waits until that count is 0.
            let result = catch_unwind(AssertUnwindSafe(|| unsafe { job.work_until_done(worker) }));
            let mut state = self.lock();
            if let Err(panic) = result {
                state.panic.get_or_insert(panic);
            }
            if self.active_helpers.fetch_sub(1, Ordering::Release) == 1 && state.caller_waits {
                P::notify_one(&self.helpers_left);
            }
        }
    }

    /// Waits for a job that this helper has not joined, joins it, and returns it with the worker id.
    ///
    /// `seen_jobs` is the number of published jobs that the helper has observed. Returns `None` if the helper cannot
    /// join and `keep_running` returns false.
    fn join_next_job(&self, seen_jobs: &mut usize, keep_running: impl Fn() -> bool) -> Option<(PoolJob<P>, usize)> {
        loop {
            for _ in 0..P::SPINS {
                if self.jobs.load(Ordering::Acquire) != *seen_jobs {
                    break;
                }
                P::spin_loop();
            }
            let mut state = self.lock();
            while self.jobs.load(Ordering::Relaxed) == *seen_jobs {
                state.sleeping += 1;
                state = P::wait(&self.job_published, state);
                state.sleeping -= 1;
            }
            *seen_jobs = self.jobs.load(Ordering::Relaxed);
            if let Some(job) = state.job.filter(|job| state.joined < job.max_helpers) {
                state.joined += 1;
                self.active_helpers.fetch_add(1, Ordering::Relaxed);
                return Some((job, state.joined));
            }
            if !keep_running() {
                return None;
            }
        }
    }

    /// Locks the state. No closure of a caller may run while the lock is held.
    fn lock(&self) -> P::Guard<'_, PoolState<P>> {
        P::lock(&self.state)
    }
}

#[cfg(test)]
mod models;
