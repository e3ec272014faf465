//! Host memory as a [`Buffer`], whose memory is allocated when it is first needed.

use crate::allocator;
use pellucid_ir::backend::{Buffer, Writable};
use pellucid_ir::{Error, Result};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};

/// A buffer of bytes from the caching allocator, aligned to 64.
#[derive(Debug)]
pub struct CpuBuffer {
    bytes: usize,
    /// The start of the memory, or null if none is allocated. Once set, it changes only when `discard` resets it to
    /// null.
    start: AtomicPtr<u8>,
}

impl CpuBuffer {
    /// Creates a buffer without memory.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if `bytes` exceeds `isize::MAX`.
    pub fn new(bytes: usize) -> Result<CpuBuffer> {
        if bytes > isize::MAX as usize {
            return Err(Error::out_of_memory(bytes));
        }
        Ok(CpuBuffer { bytes, start: AtomicPtr::new(ptr::null_mut()) })
    }

    /// Creates a buffer with uninitialized memory: scratch of a kernel, or an output that a kernel is about to fill.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the allocation fails.
    #[inline]
    pub fn scratch(bytes: usize) -> Result<CpuBuffer> {
        let mut buffer = CpuBuffer::new(bytes)?;
        *buffer.start.get_mut() = buffer.allocate()?.as_ptr();
        Ok(buffer)
    }

    /// Returns the start of the memory, or `None` if no memory is allocated.
    #[inline]
    pub fn start(&self) -> Option<NonNull<u8>> {
        NonNull::new(self.start.load(Ordering::Acquire))
    }

    /// Returns the start of the memory, and allocates the memory if necessary. New memory is uninitialized.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the allocation fails.
    #[inline]
    pub fn ensure(&self) -> Result<NonNull<u8>> {
        match self.start() {
            Some(start) => Ok(start),
            None => self.allocate_once(),
        }
    }

    /// Allocates memory of the size of this buffer. For an empty buffer, returns an aligned dangling pointer.
    #[inline]
    fn allocate(&self) -> Result<NonNull<u8>> {
        if self.bytes == 0 { Ok(dangling()) } else { allocator::allocate(self.bytes) }
    }

    /// Allocates memory and stores its address in this buffer, unless another thread does so first. Returns the stored
    /// address.
    fn allocate_once(&self) -> Result<NonNull<u8>> {
        let start = self.allocate()?;
        match self.start.compare_exchange(ptr::null_mut(), start.as_ptr(), Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(start),
            Err(other) => {
                // Another thread has stored the address of its memory first.
                self.release(start);
                Ok(NonNull::new(other).expect("the start must not be null after another thread has stored it"))
            }
        }
    }

    /// Releases memory from [`CpuBuffer::allocate`] that is no longer used.
    fn release(&self, start: NonNull<u8>) {
        if self.bytes > 0 {
            // SAFETY: *origin* of `release`: `allocate` returned `start` for `self.bytes` bytes. *Exclusive*: all
            // callers own the memory: `drop` is the last user of the buffer, `allocate_once` did not store the pointer,
            // and `discard` has removed it while its caller was the only user of the contents, which `Writable` proves.
            unsafe { allocator::release(start, self.bytes) };
        }
    }
}

/// Returns an aligned dangling pointer.
fn dangling() -> NonNull<u8> {
    #[repr(align(64))]
    struct Aligned;
    const { assert!(align_of::<Aligned>() == allocator::ALIGN) };
    NonNull::<Aligned>::dangling().cast()
}

impl Drop for CpuBuffer {
    fn drop(&mut self) {
        if let Some(start) = NonNull::new(*self.start.get_mut()) {
            self.release(start);
        }
    }
}

impl Buffer for CpuBuffer {
    #[inline]
    fn bytes(&self) -> usize {
        self.bytes
    }

    #[inline]
    fn is_allocated(&self) -> bool {
        self.start().is_some()
    }

    fn discard(&self, storage: Writable<'_>) {
        assert!(storage.contains(self), "`storage` must be the storage that contains this buffer");
        if let Some(start) = NonNull::new(self.start.swap(ptr::null_mut(), Ordering::AcqRel)) {
            self.release(start);
        }
    }
}
