//! The caching allocator of all buffers: it keeps freed blocks and reuses them.
//!
//! The first touch of a fresh page costs about 0.9 µs. A loop that allocates its large tensors from the system spends
//! most of its time in page faults. The allocation of a small tensor should take less time than the kernel that fills
//! it.
//!
//! Sizes are rounded up to *size classes*: multiples of 64 bytes up to 1 KiB, then eight per power of two. Any free
//! block of a class can serve any request of that class. At most 63 bytes of a block up to 1 KiB are unused, and at
//! most a ninth of a larger one. (With huge pages, the unused part of a block is also resident.)
//!
//! Each thread caches free blocks of the classes up to 4 KiB and accesses them without a lock or an atomic
//! read-modify-write. Free blocks of larger classes, and blocks for which a thread cache has no space, are kept in
//! shared free lists, each with its own mutex. The allocator never zeroes memory. An allocation failure is a typed
//! error.

use crate::{guard, scratch};
use pellucid_ir::backend::MemoryStats;
use pellucid_ir::{Error, Result, lock};
use std::alloc::{self, Layout};
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicIsize, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// The alignment of every block: the size of a cache line and of the widest vector.
pub const ALIGN: usize = 64;
/// The size of a huge page on most systems.
const HUGE_PAGE: usize = 2 << 20;
/// The largest request in bytes. Rounding up a larger request to a size class could overflow.
const MAX_BYTES: usize = 1 << (usize::BITS - 2);
/// The number of size classes.
const CLASSES: usize = size_class(MAX_BYTES) + 1;
/// The number of size classes up to 4 KiB, which the thread caches hold.
const SMALL_CLASSES: usize = size_class(4096) + 1;
/// The number of blocks per size class in a thread cache. If a block is released and the cache is full, half of the
/// cached blocks are moved to the shared free list.
const CACHED_BLOCKS: usize = 64;
/// The maximum number of bytes in the counter of a thread. If the number is exceeded, the thread adds the counter to
/// the global counter.
const SLACK: isize = 1 << 16;
/// The number of free bytes that the allocator may cache regardless of the peak of use; see [`may_cache`].
const MIN_CACHED_BYTES: usize = 256 << 20;

/// The number of size classes per power of two.
const STEPS: usize = 1 << STEPS_LOG;
/// The binary logarithm of [`STEPS`].
const STEPS_LOG: usize = 3;

/// Returns the smallest size class whose blocks hold `bytes` (at least 1) bytes. Size classes are numbered by size.
const fn size_class(bytes: usize) -> usize {
    let n = (bytes - 1) / ALIGN;
    if n < STEPS {
        return n;
    }
    let log = n.ilog2() as usize - STEPS_LOG;
    (log + 1) * STEPS + (n >> log & (STEPS - 1))
}

/// Returns the size in bytes of a block of the size class `class`.
const fn class_size(class: usize) -> usize {
    if class < STEPS {
        (class + 1) * ALIGN
    } else {
        (class % STEPS + STEPS + 1) << (class / STEPS - 1) << ALIGN.ilog2()
    }
}

/// A free block, which this value owns.
struct FreeBlock(NonNull<u8>);

// SAFETY: a free block is plain memory that is not tied to a thread, and no other pointer to it is in use.
unsafe impl Send for FreeBlock {}

/// A linked list of the free blocks of a size class. Each block begins with the address of the next one, so the list
/// needs no memory of its own.
struct FreeList(Option<FreeBlock>);

impl FreeList {
    fn push(&mut self, block: FreeBlock) {
        let start = block.0;
        // SAFETY: `FreeBlock` owns the block, which is aligned to `ALIGN` and larger than an address.
        unsafe { start.cast().write(self.0.replace(block)) };
    }

    fn pop(&mut self) -> Option<FreeBlock> {
        let block = self.0.take()?;
        // SAFETY: `push` has written the address of the next block at the start of this block, and the list has owned
        // this block since then.
        self.0 = unsafe { block.0.cast::<Option<FreeBlock>>().read() };
        Some(block)
    }
}

