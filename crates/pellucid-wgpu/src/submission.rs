//! [`RecordedDispatches`]: dispatches that are submitted together, in the order of the calls.

use crate::compiler::{CompiledShader, ParameterBindGroups, ShaderCompiler, create_operand_group};
use crate::description::{KernelDescription, kernel_scalar};
use crate::device::GraphicsDevice;
use crate::shader::BufferRef;
use crate::status::{StatusBuffer, StatusReader};
use pellucid_ir::kernel::Kernel;
use pellucid_ir::{Error, Result};
use std::borrow::Borrow;
use std::ops::Range;
use std::sync::Arc;

/// The maximum number of recorded dispatches. If it is reached, they are submitted before the next one is recorded.
const MAX_RECORDED: usize = 64;

/// The maximum size in bytes of the parameters of a dispatch, and of the parameters of all recorded dispatches.
pub(crate) const PARAMETER_BYTES: usize = 256 << 10;

/// The dispatches that have not been submitted yet.
pub(crate) struct RecordedDispatches {
    parameters: wgpu::Buffer,
    headers: ParameterBindGroups,
    /// The contents of the parameter buffer.
    bytes: Vec<u8>,
    /// The buffers of all dispatches, and the range of each dispatch.
    buffers: Vec<wgpu::Buffer>,
    ranges: Vec<Range<usize>>,
    dispatches: Vec<ReadyDispatch>,
    /// Reads the status of submissions with checks.
    pub(crate) status: StatusReader,
}

/// A dispatch that is ready for submission.
pub(crate) struct ReadyDispatch {
    pub(crate) shader: Arc<CompiledShader>,
    /// The offset of the parameters.
    pub(crate) offset: u32,
    /// The index of the bind group of the operands.
    pub(crate) operand_group: usize,
    /// The numbers of workgroups along the first and the second axis.
    pub(crate) groups: [u32; 2],
}

impl RecordedDispatches {
    /// Creates an empty list. The parameter buffer has twice [`PARAMETER_BYTES`] bytes, so that the window of
    /// [`PARAMETER_BYTES`] bytes that a dispatch binds is within the buffer.
    pub(crate) fn new(
        graphics: &GraphicsDevice,
        compiler: &ShaderCompiler,
        status: &StatusBuffer,
    ) -> RecordedDispatches {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
        let parameters = graphics.create_buffer("parameters", 2 * PARAMETER_BYTES, usage);
        let headers = compiler.header_groups(graphics, (&parameters, PARAMETER_BYTES), &status.buffer);
        let (bytes, buffers, ranges, dispatches, status) =
            (vec![], vec![], vec![], vec![], StatusReader::new(graphics));
        RecordedDispatches { parameters, headers, bytes, buffers, ranges, dispatches, status }
    }

    /// Records the dispatches of a kernel. `memory` is the memory of the operands, then the scratch memory.
    ///
    /// # Errors
    /// Returns an error if the device has failed, or if it fails while earlier dispatches are submitted.
    pub(crate) fn record(
        &mut self,
        graphics: &GraphicsDevice,
        kernel: &Kernel,
        description: &KernelDescription,
        memory: &[wgpu::Buffer],
    ) -> Result<()> {
        graphics.check_failure()?;
        let operands = memory.len() - description.scratch.len();
        for dispatch in &description.dispatches {
            let size = dispatch.parameters.bytes();
            let mut offset = self.bytes.len().next_multiple_of(graphics.parameter_alignment());
            if self.dispatches.len() >= MAX_RECORDED || offset + size > PARAMETER_BYTES {
                self.submit(graphics)?;
                offset = 0;
            }
            self.bytes.resize(offset, 0);
            dispatch.parameters.append_bytes(&mut self.bytes, |index| kernel_scalar(kernel, index));
            let first = self.buffers.len();
            self.buffers.extend(dispatch.buffers.iter().map(|buffer| match *buffer {
                BufferRef::Operand(k) => memory[k].clone(),
                BufferRef::Scratch(k) => memory[operands + k].clone(),
            }));
            let (shader, groups, operand_group) = (dispatch.shader.clone(), dispatch.groups, self.ranges.len());
            self.ranges.push(first..self.buffers.len());
            self.dispatches.push(ReadyDispatch { shader, offset: offset as u32, operand_group, groups });
        }
        graphics.counters.bytes.add(description.bytes);
        Ok(())
    }

