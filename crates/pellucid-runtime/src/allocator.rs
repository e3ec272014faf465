//! The caching allocator behind every buffer: blocks are kept when they are freed, and reused.
//!
//! A fresh page costs its first touch about 0.9 µs, so that a loop which asks the system for its
//! large tensors spends most of its time in page faults; and a small tensor should cost less than
//! the kernel that fills it. Sizes are rounded up to *classes*, eight to each power of two, so that
//! any free block of a class serves any request of it, and at most a ninth of one is wasted. (Where the system
//! grants huge pages, what nobody touches is resident all the same.)
//!
//! Classes up to 4 KiB are kept in caches of each thread, reached without a lock or an atomic
//! read-modify-write; all others, and what overflows a cache, on shelves, one mutex a class.
//! Memory is never zeroed. Failure is a typed error, never an abort.

use crate::{guard, scratch};
use pellucid_ir::backend::MemoryStats;
use pellucid_ir::{Error, Result};
use std::alloc::{self, Layout};
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicIsize, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Alignment of every block: a cache line, and the widest vector.
pub const ALIGN: usize = 64;
/// What most systems call a huge page.
const HUGE_PAGE: usize = 2 << 20;
/// The largest request; beyond it, rounding up could overflow.
const MAX_BYTES: usize = 1 << 62;
const CLASSES: usize = class_of(MAX_BYTES) + 1;
/// Classes of at most 4 KiB.
const SMALL_CLASSES: usize = class_of(4096) + 1;
/// How many blocks of a class a thread keeps; when there are more, half go to the free_list.
const CACHED_BLOCKS: usize = 64;
/// A thread's count of bytes may differ by so much from what the global counter knows.
const SLACK: isize = 1 << 16;
/// So many bytes may always be kept; see [`keeps`].
const KEEP: usize = 256 << 20;

/// Classes to each power of two.
const STEPS: usize = 1 << STEPS_LOG;
const STEPS_LOG: usize = 3;

/// The class whose blocks hold `bytes` (at least 1) bytes; classes are numbered by size.
const fn class_of(bytes: usize) -> usize {
    let n = (bytes - 1) / ALIGN;
    if n < STEPS {
        return n;
    }
    let log = n.ilog2() as usize - STEPS_LOG;
    (log + 1) * STEPS + (n >> log & (STEPS - 1))
}

/// Bytes of a block of `class`.
const fn class_size(class: usize) -> usize {
    if class < STEPS {
        (class + 1) * ALIGN
    } else {
        (class % STEPS + STEPS + 1) << (class / STEPS - 1) << ALIGN.ilog2()
    }
}

/// A free block; whoever holds it owns it.
struct Block(NonNull<u8>);

// SAFETY: a free block is plain memory that nobody else refers to.
unsafe impl Send for Block {}

/// Free blocks of a class, as many as there are: each begins with the address of the next, so that keeping them needs
/// no memory.
struct FreeList(Option<Block>);

impl FreeList {
    fn push(&mut self, block: Block) {
        let start = block.0;
        // SAFETY: the block is aligned, larger than an address, and nobody uses it.
        unsafe { start.cast().write(self.0.replace(block)) };
    }

    fn pop(&mut self) -> Option<Block> {
        let block = self.0.take()?;
        // SAFETY: `push` has written the next one there.
        self.0 = unsafe { block.0.cast::<Option<Block>>().read() };
        Some(block)
    }
}

static FREE_LISTS: [Mutex<FreeList>; CLASSES] = [const { Mutex::new(FreeList(None)) }; CLASSES];
/// Bytes that the system has given and not got back: in use or cached.
static HELD: AtomicUsize = AtomicUsize::new(0);
/// Bytes in use, but for what the threads' all_stats still hold.
static IN_USE: AtomicIsize = AtomicIsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static CAP: AtomicUsize = AtomicUsize::new(usize::MAX);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static SYSTEM_ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
/// The all_stats of all living threads. Also held while a request is weighed against the cap.
static THREAD_STATS: Mutex<Vec<Arc<ThreadStats>>> = Mutex::new(Vec::new());

/// What one thread has counted; only that thread writes, so plain loads and stores suffice.
#[derive(Default)]
struct ThreadStats {
    /// Bytes taken minus bytes given back; negative where others' blocks were freed.
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

    #[cold]
    fn flush(&self) {
        let in_use = self.in_use.load(Relaxed);
        self.in_use.store(0, Relaxed);
        note_peak(IN_USE.fetch_add(in_use, Relaxed) + in_use);
    }
}

/// Free blocks of one small class, of one thread: a stack.
struct ThreadCache {
    len: Cell<usize>,
    blocks: [Cell<Option<Block>>; CACHED_BLOCKS],
}