static FREE_LISTS: [Mutex<FreeList>; CLASSES] = [const { Mutex::new(FreeList(None)) }; CLASSES];
/// The bytes that are allocated from the system: in use or cached.
static SYSTEM_BYTES: AtomicUsize = AtomicUsize::new(0);
/// The bytes in use, without the bytes that are still in the counters of threads ([`ThreadStats`]).
static IN_USE: AtomicIsize = AtomicIsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static CAP: AtomicUsize = AtomicUsize::new(usize::MAX);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static SYSTEM_ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
/// The counters of all living threads. The lock is also held while a request is compared with the cap.
static THREAD_STATS: Mutex<Vec<Arc<ThreadStats>>> = Mutex::new(Vec::new());

/// The counters of one thread. Only that thread writes them, so plain loads and stores suffice.
#[derive(Default)]
struct ThreadStats {
    /// The bytes allocated minus the bytes released since the last flush. Negative if the thread released more bytes
    /// than it allocated.
    in_use: AtomicIsize,
    allocations: AtomicU64,
}

impl ThreadStats {
    fn count(&self, bytes: isize, allocations: u64) {
        let in_use = self.in_use.load(Relaxed) + bytes;
        self.in_use.store(in_use, Relaxed);
        self.allocations.store(self.allocations.load(Relaxed) + allocations, Relaxed);
        if in_use.unsigned_abs() > SLACK as usize {
            self.flush();
        }
    }

    /// Moves the bytes in use from this counter to the global counter.
    #[cold]
    fn flush(&self) {
        let in_use = self.in_use.load(Relaxed);
        self.in_use.store(0, Relaxed);
        update_peak(IN_USE.fetch_add(in_use, Relaxed) + in_use);
    }
}

/// A stack of the free blocks of one small size class in the cache of one thread.
struct ThreadCache {
    len: Cell<usize>,
    blocks: [Cell<Option<FreeBlock>>; CACHED_BLOCKS],
}

impl ThreadCache {
    fn new() -> ThreadCache {
        ThreadCache { len: Cell::new(0), blocks: [const { Cell::new(None) }; CACHED_BLOCKS] }
    }

    #[inline]
    fn pop(&self) -> Option<FreeBlock> {
        let last = self.len.get().checked_sub(1)?;
        self.len.set(last);
        self.blocks[last].take()
    }

    /// Pushes a block onto the stack, which must not be full.
    #[inline]
    fn push(&self, block: FreeBlock) {
        let len = self.len.get();
        self.blocks[len].set(Some(block));
        self.len.set(len + 1);
    }

    /// Fills up to half of this cache with blocks of the shared free list. The cache must be empty.
    #[cold]
    fn refill(&self, class: usize) {
        let mut free_list = lock(&FREE_LISTS[class]);
        std::iter::from_fn(|| free_list.pop()).take(CACHED_BLOCKS / 2).for_each(|block| self.push(block));
    }

    /// Moves blocks to the shared free list until at most `keep` blocks are left.
    #[cold]
    fn spill(&self, class: usize, keep: usize) {
        let mut free_list = lock(&FREE_LISTS[class]);
        while self.len.get() > keep {
            free_list.push(self.pop().expect("a cache with more than `keep` blocks must not be empty"));
        }
    }
}

/// The caches and the counters of one thread.
struct ThreadAllocator {
    caches: Box<[ThreadCache; SMALL_CLASSES]>,
    stats: Arc<ThreadStats>,
}

thread_local! {
    static THREAD_ALLOCATOR: ThreadAllocator = ThreadAllocator::register();
}

impl ThreadAllocator {
    /// Creates empty caches, and adds the counters to [`THREAD_STATS`].
    fn register() -> ThreadAllocator {
        let stats = Arc::new(ThreadStats::default());
        lock(&THREAD_STATS).push(stats.clone());
        ThreadAllocator { caches: Box::new(std::array::from_fn(|_| ThreadCache::new())), stats }
    }

