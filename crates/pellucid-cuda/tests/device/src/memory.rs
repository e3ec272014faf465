//! Allocations. Their memory starts as NaNs of every type, and so do the margins, whose bytes are checked after every
//! launch. Freed memory is kept for a while, filled with the same bytes, so that a stale pointer is recognised.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::{BTreeMap, VecDeque};

use cudarc::driver::sys::CUresult;

use crate::clocks::AccessHistory;
use crate::pool::PoolState;
use crate::reports::FaultKind;

/// The memory that the device claims to have.
pub(crate) const TOTAL_BYTES: usize = 8 << 30;

/// The alignment of allocations and the least length of a margin.
const MARGIN: usize = 256;

/// Freed memory that is kept.
const QUARANTINE_BYTES: usize = 64 << 20;
const QUARANTINE_LENGTH: usize = 4096;

/// The bytes of unwritten memory and of margins: NaN in `f16`, `bf16`, `f32` and `f64` at every aligned address.
const POISON: [u8; 2] = [0xfe, 0xff];

/// Where an allocation is visible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MemoryKind {
    Device,
    /// Page-locked memory of the host.
    Pinned,
}

/// Whether an allocation may be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lifetime {
    Live,
    /// Returned to the pool of the program.
    Pooled,
    /// Freed by work of a stream that has not run.
    FreePending,
    Freed,
}

/// Bytes that a piece of work reads or writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryAccess {
    pub(crate) address: usize,
    /// The length, 0 if only the allocation is known.
    pub(crate) bytes: usize,
    pub(crate) is_write: bool,
}

/// One allocation with its margins.
pub(crate) struct AllocationRecord {
    pub(crate) base: usize,
    /// The bytes that were allocated.
    pub(crate) capacity: usize,
    /// The bytes that may be used by work that is enqueued now: fewer if a pool hands out a part.
    pub(crate) size: usize,
    /// The bytes that work that runs now may use; 0 for a block that its pool keeps.
    running_size: usize,
    pub(crate) kind: MemoryKind,
    /// The memory is part of the pool of the device.
    is_from_pool: bool,
    pub(crate) lifetime: Lifetime,
    pub(crate) history: AccessHistory,
    serial: u64,
    /// The bytes of data and margins.
    start: usize,
    end: usize,
    /// The mapping, if the allocation ends at a guard page.
    mapping: Option<(usize, usize)>,
}

/// All allocations by their addresses.
#[derive(Default)]
pub(crate) struct DeviceMemory {
    records: BTreeMap<usize, AllocationRecord>,
    quarantine: VecDeque<usize>,
    quarantined_bytes: usize,
    live_bytes: usize,
    next_serial: u64,
    /// The pool of the device.
    pub(crate) pool: PoolState,
}

/// Returns the bytes of a range as pairs, and single bytes at odd ends.
///
/// # Safety
/// *Range:* the bytes are inside the block of one record, which is allocated and initialised until it leaves the table,
/// and no other reference to them exists during `'a`.
unsafe fn byte_pairs<'a>(start: usize, end: usize) -> (&'a mut [u8], &'a mut [[u8; 2]], &'a mut [u8]) {
    // SAFETY: the clause *Range*.
    let bytes = unsafe { std::slice::from_raw_parts_mut(start as *mut u8, end - start) };
    let (head, rest) = bytes.split_at_mut((start % 2).min(end - start));
    let (pairs, tail) = rest.as_chunks_mut();
    (head, pairs, tail)
}

/// Fills bytes with the poison.
fn poison(start: usize, end: usize) {
    // SAFETY: *Range*: callers pass ranges inside the block of one record, which is allocated and writable until it
    // leaves the table. Kernels run on this thread, so no other access is concurrent.
    let (head, pairs, tail) = unsafe { byte_pairs(start, end) };
    head.fill(POISON[1]);
    pairs.fill(POISON);
    tail.fill(POISON[0]);
}

/// Returns the first byte of a range that is not poison.
fn first_unpoisoned(start: usize, end: usize) -> Option<usize> {
    // SAFETY: *Range*, as for `poison`.
    let (head, pairs, tail) = unsafe { byte_pairs(start, end) };
    let is_poisoned = head.iter().all(|byte| *byte == POISON[1])
        && pairs.iter().all(|pair| *pair == POISON)
        && tail.iter().all(|byte| *byte == POISON[0]);
    if is_poisoned {
        return None;
    }
    let bytes = head.iter().chain(pairs.as_flattened()).chain(tail.iter());
    bytes.zip(start..end).find(|(byte, address)| **byte != POISON[address % 2]).map(|(_, address)| address)
}

impl AllocationRecord {
    /// Describes the allocation in a report.
    pub(crate) fn describe(&self) -> String {
        let kind = match self.kind {
            MemoryKind::Device => "allocation",
            MemoryKind::Pinned => "pinned allocation",
        };
        format!("{kind} {} of {} bytes", self.serial, self.size)
    }

