//! Tests of the order and of reservations, by the calls that kernels make.

use super::super::{Native, acquire, release};
use super::*;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::thread;

/// A list, the words of storages, and the time.
#[derive(Default)]
struct ListModel {
    list: WaitList,
    storages: [BorrowWord; 2],
    now: Duration,
}

impl ListModel {
    fn claims(&mut self, words: &[(usize, bool)]) -> Claims {
        let storages = &self.storages;
        self.list.claims(words.iter().map(|&(k, writes)| (&storages[k], writes)))
    }

    /// Adds a kernel of a thread, which reads or writes these storages.
    fn join(&mut self, thread: &Arc<Parker>, words: &[(usize, bool)]) -> u64 {
        let claims = self.claims(words);
        self.list.join(claims, thread.clone(), self.now)
    }

    /// Removes a kernel that has acquired its words.
    fn leave(&mut self, ticket: u64) {
        self.list.leave(ticket, self.now);
    }

    /// Writes the first storage for the time `hold`, as a kernel that had to wait.
    fn write(&mut self, thread: &Arc<Parker>, hold: Duration) {
        let writer = self.join(thread, WRITE);
        self.leave(writer);
        self.now += hold;
        let written = self.claims(WRITE);
        self.list.note_release(&written, thread, self.now);
    }

    /// Returns true if a reader that comes after the pause is held up.
    fn is_reserved(&mut self, pause: Duration) -> bool {
        let claims = self.claims(READ);
        self.list.reservation(&claims, &new_thread(), self.now + pause).is_some()
    }

    /// Returns the kernels whose turn it is.
    fn first(&self) -> Vec<u64> {
        let list = &self.list;
        let is_first = |(k, waiter): &(usize, &Waiter)| {
            !list.conflicts(*k, &waiter.claims) && list.held_up_until(waiter, self.now).is_none()
        };
        list.waiters.iter().enumerate().filter(is_first).map(|(_, waiter)| waiter.ticket).collect()
    }
}

const fn us(microseconds: u64) -> Duration {
    Duration::from_micros(microseconds)
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
        model.leave(writer);
    }
    let writer = model.join(&trainer, WRITE);
    assert_eq!(model.first(), readers, "each reader was overtaken {OVERTAKINGS} times");
    // A reader that comes later waits for the writer.
    readers.push(model.join(&new_thread(), READ));
    assert_eq!(model.first(), readers[..100]);
    readers.iter().take(100).for_each(|reader| model.leave(*reader));
    assert_eq!(model.first(), [writer]);
}

#[test]
fn writers_do_not_overtake_writers() {
    let mut model = ListModel::default();
    let words: [&[(usize, bool)]; 4] = [WRITE, &[(0, false), (1, true)], READ, WRITE];
    let [first, second, reader, last] = words.map(|words| model.join(&new_thread(), words));
    assert_eq!(model.first(), [first]);
    model.leave(first);
    // Both other kernels only read what the last writer writes.
    assert_eq!(model.first(), [last]);
    model.leave(last);
    assert_eq!(model.first(), [second, reader]);
}

#[test]
fn a_writer_whose_words_others_write_goes_after_them() {
    let mut model = ListModel::default();
    let reader = model.join(&new_thread(), &[(0, false), (1, true)]);
    let writer = model.join(&new_thread(), &[(0, true), (1, true)]);
    assert_eq!(model.first(), [reader], "the reader writes a storage of the writer");
    model.leave(reader);
    assert_eq!(model.first(), [writer]);
}

