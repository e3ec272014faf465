//! [`ScopeStack`]: a thread-local setting with scopes that may end in any order.

use std::cell::Cell;

/// The maximum number of nested scopes that may end in any order. Deeper scopes must end in reverse order.
const MAX_SCOPES: usize = 64;

/// A thread-local setting. Its value is the value of the latest scope that has not ended, or `base`.
///
/// It has no destructor, so it can be used while the thread ends.
pub(crate) struct ScopeStack<T> {
    base: T,
    current: Cell<T>,
    /// For each scope that has not ended, its number in the order of creation, and its value.
    scopes: Cell<[(u64, T); MAX_SCOPES]>,
    /// One bit for each entry of `scopes`: 1 if it is in use.
    live: Cell<u64>,
    /// The number of scopes so far that were stored in `scopes`.
    begun: Cell<u64>,
}

/// A scope that has begun. Its guard stores it and ends it.
#[derive(Debug)]
pub(crate) enum SettingScope<T> {
    /// A scope with an entry in `scopes`; the field is its index.
    Indexed(usize),
    /// A scope without an entry; the field is the previous value.
    Deep(T),
}

impl<T: Copy> ScopeStack<T> {
    pub(crate) const fn new(base: T) -> ScopeStack<T> {
        ScopeStack {
            base,
            current: Cell::new(base),
            scopes: Cell::new([(0, base); MAX_SCOPES]),
            live: Cell::new(0),
            begun: Cell::new(0),
        }
    }

    /// Returns the current value.
    #[inline]
    pub(crate) fn get(&self) -> T {
        self.current.get()
    }

    /// Begins a scope with this value.
    #[inline]
    pub(crate) fn begin(&self, value: T) -> SettingScope<T> {
        let before = self.current.replace(value);
        let index = self.live.get().trailing_ones() as usize;
        let Some(scope) = self.entries().get(index) else { return SettingScope::Deep(before) };
        self.begun.set(self.begun.get() + 1);
        scope.set((self.begun.get(), value));
        self.live.set(self.live.get() | 1 << index);
        SettingScope::Indexed(index)
    }

    /// Ends a scope.
    #[inline]
    pub(crate) fn end(&self, scope: &SettingScope<T>) {
        let index = match *scope {
            SettingScope::Indexed(index) => index,
            SettingScope::Deep(before) => return self.current.set(before),
        };
        self.live.set(self.live.get() & !(1 << index));
        let (mut live, mut latest) = (self.live.get(), (0, self.base));
        while live != 0 {
            let scope = self.entries()[live.trailing_zeros() as usize].get();
            if scope.0 > latest.0 {
                latest = scope;
            }
            live &= live - 1;
        }
        self.current.set(latest.1);
    }

    fn entries(&self) -> &[Cell<(u64, T)>] {
        let scopes: &Cell<[(u64, T)]> = &self.scopes;
        scopes.as_slice_of_cells()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_scope_that_has_not_ended_determines_the_value() {
        let stack = ScopeStack::new(0);
        // Every order in which the guards of three scopes can be dropped.
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let scopes = [1, 2, 3].map(|value| stack.begin(value));
            assert_eq!(stack.get(), 3);
            let mut live = vec![1, 2, 3];
            for scope in order {
                stack.end(&scopes[scope]);
                live.retain(|value| *value != scope + 1);
                assert_eq!(stack.get(), live.last().copied().unwrap_or(0), "{order:?}");
            }
        }
        // A guard is replaced by a new one.
        let mut scope = stack.begin(1);
        for value in 2..300 {
            let next = stack.begin(value);
            stack.end(&std::mem::replace(&mut scope, next));
            assert_eq!(stack.get(), value);
        }
        stack.end(&scope);
        assert_eq!((stack.get(), stack.live.get()), (0, 0));
    }

    #[test]
    fn deep_scopes_end_in_reverse_order() {
        let stack = ScopeStack::new(0);
        let scopes: Vec<SettingScope<usize>> = (1..200).map(|value| stack.begin(value)).collect();
        for (value, scope) in (1..200).zip(&scopes).rev() {
            assert_eq!(stack.get(), value);
            stack.end(scope);
        }
        assert_eq!((stack.get(), stack.live.get()), (0, 0));
    }
}
