//! [`Event`]: a point in the work of a stream.

use crate::context::Context;
use cudarc::driver::sys::{self, CUresult};
use pellucid_ir::Result;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

/// The type of `cuEventElapsedTime`.
type ElapsedTime = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> CUresult;

/// An event of a context.
pub struct Event {
    context: Arc<Context>,
    event: sys::CUevent,
}

// SAFETY: the driver's calls are thread-safe, and the handle is valid until the event is dropped.
unsafe impl Send for Event {}
// SAFETY: the calls of the driver are thread-safe, so several threads may share a reference.
unsafe impl Sync for Event {}

impl Event {
    /// Creates an event that measures time.
    pub(crate) fn timed(context: &Arc<Context>) -> Result<Event> {
        Event::new(context, sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    /// Creates an event that orders work and measures no time.
    pub(crate) fn untimed(context: &Arc<Context>) -> Result<Event> {
        Event::new(context, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    fn new(context: &Arc<Context>, flags: sys::CUevent_flags) -> Result<Event> {
        context.enter()?;
        let mut event = null_mut();
        // SAFETY: the pointer to the result is valid for a write.
        context.check("event", unsafe { sys::cuEventCreate(&raw mut event, flags as u32) })?;
        Ok(Event { context: context.clone(), event })
    }

    /// Records the event after the work that was submitted to a stream of the context before.
    pub(crate) fn record(&self, stream: sys::CUstream) -> Result<()> {
        self.context.enter()?;
        // SAFETY: the event and the stream belong to the current context.
        self.context.check("event", unsafe { sys::cuEventRecord(self.event, stream) })
    }

    /// Makes later work of a stream of the context wait for the last record. An event that was never recorded orders
    /// nothing.
    pub(crate) fn order_before(&self, stream: sys::CUstream) -> Result<()> {
        self.context.enter()?;
        // SAFETY: the event and the stream belong to the current context.
        self.context.check("event", unsafe { sys::cuStreamWaitEvent(stream, self.event, 0) })
    }

    /// Returns true if the work before the last record is done, or if the event was never recorded.
    pub(crate) fn is_done(&self) -> Result<bool> {
        self.context.enter()?;
        // SAFETY: the event belongs to the current context.
        match unsafe { sys::cuEventQuery(self.event) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => self.context.check("event", result).map(|()| true),
        }
    }

    /// Waits until the work before the last record is done.
    pub(crate) fn synchronize(&self) -> Result<()> {
        self.context.enter()?;
        // SAFETY: the event belongs to the current context.
        self.context.check("event", unsafe { sys::cuEventSynchronize(self.event) })
    }

    /// Returns the device time between this event and a later one. Both are recorded and done.
    pub(crate) fn elapsed_until(&self, end: &Event) -> Result<Duration> {
        self.context.enter()?;
        let mut milliseconds: f32 = 0.0;
        // The bindings have only the second version of this call, which drivers before CUDA 12.8 lack.
        // SAFETY: the driver is loaded, and its first version has this type.
        let elapsed = unsafe { sys::culib().get::<ElapsedTime>(b"cuEventElapsedTime") };
        let result = match elapsed {
            // SAFETY: the pointer to the result is valid for a write, and the events belong to the current context.
            Ok(elapsed) => unsafe { elapsed(&raw mut milliseconds, self.event, end.event) },
            Err(_) => CUresult::CUDA_ERROR_NOT_SUPPORTED,
        };
        self.context.check("event", result)?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: the event was created in this context and is destroyed once.
            let _ = unsafe { sys::cuEventDestroy_v2(self.event) };
        }
    }
}
