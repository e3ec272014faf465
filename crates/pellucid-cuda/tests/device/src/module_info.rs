//! What a module and the test device know of each other.

/// `pellucid_module_info` of `device.h`.
#[repr(C)]
pub(crate) struct ModuleInfo {
    pub(crate) thread: *mut [u32; 3],
    pub(crate) block: *mut [u32; 3],
    pub(crate) block_dimensions: *mut [u32; 3],
    pub(crate) grid_dimensions: *mut [u32; 3],
    pub(crate) dynamic: *mut u8,
    pub(crate) shared_start: *mut u8,
    pub(crate) shared_stop: *mut u8,
    pub(crate) barrier: extern "C" fn(u32, u32, i32) -> u64,
    pub(crate) warp: extern "C" fn(u32, u32, u32, u64, u32, u32) -> u64,
    pub(crate) trap: extern "C" fn(u32),
}
