//! Plans prepared for repeated launches.
//!
//! All operands are checked, all shaders compiled and all parameters written once. A launch binds the buffers of the
//! slots and the scratch memory of the plan, encodes all dispatches and submits them together. Bind groups are cached
//! for the most recent storages, so a launch with these storages creates nothing.
//!
//! A launch of a plan with checks of indices is two submissions: the dispatches up to the last check, and the rest. The
//! host waits for the first submission, while the device runs the second.

use crate::buffer::{DeviceMemory, UnwrittenBuffers, WgpuBuffer};
use crate::compiler::{ParameterBindGroups, create_operand_group};
use crate::description::{DispatchDescription, check_scalars, kernel_scalar};
use crate::device::GraphicsDevice;
use crate::families::describe_kernel;
use crate::gpu::Gpu;
use crate::operand::{DeviceOperands, UncheckedOperand};
use crate::operand_memory::device_buffer;
use crate::shader::BufferRef;
use crate::submission::{ReadyDispatch, RecordedDispatches, submit_dispatches};
use pellucid_ir::backend::{BorrowedSlots, Buffer, CheckedPlan, CompiledPlan, LaunchFailure, Storage};
use pellucid_ir::kernel::Kernel;
use pellucid_ir::plan::{Launch, SlotAccess, SlotUse, slot_access};
use pellucid_ir::{Error, Result, lock};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// The number of bind groups that a plan caches for each list of its buffers. In a training loop that runs eager code
/// between its plans, the allocator returns to the same buffers after a few steps.
const CACHED_BIND_GROUPS: usize = 8;

/// A plan whose operands have been checked and whose shaders are compiled.
pub(crate) struct WgpuPlan {
    gpu: Arc<Gpu>,
    work: PlanWork,
    headers: ParameterBindGroups,
    scratch: Vec<DeviceMemory>,
    groups: Mutex<Vec<PlanGroup>>,
}

/// The slots and the dispatches of a plan.
#[derive(Default)]
struct PlanWork {
    slots: Vec<SlotUse>,
    access: Vec<SlotAccess>,
    dispatches: Vec<ReadyDispatch>,
    /// The bytes that all kernels read and write.
    bytes: usize,
    /// The index of the launch to which each check belongs.
    check_launches: Vec<usize>,
    /// The number of dispatches up to the last check.
    checked_dispatches: usize,
}

/// A buffer of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum PlanBuffer {
    /// The buffer of a slot.
    Slot(usize),
    /// A scratch buffer, which all kernels share.
    Scratch(usize),
}

/// The buffers of a bind group, and the bind groups for the most recent memory of these buffers.
struct PlanGroup {
    layout: wgpu::BindGroupLayout,
    buffers: Vec<PlanBuffer>,
    /// The bind groups, the oldest first.
    cached: Vec<(Vec<wgpu::Buffer>, wgpu::BindGroup)>,
}

/// A plan under construction.
#[derive(Default)]
struct PlanBuilder {
    work: PlanWork,
    groups: Vec<PlanGroup>,
    /// The index of the bind group for each layout and list of buffers.
    group_indices: HashMap<(wgpu::BindGroupLayout, Vec<PlanBuffer>), usize>,
    parameters: Vec<u8>,
    /// The largest size of the parameters of a dispatch.
    window: usize,
    /// The sizes of the scratch buffers, which all kernels share, because they run one after another.
    scratch: Vec<usize>,
    /// The number of launches so far.
    launches: usize,
}

impl PlanBuilder {
    /// Checks the operands of a launch and adds its dispatches.
    fn add(&mut self, gpu: &Gpu, launch: &Launch) -> Result<()> {
        let operands = launch.inputs.iter().chain(&launch.outputs);
        let unchecked: Vec<UncheckedOperand<'_, usize>> = operands
            .map(|o| UncheckedOperand {
                identity: o.slot,
                bytes: self.work.slots[o.slot].bytes,
                layout: &o.layout,
                dtype: o.dtype,
            })
            .collect();
        let checked = DeviceOperands::new(&launch.kernel, &unchecked, launch.inputs.len())?;
        let description = describe_kernel(gpu, &launch.kernel, &checked)?;
        check_scalars(&launch.kernel, &description)?;
        self.work.check_launches.extend(std::iter::repeat_n(self.launches, description.checks as usize));
        self.launches += 1;
        self.work.bytes += description.bytes;
        self.scratch.resize(self.scratch.len().max(description.scratch.len()), 0);
        for (size, &bytes) in self.scratch.iter_mut().zip(&description.scratch) {
            *size = bytes.max(*size);
        }
        let slot = |operand: usize| unchecked[operand].identity;
        for dispatch in &description.dispatches {
            self.add_dispatch(gpu, &launch.kernel, dispatch, slot)?;
        }
        if description.checks > 0 {
            self.work.checked_dispatches = self.work.dispatches.len();
        }
        Ok(())
    }

