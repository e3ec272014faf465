//! A list of a few values: the first ones inline, longer lists in memory of the pool.
//!
//! What a kernel has to write down before it begins (axes, addresses, where windows lie) is as long as its shapes want,
//! and a launch must not ask the system for any of it.

use crate::allocator;
use std::fmt;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// A list, of which up to `N` values need no memory.
pub struct List<T, const N: usize> {
    len: usize,
    /// How many fit; up to `N` they are inline.
    capacity: usize,
    place: Place<T, N>,
}

union Place<T, const N: usize> {
    inline: ManuallyDrop<MaybeUninit<[T; N]>>,
    pooled: NonNull<T>,
}

// SAFETY: a list owns its values.
unsafe impl<T: Send, const N: usize> Send for List<T, N> {}
// SAFETY: as above.
unsafe impl<T: Sync, const N: usize> Sync for List<T, N> {}

impl<T, const N: usize> List<T, N> {
    /// An empty list.
    #[inline]
    pub fn new() -> Self {
        const { assert!(align_of::<T>() <= allocator::ALIGN && size_of::<T>() > 0) };
        List { len: 0, capacity: N, place: Place { inline: ManuallyDrop::new(MaybeUninit::uninit()) } }
    }

    /// An empty list with room for `count` values.
    pub fn with_capacity(count: usize) -> Self {
        let mut list = List::new();
        list.reserve(count);
        list
    }

    /// `value`, `count` times.
    pub fn repeated(value: T, count: usize) -> Self
    where
        T: Clone,
    {
        std::iter::repeat_n(value, count).collect()
    }

    /// Adds a value at the end.
    #[inline]
    pub fn push(&mut self, value: T) {
        if self.len == self.capacity {
            self.reserve(1);
        }
        // SAFETY: there is room for one more.
        unsafe { self.start_mut().add(self.len).write(value) };
        self.len += 1;
    }

    /// Takes the value at the end away.
    pub fn pop(&mut self) -> Option<T> {
        self.len = self.len.checked_sub(1)?;
        // SAFETY: the value was there, and is not any more.
        Some(unsafe { self.start_mut().add(self.len).read() })
    }

    /// Keeps the first `len` values.
    pub fn truncate(&mut self, len: usize) {
        while self.len > len {
            self.pop();
        }
    }

    #[inline]
    fn start(&self) -> *const T {
        // SAFETY: the capacity says which of the two there is.
        unsafe { if self.capacity <= N { (&raw const self.place.inline).cast() } else { self.place.pooled.as_ptr() } }
    }

    #[inline]
    fn start_mut(&mut self) -> *mut T {
        // SAFETY: as above.
        unsafe { if self.capacity <= N { (&raw mut self.place.inline).cast() } else { self.place.pooled.as_ptr() } }
    }

    /// Makes room for `more` values.
    #[cold]
    fn reserve(&mut self, more: usize) {
        let wanted = self.len.saturating_add(more);
        if wanted <= self.capacity {
            return;
        }
        let capacity = wanted.max(2 * self.capacity);
        let bytes = capacity.checked_mul(size_of::<T>()).expect("a list fits the address space");
        let to = allocator::allocate_regardless(bytes).cast::<T>();
        // SAFETY: the values move to the new place, which is larger.
        unsafe { to.as_ptr().copy_from_nonoverlapping(self.start(), self.len) };
        self.release();
        (self.capacity, self.place) = (capacity, Place { pooled: to });
    }

    /// Gives the memory back, whose values are not there any more.
    fn release(&mut self) {
        if self.capacity > N {
            // SAFETY: the memory is of the pool, of so many bytes, and nobody uses it any more.
            unsafe { allocator::release(self.place.pooled.cast(), self.capacity * size_of::<T>()) };
        }
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
        // SAFETY: so many values are there.
        unsafe { std::slice::from_raw_parts(self.start(), self.len) }
    }
}

impl<T, const N: usize> DerefMut for List<T, N> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.start_mut(), self.len) }
    }
}

impl<T, const N: usize> Extend<T> for List<T, N> {
    #[inline]
    fn extend<I: IntoIterator<Item = T>>(&mut self, values: I) {
        let values = values.into_iter();
        let least = values.size_hint().0;
        if self.capacity - self.len < least {
            self.reserve(least);
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
    fn a_list_is_what_was_put_into_it() {
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
    fn values_are_dropped_once() {
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
