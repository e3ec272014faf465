//! [`WgpuBuffer`]: the memory of one storage on a device.

use crate::gpu::Gpu;
use pellucid_ir::backend::{Buffer, Writable};
use pellucid_ir::{Error, Result, lock};
use std::sync::{Arc, Mutex};

/// Memory of a device that is allocated when it is first written, and freed when the buffer is dropped or discarded.
pub(crate) struct WgpuBuffer {
    gpu: Arc<Gpu>,
    bytes: usize,
    memory: Mutex<Option<DeviceMemory>>,
}

/// A buffer of the graphics API and its size class.
pub(crate) struct DeviceMemory {
    gpu: Arc<Gpu>,
    class: usize,
    buffer: wgpu::Buffer,
}

impl DeviceMemory {
    /// Allocates at least `bytes` bytes.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] beyond the cap, the adapter's limit for one buffer, or its memory.
    pub(crate) fn allocate(gpu: &Arc<Gpu>, bytes: usize) -> Result<DeviceMemory> {
        let (class, cached) = lock(&gpu.allocator).reserve(bytes)?;
        let create = || {
            let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
            gpu.graphics.create_buffer("memory", class, usage)
        };
        match cached.map_or_else(|| gpu.graphics.scoped("allocate", create), Ok) {
            Ok(buffer) => Ok(DeviceMemory { gpu: gpu.clone(), class, buffer }),
            Err(error) => {
                lock(&gpu.allocator).cancel(class);
                Err(match error {
                    Error::OutOfMemory { .. } => Error::out_of_memory(bytes),
                    other => other,
                })
            }
        }
    }

    /// Returns the buffer of the graphics API.
    pub(crate) fn raw(&self) -> &wgpu::Buffer {
        &self.buffer
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        lock(&self.gpu.allocator).put(self.class, self.buffer.clone());
    }
}

impl WgpuBuffer {
    /// Creates a buffer of `bytes` bytes without memory.
    pub(crate) fn new(gpu: Arc<Gpu>, bytes: usize) -> WgpuBuffer {
        WgpuBuffer { gpu, bytes, memory: Mutex::default() }
    }

    /// Returns true if the buffer belongs to `gpu`.
    pub(crate) fn is_on(&self, gpu: &Arc<Gpu>) -> bool {
        Arc::ptr_eq(&self.gpu, gpu)
    }

    /// Returns the memory, or `None` if it has not been allocated.
    pub(crate) fn memory(&self) -> Option<wgpu::Buffer> {
        lock(&self.memory).as_ref().map(|memory| memory.raw().clone())
    }

    /// Returns the memory, which is allocated if necessary.
    ///
    /// # Errors
    /// See [`DeviceMemory::allocate`].
    pub(crate) fn ensure(&self) -> Result<wgpu::Buffer> {
        let mut memory = lock(&self.memory);
        if let Some(memory) = &*memory {
            return Ok(memory.raw().clone());
        }
        let allocated = memory.insert(DeviceMemory::allocate(&self.gpu, self.bytes)?);
        Ok(allocated.raw().clone())
    }
}

impl Buffer for WgpuBuffer {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn is_allocated(&self) -> bool {
        lock(&self.memory).is_some()
    }

    fn discard(&self, _: Writable<'_>) {
        let memory = lock(&self.memory).take();
        drop(memory);
    }
}