    /// Returns the bytes of the allocation.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the block is allocated as long as the record exists, and initialised by `poison`. Kernels, which
        // write to it, do not run while this borrow of the memory exists.
        unsafe { std::slice::from_raw_parts(self.base as *const u8, self.capacity) }
    }

    /// Overwrites the allocation.
    pub(crate) fn write_all(&mut self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.capacity, "a snapshot has the size of its allocation");
        // SAFETY: the block is allocated and writable, and the assertion bounds the length.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base as *mut u8, self.capacity) };
    }

    /// Checks both margins. Returns the distance of a changed byte from the nearest end of the data, negative before
    /// it, and restores the margins.
    fn take_margin_fault(&self) -> Option<isize> {
        if self.running_size == 0 {
            // All bytes of a block in a pool are checked when it is handed out again.
            return None;
        }
        let before = first_unpoisoned(self.start, self.base);
        let after = first_unpoisoned(self.base + self.running_size, self.end);
        let found = after
            .map(|address| (address - self.base) as isize)
            .or(before.map(|address| -((self.base - address) as isize)))?;
        poison(self.start, self.base);
        poison(self.base + self.running_size, self.end);
        Some(found)
    }

    /// Returns the block to the system.
    fn release(self) {
        if let Some((start, length)) = self.mapping {
            // SAFETY: `start` and `length` describe the mapping, which no record uses any more.
            unsafe { libc::munmap(start as *mut libc::c_void, length) };
        } else {
            let layout = block_layout(self.capacity);
            // SAFETY: the block was allocated with the layout of its size, by `allocate_block`.
            unsafe { dealloc(self.start as *mut u8, layout) };
        }
    }
}

fn block_layout(size: usize) -> Layout {
    let data = size.next_multiple_of(MARGIN);
    Layout::from_size_align(data + 2 * MARGIN, MARGIN).expect("the size is below the total memory")
}

/// The start and end of the usable bytes of a block, its data, and its mapping if there is one.
type BlockRange = (usize, usize, usize, Option<(usize, usize)>);

/// Allocates the block of `size` bytes.
fn allocate_block(size: usize, has_guards: bool) -> Option<BlockRange> {
    if !has_guards {
        let layout = block_layout(size);
        // SAFETY: the layout has at least two margins, so its size is not 0.
        let start = unsafe { alloc_zeroed(layout) } as usize;
        return (start != 0).then_some((start, start + layout.size(), start + MARGIN, None));
    }
    const PAGE: usize = 4096;
    let data = size.next_multiple_of(MARGIN);
    let usable = data.next_multiple_of(PAGE);
    let length = usable + 2 * PAGE;
    // SAFETY: a new anonymous mapping at an address of the system's choice. The first and the last page stay
    // inaccessible; `mprotect` changes the pages between them.
    let start = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let mapping = libc::mmap(std::ptr::null_mut(), length, libc::PROT_NONE, flags, -1, 0);
        if mapping == libc::MAP_FAILED {
            return None;
        }
        let inner = mapping.byte_add(PAGE);
        libc::mprotect(inner, usable, libc::PROT_READ | libc::PROT_WRITE);
        mapping as usize
    };
    let end = start + PAGE + usable;
    Some((start + PAGE, end, end - data, Some((start, length))))
}

