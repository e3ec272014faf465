//! Dynamic batching: jobs that arrive close together are processed together.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Waits for a job, collects further jobs for at most `max_wait`, and returns at most `max_batch` jobs in the order of
/// arrival. Returns `None` when all senders are dropped and no job is left.
pub(crate) fn next_batch<T>(jobs: &Receiver<T>, max_batch: usize, max_wait: Duration) -> Option<Vec<T>> {
    let mut batch = vec![jobs.recv().ok()?];
    let end = Instant::now() + max_wait;
    while batch.len() < max_batch {
        // Queued jobs join the batch even if `max_wait` has passed.
        match jobs.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(job) => batch.push(job),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    Some(batch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::thread;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_full_batch_does_not_wait() {
        let (sender, jobs) = channel();
        (0..5).for_each(|job| sender.send(job).unwrap());
        let start = Instant::now();
        assert_eq!(next_batch(&jobs, 3, LONG), Some(vec![0, 1, 2]));
        // The remaining jobs are returned without waiting, because no further job can arrive.
        drop(sender);
        assert_eq!(next_batch(&jobs, 3, LONG), Some(vec![3, 4]));
        assert_eq!(next_batch(&jobs, 3, LONG), None);
        assert!(start.elapsed() < LONG / 2);
    }

    #[test]
    fn a_batch_ends_when_the_wait_is_over() {
        let (sender, jobs) = channel();
        (0..2).for_each(|job| sender.send(job).unwrap());
        let start = Instant::now();
        assert_eq!(next_batch(&jobs, 3, Duration::from_millis(20)), Some(vec![0, 1]));
        assert!(start.elapsed() >= Duration::from_millis(20));
    }

    #[test]
    fn without_a_wait_queued_jobs_still_share_a_batch() {
        let (sender, jobs) = channel();
        (0..3).for_each(|job| sender.send(job).unwrap());
        assert_eq!(next_batch(&jobs, 8, Duration::ZERO), Some(vec![0, 1, 2]));
    }

    #[test]
    fn later_jobs_join_a_waiting_batch() {
        let (sender, jobs) = channel();
        let first = thread::spawn(move || next_batch(&jobs, 2, LONG));
        sender.send(1).unwrap();
        sender.send(2).unwrap();
        assert_eq!(first.join().unwrap(), Some(vec![1, 2]));
    }
}