    /// Pops a free block of a small size class from the cache. If the cache is empty, it is first refilled from the
    /// shared free list.
    #[inline]
    fn pop(&self, class: usize) -> Option<FreeBlock> {
        let cache = &self.caches[class];
        cache.pop().or_else(|| {
            cache.refill(class);
            cache.pop()
        })
    }

    /// Pushes a free block of a small size class onto the cache. If the cache is full, half of its blocks are first
    /// moved to the shared free list.
    #[inline]
    fn push(&self, block: FreeBlock, class: usize) {
        let cache = &self.caches[class];
        if cache.len.get() == CACHED_BLOCKS {
            cache.spill(class, CACHED_BLOCKS / 2);
        }
        cache.push(block);
    }

    /// Moves all cached blocks to the shared free lists.
    fn spill_all(&self) {
        self.caches.iter().enumerate().for_each(|(class, cache)| cache.spill(class, 0));
    }
}

impl Drop for ThreadAllocator {
    fn drop(&mut self) {
        self.spill_all();
        let mut all_stats = lock(&THREAD_STATS);
        self.stats.flush();
        ALLOCATIONS.fetch_add(self.stats.allocations.load(Relaxed), Relaxed);
        all_stats.retain(|t| !Arc::ptr_eq(t, &self.stats));
    }
}

/// Allocates an uninitialized block of at least `bytes` (1 or more) bytes, aligned to [`ALIGN`].
///
/// The caller must return the block with [`release`] and the same `bytes`.
///
/// # Errors
/// [`Error::OutOfMemory`] if the bytes in use would exceed the cap, or if the system has no more memory.
#[inline]
pub fn allocate(bytes: usize) -> Result<NonNull<u8>> {
    let block = if guard::EXACT { allocate_exact(bytes) } else { allocate_block(bytes) };
    // SAFETY: *extent* of `guard::write`: the block has at least `bytes` bytes, and the system allocation has `GUARD`
    // bytes on both sides of the block (exact blocks have `GUARD` = 0). *Exclusive*: the block is new.
    block.inspect(|start| unsafe { guard::write(start.as_ptr(), bytes) })
}

/// Allocates a block of exactly `bytes` bytes from the system.
#[cold]
fn allocate_exact(bytes: usize) -> Result<NonNull<u8>> {
    let layout = Layout::from_size_align(bytes, ALIGN).ok();
    // SAFETY: the size of the layout is not zero, because `allocate` requires at least 1 byte.
    let start = layout.and_then(|layout| NonNull::new(unsafe { alloc::alloc(layout) }));
    start.ok_or_else(|| out_of_memory(bytes))
}

/// Allocates a block, from the thread cache if possible, and does not write its guards.
#[inline(always)]
fn allocate_block(bytes: usize) -> Result<NonNull<u8>> {
    if bytes <= class_size(SMALL_CLASSES - 1) && CAP.load(Relaxed) == usize::MAX {
        let class = size_class(bytes);
        let cached = THREAD_ALLOCATOR.try_with(|local| {
            let block = local.pop(class)?;
            local.stats.count(class_size(class) as isize, 1);
            Some(block)
        });
        if let Ok(Some(block)) = cached {
            return Ok(block.0);
        }
    }
    allocate_slowly(bytes)
}

/// Allocates a block that is large, is subject to a cap, or is not in the thread cache.
fn allocate_slowly(bytes: usize) -> Result<NonNull<u8>> {
    if bytes > MAX_BYTES {
        return Err(out_of_memory(bytes));
    }
    let class = size_class(bytes);
    count_within_cap(class_size(class), bytes)?;
    take_block(class, bytes)
}

