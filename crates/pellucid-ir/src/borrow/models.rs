//! Tests of the borrow protocol with the model checker loom.
//!
//! It explores every interleaving of two or three threads with a bounded number of preemptions, and all values that the
//! memory orders allow a load to return.

use super::guard::OperandWords;
use super::*;
use loom::cell::Cell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32 as LoomU32, AtomicU64 as LoomU64};
use loom::thread;

struct Loom;

atomics!(LoomU32, LoomU64);

loom::lazy_static! {
    static ref LOOM_WAITED: LoomU64 = LoomU64::new(0);
    static ref LOOM_WAITERS: loom::sync::Mutex<WaitList> = loom::sync::Mutex::new(WaitList::new());
}

loom::thread_local! {
    static LOOM_HELD: std::cell::Cell<usize> = std::cell::Cell::new(0);
    static LOOM_PARKER: std::sync::Arc<Parker> = std::sync::Arc::default();
}

impl Atomics for Loom {
    type ReaderCount = LoomU32;
    type Version = LoomU64;

    const PATIENCE: usize = 1;

    fn yield_now() {
        thread::yield_now();
    }

    fn pause() {
        thread::yield_now();
    }

    /// All words share one bit, because their addresses differ between interleavings.
    fn filter_bit(_word: usize) -> u64 {
        1
    }

    fn waited() -> u64 {
        LOOM_WAITED.load(Ordering::Relaxed)
    }

    fn set_waited(mask: u64) {
        LOOM_WAITED.store(mask, Ordering::SeqCst);
    }

    fn with_waiters<R>(f: impl FnOnce(&mut WaitList) -> R) -> R {
        f(&mut LOOM_WAITERS.lock().unwrap())
    }

    fn held_count() -> usize {
        LOOM_HELD.with(std::cell::Cell::get)
    }

    fn set_held(guards: usize) {
        LOOM_HELD.with(|held| held.set(guards));
    }

    fn parker() -> std::sync::Arc<Parker> {
        LOOM_PARKER.with(std::sync::Arc::clone)
    }

    /// Models a sleep that ends without an `unpark`: returns false, as if the time limit had passed.
    fn park(_parker: &Parker) -> bool {
        thread::yield_now();
        false
    }
}

/// A storage whose contents are the number of its writes. The checker fails if a write is not ordered with another
/// access to the contents.
#[derive(Default)]
struct Contents {
    word: BorrowWord<Loom>,
    version: Version<Loom>,
    writes: Cell<u64>,
}

impl StorageOperand for &Contents {}

impl Borrowed for &Contents {
    type Atomics = Loom;
    fn borrow_word(&self) -> &BorrowWord<Loom> {
        &self.word
    }
    fn version_word(&self) -> &Version<Loom> {
        &self.version
    }
}

impl Contents {
    /// Reads the storage like a kernel, and checks that the version equals the contents.
    fn check(&self) {
        assert_eq!(self.version.get(), self.writes.get(), "the version must equal the contents");
    }

    /// Overwrites the storage like a kernel. The guard counts the write.
    fn overwrite(&self) {
        self.check();
        self.writes.set(self.writes.get() + 1);
    }

    /// Checks after all kernels that no thread holds the word, and that no write is lost.
    fn finish(&self, writes: u64) {
        assert!(self.word.try_write(), "every borrow word must be released when all threads have ended");
        self.check();
        assert_eq!(self.writes.get(), writes);
    }
}

/// Explores every interleaving with at most `preemptions` preemptions.
fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// Calls a function with a shared value on a new thread.
fn spawn_with<S: 'static, R: 'static>(shared: &Arc<S>, f: impl FnOnce(&S) -> R + 'static) -> thread::JoinHandle<R> {
    let shared = shared.clone();
    thread::spawn(move || f(&shared))
}

/// The number of attempts of a kernel to acquire its words. Without a bound there would be infinitely many
/// interleavings.
const ATTEMPTS: usize = 2;

/// Runs a kernel once its words are acquired. Returns false if it has not acquired them in [`ATTEMPTS`] attempts.
fn run_kernel(inputs: &[&Contents], outputs: &[&Contents]) -> bool {
    for _ in 0..ATTEMPTS {
        if let Some(guard) = BorrowGuard::try_acquire(inputs, outputs) {
            inputs.iter().for_each(|input| input.check());
            outputs.iter().for_each(|output| output.overwrite());
            guard.count_writes();
            return true;
        }
        Loom::yield_now();
    }
    false
}

fn write(storage: &Contents) -> bool {
    run_kernel(&[], &[storage])
}

fn read(storage: &Contents) -> bool {
    run_kernel(&[storage], &[])
}

