//! Streams are queues: work runs when something waits for it, so that a missing wait changes results.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Instant;

use cudarc::driver::sys::{CUresult, CUstream_flags_enum};

use crate::TestDevice;
use crate::clocks::VectorClock;
use crate::interface::{LEGACY_STREAM, Outcome};
use crate::reports::FaultKind;
use crate::work::Work;

/// A stream.
#[derive(Default)]
pub(crate) struct StreamState {
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    queue: VecDeque<Work>,
    enqueued: u64,
    executed: u64,
    pub(crate) clock: VectorClock,
    /// The capture that this stream is part of.
    pub(crate) capture: Option<usize>,
}

impl StreamState {
    /// Creates a stream.
    pub(crate) fn new(flags: u32, priority: i32) -> Self {
        Self { flags, priority, ..Self::default() }
    }

    /// Returns true if the legacy default stream waits for this stream, and this stream for it.
    pub(crate) fn is_blocking(&self) -> bool {
        self.flags & CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32 == 0
    }

    /// Returns true if all work has run.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }
}

/// An event.
#[derive(Default)]
pub(crate) struct EventState {
    pub(crate) flags: u32,
    /// The stream and position of the last record.
    pub(crate) point: Option<(usize, u64)>,
    pub(crate) clock: VectorClock,
    pub(crate) time: Option<Instant>,
    /// The count of records.
    pub(crate) serial: u64,
    /// The capture and nodes of a record in a capturing stream.
    pub(crate) captured: Option<(usize, Vec<usize>)>,
}

impl TestDevice {
    /// Returns the state of a stream.
    ///
    /// # Errors
    /// An invalid handle, which is reported.
    pub(crate) fn stream(&mut self, handle: usize) -> Result<&mut StreamState, CUresult> {
        if self.streams.get(handle).is_none() {
            return Err(self.invalid_handle("stream", handle));
        }
        Ok(self.streams.get_mut(handle).expect("the stream was found"))
    }

    /// Returns the state of an event.
    ///
    /// # Errors
    /// An invalid handle, which is reported.
    pub(crate) fn event(&mut self, handle: usize) -> Result<&mut EventState, CUresult> {
        if self.events.get(handle).is_none() {
            return Err(self.invalid_handle("event", handle));
        }
        Ok(self.events.get_mut(handle).expect("the event was found"))
    }

    /// Adds work to a stream, or to the graph that the stream captures.
    ///
    /// # Errors
    /// An invalid stream; errors of captures.
    pub(crate) fn enqueue(&mut self, stream: usize, work: Work) -> Outcome {
        if let Some(capture) = self.stream(stream)?.capture {
            return self.capture_work(stream, capture, work);
        }
        self.order_with_legacy_stream(stream)?;
        self.track_accesses(stream, &work);
        if let Work::Free { base } = work {
            self.mark_free_pending(base);
        }
        let state = self.stream(stream)?;
        state.queue.push_back(work);
        state.enqueued += 1;
        if self.settings.is_eager {
            self.drain(stream, u64::MAX);
        }
        Ok(())
    }

    /// Orders new work of the legacy stream after all work of blocking streams, and of blocking streams after the
    /// legacy stream's.
    fn order_with_legacy_stream(&mut self, stream: usize) -> Outcome {
        let before: Vec<usize> = if stream == LEGACY_STREAM {
            let is_blocking = |(handle, state): &(usize, &StreamState)| *handle != LEGACY_STREAM && state.is_blocking();
            self.streams.iter().filter(is_blocking).map(|(handle, _)| handle).collect()
        } else if self.stream(stream)?.is_blocking() {
            vec![LEGACY_STREAM]
        } else {
            Vec::new()
        };
        for other in before {
            let state = self.stream(other)?;
            if let Some(capture) = state.capture {
                self.invalidate_capture(capture);
                return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
            }
            self.wait_for_point(stream, other, None)?;
        }
        Ok(())
    }

    /// Makes a stream wait for a position of another stream, or for all of its work.
    fn wait_for_point(&mut self, stream: usize, other: usize, position: Option<u64>) -> Outcome {
        let state = self.stream(other)?;
        let clock = state.clock.clone();
        let wait = Work::Wait { stream: other, position: position.unwrap_or(state.enqueued) };
        let is_done = state.queue.is_empty();
        let state = self.stream(stream)?;
        if position.is_none() {
            state.clock.join(&clock);
        }
        if !is_done {
            state.queue.push_back(wait);
            state.enqueued += 1;
        }
        Ok(())
    }

