//! The synchronization primitives of the pool protocol: atomics, locks and condition variables.

use std::ops::DerefMut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A set of synchronization primitives, of the standard library or of a model checker.
pub(super) trait Primitives: Sized + 'static {
    /// The number of polls of a thread before it sleeps.
    const SPINS: usize;
    /// An atomic `usize`.
    type Counter: AtomicCounter;
    /// An atomic `bool`.
    type Flag: AtomicFlag;
    /// A mutex.
    type Mutex<T>;
    /// The guard of a locked mutex.
    type Guard<'a, T: 'a>: DerefMut<Target = T>;
    /// A condition variable.
    type Condvar;

    /// Creates a mutex.
    fn mutex<T>(value: T) -> Self::Mutex<T>;
    /// Locks a mutex and ignores poisoning.
    fn lock<T>(mutex: &Self::Mutex<T>) -> Self::Guard<'_, T>;
    /// Creates a condition variable.
    fn condvar() -> Self::Condvar;
    /// Unlocks the mutex, waits for a notification, and locks the mutex again.
    fn wait<'a, T: 'a>(condvar: &Self::Condvar, guard: Self::Guard<'a, T>) -> Self::Guard<'a, T>;
    /// Wakes one waiting thread.
    fn notify_one(condvar: &Self::Condvar);
    /// Signals to the processor that the thread spins.
    fn spin_loop();
    /// Yields the processor to another thread.
    fn yield_now();
}

/// The operations of the protocol on an [`AtomicUsize`], as methods of the same names.
pub(super) trait AtomicCounter: Sync {
    fn new(value: usize) -> Self;
    fn load(&self, order: Ordering) -> usize;
    fn store(&self, value: usize, order: Ordering);
    fn fetch_add(&self, value: usize, order: Ordering) -> usize;
    fn fetch_sub(&self, value: usize, order: Ordering) -> usize;
}

/// The operations of the protocol on an [`AtomicBool`], as methods of the same names.
pub(super) trait AtomicFlag: Sync {
    fn new(value: bool) -> Self;
    fn store(&self, value: bool, order: Ordering);
    fn swap(&self, value: bool, order: Ordering) -> bool;
}

/// Implements [`AtomicCounter`] by the methods of the same names.
macro_rules! impl_atomic_counter {
    ($atomic:ty) => {
        impl AtomicCounter for $atomic {
            #[inline(always)]
            fn new(value: usize) -> Self {
                <$atomic>::new(value)
            }
            #[inline(always)]
            fn load(&self, order: Ordering) -> usize {
                <$atomic>::load(self, order)
            }
            #[inline(always)]
            fn store(&self, value: usize, order: Ordering) {
                <$atomic>::store(self, value, order);
            }
            #[inline(always)]
            fn fetch_add(&self, value: usize, order: Ordering) -> usize {
                <$atomic>::fetch_add(self, value, order)
            }
            #[inline(always)]
            fn fetch_sub(&self, value: usize, order: Ordering) -> usize {
                <$atomic>::fetch_sub(self, value, order)
            }
        }
    };
}

#[cfg(test)]
pub(super) use impl_atomic_counter;

/// The synchronization primitives of the standard library.
pub(super) struct StdPrimitives;

impl_atomic_counter!(AtomicUsize);

impl AtomicFlag for AtomicBool {
    #[inline(always)]
    fn new(value: bool) -> Self {
        AtomicBool::new(value)
    }
    #[inline(always)]
    fn store(&self, value: bool, order: Ordering) {
        AtomicBool::store(self, value, order);
    }
    #[inline(always)]
    fn swap(&self, value: bool, order: Ordering) -> bool {
        AtomicBool::swap(self, value, order)
    }
}

impl Primitives for StdPrimitives {
    /// These polls take about 10 µs, within which the next kernel of a step usually starts.
    const SPINS: usize = 200;
    type Counter = AtomicUsize;
    type Flag = AtomicBool;
    type Mutex<T> = Mutex<T>;
    type Guard<'a, T: 'a> = MutexGuard<'a, T>;
    type Condvar = Condvar;

    fn mutex<T>(value: T) -> Mutex<T> {
        Mutex::new(value)
    }
    #[inline(always)]
    fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        pellucid_ir::lock(mutex)
    }
    fn condvar() -> Condvar {
        Condvar::new()
    }
    #[inline(always)]
    fn wait<'a, T: 'a>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }
    #[inline(always)]
    fn notify_one(condvar: &Condvar) {
        condvar.notify_one();
    }
    #[inline(always)]
    fn spin_loop() {
        std::hint::spin_loop();
    }
    #[inline(always)]
    fn yield_now() {
        std::thread::yield_now();
    }
}
