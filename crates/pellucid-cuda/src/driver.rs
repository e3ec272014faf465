//! [`CudaDriver`]: finds the devices of this machine and opens them.

use crate::api::CudaApi;
use crate::context::device_count;
use pellucid_gpu::GpuBackend;
use pellucid_ir::backend::{Backend, DeviceKind, Driver};
use pellucid_ir::{Error, Result};

/// A device of [`CudaDriver`].
pub type Cuda = GpuBackend<CudaApi>;

/// The driver of all CUDA devices. They are named `cuda:0`, `cuda:1`, ...
///
/// If a machine has fewer GPUs than an index requires, several devices share a GPU; each has its own memory and stream.
#[derive(Clone, Copy, Debug, Default)]
pub struct CudaDriver;

impl Driver for CudaDriver {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn kind(&self) -> DeviceKind {
        DeviceKind::Gpu
    }

    /// Returns true if the libraries of CUDA can be loaded and the machine has a device. It creates no context.
    fn is_available(&self) -> bool {
        device_count().is_ok()
    }

    fn open(&self, index: usize) -> Result<Box<dyn Backend>> {
        Ok(Box::new(self.open_device(index)?))
    }
}

impl CudaDriver {
    /// Opens the device with this index.
    ///
    /// # Errors
    /// [`Error::DeviceUnavailable`] if there is no GPU, or if it cannot run a test kernel.
    pub fn open_device(&self, index: usize) -> Result<Cuda> {
        let name = format!("cuda:{index}");
        match device_count() {
            Ok(count) => Cuda::new(CudaApi::open(index % count, name)?),
            Err(reason) => Err(Error::DeviceUnavailable { device: name, reason }),
        }
    }
}
