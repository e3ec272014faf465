//! [`RecordedDispatches`]: dispatches that are submitted together, in the order of the calls.

use crate::compiler::{CompiledShader, ParameterBindGroups, ShaderCompiler, operand_group};
use crate::description::{KernelDescription, kernel_scalar};
use crate::device::GraphicsDevice;
use crate::operand::BufferRef;
use crate::status::{StatusBuffer, StatusReader};
use pellucid_ir::Result;
use pellucid_ir::kernel::Kernel;
use std::ops::Range;
use std::sync::Arc;

/// The number of dispatches that are submitted together.
const MAX_RECORDED: usize = 64;

/// The largest size in bytes of the parameters of a dispatch, and of all parameters that are submitted together.
pub(crate) const PARAMETER_BYTES: usize = 256 << 10;

/// The dispatches that have not been submitted yet.
pub(crate) struct RecordedDispatches {
    parameters: wgpu::Buffer,
    headers: ParameterBindGroups,
    /// The contents of the parameter buffer.
    bytes: Vec<u8>,
    /// The buffers of all dispatches.
    buffers: Vec<wgpu::Buffer>,
    dispatches: Vec<RecordedDispatch>,
    /// Reads the status of submissions with checks.
    pub(crate) status: StatusReader,
}

/// A recorded dispatch.
struct RecordedDispatch {
    shader: Arc<CompiledShader>,
    /// The offset of the parameters.
    offset: u32,
    /// The range of the buffers in the list of all buffers.
    buffers: Range<usize>,
    groups: [u32; 2],
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
        let (bytes, buffers, dispatches) = Default::default();
        RecordedDispatches { parameters, headers, bytes, buffers, dispatches, status: StatusReader::new(graphics) }
    }

    /// Records the dispatches of a kernel. `memory` is the memory of the operands, then the scratch memory.
    ///
    /// # Errors
    /// If earlier dispatches are submitted and the device fails.
    pub(crate) fn record(
        &mut self,
        graphics: &GraphicsDevice,
        kernel: &Kernel,
        description: &KernelDescription,
        memory: &[wgpu::Buffer],
    ) -> Result<()> {
        graphics.counters.bytes.add(description.bytes);
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
            let buffers = first..self.buffers.len();
            let (shader, groups) = (dispatch.shader.clone(), dispatch.groups);
            self.dispatches.push(RecordedDispatch { shader, offset: offset as u32, buffers, groups });
        }
        Ok(())
    }

    /// Submits the recorded dispatches, without waiting for them.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn submit(&mut self, graphics: &GraphicsDevice) -> Result<()> {
        if self.dispatches.is_empty() {
            return graphics.check_failure();
        }
        let submitted = graphics.scoped("submit", || {
            graphics.queue.write_buffer(&self.parameters, 0, &self.bytes);
            let mut encoder = graphics.device.create_command_encoder(&Default::default());
            let mut pass = encoder.begin_compute_pass(&Default::default());
            for RecordedDispatch { shader, offset, buffers, groups } in &self.dispatches {
                let operands = operand_group(graphics, &shader.operands, &self.buffers[buffers.clone()]);
                pass.set_pipeline(&shader.pipeline);
                pass.set_bind_group(0, self.headers.group(shader), &[*offset]);
                pass.set_bind_group(1, &operands, &[]);
                pass.dispatch_workgroups(groups[0], groups[1], 1);
            }
            drop(pass);
            graphics.queue.submit([encoder.finish()]);
        });
        graphics.counters.submissions.add(1);
        graphics.counters.dispatches.add(self.dispatches.len());
        self.bytes.clear();
        self.buffers.clear();
        self.dispatches.clear();
        submitted
    }
}
