//! Initialisation, properties of the device, and contexts.

use std::ffi::{c_char, c_int, c_uint};

use cudarc::driver::sys::{CUdevice_attribute as Attribute, CUresult, CUuuid};

use crate::interface::{CONTEXT, CURRENT_CONTEXT, Out, put, put_optional};
use crate::launch::{MAX_BLOCK, MAX_GRID, MAX_THREADS};
use crate::memory::TOTAL_BYTES;
use crate::modules::{SHARED_BYTES, SHARED_BYTES_OPTIN};
use crate::reports::FaultKind;
use crate::{context_call, driver_call, plain_call};

const NAME: &str = "Pellucid test device (no GPU)";

/// Returns the value of an attribute, 0 for one that the device lacks. `architecture` is its compute capability, such
/// as 90.
fn attribute_value(attribute: u32, architecture: u32) -> c_int {
    if attribute == Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as u32 {
        return (architecture / 10) as c_int;
    }
    if attribute == Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as u32 {
        return (architecture % 10) as c_int;
    }
    const VALUES: [(Attribute, usize); 23] = [
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, MAX_THREADS as usize),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, MAX_BLOCK[0] as usize),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, MAX_BLOCK[1] as usize),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, MAX_BLOCK[2] as usize),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, MAX_GRID[0] as usize),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, MAX_GRID[1] as usize),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, MAX_GRID[2] as usize),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, SHARED_BYTES),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, SHARED_BYTES_OPTIN),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, SHARED_BYTES_OPTIN + 1024),
        (Attribute::CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65_536),
        (Attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65_536),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65_536),
        (Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1_000_000),
        (Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 4),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048),
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32),
        (Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 4 << 20),
        (Attribute::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 2),
        (Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1),
    ];
    let found = VALUES.iter().find(|(known, _)| *known as u32 == attribute);
    found.map_or(0, |(_, value)| *value as c_int)
}

