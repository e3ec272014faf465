//! The borrow protocol of storages: many readers or one writer while a kernel runs, and a count of the writes.
//!
//! A kernel holds the [`BorrowWord`]s of all its operands through a [`BorrowGuard`], which acquires all of them or
//! none: two threads that want the same storages in different orders cannot block each other. Waiting kernels are
//! served in the order that `borrow/waiting.rs` defines. A write is counted before its word is released, so a later
//! reader sees the [`Version`] that belongs to the contents.
//!
//! The protocol takes its atomics as a type parameter: the tests run it with the atomics of a model checker, which
//! explores every interleaving of a few threads.

mod guard;
mod waiting;

pub use guard::{BatchBorrowGuard, BorrowGuard, SlotBorrowGuard};
pub use waiting::{Parker, WaitList};

use crate::lock;
use waiting::BorrowWords;

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The atomics of the protocol: the standard library's, or a model checker's.
pub trait Atomics: Sized {
    /// The atomic borrow word, which counts readers or marks a writer.
    type ReaderCount: AtomicReaderCount;
    /// The atomic counter of writes.
    type Version: AtomicVersion;
    /// The number of times that a reader sleeps before it ends the reservation that blocks it.
    const PATIENCE: usize;
    /// Yields the core, so that other threads can run.
    fn yield_now();
    /// Waits a fraction of a microsecond without giving up the core.
    fn pause();
    /// Returns the bit that represents the borrow word at address `word` in [`Atomics::waited`]. Several words may
    /// share a bit.
    fn filter_bit(word: usize) -> u64;
    /// Returns a mask of the words for which kernels wait and of the reserved words; 0 if there are none.
    fn waited() -> u64;
    /// Sets the mask of [`Atomics::waited`]. The caller has locked the list of waiting kernels.
    fn set_waited(mask: u64);
    /// Locks the list of waiting kernels and calls `f` with it.
    fn with_waiters<R>(f: impl FnOnce(&mut WaitList) -> R) -> R;
    /// Returns the number of guards that this thread holds.
    fn held_count() -> usize;
    /// Sets the number of guards that this thread holds.
    fn set_held(guards: usize);
    /// Returns the handle by which another thread wakes this thread.
    fn parker() -> Arc<Parker>;
    /// Sleeps until another thread wakes this thread, or a short time has passed. Returns false if the time has passed.
    fn park(parker: &Parker) -> bool;
}

/// The operations of the standard library's [`AtomicU32`] that the protocol uses.
#[allow(missing_docs, clippy::missing_errors_doc, reason = "the standard library documents these operations")]
pub trait AtomicReaderCount {
    fn new(value: u32) -> Self;
    fn load(&self, order: Ordering) -> u32;
    fn store(&self, value: u32, order: Ordering);
    fn fetch_sub(&self, value: u32, order: Ordering) -> u32;
    fn compare_exchange(&self, current: u32, new: u32, success: Ordering, failure: Ordering) -> Result<u32, u32>;
    fn fetch_update(
        &self,
        success: Ordering,
        failure: Ordering,
        update: impl FnMut(u32) -> Option<u32>,
    ) -> Result<u32, u32>;
}

/// The operations of the standard library's [`AtomicU64`] that the protocol uses.
#[allow(missing_docs, reason = "the standard library documents these operations")]
pub trait AtomicVersion {
    fn new(value: u64) -> Self;
    fn load(&self, order: Ordering) -> u64;
    fn fetch_add(&self, value: u64, order: Ordering) -> u64;
}

