//! Initialisation, properties and contexts.

use std::ffi::{CStr, c_char};

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUresult};

use crate::harness::{cuda, result_of, succeed};

#[test]
fn driver_and_device_have_versions_and_names() {
    let Some(_cuda) = cuda() else { return };
    // SAFETY: all pointers are valid for writes of the lengths that are passed.
    unsafe {
        let version = result_of(|version| sys::cuDriverGetVersion(version)).expect("a version");
        assert!(version >= 12_000, "{version}");
        assert!(result_of(|count| sys::cuDeviceGetCount(count)).expect("a count") >= 1);
        let mut name = [0 as c_char; 64];
        succeed(sys::cuDeviceGetName(name.as_mut_ptr(), 64, 0));
        assert!(!CStr::from_ptr(name.as_ptr()).to_bytes().is_empty());
        // A short buffer has a short name with a zero byte.
        let mut short = [1 as c_char; 4];
        succeed(sys::cuDeviceGetName(short.as_mut_ptr(), 4, 0));
        assert_eq!(short[3], 0);
    }
}

#[test]
fn attributes_have_the_limits_that_kernels_use() {
    let Some(cuda) = cuda() else { return };
    assert_eq!(cuda.attribute(Attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE), 32);
    assert_eq!(cuda.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK), 1024);
    assert_eq!(cuda.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z), 64);
    assert_eq!(cuda.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK), 48 << 10);
    assert!(cuda.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) >= 1);
    assert!(cuda.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) >= 7);
}

#[test]
fn device_that_does_not_exist_is_refused() {
    let Some(_cuda) = cuda() else { return };
    // SAFETY: the pointer is valid for writes.
    let device = result_of(|device| unsafe { sys::cuDeviceGet(device, 1000) });
    assert_eq!(device, Err(CUresult::CUDA_ERROR_INVALID_DEVICE));
}

#[test]
fn thread_without_a_context_cannot_allocate() {
    let Some(_cuda) = cuda() else { return };
    // SAFETY: the pointer is valid for writes.
    let allocate = || result_of(|pointer| unsafe { sys::cuMemAlloc_v2(pointer, 16) });
    let result = std::thread::spawn(allocate).join().expect("the thread does not panic");
    assert_eq!(result, Err(CUresult::CUDA_ERROR_INVALID_CONTEXT));
}

#[test]
fn errors_have_names() {
    let Some(_cuda) = cuda() else { return };
    // SAFETY: the pointer is valid for writes, and names are C strings.
    let name = unsafe {
        let error = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
        CStr::from_ptr(result_of(|name| sys::cuGetErrorName(error, name)).expect("a name"))
    };
    assert_eq!(name, c"CUDA_ERROR_STREAM_CAPTURE_UNJOINED");
}