/// Allocates a small block for code that cannot return an error. The block counts as memory in use, but the cap does
/// not apply to it.
///
/// Aborts the process if the system has no more memory.
pub fn allocate_regardless(bytes: usize) -> NonNull<u8> {
    let result = allocate(bytes).or_else(|error| {
        if bytes > MAX_BYTES || guard::EXACT {
            return Err(error);
        }
        count_in_use(class_size(size_class(bytes)));
        // SAFETY: *extent* of `guard::write`: the block has at least `bytes` bytes, and the system allocation has
        // `GUARD` bytes on both sides of the block. *Exclusive*: the block is new.
        take_block(size_class(bytes), bytes).inspect(|start| unsafe { guard::write(start.as_ptr(), bytes) })
    });
    let layout = Layout::from_size_align(bytes, ALIGN).unwrap_or(Layout::new::<u8>());
    result.unwrap_or_else(|_| alloc::handle_alloc_error(layout))
}

/// Obtains a block from the caches or the system. The caller must already have counted the block as in use. If there is
/// no memory, this function undoes the count.
fn take_block(class: usize, bytes: usize) -> Result<NonNull<u8>> {
    let pop_small = |class| THREAD_ALLOCATOR.try_with(|local| local.pop(class)).ok().flatten();
    let cached = if class < SMALL_CLASSES { pop_small(class) } else { lock(&FREE_LISTS[class]).pop() };
    match cached.or_else(|| allocate_from_system(class_size(class))) {
        Some(block) => Ok(block.0),
        None => {
            IN_USE.fetch_sub(class_size(class) as isize, Relaxed);
            Err(out_of_memory(bytes))
        }
    }
}

/// Releases a block to the allocator.
///
/// # Panics
/// In builds with debug assertions, panics if a kernel wrote outside the block.
///
/// # Safety
/// - *Origin*: [`allocate`] or [`allocate_regardless`] returned `start` for the same `bytes`, and the block has not
///   been released since.
/// - *Exclusive*: no pointer or reference to the block is used after this call.
#[inline]
pub unsafe fn release(start: NonNull<u8>, bytes: usize) {
    debug_assert!(
        bytes > 0 && start.addr().get().is_multiple_of(ALIGN),
        "a block must be aligned and not empty, but has {bytes} bytes at {start:?}"
    );
    if guard::EXACT {
        let layout = Layout::from_size_align(bytes, ALIGN).expect("the layout of an allocated block must be valid");
        // SAFETY: the caller guarantees *origin*: `allocate_exact` allocated the block with this layout; and
        // *exclusive*: the block is not used again.
        return unsafe { alloc::dealloc(start.as_ptr(), layout) };
    }
    // SAFETY: the caller guarantees *origin*: the allocation has written the guards for `bytes` bytes, and the block is
    // still valid.
    unsafe { guard::check(start.as_ptr(), bytes) };
    let (class, block) = (size_class(bytes), FreeBlock(start));
    let size = class_size(class) as isize;
    if class < SMALL_CLASSES {
        // While a thread exits, its thread-local state may already have been destroyed.
        let mut block = Some(block);
        let cached = THREAD_ALLOCATOR.try_with(|local| {
            local.push(block.take().expect("try_with() must call the closure only once"), class);
            local.stats.count(-size, 0);
        });
        if let (Err(_), Some(block)) = (cached, block) {
            IN_USE.fetch_sub(size, Relaxed);
            lock(&FREE_LISTS[class]).push(block);
        }
        return;
    }
    IN_USE.fetch_sub(size, Relaxed);
    if may_cache() {
        lock(&FREE_LISTS[class]).push(block);
    } else {
        free_to_system(block, class_size(class));
    }
}

/// Returns true while the cached bytes do not exceed twice the peak of the bytes in use, plus [`MIN_CACHED_BYTES`].
///
/// The limit is high, because the size classes reach their peaks of use at different times of a training step, and the
/// blocks of all size classes should stay cached.
fn may_cache() -> bool {
    let cached = SYSTEM_BYTES.load(Relaxed).saturating_add_signed(-IN_USE.load(Relaxed));
    cached <= MIN_CACHED_BYTES + 2 * PEAK.load(Relaxed)
}

