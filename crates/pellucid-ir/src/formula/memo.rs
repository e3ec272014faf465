//! A table that only grows, so that what is found in it stays where it is.

use std::sync::OnceLock;

/// Values by key, in a list: for a handful of entries that are looked up often, without a lock.
pub(super) struct Memo<K, V> {
    first: OnceLock<Box<Entry<K, V>>>,
}

struct Entry<K, V> {
    key: K,
    value: V,
    next: Memo<K, V>,
}

impl<K, V> Default for Memo<K, V> {
    fn default() -> Memo<K, V> {
        Memo { first: OnceLock::new() }
    }
}

impl<K: PartialEq, V> Memo<K, V> {
    /// The value of `key`, if there is one.
    #[inline]
    pub(super) fn get(&self, key: &K) -> Option<&V> {
        let mut at = self;
        loop {
            let entry = at.first.get()?;
            if entry.key == *key {
                return Some(&entry.value);
            }
            at = &entry.next;
        }
    }

    /// The value of `key`: `value`, unless another thread was first.
    pub(super) fn insert(&self, key: K, value: V) -> &V {
        let mut new = Box::new(Entry { key, value, next: Memo::default() });
        let mut at = self;
        loop {
            let entry = match at.first.set(new) {
                Ok(()) => return &at.first.get().expect("it was set").value,
                Err(back) => {
                    new = back;
                    at.first.get().expect("it was set before")
                }
            };
            if entry.key == new.key {
                return &entry.value;
            }
            at = &entry.next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_value_of_a_key_stays() {
        let memo: Memo<u32, String> = Memo::default();
        assert!(memo.get(&0).is_none());
        let first = memo.insert(1, "one".into());
        for key in 2..10 {
            memo.insert(key, key.to_string());
        }
        assert!(std::ptr::eq(first, memo.insert(1, "another".into())));
        assert!(std::ptr::eq(first, memo.get(&1).unwrap()));
        assert_eq!(memo.get(&9).unwrap(), "9");
        assert!(memo.get(&10).is_none());
    }
}
