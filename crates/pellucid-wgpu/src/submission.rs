//! Bind groups and command buffers: recorded dispatches, and the dispatches of plans.
//!
//! Group 0 contains the parameters, at a dynamic offset, and the status buffer. All dispatches of a submission share
//! two such groups: one for shaders that read the status, and one for shaders that change it. Group 1 contains the
//! buffers of the operands. In a prepared plan, dispatches with the same buffers share group 1. It is cached, with the
//! buffers that it binds, for the most recent storages, so a launch with these storages creates nothing.

use crate::compiler::{CompiledShader, ShaderCompiler};
use crate::device::GraphicsDevice;
use pellucid_gpu::{DispatchBatch, PlanBuffer, PlannedDispatch, PlannedDispatches};
use std::collections::HashMap;
use std::num::NonZeroU64;
use std::ptr;
use std::sync::Arc;

/// The number of bind groups that a plan caches for each list of its buffers. In a training loop that runs eager code
/// between its plans, the allocator returns to the same buffers after a few steps.
const CACHED_BIND_GROUPS: usize = 8;

/// Group 0 of a parameter buffer, for shaders that read the status buffer and for those that change it.
pub(crate) struct ParameterBindGroups {
    reads_status: wgpu::BindGroup,
    changes_status: wgpu::BindGroup,
}

impl ParameterBindGroups {
    /// Creates the bind groups of the parameters in a buffer. A dispatch binds `window` bytes at its offset, which must
    /// be within the buffer. The graphics API reports errors to the error scopes of the caller.
    pub(crate) fn new(
        graphics: &GraphicsDevice,
        compiler: &ShaderCompiler,
        (parameters, window): (&wgpu::Buffer, usize),
        status: &wgpu::Buffer,
    ) -> ParameterBindGroups {
        let window = wgpu::BufferBinding { buffer: parameters, offset: 0, size: NonZeroU64::new(window as u64) };
        let entries = [
            wgpu::BindGroupEntry { binding: 0, resource: wgpu::BindingResource::Buffer(window) },
            wgpu::BindGroupEntry { binding: 1, resource: status.as_entire_binding() },
        ];
        let [reads_status, changes_status] = [false, true].map(|is_check| {
            let (label, layout) = (Some("header"), compiler.header_layout(is_check));
            graphics.counters.bind_groups.add(1);
            graphics.device.create_bind_group(&wgpu::BindGroupDescriptor { label, layout, entries: &entries })
        });
        ParameterBindGroups { reads_status, changes_status }
    }

    /// Returns the group for a shader.
    fn group(&self, shader: &CompiledShader) -> &wgpu::BindGroup {
        if shader.is_check { &self.changes_status } else { &self.reads_status }
    }
}

/// Creates group 1 of a dispatch. The graphics API reports errors to the error scopes of the caller.
fn create_operand_group<'a>(
    graphics: &GraphicsDevice,
    layout: &wgpu::BindGroupLayout,
    buffers: impl IntoIterator<Item = &'a wgpu::Buffer>,
) -> wgpu::BindGroup {
    graphics.counters.bind_groups.add(1);
    let entries: Vec<wgpu::BindGroupEntry<'_>> = buffers
        .into_iter()
        .zip(0..)
        .map(|(buffer, binding)| wgpu::BindGroupEntry { binding, resource: buffer.as_entire_binding() })
        .collect();
    graphics.device.create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout, entries: &entries })
}

/// A dispatch that is ready for submission.
struct ReadyDispatch<'a> {
    shader: &'a Arc<CompiledShader>,
    /// The offset of the parameters.
    offset: u32,
    /// The bind group of the operands.
    operands: &'a wgpu::BindGroup,
    /// The numbers of workgroups along the first and the second axis.
    groups: [u32; 2],
}

/// Submits dispatches in their order. `finish` adds commands after them. The graphics API reports errors to the error
/// scopes of the caller.
fn submit_dispatches<'a>(
    graphics: &GraphicsDevice,
    headers: &ParameterBindGroups,
    dispatches: impl ExactSizeIterator<Item = ReadyDispatch<'a>>,
    finish: impl FnOnce(&mut wgpu::CommandEncoder),
) -> wgpu::SubmissionIndex {
    graphics.counters.submissions.add(1);
    graphics.counters.dispatches.add(dispatches.len());
    let mut encoder = graphics.device.create_command_encoder(&Default::default());
    let mut pass = encoder.begin_compute_pass(&Default::default());
    let mut last: Option<ReadyDispatch<'a>> = None;
    for dispatch in dispatches {
        let ReadyDispatch { shader, offset, operands, groups: [x, y] } = dispatch;
        if last.as_ref().is_none_or(|last| !Arc::ptr_eq(last.shader, shader)) {
            pass.set_pipeline(&shader.pipeline);
        }
        pass.set_bind_group(0, headers.group(shader), &[offset]);
        if last.as_ref().is_none_or(|last| !ptr::eq(last.operands, operands)) {
            pass.set_bind_group(1, operands, &[]);
        }
        pass.dispatch_workgroups(x, y, 1);
        last = Some(dispatch);
    }
    drop(pass);
    finish(&mut encoder);
    graphics.queue.submit([encoder.finish()])
}

