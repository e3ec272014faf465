//! Counts of the work that a device did.

use std::sync::atomic::{AtomicU64, Ordering};

/// Defines the counters of a device and their snapshot, from a list of counts with their display names.
macro_rules! counters {
    ($($(#[$doc:meta])+ $field:ident: $name:literal,)+) => {
        /// Counts of the work of a device since it was opened. Tests compare them.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct WgpuCounters {
            $($(#[$doc])+ pub $field: u64,)+
        }

        impl WgpuCounters {
            /// Returns all counts with their names.
            pub(crate) fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$(($name, self.$field)),+]
            }
        }

        /// The counters of a device.
        #[derive(Debug, Default)]
        pub(crate) struct AtomicCounters {
            $($(#[$doc])+ pub(crate) $field: Counter,)+
        }

        impl AtomicCounters {
            /// Returns the current counts.
            pub(crate) fn snapshot(&self) -> WgpuCounters {
                WgpuCounters { $($field: self.$field.0.load(Ordering::Relaxed)),+ }
            }
        }
    };
}

counters! {
    /// Dispatches of compute shaders.
    dispatches: "dispatches",
    /// Bytes that dispatches read and write: for each dispatch, the bytes of the operands and of the scratch memory
    /// that it binds. Elements that a shader reads more than once, such as elements of the factors of a product, count
    /// once.
    bytes: "bytes",
    /// Submissions of dispatches.
    submissions: "submissions",
    /// Buffers created: memory of storages, parameters, and one for each download.
    buffers: "buffers",
    /// Bind groups created.
    bind_groups: "bind groups",
    /// Pipelines compiled.
    pipelines: "pipelines",
}

/// One counter.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub(crate) fn add(&self, n: usize) {
        self.0.fetch_add(n as u64, Ordering::Relaxed);
    }
}
