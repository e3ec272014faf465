//! Workspaces: uninitialized memory for kernels, of a size that depends on the operands.
//!
//! A workspace of at most [`MAX_STACK_BYTES`] is scratch memory of its thread. A larger workspace is a [`CpuBuffer`]:
//! it counts as memory in use, is subject to the memory cap, and is freed after its use.

use crate::CpuBuffer;
use crate::scratch::{self, MAX_STACK_BYTES};
use crate::threads::{SharedPtr, parallel_for, parallel_ranges, worker_ids};
use pellucid_ir::Result;
use std::ops::Range;

/// Runs `f` with a workspace of `bytes` bytes, which is aligned to 64 bytes.
///
/// # Errors
/// [`Error::OutOfMemory`](pellucid_ir::Error::OutOfMemory) if a large workspace cannot be allocated, or the error of
/// `f`.
pub fn with_workspace<R>(bytes: usize, f: impl FnOnce(*mut u8) -> Result<R>) -> Result<R> {
    if bytes <= MAX_STACK_BYTES {
        return scratch::with_buffer(bytes, f);
    }
    let buffer = CpuBuffer::scratch(bytes)?;
    f(buffer.ensure()?.as_ptr())
}

/// Runs `work` over `0..total`, split into ranges, each with a workspace of `bytes` bytes, which is aligned to 64
/// bytes. The ranges have the sizes that [`parallel_ranges`] chooses. If the workspace is larger than
/// [`MAX_STACK_BYTES`], every index is a separate range instead, and each thread uses one workspace for all its ranges.
///
/// # Errors
/// [`Error::OutOfMemory`](pellucid_ir::Error::OutOfMemory) if large workspaces cannot be allocated. In this case,
/// `work` is never called.
pub fn parallel_ranges_with_workspace(
    total: usize,
    grain: usize,
    bytes: usize,
    work: impl Fn(Range<usize>, *mut u8) + Sync,
) -> Result<()> {
    if bytes <= MAX_STACK_BYTES {
        parallel_ranges(total, grain, |range| scratch::with_buffer(bytes, |workspace: *mut u8| work(range, workspace)));
        return Ok(());
    }
    let bytes = bytes.checked_next_multiple_of(64).unwrap_or(usize::MAX);
    let buffer = CpuBuffer::scratch(worker_ids(total).saturating_mul(bytes))?;
    let start = SharedPtr(buffer.ensure()?.as_ptr());
    parallel_for(total, 1, |worker, i| work(i..i + 1, start.offset((worker * bytes) as isize)));
    Ok(())
}