/// Submits recorded dispatches, whose parameters are in the buffer of `headers`. `finish` adds commands after them. The
/// graphics API reports errors to the error scopes of the caller.
pub(crate) fn submit_batch(
    graphics: &GraphicsDevice,
    headers: &ParameterBindGroups,
    batch: &DispatchBatch<'_, CompiledShader, wgpu::Buffer>,
    finish: impl FnOnce(&mut wgpu::CommandEncoder),
) -> wgpu::SubmissionIndex {
    let operands = batch.dispatches.iter().map(|dispatch| {
        create_operand_group(graphics, &dispatch.kernel.operand_layout, &batch.memory[dispatch.memory.clone()])
    });
    let operands: Vec<wgpu::BindGroup> = operands.collect();
    let ready = batch.dispatches.iter().zip(&operands).map(|(dispatch, operands)| ReadyDispatch {
        shader: &dispatch.kernel,
        offset: dispatch.offset,
        operands,
        groups: dispatch.groups,
    });
    submit_dispatches(graphics, headers, ready, finish)
}

/// The dispatches of a plan, and their bind groups.
pub struct PreparedDispatches {
    headers: ParameterBindGroups,
    dispatches: Vec<PlannedDispatch<CompiledShader>>,
    /// The index of the bind group of each dispatch.
    group_indices: Vec<usize>,
    groups: Vec<PlanGroup>,
    scratch: Vec<wgpu::Buffer>,
    /// The number of dispatches up to the last check.
    checked: usize,
}

/// The buffers of a bind group, and the bind groups for the most recent memory of these buffers.
struct PlanGroup {
    layout: wgpu::BindGroupLayout,
    buffers: Vec<PlanBuffer>,
    /// The bind groups, the oldest first.
    cached: Vec<(Vec<wgpu::Buffer>, wgpu::BindGroup)>,
}

impl PreparedDispatches {
    /// Writes the parameters of a plan. The graphics API reports errors to the error scopes of the caller.
    pub(crate) fn new(
        graphics: &GraphicsDevice,
        compiler: &ShaderCompiler,
        status: &wgpu::Buffer,
        plan: PlannedDispatches<CompiledShader, wgpu::Buffer>,
    ) -> PreparedDispatches {
        let PlannedDispatches { dispatches, checked, mut parameters, window, scratch } = plan;
        // Every dispatch binds `window` bytes at the offset of its parameters; the last window must be in the buffer.
        parameters.resize(parameters.len() + window, 0);
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
        let buffer = graphics.create_buffer("parameters", parameters.len(), usage);
        graphics.queue.write_buffer(&buffer, 0, &parameters);
        let headers = ParameterBindGroups::new(graphics, compiler, (&buffer, window), status);
        let (mut groups, mut known) = (Vec::new(), HashMap::new());
        let group_index = |dispatch: &PlannedDispatch<CompiledShader>| {
            let key = (dispatch.kernel.operand_layout.clone(), dispatch.buffers.clone());
            *known.entry(key).or_insert_with_key(|key| {
                let (layout, buffers) = key.clone();
                groups.push(PlanGroup { layout, buffers, cached: Vec::new() });
                groups.len() - 1
            })
        };
        let group_indices = dispatches.iter().map(group_index).collect();
        PreparedDispatches { headers, dispatches, group_indices, groups, scratch, checked }
    }

    /// Submits all dispatches. If there are checks, submits the dispatches up to the last check first, with the
    /// commands that `copy_status` adds, and returns this submission. The graphics API reports errors to the error
    /// scopes of the caller.
    pub(crate) fn submit(
        &mut self,
        graphics: &GraphicsDevice,
        slots: &[Option<wgpu::Buffer>],
        copy_status: impl FnOnce(&mut wgpu::CommandEncoder),
    ) -> Option<wgpu::SubmissionIndex> {
        let PreparedDispatches { headers, dispatches, group_indices, groups, scratch, checked } = self;
        let groups = groups.iter_mut().map(|group| group.bind(graphics, scratch, slots));
        let groups: Vec<&wgpu::BindGroup> = groups.collect();
        let ready = |range: std::ops::Range<usize>| {
            dispatches[range.clone()].iter().zip(&group_indices[range]).map(|(dispatch, &group)| ReadyDispatch {
                shader: &dispatch.kernel,
                offset: dispatch.offset,
                operands: groups[group],
                groups: dispatch.groups,
            })
        };
        let (checked, rest) = (ready(0..*checked), ready(*checked..dispatches.len()));
        let copied = (checked.len() > 0).then(|| submit_dispatches(graphics, headers, checked, copy_status));
        if rest.len() > 0 {
            submit_dispatches(graphics, headers, rest, |_| {});
        }
        copied
    }
}

impl PlanGroup {
    /// Returns the bind group for the memory of the buffers, which is created if it is not cached.
    fn bind(
        &mut self,
        graphics: &GraphicsDevice,
        scratch: &[wgpu::Buffer],
        slots: &[Option<wgpu::Buffer>],
    ) -> &wgpu::BindGroup {
        let memory = |buffer: &PlanBuffer| match *buffer {
            PlanBuffer::Slot(k) => slots[k].as_ref(),
            PlanBuffer::Scratch(k) => Some(&scratch[k]),
        };
        let PlanGroup { layout, buffers, cached } = self;
        let current = || buffers.iter().map(memory);
        let is_bound = |bound: &[wgpu::Buffer]| bound.iter().zip(current()).all(|(a, b)| b.is_some_and(|b| b == a));
        let existing = cached.iter().position(|(bound, _)| is_bound(bound));
        let index = existing.unwrap_or_else(|| {
            let buffers: Vec<wgpu::Buffer> = current().flatten().cloned().collect();
            let group = create_operand_group(graphics, layout, &buffers);
            if cached.len() == CACHED_BIND_GROUPS {
                cached.remove(0);
            }
            cached.push((buffers, group));
            cached.len() - 1
        });
        &cached[index].1
    }
}
