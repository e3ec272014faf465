//! [`ScopeStack`]: a setting of a thread that guards change and restore in any order.

use std::cell::Cell;

/// The number of nested scopes that may end in any order. Deeper ones must end in reverse order.
const MAX_SCOPES: usize = 64;

/// A setting of a thread. Its value is the value of the latest scope that has not ended, or `base`.
///
/// It has no destructor, so it can be used while the thread ends.
pub(crate) struct ScopeStack<T> {
    base: T,
    current: Cell<T>,
    /// The scopes that have not ended: the start number and the value of each.
    scopes: Cell<[(u64, T); MAX_SCOPES]>,
    /// A bit for each entry of `scopes` that is in use.
    live: Cell<u64>,
    /// The number of scopes that have begun.
    begun: Cell<u64>,
}

/// A scope, which its guard ends.
pub(crate) enum SettingScope<T> {
    /// The index of the scope.
    Place(usize),
    /// A scope without an entry, and the value before it.
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
        let place = self.live.get().trailing_ones() as usize;
        let Some(scope) = self.places().get(place) else { return SettingScope::Deep(before) };
        self.begun.set(self.begun.get() + 1);
        scope.set((self.begun.get(), value));
        self.live.set(self.live.get() | 1 << place);
        SettingScope::Place(place)
    }

    /// Ends a scope.
    #[inline]
    pub(crate) fn end(&self, scope: &SettingScope<T>) {
        let place = match *scope {
            SettingScope::Place(place) => place,
            SettingScope::Deep(before) => return self.current.set(before),
        };
        self.live.set(self.live.get() & !(1 << place));
        let (mut live, mut last) = (self.live.get(), (0, self.base));
        while live != 0 {
            let scope = self.places()[live.trailing_zeros() as usize].get();
            if scope.0 > last.0 {
                last = scope;
            }
            live &= live - 1;
        }
        self.current.set(last.1);
    }

    fn places(&self) -> &[Cell<(u64, T)>] {
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
