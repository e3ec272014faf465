//! Attributes of the memory pool of the device.

use std::ffi::{c_int, c_uint, c_void};

use cudarc::driver::sys::{CUmemPool_attribute as Attribute, CUresult};

use crate::context_calls::check_device;
use crate::interface::{Out, put};
use crate::{TestDevice, driver_call};

/// The handle of the pool.
const POOL: usize = 0x3fff_1000;

fn pool_call(pool: usize, work: impl FnOnce(&mut TestDevice) -> Result<(), CUresult>) -> CUresult {
    driver_call(|device| if pool == POOL { work(device) } else { Err(device.invalid_handle("memory pool", pool)) })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDeviceGetDefaultMemPool(pool: Out<'_, usize>, device: c_int) -> CUresult {
    driver_call(|_| {
        check_device(device)?;
        put(pool, POOL)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDeviceGetMemPool(pool: Out<'_, usize>, device: c_int) -> CUresult {
    cuDeviceGetDefaultMemPool(pool, device)
}

/// Attributes other than the threshold change nothing.
///
/// # Safety
/// *Value:* `value` is null or valid for a read of the type of the attribute.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuMemPoolSetAttribute(
    pool: usize,
    attribute: c_uint,
    value: *const c_void,
) -> CUresult {
    pool_call(pool, |device| {
        if value.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if attribute == Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD as c_uint {
            // SAFETY: the value of this attribute has 64 bits (*Value*), and it is not null.
            device.memory.pool.threshold = unsafe { value.cast::<u64>().read_unaligned() };
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemPoolGetAttribute(pool: usize, attribute: c_uint, value: Out<'_, u64>) -> CUresult {
    pool_call(pool, |device| {
        let state = &device.memory.pool;
        let known = [
            (Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, state.threshold),
            (Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, state.used + state.kept),
            (Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT, state.used),
        ];
        let found = known.iter().find(|(known, _)| *known as c_uint == attribute);
        put(value, found.ok_or(CUresult::CUDA_ERROR_NOT_SUPPORTED)?.1)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemPoolTrimTo(pool: usize, bytes: usize) -> CUresult {
    pool_call(pool, |device| {
        device.memory.pool.trim(bytes as u64);
        Ok(())
    })
}
