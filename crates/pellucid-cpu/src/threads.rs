//! Threads: where they come from, and how work is cut for them.

use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Runs `f` with `n` threads for every kernel it runs. Pools are kept: one for each `n`.
///
/// # Panics
/// If the system refuses the threads.
pub fn with_threads<R: Send>(n: usize, f: impl FnOnce() -> R + Send) -> R {
    static POOLS: Mutex<BTreeMap<usize, Arc<ThreadPool>>> = Mutex::new(BTreeMap::new());
    let pool = {
        let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
        let make = || ThreadPoolBuilder::new().num_threads(n).build().expect("threads for the pool");
        pools.entry(n).or_insert_with(|| Arc::new(make())).clone()
    };
    pool.install(f)
}

/// Bytes of memory traffic that are worth a task of their own.
pub(crate) const GRAIN: usize = 64 << 10;

/// Runs `work` over `0..total` in ranges of at least `grain`, on the calling thread alone where
/// that is one range. How it is cut must not matter to the result.
#[inline]
pub(crate) fn split(total: usize, grain: usize, work: impl Fn(Range<usize>) + Sync) {
    let tasks = total / grain.max(1);
    let threads = if tasks > 1 { rayon::current_num_threads() } else { 1 };
    if threads == 1 {
        return work(0..total);
    }
    // A few tasks a thread even out what the machine does besides.
    let step = total.div_ceil(tasks.min(threads * 4));
    (0..total.div_ceil(step)).into_par_iter().with_max_len(1).for_each(|i| work(i * step..total.min((i + 1) * step)));
}

/// A pointer into an operand that several threads write to, each to elements of its own.
#[derive(Clone, Copy)]
pub(crate) struct Ptr<T>(pub(crate) *mut T);

// SAFETY: a pointer is a number; whoever writes through it says why nobody else writes there.
unsafe impl<T> Send for Ptr<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Ptr<T> {}

impl<T> Ptr<T> {
    /// The pointer; a method, so that closures capture the `Ptr` and not its field.
    #[inline(always)]
    pub(crate) fn get(&self) -> *mut T {
        self.0
    }

    /// The pointer, `by` elements on.
    #[inline(always)]
    pub(crate) fn at(&self, by: isize) -> *mut T {
        self.0.wrapping_offset(by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        assert_eq!(with_threads(3, rayon::current_num_threads), 3);
    }
}