/// Implements the operations for these atomics.
macro_rules! atomics {
    ($u32:ty, $u64:ty) => {
        impl AtomicReaderCount for $u32 {
            #[inline(always)]
            fn new(value: u32) -> Self {
                <$u32>::new(value)
            }
            #[inline(always)]
            fn load(&self, order: Ordering) -> u32 {
                <$u32>::load(self, order)
            }
            #[inline(always)]
            fn store(&self, value: u32, order: Ordering) {
                <$u32>::store(self, value, order);
            }
            #[inline(always)]
            fn fetch_sub(&self, value: u32, order: Ordering) -> u32 {
                <$u32>::fetch_sub(self, value, order)
            }
            #[inline(always)]
            fn compare_exchange(
                &self,
                current: u32,
                new: u32,
                success: Ordering,
                failure: Ordering,
            ) -> Result<u32, u32> {
                <$u32>::compare_exchange(self, current, new, success, failure)
            }
            #[inline(always)]
            fn fetch_update(
                &self,
                success: Ordering,
                failure: Ordering,
                update: impl FnMut(u32) -> Option<u32>,
            ) -> Result<u32, u32> {
                <$u32>::fetch_update(self, success, failure, update)
            }
        }

        impl AtomicVersion for $u64 {
            #[inline(always)]
            fn new(value: u64) -> Self {
                <$u64>::new(value)
            }
            #[inline(always)]
            fn load(&self, order: Ordering) -> u64 {
                <$u64>::load(self, order)
            }
            #[inline(always)]
            fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
                <$u64>::fetch_add(self, value, order)
            }
        }
    };
}

/// The atomics of the standard library.
#[derive(Clone, Copy, Debug)]
pub struct Native;

atomics!(AtomicU32, AtomicU64);

static WAITED: AtomicU64 = AtomicU64::new(0);
static WAITERS: Mutex<WaitList> = Mutex::new(WaitList::new());

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static PARKER: Arc<Parker> = Arc::default();
}

impl Atomics for Native {
    type ReaderCount = AtomicU32;
    type Version = AtomicU64;

    const PATIENCE: usize = 5;

    #[inline]
    fn yield_now() {
        std::thread::yield_now();
    }

    #[inline]
    fn pause() {
        (0..16).for_each(|_| std::hint::spin_loop());
    }

