//! A team: the thread that runs a kernel, and helpers that wait for it to share its work.
//!
//! Work is a closure over numbers `0..count`, and whoever is free takes the next few. So handing it out is one word that
//! all count up, and nothing is put into a list: not a byte is allocated, which a general pool cannot promise for work
//! that comes from outside of it (rayon's queue takes a new block from the heap for every 63 jobs). The caller works
//! too, and does not wait for helpers that come too late; nor is it a thread of the pool, which would have to be woken
//! and waited for.
//!
//! One kernel at a time has the helpers. Work that arrives meanwhile, from another thread or from within a task, is done
//! by its own thread alone.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex, MutexGuard, PoisonError};
use std::{hint, thread};

/// How often a helper, or the caller, looks again before it sleeps: some 10 µs, in which the next kernel of a step
/// usually comes.
const LOOKS: usize = 200;

/// What is worked on: `work(seat, number)`.
type Work<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// Threads that share work.
pub(super) struct Team {
    threads: usize,
    /// True while a job has the helpers.
    taken: AtomicBool,
    /// How many jobs there have been: changes while `state` is locked.
    jobs: AtomicUsize,
    /// How many helpers are at work on the job: changes while `state` is locked.
    helping: AtomicUsize,
    /// What the helpers have been settled for.
    settled: AtomicUsize,
    state: Mutex<State>,
    /// Where helpers wait for a job.
    wake: Condvar,
    /// Where the caller waits for helpers.
    done: Condvar,
}

#[derive(Default)]
struct State {
    job: Option<Job>,
    /// Helpers that have come to the job.
    joined: usize,
    /// Helpers that sleep, and whether the caller does.
    asleep: usize,
    waiting: bool,
    panic: Option<Box<dyn Any + Send>>,
}

/// What the caller's stack holds of the work: pointers that are good until the caller has seen all helpers leave.
#[derive(Clone, Copy)]
struct Job {
    work: *const (dyn Fn(usize, usize) + Sync),
    next: *const AtomicUsize,
    count: usize,
    least: usize,
    /// Helpers that may come.
    helpers: usize,
}

// SAFETY: the closure and the counter may be used from any thread; for how long, is said above.
unsafe impl Send for Job {}

impl Job {
    /// Takes numbers until there are none.
    ///
    /// # Safety
    /// The caller of the team still waits.
    unsafe fn run(&self, seat: usize) {
        // SAFETY: the caller's.
        let (work, next) = unsafe { (&*self.work, &*self.next) };
        loop {
            let first = next.fetch_add(self.least, Ordering::Relaxed);
            if first >= self.count {
                return;
            }
            (first..self.count.min(first + self.least)).for_each(|i| work(seat, i));
        }
    }
}

