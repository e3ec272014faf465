//! A pool: the thread that runs a kernel, and helper threads that wait for jobs and share its work.
//!
//! A job is a closure over the numbers `0..count`. Every thread claims the next few numbers by an atomic addition to one counter,
//! so that publishing a job allocates nothing. A general pool cannot promise this for work of threads that are not its own (rayon's
//! queue allocates a block for every 63 jobs). The caller works too, and does not wait for helpers that join too late. It
//! is no thread of the pool, which would have to be woken and waited for.
//!
//! One job at a time has the helpers. Work that arrives meanwhile, from another thread or from within a task, is done
//! by its own thread alone.
//!
//! The protocol takes its atomics, locks and condition variables as a type parameter: the tests run it with those of a
//! model checker, which explores every interleaving of a few threads.

use super::primitives::{AtomicFlag, AtomicNumber, Native, Primitives};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;

/// The work of a job: `work(worker, number)`.
type Work<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// Threads that share work.
pub(super) struct ThreadPool<P: Primitives = Native> {
    threads: usize,
    /// True while a job has the helpers.
    taken: P::Flag,
    /// How many jobs there have been: changes while `state` is locked.
    jobs: P::Number,
    /// How many helpers are at work on the job: changes while `state` is locked.
    helping: P::Number,
    /// What the helpers have been settled for.
    settled: P::Number,
    state: P::Mutex<State<P>>,
    /// Where helpers wait for a job.
    wake: P::Condvar,
    /// Where the caller waits for helpers.
    done: P::Condvar,
}

struct State<P: Primitives> {
    job: Option<Job<P>>,
    /// Helpers that have come to the job.
    joined: usize,
    /// Helpers that sleep, and whether the caller does.
    asleep: usize,
    waiting: bool,
    panic: Option<Box<dyn Any + Send>>,
}

/// What the caller's stack holds of the work: pointers that are good until the caller has seen all helpers leave.
struct Job<P: Primitives> {
    work: *const (dyn Fn(usize, usize) + Sync),
    next: *const P::Number,
    count: usize,
    least: usize,
    /// Helpers that may come.
    helpers: usize,
}

impl<P: Primitives> Clone for Job<P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Primitives> Copy for Job<P> {}

// SAFETY: the closure and the counter are `Sync`, so that any thread may use them; the caller of the pool keeps both alive
// until it has seen all helpers leave.
unsafe impl<P: Primitives> Send for Job<P> {}

impl<P: Primitives> Job<P> {
    /// Takes numbers until there are none.
    ///
    /// # Safety
    /// *Alive*: the caller of the pool is still in [`ThreadPool::share`], whose stack has the closure and the counter.
    unsafe fn run(&self, worker: usize) {
        // SAFETY: both pointers are to the stack of `ThreadPool::share`, which has not returned, by *alive*.
        let (work, next) = unsafe { (&*self.work, &*self.next) };
        loop {
            let first = next.fetch_add(self.least, Ordering::Relaxed);
            if first >= self.count {
                return;
            }
            (first..self.count.min(first + self.least)).for_each(|i| work(worker, i));
        }
    }
}

impl ThreadPool {
    /// Starts a pool of `threads` threads, the calling one included; each helper calls `begin` first. Where the system
    /// refuses a thread, the pool has those that it did start. A pool is never dropped.
    pub(super) fn new(threads: usize, begin: fn()) -> &'static ThreadPool {
        let (ready, started) = mpsc::channel();
        for number in 1..threads {
            let ready = ready.clone();
            let life = move || {
                begin();
                let (start, pool) = mpsc::channel::<&'static ThreadPool>();
                let _ = ready.send(start);
                drop(ready);
                if let Ok(pool) = pool.recv() {
                    // Work within a task counts the threads of this pool, not those of the default one.
                    super::CHOSEN.set(Some(pool));
                    pool.help(|| true);
                }
            };
            if thread::Builder::new().name(format!("pellucid {number}")).spawn(life).is_err() {
                break;
            }
        }
        drop(ready);
        // A helper whose beginning panics is none: its sender is gone without a word.
        let helpers: Vec<_> = started.iter().collect();
        let pool: &'static ThreadPool = Box::leak(Box::new(ThreadPool::idle(helpers.len() + 1)));
        for start in helpers {
            let _ = start.send(pool);
        }
        pool
    }
}

impl<P: Primitives> ThreadPool<P> {
    /// A pool of `threads` threads without a job. All but the calling one must call [`ThreadPool::help`].
    fn idle(threads: usize) -> ThreadPool<P> {
        ThreadPool {
            threads,
            taken: P::Flag::new(false),
            jobs: P::Number::new(0),
            helping: P::Number::new(0),
            settled: P::Number::new(0),
            state: P::mutex(State { job: None, joined: 0, asleep: 0, waiting: false, panic: None }),
            wake: P::condvar(),
            done: P::condvar(),
        }
    }

    /// How many threads there are.
    pub(super) fn threads(&self) -> usize {
        self.threads
    }