impl DeviceMemory {
    /// Allocates memory and returns its address.
    ///
    /// # Errors
    /// An invalid value for 0 bytes; out of memory beyond [`TOTAL_BYTES`].
    pub(crate) fn allocate(&mut self, size: usize, kind: MemoryKind, has_guards: bool) -> Result<usize, CUresult> {
        if size == 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if size > TOTAL_BYTES || self.live_bytes + size > TOTAL_BYTES {
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        let (start, end, base, mapping) = allocate_block(size, has_guards).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        poison(start, end);
        self.next_serial += 1;
        self.live_bytes += size;
        let record = AllocationRecord {
            base,
            capacity: size,
            size,
            running_size: size,
            kind,
            is_from_pool: false,
            lifetime: Lifetime::Live,
            history: AccessHistory::default(),
            serial: self.next_serial,
            start,
            end,
            mapping,
        };
        self.records.insert(start, record);
        Ok(base)
    }

    /// Assigns an allocation to the pool of the device.
    pub(crate) fn assign_to_pool(&mut self, base: usize) {
        if let Some(record) = self.find_mut(base) {
            record.is_from_pool = true;
            let bytes = record.capacity;
            self.pool.allocate(bytes);
        }
    }

    /// Returns the record whose data or margins contain an address.
    pub(crate) fn find(&self, address: usize) -> Option<&AllocationRecord> {
        let (_, record) = self.records.range(..=address).next_back()?;
        (address < record.end).then_some(record)
    }

    /// Returns the record whose data or margins contain an address.
    pub(crate) fn find_mut(&mut self, address: usize) -> Option<&mut AllocationRecord> {
        let (_, record) = self.records.range_mut(..=address).next_back()?;
        (address < record.end).then_some(record)
    }

    /// Returns the record that starts at an address and is not freed.
    pub(crate) fn find_base(&mut self, base: usize) -> Option<&mut AllocationRecord> {
        self.find_mut(base)
            .filter(|record| record.base == base && matches!(record.lifetime, Lifetime::Live | Lifetime::Pooled))
    }

    /// Checks that `bytes` bytes from an address are inside a live allocation, and returns its base.
    ///
    /// # Errors
    /// The fault and its description.
    pub(crate) fn resolve(&self, address: usize, bytes: usize, is_running: bool) -> Result<usize, (FaultKind, String)> {
        let Some(record) = self.find(address) else {
            let text = format!("address {address:#x} is in no allocation");
            return Err((FaultKind::IllegalAddress, text));
        };
        let is_usable = match record.lifetime {
            Lifetime::Live => true,
            // Work that was enqueued before the free may still run.
            Lifetime::FreePending | Lifetime::Pooled => is_running,
            Lifetime::Freed => false,
        };
        if !is_usable {
            let state = if record.lifetime == Lifetime::Pooled { "is in its pool" } else { "was freed" };
            let text = format!("{} {state}", record.describe());
            return Err((FaultKind::UseAfterFree, text));
        }
        let limit = if is_running { record.capacity } else { record.size };
        let is_inside = address >= record.base && address + bytes <= record.base + limit;
        if !is_inside {
            let offset = address as isize - record.base as isize;
            let text = format!("{bytes} bytes at offset {offset} of {}", record.describe());
            return Err((FaultKind::OutOfBounds, text));
        }
        Ok(record.base)
    }

    /// Frees an allocation: its bytes become poison, or inaccessible if it has guard pages. Returns the description of
    /// a margin that was changed, or of freed memory that was written.
    pub(crate) fn free(&mut self, base: usize) -> Vec<(FaultKind, String)> {
        let mut faults: Vec<_> = self.margin_fault(base).into_iter().collect();
        let Some(record) = self.find_mut(base) else {
            return faults;
        };
        record.lifetime = Lifetime::Freed;
        let (start, size) = (record.start, record.capacity);
        match record.mapping {
            Some((mapping, length)) => {
                // SAFETY: the range is the record's own mapping.
                unsafe { libc::mprotect(mapping as *mut _, length, libc::PROT_NONE) };
            }
            None => poison(record.start, record.end),
        }
        if record.is_from_pool {
            self.pool.free(size);
        }
        self.live_bytes -= size;
        self.quarantined_bytes += size;
        self.quarantine.push_back(start);
        while self.quarantined_bytes > QUARANTINE_BYTES || self.quarantine.len() > QUARANTINE_LENGTH {
            faults.extend(self.evict());
        }
        faults
    }

    /// Returns the block that was freed first to the system.
    fn evict(&mut self) -> Option<(FaultKind, String)> {
        let start = self.quarantine.pop_front()?;
        let record = self.records.remove(&start)?;
        self.quarantined_bytes -= record.capacity;
        let is_written = record.mapping.is_none() && first_unpoisoned(record.start, record.end).is_some();
        let text = format!("{} was written after it was freed", record.describe());
        record.release();
        is_written.then_some((FaultKind::UseAfterFree, text))
    }

    /// Checks the margins of the allocation at an address.
    pub(crate) fn margin_fault(&self, address: usize) -> Option<(FaultKind, String)> {
        let record = self.find(address)?;
        if record.lifetime == Lifetime::Freed {
            return None;
        }
        let offset = record.take_margin_fault()?;
        let text = format!("a write at offset {offset} of {}", record.describe());
        Some((FaultKind::OutOfBounds, text))
    }

    /// Changes the bytes of an allocation that work that runs from now on may use, 0 if it returns to its pool. All
    /// bytes become poison. Returns the fault if a block was written while its pool kept it.
    pub(crate) fn resize_running(&mut self, base: usize, bytes: usize) -> Option<(FaultKind, String)> {
        let margin_fault = self.margin_fault(base);
        let record = self.find_mut(base)?;
        let was_pooled = record.running_size == 0;
        let is_written = was_pooled && first_unpoisoned(record.start, record.end).is_some();
        record.running_size = bytes;
        poison(record.start, record.end);
        let text = || format!("{} was written after it returned to its pool", record.describe());
        margin_fault.or_else(|| is_written.then(|| (FaultKind::UseAfterFree, text())))
    }

    /// Checks the margins of all allocations.
    pub(crate) fn all_margin_faults(&self) -> Vec<(FaultKind, String)> {
        self.records.values().filter_map(|record| self.margin_fault(record.base)).collect()
    }

    /// Returns the allocations that are not freed.
    pub(crate) fn live(&self) -> impl Iterator<Item = &AllocationRecord> {
        self.records.values().filter(|record| record.lifetime != Lifetime::Freed)
    }

    /// Returns the count of live allocations.
    pub(crate) fn live_count(&self) -> usize {
        self.live().count()
    }

    /// Returns the bytes of live allocations.
    pub(crate) fn live_bytes(&self) -> usize {
        self.live_bytes
    }

    /// The bytes of live pinned allocations.
    pub(crate) fn live_pinned_bytes(&self) -> usize {
        self.live().filter(|record| record.kind == MemoryKind::Pinned).map(|record| record.capacity).sum()
    }
}
