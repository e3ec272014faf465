//! Collections that a thread fills while a closure runs.

use std::cell::RefCell;
use std::thread::LocalKey;

/// The collection of a thread; `None` outside [`collect`].
pub(crate) type Collection<T> = RefCell<Option<T>>;

/// Runs `f` with the collection `initial`, and returns its result and the collection.
pub(crate) fn collect<T: Default, R>(
    current: &'static LocalKey<Collection<T>>,
    initial: T,
    f: impl FnOnce() -> R,
) -> (R, T) {
    /// Guard that restores the outer collection, even when `f` panics.
    struct OuterCollection<T: 'static>(&'static LocalKey<Collection<T>>, Option<T>);
    impl<T> Drop for OuterCollection<T> {
        fn drop(&mut self) {
            self.0.set(self.1.take());
        }
    }
    let outer = OuterCollection(current, current.replace(Some(initial)));
    let result = f();
    let collected = current.take().unwrap_or_default();
    drop(outer);
    (result, collected)
}
