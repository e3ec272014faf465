//! Tests of the order and of reservations, through the calls that kernels make.

use super::super::{Native, acquire, release};
use super::*;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::thread;

/// A wait list, and the borrow words of the storages that its kernels use.
#[derive(Default)]
struct ListModel {
    list: WaitList,
    storages: [BorrowWord; 2],
}

impl ListModel {
    fn claims(&mut self, words: &[(usize, bool)]) -> Claims {
        let storages = &self.storages;
        self.list.claims(&*words.iter().map(|&(k, writes)| (&storages[k], writes)).collect::<Vec<_>>())
    }

    /// Adds a kernel of a thread, which reads or writes these storages.
    fn join(&mut self, thread: &Arc<Parker>, words: &[(usize, bool)]) -> u64 {
        let claims = self.claims(words);
        self.list.join(claims, thread.clone())
    }

    /// Returns the kernels whose turn it is.
    fn first(&self) -> Vec<u64> {
        let list = &self.list;
        let is_first = |(k, waiter): &(usize, &Waiter)| {
            !list.conflicts(*k, &waiter.claims) && list.reservation_before(waiter).is_none()
        };
        list.waiters.iter().enumerate().filter(is_first).map(|(_, waiter)| waiter.ticket).collect()
    }
}

impl<'w, A: Atomics + 'w> BorrowWords<'w, A> for &[(&'w BorrowWord<A>, bool)] {
    fn all(self, mut f: impl FnMut(&'w BorrowWord<A>, bool) -> bool) -> bool {
        self.iter().all(|&(word, writes)| f(word, writes))
    }
}

fn new_thread() -> Arc<Parker> {
    Arc::default()
}

const READ: &[(usize, bool)] = &[(0, false)];
const WRITE: &[(usize, bool)] = &[(0, true)];

#[test]
fn a_writer_overtakes_a_reader_a_bounded_number_of_times() {
    let (mut model, trainer) = (ListModel::default(), new_thread());
    let mut readers: Vec<u64> = (0..100).map(|_| model.join(&new_thread(), READ)).collect();
    for _ in 0..OVERTAKINGS {
        let writer = model.join(&trainer, WRITE);
        assert_eq!(model.first(), [writer]);
        model.list.leave(writer);
    }
    let writer = model.join(&trainer, WRITE);
    assert_eq!(model.first(), readers, "all readers must be first after they were overtaken {OVERTAKINGS} times");
    // A reader that comes later waits for the writer.
    readers.push(model.join(&new_thread(), READ));
    assert_eq!(model.first(), readers[..100]);
    readers.iter().take(100).for_each(|reader| model.list.leave(*reader));
    assert_eq!(model.first(), [writer]);
}

#[test]
fn writers_do_not_overtake_writers() {
    let mut model = ListModel::default();
    let words: [&[(usize, bool)]; 4] = [WRITE, &[(0, false), (1, true)], READ, WRITE];
    let [first, second, reader, last] = words.map(|words| model.join(&new_thread(), words));
    assert_eq!(model.first(), [first]);
    model.list.leave(first);
    // The two other kernels only read the storage that the last writer writes.
    assert_eq!(model.first(), [last]);
    model.list.leave(last);
    assert_eq!(model.first(), [second, reader]);
}

#[test]
fn a_writer_whose_words_others_write_goes_after_them() {
    let mut model = ListModel::default();
    let reader = model.join(&new_thread(), &[(0, false), (1, true)]);
    let writer = model.join(&new_thread(), &[(0, true), (1, true)]);
    assert_eq!(model.first(), [reader], "the writer must not overtake a reader that also writes one of its storages");
    model.list.leave(reader);
    assert_eq!(model.first(), [writer]);
}

#[test]
fn reserved_words_have_a_bounded_number_of_readers_and_those_that_wait_longest_are_first() {
    let (mut model, trainer) = (ListModel::default(), new_thread());
    let mut waiting: Vec<u64> = (0..3).map(|_| model.join(&new_thread(), READ)).collect();
    let writer = model.join(&trainer, WRITE);
    model.list.leave(writer);
    assert_eq!(model.first(), waiting);
    waiting.extend((0..10).map(|_| model.join(&new_thread(), READ)));
    assert_eq!(model.first(), waiting[..ADMITTED]);
    waiting.drain(..ADMITTED).for_each(|reader| model.list.leave(reader));
    assert_eq!(model.first(), []);
    // The owner may read its words.
    let own = model.join(&trainer, READ);
    assert_eq!(model.first(), [own]);
    model.list.leave(own);
    // Its next write admits the next readers.
    let writer = model.join(&trainer, WRITE);
    model.list.leave(writer);
    assert_eq!(model.first(), waiting[..ADMITTED]);
    // A reservation does not delay another writer, which replaces the reservation.
    let (other, claims) = (model.join(&new_thread(), WRITE), model.claims(READ));
    assert_eq!(model.first(), [other]);
    model.list.leave(other);
    assert_eq!(model.list.reservations.len(), 1);
    assert!(model.list.reservation(&claims, &trainer).is_some());
}

#[test]
fn a_writer_does_not_wait_for_readers_that_its_reservation_holds_up() {
    let (mut model, trainer) = (ListModel::default(), new_thread());
    let writer = model.join(&trainer, WRITE);
    model.list.leave(writer);
    (0..ADMITTED).for_each(|_| {
        let reader = model.join(&new_thread(), READ);
        model.list.leave(reader);
    });
    let held_up = model.join(&new_thread(), READ);
    let both = model.join(&new_thread(), &[(0, false), (1, false)]);
    for _ in 0..OVERTAKINGS {
        let writer = model.join(&new_thread(), &[(1, true)]);
        model.list.leave(writer);
    }
    assert_eq!(model.first(), [both]);
    let writer = model.join(&trainer, WRITE);
    assert_eq!(model.first(), [held_up, both]);
    [held_up, both].into_iter().for_each(|reader| model.list.leave(reader));
    assert_eq!(model.first(), [writer]);
}

/// The standard library's atomics, with a separate wait list and counts of sleeps.
struct Counted;

static WAITED: AtomicU64 = AtomicU64::new(0);
static WAITERS: Mutex<WaitList> = Mutex::new(WaitList::new());
static SLEEPS: AtomicUsize = AtomicUsize::new(0);
static WOKEN: AtomicUsize = AtomicUsize::new(0);

impl Atomics for Counted {
    type ReaderCount = AtomicU32;
    type Version = AtomicU64;

