//! Threads that process jobs and return the results in the order of the jobs.

use super::OP;
use crate::cancel::set_cancel_flag;
use pellucid_tensor::{Error, Result};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Threads that process jobs. Job i runs on thread i mod n. The results of a thread arrive in order, so the results of
/// all jobs are read in order without a buffer. Dropping the value discards pending jobs and joins the threads, which
/// cancel their current job between two samples.
pub(crate) struct OrderedWorkers<J, R> {
    threads: Vec<WorkerThread<J, R>>,
    /// The threads of the pending jobs, at most [`capacity`](Self::capacity).
    pending: VecDeque<usize>,
    /// The thread of the next job.
    next: usize,
    /// The maximum number of pending jobs per thread.
    depth: usize,
    stop: Arc<AtomicBool>,
}

struct WorkerThread<J, R> {
    jobs: Option<SyncSender<J>>,
    results: Receiver<R>,
    handle: Option<JoinHandle<()>>,
}

impl<J: Send + 'static, R: Send + 'static> OrderedWorkers<J, R> {
    /// Starts `n` threads, each with memory for `depth` jobs and results.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a thread cannot be started.
    pub(crate) fn start(
        n: usize,
        depth: usize,
        process: impl Fn(J) -> R + Send + Sync + 'static,
    ) -> Result<OrderedWorkers<J, R>> {
        let (process, stop) = (Arc::new(process), Arc::new(AtomicBool::new(false)));
        let mut workers =
            OrderedWorkers { threads: Vec::new(), pending: VecDeque::new(), next: 0, depth, stop: stop.clone() };
        for index in 0..n {
            let (jobs, received) = sync_channel::<J>(depth);
            // A thread has at most `depth` pending jobs, so sending a result never blocks.
            let (finished, results) = sync_channel(depth);
            let (process, stop) = (process.clone(), stop.clone());
            let work = move || {
                set_cancel_flag(stop.clone());
                for job in received {
                    if stop.load(Ordering::Relaxed) || finished.send(process(job)).is_err() {
                        return;
                    }
                }
            };
            let handle = std::thread::Builder::new().name(format!("data-loader-{index}")).spawn(work);
            let handle = handle.map_err(|error| {
                Error::invalid(OP, format!("{n} worker threads cannot be started ({error}); use fewer"))
            })?;
            workers.threads.push(WorkerThread { jobs: Some(jobs), results, handle: Some(handle) });
        }
        Ok(workers)
    }

    /// Returns the maximum number of pending jobs.
    pub(crate) fn capacity(&self) -> usize {
        self.threads.len() * self.depth
    }

    /// Returns the number of pending jobs, whose results have not been received.
    pub(crate) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Appends a job. The number of pending jobs must be below [`capacity`](Self::capacity).
    pub(crate) fn submit(&mut self, job: J) {
        debug_assert!(self.pending() < self.capacity(), "the queue of the workers is full");
        let thread = self.next;
        // A thread that has ended returns no result, which `receive` reports.
        let _ = self.threads[thread].jobs.as_ref().map(|jobs| jobs.send(job));
        self.pending.push_back(thread);
        self.next = (thread + 1) % self.threads.len();
    }

    /// Waits for the result of the oldest job. Returns `None` if no job is pending, or its thread has ended.
    pub(crate) fn receive(&mut self) -> Option<R> {
        let thread = self.pending.pop_front()?;
        self.threads[thread].results.recv().ok()
    }

    /// Returns the result of the oldest job if it is ready.
    pub(crate) fn receive_ready(&mut self) -> Option<R> {
        let result = self.threads[*self.pending.front()?].results.try_recv().ok()?;
        self.pending.pop_front();
        Some(result)
    }
}

impl<J, R> Drop for OrderedWorkers<J, R> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.iter_mut().for_each(|thread| thread.jobs = None);
        for handle in self.threads.iter_mut().filter_map(|thread| thread.handle.take()) {
            // If the data set of a job owns this loader, the loader may be dropped on a worker thread, which cannot
            // join itself.
            if handle.thread().id() != std::thread::current().id() {
                // `process` catches panics, and a panic here would abort.
                let _ = handle.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn results_arrive_in_the_order_of_the_jobs() {
        for threads in [1, 2, 5] {
            // Early jobs take longer than late ones.
            let process = |job: u64| {
                std::thread::sleep(Duration::from_micros(if job.is_multiple_of(3) { 300 } else { 0 }));
                job * job
            };
            let mut workers = OrderedWorkers::start(threads, 2, process).unwrap();
            let (mut submitted, mut received) = (0, Vec::new());
            while received.len() < 40 {
                while submitted < 40 && workers.pending() < workers.capacity() {
                    workers.submit(submitted);
                    submitted += 1;
                }
                received.push(workers.receive().unwrap());
            }
            assert!(received.into_iter().eq((0..40).map(|job| job * job)));
            assert_eq!(workers.receive(), None);
        }
    }

    #[test]
    fn dropping_the_workers_ends_their_threads() {
        let alive = Arc::new(());
        let held = alive.clone();
        let process = move |job: usize| {
            let _held = &held;
            std::thread::sleep(Duration::from_millis(1));
            job
        };
        let mut workers = OrderedWorkers::start(3, 4, process).unwrap();
        (0..workers.capacity()).for_each(|job| workers.submit(job));
        drop(workers);
        assert_eq!(Arc::strong_count(&alive), 1, "a thread still owns the function");
    }

    #[test]
    fn a_thread_that_has_ended_returns_no_result() {
        let process = |job: usize| {
            if job == 1 {
                std::panic::resume_unwind(Box::new("no message"));
            }
            job
        };
        let mut workers = OrderedWorkers::start(2, 2, process).unwrap();
        (0..4).for_each(|job| workers.submit(job));
        assert_eq!([(); 4].map(|()| workers.receive()), [Some(0), None, Some(2), None]);
    }
}
