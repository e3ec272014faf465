//! Blocks of a pool of the program, which the test device checks as allocations.

use cudarc::driver::sys::{self, CUresult};

use crate::harness::{line, succeed, test_device};

#[test]
fn block_has_a_margin_after_the_bytes_in_use() {
    let Some(cuda) = test_device() else { return };
    let (stream, block) = (cuda.stream(), cuda.memory(1024));
    cuda.symbols().mark(block, 400, stream);
    let kernel = cuda.kernel("unsigned *a", "a[threadIdx.x] = threadIdx.x;");
    cuda.launch(kernel, line(1, 100), stream, &[&block]);
    succeed(cuda.synchronize());
    cuda.launch(kernel, line(1, 101), stream, &[&block]);
    assert_eq!(cuda.synchronize(), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    cuda.expect_report("out of bounds: kernel kernel: a write at offset 400 of allocation");
}

#[test]
fn use_of_a_block_in_its_pool_is_reported() {
    let Some(cuda) = test_device() else { return };
    let (stream, block) = (cuda.stream(), cuda.memory(1024));
    let kernel = cuda.kernel("unsigned *a", "a[threadIdx.x] = 1;");
    cuda.launch(kernel, line(1, 4), stream, &[&block]);
    // Work that was enqueued before is not affected.
    cuda.symbols().mark(block, 0, stream);
    let result = cuda.try_launch(kernel, line(1, 4), stream, &[&block]);
    assert_eq!(result, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    cuda.expect_report("use after free: kernel kernel: pointer argument 0: allocation");
}

#[test]
fn block_that_is_handed_out_again_has_no_old_values() {
    let Some(cuda) = test_device() else { return };
    let (stream, block, copy) = (cuda.stream(), cuda.memory(64), cuda.memory(64));
    // SAFETY: the ranges are inside the allocations.
    unsafe {
        succeed(sys::cuMemsetD32Async(block, 1, 16, stream));
        succeed(sys::cuMemcpyDtoDAsync_v2(copy, block, 64, stream));
    }
    cuda.symbols().mark(block, 0, stream);
    cuda.symbols().mark(block, 64, stream);
    assert!(cuda.download::<f32>(block, 16).iter().all(|x| x.is_nan()));
    assert_eq!(cuda.download::<u32>(copy, 16), [1; 16]);
}

#[test]
fn block_of_another_stream_needs_an_event() {
    let Some(cuda) = test_device() else { return };
    let (first, second, event, block) = (cuda.stream(), cuda.stream(), cuda.event(), cuda.memory(64));
    // SAFETY: the handles exist, and the ranges are inside the allocation.
    unsafe {
        succeed(sys::cuMemsetD32Async(block, 1, 16, first));
        cuda.symbols().mark(block, 0, first);
        succeed(sys::cuEventRecord(event, first));
        succeed(sys::cuStreamWaitEvent(second, event, 0));
        cuda.symbols().mark(block, 64, second);
        succeed(sys::cuMemsetD32Async(block, 2, 16, second));
        succeed(cuda.synchronize());
        cuda.symbols().mark(block, 0, first);
        cuda.symbols().mark(block, 64, second);
    }
    cuda.expect_report("stream race: a change of a pool on stream");
}
