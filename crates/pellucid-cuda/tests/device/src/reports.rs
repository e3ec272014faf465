//! Faults: a list for tests, and the sticky error that the next calls return.

use std::collections::BTreeMap;

use cudarc::driver::sys::CUresult;

/// What a test device reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FaultKind {
    /// A launch whose result depends on the order of its threads or blocks.
    Race,
    /// A barrier that not all threads of a block reach.
    Barrier,
    /// An operation of a warp with a wrong mask, or a shuffle from a lane outside it.
    WarpMask,
    /// A write to the margin of an allocation or of shared memory.
    OutOfBounds,
    /// An access to memory that was freed.
    UseAfterFree,
    /// A pointer outside all allocations, or a signal of the processor.
    IllegalAddress,
    /// An access to an address that its type's alignment does not divide.
    Misaligned,
    /// An allocation while a stream captures.
    CaptureAllocation,
    /// Accesses of two streams that no event orders.
    StreamRace,
    /// Accesses of two nodes of a graph that no path orders.
    NodeRace,
    /// A handle or an allocation that outlives its context.
    Leak,
    /// A launch beyond the limits of the device.
    Limit,
    /// Arguments of a launch that do not match the kernel.
    Arguments,
    /// A handle that does not exist, or no longer.
    InvalidHandle,
    /// A trap of the kernel.
    Trap,
}

impl FaultKind {
    /// Returns the word before the colon of a report.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Race => "race",
            Self::Barrier => "barrier",
            Self::WarpMask => "warp mask",
            Self::OutOfBounds => "out of bounds",
            Self::UseAfterFree => "use after free",
            Self::IllegalAddress => "illegal address",
            Self::Misaligned => "misaligned",
            Self::CaptureAllocation => "capture allocation",
            Self::StreamRace => "stream race",
            Self::NodeRace => "node race",
            Self::Leak => "leak",
            Self::Limit => "limit",
            Self::Arguments => "arguments",
            Self::InvalidHandle => "invalid handle",
            Self::Trap => "trap",
        }
    }

    /// Returns the error of the driver.
    pub(crate) fn code(self) -> CUresult {
        match self {
            Self::OutOfBounds | Self::UseAfterFree | Self::IllegalAddress => CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
            Self::Misaligned => CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
            Self::CaptureAllocation => CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
            Self::Limit | Self::Arguments => CUresult::CUDA_ERROR_INVALID_VALUE,
            Self::InvalidHandle => CUresult::CUDA_ERROR_INVALID_HANDLE,
            _ => CUresult::CUDA_ERROR_LAUNCH_FAILED,
        }
    }

    /// Returns true if all later calls fail too. The other kinds are errors of one call only, or of none.
    fn is_sticky(self) -> bool {
        !matches!(self, Self::CaptureAllocation | Self::Limit | Self::Arguments | Self::InvalidHandle | Self::Leak)
    }
}

/// The reports, the sticky error and the counters of the device.
#[derive(Default)]
pub(crate) struct FaultLog {
    reports: Vec<String>,
    sticky: Option<CUresult>,
    counters: BTreeMap<&'static str, u64>,
}

impl FaultLog {
    /// Adds a report, and returns the error of the kind.
    pub(crate) fn report(&mut self, kind: FaultKind, text: impl AsRef<str>) -> CUresult {
        self.list(kind, text);
        if kind.is_sticky() && self.sticky.is_none() {
            self.sticky = Some(kind.code());
        }
        kind.code()
    }

    /// Adds a report of a call that fails by itself: later calls do not.
    pub(crate) fn list(&mut self, kind: FaultKind, text: impl AsRef<str>) {
        let report = format!("{}: {}", kind.name(), text.as_ref());
        if std::env::var_os("PELLUCID_TEST_DEVICE_PRINT").is_some() {
            eprintln!("the test device reports {report}");
        }
        // A fault in a loop over launches would fill the memory.
        if self.reports.len() < 1000 {
            self.reports.push(report);
        }
    }

    /// Fails with the sticky error.
    ///
    /// # Errors
    /// The error of the first sticky fault.
    pub(crate) fn check(&self) -> Result<(), CUresult> {
        self.sticky.map_or(Ok(()), Err)
    }

    /// Removes all reports and the sticky error.
    pub(crate) fn clear(&mut self) {
        self.reports.clear();
        self.sticky = None;
    }

    /// Removes the sticky error only.
    pub(crate) fn clear_sticky(&mut self) {
        self.sticky = None;
    }

    /// Returns all reports, one a line.
    pub(crate) fn text(&self) -> String {
        self.reports.join("\n")
    }

    /// Adds one to a counter.
    pub(crate) fn count(&mut self, counter: &'static str) {
        *self.counters.entry(counter).or_default() += 1;
    }

    /// Returns the value of a counter, 0 if it never counted.
    pub(crate) fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }
}
