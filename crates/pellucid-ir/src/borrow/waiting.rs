//! The order of threads that wait for borrow words.
//!
//! A kernel that fails to acquire a borrow word is added to a wait list. If two kernels need the same word and at least
//! one of them writes it, the kernel that is earlier in the list runs first. A kernel that does not wait yet comes
//! after all of them. A kernel joins at the end, but a writer overtakes the readers in the list; each reader is
//! overtaken at most [`OVERTAKINGS`] times. So no series of readers can delay a writer indefinitely, nor a series of
//! writers a reader, and readers between two writers run concurrently.
//!
//! A thread that trains a model acquires its words repeatedly. If all readers ran as soon as a write ends, the
//! operating system could let each of them run for a time slice, hundreds of reads, before it returns to the writer.
//! The words of a writer that had to wait therefore stay *reserved* for its thread: until it writes them again, only
//! [`ADMITTED`] readers may read them. The others sleep, except readers that were overtaken [`OVERTAKINGS`] times. A
//! reservation ends when its words are written again and no reader has arrived since, when the reservation of another
//! writer replaces it, or when a reader has slept [`Atomics::PATIENCE`] times without a write.
//!
//! An acquisition first loads a mask of the words in the list. If its words are not in the mask, no kernel waits for
//! them and no thread has reserved them. A thread that holds words already does not join the list, because a kernel in
//! the list may wait for these words.