#[test]
fn a_reader_sees_one_state_and_its_version() {
    explore(4, || {
        let storage = Arc::new(Contents::default());
        let writer = spawn_with(&storage, write);
        read(&storage);
        read(&storage);
        storage.finish(u64::from(writer.join().unwrap()));
    });
}

#[test]
fn a_reader_that_waits_sees_the_write() {
    explore(4, || {
        let storage = Arc::new(Contents::default());
        let writer = spawn_with(&storage, |storage| drop(BorrowGuard::acquire(&[], &[storage])));
        let inputs = [&*storage];
        let guard = BorrowGuard::acquire(&inputs, &[]);
        storage.check();
        drop(guard);
        writer.join().unwrap();
        storage.finish(0);
    });
}

#[test]
fn writers_exclude_one_another_and_readers() {
    explore(2, || {
        let storage = Arc::new(Contents::default());
        let others = [write, read].map(|kernel: fn(&Contents) -> bool| spawn_with(&storage, kernel));
        let mut writes = u64::from(write(&storage));
        let [writer, reader] = others.map(|t| t.join().unwrap());
        writes += u64::from(writer);
        // The kernels cannot all fail: a word is held only while another kernel runs.
        assert!(writes > 0 || reader);
        storage.finish(writes);
    });
}

#[test]
fn readers_share_a_word_and_the_last_one_frees_it() {
    explore(3, || {
        let storage = Arc::new(Contents::default());
        // Readers alone never wait.
        let read = |storage: &Contents| assert!(BorrowGuard::try_acquire(&[storage], &[]).is_some());
        let readers = [(); 2].map(|()| spawn_with(&storage, read));
        readers.into_iter().for_each(|t| t.join().unwrap());
        storage.finish(0);
    });
}

#[test]
fn two_storages_in_opposite_orders_block_no_thread() {
    explore(3, || {
        let storages = Arc::new([Contents::default(), Contents::default()]);
        // An output that is an input too is held once.
        let add = |from: usize, to: usize, storages: &[Contents; 2]| {
            run_kernel(&[&storages[from], &storages[to]], &[&storages[to]])
        };
        let other = spawn_with(&storages, move |storages| add(0, 1, storages));
        let own = add(1, 0, &storages);
        let other = other.join().unwrap();
        storages[0].finish(u64::from(own));
        storages[1].finish(u64::from(other));
    });
}

#[test]
fn a_batch_waits_until_it_acquires_all_words() {
    explore(3, || {
        let storages = Arc::new([Contents::default(), Contents::default(), Contents::default()]);
        let other = spawn_with(&storages, |storages| write(&storages[2]));
        // The kernel has two sets of operands. Each set has a target and an input.
        let operands = [&storages[0], &storages[1], &storages[2], &storages[1]];
        let guard = BatchBorrowGuard::acquire(&operands, 2, 1).expect("no target must share its storage");
        storages[1].check();
        storages[0].overwrite();
        storages[2].overwrite();
        guard.count_writes();
        drop(guard);
        let other_writes = u64::from(other.join().unwrap());
        storages[0].finish(1);
        storages[1].finish(0);
        storages[2].finish(1 + other_writes);
    });
}

#[test]
fn operands_that_are_no_sets_are_rejected() {
    explore(1, || {
        let storages = [Contents::default(), Contents::default(), Contents::default()];
        let operands = storages.each_ref();
        for (count, set, targets) in [(0, 0, 0), (1, 0, 0), (3, 2, 1), (2, 2, 3), (1, 2, 1)] {
            assert!(BatchBorrowGuard::acquire(&operands[..count], set, targets).is_none(), "{count} {set} {targets}");
        }
        let empty = BatchBorrowGuard::acquire(&operands[..0], 2, 1).expect("a batch may have no set");
        empty.count_writes();
        assert_eq!(empty.sets().len(), 0);
    });
}

#[test]
fn a_target_that_shares_its_storage_is_rejected() {
    explore(1, || {
        let storage = Contents::default();
        assert!(BatchBorrowGuard::acquire(&[&storage, &storage], 2, 1).is_none());
        storage.finish(0);
    });
}

#[test]
fn a_storage_of_several_operands_is_held_once() {
    explore(1, || {
        let (a, b) = (Contents::default(), Contents::default());
        assert!(run_kernel(&[&a, &b, &a], &[&b]));
        let (inputs, outputs) = ([&b], [&b, &b]);
        let guard =
            BorrowGuard::try_acquire(&inputs, &outputs).expect("acquiring must succeed because no other kernel runs");
        assert!(BorrowGuard::try_acquire(&[&b], &[]).is_none());
        drop(guard);
        a.finish(0);
        b.finish(1);
    });
}

