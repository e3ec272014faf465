//! Allocation, copies and fills.

use std::ffi::{c_uchar, c_uint, c_ushort, c_void};
use std::rc::Rc;

use cudarc::driver::sys::CUresult;

use crate::interface::{LEGACY_STREAM, Out, Outcome, put, put_optional};
use crate::memory::{MemoryKind, TOTAL_BYTES};
use crate::reports::FaultKind;
use crate::work::{FillCall, Work};
use crate::{TestDevice, context_call};

impl TestDevice {
    fn allocate(&mut self, bytes: usize, kind: MemoryKind) -> Result<usize, CUresult> {
        let address = self.memory.allocate(bytes, kind, self.settings.has_guards)?;
        self.reports.count("allocations");
        Ok(address)
    }

    /// Checks a range of device memory.
    ///
    /// # Errors
    /// An invalid value, which is listed but not sticky.
    fn check_range(&mut self, what: &str, address: usize, bytes: usize) -> Outcome {
        match self.memory.resolve(address, bytes, false) {
            Ok(_) => Ok(()),
            Err((kind, text)) => {
                self.reports.list(kind, format!("{what}: {text}"));
                Err(CUresult::CUDA_ERROR_INVALID_VALUE)
            }
        }
    }

    fn is_pinned(&self, address: usize) -> bool {
        self.memory.find(address).is_some_and(|record| record.kind == MemoryKind::Pinned)
    }

    /// Checks a range of the host's memory, of which only pinned allocations are known.
    fn check_host_range(&mut self, what: &str, address: usize, bytes: usize) -> Outcome {
        if address == 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if self.memory.find(address).is_some() { self.check_range(what, address, bytes) } else { Ok(()) }
    }

    fn copy_to_device(&mut self, to: usize, from: *const c_void, bytes: usize, stream: usize) -> Outcome {
        if bytes == 0 {
            return Ok(());
        }
        self.reports.count("copies");
        self.check_range("a copy to the device", to, bytes)?;
        self.check_host_range("a copy to the device", from as usize, bytes)?;
        let is_captured = self.stream(stream)?.capture.is_some();
        let work = if self.is_pinned(from as usize) || is_captured {
            Work::Copy { to, from: from as usize, bytes }
        } else {
            // Pageable memory is read before the call returns.
            // SAFETY: the caller of the copy promises that `from` is valid for reads of `bytes` bytes.
            let data: Rc<[u8]> = unsafe { std::slice::from_raw_parts(from.cast(), bytes) }.into();
            Work::Staged { to, data }
        };
        self.enqueue(stream, work)
    }

    fn copy_to_host(&mut self, to: usize, from: usize, bytes: usize, stream: usize) -> Outcome {
        if bytes == 0 {
            return Ok(());
        }
        self.reports.count("copies");
        self.check_range("a copy to the host", from, bytes)?;
        self.check_host_range("a copy to the host", to, bytes)?;
        self.enqueue(stream, Work::Copy { to, from, bytes })?;
        // A copy to pageable memory has ended when the call returns.
        if self.is_pinned(to) || self.stream(stream)?.capture.is_some() {
            return Ok(());
        }
        self.synchronize_stream(stream)
    }

    fn copy_on_device(&mut self, to: usize, from: usize, bytes: usize, stream: usize) -> Outcome {
        if bytes == 0 {
            return Ok(());
        }
        self.reports.count("copies");
        self.check_range("a copy on the device", from, bytes)?;
        self.check_range("a copy on the device", to, bytes)?;
        self.enqueue(stream, Work::Copy { to, from, bytes })
    }

