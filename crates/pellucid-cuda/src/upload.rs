//! [`Uploads`]: copies from the host to the device for which the host does not wait.
//!
//! The bytes are copied to blocks of pinned memory before the call returns. Small copies run from there in the stream
//! of launches. The parts of large ones run in two steps, so that the transfer overlaps with running launches: the copy
//! stream copies a part to a block of device memory, which no launch uses, and the stream of launches copies it from
//! there, in the order of the calls. Events order the use of the blocks. The number of blocks is bounded: if all are in
//! use, the host waits for the oldest one.

use crate::context::Context;
use crate::event::Event;
use crate::memory::{CudaMemory, PinnedMemory};
use cudarc::driver::sys::{self, CUdeviceptr};
use pellucid_ir::{Error, Result};
use std::ffi::c_void;
use std::ptr::copy_nonoverlapping;
use std::sync::Arc;

/// Uploads of at most this size run in the stream of launches: they take less time there than the steps of larger ones.
const SMALL_BYTES: usize = 64 << 10;

/// The size in bytes of a pinned block for small uploads, and the maximum number of these blocks.
const SMALL_BLOCK: usize = 256 << 10;
const MAX_SMALL_BLOCKS: usize = 8;

/// The size in bytes of a part of a large upload, and the maximum number of blocks for them.
const PART_BYTES: usize = 4 << 20;
const MAX_PARTS: usize = 16;

/// The uploads of a device.
pub(crate) struct Uploads {
    context: Arc<Context>,
    small: SmallUploads,
    parts: Vec<PartBlock>,
    /// The index of the block for the next part, whose last use is the oldest.
    next_part: usize,
}

/// The pinned blocks of small uploads, which share a block.
#[derive(Default)]
struct SmallUploads {
    blocks: Vec<SmallBlock>,
    /// The index of the block that is being filled, and the bytes of it that are in use.
    current: usize,
    used: usize,
}

struct SmallBlock {
    memory: PinnedMemory,
    /// Recorded when the block is full.
    copied: Event,
}

/// A pinned block and a block of device memory for one part of a large upload.
struct PartBlock {
    pinned: PinnedMemory,
    memory: CudaMemory,
    /// Recorded in the copy stream after the copy to the device memory.
    arrived: Event,
    /// Recorded in the stream of launches after the copy from the device memory.
    consumed: Event,
}

impl Uploads {
    /// Creates the uploads of a device. The first upload allocates memory.
    pub(crate) fn new(context: &Arc<Context>) -> Uploads {
        Uploads { context: context.clone(), small: SmallUploads::default(), parts: Vec::new(), next_part: 0 }
    }

    /// Copies `bytes` to the device at the address `to`, after all work that was submitted before. The caller may
    /// change `bytes` after the call.
    ///
    /// # Safety
    /// * Range: `to` is the address of at least `bytes.len()` bytes in one buffer of the context.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the host has no pinned memory for the first upload; the error of the device.
    pub(crate) unsafe fn upload(&mut self, to: CUdeviceptr, bytes: &[u8]) -> Result<()> {
        self.context.enter()?;
        let mut to = to;
        if bytes.len() > SMALL_BYTES && self.has_part_block()? {
            for part in bytes.chunks(PART_BYTES) {
                // SAFETY: *Range*: the parts are inside the range of the upload.
                unsafe { self.upload_part(to, part) }?;
                to += part.len() as u64;
            }
            return Ok(());
        }
        for part in bytes.chunks(SMALL_BLOCK) {
            let from = self.small.stage(&self.context, part)?;
            // SAFETY: *Range* of this function, whose parts are inside the range. The pinned bytes are not changed
            // before the event of their block, which is recorded after this copy.
            let result = unsafe { sys::cuMemcpyHtoDAsync_v2(to, from, part.len(), self.context.stream()) };
            self.context.check("upload", result)?;
            to += part.len() as u64;
        }
        Ok(())
    }

