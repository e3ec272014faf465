//! Allocation, copies and fills.

use cudarc::driver::sys::{self, CUresult};

use crate::harness::{cuda, line, result_of, succeed};

#[test]
fn allocations_are_aligned() {
    let Some(cuda) = cuda() else { return };
    for bytes in [1, 3, 256, 1000] {
        assert_eq!(cuda.memory(bytes) % 256, 0);
    }
}

#[test]
fn allocation_of_nothing_is_refused() {
    let Some(_cuda) = cuda() else { return };
    // SAFETY: the pointer is valid for writes.
    let pointer = result_of(|pointer| unsafe { sys::cuMemAlloc_v2(pointer, 0) });
    assert_eq!(pointer, Err(CUresult::CUDA_ERROR_INVALID_VALUE));
}

#[test]
fn allocation_beyond_the_memory_fails() {
    let Some(_cuda) = cuda() else { return };
    // SAFETY: the pointers are valid for writes.
    let pointer = unsafe {
        let total = result_of(|bytes| sys::cuDeviceTotalMem_v2(bytes, 0)).expect("a size");
        result_of(|pointer| sys::cuMemAlloc_v2(pointer, total + 1))
    };
    assert_eq!(pointer, Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
}

#[test]
fn copies_in_all_directions_keep_the_values() {
    let Some(cuda) = cuda() else { return };
    let values: Vec<u32> = (0..1000).collect();
    let (source, target) = (cuda.upload(&values), cuda.memory(4000));
    // SAFETY: both allocations have 4000 bytes.
    succeed(unsafe { sys::cuMemcpyDtoD_v2(target, source, 4000) });
    assert_eq!(cuda.download::<u32>(target, 1000), values);
    // A part, at an offset.
    // SAFETY: the ranges are inside the allocations.
    succeed(unsafe { sys::cuMemcpyDtoD_v2(target + 4, source + 40, 8) });
    assert_eq!(cuda.download::<u32>(target, 4), [0, 10, 11, 3]);
}

#[test]
fn copy_of_nothing_succeeds() {
    let Some(cuda) = cuda() else { return };
    let memory = cuda.memory(4);
    // SAFETY: nothing is read.
    succeed(unsafe { sys::cuMemcpyDtoD_v2(memory, memory, 0) });
}

#[test]
fn copy_to_a_null_pointer_is_refused() {
    let Some(_cuda) = cuda() else { return };
    let value = 1_u32;
    // SAFETY: the source is valid for reads; the call must refuse the target.
    let result = unsafe { sys::cuMemcpyHtoD_v2(0, (&raw const value).cast(), 4) };
    assert_eq!(result, CUresult::CUDA_ERROR_INVALID_VALUE);
    if let Some(cuda) = Some(&_cuda).filter(|cuda| cuda.is_test_device()) {
        cuda.expect_report("illegal address: a copy to the device");
    }
}

#[test]
fn fills_of_all_widths_write_the_value() {
    let Some(cuda) = cuda() else { return };
    let stream = cuda.stream();
    let memory = cuda.upload(&[0_u8; 16]);
    // SAFETY: the ranges are inside the allocation.
    unsafe {
        succeed(sys::cuMemsetD8Async(memory, 0x12, 3, stream));
        succeed(sys::cuMemsetD16Async(memory + 4, 0x3456, 2, stream));
        succeed(sys::cuMemsetD32Async(memory + 8, 0x789a_bcde, 2, stream));
    }
    let expected = [0x0012_1212, 0x3456_3456, 0x789a_bcde, 0x789a_bcde];
    assert_eq!(cuda.download::<u32>(memory, 4), expected);
}

#[test]
fn pageable_source_may_change_after_the_call() {
    let Some(cuda) = cuda() else { return };
    let (stream, memory) = (cuda.stream(), cuda.memory(16));
    let mut values = [1_u32, 2, 3, 4];
    // SAFETY: the source has 16 bytes.
    succeed(unsafe { sys::cuMemcpyHtoDAsync_v2(memory, values.as_ptr().cast(), 16, stream) });
    values.fill(9);
    assert_eq!(cuda.download::<u32>(memory, 4), [1, 2, 3, 4]);
}

#[test]
fn pinned_memory_is_copied_in_stream_order() {
    let Some(cuda) = cuda() else { return };
    let (stream, memory) = (cuda.stream(), cuda.memory(16));
    let (source, target) = (cuda.pinned::<u32>(4), cuda.pinned::<u32>(4));
    let double = cuda.kernel("unsigned *a", "a[threadIdx.x] *= 2;");
    // SAFETY: the buffers have 16 bytes, and the host reads the target after the wait only.
    let values = unsafe {
        source.copy_from([5_u32, 6, 7, 8].as_ptr(), 4);
        succeed(sys::cuMemcpyHtoDAsync_v2(memory, source.cast(), 16, stream));
        cuda.launch(double, line(1, 4), stream, &[&memory]);
        succeed(sys::cuMemcpyDtoHAsync_v2(target.cast(), memory, 16, stream));
        succeed(sys::cuStreamSynchronize(stream));
        std::slice::from_raw_parts(target, 4)
    };
    assert_eq!(values, [10, 12, 14, 16]);
}

#[test]
fn stream_allocates_and_frees_in_order() {
    let Some(cuda) = cuda() else { return };
    let (stream, output) = (cuda.stream(), cuda.memory(16));
    // SAFETY: the memory is used between its allocation and its release in the same stream.
    unsafe {
        let memory = result_of(|pointer| sys::cuMemAllocAsync(pointer, 16, stream)).expect("memory");
        succeed(sys::cuMemsetD32Async(memory, 7, 4, stream));
        succeed(sys::cuMemcpyDtoDAsync_v2(output, memory, 16, stream));
        succeed(sys::cuMemFreeAsync(memory, stream));
    }
    assert_eq!(cuda.download::<u32>(output, 4), [7; 4]);
}

#[test]
fn pool_keeps_freed_memory_up_to_its_threshold() {
    use sys::CUmemPool_attribute as Attribute;
    let Some(cuda) = cuda() else { return };
    let (stream, bytes) = (cuda.stream(), 64 << 20);
    // SAFETY: the pointers are valid for reads and writes of the types of the attributes, which have 64 bits. The
    // memory is freed after its use in the same stream.
    unsafe {
        let pool = result_of(|pool| sys::cuDeviceGetMemPool(pool, 0)).expect("the device has a pool");
        let attribute = |attribute| {
            result_of(|value: *mut u64| sys::cuMemPoolGetAttribute(pool, attribute, value.cast())).expect("a size")
        };
        let set_threshold = |mut bytes: u64| {
            let attribute = Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
            succeed(sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut bytes).cast()));
        };
        let old = attribute(Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
        set_threshold(u64::MAX);
        assert_eq!(attribute(Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), u64::MAX);
        let memory = result_of(|pointer| sys::cuMemAllocAsync(pointer, bytes, stream)).expect("memory");
        assert!(attribute(Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT) >= bytes as u64);
        succeed(sys::cuMemFreeAsync(memory, stream));
        succeed(cuda.synchronize());
        assert!(attribute(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >= bytes as u64);
        succeed(sys::cuMemPoolTrimTo(pool, 0));
        let trimmed = attribute(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
        assert!(trimmed < bytes as u64, "{trimmed}");
        set_threshold(0);
        let memory = result_of(|pointer| sys::cuMemAllocAsync(pointer, bytes, stream)).expect("memory");
        succeed(sys::cuMemFreeAsync(memory, stream));
        succeed(cuda.synchronize());
        let released = attribute(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
        assert!(released < bytes as u64, "{released}");
        set_threshold(old);
    }
}

#[test]
fn free_of_a_null_pointer_succeeds() {
    let Some(_cuda) = cuda() else { return };
    // SAFETY: a null pointer names no memory.
    succeed(unsafe { sys::cuMemFree_v2(0) });
}

#[test]
fn address_inside_an_allocation_has_its_range() {
    let Some(cuda) = cuda() else { return };
    let memory = cuda.memory(1000);
    let (mut base, mut size) = (0, 0);
    // SAFETY: the pointers are valid for writes.
    succeed(unsafe { sys::cuMemGetAddressRange_v2(&mut base, &mut size, memory + 999) });
    assert_eq!((base, size), (memory, 1000));
}