#[test]
fn a_reader_does_not_overtake_a_writer_that_waits() {
    explore(2, || {
        let storage = Arc::new(Contents::default());
        let inputs = [&*storage];
        let held = BorrowGuard::acquire(&inputs, &[]);
        let writer = spawn_with(&storage, |storage| drop(BorrowGuard::acquire(&[], &[storage])));
        let reader = spawn_with(&storage, |storage| {
            let is_waited_for = Loom::waited() != 0;
            let is_acquired = BorrowGuard::try_acquire(&[storage], &[]).is_some();
            assert!(!(is_waited_for && is_acquired), "a reader must not acquire the word while a writer waits for it");
        });
        reader.join().unwrap();
        drop(held);
        writer.join().unwrap();
        storage.finish(0);
    });
}

#[test]
fn a_thread_that_reads_may_read_again_while_a_writer_waits() {
    explore(3, || {
        let storage = Arc::new(Contents::default());
        let inputs = [&*storage];
        let held = BorrowGuard::acquire(&inputs, &[]);
        let writer = spawn_with(&storage, |storage| drop(BorrowGuard::acquire(&[], &[storage])));
        drop(BorrowGuard::acquire(&inputs, &[]));
        assert!(BorrowGuard::try_acquire(&inputs, &[]).is_some());
        drop(held);
        writer.join().unwrap();
        storage.finish(0);
    });
}

#[test]
fn kernels_that_wait_in_opposite_orders_are_all_served() {
    explore(2, || {
        let storages = Arc::new([Contents::default(), Contents::default()]);
        let add = |from: usize, to: usize, storages: &[Contents; 2]| {
            let (inputs, outputs) = ([&storages[from]], [&storages[to]]);
            let guard = BorrowGuard::acquire(&inputs, &outputs);
            storages[from].check();
            storages[to].overwrite();
            guard.count_writes();
        };
        let other = spawn_with(&storages, move |storages| add(0, 1, storages));
        add(1, 0, &storages);
        other.join().unwrap();
        storages.iter().for_each(|storage| storage.finish(1));
    });
}

/// Waits for a storage, checks it, and overwrites it if the kernel is a writer.
fn run_in_turn(storage: &Contents, writes: bool) {
    let operand = [storage];
    let (inputs, outputs): (&[_], &[_]) = if writes { (&[], &operand) } else { (&operand, &[]) };
    let guard = BorrowGuard::acquire(inputs, outputs);
    storage.check();
    if writes {
        storage.overwrite();
        guard.count_writes();
    }
}

#[test]
fn a_reader_and_a_writer_that_returns_at_once_are_both_served() {
    explore(2, || {
        let storage = Arc::new(Contents::default());
        let reader = spawn_with(&storage, |storage| run_in_turn(storage, false));
        (0..3).for_each(|_| run_in_turn(&storage, true));
        reader.join().unwrap();
        storage.finish(3);
    });
}

#[test]
fn readers_and_a_writer_that_returns_are_all_served() {
    explore(1, || {
        let storage = Arc::new(Contents::default());
        let readers = [(); 2].map(|()| spawn_with(&storage, |storage| run_in_turn(storage, false)));
        (0..2).for_each(|_| run_in_turn(&storage, true));
        readers.into_iter().for_each(|t| t.join().unwrap());
        storage.finish(2);
    });
}

/// Reserves the storage for this thread, and uses up all admissions of readers.
fn reserve(storage: &Contents) {
    Loom::with_waiters(|list| {
        let claims = list.claims(OperandWords { inputs: &[], outputs: &[storage] });
        let writer = list.join(claims, Loom::parker());
        list.leave(writer);
        for _ in 0..100 {
            let claims = list.claims(OperandWords { inputs: &[storage], outputs: &[] });
            let reader = list.join(claims, std::sync::Arc::default());
            list.leave(reader);
        }
        list.publish::<Loom>();
    });
}

#[test]
fn a_reader_is_served_although_the_owner_of_a_reservation_does_not_write_again() {
    explore(3, || {
        let storage = Arc::new(Contents::default());
        reserve(&storage);
        let reader = spawn_with(&storage, |storage| run_in_turn(storage, false));
        // The owner may read.
        assert!(read(&storage));
        reader.join().unwrap();
        storage.finish(0);
    });
}

#[test]
fn a_reservation_holds_up_readers_until_the_owner_writes_again() {
    explore(2, || {
        let storage = Arc::new(Contents::default());
        reserve(&storage);
        assert!(spawn_with(&storage, |storage| !read(storage)).join().unwrap());
        let reader = spawn_with(&storage, |storage| run_in_turn(storage, false));
        run_in_turn(&storage, true);
        reader.join().unwrap();
        storage.finish(1);
    });
}