impl Team {
    /// A team of so many threads, the calling one included, each of which begins with `begin`. It is there for good.
    ///
    /// # Panics
    /// If the system refuses the threads.
    pub(super) fn new(threads: usize, begin: fn()) -> &'static Team {
        let team: &'static Team = Box::leak(Box::new(Team {
            threads,
            taken: AtomicBool::new(false),
            jobs: AtomicUsize::new(0),
            helping: AtomicUsize::new(0),
            settled: AtomicUsize::new(0),
            state: Mutex::default(),
            wake: Condvar::new(),
            done: Condvar::new(),
        }));
        let ready = Arc::new(Barrier::new(threads));
        for number in 1..threads {
            let (helper, ready) = (thread::Builder::new().name(format!("pellucid {number}")), ready.clone());
            let life = move || {
                begin();
                ready.wait();
                drop(ready);
                team.help()
            };
            helper.spawn(life).expect("threads for the kernels");
        }
        ready.wait();
        team
    }

    /// How many threads there are.
    pub(super) fn threads(&self) -> usize {
        self.threads
    }

    /// Calls `work(seat, i)` once for every i below `count`; numbers are taken `least` at a time. Calls of one seat, below
    /// `seats` and below the number of threads, come one after the other.
    pub(super) fn run(&self, count: usize, least: usize, work: Work<'_>) {
        let least = least.max(1);
        let helpers = count.div_ceil(least).min(self.threads).saturating_sub(1);
        if helpers == 0 || self.taken.swap(true, Ordering::Acquire) {
            return (0..count).for_each(|i| work(0, i));
        }
        let next = AtomicUsize::new(0);
        let result = self.share(&next, count, least, helpers, work, |job| {
            // SAFETY: the caller of the team is this very thread.
            unsafe { job.run(0) }
        });
        if let Err(panic) = result {
            resume_unwind(panic);
        }
    }

    /// Calls `work` once on every helper if it has not been called for so much; later, if they are at work for somebody else.
    pub(super) fn settle(&self, most: usize, work: fn()) {
        if most > self.settled.load(Ordering::Relaxed) && self.everywhere(work) {
            self.settled.store(most, Ordering::Relaxed);
        }
    }

    /// Calls `work` once on every helper; false if they are at work for somebody else.
    fn everywhere(&self, work: fn()) -> bool {
        if self.threads == 1 {
            return true;
        }
        if self.taken.swap(true, Ordering::Acquire) {
            return false;
        }
        let (helpers, next, came) = (self.threads - 1, AtomicUsize::new(0), AtomicUsize::new(0));
        // A helper takes one number and waits for the others, so that everyone gets one.
        let each = |_: usize, _: usize| {
            work();
            came.fetch_add(1, Ordering::AcqRel);
            while came.load(Ordering::Acquire) < helpers {
                thread::yield_now();
            }
        };
        let result = self.share(&next, helpers, 1, helpers, &each, |_| {
            while came.load(Ordering::Acquire) < helpers {
                thread::yield_now();
            }
        });
        result.is_ok()
    }

    /// Shows the work to the helpers, does the caller's part of it, and waits for those who came.
    fn share(
        &self,
        next: &AtomicUsize,
        count: usize,
        least: usize,
        helpers: usize,
        work: Work<'_>,
        own: impl FnOnce(&Job),
    ) -> thread::Result<()> {
        // SAFETY: only the lifetime changes; no helper has the job any more when this function returns.
        let work: Work<'static> = unsafe { std::mem::transmute::<Work<'_>, Work<'static>>(work) };
        let job = Job { work, next, count, least, helpers };
        let mut state = self.lock();
        (state.job, state.joined) = (Some(job), 0);
        self.jobs.fetch_add(1, Ordering::Release);
        let sleepers = state.asleep.min(helpers);
        drop(state);
        (0..sleepers).for_each(|_| self.wake.notify_one());
        let own = catch_unwind(AssertUnwindSafe(|| own(&job)));
        self.lock().job = None;
        // Nobody comes any more; those who came must go.
        for _ in 0..LOOKS {
            if self.helping.load(Ordering::Acquire) == 0 {
                break;
            }
            hint::spin_loop();
        }
        let mut state = self.lock();
        while self.helping.load(Ordering::Relaxed) > 0 {
            state.waiting = true;
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting = false;
        let panic = state.panic.take();
        drop(state);
        self.taken.store(false, Ordering::Release);
        own.and(panic.map_or(Ok(()), Err))
    }

    /// A helper's life.
    fn help(&self) -> ! {
        let mut seen = 0;
        loop {
            let (job, seat) = self.next_job(&mut seen);
            // SAFETY: this helper is counted, and the caller waits for it.
            let result = catch_unwind(AssertUnwindSafe(|| unsafe { job.run(seat) }));
            let mut state = self.lock();
            if let Err(panic) = result {
                state.panic.get_or_insert(panic);
            }
            if self.helping.fetch_sub(1, Ordering::Release) == 1 && state.waiting {
                self.done.notify_one();
            }
        }
    }

    /// Waits for a job that this helper has not seen, and comes to it, if there is a seat.
    fn next_job(&self, seen: &mut usize) -> (Job, usize) {
        loop {
            for _ in 0..LOOKS {
                if self.jobs.load(Ordering::Acquire) != *seen {
                    break;
                }
                hint::spin_loop();
            }
            let mut state = self.lock();
            while self.jobs.load(Ordering::Relaxed) == *seen {
                state.asleep += 1;
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.asleep -= 1;
            }
            *seen = self.jobs.load(Ordering::Relaxed);
            if let Some(job) = state.job.filter(|job| state.joined < job.helpers) {
                state.joined += 1;
                self.helping.fetch_add(1, Ordering::Relaxed);
                return (job, state.joined);
            }
        }
    }

    /// No code of others runs under this lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
