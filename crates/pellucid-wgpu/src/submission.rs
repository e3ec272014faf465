//! [`Recorded`]: the dispatches of the next submission.

use crate::compile::{CompiledShader, HeaderGroups};
use crate::status::CheckHistory;
use std::ops::Range;
use std::sync::Arc;

/// Dispatches that have not been submitted yet.
pub(crate) struct Recorded {
    pub(crate) parameters: wgpu::Buffer,
    pub(crate) headers: HeaderGroups,
    /// The contents of the parameter buffer.
    pub(crate) bytes: Vec<u8>,
    /// The buffers of all dispatches.
    pub(crate) buffers: Vec<wgpu::Buffer>,
    pub(crate) dispatches: Vec<RecordedDispatch>,
    /// The checks among the dispatches of all submissions.
    pub(crate) history: CheckHistory,
}

/// A recorded dispatch.
pub(crate) struct RecordedDispatch {
    pub(crate) shader: Arc<CompiledShader>,
    /// The offset of the parameters.
    pub(crate) offset: u32,
    /// The range of the buffers in the list of all buffers.
    pub(crate) buffers: Range<usize>,
    pub(crate) groups: [u32; 2],
}

impl Recorded {
    /// Creates an empty list. The parameter buffer has twice [`PARAMETER_BYTES`] bytes, so that the window of that size
    /// that a dispatch binds is within the buffer.
    pub(crate) fn new(parameters: wgpu::Buffer, headers: HeaderGroups) -> Recorded {
        let (bytes, buffers, dispatches) = Default::default();
        Recorded { parameters, headers, bytes, buffers, dispatches, history: CheckHistory::default() }
    }
}
