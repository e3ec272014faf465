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
        device_count() > 0
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
        Cuda::new(self.open_api(index)?)
    }

    /// Opens the device with this index, without its kernels.
    pub(crate) fn open_api(&self, index: usize) -> Result<CudaApi> {
        let (name, count) = (format!("cuda:{index}"), device_count());
        let reason = match count {
            0 if !crate::is_available() => {
                "the libraries of CUDA (libcuda, libnvrtc and libcublasLt) cannot be loaded; install the driver and the \
                 toolkit of NVIDIA, or add their folders to LD_LIBRARY_PATH"
            }
            0 => "this machine has no GPU of NVIDIA",
            _ => return CudaApi::open(index % count, name),
        };
        Err(Error::DeviceUnavailable { device: name, reason: reason.into() })
    }
}
