//! Plans prepared for repeated launches.
//!
//! All operands are checked, all kernels compiled and all parameters written once. A launch passes the buffers of the
//! slots to the API, which runs all dispatches with them and with the scratch memory of the plan.
//!
//! The API submits the dispatches up to the last check of indices before the others. The host waits for the former,
//! while the device runs the latter.

use crate::api::{ComputeApi, PlanBuffer, PlannedDispatch, PlannedDispatches};
use crate::buffer::{DeviceMemory, GpuBuffer, UnwrittenBuffers};
use crate::description::{DispatchDescription, check_scalars, kernel_scalar};
use crate::families::describe_kernel;
use crate::gpu::Gpu;
use crate::operand::{DeviceOperands, UncheckedOperand};
use crate::operand_memory::device_buffer;
use crate::shader::BufferRef;
use pellucid_ir::backend::{BorrowedSlots, Buffer, CheckedPlan, CompiledPlan, LaunchFailure, Storage};
use pellucid_ir::kernel::Kernel;
use pellucid_ir::plan::{Launch, SlotAccess, SlotUse, slot_access};
use pellucid_ir::{Error, Result, lock};
use std::sync::{Arc, Mutex};

/// A plan whose operands have been checked and whose kernels are compiled.
pub(crate) struct GpuPlan<A: ComputeApi> {
    gpu: Arc<Gpu<A>>,
    work: PlanWork,
    prepared: Mutex<A::Prepared>,
    /// The memory of the scratch buffers that the prepared dispatches use.
    _scratch: Vec<DeviceMemory<A>>,
}

/// The slots of a plan and the work of a launch.
#[derive(Default)]
struct PlanWork {
    slots: Vec<SlotUse>,
    access: Vec<SlotAccess>,
    /// The bytes that all kernels read and write.
    bytes: usize,
    /// The index of the launch to which each check belongs.
    check_launches: Vec<usize>,
}

/// A plan under construction.
struct PlanBuilder<A: ComputeApi> {
    work: PlanWork,
    planned: PlannedDispatches<A::Kernel, A::Memory>,
    /// The sizes of the scratch buffers, which all kernels share, because they run one after another.
    scratch: Vec<usize>,
    /// The number of launches so far.
    launches: usize,
}

impl<A: ComputeApi> PlanBuilder<A> {
    /// Creates a plan without dispatches.
    fn new(plan: &CheckedPlan<'_>) -> Result<PlanBuilder<A>> {
        let (slots, access) = (SlotUse::from_plan(plan)?, slot_access(plan.slots.len(), &plan.launches));
        let (dispatches, parameters, scratch) = Default::default();
        let planned = PlannedDispatches { dispatches, checked: 0, parameters, window: 4, scratch };
        let work = PlanWork { slots, access, ..Default::default() };
        Ok(PlanBuilder { work, planned, scratch: Vec::new(), launches: 0 })
    }

    /// Checks the operands of a launch and adds its dispatches.
    fn add(&mut self, gpu: &Gpu<A>, launch: &Launch) -> Result<()> {
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
            self.planned.checked = self.planned.dispatches.len();
        }
        Ok(())
    }

    /// Adds a dispatch of a kernel. `slot` returns the slot of an operand.
    fn add_dispatch(
        &mut self,
        gpu: &Gpu<A>,
        kernel: &Kernel,
        dispatch: &DispatchDescription<A>,
        slot: impl Fn(usize) -> usize,
    ) -> Result<()> {
        let PlannedDispatches { dispatches, parameters, window, .. } = &mut self.planned;
        parameters.resize(parameters.len().next_multiple_of(gpu.api.limits().parameter_alignment), 0);
        let offset = parameters.len();
        dispatch.parameters.append_bytes(parameters, |index| kernel_scalar(kernel, index));
        *window = (*window).max(parameters.len() - offset);
        let buffer = |buffer: &BufferRef| match *buffer {
            BufferRef::Operand(k) => PlanBuffer::Slot(slot(k)),
            BufferRef::Scratch(k) => PlanBuffer::Scratch(k),
        };
        let too_many = |_| {
            Error::invalid(
                kernel.name(),
                "the parameters of the plan exceed 4 GiB; split the captured step into shorter ones",
            )
        };
        let (kernel, offset) = (dispatch.kernel.clone(), u32::try_from(offset).map_err(too_many)?);
        let buffers = dispatch.buffers.iter().map(buffer).collect();
        dispatches.push(PlannedDispatch { kernel, offset, buffers, groups: dispatch.groups });
        Ok(())
    }

    /// Allocates the scratch memory and prepares the dispatches.
    fn finish(self, gpu: &Arc<Gpu<A>>) -> Result<GpuPlan<A>> {
        let PlanBuilder { work, mut planned, scratch, .. } = self;
        let allocated = scratch.iter().map(|&bytes| DeviceMemory::allocate(gpu, bytes));
        let scratch: Vec<DeviceMemory<A>> = allocated.collect::<Result<_>>()?;
        planned.scratch = scratch.iter().map(|memory| memory.raw().clone()).collect();
        let prepared = Mutex::new(gpu.api.prepare(planned)?);
        Ok(GpuPlan { gpu: gpu.clone(), work, prepared, _scratch: scratch })
    }
}

impl<A: ComputeApi> GpuPlan<A> {
    /// Compiles the kernels of a plan and allocates its scratch memory.
    ///
    /// # Errors
    /// Returns an error if an operand exceeds its slot, if a text does not compile, or if an allocation fails.
    pub(crate) fn new(gpu: &Arc<Gpu<A>>, plan: CheckedPlan<'_>) -> Result<GpuPlan<A>> {
        let mut builder = PlanBuilder::new(&plan)?;
        plan.launches.iter().try_for_each(|launch| builder.add(gpu, launch))?;
        builder.finish(gpu)
    }

    /// Returns the buffer of every slot, or `None` if the slot is unused.
    fn slot_buffers<'a>(&self, slots: &'a [Arc<Storage>]) -> Result<Vec<Option<&'a GpuBuffer<A>>>> {
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
    fn run(&self, buffers: &[Option<&GpuBuffer<A>>]) -> Result<(), LaunchFailure> {
        let (before_all, gpu) = (LaunchFailure::before_all, &self.gpu);
        let mut prepared = lock(&self.prepared);
        let memory = buffers.iter().map(|slot| slot.map(GpuBuffer::ensure).transpose());
        let memory: Vec<Option<A::Memory>> = memory.collect::<Result<_>>().map_err(before_all)?;
        // Until the checks are confirmed, no other thread submits work, which a failed check would skip.
        let mut recorded = lock(&gpu.recorded);
        recorded.submit(&gpu.api).map_err(before_all)?;
        let launched = gpu.api.launch(&mut prepared, &memory);
        if launched.is_ok() {
            gpu.api.counters().bytes.add(self.work.bytes);
        }
        let Some(copied) = launched.transpose() else { return Ok(()) };
        let check_launches = &self.work.check_launches;
        let confirmed = recorded.confirm(&gpu.api, &gpu.operations, check_launches.len(), copied);
        confirmed.map_err(|failed| match failed.passed.and_then(|passed| check_launches.get(passed as usize)) {
            Some(&launch) => LaunchFailure::new(launch, failed.error),
            None => LaunchFailure::unknown(failed.error),
        })
    }
}

impl<A: ComputeApi> CompiledPlan for GpuPlan<A> {
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