impl ThreadCache {
    fn new() -> ThreadCache {
        ThreadCache { len: Cell::new(0), blocks: [const { Cell::new(None) }; CACHED_BLOCKS] }
    }

    #[inline]
    fn pop(&self) -> Option<Block> {
        let last = self.len.get().checked_sub(1)?;
        self.len.set(last);
        self.blocks[last].take()
    }

    /// Puts a block on the stack, which has room for it.
    #[inline]
    fn push(&self, block: Block) {
        let len = self.len.get();
        self.blocks[len].set(Some(block));
        self.len.set(len + 1);
    }

    /// Moves up to half a cache from the free_list.
    #[cold]
    fn refill(&self, class: usize) {
        let mut free_list = lock(&FREE_LISTS[class]);
        std::iter::from_fn(|| free_list.pop()).take(CACHED_BLOCKS / 2).for_each(|block| self.push(block));
    }

    /// Moves all but `keep` blocks to the free_list.
    #[cold]
    fn spill(&self, class: usize, keep: usize) {
        let mut free_list = lock(&FREE_LISTS[class]);
        while self.len.get() > keep {
            free_list.push(self.pop().expect("so many are in the cache"));
        }
    }
}

/// What a thread keeps for itself.
struct Local {
    caches: Box<[ThreadCache; SMALL_CLASSES]>,
    stats_of_thread: Arc<ThreadStats>,
}

thread_local! {
    static LOCAL: Local = Local::register();
}

impl Local {
    fn register() -> Local {
        let stats_of_thread = Arc::new(ThreadStats::default());
        lock(&THREAD_STATS).push(stats_of_thread.clone());
        Local { caches: Box::new(std::array::from_fn(|_| ThreadCache::new())), stats_of_thread }
    }

    /// A free block of a small class, from the cache or the free_list.
    #[inline]
    fn take(&self, class: usize) -> Option<Block> {
        let cache = &self.caches[class];
        cache.pop().or_else(|| {
            cache.refill(class);
            cache.pop()
        })
    }

    #[inline]
    fn put(&self, block: Block, class: usize) {
        let cache = &self.caches[class];
        if cache.len.get() == CACHED_BLOCKS {
            cache.spill(class, CACHED_BLOCKS / 2);
        }
        cache.push(block);
    }

    fn empty(&self) {
        self.caches.iter().enumerate().for_each(|(class, cache)| cache.spill(class, 0));
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.empty();
        let mut all_stats = lock(&THREAD_STATS);
        self.stats_of_thread.flush();
        ALLOCATIONS.fetch_add(self.stats_of_thread.allocations.load(Relaxed), Relaxed);
        all_stats.retain(|t| !Arc::ptr_eq(t, &self.stats_of_thread));
    }
}

/// A block of at least `bytes` bytes (1 or more), uninitialised, aligned to [`ALIGN`].
/// To be given back with [`release`] and the same number.
#[inline]
pub fn allocate(bytes: usize) -> Result<NonNull<u8>> {
    let block = if guard::EXACT { exact(bytes) } else { block_of(bytes) };
    // SAFETY: the block is new, and a block of the system has guards on both sides of its class.
    block.inspect(|start| unsafe { guard::write(start.as_ptr(), bytes) })
}

/// A block of exactly `bytes` bytes, from the system.
#[cold]
fn exact(bytes: usize) -> Result<NonNull<u8>> {
    let layout = Layout::from_size_align(bytes, ALIGN).ok();
    // SAFETY: a request is not empty.
    let start = layout.and_then(|layout| NonNull::new(unsafe { alloc::alloc(layout) }));
    start.ok_or_else(|| out_of_memory(bytes))
}

/// [`allocate`] without guards.
#[inline(always)]
fn block_of(bytes: usize) -> Result<NonNull<u8>> {
    if bytes <= class_size(SMALL_CLASSES - 1) && CAP.load(Relaxed) == usize::MAX {
        let class = class_of(bytes);
        let taken = LOCAL.try_with(|local| {
            let block = local.take(class)?;
            local.stats_of_thread.count(class_size(class) as isize, 1);
            Some(block)
        });
        if let Ok(Some(block)) = taken {
            return Ok(block.0);
        }
    }
    allocate_slowly(bytes)
}

fn allocate_slowly(bytes: usize) -> Result<NonNull<u8>> {
    if bytes > MAX_BYTES {
        return Err(out_of_memory(bytes));
    }
    let class = class_of(bytes);
    reserve(class_size(class), bytes)?;
    take(class, bytes)
}