    /// Uploads a part of at most [`PART_BYTES`] bytes. There must be a block.
    ///
    /// # Safety
    /// * Range: as in [`upload`](Uploads::upload).
    unsafe fn upload_part(&mut self, to: CUdeviceptr, bytes: &[u8]) -> Result<()> {
        assert!(bytes.len() <= PART_BYTES, "a part exceeds its block");
        self.select_part_block()?;
        let (context, block) = (&self.context, &self.parts[self.next_part]);
        let (launches, copies) = (context.stream(), context.copy_stream());
        block.arrived.synchronize()?;
        // SAFETY: the block has at least the size of the part, and the last copy from it has arrived.
        unsafe { copy_nonoverlapping(bytes.as_ptr(), block.pinned.address().cast(), bytes.len()) };
        block.consumed.order_before(copies)?;
        let (staged, from) = (block.memory.address(), block.pinned.address());
        // SAFETY: both blocks have at least the size of the part. The device memory is not in use: the copy stream
        // waits for the copy that consumed its last contents. The pinned block is not changed before `arrived`.
        let result = unsafe { sys::cuMemcpyHtoDAsync_v2(staged, from, bytes.len(), copies) };
        context.check("upload", result)?;
        block.arrived.record(copies)?;
        block.arrived.order_before(launches)?;
        // SAFETY: *Range* of this function, and the size of the block. The stream waits until the bytes have arrived.
        let result = unsafe { sys::cuMemcpyDtoDAsync_v2(to, staged, bytes.len(), launches) };
        context.check("upload", result)?;
        block.consumed.record(launches)?;
        self.next_part = (self.next_part + 1) % self.parts.len();
        Ok(())
    }

    /// Returns true if there is a block for parts, and tries to create the first one.
    fn has_part_block(&mut self) -> Result<bool> {
        Ok(!self.parts.is_empty() || self.add_part_block()?)
    }

    /// Creates a block if the one whose last use is the oldest is still in use and the number of blocks allows it.
    fn select_part_block(&mut self) -> Result<()> {
        if self.parts.len() < MAX_PARTS && !self.parts[self.next_part].consumed.is_done()? {
            self.add_part_block()?;
        }
        Ok(())
    }

    /// Adds a block before the one whose last use is the oldest. Returns false if there is no memory for it.
    fn add_part_block(&mut self) -> Result<bool> {
        match PartBlock::new(&self.context) {
            Ok(block) => {
                self.parts.insert(self.next_part, block);
                Ok(true)
            }
            Err(Error::OutOfMemory { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl SmallUploads {
    /// Copies at most [`SMALL_BLOCK`] bytes to a pinned block, and returns their address. They stay valid for copies
    /// that are submitted to the stream of launches before the next call.
    fn stage(&mut self, context: &Arc<Context>, bytes: &[u8]) -> Result<*const c_void> {
        if self.blocks.is_empty() || self.used + bytes.len() > SMALL_BLOCK {
            self.select_next_block(context)?;
        }
        assert!(self.used + bytes.len() <= SMALL_BLOCK, "a small upload exceeds its block");
        // SAFETY: the sum is at most the size of the block (the assertion).
        let to = unsafe { self.blocks[self.current].memory.address().byte_add(self.used) };
        // SAFETY: the block is large enough for the bytes (the assertion), and no copy reads this part of it.
        unsafe { copy_nonoverlapping(bytes.as_ptr(), to.cast(), bytes.len()) };
        self.used = (self.used + bytes.len()).next_multiple_of(16);
        Ok(to)
    }

    /// Selects a block that no copy reads.
    fn select_next_block(&mut self, context: &Arc<Context>) -> Result<()> {
        if let Some(block) = self.blocks.get(self.current) {
            block.copied.record(context.stream())?;
        }
        // The block after the current one is the oldest.
        let mut next = if self.current + 1 < self.blocks.len() { self.current + 1 } else { 0 };
        let is_free = self.blocks.get(next).map_or(Ok(false), |block| block.copied.is_done())?;
        if !is_free && self.blocks.len() < MAX_SMALL_BLOCKS {
            match SmallBlock::new(context) {
                Ok(block) => {
                    next = (self.current + 1).min(self.blocks.len());
                    self.blocks.insert(next, block);
                }
                // A block that is in use will be free.
                Err(Error::OutOfMemory { .. }) if !self.blocks.is_empty() => {}
                Err(error) => return Err(error),
            }
        }
        self.blocks[next].copied.synchronize()?;
        (self.current, self.used) = (next, 0);
        Ok(())
    }
}

impl SmallBlock {
    fn new(context: &Arc<Context>) -> Result<SmallBlock> {
        Ok(SmallBlock { memory: PinnedMemory::new(context, SMALL_BLOCK)?, copied: Event::untimed(context)? })
    }
}

impl PartBlock {
    /// Allocates both blocks. The device memory belongs to the copy stream, which must not wait for launches before its
    /// first use.
    fn new(context: &Arc<Context>) -> Result<PartBlock> {
        let [arrived, consumed] = [Event::untimed(context)?, Event::untimed(context)?];
        let memory = CudaMemory::allocate_in(context, context.copy_stream(), PART_BYTES)?;
        // The memory is freed in the stream of launches.
        arrived.record(context.copy_stream())?;
        arrived.order_before(context.stream())?;
        let pinned = PinnedMemory::new(context, PART_BYTES)?;
        Ok(PartBlock { pinned, memory, arrived, consumed })
    }
}
