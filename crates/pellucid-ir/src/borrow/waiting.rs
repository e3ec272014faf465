//! The order of threads that wait for borrow words.
//!
//! A kernel that finds a word taken joins a list. Of two kernels that need one word, and of which at least one writes
//! it, the one that is earlier in the list is first; a kernel that does not wait yet comes after all of them. A kernel
//! joins at the end, but a writer goes before readers that wait, before each of them at most [`OVERTAKINGS`] times. So
//! no series of readers can hold up a writer, nor a series of writers a reader, and readers between two writers run at
//! once.
//!
//! A thread that trains a model returns to its words again and again. If all readers ran as soon as a write ends, the
//! operating system could let each of them run for a time slice, hundreds of reads, before it returns to the writer.
//! The words of a writer that had to wait are thus *reserved* for its thread. While they are, only [`ADMITTED`] readers
//! may read them, and the others sleep, which leaves the cores to the writer. The list measures the *gap* from the end
//! of a write to the next one of the same thread, and reserves the words for the time in which that is expected:
//!
//! - from the write on, if the shortest of the last gaps is at most [`SHORT_GAP`];
//! - else from [`RETURN`] of that gap on, so that a writer that is elsewhere holds up no reader;
//! - until three gaps, the time of the write, and [`GRACE`] have passed after it;
//! - not at all if the gap is longer than [`LONGEST_GAP`]: then a time slice costs the writer little;
//! - for [`SHORT_GAP`] at once after one of [`GAPS`] writes, so that a gap that readers made long is found to be short.
//!
//! A reservation also ends when its thread writes again and no reader has come.
//!
//! A kernel that waits looks at its words for about a microsecond, and then sleeps until a release wakes it. It does
//! not yield: on a loaded machine, each call would give another process a time slice of milliseconds.
//!
//! The list is empty while no kernel waits and no word is reserved, which an acquisition and a release find out by one
//! load of a mask of the words in the list. A thread that holds words already does not join the list, since a kernel of
//! the list may wait for these words.