use super::{Atomics, BorrowWord, try_all, wake_waiters};
use crate::lock;
use std::cmp::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The words of a kernel, each with a flag that is true if the kernel writes it.
pub(super) trait BorrowWords<'w, A: Atomics + 'w>: Copy {
    /// Calls `f` with each word in turn until `f` returns false. Returns true if `f` returned true for every word.
    fn all(self, f: impl FnMut(&'w BorrowWord<A>, bool) -> bool) -> bool;
}

/// The words of a kernel: the address of each, and whether the kernel writes it. Addresses ascend and are unique.
type Claims = Vec<(usize, bool)>;

/// The kernels that wait, in the order in which they run, and the reserved words.
#[derive(Default)]
pub struct WaitList {
    waiters: Vec<Waiter>,
    reservations: Vec<Reservation>,
    tickets: u64,
    /// The memory of earlier claims, so that repeated waiting does not allocate.
    spare: Vec<Claims>,
}

/// A kernel that waits.
struct Waiter {
    ticket: u64,
    claims: Claims,
    parker: Arc<Parker>,
    /// The number of writers that joined the list later and overtook this kernel.
    overtaken: usize,
    /// Whether the kernel may read reserved words.
    is_admitted: bool,
}

/// The words that a thread has written, and is expected to write again.
struct Reservation {
    ticket: u64,
    claims: Claims,
    owner: Arc<Parker>,
    /// The number of readers that may still be admitted.
    admissions: usize,
}

impl WaitList {
    /// Creates an empty list.
    pub const fn new() -> WaitList {
        WaitList { waiters: Vec::new(), reservations: Vec::new(), tickets: 0, spare: Vec::new() }
    }

    pub(super) fn claims<'w, A: Atomics + 'w>(&mut self, words: impl BorrowWords<'w, A>) -> Claims {
        self.claims_of(words, |_| true)
    }

    /// Returns the claims of a kernel for the words for which `counts` returns true.
    fn claims_of<'w, A: Atomics + 'w>(
        &mut self,
        words: impl BorrowWords<'w, A>,
        counts: impl Fn(&BorrowWord<A>) -> bool,
    ) -> Claims {
        let mut claims = self.spare.pop().unwrap_or_default();
        words.all(|word, writes| {
            claims.extend(counts(word).then_some((address(word), writes)));
            true
        });
        // Among claims of the same word, the claim to write comes first and is kept.
        claims.sort_unstable_by_key(|&(word, writes)| (word, !writes));
        claims.dedup_by_key(|(word, _)| *word);
        claims
    }

    fn recycle(&mut self, mut claims: Claims) {
        claims.clear();
        self.spare.push(claims);
    }

    /// Returns true if one of the first `before` kernels of the list must run before a kernel with these claims.
    fn conflicts(&self, before: usize, claims: &Claims) -> bool {
        self.waiters[..before].iter().any(|waiter| claims_conflict(&waiter.claims, claims))
    }

    /// Returns the index of a reservation of another thread for a word that these claims read.
    fn reservation(&self, claims: &Claims, parker: &Arc<Parker>) -> Option<usize> {
        let blocks = |reservation: &Reservation| {
            !Arc::ptr_eq(&reservation.owner, parker) && claims_read(claims, &reservation.claims)
        };
        self.reservations.iter().position(blocks)
    }

    /// Returns the index of the reservation that blocks a kernel of the list.
    fn reservation_before(&self, waiter: &Waiter) -> Option<usize> {
        let is_exempt = waiter.is_admitted || waiter.overtaken >= OVERTAKINGS;
        if is_exempt { None } else { self.reservation(&waiter.claims, &waiter.parker) }
    }

    fn position(&self, ticket: u64) -> usize {
        self.waiters.iter().position(|waiter| waiter.ticket == ticket).expect("a kernel must wait until it is removed")
    }

    /// Adds a kernel, before the readers that it may overtake. Returns its ticket.
    pub(super) fn join(&mut self, claims: Claims, parker: Arc<Parker>) -> u64 {
        let may_pass = |waiter: &Waiter| {
            !claims_conflict(&waiter.claims, &claims)
                || (waiter.overtaken < OVERTAKINGS && !claims_overlap(&waiter.claims, &claims, |writes, _| writes))
        };
        let passed = self.waiters.iter().rposition(|waiter| !may_pass(waiter)).map_or(0, |last| last + 1);
        let overtaken = self.waiters[passed..].iter().position(|waiter| claims_conflict(&waiter.claims, &claims));
        let position = overtaken.map_or(self.waiters.len(), |first| passed + first);
        for (k, waiter) in
            self.waiters.iter_mut().enumerate().filter(|(_, waiter)| claims_conflict(&waiter.claims, &claims))
        {
            waiter.overtaken += usize::from(k >= position);
            // A kernel earlier in the list must not wait for the next write of this kernel's thread.
            waiter.is_admitted |= k < position;
        }
        let admitting = self.reservation(&claims, &parker).map(|k| &mut self.reservations[k]);
        let is_admitted = admitting
            .filter(|reservation| reservation.admissions > 0)
            .map(|reservation| reservation.admissions -= 1)
            .is_some();
        self.tickets += 1;
        self.waiters.insert(position, Waiter { ticket: self.tickets, claims, parker, overtaken: 0, is_admitted });
        self.tickets
    }

    /// Removes a kernel that has acquired its words. The words that it writes are reserved, and the readers that have
    /// waited longest are admitted.
    pub(super) fn leave(&mut self, ticket: u64) {
        let index = self.position(ticket);
        let Waiter { mut claims, parker: owner, .. } = self.waiters.remove(index);
        claims.retain(|&(_, writes)| writes);
        if claims.is_empty() {
            return self.recycle(claims);
        }
        self.end_reservations(|reservation| claims_conflict(&reservation.claims, &claims));
        let readers = self.waiters.iter_mut().filter(|waiter| claims_read(&waiter.claims, &claims));
        let admitted = readers.take(ADMITTED).map(|reader| reader.is_admitted = true).count();
        self.reservations.push(Reservation { ticket, claims, owner, admissions: ADMITTED - admitted });
    }

    fn end_reservations(&mut self, ends: impl Fn(&Reservation) -> bool) {
        while let Some(k) = self.reservations.iter().position(&ends) {
            let ended = self.reservations.swap_remove(k);
            self.recycle(ended.claims);
        }
    }

    /// Publishes the mask of the words that the list contains.
    pub(super) fn publish<A: Atomics>(&self) {
        let waiting = self.waiters.iter().map(|waiter| &waiter.claims);
        let claims = waiting.chain(self.reservations.iter().map(|reservation| &reservation.claims)).flatten();
        A::set_waited(claims.fold(0, |mask, &(word, _)| mask | A::filter_bit(word)));
    }
}

/// Returns true if a word is in both lists and `counts` returns true for it. The arguments of `counts` are whether
/// kernel `a` and kernel `b` write the word.
fn claims_overlap(a: &Claims, b: &Claims, counts: impl Fn(bool, bool) -> bool) -> bool {
    let (mut i, mut k) = (0, 0);
    while let (Some(&(one, writes)), Some(&(other, also_writes))) = (a.get(i), b.get(k)) {
        match one.cmp(&other) {
            Ordering::Equal if counts(writes, also_writes) => return true,
            Ordering::Equal => (i, k) = (i + 1, k + 1),
            Ordering::Less => i += 1,
            Ordering::Greater => k += 1,
        }
    }
    false
}

/// Returns true if two kernels with these claims cannot run concurrently.
fn claims_conflict(a: &Claims, b: &Claims) -> bool {
    claims_overlap(a, b, |a, b| a || b)
}

/// Returns true if a kernel with these claims reads, but does not write, one of the words `written`.
fn claims_read(claims: &Claims, written: &Claims) -> bool {
    claims_overlap(claims, written, |writes, _| !writes)
}

fn address<A: Atomics>(word: &BorrowWord<A>) -> usize {
    std::ptr::from_ref(word).addr()
}

/// Returns true if each word that the kernel writes occurs only once.
#[cold]
pub(super) fn are_targets_unique<'w, A: Atomics + 'w>(words: impl BorrowWords<'w, A>) -> bool {
    let mut claims = Claims::new();
    words.all(|word, writes| {
        claims.push((address(word), writes));
        true
    });
    claims.sort_unstable();
    claims.windows(2).all(|pair| pair[0].0 != pair[1].0 || !pair[1].1)
}

/// Tries to acquire all words. Returns false, and holds none, if a word is held or a kernel of the list has priority.
#[cold]
pub(super) fn try_next<'w, A: Atomics + 'w>(words: impl BorrowWords<'w, A>) -> bool {
    if !is_next(words) {
        return false;
    }
    let is_acquired = try_all(words);
    if !is_acquired {
        wake_waiters(words);
    }
    is_acquired
}

/// Returns true if a kernel may acquire these words before all kernels of the list. In this case, ends the reservations
/// of the words that the kernel writes.
fn is_next<'w, A: Atomics + 'w>(words: impl BorrowWords<'w, A>) -> bool {
    let waited = A::waited();
    if words.all(|word, _| waited & A::filter_bit(address(word)) == 0) || A::held_count() > 0 {
        return true;
    }
    let parker = A::parker();
    A::with_waiters(|list| {
        let claims = list.claims(words);
        let mut is_next = !list.conflicts(list.waiters.len(), &claims) && list.reservation(&claims, &parker).is_none();
        let mut own = list
            .reservations
            .iter()
            .filter(|reservation| claims_overlap(&reservation.claims, &claims, |_, writes| writes));
        if is_next && own.any(|reservation| reservation.admissions < ADMITTED) {
            // Readers have arrived since the last write, so the kernel must join the list, which reserves its words
            // again.
            is_next = false;
        } else if is_next {
            list.end_reservations(|reservation| claims_overlap(&reservation.claims, &claims, |_, writes| writes));
            list.publish::<A>();
        }
        list.recycle(claims);
        is_next
    })
}

/// Acquires all words. Waits until it is the kernel's turn and the words are free.
#[cold]
pub(super) fn wait<'w, A: Atomics + 'w>(words: impl BorrowWords<'w, A>) {
    if A::held_count() > 0 {
        while !try_all(words) {
            wake_waiters(words);
            A::yield_now();
        }
        return;
    }
    let parker = A::parker();
    let ticket = A::with_waiters(|list| {
        let claims = list.claims(words);
        let ticket = list.join(claims, parker.clone());
        list.publish::<A>();
        ticket
    });
    // The reservation that blocks the kernel, and how often the kernel has slept since this reservation began to block
    // it.
    let (mut reserved, mut sleeps) = (None, 0);
    for attempt in 0.. {
        // The list is locked during an attempt, so a failing attempt never makes an attempt of another kernel of the
        // list fail, and need not wake a kernel.
        let is_acquired = A::with_waiters(|list| {
            if sleeps >= A::PATIENCE {
                list.end_reservations(|reservation| Some(reservation.ticket) == reserved);
            }
            let index = list.position(ticket);
            let waiter = &list.waiters[index];
            let reservation = list.reservation_before(waiter).map(|k| list.reservations[k].ticket);
            if reservation != reserved {
                (reserved, sleeps) = (reservation, 0);
            }
            let is_acquired = reserved.is_none() && !list.conflicts(index, &waiter.claims) && try_all(words);
            if is_acquired {
                list.leave(ticket);
                list.publish::<A>();
            }
            is_acquired
        });
        if is_acquired {
            return;
        }
        // A thread that yields on a loaded machine gives another process a time slice of milliseconds.
        if attempt < PAUSES {
            A::pause();
        } else if !A::park(&parker) {
            sleeps += 1;
        }
    }
}

/// Wakes each kernel that waits for one of these words, if the word is free and it is the kernel's turn.
#[cold]
pub(super) fn wake<'w, A: Atomics + 'w>(words: impl BorrowWords<'w, A>) {
    let mut woken = Vec::new();
    A::with_waiters(|list| {
        let claims = list.claims_of(words, BorrowWord::is_free);
        for (k, waiter) in list.waiters.iter().enumerate() {
            if claims_overlap(&waiter.claims, &claims, |_, _| true)
                && !list.conflicts(k, &waiter.claims)
                && list.reservation_before(waiter).is_none()
            {
                woken.push(waiter.parker.clone());
            }
        }
        list.recycle(claims);
    });
    // Waking a thread may cost this thread its core, so the list is unlocked first.
    woken.iter().for_each(|parker| parker.unpark());
}

/// The number of writers that may overtake a waiting reader.
const OVERTAKINGS: usize = 3;

/// The number of readers that may read reserved words between two writes.
const ADMITTED: usize = 4;

/// The number of attempts after which a waiting thread sleeps instead of pausing.
const PAUSES: usize = 4;

/// The longest time for which a kernel sleeps before it tries again. It is short because a release may miss a kernel
/// that joins the list at the same time: the release reads the mask of the list without a fence.
const LONGEST_SLEEP: Duration = Duration::from_micros(200);

/// Blocks a thread until another thread wakes it, or the longest sleep has passed.
#[derive(Debug, Default)]
pub struct Parker {
    state: Mutex<ParkerState>,
    condvar: Condvar,
}

#[derive(Debug, Default)]
struct ParkerState {
    is_asleep: bool,
    is_woken: bool,
}

impl Parker {
    fn state(&self) -> MutexGuard<'_, ParkerState> {
        lock(&self.state)
    }

    /// Sleeps until another thread calls `unpark` or a short time has passed. Returns false if the time has passed.
    pub fn park(&self) -> bool {
        let mut state = self.state();
        state.is_asleep = true;
        let sleep = self.condvar.wait_timeout_while(state, LONGEST_SLEEP, |state| !state.is_woken);
        std::mem::take(&mut *sleep.unwrap_or_else(PoisonError::into_inner).0).is_woken
    }

    /// Wakes the thread, or ends its next sleep immediately.
    fn unpark(&self) {
        let mut state = self.state();
        let notifies = state.is_asleep && !state.is_woken;
        state.is_woken = true;
        drop(state);
        // A notification is a system call even if no thread sleeps.
        if notifies {
            self.condvar.notify_one();
        }
    }
}

#[cfg(test)]
mod tests;
