//! Counts of the work that a device did.

use std::sync::atomic::{AtomicU64, Ordering};

/// Defines the counters of a device and their snapshot, from a list of counts with their display names.
macro_rules! counters {
    ($($(#[$doc:meta])+ $field:ident: $name:literal,)+) => {
        /// Counts of the work of a device since it was opened. Tests compare them.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct GpuCounters {
            $($(#[$doc])+ pub $field: u64,)+
        }

        impl GpuCounters {
            /// Returns all counts with their names.
            pub(crate) fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$(($name, self.$field)),+]
            }
        }

        /// The counters of a device.
        #[derive(Debug, Default)]
        pub struct AtomicCounters {
            $($(#[$doc])+ pub $field: Counter,)+
        }

        impl AtomicCounters {
            /// Returns the current counts.
            pub(crate) fn snapshot(&self) -> GpuCounters {
                GpuCounters { $($field: self.$field.0.load(Ordering::Relaxed)),+ }
            }
        }
    };
}

counters! {
    /// Dispatches of kernels.
    dispatches: "dispatches",
    /// Bytes that dispatches read and write: for each dispatch, the bytes of the operands and of the scratch memory
    /// that it binds. Elements that a kernel reads more than once, such as elements of the factors of a product, count
    /// once.
    bytes: "bytes",
    /// Submissions of dispatches.
    submissions: "submissions",
    /// Buffers created: memory of storages, parameters, and one for each download.
    buffers: "buffers",
    /// Bind groups created, on a graphics API that has them.
    bind_groups: "bind groups",
    /// Kernels compiled.
    pipelines: "pipelines",
}

/// One counter.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    #[inline]
    pub fn add(&self, n: usize) {
        self.0.fetch_add(n as u64, Ordering::Relaxed);
    }
}
