//! Errors of stream capture.

use cudarc::driver::sys::{self, CUresult, CUstream_flags_enum, CUstreamCaptureMode, CUstreamCaptureStatus};

use crate::capture::GLOBAL;
use crate::harness::{cuda, result_of, succeed};

const INVALIDATED: Result<sys::CUgraph, CUresult> = Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

#[test]
fn capture_cannot_begin_twice() {
    let Some(cuda) = cuda() else { return };
    let stream = cuda.stream();
    succeed(cuda.begin(stream, GLOBAL));
    assert_eq!(cuda.begin(stream, GLOBAL), CUresult::CUDA_ERROR_ILLEGAL_STATE);
    let _ = cuda.end(stream);
}

#[test]
fn capture_cannot_end_before_it_begins() {
    let Some(cuda) = cuda() else { return };
    let stream = cuda.stream();
    assert_eq!(cuda.end(stream), Err(CUresult::CUDA_ERROR_ILLEGAL_STATE));
}

#[test]
fn legacy_stream_cannot_capture() {
    let Some(cuda) = cuda() else { return };
    let result = cuda.begin(std::ptr::null_mut(), GLOBAL);
    assert_eq!(result, CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

#[test]
fn allocation_invalidates_a_global_capture() {
    let Some(cuda) = cuda() else { return };
    let stream = cuda.stream();
    succeed(cuda.begin(stream, GLOBAL));
    // SAFETY: the pointer is valid for writes.
    let pointer = result_of(|pointer| unsafe { sys::cuMemAlloc_v2(pointer, 16) });
    assert_eq!(pointer, Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
    assert_eq!(cuda.status(stream), CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    assert_eq!(cuda.end(stream), INVALIDATED);
    if cuda.is_test_device() {
        cuda.expect_report("capture allocation: cuMemAlloc while a stream captures");
    }
    // The stream works again.
    assert_eq!(cuda.status(stream), CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE);
    cuda.memory(16);
}

#[test]
fn wait_of_the_host_invalidates_a_capture() {
    let Some(cuda) = cuda() else { return };
    let stream = cuda.stream();
    succeed(cuda.begin(stream, GLOBAL));
    // SAFETY: the stream exists.
    let result = unsafe { sys::cuStreamSynchronize(stream) };
    assert_eq!(result, CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_eq!(cuda.end(stream), INVALIDATED);
}

#[test]
fn query_of_a_capturing_stream_invalidates_the_capture() {
    let Some(cuda) = cuda() else { return };
    let stream = cuda.stream();
    succeed(cuda.begin(stream, GLOBAL));
    // SAFETY: the stream exists.
    let result = unsafe { sys::cuStreamQuery(stream) };
    assert_eq!(result, CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_eq!(cuda.end(stream), INVALIDATED);
}

#[test]
fn host_cannot_wait_for_a_captured_event() {
    let Some(cuda) = cuda() else { return };
    let (stream, event) = (cuda.stream(), cuda.event());
    succeed(cuda.begin(stream, GLOBAL));
    // SAFETY: the handles exist.
    unsafe {
        succeed(sys::cuEventRecord(event, stream));
        assert_eq!(sys::cuEventSynchronize(event), CUresult::CUDA_ERROR_CAPTURED_EVENT);
    }
    let _ = cuda.end(stream);
}

#[test]
fn captured_stream_cannot_wait_for_earlier_work() {
    let Some(cuda) = cuda() else { return };
    let (stream, other, event) = (cuda.stream(), cuda.stream(), cuda.event());
    let memory = cuda.memory(4);
    // SAFETY: the handles exist, and the range is inside the allocation.
    unsafe {
        succeed(sys::cuMemsetD32Async(memory, 1, 1, other));
        succeed(sys::cuEventRecord(event, other));
        succeed(cuda.begin(stream, GLOBAL));
        let result = sys::cuStreamWaitEvent(stream, event, 0);
        assert_eq!(result, CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    }
    assert_eq!(cuda.end(stream), INVALIDATED);
}

#[test]
fn streams_that_are_not_joined_are_an_error() {
    let Some(cuda) = cuda() else { return };
    let (stream, other, event) = (cuda.stream(), cuda.stream(), cuda.event());
    let memory = cuda.memory(4);
    succeed(cuda.begin(stream, GLOBAL));
    // SAFETY: the handles exist, and the range is inside the allocation.
    unsafe {
        succeed(sys::cuEventRecord(event, stream));
        succeed(sys::cuStreamWaitEvent(other, event, 0));
        succeed(sys::cuMemsetD32Async(memory, 1, 1, other));
    }
    assert_eq!(cuda.end(stream), Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED));
}

#[test]
fn another_stream_cannot_end_a_capture() {
    let Some(cuda) = cuda() else { return };
    let (stream, other, event) = (cuda.stream(), cuda.stream(), cuda.event());
    succeed(cuda.begin(stream, GLOBAL));
    // SAFETY: the handles exist.
    unsafe {
        succeed(sys::cuEventRecord(event, stream));
        succeed(sys::cuStreamWaitEvent(other, event, 0));
    }
    assert_eq!(cuda.end(other), Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED));
    let _ = cuda.end(stream);
}

#[test]
fn captures_cannot_be_merged() {
    let Some(cuda) = cuda() else { return };
    let (stream, other, event) = (cuda.stream(), cuda.stream(), cuda.event());
    succeed(cuda.begin(stream, GLOBAL));
    succeed(cuda.begin(other, GLOBAL));
    // SAFETY: the handles exist.
    unsafe {
        succeed(sys::cuEventRecord(event, stream));
        let result = sys::cuStreamWaitEvent(other, event, 0);
        assert_eq!(result, CUresult::CUDA_ERROR_STREAM_CAPTURE_MERGE);
    }
    assert_eq!(cuda.end(stream), INVALIDATED);
    assert_eq!(cuda.end(other), INVALIDATED);
}

#[test]
fn another_thread_cannot_end_a_capture() {
    let Some(cuda) = cuda() else { return };
    let stream = cuda.stream();
    succeed(cuda.begin(stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    // SAFETY: the context and the stream exist while the thread runs.
    let (context, handle) =
        unsafe { (result_of(|context| sys::cuCtxGetCurrent(context)).expect("a context") as usize, stream as usize) };
    let ended = std::thread::spawn(move || {
        // SAFETY: as above; the pointer is valid for writes.
        unsafe {
            succeed(sys::cuCtxSetCurrent(context as sys::CUcontext));
            result_of(|graph| sys::cuStreamEndCapture(handle as sys::CUstream, graph)).map(|_| ())
        }
    });
    let ended = ended.join().expect("the thread does not panic");
    assert_eq!(ended, Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD));
    let _ = cuda.end(stream);
}

#[test]
fn legacy_stream_cannot_depend_on_a_capture() {
    let Some(cuda) = cuda() else { return };
    let stream = cuda.stream_with(CUstream_flags_enum::CU_STREAM_DEFAULT);
    let memory = cuda.memory(4);
    succeed(cuda.begin(stream, GLOBAL));
    // SAFETY: the range is inside the allocation.
    let result = unsafe { sys::cuMemsetD32Async(memory, 1, 1, std::ptr::null_mut()) };
    assert_eq!(result, CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    assert_eq!(cuda.end(stream), INVALIDATED);
}