    /// Adds a dispatch of a kernel. `slot` returns the slot of an operand.
    fn add_dispatch(
        &mut self,
        gpu: &Gpu,
        kernel: &Kernel,
        dispatch: &DispatchDescription,
        slot: impl Fn(usize) -> usize,
    ) -> Result<()> {
        let DispatchDescription { shader, parameters, buffers, groups } = dispatch;
        self.parameters.resize(self.parameters.len().next_multiple_of(gpu.graphics.parameter_alignment()), 0);
        let offset = self.parameters.len();
        parameters.append_bytes(&mut self.parameters, |index| kernel_scalar(kernel, index));
        self.window = self.window.max(self.parameters.len() - offset);
        let buffer = |buffer: &BufferRef| match *buffer {
            BufferRef::Operand(k) => PlanBuffer::Slot(slot(k)),
            BufferRef::Scratch(k) => PlanBuffer::Scratch(k),
        };
        let buffers: Vec<PlanBuffer> = buffers.iter().map(buffer).collect();
        let key = (shader.operand_layout.clone(), buffers);
        let operand_group = *self.group_indices.entry(key).or_insert_with_key(|key| {
            let (layout, buffers) = key.clone();
            self.groups.push(PlanGroup { layout, buffers, cached: Vec::new() });
            self.groups.len() - 1
        });
        let too_many = |_| {
            Error::invalid(
                kernel.name(),
                "the parameters of the plan exceed 4 GiB; split the captured step into shorter ones",
            )
        };
        let offset = u32::try_from(offset).map_err(too_many)?;
        self.work.dispatches.push(ReadyDispatch { shader: shader.clone(), offset, operand_group, groups: *groups });
        Ok(())
    }

    /// Writes the parameters and allocates the scratch memory.
    fn finish(self, gpu: &Arc<Gpu>) -> Result<WgpuPlan> {
        let PlanBuilder { work, groups, mut parameters, window, scratch, .. } = self;
        // Every dispatch binds `window` bytes at the offset of its parameters; the last window must be in the buffer.
        parameters.resize(parameters.len() + window, 0);
        let headers = gpu.graphics.scoped("prepare", || {
            let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
            let buffer = gpu.graphics.create_buffer("parameters", parameters.len(), usage);
            gpu.graphics.queue.write_buffer(&buffer, 0, &parameters);
            gpu.compiler.header_groups(&gpu.graphics, (&buffer, window), &gpu.status.buffer)
        })?;
        let scratch = scratch.iter().map(|&bytes| DeviceMemory::allocate(gpu, bytes)).collect::<Result<_>>()?;
        Ok(WgpuPlan { gpu: gpu.clone(), work, headers, scratch, groups: Mutex::new(groups) })
    }
}

impl WgpuPlan {
    /// Compiles the shaders of a plan and allocates its scratch memory.
    ///
    /// # Errors
    /// Returns an error if an operand exceeds its slot, if a shader does not compile, or if an allocation fails.
    pub(crate) fn new(gpu: &Arc<Gpu>, plan: CheckedPlan<'_>) -> Result<WgpuPlan> {
        let (slots, access) = (SlotUse::from_plan(&plan)?, slot_access(plan.slots.len(), &plan.launches));
        let work = PlanWork { slots, access, ..Default::default() };
        let mut builder = PlanBuilder { work, window: 4, ..Default::default() };
        plan.launches.iter().try_for_each(|launch| builder.add(gpu, launch))?;
        builder.finish(gpu)
    }

