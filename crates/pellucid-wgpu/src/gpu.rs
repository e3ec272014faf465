//! [`Gpu`]: a device with its memory, its shaders and its recorded dispatches.
//!
//! Dispatches are [recorded](crate::submission) and submitted together. Every transfer and every wait submits the
//! recorded dispatches first, so all work runs in the order of the calls.

use crate::allocator::BufferAllocator;
use crate::compiler::ShaderCompiler;
use crate::description::DescriptionCache;
use crate::device::GraphicsDevice;
use crate::shader::{MAX_ITERATIONS, ShaderFeatures};
use crate::status::StatusBuffer;
use crate::submission::RecordedDispatches;
use pellucid_ir::{Result, lock};
use std::sync::{Arc, Mutex, OnceLock};

/// The limits of an adapter for a dispatch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DispatchLimits {
    /// The number of buffers that a dispatch can bind in addition to its parameters and the status buffer.
    pub(crate) bindings: usize,
    /// The number of iterations that the loops of an invocation can have together.
    pub(crate) iterations: usize,
}

/// A device and the state of its kernels.
pub(crate) struct Gpu {
    pub(crate) graphics: GraphicsDevice,
    /// The properties of the adapter on which the source code of shaders depends.
    pub(crate) features: OnceLock<ShaderFeatures>,
    /// Whether the adapter terminates long loops early.
    pub(crate) ends_long_loops: OnceLock<bool>,
    pub(crate) allocator: Mutex<BufferAllocator>,
    pub(crate) compiler: ShaderCompiler,
    pub(crate) descriptions: Mutex<DescriptionCache>,
    /// The dispatches of the next submission.
    pub(crate) recorded: Mutex<RecordedDispatches>,
    /// The status word that the checks of indices set, and the operations that have checks.
    pub(crate) status: StatusBuffer,
}

impl Gpu {
    /// Opens a device on `adapter`.
    ///
    /// # Errors
    /// [`pellucid_ir::Error::DeviceUnavailable`] if the adapter cannot create a device.
    pub(crate) fn open(adapter: &wgpu::Adapter, name: String) -> Result<Arc<Gpu>> {
        let graphics = GraphicsDevice::open(adapter, name)?;
        let (compiler, status) = (ShaderCompiler::new(&graphics.device), StatusBuffer::new(&graphics));
        Ok(Arc::new(Gpu {
            features: OnceLock::new(),
            ends_long_loops: OnceLock::new(),
            allocator: Mutex::new(BufferAllocator::new(graphics.max_buffer_bytes())),
            descriptions: Mutex::new(DescriptionCache::new()),
            recorded: Mutex::new(RecordedDispatches::new(&graphics, &compiler, &status)),
            compiler,
            status,
            graphics,
        }))
    }

    /// Returns the properties of the adapter on which the source code of shaders depends. Before the probe has found
    /// them, none of the properties is set.
    pub(crate) fn shader_features(&self) -> ShaderFeatures {
        self.features.get().copied().unwrap_or_default()
    }

    /// Returns the limits of the adapter for a dispatch.
    pub(crate) fn dispatch_limits(&self) -> DispatchLimits {
        let ends_long_loops = self.ends_long_loops.get() == Some(&true);
        DispatchLimits {
            bindings: self.graphics.max_bindings(),
            iterations: if ends_long_loops { MAX_ITERATIONS } else { usize::MAX },
        }
    }

    /// Returns the unused memory to the adapter. Recorded dispatches hold freed buffers, and the adapter frees a buffer
    /// after the last dispatch that uses it, so this submits all dispatches and waits for them.
    pub(crate) fn free_unused_memory(&self) -> Result<()> {
        lock(&self.allocator).trim();
        self.wait()
    }

    /// Submits all recorded dispatches, without waiting for them.
    pub(crate) fn flush(&self) -> Result<()> {
        lock(&self.recorded).submit(&self.graphics)
    }
}
