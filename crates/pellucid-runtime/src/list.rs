//! A list that stores its values inline if they are few, and in memory of the caching allocator otherwise.
//!
//! The lengths of the tables that a kernel builds before its loops (axes, offsets, window positions) depend on the
//! shapes. The launch of a kernel must not allocate the tables from the system.

use crate::allocator;
use std::fmt;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// A growable list that stores up to `N` values inline.
pub struct List<T, const N: usize> {
    len: usize,
    /// The number of values for which there is memory. If it is at most `N`, the values are inline.
    capacity: usize,
    storage: ListStorage<T, N>,
}

/// The values, inline or in a block of the caching allocator. The capacity of the list determines which field is valid.
union ListStorage<T, const N: usize> {
    inline: ManuallyDrop<MaybeUninit<[T; N]>>,
    allocated: NonNull<T>,
}

// SAFETY: a list owns its values and its memory, like a `Vec<T>`; both may move to another thread if `T` may.
unsafe impl<T: Send, const N: usize> Send for List<T, N> {}
// SAFETY: a shared reference to a list provides only shared references to its values, which `T: Sync` permits.
unsafe impl<T: Sync, const N: usize> Sync for List<T, N> {}

impl<T, const N: usize> List<T, N> {
    /// Creates an empty list.
    #[inline]
    pub fn new() -> Self {
        const { assert!(align_of::<T>() <= allocator::ALIGN && size_of::<T>() > 0) };
        List { len: 0, capacity: N, storage: ListStorage { inline: ManuallyDrop::new(MaybeUninit::uninit()) } }
    }

    /// Creates an empty list with a capacity of at least `count` values.
    pub fn with_capacity(count: usize) -> Self {
        let mut list = List::new();
        list.reserve(count);
        list
    }

    /// Creates a list of `count` clones of `value`.
    pub fn repeated(value: T, count: usize) -> Self
    where
        T: Clone,
    {
        std::iter::repeat_n(value, count).collect()
    }

    /// Appends a value.
    ///
    /// # Panics
    /// Panics if the size of the list overflows the address space.
    #[inline]
    pub fn push(&mut self, value: T) {
        if self.len == self.capacity {
            self.reserve(1);
        }
        // SAFETY: `len < capacity` here, so the position is inside the storage.
        unsafe { self.start_mut().add(self.len).write(value) };
        self.len += 1;
    }

    /// Removes and returns the last value.
    pub fn pop(&mut self) -> Option<T> {
        self.len = self.len.checked_sub(1)?;
        // SAFETY: the value at this position is initialized, and the new length excludes it, so it is read once.
        Some(unsafe { self.start_mut().add(self.len).read() })
    }

    /// Drops all but the first `len` values.
    pub fn truncate(&mut self, len: usize) {
        while self.len > len {
            self.pop();
        }
    }

    /// Returns a pointer to the start of the values.
    #[inline]
    fn start(&self) -> *const T {
        // SAFETY: a capacity above `N` means that `allocated` is the active field, which is read only then.
        unsafe {
            if self.capacity <= N { (&raw const self.storage.inline).cast() } else { self.storage.allocated.as_ptr() }
        }
    }

    /// Returns a mutable pointer to the start of the values.
    #[inline]
    fn start_mut(&mut self) -> *mut T {
        // SAFETY: a capacity above `N` means that `allocated` is the active field, which is read only then.
        unsafe {
            if self.capacity <= N { (&raw mut self.storage.inline).cast() } else { self.storage.allocated.as_ptr() }
        }
    }

    /// Grows the capacity so that `additional` more values fit.
    #[cold]
    fn reserve(&mut self, additional: usize) {
        let required = self.len.saturating_add(additional);
        if required <= self.capacity {
            return;
        }
        let capacity = required.max(2 * self.capacity);
        let bytes = capacity.checked_mul(size_of::<T>()).expect("the bytes of a list must not exceed `usize::MAX`");
        let to = allocator::allocate_regardless(bytes).cast::<T>();
        // SAFETY: `len` values are initialized in the old storage. The new block is larger and does not overlap it.
        unsafe { to.as_ptr().copy_from_nonoverlapping(self.start(), self.len) };
        self.release();
        (self.capacity, self.storage) = (capacity, ListStorage { allocated: to });
    }

