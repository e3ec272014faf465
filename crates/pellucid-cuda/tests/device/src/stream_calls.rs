//! Streams, events and stream capture.

use std::ffi::{c_int, c_uint, c_void};

use cudarc::driver::sys::{CUevent_flags_enum, CUresult, CUstreamCaptureMode, CUstreamCaptureStatus};

use crate::interface::{CAPTURE_MODE, LEGACY_STREAM, Out, Outcome, put, put_optional};
use crate::streams::{EventState, StreamState};
use crate::work::{HostFunction, Work};
use crate::{TestDevice, context_call};

impl TestDevice {
    /// Records the first access to memory that a stream allocates: uses by other streams must be ordered after it.
    ///
    /// # Errors
    /// An invalid stream.
    pub(crate) fn mark_allocated(&mut self, address: usize, stream: usize) -> Outcome {
        let state = self.stream(stream)?;
        let tick = state.clock.tick(stream);
        let clock = state.clock.clone();
        if let Some(record) = self.memory.find_mut(address) {
            let text = format!("its allocation on stream {stream:#x}").into();
            record.history.record(&clock, stream, tick, true, &text);
        }
        Ok(())
    }
}

/// Returns the mode of a number of the C interface.
fn capture_mode(mode: c_uint) -> Result<CUstreamCaptureMode, CUresult> {
    use CUstreamCaptureMode as Mode;
    let modes = [
        Mode::CU_STREAM_CAPTURE_MODE_GLOBAL,
        Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        Mode::CU_STREAM_CAPTURE_MODE_RELAXED,
    ];
    modes.get(mode as usize).copied().ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuStreamCreate(stream: Out<'_, usize>, flags: c_uint) -> CUresult {
    cuStreamCreateWithPriority(stream, flags, 0)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuStreamCreateWithPriority(
    stream: Out<'_, usize>,
    flags: c_uint,
    priority: c_int,
) -> CUresult {
    context_call(|device| {
        if flags > 1 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let state = StreamState::new(flags, priority.clamp(-5, 0));
        put(stream, device.streams.insert(state))
    })
}

/// Work of the stream still runs; here it runs at once.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuStreamDestroy_v2(stream: usize) -> CUresult {
    context_call(|device| {
        if stream == LEGACY_STREAM {
            return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        }
        if let Some(capture) = device.stream(stream)?.capture {
            device.invalidate_capture(capture);
        }
        device.drain(stream, u64::MAX);
        device.streams.remove(stream);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuStreamSynchronize(stream: usize) -> CUresult {
    context_call(|device| device.synchronize_stream(stream))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuStreamQuery(stream: usize) -> CUresult {
    context_call(|device| {
        if let Some(capture) = device.stream(stream)?.capture {
            device.invalidate_capture(capture);
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        if device.stream(stream)?.is_idle() {
            return device.synchronize_stream(stream);
        }
        device.advance(stream);
        Err(CUresult::CUDA_ERROR_NOT_READY)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuStreamGetFlags(stream: usize, flags: Out<'_, c_uint>) -> CUresult {
    context_call(|device| put(flags, device.stream(stream)?.flags))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuStreamGetPriority(stream: usize, priority: Out<'_, c_int>) -> CUresult {
    context_call(|device| put(priority, device.stream(stream)?.priority))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuStreamWaitEvent(stream: usize, event: usize, _flags: c_uint) -> CUresult {
    context_call(|device| device.wait_event(stream, event))
}

/// # Safety
/// *Function:* `function` may be called once with `data` until the stream is synchronised.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuLaunchHostFunc(
    stream: usize,
    function: Option<HostFunction>,
    data: *mut c_void,
) -> CUresult {
    context_call(|device| {
        let function = function.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        device.enqueue(stream, Work::Host { function, data: data as usize })
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuStreamBeginCapture_v2(stream: usize, mode: c_uint) -> CUresult {
    context_call(|device| device.begin_capture(stream, capture_mode(mode)?))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuStreamEndCapture(stream: usize, graph: Out<'_, usize>) -> CUresult {
    context_call(|device| {
        let ended = device.end_capture(stream);
        put(graph, *ended.as_ref().unwrap_or(&0))?;
        ended.map(|_| ())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuStreamIsCapturing(stream: usize, status: Out<'_, CUstreamCaptureStatus>) -> CUresult {
    context_call(|device| {
        let capture = device.stream(stream)?.capture;
        put(status, capture_status(device, capture))
    })
}

fn capture_status(device: &TestDevice, capture: Option<usize>) -> CUstreamCaptureStatus {
    match capture.map(|capture| device.captures.get(capture).is_none_or(|state| state.is_invalid)) {
        None => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE,
        Some(false) => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE,
        Some(true) => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED,
    }
}

/// Returns the status and the number of a capture. The graph and the dependencies are not available before the end.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuStreamGetCaptureInfo_v3(
    stream: usize,
    status: Out<'_, CUstreamCaptureStatus>,
    number: Out<'_, u64>,
    graph: Out<'_, usize>,
    dependencies: Out<'_, usize>,
    edges: Out<'_, usize>,
    count: Out<'_, usize>,
) -> CUresult {
    context_call(|device| {
        let capture = device.stream(stream)?.capture;
        put(status, capture_status(device, capture))?;
        put_optional(number, capture.unwrap_or(0) as u64);
        if graph.is_some() || dependencies.is_some() || edges.is_some() || count.is_some() {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuThreadExchangeStreamCaptureMode(mode: Option<&mut c_uint>) -> CUresult {
    context_call(|_| {
        let mode = mode.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        *mode = CAPTURE_MODE.replace(capture_mode(*mode)?) as c_uint;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuEventCreate(event: Out<'_, usize>, flags: c_uint) -> CUresult {
    context_call(|device| {
        let state = EventState { flags, ..EventState::default() };
        put(event, device.events.insert(state))
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuEventDestroy_v2(event: usize) -> CUresult {
    context_call(|device| {
        device.event(event)?;
        device.events.remove(event);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuEventRecord(event: usize, stream: usize) -> CUresult {
    context_call(|device| device.record_event(event, stream))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuEventRecordWithFlags(event: usize, stream: usize, _flags: c_uint) -> CUresult {
    cuEventRecord(event, stream)
}

/// Returns the stream and position of an event that is not captured.
fn event_point(device: &mut TestDevice, event: usize) -> Result<Option<(usize, u64)>, CUresult> {
    let state = device.event(event)?;
    if let Some((capture, _)) = state.captured {
        device.invalidate_capture(capture);
        return Err(CUresult::CUDA_ERROR_CAPTURED_EVENT);
    }
    Ok(state.point)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuEventQuery(event: usize) -> CUresult {
    context_call(|device| {
        let Some((stream, position)) = event_point(device, event)? else {
            return Ok(());
        };
        if !device.has_reached(stream, position) {
            device.advance(stream);
            return Err(CUresult::CUDA_ERROR_NOT_READY);
        }
        let clock = device.event(event)?.clock.clone();
        device.host_clock.join(&clock);
        device.reports.check()
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuEventSynchronize(event: usize) -> CUresult {
    context_call(|device| {
        if let Some((stream, position)) = event_point(device, event)? {
            device.drain(stream, position);
            let clock = device.event(event)?.clock.clone();
            device.host_clock.join(&clock);
        }
        device.reports.check()
    })
}

/// Returns the time on the host between the runs of two records. It is not a time of a GPU.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuEventElapsedTime_v2(milliseconds: Out<'_, f32>, start: usize, end: usize) -> CUresult {
    context_call(|device| {
        let without_time = CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32;
        for event in [start, end] {
            let point = event_point(device, event)?;
            let state = device.event(event)?;
            if state.flags & without_time != 0 || (point.is_none() && state.time.is_none()) {
                return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
            }
        }
        match (device.event(start)?.time, device.event(end)?.time) {
            (Some(start), Some(end)) => {
                let seconds = if end >= start { (end - start).as_secs_f32() } else { -(start - end).as_secs_f32() };
                put(milliseconds, seconds * 1e3)
            }
            _ => Err(CUresult::CUDA_ERROR_NOT_READY),
        }
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuEventElapsedTime(milliseconds: Out<'_, f32>, start: usize, end: usize) -> CUresult {
    cuEventElapsedTime_v2(milliseconds, start, end)
}
