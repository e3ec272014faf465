//! Guards that hold the borrow words of the operands of a kernel, of sets of operands, and of the slots of a plan.

use super::waiting::BorrowWords;
use super::{BorrowWord, Borrowed, acquire, acquire_distinct, release, try_next};
use crate::error::{Error, Result};
use crate::plan::SlotAccess;
use std::marker::PhantomData;
use std::ptr;

/// Returns true if an operand of the list is in the storage with this word.
#[inline]
fn contains<V: Borrowed>(list: &[V], word: &BorrowWord<V::Atomics>) -> bool {
    list.iter().any(|v| ptr::eq(v.borrow_word(), word))
}

/// The words of a kernel's operands: the outputs, then the inputs that share no word with an output. Outputs with the
/// same word count once.
pub(super) struct OperandWords<'w, V> {
    pub(super) inputs: &'w [V],
    pub(super) outputs: &'w [V],
}

/// The words of the storages in the used slots of a plan, one storage for each slot.
struct SlotWords<'w, V> {
    storages: &'w [V],
    access: &'w [SlotAccess],
}

/// The words of several sets, each of `set` operands. The kernel writes the first `targets` operands of each set.
struct BatchWords<'w, V> {
    operands: &'w [V],
    set: usize,
    targets: usize,
}

impl<V> Clone for OperandWords<'_, V> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for OperandWords<'_, V> {}

impl<V> Clone for SlotWords<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for SlotWords<'_, V> {}

impl<V> Clone for BatchWords<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for BatchWords<'_, V> {}

impl<'w, V: Borrowed> BorrowWords<'w, V::Atomics> for OperandWords<'w, V>
where
    V::Atomics: 'w,
{
    #[inline(always)]
    fn all(self, mut f: impl FnMut(&'w BorrowWord<V::Atomics>, bool) -> bool) -> bool {
        for (k, output) in self.outputs.iter().enumerate() {
            let word = output.borrow_word();
            if !contains(&self.outputs[..k], word) && !f(word, true) {
                return false;
            }
        }
        for input in self.inputs {
            let word = input.borrow_word();
            if !contains(self.outputs, word) && !f(word, false) {
                return false;
            }
        }
        true
    }
}

impl<'w, V: Borrowed> BorrowWords<'w, V::Atomics> for SlotWords<'w, V>
where
    V::Atomics: 'w,
{
    fn all(self, mut f: impl FnMut(&'w BorrowWord<V::Atomics>, bool) -> bool) -> bool {
        let used = self.storages.iter().zip(self.access).filter(|(_, access)| **access != SlotAccess::Unused);
        { used }.all(|(storage, access)| f(storage.borrow_word(), *access == SlotAccess::Write))
    }
}

impl<'w, V: Borrowed> BorrowWords<'w, V::Atomics> for BatchWords<'w, V>
where
    V::Atomics: 'w,
{
    fn all(self, mut f: impl FnMut(&'w BorrowWord<V::Atomics>, bool) -> bool) -> bool {
        self.operands.iter().enumerate().all(|(k, operand)| f(operand.borrow_word(), k % self.set < self.targets))
    }
}

/// A guard that holds the borrow words of a kernel's operands until it is dropped: as a reader of inputs and as the
/// only writer of outputs. A storage that is both an input and an output is held once.
pub struct BorrowGuard<'v, V: Borrowed> {
    inputs: &'v [V],
    outputs: &'v [V],
    /// The thread counts its guards, so a guard must not leave it.
    _not_send: PhantomData<*const ()>,
}

impl<'v, V: Borrowed> BorrowGuard<'v, V> {
    /// Waits until no other thread's kernel holds a conflicting word, and acquires all words. Kernels that wait are
    /// served in turn.
    #[inline]
    pub fn acquire(inputs: &'v [V], outputs: &'v [V]) -> BorrowGuard<'v, V> {
        acquire(OperandWords { inputs, outputs });
        BorrowGuard { inputs, outputs, _not_send: PhantomData }
    }

    /// Tries to acquire all words. Returns `None`, and holds no word, if a conflicting word is held, or if a waiting
    /// kernel or a reservation has priority.
    #[inline]
    pub fn try_acquire(inputs: &'v [V], outputs: &'v [V]) -> Option<BorrowGuard<'v, V>> {
        try_next(OperandWords { inputs, outputs }).then(|| BorrowGuard { inputs, outputs, _not_send: PhantomData })
    }

    /// Returns the operands that are held for reading. An input that shares its storage with an output is held for
    /// writing.
    #[inline]
    pub fn inputs(&self) -> &'v [V] {
        self.inputs
    }

    /// Returns the operands that are held for writing.
    #[inline]
    pub fn outputs(&self) -> &'v [V] {
        self.outputs
    }

    /// Counts a write to every output.
    #[inline]
    pub fn count_writes(&self) {
        self.outputs.iter().for_each(|output| output.version_word().bump());
    }
}

