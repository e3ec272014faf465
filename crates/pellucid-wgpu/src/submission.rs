//! [`Recorded`]: the dispatches of the next submission.

use crate::compile::{CompiledShader, HeaderGroups};
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
    /// The buffer to which the status is copied after a submission with checks.
    pub(crate) status_copy: wgpu::Buffer,
    /// The number of checks that have passed since the last reset of the status, modulo 2³².
    pub(crate) passed_checks: u32,
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
    /// Creates an empty list. The parameter buffer has twice [`PARAMETER_BYTES`] bytes, so that the window of
    /// [`PARAMETER_BYTES`] bytes that a dispatch binds is within the buffer.
    pub(crate) fn new(parameters: wgpu::Buffer, headers: HeaderGroups, status_copy: wgpu::Buffer) -> Recorded {
        let (bytes, buffers, dispatches, passed_checks) = Default::default();
        Recorded { parameters, headers, bytes, buffers, dispatches, status_copy, passed_checks }
    }
}
