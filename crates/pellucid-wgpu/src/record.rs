//! Recorded dispatches. They are submitted together, in the order of the calls.

use crate::bound::BoundOperands;
use crate::buffer::DeviceMemory;
use crate::description::{KernelDescription, kernel_scalar};
use crate::device::{Gpu, PARAMETER_BYTES};
use crate::operand::BufferRef;
use crate::submission::{Recorded, RecordedDispatch};
use pellucid_ir::kernel::Kernel;
use pellucid_ir::{Result, lock};
use std::sync::Arc;

/// The number of dispatches that are submitted together.
const MAX_RECORDED: usize = 64;

impl Gpu {
    /// Records the dispatches of a kernel. If it has checks, waits for their results.
    ///
    /// # Errors
    /// If an operand that the kernel reads has never been written, an allocation or a submission fails, or a check
    /// failed.
    pub(crate) fn run(
        self: &Arc<Gpu>,
        kernel: &Kernel,
        description: &KernelDescription,
        bound: &BoundOperands<'_>,
    ) -> Result<()> {
        let mut memory = bound.memory(kernel)?;
        // Scratch memory returns to the pool at the end of this function. Later users of it run later.
        let scratch: Vec<DeviceMemory> =
            description.scratch.iter().map(|&bytes| DeviceMemory::allocate(self, bytes)).collect::<Result<_>>()?;
        memory.extend(scratch.iter().map(|memory| memory.raw().clone()));
        let mut recorded = lock(&self.recorded);
        if description.checks == 0 {
            return self.record_dispatches(&mut recorded, kernel, description, &memory);
        }
        self.record_dispatches(&mut recorded, kernel, description, &memory)?;
        self.submit(&mut recorded)?;
        let copied = self.scoped("status", || {
            let mut encoder = self.device().create_command_encoder(&Default::default());
            self.copy_status(&mut encoder, &recorded);
            self.queue().submit([encoder.finish()])
        })?;
        self.confirm_checks(&mut recorded, description.checks as usize, copied).map_err(|failed| failed.error)
    }

    /// Records dispatches. `memory` is the memory of the operands, then the scratch memory.
    pub(crate) fn record_dispatches(
        &self,
        recorded: &mut Recorded,
        kernel: &Kernel,
        description: &KernelDescription,
        memory: &[wgpu::Buffer],
    ) -> Result<()> {
        self.counters().bytes.add(description.bytes);
        let operands = memory.len() - description.scratch.len();
        for dispatch in &description.dispatches {
            let size = 4 * dispatch.parameters.len();
            let mut offset = recorded.bytes.len().next_multiple_of(self.parameter_alignment());
            if recorded.dispatches.len() >= MAX_RECORDED || offset + size > PARAMETER_BYTES {
                self.submit(recorded)?;
                offset = 0;
            }
            recorded.bytes.resize(offset, 0);
            dispatch.parameters.append_bytes(&mut recorded.bytes, |index| kernel_scalar(kernel, index));
            let first = recorded.buffers.len();
            recorded.buffers.extend(dispatch.buffers.iter().map(|buffer| match *buffer {
                BufferRef::Operand(k) => memory[k].clone(),
                BufferRef::Scratch(k) => memory[operands + k].clone(),
            }));
            let buffers = first..recorded.buffers.len();
            let (shader, groups) = (dispatch.shader.clone(), dispatch.groups);
            recorded.dispatches.push(RecordedDispatch { shader, offset: offset as u32, buffers, groups });
        }
        Ok(())
    }

    /// Submits all recorded dispatches, without waiting for them.
    pub(crate) fn flush(&self) -> Result<()> {
        self.submit(&mut lock(&self.recorded))
    }

    /// Submits the recorded dispatches, without waiting for them.
    pub(crate) fn submit(&self, recorded: &mut Recorded) -> Result<()> {
        if recorded.dispatches.is_empty() {
            return self.check_failure();
        }
        let submitted = self.scoped("submit", || {
            self.queue().write_buffer(&recorded.parameters, 0, &recorded.bytes);
            let mut encoder = self.device().create_command_encoder(&Default::default());
            let mut pass = encoder.begin_compute_pass(&Default::default());
            for RecordedDispatch { shader, offset, buffers, groups } in &recorded.dispatches {
                let operands = self.operand_group(&shader.operands, &recorded.buffers[buffers.clone()]);
                pass.set_pipeline(&shader.pipeline);
                pass.set_bind_group(0, recorded.headers.group(shader), &[*offset]);
                pass.set_bind_group(1, &operands, &[]);
                pass.dispatch_workgroups(groups[0], groups[1], 1);
            }
            drop(pass);
            self.queue().submit([encoder.finish()]);
        });
        self.counters().submissions.add(1);
        self.counters().dispatches.add(recorded.dispatches.len());
        recorded.bytes.clear();
        recorded.buffers.clear();
        recorded.dispatches.clear();
        submitted
    }

    /// Creates group 1 of a dispatch. The graphics API reports errors to the error scopes of the caller.
    pub(crate) fn operand_group(&self, layout: &wgpu::BindGroupLayout, buffers: &[wgpu::Buffer]) -> wgpu::BindGroup {
        self.counters().bind_groups.add(1);
        let entries: Vec<wgpu::BindGroupEntry<'_>> = buffers
            .iter()
            .zip(0..)
            .map(|(buffer, binding)| wgpu::BindGroupEntry { binding, resource: buffer.as_entire_binding() })
            .collect();
        self.device().create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout, entries: &entries })
    }
}
