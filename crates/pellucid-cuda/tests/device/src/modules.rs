//! Compiled modules: shared libraries whose symbols `device.h` defines.

use std::collections::BTreeMap;
use std::ffi::{CString, c_void};
use std::path::Path;
use std::rc::Rc;

use cudarc::driver::sys::CUresult;

use crate::fibers::{trap_thread, wait_at_barrier, wait_in_warp};
use crate::module_info::ModuleInfo;

/// Shared memory of a block with an opt-in, and without.
pub(crate) const SHARED_BYTES_OPTIN: usize = 232_448;
pub(crate) const SHARED_BYTES: usize = 48 << 10;

/// `pellucid_kernel_info` of `device.h`.
#[repr(C)]
struct KernelInfo {
    call: unsafe extern "C" fn(*mut *mut c_void),
    count: u32,
    parameters: *const KernelParameter,
}

/// The size and the kind of a parameter.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct KernelParameter {
    pub(crate) size: u32,
    /// 0 for a value, 1 for a pointer to constant values, 2 for another pointer.
    pub(crate) kind: u32,
}

/// A loaded shared library.
pub(crate) struct LoadedLibrary {
    handle: *mut c_void,
    pub(crate) info: *mut ModuleInfo,
}

/// A kernel of a library.
pub(crate) struct KernelCode {
    pub(crate) name: String,
    pub(crate) call: unsafe extern "C" fn(*mut *mut c_void),
    pub(crate) parameters: Vec<KernelParameter>,
    pub(crate) library: Rc<LoadedLibrary>,
}

/// A module.
pub(crate) struct ModuleState {
    pub(crate) library: Rc<LoadedLibrary>,
    /// Handles of functions by their names.
    pub(crate) functions: BTreeMap<String, usize>,
}

/// A function of a module.
pub(crate) struct FunctionState {
    pub(crate) code: Rc<KernelCode>,
    /// The limit of dynamic shared memory.
    pub(crate) max_dynamic: usize,
}

impl LoadedLibrary {
    /// Loads a library that the compiler built.
    ///
    /// # Errors
    /// An invalid image if it cannot be loaded.
    pub(crate) fn load(path: &Path) -> Result<Self, CUresult> {
        let invalid = CUresult::CUDA_ERROR_INVALID_IMAGE;
        let path = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|_| invalid)?;
        // SAFETY: the path is a C string. The library has no initialisation code but relocations.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(invalid);
        }
        let mut library = Self { handle, info: std::ptr::null_mut() };
        let info = library.symbol("pellucid_module").ok_or(invalid)?;
        library.info = info.cast();
        // SAFETY: the symbol is the structure that `device.h` defines with this layout, and nothing else uses it now.
        let info = unsafe { &mut *library.info };
        info.barrier = wait_at_barrier;
        info.warp = wait_in_warp;
        info.trap = trap_thread;
        Ok(library)
    }

    /// Returns the address of a symbol.
    pub(crate) fn symbol(&self, name: &str) -> Option<*mut c_void> {
        let name = CString::new(name).ok()?;
        // SAFETY: the handle is open, and the name is a C string.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        (!address.is_null()).then_some(address)
    }

    /// Returns the bytes of shared memory that kernels declare with a size.
    pub(crate) fn static_shared_bytes(&self) -> usize {
        // SAFETY: the library is loaded, and no kernel runs now.
        let info = unsafe { &*self.info };
        info.shared_stop as usize - info.shared_start as usize
    }

    /// Finds a kernel by its name.
    pub(crate) fn kernel(self: &Rc<Self>, name: &str) -> Option<KernelCode> {
        let info = self.symbol(&format!("pellucid_kernel_{name}"))?.cast::<KernelInfo>();
        // SAFETY: `TEST_ENTRY` defines the symbol with this layout, and `parameters` points to `count` values.
        let (call, parameters) = unsafe {
            let info = &*info;
            let list = std::slice::from_raw_parts(info.parameters, info.count as usize);
            (info.call, list.to_vec())
        };
        Some(KernelCode { name: name.to_string(), call, parameters, library: self.clone() })
    }
}

impl Drop for LoadedLibrary {
    fn drop(&mut self) {
        // SAFETY: the handle is open and closed once. Kernels and launches keep the library alive.
        unsafe { libc::dlclose(self.handle) };
    }
}
