//! Limits and arguments of launches.

use std::ffi::c_void;

use cudarc::driver::sys::{self, CUresult};

use crate::harness::{Argument, Cuda, Shape, cuda, line, succeed};

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// Checks that a launch of a kernel without effect is refused, and removes the report of the test device.
fn refuse(cuda: &Cuda, shape: Shape) {
    let kernel = cuda.kernel("unsigned *a", "if (a == nullptr) return;");
    let memory = cuda.memory(4);
    let arguments: [&dyn Argument; 1] = [&memory];
    assert_eq!(cuda.try_launch(kernel, shape, std::ptr::null_mut(), &arguments), INVALID);
    if cuda.is_test_device() {
        cuda.expect_report("limit: kernel kernel");
    }
    // The error concerns this launch only.
    cuda.launch(kernel, line(1, 1), std::ptr::null_mut(), &arguments);
    succeed(cuda.synchronize());
}

#[test]
fn dimension_of_zero_is_refused() {
    let Some(cuda) = cuda() else { return };
    refuse(&cuda, line(0, 32));
    refuse(&cuda, line(1, 0));
    refuse(&cuda, Shape { grid: [1, 1, 0], ..line(1, 32) });
}

#[test]
fn block_beyond_the_limits_is_refused() {
    let Some(cuda) = cuda() else { return };
    refuse(&cuda, line(1, 1025));
    refuse(&cuda, Shape { block: [64, 32, 1], ..line(1, 1) });
    refuse(&cuda, Shape { block: [1, 1, 65], ..line(1, 1) });
}

#[test]
fn grid_beyond_the_limits_is_refused() {
    let Some(cuda) = cuda() else { return };
    refuse(&cuda, Shape { grid: [1, 65_536, 1], ..line(1, 1) });
    refuse(&cuda, Shape { grid: [1, 1, 65_536], ..line(1, 1) });
}

#[test]
fn shared_memory_beyond_the_limit_is_refused() {
    let Some(cuda) = cuda() else { return };
    refuse(&cuda, Shape { shared: (48 << 10) + 16, ..line(1, 1) });
}

#[test]
fn dynamic_shared_memory_beyond_the_device_cannot_be_permitted() {
    let Some(cuda) = cuda() else { return };
    let kernel = cuda.kernel("unsigned *a", "a[0] = 1;");
    let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // SAFETY: the function exists.
    let result = unsafe { sys::cuFuncSetAttribute(kernel, attribute, 1 << 20) };
    assert_eq!(result, INVALID);
}

#[test]
fn launch_without_arguments_is_refused() {
    let Some(cuda) = cuda() else { return };
    let kernel = cuda.kernel("unsigned *a", "a[0] = 1;");
    let null: *mut *mut c_void = std::ptr::null_mut();
    // SAFETY: the driver must refuse the missing list.
    let result = unsafe { sys::cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, null.cast(), null, null) };
    assert_eq!(result, INVALID);
    if cuda.is_test_device() {
        cuda.expect_report("arguments: kernel kernel: no arguments for 1 parameters");
    }
}

/// Launches a kernel with `(unsigned *, unsigned)` by a buffer with a size.
fn launch_by_buffer(cuda: &Cuda, memory: u64, size: usize) -> CUresult {
    let kernel = cuda.kernel("unsigned *a, unsigned n", "a[0] = n;");
    let mut buffer = [memory, 77];
    let mut size = size;
    // The constants of the driver: a buffer, its size, the end.
    let [buffer_mark, size_mark, end] = [1_usize, 2, 0].map(|mark| mark as *mut c_void);
    let mut extra = [buffer_mark, buffer.as_mut_ptr().cast(), size_mark, (&raw mut size).cast(), end];
    // SAFETY: the list describes the buffer, which has at least `size` bytes.
    unsafe {
        let null = std::ptr::null_mut();
        sys::cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, null, null.cast(), extra.as_mut_ptr())
    }
}

#[test]
fn arguments_may_come_in_one_buffer() {
    let Some(cuda) = cuda() else { return };
    let memory = cuda.memory(4);
    succeed(launch_by_buffer(&cuda, memory, 12));
    assert_eq!(cuda.download::<u32>(memory, 1), [77]);
}

#[test]
fn launch_with_a_configuration_runs() {
    let Some(cuda) = cuda() else { return };
    let kernel = cuda.kernel("unsigned *a", "a[blockIdx.x * blockDim.x + threadIdx.x] = gridDim.x;");
    let (memory, stream) = (cuda.memory(48), cuda.stream());
    let config = sys::CUlaunchConfig {
        gridDimX: 3,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 4,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        hStream: stream,
        attrs: std::ptr::null_mut(),
        numAttrs: 0,
    };
    let mut list = [memory.pointer()];
    // SAFETY: the list has the argument of the kernel.
    succeed(unsafe { sys::cuLaunchKernelEx(&config, kernel, list.as_mut_ptr(), std::ptr::null_mut()) });
    assert_eq!(cuda.download::<u32>(memory, 12), [3; 12]);
}

/// A GPU may not compare the size of the buffer with the parameters.
#[test]
fn buffer_of_the_wrong_size_is_reported() {
    let Some(cuda) = crate::harness::test_device() else { return };
    let memory = cuda.memory(4);
    assert_eq!(launch_by_buffer(&cuda, memory, 8), INVALID);
    cuda.expect_report("arguments: kernel kernel: the buffer has 8 bytes");
}