    /// Calls `work(worker, i)` once for every i below `count`; numbers are claimed `least` at a time. Worker ids are below the
    /// number of threads and of claims. Calls with one worker id run one after the other.
    pub(super) fn run(&self, count: usize, least: usize, work: Work<'_>) {
        let least = least.max(1);
        let helpers = count.div_ceil(least).min(self.threads).saturating_sub(1);
        if helpers == 0 || self.taken.swap(true, Ordering::Acquire) {
            return (0..count).for_each(|i| work(0, i));
        }
        let next = P::Number::new(0);
        let result = self.share(&next, count, least, helpers, work, |job| {
            // SAFETY: *alive* holds, since `share` calls this closure.
            unsafe { job.run(0) }
        });
        if let Err(panic) = result {
            resume_unwind(panic);
        }
    }

    /// Calls `work` once on every helper if it has not been called for so much; later, if they are at work for somebody else.
    pub(super) fn reserve_scratch(&self, most: usize, work: fn()) {
        if most > self.settled.load(Ordering::Relaxed) && self.everywhere(work) {
            self.settled.store(most, Ordering::Relaxed);
        }
    }

    /// Calls `work` once on every helper; false if they work for another caller, or if a call panics.
    fn everywhere(&self, work: fn()) -> bool {
        if self.threads == 1 {
            return true;
        }
        if self.taken.swap(true, Ordering::Acquire) {
            return false;
        }
        let (helpers, next, came) = (self.threads - 1, P::Number::new(0), P::Number::new(0));
        let all_came = || {
            while came.load(Ordering::Acquire) < helpers {
                P::yield_now();
            }
        };
        // A helper takes one number and waits for the others, so that everyone gets one.
        let each = |_: usize, _: usize| {
            // The others wait for a helper whose call panics, too.
            let result = catch_unwind(work);
            came.fetch_add(1, Ordering::AcqRel);
            all_came();
            if let Err(panic) = result {
                resume_unwind(panic);
            }
        };
        self.share(&next, helpers, 1, helpers, &each, |_| all_came()).is_ok()
    }

    /// Publishes a job to the helpers, does the caller's part of it, and waits for the helpers that joined.
    fn share(
        &self,
        next: &P::Number,
        count: usize,
        least: usize,
        helpers: usize,
        work: Work<'_>,
        own: impl FnOnce(&Job<P>),
    ) -> thread::Result<()> {
        // SAFETY: only the lifetime changes; no helper has the job any more when this function returns.
        let work: Work<'static> = unsafe { std::mem::transmute::<Work<'_>, Work<'static>>(work) };
        let job = Job { work, next, count, least, helpers };
        let mut state = self.lock();
        (state.job, state.joined) = (Some(job), 0);
        self.jobs.fetch_add(1, Ordering::Release);
        let sleepers = state.asleep.min(helpers);
        drop(state);
        (0..sleepers).for_each(|_| P::notify_one(&self.wake));
        let own = catch_unwind(AssertUnwindSafe(|| own(&job)));
        self.lock().job = None;
        // No helper joins from here on; those that joined must leave.
        for _ in 0..P::LOOKS {
            if self.helping.load(Ordering::Acquire) == 0 {
                break;
            }
            P::spin_loop();
        }
        let mut state = self.lock();
        while self.helping.load(Ordering::Relaxed) > 0 {
            state.waiting = true;
            state = P::wait(&self.done, state);
        }
        state.waiting = false;
        let panic = state.panic.take();
        drop(state);
        self.taken.store(false, Ordering::Release);
        own.and(panic.map_or(Ok(()), Err))
    }

    /// Works on one job after the other, until there is none and `goes_on` says no. Helper threads run this.
    fn help(&self, goes_on: impl Fn() -> bool) {
        let mut seen = 0;
        while let Some((job, worker)) = self.next_job(&mut seen, &goes_on) {
            // SAFETY: *alive* holds: `next_job` counted this helper in `helping`, and `share` waits until that is 0.
            let result = catch_unwind(AssertUnwindSafe(|| unsafe { job.run(worker) }));
            let mut state = self.lock();
            if let Err(panic) = result {
                state.panic.get_or_insert(panic);
            }
            if self.helping.fetch_sub(1, Ordering::Release) == 1 && state.waiting {
                P::notify_one(&self.done);
            }
        }
    }

    /// Waits for a job that this helper has not seen, and joins it. `None` if there is none and `goes_on` says no.
    fn next_job(&self, seen: &mut usize, goes_on: impl Fn() -> bool) -> Option<(Job<P>, usize)> {
        loop {
            for _ in 0..P::LOOKS {
                if self.jobs.load(Ordering::Acquire) != *seen {
                    break;
                }
                P::spin_loop();
            }
            let mut state = self.lock();
            while self.jobs.load(Ordering::Relaxed) == *seen {
                state.asleep += 1;
                state = P::wait(&self.wake, state);
                state.asleep -= 1;
            }
            *seen = self.jobs.load(Ordering::Relaxed);
            if let Some(job) = state.job.filter(|job| state.joined < job.helpers) {
                state.joined += 1;
                self.helping.fetch_add(1, Ordering::Relaxed);
                return Some((job, state.joined));
            }
            if !goes_on() {
                return None;
            }
        }
    }

    /// No code of others runs under this lock.
    fn lock(&self) -> P::Guard<'_, State<P>> {
        P::lock(&self.state)
    }
}

#[cfg(test)]
mod models;
