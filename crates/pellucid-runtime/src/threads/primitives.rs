//! What the protocol of a pool is made of: atomics, locks and condition variables.

use std::ops::DerefMut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The synchronisation of the standard library, or of a model checker.
pub(super) trait Primitives: Sized + 'static {
    /// How often a helper, or the caller, looks again before it sleeps.
    const LOOKS: usize;
    type Number: AtomicNumber;
    type Flag: AtomicFlag;
    type Mutex<T>;
    type Guard<'a, T: 'a>: DerefMut<Target = T>;
    type Condvar;

    fn mutex<T>(value: T) -> Self::Mutex<T>;
    /// Locks; a lock that was held by a thread that panicked is as good as any other.
    fn lock<T>(mutex: &Self::Mutex<T>) -> Self::Guard<'_, T>;
    fn condvar() -> Self::Condvar;
    fn wait<'a, T: 'a>(condvar: &Self::Condvar, guard: Self::Guard<'a, T>) -> Self::Guard<'a, T>;
    fn notify_one(condvar: &Self::Condvar);
    fn spin_loop();
    fn yield_now();
}

/// The operations of the protocol on an [`AtomicUsize`].
pub(super) trait AtomicNumber: Sync {
    fn new(value: usize) -> Self;
    fn load(&self, order: Ordering) -> usize;
    fn store(&self, value: usize, order: Ordering);
    fn fetch_add(&self, value: usize, order: Ordering) -> usize;
    fn fetch_sub(&self, value: usize, order: Ordering) -> usize;
}

/// The operations of the protocol on an [`AtomicBool`].
pub(super) trait AtomicFlag: Sync {
    fn new(value: bool) -> Self;
    fn store(&self, value: bool, order: Ordering);
    fn swap(&self, value: bool, order: Ordering) -> bool;
}

/// Implements [`AtomicNumber`] by the methods of the same names.
macro_rules! atomic_number {
    ($number:ty) => {
        impl AtomicNumber for $number {
            #[inline(always)]
            fn new(value: usize) -> Self {
                <$number>::new(value)
            }
            #[inline(always)]
            fn load(&self, order: Ordering) -> usize {
                <$number>::load(self, order)
            }
            #[inline(always)]
            fn store(&self, value: usize, order: Ordering) {
                <$number>::store(self, value, order);
            }
            #[inline(always)]
            fn fetch_add(&self, value: usize, order: Ordering) -> usize {
                <$number>::fetch_add(self, value, order)
            }
            #[inline(always)]
            fn fetch_sub(&self, value: usize, order: Ordering) -> usize {
                <$number>::fetch_sub(self, value, order)
            }
        }
    };
}

#[cfg(test)]
pub(super) use atomic_number;

/// The synchronisation of the standard library.
pub(super) struct Native;

atomic_number!(AtomicUsize);

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

impl Primitives for Native {
    /// Some 10 µs, in which the next kernel of a step usually comes.
    const LOOKS: usize = 200;
    type Number = AtomicUsize;
    type Flag = AtomicBool;
    type Mutex<T> = Mutex<T>;
    type Guard<'a, T: 'a> = MutexGuard<'a, T>;
    type Condvar = Condvar;

    fn mutex<T>(value: T) -> Mutex<T> {
        Mutex::new(value)
    }
    #[inline(always)]
    fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
