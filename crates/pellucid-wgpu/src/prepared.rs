//! Plans prepared for repeated launches.
//!
//! All operands are checked, all shaders compiled and all parameters written once. The buffers of a launch are those of
//! the slots and the scratch memory of the plan. A launch binds them, records all dispatches and submits them together.
//! Bind groups are kept for the last storages, so a launch with known storages creates nothing.
//!
//! No launch waits for the checks of its kernels, except for the first one.

use crate::bound::device_buffer;
use crate::buffer::{DeviceMemory, WgpuBuffer};
use crate::compile::{CompiledShader, HeaderGroups};
use crate::description::{DispatchDescription, check_scalars, kernel_scalar};
use crate::device::{Gpu, lock};
use crate::families::describe_kernel;
use crate::operand::{BufferRef, DeviceOperands, UncheckedOperand};
use crate::status::CheckHistory;
use pellucid_ir::backend::{Buffer, CompiledPlan, LaunchFailure, Storage};
use pellucid_ir::kernel::Kernel;
use pellucid_ir::plan::{Launch, Plan, SlotRole};
use pellucid_ir::{Error, Result};
use std::sync::{Arc, Mutex};

/// The number of bind groups that a plan keeps for each list of its buffers.
const KEPT_GROUPS: usize = 4;

/// A plan whose operands have been checked and whose shaders are compiled.
pub(crate) struct WgpuPlan {
    gpu: Arc<Gpu>,
    slots: Vec<SlotUse>,
    dispatches: Vec<PlanDispatch>,
    /// The bytes that a launch reads and writes.
    bytes: usize,
    headers: HeaderGroups,
    scratch: Vec<DeviceMemory>,
    /// The launch of each check.
    checks: Vec<usize>,
    state: Mutex<LaunchState>,
}

/// The state that launches change.
struct LaunchState {
    /// Whether a launch has succeeded.
    launched: bool,
    groups: Vec<PlanGroup>,
    /// The epoch that the last launch stored in each slot.
    epochs: Vec<u64>,
}

/// How the kernels of a plan use a slot.
#[derive(Clone, Default)]
struct SlotUse {
    /// The minimum size of the buffer.
    bytes: usize,
    is_used: bool,
    /// Whether only the plan uses the slot.
    is_own: bool,
    /// Whether the first kernel that uses the slot reads it. The buffer must then have values before the launch.
    is_read_first: bool,
    /// The number of checks before the last kernel that writes the slot, if a kernel does.
    written: Option<u32>,
}

/// A dispatch with the offset of its parameters and the number of its group of buffers.
struct PlanDispatch {
    shader: Arc<CompiledShader>,
    offset: u32,
    group: usize,
    groups: [u32; 2],
}

/// A buffer of a dispatch.
#[derive(Clone, Copy, PartialEq)]
enum PlanBuffer {
    Slot(usize),
    Scratch(usize),
}

/// The buffers of a bind group, and the bind groups for the last memory of these buffers.
struct PlanGroup {
    layout: wgpu::BindGroupLayout,
    buffers: Vec<PlanBuffer>,
    /// The oldest comes first.
    kept: Vec<(Vec<wgpu::Buffer>, wgpu::BindGroup)>,
}

impl SlotUse {
    /// Registers the operands of a kernel that use slot `slot`. `checks` is the number of checks up to this kernel.
    fn register(&mut self, launch: &Launch, slot: usize, checks: u32) {
        let state_outputs = launch.kernel.info().state_outputs;
        let mut read = launch.inputs.iter().chain(launch.outputs.iter().take(state_outputs));
        let is_read = read.any(|o| o.slot == slot && o.layout.shape().size() > 0);
        self.is_read_first |= is_read && !self.is_used;
        self.is_used = true;
        if launch.outputs.iter().any(|o| o.slot == slot) {
            self.written = Some(checks);
        }
    }
}

/// A plan under construction.
struct PlanBuilder<'a> {
    gpu: &'a Arc<Gpu>,
    slots: Vec<SlotUse>,
    dispatches: Vec<PlanDispatch>,
    groups: Vec<PlanGroup>,
    parameters: Vec<u8>,
    /// The bytes that all kernels read and write.
    bytes: usize,
    /// The largest size of the parameters of a dispatch.
    window: usize,
    /// The sizes of the scratch buffers, which all kernels share, because they run one after another.
    scratch: Vec<usize>,
    /// The number of launches so far.
    launches: usize,
    /// The launch of each check.
    checks: Vec<usize>,
}