    /// Checks the order of the accesses of some work against earlier work of other streams.
    fn track_accesses(&mut self, stream: usize, work: &Work) {
        let host = self.host_clock.clone();
        let state = self.streams.get_mut(stream).expect("the stream was found");
        state.clock.join(&host);
        let tick = state.clock.tick(stream);
        let clock = state.clock.clone();
        let text: Rc<str> = format!("{} on stream {stream:#x}", work.describe()).into();
        for access in work.accesses() {
            let Some(record) = self.memory.find_mut(access.address) else {
                continue;
            };
            let conflict = record.history.record(&clock, stream, tick, access.is_write, &text);
            if let Some(past) = conflict {
                let report = format!("{text} is not ordered after {past}, in {}", record.describe());
                self.reports.report(FaultKind::StreamRace, report);
            }
        }
    }

    /// Runs the work of a stream up to a position.
    pub(crate) fn drain(&mut self, stream: usize, position: u64) {
        // A stream that was destroyed has run all of its work.
        while let Some(state) = self.streams.get_mut(stream)
            && state.executed < position
            && let Some(work) = state.queue.pop_front()
        {
            state.executed += 1;
            self.run_work(&work);
        }
    }

    /// Drops the work of all streams, except that memory is freed.
    pub(crate) fn abandon_work(&mut self) {
        let mut dropped = Vec::new();
        for state in self.streams.values_mut() {
            state.executed = state.enqueued;
            dropped.extend(state.queue.drain(..));
        }
        for work in dropped {
            match work {
                Work::Free { base } => self.free_now(base),
                Work::Resize { base, bytes } => drop(self.memory.resize_running(base, bytes)),
                _ => {}
            }
        }
    }

    /// Returns true if the work of a stream up to a position has run.
    pub(crate) fn has_reached(&self, stream: usize, position: u64) -> bool {
        self.streams.get(stream).is_none_or(|state| state.executed >= position)
    }

    /// Runs the next work of a stream, so that a loop of queries ends.
    pub(crate) fn advance(&mut self, stream: usize) {
        if let Some(state) = self.streams.get(stream) {
            let next = state.executed + 1;
            self.drain(stream, next);
        }
    }

    /// Runs all work of a stream, on the host's behalf.
    ///
    /// # Errors
    /// An invalid or capturing stream; the sticky error.
    pub(crate) fn synchronize_stream(&mut self, stream: usize) -> Outcome {
        if let Some(capture) = self.stream(stream)?.capture {
            self.invalidate_capture(capture);
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        if stream == LEGACY_STREAM {
            self.order_with_legacy_stream(stream)?;
        }
        self.drain(stream, u64::MAX);
        let clock = self.stream(stream)?.clock.clone();
        self.host_clock.join(&clock);
        self.check_all_margins();
        self.memory.pool.synchronize();
        self.reports.check()
    }

    /// Runs all work of all streams, in the order of the schedule.
    ///
    /// # Errors
    /// The sticky error.
    pub(crate) fn synchronize_all(&mut self) -> Outcome {
        let mut handles = self.streams.handles();
        if self.settings.schedule != crate::interface::Schedule::Ascending {
            handles.reverse();
        }
        for stream in handles {
            self.drain(stream, u64::MAX);
            let clock = self.stream(stream)?.clock.clone();
            self.host_clock.join(&clock);
        }
        self.check_all_margins();
        self.memory.pool.synchronize();
        self.reports.check()
    }

    /// Records an event in a stream.
    ///
    /// # Errors
    /// Invalid handles.
    pub(crate) fn record_event(&mut self, event: usize, stream: usize) -> Outcome {
        self.event(event)?.serial += 1;
        let serial = self.event(event)?.serial;
        if let Some(capture) = self.stream(stream)?.capture {
            let nodes = self.last_captured(stream, capture)?;
            let state = self.event(event)?;
            state.captured = Some((capture, nodes));
            state.point = None;
            return Ok(());
        }
        let state = self.event(event)?;
        state.captured = None;
        state.time = None;
        self.enqueue(stream, Work::Record { event, serial })?;
        let state = self.stream(stream)?;
        let (clock, position) = (state.clock.clone(), state.enqueued);
        let state = self.event(event)?;
        state.clock = clock;
        state.point = Some((stream, position));
        Ok(())
    }

    /// Makes later work of a stream wait for an event.
    ///
    /// # Errors
    /// Invalid handles; errors of captures.
    pub(crate) fn wait_event(&mut self, stream: usize, event: usize) -> Outcome {
        let (captured, point, clock) = {
            let state = self.event(event)?;
            (state.captured.clone(), state.point, state.clock.clone())
        };
        let capture = self.stream(stream)?.capture;
        if let Some((origin, nodes)) = captured {
            return self.join_capture(stream, origin, &nodes);
        }
        let Some((other, position)) = point else {
            return Ok(());
        };
        if let Some(capture) = capture {
            self.invalidate_capture(capture);
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
        }
        self.stream(stream)?.clock.join(&clock);
        if self.streams.get(other).is_some() && other != stream {
            self.wait_for_point(stream, other, Some(position))?;
        }
        Ok(())
    }
}
