//! Thread-local values that are replaced for the duration of a call.

/// Calls `f` after `replace(value)`, which returns the previous value. The previous value is restored when `f` returns
/// or panics.
pub(crate) fn with_temporary<V, R>(value: V, replace: fn(V) -> V, f: impl FnOnce() -> R) -> R {
    struct RestoreValue<V>(Option<V>, fn(V) -> V);
    impl<V> Drop for RestoreValue<V> {
        fn drop(&mut self) {
            if let Some(before) = self.0.take() {
                (self.1)(before);
            }
        }
    }
    let _restore = RestoreValue(Some(replace(value)), replace);
    f()
}