    /// Submits the recorded dispatches, without waiting for them.
    ///
    /// # Errors
    /// See [`submit_with_status`](RecordedDispatches::submit_with_status).
    pub(crate) fn submit(&mut self, graphics: &GraphicsDevice) -> Result<()> {
        match self.dispatches.is_empty() {
            true => graphics.check_failure(),
            false => self.submit_with_status(graphics, None).map(drop),
        }
    }

    /// Submits the recorded dispatches and a copy of `status`, if it is given, for [`StatusReader::confirm`].
    ///
    /// # Errors
    /// [`Error::DeviceUnavailable`] if the graphics API rejects the submission. The device then counts as failed: the
    /// calls that recorded the dispatches have already returned without an error, and their outputs were not written.
    pub(crate) fn submit_with_status(
        &mut self,
        graphics: &GraphicsDevice,
        status: Option<&StatusBuffer>,
    ) -> Result<wgpu::SubmissionIndex> {
        let submitted = graphics.scoped("submit", || {
            graphics.queue.write_buffer(&self.parameters, 0, &self.bytes);
            let dispatches = self.dispatches.iter().zip(&self.ranges);
            let groups = dispatches.map(|(dispatch, range)| {
                create_operand_group(graphics, &dispatch.shader.operand_layout, &self.buffers[range.clone()])
            });
            let (groups, status) = (groups.collect::<Vec<_>>(), status.map(|status| (&self.status, status)));
            submit_dispatches(graphics, &self.headers, &self.dispatches, &groups, status)
        });
        self.bytes.clear();
        self.buffers.clear();
        self.ranges.clear();
        self.dispatches.clear();
        submitted.map_err(|error| match error {
            failed @ Error::DeviceUnavailable { .. } => failed,
            rejected => graphics.fail(format!("recorded kernels could not be submitted: {rejected}")),
        })
    }
}

/// Submits dispatches in their order, and a copy of the status if `status` is given. `groups` are the bind groups of
/// the operands. The graphics API reports errors to the error scopes of the caller.
pub(crate) fn submit_dispatches(
    graphics: &GraphicsDevice,
    headers: &ParameterBindGroups,
    dispatches: &[ReadyDispatch],
    groups: &[impl Borrow<wgpu::BindGroup>],
    status: Option<(&StatusReader, &StatusBuffer)>,
) -> wgpu::SubmissionIndex {
    graphics.counters.submissions.add(1);
    graphics.counters.dispatches.add(dispatches.len());
    let mut encoder = graphics.device.create_command_encoder(&Default::default());
    let mut pass = encoder.begin_compute_pass(&Default::default());
    let mut last: Option<&ReadyDispatch> = None;
    for dispatch in dispatches {
        let ReadyDispatch { shader, offset, operand_group, groups: [x, y] } = dispatch;
        if last.is_none_or(|last| !Arc::ptr_eq(&last.shader, shader)) {
            pass.set_pipeline(&shader.pipeline);
        }
        pass.set_bind_group(0, headers.group(shader), &[*offset]);
        if last.is_none_or(|last| last.operand_group != *operand_group) {
            let group: &wgpu::BindGroup = groups[*operand_group].borrow();
            pass.set_bind_group(1, group, &[]);
        }
        pass.dispatch_workgroups(*x, *y, 1);
        last = Some(dispatch);
    }
    drop(pass);
    if let Some((reader, status)) = status {
        reader.copy(&mut encoder, status);
    }
    graphics.queue.submit([encoder.finish()])
}