impl<'a> PlanBuilder<'a> {
    fn new(gpu: &'a Arc<Gpu>, plan: &Plan) -> PlanBuilder<'a> {
        let slot = |(slot, &bytes): (usize, &usize)| {
            let is_own = plan.role(slot) == SlotRole::Own;
            SlotUse { bytes, is_own, ..SlotUse::default() }
        };
        let slots = plan.slots.iter().enumerate().map(slot).collect();
        let (dispatches, groups, parameters, scratch, checks) = Default::default();
        PlanBuilder { gpu, slots, dispatches, groups, parameters, bytes: 0, window: 4, scratch, launches: 0, checks }
    }

    /// Checks the operands of a launch and adds its dispatches.
    fn add(&mut self, launch: &Launch) -> Result<()> {
        let op = launch.kernel.name();
        let operands = || launch.inputs.iter().chain(&launch.outputs);
        let missing = || Error::invalid(op, "an operand is in a slot that does not exist");
        let unchecked: Vec<UncheckedOperand<'_, usize>> = operands()
            .map(|o| {
                let bytes = self.slots.get(o.slot).ok_or_else(missing)?.bytes;
                Ok(UncheckedOperand { identity: o.slot, bytes, layout: &o.layout, dtype: o.dtype })
            })
            .collect::<Result<_>>()?;
        let checked = DeviceOperands::new(&launch.kernel, &unchecked, launch.inputs.len())?;
        if !launch.is_sound() {
            return Err(Error::invalid(op, "an output overlaps another operand that it must not overwrite"));
        }
        let description = describe_kernel(self.gpu, &launch.kernel, &checked)?;
        check_scalars(&launch.kernel, &description)?;
        self.checks.extend(std::iter::repeat_n(self.launches, description.checks as usize));
        self.launches += 1;
        self.bytes += description.bytes;
        for slot in operands().map(|o| o.slot) {
            self.slots[slot].register(launch, slot, self.checks.len() as u32);
        }
        self.scratch.resize(self.scratch.len().max(description.scratch.len()), 0);
        for (size, &bytes) in self.scratch.iter_mut().zip(&description.scratch) {
            *size = bytes.max(*size);
        }
        let slot = |operand: usize| unchecked[operand].identity;
        description.dispatches.iter().try_for_each(|dispatch| self.add_dispatch(&launch.kernel, dispatch, slot))
    }

    /// Adds a dispatch of a kernel. `slot` returns the slot of an operand.
    fn add_dispatch(
        &mut self,
        kernel: &Kernel,
        dispatch: &DispatchDescription,
        slot: impl Fn(usize) -> usize,
    ) -> Result<()> {
        let DispatchDescription { shader, parameters, buffers, groups } = dispatch;
        self.parameters.resize(self.parameters.len().next_multiple_of(self.gpu.parameter_alignment()), 0);
        let offset = self.parameters.len();
        parameters.append_bytes(&mut self.parameters, |index| kernel_scalar(kernel, index));
        self.window = self.window.max(self.parameters.len() - offset);
        let buffer = |buffer: &BufferRef| match *buffer {
            BufferRef::Operand(k) => PlanBuffer::Slot(slot(k)),
            BufferRef::Scratch(k) => PlanBuffer::Scratch(k),
        };
        let buffers: Vec<PlanBuffer> = buffers.iter().map(buffer).collect();
        let known = self.groups.iter().position(|g| g.layout == shader.operands && g.buffers == buffers);
        let group = known.unwrap_or_else(|| {
            self.groups.push(PlanGroup { layout: shader.operands.clone(), buffers, kept: Vec::new() });
            self.groups.len() - 1
        });
        let too_many = |_| Error::invalid(kernel.name(), "the plan has too many kernels");
        let offset = u32::try_from(offset).map_err(too_many)?;
        self.dispatches.push(PlanDispatch { shader: shader.clone(), offset, group, groups: *groups });
        Ok(())
    }

    /// Writes the parameters and allocates the scratch memory.
    fn finish(self) -> Result<WgpuPlan> {
        let PlanBuilder { gpu, slots, dispatches, groups, mut parameters, bytes, window, scratch, checks, .. } = self;
        // The window of the last parameters must be within the buffer.
        parameters.resize(parameters.len() + window, 0);
        let headers = gpu.create_headers(&parameters, window)?;
        let scratch = scratch.iter().map(|&bytes| DeviceMemory::allocate(gpu, bytes)).collect::<Result<_>>()?;
        let state = LaunchState { launched: false, groups, epochs: vec![0; slots.len()] };
        Ok(WgpuPlan { gpu: gpu.clone(), slots, dispatches, bytes, headers, scratch, checks, state: Mutex::new(state) })
    }
}

impl WgpuPlan {
    /// Checks all operands of a plan, compiles its shaders and allocates its scratch memory.
    ///
    /// # Errors
    /// If an operand exceeds its slot, an output overlaps another operand and the kernel does not allow it, a kernel
    /// refuses its operands, a shader does not compile, or an allocation fails.
    pub(crate) fn new(gpu: &Arc<Gpu>, plan: &Plan) -> Result<WgpuPlan> {
        let mut builder = PlanBuilder::new(gpu, plan);
        plan.launches.iter().try_for_each(|launch| builder.add(launch))?;
        builder.finish()
    }