/// Counts a block of `size` bytes as in use, or returns an error if the bytes in use would exceed the cap.
fn count_within_cap(size: usize, requested: usize) -> Result<()> {
    let cap = CAP.load(Relaxed);
    if cap != usize::MAX {
        let all_stats = lock(&THREAD_STATS);
        if total_in_use(&all_stats).saturating_add(size) > cap {
            drop(all_stats);
            return Err(out_of_memory(requested));
        }
        count_in_use(size);
    } else {
        count_in_use(size);
    }
    if THREAD_ALLOCATOR.try_with(|local| local.stats.flush()).is_err() {
        update_peak(IN_USE.load(Relaxed));
    }
    Ok(())
}

/// Counts an allocation of `size` bytes.
fn count_in_use(size: usize) {
    IN_USE.fetch_add(size as isize, Relaxed);
    ALLOCATIONS.fetch_add(1, Relaxed);
}

/// Creates the thread-local state of the allocator, and caches four blocks of every small size class.
///
/// Afterwards, this thread can allocate a few small blocks without a system allocation.
pub fn prefill() {
    const BLOCKS_PER_CLASS: usize = 4;
    for class in 0..SMALL_CLASSES {
        let bytes = class_size(class);
        let blocks: [_; BLOCKS_PER_CLASS] = std::array::from_fn(|_| allocate(bytes));
        // SAFETY: *origin* of `release`: the line above allocated the blocks for `bytes` bytes. *Exclusive*: no other
        // code has the pointers.
        blocks.into_iter().flatten().for_each(|block| unsafe { release(block, bytes) });
    }
}

/// Raises the peak to `in_use` if `in_use` is larger.
fn update_peak(in_use: isize) {
    let in_use = in_use.max(0) as usize;
    if in_use > PEAK.load(Relaxed) {
        PEAK.fetch_max(in_use, Relaxed);
    }
}

/// Allocates a block of `size` bytes with guards from the system.
///
/// Frees cached blocks first (see [`trim`]) if the bytes from the system would exceed the cap, or if the system has no
/// more memory.
fn allocate_from_system(size: usize) -> Option<FreeBlock> {
    let layout = block_layout(size)?;
    if SYSTEM_BYTES.load(Relaxed).saturating_add(size) > CAP.load(Relaxed) {
        trim();
    }
    const { assert!(guard::GUARD.is_multiple_of(ALIGN)) };
    // SAFETY: the size of the layout is not zero, because a block of any size class has at least `ALIGN` bytes.
    let try_allocate = || NonNull::new(unsafe { alloc::alloc(layout) });
    let start = try_allocate().or_else(|| {
        trim();
        try_allocate()
    })?;
    if layout.align() == HUGE_PAGE {
        advise_huge_pages(start, size);
    }
    // SAFETY: the allocation begins with a guard, so the result is inside the allocation.
    let start = unsafe { start.add(guard::GUARD) };
    SYSTEM_BYTES.fetch_add(size, Relaxed);
    SYSTEM_ALLOCATIONS.fetch_add(1, Relaxed);
    Some(FreeBlock(start))
}

/// Returns the layout of a system allocation: a block of `size` bytes and its guards.
///
/// Large blocks are aligned to huge pages, so that the system can back them with huge pages.
fn block_layout(size: usize) -> Option<Layout> {
    let align = if size >= 2 * HUGE_PAGE { HUGE_PAGE } else { ALIGN };
    Layout::from_size_align(size.checked_add(2 * guard::GUARD)?, align).ok()
}

