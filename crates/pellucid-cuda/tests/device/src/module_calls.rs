//! Modules, functions and their attributes.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::rc::Rc;

use cudarc::driver::sys::{CUfunction_attribute as Attribute, CUresult};

use crate::compiler::KernelSource;
use crate::interface::{Out, Outcome, put, put_optional};
use crate::launch::MAX_THREADS;
use crate::modules::{FunctionState, LoadedLibrary, ModuleState, SHARED_BYTES, SHARED_BYTES_OPTIN};
use crate::report_calls::text_of;
use crate::{TestDevice, context_call};

impl TestDevice {
    fn load_module(&mut self, image: &str) -> Result<usize, CUresult> {
        let source = KernelSource::from_image(image).ok_or(CUresult::CUDA_ERROR_INVALID_IMAGE)?;
        // The object is compiled again if the cache was removed.
        let (path, _) = source.compile().map_err(|_| CUresult::CUDA_ERROR_INVALID_IMAGE)?;
        let library = Rc::new(LoadedLibrary::load(&path)?);
        Ok(self.modules.insert(ModuleState { library, functions: BTreeMap::new() }))
    }

    fn find_function(&mut self, module: usize, name: &str) -> Result<usize, CUresult> {
        let Some(state) = self.modules.get_mut(module) else {
            return Err(self.invalid_handle("module", module));
        };
        if let Some(handle) = state.functions.get(name) {
            return Ok(*handle);
        }
        let code = state.library.kernel(name).ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
        let max_dynamic = SHARED_BYTES.saturating_sub(state.library.static_shared_bytes());
        let handle = self.functions.insert(FunctionState { code: Rc::new(code), max_dynamic });
        state.functions.insert(name.to_string(), handle);
        Ok(handle)
    }

    fn function(&mut self, handle: usize) -> Result<&mut FunctionState, CUresult> {
        if self.functions.get(handle).is_none() {
            return Err(self.invalid_handle("function", handle));
        }
        Ok(self.functions.get_mut(handle).expect("the function was found"))
    }
}

/// # Safety
/// *Image:* `image` is null or a string of NVRTC (PTX or CUBIN of this library) that ends with a zero byte.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuModuleLoadData(module: Out<'_, usize>, image: *const c_void) -> CUresult {
    context_call(|device| {
        if image.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the clause *Image*.
        let image = unsafe { CStr::from_ptr(image.cast()) };
        let image = image.to_str().map_err(|_| CUresult::CUDA_ERROR_INVALID_IMAGE)?;
        let handle = device.load_module(image)?;
        put(module, handle)
    })
}

/// Options of the compiler of PTX change nothing here.
///
/// # Safety
/// *Image:* as for `cuModuleLoadData`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuModuleLoadDataEx(
    module: Out<'_, usize>,
    image: *const c_void,
    _count: c_uint,
    _options: *mut c_uint,
    _values: *mut *mut c_void,
) -> CUresult {
    // SAFETY: the clause *Image* is the caller's.
    unsafe { cuModuleLoadData(module, image) }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuModuleUnload(module: usize) -> CUresult {
    context_call(|device| {
        let Some(state) = device.modules.remove(module) else {
            return Err(device.invalid_handle("module", module));
        };
        for function in state.functions.values() {
            device.functions.remove(*function);
        }
        Ok(())
    })
}

/// # Safety
/// `name` satisfies *C string* of [`text_of`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuModuleGetFunction(
    function: Out<'_, usize>,
    module: usize,
    name: *const c_char,
) -> CUresult {
    // SAFETY: the clause *C string* is the caller's.
    let name = unsafe { text_of(name) };
    context_call(|device| {
        let handle = device.find_function(module, name)?;
        put(function, handle)
    })
}

/// Returns the address of a variable of a module. Its size is not known here.
///
/// # Safety
/// `name` satisfies *C string* of [`text_of`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuModuleGetGlobal_v2(
    pointer: Out<'_, usize>,
    bytes: Out<'_, usize>,
    module: usize,
    name: *const c_char,
) -> CUresult {
    // SAFETY: the clause *C string* is the caller's.
    let name = unsafe { text_of(name) };
    context_call(|device| {
        let Some(state) = device.modules.get(module) else {
            return Err(device.invalid_handle("module", module));
        };
        if state.library.symbol(name).is_none() {
            return Err(CUresult::CUDA_ERROR_NOT_FOUND);
        }
        // Copies to a variable would pass no check, so a backend passes values as arguments.
        put_optional(pointer, 0);
        put_optional(bytes, 0);
        Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
    })
}

/// Attributes that a compiler for a GPU determines have the least possible value.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuFuncGetAttribute(value: Out<'_, c_int>, attribute: c_uint, function: usize) -> CUresult {
    context_call(|device| {
        let state = device.function(function)?;
        let shared = state.code.library.static_shared_bytes();
        let result = match attribute {
            a if a == Attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK as c_uint => MAX_THREADS as usize,
            a if a == Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES as c_uint => shared,
            a if a == Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as c_uint => state.max_dynamic,
            a if a == Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS as c_uint => 1,
            a if a == Attribute::CU_FUNC_ATTRIBUTE_PTX_VERSION as c_uint => 90,
            a if a == Attribute::CU_FUNC_ATTRIBUTE_BINARY_VERSION as c_uint => 90,
            a if a < Attribute::CU_FUNC_ATTRIBUTE_MAX as c_uint => 0,
            _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        };
        put(value, result as c_int)
    })
}

fn set_attribute(device: &mut TestDevice, function: usize, attribute: c_uint, value: c_int) -> Outcome {
    let state = device.function(function)?;
    if attribute == Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as c_uint {
        let limit = SHARED_BYTES_OPTIN - state.code.library.static_shared_bytes();
        if value < 0 || value as usize > limit {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        state.max_dynamic = value as usize;
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuFuncSetAttribute(function: usize, attribute: c_uint, value: c_int) -> CUresult {
    context_call(|device| set_attribute(device, function, attribute, value))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuFuncSetCacheConfig(function: usize, _config: c_uint) -> CUresult {
    context_call(|device| device.function(function).map(|_| ()))
}

/// Returns the blocks that a multiprocessor runs at once, by threads and shared memory only.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    blocks: Out<'_, c_int>,
    function: usize,
    threads: c_int,
    dynamic: usize,
) -> CUresult {
    context_call(|device| {
        if threads <= 0 || threads as u32 > MAX_THREADS {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let shared = device.function(function)?.code.library.static_shared_bytes() + dynamic + 1024;
        let by_threads = 2048 / (threads as u32).next_multiple_of(32) as c_int;
        let by_shared = (SHARED_BYTES_OPTIN + 1024) / shared;
        put(blocks, by_threads.min(by_shared as c_int).min(32))
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    blocks: Out<'_, c_int>,
    function: usize,
    threads: c_int,
    dynamic: usize,
    _flags: c_uint,
) -> CUresult {
    cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, dynamic)
}