    /// Returns the buffer of every slot, or `None` if the slot is unused.
    fn slot_buffers<'a>(&self, slots: &'a [Arc<Storage>]) -> Result<Vec<Option<&'a WgpuBuffer>>> {
        let buffer = |(slot, storage): (&SlotUse, &'a Arc<Storage>)| {
            if !slot.is_used {
                return Ok(None);
            }
            let buffer = device_buffer("launch", &self.gpu, storage)?;
            slot.check(buffer.bytes(), buffer.is_allocated())?;
            Ok(Some(buffer))
        };
        self.work.slots.iter().zip(slots).map(buffer).collect()
    }

    /// Runs the plan. Allocates memory for slots whose first use is a write.
    fn run(&self, buffers: &[Option<&WgpuBuffer>]) -> Result<(), LaunchFailure> {
        let (before_all, gpu) = (LaunchFailure::before_all, &self.gpu);
        let mut groups = lock(&self.groups);
        let memory = buffers.iter().map(|slot| slot.map(WgpuBuffer::ensure).transpose());
        let memory: Vec<Option<wgpu::Buffer>> = memory.collect::<Result<_>>().map_err(before_all)?;
        // Until the checks are confirmed, no other thread submits work, which a failed check would skip.
        let mut recorded = lock(&gpu.recorded);
        recorded.submit(&gpu.graphics).map_err(before_all)?;
        let Some(copied) = self.submit(&recorded, &mut groups, &memory).transpose() else { return Ok(()) };
        let check_launches = &self.work.check_launches;
        let confirmed = recorded.status.confirm(&gpu.graphics, &gpu.status, check_launches.len(), copied);
        confirmed.map_err(|failed| match failed.passed.and_then(|passed| check_launches.get(passed as usize)) {
            Some(&launch) => LaunchFailure::new(launch, failed.error),
            None => LaunchFailure::unknown(failed.error),
        })
    }

    /// Encodes and submits all dispatches. Returns the submission that copies the status, if there are checks.
    fn submit(
        &self,
        recorded: &RecordedDispatches,
        groups: &mut [PlanGroup],
        buffers: &[Option<wgpu::Buffer>],
    ) -> Result<Option<wgpu::SubmissionIndex>> {
        let graphics = &self.gpu.graphics;
        let (checked, rest) = self.work.dispatches.split_at(self.work.checked_dispatches);
        let copied = graphics.scoped("launch", || {
            let groups: Vec<&wgpu::BindGroup> =
                groups.iter_mut().map(|group| group.bind(graphics, &self.scratch, buffers)).collect();
            let submit = |dispatches, status| submit_dispatches(graphics, &self.headers, dispatches, &groups, status);
            let status = (&recorded.status, &self.gpu.status);
            let copied = (!checked.is_empty()).then(|| submit(checked, Some(status)));
            if !rest.is_empty() {
                submit(rest, None);
            }
            copied
        })?;
        graphics.counters.bytes.add(self.work.bytes);
        Ok(copied)
    }
}

impl PlanGroup {
    /// Returns the bind group for the memory of the buffers, which is created if it is not cached.
    fn bind(
        &mut self,
        graphics: &GraphicsDevice,
        scratch: &[DeviceMemory],
        slots: &[Option<wgpu::Buffer>],
    ) -> &wgpu::BindGroup {
        let memory = |buffer: &PlanBuffer| match *buffer {
            PlanBuffer::Slot(k) => slots[k].as_ref(),
            PlanBuffer::Scratch(k) => Some(scratch[k].raw()),
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

impl CompiledPlan for WgpuPlan {
    fn access(&self) -> &[SlotAccess] {
        &self.work.access
    }

    fn launch(&self, slots: &BorrowedSlots<'_>) -> Result<(), LaunchFailure> {
        slots.check_access(&self.work.access).map_err(LaunchFailure::before_all)?;
        let buffers = self.slot_buffers(slots.storages()).map_err(LaunchFailure::before_all)?;
        let unwritten = UnwrittenBuffers::new(buffers.iter().copied().flatten());
        self.run(&buffers).inspect_err(|failed| {
            // If a launch other than the first failed, the launches before it have written their outputs.
            if failed.launch().is_none_or(|launch| launch == 0) {
                unwritten.discard();
            }
        })
    }
}
