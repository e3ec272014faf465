//! An append-only cache whose entries keep their addresses.

use std::sync::OnceLock;

/// A linked list of keys and values that is read without a lock, for few entries that are looked up often.
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
    /// Returns the value of `key`; `None` if there is none.
    #[inline]
    pub(super) fn get(&self, key: &K) -> Option<&V> {
        let mut list = self;
        loop {
            let entry = list.first.get()?;
            if entry.key == *key {
                return Some(&entry.value);
            }
            list = &entry.next;
        }
    }

    /// Inserts `value` unless `key` has a value already. Returns the stored value.
    pub(super) fn insert(&self, key: K, value: V) -> &V {
        let mut new = Box::new(Entry { key, value, next: Memo::default() });
        let mut list = self;
        loop {
            let entry = match list.first.set(new) {
                Ok(()) => return &list.first.get().expect("the cell must have a value because set() succeeded").value,
                Err(back) => {
                    new = back;
                    list.first.get().expect("the cell must have a value because set() failed")
                }
            };
            if entry.key == new.key {
                return &entry.value;
            }
            list = &entry.next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn insert_keeps_an_existing_value() {
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
