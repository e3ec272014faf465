//! [`GenerationalCache`], a map of bounded size.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

/// A map that keeps the most recently used entries, in two generations.
///
/// New and used entries belong to the young generation. When it has `capacity` entries, it becomes the old one, and the
/// entries of the previous old generation are dropped. An entry is therefore kept while fewer than `capacity` others
/// are used between its uses, and the map has at most 2·`capacity` entries. An exact order of uses would need a list
/// that every look-up changes.
#[derive(Debug)]
pub struct GenerationalCache<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    capacity: usize,
}

impl<K: Hash + Eq, V> GenerationalCache<K, V> {
    /// Creates an empty cache with generations of at most `capacity` entries.
    pub fn new(capacity: usize) -> GenerationalCache<K, V> {
        GenerationalCache { young: HashMap::new(), old: HashMap::new(), capacity: capacity.max(1) }
    }

    /// Returns the value of `key`.
    pub fn get<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        if let Some((key, value)) = self.old.remove_entry(key) {
            self.insert(key, value);
        }
        self.young.get(key)
    }

    /// Adds or replaces the value of `key`.
    pub fn insert(&mut self, key: K, value: V) {
        if self.young.len() >= self.capacity && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        self.old.remove(&key);
        self.young.insert(key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_that_are_used_stay_and_the_size_is_bounded() {
        let mut cache = GenerationalCache::new(10);
        cache.insert(1000, 0);
        for key in 0..500 {
            cache.insert(key, key);
            assert_eq!(cache.get(&1000), Some(&0), "an entry in use must stay");
            assert_eq!(cache.get(&key), Some(&key));
            assert!(cache.young.len() <= 10 && cache.old.len() <= 10);
            assert!(cache.young.keys().all(|key| !cache.old.contains_key(key)));
        }
        assert_eq!(cache.get(&3), None, "an entry that is not used must be dropped");
        cache.insert(499, 7);
        assert_eq!(cache.get(&499), Some(&7));
    }
}