    fn filter_bit(word: usize) -> u64 {
        1 << ((word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58)
    }

    #[inline(always)]
    fn waited() -> u64 {
        WAITED.load(Ordering::Relaxed)
    }

    fn set_waited(mask: u64) {
        WAITED.store(mask, Ordering::SeqCst);
    }

    fn with_waiters<R>(f: impl FnOnce(&mut WaitList) -> R) -> R {
        f(&mut lock(&WAITERS))
    }

    #[inline(always)]
    fn held_count() -> usize {
        HELD.get()
    }

    #[inline(always)]
    fn set_held(guards: usize) {
        HELD.set(guards);
    }

    fn parker() -> Arc<Parker> {
        // A thread that is ending may already have destroyed its parker.
        PARKER.try_with(Arc::clone).unwrap_or_default()
    }

    fn park(parker: &Parker) -> bool {
        parker.park()
    }
}

const WRITER: u32 = u32::MAX;

/// The state of a storage: the number of its readers, or a mark for its only writer.
pub struct BorrowWord<A: Atomics = Native>(A::ReaderCount);

impl<A: Atomics> Default for BorrowWord<A> {
    /// Creates a word that no thread holds.
    #[inline]
    fn default() -> Self {
        BorrowWord(A::ReaderCount::new(0))
    }
}

impl<A: Atomics> BorrowWord<A> {
    /// Returns true if no thread holds the storage.
    #[inline]
    fn is_free(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// Registers one more reader; returns false if a writer holds the storage.
    #[inline]
    fn try_read(&self) -> bool {
        let one_more = |holders| (holders < WRITER - 1).then(|| holders + 1);
        self.0.fetch_update(Ordering::Acquire, Ordering::Relaxed, one_more).is_ok()
    }

    /// Registers the only writer; returns false if any thread holds the storage.
    #[inline]
    fn try_write(&self) -> bool {
        self.0.compare_exchange(0, WRITER, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Ends a successful [`BorrowWord::try_read`].
    #[inline]
    fn end_read(&self) {
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// Ends a successful [`BorrowWord::try_write`].
    #[inline]
    fn end_write(&self) {
        self.0.store(0, Ordering::Release);
    }

    /// Ends a successful attempt to write or to read.
    #[inline(always)]
    fn end(&self, writes: bool) {
        if writes { self.end_write() } else { self.end_read() }
    }
}

/// The number of writes to a storage. A thread that holds the storage's borrow word sees the counts of all earlier
/// writers.
pub struct Version<A: Atomics = Native>(A::Version);

impl<A: Atomics> Default for Version<A> {
    /// Creates the version of a storage that has not been written.
    #[inline]
    fn default() -> Self {
        Version(A::Version::new(0))
    }
}

impl<A: Atomics> Version<A> {
    /// Returns the number of writes so far.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts a write. The writer still holds the borrow word; releasing the word publishes the count.
    #[inline]
    pub fn bump(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

mod sealed {
    /// Prevents implementations of [`Borrowed`](super::Borrowed) outside of this crate: a guard relies on operands that
    /// always return the same word.
    pub trait StorageOperand {}
}

pub(crate) use sealed::StorageOperand;

/// An operand in a storage. Operands with the same word are views of one storage.
pub trait Borrowed: StorageOperand {
    /// The atomics of the word.
    type Atomics: Atomics;
    /// Returns the borrow word of the storage.
    fn borrow_word(&self) -> &BorrowWord<Self::Atomics>;
    /// Returns the version of the storage.
    fn version_word(&self) -> &Version<Self::Atomics>;
}

/// Tries to acquire all words. Returns false, and holds none, if a word is held. A failed attempt wakes no kernel, even
/// if the attempt of another kernel failed because of words that this attempt held for a moment.
#[inline(always)]
fn try_all<'w, A: Atomics + 'w>(words: impl BorrowWords<'w, A>) -> bool {
    let mut acquired = 0;
    let is_acquired = words.all(|word, writes| {
        let is_free = if writes { word.try_write() } else { word.try_read() };
        acquired += usize::from(is_free);
        is_free
    });
    if is_acquired {
        A::set_held(A::held_count() + 1);
    } else {
        end_first(words, acquired);
    }
    is_acquired
}

/// Releases the first `count` words.
#[cold]
fn end_first<'w, A: Atomics + 'w>(words: impl BorrowWords<'w, A>, mut count: usize) {
    words.all(|word, writes| {
        let is_held = count > 0;
        if is_held {
            count -= 1;
            word.end(writes);
        }
        is_held
    });
}

/// Tries to acquire all words. Returns false, and holds none, if a word is held or a waiting kernel has priority.
#[inline(always)]
fn try_next<'w, A: Atomics + 'w>(words: impl BorrowWords<'w, A>) -> bool {
    match A::waited() {
        0 if try_all(words) => true,
        _ => waiting::try_next(words),
    }
}

/// Acquires all words. Kernels that wait are served in turn.
#[inline(always)]
fn acquire<'w, A: Atomics + 'w>(words: impl BorrowWords<'w, A>) {
    if !try_next(words) {
        waiting::wait(words);
    }
}

/// Acquires all words of a list that may repeat words. Returns false, and holds no word, if a word that the kernel
/// writes occurs more than once in the list: the kernel would wait for itself.
fn acquire_distinct<'w, A: Atomics + 'w>(words: impl BorrowWords<'w, A>) -> bool {
    if !try_next(words) {
        if !waiting::are_targets_unique(words) {
            return false;
        }
        waiting::wait(words);
    }
    true
}

/// Releases words that [`try_all`] has acquired.
#[inline]
fn release<'w, A: Atomics + 'w>(words: impl BorrowWords<'w, A>) {
    words.all(|word, writes| {
        word.end(writes);
        true
    });
    A::set_held(A::held_count() - 1);
    wake_waiters(words);
}

/// Wakes the kernels whose turn it is among those that wait for one of these words. The words must have been released.
#[inline]
fn wake_waiters<'w, A: Atomics + 'w>(words: impl BorrowWords<'w, A>) {
    if A::waited() != 0 {
        waiting::wake(words);
    }
}

#[cfg(test)]
mod models;