/// Advises the system to back a new block with huge pages. The system may ignore the advice.
///
/// With huge pages, a kernel that traverses several arrays simultaneously causes fewer TLB misses, and the first touch
/// of the block causes only one page fault per 2 MiB.
fn advise_huge_pages(start: NonNull<u8>, size: usize) {
    #[cfg(target_os = "linux")]
    {
        unsafe extern "C" {
            fn madvise(start: *mut u8, bytes: usize, advice: std::ffi::c_int) -> std::ffi::c_int;
        }
        const MADV_HUGEPAGE: std::ffi::c_int = 14;
        // SAFETY: the pages belong to the new block only, and this advice does not change their contents.
        unsafe { madvise(start.as_ptr(), size / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, size);
}

/// Returns a block of `size` bytes to the system.
fn free_to_system(block: FreeBlock, size: usize) {
    let layout = block_layout(size).expect("the layout of a block that was allocated must be valid");
    // SAFETY: `allocate_from_system` allocated the block with this layout, `GUARD` bytes before its start, and this
    // function consumes its owner.
    unsafe { alloc::dealloc(block.0.as_ptr().sub(guard::GUARD), layout) };
    SYSTEM_BYTES.fetch_sub(size, Relaxed);
}

/// Returns the free blocks of the shared free lists and of this thread's caches to the system.
///
/// Other threads keep their caches, which hold less than 3 MiB each.
pub fn trim() {
    let _ = THREAD_ALLOCATOR.try_with(ThreadAllocator::spill_all);
    for (class, free_list) in FREE_LISTS.iter().enumerate() {
        let mut free_list = FreeList(lock(free_list).0.take());
        std::iter::from_fn(|| free_list.pop()).for_each(|block| free_to_system(block, class_size(class)));
    }
}

/// Sets the cap, which limits the bytes in use; `usize::MAX` means no limit.
///
/// With a limit, every request is compared with the exact number of bytes in use, which adds about 50 ns to a small
/// request.
pub fn set_cap(bytes: usize) {
    CAP.store(bytes, Relaxed);
}

/// Returns an error if `bytes` more bytes in use would exceed the cap.
///
/// # Errors
/// [`Error::OutOfMemory`].
pub fn check_cap(bytes: usize) -> Result<()> {
    let cap = CAP.load(Relaxed);
    if cap == usize::MAX || stats().in_use.saturating_add(bytes) <= cap { Ok(()) } else { Err(out_of_memory(bytes)) }
}

/// Returns the counters of the allocator. The peak may be too low by up to 64 KiB of small blocks per thread.
pub fn stats() -> MemoryStats {
    let all_stats = lock(&THREAD_STATS);
    let in_use = total_in_use(&all_stats);
    update_peak(in_use as isize);
    MemoryStats {
        in_use,
        peak: PEAK.load(Relaxed),
        cached: SYSTEM_BYTES.load(Relaxed).saturating_sub(in_use),
        scratch: scratch::total_bytes(),
        allocations: all_stats.iter().map(|t| t.allocations.load(Relaxed)).sum::<u64>() + ALLOCATIONS.load(Relaxed),
        system_allocations: SYSTEM_ALLOCATIONS.load(Relaxed),
    }
}

/// Returns the bytes in use by all threads.
fn total_in_use(all_stats: &[Arc<ThreadStats>]) -> usize {
    let unflushed: isize = all_stats.iter().map(|t| t.in_use.load(Relaxed)).sum();
    (IN_USE.load(Relaxed) + unflushed).max(0) as usize
}

#[cold]
fn out_of_memory(requested: usize) -> Error {
    Error::OutOfMemory { op: "", shape: None, requested, in_use: stats().in_use, cap: CAP.load(Relaxed) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_the_smallest_that_holds_the_request() {
        let sizes_near = |p: u32| [(1usize << p) - 1, 1 << p, (1 << p) + 1, 3 << p >> 1];
        for bytes in (1..10_000).chain((13..61).flat_map(sizes_near)) {
            let class = size_class(bytes);
            assert!(
                class_size(class) >= bytes && class_size(class).is_multiple_of(ALIGN),
                "a block for {bytes} bytes is too small, or its size is not a multiple of the alignment"
            );
            assert!(
                class == 0 || class_size(class - 1) < bytes,
                "the size class of {bytes} bytes must be the smallest with large enough blocks"
            );
            assert!(
                class_size(class) <= (bytes + bytes / 8).max(ALIGN) + ALIGN,
                "a block for {bytes} bytes has too many unused bytes"
            );
        }
    }
}