#[test]
fn reserved_words_have_a_bounded_number_of_readers_and_those_that_wait_longest_are_first() {
    let (mut model, trainer) = (ListModel::default(), new_thread());
    let mut waiting: Vec<u64> = (0..3).map(|_| model.join(&new_thread(), READ)).collect();
    let writer = model.join(&trainer, WRITE);
    model.leave(writer);
    assert_eq!(model.first(), waiting);
    waiting.extend((0..10).map(|_| model.join(&new_thread(), READ)));
    assert_eq!(model.first(), waiting[..ADMITTED]);
    waiting.drain(..ADMITTED).for_each(|reader| model.leave(reader));
    assert_eq!(model.first(), []);
    // The owner may read its words.
    let own = model.join(&trainer, READ);
    assert_eq!(model.first(), [own]);
    model.leave(own);
    // Its next write admits the next readers.
    let writer = model.join(&trainer, WRITE);
    model.leave(writer);
    assert_eq!(model.first(), waiting[..ADMITTED]);
    // A reservation holds up no other writer, which takes its place.
    let (other, claims) = (model.join(&new_thread(), WRITE), model.claims(READ));
    assert_eq!(model.first(), [other]);
    model.leave(other);
    assert_eq!(model.list.reservations.len(), 1);
    assert!(model.list.reservation(&claims, &trainer, model.now).is_some());
}

#[test]
fn a_writer_does_not_wait_for_readers_that_its_reservation_holds_up() {
    let (mut model, trainer) = (ListModel::default(), new_thread());
    let writer = model.join(&trainer, WRITE);
    model.leave(writer);
    (0..ADMITTED).for_each(|_| {
        let reader = model.join(&new_thread(), READ);
        model.leave(reader);
    });
    let held_up = model.join(&new_thread(), READ);
    let both = model.join(&new_thread(), &[(0, false), (1, false)]);
    for _ in 0..OVERTAKINGS {
        let writer = model.join(&new_thread(), &[(1, true)]);
        model.leave(writer);
    }
    assert_eq!(model.first(), [both]);
    let writer = model.join(&trainer, WRITE);
    assert_eq!(model.first(), [held_up, both]);
    [held_up, both].into_iter().for_each(|reader| model.leave(reader));
    assert_eq!(model.first(), [writer]);
}

#[test]
fn the_words_of_a_thread_that_returns_at_once_are_reserved_from_the_write_on() {
    let (mut model, trainer) = (ListModel::default(), new_thread());
    for gap in [us(0), us(60), SHORT_GAP] {
        for _ in 0..2 * GAPS {
            model.write(&trainer, us(1000));
            model.now += gap;
        }
        model.write(&trainer, us(1000));
        // The last acquisition began a millisecond ago.
        let end = us(1000) + 3 * gap + GRACE;
        assert!(model.is_reserved(us(0)) && model.is_reserved(end - us(1)) && !model.is_reserved(end), "{gap:?}");
    }
}

#[test]
fn a_thread_that_pauses_holds_up_no_reader_before_it_is_expected() {
    let (mut model, trainer) = (ListModel::default(), new_thread());
    for gap in [us(300), us(500), LONGEST_GAP] {
        for k in 0..=2 * GAPS {
            model.write(&trainer, us(20));
            // A gap that is longer than the others changes nothing.
            model.now += if k % 2 == 1 { gap } else { us(10_000) };
        }
        model.write(&trainer, us(20));
        let term = gap.mul_f64(RETURN)..us(20) + 3 * gap + GRACE;
        assert!(!model.is_reserved(us(0)) && !model.is_reserved(term.start - us(1)), "{gap:?}");
        assert!(model.is_reserved(term.start) && model.is_reserved(term.end - us(1)), "{gap:?}");
        assert!(!model.is_reserved(term.end), "{gap:?}");
    }
    // The words of a thread that pauses longer are not reserved at all.
    for _ in 0..=2 * GAPS {
        model.write(&trainer, us(20));
        model.now += us(10_000);
    }
    model.write(&trainer, us(20));
    assert!((0..100_000).all(|pause| !model.is_reserved(us(pause))));
    assert!(!model.list.reservations[0].is_active, "its words cost readers no look at the list");
    // They are again after one short gap, also if its start is unknown, because the words were not listed.
    model.list.reservations[0].released = None;
    model.write(&trainer, us(20));
    assert!(model.is_reserved(us(0)));
}

