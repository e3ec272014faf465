//! A value that a shared reference can replace while references to it exist.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A value and replacements for it. A replacement never moves and is dropped only by [`Replaceable::get_mut`], so
/// references to any of them stay valid.
pub(super) struct Replaceable<T> {
    original: T,
    replacements: Chain<T>,
    /// 0 for `original`, else the index in the chain of replacements plus one.
    current: AtomicUsize,
}

type Chain<T> = OnceLock<Box<Replacement<T>>>;

struct Replacement<T> {
    value: T,
    next: Chain<T>,
}

impl<T> Replaceable<T> {
    pub(super) fn new(original: T) -> Replaceable<T> {
        Replaceable { original, replacements: OnceLock::new(), current: AtomicUsize::new(0) }
    }

    /// Returns the current value.
    #[inline]
    pub(super) fn get(&self) -> &T {
        match self.current.load(Ordering::Acquire) {
            0 => &self.original,
            k => self.replacements().nth(k - 1).expect("the current replacement must exist"),
        }
    }

    /// Returns the current value mutably and drops all others.
    pub(super) fn get_mut(&mut self) -> &mut T {
        let mut chain = self.replacements.take();
        for _ in 1..*self.current.get_mut() {
            chain = chain.and_then(|mut replacement| replacement.next.take());
        }
        if let Some(replacement) = chain.filter(|_| *self.current.get_mut() > 0) {
            self.original = replacement.value;
        }
        *self.current.get_mut() = 0;
        &mut self.original
    }

    /// Returns the original value, which [`Replaceable::reset`] makes current.
    pub(super) fn original(&self) -> &T {
        &self.original
    }

    /// Makes the first replacement for which `predicate` is true current, if there is one.
    pub(super) fn select(&self, predicate: impl Fn(&T) -> bool) -> Option<&T> {
        let (i, found) = self.replacements().enumerate().find(|(_, value)| predicate(value))?;
        self.current.store(i + 1, Ordering::Release);
        Some(found)
    }

    /// Adds a replacement and makes it current.
    pub(super) fn replace(&self, value: T) {
        let (mut end, mut count) = (&self.replacements, 1);
        let mut last = Box::new(Replacement { value, next: OnceLock::new() });
        loop {
            match end.set(last) {
                Ok(()) => break,
                Err(back) => last = back,
            }
            end = &end.get().expect("the cell must have a value because set() failed").next;
            count += 1;
        }
        self.current.store(count, Ordering::Release);
    }

    /// Makes the original value current again.
    pub(super) fn reset(&self) {
        self.current.store(0, Ordering::Release);
    }

    fn replacements(&self) -> impl Iterator<Item = &T> {
        std::iter::successors(self.replacements.get(), |replacement| replacement.next.get())
            .map(|replacement| &replacement.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_that_was_made_current_is_found() {
        let mut value = Replaceable::new(0);
        assert_eq!(*value.get(), 0);
        let first = value.get();
        value.replace(1);
        value.replace(2);
        assert_eq!((*first, *value.get(), *value.original()), (0, 2, 0));
        value.reset();
        assert_eq!(*value.get(), 0);
        assert_eq!(value.select(|&v| v == 1), Some(&1));
        assert_eq!(*value.get(), 1);
        assert_eq!(value.select(|&v| v == 7), None);
        *value.get_mut() += 10;
        assert_eq!((*value.get(), *value.original()), (11, 11));
        assert_eq!(value.select(|_| true), None);
        value.replace(3);
        value.reset();
        assert_eq!(*value.get_mut(), 11);
        value.replace(4);
        assert_eq!(*value.get_mut(), 4);
    }
}
