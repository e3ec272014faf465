//! The order of threads that wait for borrow words.
//!
//! A kernel that finds a word taken joins a list. Of two kernels that need one word, and of which at least one writes
//! it, the one that waits longer is first; a kernel that does not wait yet comes after all of them. So no series of
//! readers can hold up a writer, nor a series of writers a reader, and readers between two writers run at once.
//!
//! The list is empty while no kernel waits, which an acquisition finds out by one load of a mask of the words in the
//! list. A thread that holds words already does not join the list, since a kernel of the list may wait for these words.

use super::{Atomics, BorrowWord, Borrowed};
use std::cmp::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// The words of a kernel: for each its address, and whether the kernel writes it. Ascending by address, each once.
type Claims = Vec<(usize, bool)>;

/// The kernels that wait, the longest waiting first.
#[derive(Default)]
pub struct WaitList {
    waiters: Vec<Waiter>,
    tickets: u64,
    /// The memory of earlier claims, so that repeated waiting does not allocate.
    spare: Vec<Claims>,
}

/// A kernel that waits.
struct Waiter {
    ticket: u64,
    claims: Claims,
    parker: Arc<Parker>,
}

impl WaitList {
    /// Creates an empty list.
    pub const fn new() -> WaitList {
        WaitList { waiters: Vec::new(), tickets: 0, spare: Vec::new() }
    }

    /// Returns the words of these operands, of which `keep` is true.
    fn claims<V: Borrowed>(
        &mut self,
        inputs: &[V],
        outputs: &[V],
        keep: impl Fn(&BorrowWord<V::Atomics>) -> bool,
    ) -> Claims {
        let mut claims = self.spare.pop().unwrap_or_default();
        let operands = outputs.iter().map(|output| (output, true)).chain(inputs.iter().map(|input| (input, false)));
        claims.extend(operands.filter(|(v, _)| keep(v.borrow_word())).map(|(v, writes)| (address(v), writes)));
        // Of equal addresses, the written one comes first and is kept.
        claims.sort_unstable_by_key(|&(word, writes)| (word, !writes));
        claims.dedup_by_key(|(word, _)| *word);
        claims
    }

    fn recycle(&mut self, mut claims: Claims) {
        claims.clear();
        self.spare.push(claims);
    }

    fn conflicts(&self, before: usize, claims: &Claims) -> bool {
        self.waiters[..before].iter().any(|waiter| overlaps(&waiter.claims, claims, |a, b| a || b))
    }

    fn position(&self, ticket: u64) -> usize {
        self.waiters.iter().position(|waiter| waiter.ticket == ticket).expect("a kernel must wait until it is removed")
    }

    /// Returns the mask of all words of the list.
    fn mask<A: Atomics>(&self) -> u64 {
        self.waiters.iter().flat_map(|waiter| &waiter.claims).fold(0, |mask, &(word, _)| mask | A::bit(word))
    }
}

/// Returns true if both lists contain a word for which `counts` holds, given whether each of both writes it.
fn overlaps(a: &Claims, b: &Claims, counts: impl Fn(bool, bool) -> bool) -> bool {
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

fn address<V: Borrowed>(operand: &V) -> usize {
    std::ptr::from_ref(operand.borrow_word()).addr()
}

/// Returns true if no kernel waits that is to acquire a word of these operands first. `waited` is the mask of the list,
/// which is not empty.
#[cold]
pub(super) fn is_next<V: Borrowed>(waited: u64, inputs: &[V], outputs: &[V]) -> bool {
    if inputs.iter().chain(outputs).all(|operand| waited & V::Atomics::bit(address(operand)) == 0)
        || V::Atomics::held() > 0
    {
        return true;
    }
    V::Atomics::with_waiters(|list| {
        let claims = list.claims(inputs, outputs, |_| true);
        let conflicts = list.conflicts(list.waiters.len(), &claims);
        list.recycle(claims);
        !conflicts
    })
}

/// Calls `try_all`, which acquires all words of these operands or none, until it succeeds: as soon as it is the kernel's
/// turn, and again when a word was released.
#[cold]
pub(super) fn wait<V: Borrowed>(inputs: &[V], outputs: &[V], try_all: impl Fn() -> bool) {
    if V::Atomics::held() > 0 {
        while !try_all() {
            V::Atomics::yield_now();
        }
        return;
    }
    let parker = V::Atomics::parker();
    let ticket = V::Atomics::with_waiters(|list| {
        let claims = list.claims(inputs, outputs, |_| true);
        list.tickets += 1;
        list.waiters.push(Waiter { ticket: list.tickets, claims, parker: parker.clone() });
        V::Atomics::set_waited(list.mask::<V::Atomics>());
        list.tickets
    });
    for attempt in 0.. {
        let is_first = V::Atomics::with_waiters(|list| {
            let own = list.position(ticket);
            !list.conflicts(own, &list.waiters[own].claims)
        });
        if is_first && try_all() {
            break;
        }
        match attempt < YIELDS {
            true => V::Atomics::yield_now(),
            false => V::Atomics::park(&parker),
        }
    }
    V::Atomics::with_waiters(|list| {
        let own = list.position(ticket);
        let waiter = list.waiters.remove(own);
        list.recycle(waiter.claims);
        V::Atomics::set_waited(list.mask::<V::Atomics>());
    });
}

/// Wakes the kernels whose turn it is and that wait for one of these words, if it is free.
#[cold]
pub(super) fn wake<V: Borrowed>(inputs: &[V], outputs: &[V]) {
    V::Atomics::with_waiters(|list| {
        let claims = list.claims(inputs, outputs, BorrowWord::is_free);
        for (k, waiter) in list.waiters.iter().enumerate() {
            if overlaps(&waiter.claims, &claims, |_, _| true) && !list.conflicts(k, &waiter.claims) {
                waiter.parker.unpark();
            }
        }
        list.recycle(claims);
    });
}

/// The number of times that a thread lets other threads run before it sleeps.
const YIELDS: usize = 4;

/// The longest sleep. A release reads the mask of the list without a fence after it has freed a word, and so may miss a
/// kernel that joins the list at the same time.
const LONGEST_SLEEP: Duration = Duration::from_micros(200);

/// The sleep of a thread.
#[derive(Debug, Default)]
pub struct Parker {
    is_woken: Mutex<bool>,
    condvar: Condvar,
}

impl Parker {
    /// Sleeps until another thread calls `unpark` or a short time has passed.
    pub fn park(&self) {
        let is_woken = self.is_woken.lock().unwrap_or_else(PoisonError::into_inner);
        let sleep = self.condvar.wait_timeout_while(is_woken, LONGEST_SLEEP, |is_woken| !*is_woken);
        *sleep.unwrap_or_else(PoisonError::into_inner).0 = false;
    }

    fn unpark(&self) {
        *self.is_woken.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.condvar.notify_one();
    }
}