    /// Returns the buffer of every slot, or `None` if the slot is unused. Allocates memory for slots whose first use is
    /// a write.
    fn slot_buffers<'a>(&self, slots: &'a [Arc<Storage>]) -> Result<Vec<Option<(&'a WgpuBuffer, wgpu::Buffer)>>> {
        if slots.len() < self.slots.len() {
            let reason = format!("the plan has {} slots, got {}", self.slots.len(), slots.len());
            return Err(Error::invalid("launch", reason));
        }
        let buffer = |(slot, storage): (&SlotUse, &'a Arc<Storage>)| {
            if !slot.is_used {
                return Ok(None);
            }
            let buffer = device_buffer("launch", &self.gpu, storage)?;
            if buffer.bytes() < slot.bytes {
                let reason = format!("a slot needs {} bytes, got a buffer of {} bytes", slot.bytes, buffer.bytes());
                return Err(Error::invalid("launch", reason));
            }
            if slot.is_read_first && !buffer.is_allocated() {
                let reason = "an operand that the plan reads has no memory, because it has never been written";
                return Err(Error::invalid("launch", reason));
            }
            Ok(Some((buffer, buffer.ensure()?)))
        };
        self.slots.iter().zip(slots).map(buffer).collect()
    }

    /// Returns an error if a slot that the plan reads is known to have no values. The plan computes all values of its own
    /// slots that it reads, except for those that kernels of the caller wrote.
    fn check_computed(
        &self,
        state: &LaunchState,
        history: &CheckHistory,
        buffers: &[Option<(&WgpuBuffer, wgpu::Buffer)>],
    ) -> Result<()> {
        for ((slot, &epoch), buffer) in self.slots.iter().zip(&state.epochs).zip(buffers) {
            let Some((buffer, _)) = buffer else { continue };
            let is_renewed = slot.is_own && buffer.epoch() == epoch;
            if slot.is_read_first && !is_renewed && history.is_skipped(buffer.epoch()) {
                return Err(Error::NotComputed { op: "launch" });
            }
        }
        Ok(())
    }

    /// Stores the epoch in the buffers that have no values if the kernels of the launch are skipped: the plan's own, and
    /// those that it writes without having read them. All others then keep their values.
    fn mark_written(&self, state: &mut LaunchState, first: u64, buffers: &[Option<(&WgpuBuffer, wgpu::Buffer)>]) {
        for ((slot, epoch), buffer) in self.slots.iter().zip(&mut state.epochs).zip(buffers) {
            let (Some((buffer, _)), Some(checks)) = (buffer, slot.written) else { continue };
            if slot.is_own || !slot.is_read_first {
                *epoch = first + u64::from(checks);
                buffer.set_epoch(*epoch);
            }
        }
    }