    const PATIENCE: usize = Native::PATIENCE;

    fn yield_now() {
        Native::yield_now();
    }

    fn pause() {
        Native::pause();
    }

    fn filter_bit(word: usize) -> u64 {
        Native::filter_bit(word)
    }

    fn waited() -> u64 {
        WAITED.load(SeqCst)
    }

    fn set_waited(mask: u64) {
        WAITED.store(mask, SeqCst);
    }

    fn with_waiters<R>(f: impl FnOnce(&mut WaitList) -> R) -> R {
        f(&mut WAITERS.lock().unwrap())
    }

    fn held_count() -> usize {
        Native::held_count()
    }

    fn set_held(guards: usize) {
        Native::set_held(guards);
    }

    fn parker() -> Arc<Parker> {
        Native::parker()
    }

    fn park(parker: &Parker) -> bool {
        let is_woken = parker.park();
        WOKEN.fetch_add(is_woken.into(), SeqCst);
        SLEEPS.fetch_add(1, SeqCst);
        is_woken
    }
}

#[test]
fn attempts_that_fail_wake_no_kernel_of_the_list() {
    let [free, taken]: [BorrowWord<Counted>; 2] = Default::default();
    let words = [(&free, false), (&taken, false)];
    assert!(taken.try_write());
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(move || {
                acquire(&words[..]);
                release(&words[..]);
            });
        }
        while SLEEPS.load(SeqCst) < 20 {
            thread::yield_now();
        }
        // Each thread has tried once before it joined the list.
        let woken = WOKEN.load(SeqCst);
        taken.end_write();
        assert!(woken <= 2, "{woken} sleeps of about 20 were ended by an attempt of the other kernel");
    });
    assert!(free.try_write() && taken.try_write());
}