#[test]
fn one_of_several_writes_is_followed_by_a_probe_whether_the_gap_is_short() {
    let (mut model, trainer) = (ListModel::default(), new_thread());
    for pause in [us(500), us(10_000)] {
        for _ in 0..=2 * GAPS {
            model.write(&trainer, us(20));
            model.now += pause;
        }
        let mut probes = 0;
        for _ in 0..GAPS {
            model.write(&trainer, us(20));
            let is_probe = model.is_reserved(us(0));
            assert_eq!(model.is_reserved(SHORT_GAP - us(1)), is_probe);
            assert!(!model.is_reserved(SHORT_GAP));
            probes += usize::from(is_probe);
            model.now += pause;
        }
        assert_eq!(probes, 1);
    }
    // Readers make a thread late, except if they are held up.
    let mut reserved = 0;
    for _ in 0..2 * GAPS {
        model.write(&trainer, us(20));
        let is_reserved = model.is_reserved(us(0));
        reserved += usize::from(is_reserved);
        model.now += if is_reserved { us(2) } else { us(1000) };
    }
    assert!(reserved > GAPS, "only {reserved} of {} writes", 2 * GAPS);
}

#[test]
fn a_thread_that_reads_its_own_words_needs_no_new_reservation() {
    let (mut model, trainer) = (ListModel::default(), new_thread());
    model.write(&trainer, us(20));
    let own = model.join(&trainer, READ);
    model.leave(own);
    assert!(!model.list.reservations[0].has_readers);
    let other = model.join(&new_thread(), READ);
    model.leave(other);
    assert!(model.list.reservations[0].has_readers);
}

#[test]
fn the_gaps_of_a_bounded_number_of_words_are_known() {
    let (mut list, threads) = (WaitList::new(), [new_thread(), new_thread()]);
    let storages: Vec<BorrowWord> = (0..2 * RESERVATIONS).map(|_| BorrowWord::default()).collect();
    for (storage, thread) in storages.iter().zip(threads.iter().cycle()) {
        let claims = list.claims([(storage, true)].into_iter());
        let writer = list.join(claims, thread.clone(), us(0));
        list.leave(writer, us(0));
    }
    assert_eq!(list.reservations.len(), RESERVATIONS);
    let last = list.claims(storages.iter().rev().take(1).map(|storage| (storage, false)));
    assert!(list.reservation(&last, &new_thread(), us(0)).is_some());
}

/// The standard library's atomics, with a list of their own and counts of sleeps.
struct Counted;

static LISTED: AtomicU64 = AtomicU64::new(0);
static WAITED: AtomicU64 = AtomicU64::new(0);
static WAITERS: Mutex<WaitList> = Mutex::new(WaitList::new());
static SLEEPS: AtomicUsize = AtomicUsize::new(0);
static WOKEN: AtomicUsize = AtomicUsize::new(0);

impl Atomics for Counted {
    type Holders = AtomicU32;
    type Writes = AtomicU64;

    const SPINS: usize = Native::SPINS;

    fn spin() {
        Native::spin();
    }

    fn now() -> Duration {
        Native::now()
    }

    fn bit(word: usize) -> u64 {
        Native::bit(word)
    }

    fn listed() -> u64 {
        LISTED.load(SeqCst)
    }

    fn waited() -> u64 {
        WAITED.load(SeqCst)
    }

    fn set_masks(listed: u64, waited: u64) {
        LISTED.store(listed, SeqCst);
        WAITED.store(waited, SeqCst);
    }

    fn with_waiters<R>(f: impl FnOnce(&mut WaitList) -> R) -> R {
        f(&mut WAITERS.lock().unwrap())
    }

    fn held() -> usize {
        Native::held()
    }

    fn set_held(guards: usize) {
        Native::set_held(guards);
    }

    fn parker() -> Arc<Parker> {
        Native::parker()
    }

    fn park(parker: &Parker, time: Duration) -> bool {
        let is_woken = parker.park(time);
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
                acquire(words.into_iter());
                release(words.into_iter());
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