    fn fill(&mut self, to: usize, value: u32, width: usize, count: usize, stream: usize) -> Outcome {
        if count == 0 {
            return Ok(());
        }
        if !to.is_multiple_of(width) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        self.check_range("a fill", to, width * count)?;
        let fill = FillCall { to, value, width, count, rows: 1, pitch: width * count };
        self.enqueue(stream, Work::Fill(fill))
    }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemAlloc_v2(pointer: Out<'_, usize>, bytes: usize) -> CUresult {
    context_call(|device| {
        device.check_unsafe_call("cuMemAlloc")?;
        let address = device.allocate(bytes, MemoryKind::Device)?;
        put(pointer, address)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemFree_v2(pointer: usize) -> CUresult {
    context_call(|device| {
        if pointer == 0 {
            return Ok(());
        }
        device.check_unsafe_call("cuMemFree")?;
        device.reports.count("frees");
        if device.memory.find_base(pointer).is_none() {
            device.reports.list(FaultKind::UseAfterFree, format!("cuMemFree of {pointer:#x}, which is not allocated"));
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let outcome = device.synchronize_all();
        device.free_now(pointer);
        outcome
    })
}

/// A capture would record a node that allocates. The device refuses that: the memory of a captured step exists before.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemAllocAsync(pointer: Out<'_, usize>, bytes: usize, stream: usize) -> CUresult {
    context_call(|device| {
        if let Some(capture) = device.stream(stream)?.capture {
            device.invalidate_capture(capture);
            return Err(device.reports.report(FaultKind::CaptureAllocation, "cuMemAllocAsync in a capturing stream"));
        }
        let address = device.allocate(bytes, MemoryKind::Device)?;
        device.memory.assign_to_pool(address);
        // Other streams may use the memory only after this point.
        device.mark_allocated(address, stream)?;
        put(pointer, address)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemFreeAsync(pointer: usize, stream: usize) -> CUresult {
    context_call(|device| {
        if pointer == 0 {
            return Ok(());
        }
        device.reports.count("frees");
        if device.memory.find_base(pointer).is_none() {
            let text = format!("cuMemFreeAsync of {pointer:#x}, which is not allocated");
            device.reports.list(FaultKind::UseAfterFree, text);
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        device.enqueue(stream, Work::Free { base: pointer })
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemHostAlloc(pointer: Out<'_, usize>, bytes: usize, _flags: c_uint) -> CUresult {
    context_call(|device| {
        device.check_unsafe_call("cuMemHostAlloc")?;
        let address = device.allocate(bytes, MemoryKind::Pinned)?;
        put(pointer, address)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemAllocHost_v2(pointer: Out<'_, usize>, bytes: usize) -> CUresult {
    cuMemHostAlloc(pointer, bytes, 0)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemFreeHost(pointer: usize) -> CUresult {
    cuMemFree_v2(pointer)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemGetInfo_v2(free: Out<'_, usize>, total: Out<'_, usize>) -> CUresult {
    context_call(|device| {
        put_optional(free, TOTAL_BYTES - device.memory.live_bytes());
        put_optional(total, TOTAL_BYTES);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemGetAddressRange_v2(
    base: Out<'_, usize>,
    size: Out<'_, usize>,
    pointer: usize,
) -> CUresult {
    context_call(|device| {
        let found = device.memory.resolve(pointer, 0, false).ok();
        let record = found.and_then(|base| device.memory.find(base));
        let record = record.ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
        put_optional(base, record.base);
        put_optional(size, record.size);
        Ok(())
    })
}

/// # Safety
/// *Host memory:* `from` is valid for reads of `bytes` bytes until the copy has run.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: usize,
    from: *const c_void,
    bytes: usize,
    stream: usize,
) -> CUresult {
    context_call(|device| device.copy_to_device(to, from, bytes, stream))
}

/// # Safety
/// *Host memory:* `from` is valid for reads of `bytes` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuMemcpyHtoD_v2(to: usize, from: *const c_void, bytes: usize) -> CUresult {
    context_call(|device| {
        device.check_unsafe_call("cuMemcpyHtoD")?;
        device.copy_to_device(to, from, bytes, LEGACY_STREAM)?;
        device.synchronize_stream(LEGACY_STREAM)
    })
}

/// # Safety
/// *Host memory:* `to` is valid for writes of `bytes` bytes until the copy has run.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: usize,
    bytes: usize,
    stream: usize,
) -> CUresult {
    context_call(|device| device.copy_to_host(to as usize, from, bytes, stream))
}

/// # Safety
/// *Host memory:* `to` is valid for writes of `bytes` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: usize, bytes: usize) -> CUresult {
    context_call(|device| {
        device.check_unsafe_call("cuMemcpyDtoH")?;
        device.copy_to_host(to as usize, from, bytes, LEGACY_STREAM)?;
        device.synchronize_stream(LEGACY_STREAM)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemcpyDtoDAsync_v2(to: usize, from: usize, bytes: usize, stream: usize) -> CUresult {
    context_call(|device| device.copy_on_device(to, from, bytes, stream))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemcpyDtoD_v2(to: usize, from: usize, bytes: usize) -> CUresult {
    context_call(|device| {
        device.check_unsafe_call("cuMemcpyDtoD")?;
        device.copy_on_device(to, from, bytes, LEGACY_STREAM)
    })
}

/// Copies bytes in the direction that follows from the addresses.
///
/// # Safety
/// *Host memory:* an address of the host is valid for `bytes` bytes until the copy has run.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuMemcpyAsync(to: usize, from: usize, bytes: usize, stream: usize) -> CUresult {
    context_call(|device| {
        let is_device = |address| device.memory.find(address).is_some_and(|record| record.kind == MemoryKind::Device);
        match (is_device(to), is_device(from)) {
            (true, false) => device.copy_to_device(to, from as *const c_void, bytes, stream),
            (false, true) => device.copy_to_host(to, from, bytes, stream),
            (true, true) => device.copy_on_device(to, from, bytes, stream),
            (false, false) => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
        }
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemsetD8Async(to: usize, value: c_uchar, count: usize, stream: usize) -> CUresult {
    context_call(|device| device.fill(to, value.into(), 1, count, stream))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemsetD16Async(to: usize, value: c_ushort, count: usize, stream: usize) -> CUresult {
    context_call(|device| device.fill(to, value.into(), 2, count, stream))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemsetD32Async(to: usize, value: c_uint, count: usize, stream: usize) -> CUresult {
    context_call(|device| device.fill(to, value, 4, count, stream))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemsetD8_v2(to: usize, value: c_uchar, count: usize) -> CUresult {
    context_call(|device| {
        device.check_unsafe_call("cuMemsetD8")?;
        device.fill(to, value.into(), 1, count, LEGACY_STREAM)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemsetD32_v2(to: usize, value: c_uint, count: usize) -> CUresult {
    context_call(|device| {
        device.check_unsafe_call("cuMemsetD32")?;
        device.fill(to, value, 4, count, LEGACY_STREAM)
    })
}
