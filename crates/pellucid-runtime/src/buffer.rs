//! Host memory as a [`Buffer`]: empty until it is first written.

use crate::allocator;
use pellucid_ir::backend::Buffer;
use pellucid_ir::{Error, Result};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Bytes of the host, from the pool, aligned to 64.
#[derive(Debug)]
pub struct CpuBuffer {
    bytes: usize,
    /// Null until there is memory; never changes afterwards.
    start: AtomicPtr<u8>,
}

impl CpuBuffer {
    /// A buffer without memory yet. A size that no memory could have is refused at once.
    pub fn new(bytes: usize) -> Result<CpuBuffer> {
        if bytes > isize::MAX as usize {
            return Err(Error::out_of_memory(bytes));
        }
        Ok(CpuBuffer { bytes, start: AtomicPtr::new(ptr::null_mut()) })
    }

    /// A buffer with memory, uninitialised: scratch for a kernel, or what one is about to fill.
    #[inline]
    pub fn scratch(bytes: usize) -> Result<CpuBuffer> {
        let mut buffer = CpuBuffer::new(bytes)?;
        *buffer.start.get_mut() = buffer.memory()?.as_ptr();
        Ok(buffer)
    }

    /// The start of the memory, if there is any.
    #[inline]
    pub fn start(&self) -> Option<NonNull<u8>> {
        NonNull::new(self.start.load(Ordering::Acquire))
    }

    /// The start of the memory, which is taken from the pool if there is none. Its contents are
    /// unspecified.
    #[inline]
    pub fn ensure(&self) -> Result<NonNull<u8>> {
        match self.start() {
            Some(start) => Ok(start),
            None => self.give_memory(),
        }
    }

    /// Memory for this buffer; an empty one gets an address that is aligned, and never used.
    #[inline]
    fn memory(&self) -> Result<NonNull<u8>> {
        if self.bytes == 0 { Ok(dangling()) } else { allocator::allocate(self.bytes) }
    }

    fn give_memory(&self) -> Result<NonNull<u8>> {
        let start = self.memory()?;
        match self.start.compare_exchange(ptr::null_mut(), start.as_ptr(), Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(start),
            Err(other) => {
                // Another thread was first.
                self.release(start);
                Ok(NonNull::new(other).expect("the start changes only from null"))
            }
        }
    }

    fn release(&self, start: NonNull<u8>) {
        if self.bytes > 0 {
            // SAFETY: `start` came from the pool for `self.bytes` bytes; it is known to this buffer
            // only, which is being dropped, or never knew it.
            unsafe { allocator::release(start, self.bytes) };
        }
    }
}

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
}
