//! The backend under test.

use pellucid_cuda::{Cuda, CudaDriver};
use pellucid_ir::Result;
use pellucid_ir::backend::Driver;

pub(crate) type TestBackend = Cuda;

/// The variable that requires a device if it is 1.
pub(crate) const REQUIRED: &str = "PELLUCID_REQUIRE_CUDA";

/// The number of submissions of a launch whose kernels check indices: a graph is launched by one call.
pub(crate) const CHECKED_SUBMISSIONS: u64 = 1;

/// Opens a device.
pub(crate) fn open(index: usize) -> Result<TestBackend> {
    CudaDriver.open_device(index)
}

/// Returns true if the machine has a device.
pub(crate) fn is_available() -> bool {
    CudaDriver.is_available()
}
