//! Counts of the work that a device did.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of work since a device was opened, which tests compare.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WgpuCounters {
    /// Dispatches of compute shaders.
    pub dispatches: u64,
    /// Bytes that dispatches read and write: for each dispatch, the bytes of the operands and of the scratch memory
    /// that it binds. Elements that a shader reads more than once, such as elements of the factors of a product, count
    /// once.
    pub bytes: u64,
    /// Submissions of dispatches.
    pub submissions: u64,
    /// Buffers created: memory of storages, parameters, and one for each download.
    pub buffers: u64,
    /// Bind groups created.
    pub bind_groups: u64,
    /// Pipelines compiled.
    pub pipelines: u64,
}

/// The counters of a device.
#[derive(Debug, Default)]
pub(crate) struct AtomicCounters {
    /// See [`WgpuCounters::dispatches`].
    pub(crate) dispatches: Counter,
    /// See [`WgpuCounters::bytes`].
    pub(crate) bytes: Counter,
    /// See [`WgpuCounters::submissions`].
    pub(crate) submissions: Counter,
    /// See [`WgpuCounters::buffers`].
    pub(crate) buffers: Counter,
    /// See [`WgpuCounters::bind_groups`].
    pub(crate) bind_groups: Counter,
    /// See [`WgpuCounters::pipelines`].
    pub(crate) pipelines: Counter,
}

/// One counter.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub(crate) fn add(&self, n: usize) {
        self.0.fetch_add(n as u64, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl AtomicCounters {
    /// Returns the present counts.
    pub(crate) fn snapshot(&self) -> WgpuCounters {
        WgpuCounters {
            dispatches: self.dispatches.get(),
            bytes: self.bytes.get(),
            submissions: self.submissions.get(),
            buffers: self.buffers.get(),
            bind_groups: self.bind_groups.get(),
            pipelines: self.pipelines.get(),
        }
    }
}
