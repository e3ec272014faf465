//! The backend under test.

use pellucid_ir::Result;
use pellucid_ir::backend::Driver;
use pellucid_wgpu::{Wgpu, WgpuDriver};

pub(crate) type TestBackend = Wgpu;

/// The variable that requires a device if it is 1.
pub(crate) const REQUIRED: &str = "PELLUCID_REQUIRE_GPU";

/// The number of submissions of a launch whose kernels check indices: up to the last check, and the rest.
pub(crate) const CHECKED_SUBMISSIONS: u64 = 2;

/// Opens a device.
pub(crate) fn open(index: usize) -> Result<TestBackend> {
    WgpuDriver.open_device(index)
}

/// Returns true if the machine has a device.
pub(crate) fn is_available() -> bool {
    WgpuDriver.is_available()
}