/// [`allocate`] for a little that a kernel must have: it counts, but no cap refuses it. Aborts if the system does.
pub fn allocate_regardless(bytes: usize) -> NonNull<u8> {
    let found = allocate(bytes).or_else(|error| {
        if bytes > MAX_BYTES || guard::EXACT {
            return Err(error);
        }
        count(class_size(class_of(bytes)));
        // SAFETY: the block is new, and a block of the system has guards on both sides of its class.
        take(class_of(bytes), bytes).inspect(|start| unsafe { guard::write(start.as_ptr(), bytes) })
    });
    let layout = Layout::from_size_align(bytes, ALIGN).unwrap_or(Layout::new::<u8>());
    found.unwrap_or_else(|_| alloc::handle_alloc_error(layout))
}

/// A block that has been counted, of the cache or the system.
fn take(class: usize, bytes: usize) -> Result<NonNull<u8>> {
    let small = |class| LOCAL.try_with(|local| local.take(class)).ok().flatten();
    let cached = if class < SMALL_CLASSES { small(class) } else { lock(&FREE_LISTS[class]).pop() };
    match cached.or_else(|| from_system(class_size(class))) {
        Some(block) => Ok(block.0),
        None => {
            IN_USE.fetch_sub(class_size(class) as isize, Relaxed);
            Err(out_of_memory(bytes))
        }
    }
}

/// Gives back a block that [`allocate`] gave for the same number of bytes.
///
/// # Safety
/// Nobody uses the block any more.
#[inline]
pub unsafe fn release(start: NonNull<u8>, bytes: usize) {
    debug_assert!(bytes > 0 && start.addr().get().is_multiple_of(ALIGN), "{bytes} bytes at {start:?}");
    if guard::EXACT {
        let layout = Layout::from_size_align(bytes, ALIGN).expect("a block that was allocated");
        // SAFETY: `exact` allocated the block with this layout, and its owner gives it up.
        return unsafe { alloc::dealloc(start.as_ptr(), layout) };
    }
    // SAFETY: `allocate` has written the guards of the block.
    unsafe { guard::check(start.as_ptr(), bytes) };
    let (class, block) = (class_of(bytes), Block(start));
    let size = class_size(class) as isize;
    if class < SMALL_CLASSES {
        // The thread may be past the destruction of its locals.
        let mut block = Some(block);
        let kept = LOCAL.try_with(|local| {
            local.put(block.take().expect("put once"), class);
            local.stats_of_thread.count(-size, 0);
        });
        if let (Err(_), Some(block)) = (kept, block) {
            IN_USE.fetch_sub(size, Relaxed);
            lock(&FREE_LISTS[class]).push(block);
        }
        return;
    }
    IN_USE.fetch_sub(size, Relaxed);
    if keeps() {
        lock(&FREE_LISTS[class]).push(block);
    } else {
        to_system(block, class_size(class));
    }
}

/// True while the cache may grow: up to twice the peak of use, since a step's classes peak at
/// different times and all of them must stay, and some.
fn keeps() -> bool {
    let cached = HELD.load(Relaxed).saturating_add_signed(-IN_USE.load(Relaxed));
    cached <= KEEP + 2 * PEAK.load(Relaxed)
}

/// Counts a block of `size` bytes as in use, or refuses it because of the cap.
fn reserve(size: usize, requested: usize) -> Result<()> {
    let cap = CAP.load(Relaxed);
    if cap != usize::MAX {
        let all_stats = lock(&THREAD_STATS);
        if in_use(&all_stats).saturating_add(size) > cap {
            drop(all_stats);
            return Err(out_of_memory(requested));
        }
        count(size);
    } else {
        count(size);
    }
    if LOCAL.try_with(|local| local.stats_of_thread.flush()).is_err() {
        note_peak(IN_USE.load(Relaxed));
    }
    Ok(())
}

/// Counts a block of `size` bytes as in use.
fn count(size: usize) {
    IN_USE.fetch_add(size as isize, Relaxed);
    ALLOCATIONS.fetch_add(1, Relaxed);
}

/// Fills the caches of this thread a little, and makes whatever else it keeps: afterwards a few small blocks cost no
/// allocation, whichever thread asks.
pub fn prefill() {
    const EACH: usize = 4;
    for class in 0..SMALL_CLASSES {
        let bytes = class_size(class);
        let blocks: [_; EACH] = std::array::from_fn(|_| allocate(bytes));
        // SAFETY: they were given for so many bytes, and nobody has used them.
        blocks.into_iter().flatten().for_each(|block| unsafe { release(block, bytes) });
    }
}

fn note_peak(in_use: isize) {
    let in_use = in_use.max(0) as usize;
    if in_use > PEAK.load(Relaxed) {
        PEAK.fetch_max(in_use, Relaxed);
    }
}