    /// Releases the allocated block, if there is one. Its values must have been moved or dropped.
    fn release(&mut self) {
        if self.capacity > N {
            // SAFETY: *origin* of `release`: `reserve` allocated the block with this number of bytes. *Exclusive*: the
            // list owns the block, and both callers replace or drop the storage next.
            unsafe { allocator::release(self.storage.allocated.cast(), self.capacity * size_of::<T>()) };
        }
    }
}

impl<T, const N: usize> Default for List<T, N> {
    /// Creates an empty list.
    fn default() -> Self {
        List::new()
    }
}

impl<T, const N: usize> Drop for List<T, N> {
    #[inline]
    fn drop(&mut self) {
        if std::mem::needs_drop::<T>() {
            self.truncate(0);
        }
        self.release();
    }
}

impl<T, const N: usize> Deref for List<T, N> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: the first `len` values are initialized, and the slice borrows the list.
        unsafe { std::slice::from_raw_parts(self.start(), self.len) }
    }
}

impl<T, const N: usize> AsRef<[T]> for List<T, N> {
    #[inline]
    fn as_ref(&self) -> &[T] {
        self
    }
}

impl<T, const N: usize> DerefMut for List<T, N> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: the first `len` values are initialized, and the slice borrows the list exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start_mut(), self.len) }
    }
}

impl<T, const N: usize> Extend<T> for List<T, N> {
    #[inline]
    fn extend<I: IntoIterator<Item = T>>(&mut self, values: I) {
        let values = values.into_iter();
        let lower_bound = values.size_hint().0;
        if self.capacity - self.len < lower_bound {
            self.reserve(lower_bound);
        }
        values.for_each(|value| self.push(value));
    }
}

impl<T, const N: usize> FromIterator<T> for List<T, N> {
    #[inline]
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        let mut list = List::new();
        list.extend(values);
        list
    }
}

impl<T: Clone, const N: usize> Clone for List<T, N> {
    fn clone(&self) -> Self {
        self.iter().cloned().collect()
    }
}

impl<'a, T, const N: usize> IntoIterator for &'a List<T, N> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a, T, const N: usize> IntoIterator for &'a mut List<T, N> {
    type Item = &'a mut T;
    type IntoIter = std::slice::IterMut<'a, T>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

impl<T: fmt::Debug, const N: usize> fmt::Debug for List<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: PartialEq, const N: usize> PartialEq for List<T, N> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn a_list_contains_the_values_that_were_pushed() {
        let mut list = List::<usize, 3>::new();
        let mut expected = vec![];
        for i in 0..100 {
            assert_eq!(*list, expected);
            list.push(i);
            expected.push(i);
        }
        assert_eq!(list.clone(), list);
        assert_eq!((list.pop(), list.len()), (Some(99), 99));
        list.truncate(2);
        assert_eq!(*list, [0, 1]);
        list.extend(5..8);
        assert_eq!(*list, [0, 1, 5, 6, 7]);
        assert_eq!(*List::<u8, 2>::repeated(7, 5), [7; 5]);
        assert_eq!(List::<u8, 2>::new().pop(), None);
    }

    #[test]
    fn every_value_is_dropped_once() {
        let value = Rc::new(());
        for count in 0..7 {
            let mut list: List<Rc<()>, 3> = std::iter::repeat_n(value.clone(), count).collect();
            let copy = list.clone();
            assert_eq!(Rc::strong_count(&value), 1 + 2 * count);
            list.truncate(2);
            assert_eq!(Rc::strong_count(&value), 1 + count + count.min(2));
            drop((list, copy));
            assert_eq!(Rc::strong_count(&value), 1);
        }
    }
}