pub(crate) fn check_device(device: c_int) -> Result<(), CUresult> {
    if device == 0 { Ok(()) } else { Err(CUresult::CUDA_ERROR_INVALID_DEVICE) }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuInit(flags: c_uint) -> CUresult {
    plain_call(|device| {
        if flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        device.is_initialized = true;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDriverGetVersion(version: Out<'_, c_int>) -> CUresult {
    plain_call(|device| put(version, device.settings.driver))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDeviceGetCount(count: Out<'_, c_int>) -> CUresult {
    driver_call(|_| put(count, 1))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDeviceGet(device: Out<'_, c_int>, ordinal: c_int) -> CUresult {
    driver_call(|_| {
        check_device(ordinal)?;
        put(device, ordinal)
    })
}

/// # Safety
/// *Buffer:* `name` is valid for writes of `length` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int) -> CUresult {
    driver_call(|_| {
        check_device(device)?;
        if name.is_null() || length <= 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let bytes = NAME.len().min(length as usize - 1);
        // SAFETY: `bytes` is below the length of the buffer (*Buffer*), and at most that of the name.
        unsafe {
            std::ptr::copy_nonoverlapping(NAME.as_ptr().cast(), name, bytes);
            name.add(bytes).write(0);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDeviceGetUuid_v2(uuid: Out<'_, CUuuid>, device: c_int) -> CUresult {
    driver_call(|_| {
        check_device(device)?;
        put(uuid, CUuuid { bytes: b"pellucid-testdev".map(|byte| byte as c_char) })
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDeviceGetAttribute(value: Out<'_, c_int>, attribute: c_uint, device: c_int) -> CUresult {
    driver_call(|state| {
        check_device(device)?;
        put(value, attribute_value(attribute, state.settings.architecture))
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDeviceTotalMem_v2(bytes: Out<'_, usize>, device: c_int) -> CUresult {
    driver_call(|_| {
        check_device(device)?;
        put(bytes, TOTAL_BYTES)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDevicePrimaryCtxRetain(context: Out<'_, usize>, device: c_int) -> CUresult {
    driver_call(|state| {
        check_device(device)?;
        state.context_uses += 1;
        put(context, CONTEXT)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDevicePrimaryCtxGetState(
    device: c_int,
    flags: Out<'_, c_uint>,
    active: Out<'_, c_int>,
) -> CUresult {
    driver_call(|state| {
        check_device(device)?;
        put_optional(flags, 0);
        put(active, c_int::from(state.context_uses > 0))
    })
}

/// The last release destroys the context. What it destroys with it is a leak of the program.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> CUresult {
    driver_call(|state| {
        check_device(device)?;
        if state.context_uses == 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        }
        state.context_uses -= 1;
        if state.context_uses == 0 {
            state.destroy_context();
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDevicePrimaryCtxReset_v2(device: c_int) -> CUresult {
    driver_call(|state| {
        check_device(device)?;
        state.destroy_context();
        state.reports.clear_sticky();
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuCtxSetCurrent(context: usize) -> CUresult {
    driver_call(|_| {
        if context != 0 && context != CONTEXT {
            return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        }
        CURRENT_CONTEXT.set(context);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuCtxGetCurrent(context: Out<'_, usize>) -> CUresult {
    driver_call(|_| put(context, CURRENT_CONTEXT.get()))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuCtxGetDevice(device: Out<'_, c_int>) -> CUresult {
    context_call(|_| put(device, 0))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuCtxSetFlags(_flags: c_uint) -> CUresult {
    context_call(|_| Ok(()))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuCtxGetLimit(value: Out<'_, usize>, limit: c_uint) -> CUresult {
    // The size of a thread's stack, the one limit that programs ask for.
    context_call(|_| put(value, if limit == 0 { 1024 } else { 0 }))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuCtxSetLimit(_limit: c_uint, _value: usize) -> CUresult {
    context_call(|_| Ok(()))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuCtxGetStreamPriorityRange(least: Out<'_, c_int>, greatest: Out<'_, c_int>) -> CUresult {
    context_call(|_| {
        put_optional(least, 0);
        put_optional(greatest, -5);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuCtxSynchronize() -> CUresult {
    context_call(|device| {
        device.check_unsafe_call("cuCtxSynchronize")?;
        device.synchronize_all()
    })
}

/// The names and texts of the errors that the device returns.
const ERRORS: [(CUresult, &std::ffi::CStr, &std::ffi::CStr); 25] = {
    use CUresult as E;
    [
        (E::CUDA_SUCCESS, c"CUDA_SUCCESS", c"no error"),
        (E::CUDA_ERROR_INVALID_VALUE, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
        (E::CUDA_ERROR_OUT_OF_MEMORY, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
        (E::CUDA_ERROR_NOT_INITIALIZED, c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"),
        (E::CUDA_ERROR_INVALID_DEVICE, c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
        (E::CUDA_ERROR_INVALID_IMAGE, c"CUDA_ERROR_INVALID_IMAGE", c"device kernel image is invalid"),
        (E::CUDA_ERROR_INVALID_CONTEXT, c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
        (E::CUDA_ERROR_INVALID_HANDLE, c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"),
        (
            E::CUDA_ERROR_ILLEGAL_STATE,
            c"CUDA_ERROR_ILLEGAL_STATE",
            c"the operation cannot be performed in the present state",
        ),
        (E::CUDA_ERROR_NOT_FOUND, c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
        (E::CUDA_ERROR_NOT_READY, c"CUDA_ERROR_NOT_READY", c"device not ready"),
        (E::CUDA_ERROR_ILLEGAL_ADDRESS, c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered"),
        (E::CUDA_ERROR_MISALIGNED_ADDRESS, c"CUDA_ERROR_MISALIGNED_ADDRESS", c"misaligned address"),
        (E::CUDA_ERROR_LAUNCH_FAILED, c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure"),
        (E::CUDA_ERROR_NOT_SUPPORTED, c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported"),
        (
            E::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
            c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
            c"operation not permitted when stream is capturing",
        ),
        (
            E::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
            c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
            c"operation failed due to a previous error during capture",
        ),
        (
            E::CUDA_ERROR_STREAM_CAPTURE_MERGE,
            c"CUDA_ERROR_STREAM_CAPTURE_MERGE",
            c"operation would result in a merge of separate capture sequences",
        ),
        (
            E::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
            c"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
            c"capture was not ended in the same stream as it began",
        ),
        (
            E::CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
            c"CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
            c"capturing stream has unjoined work",
        ),
        (
            E::CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
            c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
            c"dependency created on uncaptured work in another stream",
        ),
        (
            E::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
            c"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
            c"operation would make the legacy stream depend on a capturing blocking stream",
        ),
        (
            E::CUDA_ERROR_CAPTURED_EVENT,
            c"CUDA_ERROR_CAPTURED_EVENT",
            c"operation not permitted on an event last recorded in a capturing stream",
        ),
        (
            E::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
            c"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
            c"attempt to terminate a thread-local capture sequence from another thread",
        ),
        (
            E::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
            c"CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE",
            c"the graph update was not performed because it included changes which violated constraints",
        ),
    ]
};

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuGetErrorName(error: c_uint, text: Out<'_, *const c_char>) -> CUresult {
    plain_call(|_| {
        let found = ERRORS.iter().find(|(code, ..)| *code as u32 == error);
        put(text, found.map_or(std::ptr::null(), |(_, name, _)| name.as_ptr()))?;
        found.map(|_| ()).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuGetErrorString(error: c_uint, text: Out<'_, *const c_char>) -> CUresult {
    plain_call(|_| {
        let found = ERRORS.iter().find(|(code, ..)| *code as u32 == error);
        put(text, found.map_or(std::ptr::null(), |(.., text)| text.as_ptr()))?;
        found.map(|_| ()).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    })
}

impl crate::TestDevice {
    /// Reports and destroys everything that belongs to the context.
    fn destroy_context(&mut self) {
        let _ = self.synchronize_all();
        let leaked: Vec<(usize, String)> = self.memory.live().map(|record| (record.base, record.describe())).collect();
        for (base, text) in leaked {
            self.reports.report(FaultKind::Leak, text);
            self.free_now(base);
        }
        let counts: [(usize, &str); 7] = [
            (self.streams.len() - 1, "streams"),
            (self.events.len(), "events"),
            (self.modules.len(), "modules"),
            (self.graphs.len(), "graphs"),
            (self.execs.len(), "executable graphs"),
            (self.captures.len(), "captures"),
            (crate::cublaslt_calls::live_objects(), "objects of cuBLASLt"),
        ];
        for (count, name) in counts {
            if count > 0 {
                self.reports.report(FaultKind::Leak, format!("{count} {name}"));
            }
        }
        self.memory.pool = Default::default();
        self.streams.clear();
        self.streams.insert_at(crate::interface::LEGACY_STREAM, Default::default());
        self.events.clear();
        self.modules.clear();
        self.functions.clear();
        self.execs.clear();
        self.graphs.clear();
        self.nodes.clear();
        self.captures.clear();
    }
}
