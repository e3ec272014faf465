//! Streams and events.

use std::ffi::c_void;

use cudarc::driver::sys::{self, CUevent_flags_enum, CUresult, CUstream_flags_enum};

use crate::harness::{cuda, line, result_of, succeed};

/// Multiplies by 2, or adds 1: the order of two launches shows in the result.
const DOUBLE: &str = "a[0] = a[0] * 2;";
const INCREMENT: &str = "a[0] = a[0] + 1;";

#[test]
fn work_of_a_stream_runs_in_order() {
    let Some(cuda) = cuda() else { return };
    let (stream, memory) = (cuda.stream(), cuda.upload(&[1_u32]));
    let (double, increment) = (cuda.kernel("unsigned *a", DOUBLE), cuda.kernel("unsigned *a", INCREMENT));
    for kernel in [increment, double, double, increment] {
        cuda.launch(kernel, line(1, 1), stream, &[&memory]);
    }
    assert_eq!(cuda.download::<u32>(memory, 1), [9]);
}

#[test]
fn event_orders_two_streams() {
    let Some(cuda) = cuda() else { return };
    let (first, second, event) = (cuda.stream(), cuda.stream(), cuda.event());
    let memory = cuda.upload(&[1_u32]);
    let (double, increment) = (cuda.kernel("unsigned *a", DOUBLE), cuda.kernel("unsigned *a", INCREMENT));
    cuda.launch(increment, line(1, 1), first, &[&memory]);
    // SAFETY: the handles exist.
    unsafe {
        succeed(sys::cuEventRecord(event, first));
        succeed(sys::cuStreamWaitEvent(second, event, 0));
    }
    cuda.launch(double, line(1, 1), second, &[&memory]);
    // SAFETY: the stream exists.
    succeed(unsafe { sys::cuStreamSynchronize(second) });
    assert_eq!(cuda.download::<u32>(memory, 1), [4]);
}

#[test]
fn wait_keeps_the_record_that_it_saw() {
    let Some(cuda) = cuda() else { return };
    let (first, second, event) = (cuda.stream(), cuda.stream(), cuda.event());
    let (memory, other) = (cuda.upload(&[1_u32]), cuda.upload(&[1_u32]));
    let increment = cuda.kernel("unsigned *a", INCREMENT);
    cuda.launch(increment, line(1, 1), first, &[&memory]);
    // SAFETY: the handles exist.
    unsafe {
        succeed(sys::cuEventRecord(event, first));
        succeed(sys::cuStreamWaitEvent(second, event, 0));
        // The event now stands for work of the second stream, which must not wait for itself.
        succeed(sys::cuEventRecord(event, second));
    }
    cuda.launch(increment, line(1, 1), second, &[&memory]);
    cuda.launch(increment, line(1, 1), first, &[&other]);
    assert_eq!(cuda.download::<u32>(memory, 1), [3]);
}

#[test]
fn event_that_was_never_recorded_orders_nothing() {
    let Some(cuda) = cuda() else { return };
    let (stream, event) = (cuda.stream(), cuda.event());
    // SAFETY: the handles exist.
    unsafe {
        succeed(sys::cuStreamWaitEvent(stream, event, 0));
        succeed(sys::cuEventSynchronize(event));
        succeed(sys::cuEventQuery(event));
    }
}

#[test]
fn query_is_not_ready_until_the_work_has_run() {
    let Some(cuda) = cuda() else { return };
    let (stream, event, memory) = (cuda.stream(), cuda.event(), cuda.memory(4));
    // SAFETY: the handles exist, and the range is inside the allocation.
    unsafe {
        succeed(sys::cuMemsetD32Async(memory, 3, 1, stream));
        succeed(sys::cuEventRecord(event, stream));
        loop {
            match sys::cuEventQuery(event) {
                CUresult::CUDA_ERROR_NOT_READY => {}
                result => break succeed(result),
            }
        }
        while sys::cuStreamQuery(stream) == CUresult::CUDA_ERROR_NOT_READY {}
        succeed(sys::cuStreamQuery(stream));
    }
    assert_eq!(cuda.download::<u32>(memory, 1), [3]);
}

#[test]
fn elapsed_time_is_not_negative() {
    let Some(cuda) = cuda() else { return };
    let (stream, start, end) = (cuda.stream(), cuda.event(), cuda.event());
    let memory = cuda.memory(4);
    // SAFETY: the handles exist, and the range is inside the allocation.
    let time = unsafe {
        succeed(sys::cuEventRecord(start, stream));
        succeed(sys::cuMemsetD32Async(memory, 3, 1, stream));
        succeed(sys::cuEventRecord(end, stream));
        succeed(sys::cuEventSynchronize(end));
        result_of(|time| sys::cuEventElapsedTime_v2(time, start, end))
    };
    assert!(time.expect("both events have run") >= 0.0);
}