impl<V: Borrowed> Drop for BorrowGuard<'_, V> {
    #[inline]
    fn drop(&mut self) {
        release(OperandWords { inputs: self.inputs, outputs: self.outputs });
    }
}

/// A guard that holds the borrow words of several sets of operands until it is dropped. The first operands of each set,
/// the targets, are overwritten.
pub struct BatchBorrowGuard<'v, V: Borrowed> {
    operands: &'v [V],
    set: usize,
    targets: usize,
    /// The thread counts its guards, so a guard must not leave it.
    _not_send: PhantomData<*const ()>,
}

impl<'v, V: Borrowed> BatchBorrowGuard<'v, V> {
    /// Waits until no other thread's kernel holds a conflicting word, and acquires the words of all sets. Each set has
    /// `set` operands; the first `targets` of them are acquired for writing.
    ///
    /// Returns `None`, and holds no word, if a target shares its storage with another operand, or if `set` is 0, less
    /// than `targets`, or does not divide the number of operands.
    pub fn acquire(operands: &'v [V], set: usize, targets: usize) -> Option<BatchBorrowGuard<'v, V>> {
        let are_sets = set > 0 && targets <= set && operands.len().is_multiple_of(set);
        let is_acquired = are_sets && acquire_distinct(BatchWords { operands, set, targets });
        is_acquired.then(|| BatchBorrowGuard { operands, set, targets, _not_send: PhantomData })
    }

    /// Returns the number of targets of each set.
    pub fn targets(&self) -> usize {
        self.targets
    }

    /// Iterates over the sets.
    pub fn sets(&self) -> impl ExactSizeIterator<Item = &'v [V]> {
        self.operands.chunks_exact(self.set)
    }

    /// Counts a write to every target.
    pub fn count_writes(&self) {
        let targets = self.sets().flat_map(|set| &set[..self.targets]);
        targets.for_each(|target| target.version_word().bump());
    }
}

impl<V: Borrowed> Drop for BatchBorrowGuard<'_, V> {
    fn drop(&mut self) {
        release(BatchWords { operands: self.operands, set: self.set, targets: self.targets });
    }
}

/// A guard that holds the borrow words of the storages of a plan's slots until it is dropped.
pub struct SlotBorrowGuard<'v, V: Borrowed> {
    storages: &'v [V],
    access: &'v [SlotAccess],
    /// The thread counts its guards, so a guard must not leave it.
    _not_send: PhantomData<*const ()>,
}

impl<'v, V: Borrowed> SlotBorrowGuard<'v, V> {
    /// Waits until no other thread's kernel holds a conflicting word, and acquires the words of all used slots.
    /// `storages[i]` is the storage of slot `i`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a slot has no storage, or if a storage that the plan writes is in two used slots.
    pub fn acquire(storages: &'v [V], access: &'v [SlotAccess]) -> Result<SlotBorrowGuard<'v, V>> {
        if storages.len() < access.len() {
            let (needed, given) = (access.len(), storages.len());
            let reason = format!("the plan has {needed} slots, got {given} storages; pass one storage for each slot");
            return Err(Error::invalid("launch", reason));
        }
        match acquire_distinct(SlotWords { storages, access }) {
            true => Ok(SlotBorrowGuard { storages, access, _not_send: PhantomData }),
            false => {
                let reason =
                    "a storage that the plan writes is passed for two of its slots; pass a separate storage for each";
                Err(Error::invalid("launch", reason))
            }
        }
    }

    /// Returns the storages of the slots.
    #[inline]
    pub fn storages(&self) -> &'v [V] {
        self.storages
    }

    /// Returns an error unless the guard holds every slot `i` for the access `needed[i]`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`].
    #[inline]
    pub fn check_access(&self, needed: &[SlotAccess]) -> Result<()> {
        let is_held = needed.len() <= self.access.len() && needed.iter().zip(self.access).all(|(n, held)| n <= held);
        let reason = "the guard does not hold every slot for the access that the plan needs; acquire the slots with the \
            list that CompiledPlan::access() returns";
        if is_held { Ok(()) } else { Err(Error::invalid("launch", reason)) }
    }

    /// Returns the storage of a slot; `None` unless the guard holds the slot for the access `needed`.
    pub(crate) fn storage_with_access(&self, slot: usize, needed: SlotAccess) -> Option<&'v V> {
        self.access.get(slot).is_some_and(|held| *held >= needed).then(|| &self.storages[slot])
    }
}

impl<V: Borrowed> Drop for SlotBorrowGuard<'_, V> {
    fn drop(&mut self) {
        release(SlotWords { storages: self.storages, access: self.access });
    }
}