    /// Encodes and submits all dispatches.
    fn submit(&self, groups: &mut [PlanGroup], buffers: &[Option<(&WgpuBuffer, wgpu::Buffer)>]) -> Result<()> {
        let gpu = &*self.gpu;
        gpu.scoped("launch", || {
            let groups: Vec<&wgpu::BindGroup> =
                groups.iter_mut().map(|group| group.bind(gpu, &self.scratch, buffers)).collect();
            let mut encoder = gpu.device().create_command_encoder(&Default::default());
            let mut pass = encoder.begin_compute_pass(&Default::default());
            let mut bound = None;
            for dispatch in &self.dispatches {
                pass.set_pipeline(&dispatch.shader.pipeline);
                pass.set_bind_group(0, self.headers.group(&dispatch.shader), &[dispatch.offset]);
                if bound != Some(dispatch.group) {
                    pass.set_bind_group(1, groups[dispatch.group], &[]);
                    bound = Some(dispatch.group);
                }
                pass.dispatch_workgroups(dispatch.groups[0], dispatch.groups[1], 1);
            }
            drop(pass);
            gpu.queue().submit([encoder.finish()]);
        })?;
        gpu.counters().submissions.add(1);
        gpu.counters().dispatches.add(self.dispatches.len());
        gpu.counters().bytes.add(self.bytes);
        Ok(())
    }
}

impl PlanGroup {
    /// Returns the bind group for the memory of the buffers, which is created if it is not kept.
    fn bind(
        &mut self,
        gpu: &Gpu,
        scratch: &[DeviceMemory],
        slots: &[Option<(&WgpuBuffer, wgpu::Buffer)>],
    ) -> &wgpu::BindGroup {
        let memory = |buffer: &PlanBuffer| match *buffer {
            PlanBuffer::Slot(slot) => slots[slot].as_ref().map(|(_, memory)| memory),
            PlanBuffer::Scratch(k) => Some(scratch[k].raw()),
        };
        let PlanGroup { layout, buffers, kept } = self;
        let now = || buffers.iter().map(memory);
        let is_bound = |kept: &[wgpu::Buffer]| kept.iter().zip(now()).all(|(a, b)| b.is_some_and(|b| b == a));
        let known = kept.iter().position(|(kept, _)| is_bound(kept));
        let at = known.unwrap_or_else(|| {
            let buffers: Vec<wgpu::Buffer> = now().flatten().cloned().collect();
            let group = gpu.operand_group(layout, &buffers);
            if kept.len() == KEPT_GROUPS {
                kept.remove(0);
            }
            kept.push((buffers, group));
            kept.len() - 1
        });
        &kept[at].1
    }
}

impl CompiledPlan for WgpuPlan {
    fn launch(&self, slots: &[Arc<Storage>]) -> Result<(), LaunchFailure> {
        self.run(slots)
    }
}

impl WgpuPlan {
    /// Submits all kernels of the plan.
    fn run(&self, slots: &[Arc<Storage>]) -> Result<(), LaunchFailure> {
        let before_all = LaunchFailure::before_all;
        let mut state = lock(&self.state);
        let buffers = self.slot_buffers(slots).map_err(before_all)?;
        let mut recorded = lock(&self.gpu.recorded);
        let is_first = !state.launched;
        if is_first {
            // An earlier plan may have computed constants of this one, and would not run again.
            self.gpu.confirm_checks(&mut recorded).map_err(before_all)?;
        }
        self.check_computed(&state, &recorded.history, &buffers).map_err(before_all)?;
        self.gpu.submit(&mut recorded).map_err(before_all)?;
        self.submit(&mut state.groups, &buffers).map_err(before_all)?;
        let first = recorded.history.epoch();
        recorded.history.advance(self.checks.len() as u32);
        self.mark_written(&mut state, first, &buffers);
        if is_first {
            self.gpu.confirm_checks(&mut recorded).map_err(|error| {
                let failed = recorded.history.last_failure().and_then(|epoch| epoch.checked_sub(first + 1));
                let launch = failed.and_then(|check| self.checks.get(check as usize));
                LaunchFailure { launch: launch.copied().unwrap_or(0), error }
            })?;
            state.launched = true;
        }
        Ok(())
    }
}