/// A new block; the cache gives way to it, both below a cap and where the system has no more.
fn from_system(size: usize) -> Option<Block> {
    let layout = layout_of(size)?;
    if HELD.load(Relaxed).saturating_add(size) > CAP.load(Relaxed) {
        trim();
    }
    const { assert!(guard::GUARD.is_multiple_of(ALIGN)) };
    // SAFETY: classes are not empty. The allocation has a guard before the block and one behind it.
    let ask = || NonNull::new(unsafe { alloc::alloc(layout) });
    let start = ask().or_else(|| {
        trim();
        ask()
    })?;
    if layout.align() == HUGE_PAGE {
        prefer_huge_pages(start, size);
    }
    // SAFETY: the first guard is part of the allocation.
    let start = unsafe { start.add(guard::GUARD) };
    HELD.fetch_add(size, Relaxed);
    SYSTEM_ALLOCATIONS.fetch_add(1, Relaxed);
    Some(Block(start))
}

/// Returns the layout of a block of the system with its guards. Large blocks start at a huge page, so that they consist
/// of huge pages if the system has any.
fn layout_of(size: usize) -> Option<Layout> {
    let align = if size >= 2 * HUGE_PAGE { HUGE_PAGE } else { ALIGN };
    Layout::from_size_align(size.checked_add(2 * guard::GUARD)?, align).ok()
}

/// Asks for huge pages under a new block: a kernel that walks through several arrays at once misses fewer
/// translations, and the first touch faults once in 2 MiB. A wish, which the system may ignore.
fn prefer_huge_pages(start: NonNull<u8>, size: usize) {
    #[cfg(target_os = "linux")]
    {
        unsafe extern "C" {
            fn madvise(start: *mut u8, bytes: usize, advice: std::ffi::c_int) -> std::ffi::c_int;
        }
        const MADV_HUGEPAGE: std::ffi::c_int = 14;
        // SAFETY: these are pages of the block alone, and this advice changes nothing that is in them.
        unsafe { madvise(start.as_ptr(), size / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, size);
}

fn to_system(block: Block, size: usize) {
    let layout = layout_of(size).expect("a class that was allocated");
    // SAFETY: `from_system` allocated the block with this layout and its guards, and its owner gives it up.
    unsafe { alloc::dealloc(block.0.as_ptr().sub(guard::GUARD), layout) };
    HELD.fetch_sub(size, Relaxed);
}

/// Returns the shelves, and this thread's caches, to the system. (Other threads keep theirs,
/// less than 2 MiB each.)
pub fn trim() {
    let _ = LOCAL.try_with(Local::empty);
    for (class, free_list) in FREE_LISTS.iter().enumerate() {
        let mut free_list = FreeList(lock(free_list).0.take());
        std::iter::from_fn(|| free_list.pop()).for_each(|block| to_system(block, class_size(class)));
    }
}

/// Limits what may be in use; `usize::MAX` for no limit. With a limit, every request is weighed
/// exactly, which costs small ones some 50 ns.
pub fn set_cap(bytes: usize) {
    CAP.store(bytes, Relaxed);
}

/// The counters. The peak may have missed up to 64 KiB of small blocks a thread.
pub fn stats() -> MemoryStats {
    let all_stats = lock(&THREAD_STATS);
    let in_use = in_use(&all_stats);
    note_peak(in_use as isize);
    MemoryStats {
        in_use,
        peak: PEAK.load(Relaxed),
        cached: HELD.load(Relaxed).saturating_sub(in_use),
        scratch: scratch::total(),
        allocations: all_stats.iter().map(|t| t.allocations.load(Relaxed)).sum::<u64>() + ALLOCATIONS.load(Relaxed),
        system_allocations: SYSTEM_ALLOCATIONS.load(Relaxed),
    }
}

fn in_use(all_stats: &[Arc<ThreadStats>]) -> usize {
    let local: isize = all_stats.iter().map(|t| t.in_use.load(Relaxed)).sum();
    (IN_USE.load(Relaxed) + local).max(0) as usize
}

#[cold]
fn out_of_memory(requested: usize) -> Error {
    Error::OutOfMemory { op: "", shape: None, requested, in_use: stats().in_use, cap: CAP.load(Relaxed) }
}

/// No code runs under these locks that could leave the lists in a bad state.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_the_smallest_that_holds_the_request() {
        let around = |p: u32| [(1usize << p) - 1, 1 << p, (1 << p) + 1, 3 << p >> 1];
        for bytes in (1..10_000).chain((13..61).flat_map(around)) {
            let class = class_of(bytes);
            assert!(class_size(class) >= bytes && class_size(class).is_multiple_of(ALIGN), "{bytes}");
            assert!(class == 0 || class_size(class - 1) < bytes, "{bytes}");
            assert!(class_size(class) <= (bytes + bytes / 8).max(ALIGN) + ALIGN, "{bytes}");
        }
    }
}
