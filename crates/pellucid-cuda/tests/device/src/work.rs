//! A unit of work of a stream or of a graph node, and its accesses to memory.

use std::ffi::c_void;
use std::rc::Rc;
use std::time::Instant;

use crate::device::TestDevice;
use crate::graphs::GraphBody;
use crate::launch::KernelLaunch;
use crate::memory::Lifetime;
use crate::products::ProductCall;
use crate::reports::FaultKind;

/// A function of the host with its argument.
pub(crate) type HostFunction = unsafe extern "C" fn(*mut c_void);

/// A fill of rows with one value.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct FillCall {
    pub(crate) to: usize,
    pub(crate) value: u32,
    /// The bytes of an element: 1, 2 or 4.
    pub(crate) width: usize,
    pub(crate) count: usize,
    pub(crate) rows: usize,
    /// The bytes from row to row.
    pub(crate) pitch: usize,
}

/// A unit of work.
#[derive(Clone)]
pub(crate) enum Work {
    Kernel(Rc<KernelLaunch>),
    Copy {
        to: usize,
        from: usize,
        bytes: usize,
    },
    /// A copy from pageable memory, whose bytes were read when it was enqueued.
    Staged {
        to: usize,
        data: Rc<[u8]>,
    },
    Fill(FillCall),
    Product(Rc<ProductCall>),
    Host {
        function: HostFunction,
        data: usize,
    },
    Graph(Rc<GraphBody>),
    /// Stores the time of an event if its record with this number is the last one.
    Record {
        event: usize,
        serial: u64,
    },
    /// Waits for a position of another stream.
    Wait {
        stream: usize,
        position: u64,
    },
    Free {
        base: usize,
    },
    Nothing,
}

/// Bytes that a piece of work reads or writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryAccess {
    pub(crate) address: usize,
    /// The length, 0 if only the allocation is known.
    pub(crate) bytes: usize,
    pub(crate) is_write: bool,
}

impl Work {
    /// The work in a report.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Kernel(launch) => format!("kernel {}", launch.code.name),
            Self::Copy { bytes, .. } => format!("a copy of {bytes} bytes"),
            Self::Staged { data, .. } => format!("a copy of {} bytes", data.len()),
            Self::Fill(_) => "a fill".to_string(),
            Self::Product(_) => "a matrix product".to_string(),
            Self::Host { .. } => "a host function".to_string(),
            Self::Graph(_) => "a graph".to_string(),
            Self::Free { .. } => "a free".to_string(),
            Self::Record { .. } | Self::Wait { .. } | Self::Nothing => "an event".to_string(),
        }
    }

    /// All accesses that are known before the work runs.
    pub(crate) fn accesses(&self) -> Vec<MemoryAccess> {
        let access = |address, bytes, is_write| MemoryAccess { address, bytes, is_write };
        match self {
            Self::Kernel(launch) => launch.accesses(),
            Self::Copy { to, from, bytes } => {
                vec![access(*from, *bytes, false), access(*to, *bytes, true)]
            }
            Self::Staged { to, data } => vec![access(*to, data.len(), true)],
            Self::Fill(fill) => {
                let bytes = (fill.rows - 1) * fill.pitch + fill.count * fill.width;
                vec![access(fill.to, bytes, true)]
            }
            Self::Product(product) => product.accesses(),
            Self::Graph(body) => body.accesses(),
            Self::Free { base } => vec![access(*base, 0, true)],
            Self::Host { .. } | Self::Record { .. } | Self::Wait { .. } | Self::Nothing => Vec::new(),
        }
    }
}

/// Copies bytes that may overlap.
fn copy_bytes(from: usize, to: usize, bytes: usize) {
    // SAFETY: both ranges were checked against the allocations (`check_accesses`), or are memory of the host that the
    // caller of the copy promises to be valid until the stream is synchronised.
    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
}

fn fill_rows(fill: &FillCall) {
    let bytes = fill.value.to_le_bytes();
    for row in 0..fill.rows {
        for element in 0..fill.count {
            let address = fill.to + row * fill.pitch + element * fill.width;
            copy_bytes(bytes.as_ptr() as usize, address, fill.width);
        }
    }
}

impl TestDevice {
    /// Checks that all accesses of some work are to live allocations. Addresses outside all allocations are memory of
    /// the host. Returns the first fault.
    pub(crate) fn access_fault(&self, work: &Work, is_running: bool) -> Option<(FaultKind, String)> {
        for access in work.accesses() {
            if self.memory.find(access.address).is_none() {
                continue;
            }
            if let Err((kind, text)) = self.memory.resolve(access.address, access.bytes, is_running) {
                // A pointer to the end of an allocation, of which nothing is read.
                let is_end = access.bytes == 0 && kind == FaultKind::OutOfBounds;
                if !is_end {
                    return Some((kind, format!("{}: {text}", work.describe())));
                }
            }
        }
        None
    }

    /// Runs some work now. Faults are reported.
    pub(crate) fn run_work(&mut self, work: &Work) {
        if let Work::Free { base } = work {
            self.free_now(*base);
            return;
        }
        if self.reports.check().is_err() {
            return;
        }
        if let Some((kind, text)) = self.access_fault(work, true) {
            self.reports.report(kind, text);
            return;
        }
        match work {
            Work::Kernel(launch) => self.run_launch(launch),
            Work::Copy { to, from, bytes } => copy_bytes(*from, *to, *bytes),
            Work::Staged { to, data } => copy_bytes(data.as_ptr() as usize, *to, data.len()),
            Work::Fill(fill) => fill_rows(fill),
            Work::Product(product) => product.compute(),
            Work::Host { function, data } => {
                // SAFETY: the caller of `cuLaunchHostFunc` promises that the function may be called with this
                // argument. It must not call CUDA, which holds here because the device is locked.
                unsafe { function(*data as *mut c_void) };
            }
            Work::Graph(body) => self.run_graph(body),
            Work::Record { event, serial } => {
                if let Some(event) = self.events.get_mut(*event)
                    && event.serial == *serial
                {
                    event.time = Some(Instant::now());
                }
            }
            Work::Wait { stream, position } => self.drain(*stream, *position),
            Work::Free { .. } | Work::Nothing => {}
        }
    }

    /// Frees an allocation and reports what it finds.
    pub(crate) fn free_now(&mut self, base: usize) {
        for (kind, text) in self.memory.free(base) {
            self.reports.report(kind, text);
        }
    }

    /// Marks an allocation as freed by work of a stream.
    pub(crate) fn mark_free_pending(&mut self, base: usize) {
        if let Some(record) = self.memory.find_base(base) {
            record.lifetime = Lifetime::FreePending;
        }
    }

    /// Reports the margins of all allocations that were changed.
    pub(crate) fn check_all_margins(&mut self) {
        for (kind, text) in self.memory.all_margin_faults() {
            self.reports.report(kind, text);
        }
    }
}