#[test]
fn elapsed_time_needs_events_with_times_and_records() {
    let Some(cuda) = cuda() else { return };
    let (stream, event) = (cuda.stream(), cuda.event());
    let (unrecorded, untimed) = (cuda.event(), cuda.event_with(CUevent_flags_enum::CU_EVENT_DISABLE_TIMING));
    // SAFETY: the handles exist, and the pointer is valid for writes.
    unsafe {
        succeed(sys::cuEventRecord(event, stream));
        succeed(sys::cuEventRecord(untimed, stream));
        succeed(sys::cuStreamSynchronize(stream));
        for other in [unrecorded, untimed] {
            let time = result_of(|time| sys::cuEventElapsedTime_v2(time, event, other));
            assert_eq!(time, Err(CUresult::CUDA_ERROR_INVALID_HANDLE));
        }
    }
}

#[test]
fn legacy_stream_waits_for_blocking_streams() {
    let Some(cuda) = cuda() else { return };
    let stream = cuda.stream_with(CUstream_flags_enum::CU_STREAM_DEFAULT);
    let memory = cuda.upload(&[1_u32]);
    let (double, increment) = (cuda.kernel("unsigned *a", DOUBLE), cuda.kernel("unsigned *a", INCREMENT));
    let legacy = std::ptr::null_mut();
    for (kernel, on) in [(increment, stream), (double, legacy), (increment, stream)] {
        cuda.launch(kernel, line(1, 1), on, &[&memory]);
    }
    assert_eq!(cuda.download::<u32>(memory, 1), [5]);
}

unsafe extern "C" fn add_ten(value: *mut c_void) {
    // SAFETY: the test passes a pointer to a number that it reads after the stream is synchronised.
    unsafe { *value.cast::<u32>() += 10 };
}

#[test]
fn host_function_runs_in_order() {
    let Some(cuda) = cuda() else { return };
    let (stream, memory) = (cuda.stream(), cuda.upload(&[5_u32]));
    let value = cuda.pinned::<u32>(1);
    // SAFETY: the pinned memory lives until the stream is synchronised, and the host reads it after that.
    let result = unsafe {
        succeed(sys::cuMemcpyDtoHAsync_v2(value.cast(), memory, 4, stream));
        succeed(sys::cuLaunchHostFunc(stream, Some(add_ten), value.cast()));
        succeed(sys::cuStreamSynchronize(stream));
        *value
    };
    assert_eq!(result, 15);
}

#[test]
fn streams_have_priorities_in_the_range() {
    let Some(_cuda) = cuda() else { return };
    let (mut least, mut greatest) = (0, 0);
    // SAFETY: the pointers are valid for writes, and the stream is destroyed once.
    unsafe {
        succeed(sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest));
        assert!(greatest <= least);
        let stream = result_of(|stream| sys::cuStreamCreateWithPriority(stream, 1, greatest)).expect("a stream");
        assert_eq!(result_of(|priority| sys::cuStreamGetPriority(stream, priority)), Ok(greatest));
        assert_eq!(result_of(|flags| sys::cuStreamGetFlags(stream, flags)), Ok(1));
        succeed(sys::cuStreamDestroy_v2(stream));
    }
}

/// The sum of 64 numbers on a stream of the calling thread, 20 times.
fn sum_on_own_stream(context: usize, kernel: usize, number: u32) -> Vec<u32> {
    let mut sums = vec![0; 20];
    // SAFETY: the context and the kernel exist while the thread runs; the ranges are inside the allocation, and the
    // kernel has one argument.
    unsafe {
        succeed(sys::cuCtxSetCurrent(context as sys::CUcontext));
        let stream = result_of(|stream| sys::cuStreamCreate(stream, 1)).expect("a stream");
        let memory = result_of(|pointer| sys::cuMemAlloc_v2(pointer, 256)).expect("memory");
        for sum in &mut sums {
            succeed(sys::cuMemsetD32Async(memory, number, 64, stream));
            let mut list = [(&raw const memory).cast_mut().cast::<c_void>()];
            let null = std::ptr::null_mut();
            let kernel = kernel as sys::CUfunction;
            succeed(sys::cuLaunchKernel(kernel, 1, 1, 1, 64, 1, 1, 0, stream, list.as_mut_ptr(), null));
            succeed(sys::cuMemcpyDtoHAsync_v2((&raw mut *sum).cast(), memory, 4, stream));
            succeed(sys::cuStreamSynchronize(stream));
        }
        succeed(sys::cuMemFree_v2(memory));
        succeed(sys::cuStreamDestroy_v2(stream));
    }
    sums
}

#[test]
fn threads_of_the_host_share_the_device() {
    let Some(cuda) = cuda() else { return };
    let body = "__shared__ unsigned t[64];
        t[threadIdx.x] = a[threadIdx.x];
        __syncthreads();
        for (unsigned w = 32; w > 0; w >>= 1) {
            if (threadIdx.x < w) t[threadIdx.x] += t[threadIdx.x + w];
            __syncthreads();
        }
        if (threadIdx.x == 0) a[0] = t[0];";
    let kernel = cuda.kernel("unsigned *a", body) as usize;
    // SAFETY: the pointer is valid for writes.
    let context = result_of(|context| unsafe { sys::cuCtxGetCurrent(context) }).expect("a context") as usize;
    let threads: Vec<_> =
        (1..5).map(|number| std::thread::spawn(move || sum_on_own_stream(context, kernel, number))).collect();
    for (thread, number) in threads.into_iter().zip(1..5) {
        assert_eq!(thread.join().expect("the thread does not panic"), [64 * number; 20]);
    }
}