use super::{Atomics, BorrowWord, try_all};
use std::cmp::Ordering;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The words of a kernel, and whether it writes each.
pub(super) trait Words<'w, A: Atomics + 'w>: Iterator<Item = (&'w BorrowWord<A>, bool)> + Clone {}

impl<'w, A: Atomics + 'w, I: Iterator<Item = (&'w BorrowWord<A>, bool)> + Clone> Words<'w, A> for I {}

/// The words of a kernel: for each its address, and whether the kernel writes it. Ascending by address, each once.
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
    /// The number of writers that joined the list later and went before this kernel.
    overtaken: usize,
    /// Whether the kernel may read reserved words.
    is_admitted: bool,
    /// The time at which the kernel joined the list.
    joined: Duration,
}

/// The words that a thread has written, and is expected to write again.
struct Reservation {
    claims: Claims,
    owner: Arc<Parker>,
    /// The times at which the thread has acquired and released the words.
    acquired: Duration,
    released: Option<Duration>,
    gaps: Gaps,
    /// The number of readers that may still be admitted.
    admissions: usize,
    /// Whether readers came since the write.
    has_readers: bool,
    /// Whether the reservation is in force. One that has ended stays in the list for its gaps.
    is_active: bool,
}

impl Reservation {
    /// Returns the time in which readers are held up.
    fn term(&self) -> Range<Duration> {
        let gap = self.gaps.shortest();
        let after = |time| self.released.map_or(Duration::MAX, |released| released + time);
        let hold = self.released.map_or(Duration::ZERO, |released| released - self.acquired);
        if gap <= SHORT_GAP {
            self.acquired..after(hold + 3 * gap + GRACE)
        } else if self.gaps.is_probe() {
            self.acquired..after(SHORT_GAP)
        } else {
            after(gap.mul_f64(RETURN))..after(hold + 3 * gap + GRACE)
        }
    }
}

/// The shortest of the last gaps between two writes of a thread. Most of them may be long: a thread without a core is
/// late, although it does not pause.
#[derive(Clone, Copy)]
struct Gaps {
    /// The shortest of the last gaps, at most [`GAPS`], and of as many before them.
    shortest: [Duration; 2],
    count: usize,
}

impl Gaps {
    const fn new() -> Gaps {
        Gaps { shortest: [Duration::MAX, FIRST_GAP], count: 0 }
    }

    fn shortest(self) -> Duration {
        self.shortest[0].min(self.shortest[1])
    }

    /// Returns true for one of [`GAPS`] writes. Its words are reserved at once: if readers make a thread late, this gap
    /// is short.
    fn is_probe(self) -> bool {
        self.count == 0
    }

    /// Returns true if words are reserved after these gaps.
    fn is_useful(self) -> bool {
        self.shortest() <= LONGEST_GAP || self.is_probe()
    }

    fn add(&mut self, gap: Duration) {
        self.shortest[0] = self.shortest[0].min(gap);
        self.count += 1;
        if self.count == GAPS {
            *self = Gaps { shortest: [Duration::MAX, self.shortest[0]], count: 0 };
        }
    }
}

impl WaitList {
    /// Creates an empty list.
    pub const fn new() -> WaitList {
        WaitList { waiters: Vec::new(), reservations: Vec::new(), tickets: 0, spare: Vec::new() }
    }

    pub(super) fn claims<'w, A: Atomics + 'w>(&mut self, words: impl Words<'w, A>) -> Claims {
        let mut claims = self.spare.pop().unwrap_or_default();
        claims.extend(words.map(|(word, writes)| (address(word), writes)));
        // Of equal addresses, the written one comes first and is kept.
        claims.sort_unstable_by_key(|&(word, writes)| (word, !writes));
        claims.dedup_by_key(|(word, _)| *word);
        claims
    }

    fn recycle(&mut self, mut claims: Claims) {
        claims.clear();
        self.spare.push(claims);
    }

    /// Returns true if one of the first `before` kernels is to run before a kernel with these claims.
    fn conflicts(&self, before: usize, claims: &Claims) -> bool {
        self.waiters[..before].iter().any(|waiter| conflict(&waiter.claims, claims))
    }

    /// Returns a reservation of another thread that now holds up readers of a word that these claims read.
    fn reservation(&self, claims: &Claims, parker: &Arc<Parker>, now: Duration) -> Option<usize> {
        let holds_up = |it: &Reservation| {
            it.is_active && it.term().contains(&now) && !Arc::ptr_eq(&it.owner, parker) && reads(claims, &it.claims)
        };
        self.reservations.iter().position(holds_up)
    }

    /// Returns the time until which a reservation holds up a kernel of the list.
    fn held_up_until(&self, waiter: &Waiter, now: Duration) -> Option<Duration> {
        let is_exempt = waiter.is_admitted || waiter.overtaken >= OVERTAKINGS;
        let reservation = if is_exempt { None } else { self.reservation(&waiter.claims, &waiter.parker, now) };
        reservation.map(|k| self.reservations[k].term().end)
    }

    /// Returns the threads of kernels whose turn it is. Of their words, `counts` holds for at least one.
    fn ready(&self, now: Duration, counts: impl Fn(&Claims) -> bool) -> Vec<Arc<Parker>> {
        let is_ready = |(k, waiter): &(usize, &Waiter)| {
            counts(&waiter.claims) && !self.conflicts(*k, &waiter.claims) && self.held_up_until(waiter, now).is_none()
        };
        self.waiters.iter().enumerate().filter(is_ready).map(|(_, waiter)| waiter.parker.clone()).collect()
    }

    fn position(&self, ticket: u64) -> usize {
        self.waiters.iter().position(|waiter| waiter.ticket == ticket).expect("a kernel must wait until it is removed")
    }

    /// Notes that a thread reads words that are reserved for others.
    fn note_reader(&mut self, claims: &Claims, parker: &Arc<Parker>) {
        let is_read =
            |it: &&mut Reservation| it.is_active && !Arc::ptr_eq(&it.owner, parker) && reads(claims, &it.claims);
        self.reservations.iter_mut().filter(is_read).for_each(|it| it.has_readers = true);
    }

    /// Adds a kernel, before the readers that it may overtake. Returns its ticket.
    pub(super) fn join(&mut self, claims: Claims, parker: Arc<Parker>, now: Duration) -> u64 {
        let may_pass = |waiter: &Waiter| {
            !conflict(&waiter.claims, &claims)
                || (waiter.overtaken < OVERTAKINGS && !overlap(&waiter.claims, &claims, |writes, _| writes))
        };
        let passed = self.waiters.iter().rposition(|waiter| !may_pass(waiter)).map_or(0, |last| last + 1);
        let overtaken = self.waiters[passed..].iter().position(|waiter| conflict(&waiter.claims, &claims));
        let position = overtaken.map_or(self.waiters.len(), |first| passed + first);
        for (k, waiter) in self.waiters.iter_mut().enumerate().filter(|(_, it)| conflict(&it.claims, &claims)) {
            waiter.overtaken += usize::from(k >= position);
            // A kernel must not wait for a reader that waits for the kernel's return.
            waiter.is_admitted |= k < position;
        }
        self.note_reader(&claims, &parker);
        let admitting = self.reservation(&claims, &parker, now).map(|k| &mut self.reservations[k]);
        let is_admitted = admitting.filter(|it| it.admissions > 0).map(|it| it.admissions -= 1).is_some();
        self.tickets += 1;
        let waiter = Waiter { ticket: self.tickets, claims, parker, overtaken: 0, is_admitted, joined: now };
        self.waiters.insert(position, waiter);
        self.tickets
    }

    /// Removes a kernel that has acquired its words. The words that it writes are reserved, and the readers that wait
    /// longest are admitted.
    pub(super) fn leave(&mut self, ticket: u64, now: Duration) {
        let own = self.position(ticket);
        let Waiter { mut claims, parker: owner, joined, .. } = self.waiters.remove(own);
        claims.retain(|&(_, writes)| writes);
        if claims.is_empty() {
            return self.recycle(claims);
        }
        let mut gaps = Gaps::new();
        while let Some(k) = self.reservations.iter().position(|it| conflict(&it.claims, &claims)) {
            let earlier = self.reservations.remove(k);
            gaps = earlier.gaps;
            if Arc::ptr_eq(&earlier.owner, &owner) {
                // The release of words that were not listed is unknown.
                gaps.add(joined.saturating_sub(earlier.released.unwrap_or(earlier.acquired)));
            }
            self.recycle(earlier.claims);
        }
        let readers = self.waiters.iter_mut().filter(|waiter| reads(&waiter.claims, &claims));
        let admitted = readers.take(ADMITTED).map(|reader| reader.is_admitted = true).count();
        if self.reservations.len() >= RESERVATIONS {
            let oldest = self.reservations.remove(0);
            self.recycle(oldest.claims);
        }
        let (admissions, has_readers) = (ADMITTED - admitted, admitted > 0);
        let (acquired, released, is_active) = (now, None, gaps.is_useful());
        let new = Reservation { claims, owner, acquired, released, gaps, admissions, has_readers, is_active };
        self.reservations.push(new);
    }

    /// Notes that a thread has released these words.
    pub(super) fn note_release(&mut self, claims: &Claims, parker: &Arc<Parker>, now: Duration) {
        let is_own = |it: &&mut Reservation| Arc::ptr_eq(&it.owner, parker) && conflict(&it.claims, claims);
        self.reservations.iter_mut().filter(is_own).for_each(|it| _ = it.released.get_or_insert(now));
    }

    /// Ends reservations. Returns true if there are any.
    fn end_reservations<A: Atomics>(&mut self, ends: impl Fn(&Reservation) -> bool) -> bool {
        let ended = self.reservations.iter_mut().filter(|it| it.is_active && ends(it));
        let has_ended = ended.map(|it| it.is_active = false).count() > 0;
        if has_ended {
            self.publish::<A>();
        }
        has_ended
    }

    /// Publishes which words the list contains.
    pub(super) fn publish<A: Atomics>(&self) {
        let add = |mask, claims: &Claims| claims.iter().fold(mask, |mask, &(word, _)| mask | A::bit(word));
        let waited = self.waiters.iter().map(|waiter| &waiter.claims).fold(0, add);
        let reserved = self.reservations.iter().filter(|it| it.is_active).map(|it| &it.claims);
        A::set_masks(reserved.fold(waited, add), waited);
    }
}

/// Returns true if both lists contain a word for which `counts` holds, given whether each of both writes it.
fn overlap(a: &Claims, b: &Claims, counts: impl Fn(bool, bool) -> bool) -> bool {
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

/// Returns true if two kernels with these claims cannot run at once.
fn conflict(a: &Claims, b: &Claims) -> bool {
    overlap(a, b, |a, b| a || b)
}

/// Returns true if a kernel reads one of the written words.
fn reads(claims: &Claims, written: &Claims) -> bool {
    overlap(claims, written, |writes, _| !writes)
}

fn address<A: Atomics>(word: &BorrowWord<A>) -> usize {
    std::ptr::from_ref(word).addr()
}

/// Returns true if each written word occurs once.
#[cold]
pub(super) fn are_targets_unique<'w, A: Atomics + 'w>(words: impl Words<'w, A>) -> bool {
    let mut claims: Claims = words.map(|(word, writes)| (address(word), writes)).collect();
    claims.sort_unstable();
    claims.windows(2).all(|pair| pair[0].0 != pair[1].0 || !pair[1].1)
}

/// Returns true if a kernel may acquire these words before all kernels that wait. `listed` is the mask of the list,
/// which is not empty.
#[cold]
pub(super) fn is_next<'w, A: Atomics + 'w>(listed: u64, words: impl Words<'w, A>) -> bool {
    if words.clone().all(|(word, _)| listed & A::bit(address(word)) == 0) || A::held() > 0 {
        return true;
    }
    let parker = A::parker();
    A::with_waiters(|list| {
        let now = A::now();
        let claims = list.claims(words);
        let mut is_next =
            !list.conflicts(list.waiters.len(), &claims) && list.reservation(&claims, &parker, now).is_none();
        list.note_reader(&claims, &parker);
        let is_own = |it: &Reservation| overlap(&it.claims, &claims, |_, writes| writes);
        let mut own = list.reservations.iter().filter(|it| it.is_active && is_own(it));
        if is_next && own.any(|it| it.has_readers) {
            // Readers came since the last write: the kernel joins the list, which reserves its words again.
            is_next = false;
        } else if is_next {
            list.end_reservations::<A>(|it| is_own(it) || it.term().end <= now);
        }
        list.recycle(claims);
        is_next
    })
}

/// Acquires all words: tries as soon as it is the kernel's turn, and again when a word was released.
#[cold]
pub(super) fn wait<'w, A: Atomics + 'w>(words: impl Words<'w, A>) {
    let parker = A::parker();
    if A::held() > 0 {
        while !try_all(words.clone()) {
            wake(words.clone(), false);
            if !spin(words.clone()) {
                A::park(&parker, SHORT_SLEEP);
            }
        }
        return;
    }
    let (ticket, admitted) = A::with_waiters(|list| {
        let (claims, now) = (list.claims(words.clone()), A::now());
        let ticket = list.join(claims, parker.clone(), now);
        list.publish::<A>();
        let own = list.position(ticket);
        // Readers before this kernel wait no longer for the end of a reservation.
        let is_before = |claims: &Claims| conflict(claims, &list.waiters[own].claims);
        (ticket, if own > 0 { list.ready(now, is_before) } else { Vec::new() })
    });
    admitted.iter().filter(|it| !Arc::ptr_eq(it, &parker)).for_each(|it| it.unpark());
    for attempt in 0.. {
        let mut woken = Vec::new();
        // The list is locked during an attempt: no other kernel of the list finds a word taken by an attempt that fails,
        // so that such an attempt wakes none.
        let sleep = A::with_waiters(|list| {
            let now = A::now();
            if list.end_reservations::<A>(|it| it.term().end <= now) {
                woken = list.ready(now, |_| true);
            }
            let own = list.position(ticket);
            let waiter = &list.waiters[own];
            if let Some(end) = list.held_up_until(waiter, now) {
                return Some(end - now);
            }
            let is_acquired = !list.conflicts(own, &waiter.claims) && try_all(words.clone());
            if is_acquired {
                list.leave(ticket, now);
                list.publish::<A>();
            }
            (!is_acquired).then_some(LONGEST_SLEEP)
        });
        woken.iter().filter(|it| !Arc::ptr_eq(it, &parker)).for_each(|it| it.unpark());
        let Some(sleep) = sleep else { return };
        if attempt > 0 || !spin(words.clone()) {
            A::park(&parker, sleep.min(LONGEST_SLEEP));
        }
    }
}

/// Waits a short time until all words are available. Returns true if they are.
fn spin<'w, A: Atomics + 'w>(words: impl Words<'w, A>) -> bool {
    (0..A::SPINS).any(|_| {
        A::spin();
        words.clone().all(|(word, writes)| word.is_available(writes))
    })
}

/// Wakes the kernels whose turn it is and that wait for one of these words, if it is free. `is_release` is false after
/// an attempt to acquire the words that failed.
#[cold]
pub(super) fn wake<'w, A: Atomics + 'w>(words: impl Words<'w, A>, is_release: bool) {
    let (waited, listed) = (A::waited(), A::listed());
    let has = |mask: u64, word| mask & A::bit(address(word)) != 0;
    let writes = is_release && words.clone().any(|(word, writes)| writes && has(listed, word));
    if !writes && !words.clone().any(|(word, _)| has(waited, word)) {
        return;
    }
    let parker = A::parker();
    let woken = A::with_waiters(|list| {
        let now = A::now();
        if writes {
            let written = list.claims(words.clone().filter(|&(_, writes)| writes));
            list.note_release(&written, &parker, now);
            list.recycle(written);
        }
        let free = list.claims(words.filter(|(word, _)| word.is_free()));
        let woken = list.ready(now, |claims| overlap(claims, &free, |_, _| true));
        list.recycle(free);
        woken
    });
    // A thread may lose its core to one that it wakes. It has released the list then.
    woken.iter().for_each(|parker| parker.unpark());
}

/// The number of writers that may go before a reader that waits longer.
const OVERTAKINGS: usize = 3;

/// The number of readers that may read reserved words between two writes.
const ADMITTED: usize = 4;

/// The longest gap after which a thread is expected to write again at once.
const SHORT_GAP: Duration = Duration::from_micros(250);

/// The longest gap after which words are reserved, about a time slice.
const LONGEST_GAP: Duration = Duration::from_millis(3);

/// The gap of a thread that was not measured yet.
const FIRST_GAP: Duration = Duration::from_micros(100);

/// The part of a gap after which the thread is expected.
const RETURN: f64 = 0.9375;

/// The time by which a thread that waits for a core may be late.
const GRACE: Duration = Duration::from_millis(1);

/// The number of gaps of which the shortest counts.
const GAPS: usize = 16;

/// The most reservations in the list, with those that have ended.
const RESERVATIONS: usize = 64;

/// The longest sleep. A release reads the mask of the list without a fence after it has freed a word, and so may miss a
/// kernel that joins the list at the same time.
const LONGEST_SLEEP: Duration = Duration::from_micros(500);

/// The sleep of a thread that holds words and waits for others, which no release wakes.
const SHORT_SLEEP: Duration = Duration::from_micros(50);

/// The sleep of a thread.
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
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until another thread calls `unpark` or a short time has passed. Returns false if the time has passed.
    pub fn park(&self, time: Duration) -> bool {
        let mut state = self.state();
        state.is_asleep = true;
        let sleep = self.condvar.wait_timeout_while(state, time, |state| !state.is_woken);
        std::mem::take(&mut *sleep.unwrap_or_else(PoisonError::into_inner).0).is_woken
    }

    /// Wakes the thread, or lets its next sleep end at once.
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
