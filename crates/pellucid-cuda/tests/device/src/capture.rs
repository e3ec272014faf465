//! Stream capture: work becomes nodes of a graph, whose dependencies follow from streams and events.

use std::collections::{BTreeMap, BTreeSet};
use std::thread::ThreadId;

use cudarc::driver::sys::{CUresult, CUstreamCaptureMode};

use crate::TestDevice;
use crate::interface::{CAPTURE_MODE, LEGACY_STREAM, Outcome};
use crate::reports::FaultKind;
use crate::work::{GraphBody, NodeWork, Work};

/// A capture in progress.
pub(crate) struct CaptureState {
    origin: usize,
    mode: CUstreamCaptureMode,
    thread: ThreadId,
    pub(crate) body: GraphBody,
    /// The nodes that the next node of each stream depends on.
    last: BTreeMap<usize, Vec<usize>>,
    pub(crate) is_invalid: bool,
}

impl CaptureState {
    /// Returns the nodes that the next node of a stream depends on.
    pub(crate) fn last_nodes(&self, stream: usize) -> &[usize] {
        self.last.get(&stream).map_or(&[], Vec::as_slice)
    }
}

impl TestDevice {
    /// Starts a capture.
    ///
    /// # Errors
    /// Unsupported for the legacy stream; an illegal state if the stream captures already.
    pub(crate) fn begin_capture(&mut self, stream: usize, mode: CUstreamCaptureMode) -> Outcome {
        if stream == LEGACY_STREAM {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        if self.stream(stream)?.capture.is_some() {
            return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE);
        }
        let capture = self.captures.insert(CaptureState {
            origin: stream,
            mode,
            thread: std::thread::current().id(),
            body: GraphBody::default(),
            last: BTreeMap::from([(stream, Vec::new())]),
            is_invalid: false,
        });
        self.stream(stream)?.capture = Some(capture);
        Ok(())
    }

    /// Returns the nodes that the next node of a capturing stream depends on.
    ///
    /// # Errors
    /// An invalidated capture.
    pub(crate) fn last_captured(&mut self, stream: usize, capture: usize) -> Result<Vec<usize>, CUresult> {
        Ok(self.valid_capture(capture)?.last.get(&stream).cloned().unwrap_or_default())
    }

    fn valid_capture(&mut self, capture: usize) -> Result<&mut CaptureState, CUresult> {
        match self.captures.get_mut(capture) {
            Some(state) if !state.is_invalid => Ok(state),
            _ => Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
        }
    }

    /// Marks a capture as failed: its end returns an error and no graph.
    pub(crate) fn invalidate_capture(&mut self, capture: usize) {
        if let Some(state) = self.captures.get_mut(capture) {
            state.is_invalid = true;
        }
    }

    /// Adds work to the graph of a capture.
    ///
    /// # Errors
    /// An invalidated capture; unsupported work.
    pub(crate) fn capture_work(&mut self, stream: usize, capture: usize, work: Work) -> Outcome {
        if matches!(work, Work::Free { .. } | Work::Resize { .. }) {
            self.invalidate_capture(capture);
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        let node = match work {
            Work::Graph(body) => NodeWork::Child(body),
            other => NodeWork::Plain(other),
        };
        let state = self.valid_capture(capture)?;
        let dependencies: BTreeSet<usize> = state.last_nodes(stream).iter().copied().collect();
        let index = state.body.add(node, dependencies);
        state.last.insert(stream, vec![index]);
        Ok(())
    }

    /// Makes a stream wait for an event that was recorded in a capture: the stream joins the capture.
    ///
    /// # Errors
    /// A merge of two captures; an implicit capture of the legacy stream.
    pub(crate) fn join_capture(&mut self, stream: usize, capture: usize, nodes: &[usize]) -> Outcome {
        if stream == LEGACY_STREAM {
            self.invalidate_capture(capture);
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        }
        if let Some(own) = self.stream(stream)?.capture
            && own != capture
        {
            self.invalidate_capture(own);
            self.invalidate_capture(capture);
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_MERGE);
        }
        let state = self.valid_capture(capture)?;
        let last = state.last.entry(stream).or_default();
        for node in nodes {
            if !last.contains(node) {
                last.push(*node);
            }
        }
        self.stream(stream)?.capture = Some(capture);
        Ok(())
    }

    /// Ends a capture and returns the handle of its graph.
    ///
    /// # Errors
    /// An illegal state if the stream does not capture; an unmatched stream; a wrong thread; unjoined streams; an
    /// invalidated capture.
    pub(crate) fn end_capture(&mut self, stream: usize) -> Result<usize, CUresult> {
        let capture = self.stream(stream)?.capture.ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
        let state = self.captures.get_mut(capture).expect("a capturing stream has a capture");
        if state.origin != stream {
            state.is_invalid = true;
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
        }
        let is_relaxed = state.mode == CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        if !is_relaxed && state.thread != std::thread::current().id() {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
        }
        let state = self.captures.remove(capture).expect("the capture was found");
        for other in self.streams.values_mut() {
            if other.capture == Some(capture) {
                other.capture = None;
            }
        }
        if state.is_invalid {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        let joined = state.body.ancestors(state.last_nodes(stream));
        let mut branches = state.last.iter().filter(|(other, _)| **other != stream);
        if branches.any(|(_, nodes)| nodes.iter().any(|node| !joined.contains(node))) {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
        }
        Ok(self.insert_graph(state.body))
    }

    /// Fails if a capture forbids this thread to call functions that are not captured and may wait.
    ///
    /// # Errors
    /// Unsupported while capturing. The captures are invalidated.
    pub(crate) fn check_unsafe_call(&mut self, call: &str) -> Outcome {
        use CUstreamCaptureMode as Mode;
        let own = CAPTURE_MODE.get();
        if own == Mode::CU_STREAM_CAPTURE_MODE_RELAXED {
            return Ok(());
        }
        let thread = std::thread::current().id();
        let forbids = |state: &CaptureState| match state.mode {
            Mode::CU_STREAM_CAPTURE_MODE_RELAXED => false,
            Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL => state.thread == thread,
            Mode::CU_STREAM_CAPTURE_MODE_GLOBAL => state.thread == thread || own == Mode::CU_STREAM_CAPTURE_MODE_GLOBAL,
        };
        let forbidding: Vec<usize> =
            self.captures.iter().filter(|(_, state)| forbids(state)).map(|(handle, _)| handle).collect();
        if forbidding.is_empty() {
            return Ok(());
        }
        for capture in forbidding {
            self.invalidate_capture(capture);
        }
        Err(self.reports.report(FaultKind::CaptureAllocation, format!("{call} while a stream captures")))
    }
}
